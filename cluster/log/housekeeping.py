"""Housekeeping takes checkpoints and frees the disk space of entries that are no longer needed.

A checkpoint is taken after a number of entries, bytes or seconds, or after enough time of applying. After each
checkpoint a *round* goes through the segments below the part of the log that must be kept. It drops segments without a
live message, and rewrites segments that are mostly dead (compaction.py). After a start every sealed segment is verified
once, a segment at a time.

Invariant: a job on the background thread gets immutable data and touches only files; the event loop adopts its result.
A crash at any moment is harmless, because a file joins or leaves the log with the journal's manifest. A removed segment
is not needed by the two newest checkpoints, nor as log by a start from either of them.

How much disk is used. Let

    L  bytes of the live messages, compacted, with their record headers, at the newest or the second newest checkpoint,
       whichever is more. If messages of a segment differ in size: the most at any checkpoint within `STALE_S` and the
       time that it then takes to measure all segments in sequence
    S  `segment_bytes`, and an entry on top
    R  `retained_bytes`, or the bytes that a follower needs if that is more
    C  bytes logged between two checkpoints: `checkpoint_bytes` or the size of the last checkpoint if that is more, and
       the bytes logged while a checkpoint is written
    P  size of a checkpoint

Then the segment files take at most

    2.25 L + max(R, 2 C) + C + 4 S

and the checkpoints 3 P. The terms of the sum:

- 2.25 L: a rewritten file was at least half live, and loses a tenth before it is measured again. That tenth counts
  messages, and the first dead messages may be the large ones. So each segment that has lost a message is measured again
  after a while.
- max(R, 2 C): the log that is kept.
- C + 4 S: segments that went below the log with the last checkpoint and are being measured, two bytes for each byte
  logged; the new file of a rewrite while the old files still exist; and the granularity of segments.

Files that a running snapshot has pinned come on top. A node that applies no new entries does not shrink.

While publishers wait for space, R is 0 and each checkpoint seals the open segment. So space is freed even on a disk
that is too small for this bound.
"""

from __future__ import annotations

import errno
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

from cluster.log.checkpoints import (
    Checkpoint,
    checkpoint_name,
    list_checkpoints,
    remove_checkpoints,
    write_checkpoint,
)
from cluster.log.compaction import (
    Candidate,
    Compact,
    CompactionSource,
    Measured,
    Rewritten,
    SegmentLimits,
    choose,
    discard,
    measure,
    rewrite,
)
from cluster.log.sealed_segment import verify
from cluster.log.segment import Segment, path_in
from cluster.runtime.histogram import LONG_BOUNDS_S, Histogram

if TYPE_CHECKING:
    from cluster.log.journal import SegmentedJournal
    from cluster.machine import FrozenCopy
    from cluster.runtime.ports import T

log = logging.getLogger(__name__)

RETRY_S = 5.0
"""Time in seconds until a checkpoint is tried again after it found no space."""
PACE_S = 1.0
"""Least time in seconds between two reads of segments (to verify or measure); shorter while the log grows fast."""
REPLAY_S = 0.5
"""A checkpoint is also due after this many seconds of applying entries, because a start must apply them again."""
SCARCE_S = 2.0
"""While publishers wait for space, a checkpoint is due this many seconds after the last, because it frees space."""
SCARCE_SHARE = 16
"""While publishers wait for space, the least amount worth freeing is `segment_bytes` divided by this number."""
REST_FACTOR = 4
"""After each job follows a rest of this many times the job's duration, except while the log grows fast."""


@dataclass(frozen=True, slots=True)
class HousekeepingSettings:
    """Settings for when a checkpoint is due and how much log is kept."""

    checkpoint_entries: int = 16384
    checkpoint_bytes: int = 64 * 2**20
    """A checkpoint is due after this many bytes of log, or the size of the last checkpoint if that is more."""
    checkpoint_interval_s: float = 60.0
    retained_bytes: int = 128 * 2**20
    """Bytes of log that are kept for followers that are behind."""
    segment_bytes: int = 64 * 2**20
    segment_entries: int = 65536


@dataclass(frozen=True, slots=True)
class CheckpointPosition:
    """Index and term of a checkpoint on the disk."""

    index: int
    term: int


class _Taken(NamedTuple):
    """A frozen state that will be written as a checkpoint."""

    position: CheckpointPosition
    frozen: FrozenCopy


class Housekeeping:
    """Checkpoints and disk space of a group; all methods must be called on the event loop."""

    def __init__(
        self,
        journal: SegmentedJournal,
        settings: HousekeepingSettings,
        *,
        freeze: Callable[[], FrozenCopy],
        compact: Compact,
        needed_from: Callable[[], int | None],
        monotonic: Callable[[], float],
    ) -> None:
        """`freeze` returns the state; `needed_from` the first index to keep even without live messages, or `None`.

        `journal.on_failure` is called when a file is damaged, or when the disk fails and is not just full; that ends
        all work.
        """
        self.newest: CheckpointPosition | None = None
        self.second_index = 0
        """Index of the second newest checkpoint; 0 if it does not exist."""
        self.checkpoint_times = Histogram(LONG_BOUNDS_S)
        """Durations of checkpoints in seconds, from freezing the state until the file is durable."""
        self.pinned: dict[str, int] = {}
        """Files that must stay unchanged: name -> number of readers."""
        self._disk, self._directory, self._identity = journal.files
        self._journal = journal
        self._settings = settings
        self._limits = SegmentLimits(settings.segment_bytes, settings.segment_entries)
        self._freeze = freeze
        self._source = CompactionSource(*journal.files, compact)
        self._needed_from = needed_from
        self._now = monotonic
        self.is_space_scarce = False
        """Whether publishers wait for space. Then checkpoints follow sooner, so consumed messages free their space
        sooner."""
        self._generation = 0
        self._applying_s = 0.0
        self._busy = False
        self._stopped = False
        self._shortage_is_logged = False
        self._reset(0)

    def _reset(self, checkpoint_bytes: int) -> None:
        """Discard all measurements and begin with the log as it is; `checkpoint_bytes`: size of the last checkpoint."""
        now_s = self._now()
        self._checkpoint_bytes = checkpoint_bytes
        self._taken: _Taken | None = None
        self._taken_applying_s = self._applying_s
        self._writing_s = 0.0
        self._is_damaged = False
        self._taken_s = now_s
        self._taken_bytes = self._journal.appended_bytes
        self._retry_s = now_s
        # State of a round: the frozen state of the newest checkpoint that this object has written, and the measurements
        # of segments.
        self._frozen: FrozenCopy | None = None
        self._references: dict[str, int] | None = None
        self._measured: dict[str, Measured] = {}
        self._round_open = False
        self._waiting_bytes: int | None = 0
        self._paced_s = now_s
        self._paced_bytes = self._taken_bytes
        self._rest_ends_s = now_s
        self._unverified = deque(segment.name for segment in self._journal.segments() if segment.sealed)
        self._applied_index = 0

    def begin(self, checkpoint: Checkpoint | None) -> None:
        """Record the checkpoint from which the state was loaded; `None` if the state began with an empty log.

        Must be called once before the first turn, and again after a snapshot has replaced the log. Raises OSError.
        """
        index = checkpoint.index if checkpoint else 0
        found = [known for known in list_checkpoints(self._disk, self._directory) if known != index]
        self._generation += 1
        self.newest = CheckpointPosition(index, checkpoint.term) if checkpoint else None
        self.second_index = max((known for known in found if known < index), default=0)
        # A checkpoint newer than the loaded checkpoint must be damaged.
        unwanted = [known for known in found if known != self.second_index]
        remove_checkpoints(self._disk, self._directory, self._without_pinned(unwanted))
        self._reset(len(checkpoint.body) if checkpoint else 0)

    def _without_pinned(self, indexes: Iterable[int]) -> list[int]:
        return [index for index in indexes if checkpoint_name(index) not in self.pinned]

    def stop(self) -> None:
        """Start no more jobs; the result of a running job is dropped."""
        self._stopped = True

    @property
    def newest_index(self) -> int:
        """Index of the newest checkpoint; 0 without a checkpoint."""
        return self.newest.index if self.newest else 0

    def renew(self) -> None:
        """Take a new checkpoint at the next applied entry, because the newest checkpoint is damaged."""
        self._is_damaged = True

    def pin(self, names: Iterable[str]) -> None:
        """Keep these files unchanged until `unpin`."""
        for name in names:
            self.pinned[name] = self.pinned.get(name, 0) + 1

    def unpin(self, names: Iterable[str]) -> None:
        for name in names:
            self.pinned[name] -= 1
            if not self.pinned[name]:
                del self.pinned[name]

    def turn(self, applied_index: int, applied_term: int, applying_s: float = 0.0) -> None:
        """Take a checkpoint if it is due, and start the next job; must be called often.

        `applied_index` and `applied_term` are of the last entry in the state. `applying_s` is the total time spent
        applying, in seconds.
        """
        if self._stopped:
            return
        self._applied_index = applied_index
        self._applying_s = applying_s
        if self._taken is None and self._is_due(applied_index):
            self._take(applied_index, applied_term)
        self._proceed()

    # Checkpoints

    def _is_due(self, applied_index: int) -> bool:
        entries = applied_index - self.newest_index
        if entries <= 0:
            return False
        now_s = self._now()
        settings = self._settings
        logged_bytes = self._journal.appended_bytes - self._taken_bytes
        return now_s >= self._retry_s and (
            entries >= settings.checkpoint_entries
            or logged_bytes >= max(settings.checkpoint_bytes, self._checkpoint_bytes)
            or now_s - self._taken_s >= settings.checkpoint_interval_s
            or self._replay_is_long(now_s)
            or self._is_damaged
            or (self.is_space_scarce and now_s - self._taken_s >= self._rest_s(SCARCE_S))
        )

    def _rest_s(self, least_s: float) -> float:
        """Return the least seconds from a checkpoint to the next, so that most of the time is free of writing."""
        return max(least_s, REST_FACTOR * self._writing_s)

    def _replay_is_long(self, now_s: float) -> bool:
        """Return whether a start would apply entries for too long; many small entries cost more than their bytes."""
        return (
            self._applying_s - self._taken_applying_s >= REPLAY_S
            and now_s - self._taken_s >= self._rest_s(0.0)
        )

    def _take(self, index: int, term: int) -> None:
        self._taken_s = self._now()
        self._taken_bytes = self._journal.appended_bytes
        self._taken_applying_s = self._applying_s
        self._is_damaged = False
        journal = self._journal
        if self.is_space_scarce and not journal.full and journal.open_bytes >= self._scarce_bytes:
            journal.seal()
        self._taken = _Taken(CheckpointPosition(index, term), self._freeze())

    @property
    def awaits_entry(self) -> bool:
        """Whether the next checkpoint could free space, but the log has no new entry for it.

        A segment can be removed when the second newest checkpoint no longer needs it. When consumers have emptied a
        disk that publishers had filled, publishers still wait, and perhaps no client submits anything.
        """
        if not self.is_space_scarce or self._taken is not None or self.newest_index < self._applied_index:
            return False
        # Segments behind the second newest checkpoint that are applied as a whole.
        held = [
            segment.file_bytes
            for segment in self._journal.segments()
            if segment.sealed and self.second_index < segment.end <= self._applied_index + 1
        ]
        return sum(held) >= self._scarce_bytes

    @property
    def _scarce_bytes(self) -> int:
        return self._settings.segment_bytes // SCARCE_SHARE

    def _write(self, taken: _Taken) -> None:
        found = list_checkpoints(self._disk, self._directory)
        unwanted = self._without_pinned(index for index in found if index < self.newest_index)
        self._run(partial(self._store, taken, unwanted), partial(self._written, taken))

    def _store(self, taken: _Taken, unwanted: Sequence[int]) -> int:
        """Write the checkpoint, then remove the unwanted files; on the background thread. Returns its size in bytes."""
        index, term = taken.position.index, taken.position.term
        body = taken.frozen.pieces()
        size = write_checkpoint(self._disk, self._directory, self._identity, index, term, body)
        remove_checkpoints(self._disk, self._directory, unwanted)
        return size

    def _written(self, taken: _Taken, size: int) -> None:
        self._taken = None
        self._writing_s = self._now() - self._taken_s
        self.checkpoint_times.add(self._writing_s)
        self._shortage_is_logged = False
        self.second_index = self.newest_index
        self.newest = taken.position
        self._checkpoint_bytes = size
        self._frozen = taken.frozen
        self._references = None
        self._round_open = True
        self._waiting_bytes = 0

    def checkpoint_now(self, applied_index: int, applied_term: int) -> None:
        """Take and write a checkpoint before returning, then stop, so that the next start has no entries to apply.

        Skipped if no entry is new, or if the journal has not synced the applied index. A disk failure is only logged,
        because its only cost is a longer start.
        """
        under_way = self._taken.position.index if self._taken and self._busy else 0
        is_new = applied_index > max(self.newest_index, under_way)
        if is_new and self._journal.synced_index >= applied_index and not self._stopped:
            try:
                self._store(_Taken(CheckpointPosition(applied_index, applied_term), self._freeze()), ())
            except OSError as error:
                log.warning("no checkpoint was written at the stop: %s", error)
        self.stop()

    # Jobs

    def _proceed(self) -> None:
        """Start the next job that is due, if no job is running."""
        if self._busy or self._stopped:
            return
        taken = self._taken
        if taken is not None and self._journal.synced_index >= taken.position.index:
            self._write(taken)
            return
        if taken is not None and self._journal.full and not self._shortage_is_logged:
            self._shortage_is_logged = True
            log.warning(
                "no space is given back: a checkpoint of entry %d has to wait until the log, which ends with entry %d "
                "on the disk, has space for the entries up to it",
                taken.position.index,
                self._journal.synced_index,
            )
        if self._round_open and self._pace_allows(self._waiting_bytes):
            self._continue_round()
        if not self._busy and self._unverified and self._pace_allows(None):
            self._verify_next()

    def _run(
        self, job: Callable[[], T], done: Callable[[T], None], dropped: Callable[[T], None] | None = None
    ) -> None:
        """Run a job in the background, then `done(result)`, or `dropped(result)` if the log was replaced meanwhile."""
        self._busy = True
        generation = self._generation
        started_s = self._now()

        def finished(result: T | None, error: Exception | None) -> None:
            self._busy = False
            ended_s = self._now()
            self._rest_ends_s = ended_s + REST_FACTOR * (ended_s - started_s)
            if self._stopped:
                return  # the directory may belong to a different log by now
            is_current = generation == self._generation
            if error is None:
                take = done if is_current else dropped
                if take is not None:
                    take(cast("T", result))
            elif is_current:
                self._give_up(error)
            self._proceed()

        self._disk.submit_background(job, finished)

    def _give_up(self, error: Exception) -> None:
        """Handle a failed job: wait for the next checkpoint if the disk is full; every different error is fatal."""
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            if not self._shortage_is_logged:
                self._shortage_is_logged = True
                log.warning("no space for a checkpoint or for compaction: %s", error)
            self._taken = None
            self._retry_s = self._now() + RETRY_S
            self._round_open = False
        else:
            self.stop()
            self._journal.on_failure(error)

    def _pace_allows(self, size: int | None) -> bool:
        """Return whether a segment may be read now.

        That is the case if the pace allows it, or if the log has grown by half of `size` bytes since the last read.
        """
        grown = self._journal.appended_bytes - self._paced_bytes
        if size is not None and grown * 2 >= size:
            return True
        return self._now() >= max(self._paced_s + PACE_S, self._rest_ends_s)

    def _record_pace(self) -> None:
        self._paced_s = self._now()
        self._paced_bytes = self._journal.appended_bytes

    # Rounds

    def _continue_round(self) -> None:
        """Do the next step of a round: count live references, then rewrite a group, or else measure a segment."""
        frozen = self._frozen
        assert frozen is not None
        self._waiting_bytes = 0
        if self._references is None:
            self._count(frozen)
            return
        runs = self._candidates(self._references)
        group = choose(runs, self._limits)
        if group:
            self._rewrite(frozen, group)
            return
        all_unknown = [candidate for run in runs for candidate in run if not candidate.is_known]
        # The largest segment is first, so that small segments which lose single messages cannot delay it for ever.
        unknown = max(all_unknown, key=_file_bytes, default=None)
        growth: int | None = unknown.segment.file_bytes if unknown else None
        if unknown is None:
            now_s = self._now()
            stale = [candidate for run in runs for candidate in run if candidate.is_stale(now_s)]
            unknown = min(stale, key=_measured_s, default=None)
        if unknown is None:
            self._round_open = False
        elif self._pace_allows(growth):
            self._measure(frozen, unknown)
        else:
            self._waiting_bytes = growth

    def _count(self, frozen: FrozenCopy) -> None:
        segments = self._free_segments()
        self._run(partial(_count, frozen, segments), self._counted)

    def _counted(self, references: dict[str, int]) -> None:
        self._references = references
        present = {segment.name for segment in self._journal.segments()}
        self._measured = {name: known for name, known in self._measured.items() if name in present}
        for run in self._runs(name for name, count in references.items() if not count):
            self._journal.replace(run, None)

    def _measure(self, frozen: FrozenCopy, candidate: Candidate) -> None:
        self._record_pace()
        segment, references = candidate.segment, candidate.references
        self._run(
            partial(_measure, self._source, segment, frozen, references, self._now()),
            partial(self._measured.__setitem__, segment.name),
        )

    def _rewrite(self, frozen: FrozenCopy, group: Sequence[Candidate]) -> None:
        segments = [candidate.segment for candidate in group]
        references = sum(candidate.references for candidate in group)
        name = self._journal.new_name(segments[0].first, sparse=True)
        self._run(
            partial(_rewrite, self._source, segments, frozen, name),
            partial(self._rewritten, segments, references),
            self._drop,
        )

    def _rewritten(self, segments: Sequence[Segment], references: int, rewritten: Rewritten | None) -> None:
        if any(segment.name in self.pinned for segment in segments):
            self._drop(rewritten)
            return
        self._journal.replace(segments, rewritten.segment if rewritten else None)
        if rewritten is not None:
            name = rewritten.segment.name
            size = rewritten.segment.file_bytes
            self._measured[name] = Measured(references, rewritten.entries, size, self._now())
            if self._references is not None:
                self._references[name] = references

    def _drop(self, rewritten: Rewritten | None) -> None:
        if rewritten is not None:
            self._run(partial(discard, self._source, rewritten.segment.name), _ignore)

    def _free_segments(self) -> list[Segment]:
        """Return the segments that may be removed or rewritten, ascending."""
        journal = self._journal
        needed_from = self._needed_from()
        free: list[Segment] = []
        newer_bytes = 0
        retained_bytes = 0 if self.is_space_scarce else self._settings.retained_bytes
        for segment in reversed(journal.segments()):
            in_log = segment.end > journal.first_index
            is_retained = in_log and newer_bytes < retained_bytes
            is_needed = segment.end > self.second_index or (
                needed_from is not None and segment.end > needed_from
            )
            if not (is_retained or is_needed or segment.name in self.pinned):
                free.append(segment)
            newer_bytes += segment.file_bytes
        return free[::-1]

    def _runs(self, names: Iterable[str]) -> list[list[Segment]]:
        """Return the named segments that may be removed or rewritten, as runs of adjacent segments, ascending."""
        wanted = set(names)
        free = {segment.name for segment in self._free_segments() if segment.name in wanted}
        runs: list[list[Segment]] = [[]]
        for segment in self._journal.segments():
            if segment.name in free:
                runs[-1].append(segment)
            elif runs[-1]:
                runs.append([])
        return runs if runs[-1] else runs[:-1]

    def _candidates(self, references: Mapping[str, int]) -> list[list[Candidate]]:
        return [
            [
                Candidate(segment, references[segment.name], self._measured.get(segment.name))
                for segment in run
            ]
            for run in self._runs(references)
        ]

    # Verification

    def _verify_next(self) -> None:
        """Verify the next sealed segment.

        A segment waits until all its entries are applied, because until then a conflicting tail could reopen it.
        """
        self._record_pace()
        present = {segment.name: segment for segment in self._journal.segments()}
        while self._unverified:
            segment = present.get(self._unverified[0])
            if segment is not None and segment.end > self._applied_index + 1:
                return
            self._unverified.popleft()
            if segment is not None and segment.sealed:
                path = path_in(self._directory, segment.name)
                self._run(partial(verify, self._disk, path, self._identity), _ignore)
                return


def _file_bytes(candidate: Candidate) -> int:
    return candidate.segment.file_bytes


def _measured_s(candidate: Candidate) -> float:
    return candidate.measured.at_s if candidate.measured else 0.0


def _count(frozen: FrozenCopy, segments: Sequence[Segment]) -> dict[str, int]:
    """Return the number of live references to messages in each segment, by name.

    Between the segments there may be gaps, so every second count is dropped.
    """
    bounds = [bound for segment in segments for bound in (segment.first, segment.end)]
    counts = frozen.counts(bounds) if bounds else []
    return {segment.name: count for segment, count in zip(segments, counts[::2], strict=True)}


def _measure(
    source: CompactionSource, segment: Segment, frozen: FrozenCopy, references: int, now_s: float
) -> Measured:
    return measure(source, segment, frozen.live(segment.first, segment.end), references, now_s)


def _rewrite(
    source: CompactionSource, segments: Sequence[Segment], frozen: FrozenCopy, name: str
) -> Rewritten | None:
    live = frozen.live(segments[0].first, segments[-1].end)
    return rewrite(source, segments, live, name)


def _ignore(_result: object) -> None:
    """Ignore the result of a job without output."""
