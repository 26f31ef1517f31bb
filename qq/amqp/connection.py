"""The server's side of an AMQP connection, without I/O: handshake, channel numbers, closing.

The caller of this package, called shell here, owns the socket. It passes bytes to `receive`, and writes and clears
the bytes in `out`.

Invariant: a decision of the shell is requested by an event, and answered by the method that the event names. A channel
number is in use from channel.open until the last close-ok.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from pamqp import commands

from qq.amqp.encoding import connection_start, encode
from qq.amqp.fields import UNIMPLEMENTED
from qq.amqp.framing import (
    FRAME_MAX_MIN,
    FRAME_MAX_UNTUNED,
    MESSAGE_BYTES_MAX,
    Acks,
    ChannelFault,
    Fault,
    FrameReader,
    Heartbeat,
    Method,
    Publishes,
)
from qq.amqp.framing import Event as FrameEvent
from qq.errors import AmqpError, ConnectionFault, ReplyCode
from qq.sasl import EXTERNAL, PASSWORD_MECHANISMS, InvalidResponse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pamqp import base, common

    from qq.amqp.encoding import Properties

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
PROTOCOL_HEADERS = (PROTOCOL_HEADER, b"AMQP\x01\x01\x00\x09")
"""The protocol headers of 0-9-1 and of 0-9, which RabbitMQ treats as 0-9-1."""
MECHANISMS = "AMQPLAIN PLAIN"
LOCALES = "en_US"
CHANNEL_MAX_MIN = 1
AHEAD_BYTES_MAX = 64 * 1024
"""Octets that a client may send before the shell has answered its login or its virtual host."""
HANDSHAKE_FRAMES_MAX = 32
"""Frames of the handshake that are read in a step."""
INTRODUCTIONS_MAX = 64
"""Distinct tables of client properties in a cache, which stores equal tables only once: this saves 1 KB a
connection."""
_CLASS_CONNECTION = 10


@dataclass(frozen=True, slots=True)
class Settings:
    """The server's properties sent to clients, and its limits."""

    product: str = "RabbitMQ"
    version: str = "4.0.0"
    platform: str = "Python"
    cluster_name: str = "qq"
    information: str = "AMQP 0-9-1"
    copyright: str = "the authors of qq"
    channel_max: int = 2047
    """Channels of a connection, at most; 0 for no limit."""
    frame_max: int = 131_072
    """The largest frame, in octets. It must be at least FRAME_MAX_MIN, and cannot be unlimited."""
    heartbeat_s: int = 60
    """The interval proposed to clients, in seconds; 0: no heartbeats, unless the client wants them."""
    message_bytes_max: int = MESSAGE_BYTES_MAX


class Capabilities(NamedTuple):
    """The capabilities that the client has announced."""

    authentication_failure_close: bool = False
    basic_nack: bool = False
    connection_blocked: bool = False
    consumer_cancel_notify: bool = False
    live_prefetch: bool = False
    """Whether basic.qos changes the prefetch of existing consumers (a capability of qq's own)."""


class Phase(Enum):
    """The phase of a connection."""

    HEADER = auto()
    START = auto()
    LOGIN = auto()
    """The shell must answer a LoginAttempt."""
    TUNE = auto()
    OPEN_VHOST = auto()
    VHOST = auto()
    """The shell must answer a VhostRequested."""
    OPEN = auto()
    CLOSE_REQUESTED = auto()
    """The shell must answer a CloseRequested."""
    CLOSING = auto()
    """connection.close was sent, and close-ok is pending."""
    CLOSED = auto()
    """The socket must be closed after all output is sent."""


class LoginAttempt(NamedTuple):
    """The client wants to log in. Answer with `accept_login` or `refuse_login`."""

    user: str
    password: bytes | None
    """The password; None if the client's certificate vouches for the user."""
    mechanism: str

    def __repr__(self) -> str:
        """Show everything except the password."""
        return f"LoginAttempt({self.user!r}, {self.mechanism})"


class VhostRequested(NamedTuple):
    """The client wants to enter a virtual host. Answer with `accept_vhost`, or fail."""

    vhost: str


class SecretRenewed(NamedTuple):
    """The client has sent a new secret (connection.update-secret). Answer with `accept_secret`, or fail."""

    secret: bytes

    def __repr__(self) -> str:
        """Hide the secret."""
        return "SecretRenewed()"


class ChannelOpened(NamedTuple):
    """The client has opened a channel, and open-ok has been sent."""

    channel: int


class ChannelCloseRequested(NamedTuple):
    """The client closes a channel. Answer with `channel_closed` when the work of the channel has ended."""

    channel: int
    code: int
    text: str


class CloseRequested(NamedTuple):
    """The client closes the connection. Answer with `closed` when the work of the connection has ended."""

    code: int
    text: str


Event = (
    Publishes
    | Acks
    | Method
    | ChannelOpened
    | ChannelCloseRequested
    | ChannelFault
    | LoginAttempt
    | VhostRequested
    | CloseRequested
    | SecretRenewed
    | Fault
)
"""Events that `receive` returns. The shell answers ChannelFault with `fail_channel`, and Fault (always last) with
`fail`."""


class _Channel(Enum):
    OPEN = auto()
    CLOSING = auto()
    """channel.close was sent, and close-ok is pending."""
    CLOSE_REQUESTED = auto()
    """The shell must answer a ChannelCloseRequested."""


class ServerConnection:
    """The protocol state of a client's connection."""

    __slots__ = (
        "_certificate_user",
        "_channels",
        "_header",
        "_reader",
        "_settings",
        "capabilities",
        "channel_max",
        "client_properties",
        "frame_max",
        "heartbeat_s",
        "mechanism",
        "out",
        "phase",
    )

    def __init__(self, settings: Settings, certificate_user: str | None = None) -> None:
        """Create a connection. `certificate_user` is the name in the client's verified certificate, or None."""
        self.phase = Phase.HEADER
        self.client_properties: Mapping[str, object] = {}
        self.capabilities = Capabilities()
        self.mechanism = ""
        self.channel_max = settings.channel_max
        self.frame_max = FRAME_MAX_UNTUNED
        self.heartbeat_s = 0
        """The negotiated heartbeat interval in seconds; 0 for no heartbeats."""
        self.out: list[bytes] = []
        """Output in order, which the shell writes and clears. The hot paths append to it."""
        self._settings = settings
        self._certificate_user = certificate_user
        self._reader = FrameReader(FRAME_MAX_UNTUNED, settings.message_bytes_max)
        self._reader.stepwise = True
        self._header = b""
        self._channels: dict[int, _Channel] = {}

    # --- bytes

    def receive(self, data: bytes) -> list[Event]:
        """Process bytes from the socket, and return their events. Never raises on bad input.

        The work of a call is limited. While `has_more` is true, the shell must call again, with more bytes or none.
        """
        if self.phase is Phase.OPEN:
            return self._frames(self._reader.feed(data))
        if self.phase is Phase.CLOSING:
            return self._closing(self._reader.feed(data))
        if self.phase in (Phase.CLOSED, Phase.CLOSE_REQUESTED):
            return []
        return self._handshake(data)

    def drop_input(self) -> None:
        """Drop the received octets that `receive` has left."""
        self._reader.drop_unread()

    @property
    def has_more(self) -> bool:
        """Whether there are received octets that `receive(b"")` can process now."""
        return self._reader.has_more and self.phase in _READ_ON

    @property
    def held_bytes(self) -> int:
        """Octets of memory held for incomplete frames and messages."""
        return self._reader.held_bytes

    @property
    def partial_bytes(self) -> int:
        """Octets received of incomplete messages."""
        return self._reader.partial_bytes

    @property
    def channels(self) -> list[int]:
        """The channel numbers in use."""
        return list(self._channels)

    # --- answers from the shell

    def accept_login(self) -> list[Event]:
        """Continue with tuning. Return the events of octets that the client has sent ahead."""
        self._expect(Phase.LOGIN)
        self.phase = Phase.TUNE
        settings = self._settings
        tune = commands.Connection.Tune(settings.channel_max, settings.frame_max, settings.heartbeat_s)
        self.out.append(encode(0, tune))
        return self._handshake(b"")

    def refuse_login(self) -> None:
        """Close with 403 if the client understands it.

        If not, no answer is sent and `phase` is CLOSED. Then the caller must wait some seconds before it closes the
        socket, to slow down guessing.
        """
        self._expect(Phase.LOGIN)
        if not self.capabilities.authentication_failure_close:
            self.phase = Phase.CLOSED
            return
        text = f"Login was refused using authentication mechanism {self.mechanism}."
        self.fail(ConnectionFault(ReplyCode.ACCESS_REFUSED, f"{text} For details see the broker logfile."))

    def accept_vhost(self) -> list[Event]:
        """Open the connection. Return the events of octets that the client has sent ahead."""
        self._expect(Phase.VHOST)
        self.phase = Phase.OPEN
        self.out.append(encode(0, commands.Connection.OpenOk()))
        self._reader.stepwise = False
        return self._frames(self._reader.feed(b""))

    def accept_secret(self) -> None:
        """Answer the client's connection.update-secret."""
        if self.phase is Phase.OPEN:
            self.out.append(encode(0, commands.Connection.UpdateSecretOk()))

    def closed(self) -> None:
        """Answer the client's connection.close."""
        self._expect(Phase.CLOSE_REQUESTED)
        self.phase = Phase.CLOSED
        self.out.append(encode(0, commands.Connection.CloseOk()))

    def channel_closed(self, channel: int) -> None:
        """Answer the client's channel.close, which frees the channel number. Without such a request, do nothing."""
        if self._channels.get(channel) is _Channel.CLOSE_REQUESTED:
            self._release(channel)
            self.out.append(encode(channel, commands.Channel.CloseOk()))

    # --- closes and notifications by the server

    def fail_channel(self, channel: int, error: AmqpError) -> None:
        """Close a channel; its frames are dropped until close-ok. No effect if it is already closing.

        If the client has sent channel.close, too, and waits for the answer, both close and close-ok are sent.
        """
        if not self._may_send(channel):
            return
        close = commands.Channel.Close(error.code, error.text, error.class_id, error.method_id)
        self.out.append(encode(channel, close))
        if self._channels[channel] is _Channel.CLOSE_REQUESTED:
            self.out.append(encode(channel, commands.Channel.CloseOk()))
        self._channels[channel] = _Channel.CLOSING
        self._reader.drop(channel)

    def fail(self, error: AmqpError) -> None:
        """Close the connection, and ignore all input except close-ok. No effect if it is already closing."""
        if self.phase in (Phase.HEADER, Phase.CLOSE_REQUESTED, Phase.CLOSING, Phase.CLOSED):
            return
        self.phase = Phase.CLOSING
        self._reader.stop()
        self._channels.clear()
        close = commands.Connection.Close(error.code, error.text, error.class_id, error.method_id)
        self.out.append(encode(0, close))

    def block(self, reason: str) -> None:
        """Tell the client that its publishes are not read for now, if it has the capability connection.blocked."""
        if self.phase is Phase.OPEN and self.capabilities.connection_blocked:
            self.out.append(encode(0, commands.Connection.Blocked(reason)))

    def unblock(self) -> None:
        if self.phase is Phase.OPEN and self.capabilities.connection_blocked:
            self.out.append(encode(0, commands.Connection.Unblocked()))

    # --- handshake

    def _handshake(self, data: bytes) -> list[Event]:
        """Process frames one by one while the handshake waits for the client."""
        if self.phase is Phase.HEADER:
            data = self._protocol_header(data)
        self._reader.hold(data)
        events: list[Event] = []
        for _ in range(HANDSHAKE_FRAMES_MAX):
            if events or self.phase not in (Phase.START, Phase.TUNE, Phase.OPEN_VHOST):
                break
            frames = self._reader.feed(b"")
            if not frames:
                return events
            try:
                self._handshake_frame(frames[0], events)
            except ConnectionFault as fault:
                events.append(self._fault(fault))
        if self.phase in (Phase.LOGIN, Phase.VHOST) and self._reader.held_bytes > AHEAD_BYTES_MAX:
            text = f"more than {AHEAD_BYTES_MAX} octets sent before the connection was open"
            events = [self._fault(ConnectionFault(ReplyCode.RESOURCE_ERROR, text))]
        return events

    def _protocol_header(self, data: bytes) -> bytes:
        """Wait for the client's protocol header, and return the bytes behind it."""
        header = self._header + data
        begun = header[: len(PROTOCOL_HEADER)]
        if not any(known.startswith(begun) for known in PROTOCOL_HEADERS):
            # AMQP 0-9-1 4.2.2: answer a different protocol with the AMQP 0-9-1 header, and close.
            self.phase = Phase.CLOSED
            self.out.append(PROTOCOL_HEADER)
            return b""
        if len(header) < len(PROTOCOL_HEADER):
            self._header = header
            return b""
        self._header = b""
        self.phase = Phase.START
        mechanisms = MECHANISMS if self._certificate_user is None else f"{MECHANISMS} {EXTERNAL}"
        self.out.append(connection_start(_server_properties(self._settings), mechanisms, LOCALES))
        return header[len(PROTOCOL_HEADER) :]

    def _handshake_frame(self, event: FrameEvent, events: list[Event]) -> None:
        match event:
            case Heartbeat():
                pass
            case Fault():
                events.append(event)
            case Method(0, commands.Connection.Close() as close):
                self._close_requested(close, events)
            case Method(0, commands.Connection.StartOk() as start_ok) if self.phase is Phase.START:
                self._start_ok(start_ok, events)
            case Method(0, commands.Connection.TuneOk() as tune_ok) if self.phase is Phase.TUNE:
                self._tune_ok(tune_ok)
            case Method(0, commands.Connection.Open() as vhost) if self.phase is Phase.OPEN_VHOST:
                self.phase = Phase.VHOST
                events.append(VhostRequested(vhost.virtual_host))
            case Method(0, method):
                raise self._unexpected_method(method)
            case _:
                text = f"unexpected frame on channel {event.channel} in connection state {self._state_name()}"
                raise ConnectionFault(ReplyCode.UNEXPECTED_FRAME, text)

    def _start_ok(self, start_ok: commands.Connection.StartOk, events: list[Event]) -> None:
        self.client_properties, self.capabilities = _introduced(start_ok.client_properties)
        self.mechanism = start_ok.mechanism
        user, password = self._who(start_ok)
        self.phase = Phase.LOGIN
        events.append(LoginAttempt(user, password, start_ok.mechanism))

    def _who(self, start_ok: commands.Connection.StartOk) -> tuple[str, bytes | None]:
        parse = PASSWORD_MECHANISMS.get(start_ok.mechanism)
        if parse is not None:
            try:
                return parse(_octets(start_ok.response))
            except InvalidResponse as error:
                raise ConnectionFault(ReplyCode.SYNTAX_ERROR, str(error), _CLASS_CONNECTION, 11) from None
        if start_ok.mechanism != EXTERNAL:
            text = f"unknown authentication mechanism '{start_ok.mechanism}'"
        elif self._certificate_user is None:
            text = f"invalid authentication mechanism '{EXTERNAL}'"
        else:
            return self._certificate_user, None
        raise ConnectionFault(ReplyCode.COMMAND_INVALID, text, _CLASS_CONNECTION, 11)

    def _tune_ok(self, tune_ok: commands.Connection.TuneOk) -> None:
        _check_tuning("frame_max", FRAME_MAX_MIN, self._settings.frame_max, tune_ok.frame_max)
        _check_tuning("channel_max", CHANNEL_MAX_MIN, self._settings.channel_max, tune_ok.channel_max)
        self.frame_max = self._reader.frame_max = tune_ok.frame_max
        self.channel_max = tune_ok.channel_max
        self.heartbeat_s = tune_ok.heartbeat
        self.phase = Phase.OPEN_VHOST

    # --- the open connection

    def _frames(self, frames: list[FrameEvent]) -> list[Event]:
        """Return the events of open channels, and process the methods that open and close channels."""
        events: list[Event] = []
        channels = self._channels
        for frame in frames:
            if isinstance(frame, Method):
                try:
                    self._method(frame, events)
                except ConnectionFault as fault:
                    events.append(self._fault(fault))
                    break
                if self.phase is not Phase.OPEN:
                    break
            elif isinstance(frame, Fault):
                events.append(frame)
            elif not isinstance(frame, Heartbeat):
                state = channels.get(frame.channel)
                if state is _Channel.OPEN:
                    events.append(frame)
                elif state is None:
                    method_id = 80 if isinstance(frame, Acks) else 40
                    events.append(self._fault(self._not_open(frame.channel, 60, method_id)))
                    break
        return events

    def _method(self, event: Method, events: list[Event]) -> None:
        channel, method = event
        if channel == 0:
            self._connection_method(method, events)
            return
        class_id, method_id = method.index >> 16, method.index & 0xFFFF
        if class_id == _CLASS_CONNECTION:
            raise ConnectionFault(ReplyCode.COMMAND_INVALID, UNIMPLEMENTED, class_id, method_id)
        state = self._channels.get(channel)
        if isinstance(method, commands.Channel.Open):
            self._open_channel(channel, state, events)
        elif state is None:
            raise self._not_open(channel, class_id, method_id)
        elif isinstance(method, commands.Channel.Close):
            self._channel_close(channel, state, method, events)
        elif isinstance(method, commands.Channel.CloseOk):
            self._channel_close_ok(channel, state)
        # Some clients answer a basic.cancel of the server, although it does not request an answer.
        elif state is _Channel.OPEN and not isinstance(method, commands.Basic.CancelOk):
            events.append(event)

    def _connection_method(self, method: base.Frame, events: list[Event]) -> None:
        match method:
            case commands.Connection.Close():
                self._close_requested(method, events)
            case commands.Connection.UpdateSecret():
                events.append(SecretRenewed(_octets(method.new_secret)))
            case _:
                raise self._unexpected_method(method)

    def _open_channel(self, channel: int, state: _Channel | None, events: list[Event]) -> None:
        if state is not None:
            raise ConnectionFault(ReplyCode.CHANNEL_ERROR, "second 'channel.open' seen", 20, 10)
        count, limit = len(self._channels), self.channel_max
        if limit and count >= limit:
            text = f"number of channels opened ({count}) has reached the negotiated channel_max ({limit})"
            raise ConnectionFault(ReplyCode.NOT_ALLOWED, text)
        self._channels[channel] = _Channel.OPEN
        self.out.append(encode(channel, commands.Channel.OpenOk()))
        events.append(ChannelOpened(channel))

    def _channel_close(
        self, channel: int, state: _Channel, close: commands.Channel.Close, events: list[Event]
    ) -> None:
        if state is _Channel.OPEN:
            self._channels[channel] = _Channel.CLOSE_REQUESTED
            self._reader.drop(channel)
            events.append(ChannelCloseRequested(channel, close.reply_code or 0, close.reply_text))
        elif state is _Channel.CLOSING:
            # Both sides close at once. Each answers the other, and the number is free after the client's close-ok.
            self.out.append(encode(channel, commands.Channel.CloseOk()))

    def _channel_close_ok(self, channel: int, state: _Channel) -> None:
        if state is _Channel.OPEN:
            raise ConnectionFault(ReplyCode.COMMAND_INVALID, UNIMPLEMENTED, 20, 41)
        if state is _Channel.CLOSING:
            self._release(channel)

    def _release(self, channel: int) -> None:
        del self._channels[channel]
        self._reader.keep(channel)

    # --- closing

    def _closing(self, frames: list[FrameEvent]) -> list[Event]:
        for frame in frames:
            if isinstance(frame, Method) and isinstance(frame.frame, commands.Connection.CloseOk):
                self.phase = Phase.CLOSED
            elif isinstance(frame, Method):
                self.out.append(encode(0, commands.Connection.CloseOk()))
        return []

    def _close_requested(self, close: commands.Connection.Close, events: list[Event]) -> None:
        self.phase = Phase.CLOSE_REQUESTED
        self._reader.stop()
        self._channels.clear()
        events.append(CloseRequested(close.reply_code or 0, close.reply_text))

    def _fault(self, fault: ConnectionFault) -> Fault:
        self._reader.stop()
        return Fault(fault)

    def _unexpected_method(self, method: base.Frame) -> ConnectionFault:
        return self._not_open(0, method.index >> 16, method.index & 0xFFFF)

    def _not_open(self, channel: int, class_id: int, method_id: int) -> ConnectionFault:
        """Return the error for a method on a channel that is not open, or on channel 0, which is the connection's."""
        text = f"unexpected method in connection state {self._state_name()}"
        if channel:
            text = "expected 'channel.open'"
        return ConnectionFault(ReplyCode.CHANNEL_ERROR, text, class_id, method_id)

    def _state_name(self) -> str:
        return _STATE_NAMES.get(self.phase, "closing")

    def _may_send(self, channel: int) -> bool:
        state = self._channels.get(channel)
        return self.phase is Phase.OPEN and (state is _Channel.OPEN or state is _Channel.CLOSE_REQUESTED)

    def _expect(self, phase: Phase) -> None:
        """Raise ValueError if the shell answers a question that was not asked."""
        if self.phase is not phase:
            raise ValueError(f"the connection is in phase {self.phase.name}, not {phase.name}")


_READ_ON = frozenset((Phase.START, Phase.TUNE, Phase.OPEN_VHOST, Phase.OPEN, Phase.CLOSING))
"""The phases in which received octets wait for no answer of the shell."""
_STATE_NAMES = {
    Phase.START: "starting",
    Phase.TUNE: "tuning",
    Phase.OPEN_VHOST: "opening",
    Phase.OPEN: "running",
}
"""The names of a connection's phases in RabbitMQ's error texts."""


def _server_properties(settings: Settings) -> Properties:
    """Return the server properties for clients, in RabbitMQ's order. qq's own capabilities come last."""
    return {
        "capabilities": {
            "publisher_confirms": True,
            "exchange_exchange_bindings": True,
            "basic.nack": True,
            "consumer_cancel_notify": True,
            "connection.blocked": True,
            "consumer_priorities": True,
            "authentication_failure_close": True,
            "per_consumer_qos": True,
            "direct_reply_to": True,
            "live_prefetch": True,
            "publisher_deduplication": True,
        },
        "cluster_name": settings.cluster_name,
        "copyright": settings.copyright,
        "information": settings.information,
        "platform": settings.platform,
        "product": settings.product,
        "version": settings.version,
    }


def _introduced(client_properties: common.FieldTable) -> tuple[Mapping[str, object], Capabilities]:
    """Return a client's properties and capabilities. Clients with equal properties share them to save memory."""
    key = repr(client_properties)
    known = _introductions.get(key)
    if known is None:
        if len(_introductions) >= INTRODUCTIONS_MAX:
            _introductions.clear()
        known = _introductions[key] = (client_properties, _capabilities(client_properties))
    return known


_introductions: dict[str, tuple[Mapping[str, object], Capabilities]] = {}


def _capabilities(client_properties: Mapping[str, object]) -> Capabilities:
    capabilities = client_properties.get("capabilities")
    if not isinstance(capabilities, dict):
        return Capabilities()
    return Capabilities(
        authentication_failure_close=capabilities.get("authentication_failure_close") is True,
        basic_nack=capabilities.get("basic.nack") is True,
        connection_blocked=capabilities.get("connection.blocked") is True,
        consumer_cancel_notify=capabilities.get("consumer_cancel_notify") is True,
        live_prefetch=capabilities.get("live_prefetch") is True,
    )


def _octets(text: str | bytes | None) -> bytes:
    """Return the octets of a long string, which decoding turns into text where it can."""
    return (text or "").encode() if not isinstance(text, bytes) else text


def _check_tuning(name: str, minimum: int, maximum: int, value: int) -> None:
    """Check the client's tuning by RabbitMQ's rules: 0 means no limit, on both sides."""
    if value and value < minimum:
        text = f"negotiated {name} = {value} is lower than the minimum allowed value ({minimum})"
    elif maximum and (value == 0 or value > maximum):
        unlimited = " (no limit)" if value == 0 and name == "channel_max" else ""
        text = f"negotiated {name} = {value}{unlimited} is higher than the maximum allowed value ({maximum})"
    else:
        return
    raise ConnectionFault(ReplyCode.NOT_ALLOWED, text, _CLASS_CONNECTION, 30)
