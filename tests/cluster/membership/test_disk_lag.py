"""A leader hands over if its own disk is the bottleneck, and a slow disk of a follower delays no client."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cluster.membership.leadership import DiskLag
from tests.cluster.harness import Growing, applied, leads

if TYPE_CHECKING:
    from collections.abc import Iterable


INTERVAL_S = 0.05
SLOW, HANGING = 100.0, 10_000.0
"""Factors: a write takes some 200 ms, or some 20 s."""


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the unsynced entries that nodes hold in memory to those of about a second."""
    monkeypatch.setattr("cluster.engine.engine.UNSYNCED_BYTES_MAX", 4000)


def becomes_late(seconds: float, late_s: float, every_s: float) -> bool:
    """Return whether a disk that delays commits for `late_s` in each `every_s` is ever too late."""
    disk_lag = DiskLag()
    was_late = False
    for interval in range(int(seconds / INTERVAL_S)):
        now_s = interval * INTERVAL_S
        disk_lag.add(now_s, INTERVAL_S, delays_commit=now_s % every_s < late_s)
        was_late = was_late or disk_lag.is_too_much
    return was_late


@pytest.mark.parametrize(
    ("late_s", "every_s", "is_late"),
    [
        (60.0, 60.0, True),
        (2.0, 60.0, True),
        (0.3, 1.0, True),
        (0.3, 5.0, False),
        (0.9, 20.0, False),
        (0.04, 0.11, True),
        (0.008, 0.11, False),
        (0.0, 1.0, False),
    ],
)
def test_disk_lag_counts_the_time_that_voters_wait(late_s: float, every_s: float, is_late: bool) -> None:
    assert becomes_late(59.0, late_s, every_s) == is_late


def test_recovered_disk_is_judged_anew() -> None:
    """It was late for an hour in which no other member could lead; then it is quick, and stalls once for half a
    second.
    """
    disk_lag = DiskLag()
    for interval in range(36_000):
        disk_lag.add(interval * 0.1, 0.1, delays_commit=True)
    assert disk_lag.is_too_much
    for interval in range(36_000, 36_300):
        disk_lag.add(interval * 0.1, 0.1, delays_commit=False)
    for step in range(5):
        disk_lag.add(3630.0 + step * 0.1, 0.1, delays_commit=True)
        assert not disk_lag.is_too_much


def test_a_node_that_was_stalled_itself_blames_no_disk() -> None:
    disk_lag = DiskLag()
    for now_s in (0.0, 0.05, 30.0, 30.05):
        disk_lag.add(now_s, INTERVAL_S, delays_commit=True)
    assert not disk_lag.is_too_much


def test_new_term_begins_without_earlier_disk_lag() -> None:
    disk_lag = DiskLag()
    for interval in range(100):
        disk_lag.add(interval * INTERVAL_S, INTERVAL_S, delays_commit=True)
    assert disk_lag.is_too_much
    disk_lag.reset()
    disk_lag.add(60.0, INTERVAL_S, delays_commit=True)
    assert not disk_lag.is_too_much


def test_voters_do_not_wait_for_the_disk_of_a_leader(growing: Growing) -> None:
    leader = growing.leader()
    quick = applied(growing, leader, request=lambda: None)
    leader.disk.slow = HANGING
    assert applied(growing, leader, request=lambda: None) > 0.9 * quick
    assert leads(growing, leader)


@pytest.mark.usefixtures("forgetful")
def test_leader_with_a_lagging_disk_hands_over_to_a_quick_disk(growing: Growing) -> None:
    slow, *followers = growing.leader(), *growing.followers()
    slow.disk.slow = HANGING
    applied(growing, slow, request=lambda: None)
    [leader] = [node for node in followers if node.group.engine.is_leader]
    assert applied(growing, leader, request=lambda: None) > 350
    assert leader.group.engine.is_leader


@pytest.mark.usefixtures("forgetful")
def test_leader_stays_if_a_voter_that_it_needs_is_as_slow(
    growing: Growing,
) -> None:
    leader, slow, third = growing.leader(), *growing.followers()
    leader.disk.slow = slow.disk.slow = SLOW
    for _ in range(5):
        applied(growing, leader, request=lambda: None)
        assert leads(growing, leader)
    third.disk.slow = SLOW
    for _ in range(5):
        applied(growing, leader, request=lambda: None)
        assert leads(growing, leader)


@pytest.mark.usefixtures("forgetful")
def test_handover_without_a_taker_is_logged_once(
    growing: Growing, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    leader = growing.leader()

    def requests_no_transfer(_to: Iterable[str]) -> bool:
        return False

    monkeypatch.setattr(leader.group.engine, "transfer_leadership", requests_no_transfer)
    leader.disk.slow = HANGING
    applied(growing, leader, request=lambda: None)
    applied(growing, leader, request=lambda: None)
    assert leads(growing, leader)
    assert caplog.text.count("everybody waits for the disk of this node") == 1
