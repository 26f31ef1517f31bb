"""Compares many pieces of octets at once, which most often begin with the same octets.

Invariant: the result is that of a comparison piece by piece; only the time differs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

COLUMN_ROWS_MIN, COLUMNS_MAX = 4, 512
"""Least pieces for each octet to compare, and most octets of a piece, with which a comparison octet by octet takes less
time."""


def begin_alike(pieces: Sequence[bytes], begin: bytes) -> bool:
    """Return whether all pieces are as long as the first, and begin with these octets."""
    size, count = len(pieces[0]), len(pieces)
    if list(map(len, pieces)).count(size) < count:
        return False
    if size <= COLUMNS_MAX and len(begin) * COLUMN_ROWS_MIN <= count:
        return has_columns(b"".join(pieces), size, enumerate(begin))
    return all([piece.startswith(begin) for piece in pieces])  # noqa: C419  # twice as fast as a generator


def has_columns(octets: bytes, width: int, columns: Iterable[tuple[int, int]]) -> bool:
    """Return whether all rows of `width` octets have these octets (second) at these positions (first).

    It takes 0.1 µs for a column, and 1 ns for each of its rows: less than a comparison row by row, if the rows are more
    than the columns.
    """
    rows = len(octets) // width
    for at, octet in columns:  # noqa: SIM110  # a generator would take longer
        if octets[at::width].count(octet) < rows:
            return False
    return True
