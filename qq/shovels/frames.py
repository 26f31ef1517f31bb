"""Encodes and decodes AMQP 0-9-1 on the client side, as far as a shovel needs it.

Invariant: pure. The input is hostile, so every length is checked. A message's content is passed on byte for byte, in
the form in which this cluster's log stores it, too (qq/stored).
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError  # noqa: N812  # `error` alone would be unclear
from typing import NamedTuple

from pamqp import base, commands
from pamqp import frame as pamqp_frame
from pamqp.exceptions import PAMQPException

from qq.amqp.encoding import ack_frame, method_frame
from qq.amqp.framing import FRAME_HEARTBEAT, FRAME_METHOD
from qq.stored.fields import FieldError, check_properties
from qq.stored.layout import FLAGS_AT, FRAME_BODY, FRAME_END, FRAME_HEADER, FRAME_OVERHEAD, body_size

CHANNEL = 1
"""Number of the only channel of a client."""
METHOD_BYTES_MAX = 8192
"""Largest method that is read, in bytes. Brokers send short methods, and pamqp is slow on large tables."""

_FRAME = Struct(">BHI")
_TAG = Struct(">Q")
_DELIVER, _RETURN = b"\x00\x3c\x00\x3c", b"\x00\x3c\x00\x32"
_ACK, _NACK = b"\x00\x3c\x00\x50", b"\x00\x3c\x00\x78"


class ProtocolError(Exception):
    """The broker has sent bytes that are not AMQP 0-9-1, or exceed a limit."""


class Delivery(NamedTuple):
    """A message delivered by the source (basic.deliver)."""

    tag: int
    is_redelivered: bool
    exchange: bytes
    routing_key: bytes
    message: bytes
    """Content header frame and body frames of the message."""


class Confirmation(NamedTuple):
    """A publisher confirm: basic.ack, or basic.nack for refused messages."""

    tag: int
    is_multiple: bool
    is_nack: bool


class Unroutable(NamedTuple):
    """A mandatory message that reached no queue (basic.return), without its content."""

    code: int
    text: str


Event = Delivery | Confirmation | Unroutable | base.Frame


class ClientReader:
    """Parses a broker's bytes into events."""

    def __init__(self, message_bytes_max: int) -> None:
        """`message_bytes_max` is the largest message body accepted, in bytes."""
        self.frame_max = 2**17
        """Largest frame accepted, in bytes."""
        self._message_bytes_max = message_bytes_max
        self._rest = b""
        self._head: Delivery | Unroutable | None = None
        """Method whose content comes next, a delivery without its message."""
        self._message = bytearray()
        self._missing = 0
        """Bytes of the body that are still to come."""

    def feed(self, data: bytes) -> list[Event]:
        """Parse bytes and return the events that they complete. Raises ProtocolError."""
        data = self._rest + data
        events: list[Event] = []
        at = 0
        try:
            while len(data) - at >= FRAME_OVERHEAD:
                kind, channel, size = _FRAME.unpack_from(data, at)
                stop = at + FRAME_OVERHEAD + size
                if size > self.frame_max or kind not in (1, 2, 3, 8):
                    raise ProtocolError("it does not speak AMQP 0-9-1")
                if stop > len(data):
                    break
                if data[stop - 1] != FRAME_END:
                    raise ProtocolError("a frame does not end where it should")
                self._frame(kind, channel, data[at:stop], events)
                at = stop
        except (IndexError, ValueError, StructError, PAMQPException, FieldError, RecursionError) as error:
            raise ProtocolError(f"what it has sent cannot be read: {error}") from None
        self._rest = data[at:]
        return events

    def _frame(self, kind: int, channel: int, frame: bytes, events: list[Event]) -> None:
        if kind == FRAME_METHOD:
            if self._head is not None:
                raise ProtocolError("a method where a message's content should be")
            if len(frame) > METHOD_BYTES_MAX:
                raise ProtocolError(f"a method is larger than {METHOD_BYTES_MAX} octets")
            self._method(frame, events)
        elif kind != FRAME_HEARTBEAT:
            if self._head is None or channel != CHANNEL or (kind == FRAME_BODY) is not bool(self._message):
                raise ProtocolError("a message's content where none should be")
            self._content(frame, events)

    def _method(self, frame: bytes, events: list[Event]) -> None:
        which = frame[7:11]
        if which == _DELIVER:
            at = 12 + frame[11]
            tag, is_redelivered = _TAG.unpack_from(frame, at)[0], frame[at + 8] & 1
            exchange, at = _short_string(frame, at + 9)
            routing_key, _ = _short_string(frame, at)
            self._head = Delivery(tag, bool(is_redelivered), exchange, routing_key, b"")
        elif which in (_ACK, _NACK):
            tag = _TAG.unpack_from(frame, 11)[0]
            events.append(Confirmation(tag, bool(frame[19] & 1), which == _NACK))
        elif which == _RETURN:
            text, _ = _short_string(frame, 13)
            self._head = Unroutable(int.from_bytes(frame[11:13], "big"), text.decode(errors="replace"))
        else:
            method = pamqp_frame.unmarshal(frame)[2]
            assert isinstance(method, base.Frame)
            events.append(method)

    def _content(self, frame: bytes, events: list[Event]) -> None:
        if frame[0] == FRAME_HEADER:
            self._missing = body_size(frame)
            if self._missing > (limit := self._message_bytes_max):
                raise ProtocolError(
                    f"a message of {self._missing} octets is larger than {limit} (message_bytes)"
                )
            check_properties(frame[FLAGS_AT:-1])
        elif len(frame) == FRAME_OVERHEAD:
            raise ProtocolError("a frame has nothing of a body")
        else:
            self._missing -= len(frame) - FRAME_OVERHEAD
        self._message += frame
        if self._missing < 0:
            raise ProtocolError("a body is longer than it should be")
        if not self._missing and (head := self._head) is not None:
            events.append(Delivery(*head[:-1], bytes(self._message)) if isinstance(head, Delivery) else head)
            self._head, self._message = None, bytearray()


def _short_string(frame: bytes, at: int) -> tuple[bytes, int]:
    stop = at + 1 + frame[at]
    if stop >= len(frame):
        raise ProtocolError("a name runs over the end of its method")
    return frame[at + 1 : stop], stop


# --- sending


def publish(exchange: bytes, routing_key: bytes, *, is_mandatory: bool) -> bytes:
    """Encode basic.publish, after which the content must follow. An unroutable mandatory message is returned."""
    names = bytes([len(exchange)]) + exchange + bytes([len(routing_key)]) + routing_key
    return method_frame(CHANNEL, 60, 40, b"\x00\x00" + names + bytes([is_mandatory]))


def ack(tag: int, *, is_multiple: bool) -> bytes:
    """Encode basic.ack."""
    return ack_frame(CHANNEL, tag, is_multiple)


# pamqp refuses names that RabbitMQ allows. These classes skip its check, because the broker checks names itself.


class QueueDeclare(commands.Queue.Declare):
    """queue.declare with any queue name."""

    def validate(self) -> None: ...


class QueueBind(commands.Queue.Bind):
    """queue.bind with any names."""

    def validate(self) -> None: ...


class Consume(commands.Basic.Consume):
    """basic.consume with any queue name."""

    def validate(self) -> None: ...


class OpenVhost(commands.Connection.Open):
    """connection.open with any virtual host."""

    def validate(self) -> None: ...
