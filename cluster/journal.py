"""The replicated log, in the form that pysyncobj expects of its journal.

Lives here: the log as a whole - which entries and segments exist, the cache of recent entries, the operations that
wait for the next sync (group commit), what is durable. Not here: views of entries (journal_views.py), the runs of
terms (term_runs.py), the file of term and vote (hardstate.py), what is done to the segments' files and in which order
(segment_files.py), their format and the errors (segment.py).

Law: memory changes at once, the disk in the same order at the next sync, and an index is *synced* only when
the entry that is in memory under this index now is on stable storage.
"""

# ruff: noqa: N802, N803 - pysyncobj gives the names of its interface

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, overload

from pysyncobj.journal import Journal

from cluster.hardstate import HARD_STATE_NAME, HardState, load_hard_state, store_hard_state
from cluster.journal_views import Entry, EntrySlice, LazyEntry, Window
from cluster.segment import (
    PAYLOAD_BYTES_MAX,
    RECORD_HEADER_BYTES,
    SEGMENT_BYTES_MAX,
    CorruptJournal,
    EntryGone,
    Extent,
    Record,
    Segment,
)
from cluster.segment_files import (
    Append,
    Operation,
    Remove,
    SegmentWriter,
    Truncate,
    add_extent,
    load_segments,
    path_in,
    read_parts,
)
from cluster.term_runs import TermRuns

if TYPE_CHECKING:
    from cluster.ports import Disk

SEGMENT_BYTES = 64 * 2**20
CACHE_BYTES = 32 * 2**20
SLICE_BYTES = 2**20
CACHED_ENTRY_OVERHEAD_BYTES = 200  # tuple, integers, bytes header and dictionary slot of a cached entry

_TEMPORARY = ".tmp"


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
        self._terms = TermRuns()
        self._last_term = -1
        self._first: Entry | None = None
        self._last: Entry | None = None
        self._cache: dict[int, Record] = {}
        self._cache_first = 1
        self._cache_bytes = 0
        self._cache_bytes_max = cache_bytes
        self._operations: list[Operation] = []
        self._batch: list[Record] | None = None
        self._handed = 0
        self._flight_index = 0
        self._deletions = 0
        self._commit_index = 1
        self._hard_state_path = path_in(directory, HARD_STATE_NAME)
        self._hard_state = HardState(0, None)
        self._writer = SegmentWriter(disk, directory, identity)
        self._open()

    # Opening

    def _open(self) -> None:
        self._disk.make_directory(self._directory)
        names = self._disk.list_directory(self._directory)
        for name in names:
            if name.endswith(_TEMPORARY):
                self._disk.remove(path_in(self._directory, name))
        for segment, terms in load_segments(self._disk, self._directory, self._identity, names):
            self._segments.append(segment)
            for index, term in terms:
                self._terms.add(index, term)
        self._disk.sync_directory(self._directory)
        if self._segments:
            self.first_index = self._segments[0].first
            self.last_index = self.synced_index = self._segments[-1].end - 1
            self._cache_first = self.last_index + 1
            self._first = self.entry(self.first_index)
            self._note_last()
        self._hard_state = load_hard_state(
            self._disk,
            self._hard_state_path,
            self._identity,
            present=HARD_STATE_NAME in names,
            last_term=self._last_term,
        )

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
        return EntrySlice(self, first, end, Window(first, []))

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
        parts: list[bytes | Extent] = []
        for index in indexes:
            entry = self._cache.get(index)
            if entry:
                parts.append(entry[0])
            else:
                add_extent(parts, self._extent(index))
        return partial(self._read_parts, parts, self._deletions)

    def _read_parts(self, parts: list[bytes | Extent], deletions: int) -> list[bytes]:
        try:
            return read_parts(self._disk, self._directory, self._identity, parts)
        except CorruptJournal as error:
            # What was deleted since may have been overwritten or removed under the reader.
            if self._deletions != deletions:
                raise EntryGone("an entry was deleted while it was read") from error
            raise

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
        self._operations.append(Append(self._segments[-1].first, create, self._batch))
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
            self._change(Remove(self._segments.pop().first))
        tail = self._segments[-1]
        if tail.end > index:
            tail.cut_from(index)
            self._change(Truncate(tail.first, tail.size))
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
            self._change(Remove(self._segments.pop(0).first))
        self._terms.cut_to(index)
        for cached in range(self._cache_first, index):
            self._forget(cached)
        self._cache_first = max(self._cache_first, index)
        self.first_index = index
        self._first = self.entry(index)

    def clear(self) -> None:
        while self._segments:
            self._change(Remove(self._segments.pop().first))
        self._terms = TermRuns()
        self._last_term = -1
        self._cache.clear()
        self._cache_bytes = 0
        self._first = self._last = None
        self.first_index = self._cache_first = 1
        self.last_index = self.synced_index = self._flight_index = 0

    def _change(self, operation: Operation) -> None:
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

    def _take_operations(self) -> tuple[list[Operation], int]:
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
        state = HardState(term, votedForNodeId)
        try:
            store_hard_state(self._disk, self._hard_state_path, self._identity, state)
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
