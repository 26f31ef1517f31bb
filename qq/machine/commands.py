"""What can be asked of the machine. The node that asks is the origin of the batch.

Lives here: the fields of each command and its place in AMQP. Not here: bytes (codec.py), what a command does
(machine.py).

Law: commands are stored in the log for ever. An opcode is never reused, and a command's fields never change; a command
that needs more is a new command.

Ids: `session` is one AMQP channel, opened once; `connection`, `session` and `consumer` are unique in one incarnation of
the origin. Message ids count from 0 per consumer. A queue name "" means the queue that the session declared last.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Table = dict[str, Any]
"""An AMQP field table; values are None, bool, int, float, str, bytes, Decimal, aware datetime, list and Table."""


class Enqueue(NamedTuple):
    """Publish the next `count` messages of the batch."""

    session: int
    first_seq: int
    """Publish sequence number of the first on that channel, from 1; 0 when the channel is not in confirm mode."""
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here
    exchange: str
    routing_key: str
    mandatory: bool
    frames_channel: int
    """AMQP channel number that the stored frames carry."""


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
    """NO_PRIORITY if the message has none."""
    ttl_ms: int
    """From the property `expiration`; NO_TTL if there is none."""
    delay_ms: int
    """From the header x-delay: so long after this entry the messages become ready."""
    publisher: str
    """From the header x-publisher-id; "" without deduplication."""
    publish_seq: int
    """From the header x-publish-seq of the first message; those of the others follow it."""


class DeadLetter(NamedTuple):
    """Move messages that have died to where their queue's dead-letter exchange routes them.

    `first` and `count` say which of the dying messages of the queue (by name and number) are meant; what they were
    published with comes from the log.
    """

    queue: str
    number: int
    first: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here
    exchange: str
    routing_key: str
    cc: list[str]
    bcc: list[str]
    expiration: str
    """The property that the messages were published with, "" without."""


class Commit(NamedTuple):
    """Carry out the next `count` commands of the batch, which publish and settle, all or none (tx.commit)."""

    session: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here


class Checkout(NamedTuple):
    """Begin to consume."""

    session: int
    connection: int
    channel: int
    """AMQP channel number, for texts."""
    consumer: int
    queue: str
    tag: str
    credit: int
    """How many messages it may hold, to begin with."""
    no_ack: bool
    """The client does not acknowledge: its node settles for it, once a message is written to the socket."""
    exclusive: bool
    auto_credit: bool
    """Settling gives credit back (a prefetch); else only `Credit` does."""
    cancel_on_failover: bool
    can_be_cancelled: bool
    """The client understands consumer cancel notifications."""
    timeout_ms: int
    """How long a delivery may stay unacknowledged where nothing else says so; 0 for ever."""
    arguments: Table


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


class SessionDown(NamedTuple):
    """The channel closed: its consumers end and their unacked messages return."""

    session: int


class ConnectionDown(NamedTuple):
    """The connection closed, after its sessions: its exclusive queues go."""

    connection: int


class PutUser(NamedTuple):
    """Create or replace a user; the hash is made outside."""

    name: str
    salt: bytes
    hash: bytes
    tags: list[str]


class DeleteUser(NamedTuple):
    name: str


class PutPolicy(NamedTuple):
    """Create or replace a policy, or an operator policy; it is checked outside, and what is wrong is ignored."""

    name: str
    operator: bool
    pattern: str
    apply_to: str
    priority: int
    definition: Table


class DeletePolicy(NamedTuple):
    name: str
    operator: bool


class LimitPublishers(NamedTuple):
    """How many publishers are remembered for deduplication, and for how long after their last message."""

    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here
    age_ms: int


NO_PRIORITY = 256
NO_TTL = 2**62

Method = (
    Enqueue
    | Publish
    | Commit
    | Limit
    | Checkout
    | Cancel
    | Get
    | Recover
    | DeclareQueue
    | DeleteQueue
    | PurgeQueue
    | BindQueue
    | UnbindQueue
    | DeclareExchange
    | DeleteExchange
    | BindExchange
    | UnbindExchange
)
"""Commands that are a method of a client on its channel, and may be refused."""

Settlement = Settle | Return | Reject | Discard

Command = (
    Method
    | Settlement
    | DeadLetter
    | SetPrefetch
    | Credit
    | SessionDown
    | ConnectionDown
    | PutUser
    | DeleteUser
    | PutPolicy
    | DeletePolicy
    | LimitPublishers
)

OPCODES: dict[type[Command], int] = {
    Enqueue: 1,
    Settle: 2,
    Return: 3,
    Discard: 4,
    Credit: 5,
    Cancel: 7,
    Recover: 9,
    DeclareQueue: 10,
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
    DeadLetter: 24,
    Commit: 25,
    Checkout: 26,
    Get: 27,
    Reject: 28,
    SetPrefetch: 29,
    Limit: 30,
    PutPolicy: 31,
    DeletePolicy: 32,
    LimitPublishers: 33,
}

METHODS: dict[type[Method], tuple[int, int]] = {
    Enqueue: (60, 40),
    Publish: (60, 40),
    Commit: (90, 20),
    Limit: (60, 10),
    Checkout: (60, 20),
    Cancel: (60, 30),
    Get: (60, 70),
    Recover: (60, 110),
    DeclareQueue: (50, 10),
    BindQueue: (50, 20),
    PurgeQueue: (50, 30),
    DeleteQueue: (50, 40),
    UnbindQueue: (50, 50),
    DeclareExchange: (40, 10),
    DeleteExchange: (40, 20),
    BindExchange: (40, 30),
    UnbindExchange: (40, 40),
}
"""AMQP class and method, for the error that closes the channel."""
