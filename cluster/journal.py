"""The replicated log on disk, in the form that pysyncobj expects of its journal.

Lives here: the log as a whole - which segments exist, what is written, what is durable, the cache of recent
entries, term and vote. The format of a file is `segment.py`'s business; the disk is a port.

Law: memory changes at once, the disk in the same order at the next sync, and an index is *synced* only when
the entry that is in memory under this index now is on stable storage. At every moment in between, what a
crash leaves is a state the log was in, or on the way to, since the last completed sync. Hence:
- a segment is durable before the next one is created: only the last can have a torn tail;
- files are removed one by one, durably, from an end of the log: a crash leaves no gap;
- a truncation is durable before anything is written in its place: no stale record follows a new one.
"""

# ruff: noqa: N802, N803 - pysyncobj gives the names of its interface

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from struct import Struct
from typing import TYPE_CHECKING, Literal, NamedTuple, overload
from zlib import crc32

from pysyncobj.journal import Journal

from cluster.segment import (
    FORMAT_VERSION,
    PAYLOAD_BYTES_MAX,
    RECORD_HEADER_BYTES,
    SEGMENT_BYTES_MAX,
    CorruptJournal,
    EntryGone,
    Extent,
    ForeignJournal,
    JournalError,
    Record,
    Segment,
    UnknownFormat,
    pack_file_header,
    pack_records,
    read_extent,
    record_seed,
    scan,
    segment_name,
)

if TYPE_CHECKING:
    from cluster.ports import Disk, File

__all__ = [
    "CorruptJournal",
    "EntryGone",
    "ForeignJournal",
    "JournalError",
    "JournalMisuseError",
    "SegmentedJournal",
    "UnknownFormat",
]

log = logging.getLogger(__name__)

SEGMENT_BYTES = 64 * 2**20
CACHE_BYTES = 32 * 2**20
SLICE_BYTES = 2**20
READ_BYTES_MAX = 2**20  # consecutive small records are read together up to here
CACHED_ENTRY_OVERHEAD_BYTES = 200  # tuple, integers, bytes header and dictionary slot of a cached entry

_HARD_STATE = "hardstate"
_TEMPORARY = ".tmp"
_SEGMENT = ".segment"


class JournalMisuseError(Exception):
    """The caller broke the contract of the journal; its state is as before."""


class SegmentedJournal(Journal):
    """The log of one group.

    Opening verifies every record and raises CorruptJournal, ForeignJournal or UnknownFormat. `on_failure` is
    called when the disk fails: nothing is reported as synced after that.
    """

    keep_tail: bool = False
    """While set, `deleteEntriesFrom` does nothing: the append under way has no conflict (hazard H2)."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        identity: bytes,
        on_failure: Callable[[Exception], None],
        *,
        segment_bytes: int = SEGMENT_BYTES,
        cache_bytes: int = CACHE_BYTES,
        slice_bytes: int = SLICE_BYTES,
    ) -> None:
        if not 0 < segment_bytes <= SEGMENT_BYTES_MAX:
            raise ValueError(f"segment_bytes must be from 1 to {SEGMENT_BYTES_MAX}, not {segment_bytes}")
        self.slice_bytes = slice_bytes
        self.written = 0
        self.synced = 0
        self.synced_index = 0
        self.sync_in_flight = False
        self.first_index = 1
        self.last_index = 0
        self._disk = disk
        self._directory = directory
        self._identity = identity
        self._on_failure = on_failure
        self._failed = False
        self._segment_bytes = segment_bytes
        self._segments: list[Segment] = []
        self._terms = _TermRuns()
        self._last_term = -1
        self._first: Entry | None = None
        self._last: Entry | None = None
        self._cache: dict[int, Record] = {}
        self._cache_first = 1
        self._cache_bytes = 0
        self._cache_bytes_max = cache_bytes
        self._operations: list[_Operation] = []
        self._batch: list[Record] | None = None
        self._handed = 0
        self._flight_index = 0
        self._deletions = 0
        self._commit_index = 1
        self._hard_state = _HardState(0, None)
        self._writer = _Writer(disk, directory, identity)
        self._open()

    # Opening

    def _open(self) -> None:
        self._disk.make_directory(self._directory)
        names = self._disk.list_directory(self._directory)
        for name in names:
            if name.endswith(_TEMPORARY):
                self._disk.remove(self._path(name))
        firsts = [self._first_of(name) for name in names if name.endswith(_SEGMENT)]
        for first in firsts:
            self._load_segment(first, last=first == firsts[-1])
        self._disk.sync_directory(self._directory)
        if self._segments:
            self.first_index = self._segments[0].first
            self.last_index = self.synced_index = self._segments[-1].end - 1
            self._cache_first = self.last_index + 1
            self._first = self.entry(self.first_index)
            self._note_last()
        self._load_hard_state(present=_HARD_STATE in names)

    def _first_of(self, name: str) -> int:
        stem = name.removesuffix(_SEGMENT)
        if not (len(stem) == 20 and stem.isascii() and stem.isdigit()):
            raise CorruptJournal(self._path(name), 0, "not the name of a segment")
        return int(stem)

    def _load_segment(self, first: int, *, last: bool) -> None:
        path = self._path(segment_name(first))
        if self._segments and self._segments[-1].end != first:
            before = self._segments[-1]
            raise CorruptJournal(
                self._path(segment_name(before.first)),
                before.size,
                f"gap in the log: it ends before index {before.end}, the next file begins with {first}",
            )
        file = self._disk.open(path)
        data = file.pread(0, file.size)
        segment, terms = scan(data, path, self._identity, first, last=last)
        if len(data) > segment.size:
            log.warning(
                "%s: cut a torn tail: %d bytes at offset %d", path, len(data) - segment.size, segment.size
            )
        if last:
            self._settle_tail(file, path, segment)
        file.close()
        if segment.offsets:
            self._segments.append(segment)
            for index, term in terms:
                self._terms.add(index, term)

    def _settle_tail(self, file: File, path: str, segment: Segment) -> None:
        """Make the last file durable as it was read: a killed process may have left it unsynced."""
        if not segment.offsets:
            self._disk.remove(path)
            return
        if file.size > segment.size:
            file.truncate(segment.size)
        file.sync()

    def _load_hard_state(self, *, present: bool) -> None:
        path = self._path(_HARD_STATE)
        last_term = self._terms.at(self.last_index) if self._segments else 0
        if present:
            self._hard_state = _unpack_hard_state(self._disk.read_file(path), path, self._identity)
        if self._hard_state.term < last_term:
            # Raft stores the term before the first entry of that term: the file was lost or is an old one.
            raise CorruptJournal(path, 0, f"term {self._hard_state.term} is below the log's term {last_term}")

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}" if self._directory else name

    # Reading

    def __len__(self) -> int:
        return self.last_index + 1 - self.first_index

    @overload
    def __getitem__(self, item: int) -> Entry: ...
    @overload
    def __getitem__(self, item: slice) -> EntrySlice: ...
    def __getitem__(self, item: int | slice) -> Entry | EntrySlice:
        """Return an entry by position, or a lazy view of consecutive ones.

        An open-ended slice is bounded by `slice_bytes`; the engine may raise that while pysyncobj must see
        the whole of a conflicting tail.
        """
        if isinstance(item, slice):
            return self._slice(item)
        if item == -1 and self._last is not None:
            return self._last
        if item == 0 and self._first is not None:
            return self._first
        index = (self.first_index if item >= 0 else self.last_index + 1) + item
        if not self.first_index <= index <= self.last_index:
            raise IndexError(f"position {item} in a log of {len(self)} entries")
        return self.entry(index)

    def _slice(self, item: slice) -> EntrySlice:
        start, stop, step = item.indices(len(self))
        if step != 1:
            raise ValueError("a slice of the log has no step")
        first = self.first_index + start
        end = self.first_index + max(start, stop)
        if item.stop is None and start < stop:
            end = self.slice_end(first, end)
        return EntrySlice(self, first, end, _Window(first, []))

    def slice_end(self, index: int, end: int) -> int:
        """Index after the last entry, below `end`, that fits into `slice_bytes`, starting with `index`.

        At least two if there are two: pysyncobj takes a slice of one for "nothing follows this entry" and
        would not delete a conflicting tail.
        """
        position = self._segment_position(index)
        stop, budget = self._segments[position].fitting(index, self.slice_bytes)
        while budget and stop < end:
            position += 1
            stop, budget = self._segments[position].fitting(stop, budget)
        return min(max(stop, index + 2), end)

    def entry(self, index: int) -> Entry:
        """Return the entry; its payload is loaded when it is asked for."""
        return self._cache.get(index) or LazyEntry(self, index, self.term_at(index))

    def entries(self, start: int, stop: int) -> list[Record]:
        """Return the entries from `start` to before `stop`, payloads loaded."""
        cached = max(start, min(stop, self._cache_first))
        payloads = self.read_job(range(start, cached))() if start < cached else []
        records = [
            (payload, index, self._terms.at(index)) for index, payload in enumerate(payloads, start=start)
        ]
        records.extend(map(self._cache.__getitem__, range(cached, stop)))
        return records

    def payload(self, index: int) -> bytes | None:
        """Return the payload if it is in memory."""
        entry = self._cache.get(index)
        return entry[0] if entry else None

    def read(self, index: int) -> bytes:
        """Return the payload, from the disk if need be; raises EntryGone or CorruptJournal."""
        entry = self._cache.get(index)
        return entry[0] if entry else self.read_job((index,))()[0]

    def read_job(self, indexes: Sequence[int]) -> Callable[[], list[bytes]]:
        """Make a job that reads the payloads in the given order, on any thread, while writing goes on.

        The job raises CorruptJournal, or EntryGone if an entry was deleted after this call.
        """
        plan: list[bytes | Extent] = []
        for index in indexes:
            entry = self._cache.get(index)
            if entry:
                plan.append(entry[0])
                continue
            extent = self._extent(index)
            previous = plan[-1] if plan else None
            if isinstance(previous, Extent) and previous.joins(extent, READ_BYTES_MAX):
                plan[-1] = previous.join(extent)
            else:
                plan.append(extent)
        return partial(self._read_plan, plan, self._deletions)

    def _read_plan(self, plan: list[bytes | Extent], deletions: int) -> list[bytes]:
        payloads: list[bytes] = []
        reader = _Reader(self._disk, self._directory, self._identity)
        try:
            for part in plan:
                if isinstance(part, Extent):
                    payloads.extend(reader.read(part))
                else:
                    payloads.append(part)
        except CorruptJournal as error:
            # What was deleted since may have been overwritten or removed under the reader.
            if self._deletions != deletions:
                raise EntryGone("an entry was deleted while it was read") from error
            raise
        finally:
            reader.close()
        return payloads

    def term_at(self, index: int) -> int:
        self._check_present(index)
        return self._terms.at(index)

    def _extent(self, index: int) -> Extent:
        self._check_present(index)
        segment = self._segments[self._segment_position(index)]
        start, end = segment.extent(index)
        return Extent(segment.first, start, end, index, index + 1, self._terms.at(index))

    def _check_present(self, index: int) -> None:
        if not self.first_index <= index <= self.last_index:
            raise EntryGone(f"no entry {index}: the log holds {self.first_index} to {self.last_index}")

    def _segment_position(self, index: int) -> int:
        if index >= self._segments[-1].first:
            return len(self._segments) - 1
        return bisect_right(self._segments, index, key=_first_index) - 1

    # Changing

    def add(self, command: bytes, idx: int, term: int) -> None:
        size = len(command)
        if size > PAYLOAD_BYTES_MAX:
            raise JournalMisuseError(f"entry {idx} has {size} bytes, more than {PAYLOAD_BYTES_MAX}")
        if idx != self.last_index + 1 or not self._segments:
            self._begin(idx)
        batch = self._batch
        if batch is None or self._segments[-1].size >= self._segment_bytes:
            batch = self._begin_batch(idx)
        segment = self._segments[-1]
        segment.offsets.append(segment.size)
        segment.size += RECORD_HEADER_BYTES + size
        if term != self._last_term:
            self._terms.add(idx, term)
            self._last_term = term
        entry = (command, idx, term)
        batch.append(entry)
        self._cache[idx] = entry
        self._cache_bytes += size + CACHED_ENTRY_OVERHEAD_BYTES
        if self._cache_bytes > self._cache_bytes_max:
            self._evict()
        if self._first is None:
            self._first = entry
        self._last = entry
        self.last_index = idx
        self.written += 1

    def _begin(self, index: int) -> None:
        """Check the index: only the first entry of an empty log may have any."""
        if self._segments or index < 1:
            raise JournalMisuseError(f"entry {index} cannot follow entry {self.last_index}")
        self.first_index = self._cache_first = index

    def _begin_batch(self, index: int) -> list[Record]:
        """Gather further entries into one write, in a new segment when the current one is full."""
        create = not self._segments or self._segments[-1].size >= self._segment_bytes
        if create:
            self._segments.append(Segment(index))
        self._batch = []
        self._operations.append(_Append(self._segments[-1].first, create, self._batch))
        return self._batch

    def deleteEntriesFrom(self, entryFrom: int) -> None:
        """Delete the entries at this position and after it; see `keep_tail`."""
        if entryFrom < 0:
            raise JournalMisuseError(f"position {entryFrom} is before the first entry")
        if self.keep_tail or entryFrom >= len(self):
            return
        if entryFrom == 0:
            self.clear()
            return
        index = self.first_index + entryFrom
        while self._segments[-1].first >= index:
            self._change(_Remove(self._segments.pop().first))
        tail = self._segments[-1]
        if tail.end > index:
            tail.cut_from(index)
            self._change(_Truncate(tail.first, tail.size))
        self._terms.cut_from(index)
        for cached in range(max(index, self._cache_first), self.last_index + 1):
            self._forget(cached)
        self._cache_first = min(self._cache_first, index)
        self.synced_index = min(self.synced_index, index - 1)
        self._flight_index = min(self._flight_index, index - 1)
        self.last_index = index - 1
        self._note_last()

    def deleteEntriesTo(self, entryTo: int) -> None:
        """Delete the entries before this position; the disk follows when a whole segment is below it."""
        if entryTo <= 0:
            return
        if entryTo >= len(self):
            self.clear()
            return
        index = self.first_index + entryTo
        while self._segments[0].end <= index:
            self._change(_Remove(self._segments.pop(0).first))
        self._terms.cut_to(index)
        for cached in range(self._cache_first, index):
            self._forget(cached)
        self._cache_first = max(self._cache_first, index)
        self.first_index = index
        self._first = self.entry(index)

    def clear(self) -> None:
        while self._segments:
            self._change(_Remove(self._segments.pop().first))
        self._terms = _TermRuns()
        self._last_term = -1
        self._cache.clear()
        self._cache_bytes = 0
        self._first = self._last = None
        self.first_index = self._cache_first = 1
        self.last_index = self.synced_index = self._flight_index = 0

    def _change(self, operation: _Operation) -> None:
        """Queue something other than an append; the next append starts a write of its own."""
        self._operations.append(operation)
        self._batch = None
        self.written += 1
        self._deletions += 1

    def _note_last(self) -> None:
        self._last = self.entry(self.last_index)
        self._last_term = self._last[2]

    def _evict(self) -> None:
        """Bound the cache; what is not synced yet stays, because it can be read nowhere else."""
        while self._cache_bytes > self._cache_bytes_max and self._cache_first <= self.synced_index:
            self._forget(self._cache_first)
            self._cache_first += 1

    def _forget(self, index: int) -> None:
        self._cache_bytes -= len(self._cache.pop(index)[0]) + CACHED_ENTRY_OVERHEAD_BYTES

    # Group commit

    @property
    def dirty(self) -> bool:
        """Something has changed that no sync has taken up yet."""
        return self.written > self._handed

    def start_sync(self, done: Callable[[], None]) -> None:
        """Make everything so far durable off the loop, then call `done`; not called if the disk fails."""
        operations, target = self._take_operations()
        self.sync_in_flight = True

        def finished(_result: None, error: Exception | None) -> None:
            if error is not None:
                self._fail(error)
            elif not self._failed:
                self._synced_to(target)
                done()

        self._disk.submit(partial(self._writer.run, operations), finished)

    def sync_now(self) -> None:
        """Make everything so far durable before returning; for start-up. Raises OSError."""
        operations, target = self._take_operations()
        try:
            self._writer.run(operations)
        except OSError as error:
            self._fail(error)
            raise
        self._synced_to(target)

    def _take_operations(self) -> tuple[list[_Operation], int]:
        if self.sync_in_flight or self._failed:
            raise JournalMisuseError("the disk has failed" if self._failed else "a sync is in flight already")
        operations = self._operations
        self._operations = []
        self._batch = None
        self._handed = self.written
        # Deletions lower it while the sync is in flight: it does not vouch for what takes their place.
        self._flight_index = self.last_index
        return operations, self.written

    def _synced_to(self, target: int) -> None:
        self.sync_in_flight = False
        self.synced = target
        self.synced_index = self._flight_index
        self._evict()

    def _fail(self, error: Exception) -> None:
        self._failed = True
        # For good: what a failed sync should have written cannot be told from what is on the disk.
        self.sync_in_flight = True
        self._on_failure(error)

    # Term, vote, commit index

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:
        """Durable when it returns; raises OSError, and then nothing has changed."""
        state = _HardState(term, votedForNodeId)
        try:
            self._disk.replace_file(self._path(_HARD_STATE), _pack_hard_state(state, self._identity))
        except OSError as error:
            self._fail(error)
            raise
        self._hard_state = state

    def getCurrentTerm(self) -> int:
        return self._hard_state.term

    def getVotedForNodeId(self) -> str | None:
        return self._hard_state.voted_for

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:
        """In memory only: after a restart the leader tells it again."""
        self._commit_index = raftCommitIndex

    def getRaftCommitIndex(self) -> int:
        return self._commit_index

    def _destroy(self) -> None:
        self._disk.submit(self._writer.close, _ignore)


def _first_index(segment: Segment) -> int:
    return segment.first


def _ignore(_result: None, _error: Exception | None) -> None:
    """Take no notice: closing a file that needs no sync cannot fail in a way that matters."""


class LazyEntry:
    """An entry whose payload is read from the disk when it is asked for."""

    __slots__ = ("_index", "_journal", "_payload", "_term")

    def __init__(self, journal: SegmentedJournal, index: int, term: int) -> None:
        self._journal = journal
        self._index = index
        self._term = term
        self._payload: bytes | None = None

    @overload
    def __getitem__(self, item: Literal[0]) -> bytes: ...
    @overload
    def __getitem__(self, item: Literal[1, 2]) -> int: ...
    def __getitem__(self, item: int) -> bytes | int:
        if item == 2:
            return self._term
        if item == 1:
            return self._index
        if item != 0:
            raise IndexError(item)
        if self._payload is None:
            self._payload = self._journal.read(self._index)
        return self._payload

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[bytes | int]:
        return iter((self[0], self._index, self._term))

    def __eq__(self, other: object) -> bool:
        # The numbers first: pysyncobj compares entries, and a different one need not be read.
        if not isinstance(other, (tuple, list, LazyEntry)) or len(other) != 3:
            return NotImplemented
        return (self._index, self._term) == (other[1], other[2]) and self[0] == other[0]

    __hash__ = None  # pyright: ignore[reportAssignmentType]


Entry = Record | LazyEntry


class _Window(NamedTuple):
    """Entries that a slice has loaded."""

    start: int
    records: list[Record]


class EntrySlice(Sequence[Entry]):
    """A view of consecutive entries; iterating loads at most `slice_bytes` at a time."""

    __slots__ = ("_journal", "_start", "_stop", "_window")

    def __init__(self, journal: SegmentedJournal, start: int, stop: int, window: _Window) -> None:
        self._journal = journal
        self._start = start
        self._stop = stop
        self._window = window

    def __len__(self) -> int:
        return self._stop - self._start

    @overload
    def __getitem__(self, item: int) -> Entry: ...
    @overload
    def __getitem__(self, item: slice) -> EntrySlice: ...
    def __getitem__(self, item: int | slice) -> Entry | EntrySlice:
        if isinstance(item, slice):
            start, stop, step = item.indices(len(self))
            if step != 1:
                raise ValueError("a slice of the log has no step")
            return EntrySlice(
                self._journal, self._start + start, self._start + max(start, stop), self._window
            )
        index = (self._start if item >= 0 else self._stop) + item
        if not self._start <= index < self._stop:
            raise IndexError(item)
        position = index - self._window.start
        if 0 <= position < len(self._window.records):
            return self._window.records[position]
        return self._journal.entry(index)

    def __iter__(self) -> Iterator[Record]:
        index = self._start
        while index < self._stop:
            records = self._loaded(index)
            yield from records
            index += len(records)

    def _loaded(self, index: int) -> list[Record]:
        """Entries from `index` on, at least one, with their payloads."""
        position = index - self._window.start
        if not 0 <= position < len(self._window.records):
            stop = self._journal.slice_end(index, self._stop)
            self._window = _Window(index, self._journal.entries(index, stop))
            position = 0
        return self._window.records[position : position + self._stop - index]


class _TermRuns:
    """The term of every entry, as runs: a term is a reign, not an entry."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._terms: list[int] = []

    def add(self, index: int, term: int) -> None:
        if not self._terms or self._terms[-1] != term:
            self._starts.append(index)
            self._terms.append(term)

    def at(self, index: int) -> int:
        if index >= self._starts[-1]:
            return self._terms[-1]
        return self._terms[bisect_right(self._starts, index) - 1]

    def cut_from(self, index: int) -> None:
        while self._starts and self._starts[-1] >= index:
            self._starts.pop()
            self._terms.pop()

    def cut_to(self, index: int) -> None:
        below = bisect_right(self._starts, index) - 1
        del self._starts[:below], self._terms[:below]


class _Append(NamedTuple):
    first: int
    create: bool
    records: list[Record]


class _Truncate(NamedTuple):
    first: int
    size: int


class _Remove(NamedTuple):
    first: int


_Operation = _Append | _Truncate | _Remove


class _Writer:
    """The files as the writer thread sees them; one job at a time uses it."""

    def __init__(self, disk: Disk, directory: str, identity: bytes) -> None:
        self._disk = disk
        self._directory = directory
        self._identity = identity
        self._file: File | None = None
        self._first = 0
        self._seed = 0
        self._durable = 0
        self._names_changed = False

    def run(self, operations: list[_Operation]) -> None:
        """Carry out the operations in order and make them durable."""
        for operation in operations:
            match operation:
                case _Append():
                    self._append(operation)
                case _Truncate():
                    self._truncate(operation)
                case _Remove():
                    self._remove(operation.first)
        self._settle()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _append(self, operation: _Append) -> None:
        file = self._use(operation.first, create=operation.create)
        buffers = pack_records(operation.records, self._durable, self._seed)
        if operation.create:
            buffers.insert(0, pack_file_header(self._identity, operation.first))
        file.append(buffers)

    def _truncate(self, operation: _Truncate) -> None:
        file = self._use(operation.first, create=False)
        file.truncate(operation.size)
        file.sync()
        self._durable = file.size

    def _remove(self, first: int) -> None:
        if first == self._first:
            self.close()
        else:
            self._settle()
        self._disk.remove(self._path(first))
        self._disk.sync_directory(self._directory)

    def _use(self, first: int, *, create: bool) -> File:
        """Switch to the file to write to, after making the one before it durable."""
        if self._file is not None and self._first == first and not create:
            return self._file
        self._settle()
        self.close()
        file = self._disk.open(self._path(first), create=create)
        self._file = file
        self._first = first
        self._seed = record_seed(self._identity, first)
        # An existing file was made durable when the log was opened or the next segment begun.
        self._durable = file.size
        self._names_changed = create
        return file

    def _settle(self) -> None:
        if self._file is not None and self._file.size != self._durable:
            self._file.sync()
            self._durable = self._file.size
        if self._names_changed:
            self._disk.sync_directory(self._directory)
            self._names_changed = False

    def _path(self, first: int) -> str:
        name = segment_name(first)
        return f"{self._directory}/{name}" if self._directory else name


class _Reader:
    """Reads records for one job, with files of its own: the writer may close its files meanwhile."""

    def __init__(self, disk: Disk, directory: str, identity: bytes) -> None:
        self._disk = disk
        self._directory = directory
        self._identity = identity
        self._file: File | None = None
        self._path = ""

    def read(self, extent: Extent) -> list[bytes]:
        name = segment_name(extent.segment)
        path = f"{self._directory}/{name}" if self._directory else name
        file = self._open(path)
        return read_extent(file, path, record_seed(self._identity, extent.segment), extent)

    def _open(self, path: str) -> File:
        if self._file is None or path != self._path:
            self.close()
            try:
                self._file = self._disk.open(path)
            except FileNotFoundError:
                raise CorruptJournal(path, 0, "the file is missing") from None
            self._path = path
        return self._file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class _HardState(NamedTuple):
    term: int
    voted_for: str | None


_HARD_STATE_MAGIC = b"RVOT"
_HARD_STATE_START = Struct(
    "<4sI32sQB"
)  # magic, version, sha256 of the identity, term, whether there is a vote
_CRC_BYTES = 4


def _pack_hard_state(state: _HardState, identity: bytes) -> bytes:
    start = _HARD_STATE_START.pack(
        _HARD_STATE_MAGIC, FORMAT_VERSION, sha256(identity).digest(), state.term, state.voted_for is not None
    )
    body = start + (state.voted_for or "").encode()
    return body + crc32(body).to_bytes(_CRC_BYTES, "little")


def _unpack_hard_state(data: bytes, path: str, identity: bytes) -> _HardState:
    body, crc = data[:-_CRC_BYTES], data[-_CRC_BYTES:]
    if len(body) < _HARD_STATE_START.size or crc32(body) != int.from_bytes(crc, "little"):
        raise CorruptJournal(path, 0, "wrong checksum of term and vote")
    magic, version, digest, term, voted = _HARD_STATE_START.unpack_from(body)
    if magic != _HARD_STATE_MAGIC:
        raise CorruptJournal(path, 0, "not a file of term and vote")
    if version != FORMAT_VERSION:
        raise UnknownFormat(path, version)
    if digest != sha256(identity).digest():
        raise ForeignJournal(path)
    return _HardState(term, body[_HARD_STATE_START.size :].decode() if voted else None)
