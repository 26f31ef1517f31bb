"""The receiver of snapshots: fetches the files of a leader's snapshot, verifies them, and has them installed.

A follower needs a snapshot if its log ends before the leader's log begins. It requests the files chunk by chunk, a few
at a time, so it is never sent more than it can store. A broken link costs the requested chunks. A transfer continues
when the leader changes, because committed entries stay committed.

Invariant: received data counts only after the whole file was verified. The node's own log is untouched until all files
are there, verified and durable. Files are written off the event loop.
"""

from __future__ import annotations

import errno
import logging
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from cluster.log.checkpoints import (
    Checkpoint,
    adopt_checkpoint,
    checkpoint_name,
    read_checkpoint,
    remove_checkpoints,
)
from cluster.log.sealed_segment import verify
from cluster.log.segment import JournalError, Segment, adopt_header
from cluster.raft.messages import FetchChunk, SnapshotChunk, SnapshotDamaged, SnapshotOffer, SnapshotWithdrawn
from cluster.runtime.histogram import LONG_BOUNDS_S, Histogram
from cluster.snapshots.chunks import IDLE_MAX_S, REPEAT_S, Chunk, chunks_of

if TYPE_CHECKING:
    from cluster.log.term_runs import TermRuns
    from cluster.replica import Replica
    from cluster.runtime.ports import Buffer, File
    from cluster.state.group_state import ReadState

log = logging.getLogger(__name__)

WINDOW = 4
"""Largest number of chunks requested and not yet stored: it keeps link and disk busy with 1 MiB of memory at most."""
PATIENCE_S = 5.0
"""Seconds without progress after which a transfer gives way to the offer of a different snapshot."""
SPACE_PAUSE_MIN_S = 2.0
SPACE_PAUSE_MAX_S = 60.0
"""Longest pause in seconds before a transfer without space is tried again; the pause doubles each time up to this.
Without the pauses the beginning of a large snapshot would be sent every other second as long as the disk is too
small."""


class Installable(NamedTuple):
    """A snapshot whose files are verified and durable in the log's directory, but not yet part of the log."""

    checkpoint: Checkpoint
    segments: list[Segment]
    runs: TermRuns
    """Terms of the segments' entries."""


@dataclass(slots=True)
class _Transfer:
    """A snapshot that is being fetched."""

    peer: str
    offer: SnapshotOffer
    parts: Iterator[Chunk]
    """Chunks that this node has not requested yet."""
    progress_s: float
    """Time of the last progress in seconds, on the monotonic clock."""
    began_s: float
    asked: deque[Chunk] = field(default_factory=deque)
    storing: int = 0
    """Number of chunks that the disk was given and has not stored yet."""
    file: File | None = None
    """File that is being written; only the background thread uses it."""
    names: Sequence[str] = ()
    """Names of the segments in the log's directory; set when all chunks are there and the files may be moved."""
    lost: bool = False
    """Whether the transfer has ended early; its jobs that are still queued on the background thread do no work."""


@dataclass(slots=True)
class _NoSpace:
    """A snapshot for which the disk had no space."""

    offer: SnapshotOffer
    pause_s: float
    again_s: float
    """Time of the next attempt in seconds, regardless of the reported free space, because that may ignore a quota."""
    is_seen: bool = False
    """Whether the free space was found too small since then; if so, the next attempt comes when it suffices."""


class SnapshotReceiver:
    """Receiver of snapshots: fetches the files into a directory of their own, verifies them and installs them.

    `install` is called on the event loop.
    """

    def __init__(self, replica: Replica, install: Callable[[Installable, ReadState], None]) -> None:
        self._disk = replica.disk
        self._state = replica.state
        self._directory = replica.directory
        self._journal = replica.journal
        self._runtime = replica.runtime
        self._send = replica.outbox.transmit
        self._install = install
        self._transfer: _Transfer | None = None
        self.times = Histogram(LONG_BOUNDS_S)
        """Durations of catch-ups by snapshot in seconds, each from its offer until it was installed."""
        self._no_space: _NoSpace | None = None
        """Last snapshot for which the disk had no space; `None` after a later snapshot has arrived."""

    @property
    def lacks_space(self) -> bool:
        """Whether the disk had no space for a snapshot that this log still needs, even while it is being retried."""
        no_space = self._no_space
        return no_space is not None and self.is_of_use(no_space.offer.index, no_space.offer.term)

    @property
    def is_busy(self) -> bool:
        """Whether a transfer is in progress."""
        return self._transfer is not None

    def is_of_use(self, index: int, term: int) -> bool:
        """Return whether the log lacks the committed entry at `index` (Raft paper, figure 13, step 6)."""
        journal = self._journal
        return journal.last_index < index or (index >= journal.first_index and journal.term_at(index) != term)

    def offered(self, peer: str, offer: SnapshotOffer) -> None:
        """Begin to fetch the snapshot, or continue it, unless a different transfer is making progress."""
        now_s = self._runtime.monotonic()
        transfer = self._transfer
        if transfer is not None:
            if (transfer.peer, transfer.offer.snapshot) == (peer, offer.snapshot):
                if transfer.progress_s + REPEAT_S < now_s:
                    self._repeat_requests(transfer)
                return
            if transfer.progress_s + PATIENCE_S > now_s:
                return
        if not self.is_of_use(offer.index, offer.term):
            return
        if self._journal.synced_index == 0:
            return  # the last snapshot is not yet durable as the log, so a start would still need its directory
        if not self._may_fit(offer, now_s):
            return
        self._end_transfer()
        log.info("receiving a snapshot of index %d from %s: %d bytes", offer.index, peer, offer.size)
        self._transfer = transfer = _Transfer(peer, offer, chunks_of(offer), now_s, now_s)
        transfer.storing = WINDOW  # blocks requests until the directory exists
        self._disk.submit_background(self._make_room, partial(self._begun, transfer))

    def _may_fit(self, offer: SnapshotOffer, now_s: float) -> bool:
        """Return whether to try a snapshot now, after a snapshot that found no space."""
        no_space = self._no_space
        if no_space is None or now_s >= no_space.again_s:
            return True
        if self._disk.free_bytes() < offer.size:
            no_space.is_seen = True
            return False
        return no_space.is_seen

    def _record_no_space(self, offer: SnapshotOffer) -> None:
        before = self._no_space
        if before is None:
            log.error(
                "no space for a snapshot of %d bytes: retrying when so many are free, and every minute",
                offer.size,
            )
        pause_s = SPACE_PAUSE_MIN_S if before is None else min(2 * before.pause_s, SPACE_PAUSE_MAX_S)
        self._no_space = _NoSpace(offer, pause_s, self._runtime.monotonic() + pause_s)

    def connected(self, peer: str) -> None:
        """Repeat the requests for the chunks that were lost with the old link of `peer`."""
        if self._transfer is not None and self._transfer.peer == peer:
            self._repeat_requests(self._transfer)

    def part_received(self, peer: str) -> None:
        """Count a part of a message from `peer` as progress, because requested chunks arrive behind it."""
        if self._transfer is not None and self._transfer.peer == peer:
            self._transfer.progress_s = self._runtime.monotonic()

    def remove_installed(self) -> None:
        """Remove the directory of a snapshot that was installed durably, unless the next transfer uses it."""
        if self._transfer is None:
            self._disk.submit_background(
                partial(self._disk.remove_directory, self._directory.incoming), _ignore
            )

    def tick(self) -> None:
        """End a transfer that is stuck or no longer needed; must be called once a second."""
        transfer = self._transfer
        if transfer is not None:
            is_stuck = transfer.progress_s + IDLE_MAX_S < self._runtime.monotonic()
            if is_stuck or not self.is_of_use(transfer.offer.index, transfer.offer.term):
                self._end_transfer()

    def withdrawn(self, peer: str, message: SnapshotWithdrawn) -> None:
        transfer = self._transfer
        if transfer is not None and (transfer.peer, transfer.offer.snapshot) == (peer, message.snapshot):
            self._end_transfer()

    def chunk(self, peer: str, chunk: SnapshotChunk) -> None:
        """Store the chunk if it is the next expected chunk."""
        transfer = self._transfer
        if (
            transfer is None
            or (transfer.peer, transfer.offer.snapshot) != (peer, chunk.snapshot)
            or not transfer.asked
        ):
            return
        part = transfer.asked[0]
        if (part.file, part.offset) != (chunk.file, chunk.offset):
            return
        if len(chunk.data) != part.length or crc32(chunk.data) != chunk.crc:
            log.warning("a chunk from %s has arrived damaged; it is requested again", peer)
            self._repeat_requests(transfer)
            return
        transfer.asked.popleft()
        transfer.progress_s = self._runtime.monotonic()
        transfer.storing += 1
        self._disk.submit_background(
            partial(self._store, transfer, part, chunk.data), partial(self._stored, transfer, part)
        )

    # Requesting

    def _begun(self, transfer: _Transfer, _result: None, error: Exception | None) -> None:
        if self._continues(transfer, error):
            transfer.storing = 0
            self._request_next(transfer)

    def _request_next(self, transfer: _Transfer) -> None:
        while len(transfer.asked) + transfer.storing < WINDOW:
            part = next(transfer.parts, None)
            if part is None:
                break
            transfer.asked.append(part)
            self._request(transfer, part)

    def _repeat_requests(self, transfer: _Transfer) -> None:
        for part in transfer.asked:
            self._request(transfer, part)

    def _request(self, transfer: _Transfer, part: Chunk) -> None:
        self._send(transfer.peer, FetchChunk(transfer.offer.snapshot, *part[:3]))

    def _end_transfer(self) -> None:
        transfer = self._transfer
        if transfer is None:
            return
        self._transfer = None
        transfer.lost = True
        # The checkpoint stays if its entry is in this log, because it may be this node's own.
        stray = self.is_of_use(transfer.offer.index, transfer.offer.term)
        self._disk.submit_background(partial(self._clean_up, transfer, stray=stray), _ignore)

    # Storing: on the background thread

    def _clean_up(self, transfer: _Transfer, *, stray: bool) -> None:
        """Remove all fetched files, even moved segments; `stray`: remove the moved checkpoint, too."""
        if transfer.file is not None:
            transfer.file.close()
        if transfer.names:
            log_directory = self._directory.log
            for name in set(transfer.names).intersection(self._disk.list_directory(log_directory)):
                self._disk.remove(f"{log_directory}/{name}")
            if stray:
                remove_checkpoints(self._disk, log_directory, [transfer.offer.index])
        self._disk.remove_directory(self._directory.incoming)

    def _make_room(self) -> None:
        self._disk.remove_directory(self._directory.incoming)
        self._disk.make_directory(self._directory.incoming)

    def _store(self, transfer: _Transfer, part: Chunk, data: Buffer) -> None:
        """Write the chunk; if it ends the file, sync and verify the file."""
        if transfer.lost:
            return
        identity = self._directory.identity
        path = self._path(part.file)
        if part.offset == 0:
            transfer.file = self._disk.open(path, create=True)
            adopt = adopt_header if part.file else adopt_checkpoint
            data = adopt(bytes(data), identity)
        file = transfer.file
        assert file is not None
        file.append([data])
        if part.ends_file:
            file.sync()
            file.close()
            transfer.file = None
            if part.file:
                verify(self._disk, path, identity)
            else:
                read_checkpoint(self._disk, path, identity)

    def _move(self, transfer: _Transfer) -> Installable | None:
        """Rename the complete files into the log's directory, where the manifest does not list them yet."""
        if transfer.lost:
            return None
        directory = self._directory
        checkpoint = read_checkpoint(self._disk, self._path(0), directory.identity)
        # The checkpoint is moved before its segments. The file `moving` tells a start in between that the log has lost
        # no entry.
        directory.mark_moving(checkpoint.index)
        for number, name in enumerate([checkpoint_name(checkpoint.index), *transfer.names]):
            self._disk.rename(self._path(number), f"{directory.log}/{name}")
        self._disk.sync_directory(directory.log)
        segments = [
            Segment.sealed_file(name, row.first, row.end, row.size, sparse=row.sparse)
            for name, row in zip(transfer.names, transfer.offer.segments, strict=True)
        ]
        return Installable(checkpoint, segments, self._journal.runs_of(segments))

    def _path(self, file: int) -> str:
        return f"{self._directory.incoming}/{file:08}"

    # Stored: on the event loop

    def _stored(self, transfer: _Transfer, part: Chunk, _result: None, error: Exception | None) -> None:
        if not self._continues(transfer, error, part.file):
            return
        transfer.storing -= 1
        transfer.progress_s = self._runtime.monotonic()
        if part.file == len(transfer.offer.segments) and part.ends_file:
            self._complete(transfer)
        else:
            self._request_next(transfer)

    def _continues(self, transfer: _Transfer, error: Exception | None, file: int = 0) -> bool:
        """Return whether the transfer goes on after a job on `file` has ended; an error ends the transfer."""
        if self._transfer is not transfer:
            return False
        if error is None:
            return True
        if isinstance(error, JournalError):
            log.error("the snapshot from %s is damaged: %s", transfer.peer, error)
            self._send(transfer.peer, SnapshotDamaged(transfer.offer.snapshot, file))
        elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            self._record_no_space(transfer.offer)
        else:
            self._runtime.fail(error)
        self._end_transfer()
        return False

    def _complete(self, transfer: _Transfer) -> None:
        self._no_space = None
        transfer.names = [
            self._journal.new_name(row.first, sparse=row.sparse) for row in transfer.offer.segments
        ]
        self._disk.submit_background(partial(self._move, transfer), partial(self._moved, transfer))

    def _moved(self, transfer: _Transfer, installable: Installable | None, error: Exception | None) -> None:
        if not self._continues(transfer, error) or installable is None:
            return
        # Reading a large state takes seconds, while the event loop goes on. All files have arrived, so the transfer
        # must not time out meanwhile.
        transfer.progress_s = math.inf
        self._disk.submit_background(
            partial(self._directory.read_state, self._state, installable.checkpoint),
            partial(self._read_state, transfer, installable),
        )

    def _read_state(
        self, transfer: _Transfer, installable: Installable, state: ReadState | None, error: Exception | None
    ) -> None:
        if error is not None:
            self._runtime.fail(error)  # a different version of the program wrote it
        if self._transfer is not transfer or state is None:
            return
        if not self.is_of_use(installable.checkpoint.index, installable.checkpoint.term):
            self._end_transfer()
            return
        self._transfer = None
        self._install(installable, state)
        self.times.add(self._runtime.monotonic() - transfer.began_s)


def _ignore(_result: None, _error: Exception | None) -> None:
    """Ignore an error, because a leftover is removed at the next start."""
