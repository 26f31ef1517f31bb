"""A link on which the client consumes: credit, drains, and the deliveries of a session to its client (section 2.6.7).

A delivery has a key: a number that the shell chooses. Settlements refer to keys, and consecutive keys are ranges.

Invariant: the transfers of a session leave in the order of `deliver`, while the client's window is open. The state of a
link leaves behind its transfers, and a link has a single state that waits. Delivery ids have no gaps, as clients
expect: a delivery gets its id when it leaves.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from qq.amqp10.encoding import (
    ID_MASK,
    TRANSFER_OVERHEAD,
    Outgoing10,
    delivery_in_parts,
)
from qq.amqp10.link import Link10, LinkState
from qq.amqp10.performatives import AttachFrame, DispositionFrame, ReleasedState, SenderSettleMode
from qq.amqp10.windows import HALF_OF_IDS
from qq.ranges import RangeMap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qq.amqp10.link import DetachRequested, LinkFault
    from qq.amqp10.performatives import DeliveryState, FlowFrame, SourceTerminus
    from qq.amqp10.values import Value
    from qq.amqp10.windows import SessionWindows


class CreditSet(NamedTuple):
    """The client has set the credit of a link (`SendingLink.credit`). It replaces earlier credit."""

    link: SendingLink
    is_drain: bool
    """Whether the shell must answer with `SendingLink.drained` when its queue has no more messages."""
    wants_state: bool
    """Whether the shell must answer with `SendingLink.send_state`."""


class Settled(NamedTuple):
    """The client has settled deliveries of a link with consecutive keys."""

    link: SendingLink
    state: DeliveryState
    first_key: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here


class _Held(NamedTuple):
    """The value of consecutive deliveries that the client has not settled."""

    link: SendingLink
    first_key: int


class _Messages(NamedTuple):
    """Deliveries that wait for the client's window."""

    link: SendingLink
    first_key: int
    head: bytes
    bodies: Sequence[bytes]


class _Parts(NamedTuple):
    """Transfers of a delivery whose first transfer has left, perhaps."""

    link: SendingLink
    frames: Sequence[bytes]


class SessionDeliveries:
    """The deliveries of a session to its client: those that wait for the window, and those that are not settled."""

    __slots__ = ("_forgotten", "_next_id", "_unsettled", "_waiting", "_windows")

    def __init__(self, windows: SessionWindows) -> None:
        self._windows = windows
        self._next_id = 0
        """The id of the next delivery. It does not wrap here."""
        self._unsettled: RangeMap[_Held] = RangeMap()
        """By delivery ids that do not wrap. Those of links that have ended are removed later."""
        self._forgotten = 0
        """Deliveries in `_unsettled` whose links have ended."""
        self._waiting: deque[_Messages | _Parts] = deque()

    @property
    def is_waiting(self) -> bool:
        """Whether deliveries wait for the client's window. The shell should add no more."""
        return bool(self._waiting)

    @property
    def unsettled_count(self) -> int:
        """Deliveries that the client has not settled."""
        return len(self._unsettled) - self._forgotten

    def put(self, link: SendingLink, first_key: int, head: bytes, bodies: Sequence[bytes]) -> None:
        """Send deliveries when the window and earlier deliveries allow it."""
        link.waiting += 1
        self._waiting.append(_Messages(link, first_key, head, bodies))
        if len(self._waiting) == 1:
            self.pump()

    def pump(self) -> None:
        """Send waiting deliveries as far as the client's window allows."""
        waiting, windows = self._waiting, self._windows
        while waiting and windows.client_room:
            item = waiting.popleft()
            rest = self._send_parts(item) if isinstance(item, _Parts) else self._send(item)
            item.link.waiting += len(rest) - 1
            waiting.extendleft(reversed(rest))
            if not item.link.waiting:
                item.link.all_sent()

    def settle(self, first: int, last: int) -> list[tuple[SendingLink, int, int]]:
        """Remove deliveries. Return links, first keys and counts. Ids that the client does not hold are ignored."""
        span = (last - first) & ID_MASK
        if span >= HALF_OF_IDS:  # the last is before the first
            return []
        first = self._next_id - ((self._next_id - first) & ID_MASK)
        taken: list[tuple[SendingLink, int, int]] = []
        for _, count, held, offset in self._unsettled.take(first, first + span):
            link = held.link
            if link.has_ended:
                self._forgotten -= count
            else:
                link.unsettled_count -= count
                taken.append((link, held.first_key + offset, count))
        return taken

    def release(self, link: SendingLink, first_key: int, last_key: int) -> None:
        """Tell the client that deliveries of a link which it has not settled are released. It settles them then."""
        for piece in self._unsettled.pieces():
            if piece.value.link is not link:
                continue
            key = piece.value.first_key + piece.offset
            low, high = max(first_key, key), min(last_key, key + piece.count - 1)
            if low <= high:
                first, last = (piece.first + each - key & ID_MASK for each in (low, high))
                self._windows.write(DispositionFrame(False, first, last, state=ReleasedState()))

    def forget(self, link: SendingLink) -> None:
        """Drop the deliveries of a link that has ended. The shell returns them to their queue."""
        if link.waiting:
            self._waiting = deque(item for item in self._waiting if item.link is not link)
        self._forgotten += link.unsettled_count
        # Each time, at least half of the deliveries are removed, so each is moved O(1) times.
        if self._forgotten * 2 > len(self._unsettled):
            pieces = self._unsettled.take_all()
            for first, count, held, offset in pieces:
                if not held.link.has_ended:
                    self._unsettled.append(first, count, _Held(held.link, held.first_key + offset))
            self._forgotten = 0

    def _send(self, messages: _Messages) -> list[_Messages | _Parts]:
        """Send the first of these messages. Return the rest, which waits."""
        link, first_key, head, bodies = messages
        windows = self._windows
        if len(head) + max(map(len, bodies)) + TRANSFER_OVERHEAD >= windows.frame_max:
            frames: list[bytes] = []
            delivery_in_parts(link.outgoing, self._next_id & ID_MASK, head + bodies[0], frames)
            sent, rest = 1, self._send_parts(_Parts(link, frames))
        else:
            sent, rest = min(len(bodies), windows.client_room), list[_Messages | _Parts]()
            windows.send_deliveries(link.outgoing, self._next_id & ID_MASK, head, bodies[:sent])
        if not link.outgoing.is_settled:
            self._unsettled.append(self._next_id, sent, _Held(link, first_key))
            link.unsettled_count += sent
        self._next_id += sent
        if sent < len(bodies):
            rest.append(messages._replace(first_key=first_key + sent, bodies=bodies[sent:]))
        return rest

    def _send_parts(self, parts: _Parts) -> list[_Messages | _Parts]:
        frames = parts.frames
        sent = min(len(frames), self._windows.client_room)
        self._windows.send_transfers(frames[:sent])
        return [parts._replace(frames=frames[sent:])] if sent < len(frames) else []


class SendingLink(Link10):
    """A link to a client."""

    __slots__ = (
        "_deliveries",
        "_delivery_count",
        "_flow",
        "_state",
        "credit",
        "outgoing",
        "unsettled_count",
        "waiting",
    )

    def __init__(
        self,
        attach: AttachFrame,
        windows: SessionWindows,
        links: dict[int, Link10],
        deliveries: SessionDeliveries,
    ) -> None:
        super().__init__(attach, windows, links)
        self._deliveries = deliveries
        self._delivery_count = 0
        self._flow: FlowFrame | None = None
        """The client's last flow before its attach is answered."""
        self._state: _State | None = None
        """The state that waits for the transfers of this link."""
        self.credit = 0
        """Deliveries that the shell may send."""
        is_settled = attach.snd_settle_mode is SenderSettleMode.SETTLED
        self.outgoing = Outgoing10(windows.channel, attach.handle, is_settled, windows.frame_max)
        self.unsettled_count = 0
        """Deliveries that the client has not settled."""
        self.waiting = 0
        """Groups of deliveries that wait for the client's window."""

    @property
    def has_ended(self) -> bool:
        """Whether the client's settlements of this link have no effect any more."""
        return self.state is LinkState.DETACHING or self.state is LinkState.DETACHED

    @property
    def delivery_count(self) -> int:
        return self._delivery_count

    # --- from the shell

    def accept(
        self, source: SourceTerminus | None = None, properties: dict[Value, Value] | None = None
    ) -> list[CreditSet | DetachRequested | LinkFault]:
        """Attach the link. Return the events of frames that the client has sent ahead.

        `source` replaces the source of the client's attach. No effect if the session has ended.
        """
        if self.state is not LinkState.ATTACHING:
            return []
        attach = self.attach
        answer = AttachFrame(
            self.name,
            self.handle,
            False,
            SenderSettleMode.SETTLED if self.outgoing.is_settled else SenderSettleMode.UNSETTLED,
            attach.rcv_settle_mode,
            source or attach.source,
            attach.target,
            initial_delivery_count=0,
            max_message_size=attach.max_message_size,
            properties=properties,
        )
        if (fault := self._answered(answer)) is not None:
            return [fault]
        self.state = LinkState.ATTACHED
        flow, self._flow = self._flow, None
        credit = None if flow is None else self.receive_flow(flow)
        return [event for event in (credit, self._detach_requested()) if event is not None]

    def deliver(self, first_key: int, head: bytes, bodies: Sequence[bytes]) -> None:
        """Send messages with consecutive keys. Each is the head (header, annotations) and a body.

        The credit may have been lowered since the shell's queue used it. No effect if the link has ended.
        """
        if self.is_open:
            count = len(bodies)
            self._delivery_count = (self._delivery_count + count) & ID_MASK
            self.credit = max(0, self.credit - count)
            self._deliveries.put(self, first_key, head, bodies)

    def drained(self, available: int) -> None:
        """Take back the credit that is left, behind the deliveries that used it."""
        self._delivery_count = (self._delivery_count + self.credit) & ID_MASK
        self.credit = 0
        self._send(_State(available, True, None))

    def send_state(self, available: int, properties: dict[Value, Value] | None = None) -> None:
        """Send a flow with the credit and the number of messages that are ready in the queue."""
        self._send(_State(available, False, properties))

    def release(self, first_key: int, last_key: int) -> None:
        """Release deliveries, as far as the client has not settled them. It answers by settling them."""
        if self.is_open:
            self._deliveries.release(self, first_key, last_key)

    def all_sent(self) -> None:
        """Send the state that waits for transfers."""
        state, self._state = self._state, None
        if state is not None:
            self._send(state)

    def _send(self, state: _State) -> None:
        if not self.is_open:
            return
        if self.waiting:
            self._state = state if self._state is None else self._state.followed_by(state)
            return
        available, is_drain, properties = state
        self._windows.send_flow(
            self.handle, self._delivery_count, self.credit, available, drain=is_drain, properties=properties
        )

    # --- from the client

    def receive_flow(self, flow: FlowFrame) -> CreditSet | None:
        """Set the credit. Return the event for the shell, unless it has to answer a different event first."""
        if self.state is not LinkState.ATTACHED:
            if self.state is LinkState.ATTACHING:
                self._flow = flow
            return None
        if flow.link_credit is not None:
            under_way = (self._delivery_count - (flow.delivery_count or 0)) & ID_MASK
            self.credit = max(0, flow.link_credit - under_way)
        return CreditSet(self, flow.drain, flow.echo)

    def _end(self) -> None:
        self._deliveries.forget(self)


class _State(NamedTuple):
    """What a flow says of a link, besides its credit."""

    available: int
    is_drain: bool
    properties: dict[Value, Value] | None

    def followed_by(self, state: _State) -> _State:
        """Return a single state in place of this one and a later one."""
        properties = {**(self.properties or {}), **(state.properties or {})}
        return _State(state.available, self.is_drain or state.is_drain, properties or None)
