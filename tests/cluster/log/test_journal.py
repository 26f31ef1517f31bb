"""The log as pysyncobj and the engine use it, on the simulated disk."""

from __future__ import annotations

import errno
import os
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.transport import Transport

from chaos.sim.world.disk import ProcessEnds, SimulatedDisk, SimulatedFile
from cluster.log.hardstate import HardStateFile
from cluster.log.journal import SLICE_ENTRIES, JournalMisuseError, JournalSizes, SegmentedJournal
from cluster.log.manifest import MANIFEST_NAME, Manifest, is_segment_name, segment_name
from cluster.log.owned_directory import OwnedDirectory
from cluster.log.sealed_segment import records, write_sparse
from cluster.log.segment import (
    FILE_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    CorruptJournal,
    EntryMoved,
    EntryNotFound,
    ForeignJournal,
    Segment,
    UnknownFormat,
    adopt_header,
)
from cluster.log.segment_reader import load_log
from cluster.log.segment_writer import SegmentWriter, Store
from cluster.log.sync_mark import MARK_NAME
from cluster.log.term_runs import TermRuns

IDENTITY = b"cluster/0"
KIB = 1024
MARK = f"log/{MARK_NAME}"
RECORD = RECORD_HEADER_BYTES + 20
"""Bytes of a record as `Node.add` makes them."""


def os_error(code: int) -> None:
    raise OSError(code, os.strerror(code))


class Agenda:
    """Scheduled callbacks in order, run by the test."""

    def __init__(self) -> None:
        self._due: deque[Callable[[], None]] = deque()

    def schedule(self, _delay_s: float, callback: Callable[[], None]) -> None:
        self._due.append(callback)

    def step(self) -> None:
        if self._due:
            self._due.popleft()()

    def run(self) -> None:
        while self._due:
            self.step()


class Node:
    """A disk and the journals opened on it."""

    def __init__(self, seed: int = 0, **options: int) -> None:
        self.agenda = Agenda()
        self.disk = SimulatedDisk(Random(seed), self.agenda.schedule)
        self.options: dict[str, Any] = {"segment_bytes": 400, **options}
        self.failures: list[Exception] = []
        self.journal = self.open()

    def open(self, identity: bytes = IDENTITY, *, writes_lost: bool = True) -> SegmentedJournal:
        hard_state = HardStateFile(OwnedDirectory(self.disk, "", identity))
        hard_state.load()
        self.journal = SegmentedJournal(
            OwnedDirectory(self.disk, "log", identity),
            hard_state,
            JournalSizes(**self.options),
            on_failure=self.failures.append,
            writes_lost=writes_lost,
        )
        return self.journal

    def add(self, count: int, term: int = 1, size: int = 20) -> None:
        if self.journal.getCurrentTerm() < term:
            self.journal.setCurrentTerm(term, None)
        for index in range(self.journal.last_index + 1, self.journal.last_index + 1 + count):
            self.journal.add(payload_of(index, term, size), index, term)

    def sync(self) -> None:
        self.journal.start_sync(lambda: None)
        self.agenda.run()

    def files(self) -> list[str]:
        return [name for name in self.disk.list_directory("log") if is_segment_name(name)]

    def compact(self, positions: slice, keep: Callable[[int], bool]) -> None:
        """Replace these segments with a sparse segment of the kept entries, or with no segment."""
        old = self.journal.segments()[positions]
        kept = [
            (payload, index, term)
            for segment in old
            for index, term, payload in records(self.disk, "log", IDENTITY, segment)
            if keep(index)
        ]
        new = None
        if kept:
            first, end = old[0].first, old[-1].end
            name = self.journal.new_name(first, sparse=True)
            size = write_sparse(self.disk, f"log/{name}", IDENTITY, first, end, kept)
            new = Segment.sealed_file(name, first, end, size, sparse=True)
        self.journal.replace(old, new)

    def take(self, given: Node) -> None:
        """Adopt the sealed segments of a second node."""
        segments = [segment for segment in given.journal.segments() if segment.sealed]
        received = [self.receive(given, segment) for segment in segments]
        self.journal.adopt(received, self.journal.runs_of(received))

    def receive(self, given: Node, segment: Segment) -> Segment:
        name = self.journal.new_name(segment.first, sparse=segment.sparse)
        data = given.disk.read_file(f"log/{segment.name}")
        self.disk.replace_file(f"log/{name}", adopt_header(data, IDENTITY))
        return Segment.sealed_file(
            name, segment.first, segment.end, segment.file_bytes, sparse=segment.sparse
        )


def payload_of(index: int, term: int, size: int = 20) -> bytes:
    return f"{index}:{term}:".encode().ljust(size, b".")


def contents(journal: SegmentedJournal) -> list[tuple[bytes, int, int]]:
    return journal.entries(journal.first_index, journal.last_index + 1)


def log_of(first: int, last: int, term: int = 1) -> list[tuple[bytes, int, int]]:
    return [(payload_of(index, term), index, term) for index in range(first, last + 1)]


def held(journal: SegmentedJournal) -> dict[int, bytes]:
    """All that can be read, below the log, too."""
    found: dict[int, bytes] = {}
    for segment in journal.segments():
        indexes = range(segment.first, segment.end)
        if segment.sparse:
            found.update(read_singly(journal, indexes))
        else:
            found.update(zip(indexes, journal.read_job(indexes)(), strict=True))
    return found


def read_singly(journal: SegmentedJournal, indexes: range) -> Iterator[tuple[int, bytes]]:
    for index in indexes:
        with suppress(EntryNotFound):
            yield index, journal.read(index)


# The interface for pysyncobj


def test_empty_log_takes_a_first_entry_of_any_index() -> None:
    node = Node()
    assert len(node.journal) == 0
    with pytest.raises(IndexError):
        node.journal[-1]
    for index in (0, 1, 2):
        with pytest.raises(EntryNotFound):
            node.journal.read(index)
    node.journal.add(b"snapshot", 41, 3)
    assert (node.journal.first_index, node.journal.last_index, len(node.journal)) == (41, 41, 1)


def test_pysyncobj_starts_on_it_and_adds_the_first_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    monkeypatch.setattr("pysyncobj.syncobj.createJournal", lambda _path: node.journal)  # pyright: ignore[reportUnknownLambdaType]
    monkeypatch.setattr(
        "pysyncobj.syncobj.monotonicTime", time.monotonic
    )  # the engine may have its own in place
    monkeypatch.setattr("pysyncobj.syncobj.random", random)
    conf = SyncObjConf(journalFile=node.journal, autoTick=False)
    alone = SyncObj("a:1", [], conf, transport=Transport(None, None, set()))
    assert tuple(node.journal[-1]) == (b"\x01", 1, 0)
    alone.destroy()


def test_entries_are_found_from_both_ends_also_after_a_restart() -> None:
    node = Node()
    node.add(30)
    node.add(5, term=2)
    node.sync()
    for journal in (node.journal, node.open()):
        assert [journal[at][1] for at in (0, 7, -1, -35)] == [1, 8, 35, 1]
        assert (journal[-1][2], journal[29][2], journal[30][2]) == (2, 1, 2)
        assert journal[9][0] == payload_of(10, 1)
        assert tuple(journal[9]) == (payload_of(10, 1), 10, 1)
        assert journal[9] == (payload_of(10, 1), 10, 1)
        assert journal[9] != (payload_of(10, 1), 10, 2)
        with pytest.raises(IndexError):
            journal[35]


def test_a_slice_is_a_view_of_all_that_it_is_to_hold() -> None:
    node = Node(slice_bytes=10 * KIB, segment_bytes=25 * KIB)
    node.add(100, size=KIB)
    part = node.journal[20:]
    assert [entry[1] for entry in part] == list(range(21, 101))
    assert (part[0][1], part[-1][1]) == (21, 100)
    assert [entry[1] for entry in part[:3]] == [21, 22, 23]
    assert [entry[1] for entry in reversed(part[1:3])] == [23, 22]
    assert not node.journal[100:]


def test_slice_of_entries_is_bounded_by_bytes() -> None:
    node = Node(slice_bytes=10 * KIB, segment_bytes=25 * KIB)
    node.add(100, size=KIB)
    assert node.journal.slice_end(21, 101) == 21 + 10 * KIB // (KIB + RECORD_HEADER_BYTES)
    assert node.journal.slice_end(21, 23) == 23


def test_slice_of_entries_is_bounded_by_their_number() -> None:
    node = Node(segment_bytes=25 * KIB)
    node.add(SLICE_ENTRIES + 100, size=20)
    ends = [node.journal.slice_end(index, node.journal.last_index + 1) for index in (1, 51, 201)]
    assert ends == [1 + SLICE_ENTRIES, 51 + SLICE_ENTRIES, 1 + SLICE_ENTRIES + 100]


def test_slice_of_entries_goes_on_in_the_next_segment() -> None:
    node = Node(slice_bytes=8 * 60, segment_bytes=200)
    node.add(50)
    assert [node.journal.slice_end(index, 51) - index for index in range(1, 6)] == [8, 8, 8, 8, 8]


def test_a_large_entry_is_sent_alone() -> None:
    node = Node(slice_bytes=3 * 60)
    for index, size in enumerate((20, 20, 5000, 5000, 20, 20), start=1):
        node.journal.add(bytes(size), index, 1)
    assert [node.journal.slice_end(index, 7) for index in range(1, 7)] == [3, 3, 4, 5, 7, 7]


def test_entries_that_left_the_cache_are_read() -> None:
    node = Node(cache_bytes=500)
    node.add(60)
    node.sync()
    assert node.journal.payload(1) is None
    assert node.journal.payload(60) == payload_of(60, 1)
    assert contents(node.journal) == [(payload_of(index, 1), index, 1) for index in range(1, 61)]


def test_the_last_entry_stays_in_memory_however_large_it_is() -> None:
    node = Node(cache_bytes=500)
    node.add(1, size=5000)
    node.sync()
    assert node.journal.payload(1) == payload_of(1, 1, 5000)
    node.add(1)
    node.sync()
    assert node.journal.payload(1) is None


def test_entry_must_follow_the_last_entry() -> None:
    node = Node()
    node.add(3)
    for index in (3, 5):
        with pytest.raises(JournalMisuseError):
            node.journal.add(b"x", index, 1)
    assert node.journal.last_index == 3


def test_deletion_from_the_end_equals_that_of_a_list() -> None:
    for position in range(1, 41):
        node = Node()
        node.add(20)
        node.add(20, term=2)
        node.sync()
        expected = contents(node.journal)[:position]
        node.journal.deleteEntriesFrom(position)
        node.add(9, term=3)
        expected += log_of(position + 1, position + 9, term=3)
        assert contents(node.journal) == expected
        assert node.journal.last_term == 3
        node.sync()
        assert contents(node.open()) == expected


def test_the_first_entry_cannot_be_deleted() -> None:
    node = Node()
    node.add(3)
    for position in (0, -1):
        with pytest.raises(JournalMisuseError):
            node.journal.deleteEntriesFrom(position)
    assert node.journal.last_index == 3


def test_keep_tail_protects_entries_without_conflict() -> None:
    node = Node()
    node.add(5)
    node.journal.keep_tail = True
    node.journal.deleteEntriesFrom(2)
    assert node.journal.last_index == 5
    node.journal.keep_tail = False
    node.journal.deleteEntriesFrom(2)
    assert node.journal.last_index == 2


# Term and vote


def test_term_and_vote_are_durable_at_once() -> None:
    node = Node()
    for term, vote in ((7, "b"), (8, None)):
        node.journal.setCurrentTerm(term, vote)
        node.disk.crash(power_loss=True)
        assert (node.open().getCurrentTerm(), node.journal.getVotedForNodeId()) == (term, vote)


def test_a_term_that_cannot_be_stored_is_not_taken() -> None:
    node = Node()
    node.disk.full = True
    with pytest.raises(OSError, match="No space"):
        node.journal.setCurrentTerm(1, "a")
    assert node.journal.getCurrentTerm() == 0
    assert len(node.failures) == 1


def test_the_commit_index_is_kept_in_memory_only() -> None:
    node = Node()
    assert node.journal.getRaftCommitIndex() == 1
    node.journal.setRaftCommitIndex(5)
    assert node.journal.getRaftCommitIndex() == 5


# Group commit


def test_no_entry_counts_as_synced_before_the_disk_confirms() -> None:
    node = Node()
    node.add(3)
    done: list[bool] = []
    assert node.journal.dirty
    node.journal.start_sync(lambda: done.append(True))
    node.add(2)
    assert (node.journal.synced, node.journal.synced_index, node.journal.sync_in_flight) == (0, 0, True)
    with pytest.raises(JournalMisuseError):
        node.journal.start_sync(lambda: None)
    node.agenda.run()
    assert done
    assert (node.journal.synced, node.journal.synced_index, node.journal.dirty) == (3, 3, True)
    node.sync()
    assert (node.journal.synced_index, node.journal.dirty) == (5, False)


def test_first_store_is_kept_first_when_a_later_replaces_it() -> None:
    node = Node()
    node.sync()
    order: list[str] = []
    node.journal.store_beside(lambda: order.append("superseded"), first=True)
    node.add(1)
    node.journal.store_beside(lambda: order.append("stored"), first=False)
    assert isinstance(node.journal._operations[0], Store)
    node.sync()
    assert order == ["stored"]


def test_entries_waiting_for_the_disk_can_be_read() -> None:
    node = Node(cache_bytes=0)
    node.add(3)
    node.journal.start_sync(lambda: None)
    node.add(3)
    assert node.journal.read_job(range(1, 7))() == [payload_of(index, 1) for index in range(1, 7)]
    node.agenda.run()
    assert node.journal.payload(3) is None
    assert node.journal.read(3) == payload_of(3, 1)


def test_sync_in_flight_does_not_vouch_for_replaced_entries() -> None:
    node = Node()
    node.add(4)
    node.sync()
    node.add(4)
    node.journal.start_sync(lambda: None)
    node.journal.deleteEntriesFrom(5)
    node.add(6, term=2)
    node.agenda.run()
    assert node.journal.synced_index == 5
    node.disk.crash(power_loss=True)
    assert contents(node.open())[:5] == [(payload_of(index, 1), index, 1) for index in range(1, 6)]


def test_truncation_lowers_the_synced_index_at_once() -> None:
    node = Node()
    node.add(20)
    node.sync()
    node.journal.start_sync(lambda: None)
    node.journal.deleteEntriesFrom(2)
    assert node.journal.synced_index == 2
    node.add(1, term=2)
    node.agenda.run()
    assert node.journal.synced_index == 2
    node.sync()
    assert node.journal.synced_index == 3


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_no_entry_is_synced_after_a_failed_sync(code: int) -> None:
    node = Node()
    node.add(3)
    node.sync()
    node.add(3)
    node.disk.fail_next_sync(code)
    done: list[bool] = []
    node.journal.start_sync(lambda: done.append(True))
    node.agenda.run()
    assert [type(error) for error in node.failures] == [OSError]
    with pytest.raises(JournalMisuseError):
        node.journal.start_sync(lambda: done.append(True))
    assert not done
    assert (node.journal.synced_index, node.journal.sync_in_flight) == (3, True)
    node.disk.crash(power_loss=False)
    assert contents(node.open())[:3] == [(payload_of(index, 1), index, 1) for index in range(1, 4)]


def test_sync_now_makes_entries_durable_and_raises_disk_errors() -> None:
    node = Node()
    node.add(3)
    node.journal.sync_now()
    node.disk.crash(power_loss=True)
    assert len(node.open()) == 3
    node.add(1)
    node.disk.fail_next_sync(errno.EIO)
    with pytest.raises(OSError):
        node.journal.sync_now()
    assert not node.failures
    with pytest.raises(JournalMisuseError, match="the disk has failed"):
        node.journal.sync_now()


# Reading while writing


def test_read_job_reports_an_entry_deleted_since() -> None:
    node = Node(cache_bytes=0)
    node.add(30)
    node.sync()
    from_the_tail = node.journal.read_job([29, 30])
    from_the_start = node.journal.read_job([1, 2])
    node.journal.deleteEntriesFrom(27)
    node.add(2, term=2)
    node.compact(slice(2), lambda _index: False)
    node.sync()
    for job in (from_the_tail, from_the_start):
        with pytest.raises(EntryMoved):
            job()
    for index in (0, 1, 30, 31):
        with pytest.raises(EntryNotFound):
            node.journal.read_job([index])


def test_read_job_finds_its_entry_in_the_rewritten_segment() -> None:
    node = Node(cache_bytes=0)
    node.add(30)
    node.sync()
    job = node.journal.read_job([2])
    node.compact(slice(2), lambda index: index == 2)
    assert job() == [payload_of(2, 1)]
    node.sync()
    with pytest.raises(EntryMoved):
        job()
    assert node.journal.read_job([2])() == [payload_of(2, 1)]
    deleted = node.journal.read_job([3])
    with pytest.raises(EntryNotFound, match="no entry 3 in") as raised:
        deleted()
    assert not isinstance(raised.value, EntryMoved)  # a retry is useless


def test_samples_job_reads_small_entries_of_all_dense_segments() -> None:
    node = Node(cache_bytes=0)
    node.add(20)
    node.add(1, size=200)
    node.add(20)
    node.sync()
    assert [segment.first for segment in node.journal.segments()][:3] == [1, 7, 13]
    assert not node.journal.segments()[-1].sealed
    every = node.journal.samples_job(1000, RECORD, bytes)()
    assert every == [(index, payload_of(index, 1)) for index in range(1, 42) if index != 21]
    some = [index for index, _ in node.journal.samples_job(3, RECORD, len)()]
    assert 1 <= len(some) <= 4
    assert some[0] == 1
    node.compact(slice(2), lambda index: index == 2)
    node.sync()
    deleted = node.journal.samples_job(1000, RECORD, bytes)
    assert [index for index, _ in deleted()][:2] == [13, 14]
    node.compact(slice(2), lambda _index: False)
    node.sync()
    assert next(iter(deleted()))[0] > 14


class _Shrinking:
    """A file that is empty after some reads; its size remains that at its opening."""

    def __init__(self, file: SimulatedFile, reads: int) -> None:
        self._file = file
        self._reads = reads
        self.size = file.size
        self.close = file.close

    def pread(self, offset: int, length: int) -> bytes:
        if not self._reads:
            self._file.truncate(0)
        self._reads -= 1
        return self._file.pread(offset, length)


@pytest.mark.parametrize("reads", range(3))
def test_read_job_reports_a_file_that_is_being_removed(monkeypatch: pytest.MonkeyPatch, reads: int) -> None:
    node = Node(cache_bytes=0)
    node.add(30)
    node.sync()
    node.open()  # no index of a sealed segment is in memory
    job = node.journal.read_job([2])
    node.compact(slice(2), lambda _index: False)
    open_file = node.disk.open
    monkeypatch.setattr(node.disk, "open", lambda path: _Shrinking(open_file(path), reads))
    with pytest.raises(EntryMoved):
        job()


def test_reads_return_the_requested_order_from_cache_and_disk() -> None:
    node = Node(cache_bytes=1000)
    node.add(30)
    node.sync()
    wanted = [30, 3, 4, 5, 29, 12, 3]
    assert node.journal.read_job(wanted)() == [payload_of(index, 1) for index in wanted]


def test_a_read_job_ends_when_it_has_enough() -> None:
    node = Node(cache_bytes=1000)
    node.add(30)
    node.sync()
    size = len(payload_of(30, 1))
    wanted = [30, 29, 3, 30, 30]
    for bytes_max, count in ((0, 1), (1, 1), (size, 1), (size + 1, 2), (2 * size + 1, 3), (10**9, 5)):
        found = node.journal.read_job(wanted, bytes_max)()
        assert found == [payload_of(index, 1) for index in wanted][:count]


def test_entries_of_a_segment_that_is_being_sealed_can_be_read() -> None:
    node = Node(cache_bytes=0)
    node.add(4)
    node.sync()
    node.add(4)
    before = node.journal.read_job([1, 2])
    node.journal.start_sync(lambda: None)
    assert [segment.sealed for segment in node.journal.segments()] == [False, False]
    during = node.journal.read_job([1, 2])
    assert before() == during() == [payload_of(1, 1), payload_of(2, 1)]
    node.agenda.run()
    assert [segment.sealed for segment in node.journal.segments()] == [True, False]
    for job in (before, during, node.journal.read_job([1, 2])):
        assert job() == [payload_of(1, 1), payload_of(2, 1)]


@pytest.mark.parametrize("sealed", [False, True])
def test_damage_found_while_reading_names_file_and_offset(sealed: bool) -> None:
    node = Node(cache_bytes=0)
    node.add(3)
    if sealed:
        node.journal.seal()
    node.sync()
    path = f"log/{segment_name(1, 1)}"
    node.disk.flip_bit(path, (FILE_HEADER_BYTES + RECORD_HEADER_BYTES) * 8)
    with pytest.raises(CorruptJournal, match=rf"{path}: offset \d+: wrong checksum of entry 1"):
        node.journal.read(1)
    node.disk.fail_reads(path)
    with pytest.raises(CorruptJournal, match=rf"{path}: offset \d+: cannot be read: Input/output error"):
        node.journal.read(2)


def test_old_segments_need_no_memory_and_are_not_read_at_a_start() -> None:
    node = Node(cache_bytes=0)
    node.add(200)
    node.sync()
    sealed = [segment.name for segment in node.journal.segments() if segment.sealed]
    assert len(sealed) > 20
    for name in sealed:
        node.disk.fail_reads(f"log/{name}")
    journal = node.open()
    assert (journal.first_index, journal.last_index, len(journal._indexes._loaded)) == (1, 200, 0)
    assert journal.term_at(1) == 1
    node.disk.heal_reads()
    assert contents(journal) == log_of(1, 200)
    assert len(journal._indexes._loaded) == 16


def test_segment_that_was_cut_and_sealed_again_has_a_new_index() -> None:
    node = Node(cache_bytes=0, segment_bytes=10_000, segment_entries=10)
    node.add(25)
    node.sync()
    assert len(contents(node.journal)) == 25
    name = node.journal.segments()[1].name
    for term in (2, 3):
        node.journal.deleteEntriesFrom(15)
        node.add(2, term, size=31)
        node.add(2, term, size=9)
        node.add(6, term)
        node.sync()
        assert node.journal.segments()[1].name == name
        sizes = {16: 31, 17: 31, 18: 9, 19: 9, 20: 20}
        expected = [payload_of(index, term, size) for index, size in sizes.items()]
        assert [node.journal.read(index) for index in sizes] == expected
        assert node.journal.read(15) == payload_of(15, 1)


# Segments


def test_a_segment_ends_at_its_bytes_or_its_entries() -> None:
    node = Node(segment_bytes=10_000, segment_entries=7)
    node.add(20)
    node.sync()
    assert [(segment.first, segment.end) for segment in node.journal.segments()] == [
        (1, 8),
        (8, 15),
        (15, 21),
    ]
    node.open()
    node.add(10)
    assert [(segment.first, segment.end) for segment in node.journal.segments()][2:] == [
        (15, 22),
        (22, 29),
        (29, 31),
    ]
    node = Node(segment_bytes=FILE_HEADER_BYTES + 2 * RECORD)
    node.add(5)
    assert [(segment.first, segment.end) for segment in node.journal.segments()] == [(1, 3), (3, 5), (5, 6)]


@pytest.mark.parametrize("options", [{"segment_bytes": 0}, {"segment_bytes": 2**32}, {"segment_entries": 0}])
def test_limits_that_make_no_sense_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Node(**options)


def test_files_have_the_sizes_of_their_segments() -> None:
    node = Node()
    node.add(20)
    node.add(20, term=2)
    node.sync()
    segments = node.journal.segments()
    sizes = {segment.name: segment.file_bytes for segment in segments}
    assert sizes == {name: len(node.disk.read_file(f"log/{name}")) for name in node.files()}
    assert node.journal.disk_bytes == sum(sizes.values())
    assert [segment.sealed for segment in segments] == [True] * (len(segments) - 1) + [False]
    again = node.open().segments()
    assert [(s.name, s.first, s.end, s.file_bytes) for s in again] == [
        (s.name, s.first, s.end, s.file_bytes) for s in segments
    ]


def test_bytes_are_counted() -> None:
    node = Node()
    node.add(10)
    assert node.journal.appended_bytes == node.journal.unsynced_bytes == 10 * RECORD
    node.journal.start_sync(lambda: None)
    node.add(1)
    node.agenda.run()
    assert (node.journal.appended_bytes, node.journal.unsynced_bytes) == (11 * RECORD, RECORD)
    node.sync()
    node.add(189)
    assert node.journal.bytes_from(1) == node.journal.disk_bytes
    assert node.journal.bytes_from(201) == 0
    for index in range(1, 200):
        exact = (201 - index) * RECORD
        assert exact <= node.journal.bytes_from(index) < exact * 1.4 + 200
    assert node.open().appended_bytes == 0


def test_open_segment_is_sealed_on_request() -> None:
    node = Node(segment_bytes=10_000)
    node.journal.seal()
    assert not node.journal.dirty
    node.add(5)
    node.journal.seal()
    assert node.journal.dirty
    node.sync()
    assert [segment.sealed for segment in node.journal.segments()] == [True]
    node.journal.seal()
    assert not node.journal.dirty
    assert contents(node.open()) == log_of(1, 5)
    node.add(5)
    node.sync()
    assert len(node.files()) == 2
    assert contents(node.open()) == log_of(1, 10)


def test_dead_entries_are_dropped_and_live_entries_stay_readable() -> None:
    node = Node(cache_bytes=0)
    node.add(50)
    node.add(50, term=2)
    node.sync()
    before = node.journal.disk_bytes
    node.compact(slice(3, 12), lambda index: index % 10 == 0)
    ranges = [(segment.first, segment.end, segment.sparse) for segment in node.journal.segments()[:5]]
    assert ranges == [(1, 7, False), (7, 13, False), (13, 19, False), (19, 73, True), (73, 79, False)]
    expected = [*range(1, 19), *range(20, 73, 10), *range(73, 101)]
    for _ in range(2):
        node.sync()
        journal = node.journal
        assert (journal.first_index, journal.last_index) == (73, 100)
        assert journal.disk_bytes < before - 40 * RECORD
        assert list(held(journal)) == expected
        assert journal[0][1] == 73
        assert len(contents(journal)) == 28
        with pytest.raises(EntryNotFound):
            journal.term_at(72)
        node.open()
        node.journal.seal()
    node.compact(slice(3), lambda _index: False)
    node.compact(slice(1), lambda index: index == 40)
    node.sync()
    assert list(held(node.open())) == [40, *range(73, 101)]


def test_only_whole_sealed_segments_are_replaced() -> None:
    node = Node()
    other = Node()
    for each in (node, other):
        each.add(30)
    segments = node.journal.segments()
    with pytest.raises(JournalMisuseError):
        node.journal.replace(segments[:1], None)  # its footer is not on the disk yet
    node.sync()
    segments = node.journal.segments()
    misfit = Segment.sealed_file(node.journal.new_name(1, sparse=True), 1, 8, 100, sparse=True)
    foreign = Segment.sealed_file(segment_name(1, 77), 1, 7, 100, sparse=False)
    for old, new in (
        ([], None),
        (segments[:3:2], None),
        (segments[1::-1], None),
        (segments[-1:], None),
        ([foreign], None),
        (segments[:1], misfit),
    ):
        with pytest.raises(JournalMisuseError):
            node.journal.replace(old, new)
    node.journal.seal()
    node.sync()
    with pytest.raises(JournalMisuseError, match="is the end of the log"):
        node.journal.replace(node.journal.segments(), None)
    assert contents(node.open()) == log_of(1, 30)


def test_an_adopted_log_takes_the_place_of_everything() -> None:
    given, node = Node(1), Node(2)
    given.add(40)
    given.add(40, term=4)
    given.sync()
    given.compact(slice(1, 5), lambda index: index == 20)
    given.journal.seal()
    given.sync()
    node.add(30, term=3)
    node.sync()
    node.add(30, term=3)
    node.take(given)
    assert node.journal.synced_index == 0
    for _ in range(2):
        journal = node.journal
        assert (journal.first_index, journal.last_index) == (31, 80)
        assert (journal.last_term, journal.term_at(40), journal.term_at(41)) == (4, 1, 4)
        assert held(journal) == held(given.journal)
        assert contents(journal) == contents(given.journal)
        if journal.dirty:
            node.sync()
        assert journal.synced_index == 80
        assert node.files() == [segment.name for segment in journal.segments()]
        node.open()
    node.add(5, term=4)
    node.sync()
    assert node.open().last_index == 85
    with pytest.raises(JournalMisuseError):
        node.journal.adopt([], TermRuns())


def test_sync_in_flight_does_not_vouch_for_an_adopted_log() -> None:
    given, node = Node(1), Node(2)
    given.add(40)
    given.journal.seal()
    given.sync()
    node.add(30)
    node.journal.start_sync(lambda: None)
    node.take(given)
    node.agenda.run()
    assert (node.journal.last_index, node.journal.synced_index) == (40, 0)
    node.sync()
    assert node.journal.synced_index == 40


def test_the_names_of_files_are_never_used_again() -> None:
    node = Node()
    used: list[str] = []
    for _ in range(5):
        node.add(20)
        node.sync()
        used += [name for name in node.files() if name != segment_name(1, 1)]
        leftover = node.journal.new_name(1, sparse=True)
        node.disk.replace_file(f"log/{leftover}", b"")
        used.append(leftover)
        node.journal.deleteEntriesFrom(1)
        node.sync()
        node.open()
    assert len(set(used)) == len(used)


# Opening


def test_first_start_creates_an_empty_log() -> None:
    node = Node()
    assert node.disk.list_directory("log") == [MANIFEST_NAME, MARK_NAME]
    node.disk.crash(power_loss=True)
    assert len(node.open()) == 0


def test_leftovers_are_removed_and_other_files_are_not() -> None:
    node = Node()
    node.add(10)
    node.sync()
    leftovers = [
        f"{MANIFEST_NAME}.tmp",
        "00000000000000000007.checkpoint.tmp",
        segment_name(1, 99, sparse=True),
    ]
    other_files = ["00000000000000000007.checkpoint", "notes"]
    for name in (*leftovers, *other_files):
        node.disk.open(f"log/{name}", create=True).append([b"half"])
    journal = node.open()
    names = node.disk.list_directory("log")
    assert not set(leftovers) & set(names)
    assert set(other_files) <= set(names)
    assert journal.new_name(11, sparse=False) == segment_name(11, 100)
    assert contents(journal) == log_of(1, 10)


def test_a_missing_or_shortened_segment_is_corruption() -> None:
    node = Node()
    node.add(60)
    node.sync()
    names = node.files()
    for name in names[:-1]:
        data = node.disk.read_file(f"log/{name}")
        node.disk.replace_file(f"log/{name}", data[:-1])
        with pytest.raises(
            CorruptJournal, match=rf"log/{name}: offset \d+: the file has \d+ bytes instead of"
        ):
            node.open()
        node.disk.remove(f"log/{name}")
        with pytest.raises(CorruptJournal, match=f"log/{name}: offset 0: the file is missing"):
            node.open()
        node.disk.replace_file(f"log/{name}", data)
    node.disk.remove(f"log/{names[-1]}")
    with pytest.raises(CorruptJournal, match=f"log/{names[-1]}: offset 0: the file is missing"):
        node.open()


def test_a_log_without_its_manifest_is_corruption() -> None:
    node = Node()
    node.add(1)
    node.sync()
    manifest = node.disk.read_file(f"log/{MANIFEST_NAME}")
    node.disk.remove(f"log/{MANIFEST_NAME}")
    with pytest.raises(
        CorruptJournal, match=f"log/{MANIFEST_NAME}: offset 0: the file is missing, but there is"
    ):
        node.open()
    for bit in (0, len(manifest) * 4):
        node.disk.replace_file(f"log/{MANIFEST_NAME}", manifest)
        node.disk.flip_bit(f"log/{MANIFEST_NAME}", bit)
        assert contents(node.open()) == log_of(1, 1)
        assert node.disk.read_file(f"log/{MANIFEST_NAME}") == manifest, "both copies are whole again"
    node.disk.flip_bit(f"log/{MANIFEST_NAME}", 0)
    node.disk.full = True
    assert contents(node.open()) == log_of(1, 1), "one copy is enough until there is space"
    node.disk.full = False
    node.disk.replace_file(f"log/{MANIFEST_NAME}", manifest)
    for bit in (0, len(manifest) * 4):
        node.disk.flip_bit(f"log/{MANIFEST_NAME}", bit)
    with pytest.raises(CorruptJournal, match=f"log/{MANIFEST_NAME}: offset 0: both copies"):
        node.open()


def test_log_of_the_first_format_is_not_taken_for_damage() -> None:
    node = Node()
    node.disk.remove(f"log/{MANIFEST_NAME}")
    node.disk.replace_file("log/00000000000000000001.segment", b"RLOG")
    with pytest.raises(UnknownFormat, match=r"00000000000000000001\.segment: this format is unknown"):
        node.open()


def test_log_of_a_foreign_group_is_refused() -> None:
    node = Node()
    node.add(1)
    node.sync()
    for name in ("hardstate-0", "hardstate-1"):
        node.disk.remove(name)
    with pytest.raises(ForeignJournal, match=f"log/{MANIFEST_NAME}"):
        node.open(b"cluster/1")


def test_segment_of_a_foreign_group_is_refused() -> None:
    node = Node()
    node.add(1)
    node.sync()
    path = f"log/{segment_name(1, 1)}"
    node.disk.replace_file(path, adopt_header(node.disk.read_file(path), b"cluster/1"))
    with pytest.raises(ForeignJournal, match=path):
        node.open()


def test_tail_that_no_torn_write_explains_is_corruption() -> None:
    node = Node(segment_bytes=10_000)
    node.add(3)
    node.sync()
    mark = node.disk.read_file(MARK)
    node.add(1)
    node.sync()
    path = f"log/{segment_name(1, 1)}"
    whole = node.disk.read_file(path)
    start = FILE_HEADER_BYTES + 3 * RECORD
    for offset in range(start, len(whole)):
        node.disk.replace_file(path, whole)
        node.disk.flip_bit(path, offset * 8)
        with pytest.raises(
            CorruptJournal, match=f"offset {start}: bad record, and no write can have been lost"
        ):
            node.open(writes_lost=False)
        node.disk.replace_file(path, whole[:offset])
        node.disk.replace_file(MARK, mark)
        assert contents(node.open(writes_lost=False)) == log_of(1, 3)
        node.disk.replace_file(path, whole)
        node.disk.flip_bit(path, offset * 8)
        assert contents(node.open(writes_lost=True)) == log_of(1, 3)


def test_a_footer_that_was_being_written_is_no_damage() -> None:
    node = Node(segment_bytes=10_000)
    node.add(4)
    node.add(1, term=2)
    node.sync()
    name = f"log/{segment_name(1, 1)}"
    manifest = node.disk.read_file(f"log/{MANIFEST_NAME}")
    end = len(node.disk.read_file(name))
    node.journal.seal()
    node.sync()
    whole = node.disk.read_file(name)
    for cut in range(end, len(whole) + 1):
        node.disk.replace_file(name, whole[:cut])
        node.disk.replace_file(f"log/{MANIFEST_NAME}", manifest)
        assert node.open(writes_lost=False).last_index == 5
        assert len(node.disk.read_file(name)) == end
    for bit in range(end * 8, len(whole) * 8):
        node.disk.replace_file(name, whole)
        node.disk.flip_bit(name, bit)
        with pytest.raises(CorruptJournal, match="no write can have been lost"):
            node.open(writes_lost=False)
        assert node.open(writes_lost=True).last_index == 5


def test_whole_footer_vouches_for_records_before_the_manifest() -> None:
    node = Node(segment_bytes=10_000)
    node.add(4)
    node.sync()
    name = f"log/{segment_name(1, 1)}"
    manifest = node.disk.read_file(f"log/{MANIFEST_NAME}")
    end = len(node.disk.read_file(name))
    node.journal.seal()
    node.sync()
    whole = node.disk.read_file(name)
    for bit in range(FILE_HEADER_BYTES * 8, end * 8):
        node.disk.replace_file(name, whole)
        node.disk.replace_file(f"log/{MANIFEST_NAME}", manifest)
        node.disk.flip_bit(name, bit)
        with pytest.raises(CorruptJournal, match=r"the footer knows|a later record knows"):
            node.open(writes_lost=True)


@pytest.mark.parametrize("steps", range(6))
def test_power_loss_while_a_segment_is_sealed_is_not_damage(steps: int) -> None:
    for seed in range(100):
        node = Node(seed, segment_bytes=10_000)
        node.add(3, size=700)
        node.sync()
        node.add(3, size=700)  # in several sectors, because unsynced data is lost by sectors
        node.journal.seal()
        node.disk.end_process_after(steps)
        node.journal.start_sync(lambda: None)
        with suppress(ProcessEnds):
            node.agenda.run()
        node.disk.crash(power_loss=True)
        assert node.open(writes_lost=True).last_index >= 3


def test_replaced_segments_go_after_the_rest_is_durable() -> None:
    for seed in range(60):
        node = Node(seed)
        node.add(7)
        node.sync()
        assert len(node.files()) == 2
        node.add(3)
        node.compact(slice(1), lambda _index: False)
        node.journal.start_sync(lambda: None)
        node.disk.crash(power_loss=True)
        journal = node.open()
        assert journal.last_index >= 7
        assert (journal.first_index, journal.last_index) == (7, 10) or journal.first_index == 1


def test_crash_after_a_conflict_is_not_taken_for_corruption() -> None:
    for seed in range(200):
        node = Node(seed, segment_bytes=100_000)
        for term in range(1, 6):
            node.add(30, term, size=200)
            node.sync()
        node.journal.deleteEntriesFrom(20)
        node.add(60, term=6, size=170)
        node.journal.start_sync(lambda: None)
        node.disk.crash(power_loss=True)
        node.open()
        assert node.journal.read(20) == payload_of(20, 1, 200)


@pytest.mark.parametrize("filler", [b"", bytes(64), b"\xa5" * 64])
def test_tail_torn_at_any_byte_costs_no_synced_entry(filler: bytes) -> None:
    node = Node(segment_bytes=10_000)
    node.add(4)
    node.sync()
    path = f"log/{segment_name(1, 1)}"
    durable, mark = len(node.disk.read_file(path)), node.disk.read_file(MARK)
    node.add(3)
    node.sync()
    whole = node.disk.read_file(path)
    for cut in range(durable, len(whole)):
        node.disk.replace_file(path, whole[:cut] + filler)
        node.disk.replace_file(MARK, mark)
        journal = node.open(writes_lost=bool(filler))
        kept = 4 + (cut - durable) // (RECORD_HEADER_BYTES + 20)
        assert contents(journal) == [(payload_of(index, 1), index, 1) for index in range(1, kept + 1)]
        assert journal.synced_index == kept
        assert len(node.disk.read_file(path)) == durable + (kept - 4) * (RECORD_HEADER_BYTES + 20)


@settings(deadline=None)
@given(st.lists(st.integers(1, 4), min_size=2, max_size=6), st.booleans(), st.data())
def test_flipped_bit_is_reported_at_the_start_or_when_it_is_read(
    batches: list[int], writes_lost: bool, data: st.DataObject
) -> None:
    node = Node(cache_bytes=0)
    for count in batches:
        node.add(count)
        node.sync()
    before_last = node.journal[-batches[-1]][1]
    sizes = {name: len(node.disk.read_file(f"log/{name}")) for name in node.files()}
    open_ = node.journal._open
    assert open_ is not None
    if writes_lost:
        # The mark may be lost. Then the last batch proves the durability of earlier batches in its file, but not its
        # own.
        node.disk.replace_file(MARK, b"")
        if open_.first < before_last:
            sizes[open_.name] = open_.extent(before_last)[0]
        else:
            sizes[open_.name] = FILE_HEADER_BYTES
    expected = contents(node.journal)
    name = data.draw(st.sampled_from(sorted(sizes)))
    node.disk.flip_bit(f"log/{name}", data.draw(st.integers(0, sizes[name] * 8 - 1)))
    try:
        found = contents(node.open(writes_lost=writes_lost))
    except (CorruptJournal, UnknownFormat) as error:
        path = error.path
    else:
        assert found == expected  # the footer of a sealed segment
        return
    assert path == f"log/{name}"


# The sync mark


@pytest.mark.parametrize("writes_lost", [False, True])
def test_an_open_segment_that_was_shortened_is_corruption(writes_lost: bool) -> None:
    """At any byte, also between two records: 200 of 400 confirmed messages were lost."""
    node = Node(segment_bytes=10_000)
    for _ in range(3):
        node.add(2)
        node.sync()
    path = f"log/{segment_name(1, 1)}"
    whole = node.disk.read_file(path)
    for cut in range(FILE_HEADER_BYTES, len(whole)):
        node.disk.replace_file(path, whole[:cut])
        with pytest.raises(CorruptJournal, match=f"and the first {len(whole)} bytes were synced"):
            node.open(writes_lost=writes_lost)
        assert node.disk.read_file(path) == whole[:cut], "what is left is kept as it is"
    node.disk.replace_file(path, whole)
    assert contents(node.open(writes_lost=writes_lost)) == log_of(1, 6)


def test_mark_vouches_for_entries_that_the_next_start_found() -> None:
    node = Node(segment_bytes=10_000)
    node.add(2)
    node.sync()
    path = f"log/{segment_name(1, 1)}"
    synced = node.disk.read_file(MARK)
    node.add(2)
    node.sync()
    node.disk.replace_file(MARK, synced)  # a power loss may leave an earlier mark
    node.open()
    node.disk.replace_file(path, node.disk.read_file(path)[:-RECORD])
    with pytest.raises(CorruptJournal, match="were synced"):
        node.open()


def test_a_mark_that_is_lost_or_damaged_is_made_anew() -> None:
    node = Node(segment_bytes=10_000)
    node.add(2)
    node.sync()
    whole = node.disk.read_file(MARK)
    for bit in range(len(whole) * 8):
        node.disk.flip_bit(MARK, bit)
        assert contents(node.open(writes_lost=False)) == log_of(1, 2)
        assert node.disk.read_file(MARK) == whole
    for damaged in (b"", whole[:-1], whole + b"\0"):
        node.disk.replace_file(MARK, damaged)
        assert contents(node.open(writes_lost=False)) == log_of(1, 2)
        assert node.disk.read_file(MARK) == whole
    node.disk.remove(MARK)
    assert contents(node.open(writes_lost=False)) == log_of(1, 2)
    assert node.disk.read_file(MARK) == whole


def test_mark_that_cannot_be_written_lags_without_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(segment_bytes=10_000)
    node.add(2)
    node.sync()
    before = node.disk.read_file(MARK)
    with monkeypatch.context() as patched:
        patched.setattr(SimulatedFile, "overwrite", lambda *_: os_error(errno.EIO))
        node.add(2)
        node.sync()
    assert (node.journal.synced_index, node.failures) == (4, [])
    assert node.disk.read_file(MARK) == before
    assert contents(node.open()) == log_of(1, 4)


def cut_short(node: Node, entries: int, *, sealed: bool) -> None:
    """Entries with a mark that is durable; they are cut, and the power goes while that is carried out."""
    node.add(6)
    node.sync()
    node.open()
    if sealed:
        node.journal.seal()
        node.add(3)
        node.sync()
    node.journal.deleteEntriesFrom(entries)
    node.add(2, term=2)


@pytest.mark.parametrize("sealed", [False, True])
def test_power_loss_while_the_log_is_cut_is_not_damage(sealed: bool) -> None:
    for seed in range(150):
        node = Node(seed, segment_bytes=10_000)
        cut_short(node, 2, sealed=sealed)
        node.disk.end_process_after(seed % 15)
        node.journal.start_sync(lambda: None)
        with suppress(ProcessEnds):
            node.agenda.run()
        node.disk.crash(power_loss=True)
        assert contents(node.open())[:2] == log_of(1, 2)


@pytest.mark.parametrize("sealed", [False, True])
def test_cut_without_a_lowered_mark_is_found_as_corruption(
    sealed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SegmentWriter, "_lower_mark", lambda *_: None)
    with pytest.raises(CorruptJournal, match="were synced"):
        test_power_loss_while_the_log_is_cut_is_not_damage(sealed)


# A full disk


def test_full_disk_stops_only_the_sync() -> None:
    node = Node()
    node.add(3)
    node.sync()
    node.disk.full = True
    node.add(10)
    done: list[bool] = []
    for added in range(11, 14):
        node.journal.start_sync(lambda: done.append(True))
        node.add(1)
        node.agenda.run()
        assert not node.failures
        journal = node.journal
        assert (journal.full, journal.sync_in_flight, journal.dirty, journal.synced_index) == (
            True,
            False,
            True,
            3,
        )
        assert contents(journal) == log_of(1, 3 + added)
    node.disk.full = False
    node.journal.start_sync(lambda: done.append(True))
    node.agenda.run()
    assert done == [True]
    assert (node.journal.full, node.journal.dirty, node.journal.synced_index) == (False, False, 16)
    node.disk.crash(power_loss=True)
    assert contents(node.open()) == log_of(1, 16)


def test_space_is_freed_although_a_write_finds_no_space() -> None:
    node = Node()
    node.add(40)
    node.sync()
    node.disk.capacity_bytes = node.disk.used_bytes() + 2000
    node.add(1, size=3000)
    node.journal.start_sync(lambda: None)
    node.agenda.run()
    assert node.journal.full
    old = [segment for segment in node.journal.segments() if segment.sealed]
    assert len(old) > 1
    node.journal.replace(old, None)
    for _ in range(2):
        node.journal.start_sync(lambda: None)
        node.agenda.run()
    assert not node.journal.full
    assert node.journal.synced_index == 41
    node.disk.crash(power_loss=True)
    assert contents(node.open())[:-1] == log_of(old[-1].end, 40)


def test_sync_does_not_wait_for_removal_of_replaced_files() -> None:
    node = Node()
    node.add(40)
    node.sync()
    old = [segment.name for segment in node.journal.segments() if segment.sealed]
    node.journal.replace(node.journal.segments()[: len(old)], None)
    found: list[list[str]] = []
    node.journal.start_sync(lambda: found.append(node.files()))
    node.agenda.run()
    assert set(old) < set(found[0])
    assert not set(old) & set(node.files())


def test_sync_now_on_a_full_disk_raises_and_may_be_repeated() -> None:
    node = Node()
    node.add(3)
    node.disk.full = True
    with pytest.raises(OSError, match="No space"):
        node.journal.sync_now()
    assert (node.journal.full, node.failures) == (True, [])
    node.disk.full = False
    node.journal.sync_now()
    assert (node.journal.full, node.journal.synced_index) == (False, 3)


def test_a_failed_sync_while_cutting_back_is_no_full_disk() -> None:
    node = Node(segment_bytes=10_000)
    node.add(3)
    node.sync()
    for seed in range(20):
        node = Node(seed, segment_bytes=10_000)
        node.add(3)
        node.sync()
        node.add(3)
        node.disk.full = True
        node.disk.fail_next_sync()
        node.journal.start_sync(lambda: None)
        node.agenda.run()
        assert node.journal.full + len(node.failures) == 1


def test_an_adopted_log_makes_space_on_a_full_disk() -> None:
    given, node = Node(1), Node(2)
    given.add(40)
    given.journal.seal()
    given.sync()
    node.add(20, term=2)
    node.sync()
    node.add(20, term=2)
    segments = [node.receive(given, segment) for segment in given.journal.segments()]
    node.disk.capacity_bytes = node.disk.used_bytes() + 5000
    for in_flight in (False, True):
        if in_flight:
            node.add(100, term=2)
            node.journal.start_sync(lambda: None)
        node.journal.adopt(segments, node.journal.runs_of(segments))
        node.agenda.run()
        node.sync()
        assert not node.journal.full
        assert contents(node.open()) == log_of(1, 40)


# Each operation, ended at each step


class Change(NamedTuple):
    """Something that is done to a log, and how it looks before."""

    prepare: Callable[[Node], None]
    steps: Sequence[Callable[[Node], None]]

    def do(self, node: Node) -> list[dict[int, bytes]]:
        """All states that the log goes through."""
        states = [held(node.journal)]
        for step in self.steps:
            step(node)
            states.append(held(node.journal))
        return states


def no_change(_node: Node) -> None:
    """The log is empty."""


def no_reference(_index: int) -> bool:
    return False


def grown(node: Node) -> None:
    node.add(15)
    node.add(10, term=2)
    node.sync()


def with_sparse(node: Node) -> None:
    grown(node)
    node.compact(slice(1, 3), lambda index: index % 3 == 0)
    node.sync()


def sealed(node: Node) -> None:
    grown(node)
    node.journal.seal()
    node.sync()


def conflict(node: Node, position: int, term: int = 3) -> None:
    node.journal.deleteEntriesFrom(position)
    node.add(9, term=term)


def adopt(node: Node) -> None:
    given = Node(99)
    with_sparse(given)
    given.add(10, term=5)
    given.journal.seal()
    given.sync()
    node.take(given)
    node.add(3, term=5)


CHANGES = {
    "first entry": Change(no_change, [lambda node: node.add(1)]),
    "rollover": Change(grown, [lambda node: node.add(20, term=3)]),
    "rollover after a seal": Change(sealed, [lambda node: node.add(20, term=3)]),
    "seal": Change(grown, [lambda node: node.journal.seal()]),
    "seal what is new": Change(grown, [lambda node: node.add(2, term=3), lambda node: node.journal.seal()]),
    "conflict in the open segment": Change(grown, [lambda node: conflict(node, 24)]),
    "conflict between segments": Change(grown, [lambda node: conflict(node, 18)]),
    "conflict in a sealed segment": Change(grown, [lambda node: conflict(node, 9)]),
    "conflict in the last sealed segment": Change(sealed, [lambda node: conflict(node, 23)]),
    "conflict at the start": Change(grown, [lambda node: conflict(node, 1)]),
    "conflict and another": Change(
        grown, [lambda node: conflict(node, 9), lambda node: conflict(node, 4, 4)]
    ),
    "conflict with what is not written": Change(
        grown, [lambda node: node.add(20, term=2), lambda node: conflict(node, 30)]
    ),
    "replacement": Change(grown, [lambda node: node.compact(slice(1, 3), lambda index: index % 4 == 0)]),
    "replacement of sparse ones": Change(
        with_sparse, [lambda node: node.compact(slice(2), lambda index: index % 9 == 0)]
    ),
    "removal": Change(with_sparse, [lambda node: node.compact(slice(2), no_reference)]),
    "removal of all that is sealed": Change(grown, [lambda node: node.compact(slice(4), no_reference)]),
    "removal behind new entries": Change(
        grown, [lambda node: node.add(9, term=3), lambda node: node.compact(slice(4), no_reference)]
    ),
    "adoption": Change(grown, [adopt]),
    "adoption by an empty log": Change(no_change, [adopt]),
}


def is_between(found: dict[int, bytes], states: Sequence[dict[int, bytes]]) -> bool:
    """Return whether it is one of the states, or between a state and the next."""
    return any(
        is_within(found, before, after)
        for before, after in zip(states, [*states[1:], states[-1]], strict=True)
    )


def is_within(found: dict[int, bytes], before: dict[int, bytes], after: dict[int, bytes]) -> bool:
    """Return whether it is one of the two states, or between them: a part of the tail deleted, or a part of the new
    tail written.
    """
    common = {index: payload for index, payload in before.items() if after.get(index) == payload}
    if not common.items() <= found.items():
        return False
    rest = [index for index in found if index not in common]
    if not rest:
        return True
    for whole in (before, after):
        tail = [index for index in whole if index not in common]
        if all(found[index] == whole.get(index) for index in rest) and rest == tail[: len(rest)]:
            return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("power_loss", [False, True])
def test_change_that_ends_at_any_step_leaves_the_old_or_new_log(name: str, power_loss: bool) -> None:
    change = CHANGES[name]
    complete = False
    steps = 0
    while not complete:
        for seed in range(settings.default.max_examples // 8 if power_loss else 1):
            node = Node(seed, cache_bytes=0)
            change.prepare(node)
            states = change.do(node)
            node.disk.end_process_after(steps)
            try:
                node.journal.sync_now()
                complete = True
            except ProcessEnds:
                pass
            node.disk.spare_process()
            node.disk.crash(power_loss=power_loss)
            journal = node.open(writes_lost=power_loss)
            found = held(journal)
            assert found == states[-1] if complete else is_between(found, states), (steps, seed)
            check_usable(node, journal)
        steps += 1
    assert steps > 2


def check_usable(node: Node, journal: SegmentedJournal) -> None:
    """The manifest and the files agree, and the log goes on."""
    assert sorted(segment.name for segment in journal.segments()) == [
        name for name in node.files() if len(node.disk.read_file(f"log/{name}")) > FILE_HEADER_BYTES
    ]
    node.add(12, term=9)
    node.sync()
    expected = contents(node.journal)
    assert contents(node.open(writes_lost=False)) == expected


@pytest.mark.parametrize("name", CHANGES)
def test_opening_that_ends_at_any_step_loses_no_entry(name: str) -> None:
    """A start cleans up after a crash, and may crash too."""
    change = CHANGES[name]
    for crashed_at in range(0, 12, 2):
        complete = False
        steps = 0
        while not complete:
            node = Node(crashed_at * 100 + steps, cache_bytes=0)
            change.prepare(node)
            states = change.do(node)
            node.disk.end_process_after(crashed_at)
            try:
                node.journal.sync_now()
                states = states[-1:]
            except ProcessEnds:
                pass
            node.disk.crash(power_loss=True)
            node.disk.end_process_after(steps)
            try:
                node.open()
                complete = True
            except ProcessEnds:
                pass
            node.disk.spare_process()
            node.disk.crash(power_loss=True)
            node.open()
            assert is_between(held(node.journal), states)
            steps += 1


@pytest.mark.parametrize("is_damaged", [False, True])
@pytest.mark.parametrize("power_loss", [False, True])
def test_a_log_is_opened_after_an_opening_that_ended_at_any_step(power_loss: bool, is_damaged: bool) -> None:
    """The log is new, or a copy of its manifest is damaged: in both cases the opening writes the manifest."""
    complete = False
    steps = 0
    while not complete:
        for seed in range(6):
            disk = SimulatedDisk(Random(seed), lambda _delay_s, _job: None)
            disk.make_directory("log")
            if is_damaged:
                load_log(disk, "log", b"identity", writes_lost=False)
                disk.flip_bit(f"log/{MANIFEST_NAME}", seed)
            disk.end_process_after(steps)
            try:
                load_log(disk, "log", b"identity", writes_lost=False)
                complete = True
            except ProcessEnds:
                pass
            disk.spare_process()
            disk.crash(power_loss=power_loss)
            assert load_log(disk, "log", b"identity", writes_lost=power_loss).manifest == Manifest()
        steps += 1
    assert steps > 2


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_that_finds_no_space_is_carried_out_later(name: str) -> None:
    change = CHANGES[name]
    succeeded = False
    free = 0
    while not succeeded:
        node = Node(free, cache_bytes=0)
        change.prepare(node)
        states = change.do(node)
        node.disk.capacity_bytes = node.disk.used_bytes() + free
        node.sync()
        succeeded = not node.journal.full
        assert not node.failures
        assert held(node.journal) == states[-1]
        if free % 3 == 0:
            node.disk.crash(power_loss=free % 2 == 0)
            node.open(writes_lost=free % 2 == 0)
            assert is_between(held(node.journal), states)
        else:
            node.disk.capacity_bytes = None
            node.add(2, term=9)
            after = held(node.journal)
            node.sync()
            node.disk.crash(power_loss=True)
            node.open()
            assert held(node.journal) == after
        free += 13


# Against an oracle


class State(NamedTuple):
    """The contents after a number of changes, as plain data."""

    entries: dict[int, bytes]


class Oracle:
    """Remembers every state of the log since the last restart."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.states: dict[int, State] = {}
        self.note()

    def note(self) -> None:
        self.states[self.node.journal.written] = State(held(self.node.journal))

    def check_reopened(self, journal: SegmentedJournal, synced: int, written: int) -> None:
        """Assert that the contents are a state since the last sync, or between two such states."""
        found = held(journal)
        candidates = [self.states[at].entries for at in range(synced, written + 1) if at in self.states]
        assert any(
            found == state or is_within(found, state, following)
            for state, following in zip(candidates, [*candidates[1:], candidates[-1]], strict=True)
        ), (found, candidates)


KINDS = (
    ["add"] * 8
    + ["sync"] * 6
    + ["step"] * 5
    + ["from"] * 4
    + ["compact", "drop", "seal"] * 2
    + ["fill", "free", "adopt", "kill", "power"]
)
OPERATIONS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 12)), min_size=10, max_size=60)


class Story:
    """Random changes, a full disk and crashes, with the oracle looking on."""

    def __init__(self, seed: int) -> None:
        self.node = Node(seed, segment_bytes=200, cache_bytes=700, slice_bytes=150)
        self.node.journal.setCurrentTerm(1, None)  # a full disk is no place to begin
        self.oracle = Oracle(self.node)
        self.term = 1
        self.given = Node(seed, segment_bytes=300)
        with_sparse(self.given)
        self.given.journal.seal()
        self.given.sync()

    def do(self, kind: str, argument: int) -> None:
        node, journal = self.node, self.node.journal
        match kind:
            case "add":
                for _ in range(argument):
                    node.add(1, self.term, size=10 + argument * 7)
                    self.oracle.note()
            case "from":
                journal.deleteEntriesFrom(max(1, len(journal) - argument))
                self.term += 1
            case "seal":
                journal.seal()
            case "compact" | "drop":
                self.compact(argument, lambda index: kind == "compact" and index % argument == 0)
            case "adopt":
                if not node.disk.full:
                    node.take(self.given)
            case "fill" | "free":
                node.disk.full = kind == "fill"
            case "sync":
                if journal.dirty and not journal.sync_in_flight:
                    journal.start_sync(lambda: None)
            case "step":
                node.agenda.step()
            case _:
                self.restart(power_loss=kind == "power")
        self.oracle.note()

    def compact(self, argument: int, keep: Callable[[int], bool]) -> None:
        """Compact a few adjacent sealed and synced segments, except the last."""
        node = self.node
        usable = [segment for segment in node.journal.segments() if segment.sealed][:-1]
        start = argument % max(len(usable), 1)
        old = usable[start : start + 1 + argument % 3]
        if old and not node.disk.full:
            node.compact(slice(start, start + len(old)), keep)

    def restart(self, *, power_loss: bool) -> None:
        node, journal = self.node, self.node.journal
        node.disk.full = False
        promised = {
            index: payload for index, payload in held(journal).items() if index <= journal.synced_index
        }
        synced, written = journal.synced, journal.written
        node.disk.crash(power_loss=power_loss)
        reopened = node.open(writes_lost=power_loss)
        self.oracle.check_reopened(reopened, synced, written)
        found = held(reopened)
        assert all(found.get(index) == payload for index, payload in promised.items())
        assert reopened.synced_index == reopened.last_index
        self.oracle = Oracle(node)


@settings(max_examples=settings.default.max_examples * 3 // 2, deadline=None)
@example(2, [*[("add", 1)] * 5, ("power", 1), ("add", 1), ("add", 1), ("from", 1), ("sync", 1)])
@given(st.integers(0, 2**32), OPERATIONS)
def test_reopened_log_equals_an_earlier_state_of_it(seed: int, operations: list[tuple[str, int]]) -> None:
    story = Story(seed)
    for kind, argument in operations:
        story.do(kind, argument)
    story.restart(power_loss=True)
