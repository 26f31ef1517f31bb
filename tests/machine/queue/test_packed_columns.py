"""Packed columns of words are unpacked unchanged; invalid data are refused cheaply."""

from __future__ import annotations

import tracemalloc
import zlib
from array import array

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qq.machine.queue import packed_columns

CODES = "qQ"
words = st.one_of(st.sampled_from([0, 0, 0, 1, 255, 256, 2**62]), st.integers(0, 2**63 - 1))
tables = st.lists(st.tuples(words, words), max_size=40).map(
    lambda rows: [array(code, [row[place] for row in rows]) for place, code in enumerate(CODES)]
)
PACKED = packed_columns.pack([array("q", range(300)), array("Q", [2**63, 5, 0] * 100)])
MEMORY_MAX = 8 * 2**20


@given(tables)
def test_packed_columns_are_unpacked_unchanged(table: list[array[int]]) -> None:
    assert packed_columns.unpack(packed_columns.pack(table), CODES) == table


@example(PACKED[:3] + b"\xff" + PACKED[4:])
@example(b"\xff\xff\xff\xff\0\0" + zlib.compress(b""))  # zeros, which compress to almost no octets
@example(b"\1\0\0\0\1\0" + zlib.compress(bytes(2**26)))
@given(
    st.one_of(
        st.integers(0, len(PACKED)).map(lambda end: PACKED[:end]),
        st.tuples(st.integers(0, len(PACKED) - 1), st.integers(0, 255)).map(
            lambda damage: PACKED[: damage[0]] + bytes([damage[1]]) + PACKED[damage[0] + 1 :]
        ),
        st.binary(max_size=40),
    )
)
def test_damaged_columns_are_refused_or_bounded(data: bytes) -> None:
    tracemalloc.start()
    try:
        table = packed_columns.unpack(data, CODES)
    except ValueError:
        table = []
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < MEMORY_MAX
    assert all(len(column) <= packed_columns.WORDS_MAX for column in table)


@pytest.mark.parametrize(("first", "steps"), [(2**64 - 1, [0, 1]), (0, [0, -1]), (5, [0, 1, -9])])
def test_sum_beyond_a_word_is_refused(first: int, steps: list[int]) -> None:
    with pytest.raises(ValueError, match="a word that is none"):
        packed_columns.sums(first, array("q", steps))
