"""Reads a large JSON object in slices.

Invariant: other tasks run between the values of the object, and between the elements of its lists. The size of a single
value is bounded, because a parser reads it at once.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from qq.http.base.error_responses import bad_request
from qq.http.documents.parsing import check_json, no_constant
from qq.management.slices import Slices

if TYPE_CHECKING:
    from qq.http.documents.parsing import Body

VALUE_CHARS_MAX = 128 * 1024
"""Characters of a single value at most: reading it takes some 40 ms. Arguments have 16 KiB at most (machine/limits.py).
"""
SMALL_VALUE_CHARS = 2048
"""Characters of the text that are tried first for a value: nearly all values are shorter."""

_SPACE = re.compile(r"[ \t\n\r]*")


async def read_large_object(raw: bytes) -> Body:
    """Return the JSON object in a request. Raises Refusal."""
    try:
        return await _object(_JsonCursor(raw.decode("utf-8-sig")), Slices())
    except (ValueError, RecursionError):
        raise bad_request("not_json") from None


class _JsonCursor:
    """A position in a JSON text. Methods raise ValueError if the text is not JSON."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._decode = json.JSONDecoder(parse_constant=no_constant).raw_decode
        self._skip_space()

    def _skip_space(self) -> None:
        space = _SPACE.match(self._text, self._at)
        self._at = space.end() if space else self._at

    def is_at(self, token: str) -> bool:
        return self._text.startswith(token, self._at)

    def takes(self, token: str) -> bool:
        """Move past `token` if it comes next; return whether it did."""
        if not self.is_at(token):
            return False
        self._at += len(token)
        self._skip_space()
        return True

    def take(self, token: str) -> None:
        if not self.takes(token):
            raise ValueError(f"{token} expected at {self._at}")

    def value(self) -> Any:
        value, length = self._decoded()
        check_json(value)
        self._at += length
        self._skip_space()
        return value

    def _decoded(self) -> tuple[Any, int]:
        """Read the value at this position; return the value and its length. Raises Refusal if it is too long."""
        for size in (SMALL_VALUE_CHARS, VALUE_CHARS_MAX):
            window = self._text[self._at : self._at + size]
            holds_all = self._at + size >= len(self._text)
            try:
                value, length = self._decode(window)
            except ValueError:
                if holds_all:
                    raise
            else:
                # A number that ends with the window may continue after it.
                if holds_all or length < size:
                    return value, length
        raise bad_request(f"a value is no JSON, or longer than {VALUE_CHARS_MAX} characters")

    def end(self) -> None:
        if self._at < len(self._text):
            raise ValueError(f"end expected at {self._at}")


async def _object(cursor: _JsonCursor, slices: Slices) -> Body:
    body: Body = {}
    cursor.take("{")
    is_over = cursor.takes("}")
    while not is_over:
        await slices.give_way()
        if not cursor.is_at('"'):
            raise ValueError("a name expected")
        name = cursor.value()
        cursor.take(":")
        body[name] = await _list(cursor, slices) if cursor.is_at("[") else cursor.value()
        is_over = cursor.takes("}")
        if not is_over:
            cursor.take(",")
    cursor.end()
    return body


async def _list(cursor: _JsonCursor, slices: Slices) -> list[Any]:
    elements: list[Any] = []
    cursor.take("[")
    is_over = cursor.takes("]")
    while not is_over:
        await slices.give_way()
        elements.append(cursor.value())
        is_over = cursor.takes("]")
        if not is_over:
            cursor.take(",")
    return elements
