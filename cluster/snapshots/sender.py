"""The sender of snapshots: offers this node's files to followers that are too far behind, and sends the chunks.

A snapshot is the newest checkpoint and all sealed segments: the state, the live messages and the retained log.

Invariant: a file of an offered snapshot is unchanged when a chunk of it leaves. Files are read off the event loop.
"""

from __future__ import annotations

import errno
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from cluster.log.checkpoints import checkpoint_name, read_checkpoint
from cluster.log.sealed_segment import verify
from cluster.log.segment import CorruptJournal, JournalError, Segment
from cluster.raft.messages import (
    FetchChunk,
    SnapshotChunk,
    SnapshotDamaged,
    SnapshotFile,
    SnapshotOffer,
    SnapshotWithdrawn,
)
from cluster.snapshots.chunks import CHUNK_BYTES, IDLE_MAX_S, REPEAT_S

if TYPE_CHECKING:
    from cluster.engine.engine import Engine
    from cluster.raft.learner_pace import Pace
    from cluster.raft.progress import Progress
    from cluster.replica import Replica
    from cluster.runtime.ports import Disk

log = logging.getLogger(__name__)

FED_RETAINED_MAX = 8
"""Entries that a follower is being sent are kept up to this many times `retained_bytes`. For a follower that is being
sent a snapshot, the entries behind the snapshot are kept up to the snapshot's size until the follower has them.
Otherwise it would need a new snapshot when it has installed the first, unless the log grows faster than a snapshot is
sent."""
_DAMAGE = (errno.EIO, errno.ENOENT)
"""Errors that show that a file is damaged or missing on the disk; other errors may be temporary."""


@dataclass(slots=True)
class _Offered:
    """A snapshot that a peer may fetch."""

    offer: SnapshotOffer
    names: list[str]
    """Names of the files 0, 1, ... of the snapshot in the log's directory."""
    used_s: float
    pace: Pace | None
    """Rate at which the snapshot is sent, if the peer is a learner; otherwise `None`."""
    waiting: deque[FetchChunk] = field(default_factory=deque)
    """Requests of the peer that are not being read yet, because the rate of a learner demands a rest."""


class _Sealing(NamedTuple):
    """The sealing of the open segment, after which the segment can be part of a snapshot."""

    sync_point: int
    """Sync point of the sealing: the count of journal changes at which the segment is sealed on the disk."""
    end: int
    """Index after the last entry that the snapshot may hold."""


class SnapshotSender:
    """Sender of snapshots: offers this node's files to peers that are too far behind, and sends the chunks."""

    def __init__(self, replica: Replica, first_id: int) -> None:
        """Number snapshots from `first_id`, which no earlier incarnation of this node has reached."""
        self._disk = replica.disk
        self._directory = replica.directory
        self._journal = replica.journal
        self._housekeeping = replica.housekeeping
        self._runtime = replica.runtime
        self._send = replica.outbox.transmit
        self._failed = replica.fail_stop.disk_failed
        self._retained_bytes = replica.config.retained_bytes
        """Bytes of the log that are kept for all followers anyway."""
        self._next_id = first_id
        self._sealing: dict[str, _Sealing] = {}
        self._offered: dict[str, _Offered] = {}
        self._last_offers: dict[str, SnapshotOffer] = {}
        """Last snapshot of each peer that fetches it, or has it but still lacks the entries behind it."""
        self._spoilt_index = 0
        """Index of the last checkpoint that was found damaged."""

    def turn(self, engine: Engine) -> None:
        """Offer a snapshot to each peer that the engine finds too far behind."""
        if not engine.is_leader:
            self._sealing.clear()
            return
        for peer, progress in engine.progress.items():
            next_index = progress.lacks_from
            if next_index is None:
                continue
            offered = self._offered.get(peer)
            if offered is not None and next_index > offered.offer.index:
                self._withdraw(peer)  # the peer has installed it, but the log begins even later now
            if peer not in self._offered:
                self._prepare(peer, progress.pace)

    def tick(self, engine: Engine) -> None:
        """Repeat offers without an answer, and withdraw unused offers; must be called once a second."""
        now_s = self._runtime.monotonic()
        for peer, offered in list(self._offered.items()):
            idle_s = now_s - offered.used_s
            progress = engine.progress.get(peer)
            if progress is None:  # the peer was removed
                self._withdraw(peer)
            elif idle_s > IDLE_MAX_S or (engine.is_leader and progress.lacks_from is None):
                self._withdraw(peer)
                progress.probe_again()
            elif idle_s > REPEAT_S:
                self._send(peer, offered.offer)
        for peer in list(self._last_offers):
            if peer not in self._offered and self._has_caught_up(engine.progress.get(peer)):
                del self._last_offers[peer]

    def _has_caught_up(self, progress: Progress | None) -> bool:
        """Return whether a peer needs only entries that are kept for all followers, or was removed."""
        if progress is None:
            return True
        index = progress.acknowledged
        return (
            index >= self._journal.first_index and self._journal.bytes_from(index + 1) <= self._retained_bytes
        )

    def needed_from(self, engine: Engine, peers: Iterable[str]) -> int | None:
        """Return the index of the first entry to keep in the log for these followers, or `None`."""
        needed: int | None = None
        for peer in peers:
            bytes_max = FED_RETAINED_MAX * self._retained_bytes
            index = engine.progress[peer].acknowledged
            offer = self._last_offers.get(peer)
            if offer is not None:
                bytes_max = max(bytes_max, offer.size)
                if index < self._journal.first_index:  # the peer has not installed it yet
                    index = offer.segments[-1].end
            if index < self._journal.first_index:
                continue  # the peer's log is unknown, or it needs a snapshot anyway
            if self._journal.bytes_from(index) <= bytes_max:
                needed = index if needed is None else min(needed, index)
        return needed

    def fetch(self, peer: str, request: FetchChunk) -> None:
        """Send a peer the requested chunk after reading it."""
        offered = self._offered_to(peer, request.snapshot, request.file)
        if offered is None:
            self._send(peer, SnapshotWithdrawn(request.snapshot))
            return
        offered.used_s = self._runtime.monotonic()
        offered.waiting.append(request)
        if len(offered.waiting) == 1:
            self._send_waiting(peer, offered)

    def _send_waiting(self, peer: str, offered: _Offered) -> None:
        """Read the waiting requests in their order, with the rests in between that a learner's rate demands.

        The peer accepts chunks only in the order of its requests. It would drop a chunk that came early, and with it
        all requested chunks, until it repeats the requests a second or two later.
        """
        while offered.waiting:
            now_s = self._runtime.monotonic()
            rest_s = offered.pace.rest_s(now_s) if offered.pace is not None else 0.0
            if rest_s:
                self._runtime.call_later(rest_s, partial(self._send_waiting, peer, offered))
                return
            request = offered.waiting.popleft()
            length = min(request.length, CHUNK_BYTES)
            if offered.pace is not None:
                offered.pace.spend(length, now_s)
            path = f"{self._directory.log}/{offered.names[request.file]}"
            read = partial(_read, self._disk, path, request.offset, length)
            self._disk.submit_read(read, partial(self._have_read, peer, request, path))

    def _have_read(
        self, peer: str, request: FetchChunk, path: str, data: bytes | None, error: Exception | None
    ) -> None:
        if self._offered_to(peer, request.snapshot, request.file) is None:
            self._send(peer, SnapshotWithdrawn(request.snapshot))
        elif isinstance(error, OSError) and error.errno not in _DAMAGE:
            # The cause may be too many open files, for example. The peer will request the chunk again.
            log.warning("cannot send a part of a snapshot to %s: %s", peer, error)
        elif data is None:
            self._failed(CorruptJournal(path, request.offset, f"cannot be read: {error}"))
        else:
            self._send(peer, SnapshotChunk(request.snapshot, request.file, request.offset, crc32(data), data))

    def spoilt(self, peer: str, message: SnapshotDamaged) -> None:
        """Verify a file that arrived damaged at a peer, because it may be damaged here, too; withdraw the offer."""
        offered = self._offered_to(peer, message.snapshot, message.file)
        if offered is None:
            return
        path = f"{self._directory.log}/{offered.names[message.file]}"
        check = verify if message.file else read_checkpoint
        self._disk.submit_background(
            partial(check, self._disk, path, self._directory.identity),
            partial(self._checked, offered, message.file),
        )
        self._withdraw(peer)

    def _offered_to(self, peer: str, snapshot: int, file: int) -> _Offered | None:
        """Return the snapshot that the peer may fetch; `None` if it differs from `snapshot` or its file has changed."""
        offered = self._offered.get(peer)
        if offered is None or offered.offer.snapshot != snapshot or file >= len(offered.names):
            return None
        if file and not self._is_sealed(offered.names[file]):
            self._withdraw(peer)
            return None
        return offered

    def _is_sealed(self, name: str) -> bool:
        """Return whether the segment is still sealed, as it was when it was offered; it may have been cut since."""
        return any(segment.name == name and segment.sealed for segment in self._journal.segments())

    def _checked(self, offered: _Offered, file: int, _result: object, error: Exception | None) -> None:
        if isinstance(error, JournalError) and not file:
            log.warning("a checkpoint is damaged and will be taken anew: %s", error)
            self._spoilt_index = offered.offer.index
            self._housekeeping.renew()
        elif error is not None and self._is_sealed(offered.names[file]):
            self._failed(error)

    def _prepare(self, peer: str, pace: Pace | None) -> None:
        sealing = self._sealing.get(peer)
        if sealing is None:
            self._journal.seal()
            sealing = self._sealing[peer] = _Sealing(self._journal.written, self._journal.last_index + 1)
        checkpoint = self._housekeeping.newest
        if (
            self._journal.synced < sealing.sync_point
            or checkpoint is None
            or checkpoint.index == self._spoilt_index
        ):
            return
        del self._sealing[peer]
        segments = [
            segment for segment in self._journal.segments() if segment.sealed and segment.end <= sealing.end
        ]
        if segments and segments[-1].end > checkpoint.index:
            self._offer(peer, checkpoint.index, checkpoint.term, segments, pace)

    def _offer(
        self, peer: str, index: int, term: int, segments: Sequence[Segment], pace: Pace | None
    ) -> None:
        name = checkpoint_name(index)
        checkpoint = self._disk.open(f"{self._directory.log}/{name}")
        files = [
            SnapshotFile(segment.first, segment.end, segment.file_bytes, segment.sparse)
            for segment in segments
        ]
        offer = SnapshotOffer(self._next_id, index, term, checkpoint.size, files)
        checkpoint.close()
        self._next_id += 1
        names = [name, *(segment.name for segment in segments)]
        self._offered[peer] = _Offered(offer, names, self._runtime.monotonic(), pace)
        self._last_offers[peer] = offer
        self._housekeeping.pin(names)
        log.info("peer %s is too far behind: offering it a snapshot of index %d", peer, index)
        self._send(peer, offer)

    def _withdraw(self, peer: str) -> None:
        self._housekeeping.unpin(self._offered.pop(peer).names)


def _read(disk: Disk, path: str, offset: int, length: int) -> bytes:
    file = disk.open(path)
    try:
        return file.pread(offset, length)
    finally:
        file.close()
