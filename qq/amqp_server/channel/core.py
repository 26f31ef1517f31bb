"""What the parts of a channel share: asking the log, answering, and one method after the other.

Invariant: a method that needs an answer from the log holds back the channel's later methods until it has it, as if the
channel's methods were carried out one by one; those next ones that ask for the same go with it (`take_held`). So does
one that has to wait until this node is up to date, and so do messages for which a limit of publishing has no room yet.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from qq.amqp.connection import ChannelCloseRequested
from qq.amqp.encoding import encode
from qq.amqp.framing import Acks, ChannelFault, Method, Publishes
from qq.sessions.access import Access
from qq.sessions.session_info import SessionCounts

if TYPE_CHECKING:
    from collections.abc import Callable

    from pamqp.base import Frame

    from qq.amqp_server.channel.transaction import Transaction
    from qq.amqp_server.outgoing import Outgoing
    from qq.amqp_server.ports import Carrier
    from qq.errors import AmqpError
    from qq.machine.protocol.commands import Command
    from qq.sessions.access import Permission
    from qq.sessions.broker import Broker

    MakeOutgoing = Callable[[Broker, Carrier, int, SessionCounts], Outgoing]

Event = Publishes | Acks | Method | ChannelFault | ChannelCloseRequested


class ChannelCore:
    """The session of a channel, and what its parts have in common."""

    __slots__ = (
        "_answers",
        "_carry_out",
        "_fail",
        "_held",
        "_waits",
        "access",
        "answered",
        "broker",
        "closed",
        "confirming",
        "connection",
        "counts",
        "has_failed",
        "has_published",
        "last_queue",
        "number",
        "outgoing",
        "reply_name",
        "session",
        "transaction",
    )

    def __init__(
        self,
        broker: Broker,
        connection: Carrier,
        number: int,
        carry_out: Callable[[Event], None],
        fail: Callable[[AmqpError], None],
        make_outgoing: MakeOutgoing,
    ) -> None:
        self.broker = broker
        self.connection = connection
        self.number = number
        self.session = broker.new_id()
        """The channel's number in the log: unlike `number` it is never used again."""
        self.counts = SessionCounts()
        self.outgoing = make_outgoing(broker, connection, number, self.counts)
        self.access = Access(broker.machine, connection.user, connection.vhost, connection.scopes)
        self.closed = False
        self.has_failed = False
        """Whether the log has refused something of the channel: it passes over what is asked for behind that."""
        self.confirming = False
        self.has_published = False
        """Whether messages were published that may not be applied yet: what they return, or their error, comes before
        the answers to later methods."""
        self.transaction: Transaction | None = None
        self.last_queue = ""
        """The queue that was declared last: methods that name none mean it."""
        self.reply_name: bytes | None = None
        """Where replies to the channel's requests are to be sent, if it has a consumer of direct replies."""
        self.answered = 0
        """How many answers the log has given to the channel, which is the number of the last one."""
        self._carry_out = carry_out
        self._fail = fail
        self._answers: deque[Callable[[Any], None]] = deque()
        """Functions to be called with the log's answers, which come in the order of the commands."""
        self._held: deque[Event] = deque()
        """Events that came behind a method that waits for its answer; the connection limits how much."""
        self._waits = False
        """Whether events are held back until this node has applied what the cluster has committed, or until `go_on`."""

    # One after the other

    @property
    def waits_for_answer(self) -> bool:
        return bool(self._answers)

    @property
    def is_busy(self) -> bool:
        """Whether a method waits for its answer, or behind one that does."""
        return bool(self._answers or self._held or self._waits)

    def receive(self, event: Event) -> None:
        """Carry out an event, or hold it back while an earlier method waits for its answer."""
        if self._answers or self._waits:
            if not self._held:
                self.connection.holds_back(self)
            self._held.append(event)
            return
        self._carry_out(event)

    def hold(self, event: Event) -> None:
        """Keep an event, and all that comes behind it, until `go_on`."""
        if not self._held:
            self.connection.holds_back(self)
        self._held.appendleft(event)
        self._waits = True

    def wait(self) -> None:
        """Hold all events back until `go_on`."""
        self._waits = True

    def go_on(self) -> None:
        """Carry out what was kept."""
        self._waits = False
        self._release_held()

    def recheck(self, event: Event) -> None:
        """Carry out an event, and all that is held behind it, when this node has applied what is committed by now."""
        self.hold(event)
        self.broker.submissions.read_barrier(self._rechecked, self.connection.lane)

    def _rechecked(self) -> None:
        self._waits = False
        if not self.closed:
            self.access.certain = True
            self._carry_out(self._held.popleft())
            self.access.certain = False
            self._release_held()

    def take_held(self, is_alike: Callable[[Event], bool], most: int) -> int:
        """Take out, of the events that are held behind the one that is carried out, those next ones that are alike.

        They are carried out with it; so are acknowledgements between them, since no message that these are of comes
        from what is asked for now. Returns how many were taken out, which are `most` at most.
        """
        held, count = self._held, 0
        while held and count < most:
            if isinstance(held[0], Acks):
                self._carry_out(held.popleft())
            elif is_alike(held[0]):
                held.popleft()
                count += 1
            else:
                break
        return count

    def answer_when_applied(self, frame: Frame) -> None:
        """Answer a method when its commands, which the log does not answer, are applied; hold all back meanwhile."""

        def applied() -> None:
            self._waits = False
            if not self.closed:
                self.send(frame)
                self._release_held()

        self._waits = True
        self.broker.submissions.read_barrier(applied, self.connection.lane)

    def replied(self, result: Any) -> None:
        """Pass the log's answer on to the oldest method that waits for one."""
        self.answered += 1
        self._answers.popleft()(result)
        self._release_held()

    def _release_held(self) -> None:
        while self._held and not (self._answers or self._waits):
            self._carry_out(self._held.popleft())
        if not self._held:
            self.connection.released(self)

    # Asking and answering

    def expect(self, answered: Callable[[Any], None]) -> None:
        """Have `answered` called with the log's answer to what is asked for next."""
        self._answers.append(answered)

    def ask(
        self, command: Command, answer: Callable[[Any], Frame | bytes | None], *, nowait: bool = False
    ) -> None:
        """Submit a command; its result becomes the answering frame, unless the client wants none."""

        def answered(result: Any) -> None:
            frame = answer(result)
            if frame is not None and not nowait:
                self.outgoing.send(frame if isinstance(frame, bytes) else encode(self.number, frame))

        self.expect(answered)
        self.broker.ask_when_known(command, self.connection, self._is_over)

    def _is_over(self) -> bool:
        return self.closed

    def send(self, frame: Frame) -> None:
        self.outgoing.send(encode(self.number, frame))

    def check_queue(self, permission: Permission, name: str) -> None:
        """Check one permission of a queue. Raises AccessRefused."""
        name = name or self.last_queue
        if name:  # else the log refuses
            self.access.check(permission, "queue", name)

    # Ends

    def fail(self, error: AmqpError) -> None:
        """Close the channel with an error."""
        self._fail(error)

    def end(self) -> None:
        """End the channel: it carries out nothing more, and refers to nothing more, so that it is freed at once."""
        self.closed = True
        self._held.clear()
        self._answers.clear()
        self.transaction = None
        self._carry_out = self._fail = _has_ended
        self.connection.released(self)
        self.outgoing.close()


def _has_ended(_: object) -> None:
    """Takes the place of the functions of a channel that has ended: what comes for it is dropped."""
