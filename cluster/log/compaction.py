"""Compaction: rewriting old segments as smaller files with only their live messages.

Below the log a node holds live messages only. A segment that is at least half dead is rewritten as a *sparse* segment.
It has only the entries with live messages, under their old indexes, reduced to those messages.

Invariant: compaction reads a file record by record, never as a whole. It verifies every record before it copies it, and
changes no existing file.
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
"""Live messages: index of the entry -> ordinal of the batch -> (first message, count), as `FrozenCopy.live` returns."""

Compact = Callable[[memoryview, Sequence[tuple[int, int]]], bytes]
"""Function that reduces a batch to some of its messages: see `Machine.compact`."""

TINY_SHARE = 16
"""A sparse segment is tiny if its size is at most the size of a full segment divided by this number."""
TINY_MAX = 8
"""Longest row of adjacent tiny segments that is left alone; a longer row is merged."""
SPARSE_RANGE_MAX = 2**32 - 1
"""Largest number of indexes that a sparse segment can span."""
REMEASURE_PERCENT = 90
"""A measurement expires when at most this percentage of the references that it counted are still live."""
STALE_S = 600.0
"""Age in seconds at which a measurement is repeated if any of its live references are gone, because these may have been
the large messages."""

_INDEX_BYTES = 8  # bytes per record in the footer of a sparse segment


class SegmentLimits(NamedTuple):
    """Size limits of a sparse segment."""

    segment_bytes: int
    segment_entries: int


class Measured(NamedTuple):
    """Estimated result of rewriting a segment, measured when `references` to its messages were live."""

    references: int
    entries: int
    size: int
    """Bytes that the rewritten file would have; the size of the old file if that is more than half of it."""
    at_s: float
    """Time of the measurement in seconds, on the monotonic clock."""


class Candidate(NamedTuple):
    """A segment that may be rewritten."""

    segment: Segment
    references: int
    """Number of live references to messages in the segment now."""

    measured: Measured | None

    @property
    def is_known(self) -> bool:
        """Whether the measurement is still valid."""
        measured = self.measured
        return measured is not None and self.references * 100 > measured.references * REMEASURE_PERCENT

    def is_stale(self, now_s: float) -> bool:
        """Return whether to repeat a valid measurement, because references are gone and it is `STALE_S` old."""
        measured = self.measured
        return (
            measured is not None
            and self.references < measured.references
            and now_s - measured.at_s >= STALE_S
        )


class Rewritten(NamedTuple):
    """A sparse segment that is durable in the directory, but not yet part of the log."""

    segment: Segment
    entries: int


class CompactionSource(NamedTuple):
    """The directory with the records, and the function that reduces batches: the same for all jobs."""

    disk: Disk
    directory: str
    identity: bytes
    compact: Compact


# Choosing


def choose(runs: Sequence[Sequence[Candidate]], limits: SegmentLimits) -> Sequence[Candidate]:
    """Choose the oldest group of adjacent candidates to rewrite as a single segment; empty if no group is worth it.

    `runs` are runs of adjacent candidates, ascending. The new file is at most half the size of the files that it
    replaces. So all rewriting together writes no more bytes than were once logged. Merging tiny segments, which is rare
    and small, comes on top.
    """
    for run in runs:
        for start in range(len(run)):
            group = _group(run, start, limits)
            if group:
                return group
    return ()


def _group(run: Sequence[Candidate], start: int, limits: SegmentLimits) -> Sequence[Candidate]:
    """Return the longest group from the candidate at `start` that is worth rewriting, or an empty group."""
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
    """Measure the live records of a segment; stop reading once they are more than half of the file.

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
    """Write the live records of adjacent segments to the sparse segment `name`; return `None` if no record is live.

    Raises CorruptJournal or OSError; then the new file does not exist.
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
    """Remove a file that did not become part of the log, to free its space before the next start would."""
    with suppress(OSError):
        source.disk.remove(path_in(source.directory, name))


class _Counted:
    """Iterator over the live records of some segments, which counts them while they are written."""

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
    """Reduce an entry to these messages of its batches; return `None` if it has none of these batches.

    `messages` may name messages that were dropped earlier. That happens when the node started from an older checkpoint,
    because the newest checkpoint was damaged.
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
