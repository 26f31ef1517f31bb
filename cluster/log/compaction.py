"""Compaction: what is still needed of old segments, kept in smaller files.

Below the log a node holds live messages only. A segment of which half is dead is rewritten as a *sparse* one: the
entries that have live messages, under their old indexes, reduced to those messages.

Invariant: a file is read record by record and never held in memory, every record is verified before it is copied, and
nothing but the new file is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from cluster.log.entry import batches_of, compacted_parts, is_compacted, make_compacted
from cluster.log.sealed_segment import records, write_sparse
from cluster.log.segment import RECORD_HEADER_BYTES, Record, Segment, path_in

if TYPE_CHECKING:
    from cluster.runtime.ports import Disk

Live = Mapping[int, Mapping[int, Sequence[tuple[int, int]]]]
"""Live messages: index of the entry to ordinal of the batch to (first message, count), as by `FrozenCopy.live`."""

Compact = Callable[[memoryview, Sequence[tuple[int, int]]], bytes]
"""A function that reduces a batch to some of its messages: see `Machine.compact`."""

TINY_SHARE = 16
"""A sparse segment is tiny if it is at most as large as a full one divided by this."""
TINY_MAX = 8
"""How many tiny segments in a row are left alone; more are merged."""
SPARSE_RANGE_MAX = 2**32 - 1
"""How many indexes one sparse segment can span."""
REMEASURE_PERCENT = 90
"""A measurement holds until at most this percentage of the references that were live then still are."""
STALE_S = 600.0
"""If any live references are gone, a measurement is made anew after this time: those may have been the large ones."""

_INDEX_BYTES = 8  # what each record takes in the footer of a sparse segment


class SegmentLimits(NamedTuple):
    """How large a sparse segment may become."""

    segment_bytes: int
    segment_entries: int


class Measured(NamedTuple):
    """The result of rewriting a segment, as estimated when `references` to messages in it were live."""

    references: int
    entries: int
    size: int
    """How many bytes the rewritten file would have; the size of the old file if that is more than half of it."""
    at_s: float
    """When the segment was measured, on the monotonic clock."""


class Candidate(NamedTuple):
    """A segment that may be rewritten."""

    segment: Segment
    references: int
    """How many references to messages in the segment are live now."""

    measured: Measured | None

    @property
    def is_known(self) -> bool:
        """Whether the measurement still holds."""
        measured = self.measured
        return measured is not None and self.references * 100 > measured.references * REMEASURE_PERCENT

    def is_stale(self, now_s: float) -> bool:
        """Whether the measurement, if it still holds, should be made anew all the same."""
        measured = self.measured
        return (
            measured is not None
            and self.references < measured.references
            and now_s - measured.at_s >= STALE_S
        )


class Rewritten(NamedTuple):
    """A sparse segment, durable in the directory, but not yet part of the log."""

    segment: Segment
    entries: int


class CompactionSource(NamedTuple):
    """The directory with the records, and the function that makes them smaller: the same for all jobs."""

    disk: Disk
    directory: str
    identity: bytes
    compact: Compact


# Choosing


def choose(runs: Sequence[Sequence[Candidate]], limits: SegmentLimits) -> Sequence[Candidate]:
    """Choose the oldest group of adjacent candidates that is worth rewriting as one segment; empty if there is none.

    `runs` are adjacent candidates, ascending. What is rewritten is at most half of what it replaces, so all rewriting
    together writes no more than was once logged; merging tiny segments, rare and small, comes on top.
    """
    for run in runs:
        for start in range(len(run)):
            group = _group(run, start, limits)
            if group:
                return group
    return ()


def _group(run: Sequence[Candidate], start: int, limits: SegmentLimits) -> Sequence[Candidate]:
    """The longest group from the candidate at `start` that is worth rewriting; empty if there is none."""
    first = run[start].segment.first
    best = start
    live_bytes = file_bytes = entries = 0
    all_tiny = True
    for position in range(start, len(run)):
        candidate = run[position]
        measured, segment = candidate.measured, candidate.segment
        if measured is None or not candidate.is_known:
            break
        live_bytes += measured.size
        entries += measured.entries
        file_bytes += segment.file_bytes
        all_tiny = all_tiny and segment.sparse and segment.file_bytes * TINY_SHARE <= limits.segment_bytes
        fits = (
            live_bytes <= limits.segment_bytes
            and entries <= limits.segment_entries
            and segment.end - first <= SPARSE_RANGE_MAX
        )
        if position > start and not fits:
            break
        if live_bytes * 2 <= file_bytes or (all_tiny and position - start >= TINY_MAX):
            best = position + 1
    return run[start:best]


# On the background thread


def measure(
    source: CompactionSource, segment: Segment, live: Live, references: int, now_s: float
) -> Measured:
    """Measure what is live in a segment; reading stops as soon as that is more than half of the file.

    Raises CorruptJournal or OSError.
    """
    entries = size = 0
    for payload, _, _ in _live_records(source, segment, live):
        entries += 1
        size += RECORD_HEADER_BYTES + _INDEX_BYTES + len(payload)
        if size * 2 > segment.file_bytes:
            return Measured(references, len(live), segment.file_bytes, now_s)
    return Measured(references, entries, size, now_s)


def rewrite(source: CompactionSource, segments: Sequence[Segment], live: Live, name: str) -> Rewritten | None:
    """Write what is live in adjacent segments to the sparse segment `name`; None if nothing is.

    Raises CorruptJournal or OSError; then there is no new file.
    """
    counted = _Counted(source, segments, live)
    path = path_in(source.directory, name)
    first, end = segments[0].first, segments[-1].end
    size = write_sparse(source.disk, path, source.identity, first, end, counted)
    if counted.entries == 0:
        discard(source, name)
        return None
    return Rewritten(Segment.sealed_file(name, first, end, size, sparse=True), counted.entries)


def discard(source: CompactionSource, name: str) -> None:
    """Remove a file that did not become part of the log, to free its space: a start would remove it, too."""
    with suppress(OSError):
        source.disk.remove(path_in(source.directory, name))


class _Counted:
    """The live records of some segments, counted while they are written."""

    def __init__(self, source: CompactionSource, segments: Sequence[Segment], live: Live) -> None:
        self.entries = 0
        self._source = source
        self._segments = segments
        self._live = live

    def __iter__(self) -> Iterator[Record]:
        for segment in self._segments:
            for record in _live_records(self._source, segment, self._live):
                self.entries += 1
                yield record


def _live_records(source: CompactionSource, segment: Segment, live: Live) -> Iterator[Record]:
    for index, term, payload in records(source.disk, source.directory, source.identity, segment):
        messages = live.get(index)
        if messages:
            compacted = compact_entry(payload, messages, source.compact)
            if compacted is not None:
                yield compacted, index, term


def compact_entry(
    payload: bytes, messages: Mapping[int, Sequence[tuple[int, int]]], compact: Compact
) -> bytes | None:
    """Reduce an entry to these messages of its batches; None if it has none of these batches.

    Messages may be asked for that were dropped earlier: the state may be that of an older checkpoint, from which the
    node started because the newest one was damaged.
    """
    view = memoryview(payload)
    if is_compacted(payload):
        parts = compacted_parts(payload)
    else:
        parts = {ordinal: view[batch.start : batch.end] for ordinal, batch in enumerate(batches_of(payload))}
    kept = {
        ordinal: compact(parts[ordinal], wanted) for ordinal, wanted in messages.items() if ordinal in parts
    }
    return make_compacted(kept) if kept else None
