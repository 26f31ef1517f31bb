"""A learner is fed at its pace: no faster than it may, and faster than the log grows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cluster.raft.learner_pace import CALM_S, REST_MIN_S, SHARE_WITH_CLIENTS, Pace

RATE = 1_000_000.0
BURST_BYTES = 1024 * 1024
REST_MAX_S = 0.1


@given(st.lists(st.tuples(st.integers(1, 3 * BURST_BYTES), st.floats(0, 0.5)), max_size=50))
def test_learner_gets_at_most_the_burst_and_the_rate(sends: list[tuple[int, float]]) -> None:
    """A sender that rests on request sends at most a message more than burst and rate allow; rests are bounded."""
    pace, now_s, sent, largest = Pace(RATE, REST_MAX_S, BURST_BYTES, 0.0), 0.0, 0, 0
    forgiven = 0.0
    for size, idle_s in sends:
        now_s += idle_s
        rest_s = pace.rest_s(now_s)
        assert rest_s <= REST_MAX_S * 1.001
        now_s += rest_s
        assert pace.rest_s(now_s) == 0
        pace.spend(size, now_s)
        # Costs of a large message beyond the longest rest are dropped, or heartbeats would wait for it.
        forgiven += max(0.0, size - REST_MAX_S * RATE)
        sent, largest = sent + size, max(largest, size)
        assert sent - forgiven <= BURST_BYTES + RATE * (now_s + REST_MIN_S) + largest


def test_learner_that_keeps_up_never_rests() -> None:
    pace = Pace(RATE, REST_MAX_S, BURST_BYTES, 0.0)
    for _ in range(1000):
        pace.log_grew(BURST_BYTES // 2, 0.0)
        pace.spend(BURST_BYTES // 2, 0.0)
        assert pace.rest_s(0.0) == 0.0


def test_lagging_learner_gains_on_a_fast_log() -> None:
    pace, now_s, lag = Pace(RATE, REST_MAX_S, BURST_BYTES, 0.0), 0.0, 500 * BURST_BYTES
    begun = lag
    part = BURST_BYTES // 8
    for _ in range(1000):
        now_s += 0.01
        lag += part  # ten times the rate
        pace.log_grew(part, now_s)
        while pace.rest_s(now_s) == 0.0:
            pace.spend(part, now_s)
            lag -= part
    assert begun - 1200 * part < lag < begun - 900 * part


def fed_bytes(pace: Pace, from_s: float, to_s: float, growth_bytes: int) -> int:
    """Return the bytes sent to a learner that always lacks entries, while the log grows by `growth_bytes` every 10
    ms.
    """
    sent, part = 0, BURST_BYTES // 64
    for tick in range(int(from_s * 100), int(to_s * 100)):
        now_s = tick / 100
        pace.log_grew(growth_bytes, now_s)
        while pace.rest_s(now_s) == 0.0:
            pace.spend(part, now_s)
            sent += part
    return sent


def test_learner_is_fed_faster_without_clients() -> None:
    pace = Pace(RATE, REST_MAX_S, BURST_BYTES, 0.0)
    fed_bytes(pace, 0, 1, growth_bytes=1)
    beside_clients = fed_bytes(pace, 1, 11, growth_bytes=1)
    assert 0.9 < beside_clients / (10 * SHARE_WITH_CLIENTS * RATE) < 1.1
    fed_bytes(pace, 11, 11 + CALM_S, growth_bytes=0)
    alone = fed_bytes(pace, 12, 22, growth_bytes=0)
    assert 0.9 < alone / (10 * RATE) < 1.1


def test_no_rest_is_too_long_when_clients_come() -> None:
    pace = Pace(RATE, REST_MAX_S, BURST_BYTES, 0.0)
    pace.spend(100 * BURST_BYTES, 0.0)
    pace.log_grew(1, 0.0)
    assert pace.rest_s(0.0) <= REST_MAX_S * 1.001
