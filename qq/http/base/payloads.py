"""Messages of any size as JSON.

Invariant: a body is encoded in pieces, and other tasks run in between. Its text, which is up to six times as large as
the body, is held only up to the part that is written next.
"""

from __future__ import annotations

import json
from base64 import b64encode
from codecs import getincrementaldecoder
from typing import TYPE_CHECKING, Any

from qq.management.time_slices import Slices

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping

    from qq.management.reports.messages import Message

PIECE_BYTES = 48 * 1024
"""Octets of a body encoded at a time: a millisecond at most. A multiple of three, so that base64 needs no padding."""
PART_BYTES = 64 * 1024

_utf_8 = getincrementaldecoder("utf-8")


def payload_of(body: bytes, *, as_base64: bool) -> tuple[str, str]:
    """Return the text of a small body, and the name of its encoding."""
    if not as_base64:
        try:
            return body.decode(), "string"
        except UnicodeDecodeError:
            pass
    return b64encode(body).decode(), "base64"


async def message_parts(
    messages: Iterable[Message],
    document: Callable[[Message], Mapping[str, Any]],
    *,
    as_base64: bool,
    truncate: int | None,
) -> AsyncIterator[bytes]:
    """Yield the JSON of a list of messages with at most `truncate` octets of each body.

    `document` returns the other fields of a message.
    """
    slices = Slices()
    part, separator = bytearray(b"["), b""
    for message in messages:
        body = memoryview(message.body)[:truncate]
        is_text = not as_base64 and await _is_text(body, slices)
        part += separator + json.dumps(document(message))[:-1].encode() + b', "payload": "'
        separator = b", "
        for piece in _text(body) if is_text else _base64(body):
            part += piece
            if len(part) >= PART_BYTES:
                yield bytes(part)
                part.clear()
            await slices.give_way()
        part += b'", "payload_encoding": "string"}' if is_text else b'", "payload_encoding": "base64"}'
    yield bytes(part) + b"]"


async def _is_text(body: memoryview, slices: Slices) -> bool:
    """Return whether a body is UTF-8."""
    try:
        for _ in _decoded(body):
            await slices.give_way()
    except UnicodeDecodeError:
        return False
    return True


def _text(body: memoryview) -> Iterator[bytes]:
    return (json.dumps(text)[1:-1].encode() for text in _decoded(body))


def _base64(body: memoryview) -> Iterator[bytes]:
    return map(b64encode, _pieces(body))


def _decoded(body: memoryview) -> Iterator[str]:
    """Yield the text of a body in pieces. Raises UnicodeDecodeError at the first octet that is not UTF-8."""
    decoder = _utf_8()
    for piece in _pieces(body):
        yield decoder.decode(piece)
    yield decoder.decode(b"", final=True)


def _pieces(body: memoryview) -> Iterator[memoryview]:
    return (body[start : start + PIECE_BYTES] for start in range(0, len(body), PIECE_BYTES))
