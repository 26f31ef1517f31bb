"""A link of a session, in either direction: attaching and detaching (section 2.6).

Invariant: the server answers each attach and each detach of a client once. The server uses the client's number as its
own handle. A client may use the handle again when it has detached; the next attach waits until the server has detached.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from qq.amqp10.conditions import Condition, LinkFailure
from qq.amqp10.performatives import AttachFrame, DetachFrame, ErrorReply, SourceTerminus, TargetTerminus

if TYPE_CHECKING:
    from qq.amqp10.windows import SessionWindows


_TEXT_OCTETS = 16
"""Octets of memory for a text, besides its own."""


class LinkState(Enum):
    """The state of a link."""

    ATTACHING = auto()
    """The shell must answer a `LinkRequested`."""
    ATTACHED = auto()
    FAULTY = auto()
    """The shell must answer a `LinkFault`. The client's frames for the link are dropped."""
    DETACH_REQUESTED = auto()
    """The shell must answer a `DetachRequested`."""
    DETACHING = auto()
    """The server has detached, and the client's detach is pending. Its other frames for the link are dropped."""
    DETACHED = auto()


class DetachRequested(NamedTuple):
    """The client detaches a link. Answer with `Link10.detached` when the work of the link has ended."""

    link: Link10
    is_closed: bool
    """Whether the client says that the link ends. The server ends it in any case."""
    error: ErrorReply | None


class LinkFault(NamedTuple):
    """The client has broken a rule of the link. Answer with `Link10.detach`."""

    link: Link10
    error: LinkFailure


class NextRequest(Protocol):
    """The `LinkRequested` of an attach that waits for the end of an earlier link."""

    @property
    def is_pending(self) -> bool: ...


class Link10:
    """The part that links of both directions share."""

    __slots__ = (
        "_detach",
        "_links",
        "_windows",
        "attach",
        "handle",
        "name",
        "next_request",
        "octets",
        "state",
    )

    def __init__(self, attach: AttachFrame, windows: SessionWindows, links: dict[int, Link10]) -> None:
        self.attach = attach
        """The client's attach."""
        self.name = attach.name
        self.handle = attach.handle
        self.octets = _octets(attach)
        """Octets of name and termini, about."""
        self.state = LinkState.ATTACHING
        self._windows = windows
        self._links = links
        """The links of the session, by the handles that are in use."""
        self._detach: DetachFrame | None = None
        """The client's detach, before it is answered."""
        self.next_request: NextRequest | None = None
        """The client's next attach with the handle, which waits for the end of this link."""
        links[attach.handle] = self

    @property
    def has_client_detached(self) -> bool:
        """Whether the client may use the handle again, although the server has not detached."""
        return self._detach is not None

    def take_next_request(self) -> list[Any]:
        """Return the client's next attach with the handle, if this link has ended and its session has not."""
        if self.next_request is None or self.state is not LinkState.DETACHED:
            return []
        request, self.next_request = self.next_request, None
        return [request] if request.is_pending else []

    @property
    def is_open(self) -> bool:
        """Whether the shell may send on the link."""
        return self.state is LinkState.ATTACHED or self.state is LinkState.FAULTY

    def refuse(self, error: ErrorReply) -> None:
        """Refuse the attach: the link begins without the server's terminus, and ends with the error."""
        if self.state is not LinkState.ATTACHING:
            return
        is_sender = self.attach.role
        answer = AttachFrame(
            self.name,
            self.handle,
            not is_sender,
            self.attach.snd_settle_mode,
            source=None if is_sender else self.attach.source or SourceTerminus(),
            target=(self.attach.target or TargetTerminus()) if is_sender else None,
            initial_delivery_count=0 if is_sender else None,
        )
        if self._answered(answer) is not None:
            empty = {"target": TargetTerminus()} if is_sender else {"source": SourceTerminus()}
            self._windows.write(answer._replace(**empty))
        self._send_detach(error)

    def _answered(self, answer: AttachFrame) -> LinkFault | None:
        """Answer the attach. Return the fault instead if the answer is larger than the client's largest frame."""
        windows = self._windows
        frame = windows.encode(answer)
        if len(frame) <= windows.frame_max:
            windows.write_encoded([frame])
            return None
        text = f"the answer to attach has {len(frame)} bytes > max_frame_size ({windows.frame_max})"
        return LinkFault(self, LinkFailure(Condition.FRAME_SIZE_TOO_SMALL, text))

    def detach(self, error: ErrorReply | None = None) -> None:
        """End the link. No effect if it has ended."""
        if self.state is LinkState.ATTACHING and error is not None:
            self.refuse(error)
        elif self.state is not LinkState.DETACHING and self.state is not LinkState.DETACHED:
            self._send_detach(error)

    def detached(self) -> None:
        """Answer the client's detach. No effect if the server has detached the link."""
        if self.state is LinkState.DETACH_REQUESTED:
            self._send_detach(None)

    def client_detaches(self, detach: DetachFrame) -> DetachRequested | None:
        """Take the client's detach. Return the event for the shell, unless it has to answer a different event first."""
        if self.state is LinkState.DETACHING:
            self._leave()
            return None
        self._detach = detach
        return self._detach_requested() if self.is_open else None

    def _detach_requested(self) -> DetachRequested | None:
        """Return the event of a detach that the client has sent."""
        detach = self._detach
        if detach is None or not self.is_open:
            return None
        self.state = LinkState.DETACH_REQUESTED
        return DetachRequested(self, detach.closed, detach.error)

    def _send_detach(self, error: ErrorReply | None) -> None:
        is_closed = error is not None or self._detach is None or self._detach.closed
        self._windows.write(DetachFrame(self.handle, is_closed, error))
        if self._detach is None:
            self.state = LinkState.DETACHING
        else:
            self._leave()
        self._end()

    def _end(self) -> None:
        """Drop what the link holds, after the server has ended it."""

    def _leave(self) -> None:
        self.state = LinkState.DETACHED
        if self._links[self.handle] is self:
            del self._links[self.handle]


def _octets(attach: AttachFrame) -> int:
    octets = len(attach.name)
    for terminus in (attach.source, attach.target):
        texts = (*terminus.capabilities, getattr(terminus, "address", None) or "") if terminus else ()
        texts += terminus.outcomes if isinstance(terminus, SourceTerminus) else ()
        octets += sum(map(len, texts)) + _TEXT_OCTETS * len(texts)
    return octets
