"""Columns of words, packed: how runs and shelves wait, and how they are dumped.

Invariant: equal columns give equal bytes where zlib is the same. A column of zeros costs a byte, and next to no time.
What is read is not believed: no more memory is taken than the longest columns need.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from itertools import accumulate
from operator import sub

WORDS_MAX = 2**16
"""How many words a column may have: many times as many as are packed together anywhere."""

_WORD_BYTES = 8
_LENGTH_BYTES = 4


def pack(columns: list[array[int]]) -> bytes:
    """Compress columns. Sorted into first, second ... bytes of the words, they are mostly repetitions."""
    length = len(columns[0])
    zeros = bytes(length)
    masks = bytearray()
    planes: list[bytes] = []
    for column in columns:
        raw = little_endian(column)
        mask = 0
        # Most columns are zero but for their lowest byte or two: found out at once, before they are sorted.
        if raw != bytes(len(raw)):
            for byte in range(_WORD_BYTES):
                plane = raw[byte::_WORD_BYTES]
                if plane != zeros:
                    mask |= 1 << byte
                    planes.append(plane)
        masks.append(mask)
    # A small window: zlib's usual one takes longer to set up than all the rest.
    packer = zlib.compressobj(1, zlib.DEFLATED, 13, 6)
    packed = packer.compress(b"".join(planes))
    return b"".join((length.to_bytes(_LENGTH_BYTES, "little"), masks, packed, packer.flush()))


def unpack(data: bytes, codes: str) -> list[array[int]]:
    """Give what `pack` got, as arrays with these type codes. Raises ValueError if the bytes are none of its."""
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
    """So many bytes, which were compressed. Raises ValueError, as soon as there are more."""
    unpacker = zlib.decompressobj()
    try:
        planes = unpacker.decompress(packed, size + 1)
    except zlib.error as error:
        raise ValueError(f"columns are not readable: {error}") from error
    if len(planes) != size or not unpacker.eof or unpacker.unused_data:
        raise ValueError(f"columns of {size} bytes end elsewhere")
    return planes


def differences(column: array[int]) -> array[int]:
    """The difference from each word to the next one, which may be less; the first is 0. All are less than 2**63."""
    if not any_of(column):
        return column
    return array("q", [0, *map(sub, column[1:], column)])


def sums(first: int, steps: array[int]) -> array[int]:
    """Undo `differences`: the words that begin with `first` and are so far apart. The first step is not read.

    Raises ValueError if one would be none.
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
    """Whether a column has anything but zeros."""
    raw = column.tobytes()
    return raw != bytes(len(raw))


def never_falls(differences: array[int]) -> bool:
    """Whether no difference is negative. One of 2**56 or more is taken for negative, too."""
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
