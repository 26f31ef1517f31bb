"""Catch-up by snapshot: both sides of replacing a follower's log by a copy of the leader's files (InstallSnapshot).

A follower needs a snapshot if its log ends before the leader's log begins. A snapshot is the newest checkpoint and all
sealed segments: the state, the live messages and the retained log. The follower requests the files chunk by chunk, a
few at a time, so it is never sent more than it can store. A broken link costs the requested chunks. A transfer
continues when the leader changes, because committed entries stay committed.

Invariant: received data counts only after the whole file was verified. The node's own log is untouched until all files
are there, verified and durable. Files are read and written off the event loop.
"""

from __future__ import annotations

import errno
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from cluster.log.segment import CorruptJournal, JournalError, Segment, adopt_header
from cluster.raft.messages import (
    FetchChunk,
    Message,
    SnapshotChunk,
    SnapshotDamaged,
    SnapshotFile,
    SnapshotOffer,
    SnapshotWithdrawn,
)
from cluster.runtime.histogram import LONG_BOUNDS_S, Histogram

if TYPE_CHECKING:
    from cluster.engine.engine import Engine
    from cluster.log.housekeeping import Housekeeping
    from cluster.log.journal import SegmentedJournal
    from cluster.log.term_runs import TermRuns
    from cluster.raft.learner_pace import Pace
    from cluster.raft.progress import Progress
    from cluster.runtime.ports import Buffer, Disk, File, Runtime
    from cluster.state.group_state import GroupState, ReadState
    from cluster.storage.directory import GroupDirectory

log = logging.getLogger(__name__)

CHUNK_BYTES = 256 * 1024
WINDOW = 4
"""Largest number of chunks requested and not yet stored: it keeps link and disk busy with 1 MiB of memory at most."""
PATIENCE_S = 5.0
"""Seconds without progress after which a transfer gives way to the offer of a different snapshot."""
GIVEN_S = 60.0
"""Seconds after the last request for which the files of a snapshot are kept; a stuck transfer ends then, too."""
REPEAT_S = 1.0
SPACE_PAUSE_MIN_S = 2.0
SPACE_PAUSE_MAX_S = 60.0
"""Longest pause in seconds before a transfer without space is tried again; the pause doubles each time up to this.
Without the pauses the beginning of a large snapshot would be sent every other second as long as the disk is too
small."""
FED_RETAINED_MAX = 8
"""Entries that a follower is being sent are kept up to this many times `retained_bytes`. For a follower that is being
sent a snapshot, the entries behind the snapshot are kept up to the snapshot's size until the follower has them.
Otherwise it would need a new snapshot when it has installed the first, unless the log grows faster than a snapshot is
sent."""
_DAMAGE = (errno.EIO, errno.ENOENT)
"""Errors that show that a file is damaged or missing on the disk; other errors may be temporary."""

Send = Callable[[str, Message], None]


@dataclass(slots=True)
class _Given:
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


class SnapshotGiver:
    """Sender of snapshots: offers this node's files to peers that are too far behind, and sends the chunks."""

    def __init__(
        self,
        disk: Disk,
        directory: GroupDirectory,
        journal: SegmentedJournal,
        housekeeping: Housekeeping,
        runtime: Runtime,
        send: Send,
        failed: Callable[[Exception], None],
        first_id: int,
        retained_bytes: int,
    ) -> None:
        """Number snapshots from `first_id`, which no earlier incarnation of this node has reached.

        `retained_bytes`: bytes of the log that are kept for all followers anyway.
        """
        self._disk = disk
        self._directory = directory
        self._journal = journal
        self._housekeeping = housekeeping
        self._runtime = runtime
        self._send = send
        self._failed = failed
        self._next_id = first_id
        self._sealing: dict[str, _Sealing] = {}
        self._given: dict[str, _Given] = {}
        self._retained_bytes = retained_bytes
        self._last_offers: dict[str, SnapshotOffer] = {}
        """Last snapshot of each peer that fetches it, or has it but still lacks the entries behind it."""
        self._spoilt_index = 0
        """Index of the last checkpoint that was found damaged."""

    def turn(self, engine: Engine) -> None:
        """SnapshotOffer a snapshot to each peer that the engine finds too far behind."""
        if not engine.is_leader:
            self._sealing.clear()
            return
        for peer, progress in engine.progress.items():
            next_index = progress.lacks_from
            if next_index is None:
                continue
            given = self._given.get(peer)
            if given is not None and next_index > given.offer.index:
                self._take_back(peer)  # the peer has installed it, but the log begins even later now
            if peer not in self._given:
                self._prepare(peer, progress.pace)

    def tick(self, engine: Engine) -> None:
        """Repeat offers without an answer, and withdraw unused offers; must be called once a second."""
        now_s = self._runtime.monotonic()
        for peer, given in list(self._given.items()):
            idle_s = now_s - given.used_s
            progress = engine.progress.get(peer)
            if progress is None:  # the peer was removed
                self._take_back(peer)
            elif idle_s > GIVEN_S or (engine.is_leader and progress.lacks_from is None):
                self._take_back(peer)
                progress.ask_again()
            elif idle_s > REPEAT_S:
                self._send(peer, given.offer)
        for peer in list(self._last_offers):
            if peer not in self._given and self._has_come_up(engine.progress.get(peer)):
                del self._last_offers[peer]

    def _has_come_up(self, progress: Progress | None) -> bool:
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
        given = self._given_to(peer, request.snapshot, request.file)
        if given is None:
            self._send(peer, SnapshotWithdrawn(request.snapshot))
            return
        given.used_s = self._runtime.monotonic()
        given.waiting.append(request)
        if len(given.waiting) == 1:
            self._give(peer, given)

    def _give(self, peer: str, given: _Given) -> None:
        """Read the waiting requests in their order, with the rests in between that a learner's rate demands.

        The peer accepts chunks only in the order of its requests. It would drop a chunk that came early, and with it
        all requested chunks, until it repeats the requests a second or two later.
        """
        while given.waiting:
            now_s = self._runtime.monotonic()
            rest_s = given.pace.rest_s(now_s) if given.pace is not None else 0.0
            if rest_s:
                self._runtime.call_later(rest_s, partial(self._give, peer, given))
                return
            request = given.waiting.popleft()
            length = min(request.length, CHUNK_BYTES)
            if given.pace is not None:
                given.pace.spend(length, now_s)
            path = f"{self._directory.log}/{given.names[request.file]}"
            read = partial(_read, self._disk, path, request.offset, length)
            self._disk.submit_read(read, partial(self._have_read, peer, request, path))

    def _have_read(
        self, peer: str, request: FetchChunk, path: str, data: bytes | None, error: Exception | None
    ) -> None:
        if self._given_to(peer, request.snapshot, request.file) is None:
            self._send(peer, SnapshotWithdrawn(request.snapshot))
        elif isinstance(error, OSError) and error.errno not in _DAMAGE:
            # The cause may be too many open files, for example. The peer will request the chunk again.
            log.warning("cannot give a part of a snapshot to %s: %s", peer, error)
        elif data is None:
            self._failed(CorruptJournal(path, request.offset, f"cannot be read: {error}"))
        else:
            self._send(peer, SnapshotChunk(request.snapshot, request.file, request.offset, crc32(data), data))

    def spoilt(self, peer: str, message: SnapshotDamaged) -> None:
        """Verify a file that arrived damaged at a peer, because it may be damaged here, too; withdraw the offer."""
        given = self._given_to(peer, message.snapshot, message.file)
        if given is None:
            return
        path = f"{self._directory.log}/{given.names[message.file]}"
        check = verify if message.file else read_checkpoint
        self._disk.submit_background(
            partial(check, self._disk, path, self._directory.identity),
            partial(self._checked, given, message.file),
        )
        self._take_back(peer)

    def _given_to(self, peer: str, snapshot: int, file: int) -> _Given | None:
        """Return the snapshot that the peer may fetch; `None` if it differs from `snapshot` or its file has changed."""
        given = self._given.get(peer)
        if given is None or given.offer.snapshot != snapshot or file >= len(given.names):
            return None
        if file and not self._is_sealed(given.names[file]):
            self._take_back(peer)
            return None
        return given

    def _is_sealed(self, name: str) -> bool:
        """Return whether the segment is still sealed, as it was when it was offered; it may have been cut since."""
        return any(segment.name == name and segment.sealed for segment in self._journal.segments())

    def _checked(self, given: _Given, file: int, _result: object, error: Exception | None) -> None:
        if isinstance(error, JournalError) and not file:
            log.warning("a checkpoint is damaged and will be taken anew: %s", error)
            self._spoilt_index = given.offer.index
            self._housekeeping.renew()
        elif error is not None and self._is_sealed(given.names[file]):
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
        self._given[peer] = _Given(offer, names, self._runtime.monotonic(), pace)
        self._last_offers[peer] = offer
        self._housekeeping.pin(names)
        log.info("peer %s is too far behind: it is offered a snapshot of index %d", peer, index)
        self._send(peer, offer)

    def _take_back(self, peer: str) -> None:
        self._housekeeping.unpin(self._given.pop(peer).names)


class Installable(NamedTuple):
    """A snapshot whose files are verified and durable in the log's directory, but not yet part of the log."""

    checkpoint: Checkpoint
    segments: list[Segment]
    runs: TermRuns
    """Terms of the segments' entries."""


class _Part(NamedTuple):
    """A chunk to fetch."""

    file: int
    offset: int
    length: int
    ends_file: bool


@dataclass(slots=True)
class _Taking:
    """A snapshot that is being fetched."""

    peer: str
    offer: SnapshotOffer
    parts: Iterator[_Part]
    """Chunks that this node has not requested yet."""
    moved_s: float
    """Time of the last progress in seconds, on the monotonic clock."""
    began_s: float
    asked: deque[_Part] = field(default_factory=deque)
    storing: int = 0
    """Number of chunks that the disk was given and has not stored yet."""
    file: File | None = None
    """File that is being written; only the background thread uses it."""
    names: Sequence[str] = ()
    """Names of the segments in the log's directory; set when all chunks are there and the files may be moved."""
    lost: bool = False
    """Whether the transfer has ended early; its jobs that are still queued on the background thread do no work."""


@dataclass(slots=True)
class _Unplaced:
    """A snapshot for which the disk had no space."""

    offer: SnapshotOffer
    pause_s: float
    again_s: float
    """Time of the next attempt in seconds, regardless of the reported free space, because that may ignore a quota."""
    is_seen: bool = False
    """Whether the free space was found too small since then; if so, the next attempt comes when it suffices."""


class SnapshotTaker:
    """Receiver of snapshots: fetches the files into a directory of their own, verifies them and installs them.

    `install` is called on the event loop.
    """

    def __init__(
        self,
        disk: Disk,
        directory: GroupDirectory,
        journal: SegmentedJournal,
        state: GroupState,
        runtime: Runtime,
        send: Send,
        install: Callable[[Installable, ReadState], None],
    ) -> None:
        self._disk = disk
        self._state = state
        self._directory = directory
        self._journal = journal
        self._runtime = runtime
        self._send = send
        self._install = install
        self._taking: _Taking | None = None
        self.times = Histogram(LONG_BOUNDS_S)
        """Durations of catch-ups by snapshot in seconds, each from its offer until it was installed."""
        self._unplaced: _Unplaced | None = None
        """Last snapshot for which the disk had no space; `None` after a later snapshot has arrived."""

    @property
    def lacks_space(self) -> bool:
        """Whether the disk had no space for a snapshot that this log still needs, even while it is being retried."""
        unplaced = self._unplaced
        return unplaced is not None and self.is_of_use(unplaced.offer.index, unplaced.offer.term)

    @property
    def is_busy(self) -> bool:
        """Whether a transfer is in progress."""
        return self._taking is not None

    def is_of_use(self, index: int, term: int) -> bool:
        """Return whether the log lacks the committed entry at `index` (Raft paper, figure 13, step 6)."""
        journal = self._journal
        return journal.last_index < index or (index >= journal.first_index and journal.term_at(index) != term)

    def offered(self, peer: str, offer: SnapshotOffer) -> None:
        """Begin to fetch the snapshot, or continue it, unless a different transfer is making progress."""
        now_s = self._runtime.monotonic()
        taking = self._taking
        if taking is not None:
            if (taking.peer, taking.offer.snapshot) == (peer, offer.snapshot):
                if taking.moved_s + REPEAT_S < now_s:
                    self._ask_again(taking)
                return
            if taking.moved_s + PATIENCE_S > now_s:
                return
        if not self.is_of_use(offer.index, offer.term):
            return
        if self._journal.synced_index == 0:
            return  # the last snapshot is not yet durable as the log, so a start would still need its directory
        if not self._may_fit(offer, now_s):
            return
        self._give_up()
        log.info("takes a snapshot of index %d from %s: %d bytes", offer.index, peer, offer.size)
        self._taking = taking = _Taking(peer, offer, _parts(offer), now_s, now_s)
        taking.storing = WINDOW  # blocks requests until the directory exists
        self._disk.submit_background(self._make_room, partial(self._begun, taking))

    def _may_fit(self, offer: SnapshotOffer, now_s: float) -> bool:
        """Return whether to try a snapshot now, after a snapshot that found no space."""
        unplaced = self._unplaced
        if unplaced is None or now_s >= unplaced.again_s:
            return True
        if self._disk.free_bytes() < offer.size:
            unplaced.is_seen = True
            return False
        return unplaced.is_seen

    def _note_unplaced(self, offer: SnapshotOffer) -> None:
        before = self._unplaced
        if before is None:
            log.error(
                "no space for a snapshot of %d bytes: it is tried again when so many are free, and every minute",
                offer.size,
            )
        pause_s = SPACE_PAUSE_MIN_S if before is None else min(2 * before.pause_s, SPACE_PAUSE_MAX_S)
        self._unplaced = _Unplaced(offer, pause_s, self._runtime.monotonic() + pause_s)

    def connected(self, peer: str) -> None:
        """Repeat the requests for the chunks that were lost with the old link of `peer`."""
        if self._taking is not None and self._taking.peer == peer:
            self._ask_again(self._taking)

    def part_received(self, peer: str) -> None:
        """Count a part of a message from `peer` as progress, because requested chunks arrive behind it."""
        if self._taking is not None and self._taking.peer == peer:
            self._taking.moved_s = self._runtime.monotonic()

    def remove_installed(self) -> None:
        """Remove the directory of a snapshot that was installed durably, unless the next transfer uses it."""
        if self._taking is None:
            self._disk.submit_background(
                partial(self._disk.remove_directory, self._directory.incoming), _ignore
            )

    def tick(self) -> None:
        """End a transfer that is stuck or no longer needed; must be called once a second."""
        taking = self._taking
        if taking is not None:
            is_stuck = taking.moved_s + GIVEN_S < self._runtime.monotonic()
            if is_stuck or not self.is_of_use(taking.offer.index, taking.offer.term):
                self._give_up()

    def withdrawn(self, peer: str, message: SnapshotWithdrawn) -> None:
        taking = self._taking
        if taking is not None and (taking.peer, taking.offer.snapshot) == (peer, message.snapshot):
            self._give_up()

    def chunk(self, peer: str, chunk: SnapshotChunk) -> None:
        """Store the chunk if it is the next expected chunk."""
        taking = self._taking
        if (
            taking is None
            or (taking.peer, taking.offer.snapshot) != (peer, chunk.snapshot)
            or not taking.asked
        ):
            return
        part = taking.asked[0]
        if (part.file, part.offset) != (chunk.file, chunk.offset):
            return
        if len(chunk.data) != part.length or crc32(chunk.data) != chunk.crc:
            log.warning("a chunk from %s has arrived damaged; it is asked for again", peer)
            self._ask_again(taking)
            return
        taking.asked.popleft()
        taking.moved_s = self._runtime.monotonic()
        taking.storing += 1
        self._disk.submit_background(
            partial(self._store, taking, part, chunk.data), partial(self._stored, taking, part)
        )

    # Requesting

    def _begun(self, taking: _Taking, _result: None, error: Exception | None) -> None:
        if self._is_on(taking, error):
            taking.storing = 0
            self._ask(taking)

    def _ask(self, taking: _Taking) -> None:
        while len(taking.asked) + taking.storing < WINDOW:
            part = next(taking.parts, None)
            if part is None:
                break
            taking.asked.append(part)
            self._request(taking, part)

    def _ask_again(self, taking: _Taking) -> None:
        for part in taking.asked:
            self._request(taking, part)

    def _request(self, taking: _Taking, part: _Part) -> None:
        self._send(taking.peer, FetchChunk(taking.offer.snapshot, *part[:3]))

    def _give_up(self) -> None:
        taking = self._taking
        if taking is None:
            return
        self._taking = None
        taking.lost = True
        # The checkpoint stays if its entry is in this log, because it may be this node's own.
        stray = self.is_of_use(taking.offer.index, taking.offer.term)
        self._disk.submit_background(partial(self._clean_up, taking, stray=stray), _ignore)

    # Storing: on the background thread

    def _clean_up(self, taking: _Taking, *, stray: bool) -> None:
        """Remove all fetched files, even moved segments; `stray`: remove the moved checkpoint, too."""
        if taking.file is not None:
            taking.file.close()
        if taking.names:
            log_directory = self._directory.log
            for name in set(taking.names).intersection(self._disk.list_directory(log_directory)):
                self._disk.remove(f"{log_directory}/{name}")
            if stray:
                remove_checkpoints(self._disk, log_directory, [taking.offer.index])
        self._disk.remove_directory(self._directory.incoming)

    def _make_room(self) -> None:
        self._disk.remove_directory(self._directory.incoming)
        self._disk.make_directory(self._directory.incoming)

    def _store(self, taking: _Taking, part: _Part, data: Buffer) -> None:
        """Write the chunk; if it ends the file, sync and verify the file."""
        if taking.lost:
            return
        identity = self._directory.identity
        path = self._path(part.file)
        if part.offset == 0:
            taking.file = self._disk.open(path, create=True)
            adopt = adopt_header if part.file else adopt_checkpoint
            data = adopt(bytes(data), identity)
        file = taking.file
        assert file is not None
        file.append([data])
        if part.ends_file:
            file.sync()
            file.close()
            taking.file = None
            if part.file:
                verify(self._disk, path, identity)
            else:
                read_checkpoint(self._disk, path, identity)

    def _move(self, taking: _Taking) -> Installable | None:
        """Rename the complete files into the log's directory, where the manifest does not list them yet."""
        if taking.lost:
            return None
        directory = self._directory
        checkpoint = read_checkpoint(self._disk, self._path(0), directory.identity)
        # The checkpoint is moved before its segments. The file `moving` tells a start in between that the log has lost
        # no entry.
        directory.note_moving(checkpoint.index)
        for number, name in enumerate([checkpoint_name(checkpoint.index), *taking.names]):
            self._disk.rename(self._path(number), f"{directory.log}/{name}")
        self._disk.sync_directory(directory.log)
        segments = [
            Segment.sealed_file(name, row.first, row.end, row.size, sparse=row.sparse)
            for name, row in zip(taking.names, taking.offer.segments, strict=True)
        ]
        return Installable(checkpoint, segments, self._journal.runs_of(segments))

    def _path(self, file: int) -> str:
        return f"{self._directory.incoming}/{file:08}"

    # Stored: on the event loop

    def _stored(self, taking: _Taking, part: _Part, _result: None, error: Exception | None) -> None:
        if not self._is_on(taking, error, part.file):
            return
        taking.storing -= 1
        taking.moved_s = self._runtime.monotonic()
        if part.file == len(taking.offer.segments) and part.ends_file:
            self._complete(taking)
        else:
            self._ask(taking)

    def _is_on(self, taking: _Taking, error: Exception | None, file: int = 0) -> bool:
        """Return whether the transfer goes on after a job on `file` has ended; an error ends the transfer."""
        if self._taking is not taking:
            return False
        if error is None:
            return True
        if isinstance(error, JournalError):
            log.error("the snapshot from %s is damaged: %s", taking.peer, error)
            self._send(taking.peer, SnapshotDamaged(taking.offer.snapshot, file))
        elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            self._note_unplaced(taking.offer)
        else:
            self._runtime.fail(error)
        self._give_up()
        return False

    def _complete(self, taking: _Taking) -> None:
        self._unplaced = None
        taking.names = [self._journal.new_name(row.first, sparse=row.sparse) for row in taking.offer.segments]
        self._disk.submit_background(partial(self._move, taking), partial(self._moved, taking))

    def _moved(self, taking: _Taking, installable: Installable | None, error: Exception | None) -> None:
        if not self._is_on(taking, error) or installable is None:
            return
        # Reading a large state takes seconds, while the event loop goes on. All files have arrived, so the transfer
        # must not time out meanwhile.
        taking.moved_s = math.inf
        self._disk.submit_background(
            partial(self._directory.read_state, self._state, installable.checkpoint),
            partial(self._read_state, taking, installable),
        )

    def _read_state(
        self, taking: _Taking, installable: Installable, state: ReadState | None, error: Exception | None
    ) -> None:
        if error is not None:
            self._runtime.fail(error)  # a different version of the program wrote it
        if self._taking is not taking or state is None:
            return
        if not self.is_of_use(installable.checkpoint.index, installable.checkpoint.term):
            self._give_up()
            return
        self._taking = None
        self._install(installable, state)
        self.times.add(self._runtime.monotonic() - taking.began_s)


def _parts(offer: SnapshotOffer) -> Iterator[_Part]:
    for file, size in enumerate([offer.checkpoint_size, *(row.size for row in offer.segments)]):
        for offset in range(0, size, CHUNK_BYTES):
            length = min(CHUNK_BYTES, size - offset)
            yield _Part(file, offset, length, offset + length == size)


def _read(disk: Disk, path: str, offset: int, length: int) -> bytes:
    file = disk.open(path)
    try:
        return file.pread(offset, length)
    finally:
        file.close()


def _ignore(_result: None, _error: Exception | None) -> None:
    """Ignore an error, because a leftover is removed at the next start."""
