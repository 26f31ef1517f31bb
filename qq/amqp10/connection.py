"""The server's side of an AMQP 1.0 connection, without I/O: login, open, sessions, closing (sections 2.4 and 5.3).

The caller of this package, called shell here, owns the socket. It passes bytes to `receive`, and writes and clears
the bytes in `out`.

Invariant: a decision of the shell is requested by an event, and answered by the method that the event names. A channel
number is in use from begin until both sides have ended the session. Octets that a client sends ahead of the shell's
answer are kept, up to a bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from qq.amqp10.conditions import Condition, ConnectionFailure, EngineError
from qq.amqp10.encoding import HEARTBEAT, encode_frame, encode_sasl, encode_short_frame
from qq.amqp10.framing import (
    FRAME_MAX_MIN,
    Dispositions,
    FrameFault,
    FrameReader10,
    FrameReceived,
    ProtocolHeader,
    StreamFault,
    StreamStage,
    Transfers,
)
from qq.amqp10.performatives import (
    BeginFrame,
    CloseFrame,
    ErrorReply,
    OpenFrame,
    SaslChallenge,
    SaslCode,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
)
from qq.amqp10.receiving_link import ReceivingLimits
from qq.amqp10.session import Session10, SessionEvent, SessionLimits, SessionPhase
from qq.amqp10.windows import SessionWindows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qq.amqp10.framing import FrameEvent
    from qq.amqp10.values import Value

SASL_HEADER = b"AMQP\x03\x01\x00\x00"
AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
AHEAD_BYTES_MAX = 64 * 1024
"""Octets that a client may send before the shell has answered its login or its open."""
HANDSHAKE_FRAMES_MAX = 32
"""Frames of the handshake that are read in a step."""
IDLE_TIME_OUT_MIN_MS = 1000
"""The least idle-time-out of a client, unless it is 0, in milliseconds."""
VHOST_PREFIX = "vhost:"
"""Beginning of a hostname in `open` that names a virtual host."""
WITH_RESPONSE = frozenset(("PLAIN", "AMQPLAIN"))
"""Mechanisms whose clients may wait for an empty challenge before they send their response."""


LIMITS = SessionLimits(255, 2048, ReceivingLimits(1024, 16 * 1024 * 1024, 131_072))


@dataclass(frozen=True, slots=True)
class Settings10:
    """The server's parameters for clients, and its limits."""

    container_id: str = "qq"
    properties: dict[Value, Value] = field(default_factory=dict)
    """The server's properties in `open`."""
    offered_capabilities: tuple[str, ...] = ()
    idle_time_out_ms: int = 30_000
    """Milliseconds of silence that the server asks its clients to stay below."""
    sessions_max: int = 64
    frame_max: int = 131_072
    """The largest frame in each direction, in octets."""
    session: SessionLimits = LIMITS


class Phase10(Enum):
    """The phase of a connection."""

    SASL_HEADER = auto()
    SASL_INIT = auto()
    SASL_RESPONSE = auto()
    LOGIN = auto()
    """The shell must answer a `LoginRequested`."""
    AMQP_HEADER = auto()
    OPEN_FRAME = auto()
    OPENING = auto()
    """The shell must answer an `OpenRequested`."""
    OPEN = auto()
    FAULTY = auto()
    """The shell must answer a `ConnectionFault10`."""
    CLOSE_REQUESTED = auto()
    """The shell must answer a `CloseRequested10`."""
    CLOSING = auto()
    """Close was sent, and the client's close is pending."""
    CLOSED = auto()
    """The socket must be closed after all output is sent."""


class LoginRequested(NamedTuple):
    """The client wants to log in. Answer with `accept_login` or `refuse_login`."""

    mechanism: str
    response: bytes

    def __repr__(self) -> str:
        """Hide the response, which may hold a password."""
        return f"LoginRequested({self.mechanism})"


class OpenRequested(NamedTuple):
    """The client opens the connection. Answer with `accept_open` or `fail`."""

    vhost: str | None
    """The virtual host; `None` for the default."""
    open: OpenFrame


class SessionBegun(NamedTuple):
    """The client has begun a session, and the server has answered."""

    session: Session10


class CloseRequested10(NamedTuple):
    """The client closes the connection. Answer with `closed` when the work of the connection has ended."""

    error: ErrorReply | None


class ConnectionFault10(NamedTuple):
    """The client has broken a rule of the connection. Answer with `fail`."""

    error: EngineError


Event10 = LoginRequested | OpenRequested | SessionBegun | SessionEvent | CloseRequested10 | ConnectionFault10


class ServerConnection10:
    """The protocol state of a client's connection."""

    __slots__ = (
        "_ahead",
        "_mechanisms",
        "_open",
        "_reader",
        "_sessions",
        "_settings",
        "_windows_closed",
        "frame_max",
        "mechanism",
        "out",
        "phase",
    )

    def __init__(self, settings: Settings10, mechanisms: Sequence[str]) -> None:
        """Create a connection. `mechanisms` are those of SASL in the server's order of preference."""
        self.phase = Phase10.SASL_HEADER
        self.frame_max = FRAME_MAX_MIN
        """The largest frame for the client, in octets."""
        self.out: list[bytes] = []
        """Output in order, which the shell writes and clears."""
        self._settings = settings
        self._mechanisms = tuple(mechanisms)
        self.mechanism = ""
        self._open: OpenFrame | None = None
        """The client's open."""
        self._reader = FrameReader10()
        self._ahead = b""
        """Octets that the client has sent before the shell has answered."""
        self._sessions: dict[int, Session10] = {}
        """By the channel numbers that are in use."""
        self._windows_closed = False
        """Whether new sessions begin with a closed window."""

    # --- bytes

    def receive(self, data: bytes) -> list[Event10]:
        """Process bytes from the socket, and return their events. Never raises on bad input.

        The work of a call is limited. While `has_more` is true, the shell must call again, with more bytes or none.
        """
        if self.phase is Phase10.OPEN:
            return self._frames(self._reader.feed(data))
        if self.phase in _IGNORING:
            return []
        if self.phase is Phase10.CLOSING:
            self._closing(self._reader.feed(data))
            return []
        if self.phase in _ANSWERING:
            return self._keep(data)
        return self._handshake(data)

    def drop_input(self) -> None:
        """Drop the received octets that `receive` has left."""
        self._reader.drop_unread()

    @property
    def has_more(self) -> bool:
        """Whether there are received octets that `receive(b"")` can process now."""
        return self._reader.has_more and self.phase not in _ANSWERING and self.phase not in _IGNORING

    @property
    def held_bytes(self) -> int:
        """Octets of memory held for incomplete frames and messages."""
        return self._reader.held_bytes + len(self._ahead) + self.partial_bytes

    @property
    def partial_bytes(self) -> int:
        """Octets received of incomplete messages."""
        return sum(session.partial_bytes for session in self._sessions.values())

    def session(self, channel: int) -> Session10 | None:
        """Return the session with this channel number of the client, or `None`."""
        return self._sessions.get(channel)

    @property
    def sessions(self) -> list[Session10]:
        return list(self._sessions.values())

    @property
    def client_idle_ms(self) -> int:
        """Milliseconds of the server's silence after which the client gives up; 0 for no limit."""
        return (self._open.idle_time_out or 0) if self._open is not None else 0

    @property
    def client_open(self) -> OpenFrame | None:
        """The client's open; None before it."""
        return self._open

    # --- answers from the shell

    def accept_login(self) -> list[Event10]:
        """Confirm the login. Return the events of octets that the client has sent ahead."""
        self._expect(Phase10.LOGIN)
        self.phase = Phase10.AMQP_HEADER
        self._reader.stage = StreamStage.PROTOCOL_HEADER
        self.out.append(encode_sasl(SaslOutcome(SaslCode.OK)))
        return self._handshake(self._taken_ahead())

    def refuse_login(self) -> None:
        """Refuse the login. The shell must close the socket, after some seconds that slow down guessing."""
        self._expect(Phase10.LOGIN)
        self._end(encode_sasl(SaslOutcome(SaslCode.AUTH)))

    def accept_open(self) -> list[Event10]:
        """Open the connection. Return the events of octets that the client has sent ahead."""
        self._expect(Phase10.OPENING)
        self.phase = Phase10.OPEN
        self._send_open()
        self._reader.frame_max = self._settings.frame_max
        self._reader.stepwise = False
        return self._frames(self._reader.feed(self._taken_ahead()))

    def closed(self) -> None:
        """Answer the client's close."""
        self._expect(Phase10.CLOSE_REQUESTED)
        self._end(encode_frame(0, CloseFrame()))

    # --- the server's own acts

    def fail(self, error: ErrorReply) -> None:
        """Close the connection, and ignore all input except close. No effect before open, or if it is closing."""
        if self.phase is Phase10.OPENING:
            self._send_open()
        elif self.phase is not Phase10.OPEN and self.phase is not Phase10.FAULTY:
            return
        self._forget_sessions()
        self._ahead = b""
        self.phase = Phase10.CLOSING
        self.out.append(encode_short_frame(0, CloseFrame(error), self.frame_max))

    def close_windows(self) -> None:
        """Let the client send no transfers, in any session."""
        self._windows_closed = True
        for session in self._sessions.values():
            session.windows.close()

    def open_windows(self) -> None:
        """Let the client send transfers again."""
        self._windows_closed = False
        for session in self._sessions.values():
            session.windows.open()

    def heartbeat(self) -> None:
        """Show the client that the server is alive."""
        if self.phase is Phase10.OPEN:
            self.out.append(HEARTBEAT)

    # --- handshake

    def _keep(self, data: bytes) -> list[Event10]:
        """Keep octets until the shell has answered."""
        self._ahead += data
        if len(self._ahead) + self._reader.held_bytes > AHEAD_BYTES_MAX:
            self._end(b"")
        return []

    def _taken_ahead(self) -> bytes:
        ahead, self._ahead = self._ahead, b""
        return ahead

    def _handshake(self, data: bytes) -> list[Event10]:
        """Process frames one by one while the handshake waits for the client."""
        events: list[Event10] = []
        for _ in range(HANDSHAKE_FRAMES_MAX):
            frames = self._reader.feed(data)
            data = b""
            if not frames:
                break
            self._handshake_frame(frames[0], events)
            if events or self.phase in _IGNORING:
                break
        return events

    def _handshake_frame(self, frame: FrameEvent, events: list[Event10]) -> None:
        match self.phase, frame:
            case Phase10.SASL_HEADER, ProtocolHeader(octets) if octets == SASL_HEADER:
                self.phase = Phase10.SASL_INIT
                self._reader.stage = StreamStage.SASL
                self.out += (SASL_HEADER, encode_sasl(SaslMechanisms(self._mechanisms)))
            case Phase10.SASL_HEADER, _:
                self._end(SASL_HEADER)
            case Phase10.SASL_INIT, FrameReceived(_, SaslInit() as init, _):
                self._sasl_init(init, events)
            case Phase10.SASL_RESPONSE, FrameReceived(_, SaslResponse(response), _):
                self.phase = Phase10.LOGIN
                events.append(LoginRequested(self.mechanism, response))
            case Phase10.AMQP_HEADER, ProtocolHeader(octets) if octets == AMQP_HEADER:
                self.phase = Phase10.OPEN_FRAME
                self._reader.stage = StreamStage.AMQP
                self.out.append(AMQP_HEADER)
            case Phase10.OPEN_FRAME, FrameReceived(_, OpenFrame() as open_frame, _):
                self._client_opens(open_frame, events)
            case _:
                self._end(b"")

    def _sasl_init(self, init: SaslInit, events: list[Event10]) -> None:
        self.mechanism = init.mechanism
        if init.mechanism not in self._mechanisms:
            self._end(encode_sasl(SaslOutcome(SaslCode.AUTH)))
        elif init.initial_response is None and init.mechanism in WITH_RESPONSE:
            self.phase = Phase10.SASL_RESPONSE
            self.out.append(encode_sasl(SaslChallenge(b"")))
        else:
            self.phase = Phase10.LOGIN
            events.append(LoginRequested(init.mechanism, init.initial_response or b""))

    def _client_opens(self, open_frame: OpenFrame, events: list[Event10]) -> None:
        self._open = open_frame
        self.phase = Phase10.OPENING
        if open_frame.max_frame_size < FRAME_MAX_MIN:
            text = f"max_frame_size ({open_frame.max_frame_size}) < minimum frame size ({FRAME_MAX_MIN})"
            self.fail(ErrorReply(Condition.FRAME_SIZE_TOO_SMALL.value, text))
        elif 0 < (open_frame.idle_time_out or 0) < IDLE_TIME_OUT_MIN_MS:
            text = f"idle-time-out {open_frame.idle_time_out} ms < {IDLE_TIME_OUT_MIN_MS} ms"
            self.fail(ErrorReply(Condition.NOT_ALLOWED.value, text))
        else:
            self.frame_max = min(open_frame.max_frame_size, self._settings.frame_max)
            name = open_frame.hostname or ""
            vhost = name.removeprefix(VHOST_PREFIX) if name.startswith(VHOST_PREFIX) else None
            events.append(OpenRequested(vhost, open_frame))

    def _send_open(self) -> None:
        settings = self._settings
        frame = OpenFrame(
            settings.container_id,
            max_frame_size=settings.frame_max,
            channel_max=self._channel_max,
            idle_time_out=settings.idle_time_out_ms,
            offered_capabilities=settings.offered_capabilities,
            properties=settings.properties,
        )
        self.out.append(encode_frame(0, frame))

    @property
    def _channel_max(self) -> int:
        client_max = self._open.channel_max if self._open is not None else 0
        return min(client_max, self._settings.sessions_max - 1)

    # --- the open connection

    def _frames(self, frames: list[FrameEvent]) -> list[Event10]:
        """Return the events of the sessions, and process the frames of the connection."""
        events: list[Event10] = []
        sessions = self._sessions
        for frame in frames:
            if isinstance(frame, Transfers):
                if session := sessions.get(frame.channel):
                    session.transfers(frame, events)
            elif isinstance(frame, Dispositions):
                if session := sessions.get(frame.channel):
                    session.dispositions(frame.performative, frame.ranges, events)
            elif isinstance(frame, FrameReceived):
                self._frame(frame, events)
            elif isinstance(frame, StreamFault | FrameFault):
                self._fault(EngineError(frame.error.condition, frame.error.description), events)
            if self.phase is not Phase10.OPEN:
                break
        return events

    def _frame(self, frame: FrameReceived, events: list[Event10]) -> None:
        channel, performative, payload = frame
        if channel > self._channel_max:
            text = f"channel number ({channel}) exceeds maximum channel number ({self._channel_max})"
            self._fault(ConnectionFailure(Condition.FRAMING_ERROR, text), events)
            return
        match performative:
            case CloseFrame(error):
                self._forget_sessions()
                self.phase = Phase10.CLOSE_REQUESTED
                events.append(CloseRequested10(error))
            case (
                OpenFrame() | SaslMechanisms() | SaslInit() | SaslChallenge() | SaslResponse() | SaslOutcome()
            ):
                self._fault(ConnectionFailure(Condition.ILLEGAL_STATE, "a second open"), events)
            case BeginFrame() if channel not in self._sessions:
                self._begin(channel, performative, events)
            case _:
                if session := self._sessions.get(channel):
                    session.receive(performative, payload, events)

    def _begin(self, channel: int, begin: BeginFrame, events: list[Event10]) -> None:
        limits = self._settings.session
        windows = SessionWindows(channel, begin, limits.incoming_window, self.frame_max, self.out)
        windows.is_closed = self._windows_closed
        events.append(SessionBegun(Session10(windows, limits, self._sessions)))

    # --- closing

    def _closing(self, frames: list[FrameEvent]) -> None:
        for frame in frames:
            is_close = isinstance(frame, FrameReceived) and isinstance(frame.performative, CloseFrame)
            if is_close or isinstance(frame, StreamFault):
                self._end(b"")
                return

    def _fault(self, error: EngineError, events: list[Event10]) -> None:
        self.phase = Phase10.FAULTY
        events.append(ConnectionFault10(error))

    def _forget_sessions(self) -> None:
        for session in self._sessions.values():
            session.state = SessionPhase.ENDED
            session.forget_links()
        self._sessions.clear()

    def _end(self, last: bytes) -> None:
        self._ahead = b""
        self.phase = Phase10.CLOSED
        if last:
            self.out.append(last)

    def _expect(self, phase: Phase10) -> None:
        """Raise ValueError if the shell answers a question that was not asked."""
        if self.phase is not phase:
            raise ValueError(f"the connection is in phase {self.phase.name}, not {phase.name}")


_ANSWERING = frozenset((Phase10.LOGIN, Phase10.OPENING))
"""The phases in which received octets wait for an answer of the shell."""
_IGNORING = frozenset((Phase10.FAULTY, Phase10.CLOSE_REQUESTED, Phase10.CLOSED))
"""The phases in which received octets are dropped."""
