"""Parses AMQP frames: turns a stream of bytes into events.

Invariant: the fast paths take only complete and correct frames, and leave all other input to the slow path, which alone
raises errors. Each byte is examined only a few times, however the stream is cut. Memory is bounded: an incomplete
frame, and `unfinished_max` octets of incomplete messages.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from pamqp import commands

from qq.amqp.fields import decode_method, decode_publish
from qq.errors import AmqpError, ChannelError, ConnectionFault, ReplyCode
from qq.octet_stream import SteppedReader
from qq.stored.editing import WORTHWHILE_BYTES, body_frames
from qq.stored.fields import (
    FieldError,
    TableLimitExceeded,
    check_properties,
    properties_valid,
    valid_properties,
)
from qq.stored.layout import (
    EXPIRATION,
    FLAGS_AT,
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_OVERHEAD,
    HEADERS,
    PRIORITY,
    REPLY_TO,
    USER_ID,
)

if TYPE_CHECKING:
    from pamqp import base

FRAME_METHOD, FRAME_HEARTBEAT = 1, 8
FRAME_MAX_MIN = 4096
"""The least frame_max that may be negotiated (AMQP 0-9-1, frame-min-size; 8192 in RabbitMQ since 4.1)."""
FRAME_MAX_UNTUNED = 8192
"""The largest frame before tuning, in octets. The properties of some clients take more than 4096."""
MESSAGE_BYTES_MAX = 16 * 1024 * 1024
FRAMES_AS_THEY_COME = 64
"""Body frames of a message that are kept as received. Small frames behind them are joined: there may be millions, and
each delivery of the message would have to iterate over them."""
JOINED_BYTES = 128 * 1024
"""Octets of a joined frame, at most, with its envelope."""
UNFINISHED_MESSAGES_MAX = 4
"""Incomplete messages of a connection may take as many octets as this number of messages of the greatest size."""
UNFINISHED_BYTES_MIN = 1024 * 1024
"""Octets that the incomplete messages of a connection may take in any case: each of many channels may have a small
one."""
LARGE_FRAME_BYTES = 256 * 1024
"""Octets of an incomplete frame above which it belongs to a large message, because no method is that long."""
STEP_WORK = 64 * 1024
"""Work of a step of the reader: the octets that it has parsed, and FRAME_WORK for each frame of the slow path."""
FRAME_WORK = 4096
"""Work of a frame of the slow path, besides its octets. Such a frame may be a method that takes 0.1 ms to carry out, so
a step has at most 16 of them."""
MESSAGE_WORK = 2048
"""Work of a message, besides its octets, whose properties differ from those of the message before it and must be read.
Such a message may become a command of its own, so a step has at most 32 of them."""
TABLE_WORK = 8
"""Work of an octet that may belong to a table: a method's, or of properties that are checked for the first time."""
ACKS_OCTETS_MAX = 512 * 21
"""Octets of consecutive basic.ack frames that are read at once."""
PUBLISHES_REMEMBERED_MAX = 256
"""Distinct basic.publish payloads of a connection that are cached as valid."""


def stored_bytes_max(message_bytes_max: int, frame_max: int) -> int:
    """Return the most octets that a message takes in the log, which stores the frames of its publisher.

    They are its content header, its body, and a quarter more for frames around parts of the body. Frames of 32 octets
    need that much, and clients send no large message in smaller frames.
    """
    return frame_max + message_bytes_max + message_bytes_max // 4 + UNFINISHED_BYTES_MIN


_FRAME = Struct(">BHI")
_HEADER = Struct(">BHIIQ")
"""The start of a content header frame: frame header, class and weight as a single number, body size."""
_HEADER_PAYLOAD_MIN = 14  # class, weight, body size, flags
_FLAGS = Struct(">H")
_CLASS_BASIC = 60
_BASIC_WITHOUT_WEIGHT = _CLASS_BASIC << 16

_READ_EACH = HEADERS | PRIORITY | EXPIRATION | REPLY_TO | USER_ID
"""Flags of properties that are read in each message that is published (qq/stored/properties.py)."""

_PUBLISH = b"\x00\x3c\x00\x28"
_ACK = b"\x00\x3c\x00\x50"
_ACK_SIZE = 13
_ACK_FIELDS = Struct(">11xQ?x")
_ACKS = re.compile(
    rb"(\x01..\x00\x00\x00\x0d\x00\x3c\x00\x50).{8}[\x00\x01]\xce(?:\1.{8}[\x00\x01]\xce)*", re.DOTALL
)
"""Consecutive basic.ack frames of a channel. Not possessive, because CPython before 3.11.5 matches that wrongly."""

_CHANNEL_CLOSE_OK = b"\x00\x14\x00\x29"
_ON_STOPPED_CHANNEL = {b"\x00\x14\x00\x0a", b"\x00\x14\x00\x28", _CHANNEL_CLOSE_OK}  # open, close
_ON_STOPPED_CONNECTION = {b"\x00\x0a\x00\x32", b"\x00\x0a\x00\x33"}  # close, close-ok
_CONNECTION_METHODS = b"\x00\x0a"
_METHOD_BYTES = 4
"""Octets of class and method, with which the payload of a method frame begins."""
_SNIPPET_BYTES = 16
_PRINTABLE = re.compile(rb"[ !#-\[\]-~]+")
"""Octets that Erlang, and so RabbitMQ, shows as a string, except those that it would have to escape."""


class Publishes(NamedTuple):
    """Consecutive messages published on a channel with the same basic.publish, byte for byte.

    A message is its content header frame and body frames, with envelopes, as received. Only small frames beyond the
    first FRAMES_AS_THEY_COME are joined.
    """

    channel: int
    method: bytes
    """Payload of the method frame, which `decode_publish` has accepted."""
    messages: list[bytes]
    flags: int
    """The union of the property flags of all the messages."""


class Acks(NamedTuple):
    """Consecutive basic.ack of a channel, each (delivery tag, multiple)."""

    channel: int
    acks: list[tuple[int, bool]]


class Method(NamedTuple):
    """A method that is neither a publish nor an acknowledgement."""

    channel: int
    frame: base.Frame


class Heartbeat(NamedTuple):
    """The peer is alive."""


class ChannelFault(NamedTuple):
    """The channel must be closed. Its frames are dropped until close-ok or `FrameReader.keep`."""

    channel: int
    error: ChannelError


class Fault(NamedTuple):
    """The connection must be closed. Always the last event."""

    error: AmqpError


Event = Publishes | Acks | Method | Heartbeat | ChannelFault | Fault


class _Mode(Enum):
    RUNNING = auto()
    STOPPED = auto()
    """Only connection.close and close-ok are read."""
    BROKEN = auto()
    """The stream no longer consists of valid frames."""


class _Content:
    """A partly received message."""

    __slots__ = ("_frames", "_joined", "came", "left", "method", "size", "wire")

    def __init__(self, method: bytes, size: int) -> None:
        self.method = method
        self.wire = bytearray()
        self._frames = 0
        """Body frames kept as received."""
        self._joined = bytearray()
        """The payloads of small frames behind those."""
        self.came = 0
        """Octets of its frames as received."""
        self.left = -1
        """Body octets still to come; -1 before the content header."""
        self.size = size
        """Octets that count as incomplete."""

    def add_body(self, channel: int, payload: bytes, frame: bytes) -> None:
        """Add a body frame with this payload."""
        if self._frames >= FRAMES_AS_THEY_COME and len(payload) < WORTHWHILE_BYTES:
            if len(self._joined) + len(payload) > JOINED_BYTES - FRAME_OVERHEAD:
                self._end_frame(channel)
            self._joined += payload
        else:
            self._end_frame(channel)
            self._frames += 1
            self.wire += frame

    def end(self, channel: int) -> bytes:
        """Return the complete message."""
        self._end_frame(channel)
        return bytes(self.wire)

    def _end_frame(self, channel: int) -> None:
        if self._joined:
            self.wire += body_frames(self._joined, channel, JOINED_BYTES)
            self._joined.clear()


class FrameReader(SteppedReader[Event]):
    """Parses the byte stream of a connection into events.

    `frame_max` may be changed between calls. With `stepwise`, a step ends after a single event. The handshake needs
    that, because an event can change how the next bytes are read.
    """

    __slots__ = (
        "_contents",
        "_message_bytes_max",
        "_mode",
        "_payload_max",
        "_publishes",
        "_unfinished_max",
        "collected_bytes",
        "stepwise",
    )

    HEADER_OCTETS = 7

    def __init__(
        self, frame_max: int = FRAME_MAX_UNTUNED, message_bytes_max: int = MESSAGE_BYTES_MAX
    ) -> None:
        super().__init__()
        self.frame_max = frame_max
        self.stepwise = False
        self.collected_bytes = 0
        """Octets held for incomplete messages, excluding the current incomplete frame."""
        self._message_bytes_max = message_bytes_max
        self._unfinished_max = max(message_bytes_max * UNFINISHED_MESSAGES_MAX, UNFINISHED_BYTES_MIN)
        self._mode = _Mode.RUNNING
        self._contents: dict[int, _Content | None] = {}
        """Channels that the fast path must skip: with an incomplete message, or stopped (None)."""
        self._publishes: dict[bytes, None] = {}
        """Payloads of basic.publish that were found valid."""

    @property
    def frame_max(self) -> int:
        """The largest frame, with its envelope, in octets.

        As in RabbitMQ, a frame is accepted if its payload alone is within this size, because some clients count only
        the payload.
        """
        return self._payload_max

    @frame_max.setter
    def frame_max(self, frame_max: int) -> None:
        self._payload_max = frame_max

    @property
    def held_bytes(self) -> int:
        """Octets of memory that this reader holds for its peer."""
        return super().held_bytes + self.collected_bytes

    @property
    def partial_bytes(self) -> int:
        """Octets of incomplete messages, including those of a large incomplete frame."""
        rest = len(self._rest)
        is_large = rest > LARGE_FRAME_BYTES and self._mode is _Mode.RUNNING
        return self.collected_bytes + (rest if is_large else 0)

    def hold(self, data: bytes) -> None:
        """Keep bytes for a later `feed`."""
        if data:
            self._unread = b"".join((self._rest, self._left(), data))
            self._rest.clear()
            self._at = self._need = 0

    def drop(self, channel: int) -> None:
        """Stop reading a channel. Of its frames, only channel.open, close and close-ok become events."""
        self._forget(channel)
        self._contents[channel] = None

    def keep(self, channel: int) -> None:
        """Resume reading a channel after `drop`. The client's close-ok has the same effect."""
        if self._contents.get(channel) is None:
            self._contents.pop(channel, None)

    def stop(self) -> None:
        """Drop all input except connection.close and connection.close-ok from now on."""
        if self._mode is _Mode.RUNNING:
            self._mode = _Mode.STOPPED
            self._contents.clear()
            self.collected_bytes = 0

    # --- frames

    def _read(self, data: bytes, at: int, events: list[Event]) -> int:
        if self._mode is not _Mode.RUNNING:
            return self._read_stopped(data, at, events)
        end = len(data)
        contents = self._contents
        work_end = at + STEP_WORK
        """Position at which the work of this step is done. Each frame of the slow path brings it nearer."""
        while end - at >= 7 and at < work_end and not (events and self.stepwise):
            kind, channel, size = _FRAME.unpack_from(data, at)
            if size > self._payload_max or kind not in _KINDS:
                self._bad_frame(events, kind, size)
                return end
            stop = at + FRAME_OVERHEAD + size
            if stop > end:
                self._need = stop - at
                break
            if data[stop - 1] != FRAME_END:
                self._wrong_end(events, kind, data[at + 7 : stop])
                return end
            if kind == FRAME_METHOD and channel not in contents:
                method = data[at + 7 : at + 11]
                if method == _PUBLISH and channel:
                    reached, work_end = self._read_publishes(data, at, stop, channel, work_end, events)
                    taken, at = reached > at, reached
                    if self._need:
                        break
                    if taken:
                        work_end -= FRAME_WORK
                        continue
                elif (
                    method == _ACK
                    and size == _ACK_SIZE
                    and (acks := _ACKS.match(data, at, at + ACKS_OCTETS_MAX))
                ):
                    at = acks.end()
                    _add_acks(events, channel, list(_ACK_FIELDS.iter_unpack(acks.group())))
                    work_end -= FRAME_WORK
                    continue
            work_end -= FRAME_WORK if kind == FRAME_BODY else FRAME_WORK + TABLE_WORK * size
            try:
                self._read_frame(kind, channel, data, at, stop, events)
            except ConnectionFault as fault:
                self.stop()
                events.append(Fault(fault))
                return stop
            at = stop
        return at

    def _read_stopped(self, data: bytes, at: int, events: list[Event]) -> int:
        """Read the closes among the frames of a stopped connection. A broken stream is dropped."""
        end, work_end = len(data), at + STEP_WORK
        while end - at >= 7 and at < work_end and self._mode is _Mode.STOPPED:
            work_end -= FRAME_WORK
            kind, channel, size = _FRAME.unpack_from(data, at)
            stop = at + FRAME_OVERHEAD + size
            if size > self._payload_max or kind not in _KINDS:
                self._mode = _Mode.BROKEN
            elif stop > end:
                self._need = stop - at
                break
            elif data[stop - 1] != FRAME_END:
                self._mode = _Mode.BROKEN
            elif channel == 0 and kind == FRAME_METHOD and data[at + 7 : at + 11] in _ON_STOPPED_CONNECTION:
                try:
                    events.append(Method(0, decode_method(data[at + 7 : stop - 1])))
                except ConnectionFault:
                    self._mode = _Mode.BROKEN
            at = stop
        return end if self._mode is _Mode.BROKEN else at

    # --- the fast path of basic.publish

    def _read_publishes(
        self, data: bytes, at: int, method_stop: int, channel: int, work_end: int, events: list[Event]
    ) -> tuple[int, int]:
        """Read the complete messages published with the method frame at `at`, and with repetitions of that frame.

        No message is read that begins at `work_end` or later.

        Return the position at which it stopped, and the new `work_end`. `_need` is set if the fast path can read the
        message there after more octets have arrived. If it is not set and no message was read, the slow path must
        process the frame.
        """
        frame = data[at:method_stop]
        method = frame[7:-1]
        if method not in self._publishes and not self._learn_publish(method):
            return at, work_end
        messages: list[bytes] = []
        flags = 0
        append, starts_with = messages.append, data.startswith
        payload_max, end, method_size = self._payload_max, len(data), method_stop - at
        same_end = min(end, work_end)
        while at < work_end:
            header = at + method_size
            if end - header < FRAME_OVERHEAD + _HEADER_PAYLOAD_MIN:
                self._await(data, at, header, FRAME_HEADER, channel)
                break
            kind, header_channel, size, class_weight, left = _HEADER.unpack_from(data, header)
            body = header + FRAME_OVERHEAD + size
            if (
                kind != FRAME_HEADER
                or header_channel != channel
                or class_weight != _BASIC_WITHOUT_WEIGHT
                or size < _HEADER_PAYLOAD_MIN
                or size > payload_max
                or left > self._message_bytes_max
            ):
                break
            if body > end:
                self._await(data, at, header, FRAME_HEADER, channel)
                break
            properties = data[header + FLAGS_AT : body - 1]
            if data[body - 1] != FRAME_END:
                break
            found = properties[0] << 8 | properties[1]
            if found & _READ_EACH:
                work_end -= MESSAGE_WORK
                same_end = min(end, work_end)
            if properties not in valid_properties:
                work_end -= TABLE_WORK * len(properties)
                same_end = min(end, work_end)
                if not properties_valid(properties):
                    break
            envelope_stop = stop = body
            if left:
                if end - body < 7:
                    self._await(data, at, body, FRAME_BODY, channel)
                    break
                kind, body_channel, size = _FRAME.unpack_from(data, body)
                if size != left:
                    stop = self._body_stop(data, body, channel, left)
                    if stop:
                        append(data[header:stop])
                        flags |= found
                        at = stop
                        if starts_with(frame, at):
                            continue
                    break
                envelope_stop, stop = body + 7, body + FRAME_OVERHEAD + size
                if kind != FRAME_BODY or body_channel != channel or size > payload_max:
                    break
                if stop > end:
                    self._await(data, at, body, FRAME_BODY, channel)
                    break
                if data[stop - 1] != FRAME_END:
                    break
            append(data[header:stop])
            flags |= found
            # Most publishers repeat the same frames with a new body of the same length. Then all octets before the body
            # equal those that were just checked, and a comparison suffices.
            envelope = data[at:envelope_stop]
            size = stop - at
            at = stop
            stop += size
            while stop <= same_end and data[stop - 1] == FRAME_END and starts_with(envelope, at):
                append(data[at + method_size : stop])
                at = stop
                stop += size
            if not starts_with(frame, at):
                break
        if messages:
            _add_messages(events, Publishes(channel, method, messages, flags))
        return at, work_end

    def _learn_publish(self, method: bytes) -> bool:
        try:
            decode_publish(method)
        except ConnectionFault:
            return False
        if len(self._publishes) >= PUBLISHES_REMEMBERED_MAX:
            self._publishes.clear()
        self._publishes[method] = None
        return True

    def _await(self, data: bytes, at: int, frame: int, kind: int, channel: int) -> None:
        """Set `_need` if the part of the frame at `frame` that has arrived is valid for the expected frame."""
        if len(data) - frame < 7:
            self._need = frame + 7 - at
            return
        found, found_channel, size = _FRAME.unpack_from(data, frame)
        stop = frame + FRAME_OVERHEAD + size
        if found == kind and found_channel == channel and size <= self._payload_max and stop > len(data):
            self._need = stop - at

    def _body_stop(self, data: bytes, at: int, channel: int, left: int) -> int:
        """Return the end of a body of several frames, or 0 if it is incomplete or invalid."""
        end = len(data)
        while left > 0 and end - at >= FRAME_OVERHEAD:
            kind, frame_channel, size = _FRAME.unpack_from(data, at)
            at += FRAME_OVERHEAD + size
            if kind != FRAME_BODY or frame_channel != channel or not 0 < size <= self._payload_max:
                return 0
            if at > end or data[at - 1] != FRAME_END:
                return 0
            left -= size
        return 0 if left else at

    # --- the slow path: one frame at a time

    def _read_frame(
        self, kind: int, channel: int, data: bytes, at: int, stop: int, events: list[Event]
    ) -> None:
        payload = data[at + 7 : stop - 1]
        if kind == FRAME_HEARTBEAT:
            events.append(_heartbeat(channel, payload))
            return
        content = self._contents.get(channel)
        if content is None and channel in self._contents:
            if kind == FRAME_METHOD and payload[:4] in _ON_STOPPED_CHANNEL:
                events.append(Method(channel, decode_method(payload)))
                if payload[:4] == _CHANNEL_CLOSE_OK:
                    # The client may use the number again, even in the very next frame.
                    self.keep(channel)
            return
        if kind == FRAME_METHOD:
            self._read_method(channel, payload, content, events)
        elif content is None:
            text = "expected method frame, got non method frame instead"
            if channel == 0:
                text = f"type {kind}, {_snippet(payload)}"
            raise ConnectionFault(ReplyCode.UNEXPECTED_FRAME, text)
        elif kind == FRAME_HEADER:
            self._read_header(channel, payload, content, data[at:stop], events)
        else:
            self._read_body(channel, payload, content, data[at:stop], events)

    def _read_method(
        self, channel: int, payload: bytes, content: _Content | None, events: list[Event]
    ) -> None:
        if len(payload) < _METHOD_BYTES:
            raise _unknown_frame(FRAME_METHOD, payload)
        if content is not None:
            raise _unexpected(content)
        if payload[:4] == _PUBLISH and channel:
            decode_publish(payload)
            self._contents[channel] = content = _Content(payload, 0)
            self._count(content, len(payload))
            return
        try:
            frame = decode_method(payload)
        except ChannelError as error:
            self._fault(channel, error, events)
            return
        if isinstance(frame, commands.Basic.Ack):
            _add_acks(events, channel, [(frame.delivery_tag, frame.multiple)])
            return
        events.append(Method(channel, frame))

    def _read_header(
        self, channel: int, payload: bytes, content: _Content, frame: bytes, events: list[Event]
    ) -> None:
        if content.left >= 0:
            raise _unexpected(content)
        if len(payload) < _HEADER_PAYLOAD_MIN:
            raise _unknown_frame(FRAME_HEADER, payload)
        _, _, _, class_weight, left = _HEADER.unpack_from(frame)
        if class_weight >> 16 != _CLASS_BASIC:
            text = f"expected content header for class 60, got one for class {class_weight >> 16} instead"
            raise ConnectionFault(ReplyCode.UNEXPECTED_FRAME, text, 60, 40)
        if class_weight & 0xFFFF:
            raise _unexpected(content)
        try:
            check_properties(payload[12:])
        except TableLimitExceeded as error:
            text = f"headers of the message: {error}"
            self._fault(channel, ChannelError(ReplyCode.PRECONDITION_FAILED, text, 60, 40), events)
            return
        except FieldError:
            raise ConnectionFault(
                ReplyCode.SYNTAX_ERROR, "cannot decode the properties of the message", 60, 40
            ) from None
        if left > self._message_bytes_max:
            text = f"message size {left} is larger than configured max size {self._message_bytes_max}"
            self._fault(channel, ChannelError(ReplyCode.PRECONDITION_FAILED, text, 60, 40), events)
            return
        content.left = left
        content.wire += frame
        self._gather(channel, content, len(frame), events)

    def _fault(self, channel: int, error: ChannelError, events: list[Event]) -> None:
        self.drop(channel)
        events.append(ChannelFault(channel, error))

    def _read_body(
        self, channel: int, payload: bytes, content: _Content, frame: bytes, events: list[Event]
    ) -> None:
        if content.left < 0:
            raise _unexpected(content)
        if len(payload) > content.left:
            text = f"the body has {len(payload) - content.left} octets more than its content header says"
            raise ConnectionFault(ReplyCode.FRAME_ERROR, text, 60, 40)
        content.left -= len(payload)
        if payload:  # an empty frame adds no octets
            content.add_body(channel, payload, frame)
            self._gather(channel, content, len(frame), events)

    def _gather(self, channel: int, content: _Content, came: int, events: list[Event]) -> None:
        """Count the octets of a frame that was added to the message. Emit the message if it is complete."""
        content.came += came
        wire_max = stored_bytes_max(self._message_bytes_max, self._payload_max)
        if content.came > wire_max:
            self.drop(channel)
            text = f"a message in frames so small that it takes more than {wire_max} bytes"
            events.append(ChannelFault(channel, ChannelError(ReplyCode.PRECONDITION_FAILED, text, 60, 40)))
            return
        if content.left:
            self._count(content, came)
            return
        self._forget(channel)
        message = content.end(channel)
        (flags,) = _FLAGS.unpack_from(message, FLAGS_AT)
        _add_messages(events, Publishes(channel, content.method, [message], flags))

    def _count(self, content: _Content, size: int) -> None:
        content.size += size
        self.collected_bytes += size
        if self.collected_bytes > self._unfinished_max:
            text = f"unfinished messages take more than {self._unfinished_max} bytes"
            raise ConnectionFault(ReplyCode.RESOURCE_ERROR, text, 60, 40)

    def _forget(self, channel: int) -> None:
        content = self._contents.pop(channel, None)
        if content is not None:
            self.collected_bytes -= content.size

    # --- invalid streams

    def _bad_frame(self, events: list[Event], kind: int, size: int) -> None:
        """Report an invalid frame header in RabbitMQ's words."""
        why = (
            f"{{frame_too_large,{size},{self.frame_max - FRAME_OVERHEAD}}}"
            if size > self._payload_max
            else "unknown_frame"
        )
        self._break(events, f"type {kind}, all octets = <<>>: {why}")

    def _wrong_end(self, events: list[Event], kind: int, payload_and_end: bytes) -> None:
        payload, marker = payload_and_end[:-1], payload_and_end[-1]
        self._break(events, f"type {kind}, {_snippet(payload)}: {{invalid_frame_end_marker,{marker}}}")

    def _break(self, events: list[Event], text: str) -> None:
        self.stop()
        self._mode = _Mode.BROKEN
        events.append(Fault(ConnectionFault(ReplyCode.FRAME_ERROR, text)))


_KINDS = frozenset((FRAME_METHOD, FRAME_HEADER, FRAME_BODY, FRAME_HEARTBEAT))


def _add_messages(events: list[Event], more: Publishes) -> None:
    last = events[-1] if events else None
    if type(last) is Publishes and last.channel == more.channel and last.method == more.method:
        last.messages.extend(more.messages)
        events[-1] = last._replace(flags=last.flags | more.flags)
    else:
        events.append(more)


def _add_acks(events: list[Event], channel: int, acks: list[tuple[int, bool]]) -> None:
    last = events[-1] if events else None
    if type(last) is Acks and last.channel == channel:
        last.acks.extend(acks)
    else:
        events.append(Acks(channel, acks))


def _heartbeat(channel: int, payload: bytes) -> Heartbeat:
    if payload:
        raise _unknown_frame(FRAME_HEARTBEAT, payload)
    if channel:
        raise ConnectionFault(ReplyCode.UNEXPECTED_FRAME, "type 8, all octets = <<>>")
    return Heartbeat()


def _unknown_frame(kind: int, payload: bytes) -> ConnectionFault:
    """Return the error for a frame whose payload is invalid for its type."""
    return ConnectionFault(ReplyCode.FRAME_ERROR, f"type {kind}, {_snippet(payload)}: unknown_frame")


def _unexpected(content: _Content) -> ConnectionFault:
    if content.left < 0:
        text = "expected content header for class 60, got non content header frame instead"
    else:
        text = "expected content body, got non content body frame instead"
    return ConnectionFault(ReplyCode.UNEXPECTED_FRAME, text, 60, 40)


def _snippet(payload: bytes) -> str:
    """Return the beginning of a payload as RabbitMQ shows it.

    Of connection methods only class and method are shown, because they may contain a password.
    """
    shown = _METHOD_BYTES if payload.startswith(_CONNECTION_METHODS) else _SNIPPET_BYTES
    begin = payload[:shown]
    octets = f'"{begin.decode()}"' if _PRINTABLE.fullmatch(begin) else ",".join(map(str, begin))
    return f"{'all' if len(payload) <= shown else f'first {shown}'} octets = <<{octets}>>"
