"""Compaction of old segments."""

from __future__ import annotations

import errno
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos.sim.world.disk import SimulatedDisk
from cluster.log.compaction import (
    Candidate,
    CompactionSource,
    Measured,
    SegmentLimits,
    choose,
    compact_entry,
    measure,
    rewrite,
)
from cluster.log.sealed_segment import records, verify, write_sparse
from cluster.log.segment import CorruptJournal, Segment
from tests.cluster.toy_queue import FrozenToy, Place, compact, entry_of, message_at

if TYPE_CHECKING:
    from collections.abc import Sequence

IDENTITY = b"cluster/one/0"
KIB = 1024
LIMITS = SegmentLimits(segment_bytes=64 * KIB, segment_entries=1000)


# Entries


def test_an_entry_is_reduced_to_some_messages_of_some_batches() -> None:
    entry = entry_of([[b"a", b"b", b"c"], [b"d"], [b"e", b"f"]])
    kept = compact_entry(entry, {0: [(0, 1), (2, 1)], 2: [(1, 1)]}, compact)
    assert kept is not None
    assert [message_at(kept, 0, 0), message_at(kept, 0, 2), message_at(kept, 2, 1)] == [b"a", b"c", b"f"]
    for batch, number in ((0, 1), (1, 0), (2, 0)):
        with pytest.raises(KeyError):
            message_at(kept, batch, number)


def test_compacted_entry_can_be_compacted_again() -> None:
    entry = entry_of([[b"a", b"b", b"c"], [b"d"]])
    kept = compact_entry(entry, {0: [(1, 2)], 1: [(0, 1)]}, compact)
    assert kept is not None
    again = compact_entry(kept, {0: [(2, 1)]}, compact)
    assert again is not None
    assert message_at(again, 0, 2) == b"c"
    assert len(again) < len(kept)


def test_messages_dropped_earlier_may_be_requested_again() -> None:
    kept = compact_entry(entry_of([[b"a", b"b"], [b"c"]]), {0: [(1, 1)]}, compact)
    assert kept is not None
    again = compact_entry(kept, {0: [(0, 2)], 1: [(0, 1)]}, compact)
    assert again == kept
    assert compact_entry(kept, {1: [(0, 1)]}, compact) is None


# Choosing


def candidate(
    kept_kib: int | None, file_kib: int, *, sparse: bool = False, entries: int = 10, fell: bool = False
) -> Candidate:
    segment = Segment.sealed_file("", 1, 2, file_kib * KIB, sparse=sparse)
    measured = None if kept_kib is None else Measured(100, entries, kept_kib * KIB, 0.0)
    return Candidate(segment, 90 if fell else 91, measured)


def ascending(*candidates: Candidate, length: int = 100) -> list[Candidate]:
    return [
        known._replace(
            segment=Segment.sealed_file(
                str(number),
                number * length,
                (number + 1) * length,
                known.segment.file_bytes,
                sparse=known.segment.sparse,
            )
        )
        for number, known in enumerate(candidates)
    ]


def chosen(*runs: Sequence[Candidate]) -> list[str]:
    return [known.segment.name for known in choose(runs, LIMITS)]


def test_no_segment_is_chosen_of_an_empty_list() -> None:
    assert chosen() == []
    assert chosen([]) == []


def test_a_segment_that_is_half_dead_is_worth_rewriting() -> None:
    assert chosen(ascending(candidate(33, 64))) == []
    assert chosen(ascending(candidate(32, 64))) == ["0"]


def test_unmeasured_or_changed_segment_is_not_chosen() -> None:
    assert chosen(ascending(candidate(None, 64))) == []
    assert chosen(ascending(candidate(1, 64, fell=True))) == []


def test_neighbours_are_joined_as_long_as_the_result_fits() -> None:
    assert chosen(ascending(*[candidate(20, 64)] * 5)) == ["0", "1", "2"]


def test_mostly_live_segment_joins_if_the_sum_is_mostly_dead() -> None:
    assert chosen(ascending(candidate(20, 30), candidate(5, 64))) == ["0", "1"]
    assert chosen(ascending(candidate(60, 64), candidate(5, 64))) == ["1"]


def test_only_neighbours_are_joined() -> None:
    first, second, third = ascending(candidate(5, 64), candidate(None, 64), candidate(5, 64))
    assert chosen([first, second, third]) == ["0"]
    assert chosen([first], [third]) == ["0"]


def test_no_segment_gets_too_many_entries() -> None:
    assert chosen(ascending(*[candidate(5, 64, entries=400)] * 3)) == ["0", "1"]


def test_single_segment_may_exceed_the_limit_of_entries() -> None:
    assert chosen(ascending(candidate(100, 400, entries=5000), candidate(5, 64))) == ["0"]


def test_no_segment_gets_too_wide_a_range() -> None:
    assert chosen(ascending(*[candidate(5, 64)] * 3, length=2**31 - 1)) == ["0", "1"]


def test_many_tiny_segments_in_a_row_are_joined() -> None:
    tiny = candidate(4, 4, sparse=True)
    assert chosen(ascending(*[tiny] * 8)) == []
    assert chosen(ascending(*[tiny] * 9)) == [str(number) for number in range(9)]
    assert chosen(ascending(*[tiny] * 8, candidate(5, 5, sparse=True))) == []
    assert chosen(ascending(*[tiny] * 30)) == [str(number) for number in range(16)]


# Files


def make_disk(seed: int = 1) -> SimulatedDisk:
    disk = SimulatedDisk(Random(seed), lambda _delay_s, callback: callback())
    disk.make_directory("log")
    return disk


def source_of(disk: SimulatedDisk) -> CompactionSource:
    return CompactionSource(disk, "log", IDENTITY, compact)


def segment_of(disk: SimulatedDisk, name: str, entries: dict[int, bytes], first: int, end: int) -> Segment:
    rows = [(payload, index, 1) for index, payload in entries.items()]
    size = write_sparse(disk, f"log/{name}", IDENTITY, first, end, rows)
    return Segment.sealed_file(name, first, end, size, sparse=True)


def messages(index: int, count: int, size: int = 100) -> list[bytes]:
    return [b"%d-%d " % (index, number) + bytes(size) for number in range(count)]


def full_segment(disk: SimulatedDisk, name: str, first: int, end: int, size: int = 100) -> Segment:
    entries = {index: entry_of([messages(index, 5, size)] * 2) for index in range(first, end)}
    return segment_of(disk, name, entries, first, end)


def test_measurement_returns_the_size_after_rewriting() -> None:
    disk = make_disk()
    segment = full_segment(disk, "full", 1, 50)
    frozen = FrozenToy([(7, 1, 2), (7, 1, 3), (9, 0, 0), (99, 0, 0)])
    live = frozen.live(1, 50)
    measured = measure(source_of(disk), segment, live, 3, 7.0)
    rewritten = rewrite(source_of(disk), [segment], live, "new")
    assert rewritten is not None
    assert (measured.references, measured.entries, rewritten.entries) == (3, 2, 2)
    assert 0 < rewritten.segment.file_bytes - measured.size < 150  # header and trailer of the file
    assert rewritten.segment.file_bytes == disk.files()["log/new"]


def test_mostly_live_segment_is_not_measured_to_the_end() -> None:
    disk = make_disk()
    segment = full_segment(disk, "full", 1, 50, size=10_000)
    places = [(index, batch, number) for index in range(1, 50) for batch in (0, 1) for number in range(5)]
    disk.flip_bit("log/full", 8 * segment.file_bytes * 4 // 5)  # behind the last read
    measured = measure(source_of(disk), segment, FrozenToy(places).live(1, 50), 490, 7.0)
    assert measured == Measured(490, 49, segment.file_bytes, 7.0)


def test_several_segments_become_a_single_sparse_segment() -> None:
    disk = make_disk()
    segments = [full_segment(disk, f"at-{first}", first, first + 10) for first in (1, 11, 41)]
    places = [(3, 0, 1), (3, 1, 4), (10, 0, 0), (45, 1, 1)]
    rewritten = rewrite(source_of(disk), segments, FrozenToy(places).live(1, 51), "new")
    assert rewritten is not None
    segment = rewritten.segment
    assert (segment.first, segment.end, segment.sparse, segment.sealed) == (1, 51, True, True)
    verify(disk, "log/new", IDENTITY)
    found = {index: entry for index, _, entry in records(disk, "log", IDENTITY, segment)}
    assert list(found) == [3, 10, 45]
    for index, batch, number in places:
        assert message_at(found[index], batch, number) == messages(index, 5)[number]


def test_rewrite_without_live_messages_writes_no_file() -> None:
    disk = make_disk()
    segment = full_segment(disk, "full", 1, 10)
    assert rewrite(source_of(disk), [segment], FrozenToy([(20, 0, 0)]).live(1, 10), "new") is None
    assert list(disk.files()) == ["log/full"]


def test_rewrite_on_a_full_disk_leaves_no_file_behind() -> None:
    disk = make_disk()
    segment = full_segment(disk, "full", 1, 50)
    disk.capacity_bytes = disk.used_bytes() + 1000
    live = FrozenToy([(index, 0, 1) for index in range(1, 50)]).live(1, 50)
    with pytest.raises(OSError, match="No space") as failure:
        rewrite(source_of(disk), [segment], live, "new")
    assert failure.value.errno == errno.ENOSPC
    assert list(disk.files()) == ["log/full"]


def test_damage_is_not_copied() -> None:
    disk = make_disk()
    segment = full_segment(disk, "full", 1, 50)
    disk.flip_bit("log/full", 8 * segment.file_bytes // 2)
    live = FrozenToy([(1, 0, 0)]).live(1, 50)
    with pytest.raises(CorruptJournal, match="log/full"):
        rewrite(source_of(disk), [segment], live, "new")
    assert list(disk.files()) == ["log/full"]


PLACES = st.frozensets(st.tuples(st.integers(1, 12), st.integers(0, 1), st.integers(0, 4)))


@given(st.lists(PLACES, min_size=1, max_size=4))
@settings(deadline=None)
def test_live_messages_can_be_read_after_each_rewriting(states: list[frozenset[Place]]) -> None:
    """Each rewriting has fewer live messages than the previous rewriting; the first joins two segments."""
    disk = make_disk()
    segments = [full_segment(disk, "one", 1, 6), full_segment(disk, "two", 8, 13)]
    held = {index: True for segment in segments for index in range(segment.first, segment.end)}
    live = sorted(place for place in states[0] if place[0] in held)
    for round_number, state in enumerate(states):
        live = [place for place in live if place in state]
        rewritten = rewrite(source_of(disk), segments, FrozenToy(live).live(1, 13), f"round-{round_number}")
        if rewritten is None:
            assert not live
            return
        segments = [rewritten.segment]
        found = {index: entry for index, _, entry in records(disk, "log", IDENTITY, rewritten.segment)}
        assert sorted(found) == sorted({index for index, _, _ in live})
        for index, batch, number in live:
            assert message_at(found[index], batch, number) == messages(index, 5)[number]
