"""A leader whose disk alone keeps everybody waiting does not go on leading."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from test_group_members import Growing
from test_maintenance import applied, growing, leads

from cluster.lateness import Lateness

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["growing"]

INTERVAL_S = 0.05
LONG_LOG = 1_000_000
"""What the log holds when a reign begins, at which nobody has acknowledged anything yet."""
SLOW = 100.0
"""A write takes some 200 ms with this factor."""
SLUGGISH = 15.0
"""A write takes some 30 ms, which is less than the time between two beats."""


def becomes_late(seconds: float, late_s: float, every_s: float) -> bool:
    """Whether a disk is ever too late that takes `late_s` longer than the others for a write in each `every_s`."""
    lateness = Lateness()
    was_late = False
    for beat in range(int(seconds / INTERVAL_S)):
        now_s = beat * INTERVAL_S
        index = int(now_s / every_s) + 2
        is_waited_for = now_s % every_s < late_s
        lateness.look(now_s, INTERVAL_S, index - 1 if is_waited_for else index, index, index)
        was_late = was_late or lateness.is_too_much
    return was_late


@pytest.mark.parametrize(
    ("late_s", "every_s", "is_late"),
    [
        (0.2, 0.21, True),
        (2.0, 60.0, True),
        (0.3, 1.0, True),
        (0.3, 5.0, False),
        (0.9, 20.0, False),
        (0.04, 0.041, False),
        (0.0, 1.0, False),
    ],
)
def test_what_counts_is_how_long_the_others_wait(late_s: float, every_s: float, is_late: bool) -> None:
    assert becomes_late(59.0, late_s, every_s) == is_late


@pytest.mark.parametrize("behind", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("write_s", [0.04, 0.1, 0.2, 1.0])
@pytest.mark.parametrize(("times_slower", "is_late"), [(1.0, False), (4.0, True)])
def test_where_all_disks_are_slow_the_last_one_is_late_only_if_it_is_slower(
    write_s: float, behind: float, times_slower: float, is_late: bool
) -> None:
    """Writes follow each other, so the leader's ends a part of a write after the others', again and again."""
    lateness = Lateness()
    was_late = False

    def stored(now_s: float, each_s: float, first_s: float) -> int:
        """What a disk has that takes so long for each write: what was there when its last whole one began."""
        began_s = first_s + (now_s - first_s) // each_s * each_s - each_s
        return LONG_LOG + int(max(0.0, began_s) * 1000)

    for beat in range(1200):
        now_s = beat * INTERVAL_S
        own_index = stored(now_s, times_slower * write_s, behind * write_s)
        others_index = stored(now_s, write_s, 0.0) if now_s > write_s else 0
        lateness.look(now_s, INTERVAL_S, own_index, others_index, LONG_LOG + int(now_s * 1000))
        was_late = was_late or lateness.is_too_much
    assert was_late == is_late


def test_where_clients_wait_for_each_confirm_a_disk_is_not_late_that_is_a_write_behind_its_equals() -> None:
    """Of writes of 200 ms each ends with a look, so the others seem to lack nothing for long."""
    lateness = Lateness()
    for beat in range(600):
        written = beat // 2
        lateness.look(beat * 0.1, 0.1, written, written + 1, written + 2)
        assert not lateness.is_too_much


@pytest.mark.parametrize("others_hung_s", [0.0, 30.0])
def test_a_disk_that_hangs_is_late_after_a_second(others_hung_s: float) -> None:
    """Also where something is always under way, and although others hung until a minute ago."""
    lateness = Lateness()

    def late_after_s(began_s: float, seconds: float, *, own: bool, others: bool) -> float | None:
        """After how many seconds in which these hang this disk is too late; None if never."""
        for beat in range(int(seconds / INTERVAL_S)):
            now_s = began_s + beat * INTERVAL_S
            end, hung = int(now_s * 1000), int(began_s * 1000)
            lateness.look(now_s, INTERVAL_S, hung if own else end - 5, hung if others else end - 5, end)
            if lateness.is_too_much:
                return now_s - began_s
        return None

    assert late_after_s(10.0, others_hung_s, own=False, others=True) is None
    assert late_after_s(40.0, 60.0, own=False, others=False) is None
    assert late_after_s(100.0, 30.0, own=True, others=False) == pytest.approx(1.5, abs=0.3)


def test_a_disk_that_was_late_for_long_is_judged_anew_when_it_is_well() -> None:
    """It was late for an hour in which nobody else could lead; then it is quick, and stops once for half a second."""
    lateness = Lateness()
    for beat in range(36_000):
        lateness.look(beat * 0.1, 0.1, beat, beat + 2, beat + 2)
    assert lateness.is_too_much
    for beat in range(36_000, 36_300):
        lateness.look(beat * 0.1, 0.1, beat, beat, beat)
    for step in range(5):
        lateness.look(3630.0 + step * 0.1, 0.1, 36_300, 36_302 + step, 36_302 + step)
        assert not lateness.is_too_much


def test_who_waits_for_a_disk_has_had_what_it_lacked_for_most_of_the_time() -> None:
    """Of one that is as slow, a write now and then ends a little before this one's."""
    lateness = Lateness()
    for beat in range(100):
        others = ["quick", "slow"] if beat % 5 == 4 else ["quick"]
        lateness.look(beat * 0.1, 0.1, beat // 5, beat // 5 + 1, beat // 5 + 1, others)
    assert lateness.is_too_much
    assert lateness.waiting == ["quick"]


def test_a_node_that_was_stalled_itself_blames_no_disk() -> None:
    lateness = Lateness()
    for now_s, own_index, others_index in [(0.0, 1, 1), (0.05, 1, 2), (30.0, 1, 2), (30.05, 2, 2)]:
        lateness.look(now_s, INTERVAL_S, own_index, others_index, others_index)
    assert not lateness.is_too_much


def test_a_new_reign_begins_without_what_was() -> None:
    lateness = Lateness()
    for beat in range(100):
        lateness.look(beat * INTERVAL_S, INTERVAL_S, 1, 2, 2)
    assert lateness.is_too_much
    lateness.reset()
    lateness.look(60.0, INTERVAL_S, 1, 2, 2)
    assert not lateness.is_too_much


@pytest.mark.parametrize("factor", [SLUGGISH, SLOW])
@pytest.mark.slow
def test_a_leader_whose_disk_is_slow_hands_over_to_one_whose_disk_is_not(
    growing: Growing, factor: float
) -> None:
    slow, *others = growing.leader(), *growing.followers()
    slow.disk.slow = factor
    assert applied(growing, slow, ask=lambda: None) > 200
    assert leads(growing, *others), "it does not come back"


def test_a_leader_goes_on_whose_disk_is_no_slower_than_that_of_a_voter_without_whom_there_is_no_majority(
    growing: Growing,
) -> None:
    leader, slow, third = growing.leader(), *growing.followers()
    leader.disk.slow = slow.disk.slow = SLOW
    for _ in range(5):
        applied(growing, leader, ask=lambda: None)
        assert leads(growing, leader)
    third.disk.slow = SLOW
    for _ in range(5):
        applied(growing, leader, ask=lambda: None)
        assert leads(growing, leader)


def test_a_handover_that_nobody_takes_is_told_once(
    growing: Growing, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    leader = growing.leader()

    def asks_nobody(_to: Iterable[str]) -> bool:
        return False

    monkeypatch.setattr(leader.group.engine, "transfer_leadership", asks_nobody)
    leader.disk.slow = SLOW
    applied(growing, leader, ask=lambda: None)
    applied(growing, leader, ask=lambda: None)
    assert leads(growing, leader)
    assert caplog.text.count("everybody waits for the disk of this node") == 1
