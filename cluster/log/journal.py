"""The replicated log, in the form that pysyncobj expects of its journal.

The *log* is the contiguous entries `first_index` to `last_index`. Below it there may be segments with single entries,
or segments that housekeeping has not processed yet. Their entries can only be read.

Invariant: memory changes at once, and the disk in the same order at the next sync. An index is *synced* only when the
entry that is now in memory under this index is on stable storage.
"""

# ruff: noqa: N802, N803 - pysyncobj gives the names of its interface

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar, overload

from pysyncobj.journal import Journal

from cluster.log.entry import ENTRY_BYTES_MAX, is_regular
from cluster.log.hardstate import HardState, HardStateFile, VoterStatus
from cluster.log.lazy_entries import Entry, EntrySlice, LazyEntry
from cluster.log.manifest import log_start, row_of, segment_name
from cluster.log.sealed_segment import footer_bytes
from cluster.log.segment import (
    RECORD_HEADER_BYTES,
    SEGMENT_BYTES_MAX,
    CorruptJournal,
    EntryMoved,
    EntryNotFound,
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
    from cluster.log.owned_directory import OwnedDirectory

SLICE_ENTRIES = 512
"""Largest number of entries in a slice, because reading so many from the disk takes some milliseconds at any size."""
SHORT_BYTES = 16 * 2**10
"""A sync of at most so many bytes may run on the event loop. On a fast disk it is quick, and usually a single client
waits for its single entry."""
CACHED_ENTRY_OVERHEAD_BYTES = 200  # tuple, integers, bytes header and dictionary slot of a cached entry


T = TypeVar("T")


class JournalMisuseError(Exception):
    """The caller broke the contract of the journal; its state is unchanged."""


@dataclass(frozen=True, slots=True)
class JournalSizes:
    """Sizes of a log's files, and of its entries in memory."""

    segment_bytes: int = 64 * 2**20
    """Bytes after which a segment is full."""
    segment_entries: int = 65536
    """Entries after which a segment is full."""
    cache_bytes: int = 32 * 2**20
    """Bytes of the last entries that stay in memory."""
    slice_bytes: int = 2**20
    """Bytes of a slice at most; a larger entry is a slice of its own."""

    def __post_init__(self) -> None:
        if not 0 < self.segment_bytes <= SEGMENT_BYTES_MAX:
            raise ValueError(f"segment_bytes must be from 1 to {SEGMENT_BYTES_MAX}, not {self.segment_bytes}")
        if self.segment_entries < 1:
            raise ValueError(f"segment_entries must be at least 1, not {self.segment_entries}")


class EntryObserver(Protocol):
    """Observer of entries without batches, such as configurations, which count at once when they are in the log."""

    def appended(self, index: int, entry: bytes) -> None:
        """Called after an entry without batches was added to the log at `index`."""
        ...

    def cut_from(self, index: int) -> None:
        """Called after the entries from `index` on were deleted."""
        ...


class SegmentedJournal(Journal):
    """The log of a group: entries in memory, files on disk, and group commit.

    Opening raises CorruptJournal, ForeignJournal, UnknownFormat or OSError. `writes_lost` says that unsynced writes may
    be lost; only then may a damaged tail count as a torn tail. `on_failure` is called when the disk fails; after that
    the journal reports no entry as synced. After a sync that found no space, `full` is set. Then call `start_sync`
    again at any time; the pending operations stay in order.
    """

    keep_tail: bool = False
    """While set, `deleteEntriesFrom` keeps all entries, because the current append has no conflict (hazard H2)."""

    full: bool = False
    """Whether the last sync found no space."""

    def __init__(
        self,
        files: OwnedDirectory,
        hard_state: HardStateFile,
        sizes: JournalSizes | None = None,
        *,
        on_failure: Callable[[Exception], None],
        observer: EntryObserver | None = None,
        writes_lost: bool = True,
    ) -> None:
        sizes = sizes or JournalSizes()
        self.files = files
        """Directory of the log, with the identity that its files carry."""
        self.on_failure = on_failure
        self.slice_bytes = sizes.slice_bytes
        self.written = 0
        self.synced = 0
        self.synced_index = 0
        self.sync_in_flight = False
        self.first_index = 1
        self.last_index = 0
        self.last_term = -1
        """Term of the last entry; -1 for an empty log."""
        self.appended_bytes = 0
        """Bytes of records added since this object was made."""
        self._disk, self._directory, self._identity = disk, directory, identity = files
        self._hard_state = hard_state
        self._observer = observer
        self._failed = False
        self._segment_bytes = sizes.segment_bytes
        self._segment_entries = sizes.segment_entries
        self._sealed: list[Segment] = []
        self._unsealed: dict[Segment, RecordIndex] = {}
        """Segments of `_sealed` whose footer may not be on the disk yet, with their record indexes."""
        self._open: RecordIndex | None = None
        """Record index of the open segment, which always holds an entry; `None` if no segment is open."""
        self._open_end_max = 0
        self._terms = TermRuns()
        self._first: Entry | None = None
        self._last: Entry | None = None
        self._cache: dict[int, Record] = {}
        self._cache_first = 1
        self._cache_bytes = 0
        self._cache_bytes_max = sizes.cache_bytes
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
        """Set the bounds of a log whose entries are all on the disk and not in memory."""
        self.first_index = self._log_start()
        self.last_index = self._open.end - 1 if self._open else self._sealed[-1].end - 1
        self.synced_index = self._flight_index = self.last_index
        self._cache.clear()
        self._cache_bytes = 0
        self._cache_first = self.last_index + 1
        self._first = None
        self._update_last()

    def _log_start(self) -> int:
        """Return the first index of the gapless dense segments at the end."""
        return log_start(self._sealed, self._open.first if self._open else self._sealed[-1].end)

    # Segment files

    def segments(self) -> list[Segment]:
        """Return all segment files, ascending, including the files below the log."""
        index = self._open
        if index is None:
            return list(self._sealed)
        return [
            *self._sealed,
            Segment(index.name, index.first, index.end, index.size, sparse=False, sealed=False),
        ]

    @property
    def disk_bytes(self) -> int:
        """Total size of all segment files in bytes."""
        return sum(segment.file_bytes for segment in self.segments())

    @property
    def cached_bytes(self) -> int:
        """Bytes of memory that recent entries take."""
        return self._cache_bytes

    @property
    def unsynced_bytes(self) -> int:
        """Bytes of records that were added and are not yet known to be on stable storage."""
        return self.appended_bytes - self._synced_bytes

    def bytes_from(self, index: int) -> int:
        """Return the approximate bytes of records from `index` on."""
        total = 0
        for segment in reversed(self.segments()):
            if segment.end <= index:
                break
            share = min(segment.end - index, segment.end - segment.first)
            total += segment.file_bytes * share // (segment.end - segment.first)
        return total

    def new_name(self, first: int, *, sparse: bool) -> str:
        """Return a new name for a segment file, with a unique serial number."""
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
        """Return the entry at a position, or a lazy view of consecutive entries."""
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
        """Return the end of a slice that begins with `index`: the index after its last entry, at most `end`.

        A slice has at most `slice_bytes` bytes and `SLICE_ENTRIES` entries. A larger entry is a slice of its own.
        """
        end = min(end, index + SLICE_ENTRIES)
        stop, budget = self._index_of(index).fitting(index, self.slice_bytes)
        while budget and stop < end:
            stop, budget = self._index_of(stop).fitting(stop, budget)
        return min(max(stop, index + 1), end)

    def entry(self, index: int) -> Entry:
        """Return the entry at this index; its payload is loaded on first access."""
        return self._cache.get(index) or LazyEntry(self, index, self.term_at(index))

    def entries(self, start: int, stop: int) -> list[Record]:
        """Return the entries from `start` to before `stop`, with payloads loaded."""
        cached = max(start, min(stop, self._cache_first))
        payloads = self.read_job(range(start, cached))() if start < cached else []
        records = [
            (payload, index, self._terms.at(index)) for index, payload in enumerate(payloads, start=start)
        ]
        records.extend(map(self._cache.__getitem__, range(cached, stop)))
        return records

    def payload(self, index: int) -> bytes | None:
        """Return the payload of an entry if it is in memory, otherwise `None`."""
        entry = self._cache.get(index)
        return entry[0] if entry else None

    def read(self, index: int) -> bytes:
        """Return the payload of an entry, from memory or from the disk; raises EntryNotFound or CorruptJournal."""
        entry = self._cache.get(index)
        return entry[0] if entry else self.read_job((index,))()[0]

    def read_job(self, indexes: Sequence[int], bytes_max: int | None = None) -> Callable[[], list[bytes]]:
        """Return a job that reads the payloads in the given order, on any thread, while writing goes on.

        After `bytes_max` bytes the job may leave out the rest, but it always reads the first entry. The indexes may be
        below the log. Raises EntryNotFound for an index outside of all segments. The job raises CorruptJournal,
        EntryNotFound for an entry that a sparse segment lacks, or EntryMoved if files were removed since this call;
        then a new job may find the entry.
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

    def samples_job(
        self, most: int, bytes_max: int, value_of: Callable[[bytes], T]
    ) -> Callable[[], list[tuple[int, T]]]:
        """Return a job that reads about `most` entries, evenly spread over all dense segments.

        The result has index and value of each entry. The job may run on any thread, and holds one entry at a time. It
        leaves out entries of more than `bytes_max` bytes and unreadable entries.
        """
        dense = [segment for segment in self.segments() if not segment.sparse]
        chosen = dense[:: len(dense) // most + 1]
        parts: list[Extent | Span] = []
        for segment in chosen:
            step = (segment.end - segment.first) * len(chosen) // most + 1
            for index in range(segment.first, segment.end, step):
                if segment.sealed:
                    records = self._unsealed.get(segment)
                    parts.append(Span(segment, records, index, index + 1, self._terms.at(index)))
                elif self._open is not None:
                    place = self._open.extent(index)
                    parts.append(Extent(segment.name, *place, index, index + 1, self._terms.at(index)))
        reader = Reader(self._disk, self._directory, self._identity, self._indexes)
        return partial(reader.read_small, parts, bytes_max, value_of)

    def _add_span(self, parts: list[Part], index: int) -> None:
        """Add an entry of a sealed segment, merged with the span before it if it directly follows."""
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
            # The files of entries that were deleted since the job was made may have been overwritten or removed during
            # the read.
            if self._deletions != deletions:
                raise EntryMoved("an entry was deleted while it was read") from error
            raise

    def term_at(self, index: int) -> int:
        """Return the term of the entry at this index; raises EntryNotFound if the index is outside of the log."""
        if not self.first_index <= index <= self.last_index:
            raise EntryNotFound(f"no entry {index}: the log holds {self.first_index} to {self.last_index}")
        return self._terms.at(index)

    def _index_of(self, index: int) -> RecordIndex:
        """Return the record index of the segment that holds this entry.

        Raises EntryNotFound, or the errors of reading a footer.
        """
        if self._open is not None and index >= self._open.first:
            return self._open
        segment = self._segment_of(index)
        return self._unsealed.get(segment) or self._indexes.get(segment)

    def _segment_of(self, index: int) -> Segment:
        """Return the sealed segment whose range includes an index; raises EntryNotFound if there is no such segment."""
        position = bisect_right(self._sealed, index, key=_first_index) - 1
        if position < 0 or index >= self._sealed[position].end:
            raise EntryNotFound(f"no entry {index}: the log holds {self.first_index} to {self.last_index}")
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
        """Begin an empty log with this index. Raises JournalMisuseError if it is below 1 or the log is not empty."""
        if self._last is not None or index < 1:
            raise JournalMisuseError(f"entry {index} cannot follow entry {self.last_index}")
        self.first_index = self._cache_first = index

    def _begin_batch(self, index: int) -> tuple[list[Record], RecordIndex]:
        """Queue a write for this entry and its successors, in a new segment if the open segment is full or missing."""
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
        """Size of the open segment's file in bytes; 0 if no segment is open."""
        return self._open.size if self._open is not None else 0

    def seal(self) -> None:
        """Seal the open segment, if any, with the next sync."""
        if self._open is not None:
            self._seal(self._open)
            self.written += 1

    def deleteEntriesFrom(self, entryFrom: int) -> None:
        """Delete the entries at this position and after it, but never all entries; see `keep_tail`.

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
        self._update_last()
        if self._observer is not None:
            self._observer.cut_from(index)

    def _cut_sealed(self, index: int) -> None:
        """Delete the entries from `index` on; `index` must not be above the first entry of the open segment."""
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
        """Replace consecutive sealed segments by a durable sparse segment, or remove them if `new` is `None`.

        Memory changes at once, the disk at the next sync. `first_index` moves up to the first index of the gapless
        dense segments at the end. The caller must know that the entries lost below it are no longer needed.
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
        """Return the terms of the entries of sealed segments, from their files; runs on any thread.

        Raises CorruptJournal.
        """
        return TermRuns(run for segment in segments for run in self._indexes.get(segment).runs)

    def adopt(self, segments: Sequence[Segment], runs: TermRuns) -> None:
        """Replace the whole log by these sealed segments, which are durable in the directory.

        Memory changes at once, the disk at the next sync; `synced_index` is 0 until then. The last segment must be
        dense.
        """
        if not segments or segments[-1].sparse:
            raise JournalMisuseError("a log ends with a dense segment")
        self._sealed = list(segments)
        self._unsealed.clear()
        self._open = None
        self._terms = runs
        # All other operations belong to the replaced log. On a full disk, skipping them saves space.
        self._operations = _stores(self._operations)
        self._change(Adopt([row_of(segment) for segment in segments], runs.all()))
        self._begin_with_whole_log()
        # Until the next sync the disk has the replaced log, and a running sync belongs to that log.
        self.synced_index = self._flight_index = 0

    def _change(self, operation: Operation) -> None:
        """Queue an operation that is not an append; the next append starts a new write."""
        self._operations.append(operation)
        self._batch = None
        self.written += 1
        self._deletions += 1

    def store_beside(self, store: Callable[[], None], *, first: bool) -> None:
        """Have `store` called with the next sync, before (`first`) or after all changes that no sync has taken up yet.

        `store` runs on the writer thread, and runs again if it raised an OSError for lack of space. A newer `store`
        replaces an older pending `store`, and goes first if the older had to go first. A change that is synced after
        this call implies that `store` has succeeded.
        """
        first = first or (len(self._operations) > 0 and isinstance(self._operations[0], Store))
        self._operations = _without_stores(self._operations)
        if first:
            self._operations.appendleft(Store(store))
        else:
            self._operations.append(Store(store))
        self._batch = None
        self.written += 1

    def _update_last(self) -> None:
        self._last = self.entry(self.last_index)
        self.last_term = self._last[2]

    def _evict(self) -> None:
        """Remove the oldest entries from the cache until it is within its limit.

        Unsynced entries stay, because they can be read only from memory. The last entry also stays, however large,
        because it is about to be applied.
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
        """Sync all queued changes off the event loop, then call `done`; not called if the disk fails or is full.

        A short sync (`SHORT_BYTES`) may be complete before this returns.
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
        """Sync all queued changes before returning; for the start of a node.

        Raises OSError without calling `on_failure`; after DiskFull a later sync may succeed.
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
        # Deletions lower this index during the sync, because the sync does not cover entries that replace the deleted
        # entries.
        self._flight_index = self.last_index
        self._flight_sealed = list(self._unsealed)
        self._flight_bytes = self.appended_bytes
        return operations, self.written

    def _put_back(self, operations: deque[Operation]) -> None:
        """Return operations that found no space to the queue, before operations that were queued later."""
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
            if index is not None:  # the segment was not cut during the sync
                segment.sealed = True
                self._indexes.put(segment, index)
        self._evict()

    def _fail(self, error: Exception) -> None:
        self._end()
        self.on_failure(error)

    def _end(self) -> None:
        self._failed = True
        # This flag stays set for good, because a failed sync may have written any part of its data.
        self.sync_in_flight = True

    # Term, vote, commit index

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:
        """Store term and vote durably. Raises OSError."""
        known = self._hard_state.state
        voter_status = VoterStatus.BLANK if known is None else known.voter_status
        try:
            self._hard_state.store(HardState(term, votedForNodeId, voter_status))
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
        """Keep the commit index in memory only, because the leader reports it again after a restart."""
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
    """Return the operations with replacements first, because these free space that the rest may wait for.

    A replacement concerns sealed segments on the disk, so only a pending adoption of segments must come before it.
    """
    if any(isinstance(operation, Adopt) for operation in operations):
        return operations
    replacements = [operation for operation in operations if isinstance(operation, Replace)]
    others = (operation for operation in operations if not isinstance(operation, Replace))
    return deque([*replacements, *others])


def _first_index(segment: Segment) -> int:
    return segment.first


def _ignore(_result: None, _error: Exception | None) -> None:
    """Ignore an error, because closing a file that needs no sync cannot fail in a way that matters."""
