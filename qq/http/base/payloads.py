"""Messages as JSON, however large.

Invariant: a body is encoded in pieces, between which other tasks run. No more of its text is held than is about to be
written: it is up to six times as large as the body.
"""

from __future__ import annotations

import json
from base64 import b64encode
from codecs import getincrementaldecoder
from typing import TYPE_CHECKING, Any

from qq.http.base.slices import Slices

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping

    from qq.http.view import Message

PIECE_BYTES = 48 * 1024
"""Encoding so many octets of a body takes a millisecond at most. A multiple of three, so that base64 has no gaps."""
PART_BYTES = 64 * 1024

_utf_8 = getincrementaldecoder("utf-8")


def payload_of(body: bytes, *, as_base64: bool) -> tuple[str, str]:
    """The text of a small body, and the name of its encoding."""
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
    """The JSON of a list of messages with at most `truncate` octets of each body; `document` tells what else it has."""
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
    """Whether a body is UTF-8."""
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
    """The text of a body, piece by piece; raises UnicodeDecodeError where it is none."""
    decoder = _utf_8()
    for piece in _pieces(body):
        yield decoder.decode(piece)
    yield decoder.decode(b"", final=True)


def _pieces(body: memoryview) -> Iterator[memoryview]:
    return (body[start : start + PIECE_BYTES] for start in range(0, len(body), PIECE_BYTES))
