"""What the HTTP interface needs to know of the node: data and two protocols, which others implement.

What the machine has as values (users, permissions, policies, the commands of operators) is told and asked for as that.

Invariant: what a view returns is a copy of the moment. The interface reads it after it has let other tasks run.
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
"""What is known of the outcome of a request that is given up; it ends the text of `Unavailable`."""


class Unavailable(Exception):
    """A change was not applied in time, and may still be; or a login could not be decided."""


class LoggedIn(NamedTuple):
    """Somebody who has logged in."""

    user: str
    tags: Collection[str]
    scopes: Scopes | None = None
    """What the user may do, if a token vouches for the user and not the cluster's list."""
    expires_s: float = inf
    """When that token expires, in seconds since 1970."""


class WebLogin(NamedTuple):
    """Somebody who has logged in with the page: a session that is good now."""

    token: str
    """What a browser keeps of it, and shows with each request."""
    user: str
    tags: Collection[str]
    csrf_token: str
    expires_s: int
    """When it ends by itself, in seconds since 1970."""
    scopes: Scopes | None = None
    """What the user may do, if a token has vouched for the user and not the cluster's list."""


class LoginRound(NamedTuple):
    """One login with the page of who issues tokens, from its begin until the browser comes back."""

    redirect_uri: str
    """Where the browser comes back to."""
    state: str
    nonce: str
    verifier: str
    """The `code_verifier` of PKCE (RFC 7636)."""


class LoginRefused(Exception):  # named for what it is
    """Nobody is logged in, for this reason."""


class LoginProvider(Protocol):
    """Who issues tokens, and has a page to log in with (OpenID Connect)."""

    @property
    def client_id(self) -> str: ...

    @property
    def issuer(self) -> str: ...

    async def login_address(self, login: LoginRound, /) -> str:
        """The address of the page to which the browser is sent. Raises Unavailable."""
        ...

    async def redeem(self, code: str, login: LoginRound, /) -> str:
        """The access token for the code with which the browser has come back. Raises LoginRefused, Unavailable."""
        ...


class LoginThrottled(Exception):
    """Too many logins fail at the moment: this one should be tried again later."""

    def __init__(self, retry_after_s: float) -> None:
        self.retry_after_s = retry_after_s
        super().__init__("too many logins fail")


class RequestRefused(Exception):
    """What a request asks for is refused, as a client that asks for it would be, with a reply code of AMQP."""

    def __init__(self, code: int, explanation: str, done: int = 0) -> None:
        """`done` is how many of the things that were asked for together have been carried out."""
        self.code = code
        self.explanation = explanation
        self.done = done
        super().__init__(explanation)


class AckMode(StrEnum):
    """What becomes of the messages that a request gets, in RabbitMQ's words."""

    ACK_REQUEUE_TRUE = "ack_requeue_true"
    ACK_REQUEUE_FALSE = "ack_requeue_false"
    REJECT_REQUEUE_TRUE = "reject_requeue_true"
    REJECT_REQUEUE_FALSE = "reject_requeue_false"


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
    """The first entry in its log. Of older ones it keeps the state, and the messages that are in a queue."""
    last_index: int | None = None
    commit_index: int | None = None
    applied_index: int | None = None
    checkpoint_index: int | None = None
    disk_free_bytes: int | None = None
    alarm: bool | None = None
    """Whether the node's disk is full, or nearly so."""
    clock_offset_ms: int | None = None
    """How many milliseconds the node's wall clock is ahead of the cluster's time."""
    role: str | None = None
    """"voter", "learner" or "awaited": what the node is according to the log."""
    versions: str | None = None
    """Which versions of the state the node's program can run."""
    drained: bool = False
    """Whether the node is under maintenance."""
    disk_hangs: bool | None = None
    """Whether the node's disk does not come to the end of a write, so that the node acknowledges nothing."""
    misses: Sequence[str] | None = None
    """The other members that the node has no link with, or does not hear."""
    hears_leader: bool | None = None
    """Whether the node leads, or hears the leader."""


class ClusterStatus(NamedTuple):
    """The cluster as `node` sees it."""

    cluster: str
    node: str
    leader: str | None
    nodes: Sequence[NodeStatus]
    version: int
    """The version of the state that all members have agreed on."""


class ClusterMember(NamedTuple):
    """One member of the cluster, as the log has it; None where that or this node does not know."""

    name: str
    host: str
    port: int
    """`host` and `port` are the address at which the other members reach this one."""
    id: str | None
    """The id of the member's data directory, in hexadecimal."""
    role: str
    """"voter", "learner", or "awaited" while there is no data directory that is this member."""
    state: NodeState
    lag: int | None
    """How many entries of the log the member lacks."""
    versions: str | None
    """Which versions of the state the member's program can run, as "7 to 8" or "8"."""
    drained: bool
    """Whether the member is under maintenance."""


class RemovedMember(NamedTuple):
    """A former member; `id` is empty if it was removed while it was awaited."""

    name: str
    id: str


class ClusterMembers(NamedTuple):
    """The members according to the log, as `node` sees it."""

    node: str
    cluster: str
    cluster_id: str | None
    """The id of the cluster; None as long as the list in each node's file says who the members are."""
    version: int
    """The version of the state that all members have agreed on."""
    leader: str | None
    members: Sequence[ClusterMember]
    removed: Sequence[RemovedMember]
    """The members that were removed or replaced last, the newest at the end."""


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
    """The leader of the cluster, which is the leader of every queue; `leader` is the same."""
    leader: str | None
    members: Sequence[str]
    online: Sequence[str]
    consumers: int
    consumer_capacity: float
    """The share of the last seconds in which a message would have been delivered at once, 0 to 1."""
    consumer_utilisation: float
    """The same as `consumer_capacity`, under its older name."""
    exclusive_consumer_tag: str | None
    single_active_consumer_tag: str | None
    delivery_limit: int | str
    """The delivery limit of the queue; "unlimited" if there is none."""
    messages: int
    """The messages of the queue in all states: ready, unacknowledged, delayed and dead."""
    messages_ready: int
    messages_unacknowledged: int
    messages_delayed: int
    messages_dlx: int
    """Dead messages that are on their way to another queue."""
    message_bytes: int
    """The bytes of the four kinds below together, as stored."""
    message_bytes_ready: int
    message_bytes_unacknowledged: int
    message_bytes_delayed: int
    message_bytes_dlx: int
    messages_persistent: int
    """All messages: each is on disk. So `messages_ram` is 0."""
    message_bytes_persistent: int
    messages_ram: int
    message_bytes_ram: int
    messages_details: Mapping[str, float]
    """By how many messages a second the queue has become longer, as `rate`."""
    messages_ready_details: Mapping[str, float]
    messages_unacknowledged_details: Mapping[str, float]
    owner_pid_details: Mapping[str, Any]
    """The connection that has an exclusive queue, if it is a connection of this node."""
    message_stats: Mapping[str, Any]
    """Counts since the node began, and for each NAME its rate as NAME_details."""


Client = Mapping[str, Any]
"""A connection or a channel, under the names that tools for RabbitMQ read. `node` and `id` say which one it is in the
log; the id is the number of the connection, or of the channel's session."""


class ConnectionHead(NamedTuple):
    """What of a connection all nodes know at once, whichever it is of."""

    node: str
    id: int
    """`node` and `id` say which one it is in the log."""
    name: str
    vhost: str
    user: str


class ChannelHead(NamedTuple):
    """What of a channel all nodes know, once its node has told them its name."""

    node: str
    id: int
    """`node` and `id` say which one it is in the log."""
    name: str
    vhost: str
    user: str
    connection: str
    """The name of its connection."""


class ThingRows(NamedTuple):
    """Things of which there may be very many, as they are now: of most of them nobody wants to know all."""

    things: Iterable[Any]
    fields: Mapping[str, Callable[[Any], Any]]
    """What is told of a thing, by its name in a status."""
    parts: Mapping[str, Callable[[Any], Any]] = {}
    """Numbers within that, by their names with dots: to find one costs less than to tell all that it is a part of."""


class ConsumerStatus(NamedTuple):
    """One consumer; the fields have the names that tools for RabbitMQ read."""

    consumer_tag: str
    queue: Mapping[str, str]
    channel_details: Mapping[str, Any]
    ack_required: bool
    exclusive: bool
    prefetch_count: int
    """The prefetch of the consumer; 0 is no limit."""
    active: bool
    activity_status: str
    """"up"; of a queue with a single active consumer "single_active" or "waiting"."""
    arguments: Mapping[str, Any]
    messages_unacknowledged: int = 0
    """How many messages it has been given and has not settled."""
    credit: int | None = None
    """How many more messages it would take now; None if there is no limit."""


class Message(NamedTuple):
    """A message that was browsed in its queue, or taken from it by a get."""

    offset: int
    """How many ready messages were before this one; for messages that were got, how many were got before."""
    exchange: str
    routing_key: str
    redelivered: bool
    properties: Basic.Properties
    body: bytes
    message_count: int | None = None
    """How many ready messages were left, when it was got."""


class NewMessage(NamedTuple):
    """A message that is to be published."""

    exchange: str
    routing_key: str
    properties: Basic.Properties
    body: bytes


class AllPublications(NamedTuple):
    """Messages that are to be published to an exchange, with whatever routing keys."""

    exchange: str


class PublicationRejected(Exception):
    """What was to be published has no room in a queue; nothing was published."""


class Samples(NamedTuple):
    """For which times samples are wanted: from so many seconds ago on, so many seconds apart."""

    age_s: int
    step_s: int


class VhostStatus(NamedTuple):
    """One virtual host."""

    name: str
    description: str
    tags: Sequence[str]
    default_queue_type: str
    """The type of queues that are declared without one; "" if the virtual host has none of its own."""
    limits: Mapping[str, int]
    is_protected: bool = False
    """Whether it is protected from deletion."""


class ExchangeStatus(NamedTuple):
    """One exchange; the fields have the names that tools for RabbitMQ read."""

    name: str
    vhost: str
    type: str
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: Mapping[str, Any]
    policy: str | None


class BindingStatus(NamedTuple):
    """One binding; the fields have the names that tools for RabbitMQ read."""

    source: str
    vhost: str
    destination: str
    destination_type: str
    """"queue" or "exchange"."""
    routing_key: str
    arguments: Mapping[str, Any]
    properties_key: str
    """A text that tells bindings between the same two ends apart."""


class Listener(NamedTuple):
    """One port of a node."""

    protocol: str
    """"amqp", "amqp/ssl", "http", "clustering" or "clustering/ssl", as RabbitMQ calls them."""
    host: str
    port: int
    uses_tls: bool = False


class LoginCount(NamedTuple):
    """How many logins succeeded and failed, with one protocol ("amqp091" or "http"), since this was last reset."""

    protocol: str
    succeeded: int
    failed: int


class NodeReport(NamedTuple):
    """What a node says of itself. It is plain data, so that another node can be told it."""

    name: str
    pid: int
    uptime_ms: int
    processors: int
    run_queue: int
    """How many threads of the whole machine run or wait for a processor."""
    context_switches: int
    collections: int
    """How often the interpreter has looked for garbage."""
    memory_bytes: int
    memory_limit_bytes: int
    memory_alarm: bool
    files: int
    files_max: int
    connections: int
    """AMQP clients that are connected; there may be `connections_max`."""
    connections_max: int
    connections_opened: int
    connections_closed: int
    channels_opened: int
    channels_closed: int
    disk_free_bytes: int
    disk_free_limit_bytes: int
    disk_alarm: bool
    log_bytes: int
    """The size of the log on the disk."""
    writes: int
    """How often the log was written and synced; it took `write_ms` altogether."""
    write_ms: float
    data_dir: str
    listeners: Sequence[Listener]
    logins: Sequence[LoginCount]


class ResourceAlarm(NamedTuple):
    """A node that is low on something: "memory" or "disk"."""

    node: str
    resource: str


class CertificateFiles(NamedTuple):
    """The certificates of a port, as paths of PEM files."""

    protocol: str
    cert: str
    ca: str | None


class ObjectTotals(NamedTuple):
    """How many things there are."""

    consumers: int
    queues: int
    exchanges: int
    connections: int
    channels: int


class MoveStatus(NamedTuple):
    """A move of messages, with the fields of qq/machine/queue/moves.py that are shown."""

    vhost: str
    id: str
    user: str
    source: str
    destination: str
    """The queue that gets the messages; empty if each goes back to the queue in which it first died."""
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
    """The value of its parameter, as JSON."""
    value: Mapping[str, Any]
    node: str | None
    """The node that sees to it: the one that leads."""
    state: str
    """What it is, in RabbitMQ's words: starting, running, blocked or terminated."""
    reason: str | None
    """Why it does not run; None if it does, or will in a moment."""
    figures: Mapping[str, Any]
    """What else is told of it: how many messages it has forwarded, the move that carries it out, and the like."""


class ParameterStatus(NamedTuple):
    """One parameter of a virtual host."""

    vhost: str
    component: str
    name: str
    value: Any


class GlobalParameter(NamedTuple):
    """One parameter of the whole cluster."""

    name: str
    value: Any


class Product(NamedTuple):
    """The names that clients are told: of the product and its version, and of the cluster."""

    name: str
    version: str
    cluster: str


class Deduplication(NamedTuple):
    """How many publishers each virtual host remembers, and for how long after their last message."""

    limit: int
    age_ms: int


class ObjectMetric(NamedTuple):
    """A metric that is shown of each object apart; the name is without its prefix."""

    name: str
    kind: str
    """"gauge" or "counter"."""
    text: str


ObjectRow = tuple[Sequence[str], Sequence[float | None]]
"""The labels' values and the metrics' of an object; None is not shown."""


class ObjectRows(NamedTuple):
    """Some rows of a table, so few that they can be made at once."""

    make: Callable[[], Iterable[ObjectRow]]
    key: Hashable = None
    """What the rows are about; no others have the same key, in this and in other tables."""
    state: Any = None
    """The rows are the same as long as this is equal to what it was; None if they always have to be made."""


class ObjectTable(NamedTuple):
    """Metrics of objects of one kind, each of which is a row."""

    is_of_cluster: bool
    """Whether RabbitMQ shows them with the prefix `rabbitmq_cluster_`."""
    labels: Sequence[str]
    metrics: Sequence[ObjectMetric]
    parts: Iterable[ObjectRows]


class BackupView(Protocol):
    """A backup that is being sent; its files stay until it was sent."""

    def stream(self) -> AsyncIterator[bytes]:
        """The backup as a tar archive, in parts of bounded size; it ends with SHA256SUMS, or with an error."""
        ...


class NodeView(Protocol):
    """The node behind the HTTP interface."""

    def cluster_status(self) -> ClusterStatus: ...

    def ready(self) -> str | None:
        """Say why the node does not serve clients (under repair, no leader, no listener); None if it does."""
        ...

    def infos(self, endpoint: str) -> Mapping[str, tuple[str, Mapping[str, str]]]:
        """The texts and labels of the metrics that say what this node is, by their names behind `rabbitmq_`.

        `endpoint` is RabbitMQ's name for what is scraped.
        """
        ...

    async def authenticate(self, user: str, password: str, peer_host: str) -> LoggedIn | None:
        """Who this is, if it is the password, or a token that is good; None if not.

        That may take seconds, against guessing. Raises LoginThrottled, Unavailable.
        """
        ...

    @property
    def takes_tokens(self) -> bool:
        """Whether tokens of OAuth 2 are good for a login."""
        ...

    @property
    def login_provider(self) -> LoginProvider | None:
        """Whose page the management page is logged in with, besides passwords; None: nobody's."""
        ...


class RoomView(Protocol):
    """Tells whether limits leave room for something new, besides what is there and all that was claimed before."""

    def loosened(self, vhost: str) -> Table:
        """The limits of the virtual host that were told to `ManagementView.room` and are looser than those in force."""
        ...

    def change(self, change: Change) -> None:
        """Claim what a change makes new. Raises RequestRefused, naming the limit."""
        ...

    def declaration(self, vhost: str, declaration: Declaration) -> None:
        """Claim what a declaration makes new. Raises RequestRefused, naming the limit."""
        ...


class ManagementView(Protocol):
    """The broker behind the HTTP interface.

    Methods that change something return when this node has applied it. They raise Unavailable if that takes too long.
    """

    def has_vhost(self, name: str) -> bool: ...

    def queues(self, vhost: str | None) -> Iterator[QueueStatus]:
        """The queues that there are now, each as it is when its turn comes; of all virtual hosts, or of one."""
        ...

    def queue(self, vhost: str, name: str) -> QueueStatus | None: ...

    def object_tables(
        self, families: Collection[str], vhosts: Collection[str] | None
    ) -> Iterator[ObjectTable]:
        """The metrics of objects, by RabbitMQ's names of their families; of some virtual hosts, or of all.

        What is the same at every node is shown by the leader only.
        """
        ...

    def consumers(self, vhost: str | None) -> Iterator[ConsumerStatus]:
        """The consumers that there are now, each as it is when its turn comes; of all virtual hosts, or of one."""
        ...

    def consumers_of_queue(self, vhost: str, name: str) -> Iterator[ConsumerStatus]: ...

    def consumers_of_channel(self, channel: Client) -> Iterator[ConsumerStatus]: ...

    def queue_rows(self, vhost: str | None) -> ThingRows:
        """The queues of all virtual hosts or of one, with the fields of `QueueStatus`."""
        ...

    async def queues_by_name(self, is_seen: Callable[[str], bool]) -> ThingRows:
        """The queues of the virtual hosts that are seen, a sequence in the order of `vhost` and `name`."""
        ...

    async def bindings_in_order(self, is_seen: Callable[[str], bool]) -> ThingRows:
        """The bindings of the virtual hosts that are seen, a sequence in RabbitMQ's order."""
        ...

    def binding_rows(
        self, vhost: str | None, source: str | None = None, destination: tuple[str, str] | None = None
    ) -> ThingRows:
        """The bindings that `bindings` tells, with the fields of `BindingStatus`."""
        ...

    async def browse(
        self, vhost: str, queue: str, offset: int, count: int, bytes_max: int
    ) -> Sequence[Message] | None:
        """Read ready messages where they are, from the `offset`-th on; None if there is no such queue.

        It returns at most `count`, with at most `bytes_max` octets of bodies, but one at least, if there is any.
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
        """Publish a message as a client of that user would; returns whether any queue has it.

        Raises RequestRefused, Unavailable; PublicationRejected if a queue has no room.
        """
        ...

    # What is there

    def product(self) -> Product: ...

    def vhosts(self) -> Sequence[VhostStatus]: ...

    def has_user(self, name: str) -> bool: ...

    def users(self) -> Mapping[str, User]: ...

    def user_limits(self) -> Mapping[str, Mapping[str, int]]:
        """The limits of the users that have any."""
        ...

    def permissions(self) -> Sequence[Permissions]: ...

    def topic_permissions(self) -> Sequence[TopicPermissions]: ...

    def policies(self, vhost: str | None, *, operator: bool) -> Sequence[tuple[str, Policy]]:
        """All policies, each with its virtual host."""
        ...

    def is_declared(self, vhost: str, declaration: Declaration) -> bool:
        """Whether the queue or exchange that the command declares exists already."""
        ...

    def exchanges(self, vhost: str | None, name: str | None = None) -> Iterator[ExchangeStatus]:
        """The exchanges that exist now: all of them, or the one of this name."""
        ...

    def bindings(
        self,
        vhost: str | None,
        source: str | None = None,
        destination: tuple[str, str] | None = None,
    ) -> Iterator[BindingStatus]:
        """The bindings that exist now, from all sources or one, to all destinations or one (its kind and name).

        That every queue is bound to the default exchange shows as bindings, too.
        """
        ...

    async def connection_heads(self) -> Sequence[ConnectionHead]:
        """The connections of all nodes, in the order of `vhost` and `name`. Each node is asked once for each name."""
        ...

    async def connections_of(self, heads: Sequence[ConnectionHead]) -> Sequence[Client]:
        """These connections, in their order. Of a node that does not answer it is told what the log knows."""
        ...

    async def channel_heads(self) -> Sequence[ChannelHead]:
        """The channels of all nodes that answer, in the order of `vhost` and `name`, as `connection_heads`."""
        ...

    async def channels_of(self, heads: Sequence[ChannelHead]) -> Sequence[Client]:
        """These channels, in their order, of those nodes that answer."""
        ...

    async def channels_at(self, places: Iterable[tuple[str, int]], /) -> Sequence[Client]:
        """The channels with these nodes and ids, of those nodes that answer."""
        ...

    def deduplication(self) -> Deduplication: ...

    def vhost_stats(self, is_seen: Callable[[str], bool]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """What happened in some virtual hosts together since this node started, and what is in their queues.

        Each number has its rate beside it, as NAME_details. All is of the last sample, some seconds ago.
        """
        ...

    def samples(self, thing: tuple[str, ...], wanted: Samples) -> Mapping[str, Mapping[str, Any]]:
        """Earlier values of each number of a thing, the newest first, with their average and its rate.

        A thing is ("queue", VHOST, NAME), ("exchange", VHOST, NAME), ("vhost", NAME) or ("all",). Its samples are kept
        from the moment at which they are first asked for; before, there are none.
        """
        ...

    def history(self, thing: tuple[str, ...], age_s: int) -> Mapping[str, Sequence[float]]:
        """How numbers of a thing were in the last `age_s` seconds, by name, the oldest first; with their `times` (ms).

        A thing is ("queue", VHOST, NAME), ("vhost", NAME) or ("all",), and is there. Counts are told as rates. A
        history begins with the node, or when it is first asked for if there are many things.
        """
        ...

    def newest_sample(self, thing: tuple[str, ...]) -> Mapping[str, float]:
        """The last of the numbers that `history` tells, with its `time`; {} before there is one."""
        ...

    def dead_lettering_queues(self, vhost: str | None) -> ThingRows:
        """The queues in which messages have died since this node started, and where these go."""
        ...

    def churn(self) -> Mapping[str, Any]:
        """How many connections and channels came to this node and went, and queues to the cluster; with rates."""
        ...

    def exchange_stats(self, vhost: str, name: str) -> Mapping[str, Any]:
        """How much was published to an exchange since this node started, with rates; {} if nothing was."""
        ...

    def object_totals(self, is_seen: Callable[[str], bool], user: str | None) -> ObjectTotals:
        """How many things there are in the virtual hosts that are seen, and connections of all users, or of one."""
        ...

    def cluster_name(self) -> str:
        """The name that operators have given the cluster; until they do, the one in this node's configuration."""
        ...

    def global_parameters(self) -> Iterator[GlobalParameter]:
        """What operators have set for the whole cluster; `deduplication` is not among it."""
        ...

    def global_parameter(self, name: str) -> GlobalParameter | None: ...

    def parameters(self, vhost: str | None) -> Iterator[ParameterStatus]:
        """What is set for components of the broker; limits and operator policies are not among it."""
        ...

    def parameter(self, vhost: str, component: str, name: str) -> ParameterStatus | None: ...

    def moves(self, vhost: str | None) -> Iterator[MoveStatus]:
        """The moves under way, and those that have ended a short while ago, in the order in which they have begun."""
        ...

    def move(self, vhost: str, move: str) -> MoveStatus | None: ...

    async def shovels(self, vhost: str | None) -> Sequence[ShovelStatus]:
        """The shovels of a virtual host, or of all."""
        ...

    async def restart_shovel(self, shovel: ShovelStatus) -> None:
        """Have a shovel stopped and begun again. Raises Unavailable."""
        ...

    def queues_owned_by(self, user: str) -> Sequence[tuple[str, str]]:
        """The exclusive queues of a user's connections: virtual hosts and names."""
        ...

    # Web sessions

    def begin_session(self, user: str) -> WebLogin | None:
        """Begin a session of a user who has just logged in; None if the user is gone."""
        ...

    def begin_vouched_session(self, found: LoggedIn) -> WebLogin | None:
        """Begin a session of a user for whom a token vouches, until that expires.

        None if it has expired, or says more than a browser keeps.
        """
        ...

    async def session(self, token: str, peer_host: str) -> WebLogin | None:
        """The session that a token is of, if it is good. Raises Unavailable if that cannot be known now."""
        ...

    async def end_session(self, token: str) -> None:
        """End a session here, and at the nodes that answer."""
        ...

    async def end_sessions_of(self, users: Iterable[str]) -> None:
        """End all sessions of users who are gone."""
        ...

    async def wait_applied(self) -> None:
        """Return when this node has applied all that the cluster has committed by now. Raises Unavailable."""
        ...

    # Nodes

    def members(self) -> Sequence[str]:
        """The names of all nodes of the cluster."""
        ...

    def leader(self) -> str | None: ...

    def own_report(self) -> NodeReport:
        """What this node says of itself."""
        ...

    async def node_report(self, name: str) -> NodeReport | None:
        """What a node says of itself, this one or another; None if it does not say it here."""
        ...

    async def node_reports(self) -> Mapping[str, NodeReport]:
        """What nodes say of themselves, by name: this one, and the others that answer within moments."""
        ...

    def flaw(self) -> str | None:
        """Why this node does not take full part in its cluster; None if it does."""
        ...

    def alarms(self) -> Sequence[ResourceAlarm]:
        """What the nodes that are heard say they are low on."""
        ...

    def settings(self) -> Mapping[str, str]:
        """The settings of this node that are no secrets."""
        ...

    def certificates(self) -> Sequence[CertificateFiles]:
        """The certificates of this node's ports."""
        ...

    def reset_logins(self) -> None:
        """Count logins anew."""
        ...

    async def transfer_leadership(self, to: str | None) -> str:
        """Have this node lead, or any but the one that leads; return who leads then.

        Raises RequestRefused if it could not lead, and then nothing has been done.
        """
        ...

    def may_stop(self, node: str | None) -> Verdict:
        """Judge whether the cluster goes on when a node stops: the one of this name, or the one that is asked.

        Raises RequestRefused if there is no such node.
        """
        ...

    def backup(self) -> AbstractAsyncContextManager[BackupView]:
        """Give everything that was confirmed anywhere before this was called. Raises Unavailable."""
        ...

    def cluster_members(self) -> ClusterMembers:
        """Who the members are by the log."""
        ...

    async def change_members(self, change: MemberChange, wait_s: float | None = None) -> None:
        """Have the members changed, and return when this node knows that they are.

        Raises RequestRefused if that is not done; Unavailable if it is not done yet, and then it may be asked again.
        """
        ...

    async def diagnosis(self) -> Diagnosis:
        """What is wrong in the cluster, and what limits it, as far as it is known here or told in time."""
        ...

    # Changes

    def hash(self, password: str) -> tuple[bytes, bytes]:
        """Make a fresh salt, and the hash of the password with it, for the cluster to keep."""
        ...

    def new_id(self) -> str:
        """Draw an id that nothing else has."""
        ...

    def check_command(self, command: Change | Declaration) -> None:
        """Raise InvalidCommand for what the log cannot hold, or not at the version of the state that is agreed on."""
        ...

    async def check_permitted(
        self,
        user: str,
        command: Declaration | Get | NewMessage | AllPublications | BeginMove,
        vhost: str,
        scopes: Scopes | None = None,
    ) -> None:
        """Raise RequestRefused unless a client of that user might do this.

        Here and below, `scopes` are those of the token that vouches for the user, if one does.
        """
        ...

    def room(self, told: Mapping[str, Table]) -> RoomView:
        """Count many things together before any of them is made; `told` are limits that virtual hosts will have."""
        ...

    def is_made(self, change: Change) -> bool:
        """Whether the change is in the state already."""
        ...

    async def change(self, *changes: Change) -> None:
        """Have something changed, all at once. Returns when this node has applied it."""
        ...

    async def declare(
        self, vhost: str, user: str, declarations: Sequence[Declaration], scopes: Scopes | None = None
    ) -> None:
        """Have something done as a client of that user would, one after the other.

        Raises RequestRefused at the first that fails. The user needs permissions in the virtual host, no matter which.
        """
        ...
