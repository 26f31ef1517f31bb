"""What follows from the commands. Every replica computes every effect; `node` is the one that carries it out.

Invariant: an effect is a value. It holds no reference into the machine's state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from qq.machine.protocol.death_history import History
    from qq.ranges import Range

CountContract = Literal["4.0", "4.3"]
"""The release of RabbitMQ by whose rules a quorum queue counts deliveries."""


class Deliver(NamedTuple):
    """Send messages to a consumer; their message ids are `first_id` and on, in the order of the ranges."""

    node: str
    session: int
    consumer: int
    first_id: int
    ranges: list[Range]
    histories: dict[int, History]
    """The histories that the ranges refer to, by their ids."""
    count_contract: CountContract | None
    """Which headers count the deliveries of a message; None at a classic queue, which adds no such header."""


class QueueDeclared(NamedTuple):
    name: str
    messages: int
    consumers: int


class QueueDeleted(NamedTuple):
    messages: int


class QueuePurged(NamedTuple):
    messages: int


class Done(NamedTuple):
    """The result of a declaration or binding that has succeeded and has nothing else to tell."""


class Consuming(NamedTuple):
    consumer: int


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
    """The result of `GetMessages`; the ids of the messages are 0 and on, in the order of the ranges."""

    consumer: int
    ranges: list[Range]
    remaining: int
    """How many messages are ready behind the last of these."""
    histories: dict[int, History]
    """The histories that the ranges refer to, by their ids."""
    count_contract: CountContract | None


class Recovered(NamedTuple):
    pass


class Committed(NamedTuple):
    pass


class Limited(NamedTuple):
    pass


class Connected(NamedTuple):
    """The connection is open: its client is in the virtual host."""


Result = (
    QueueDeclared
    | QueueDeleted
    | QueuePurged
    | Done
    | Consuming
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
    """Answer a command of the session; answers come in the order of the commands."""

    node: str
    session: int
    result: Result
    number: int
    """The number of this answer: the session's answers are counted from 1, and a failure is one of them."""


class Failed(NamedTuple):
    """Close the channel with an AMQP error or, if the code is a hard one, the connection.

    The machine carries out nothing more for the session until it is told `SessionDown`.
    """

    node: str
    session: int
    code: int
    text: str
    opcode: int
    """The opcode of the command that is refused; NO_COMMAND if there is another reason."""
    number: int
    """The number of this answer, as in `Reply`."""


class Returned(NamedTuple):
    """Give mandatory messages that reached no queue back to the publisher."""

    node: str
    session: int
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.index has no use here
    first_slot: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here
    exchange: str
    routing_key: str
    frames_channel: int
    delay_ms: int = 0
    """The delay that the messages asked for; their stored header has it as if they had been delayed."""


class DirectReply(NamedTuple):
    """Send messages to a consumer of direct replies. Nothing is told again: what does not get there is lost."""

    node: str
    session: int
    consumer: int
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.index has no use here
    first_slot: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here


class Rejected(NamedTuple):
    """Refuse messages that were published in confirm mode: a queue has no room for them, and no queue has got them."""

    node: str
    session: int
    first_seq: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here


class DeliveryTimeout(NamedTuple):
    """Note in the node's log that a consumer has not acknowledged in time. What is done about it is another effect."""

    node: str
    session: int
    consumer: int
    tag: str
    vhost: str
    queue: str
    message_id: int
    timeout_ms: int


class ConsumerGone(NamedTuple):
    """Notify the client that its consumer is gone, with its queue or because it did not acknowledge in time."""

    node: str
    session: int
    consumer: int


class ConnectionForced(NamedTuple):
    """Close a connection, whoever opened it: an operator wants it, or its virtual host or its user is gone."""

    node: str
    session: int
    """The connection's own session, its channel 0."""
    code: int
    text: str


class Known(NamedTuple):
    """What there is of a session, told to a node that has been given the state instead of the entries that led to it.

    Before it come the session's last answer, unless that was `ConsumerCancelled`, and everything that its consumers
    hold; the node may have had some or all of that before.
    """

    node: str
    session: int
    answers: int
    """How many answers the session was given. Those after the last that is told were `ConsumerCancelled`, one per
    `Cancel`."""
    consumers: list[int]
    """The consumers that are live. Another that was confirmed by `Consuming` and not cancelled has lost its queue."""


class OriginExpelled(NamedTuple):
    """Tell a node that the others have stopped waiting for it: all its sessions are gone."""

    node: str


class DeadLettered(NamedTuple):
    """Count messages that have left their queue as dead letters, on the node that saw to it."""

    node: str
    reason: str
    strategy: str
    """The queue's strategy: at-most-once or at-least-once."""
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here


Answer = Reply | Failed
"""What a session is told about its commands, one answer for each."""

SessionEffect = (
    Deliver
    | Reply
    | Failed
    | Returned
    | DirectReply
    | Rejected
    | DeliveryTimeout
    | ConsumerGone
    | ConnectionForced
    | Known
)
"""Effects about one session."""

Effect = SessionEffect | OriginExpelled | DeadLettered
