"""Reads a large JSON object in slices.

Two invariants. Other tasks run between the values of the object, and between the elements of its lists. The size of a
single value is bounded, because a parser reads it at once. And the elements of lists are not kept: a list knows their
places in the text, and reads each again when it is wanted.
"""

from __future__ import annotations

import json
import re
from array import array
from codecs import BOM_UTF8, utf_8_decode
from typing import TYPE_CHECKING, Any

from qq.http.base.error_responses import bad_request
from qq.http.documents.parsing import check_json, no_constant
from qq.management.time_slices import Slices

if TYPE_CHECKING:
    from collections.abc import Iterator
    from mmap import mmap

    from qq.http.documents.parsing import Body

VALUE_CHARS_MAX = 128 * 1024
"""Characters of a single value at most: reading it takes some 40 ms. Arguments have 16 KiB at most (machine/limits.py).
"""
SMALL_VALUE_CHARS = 2048
"""Characters of the text that are tried first for a value: nearly all values are shorter."""
CHARACTER_OCTETS_MAX = 4
"""Octets of a character in UTF-8 at most."""

_SPACE = re.compile(rb"[ \t\n\r]*")


class LargeList:
    """A list in a large JSON text."""

    def __init__(self, octets: bytes | mmap) -> None:
        self._octets = octets
        self._places = array("Q")

    def add(self, place: int) -> None:
        """Add the element at this offset."""
        self._places.append(place)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, number: int) -> Any:
        return _JsonCursor(self._octets, self._places[number]).value()

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, range(len(self)))


async def read_large_object(octets: bytes | mmap) -> Body:
    """Return the JSON object in a request; its lists are `LargeList`. No text is an empty object. Raises Refusal."""
    if not octets:
        return {}
    try:
        at = len(BOM_UTF8) if octets[: len(BOM_UTF8)] == BOM_UTF8 else 0
        return await _object(_JsonCursor(octets, at), octets, Slices())
    except (ValueError, RecursionError):
        raise bad_request("failed_to_parse_json") from None


class _JsonCursor:
    """A position in a JSON text. Methods raise ValueError if the text is not JSON."""

    def __init__(self, octets: bytes | mmap, at: int) -> None:
        self._octets = octets
        self.at = at
        self._decode = json.JSONDecoder(parse_constant=no_constant).raw_decode
        self._skip_space()

    def _skip_space(self) -> None:
        space = _SPACE.match(self._octets, self.at)
        self.at = space.end() if space else self.at

    def is_at(self, token: bytes) -> bool:
        return self._octets[self.at : self.at + len(token)] == token

    def takes(self, token: bytes) -> bool:
        """Move past `token` if it comes next; return whether it did."""
        if not self.is_at(token):
            return False
        self.at += len(token)
        self._skip_space()
        return True

    def take(self, token: bytes) -> None:
        if not self.takes(token):
            raise ValueError(f"{token!r} expected at {self.at}")

    def value(self) -> Any:
        value, length = self._decoded()
        check_json(value)
        self.at += length
        self._skip_space()
        return value

    def _decoded(self) -> tuple[Any, int]:
        """Read the value at this position; return the value and its octets. Raises Refusal if it is too long."""
        for size in (SMALL_VALUE_CHARS, VALUE_CHARS_MAX):
            end = self.at + CHARACTER_OCTETS_MAX * size
            text, _ = utf_8_decode(self._octets[self.at : end], "strict", end >= len(self._octets))
            holds_all = end >= len(self._octets) and len(text) <= size
            try:
                value, length = self._decode(text[:size])
            except ValueError:
                if holds_all:
                    raise
            else:
                # A number that ends with the window may continue after it.
                if holds_all or length < size:
                    return value, len(text[:length].encode())
        raise bad_request(f"a value is no JSON, or longer than {VALUE_CHARS_MAX} characters")

    def end(self) -> None:
        if self.at < len(self._octets):
            raise ValueError(f"end expected at {self.at}")


async def _object(cursor: _JsonCursor, octets: bytes | mmap, slices: Slices) -> Body:
    body: Body = {}
    cursor.take(b"{")
    is_over = cursor.takes(b"}")
    while not is_over:
        await slices.give_way()
        if not cursor.is_at(b'"'):
            raise ValueError("a name expected")
        name = cursor.value()
        cursor.take(b":")
        body[name] = await _list(cursor, octets, slices) if cursor.is_at(b"[") else cursor.value()
        is_over = cursor.takes(b"}")
        if not is_over:
            cursor.take(b",")
    cursor.end()
    return body


async def _list(cursor: _JsonCursor, octets: bytes | mmap, slices: Slices) -> LargeList:
    rows = LargeList(octets)
    cursor.take(b"[")
    is_over = cursor.takes(b"]")
    while not is_over:
        await slices.give_way()
        rows.add(cursor.at)
        cursor.value()
        is_over = cursor.takes(b"]")
        if not is_over:
            cursor.take(b",")
    return rows
