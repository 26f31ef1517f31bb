"""The order of a channel's methods: a method that waits for the log holds back all later methods.

Invariant: the channel's methods take effect one by one. Later methods are held back in three cases. A method waits for
its answer from the log. A method waits until this node is up to date. Messages wait for a limit of publishing.
Identical methods that follow directly may be carried out together (`take_held`).
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from qq.amqp.connection import ChannelCloseRequested
from qq.amqp.framing import Acks, ChannelFault, Method, Publishes

if TYPE_CHECKING:
    from collections.abc import Callable

    from qq.amqp_server.ports import Carrier
    from qq.sessions.access import Access
    from qq.sessions.submissions import Submissions

AT_ONCE = 16
"""Held events that are carried out together. For more, the channel waits for its connection's next turn."""
Event = Publishes | Acks | Method | ChannelFault | ChannelCloseRequested


class MethodQueue:
    """The events of a channel behind a method that waits, and the methods that wait for an answer from the log."""

    __slots__ = (
        "_access",
        "_answers",
        "_carry_out",
        "_connection",
        "_held",
        "_is_blocked",
        "_is_ended",
        "_submissions",
        "_then",
        "answered",
        "number",
    )

    def __init__(
        self,
        number: int,
        connection: Carrier,
        submissions: Submissions,
        access: Access,
        carry_out: Callable[[Event], None],
    ) -> None:
        """Create the queue of channel `number`. `carry_out` carries out an event of the channel."""
        self.number = number
        self.answered = 0
        """The number of answers that the log has given to the channel, which is also the number of the last answer."""
        self._connection = connection
        self._submissions = submissions
        self._access = access
        self._carry_out = carry_out
        self._answers: deque[Callable[[Any], None]] = deque()
        """Functions to call with the log's answers, which arrive in the order of the commands."""
        self._held: deque[Event] = deque()
        """Events behind a method that waits. The connection limits their octets."""
        self._is_blocked = False
        """Whether events are held back for a reason other than an answer from the log."""
        self._then: Callable[[], None] | None = None
        """Function to call in the connection's next turn, because the log is up to date."""
        self._is_ended = False

    @property
    def waits_for_answer(self) -> bool:
        return bool(self._answers)

    @property
    def is_busy(self) -> bool:
        """Whether a method waits, or is held back behind such a method."""
        return bool(self._answers or self._held or self._is_blocked)

    def receive(self, event: Event) -> None:
        """Carry out an event, or hold it back while an earlier method waits."""
        if self._answers or self._is_blocked or self._held:
            if not self._held:
                self._connection.requests_held(self)
            self._held.append(event)
            return
        self._carry_out(event)

    # Answers from the log

    def expect(self, answered: Callable[[Any], None]) -> None:
        """Register `answered` as the function for the log's answer to the next request."""
        self._answers.append(answered)

    def replied(self, result: Any) -> None:
        """Pass the log's answer to the oldest method that waits for an answer."""
        self.answered += 1
        self._answers.popleft()(result)
        self._carry_out_held()

    # Other reasons to wait

    def block(self) -> None:
        """Hold back all events until `release`."""
        self._is_blocked = True

    def hold(self, event: Event) -> None:
        """Hold back an event, and all later events, until `release`."""
        if not self._held:
            self._connection.requests_held(self)
        self._held.appendleft(event)
        self._is_blocked = True

    def release(self) -> None:
        """Carry out the events that were held back."""
        self._is_blocked = False
        self._carry_out_held()

    def recheck(self, event: Event) -> None:
        """Carry out an event, and the events held behind it, when this node has applied all entries committed now."""
        self.hold(event)
        self.wait_read(self._carry_out_first)

    def wait_read(self, then: Callable[[], None]) -> None:
        """Hold back all events until this node has applied all entries committed now, and all requests of the channel.

        Call `then` before the events.
        """
        self._wait_for_log()
        self._submissions.read(partial(self._waited, then), self._connection.lane)

    def wait_applied(self, then: Callable[[], None]) -> None:
        """Hold back all events until all requests of the channel so far are applied. Call `then` before the events."""
        self._wait_for_log()
        self._submissions.read_barrier(partial(self._waited, then), self._connection.lane)

    def _wait_for_log(self) -> None:
        """Hold back all events. The client counts as waiting for the log, even if no event is held back yet."""
        self._is_blocked = True
        self._connection.requests_held(self)

    def _waited(self, then: Callable[[], None]) -> None:
        """Call `then` in a turn of the connection, because an answer of the leader may be for very many channels."""
        if not self._is_ended:
            self._then = then
            self._connection.continue_later(self)

    def _carry_out_first(self) -> None:
        self._access.certain = True
        self._carry_out(self._held.popleft())
        self._access.certain = False

    # Held events

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

    def _carry_out_held(self) -> None:
        """Carry out held events in a turn of the connection, because an entry may answer very many channels."""
        if self._held:
            self._connection.continue_later(self)
        elif not self._is_blocked:
            self._connection.requests_released(self)

    def carry_out_some(self) -> None:
        """Carry out held events. Ask for a further turn if more are left than may be carried out together."""
        if (then := self._then) is not None:
            self._then, self._is_blocked = None, False
            then()
        for _ in range(AT_ONCE):
            if not self._held or self._answers or self._is_blocked:
                break
            event = self._held.popleft()
            self._carry_out(event)
            if isinstance(event, Publishes):  # as many messages as a step of the reader takes
                break
        if self._is_blocked:
            return
        if not self._held:
            self._connection.requests_released(self)
        elif not self._answers:
            self._connection.continue_later(self)

    def end(self) -> None:
        """Discard all held events. Drop the reference to the channel, so that the channel is freed at once."""
        self._is_ended = True
        self._held.clear()
        self._answers.clear()
        self._then = None
        self._carry_out = _ignore
        self._connection.requests_released(self)


def _ignore(_event: Event) -> None:
    """Ignore an event: stands in for the function `_carry_out` of a channel that has ended."""
