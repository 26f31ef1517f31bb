"""Commands: the operations that nodes submit to the machine through the log. The submitting node is the batch's origin.

Invariant: commands are stored in the log for ever. An opcode is never reused, and a command's fields never change. An
extended command is a new command, of the next version of the state (versions.py).

Ids: `session` is an AMQP channel, opened once, or a connection as its channel 0. `connection`, `session` and `consumer`
are numbers of a single sequence, unique in an incarnation of the origin. Message ids count from 0 per consumer. The
queue name "" means the queue that the session declared last.

A session acts in the virtual host of its connection. A session that was never opened acts in DEFAULT_VHOST.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, get_args

from qq.machine.protocol.versions import VERSIONS
from qq.tables import Table

DEFAULT_VHOST = "/"

OPCODES: dict[type[Command], int] = {}
"""Command -> its opcode in the log."""
SINCE: dict[type[Command], int] = {}
"""Command -> the first version of the state in which it may be proposed. In older versions, a member may not know
it."""

_RETIRED = (6, 8, 10, 24, 31, 32)
"""Opcodes of commands that older programs had."""

C = TypeVar("C")


def command(opcode: int, *, since: int = VERSIONS[0]) -> Callable[[type[C]], type[C]]:
    """Declare a command of the log; its class must also be in `Command`."""

    def declare(tuple_type: type[C]) -> type[C]:
        declared: Any = tuple_type
        if opcode in OPCODES.values() or opcode in _RETIRED:
            raise TypeError(f"opcode {opcode} of {tuple_type.__name__} is taken")
        OPCODES[declared], SINCE[declared] = opcode, since
        return tuple_type

    return declare


@command(1)
class Enqueue(NamedTuple):
    """Publish the next `count` messages of the batch."""

    session: int
    first_seq: int
    """Publish sequence number of the first message on its channel, from 1; 0 if the channel is not in confirm mode."""
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here
    exchange: str
    routing_key: str
    mandatory: bool
    frames_channel: int
    """The AMQP channel number that the stored frames carry."""


@command(23)
class Publish(NamedTuple):
    """Publish messages as `Enqueue` does, with properties that matter to queues."""

    session: int
    first_seq: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here
    exchange: str
    routing_key: str
    mandatory: bool
    frames_channel: int
    more_keys: list[str]
    """Routing keys from the headers CC and BCC."""
    priority: int
    """The messages' priority; NO_PRIORITY without the property."""
    ttl_ms: int
    """The messages' time to live in milliseconds, from the property `expiration`; NO_TTL without it."""
    delay_ms: int
    """Milliseconds after this entry until the messages become ready, from the header x-delay."""
    publisher: str
    """The name of the publisher, from the header x-publisher-id; "" without deduplication."""
    publish_seq: int
    """The first message's number, from its header x-publish-seq; the following messages count up from it."""


@command(63, since=8)
class StoreFragment(NamedTuple):
    """Store the next message of the batch as the next fragment of a large message that the session will publish."""

    session: int


@command(64, since=8)
class JoinFragments(NamedTuple):
    """Append the session's stored fragments to the first message that the next command publishes."""

    session: int


@command(37)
class DeadLetter(NamedTuple):
    """Move dead messages of a queue to the queues that its dead-letter exchange routes them to.

    `queue` and `number` name the queue. `first` and `count` name the messages among its messages that await
    dead-lettering. The properties of the original publish come from the log.
    """

    vhost: str
    queue: str
    number: int
    first: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here
    exchange: str
    routing_key: str
    cc: list[str]
    bcc: list[str]
    expiration: str
    """The property `expiration` of the original publish; "" without it."""
    priority: int
    """The priority of the original publish; NO_PRIORITY without it."""
    has_content: bool
    """Whether headers and properties are given. Exchanges that look into messages need them."""
    headers: Table
    properties: Table


@command(25)
class Commit(NamedTuple):
    """Carry out the next `count` publishes, settlements and lease commits of the batch, all or none (tx.commit)."""

    session: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here


@command(26)
class Checkout(NamedTuple):
    """Start a consumer (basic.consume)."""

    session: int
    connection: int
    channel: int
    """The AMQP channel number, for error and log texts."""
    consumer: int
    queue: str
    tag: str
    credit: int
    """Number of messages that the consumer may hold at first."""
    no_ack: bool
    """Whether the client does not acknowledge. Then its node settles a message after writing it to the socket."""
    exclusive: bool
    auto_credit: bool
    """Whether settling gives credit back (a prefetch limit). If not, only `Credit` does."""
    cancel_on_failover: bool
    can_be_cancelled: bool
    """Whether the client understands consumer cancel notifications."""
    timeout_ms: int
    """Milliseconds that a delivery may stay unacknowledged if neither queue nor arguments set a limit; 0 is for
    ever."""
    arguments: Table


@command(76, since=13)
class AttachConsumer(NamedTuple):
    """Start a consumer whose client sets the credit with `SetCredit` (AMQP 1.0). It begins without credit.

    A refusal is an answer, too (`AttachRefused`), and the session goes on.
    """

    session: int
    connection: int
    channel: int
    """The AMQP channel number, for error and log texts."""
    consumer: int
    queue: str
    tag: str
    """A name that no other live consumer of the session has."""
    no_ack: bool
    """Whether deliveries are settled when they are sent. Then the node settles a message after writing it to the
    socket."""
    wants_activity: bool
    """Whether a `ConsumerState` reports that the consumer becomes, or is no longer, the single active consumer."""
    timeout_ms: int
    arguments: Table
    """The timeout and the arguments of the consumer, as in `Checkout`."""


@command(49)
class ReplyTo(NamedTuple):
    """Start a consumer of direct replies: it gets messages published to `name` through the default exchange."""

    session: int
    consumer: int
    name: str
    """The channel's reply name. The node has drawn it at random, so that it cannot be guessed."""


LIVE_UNLIMITED = 65_535
"""Credit that means no limit, for a consumer whose prefetch may change: the largest value of basic.qos."""


@command(29)
class SetPrefetch(NamedTuple):
    """Change how many messages a live consumer may hold."""

    consumer: int
    credit: int


@command(30)
class Limit(NamedTuple):
    """Limit the messages that all consumers of a session may hold together (basic.qos, global); 0 lifts the limit."""

    session: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here


@command(5)
class Credit(NamedTuple):
    """Allow a consumer `count` more messages."""

    consumer: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here


@command(77, since=13)
class SetCredit(NamedTuple):
    """Set the credit of a consumer that `AttachConsumer` has started, in place of its former credit.

    It replaces an unfinished drain. A repetition has no effect.
    """

    consumer: int
    number: int
    """Number of this command for the consumer, from 1. A number that is not above the last one has no effect."""
    limit: int
    """The consumer may be given messages with ids below the limit. Below its next id, the consumer has no credit."""
    is_drain: bool
    """Whether the consumer loses the credit that is left after the queue has delivered its messages. Then a
    `ConsumerState` follows."""
    wants_state: bool
    """Whether a `ConsumerState` follows as soon as the queue has been served."""


@command(7)
class Cancel(NamedTuple):
    """Stop a consumer (basic.cancel); its unacknowledged messages stay checked out."""

    session: int
    consumer: int


@command(2)
class Settle(NamedTuple):
    """Acknowledge delivered messages, `first` to `last` included. Here and below, unknown ids are ignored."""

    consumer: int
    first: int
    last: int


@command(3)
class Return(NamedTuple):
    """Return delivered messages to the queue (basic.nack)."""

    consumer: int
    first: int
    last: int


@command(28)
class Reject(NamedTuple):
    """Return delivered messages to the queue, as failed deliveries (basic.reject)."""

    consumer: int
    first: int
    last: int


@command(4)
class Discard(NamedTuple):
    """Reject delivered messages for good."""

    consumer: int
    first: int
    last: int


@command(78, since=13)
class Modify(NamedTuple):
    """Return delivered messages to the queue, or reject them for good, with annotations (AMQP 1.0, modified)."""

    consumer: int
    first: int
    last: int
    delivery_failed: bool
    """Whether a returned message counts as a failed delivery, whatever the queue counts."""
    undeliverable_here: bool
    """Whether the messages are rejected for good, as by `Discard`."""
    annotation_keys: list[str]
    annotation_values: list[bytes]
    """The annotations that the messages get: the encoded value of each key. A message whose annotations would exceed
    `death_history.ANNOTATIONS_MAX` octets keeps its former annotations."""
    ready_ms: int
    """Cluster time (ms) at which the messages become ready again in a queue with delayed retries; 0 without."""


@command(27)
class Get(NamedTuple):
    """Take a message, if the queue has any (basic.get), under a fresh consumer id, as its message 0."""

    session: int
    connection: int
    channel: int
    consumer: int
    queue: str
    no_ack: bool
    timeout_ms: int


@command(62, since=8)
class GetMessages(NamedTuple):
    """Take up to `count` messages under a fresh consumer id; their message ids count up from 0.

    At most `work_meter.GOT_AT_ONCE` are taken. The answer is always `Got`, even without a message.
    """

    session: int
    connection: int
    channel: int
    consumer: int
    queue: str
    no_ack: bool
    timeout_ms: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here


@command(9)
class Recover(NamedTuple):
    """Return all unacknowledged messages of the session to their queues (basic.recover)."""

    session: int


@command(36)
class DeclareQueue(NamedTuple):
    session: int
    connection: int
    name: str
    passive: bool
    durable: bool
    exclusive: bool
    auto_delete: bool
    server_named: bool
    """Whether the client gave an empty name, and the node has drawn this name."""
    arguments: Table


@command(11)
class DeleteQueue(NamedTuple):
    session: int
    connection: int
    name: str
    if_unused: bool
    if_empty: bool


@command(12)
class PurgeQueue(NamedTuple):
    session: int
    connection: int
    name: str


@command(13)
class BindQueue(NamedTuple):
    session: int
    connection: int
    queue: str
    exchange: str
    routing_key: str
    arguments: Table


@command(14)
class UnbindQueue(NamedTuple):
    session: int
    connection: int
    queue: str
    exchange: str
    routing_key: str
    arguments: Table


@command(15)
class DeclareExchange(NamedTuple):
    session: int
    name: str
    type: str
    passive: bool
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: Table


@command(16)
class DeleteExchange(NamedTuple):
    session: int
    name: str
    if_unused: bool


@command(17)
class BindExchange(NamedTuple):
    session: int
    destination: str
    source: str
    routing_key: str
    arguments: Table


@command(18)
class UnbindExchange(NamedTuple):
    session: int
    destination: str
    source: str
    routing_key: str
    arguments: Table


@command(34)
class Connect(NamedTuple):
    """Open a connection to a virtual host (connection.open); `session` is its own id. It is always answered."""

    session: int
    vhost: str
    user: str


@command(58, since=8)
class ConnectVouched(NamedTuple):
    """Open a connection of a user that authenticated with a token, without checking the log's users and permissions.

    It is answered like `Connect`.
    """

    session: int
    vhost: str
    user: str


@command(35)
class OpenChannel(NamedTuple):
    """Open a channel (channel.open) in the virtual host of its connection. Only a refusal is answered."""

    session: int
    connection: int


@command(19)
class SessionDown(NamedTuple):
    """Remove a closed channel: its consumers end, and their unacknowledged messages return."""

    session: int


@command(20)
class ConnectionDown(NamedTuple):
    """Remove a closed or refused connection, after its sessions, and delete its exclusive queues."""

    connection: int


@command(40)
class CloseConnection(NamedTuple):
    """Close a connection of any node."""

    node: str
    connection: int
    reason: str


@command(41)
class PutVhost(NamedTuple):
    """Create a virtual host, or replace its description, tags and default queue type."""

    name: str
    description: str
    tags: list[str]
    default_queue_type: str
    """The type of queues that are declared without a type; "" is the broker's default."""


@command(42)
class DeleteVhost(NamedTuple):
    """Delete a virtual host with everything in it, and close its connections."""

    name: str


@command(53, since=8)
class ProtectVhost(NamedTuple):
    """Protect a virtual host from deletion, or lift the protection."""

    vhost: str
    is_protected: bool


@command(43)
class SetVhostLimits(NamedTuple):
    """Replace the limits of a virtual host, named as in limits.VHOST_LIMITS. A negative limit means unlimited."""

    vhost: str
    limits: Table


@command(51)
class ChangeVhostLimits(NamedTuple):
    """Set some limits of a virtual host, and lift those that are None; its remaining limits stay."""

    vhost: str
    limits: Table


@command(21)
class PutUser(NamedTuple):
    """Create or replace a user. The submitting node has hashed the password with SHA-256."""

    name: str
    salt: bytes
    hash: bytes
    tags: list[str]


@command(50)
class PutHashedUser(NamedTuple):
    """Create or replace a user whose password was hashed elsewhere, with a different algorithm."""

    name: str
    salt: bytes
    hash: bytes
    tags: list[str]
    hashing: str
    """The algorithm of the hash: a key of permissions.HASH_BYTES."""


@command(22)
class DeleteUser(NamedTuple):
    """Delete a user with all permissions, and close the user's connections."""

    name: str


@command(65, since=10)
class DismissAdministrator(NamedTuple):
    """Take the tag `administrator` from a user, also from the last administrator.

    From version 10 on, no other command has that effect on the last administrator.
    """

    name: str


@command(44)
class SetUserLimits(NamedTuple):
    """Replace the limits of a user, named as in limits.USER_LIMITS. A negative limit means unlimited."""

    user: str
    limits: Table


@command(52)
class ChangeUserLimits(NamedTuple):
    """Set some limits of a user, and lift those that are None; the user's remaining limits stay."""

    user: str
    limits: Table


@command(45)
class SetPermissions(NamedTuple):
    """Give a user access to a virtual host: the patterns say which names the user may configure, write and read."""

    user: str
    vhost: str
    configure: str
    write: str
    read: str


@command(46)
class ClearPermissions(NamedTuple):
    user: str
    vhost: str


@command(47)
class SetTopicPermissions(NamedTuple):
    """Restrict a user at an exchange to the routing keys that the patterns match."""

    user: str
    vhost: str
    exchange: str
    write: str
    read: str


@command(48)
class ClearTopicPermissions(NamedTuple):
    """Lift a user's restriction at an exchange or, if `exchange` is empty, at all exchanges of the virtual host."""

    user: str
    vhost: str
    exchange: str


@command(38)
class PutPolicy(NamedTuple):
    """Create or replace a policy or an operator policy.

    The submitting node checks it; an invalid policy has no effect.
    """

    vhost: str
    name: str
    operator: bool
    pattern: str
    apply_to: str
    priority: int
    """The policy with the highest priority applies. Negative priorities need a later version (`NEGATIVE_SINCE`)."""
    definition: Table


@command(39)
class DeletePolicy(NamedTuple):
    vhost: str
    name: str
    operator: bool


@command(54, since=8)
class PutParameter(NamedTuple):
    """Create or replace a parameter of a virtual host. The submitting node checks the value for the component."""

    vhost: str
    component: str
    name: str
    value: str
    """The value, as JSON."""


@command(55, since=8)
class DeleteParameter(NamedTuple):
    vhost: str
    component: str
    name: str


@command(56, since=8)
class PutGlobalParameter(NamedTuple):
    """Create or replace a parameter of the whole cluster."""

    name: str
    value: str
    """The value, as JSON."""


@command(57, since=8)
class DeleteGlobalParameter(NamedTuple):
    name: str


@command(33)
class LimitPublishers(NamedTuple):
    """Limit the publishers that each virtual host remembers for deduplication: their number and their idle time."""

    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here
    age_ms: int


@command(59, since=8)
class BeginMove(NamedTuple):
    """Begin to move ready messages from a queue to a different queue; the fields are those of `moves.MoveState`."""

    vhost: str
    move: str
    user: str
    source: str
    destination: str
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here
    rate: int
    reason: str
    from_queue: str
    headers: Table
    shovel: str
    is_endless: bool


@command(66, since=11)
class BeginTextMove(NamedTuple):
    """Begin a move of the messages that contain a text; the other fields are those of `BeginMove`."""

    vhost: str
    move: str
    user: str
    source: str
    destination: str
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here
    rate: int
    reason: str
    from_queue: str
    headers: Table
    text: str


@command(60, since=8)
class MoveMessages(NamedTuple):
    """Take the next step of a move, unless this step was taken already or the move has ended.

    Only messages that are still ready in their place are moved.
    """

    vhost: str
    move: str
    step: int
    place: int
    """The place of the messages in the source (`backlog.RETURNED`, `backlog.place_of`)."""
    pieces: list[int]
    """The messages, as the flattened numbers of `moves.MovePiece` rows, with ascending keys."""
    examined: int
    """Number of source messages that the leader examined for this step."""
    next_place: int
    next_key: int
    """The place and key where the next step begins. The place `backlog.PLACES` is the end of the source."""


@command(61, since=8)
class EndMove(NamedTuple):
    """End a move: as stopped, or as failed if there is an `error`. Messages that were moved stay in the destination."""

    vhost: str
    move: str
    error: str


@command(67, since=12)
class OpenGroup(NamedTuple):
    """Open a group of a queue, or take it over with a higher fence. Its open leases stay.

    With the group's own fence, owner and settings, nothing changes. Otherwise the command has no effect.
    """

    vhost: str
    queue: str
    group: str
    fence: int
    owner: str
    user: str
    order: str
    is_exclusive: bool
    expires_ms: int
    """The settings of the group, as in `leases.GroupSettings`."""


@command(68, since=12)
class LeaseMessages(NamedTuple):
    """Take the next messages out of the backlog as the lease with this number, unless it exists.

    At least a message is taken. Without a ready message no lease is made.
    """

    vhost: str
    queue: str
    group: str
    fence: int
    lease: int
    max_messages: int
    max_bytes: int
    generation: int = 0
    """The `generation` that the group must have; 0 stands for any."""


@command(69, since=12)
class CommitLeases(NamedTuple):
    """Settle an open lease and all open leases with lower numbers.

    It may stand in a transaction, and then refuses all of it if it cannot be carried out.
    """

    vhost: str
    queue: str
    group: str
    fence: int
    up_to: int
    generation: int = 0


@command(70, since=12)
class ReleaseLease(NamedTuple):
    """Return the messages of an open lease to their places; they do not count as delivered."""

    vhost: str
    queue: str
    group: str
    fence: int
    lease: int
    generation: int = 0


@command(71, since=12)
class CloseGroup(NamedTuple):
    """End a group. With open leases, it needs `releases`, and then their messages return to their places."""

    vhost: str
    queue: str
    group: str
    fence: int
    releases: bool
    generation: int = 0


GroupCommand = OpenGroup | LeaseMessages | CommitLeases | ReleaseLease | CloseGroup
"""Commands of the readers of leases. They have no answer: the outcome is in the state."""


@command(72, since=12)
class OpenSink(NamedTuple):
    """Open a sink, unless it exists. It belongs to a user, and stores messages that become visible epoch by epoch."""

    vhost: str
    sink: str
    user: str
    expires_ms: int
    """Milliseconds after the last command of its user until the sink ends by itself; 0 is never."""


@command(73, since=12)
class StageMessages(NamedTuple):
    """Store the next `count` messages of the batch as the next step of an attempt at an epoch.

    They enter their queues when the epoch is committed with this attempt. A repeated step and a step for a committed
    epoch have no effect. A step that cannot be published makes the attempt fail.
    """

    vhost: str
    sink: str
    user: str
    epoch: int
    attempt: str
    """A name that only this attempt of this sink has."""
    step: int
    """The number of the step in its attempt, from 0."""
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here
    exchange: str
    routing_key: str
    frames_channel: int
    more_keys: list[str]
    priority: int
    ttl_ms: int
    delay_ms: int
    """The properties of the messages, as in `Publish`."""


@command(74, since=12)
class CommitEpoch(NamedTuple):
    """Publish the messages of attempts, all or none, and drop all other attempts at this and earlier epochs.

    An epoch that is not above the last committed epoch has no effect.
    """

    vhost: str
    sink: str
    user: str
    epoch: int
    attempts: list[str]
    steps: list[int]
    """The number of steps of each attempt."""


@command(75, since=12)
class CloseSink(NamedTuple):
    """End a sink. Messages of epochs that are not committed are dropped."""

    vhost: str
    sink: str
    user: str


SinkCommand = OpenSink | StageMessages | CommitEpoch | CloseSink
"""Commands of the writers of sinks. They have no answer: the outcome is in the state."""

Declaration = (
    DeclareQueue
    | DeleteQueue
    | PurgeQueue
    | BindQueue
    | UnbindQueue
    | DeclareExchange
    | DeleteExchange
    | BindExchange
    | UnbindExchange
)
"""Commands by which clients change the declared objects of a virtual host."""

Change = (
    CloseConnection
    | PutVhost
    | DeleteVhost
    | ProtectVhost
    | SetVhostLimits
    | ChangeVhostLimits
    | PutUser
    | PutHashedUser
    | DeleteUser
    | DismissAdministrator
    | SetUserLimits
    | ChangeUserLimits
    | SetPermissions
    | ClearPermissions
    | SetTopicPermissions
    | ClearTopicPermissions
    | PutPolicy
    | DeletePolicy
    | PutParameter
    | DeleteParameter
    | PutGlobalParameter
    | DeleteGlobalParameter
    | LimitPublishers
    | BeginMove
    | BeginTextMove
    | EndMove
)
"""Commands of operators; a client's AMQP methods never lead to them."""

Method = (
    Enqueue
    | Publish
    | Commit
    | Limit
    | Checkout
    | ReplyTo
    | Cancel
    | Get
    | GetMessages
    | Recover
    | Declaration
    | Connect
    | ConnectVouched
    | OpenChannel
)
"""Commands that carry out a client's AMQP method on its channel, and that may be refused.

All but three are answered, in their order. Numbered publishes are confirmed instead, and an unrefused `OpenChannel`
counts as successful."""

Settlement = Settle | Return | Reject | Discard

Command = (
    Method
    | AttachConsumer
    | Settlement
    | Modify
    | StoreFragment
    | JoinFragments
    | DeadLetter
    | MoveMessages
    | SetPrefetch
    | Credit
    | SetCredit
    | SessionDown
    | ConnectionDown
    | Change
    | GroupCommand
    | SinkCommand
)

NEGATIVE_SINCE: dict[tuple[type[Command], str], int] = {(PutPolicy, "priority"): 8}
"""Fields that may be negative -> the first version of the state that allows it. All other numbers must not be
negative."""

if OPCODES.keys() != set(get_args(Command)):
    raise TypeError(f"not in `Command`: {OPCODES.keys() ^ set(get_args(Command))}")

NO_COMMAND = 0
"""The value of an opcode field when no command was the cause."""
