"""A session of a connection: its links, and the frames between them and the client (section 2.5).

Invariant: after an event about an error, the client's frames for the link or session are dropped.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NamedTuple

from qq.amqp10.conditions import Condition, LinkFailure, SessionFailure
from qq.amqp10.link import DetachRequested, LinkFault, LinkState
from qq.amqp10.performatives import (
    AcceptedState,
    AttachFrame,
    DetachFrame,
    DispositionFrame,
    EndFrame,
    FlowFrame,
    ModifiedState,
    ReceivedState,
    RejectedState,
    ReleasedState,
    TransferFrame,
)
from qq.amqp10.receiving_link import Deliveries, ReceivingLimits, ReceivingLink
from qq.amqp10.sending_link import CreditSet, SendingLink, SessionDeliveries, Settled
from qq.amqp10.values import Symbol, encode
from qq.amqp10.windows import SessionWindows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qq.amqp10.framing import Transfers
    from qq.amqp10.link import Link10
    from qq.amqp10.performatives import ErrorReply, SessionPerformative
    from qq.amqp10.values import Value

Outcome = AcceptedState | RejectedState | ReleasedState | ModifiedState
"""The state of a delivery that has ended."""

ANNOTATIONS_BYTES_MAX = 4096
"""Octets of the annotations of an outcome `modified`, because the message keeps them."""


LINKS_BYTES_MAX = 256 * 1024
"""Octets of the names and termini of a session's links, above which it gets no further link."""
ATTACH_OCTETS = 64
"""Octets of the answer to an attach, besides the name of the link, if the answer has no more than it needs."""


class SessionLimits(NamedTuple):
    """The limits of a session."""

    handle_max: int
    incoming_window: int
    """Transfers that a client may send in a session after a flow."""
    receiving: ReceivingLimits


class SessionPhase(Enum):
    """The state of a session."""

    OPEN = auto()
    FAULTY = auto()
    """The shell must answer a `SessionFault`."""
    END_REQUESTED = auto()
    """The shell must answer an `EndRequested`."""
    ENDING = auto()
    """The server has ended the session, and the client's end is pending."""
    ENDED = auto()


class LinkRequested(NamedTuple):
    """The client attaches a link (`Link10.attach`). Answer with the link's `accept` or `refuse`."""

    link: ReceivingLink | SendingLink
    session: Session10

    @property
    def is_pending(self) -> bool:
        """Whether neither the link nor its session has ended."""
        return self.session.state is SessionPhase.OPEN and self.link.state is LinkState.ATTACHING


class WindowOpened(NamedTuple):
    """All deliveries that waited for the client's window have left."""

    session: Session10


class SettlementRequested(NamedTuple):
    """The client has told an outcome that the node has to settle.

    Answer with `Session10.settle` when the log has the outcome.
    """

    session: Session10
    ranges: list[tuple[int, int]]
    """The first and last ids of deliveries, also of those that the client does not hold."""
    state: Outcome


class EndRequested(NamedTuple):
    """The client ends the session. Answer with `Session10.ended` when the work of the session has ended."""

    session: Session10
    error: ErrorReply | None


class SessionFault(NamedTuple):
    """The client has broken a rule of the session. Answer with `Session10.end`."""

    session: Session10
    error: SessionFailure


SessionEvent = (
    Deliveries
    | Settled
    | CreditSet
    | LinkRequested
    | DetachRequested
    | LinkFault
    | WindowOpened
    | SettlementRequested
    | EndRequested
    | SessionFault
)


class Session10:
    """A session of a client."""

    __slots__ = ("_leaving", "_limits", "_links", "_sessions", "deliveries", "state", "windows")

    def __init__(
        self, windows: SessionWindows, limits: SessionLimits, sessions: dict[int, Session10]
    ) -> None:
        self.state = SessionPhase.OPEN
        self.windows = windows
        self.deliveries = SessionDeliveries(windows)
        self._limits = limits
        self._links: dict[int, Link10] = {}
        """By the handles that are in use."""
        self._leaving: list[Link10] = []
        """Links that the client has detached, and whose handles it uses again; the server has not detached some."""
        self._sessions = sessions
        """The sessions of the connection, by the channel numbers that are in use."""
        sessions[windows.channel] = self
        windows.begin(limits.handle_max)

    @property
    def channel(self) -> int:
        return self.windows.channel

    @property
    def links(self) -> Sequence[Link10]:
        return [*self._still_leaving(), *self._links.values()]

    def _still_leaving(self) -> list[Link10]:
        return [link for link in self._leaving if link.state is not LinkState.DETACHED]

    @property
    def handle_max(self) -> int:
        return self._limits.handle_max

    @property
    def partial_bytes(self) -> int:
        """Octets of incomplete deliveries."""
        return self.windows.partial_bytes

    # --- from the shell

    def end(self, error: ErrorReply | None = None) -> None:
        """End the session. No effect if it has ended."""
        if self.state in (SessionPhase.ENDING, SessionPhase.ENDED):
            return
        is_answer = self.state is SessionPhase.END_REQUESTED
        self.state = SessionPhase.ENDING
        self.forget_links()
        self.windows.write(EndFrame(error))
        if is_answer:
            self._leave()

    def ended(self) -> None:
        """Answer the client's end. No effect if the server has ended the session."""
        if self.state is SessionPhase.END_REQUESTED:
            self.end()

    def forget_links(self) -> None:
        """End all links without a frame, because the session or the connection ends."""
        for link in self.links:
            link.state = LinkState.DETACHED
        self._links.clear()
        self._leaving.clear()
        self.windows.partial_bytes = 0
        self.deliveries = SessionDeliveries(self.windows)

    # --- from the client

    def transfers(self, transfers: Transfers, events: list[Any]) -> None:
        """Take complete deliveries of a link."""
        if self.state is not SessionPhase.OPEN:
            return
        handle = transfers.performative.handle
        try:
            self.windows.received(len(transfers.ids))
            link = self._receiver(handle)
            if link.state is LinkState.ATTACHED:
                link.receive(transfers, events)
            else:
                link.receive_early()
        except LinkFailure as error:
            self._fail_link(handle, error, events)
        except SessionFailure as error:
            self._fail(error, events)

    def dispositions(
        self, disposition: DispositionFrame, ranges: list[tuple[int, int]], events: list[Any]
    ) -> None:
        """Take dispositions that equal `disposition` but for their ranges."""
        if self.state is not SessionPhase.OPEN or not disposition.role:
            return  # the state of the client's own deliveries: the server settles them first
        try:
            state = _outcome(disposition)
        except SessionFailure as error:
            self._fail(error, events)
            return
        if state is None:
            return
        joined = _joined(ranges)
        for first, last in joined:
            for link, key, count in self.deliveries.settle(first, last):
                events.append(Settled(link, state, key, count))
        if not disposition.settled:
            events.append(SettlementRequested(self, joined, state))

    def settle(self, request: SettlementRequested) -> None:
        """Settle deliveries for the client. No effect if the session has ended."""
        if self.state is SessionPhase.OPEN or self.state is SessionPhase.END_REQUESTED:
            for first, last in request.ranges:
                self.windows.write(DispositionFrame(False, first, last, settled=True, state=request.state))

    def receive(self, performative: SessionPerformative, payload: bytes, events: list[Any]) -> None:
        """Take a frame that is not the beginning of a session."""
        if isinstance(performative, EndFrame):
            self._client_ends(performative, events)
            return
        if self.state is not SessionPhase.OPEN:
            return
        try:
            match performative:
                case TransferFrame(handle=handle):
                    self._transfer(handle, performative, payload, events)
                case DispositionFrame(first=first, last=last):
                    ranges = [(first, first if last is None else last)]
                    self.dispositions(performative, ranges, events)
                case FlowFrame():
                    self._flow(performative, events)
                case AttachFrame():
                    self._attach(performative, events)
                case DetachFrame():
                    event = self._link(performative.handle).client_detaches(performative)
                    if event is not None:
                        events.append(event)
                case _:
                    self._fail(SessionFailure(Condition.ILLEGAL_STATE, "a session begins twice"), events)
        except SessionFailure as error:
            self._fail(error, events)

    def _transfer(self, handle: int, transfer: TransferFrame, payload: bytes, events: list[Any]) -> None:
        self.windows.received(1)
        link = self._receiver(handle)
        try:
            if link.state is LinkState.ATTACHED:
                link.receive_part(transfer, payload, events)
            else:
                link.receive_early()
        except LinkFailure as error:
            self._fail_link(handle, error, events)

    def _flow(self, flow: FlowFrame, events: list[Any]) -> None:
        was_closed = not self.windows.client_room
        self.windows.update(flow)
        if was_closed:
            self.deliveries.pump()
            if not self.deliveries.is_waiting:
                events.append(WindowOpened(self))
        if flow.handle is None:
            if flow.echo:
                self.windows.send_flow()
            return
        link = self._link(flow.handle)
        if isinstance(link, SendingLink):
            event = link.receive_flow(flow)
            if event is not None:
                events.append(event)
        elif isinstance(link, ReceivingLink) and flow.echo and link.state is LinkState.ATTACHED:
            link.send_state()

    def _attach(self, attach: AttachFrame, events: list[Any]) -> None:
        handle, limit = attach.handle, self._limits.handle_max
        if handle > limit:
            text = f"link handle value ({handle}) exceeds maximum link handle value ({limit})"
            raise SessionFailure(Condition.FRAMING_ERROR, text)
        earlier = self._links.get(handle)
        self._leaving = self._still_leaving()
        if earlier is not None and not (earlier.has_client_detached and len(self._leaving) <= limit):
            text = f"handle {handle} is already associated with a link"
            raise SessionFailure(Condition.HANDLE_IN_USE, text)
        request = LinkRequested(self._new_link(attach), self)
        if earlier is None:
            events.append(request)
        else:
            self._leaving.append(earlier)
            earlier.next_request = request

    def _new_link(self, attach: AttachFrame) -> ReceivingLink | SendingLink:
        if sum(link.octets for link in self._links.values()) > LINKS_BYTES_MAX:
            text = f"the names and termini of links take more than LINKS_BYTES_MAX={LINKS_BYTES_MAX} bytes"
            raise SessionFailure(Condition.RESOURCE_LIMIT_EXCEEDED, text)
        room = self.windows.frame_max - ATTACH_OCTETS - len(attach.name.encode())
        if room < 0:
            text = (
                f"the name of a link is {-room} bytes too long for max_frame_size ({self.windows.frame_max})"
            )
            raise SessionFailure(Condition.FRAME_SIZE_TOO_SMALL, text)
        if attach.role:
            return SendingLink(attach, self.windows, self._links, self.deliveries)
        if attach.initial_delivery_count is None:
            text = f"the attach of sender '{attach.name}' has no initial-delivery-count"
            raise SessionFailure(Condition.INVALID_FIELD, text)
        return ReceivingLink(attach, self.windows, self._links, self._limits.receiving)

    def _link(self, handle: int) -> Link10:
        link = self._links.get(handle)
        if link is None or link.state is LinkState.DETACH_REQUESTED:
            raise SessionFailure(Condition.UNATTACHED_HANDLE, f"no link has handle {handle}")
        return link

    def _receiver(self, handle: int) -> ReceivingLink:
        link = self._link(handle)
        if not isinstance(link, ReceivingLink):
            raise SessionFailure(Condition.UNATTACHED_HANDLE, f"the client sends nothing on handle {handle}")
        return link

    def _client_ends(self, end: EndFrame, events: list[Any]) -> None:
        if self.state is SessionPhase.ENDING:
            self._leave()
        elif self.state is not SessionPhase.END_REQUESTED:
            self.state = SessionPhase.END_REQUESTED
            events.append(EndRequested(self, end.error))

    def _leave(self) -> None:
        self.state = SessionPhase.ENDED
        del self._sessions[self.channel]

    def _fail_link(self, handle: int, error: LinkFailure, events: list[Any]) -> None:
        link = self._links[handle]
        link.state = LinkState.FAULTY
        events.append(LinkFault(link, error))

    def _fail(self, error: SessionFailure, events: list[Any]) -> None:
        self.state = SessionPhase.FAULTY
        events.append(SessionFault(self, error))


def _outcome(disposition: DispositionFrame) -> Outcome | None:
    """Return the outcome, or `None` if the deliveries stay unsettled. Raises `SessionFailure`."""
    state = disposition.state
    if state is None or isinstance(state, ReceivedState):
        return ReleasedState() if disposition.settled else None  # the default outcome of a source
    if not isinstance(state, Outcome):
        raise SessionFailure(Condition.INVALID_FIELD, "unrecognised state of a disposition")
    if isinstance(state, ModifiedState) and state.message_annotations:
        _check_annotations(state.message_annotations)
    return state


def _check_annotations(annotations: dict[Value, Value]) -> None:
    for key in annotations:
        if not isinstance(key, Symbol) or not key.startswith("x-"):
            text = f"the key {key!r} of message annotations does not begin with 'x-'"
            raise SessionFailure(Condition.INVALID_FIELD, text)
    if len(encode(annotations)) > ANNOTATIONS_BYTES_MAX:
        text = f"message annotations larger than ANNOTATIONS_BYTES_MAX={ANNOTATIONS_BYTES_MAX} octets"
        raise SessionFailure(Condition.INVALID_FIELD, text)


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join ranges that follow each other, which those of most clients do."""
    first, last = ranges[0][0], ranges[-1][1]
    if last - first == len(ranges) - 1 and ranges == [(number, number) for number in range(first, last + 1)]:
        return [(first, last)]
    joined = [ranges[0]]
    for low, high in ranges[1:]:
        first, last = joined[-1]
        if low == last + 1 and high >= low and last >= first:
            joined[-1] = (first, high)
        else:
            joined.append((low, high))
    return joined
