"""A snapshot on its way: whole, broken off, damaged, superfluous."""

from __future__ import annotations

import errno
import heapq
import math
import os
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chaos.sim.world.disk import SimulatedDisk
from cluster.group.assembly import SNAPSHOT_ID_BITS
from cluster.log.checkpoints import Checkpoint, checkpoint_name, list_checkpoints, write_checkpoint
from cluster.log.hardstate import HardState, HardStateFile, VoterStatus
from cluster.log.housekeeping import CheckpointPosition
from cluster.log.journal import JournalSizes, SegmentedJournal
from cluster.log.owned_directory import OwnedDirectory
from cluster.log.segment import CorruptJournal, UnknownFormat
from cluster.raft.cluster_clock import WALL_MAX_MS
from cluster.raft.learner_pace import Pace
from cluster.raft.messages import (
    FetchChunk,
    Message,
    SnapshotChunk,
    SnapshotDamaged,
    SnapshotOffer,
    SnapshotWithdrawn,
    decode,
    encode,
)
from cluster.raft.progress import Progress
from cluster.snapshots.chunks import CHUNK_BYTES, IDLE_MAX_S
from cluster.snapshots.receiver import PATIENCE_S, SPACE_PAUSE_MIN_S, Installable, SnapshotReceiver
from cluster.snapshots.sender import SnapshotSender
from cluster.storage.directory import INCARNATION_LEAP, GroupDirectory, moving_checkpoint
from cluster.storage.identity import Owner

STATE = b"the state" * 50_000
ENTRIES = 200
ENTRY_BYTES = 5_000
RETAINED_BYTES = 3 * ENTRY_BYTES


class World:
    """Simulated time and events."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def after(self, delay_s: float, callback: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now_s + delay_s, self._count, callback))

    def run(self, stop: Callable[[], bool] = lambda: False) -> None:
        while self._events and not stop():
            self.now_s, _, callback = heapq.heappop(self._events)
            callback()

    # The runtime of the sender and the receiver

    def monotonic(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.after(delay_s, callback)

    def fail(self, error: BaseException) -> None:
        raise error


class DiskWithQuota(SimulatedDisk):
    """A disk that may say that much is free, while this node may not write so much."""

    quota_bytes: int | None = None

    def append_to(self, inode: Any, data: bytes) -> None:
        if self.quota_bytes is not None and self.used_bytes() + len(data) > self.quota_bytes:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        super().append_to(inode, data)


class Node:
    """A node's disk and log."""

    def __init__(self, name: str, world: World) -> None:
        self.disk = DiskWithQuota(Random(name), world.after)
        self.directory = GroupDirectory(self.disk, "group", Owner("cluster", name, 0))
        self.world = world
        self.open()

    def open(self) -> SegmentedJournal:
        """Open the log as it is on the disk."""
        self.disk.make_directory(self.directory.log)
        hard_state = HardStateFile(OwnedDirectory(self.disk, "group", self.directory.identity))
        hard_state.load()
        hard_state.store(HardState(1, None, VoterStatus.VOTER))
        self.journal = SegmentedJournal(
            self.directory.log_files,
            hard_state,
            JournalSizes(segment_bytes=100_000, segment_entries=1000),
            on_failure=self.world.fail,
        )
        return self.journal

    def replica(self, runtime: World, send: Callable[[str, Message], None], **collaborators: Any) -> Any:
        """Return the parts of the node that a transfer uses, as `Replica` has them."""
        return SimpleNamespace(
            disk=self.disk,
            directory=self.directory,
            journal=self.journal,
            runtime=runtime,
            outbox=SimpleNamespace(transmit=send),
            **collaborators,
        )

    def add(self, first: int, count: int) -> None:
        for index in range(first, first + count):
            self.journal.add(payload(index), index, 1)
        self.journal.sync_now()


def payload(index: int) -> bytes:
    return Random(index).randbytes(ENTRY_BYTES)


class Pins:
    """The housekeeping that the sender uses."""

    def __init__(self, newest: CheckpointPosition) -> None:
        self.newest = newest
        self.pinned: list[str] = []
        self.renewed = 0

    def renew(self) -> None:
        self.renewed += 1

    def pin(self, names: list[str]) -> None:
        self.pinned += names

    def unpin(self, names: list[str]) -> None:
        for name in names:
            self.pinned.remove(name)


class Engine:
    """The engine that the sender uses."""

    is_leader = True

    def __init__(self) -> None:
        self.progress = {"receiver": Progress(heard_s=0.0, next_index=2, lacks_from=2)}


class State:
    """The reader of the receiver's state."""

    def __init__(self) -> None:
        self.is_known = True
        self.has_read = False

    def read(self, data: bytes) -> bytes:
        self.has_read = True
        if not self.is_known:
            raise ValueError("not a state of this program")
        return data


class Transfer:
    """A sender with a log of 200 entries and a checkpoint at 150, and a receiver with an empty log."""

    def __init__(self) -> None:
        self.world = World()
        self.here = Node("sender", self.world)
        self.here.add(1, ENTRIES)
        write_checkpoint(
            self.here.disk, self.here.directory.log, self.here.directory.identity, 150, 1, [STATE]
        )
        self.there = Node("receiver", self.world)
        self.there.add(1, 1)
        self.engine = Engine()
        self.pins = Pins(CheckpointPosition(150, 1))
        self.sent: list[Message] = []
        self.state = State()
        self.installed: list[Installable] = []
        self.failures: list[Exception] = []
        self.is_up = True
        self.spoil: Callable[[Message], Message] = lambda message: message
        self.sender = SnapshotSender(
            self.here.replica(
                self.world,
                self._to_receiver,
                housekeeping=self.pins,
                fail_stop=SimpleNamespace(disk_failed=self.failures.append),
                config=SimpleNamespace(retained_bytes=RETAINED_BYTES),
            ),
            first_id=1000,
        )
        self.receiver = SnapshotReceiver(
            self.there.replica(self.world, self._to_sender, state=self.state), self._install
        )

    def _to_receiver(self, _peer: str, message: Message) -> None:
        self._carry(message, self._receiver_gets)

    def _to_sender(self, _peer: str, message: Message) -> None:
        self._carry(message, self._sender_gets)

    def _carry(self, message: Message, deliver: Callable[[Message], None]) -> None:
        if not self.is_up:
            return
        self.sent.append(message)
        frame = b"".join(encode(self.spoil(message)))
        self.world.after(0.001, lambda: deliver(decode(frame)) if self.is_up else None)

    def _receiver_gets(self, message: Message) -> None:
        match message:
            case SnapshotOffer():
                self.receiver.offered("sender", message)
            case SnapshotChunk():
                self.receiver.chunk("sender", message)
            case SnapshotWithdrawn():
                self.receiver.withdrawn("sender", message)
            case _:
                raise AssertionError(message)

    def _sender_gets(self, message: Message) -> None:
        match message:
            case FetchChunk():
                self.sender.fetch("receiver", message)
            case SnapshotDamaged():
                self.sender.spoilt("receiver", message)
            case _:
                raise AssertionError(message)

    def begin(self) -> None:
        self.sender.turn(cast("Any", self.engine))
        self.here.journal.sync_now()
        self.sender.turn(cast("Any", self.engine))

    def tick(self) -> None:
        self.world.now_s += 1.1
        self.sender.tick(cast("Any", self.engine))

    def fetches(self) -> list[FetchChunk]:
        return [message for message in self.sent if isinstance(message, FetchChunk)]

    def _install(self, installable: Installable, state: Any) -> None:
        assert state == installable.checkpoint.body
        self.installed.append(installable)

    def check_installed(self) -> None:
        [installable] = self.installed
        assert installable.checkpoint == Checkpoint(150, 1, STATE)
        assert [segment.end for segment in installable.segments][-1] == ENTRIES + 1
        journal = self.there.journal
        journal.adopt(installable.segments, installable.runs)
        journal.sync_now()
        self.check_log()
        self.there.disk.crash(power_loss=True)
        self.there.open()
        self.check_log()

    def check_aborted(self) -> None:
        """Assert that the transfer installs no snapshot later either."""
        self.world.run()
        assert not self.installed
        self.world.now_s += IDLE_MAX_S + 0.1
        self.receiver.tick()
        self.world.run()
        self.check_clean()

    def check_clean_incoming(self) -> None:
        files = self.there.disk.files()
        assert not [path for path in files if path.startswith(self.there.directory.incoming)]

    def run_until_complete(self) -> None:
        """Until everything has arrived and is about to be moved."""
        self.world.run(lambda: self.receiver._transfer is not None and self.receiver._transfer.names != ())

    def offer(self) -> SnapshotOffer:
        [offer] = [message for message in self.sent if isinstance(message, SnapshotOffer)]
        return offer

    def taking(self) -> Any:
        assert self.receiver._transfer is not None
        return self.receiver._transfer

    def check_clean(self) -> None:
        """Assert that no files of a refused snapshot remain, except a checkpoint of this log."""
        self.check_clean_incoming()
        directory, journal = self.there.directory, self.there.journal
        assert all(
            index <= journal.last_index for index in list_checkpoints(self.there.disk, directory.log)
        ), "a start would take the log for a damaged one"
        files = self.there.disk.files()
        segments = [path for path in files if path.endswith((".segment", ".sparse"))]
        assert sorted(segments) == [
            f"{self.there.directory.log}/{segment.name}" for segment in self.there.journal.segments()
        ]

    def check_log(self) -> None:
        journal = self.there.journal
        assert (journal.first_index, journal.last_index) == (1, ENTRIES)
        assert all(journal.read(index) == payload(index) for index in range(1, ENTRIES + 1))


@pytest.fixture
def transfer() -> Transfer:
    return Transfer()


def test_a_snapshot_arrives_and_is_the_log_afterwards(transfer: Transfer) -> None:
    transfer.begin()
    transfer.world.run()
    transfer.check_installed()
    size = len(STATE) + ENTRIES * ENTRY_BYTES
    assert len(transfer.fetches()) <= size // CHUNK_BYTES + 2 * len(transfer.installed[0].segments) + 2


def test_broken_link_costs_only_chunks_in_flight(transfer: Transfer) -> None:
    transfer.begin()
    transfer.world.run(lambda: len(transfer.fetches()) > 8)
    fetches_before = len(transfer.fetches())
    transfer.is_up = False
    transfer.world.run()
    transfer.is_up = True
    transfer.receiver.connected("sender")
    transfer.world.run()
    transfer.check_installed()
    first_parts = [fetch for fetch in transfer.fetches() if (fetch.file, fetch.offset) == (0, 0)]
    assert len(first_parts) == 1
    repeated = len(transfer.fetches()) - len({fetch[1:3] for fetch in transfer.fetches()})
    assert 0 < repeated <= 4 < fetches_before


def test_learner_gets_chunks_in_order_while_the_log_grows(transfer: Transfer) -> None:
    """Growth of the log shortens its rests: a chunk requested then must not overtake waiting chunks."""
    pace = Pace(bytes_per_s=10 * CHUNK_BYTES, rest_max_s=0.1, burst_bytes=CHUNK_BYTES, now_s=0.0)
    transfer.engine.progress["receiver"].pace = pace

    def grow() -> None:
        pace.log_grew(CHUNK_BYTES // 2, transfer.world.now_s)
        if not transfer.installed:
            transfer.world.after(0.0015, grow)

    transfer.world.after(0.0, grow)
    transfer.begin()
    transfer.world.run(lambda: transfer.world.now_s > 60.0)
    transfer.check_installed()
    assert len(transfer.fetches()) == len(set(transfer.fetches())), "nothing was asked for again"


def test_lost_offer_is_repeated(transfer: Transfer) -> None:
    transfer.is_up = False
    transfer.begin()
    transfer.is_up = True
    transfer.tick()
    transfer.world.run()
    transfer.check_installed()


def test_damaged_chunk_is_requested_again(transfer: Transfer) -> None:
    spoilt: list[Message] = []

    def spoil(message: Message) -> Message:
        if isinstance(message, SnapshotChunk) and message.file == 2 and not spoilt:
            spoilt.append(message)
            return message._replace(data=bytes([message.data[0] ^ 1]) + bytes(message.data[1:]))
        return message

    transfer.spoil = spoil
    transfer.begin()
    transfer.world.run()
    assert spoilt
    transfer.check_installed()


def test_a_damaged_file_is_not_believed(transfer: Transfer) -> None:
    transfer.begin()
    [name] = [segment.name for segment in transfer.here.journal.segments()][3:4]
    transfer.here.disk.flip_bit(f"{transfer.here.directory.log}/{name}", 8 * 40_000)
    transfer.world.run()
    assert not transfer.installed
    assert transfer.there.journal.last_index == 1
    assert [
        error.path.rpartition("/")[2] for error in transfer.failures if isinstance(error, CorruptJournal)
    ] == [name]


def test_a_damaged_checkpoint_is_taken_anew_and_then_given(transfer: Transfer) -> None:
    directory = transfer.here.directory
    transfer.begin()
    transfer.here.disk.flip_bit(f"{directory.log}/{checkpoint_name(150)}", 8 * 40_000)
    transfer.world.run()
    transfer.begin()
    transfer.tick()
    transfer.world.run()
    assert (transfer.pins.renewed, transfer.installed, transfer.failures) == (1, [], [])
    assert len([message for message in transfer.sent if isinstance(message, SnapshotOffer)]) == 1
    write_checkpoint(transfer.here.disk, directory.log, directory.identity, 160, 1, [STATE])
    transfer.pins.newest = CheckpointPosition(160, 1)
    transfer.begin()
    transfer.world.run()
    assert [installable.checkpoint.index for installable in transfer.installed] == [160]


def test_file_damaged_on_arrival_is_fetched_again(transfer: Transfer) -> None:
    """The disk of the receiver spoils it, say."""
    transfer.begin()
    incoming = transfer.there.directory.incoming
    transfer.world.run(lambda: transfer.there.disk.files().get(f"{incoming}/00000000", 0) > 1_000)
    transfer.there.disk.flip_bit(f"{incoming}/00000000", 8 * 1_000)
    transfer.world.run()
    assert not transfer.failures
    assert not transfer.installed
    transfer.begin()
    transfer.world.run()
    transfer.check_installed()


@pytest.mark.parametrize("hurt", [SimulatedDisk.fail_reads, SimulatedDisk.remove])
def test_unreadable_or_missing_file_is_damage_of_the_sender(
    transfer: Transfer, hurt: Callable[[SimulatedDisk, str], None]
) -> None:
    transfer.begin()
    [name] = [segment.name for segment in transfer.here.journal.segments()][3:4]
    hurt(transfer.here.disk, f"{transfer.here.directory.log}/{name}")
    transfer.world.run()
    assert isinstance(transfer.failures[0], CorruptJournal)
    assert not transfer.installed


def test_a_file_that_cannot_be_opened_now_is_no_damage(
    transfer: Transfer, monkeypatch: pytest.MonkeyPatch
) -> None:
    transfer.begin()
    transfer.world.run(lambda: len(transfer.fetches()) > 5)
    with monkeypatch.context() as patched:
        patched.setattr(transfer.here.disk, "open", refuse_for_want_of_descriptors)
        transfer.world.run()
    assert not transfer.installed
    transfer.tick()
    transfer.world.run()
    assert not transfer.failures
    transfer.check_installed()


def refuse_for_want_of_descriptors(path: str) -> None:
    raise OSError(errno.EMFILE, "too many open files", path)


@pytest.mark.parametrize("end", [ENTRIES - 3, 181], ids=["cut", "removed"])
def test_a_segment_that_a_conflicting_tail_has_cut_is_withdrawn(transfer: Transfer, end: int) -> None:
    """The sender does not lead any more, and its offer beyond the checkpoint was not committed."""
    transfer.begin()
    transfer.world.run(lambda: len(transfer.fetches()) > 5)
    assert transfer.here.journal.segments()[-1].first == 181
    transfer.here.journal.deleteEntriesFrom(end)
    transfer.here.journal.sync_now()
    transfer.world.run()
    assert isinstance(transfer.sent[-1], SnapshotWithdrawn)
    assert not transfer.failures
    assert not transfer.installed
    assert not transfer.pins.pinned
    transfer.check_clean()


def test_full_disk_ends_the_transfer_until_there_is_space_again(
    transfer: Transfer,
) -> None:
    transfer.begin()
    transfer.world.run(lambda: len(transfer.fetches()) > 5)
    transfer.there.disk.full = True
    transfer.world.run()
    assert not transfer.installed
    fetches_before = len(transfer.fetches())
    transfer.tick()
    transfer.world.run()
    assert len(transfer.fetches()) == fetches_before, "it is fetched though there is no space"
    transfer.there.disk.full = False
    transfer.tick()
    transfer.world.run()
    transfer.check_installed()


@pytest.mark.parametrize("bound", ["capacity_bytes", "quota_bytes"])
def test_without_space_the_next_attempts_come_later_and_later(transfer: Transfer, bound: str) -> None:
    """With each attempt the beginning of the snapshot is sent. That of every other second kept a leader busy."""
    disk = transfer.there.disk
    setattr(disk, bound, disk.used_bytes() + 3 * CHUNK_BYTES)
    transfer.begin()
    attempts: list[float] = []
    while transfer.world.now_s < 50.0:
        fetches_before = len(transfer.fetches())
        transfer.world.run()
        if len(transfer.fetches()) > fetches_before:
            attempts.append(transfer.world.now_s)
        transfer.tick()
    pauses = [after - before for before, after in pairwise(attempts)]
    assert len(pauses) == 4
    assert all(2.0**number <= pause < 2.0**number + 2.5 for number, pause in enumerate(pauses, start=1))
    assert SPACE_PAUSE_MIN_S == 2.0
    assert transfer.receiver.lacks_space
    setattr(disk, bound, None)
    shows = bound == "capacity_bytes"
    while not transfer.installed and transfer.world.now_s < (52.0 if shows else 70.0):
        transfer.world.run()
        transfer.tick()
    transfer.check_installed()


def test_space_lacks_until_a_snapshot_has_come_or_is_unneeded(transfer: Transfer) -> None:
    """Each attempt looked like an end of the lack, so a node never gave up the log that took the space."""
    transfer.begin()
    transfer.world.run(lambda: len(transfer.fetches()) > 5)
    assert not transfer.receiver.lacks_space
    transfer.there.disk.full = True
    transfer.world.run()
    assert (transfer.receiver.lacks_space, transfer.receiver.is_busy) == (True, False)
    transfer.world.now_s += SPACE_PAUSE_MIN_S
    transfer.tick()
    transfer.world.run(lambda: transfer.receiver.is_busy)
    assert (transfer.receiver.lacks_space, transfer.receiver.is_busy) == (True, True)
    transfer.there.disk.full = False
    transfer.there.add(2, 160)
    assert not transfer.receiver.lacks_space


def test_state_is_read_beside_the_loop_without_a_time_limit(transfer: Transfer) -> None:
    """Meanwhile the transfer is not aborted, even if a second peer offers a snapshot."""
    transfer.begin()
    transfer.world.run(
        lambda: transfer.receiver._transfer is not None and transfer.receiver._transfer.progress_s == math.inf
    )
    assert not transfer.state.has_read
    transfer.world.now_s += 2 * IDLE_MAX_S
    transfer.receiver.tick()
    transfer.receiver.offered("another", transfer.offer()._replace(snapshot=7))
    transfer.world.run()
    assert transfer.state.has_read
    transfer.check_installed()


def test_a_state_that_this_program_cannot_read_stops_the_node(transfer: Transfer) -> None:
    transfer.state.is_known = False
    transfer.begin()
    with pytest.raises(UnknownFormat, match="not a state of this program"):
        transfer.world.run()
    assert not transfer.installed


def test_member_with_the_entry_takes_no_snapshot(transfer: Transfer) -> None:
    transfer.there.add(2, 149)
    transfer.begin()
    transfer.world.run()
    assert not transfer.fetches()
    assert not transfer.receiver.is_of_use(150, 1)
    assert transfer.receiver.is_of_use(150, 2), "another entry is there"


def test_member_that_gets_the_entry_first_does_not_install(transfer: Transfer) -> None:
    transfer.begin()
    transfer.world.run(lambda: len(transfer.fetches()) > 8)
    transfer.there.add(2, 160)
    transfer.world.run()
    assert not transfer.installed
    assert transfer.there.journal.last_index == 161
    transfer.check_clean()


def test_unneeded_snapshot_is_abandoned(transfer: Transfer) -> None:
    transfer.begin()
    transfer.world.run(lambda: len(transfer.fetches()) > 8)
    transfer.there.add(2, 160)
    transfer.receiver.tick()
    fetches_before = len(transfer.fetches())
    transfer.world.run()
    assert len(transfer.fetches()) == fetches_before
    transfer.check_clean()


def withdraw(transfer: Transfer) -> None:
    transfer.receiver.withdrawn("sender", SnapshotWithdrawn(transfer.taking().offer.snapshot))


def offer_another(transfer: Transfer) -> None:
    """A peer that is down at once offers a snapshot."""
    transfer.is_up = False
    transfer.world.now_s += PATIENCE_S + 0.1
    transfer.receiver.offered("other", transfer.taking().offer._replace(snapshot=1))


def catch_up_otherwise(transfer: Transfer) -> None:
    transfer.there.add(2, 160)
    transfer.receiver.tick()


def fill_disk(transfer: Transfer) -> None:
    transfer.there.disk.full = True


@pytest.mark.parametrize("abort", [withdraw, offer_another, catch_up_otherwise, fill_disk])
def test_snapshot_abandoned_before_its_move_leaves_no_files(
    transfer: Transfer, abort: Callable[[Transfer], None]
) -> None:
    transfer.begin()
    transfer.run_until_complete()
    abort(transfer)
    transfer.check_aborted()


@pytest.mark.parametrize("abort", [withdraw, offer_another, catch_up_otherwise])
def test_snapshot_abandoned_after_its_move_leaves_no_files(
    transfer: Transfer, abort: Callable[[Transfer], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    move = transfer.receiver._move

    def move_and_abort(taking: Any) -> Checkpoint | None:
        checkpoint = move(taking)
        assert 150 in list_checkpoints(transfer.there.disk, transfer.there.directory.log)
        abort(transfer)
        return checkpoint

    monkeypatch.setattr(transfer.receiver, "_move", move_and_abort)
    transfer.begin()
    transfer.check_aborted()


def test_snapshot_that_was_being_moved_at_the_end_is_no_damage(transfer: Transfer) -> None:
    there = transfer.there
    transfer.begin()
    transfer.world.run(lambda: bool(transfer.installed))
    there.disk.crash(power_loss=True)
    write_checkpoint(there.disk, there.directory.log, there.directory.identity, 140, 1, [STATE])
    assert list_checkpoints(there.disk, there.directory.log) == [140, 150]
    start = partial(there.directory._open, cast("Any", None), there.open, None)
    with pytest.raises(CorruptJournal, match="newer than the log"):
        start()  # the checkpoint at 140 is its own
    assert list_checkpoints(there.disk, there.directory.log) == [140]
    transfer.check_clean_incoming()


def test_snapshot_begins_after_the_last_is_durable(transfer: Transfer) -> None:
    transfer.begin()
    transfer.world.run()
    [installable] = transfer.installed
    journal = transfer.there.journal
    journal.adopt(installable.segments, installable.runs)
    transfer.receiver.offered("other", transfer.offer()._replace(index=300))
    transfer.world.run()
    assert moving_checkpoint(transfer.there.disk, transfer.there.directory.incoming) == 150
    journal.sync_now()
    transfer.receiver.offered("other", transfer.offer()._replace(index=300))
    transfer.world.run()
    assert moving_checkpoint(transfer.there.disk, transfer.there.directory.incoming) is None


def test_snapshot_that_stops_coming_is_abandoned(transfer: Transfer) -> None:
    transfer.begin()
    transfer.world.run(lambda: len(transfer.fetches()) > 8)
    transfer.is_up = False
    transfer.world.run()
    transfer.receiver.tick()
    assert transfer.there.disk.list_directory(transfer.there.directory.incoming)
    transfer.world.now_s += IDLE_MAX_S + 0.1
    transfer.receiver.tick()
    transfer.world.run()
    transfer.check_clean()


def test_the_files_are_pinned_until_they_are_not_needed(transfer: Transfer) -> None:
    transfer.begin()
    names = [segment.name for segment in transfer.here.journal.segments()]
    assert transfer.pins.pinned == ["00000000000000000150.checkpoint", *names]
    transfer.world.run()
    assert transfer.pins.pinned
    transfer.engine.progress["receiver"].record_match()
    transfer.tick()
    assert not transfer.pins.pinned


def test_files_without_a_fetch_do_not_stay_pinned(transfer: Transfer) -> None:
    transfer.is_up = False
    transfer.begin()
    transfer.engine.is_leader = False
    transfer.world.now_s += IDLE_MAX_S
    transfer.tick()
    assert not transfer.pins.pinned
    transfer.is_up = True
    transfer.sender.fetch("receiver", FetchChunk(1000, 0, 0, 10))
    assert transfer.sent == [SnapshotWithdrawn(1000)]


def test_peer_that_is_still_behind_is_given_a_further_snapshot(transfer: Transfer) -> None:
    transfer.begin()
    transfer.world.run()
    transfer.check_installed()
    transfer.here.add(ENTRIES + 1, 50)
    directory = transfer.here.directory
    write_checkpoint(transfer.here.disk, directory.log, directory.identity, 240, 1, [STATE])
    transfer.pins.newest = CheckpointPosition(240, 1)
    transfer.engine.progress["receiver"].lacks_from = ENTRIES + 1
    transfer.begin()
    transfer.world.run()
    assert [installable.checkpoint.index for installable in transfer.installed] == [150, 240]


def test_log_behind_a_snapshot_is_kept_until_the_peer_has_it(transfer: Transfer) -> None:
    """The log has grown by much during the transfer: without the entries the peer would need the next snapshot."""
    progress, sender, engine = (
        transfer.engine.progress["receiver"],
        transfer.sender,
        cast("Any", transfer.engine),
    )
    transfer.begin()
    transfer.here.add(ENTRIES + 1, 100)
    assert sender.needed_from(engine, ["receiver"]) == ENTRIES + 1
    transfer.world.run()
    progress.record_match()
    transfer.tick()
    assert not transfer.pins.pinned
    assert sender.needed_from(engine, ["receiver"]) == ENTRIES + 1
    progress.acknowledge(ENTRIES + 50)
    transfer.tick()
    assert sender.needed_from(engine, ["receiver"]) == ENTRIES + 50
    progress.acknowledge(ENTRIES + 99)
    transfer.tick()
    transfer.here.add(ENTRIES + 101, 50)
    assert sender.needed_from(engine, ["receiver"]) is None, "it is as far behind as anybody may be"


def test_peer_with_the_whole_log_has_no_entries_kept_for_it(
    transfer: Transfer,
) -> None:
    """With `retained_bytes` of 0 it once counted as behind for ever: when it was gone, much was kept for it."""
    progress, sender, engine = (
        transfer.engine.progress["receiver"],
        transfer.sender,
        cast("Any", transfer.engine),
    )
    sender._retained_bytes = 0
    transfer.begin()
    transfer.world.run()
    progress.record_match()
    progress.acknowledge(transfer.here.journal.last_index)
    transfer.tick()
    transfer.here.add(ENTRIES + 1, 50)
    assert sender.needed_from(engine, ["receiver"]) is None


def test_removal_of_an_installed_snapshot_spares_the_next(transfer: Transfer) -> None:
    transfer.begin()
    transfer.world.run()
    transfer.receiver.remove_installed()
    transfer.world.run()
    transfer.check_clean_incoming()
    transfer.tick()  # no part of it is in the log yet, so it is sent again
    fetches_before = len(transfer.fetches())
    transfer.world.run(lambda: len(transfer.fetches()) > fetches_before + 8)
    transfer.receiver.remove_installed()
    transfer.world.run()
    assert len(transfer.installed) == 2


@pytest.mark.parametrize("events", range(0, 120, 3))
def test_a_crash_on_the_way_leaves_the_log_as_it_was(transfer: Transfer, events: int) -> None:
    transfer.begin()
    count = 0

    def stop() -> bool:
        nonlocal count
        count += 1
        return count > events or bool(transfer.installed)

    transfer.world.run(stop)
    transfer.there.disk.crash(power_loss=True)
    transfer.there.open()
    assert transfer.there.journal.last_index == 1


def test_snapshot_of_a_clock_that_is_centuries_ahead_is_offered() -> None:
    """Its number follows from the clock (simulated: seed 6675)."""
    number = (WALL_MAX_MS + INCARNATION_LEAP + 1 << SNAPSHOT_ID_BITS) - 1
    assert decode(b"".join(encode(SnapshotWithdrawn(number)))) == SnapshotWithdrawn(number)
