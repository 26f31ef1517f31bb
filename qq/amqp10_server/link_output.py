"""The output of a link on which a client consumes: deliveries and states of the link, in the order of the log.

Invariant: deliveries leave while the socket and the window of the client's session take them. Until then the link holds
ranges, and their messages stay in the log.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Generic, NamedTuple

from qq.amqp10.conditions import Condition
from qq.amqp10.values import Symbol
from qq.amqp10_server.errors import error_reply
from qq.client_sockets.message_output import ItemT, MessageOutput
from qq.sessions.deliveries10 import delivered10
from qq.sessions.entries import MessagesGone
from qq.sessions.headers import is_redelivered
from qq.stored.kinds import SECTIONS_CHANNEL

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qq.amqp10.sending_link import SendingLink
    from qq.amqp10.session import Session10
    from qq.amqp10.values import Value
    from qq.amqp10_server.ports import LinkCarrier
    from qq.machine.protocol.death_history import History
    from qq.machine.protocol.effects import CountContract, Deliver
    from qq.ranges import Range
    from qq.sessions.entries import Messages

STEP_MAX, STEP_BYTES_MAX = 1024, 256 * 1024
"""Messages of a step, which are read and sent together, and their octets, about. Sections with annotations of their own
take some 20 ms. Copies of more octets leave the processor's cache."""
ACTIVE = Symbol("rabbitmq:active")
"""Property of a flow: whether the consumer of the link is the active one of its queue."""


@dataclass(slots=True, eq=False)
class _CheckedOut:
    """Messages that the log has given to the link. `next_id` is the message id of the first."""

    next_id: int
    ranges: deque[Range]
    histories: dict[int, History]
    count_contract: CountContract | None


class StateReport(NamedTuple):
    """A state of the link that the client is told behind the deliveries before it."""

    number: int
    """The number of the last `SetCredit` at that time."""
    available: int
    is_drained: bool
    is_echo: bool
    is_active: bool | None
    """None at a queue that may have several active consumers."""


class WindowedOutput(MessageOutput[ItemT, "LinkCarrier"], Generic[ItemT]):
    """The items on their way out of a link, which need the window of the client's session."""

    ANSWERS: ClassVar[frozenset[type]] = frozenset()

    def __init__(self, carrier: LinkCarrier, engine: Session10, link: SendingLink) -> None:
        super().__init__(carrier.broker.entries, carrier)
        self._engine = engine
        self._link = link

    def pump(self) -> None:
        try:
            super().pump()
        except Exception as error:  # noqa: BLE001  # it is logged; other clients must get their messages
            self._connection.unexpected(error)

    def close(self) -> None:
        """Drop what waits. The link writes no more."""
        self._closed = True
        self._waiting.clear()

    @property
    def _is_window_closed(self) -> bool:
        """Whether the client's session takes no transfer. The opening of its window calls `pump`."""
        return not self._engine.windows.client_room

    def _write_ranges(self, ranges: deque[Range], write: Callable[[Range, Sequence[Messages]], None]) -> bool:
        """Write the messages of ranges in steps. Return False if the rest, which stays in `ranges`, must wait.

        `write` gets the messages of a step, or none if they are no longer stored.
        """
        while ranges:
            if not self._connection.has_room:
                self._connection.pump_later(self)
                return False
            if self._is_window_closed:
                return False
            part = self._next_portion(ranges)
            if self._divide(ranges, STEP_MAX, STEP_BYTES_MAX) or self._cut_to_window(ranges):
                continue
            try:
                stored = self._stored(part, ranges)
            except MessagesGone:
                stored = []
            if stored is None:
                return False
            is_converted = any(messages.frames_channel != SECTIONS_CHANNEL for messages in stored)
            if is_converted and self._divide_conversion(ranges, stored):
                continue
            write(part, stored)
            if self._closed:
                return False  # a message was too large
            ranges.popleft()
        return True

    def _cut_to_window(self, ranges: deque[Range]) -> bool:
        """Split the first range where the client's window ends. Return whether it was split.

        Messages that the link sends settled are gone when they are written: those behind the window must wait in the
        log. A message of several transfers leaves in part, perhaps.
        """
        windows, part = self._engine.windows, ranges[0]
        room = windows.client_room
        count = min(room, max(1, room * windows.frame_max * part.count // (part.size or 1)))
        if not self._link.outgoing.is_settled or part.count <= count:
            return False
        self._split(ranges, count)
        return True

    def _delivered(
        self,
        stored: Messages,
        part: Range,
        history: History | None = None,
        count_contract: CountContract | None = None,
    ) -> list[tuple[bytes, list[bytes]]]:
        """Return messages as heads and rests (`delivered10`)."""
        return self._connection.timed(
            lambda: delivered10(stored, part, history, count_contract=count_contract)
        )

    def _send(self, first_id: int, head: bytes, bodies: list[bytes]) -> None:
        """Send messages with consecutive ids, each the head and a body, unless one is too large for the client."""
        size, limit = len(head) * len(bodies) + sum(map(len, bodies)), self._link.attach.max_message_size
        if 0 < limit < size:
            largest = len(head) + max(map(len, bodies))
            if largest > limit:
                text = f"message size ({largest} bytes) > maximum message size ({limit} bytes)"
                error = error_reply(Condition.MESSAGE_SIZE_EXCEEDED, text)
                self._connection.end_session(self._engine, error)
                return
        self._link.deliver(first_id, head, bodies)
        self._connection.schedule_flush(size)


class LinkOutput(WindowedOutput["_CheckedOut | StateReport"]):
    """The deliveries and states on their way out of a link."""

    def __init__(
        self,
        carrier: LinkCarrier,
        engine: Session10,
        link: SendingLink,
        written: Callable[[int, int, bool], None],
    ) -> None:
        """Create the output. `written` is called with the first message id, the count, and whether they come again."""
        super().__init__(carrier, engine, link)
        self._on_written = written
        self.written_id = 0
        """The message id of the first message that was not written yet."""
        self.credit_number = 0
        """The number of the last `SetCredit` that was sent."""

    def deliver(self, effect: Deliver) -> None:
        last = self._waiting[-1] if self._waiting else None
        if isinstance(last, _CheckedOut):
            last.ranges.extend(effect.ranges)
            last.histories.update(effect.histories)
            last.count_contract = effect.count_contract
        else:
            ranges, histories = deque(effect.ranges), dict(effect.histories)
            self._put(_CheckedOut(effect.first_id, ranges, histories, effect.count_contract))

    def report(self, state: StateReport) -> None:
        self._put(state)

    def _write(self, item: _CheckedOut | StateReport) -> bool:
        if isinstance(item, StateReport):
            self._write_state(item)
            return True
        return self._write_ranges(item.ranges, partial(self._write_part, item))

    def _write_state(self, state: StateReport) -> None:
        # A client that has set the credit anew meanwhile keeps it.
        is_drained = state.is_drained and state.number == self.credit_number
        if is_drained:
            self._link.drained(state.available)
        if state.is_echo or not is_drained:
            properties: dict[Value, Value] | None = None
            if state.is_active is not None:
                properties = {ACTIVE: state.is_active}
            self._link.send_state(state.available, properties)
        self._connection.schedule_flush()

    def _write_part(self, item: _CheckedOut, part: Range, stored: Sequence[Messages]) -> None:
        """Write the messages of a range. There are none if their queue was deleted, which the link hears apart."""
        history, contract = item.histories.get(part.history), item.count_contract
        first = item.next_id
        item.next_id += part.count
        if not stored:
            return
        next_id = first
        for messages in stored:
            for head, bodies in self._delivered(messages, part, history, contract):
                self._send(next_id, head, bodies)
                next_id += len(bodies)
        self.written_id = next_id
        self._on_written(first, part.count, is_redelivered(part, history, contract))
