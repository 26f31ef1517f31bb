from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.log.entry import (
    MalformedEntry,
    batches_of,
    compacted_parts,
    is_compacted,
    make_batch,
    make_compacted,
    make_entry,
)

parts = st.dictionaries(st.integers(0, 254), st.binary(max_size=20), max_size=5)


@given(parts)
def test_the_parts_of_a_compacted_entry_come_back(parts: dict[int, bytes]) -> None:
    entry = make_compacted(parts)
    assert is_compacted(entry)
    assert {ordinal: bytes(part) for ordinal, part in compacted_parts(entry).items()} == parts


def test_regular_and_compacted_entries_are_told_apart() -> None:
    entry = make_entry(7, [make_batch("n1", 1, 1, [b"payload"])])
    assert not is_compacted(entry)
    with pytest.raises(MalformedEntry, match="of type 0"):
        compacted_parts(entry)
    with pytest.raises(MalformedEntry, match="of type 192"):
        batches_of(make_compacted({0: b"a long enough part"}))


def test_entry_of_an_unknown_version_is_refused() -> None:
    entry = bytearray(make_compacted({}))
    entry[1] = 9
    with pytest.raises(MalformedEntry, match="version 9"):
        compacted_parts(entry)


@given(parts.filter(bool), st.data())
def test_a_compacted_entry_that_is_cut_is_refused(parts: dict[int, bytes], data: st.DataObject) -> None:
    entry = make_compacted(parts)
    length = data.draw(st.integers(0, len(entry) - 1))
    with pytest.raises(MalformedEntry):
        compacted_parts(entry[:length])
    with pytest.raises(MalformedEntry):
        compacted_parts(entry + b"x")


def test_two_parts_of_the_same_batch_are_refused() -> None:
    entry = make_compacted({1: b"a", 2: b"a"})
    with pytest.raises(MalformedEntry, match="2 parts"):
        compacted_parts(entry.replace(b"\x02\x01\0\0\0a", b"\x01\x01\0\0\0a"))
