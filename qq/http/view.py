"""What the HTTP interface needs to know of the node: data and two protocols, which others implement.

Law: what a view returns is a copy of the moment. The interface reads it after it has let other tasks run.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from pamqp.commands import Basic

    from qq.machine.policies import Policy


class Unavailable(Exception):
    """A change was not applied in time; it may still be."""


class NodeState(StrEnum):
    """A member of the cluster as this node sees it."""

    LEADER = "leader"
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    DOWN = "down"
    UNKNOWN = "unknown"  # connected, and has not told its state yet


class NodeStatus(NamedTuple):
    """One member of the cluster; None where this node does not know."""

    name: str
    state: NodeState
    standing: str | None = None
    """"voter"; "learner" and "blank" for a node whose log is being repaired: it has no say yet."""
    term: int | None = None
    first_index: int | None = None
    """Where its log begins; of what is older it keeps the messages that are in a queue, and the state."""
    last_index: int | None = None
    commit_index: int | None = None
    applied_index: int | None = None
    checkpoint_index: int | None = None
    disk_free_bytes: int | None = None
    alarm: bool | None = None
    """Its disk is full, or nearly so."""


class ClusterStatus(NamedTuple):
    """The cluster as `node` sees it."""

    cluster: str
    node: str
    leader: str | None
    nodes: Sequence[NodeStatus]


class QueueStatus(NamedTuple):
    """One queue; the fields have the names that tools for RabbitMQ read."""

    name: str
    vhost: str
    type: str
    durable: bool
    exclusive: bool
    auto_delete: bool
    arguments: Mapping[str, Any]
    policy: str | None
    operator_policy: str | None
    effective_policy_definition: Mapping[str, Any]
    state: str
    """"running", or "minority" while no leader is known."""
    node: str | None
    """The leader, here and next: every queue has the cluster's."""
    leader: str | None
    members: Sequence[str]
    online: Sequence[str]
    consumers: int
    consumer_capacity: float
    """In how much of the last seconds a message would have been delivered at once, 0 to 1."""
    consumer_utilisation: float
    """The same, under its older name."""
    single_active_consumer_tag: str | None
    delivery_limit: int | str
    """"unlimited" if there is none."""
    messages: int
    """All of them: ready, unacknowledged, delayed and dead."""
    messages_ready: int
    messages_unacknowledged: int
    messages_delayed: int
    messages_dlx: int
    """Dead ones that are on their way to another queue."""
    message_bytes: int
    """Of the three below together, as stored."""
    message_bytes_ready: int
    message_bytes_unacknowledged: int
    message_bytes_delayed: int
    message_stats: Mapping[str, Any]
    """Counts since the node began, and for each NAME its rate as NAME_details."""


class ConsumerStatus(NamedTuple):
    """One consumer; the fields have the names that tools for RabbitMQ read."""

    consumer_tag: str
    queue: Mapping[str, str]
    channel_details: Mapping[str, Any]
    ack_required: bool
    exclusive: bool
    prefetch_count: int
    """0 is no limit."""
    active: bool
    activity_status: str
    """"up"; of a queue with a single active consumer "single_active" or "waiting"."""
    arguments: Mapping[str, Any]


class Message(NamedTuple):
    """A message that was read where it lies in its queue."""

    offset: int
    """How many ready messages were before it."""
    exchange: str
    routing_key: str
    redelivered: bool
    properties: Basic.Properties
    body: bytes


class Deduplication(NamedTuple):
    """How many publishers are remembered, and for how long after their last message."""

    limit: int
    age_ms: int


class NodeView(Protocol):
    """The node behind the HTTP interface."""

    def cluster_status(self) -> ClusterStatus: ...

    def ready(self) -> str | None:
        """Say why the node does not serve clients (under repair, no leader, no listener); None if it does."""
        ...

    async def authenticate(self, user: str, password: str) -> Collection[str] | None:
        """The tags of a user, if this is the password; None if not."""
        ...


class Management(Protocol):
    """The broker behind the HTTP interface. What changes something returns when this node has applied it.

    It raises Unavailable if that does not happen in time.
    """

    @property
    def vhost(self) -> str: ...

    def queues(self) -> Iterator[QueueStatus]:
        """Those that there are now, each as it is when its turn comes."""
        ...

    def queue(self, name: str) -> QueueStatus | None: ...

    def consumers(self) -> Iterator[ConsumerStatus]:
        """Those that there are now, each as it is when its turn comes."""
        ...

    async def browse(self, queue: str, offset: int, count: int, bytes_max: int) -> Sequence[Message] | None:
        """Read ready messages where they are, from the `offset`-th on; None if there is no such queue.

        At most `count`, with at most `bytes_max` octets of bodies, but one message at least, if there is any.
        """
        ...

    def policies(self, *, operator: bool) -> Sequence[Policy]: ...

    async def put_policy(self, policy: Policy) -> bool:
        """Let a valid policy hold, in the place of the one with its name; whether it is a new one."""
        ...

    async def delete_policy(self, name: str, *, operator: bool) -> bool:
        """Whether there was one."""
        ...

    def deduplication(self) -> Deduplication: ...

    async def set_deduplication(self, bounds: Deduplication) -> None: ...
