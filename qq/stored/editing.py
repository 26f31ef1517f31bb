"""Making stored messages, taking them apart, and changing their headers or frames.

Invariant: when the broker adds headers to a message, the octets of the client's own headers are kept.
"""

from __future__ import annotations

from copy import copy
from datetime import datetime
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple, cast

from pamqp import frame as pamqp_frame
from pamqp import header

from qq.octets import octets_of
from qq.stored import layout
from qq.stored.fields import decode_properties, join_properties, property_of, split_properties
from qq.stored.layout import FRAME_BODY, FRAME_END, FRAME_OVERHEAD

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pamqp import commands

HeaderValue = None | bool | int | float | str | datetime | list["HeaderValue"] | dict[str, "HeaderValue"]
"""A header value that the broker itself writes: void, boolean, long, double, long string, timestamp (aware), array,
table."""

WORTHWHILE_BYTES = 32 * 1024
"""Body frames of at least so many octets are sent as they are; smaller frames are merged up to the frame limit."""

LONGS = range(-(2**63), 2**63)

_END = bytes([FRAME_END])
_U16 = Struct(">H")
_U32 = Struct(">I")
_FRAME = Struct(">BHI")
_FLAG = Struct(">c?")
_LONG = Struct(">cq")
_DOUBLE = Struct(">cd")
_TIMESTAMP = Struct(">cQ")
_LENGTH = Struct(">cI")


class DecodedMessage(NamedTuple):
    """A message, taken apart."""

    properties: commands.Basic.Properties
    body: bytes


def make(properties: commands.Basic.Properties, body: bytes, frame_max: int) -> bytes:
    """Make a stored message with frames of channel 1 of at most `frame_max` octets; all headers are `HeaderValue`s.

    Raises ValueError for invalid properties.
    """
    # pamqp would write floats with 32 bits, which most numbers do not fit, and integers with as few bits as they need.
    # So `with_headers` writes the headers.
    others = copy(properties)
    others.headers = None
    head = pamqp_frame.marshal(header.ContentHeader(body_size=len(body), properties=others), 1)
    headers = cast("dict[str, HeaderValue] | None", properties.headers)
    [message] = with_headers([head + body_frames(body, 1, frame_max)], additions=headers)
    return message


def reframe(message: bytes, channel: int, frame_max: int) -> bytes:
    """Rewrite a stored message for a channel: its number in each frame, body frames of at most `frame_max` octets.

    A content header cannot be split, so a header larger than `frame_max` is sent as it is, as RabbitMQ does.
    """
    number = _U16.pack(channel)
    header_stop = layout.frame_stop(message, 0)
    if header_stop == len(message):
        return b"".join((message[:1], number, message[3:]))
    body_size = len(message) - header_stop
    if layout.frame_stop(message, header_stop) == len(message) and body_size <= frame_max:
        body_at = header_stop + 1
        return b"".join((message[:1], number, message[3:body_at], number, message[body_at + 2 :]))
    if (frames := _frames_that_fit(message, header_stop, frame_max)) is not None:
        return _renumbered(message, number, frames)
    head = b"".join((message[:1], number, message[3:header_stop]))
    return head + body_frames(_body(message, header_stop, len(message)), channel, frame_max)


def _frames_that_fit(message: bytes, header_stop: int, frame_max: int) -> list[int] | None:
    """Return the offsets of the body frames if they can be sent as they are, or `None` if they must be rebuilt."""
    frames: list[int] = []
    at, end = header_stop, len(message)
    while at < end:
        stop = layout.frame_stop(message, at)
        if stop - at > frame_max or (stop - at < WORTHWHILE_BYTES and stop < end):
            return None
        frames.append(at)
        at = stop
    return frames


def _renumbered(message: bytes, number: bytes, frames: Sequence[int]) -> bytes:
    """Return the message for a different channel, in a single copy, because copying a large message delays clients."""
    if message[1:3] == number:
        return message
    view = memoryview(message)
    parts: list[bytes | memoryview] = []
    ends_at = 0
    for at in (0, *frames):
        parts += (view[ends_at : at + 1], number)
        ends_at = at + 3
    parts.append(view[ends_at:])
    return b"".join(parts)


def body_frames(body: bytes | bytearray | memoryview, channel: int, frame_max: int) -> bytes:
    """Return the body in frames of at most `frame_max` octets."""
    payload_max = frame_max - FRAME_OVERHEAD
    frames: list[bytes | bytearray | memoryview] = []
    for at in range(0, len(body), payload_max):
        part = body[at : at + payload_max]
        frames += (_FRAME.pack(FRAME_BODY, channel, len(part)), part, _END)
    return b"".join(frames)


def with_headers(
    messages: Sequence[bytes],
    *,
    additions: Mapping[str, HeaderValue] | None = None,
    fields: Mapping[str, bytes] | None = None,
    removals: Collection[str] = (),
    drop_expiration: bool = False,
) -> list[bytes]:
    """Change headers of stored messages; all other headers and properties stay octet for octet as they were.

    `additions`, and `fields` with encoded values, replace headers with the same names; `drop_expiration` removes that
    property. Raises ValueError for an integer that does not fit into 64 bits.
    """
    pairs = {octets_of(name): short_string(name) + field for name, field in fields.items()} if fields else {}
    if additions:
        pairs |= {octets_of(name): _pair(name, value) for name, value in additions.items()}
    added = b"".join(pairs.values())
    removed = {octets_of(name) for name in removals}.union(pairs)
    return [_with_headers(message, removed, added, drop_expiration) for message in messages]


def _with_headers(message: bytes, removed: Collection[bytes], added: bytes, drop_expiration: bool) -> bytes:
    flags = layout.flags(message)
    table_at = layout.place(message, layout.HEADERS)
    header_stop = layout.frame_stop(message, 0)
    rest_at, kept = table_at, b""
    if flags & layout.HEADERS:
        rest_at, kept = _without(message, table_at, removed)
    if added or flags & layout.HEADERS:
        flags |= layout.HEADERS
        kept = _U32.pack(len(kept) + len(added)) + kept + added
    rest = message[rest_at : header_stop - 1]
    if drop_expiration and flags & layout.EXPIRATION:
        at = layout.place(message, layout.EXPIRATION)
        rest = message[rest_at:at] + message[at + 1 + message[at] : header_stop - 1]
        flags ^= layout.EXPIRATION
    before = message[layout.PROPERTIES_AT : table_at]
    size = layout.PROPERTIES_AT - 7 + len(before) + len(kept) + len(rest)
    return b"".join(
        (
            message[:3],
            _U32.pack(size),
            message[7 : layout.FLAGS_AT],
            _U16.pack(flags),
            before,
            kept,
            rest,
            message[header_stop - 1 :],
        )
    )


def with_properties(message: bytes, values: Mapping[str, str | int]) -> bytes:
    """Replace properties of a stored message, by pamqp's names; all other octets stay as they were."""
    header_stop = layout.frame_stop(message, 0)
    properties = split_properties(message[layout.FLAGS_AT : header_stop - 1])
    properties |= {name: property_of(name, value) for name, value in values.items()}
    written = join_properties(properties)
    size = layout.FLAGS_AT - 7 + len(written)
    parts = message[:3], _U32.pack(size), message[7 : layout.FLAGS_AT], written, message[header_stop - 1 :]
    return b"".join(parts)


def _without(message: bytes, table_at: int, removed: Collection[bytes]) -> tuple[int, bytes]:
    """Return the end of the table at `table_at`, and its pairs without the removed headers."""
    at = stop = table_at + 4
    kept: list[bytes] = []
    for name, pair_at, _, stop in layout.pairs(message, table_at):
        if name in removed:
            kept.append(message[at:pair_at])
            at = stop
    return stop, b"".join((*kept, message[at:stop]))


def _pair(name: str, value: HeaderValue) -> bytes:
    return short_string(name) + field_value(value)


def field_value(value: HeaderValue) -> bytes:
    """Encode a value of a table with its type.

    Raises ValueError for an integer that does not fit into 64 bits, and for a time before 1970.
    """
    match value:
        case None:
            return b"V"
        case bool():
            return _FLAG.pack(b"t", value)
        case int():
            if value not in LONGS:
                raise ValueError(f"a header holds {value}, which is no number of 64 bits with a sign")
            return _LONG.pack(b"l", value)
        case float():
            return _DOUBLE.pack(b"d", value)
        case str():
            return sized(b"S", octets_of(value))
        case datetime():
            seconds = value.timestamp()
            if seconds < 0:
                raise ValueError(f"a header holds the time {value.isoformat()}, which is before 1970")
            return _TIMESTAMP.pack(b"T", int(seconds))
        case list():
            return sized(b"A", b"".join(map(field_value, value)))
        case dict():
            return sized(b"F", b"".join(_pair(name, item) for name, item in value.items()))


def sized(kind: bytes, octets: bytes) -> bytes:
    """Return octets with the octet of their type and their length in front."""
    return _LENGTH.pack(kind, len(octets)) + octets


def content(message: bytes, frames_max: int | None = None) -> DecodedMessage:
    """Take a stored message apart. With `frames_max`, use only so many octets of its body frames."""
    header_stop = layout.frame_stop(message, 0)
    properties = message[layout.FLAGS_AT : header_stop - 1]
    end = len(message) if frames_max is None else min(len(message), header_stop + frames_max)
    return DecodedMessage(decode_properties(properties), _body(message, header_stop, end))


def body_of(message: bytes) -> bytes:
    """Return the body of a stored message."""
    at = layout.frame_stop(message, 0)
    end = len(message)
    if at == end:
        return b""
    stop = layout.frame_stop(message, at)
    if stop == end:
        return message[at + 7 : end - 1]
    parts: list[bytes] = []
    while at < end:
        stop = layout.frame_stop(message, at)
        parts.append(message[at + 7 : stop - 1])
        at = stop
    return b"".join(parts)


def _body(message: bytes, at: int, end: int) -> bytes:
    """Return the body octets in the frames from `at` to `end`, which may be inside a frame."""
    parts: list[bytes] = []
    while at + FRAME_OVERHEAD <= end:
        stop = layout.frame_stop(message, at)
        parts.append(message[at + 7 : min(stop - 1, end)])
        at = stop
    return b"".join(parts)


def short_string(text: str) -> bytes:
    encoded = octets_of(text)
    return bytes([len(encoded)]) + encoded
