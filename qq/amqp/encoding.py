"""What the server sends: methods, confirms, deliveries.

Lives here: frames as bytes. Not here: when they are sent (broker), connection and channel closing
(connection.py).

Law: a stored message is sent as it is; what is packed is the method frame before it. Where the broker has
something to add to its headers, the octets of the client's own are kept. Names that clients gave are packed by hand,
because pamqp refuses names that RabbitMQ allows.
"""

from __future__ import annotations

from datetime import datetime
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from pamqp import frame as pamqp_frame

from qq.amqp import stored
from qq.amqp.fields import decode_properties
from qq.amqp.framing import FRAME_BODY, FRAME_END, FRAME_METHOD, FRAME_OVERHEAD

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pamqp import base, commands

HeaderValue = int | str | datetime | list["HeaderValue"] | dict[str, "HeaderValue"]
"""What the broker itself puts into headers: a long, a long string, a timestamp (aware), an array, a table."""

HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"

_END = bytes([FRAME_END])
_U16 = Struct(">H")
_U32 = Struct(">I")
_TAG = Struct(">Q")
_FRAME = Struct(">BHI")
_METHOD = Struct(">BHIHH")
_CONFIRM = Struct(">BHIHHQBB")
_LONG = Struct(">cq")
_TIMESTAMP = Struct(">cQ")
_LENGTH = Struct(">cI")


class Content(NamedTuple):
    """A message as tools want it."""

    properties: commands.Basic.Properties
    body: bytes


def encode(channel: int, frame: base.Frame) -> bytes:
    """Encode any method."""
    return pamqp_frame.marshal(frame, channel)


def confirm_frame(channel: int, tag: int, multiple: bool, nack: bool = False) -> bytes:
    """basic.ack or basic.nack to a publisher."""
    return _CONFIRM.pack(FRAME_METHOD, channel, 13, 60, 120 if nack else 80, tag, multiple, FRAME_END)


def deliveries(
    channel: int,
    consumer_tag: str,
    first_tag: int,
    redelivered: bool,
    exchange: str,
    routing_key: str,
    messages: Sequence[bytes],
    out: list[bytes],
) -> None:
    """Append basic.deliver and the message, for each message, to `out`; delivery tags count from `first_tag`."""
    before = b"\x00\x3c\x00\x3c" + _shortstr(consumer_tag)
    after = bytes([redelivered]) + _shortstr(exchange) + _shortstr(routing_key)
    head = _FRAME.pack(FRAME_METHOD, channel, len(before) + 8 + len(after)) + before
    tail = after + _END
    pack = Struct(f">{len(head)}sQ{len(tail)}s").pack
    count = len(messages)
    # Two interleaved slices instead of a loop: less than half the time.
    frames = [b""] * (2 * count)
    frames[::2] = [pack(head, tag, tail) for tag in range(first_tag, first_tag + count)]
    frames[1::2] = messages
    out += frames


def get_ok(
    channel: int,
    delivery_tag: int,
    redelivered: bool,
    exchange: str,
    routing_key: str,
    message_count: int,
    message: bytes,
) -> bytes:
    """basic.get-ok and the message."""
    names = _shortstr(exchange) + _shortstr(routing_key)
    arguments = _TAG.pack(delivery_tag) + bytes([redelivered]) + names + _U32.pack(message_count)
    return _method(channel, 60, 71, arguments) + message


def returned(channel: int, code: int, text: str, exchange: str, routing_key: str, message: bytes) -> bytes:
    """basic.return and the message."""
    arguments = _U16.pack(code) + _shortstr(text) + _shortstr(exchange) + _shortstr(routing_key)
    return _method(channel, 60, 50, arguments) + message


def declare_ok(channel: int, queue: str, messages: int, consumers: int) -> bytes:
    """queue.declare-ok."""
    return _method(channel, 50, 11, _shortstr(queue) + _U32.pack(messages) + _U32.pack(consumers))


def reframe(message: bytes, channel: int, frame_max: int) -> bytes:
    """Rewrite a stored message for a channel: its number in each frame, body frames of at most `frame_max`.

    A content header cannot be split: one that is larger than `frame_max` is sent as it is, as RabbitMQ does.
    """
    number = _U16.pack(channel)
    header_stop = stored.frame_stop(message, 0)
    if header_stop == len(message):
        return b"".join((message[:1], number, message[3:]))
    body_size = len(message) - header_stop
    if stored.frame_stop(message, header_stop) == len(message) and body_size <= frame_max:
        body_at = header_stop + 1
        return b"".join((message[:1], number, message[3:body_at], number, message[body_at + 2 :]))
    payload_max = frame_max - FRAME_OVERHEAD
    body = _body(message, header_stop)
    frames = [message[:1], number, message[3:header_stop]]
    for at in range(0, len(body), payload_max):
        part = body[at : at + payload_max]
        frames += (_FRAME.pack(FRAME_BODY, channel, len(part)), part, _END)
    return b"".join(frames)


def with_headers(
    messages: Sequence[bytes],
    *,
    additions: Mapping[str, HeaderValue] | None = None,
    removals: Collection[str] = (),
    drop_expiration: bool = False,
) -> list[bytes]:
    """Stored messages with other headers; all else, and all other headers, octet for octet as they were.

    `additions` take the place of headers with the same names, `drop_expiration` removes that property.
    """
    pairs = {name.encode(): _pair(name, value) for name, value in additions.items()} if additions else {}
    added = b"".join(pairs.values())
    removed = {name.encode() for name in removals}.union(pairs)
    return [_with_headers(message, removed, added, drop_expiration) for message in messages]


def _with_headers(message: bytes, removed: Collection[bytes], added: bytes, drop_expiration: bool) -> bytes:
    flags = stored.flags(message)
    table_at = stored.place(message, stored.HEADERS)
    header_stop = stored.frame_stop(message, 0)
    rest_at, kept = table_at, b""
    if flags & stored.HEADERS:
        rest_at, kept = _without(message, table_at, removed)
    if added or flags & stored.HEADERS:
        flags |= stored.HEADERS
        kept = _U32.pack(len(kept) + len(added)) + kept + added
    rest = message[rest_at : header_stop - 1]
    if drop_expiration and flags & stored.EXPIRATION:
        at = stored.place(message, stored.EXPIRATION)
        rest = message[rest_at:at] + message[at + 1 + message[at] : header_stop - 1]
        flags ^= stored.EXPIRATION
    before = message[stored.PROPERTIES_AT : table_at]
    size = stored.PROPERTIES_AT - 7 + len(before) + len(kept) + len(rest)
    return b"".join(
        (
            message[:3],
            _U32.pack(size),
            message[7 : stored.FLAGS_AT],
            _U16.pack(flags),
            before,
            kept,
            rest,
            message[header_stop - 1 :],
        )
    )


def _without(message: bytes, table_at: int, removed: Collection[bytes]) -> tuple[int, bytes]:
    """Where the table at `table_at` ends, and its pairs without those that are to be removed."""
    at = stop = table_at + 4
    kept: list[bytes] = []
    for name, pair_at, _, stop in stored.pairs(message, table_at):
        if name in removed:
            kept.append(message[at:pair_at])
            at = stop
    return stop, b"".join((*kept, message[at:stop]))


def _pair(name: str, value: HeaderValue) -> bytes:
    return _shortstr(name) + _value(value)


def _value(value: HeaderValue) -> bytes:
    match value:
        case int():
            return _LONG.pack(b"l", value)
        case str():
            return _sized(b"S", value.encode())
        case datetime():
            return _TIMESTAMP.pack(b"T", int(value.timestamp()))
        case list():
            return _sized(b"A", b"".join(map(_value, value)))
        case dict():
            return _sized(b"F", b"".join(_pair(name, item) for name, item in value.items()))


def _sized(kind: bytes, octets: bytes) -> bytes:
    return _LENGTH.pack(kind, len(octets)) + octets


def content(message: bytes) -> Content:
    """Take a stored message apart."""
    header_stop = stored.frame_stop(message, 0)
    properties = message[stored.FLAGS_AT : header_stop - 1]
    return Content(decode_properties(properties), _body(message, header_stop))


def _body(message: bytes, at: int) -> bytes:
    parts: list[bytes] = []
    while at < len(message):
        stop = stored.frame_stop(message, at)
        parts.append(message[at + 7 : stop - 1])
        at = stop
    return b"".join(parts)


def _method(channel: int, class_id: int, method_id: int, arguments: bytes) -> bytes:
    return _METHOD.pack(FRAME_METHOD, channel, 4 + len(arguments), class_id, method_id) + arguments + _END


def _shortstr(text: str) -> bytes:
    encoded = text.encode()
    return bytes([len(encoded)]) + encoded
