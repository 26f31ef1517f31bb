"""Shared by the parts of a channel: requests to the log, answers, and the order of methods.

Invariant: the channel's methods take effect one by one. Later methods are held back in three cases. A method waits for
its answer from the log. A method waits until this node is up to date. Messages wait for a limit of publishing.
Identical methods that follow directly may be carried out together (`take_held`).
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
    """The session of a channel, and the state that its parts share."""

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
        """The channel's number in the log. Unlike `number` it is never reused."""
        self.counts = SessionCounts()
        self.outgoing = make_outgoing(broker, connection, number, self.counts)
        self.access = Access(broker.machine, connection.user, connection.vhost, connection.scopes)
        self.closed = False
        self.has_failed = False
        """Whether the log has refused a request of the channel. The log then skips all later requests of the
        channel."""
        self.confirming = False
        self.has_published = False
        """Whether there are publishes that may not be applied yet. Their returned messages, or their error, must
        precede the answers to later methods."""
        self.transaction: Transaction | None = None
        self.last_queue = ""
        """The queue that was declared last, used by methods without a queue name."""
        self.reply_name: bytes | None = None
        """The address for replies to the channel's requests, if it has a consumer of direct replies; else None."""
        self.answered = 0
        """The number of answers that the log has given to the channel, which is also the number of the last answer."""
        self._carry_out = carry_out
        self._fail = fail
        self._answers: deque[Callable[[Any], None]] = deque()
        """Functions to call with the log's answers, which arrive in the order of the commands."""
        self._held: deque[Event] = deque()
        """Events behind a method that waits for its answer. The connection limits their octets."""
        self._waits = False
        """Whether events are held back until this node has applied all committed entries, or until `go_on`."""

    # Order of methods

    @property
    def waits_for_answer(self) -> bool:
        return bool(self._answers)

    @property
    def is_busy(self) -> bool:
        """Whether a method waits for its answer, or is held back behind such a method."""
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
        """Hold back an event, and all later events, until `go_on`."""
        if not self._held:
            self.connection.holds_back(self)
        self._held.appendleft(event)
        self._waits = True

    def wait(self) -> None:
        """Hold back all events until `go_on`."""
        self._waits = True

    def go_on(self) -> None:
        """Carry out the events that were held back."""
        self._waits = False
        self._release_held()

    def recheck(self, event: Event) -> None:
        """Carry out an event, and the events held behind it, when this node has applied all entries committed now."""
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
        """Remove up to `most` held events that directly follow and are alike, and return their number.

        The caller carries them out with the present event. Acknowledgements between them are carried out here: they
        cannot be for messages that the present event requests.
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
        """Answer a method when its commands, which the log does not answer, are applied.

        Hold back all events until then.
        """

        def applied() -> None:
            self._waits = False
            if not self.closed:
                self.send(frame)
                self._release_held()

        self._waits = True
        self.broker.submissions.read_barrier(applied, self.connection.lane)

    def replied(self, result: Any) -> None:
        """Pass the log's answer to the oldest method that waits for an answer."""
        self.answered += 1
        self._answers.popleft()(result)
        self._release_held()

    def _release_held(self) -> None:
        while self._held and not (self._answers or self._waits):
            self._carry_out(self._held.popleft())
        if not self._held:
            self.connection.released(self)

    # Requests and answers

    def expect(self, answered: Callable[[Any], None]) -> None:
        """Register `answered` as the function for the log's answer to the next request."""
        self._answers.append(answered)

    def ask(
        self, command: Command, answer: Callable[[Any], Frame | bytes | None], *, nowait: bool = False
    ) -> None:
        """Submit a command, and send the frame that `answer` makes of its result, unless `nowait` is set."""

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
        """Check a permission for a queue. Raises AccessRefused."""
        name = name or self.last_queue
        if name:  # otherwise the log refuses the request
            self.access.check(permission, "queue", name)

    # Ends

    def fail(self, error: AmqpError) -> None:
        """Close the channel with an error."""
        self._fail(error)

    def end(self) -> None:
        """End the channel. It carries out no more events, and drops its references so that it is freed at once."""
        self.closed = True
        self._held.clear()
        self._answers.clear()
        self.transaction = None
        self._carry_out = self._fail = _has_ended
        self.connection.released(self)
        self.outgoing.close()


def _has_ended(_: object) -> None:
    """Ignore the argument: stands in for the functions `_carry_out` and `_fail` of a channel that has ended."""
