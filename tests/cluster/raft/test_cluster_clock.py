"""The rules of the cluster's time, reading by reading."""

from __future__ import annotations

import logging
from itertools import pairwise

import pytest

from cluster.group.clock_log import ClockLog
from cluster.raft.cluster_clock import OFF_MS, PATIENCE_S, SLOWER, STEP_MS, WALL_MAX_MS, ClusterClock, bounded

NOON_MS = 1_700_000_000_000
DAY_MS = 86_400_000
BEGIN_S = 5_000.0
"""Monotonic time at the begin; its zero has no meaning."""


def clock_of(members: int, time_ms: int = NOON_MS, wall_ms: int = NOON_MS) -> ClusterClock:
    return ClusterClock(ClockLog("n1"), members, time_ms, wall_ms, BEGIN_S)


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def live(clock: ClusterClock, wall_ms: int, seconds: int, begin_s: float = BEGIN_S) -> float:
    """Let it look at a wall clock, that shows `wall_ms` at first, each second; returns when that was over."""
    for second in range(seconds + 1):
        clock.add_reading(wall_ms + second * 1000, begin_s + second)
    return begin_s + seconds


def test_time_runs_with_the_monotonic_clock() -> None:
    clock = clock_of(3)
    assert [clock.time_ms(BEGIN_S + s) - NOON_MS for s in (0, 0.5, 1.5, 3600)] == [0, 500, 1500, 3_600_000]
    assert clock.wait_s(NOON_MS + 2_500, BEGIN_S + 1) == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("members", "own_h", "peers_h", "forward_h"),
    [
        (1, 24, [], 24),
        (1, -24, [], 0),
        (2, 24, [], 0),
        (2, 24, [0], 0),
        (2, 24, [5], 5),
        (3, 24, [], 0),
        (3, 24, [0], 0),
        (3, 24, [5], 5),
        (3, 24, [5, 6], 6),
        (3, 24, [0, 0], 0),
        (3, 0, [24, -24], 0),
        (4, 24, [24, 0, 0], 0),
        (4, 24, [24, 5, 0], 5),
        (5, 24, [24, 0, 0, 0], 0),
        (5, 24, [24, 5], 5),
    ],
)
def test_time_is_put_forward_to_the_time_of_a_majority(
    members: int, own_h: int, peers_h: list[int], forward_h: int
) -> None:
    hour_ms = 3_600_000
    clock = clock_of(members, wall_ms=NOON_MS + own_h * hour_ms)
    for number, hours in enumerate(peers_h):
        clock.add_peer_reading(f"p{number}", NOON_MS + hours * hour_ms, BEGIN_S)
    assert clock.time_ms(BEGIN_S) - NOON_MS == forward_h * hour_ms


def test_clock_with_a_lost_link_does_not_count() -> None:
    clock = clock_of(3)
    clock.add_peer_reading("n2", NOON_MS + DAY_MS, BEGIN_S)
    clock.forget("n2")
    clock.add_peer_reading("n3", NOON_MS + DAY_MS, BEGIN_S)
    assert clock.time_ms(BEGIN_S) == NOON_MS


def test_reported_time_advances_since_its_report() -> None:
    clock = clock_of(3)
    clock.add_peer_reading("n2", NOON_MS + DAY_MS, BEGIN_S)
    clock.add_peer_reading("n3", NOON_MS + DAY_MS + 100_000, BEGIN_S + 100)
    assert clock.time_ms(BEGIN_S + 100) == NOON_MS + DAY_MS + 100_000


@pytest.mark.parametrize("jump_ms", [DAY_MS, -DAY_MS])
@pytest.mark.parametrize("seconds", [3, int(PATIENCE_S) - 1])
def test_reverted_clock_jump_has_no_effect(jump_ms: int, seconds: int) -> None:
    clock = clock_of(1)
    now_s = live(clock, NOON_MS + jump_ms, seconds)
    assert clock.time_ms(now_s) == NOON_MS + seconds * 1000
    assert clock.steady_ms(now_s) == NOON_MS + seconds * 1000
    live(clock, NOON_MS + seconds * 1000, 100, now_s)
    assert clock.time_ms(now_s + 100) == NOON_MS + seconds * 1000 + 100_000


def test_a_clock_that_cannot_make_up_its_mind_is_not_believed() -> None:
    clock = clock_of(1)
    now_s = BEGIN_S
    for number in range(20):
        jumped_ms = NOON_MS + DAY_MS * (1 + number % 2) + int(now_s - BEGIN_S) * 1000
        now_s = live(clock, jumped_ms, int(PATIENCE_S) // 2, now_s)
    assert clock.time_ms(now_s) == NOON_MS + int(now_s - BEGIN_S) * 1000


def test_where_a_clock_stays_is_believed_after_a_while() -> None:
    clock = clock_of(1)
    now_s = live(clock, NOON_MS + DAY_MS, int(PATIENCE_S))
    assert clock.time_ms(now_s) == clock.steady_ms(now_s) == NOON_MS + DAY_MS + int(PATIENCE_S) * 1000


def test_small_corrections_are_followed_at_once() -> None:
    clock = clock_of(1)
    clock.add_reading(NOON_MS + 1000 + int(STEP_MS), BEGIN_S + 1)
    assert clock.time_ms(BEGIN_S + 1) == NOON_MS + 1000 + STEP_MS


def test_time_that_is_ahead_slows_down_until_clocks_catch_up() -> None:
    lead_ms = 10_000
    clock = clock_of(1, time_ms=NOON_MS + lead_ms)
    assert clock.time_ms(BEGIN_S + 100) == NOON_MS + lead_ms + 100_000 * SLOWER
    assert clock.wait_s(NOON_MS + lead_ms + 99_000, BEGIN_S) == pytest.approx(100)
    times = []
    for second in range(2_000):
        clock.add_reading(NOON_MS + second * 1000, BEGIN_S + second)
        times.append(clock.time_ms(BEGIN_S + second))
    assert all(before < after for before, after in pairwise(times))
    assert times[-1] == NOON_MS + 1_999_000


def test_time_is_not_slowed_down_by_clocks_of_a_minority() -> None:
    clock = clock_of(3)
    clock.add_peer_reading("n2", NOON_MS - DAY_MS, BEGIN_S)
    assert clock.time_ms(BEGIN_S + 100) == NOON_MS + 100_000


def test_the_time_of_an_entry_is_followed_and_never_back() -> None:
    clock = clock_of(3)
    clock.advance_to(NOON_MS + 7_000, BEGIN_S + 5)
    clock.advance_to(NOON_MS + 6_000, BEGIN_S + 5)
    assert clock.time_ms(BEGIN_S + 6) == NOON_MS + 8_000


def test_no_clock_is_out_of_the_range_of_the_formats() -> None:
    assert [bounded(ms) for ms in (-(10**30), -1, 5, 10**30)] == [0, 0, 5, WALL_MAX_MS]
    for wall_ms in (0, WALL_MAX_MS):
        clock = clock_of(3, wall_ms=wall_ms)
        assert 0 <= clock.steady_ms(BEGIN_S + 1e9) <= WALL_MAX_MS


def test_log_reports_a_wrong_clock_and_its_end_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    clock = clock_of(3)
    clock.add_peer_reading("n2", NOON_MS, BEGIN_S)
    now_s = live(clock, NOON_MS + DAY_MS, 3)
    assert lines(caplog) == [
        ("WARNING", "the clock of node n1 is 86400.0 s ahead of the cluster's time, which goes on without it")
    ]
    caplog.clear()
    now_s = live(clock, NOON_MS + 3_000, 3, now_s)
    assert lines(caplog) == [("INFO", "the clock of node n1 agrees with the cluster's time again")]
    caplog.clear()
    live(clock, NOON_MS + 6_000 - OFF_MS - 1, 10, now_s)
    assert [text for _, text in lines(caplog)] == [
        "the clock of node n1 is 5.0 s behind the cluster's time, which goes on without it"
    ]


def test_clock_without_a_majority_is_not_reported_as_wrong(caplog: pytest.LogCaptureFixture) -> None:
    """After a start the time of the last entry is all that is known until a majority is there."""
    clock = clock_of(3, wall_ms=NOON_MS + DAY_MS)
    live(clock, NOON_MS + DAY_MS, 10)
    assert lines(caplog) == []


def test_advance_of_the_clock_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = clock_of(1, wall_ms=NOON_MS + DAY_MS)
    text = "the last entry applied here is 86400.0 s old by the clocks of a majority of the members"
    assert lines(caplog) == [("INFO", text)]
    caplog.clear()
    live(clock, NOON_MS + 2 * DAY_MS, int(PATIENCE_S))
    text = "time is put forward by 86400.0 s: the clocks of a majority of the members say so"
    assert ("WARNING", text) in lines(caplog)


def test_new_cluster_reports_no_clock(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = clock_of(3, time_ms=0)
    clock.add_peer_reading("n2", NOON_MS + 500, BEGIN_S + 0.5)
    assert clock.time_ms(BEGIN_S + 1) == NOON_MS + 1000
    live(clock, NOON_MS + 1000, 3, BEGIN_S + 1)
    assert lines(caplog) == []


def test_node_that_returns_with_a_wrong_clock_reports_no_jump(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Only this node did not know how late it is."""
    caplog.set_level(logging.INFO)
    clock = clock_of(3, wall_ms=NOON_MS - DAY_MS)
    clock.add_peer_reading("n2", NOON_MS + 10_000, BEGIN_S)
    clock.add_peer_reading("n3", NOON_MS + 10_000, BEGIN_S)
    text = "the last entry applied here is 10.0 s old by the clocks of a majority of the members"
    assert lines(caplog) == [("INFO", text)]


def test_a_clock_is_judged_by_the_time_of_a_majority_only() -> None:
    clock = clock_of(3, time_ms=0)
    assert clock.agreed_ms(BEGIN_S) is None
    clock.advance_to(NOON_MS - DAY_MS, BEGIN_S)
    assert clock.agreed_ms(BEGIN_S) is None
    clock.add_peer_reading("n2", NOON_MS, BEGIN_S)
    assert clock.agreed_ms(BEGIN_S + 1) == NOON_MS + 1000
    clock.forget("n2")
    assert clock.agreed_ms(BEGIN_S + 2) is None
    assert clock_of(1).agreed_ms(BEGIN_S) == NOON_MS
    assert clock_of(0).agreed_ms(BEGIN_S) is None
