"""The replicated log, in the form that pysyncobj expects of its journal.

The *log* is the contiguous entries `first_index` to `last_index`. Below it there may be segments that hold single
entries, or that nobody has looked at yet: they can be read, and that is all.

Invariant: memory changes at once, the disk in the same order at the next sync, and an index is *synced* only when
the entry that is in memory under this index now is on stable storage.
"""

# ruff: noqa: N802, N803 - pysyncobj gives the names of its interface

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol, overload

from pysyncobj.journal import Journal

from cluster.log.entry import ENTRY_BYTES_MAX, is_regular
from cluster.log.hardstate import HardState, HardStateFile, Standing
from cluster.log.lazy_entries import Entry, EntrySlice, LazyEntry
from cluster.log.manifest import log_start, row_of, segment_name
from cluster.log.sealed_segment import footer_bytes
from cluster.log.segment import (
    RECORD_HEADER_BYTES,
    SEGMENT_BYTES_MAX,
    CorruptJournal,
    EntryGone,
    EntryMoved,
    Extent,
    Record,
    RecordIndex,
    Segment,
)
from cluster.log.segment_reader import IndexCache, Part, Reader, Span, add_extent, load_log
from cluster.log.segment_writer import (
    Adopt,
    AppendRecords,
    Begin,
    Cut,
    DiskFull,
    Operation,
    Replace,
    Seal,
    SegmentWriter,
    Store,
    Truncate,
    remove_segments,
)
from cluster.log.term_runs import TermRuns

if TYPE_CHECKING:
    from cluster.runtime.ports import Disk

SEGMENT_BYTES = 64 * 2**20
SEGMENT_ENTRIES = 65536
CACHE_BYTES = 32 * 2**20
SLICE_BYTES = 2**20
SLICE_ENTRIES = 512
"""How many entries a slice may have: reading so many from the disk takes some milliseconds, however small they are."""
SHORT_BYTES = 16 * 2**10
"""A sync of so few bytes is quick on a quick disk: mostly it is of one entry, with which a client waits alone."""
CACHED_ENTRY_OVERHEAD_BYTES = 200  # tuple, integers, bytes header and dictionary slot of a cached entry


class JournalMisuseError(Exception):
    """The caller broke the contract of the journal; its state is as before."""


class EntryObserver(Protocol):
    """The observer that has to know at once which entries without batches are in the log; there are few of these."""

    def appended(self, index: int, entry: bytes) -> None:
        """The entry at `index`, which holds no batches, is in the log now."""
        ...

    def cut_from(self, index: int) -> None:
        """The entries from `index` on were deleted."""
        ...


class SegmentedJournal(Journal):
    """The log of one group.

    Opening raises CorruptJournal, ForeignJournal, UnknownFormat or OSError. `writes_lost` tells that writes which were
    not synced may be lost: only then can a damaged tail be a torn one. `on_failure` is called when the disk fails:
    nothing is reported as synced after that. When a sync has found no space, `full` is set: call `start_sync` again, at
    any time; what waits for it stays in order.
    """

    keep_tail: bool = False
    """While set, `deleteEntriesFrom` does nothing, because the append under way has no conflict (hazard H2)."""

    full: bool = False
    """Whether the last sync has found no space."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        identity: bytes,
        on_failure: Callable[[Exception], None],
        hard_state: HardStateFile,
        observer: EntryObserver | None = None,
        *,
        writes_lost: bool = True,
        segment_bytes: int = SEGMENT_BYTES,
        segment_entries: int = SEGMENT_ENTRIES,
        cache_bytes: int = CACHE_BYTES,
        slice_bytes: int = SLICE_BYTES,
    ) -> None:
        if not 0 < segment_bytes <= SEGMENT_BYTES_MAX:
            raise ValueError(f"segment_bytes must be from 1 to {SEGMENT_BYTES_MAX}, not {segment_bytes}")
        if segment_entries < 1:
            raise ValueError(f"segment_entries must be at least 1, not {segment_entries}")
        self.slice_bytes = slice_bytes
        self.written = 0
        self.synced = 0
        self.synced_index = 0
        self.sync_in_flight = False
        self.first_index = 1
        self.last_index = 0
        self.last_term = -1
        """The term of the last entry, -1 without one."""
        self.appended_bytes = 0
        """Bytes of records added since this object was made."""
        self._disk = disk
        self._directory = directory
        self._identity = identity
        self._on_failure = on_failure
        self._hard_state = hard_state
        self._observer = observer
        self._failed = False
        self._segment_bytes = segment_bytes
        self._segment_entries = segment_entries
        self._sealed: list[Segment] = []
        self._unsealed: dict[Segment, RecordIndex] = {}
        """The segments of `_sealed` whose footer is not known to be on the disk yet, with their record indexes."""
        self._open: RecordIndex | None = None
        """The record index of the segment that grows, which always holds an entry; None if there is no such segment."""
        self._open_end_max = 0
        self._terms = TermRuns()
        self._first: Entry | None = None
        self._last: Entry | None = None
        self._cache: dict[int, Record] = {}
        self._cache_first = 1
        self._cache_bytes = 0
        self._cache_bytes_max = cache_bytes
        self._operations: deque[Operation] = deque()
        self._batch: list[Record] | None = None
        self._handed = 0
        self._flight_index = 0
        self._flight_sealed: list[Segment] = []
        self._flight_bytes = 0
        self._synced_bytes = 0
        self._deletions = 0
        self._commit_index = 1
        self._indexes = IndexCache(disk, directory, identity)
        disk.make_directory(directory)
        loaded = load_log(disk, directory, identity, writes_lost=writes_lost)
        self._next_serial = loaded.next_serial
        self._writer = SegmentWriter(disk, directory, identity, loaded.manifest)
        self._sealed = [Segment.sealed_file(*row[:4], sparse=row.sparse) for row in loaded.manifest.sealed]
        self._terms.extend(loaded.manifest.runs)
        if loaded.open is not None:
            self._take_open(loaded.open.records)
            self._terms.extend(loaded.open.runs)
        if self._sealed or self._open:
            self._begin_with_whole_log()

    def _begin_with_whole_log(self) -> None:
        """Set the bounds of a log whose entries are all on the disk, none of them in memory."""
        self.first_index = self._log_start()
        self.last_index = self._open.end - 1 if self._open else self._sealed[-1].end - 1
        self.synced_index = self._flight_index = self.last_index
        self._cache.clear()
        self._cache_bytes = 0
        self._cache_first = self.last_index + 1
        self._first = None
        self._note_last()

    def _log_start(self) -> int:
        """The first index of the first dense segment behind which there is no hole."""
        return log_start(self._sealed, self._open.first if self._open else self._sealed[-1].end)

    # Which files there are

    def segments(self) -> list[Segment]:
        """All segment files, ascending, also those below the log."""
        index = self._open
        if index is None:
            return list(self._sealed)
        return [
            *self._sealed,
            Segment(index.name, index.first, index.end, index.size, sparse=False, sealed=False),
        ]

    @property
    def disk_bytes(self) -> int:
        """How many bytes all segment files have together."""
        return sum(segment.file_bytes for segment in self.segments())

    @property
    def unsynced_bytes(self) -> int:
        """How many bytes of records were added and are not yet known to be on stable storage."""
        return self.appended_bytes - self._synced_bytes

    def bytes_from(self, index: int) -> int:
        """About how many bytes of records there are from `index` on."""
        total = 0
        for segment in reversed(self.segments()):
            if segment.end <= index:
                break
            share = min(segment.end - index, segment.end - segment.first)
            total += segment.file_bytes * share // (segment.end - segment.first)
        return total

    def new_name(self, first: int, *, sparse: bool) -> str:
        """A name for a segment file, with a serial number that no other one has."""
        name = segment_name(first, self._next_serial, sparse=sparse)
        self._next_serial += 1
        return name

    # Reading

    def __len__(self) -> int:
        return self.last_index + 1 - self.first_index

    @overload
    def __getitem__(self, item: int) -> Entry: ...
    @overload
    def __getitem__(self, item: slice) -> EntrySlice: ...
    def __getitem__(self, item: int | slice) -> Entry | EntrySlice:
        """Return an entry by position, or a lazy view of consecutive ones."""
        if isinstance(item, slice):
            return self._slice(item)
        if item == -1 and self._last is not None:
            return self._last
        if item == 0 and self._first is not None:
            return self._first
        index = (self.first_index if item >= 0 else self.last_index + 1) + item
        if not self.first_index <= index <= self.last_index:
            raise IndexError(f"position {item} in a log of {len(self)} entries")
        entry = self.entry(index)
        if item == 0:
            self._first = entry
        return entry

    def _slice(self, item: slice) -> EntrySlice:
        start, stop, step = item.indices(len(self))
        if step != 1:
            raise ValueError("a slice of the log has no step")
        return EntrySlice(self, self.first_index + start, self.first_index + max(start, stop))

    def slice_end(self, index: int, end: int) -> int:
        """Where a slice that begins with `index` ends: the index after its last entry, `end` at most.

        It has at most `slice_bytes` and `SLICE_ENTRIES`, but at least one entry: a larger one is a slice of its own.
        """
        end = min(end, index + SLICE_ENTRIES)
        stop, budget = self._index_of(index).fitting(index, self.slice_bytes)
        while budget and stop < end:
            stop, budget = self._index_of(stop).fitting(stop, budget)
        return min(max(stop, index + 1), end)

    def entry(self, index: int) -> Entry:
        """Return the entry at this index; its payload is loaded when it is asked for."""
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
        """Return the payload of an entry if it is in memory, else None."""
        entry = self._cache.get(index)
        return entry[0] if entry else None

    def read(self, index: int) -> bytes:
        """Return the payload of an entry, from the disk if need be; raises EntryGone or CorruptJournal."""
        entry = self._cache.get(index)
        return entry[0] if entry else self.read_job((index,))()[0]

    def read_job(self, indexes: Sequence[int], bytes_max: int | None = None) -> Callable[[], list[bytes]]:
        """Make a job that reads the payloads in the given order, on any thread, while writing goes on.

        Once it has `bytes_max`, it may leave out the rest; the first entry is read in any case. The indexes may be
        below the log. Raises EntryGone for an index that no segment covers. The job raises CorruptJournal, EntryGone
        for an entry that is not held, or EntryMoved if files went away since this call: then a new job may find it.
        """
        parts: list[Part] = []
        for index in indexes:
            entry = self._cache.get(index)
            if entry:
                parts.append(entry[0])
            elif self._open is not None and self._open.first <= index <= self.last_index:
                start, end = self._open.extent(index)
                extent = Extent(self._open.name, start, end, index, index + 1, self._terms.at(index))
                add_extent(parts, extent)
            else:
                self._add_span(parts, index)
        return partial(self._read_parts, parts, bytes_max, self._deletions)

    def _add_span(self, parts: list[Part], index: int) -> None:
        """Add an entry of a sealed segment; if it follows the one before it at once, both are looked up together."""
        span = parts[-1] if parts else None
        if (
            isinstance(span, Span)
            and span.after == index
            and index < span.segment.end
            and span.term == self._terms.at(index)
        ):
            span.after += 1
            return
        segment = self._segment_of(index)
        parts.append(Span(segment, self._unsealed.get(segment), index, index + 1, self._terms.at(index)))

    def _read_parts(self, parts: list[Part], bytes_max: int | None, deletions: int) -> list[bytes]:
        try:
            return Reader(self._disk, self._directory, self._identity, self._indexes).read(parts, bytes_max)
        except CorruptJournal as error:
            # Files with entries that were deleted since may have been overwritten or removed while they were read.
            if self._deletions != deletions:
                raise EntryMoved("an entry was deleted while it was read") from error
            raise

    def term_at(self, index: int) -> int:
        """The term of the entry at this index; raises EntryGone if the log does not hold it."""
        if not self.first_index <= index <= self.last_index:
            raise EntryGone(f"no entry {index}: the log holds {self.first_index} to {self.last_index}")
        return self._terms.at(index)

    def _index_of(self, index: int) -> RecordIndex:
        """The record index of the segment that holds this entry; raises EntryGone, or as reading a footer does."""
        if self._open is not None and index >= self._open.first:
            return self._open
        segment = self._segment_of(index)
        return self._unsealed.get(segment) or self._indexes.get(segment)

    def _segment_of(self, index: int) -> Segment:
        """The sealed segment in whose range an index is; raises EntryGone if there is none."""
        position = bisect_right(self._sealed, index, key=_first_index) - 1
        if position < 0 or index >= self._sealed[position].end:
            raise EntryGone(f"no entry {index}: the log holds {self.first_index} to {self.last_index}")
        return self._sealed[position]

    # Changing

    def add(self, command: bytes, idx: int, term: int) -> None:
        size = len(command)
        if size > ENTRY_BYTES_MAX:
            raise JournalMisuseError(f"entry {idx} has {size} bytes, more than {ENTRY_BYTES_MAX}")
        open_ = self._open
        if idx != self.last_index + 1:
            self._begin(idx)
        batch = self._batch
        if batch is None or open_ is None or open_.size >= self._segment_bytes or idx >= self._open_end_max:
            batch, open_ = self._begin_batch(idx)
        open_.offsets.append(open_.size)
        size += RECORD_HEADER_BYTES
        open_.size += size
        self.appended_bytes += size
        if term != self.last_term:
            self._terms.add(idx, term)
            self.last_term = term
        entry = (command, idx, term)
        batch.append(entry)
        self._cache[idx] = entry
        self._cache_bytes += len(command) + CACHED_ENTRY_OVERHEAD_BYTES
        if self._cache_bytes > self._cache_bytes_max:
            self._evict()
        self._last = entry
        self.last_index = idx
        self.written += 1
        if self._observer is not None and not is_regular(command):
            self._observer.appended(idx, command)

    def _begin(self, index: int) -> None:
        """Begin an empty log with this index. Raises JournalMisuseError if it is below 1, or the log not empty."""
        if self._last is not None or index < 1:
            raise JournalMisuseError(f"entry {index} cannot follow entry {self.last_index}")
        self.first_index = self._cache_first = index

    def _begin_batch(self, index: int) -> tuple[list[Record], RecordIndex]:
        """Queue a new write for this entry and those after it, in a new segment if there is none or it is full."""
        open_ = self._open
        if open_ is not None and (open_.size >= self._segment_bytes or index >= self._open_end_max):
            self._seal(open_)
            open_ = None
        if open_ is None:
            open_ = RecordIndex(self.new_name(index, sparse=False), index)
            self._take_open(open_)
            self._operations.append(Begin(open_.name, index))
        self._batch = []
        self._operations.append(AppendRecords(self._batch))
        return self._batch, open_

    def _take_open(self, index: RecordIndex) -> None:
        self._open = index
        self._open_end_max = index.first + self._segment_entries

    def _seal(self, index: RecordIndex) -> None:
        index.runs = self._terms.between(index.first, index.end)
        size = index.size + footer_bytes(len(index.offsets), len(index.runs), sparse=False)
        segment = Segment(index.name, index.first, index.end, size, sparse=False, sealed=False)
        self._sealed.append(segment)
        self._unsealed[segment] = index
        self._open = None
        self._batch = None
        self._operations.append(Seal(index))

    @property
    def open_bytes(self) -> int:
        """How long the open segment's file is, in bytes; 0 if there is none."""
        return self._open.size if self._open is not None else 0

    def seal(self) -> None:
        """Seal the open segment with the next sync, if there is one."""
        if self._open is not None:
            self._seal(self._open)
            self.written += 1

    def deleteEntriesFrom(self, entryFrom: int) -> None:
        """Delete the entries at this position and after it, but never all; see `keep_tail`.

        Raises CorruptJournal if a sealed segment that must be opened again is damaged.
        """
        if entryFrom < 1:
            raise JournalMisuseError(f"position {entryFrom} is not behind the first entry")
        if self.keep_tail or entryFrom >= len(self):
            return
        index = self.first_index + entryFrom
        if self._open is not None and self._open.first < index:
            self._open = self._open.cut_from(index)
            self._change(Truncate(self._open.size))
        else:
            self._cut_sealed(index)
        self._terms.cut_from(index)
        for cached in range(max(index, self._cache_first), self.last_index + 1):
            self._forget(cached)
        self._cache_first = min(self._cache_first, index)
        self.synced_index = min(self.synced_index, index - 1)
        self._flight_index = min(self._flight_index, index - 1)
        self.last_index = index - 1
        self._note_last()
        if self._observer is not None:
            self._observer.cut_from(index)

    def _cut_sealed(self, index: int) -> None:
        """Delete the entries from `index` on, which is at or before the first entry of the open segment."""
        kept = bisect_right(self._sealed, index - 1, key=_first_index)
        reopened: RecordIndex | None = None
        if self._sealed[kept - 1].end > index:
            reopened = self._index_of(index).cut_from(index)
            kept -= 1
        for segment in self._sealed[kept:]:
            self._unsealed.pop(segment, None)
        del self._sealed[kept:]
        self._open = None
        if reopened is not None:
            self._take_open(reopened)
        self._change(Cut(index, reopened.size if reopened else 0))

    def replace(self, old: Sequence[Segment], new: Segment | None) -> None:
        """Put a sparse segment that is durable, or nothing, in the place of consecutive sealed ones.

        Memory changes at once, the disk at the next sync. `first_index` moves up to the first dense segment behind
        which there is no hole; the caller must know that nobody needs the entries that are lost below it.
        """
        names = [segment.name for segment in old]
        known = [segment.name for segment in self._sealed]
        start = known.index(names[0]) if names and names[0] in known else 0
        end = start + len(names)
        if not names or known[start:end] != names or not all(s.sealed for s in self._sealed[start:end]):
            raise JournalMisuseError(f"{names} are not consecutive sealed segments of the log")
        if new is not None and not old[0].first <= new.first < new.end <= old[-1].end:
            raise JournalMisuseError(f"{new.name} is not of the range of {names}")
        if self._open is None and end == len(known):
            raise JournalMisuseError(f"{names[-1]} is the end of the log")
        self._sealed[start:end] = [] if new is None else [new]
        self._change(Replace(names, None if new is None else row_of(new)))
        self._terms.cut_to(self._sealed[0].first if self._sealed else self._log_start())
        self.first_index = self._log_start()
        self._first = None
        for cached in range(self._cache_first, self.first_index):
            self._forget(cached)
        self._cache_first = max(self._cache_first, self.first_index)

    def runs_of(self, segments: Sequence[Segment]) -> TermRuns:
        """The terms of the entries of sealed segments, from their files, on any thread. Raises CorruptJournal."""
        return TermRuns(run for segment in segments for run in self._indexes.get(segment).runs)

    def adopt(self, segments: Sequence[Segment], runs: TermRuns) -> None:
        """Let the log consist of these sealed segments, which are durable in the directory, and nothing else.

        Memory changes at once, the disk at the next sync; `synced_index` is 0 until then. The last one must be dense.
        """
        if not segments or segments[-1].sparse:
            raise JournalMisuseError("a log ends with a dense segment")
        self._sealed = list(segments)
        self._unsealed.clear()
        self._open = None
        self._terms = runs
        # The others are of a log that is given up; on a full disk this makes space.
        self._operations = _stores(self._operations)
        self._change(Adopt([row_of(segment) for segment in segments], runs.all()))
        self._begin_with_whole_log()
        # Until the next sync the disk has the old log, and a sync in flight is of that one.
        self.synced_index = self._flight_index = 0

    def _change(self, operation: Operation) -> None:
        """Queue something other than an append; the next append starts a write of its own."""
        self._operations.append(operation)
        self._batch = None
        self.written += 1
        self._deletions += 1

    def store_beside(self, store: Callable[[], None], *, first: bool) -> None:
        """Have `store` called with the next sync, before all changes that no sync has taken up yet, or behind them.

        It is called on the writer thread, and again if it raises an OSError for want of space; only the last one that
        is given counts, and comes first if the one before had to. What is synced later than it was given vouches for
        what it has stored.
        """
        first = first or (len(self._operations) > 0 and isinstance(self._operations[0], Store))
        self._operations = _without_stores(self._operations)
        if first:
            self._operations.appendleft(Store(store))
        else:
            self._operations.append(Store(store))
        self._batch = None
        self.written += 1

    def _note_last(self) -> None:
        self._last = self.entry(self.last_index)
        self.last_term = self._last[2]

    def _evict(self) -> None:
        """Remove the oldest entries from the cache until it is within its limit.

        What is not synced yet stays, because it can be read nowhere else, and so does the last entry, however large:
        it is about to be applied, and in memory anyway.
        """
        evictable = min(self.synced_index, self.last_index - 1)
        while self._cache_bytes > self._cache_bytes_max and self._cache_first <= evictable:
            self._forget(self._cache_first)
            self._cache_first += 1

    def _forget(self, index: int) -> None:
        self._cache_bytes -= len(self._cache.pop(index)[0]) + CACHED_ENTRY_OVERHEAD_BYTES

    # Group commit

    @property
    def dirty(self) -> bool:
        """Whether there are changes that no sync has taken up yet."""
        return self.written > self._handed

    def start_sync(self, done: Callable[[], None]) -> None:
        """Make everything so far durable off the loop, then call `done`, but not if the disk fails or is full.

        What is little may be made durable before this returns.
        """
        is_short = self.unsynced_bytes <= SHORT_BYTES and len(self._operations) == 1
        operations, target = self._take_operations()
        self.sync_in_flight = True

        def finished(_result: None, error: Exception | None) -> None:
            if self._failed:
                return
            self._remove_dropped()
            if isinstance(error, DiskFull):
                self._put_back(operations)
            elif error is not None:
                self._fail(error)
            else:
                self._synced_to(target)
                done()

        self._disk.submit(partial(self._writer.run, operations), finished, is_short=is_short)

    def sync_now(self) -> None:
        """Make everything so far durable before returning; for start-up.

        Raises OSError, and does not call `on_failure` then; after DiskFull a later sync may succeed.
        """
        operations, target = self._take_operations()
        try:
            self._writer.run(operations)
            remove_segments(self._disk.remove, self._directory, self._writer.take_dropped())
        except DiskFull:
            self._put_back(operations)
            raise
        except OSError:
            self._end()
            raise
        self._synced_to(target)

    def _remove_dropped(self) -> None:
        dropped = self._writer.take_dropped()
        if dropped:
            remove = partial(remove_segments, self._disk.remove_in_parts, self._directory, dropped)
            self._disk.submit_background(remove, self._removed)

    def _removed(self, _result: None, error: Exception | None) -> None:
        if error is not None and not self._failed:
            self._fail(error)

    def _take_operations(self) -> tuple[deque[Operation], int]:
        if self.sync_in_flight or self._failed:
            raise JournalMisuseError("the disk has failed" if self._failed else "a sync is in flight already")
        operations = self._operations
        self._operations = deque()
        self._batch = None
        self._handed = self.written
        # Deletions lower this while the sync is in flight, because it does not vouch for what takes their place.
        self._flight_index = self.last_index
        self._flight_sealed = list(self._unsealed)
        self._flight_bytes = self.appended_bytes
        return operations, self.written

    def _put_back(self, operations: deque[Operation]) -> None:
        """Queue the operations again that found no space, before those that were queued after them."""
        if any(isinstance(operation, Adopt) for operation in self._operations):
            operations = _stores(operations)
        if _stores(self._operations):
            operations = _without_stores(operations)
        self._operations.extendleft(reversed(operations))
        self._operations = _with_space_first(self._operations)
        self._handed = self.synced
        self.sync_in_flight = False
        self.full = True

    def _synced_to(self, target: int) -> None:
        self.sync_in_flight = False
        self.full = False
        self.synced = target
        self.synced_index = self._flight_index
        self._synced_bytes = self._flight_bytes
        for segment in self._flight_sealed:
            index = self._unsealed.pop(segment, None)
            if index is not None:  # the segment was not cut meanwhile
                segment.sealed = True
                self._indexes.put(segment, index)
        self._evict()

    def _fail(self, error: Exception) -> None:
        self._end()
        self._on_failure(error)

    def _end(self) -> None:
        self._failed = True
        # It stays set for good: nobody knows how much a failed sync has written.
        self.sync_in_flight = True

    # Term, vote, commit index

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:
        """Store term and vote, durably when this returns; raises OSError."""
        known = self._hard_state.state
        standing = Standing.BLANK if known is None else known.standing
        try:
            self._hard_state.store(HardState(term, votedForNodeId, standing))
        except OSError as error:
            self._fail(error)
            raise

    def getCurrentTerm(self) -> int:
        known = self._hard_state.state
        return 0 if known is None else known.term

    def getVotedForNodeId(self) -> str | None:
        known = self._hard_state.state
        return None if known is None else known.voted_for

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:
        """Keep the commit index, in memory only: after a restart the leader tells it again (pysyncobj's method)."""
        self._commit_index = raftCommitIndex

    def getRaftCommitIndex(self) -> int:
        return self._commit_index

    def _destroy(self) -> None:
        self._disk.submit(self._writer.close, _ignore)


def _stores(operations: Iterable[Operation]) -> deque[Operation]:
    return deque(operation for operation in operations if isinstance(operation, Store))


def _without_stores(operations: Iterable[Operation]) -> deque[Operation]:
    return deque(operation for operation in operations if not isinstance(operation, Store))


def _with_space_first(operations: deque[Operation]) -> deque[Operation]:
    """The operations with those before all others that give space back: else they would wait for want of it.

    What they drop or put in place is sealed on the disk, so only an adoption of other segments has to come before.
    """
    if any(isinstance(operation, Adopt) for operation in operations):
        return operations
    replacements = [operation for operation in operations if isinstance(operation, Replace)]
    others = (operation for operation in operations if not isinstance(operation, Replace))
    return deque([*replacements, *others])


def _first_index(segment: Segment) -> int:
    return segment.first


def _ignore(_result: None, _error: Exception | None) -> None:
    """Ignore an error: closing a file that needs no sync cannot fail in a way that matters."""
