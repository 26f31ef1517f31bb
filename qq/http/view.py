"""What the HTTP interface needs to know of the node: data and one protocol, which the node implements.

Law: what a view returns is a copy of the moment. The interface reads it after it has let other tasks run.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


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
    messages_ready: int
    messages_unacknowledged: int
    consumers: int


class NodeView(Protocol):
    """The node behind the HTTP interface."""

    def cluster_status(self) -> ClusterStatus: ...

    def queues(self) -> Sequence[QueueStatus]: ...

    def ready(self) -> str | None:
        """Say why the node does not serve clients (under repair, no leader, no listener); None if it does."""
        ...

    async def authenticate(self, user: str, password: str) -> bool:
        """Check the password against the replicated users, off the event loop."""
        ...
