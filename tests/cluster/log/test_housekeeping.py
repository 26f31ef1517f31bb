"""Checkpoints and the space on the disk: a real log on the simulated disk, and a machine that holds messages."""

from __future__ import annotations

import errno
import heapq
import itertools
import logging
from random import Random
from typing import TYPE_CHECKING

import msgpack
import pytest

from chaos.sim.world.disk import ProcessEnds, SimulatedDisk
from cluster.log.checkpoints import checkpoint_name, list_checkpoints, load_newest
from cluster.log.compaction import STALE_S, compact_entry
from cluster.log.entry import make_batch, make_entry, read_batches
from cluster.log.hardstate import HardStateFile
from cluster.log.housekeeping import PACE_S, RETRY_S, Housekeeping, HousekeepingSettings
from cluster.log.journal import JournalSizes, SegmentedJournal
from cluster.log.owned_directory import OwnedDirectory
from cluster.log.segment import RECORD_HEADER_BYTES, CorruptJournal, EntryNotFound
from cluster.runtime.ports import pack
from tests.cluster.toy_queue import FrozenToy, Place, compact, entry_of, load_places, message_at
from tests.harness.long_cases import cases

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

IDENTITY = b"cluster/one/0"
SEGMENT_BYTES = 4000
SETTINGS = HousekeepingSettings(
    checkpoint_entries=10,
    checkpoint_bytes=10**9,
    checkpoint_interval_s=10**9,
    retained_bytes=0,
    segment_bytes=SEGMENT_BYTES,
)
NEVER = HousekeepingSettings(checkpoint_entries=10**9, checkpoint_bytes=10**9, checkpoint_interval_s=10**9)


class Clock:
    """Time passes while there is something to do, or when it is told to."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def schedule(self, delay_s: float, callback: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_s + delay_s, next(self._numbers), callback))

    def run(self) -> None:
        while self._events:
            self.now_s, _, callback = heapq.heappop(self._events)
            callback()


class Node:
    """The log, the state and the housekeeping of a node, which applies synced entries."""

    def __init__(
        self, disk: SimulatedDisk, clock: Clock, settings: HousekeepingSettings, cache_bytes: int = 0
    ) -> None:
        self.disk = disk
        self.clock = clock
        self.failures: list[Exception] = []
        self.needed_from: int | None = None
        self.places: dict[Place, None] = {}
        self.applied_index = 0
        hard_state = HardStateFile(OwnedDirectory(disk, "", IDENTITY))
        hard_state.load()
        self.journal = SegmentedJournal(
            OwnedDirectory(disk, "log", IDENTITY),
            hard_state,
            JournalSizes(
                segment_bytes=settings.segment_bytes if settings is not NEVER else SEGMENT_BYTES,
                cache_bytes=cache_bytes,
            ),
            on_failure=self.failures.append,
        )
        self.housekeeping = Housekeeping(
            self.journal,
            settings,
            freeze=lambda: FrozenToy(list(self.places)),
            compact=compact,
            needed_from=lambda: self.needed_from,
            monotonic=lambda: clock.now_s,
        )
        checkpoint = load_newest(disk, "log", IDENTITY, self.journal.last_index)
        if checkpoint is not None:
            self.places = dict.fromkeys(load_places(checkpoint.body))
            self.applied_index = checkpoint.index
        self.housekeeping.begin(checkpoint)
        self._apply()

    def publish(self, batches: Sequence[Sequence[bytes]]) -> int:
        return self.append(entry_of(batches))

    def settle(self, *places: Place) -> int:
        return self.append(make_entry(1, [make_batch("n", 1, 1, [pack({"settle": places})])]))

    def append(self, entry: bytes) -> int:
        """Add an entry and let everything happen that follows from it."""
        index = self.journal.last_index + 1
        self.journal.add(entry, index, 1)
        self.run()
        return index

    def run(self) -> None:
        self._turn()
        self.clock.run()

    def wait(self, delay_s: float) -> None:
        self.clock.schedule(delay_s, self._turn)
        self.clock.run()

    def _turn(self) -> None:
        self._apply()
        self.housekeeping.turn(self.applied_index, 1)
        if self.journal.dirty and not self.journal.sync_in_flight:
            self.journal.start_sync(self._turn)

    def _apply(self) -> None:
        while self.applied_index < self.journal.synced_index:
            self.applied_index += 1
            apply(self.places, self.applied_index, self.journal.read(self.applied_index))

    def names(self) -> list[str]:
        return [segment.name for segment in self.journal.segments()]

    def segment_files(self) -> dict[str, int]:
        return {
            path: size
            for path, size in self.disk.files().items()
            if path.endswith((".segment", ".sparse")) and path.startswith("log/")
        }

    def check_readable(self) -> None:
        """Assert that every live message equals the published message."""
        for index, batch, number in self.places:
            assert message_at(self.journal.read(index), batch, number) == message(index, batch, number)


def apply(places: dict[Place, None], index: int, entry: bytes) -> None:
    for batch, view in enumerate(read_batches(entry, 12)):
        for key, value in msgpack.unpackb(entry[view.start : view.end], strict_map_key=False).items():
            if key == "settle":
                for place in value:
                    places.pop(tuple(place), None)
            else:
                places[index, batch, key] = None


def message(index: int, batch: int, number: int) -> bytes:
    rng = Random(f"{index}/{batch}/{number}")
    return rng.randbytes(rng.randint(50, 150))


def publish(node: Node, batches: int = 2, messages: int = 3) -> int:
    """Publish an entry of about 700 bytes."""
    index = node.journal.last_index + 1
    return node.publish(
        [[message(index, batch, number) for number in range(messages)] for batch in range(batches)]
    )


def settle_all(node: Node, *, but: Sequence[Place] = ()) -> None:
    node.settle(*[place for place in node.places if place not in but])


def make_node(
    settings: HousekeepingSettings = SETTINGS, disk: SimulatedDisk | None = None, seed: int = 1
) -> Node:
    clock = Clock()
    return Node(disk or SimulatedDisk(Random(seed), clock.schedule), clock, settings)


def restart(node: Node, settings: HousekeepingSettings = SETTINGS, *, power_loss: bool = False) -> Node:
    node.disk.crash(power_loss=power_loss)
    return Node(node.disk, node.clock, settings)


def checkpoints(node: Node) -> list[int]:
    return list_checkpoints(node.disk, "log")


# When a checkpoint is taken


def test_a_checkpoint_is_taken_after_so_many_entries() -> None:
    node = make_node()
    for _ in range(9):
        publish(node)
    assert checkpoints(node) == []
    publish(node)
    assert checkpoints(node) == [10]
    newest = node.housekeeping.newest
    assert newest is not None
    assert (newest.index, newest.term, node.housekeeping.newest_index) == (10, 1, 10)
    assert node.housekeeping.second_index == 0
    assert sum(node.housekeeping.checkpoint_times.counts) == 1


def test_a_checkpoint_is_taken_after_so_many_bytes() -> None:
    node = make_node(
        HousekeepingSettings(checkpoint_entries=10**9, checkpoint_bytes=5000, segment_bytes=SEGMENT_BYTES)
    )
    while not checkpoints(node):
        publish(node)
    assert 5000 <= node.journal.appended_bytes < 6500


def test_a_checkpoint_is_not_taken_sooner_than_it_is_large() -> None:
    node = make_node(
        HousekeepingSettings(checkpoint_entries=10**9, checkpoint_bytes=1, segment_bytes=SEGMENT_BYTES)
    )
    for _ in range(200):
        publish(node, messages=20)
    found = checkpoints(node)
    size = node.disk.files()[f"log/{checkpoint_name(found[-1])}"]
    assert node.journal.bytes_from(found[0] + 1) - node.journal.bytes_from(found[1] + 1) > size / 2


def test_checkpoint_is_taken_at_the_interval_after_an_entry() -> None:
    settings = HousekeepingSettings(checkpoint_entries=10**9, checkpoint_interval_s=60)
    node = make_node(settings)
    node.wait(100)
    assert checkpoints(node) == []
    publish(node)
    assert checkpoints(node) == [1]
    publish(node)
    node.wait(59)
    assert checkpoints(node) == [1]
    node.wait(1)
    assert checkpoints(node) == [1, 2]
    node.wait(100)
    assert checkpoints(node) == [1, 2]


def test_consumed_messages_go_in_seconds_while_space_is_scarce() -> None:
    settings = HousekeepingSettings(10**9, 10**9, 3600, retained_bytes=0, segment_bytes=SEGMENT_BYTES)
    node = make_node(settings)
    for _ in range(40):
        publish(node)
    backlog = node.journal.disk_bytes
    node.housekeeping.is_space_scarce = True
    for _ in range(4):
        settle_all(node)
        publish(node, messages=1)
        node.wait(1)
    node.wait(3)
    assert node.journal.disk_bytes < backlog / 4
    found = checkpoints(node)
    node.wait(100)
    assert checkpoints(node) == found, "there is nothing new"


@pytest.mark.parametrize("segment_bytes", [SEGMENT_BYTES, 1_000_000])
def test_consumed_messages_go_while_space_is_scarce_and_log_idle(
    segment_bytes: int,
) -> None:
    """Publishers wait, and consumers have all messages: the retained log is freed, including obsolete messages in
    mixed files.
    """
    settings = HousekeepingSettings(10**9, 10**9, 3600, retained_bytes=10**9, segment_bytes=segment_bytes)
    node = make_node(settings)
    while node.journal.disk_bytes < 100_000:
        publish(node)
    settle_all(node)
    node.wait(10)
    assert node.journal.disk_bytes > 100_000
    node.housekeeping.is_space_scarce = True
    requests = 0
    for _ in range(20):
        node.wait(2)
        if node.housekeeping.awaits_entry:
            node.append(make_entry(1, []))
            requests += 1
    assert node.journal.disk_bytes < 10_000
    assert requests <= 3
    found = checkpoints(node)
    node.wait(100)
    assert not node.housekeeping.awaits_entry
    assert checkpoints(node) == found


def test_full_disk_of_unconsumed_messages_requests_few_entries() -> None:
    settings = HousekeepingSettings(10**9, 10**9, 3600, retained_bytes=10**9, segment_bytes=SEGMENT_BYTES)
    node = make_node(settings)
    for _ in range(100):
        publish(node)
    node.housekeeping.is_space_scarce = True
    requests = 0
    for _ in range(20):
        node.wait(2)
        if node.housekeeping.awaits_entry:
            node.append(make_entry(1, []))
            requests += 1
    assert requests <= 3
    assert len(node.places) == 600


def test_a_checkpoint_is_taken_after_so_much_work() -> None:
    node = make_node(HousekeepingSettings(checkpoint_entries=10**9))
    for entry, applying_s in enumerate((0.2, 0.49, 0.51, 0.9, 1.02), start=1):
        publish(node)
        node.housekeeping.turn(entry, 1, applying_s)
        node.run()
    assert checkpoints(node) == [3, 5]


def test_damaged_checkpoint_is_replaced_after_the_next_entry() -> None:
    node = make_node()
    for _ in range(10):
        publish(node)
    node.housekeeping.renew()
    node.run()
    assert checkpoints(node) == [10]
    publish(node)
    publish(node)
    assert checkpoints(node) == [10, 11]


def test_a_checkpoint_is_not_written_before_its_entries_are() -> None:
    node = make_node()
    for index in range(1, 11):
        node.journal.add(entry_of([[b"x"]]), index, 1)
    node.housekeeping.turn(10, 1)  # committed by the peers
    node.clock.run()
    assert checkpoints(node) == []
    node.places = {(1, 0, 0): None}  # the state is that of the moment when it was due
    node.run()
    assert checkpoints(node) == [10]
    checkpoint = load_newest(node.disk, "log", IDENTITY, 10)
    assert checkpoint is not None
    assert load_places(checkpoint.body) == []


def test_the_two_newest_are_kept() -> None:
    node = make_node()
    for _ in range(45):
        publish(node)
    assert checkpoints(node) == [30, 40]
    assert (node.housekeeping.newest_index, node.housekeeping.second_index) == (40, 30)


def test_pinned_checkpoint_is_kept_until_it_is_unpinned() -> None:
    node = make_node()
    for _ in range(10):
        publish(node)
    name = checkpoint_name(10)
    node.housekeeping.pin([name])
    node.housekeeping.pin([name])
    for _ in range(30):
        publish(node)
    assert checkpoints(node) == [10, 30, 40]
    node.housekeeping.unpin([name])
    for _ in range(10):
        publish(node)
    assert checkpoints(node) == [10, 40, 50]
    node.housekeeping.unpin([name])
    for _ in range(10):
        publish(node)
    assert checkpoints(node) == [50, 60]
    assert node.housekeeping.pinned == {}


# Starting and fail_stop


def test_a_start_goes_on_from_the_newest_checkpoint() -> None:
    node = make_node()
    for _ in range(25):
        publish(node)
    places = node.places
    node = restart(node)
    assert (node.housekeeping.newest_index, node.housekeeping.second_index) == (20, 10)
    assert node.places == places
    for _ in range(5):
        publish(node)
    assert checkpoints(node) == [20, 30]


def test_damaged_checkpoint_is_removed_and_the_older_is_enough() -> None:
    node = make_node()
    for _ in range(35):
        publish(node)
        settle_all(node, but=[(1, 0, 0), (40, 1, 1)])
    node.check_readable()
    places, newest = node.places, checkpoints(node)[-1]
    node.disk.flip_bit(f"log/{checkpoint_name(newest)}", 500)
    node = restart(node)
    assert newest not in checkpoints(node)
    assert (node.housekeeping.newest_index, node.housekeeping.second_index) == (newest - 10, 0)
    assert node.places == places
    node.check_readable()
    for _ in range(20):
        publish(node)
    assert len(checkpoints(node)) == 2
    node.check_readable()


def test_older_checkpoint_may_refer_to_messages_that_are_dropped() -> None:
    """The newest checkpoint is damaged, and the next is taken before the log has been applied up to its index."""
    node = make_node()
    while not any(segment.sparse for segment in node.journal.segments()):
        publish(node)
        settle_all(node, but=[(1, 0, 0), (2, 0, 0)])
    places, newest = node.places, checkpoints(node)[-1]
    node.disk.flip_bit(f"log/{checkpoint_name(newest)}", 500)
    node.disk.crash(power_loss=False)
    node = Node(node.disk, node.clock, NEVER)
    assert node.places == places
    older = {(index, batch, number): None for index in range(1, 9) for batch in (0, 1) for number in range(3)}
    node.places, node.housekeeping = older, make_housekeeping(node, SETTINGS)
    node.housekeeping.begin(None)
    node.housekeeping.turn(newest - 1, 1)
    node.clock.run()
    node.run()
    assert not node.failures
    node.places = places
    node.check_readable()


def make_housekeeping(node: Node, settings: HousekeepingSettings) -> Housekeeping:
    return Housekeeping(
        node.journal,
        settings,
        freeze=lambda: FrozenToy(list(node.places)),
        compact=compact,
        needed_from=lambda: None,
        monotonic=lambda: node.clock.now_s,
    )


def test_checkpoint_at_a_stop_leaves_no_entry_to_apply_again() -> None:
    node = make_node()
    for _ in range(13):
        publish(node)
    node.housekeeping.checkpoint_now(13, 1)
    assert checkpoints(node) == [10, 13]
    node = restart(node)
    assert (node.housekeeping.newest_index, node.housekeeping.second_index) == (13, 10)
    before = node.disk.files()
    node.housekeeping.checkpoint_now(13, 1)
    assert node.disk.files() == before


def test_stop_writes_no_checkpoint_of_unsynced_entries() -> None:
    node = make_node()
    publish(node)
    node.journal.add(entry_of([[b"x"]]), 2, 1)
    node.housekeeping.checkpoint_now(2, 1)
    assert checkpoints(node) == []


def make_node_with_due_checkpoint(entries: int = 10) -> Node:
    """Return a node whose checkpoint at 10 has begun, before any callback runs."""
    node = make_node()
    for index in range(1, entries + 1):
        node.journal.add(entry_of([[b"x"]]), index, 1)
    node.journal.sync_now()
    node.housekeeping.turn(10, 1)
    return node


@pytest.mark.parametrize(("applied_index", "expected"), [(10, []), (11, [11])])
def test_a_stop_while_a_checkpoint_is_being_written(applied_index: int, expected: list[int]) -> None:
    node = make_node_with_due_checkpoint(11)
    node.housekeeping.checkpoint_now(applied_index, 1)
    assert checkpoints(node) == expected
    node.clock.run()
    assert checkpoints(node) == [10, *expected]


def test_a_stop_on_a_full_disk_is_a_stop(caplog: pytest.LogCaptureFixture) -> None:
    node = make_node()
    publish(node)
    node.disk.full = True
    node.housekeeping.checkpoint_now(1, 1)
    assert "no checkpoint was written" in caplog.text
    assert not node.failures


def test_checkpoint_in_flight_is_dropped_when_log_is_replaced() -> None:
    node = make_node_with_due_checkpoint()
    node.housekeeping.begin(None)
    node.clock.run()
    assert node.housekeeping.newest is None
    node.housekeeping.turn(10, 1)
    node.clock.run()
    assert node.housekeeping.newest_index == 10


def test_failed_sync_of_a_replaced_log_is_ignored() -> None:
    node = make_node_with_due_checkpoint()
    node.housekeeping.begin(None)
    node.disk.fail_next_sync()
    node.clock.run()
    assert not node.failures
    node.run()
    assert node.housekeeping.newest_index == 10


def test_stopped_housekeeping_begins_and_adopts_no_checkpoint() -> None:
    node = make_node_with_due_checkpoint()
    node.housekeeping.stop()
    node.clock.run()
    assert node.housekeeping.newest is None
    before = node.disk.files()
    node.housekeeping.turn(30, 1)
    node.housekeeping.checkpoint_now(30, 1)
    node.clock.run()
    assert node.disk.files() == before


# Removal


def test_dead_segments_go_when_both_checkpoints_are_newer() -> None:
    node = make_node()
    for _ in range(15):
        publish(node)
        settle_all(node)
        assert node.journal.first_index <= max(node.housekeeping.second_index, 1)
    assert checkpoints(node) == [20, 30]
    first, *_ = node.journal.segments()
    assert first.first == node.journal.first_index > 1
    assert first.end > 20
    node.run()  # files go with the next sync
    assert list(node.segment_files()) == [f"log/{name}" for name in node.names()]


def test_log_retains_the_configured_bytes() -> None:
    settings = HousekeepingSettings(10, retained_bytes=20_000, segment_bytes=SEGMENT_BYTES)
    node = make_node(settings)
    for _ in range(100):
        publish(node)
        settle_all(node)
        journal = node.journal
        assert journal.first_index == 1 or journal.bytes_from(journal.first_index) >= 20_000
    assert node.journal.disk_bytes < 20_000 + 3 * SEGMENT_BYTES + 20 * 800


def test_entries_that_a_reader_needs_are_kept() -> None:
    node = make_node()
    node.needed_from = 15
    for _ in range(30):
        publish(node)
        settle_all(node)
    assert 1 < node.journal.first_index <= 15
    node.needed_from = None
    for _ in range(10):
        publish(node)
        settle_all(node)
    assert node.journal.first_index > 15


def test_entries_that_a_reader_needs_below_the_log_are_kept() -> None:
    node = make_node()
    for _ in range(10):
        publish(node)
    for _ in range(20):
        settle_all(node, but=[(2, 0, 0)])
        publish(node)
    assert node.journal.segments()[0].sparse
    assert node.journal.first_index > 2
    node.needed_from = 2
    for _ in range(20):
        publish(node)
        settle_all(node)
    assert node.places == {}
    assert message_at(node.journal.read(2), 0, 0) == message(2, 0, 0)
    node.needed_from = None
    for _ in range(10):
        publish(node)
        settle_all(node)
    with pytest.raises(EntryNotFound):
        node.journal.read(2)


def test_a_stuck_message_pins_no_more_than_itself() -> None:
    node = make_node()
    for _ in range(100):
        publish(node)
        settle_all(node, but=[(1, 0, 0), (21, 1, 2)])
        node.check_readable()
    assert list(node.places) == [(1, 0, 0), (21, 1, 2)]
    old = [segment for segment in node.journal.segments() if segment.end <= node.housekeeping.second_index]
    assert all(segment.sparse for segment in old)
    assert sum(segment.file_bytes for segment in old) < 1500
    for index in (2, 3, 20, 22):
        with pytest.raises(EntryNotFound):
            node.journal.read(index)
    node = restart(node)
    node.check_readable()


def test_a_backlog_is_left_as_it_is() -> None:
    node = make_node()
    for _ in range(60):
        publish(node)
    assert not any(segment.sparse for segment in node.journal.segments())
    assert node.journal.first_index == 1
    node.check_readable()


@pytest.mark.slow
def test_a_backlog_that_is_consumed_shrinks_while_it_is() -> None:
    node = make_node()
    for _ in range(100):
        publish(node)
    rng = Random(1)
    while node.places:
        places = list(node.places)
        node.settle(*rng.sample(places, min(12, len(places))))
        node.check_readable()
    for _ in range(20):
        publish(node)
        settle_all(node)
    assert all(not segment.sparse for segment in node.journal.segments())
    assert len(node.segment_files()) < 8


def test_pinned_segments_are_neither_removed_nor_rewritten() -> None:
    node = make_node()
    for _ in range(15):
        publish(node)
    pinned = node.names()[:2]
    node.housekeeping.pin(pinned)
    for _ in range(10):
        settle_all(node, but=[(1, 0, 0)])
        publish(node)
    assert node.names()[:2] == pinned
    assert len(node.names()) < 8
    node.housekeeping.unpin(pinned)
    for _ in range(10):
        settle_all(node, but=[(1, 0, 0)])
        publish(node)
    assert not set(pinned) & set(node.names())
    node.check_readable()


def test_segments_between_pinned_segments_are_removed() -> None:
    node = make_node()
    for _ in range(20):
        publish(node)
    names = node.names()
    pinned = [names[1], names[3]]
    node.housekeeping.pin(pinned)
    for _ in range(20):
        settle_all(node)
        publish(node)
    assert not node.failures
    assert [name for name in node.names() if name in names] == pinned


def node_that_rewrites(
    hook: Callable[[Node], None], monkeypatch: pytest.MonkeyPatch
) -> tuple[Node, list[str]]:
    """Return a node, and its segments right before the first sparse segment was written; `hook` was called then."""
    node = make_node()
    had: list[str] = []

    def compact_and_call(payload: memoryview, messages: Sequence[tuple[int, int]]) -> bytes:
        if not had and any(path.endswith(".sparse") for path in node.disk.files()):
            had.extend(node.names())
            hook(node)
        return compact(payload, messages)

    source = node.housekeeping._source._replace(compact=compact_and_call)
    monkeypatch.setattr(node.housekeeping, "_source", source)
    for _ in range(10):
        publish(node)
    while not had:
        settle_all(node, but=[(1, 0, 0)])
        publish(node)
    return node, had


def test_a_segment_that_is_pinned_while_it_is_rewritten_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    node, had = node_that_rewrites(lambda node: node.housekeeping.pin(node.names()), monkeypatch)
    for _ in range(10):
        settle_all(node, but=[(1, 0, 0)])
        publish(node)
    assert node.names()[: len(had) - 1] == had[:-1]
    assert sorted(node.segment_files()) == sorted(f"log/{name}" for name in node.names())


def test_segment_written_for_a_replaced_log_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(node: Node) -> None:
        node.housekeeping.begin(load_newest(node.disk, "log", IDENTITY, node.applied_index))

    node, had = node_that_rewrites(begin, monkeypatch)
    node.run()
    assert node.names()[: len(had)] == had
    assert list(node.segment_files()) == [f"log/{name}" for name in node.names()]


# Trouble


def test_a_full_disk_costs_a_checkpoint_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    node = make_node()
    for index in range(1, 11):
        node.journal.add(entry_of([[message(index, 0, 0)]]), index, 1)
    node.journal.sync_now()
    node.disk.full = True
    for _ in range(5):
        node.run()
        node.wait(RETRY_S)
    assert checkpoints(node) == []
    assert not node.failures
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    node.disk.full = False
    node.run()
    assert checkpoints(node) == []
    node.wait(RETRY_S)
    assert checkpoints(node) == [10]


def test_disk_that_fills_up_during_compaction_loses_no_message() -> None:
    for extra in range(0, 3000, 100):
        node = make_node(SETTINGS, seed=extra)
        for _ in range(12):
            publish(node)
        node.settle(*[place for place in node.places if place[2]])
        for index in range(node.journal.last_index + 1, 31):
            node.journal.add(entry_of([[message(index, 0, 0)]]), index, 1)
        node.journal.sync_now()
        node.disk.capacity_bytes = node.disk.used_bytes() + extra
        node.run()
        node.wait(1)
        assert not node.failures
        node.disk.capacity_bytes = None
        node = restart(node)
        node.check_readable()


def test_a_disk_that_fails_is_not_used_any_more() -> None:
    node = make_node()
    for index in range(1, 11):
        node.journal.add(entry_of([[b"x"]]), index, 1)
    node.journal.sync_now()
    node.disk.fail_next_sync()
    node.run()
    assert [type(failure) for failure in node.failures] == [OSError]
    node.run()
    node.wait(100)
    assert checkpoints(node) == []
    assert len(node.failures) == 1


def test_a_segment_that_turns_out_to_be_damaged_is_reported() -> None:
    node = make_node()
    for _ in range(15):
        publish(node)
    first = node.names()[0]
    node.disk.flip_bit(f"log/{first}", 8 * 1000)
    for _ in range(10):
        settle_all(node, but=[(1, 0, 0)])
        publish(node)
        if node.failures:
            break
    assert [type(failure) for failure in node.failures] == [CorruptJournal]
    assert first in str(node.failures[0])
    assert first in node.names()


# Verification


def test_verifying_takes_a_part_of_the_time_only(monkeypatch: pytest.MonkeyPatch) -> None:
    node = make_node(NEVER)
    for _ in range(20):
        publish(node)
    node = restart(node, NEVER)
    verified: list[float] = []

    def verify_slowly(*_: object) -> None:
        verified.append(node.clock.now_s)
        node.clock.now_s += 10

    monkeypatch.setattr("cluster.log.housekeeping.verify", verify_slowly)
    for _ in range(100):
        node.wait(1)
    assert [round(later - earlier) for earlier, later in itertools.pairwise(verified)] == [51, 51]


@pytest.mark.parametrize("position", [0, 1, 2])
def test_after_a_start_each_sealed_segment_is_verified(position: int) -> None:
    node = make_node(NEVER)
    for _ in range(20):
        publish(node)
    node.housekeeping.checkpoint_now(20, 1)
    damaged = node.names()[position]
    node.disk.flip_bit(f"log/{damaged}", 8 * 1000)
    node = restart(node, NEVER)
    for number in range(position + 1):
        assert not node.failures, number
        node.wait(PACE_S)
    assert [type(failure) for failure in node.failures] == [CorruptJournal]
    assert damaged in str(node.failures[0])


def test_each_segment_is_verified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    verified: list[str] = []
    monkeypatch.setattr(
        "cluster.log.housekeeping.verify",
        lambda _disk, path, _identity: verified.append(path.partition("/")[2]),
    )
    node = make_node(NEVER)
    for _ in range(20):
        publish(node)
    assert verified == []
    node = restart(node, NEVER)
    sealed = node.names()[:-1]
    node.wait(PACE_S)
    node.wait(PACE_S / 2)
    assert verified == sealed[:1]
    for _ in range(10):
        node.wait(PACE_S)
    assert verified == sealed


def test_unapplied_segment_is_not_verified_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    verified: list[str] = []
    monkeypatch.setattr(
        "cluster.log.housekeeping.verify",
        lambda _disk, path, _identity: verified.append(path.partition("/")[2]),
    )
    node = make_node(NEVER)
    for _ in range(20):
        publish(node)
    node = restart(node, NEVER)
    first, second, *_ = node.journal.segments()
    for _ in range(5):
        node.clock.now_s += PACE_S
        node.housekeeping.turn(second.end - 2, 1)
        node.clock.run()
    assert verified == [first.name]
    node.clock.now_s += PACE_S
    node.housekeeping.turn(second.end - 1, 1)
    node.clock.run()
    assert verified == [first.name, second.name]


def test_a_segment_that_was_opened_again_is_not_verified() -> None:
    node = make_node(NEVER)
    for _ in range(20):
        publish(node)
    node = restart(node, NEVER)
    first = node.journal.segments()[0]
    node.journal.deleteEntriesFrom(first.end - 2)
    node.journal.sync_now()
    assert [(segment.name, segment.sealed) for segment in node.journal.segments()] == [(first.name, False)]
    for _ in range(5):
        node.clock.now_s += PACE_S
        node.housekeeping.turn(first.end - 2, 1)
        node.clock.run()
    assert not node.failures


# The whole


class Load:
    """Publishes, settles, and says how much is live."""

    def __init__(self, node: Node, rng: Random) -> None:
        self.node = node
        self.rng = rng
        self.stuck: set[Place] = set()
        self.entry_bytes = 0
        self._sizes: dict[tuple[int, tuple[Place, ...]], int] = {}

    def step(self, stuck_share: float) -> None:
        """Publish an entry; some of its messages stay, and the rest is settled at once."""
        index = publish(self.node, self.rng.randint(1, 3), self.rng.randint(1, 8))
        self.entry_bytes = max(self.entry_bytes, len(self.node.journal.read(index)))
        fresh = [place for place in self.node.places if place[0] == index]
        self.stuck.update(place for place in fresh if self.rng.random() < stuck_share)
        self.node.settle(*[place for place in fresh if place not in self.stuck])

    def release(self, count: int) -> None:
        released = self.rng.sample(sorted(self.stuck), min(count, len(self.stuck)))
        self.stuck.difference_update(released)
        self.node.settle(*released)

    def live_bytes(self) -> int:
        """The live messages as they would be after compaction."""
        places: dict[int, list[Place]] = {}
        for place in self.node.places:
            places.setdefault(place[0], []).append(place)
        return sum(self._size(index, tuple(kept)) for index, kept in places.items())

    def _size(self, index: int, places: tuple[Place, ...]) -> int:
        key = (index, places)
        if key not in self._sizes:
            live = FrozenToy(places).live(index, index + 1)
            kept = compact_entry(self.node.journal.read(index), live[index], compact)
            self._sizes[key] = RECORD_HEADER_BYTES + 8 + len(kept or b"")
        return self._sizes[key]


@pytest.mark.slow
@pytest.mark.parametrize("seed", cases(range(3), lambda seed: seed == 0))
def test_the_disk_stays_within_its_bound_all_the_time(seed: int) -> None:
    """The formula of housekeeping.py, on the files themselves, after every entry."""
    segment_bytes, checkpoint_bytes, retained_bytes = 16_000, 12_000, 30_000
    settings = HousekeepingSettings(
        10**9, checkpoint_bytes, 10**9, retained_bytes=retained_bytes, segment_bytes=segment_bytes
    )
    node = make_node(settings, seed=seed)
    load = Load(node, Random(seed))
    live_bytes = [0, 0]
    checkpoint = 0
    entry = publish(node, 1, 1)
    load.stuck.add((entry, 0, 0))
    most = 0.0
    for step in range(2500):
        stuck_share = 0 if step < 800 else 0.05 if step < 1200 else 0.3 if step < 1500 else 0
        load.step(stuck_share)
        if step > 1600 and step % 3 == 0 and len(load.stuck) > 1:
            load.release(7)
        if node.housekeeping.newest_index > checkpoint:
            checkpoint = node.housekeeping.newest_index
            live_bytes = [*live_bytes[1:], load.live_bytes()]
        size = max(live_bytes)
        files = node.disk.files()
        checkpoint_sizes = [files[path] for path in files if path.endswith(".checkpoint")]
        logged = max([checkpoint_bytes, *checkpoint_sizes]) + 2 * load.entry_bytes
        bound = (
            2.25 * size
            + max(retained_bytes, 2 * logged)
            + logged
            + 4 * (segment_bytes + 2 * load.entry_bytes)
        )
        used = sum(node.segment_files().values())
        most = max(most, used / bound)
        assert used <= bound, (step, used, bound, size)
        assert node.journal.disk_bytes <= bound
        if step % 100 == 0:
            node.check_readable()
    assert not node.failures
    assert most > 0.4  # a loose bound would prove little
    assert (
        sum(node.segment_files().values()) < 1.5 * load.live_bytes() + retained_bytes + 3 * checkpoint_bytes
    )
    assert len(node.housekeeping._measured) <= len(node.names())
    node = restart(node, settings, power_loss=True)
    node.check_readable()


def test_space_of_large_messages_is_freed_beside_small_messages() -> None:
    """They are less than a tenth of the messages and nearly all of the bytes."""
    settings = HousekeepingSettings(10, 10**9, 10**9, retained_bytes=0, segment_bytes=40_000)
    node = make_node(settings)
    large = [(node.publish([[b"small" for _ in range(15)] + [bytes(2_000)]]), 0, 15) for _ in range(200)]

    def rest(count: int) -> None:
        for _ in range(count):
            node.settle()
            node.wait(PACE_S)

    rest(50)
    full_bytes = node.journal.disk_bytes
    node.settle(*large)
    rest(50)
    assert node.journal.disk_bytes > 0.9 * full_bytes, "nothing is read again for so few messages"
    node.wait(STALE_S)
    rest(50)
    assert node.journal.disk_bytes < 0.3 * full_bytes
    assert len(node.places) == 15 * len(large)
    for index, batch, number in node.places:
        assert message_at(node.journal.read(index), batch, number) == b"small"


@pytest.mark.slow
@pytest.mark.parametrize("power_loss", cases([False, True], bool))
def test_after_a_crash_at_any_step_everything_live_can_be_read(power_loss: bool) -> None:
    compacted = 0
    for steps in itertools.count():
        node = make_node(seed=steps)
        model: dict[int, bytes] = {}
        node.disk.end_process_after(steps)
        try:
            carry_on(node, model, 40)
        except ProcessEnds:
            synced_index = node.journal.synced_index
        else:
            break
        node = restart(node, power_loss=power_loss)
        assert node.journal.last_index >= synced_index
        compacted += any(segment.sparse for segment in node.journal.segments())
        check_against(node, model)
        carry_on(node, model, 10)
        check_against(node, model)
        node.run()
        assert sorted(node.segment_files()) == sorted(f"log/{name}" for name in node.names())
        assert not node.failures
    assert steps > 100
    assert compacted > 10


def carry_on(node: Node, model: dict[int, bytes], entries: int) -> None:
    """Publish, and settle all but a few; `model` notes the entries."""
    for _ in range(entries // 2):
        index = node.journal.last_index + 1
        entry = entry_of([[message(index, batch, number) for number in range(3)] for batch in range(2)])
        model[index] = entry
        node.append(entry)
        index = node.journal.last_index + 1
        unneeded = [place for place in node.places if place[0] % 6 != 1 or place[2] != 1]
        model[index] = make_entry(1, [make_batch("n", 1, 1, [pack({"settle": unneeded})])])
        node.append(model[index])


def check_against(node: Node, model: dict[int, bytes]) -> None:
    """Assert that the state follows from the entries in the log, and that its references can be read."""
    places: dict[Place, None] = {}
    for index in range(1, node.journal.last_index + 1):
        apply(places, index, model[index])
    assert sorted(node.places) == sorted(places)
    node.check_readable()


def test_space_that_is_missing_has_the_right_error() -> None:
    """The full disk of the tests above raises the error of the operating system."""
    node = make_node()
    node.disk.full = True
    with pytest.raises(OSError, match="No space") as failure:
        node.disk.open("log/x", create=True)
    assert failure.value.errno == errno.ENOSPC


def test_reason_why_no_space_is_freed_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """An entry that was applied before its sync cannot be in a checkpoint before the sync either."""
    node = make_node()
    node.publish([[b"a"]])
    node.disk.full = True
    for index in range(2, 12):
        node.journal.add(entry_of([[b"b"]]), index, 1)
    node.journal.start_sync(lambda: None)
    node.clock.run()
    assert node.journal.full
    for _ in range(2):
        node.housekeeping.turn(11, 1)
        node.clock.run()
    [line] = [record.getMessage() for record in caplog.records]
    assert line == (
        "no space is given back: a checkpoint of entry 11 has to wait until the log, which ends with entry 1 on the "
        "disk, has space for the entries up to it"
    )
