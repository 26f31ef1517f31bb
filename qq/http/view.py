"""Interface between the HTTP interface and the node: plain data and protocols, implemented by the node and management.

Values of the machine (users, permissions, policies, operators' commands) are used as they are.

Invariant: a view returns copies. The HTTP interface reads them after other tasks have run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Hashable, Iterable, Iterator
    from contextlib import AbstractAsyncContextManager

    from pamqp.commands import Basic

    from cluster.configuration.change_request import MemberChange
    from cluster.membership.health import Verdict
    from qq.diagnosis.findings import Diagnosis
    from qq.machine.catalog.permissions import Permissions, TopicPermissions, User
    from qq.machine.policy.policies import Policy
    from qq.machine.protocol.commands import BeginMove, Change, Declaration, Get, Table
    from qq.scopes import Scopes


NOT_CARRIED_OUT = "not carried out"
UNKNOWN = "outcome unknown: it may still be carried out"
"""Known outcome of an abandoned request, at the end of the text of `Unavailable`."""


class Unavailable(Exception):
    """A change was not applied in time, and may still be applied; or a login could not be decided."""


class LoggedIn(NamedTuple):
    """A user who has logged in."""

    user: str
    tags: Collection[str]
    scopes: Scopes | None = None
    """Scopes of the user's OAuth 2 token; None if the user is in the cluster's list."""
    expires_s: float = inf
    """When the token expires, in seconds since 1970; infinite without a token."""


class WebLogin(NamedTuple):
    """A valid web session: a login with the page."""

    token: str
    """Session token: the browser keeps it and sends it with each request."""
    user: str
    tags: Collection[str]
    csrf_token: str
    expires_s: int
    """When the session expires, in seconds since 1970."""
    scopes: Scopes | None = None
    """Scopes of the OAuth 2 token that began the session; None if the user is in the cluster's list."""


class LoginRound(NamedTuple):
    """A login at the issuer's page, from its beginning until the browser returns."""

    redirect_uri: str
    """URL to which the issuer sends the browser back."""
    state: str
    nonce: str
    verifier: str
    """The `code_verifier` of PKCE (RFC 7636)."""


class LoginRefused(Exception):  # named for what it is
    """A login failed, for this reason."""


class LoginProvider(Protocol):
    """An issuer of tokens with a login page (OpenID Connect)."""

    @property
    def client_id(self) -> str: ...

    @property
    def issuer(self) -> str: ...

    async def login_address(self, login: LoginRound, /) -> str:
        """Return the URL of the issuer's login page. Raises Unavailable."""
        ...

    async def redeem(self, code: str, login: LoginRound, /) -> str:
        """Exchange the code that the browser brought back for an access token. Raises LoginRefused, Unavailable."""
        ...


class LoginThrottled(Exception):
    """Too many logins fail at the moment, so the client should try again later."""

    def __init__(self, retry_after_s: float) -> None:
        self.retry_after_s = retry_after_s
        super().__init__("too many logins fail")


class RequestRefused(Exception):
    """The broker refuses a request, as it would refuse an AMQP client, with an AMQP reply code."""

    def __init__(self, code: int, explanation: str, done: int = 0) -> None:
        """`done` is the number of commands of the request that were carried out."""
        self.code = code
        self.explanation = explanation
        self.done = done
        super().__init__(explanation)


class AckMode(StrEnum):
    """Treatment of the messages that a get takes, in RabbitMQ's words."""

    ACK_REQUEUE_TRUE = "ack_requeue_true"
    ACK_REQUEUE_FALSE = "ack_requeue_false"
    REJECT_REQUEUE_TRUE = "reject_requeue_true"
    REJECT_REQUEUE_FALSE = "reject_requeue_false"


class NodeState(StrEnum):
    """State of a member of the cluster as this node sees it."""

    LEADER = "leader"
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    DOWN = "down"
    UNKNOWN = "unknown"  # connected, before its first report


class NodeStatus(NamedTuple):
    """Status of a member of the cluster; None for facts that this node does not know."""

    name: str
    state: NodeState
    standing: str | None = None
    """"voter"; "learner" or "blank" while the node's log is repaired, so that it has no vote yet."""
    term: int | None = None
    first_index: int | None = None
    """First index in its log. Of older entries the node keeps the state, and the messages that queues hold."""
    last_index: int | None = None
    commit_index: int | None = None
    applied_index: int | None = None
    checkpoint_index: int | None = None
    disk_free_bytes: int | None = None
    alarm: bool | None = None
    """Whether the node's disk is full or nearly full."""
    clock_offset_ms: int | None = None
    """Milliseconds that the node's wall clock is ahead of the cluster's time."""
    role: str | None = None
    """Role in the configuration of the log: "voter", "learner" or "awaited"."""
    versions: str | None = None
    """Versions of the state that the node's program can run."""
    drained: bool = False
    """Whether the node is under maintenance."""
    disk_hangs: bool | None = None
    """Whether a write of the node's disk hangs, so that the node acknowledges no entries."""
    misses: Sequence[str] | None = None
    """Members that the node has no link with or does not hear."""
    hears_leader: bool | None = None
    """Whether the node leads or hears the leader."""


class ClusterStatus(NamedTuple):
    """Status of the cluster as `node` sees it."""

    cluster: str
    node: str
    leader: str | None
    nodes: Sequence[NodeStatus]
    version: int
    """Version of the state that all members have agreed on."""


class ClusterMember(NamedTuple):
    """A member of the cluster, by the configuration in the log; None for unknown facts."""

    name: str
    host: str
    port: int
    """`host` and `port` are the address at which the members reach this member."""
    id: str | None
    """Id of the member's data directory, in hexadecimal."""
    role: str
    """"voter", "learner", or "awaited" until a data directory has taken the member's place."""
    state: NodeState
    lag: int | None
    """Number of entries of the log that the member lacks."""
    versions: str | None
    """Versions of the state that the member's program can run, such as "7 to 8" or "8"."""
    drained: bool
    """Whether the member is under maintenance."""


class RemovedMember(NamedTuple):
    """A removed member; `id` is empty if it was removed while it was awaited."""

    name: str
    id: str


class ClusterMembers(NamedTuple):
    """The members by the configuration in the log, as `node` sees it."""

    node: str
    cluster: str
    cluster_id: str | None
    """Id of the cluster; None while the members are defined by the list in each node's file."""
    version: int
    """Version of the state that all members have agreed on."""
    leader: str | None
    members: Sequence[ClusterMember]
    removed: Sequence[RemovedMember]
    """The members that were removed or replaced last, the newest at the end."""


class QueueStatus(NamedTuple):
    """A queue, with the field names that tools for RabbitMQ read."""

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
    """Leader of the cluster, which leads all queues; `leader` is the same."""
    leader: str | None
    members: Sequence[str]
    online: Sequence[str]
    consumers: int
    consumer_capacity: float
    """Share of the last seconds, from 0 to 1, in which a new message could be delivered at once."""
    consumer_utilisation: float
    """The same as `consumer_capacity`, under its older name."""
    exclusive_consumer_tag: str | None
    single_active_consumer_tag: str | None
    delivery_limit: int | str
    """Delivery limit of the queue, or "unlimited"."""
    messages: int
    """Messages of the queue in all states: ready, unacknowledged, delayed and dead-lettering."""
    messages_ready: int
    messages_unacknowledged: int
    messages_delayed: int
    messages_dlx: int
    """Dead-lettered messages on their way to their next queue."""
    message_bytes: int
    """Sum of the four sizes below, in bytes as stored."""
    message_bytes_ready: int
    message_bytes_unacknowledged: int
    message_bytes_delayed: int
    message_bytes_dlx: int
    messages_persistent: int
    """All messages, because all are on disk. So `messages_ram` is 0."""
    message_bytes_persistent: int
    messages_ram: int
    message_bytes_ram: int
    messages_details: Mapping[str, float]
    """Growth of the queue in messages per second, as `rate`."""
    messages_ready_details: Mapping[str, float]
    messages_unacknowledged_details: Mapping[str, float]
    owner_pid_details: Mapping[str, Any]
    """Connection that owns an exclusive queue, if it is connected to this node."""
    message_stats: Mapping[str, Any]
    """Counts since the node started, each NAME with its rate as NAME_details."""


Client = Mapping[str, Any]
"""A connection or a channel, with the field names that tools for RabbitMQ read. `node` and `id` identify it in the log;
the id is the number of the connection or of the channel's session.
"""


class ConnectionHead(NamedTuple):
    """Part of a connection that all nodes know at once, for connections of all nodes."""

    node: str
    id: int
    """`node` and `id` identify the connection in the log."""
    name: str
    vhost: str
    user: str


class ChannelHead(NamedTuple):
    """Part of a channel that all nodes know after its node has sent its name."""

    node: str
    id: int
    """`node` and `id` identify the channel in the log."""
    name: str
    vhost: str
    user: str
    connection: str
    """Name of its connection."""


class ThingRows(NamedTuple):
    """Objects of a kind that may be very numerous, with functions that compute their fields on demand."""

    things: Iterable[Any]
    fields: Mapping[str, Callable[[Any], Any]]
    """Field name in a status -> function that computes it."""
    parts: Mapping[str, Callable[[Any], Any]] = {}
    """Dotted name of a number inside of a field -> function that computes it more cheaply than the whole field."""


class ConsumerStatus(NamedTuple):
    """A consumer, with the field names that tools for RabbitMQ read."""

    consumer_tag: str
    queue: Mapping[str, str]
    channel_details: Mapping[str, Any]
    ack_required: bool
    exclusive: bool
    prefetch_count: int
    """Prefetch of the consumer; 0 for no limit."""
    active: bool
    activity_status: str
    """"up"; in a queue with a single active consumer, "single_active" or "waiting"."""
    arguments: Mapping[str, Any]
    messages_unacknowledged: int = 0
    """Messages delivered to the consumer and not yet settled."""
    credit: int | None = None
    """Number of further messages that it would take now; None for no limit."""


class Message(NamedTuple):
    """A message that was browsed in its queue or taken by a get."""

    offset: int
    """Number of ready messages before it in the queue; for a get, number of messages that the get took before."""
    exchange: str
    routing_key: str
    redelivered: bool
    properties: Basic.Properties
    body: bytes
    message_count: int | None = None
    """Number of ready messages left after a get; None for a browsed message."""


class NewMessage(NamedTuple):
    """A message to publish."""

    exchange: str
    routing_key: str
    properties: Basic.Properties
    body: bytes


class AllPublications(NamedTuple):
    """Publishing to an exchange with any routing key, as an argument of permission checks."""

    exchange: str


class PublicationRejected(Exception):
    """A message had no room in a queue, and was published to no queue."""


class Samples(NamedTuple):
    """Times of the requested samples: from `age_s` seconds ago on, every `step_s` seconds."""

    age_s: int
    step_s: int


class VhostStatus(NamedTuple):
    """A virtual host."""

    name: str
    description: str
    tags: Sequence[str]
    default_queue_type: str
    """Type of queues that are declared without a type; "" if the virtual host has no default of its own."""
    limits: Mapping[str, int]
    is_protected: bool = False
    """Whether it is protected from deletion."""


class ExchangeStatus(NamedTuple):
    """An exchange, with the field names that tools for RabbitMQ read."""

    name: str
    vhost: str
    type: str
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: Mapping[str, Any]
    policy: str | None


class BindingStatus(NamedTuple):
    """A binding, with the field names that tools for RabbitMQ read."""

    source: str
    vhost: str
    destination: str
    destination_type: str
    """"queue" or "exchange"."""
    routing_key: str
    arguments: Mapping[str, Any]
    properties_key: str
    """Text that distinguishes bindings with the same source and destination."""


class Listener(NamedTuple):
    """A port of a node."""

    protocol: str
    """"amqp", "amqp/ssl", "http", "clustering" or "clustering/ssl", as in RabbitMQ."""
    host: str
    port: int
    uses_tls: bool = False


class LoginCount(NamedTuple):
    """Logins of a protocol ("amqp091" or "http") that succeeded and failed since the last reset."""

    protocol: str
    succeeded: int
    failed: int


class NodeReport(NamedTuple):
    """Report of a node about itself. Plain data, so that nodes can send it to each other."""

    name: str
    pid: int
    uptime_ms: int
    processors: int
    run_queue: int
    """Threads of the whole machine that run or wait for a processor."""
    context_switches: int
    collections: int
    """Number of runs of the interpreter's garbage collector."""
    memory_bytes: int
    memory_limit_bytes: int
    memory_alarm: bool
    files: int
    files_max: int
    connections: int
    """Number of AMQP connections; `connections_max` is their limit."""
    connections_max: int
    connections_opened: int
    connections_closed: int
    channels_opened: int
    channels_closed: int
    disk_free_bytes: int
    disk_free_limit_bytes: int
    disk_alarm: bool
    log_bytes: int
    """Bytes of the log on the disk."""
    writes: int
    """Number of writes to the log, each with its sync; `write_ms` is their total time."""
    write_ms: float
    data_dir: str
    listeners: Sequence[Listener]
    logins: Sequence[LoginCount]


class ResourceAlarm(NamedTuple):
    """An alarm of a node: it is short of `resource`, "memory" or "disk"."""

    node: str
    resource: str


class CertificateFiles(NamedTuple):
    """The certificates of a port, as paths of PEM files."""

    protocol: str
    cert: str
    ca: str | None


class ObjectTotals(NamedTuple):
    """Numbers of objects."""

    consumers: int
    queues: int
    exchanges: int
    connections: int
    channels: int


class MoveStatus(NamedTuple):
    """A move of messages, with the visible fields of qq/machine/queue/moves.py."""

    vhost: str
    id: str
    user: str
    source: str
    destination: str
    """Queue that receives the messages; empty if each goes back to the queue where it was first dead-lettered."""
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here
    rate: int
    reason: str
    from_queue: str
    headers: Mapping[str, Any]
    begun_ms: int
    ready: int
    examined: int
    moved: int
    waits_for: str
    state: str
    error: str
    ended_ms: int


class ShovelStatus(NamedTuple):
    """A shovel of a virtual host."""

    vhost: str
    name: str
    text: str
    """Value of its parameter, as JSON."""
    value: Mapping[str, Any]
    node: str | None
    """Node that runs the shovel: the leader."""
    state: str
    """State in RabbitMQ's words: starting, running, blocked or terminated."""
    reason: str | None
    """Why it does not run; None if it runs or is about to run."""
    figures: Mapping[str, Any]
    """Further figures, such as the number of forwarded messages and the move that carries out the shovel."""


class ParameterStatus(NamedTuple):
    """A parameter of a virtual host."""

    vhost: str
    component: str
    name: str
    value: Any


class GlobalParameter(NamedTuple):
    """A parameter of the whole cluster."""

    name: str
    value: Any


class Product(NamedTuple):
    """Names that clients see: of the product and its version, and of the cluster."""

    name: str
    version: str
    cluster: str


class Deduplication(NamedTuple):
    """Number of publishers that each virtual host remembers, and how long after their last message."""

    limit: int
    age_ms: int


class ObjectMetric(NamedTuple):
    """A metric with a value for each object; its name is without the prefix."""

    name: str
    kind: str
    """"gauge" or "counter"."""
    text: str


ObjectRow = tuple[Sequence[str], Sequence[float | None]]
"""Values of an object's labels and metrics; a None value is left out."""


class ObjectRows(NamedTuple):
    """Some rows of a table, few enough to be made at once."""

    make: Callable[[], Iterable[ObjectRow]]
    key: Hashable = None
    """Identity of the rows, unique in all tables."""
    state: Any = None
    """The rows are unchanged while this is equal to its former value; None if they must always be made."""


class ObjectTable(NamedTuple):
    """Metrics of the objects of a kind, with a row for each object."""

    is_of_cluster: bool
    """Whether RabbitMQ shows them with the prefix `rabbitmq_cluster_`."""
    labels: Sequence[str]
    metrics: Sequence[ObjectMetric]
    parts: Iterable[ObjectRows]


class BackupView(Protocol):
    """A backup that is being sent; its files are kept until then."""

    def stream(self) -> AsyncIterator[bytes]:
        """Yield the backup as a tar archive, in parts of bounded size; it ends with SHA256SUMS, or with an error."""
        ...


class NodeView(Protocol):
    """The node behind the HTTP interface."""

    def cluster_status(self) -> ClusterStatus: ...

    def ready(self) -> str | None:
        """Return why the node does not serve clients (under repair, no leader, no listener), or None if it does."""
        ...

    def infos(self, endpoint: str) -> Mapping[str, tuple[str, Mapping[str, str]]]:
        """Return text and labels of the info metrics that identify this node, by their names after `rabbitmq_`.

        `endpoint` is RabbitMQ's name for the scraped path.
        """
        ...

    async def authenticate(self, user: str, password: str, peer_host: str) -> LoggedIn | None:
        """Return the user if the password or token is valid; None if not.

        It may take seconds, to slow down guessing. Raises LoginThrottled, Unavailable.
        """
        ...

    @property
    def takes_tokens(self) -> bool:
        """Return whether logins with OAuth 2 tokens are possible."""
        ...

    @property
    def login_provider(self) -> LoginProvider | None:
        """Return the issuer whose page also logs in to the management page, or None."""
        ...


class RoomView(Protocol):
    """Counts claimed objects on top of existing objects, and refuses a claim that exceeds a limit."""

    def loosened(self, vhost: str) -> Table:
        """Return the limits given to `ManagementView.room` for a virtual host that exceed the present limits."""
        ...

    def change(self, change: Change) -> None:
        """Claim room for the objects that a change adds. Raises RequestRefused, naming the limit."""
        ...

    def declaration(self, vhost: str, declaration: Declaration) -> None:
        """Claim room for the objects that a declaration adds. Raises RequestRefused, naming the limit."""
        ...


class ManagementView(Protocol):
    """The broker behind the HTTP interface.

    Methods that change state return when this node has applied the change. They raise Unavailable if that takes too
    long.
    """

    def has_vhost(self, name: str) -> bool: ...

    def queues(self, vhost: str | None) -> Iterator[QueueStatus]:
        """Yield the queues that exist now, of all virtual hosts or of `vhost`, each in its state at that moment."""
        ...

    def queue(self, vhost: str, name: str) -> QueueStatus | None: ...

    def object_tables(
        self, families: Collection[str], vhosts: Collection[str] | None
    ) -> Iterator[ObjectTable]:
        """Yield the metrics of objects by RabbitMQ's names of their families, of some virtual hosts or of all.

        The leader alone shows metrics that are equal at all nodes.
        """
        ...

    def consumers(self, vhost: str | None) -> Iterator[ConsumerStatus]:
        """Yield the consumers that exist now, of all virtual hosts or of `vhost`, each in its state at that moment."""
        ...

    def consumers_of_queue(self, vhost: str, name: str) -> Iterator[ConsumerStatus]: ...

    def consumers_of_channel(self, channel: Client) -> Iterator[ConsumerStatus]: ...

    def queue_rows(self, vhost: str | None) -> ThingRows:
        """Return the queues of all virtual hosts or of `vhost`, with the fields of `QueueStatus`."""
        ...

    async def queues_by_name(self, is_seen: Callable[[str], bool]) -> ThingRows:
        """Return the queues of the visible virtual hosts, a sequence sorted by `vhost` and `name`."""
        ...

    async def bindings_in_order(self, is_seen: Callable[[str], bool]) -> ThingRows:
        """Return the bindings of the visible virtual hosts, a sequence in RabbitMQ's order."""
        ...

    def binding_rows(
        self, vhost: str | None, source: str | None = None, destination: tuple[str, str] | None = None
    ) -> ThingRows:
        """Return the same bindings as `bindings`, with the fields of `BindingStatus`."""
        ...

    async def browse(
        self, vhost: str, queue: str, offset: int, count: int, bytes_max: int
    ) -> Sequence[Message] | None:
        """Read ready messages from position `offset` on without taking them; return None if the queue does not exist.

        Return at most `count` messages with at most `bytes_max` octets of bodies in all, but at least a single message
        if there is any.
        """
        ...

    async def get(
        self,
        vhost: str,
        queue: str,
        user: str,
        count: int,
        ack_mode: AckMode,
        scopes: Scopes | None = None,
    ) -> Sequence[Message]:
        """Take up to `count` ready messages as a client of that user would. Raises RequestRefused."""
        ...

    async def publish(
        self, vhost: str, user: str, publication: NewMessage, scopes: Scopes | None = None
    ) -> bool:
        """Publish a message as a client of that user would; return whether it was routed to a queue.

        Raises RequestRefused, Unavailable; PublicationRejected if a queue has no room.
        """
        ...

    # State

    def product(self) -> Product: ...

    def vhosts(self) -> Sequence[VhostStatus]: ...

    def has_user(self, name: str) -> bool: ...

    def users(self) -> Mapping[str, User]: ...

    def user_limits(self) -> Mapping[str, Mapping[str, int]]:
        """Return the limits of each user that has limits."""
        ...

    def permissions(self) -> Sequence[Permissions]: ...

    def topic_permissions(self) -> Sequence[TopicPermissions]: ...

    def policies(self, vhost: str | None, *, operator: bool) -> Sequence[tuple[str, Policy]]:
        """Return all policies, each with its virtual host."""
        ...

    def is_declared(self, vhost: str, declaration: Declaration) -> bool:
        """Return whether the queue or exchange that the command declares exists already."""
        ...

    def exchanges(self, vhost: str | None, name: str | None = None) -> Iterator[ExchangeStatus]:
        """Yield the exchanges that exist now, or only the exchange with this name."""
        ...

    def bindings(
        self,
        vhost: str | None,
        source: str | None = None,
        destination: tuple[str, str] | None = None,
    ) -> Iterator[BindingStatus]:
        """Yield the bindings that exist now, of all or a single source, to all or a single destination (kind and name).

        They include the binding of every queue to the default exchange.
        """
        ...

    async def connection_heads(self) -> Sequence[ConnectionHead]:
        """Return the connections of all nodes, by `vhost` and `name`. A node is asked for each name once."""
        ...

    async def connections_of(self, heads: Sequence[ConnectionHead]) -> Sequence[Client]:
        """Return these connections in their order. If a node does not answer, the data in the log is used."""
        ...

    async def channel_heads(self) -> Sequence[ChannelHead]:
        """Return the channels of all nodes that answer, by `vhost` and `name`, as `connection_heads` does."""
        ...

    async def channels_of(self, heads: Sequence[ChannelHead]) -> Sequence[Client]:
        """Return these channels in their order, without those of nodes that do not answer."""
        ...

    async def channels_at(self, places: Iterable[tuple[str, int]], /) -> Sequence[Client]:
        """Return the channels at these places (node, id), without those of nodes that do not answer."""
        ...

    def deduplication(self) -> Deduplication: ...

    def vhost_stats(self, is_seen: Callable[[str], bool]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Return the events in some virtual hosts since this node started, and the messages in their queues.

        Each number has its rate beside it, as NAME_details. All are of the last sample, some seconds ago.
        """
        ...

    def samples(self, thing: tuple[str, ...], wanted: Samples) -> Mapping[str, Mapping[str, Any]]:
        """Return earlier values of each number of an object, the newest first, with their average and its rate.

        An object is ("queue", VHOST, NAME), ("exchange", VHOST, NAME), ("vhost", NAME) or ("all",). Its samples are
        kept from the first request for them on.
        """
        ...

    def history(self, thing: tuple[str, ...], age_s: int) -> Mapping[str, Sequence[float]]:
        """Return the numbers of an object in the last `age_s` seconds by name, the oldest first, with their times.

        `times` are in ms. An object is ("queue", VHOST, NAME), ("vhost", NAME) or ("all",), and must exist. Counts are
        shown as rates. A history begins with the node, or with the first request for it if there are many objects.
        """
        ...

    def newest_sample(self, thing: tuple[str, ...]) -> Mapping[str, float]:
        """Return the newest numbers of `history`, with their `time`; {} before the first sample."""
        ...

    def dead_lettering_queues(self, vhost: str | None) -> ThingRows:
        """Return the queues with dead-lettered messages since this node started, and their targets."""
        ...

    def churn(self) -> Mapping[str, Any]:
        """Return counts of opened and closed connections and channels of this node, with their rates.

        They include the queues of the cluster.
        """
        ...

    def exchange_stats(self, vhost: str, name: str) -> Mapping[str, Any]:
        """Return the publish counts of an exchange since this node started, with rates; {} before the first publish."""
        ...

    def object_totals(self, is_seen: Callable[[str], bool], user: str | None) -> ObjectTotals:
        """Return the numbers of objects in the visible virtual hosts, and of connections of all users or of `user`."""
        ...

    def cluster_name(self) -> str:
        """Return the cluster's name as set by operators, or else the name in this node's configuration."""
        ...

    def global_parameters(self) -> Iterator[GlobalParameter]:
        """Yield the parameters that operators have set for the whole cluster, except for `deduplication`."""
        ...

    def global_parameter(self, name: str) -> GlobalParameter | None: ...

    def parameters(self, vhost: str | None) -> Iterator[ParameterStatus]:
        """Yield the parameters of components of the broker, except for limits and operator policies."""
        ...

    def parameter(self, vhost: str, component: str, name: str) -> ParameterStatus | None: ...

    def moves(self, vhost: str | None) -> Iterator[MoveStatus]:
        """Yield the running and the recently ended moves, in the order of their begin."""
        ...

    def move(self, vhost: str, move: str) -> MoveStatus | None: ...

    async def shovels(self, vhost: str | None) -> Sequence[ShovelStatus]:
        """Return the shovels of a virtual host, or of all."""
        ...

    async def restart_shovel(self, shovel: ShovelStatus) -> None:
        """Stop a shovel and start it again. Raises Unavailable."""
        ...

    def queues_owned_by(self, user: str) -> Sequence[tuple[str, str]]:
        """Return the exclusive queues of a user's connections, as virtual hosts and names."""
        ...

    # Web sessions

    def begin_session(self, user: str) -> WebLogin | None:
        """Begin a session of a user who has just logged in; return None if the user was deleted."""
        ...

    def begin_vouched_session(self, found: LoggedIn) -> WebLogin | None:
        """Begin a session of a user that an OAuth 2 token vouches for, until the token expires.

        Return None if it has expired, or is too large for a cookie.
        """
        ...

    async def session(self, token: str, peer_host: str) -> WebLogin | None:
        """Return the session of a token, if it is valid. Raises Unavailable if that cannot be known now."""
        ...

    async def end_session(self, token: str) -> None:
        """End a session, at this node and at the nodes that answer."""
        ...

    async def end_sessions_of(self, users: Iterable[str]) -> None:
        """End all sessions of deleted users."""
        ...

    async def wait_applied(self) -> None:
        """Return when this node has applied all entries that the cluster has committed by now. Raises Unavailable."""
        ...

    # Nodes

    def members(self) -> Sequence[str]:
        """Return the names of all nodes of the cluster."""
        ...

    def leader(self) -> str | None: ...

    def own_report(self) -> NodeReport:
        """Return the report of this node about itself."""
        ...

    async def node_report(self, name: str) -> NodeReport | None:
        """Return the report of a node about itself; None if the node does not answer."""
        ...

    async def node_reports(self) -> Mapping[str, NodeReport]:
        """Return the reports of nodes about themselves, by name: this node, and those that answer within moments."""
        ...

    def flaw(self) -> str | None:
        """Return why this node does not take full part in its cluster, or None if it does."""
        ...

    def alarms(self) -> Sequence[ResourceAlarm]:
        """Return the alarms that connected nodes report."""
        ...

    def settings(self) -> Mapping[str, str]:
        """Return the settings of this node, without secrets."""
        ...

    def certificates(self) -> Sequence[CertificateFiles]:
        """Return the certificates of this node's ports."""
        ...

    def reset_logins(self) -> None:
        """Set the counts of logins to 0."""
        ...

    async def transfer_leadership(self, to: str | None) -> str:
        """Transfer leadership to the node `to` (None: to any other node), and return the new leader.

        Raises RequestRefused, without any change, if that node could not lead.
        """
        ...

    def may_stop(self, node: str | None) -> Verdict:
        """Judge whether the cluster can work without a node (None: this node).

        Raises RequestRefused if the cluster has no such node.
        """
        ...

    def backup(self) -> AbstractAsyncContextManager[BackupView]:
        """Make a backup of all data that any node had confirmed before this call. Raises Unavailable."""
        ...

    def cluster_members(self) -> ClusterMembers:
        """Return the members by the configuration in the log."""
        ...

    async def change_members(self, change: MemberChange, wait_s: float | None = None) -> None:
        """Change the members, and return when this node has seen the change.

        Raises RequestRefused if the change is refused; Unavailable if it is not yet made, and then the client may ask
        again.
        """
        ...

    async def diagnosis(self) -> Diagnosis:
        """Return the findings of all nodes that answered in time, as a diagnosis of the cluster."""
        ...

    # Changes

    def hash(self, password: str) -> tuple[bytes, bytes]:
        """Return a fresh salt, and the hash of the password with it, for storing in the cluster."""
        ...

    def new_id(self) -> str:
        """Return a new random id."""
        ...

    def check_command(self, command: Change | Declaration) -> None:
        """Raise InvalidCommand if the log cannot hold the command, or not at the agreed version of the state."""
        ...

    async def check_permitted(
        self,
        user: str,
        command: Declaration | Get | NewMessage | AllPublications | BeginMove,
        vhost: str,
        scopes: Scopes | None = None,
    ) -> None:
        """Raise RequestRefused unless a client of that user has the permissions for this.

        Here and below, `scopes` are the scopes of the user's OAuth 2 token, if any.
        """
        ...

    def room(self, told: Mapping[str, Table]) -> RoomView:
        """Count many new objects before any of them is made; `told` are the limits that virtual hosts will have."""
        ...

    def is_made(self, change: Change) -> bool:
        """Return whether the change is in the state already."""
        ...

    async def change(self, *changes: Change) -> None:
        """Put changes into the log together, and return when this node has applied them."""
        ...

    async def declare(
        self, vhost: str, user: str, declarations: Sequence[Declaration], scopes: Scopes | None = None
    ) -> None:
        """Carry out declarations in order, as a client of that user would.

        Raises RequestRefused at the first failure. The user needs any permissions in the virtual host.
        """
        ...
