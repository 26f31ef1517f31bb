"""Effects of commands, as data: answers, deliveries and notices for clients.

Every replica computes every effect; the node named by `node` carries it out.

Invariant: an effect is a value. It holds no reference into the machine's state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from qq.machine.protocol.death_history import History
    from qq.ranges import Range

CountContract = Literal["4.0", "4.3"]
"""The RabbitMQ release whose rules a quorum queue follows when it counts deliveries."""


class Deliver(NamedTuple):
    """Deliver messages to a consumer; their message ids count up from `first_id`, in the order of the ranges."""

    node: str
    session: int
    consumer: int
    first_id: int
    ranges: list[Range]
    histories: dict[int, History]
    """History id -> history, for the ids in the ranges."""
    count_contract: CountContract | None
    """The rules by which headers count deliveries of a message; None at a classic queue, which adds no such header."""


class QueueDeclared(NamedTuple):
    name: str
    messages: int
    consumers: int


class QueueDeleted(NamedTuple):
    messages: int


class QueuePurged(NamedTuple):
    messages: int


class Done(NamedTuple):
    """The result of a declaration or binding that succeeded and returns no data."""


class Consuming(NamedTuple):
    consumer: int


class Attached(NamedTuple):
    """The result of `AttachConsumer`."""

    consumer: int
    is_active: bool
    """Whether the queue delivers to the consumer: false for a consumer that waits to become the single active one."""


class AttachRefused(NamedTuple):
    """The result of an `AttachConsumer` that cannot be carried out."""

    consumer: int
    code: int
    text: str


class ConsumerCancelled(NamedTuple):
    consumer: int


class GetOk(NamedTuple):
    consumer: int
    range: Range
    remaining: int
    history: History | None
    count_contract: CountContract | None


class GetEmpty(NamedTuple):
    pass


class Got(NamedTuple):
    """The result of `GetMessages`; message ids count up from 0, in the order of the ranges."""

    consumer: int
    ranges: list[Range]
    remaining: int
    """Number of ready messages behind the last returned message."""
    histories: dict[int, History]
    """History id -> history, for the ids in the ranges."""
    count_contract: CountContract | None


class Recovered(NamedTuple):
    pass


class Committed(NamedTuple):
    pass


class Limited(NamedTuple):
    pass


class Connected(NamedTuple):
    """The result of `Connect`: the connection is open, and its client is in the virtual host."""


Result = (
    QueueDeclared
    | QueueDeleted
    | QueuePurged
    | Done
    | Consuming
    | Attached
    | AttachRefused
    | ConsumerCancelled
    | GetOk
    | GetEmpty
    | Got
    | Recovered
    | Committed
    | Limited
    | Connected
)


class Reply(NamedTuple):
    """Answer a command of the session. Answers come in the order of the commands."""

    node: str
    session: int
    result: Result
    number: int
    """The number of this answer. A session's answers, including failures, are counted from 1."""


class Failed(NamedTuple):
    """Close the channel with an AMQP error or, for a hard error code, the connection.

    Until `SessionDown`, the machine carries out no further commands of the session.
    """

    node: str
    session: int
    code: int
    text: str
    opcode: int
    """The opcode of the refused command; NO_COMMAND if no command was the cause."""
    number: int
    """The number of this answer, as in `Reply`."""


class Returned(NamedTuple):
    """Return mandatory messages that reached no queue to their publisher (basic.return)."""

    node: str
    session: int
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.index has no use here
    first_slot: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here
    exchange: str
    routing_key: str
    frames_channel: int
    delay_ms: int = 0
    """Delay that the publisher asked for, in milliseconds. The header of the returned message carries it as if the
    message had been delayed."""
    first_seq: int = 0
    """Publish sequence number of the first message; 0 if the publisher wants no confirms."""


class DirectReply(NamedTuple):
    """Send messages to a consumer of direct replies, at most once: a reply that does not arrive is lost."""

    node: str
    session: int
    consumer: int
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.index has no use here
    first_slot: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here
    publisher_node: str
    publisher: int
    """The session that has published the messages, at that node."""


class Rejected(NamedTuple):
    """Nack messages of a publisher in confirm mode, because a queue had no room. No queue has received them."""

    node: str
    session: int
    first_seq: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here
    queue: str
    """The queue without room (overflow reject-publish); the first of several."""


class DeliveryTimeout(NamedTuple):
    """Write to the node's log that a consumer has not acknowledged in time. Separate effects act on the consumer."""

    node: str
    session: int
    consumer: int
    tag: str
    vhost: str
    queue: str
    message_id: int
    timeout_ms: int


class ConsumerGone(NamedTuple):
    """Notify the client that its consumer was cancelled.

    The consumer's queue is gone, or the consumer did not acknowledge in time.
    """

    node: str
    session: int
    consumer: int


class ConsumerState(NamedTuple):
    """Report the state of a consumer whose client sets the credit.

    It comes behind the deliveries when a drain has ended or the client wanted the state, and after a snapshot. If the
    consumer becomes active or inactive and its client wants to know, it comes before the next deliveries.
    """

    node: str
    session: int
    consumer: int
    number: int
    """The number of the last `SetCredit` that was carried out; 0 if there was none."""
    next_id: int
    """The message id of the next delivery."""
    credit: int
    """Number of further messages that the consumer may be given."""
    available: int
    """Number of ready messages in the queue; 0 for a consumer that is inactive or makes way for its successor."""
    is_draining: bool
    """Whether a drain has not ended yet."""
    is_active: bool


class DeliveriesReleased(NamedTuple):
    """Tell the client that messages with these ids, as far as it has not settled them, have returned to the queue.

    The client did not settle them in time.
    """

    node: str
    session: int
    consumer: int
    first: int
    last: int


class ConnectionForced(NamedTuple):
    """Close a connection because an operator requested it, or because its virtual host or user was deleted."""

    node: str
    session: int
    """The connection's own session, its channel 0."""
    code: int
    text: str


class Known(NamedTuple):
    """The status of a session, for a node that received the state in place of the entries that led to it.

    Before it come the session's last answer (unless that was `ConsumerCancelled`), all messages that its consumers
    hold, and the `ConsumerState` of each live consumer that has such a state. The node may have received some of these
    already.
    """

    node: str
    session: int
    answers: int
    """Number of answers that the session has been given. The answers after the last sent answer were
    `ConsumerCancelled`, one per `Cancel`."""
    consumers: list[int]
    """Ids of the live consumers. A consumer that `Consuming` confirmed, and that is neither here nor cancelled, has
    lost its queue."""


class OriginEvicted(NamedTuple):
    """Report to a node that the cluster has evicted it: all its sessions have ended."""

    node: str


class DeadLettered(NamedTuple):
    """Count messages that have left their queue as dead letters, on the node that moved them."""

    node: str
    reason: str
    strategy: str
    """The queue's strategy: at-most-once or at-least-once."""
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here


Answer = Reply | Failed
"""The answer to a command of a session; each command gets a single answer."""

SessionEffect = (
    Deliver
    | Reply
    | Failed
    | Returned
    | DirectReply
    | Rejected
    | DeliveryTimeout
    | ConsumerGone
    | ConsumerState
    | DeliveriesReleased
    | ConnectionForced
    | Known
)
"""Effects for a single session."""

Effect = SessionEffect | OriginEvicted | DeadLettered
