"""Compressed columns of 64-bit words: the packed form of runs and shelves, in memory and in dumps.

Invariant: equal columns give equal bytes if zlib is the same. A column of zeros costs a byte, and almost no time. Input
is not trusted: reading takes no more memory than the longest allowed columns need.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from itertools import accumulate
from operator import sub
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

WORDS_MAX = 2**16
"""Maximum words of a column: many times as many as any caller packs together."""

_WORD_BYTES = 8
_LENGTH_BYTES = 4


def pack(columns: list[array[int]]) -> bytes:
    """Return columns compressed. Sorted into first, second ... bytes of the words, they are mostly repetitions."""
    length = len(columns[0])
    zeros = bytes(length)
    masks = bytearray()
    planes: list[bytes] = []
    for column in columns:
        raw = little_endian(column)
        mask = 0
        # Most columns are zero except for their lowest byte or two, which is checked before sorting.
        if raw != bytes(len(raw)):
            for byte in range(_WORD_BYTES):
                plane = raw[byte::_WORD_BYTES]
                if plane != zeros:
                    mask |= 1 << byte
                    planes.append(plane)
        masks.append(mask)
    # A small window, because setting up zlib's usual window takes longer than all the rest.
    packer = zlib.compressobj(1, zlib.DEFLATED, 13, 6)
    packed = packer.compress(b"".join(planes))
    return b"".join((length.to_bytes(_LENGTH_BYTES, "little"), masks, packed, packer.flush()))


def unpack(data: bytes, codes: str) -> list[array[int]]:
    """Return the columns that `pack` compressed, as arrays with these type codes.

    Raises ValueError for bytes that `pack` cannot have written.
    """
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    masks = data[_LENGTH_BYTES : _LENGTH_BYTES + len(codes)]
    if length > WORDS_MAX:
        raise ValueError(f"columns of {length} words")
    planes = _planes(data[_LENGTH_BYTES + len(codes) :], length * sum(map(int.bit_count, masks)))
    columns: list[array[int]] = []
    start = 0
    for code, mask in zip(codes, masks, strict=True):
        raw = bytearray(length * _WORD_BYTES)
        for byte in range(_WORD_BYTES):
            if mask >> byte & 1:
                raw[byte::_WORD_BYTES] = planes[start : start + length]
                start += length
        columns.append(from_little_endian(code, raw))
    return columns


def _planes(packed: bytes, size: int) -> bytes:
    """Return `size` decompressed bytes. Raise ValueError if there are fewer, or as soon as there are more."""
    unpacker = zlib.decompressobj()
    try:
        planes = unpacker.decompress(packed, size + 1)
    except zlib.error as error:
        raise ValueError(f"columns are not readable: {error}") from error
    if len(planes) != size or not unpacker.eof or unpacker.unused_data:
        raise ValueError(f"columns of {size} bytes end elsewhere")
    return planes


def pack_rising(columns: list[array[int]], rising: Sequence[int]) -> bytes:
    """Return columns compressed as by `pack`, the columns with the numbers `rising` as differences behind their bases.

    These columns rise mostly, so their differences are small. `columns` is changed.
    """
    bases = array("Q", (columns[number][0] for number in rising))
    for number in rising:
        columns[number] = differences(columns[number])
    return little_endian(bases) + pack(columns)


def unpack_rising(data: bytes, codes: str, rising: Sequence[int]) -> list[array[int]]:
    """Return the columns that `pack_rising` compressed. `codes` has the code of differences for a rising column.

    Raises ValueError for bytes that `pack_rising` cannot have written.
    """
    bases_bytes = _WORD_BYTES * len(rising)
    bases = from_little_endian("Q", data[:bases_bytes])
    columns = unpack(data[bases_bytes:], codes)
    for number, base in zip(rising, bases, strict=True):
        columns[number] = sums(base, columns[number])
    return columns


def differences(column: array[int]) -> array[int]:
    """Return the difference of each word to the previous word; the first is 0. All words must be less than 2**63."""
    if not any_of(column):
        return column
    return array("q", [0, *map(sub, column[1:], column)])


def sums(first: int, steps: array[int]) -> array[int]:
    """Undo `differences`: return words that begin with `first` and differ by `steps`. The first step is ignored.

    Raises ValueError if a sum does not fit into a word.
    """
    count = len(steps)
    steps = steps[1:]
    raw = steps.tobytes()
    try:
        if steps and raw == raw[:_WORD_BYTES] * len(steps):
            step = steps[0]
            return array("Q", range(first, first + step * count, step) if step else [first] * count)
        return array("Q", accumulate(steps, initial=first))
    except OverflowError as error:
        raise ValueError(f"columns with a word that is none: {error}") from error


def any_of(column: array[int]) -> bool:
    """Return whether a column has a word other than zero."""
    raw = column.tobytes()
    return raw != bytes(len(raw))


def never_falls(differences: array[int]) -> bool:
    """Return whether no difference is negative. A difference of 2**56 or more counts as negative."""
    signs = little_endian(differences)[_WORD_BYTES - 1 :: _WORD_BYTES]
    return signs == bytes(len(signs))


def little_endian(words: array[int]) -> bytes:
    if sys.byteorder == "big":
        words = words[:]
        words.byteswap()
    return words.tobytes()


def from_little_endian(code: str, raw: bytes | bytearray) -> array[int]:
    words = array(code)
    words.frombytes(raw)
    if sys.byteorder == "big":
        words.byteswap()
    return words
