"""A leader whose disk alone keeps everybody waiting does not go on leading."""

from __future__ import annotations

import pytest
from test_group_members import Growing
from test_maintenance import applied, growing, leads

from cluster.lateness import Lateness

__all__ = ["growing"]

INTERVAL_S = 0.05
SLOW = 100.0
"""A write takes some 200 ms with this factor."""


def becomes_late(seconds: float, late_s: float, every_s: float) -> bool:
    """Whether a disk is ever too late that takes `late_s` longer than the others for a write in each `every_s`."""
    lateness = Lateness()
    was_late = False
    for beat in range(int(seconds / INTERVAL_S)):
        now_s = beat * INTERVAL_S
        index = int(now_s / every_s) + 2
        is_waited_for = now_s % every_s < late_s
        lateness.look(now_s, INTERVAL_S, index - 1 if is_waited_for else index, index)
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


def test_a_node_that_was_stalled_itself_blames_no_disk() -> None:
    lateness = Lateness()
    for now_s, own_index, others_index in [(0.0, 1, 1), (0.05, 1, 2), (30.0, 1, 2), (30.05, 2, 2)]:
        lateness.look(now_s, INTERVAL_S, own_index, others_index)
    assert not lateness.is_too_much


def test_a_new_reign_begins_without_what_was() -> None:
    lateness = Lateness()
    for beat in range(100):
        lateness.look(beat * INTERVAL_S, INTERVAL_S, 1, 2)
    assert lateness.is_too_much
    lateness.reset()
    lateness.look(60.0, INTERVAL_S, 1, 2)
    assert not lateness.is_too_much


@pytest.mark.slow
def test_a_leader_whose_disk_is_slow_hands_over_to_one_whose_disk_is_not(growing: Growing) -> None:
    slow, *others = growing.leader(), *growing.followers()
    slow.disk.slow = SLOW
    assert applied(growing, slow, ask=lambda: None) > 200
    assert leads(growing, *others), "it does not come back"


def test_a_leader_goes_on_whose_disk_is_no_slower_than_that_of_a_voter_without_whom_there_is_no_majority(
    growing: Growing,
) -> None:
    leader, slow, _ = growing.leader(), *growing.followers()
    # Of two that are equally slow, one may be later than the other by chance, and for long enough to hand over.
    leader.disk.slow, slow.disk.slow = SLOW, 1.5 * SLOW
    applied(growing, leader, ask=lambda: None)
    assert leads(growing, leader)
