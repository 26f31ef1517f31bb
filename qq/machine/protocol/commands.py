"""What can be asked of the machine. The node that asks is the origin of the batch.

Invariant: commands are stored in the log for ever. An opcode is never reused, and a command's fields never change; a
command that needs more is a new command, of the next version of the state (versions.py).

Ids: `session` is one AMQP channel, opened once, or a connection as its channel 0; `connection`, `session` and
`consumer` are numbers of one sequence, unique in one incarnation of the origin. Message ids count from 0 per consumer.
A queue name "" means the queue that the session declared last.

A session acts in the virtual host of its connection. One that was never opened acts in DEFAULT_VHOST.
"""

from __future__ import annotations

from typing import NamedTuple

from qq.tables import Table

DEFAULT_VHOST = "/"


class Enqueue(NamedTuple):
    """Publish the next `count` messages of the batch."""

    session: int
    first_seq: int
    """The first message's publish sequence number on its channel, from 1; 0 if the channel is not in confirm mode."""
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here
    exchange: str
    routing_key: str
    mandatory: bool
    frames_channel: int
    """The AMQP channel number that the stored frames carry."""


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
    """The messages' priority; NO_PRIORITY if they have none."""
    ttl_ms: int
    """The messages' time to live, from the property `expiration`; NO_TTL if there is none."""
    delay_ms: int
    """How long after this entry the messages become ready, from the header x-delay."""
    publisher: str
    """The name of the publisher, from the header x-publisher-id; "" without deduplication."""
    publish_seq: int
    """The first message's number, from its header x-publish-seq; the numbers of the others follow it."""


class StoreFragment(NamedTuple):
    """Store the next message of the batch as the next fragment of one that the session is going to publish."""

    session: int


class JoinFragments(NamedTuple):
    """Have the first message that the next command publishes go on with the fragments that the session has stored."""

    session: int


class DeadLetter(NamedTuple):
    """Move messages that have died to where their queue's dead-letter exchange routes them.

    `first` and `count` say which of the dying messages of the queue (by name and number) are meant; what they were
    published with comes from the log.
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
    """The property `expiration` that the messages were published with; "" if they had none."""
    priority: int
    """The priority that the messages were published with; NO_PRIORITY if they had none."""
    has_content: bool
    """Whether headers and properties are given, which exchanges that look into messages need."""
    headers: Table
    properties: Table


class Commit(NamedTuple):
    """Carry out the next `count` commands of the batch, which publish and settle, all or none (tx.commit)."""

    session: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here


class Checkout(NamedTuple):
    """Begin to consume."""

    session: int
    connection: int
    channel: int
    """The AMQP channel number, for texts."""
    consumer: int
    queue: str
    tag: str
    credit: int
    """How many messages the consumer may hold, to begin with."""
    no_ack: bool
    """Whether the client does not acknowledge: its node settles for it, once a message is written to the socket."""
    exclusive: bool
    auto_credit: bool
    """Whether settling gives credit back (a prefetch); else only `Credit` does."""
    cancel_on_failover: bool
    can_be_cancelled: bool
    """Whether the client understands consumer cancel notifications."""
    timeout_ms: int
    """How long a delivery may stay unacknowledged if neither the queue nor the arguments say it; 0 is for ever."""
    arguments: Table


class ReplyTo(NamedTuple):
    """Begin to consume direct replies: what is published to `name` by the default exchange goes to the channel."""

    session: int
    consumer: int
    name: str
    """The name for this channel's replies: the node has drawn it, and nobody can guess it."""


LIVE_UNLIMITED = 65_535
"""The credit that means no limit for a consumer whose prefetch may change: the largest that basic.qos can say."""


class SetPrefetch(NamedTuple):
    """Change how many messages a running consumer may hold."""

    consumer: int
    credit: int


class Limit(NamedTuple):
    """Limit what all consumers of a session may hold together (basic.qos, global); 0 lifts the limit."""

    session: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here


class Credit(NamedTuple):
    """Let a consumer have more messages."""

    consumer: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here


class Cancel(NamedTuple):
    """Stop consuming; what is unacked stays checked out."""

    session: int
    consumer: int


class Settle(NamedTuple):
    """Forget delivered messages, `first` to `last` included; unknown ids are ignored, here and below."""

    consumer: int
    first: int
    last: int


class Return(NamedTuple):
    """Put delivered messages back into the queue (basic.nack)."""

    consumer: int
    first: int
    last: int


class Reject(NamedTuple):
    """Put delivered messages back into the queue, as failed (basic.reject)."""

    consumer: int
    first: int
    last: int


class Discard(NamedTuple):
    """Reject delivered messages for good."""

    consumer: int
    first: int
    last: int


class Get(NamedTuple):
    """Take one message, if there is one, under a fresh consumer id as its message 0."""

    session: int
    connection: int
    channel: int
    consumer: int
    queue: str
    no_ack: bool
    timeout_ms: int


class GetMessages(NamedTuple):
    """Take up to `count` messages, as many as there are, under a fresh consumer id as its messages 0 and on.

    No more than `work.GOT_AT_ONCE` are taken. It is answered with `Got`, also if there is no message.
    """

    session: int
    connection: int
    channel: int
    consumer: int
    queue: str
    no_ack: bool
    timeout_ms: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here


class Recover(NamedTuple):
    """Put all unacked messages of the session back."""

    session: int


class DeclareQueue(NamedTuple):
    session: int
    connection: int
    name: str
    passive: bool
    durable: bool
    exclusive: bool
    auto_delete: bool
    server_named: bool
    """Whether the client gave no name, and the node has drawn this one."""
    arguments: Table


class DeleteQueue(NamedTuple):
    session: int
    connection: int
    name: str
    if_unused: bool
    if_empty: bool


class PurgeQueue(NamedTuple):
    session: int
    connection: int
    name: str


class BindQueue(NamedTuple):
    session: int
    connection: int
    queue: str
    exchange: str
    routing_key: str
    arguments: Table


class UnbindQueue(NamedTuple):
    session: int
    connection: int
    queue: str
    exchange: str
    routing_key: str
    arguments: Table


class DeclareExchange(NamedTuple):
    session: int
    name: str
    type: str
    passive: bool
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: Table


class DeleteExchange(NamedTuple):
    session: int
    name: str
    if_unused: bool


class BindExchange(NamedTuple):
    session: int
    destination: str
    source: str
    routing_key: str
    arguments: Table


class UnbindExchange(NamedTuple):
    session: int
    destination: str
    source: str
    routing_key: str
    arguments: Table


class Connect(NamedTuple):
    """Open a connection to a virtual host (connection.open); `session` is its own id. It is always answered."""

    session: int
    vhost: str
    user: str


class ConnectVouched(NamedTuple):
    """Open a connection of a user whom a token vouches for: users and permissions of the log are not asked.

    It is answered as Connect is.
    """

    session: int
    vhost: str
    user: str


class OpenChannel(NamedTuple):
    """Open a channel (channel.open): the session acts in its connection's virtual host. Only a refusal is answered."""

    session: int
    connection: int


class SessionDown(NamedTuple):
    """Forget a channel that is closed: its consumers end and their unacked messages return."""

    session: int


class ConnectionDown(NamedTuple):
    """Forget a connection that is closed or was refused, after its sessions: its exclusive queues go."""

    connection: int


class CloseConnection(NamedTuple):
    """Have a connection of any node closed."""

    node: str
    connection: int
    reason: str


class PutVhost(NamedTuple):
    """Create a virtual host, or describe it anew."""

    name: str
    description: str
    tags: list[str]
    default_queue_type: str
    """The type of queues that are declared without one; "" is the broker's default."""


class DeleteVhost(NamedTuple):
    """Delete a virtual host with everything in it, and have its connections closed."""

    name: str


class ProtectVhost(NamedTuple):
    """Protect a virtual host from deletion, or do so no more."""

    vhost: str
    is_protected: bool


class SetVhostLimits(NamedTuple):
    """Replace the limits of a virtual host, as limits.VHOST_LIMITS names them. A negative one is no limit."""

    vhost: str
    limits: Table


class ChangeVhostLimits(NamedTuple):
    """Set some limits of a virtual host, and lift those that are None; the others stay."""

    vhost: str
    limits: Table


class PutUser(NamedTuple):
    """Create or replace a user; the hash is made outside, with SHA-256."""

    name: str
    salt: bytes
    hash: bytes
    tags: list[str]


class PutHashedUser(NamedTuple):
    """Create or replace a user whose password was hashed elsewhere, with another algorithm."""

    name: str
    salt: bytes
    hash: bytes
    tags: list[str]
    hashing: str
    """The algorithm of the hash: one of access.HASH_BYTES."""


class DeleteUser(NamedTuple):
    """Delete a user with all permissions, and have the user's connections closed."""

    name: str


class SetUserLimits(NamedTuple):
    """Replace the limits of a user, as limits.USER_LIMITS names them. A negative one is no limit."""

    user: str
    limits: Table


class ChangeUserLimits(NamedTuple):
    """Set some limits of a user, and lift those that are None; the others stay."""

    user: str
    limits: Table


class SetPermissions(NamedTuple):
    """Let a user into a virtual host, to configure, write and read what the patterns match."""

    user: str
    vhost: str
    configure: str
    write: str
    read: str


class ClearPermissions(NamedTuple):
    user: str
    vhost: str


class SetTopicPermissions(NamedTuple):
    """Restrict a user to the routing keys that match, at one exchange."""

    user: str
    vhost: str
    exchange: str
    write: str
    read: str


class ClearTopicPermissions(NamedTuple):
    """Lift a user's restriction at one exchange, or at all of the virtual host's if `exchange` is empty."""

    user: str
    vhost: str
    exchange: str


class PutPolicy(NamedTuple):
    """Create or replace a policy or an operator policy. It is checked outside; a wrong one has no effect."""

    vhost: str
    name: str
    operator: bool
    pattern: str
    apply_to: str
    priority: int
    """The highest one counts. It may be negative from a version of the state on (`NEGATIVE_SINCE`)."""
    definition: Table


class DeletePolicy(NamedTuple):
    vhost: str
    name: str
    operator: bool


class PutParameter(NamedTuple):
    """Create or replace a parameter of a virtual host. Its meaning is its component's, and is checked outside."""

    vhost: str
    component: str
    name: str
    value: str
    """The value, as JSON."""


class DeleteParameter(NamedTuple):
    vhost: str
    component: str
    name: str


class PutGlobalParameter(NamedTuple):
    """Create or replace a parameter of the whole cluster."""

    name: str
    value: str
    """The value, as JSON."""


class DeleteGlobalParameter(NamedTuple):
    name: str


class LimitPublishers(NamedTuple):
    """Set how many publishers each virtual host remembers for deduplication, and how long after their last message."""

    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here
    age_ms: int


class BeginMove(NamedTuple):
    """Begin to move ready messages of a queue to another one; the fields are those of `moves.MoveState`."""

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


class MoveMessages(NamedTuple):
    """Take the next step of a move; it changes nothing if this was taken, or if the move is over.

    Of the messages only those are moved that are still ready where they were.
    """

    vhost: str
    move: str
    step: int
    place: int
    """The place in the source (`backlog.RETURNED`, `backlog.place_of`) of the messages."""
    pieces: list[int]
    """The messages, as the numbers of one `moves.MovePiece` after the other, with ascending keys."""
    examined: int
    """How many messages were looked at for this step."""
    next_place: int
    next_key: int
    """Where the step after this one begins; `backlog.PLACES` as the place is the end."""


class EndMove(NamedTuple):
    """Let a move be over: stopped, or failed if there is an `error`. What is moved stays moved."""

    vhost: str
    move: str
    error: str


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
"""Commands with which clients change what is declared in a virtual host."""

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
    | EndMove
)
"""Commands of operators; none is a client's method."""

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
"""Commands that are a method of a client on its channel, and may be refused.

All but three are answered, one after the other: publishes are confirmed instead, if they are numbered, and a channel is
open unless it is refused.
"""

Settlement = Settle | Return | Reject | Discard

Command = (
    Method
    | Settlement
    | StoreFragment
    | JoinFragments
    | DeadLetter
    | MoveMessages
    | SetPrefetch
    | Credit
    | SessionDown
    | ConnectionDown
    | Change
)

NEGATIVE_SINCE: dict[tuple[type[Command], str], int] = {(PutPolicy, "priority"): 8}
"""The fields that may be negative, each with the version of the state since when. No other number may."""

OPCODES_SINCE: dict[int, dict[type[Command], int]] = {
    7: {
        Enqueue: 1,
        Settle: 2,
        Return: 3,
        Discard: 4,
        Credit: 5,
        Cancel: 7,
        Recover: 9,
        DeleteQueue: 11,
        PurgeQueue: 12,
        BindQueue: 13,
        UnbindQueue: 14,
        DeclareExchange: 15,
        DeleteExchange: 16,
        BindExchange: 17,
        UnbindExchange: 18,
        SessionDown: 19,
        ConnectionDown: 20,
        PutUser: 21,
        DeleteUser: 22,
        Publish: 23,
        Commit: 25,
        Checkout: 26,
        Get: 27,
        Reject: 28,
        SetPrefetch: 29,
        Limit: 30,
        LimitPublishers: 33,
        Connect: 34,
        OpenChannel: 35,
        DeclareQueue: 36,
        DeadLetter: 37,
        PutPolicy: 38,
        DeletePolicy: 39,
        CloseConnection: 40,
        PutVhost: 41,
        DeleteVhost: 42,
        SetVhostLimits: 43,
        SetUserLimits: 44,
        SetPermissions: 45,
        ClearPermissions: 46,
        SetTopicPermissions: 47,
        ClearTopicPermissions: 48,
        ReplyTo: 49,
        PutHashedUser: 50,
        ChangeVhostLimits: 51,
        ChangeUserLimits: 52,
    },
    8: {
        ProtectVhost: 53,
        PutParameter: 54,
        DeleteParameter: 55,
        PutGlobalParameter: 56,
        DeleteGlobalParameter: 57,
        ConnectVouched: 58,
        BeginMove: 59,
        MoveMessages: 60,
        EndMove: 61,
        GetMessages: 62,
        StoreFragment: 63,
        JoinFragments: 64,
    },
}
"""The number of each command in the log, by the version of the state from which on it may be proposed.

Retired: 6, 8, 10, 24, 31, 32."""
OPCODES = {command: opcode for opcodes in OPCODES_SINCE.values() for command, opcode in opcodes.items()}
"""The number of each command in the log."""
SINCE = {command: version for version, opcodes in OPCODES_SINCE.items() for command in opcodes}
"""The version of the state from which on each command may be proposed: before, some member may not know it."""
NO_COMMAND = 0
"""No opcode: it says that no command was the cause."""
