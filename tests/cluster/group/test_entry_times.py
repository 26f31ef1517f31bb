"""How old entries are, by the times of some entries."""

from __future__ import annotations

from functools import partial

from cluster.group.entry_times import LEVEL_RECORDS, STEP_MS, EntryTimes
from tests.cluster.harness import Trio, submit


def ages(times: EntryTimes, now_ms: int, *indexes: int) -> list[int]:
    return [times.age_ms(index, now_ms) for index in indexes]


def test_entry_is_as_old_as_the_last_entry_of_its_step() -> None:
    times = EntryTimes(0, 0)
    assert ages(times, 1000, 0, 7) == [0, 0]  # no record yet
    for index, time_ms in ((5, 1000), (10, 1900), (20, 6000), (30, 16_000)):
        times.record(index, time_ms)
    assert ages(times, 20_000, 1, 10, 11, 20, 21, 30, 31) == [18_100, 18_100, 14_000, 14_000, 4000, 4000, 0]
    assert ages(times, 0, 10) == [0]  # a time before that of the entry


def test_entry_before_the_loaded_state_is_as_old_as_the_state() -> None:
    times = EntryTimes(100, 50_000)
    times.record(101, 90_000)
    assert ages(times, 90_000, 1, 100, 101) == [40_000, 40_000, 0]


def test_entry_before_the_loaded_state_is_dated_by_the_log() -> None:
    times = EntryTimes(100, 50_000)
    times.record(101, 90_000)
    times.add_stored([(40, 20_000), (10, 5000), (101, 90_000)])
    assert ages(times, 90_000, 1, 10, 11, 40, 41, 101) == [85_000, 85_000, 70_000, 70_000, 40_000, 0]


def test_records_are_bounded_and_ages_exact_to_a_hundredth() -> None:
    times, count = EntryTimes(0, 0), 200_000
    for number in range(count):
        times.record(number, 5000 * number)  # eleven days
    assert sum(map(len, times._levels)) < 16 * LEVEL_RECORDS
    now_ms = 5000 * count
    for index in range(0, count, 97):
        age_ms = now_ms - 5000 * index
        assert 0.98 * age_ms - STEP_MS <= times.age_ms(index, now_ms) <= age_ms


def test_nodes_that_began_apart_agree_on_later_entries() -> None:
    count, later = 20_000, 7777
    first, second = EntryTimes(0, 0), EntryTimes(later, 700 * later)
    for index in range(count):
        first.record(index, 700 * index)
        if index > later:
            second.record(index, 700 * index)
    now_ms = 700 * count
    indexes = range(later + 1, count)
    assert ages(first, now_ms, *indexes) == ages(second, now_ms, *indexes)


def test_restarted_node_knows_the_ages_that_its_peers_know() -> None:
    trio = Trio()
    leader = trio.start()
    for _ in range(20):
        leader.runtime.enter(partial(submit, leader))
        trio.pass_ms(1500)
    node = trio.followers()[0]
    node.runtime.enter(node.group.stop)  # its checkpoint is of the last entry
    trio.pass_ms(1000)
    node.end()
    node.start()
    trio.pass_ms(3000)
    last = node.group.engine.applied_index
    old, now_ms = range(1, last + 1), node.group.time_ms()
    known = ages(leader.group.entry_times, now_ms, *old)
    forgotten = ages(node.group.entry_times, now_ms, *old)
    node.runtime.enter(node.group.load_entry_times)
    trio.pass_ms(1000)
    again = ages(node.group.entry_times, now_ms, *old)
    assert 30_000 < known[0] < 40_000
    assert forgotten[0] < 10_000
    assert all(0 <= later - earlier <= STEP_MS for earlier, later in zip(known, again, strict=True))
