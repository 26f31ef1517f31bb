"""Suspicion of a silent leader, and the effect of the node's own stalls."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cluster.raft.failure_detector import HALF_LIFE_S, UNUSUAL, AwakeClock, FailureDetector

FLOOR_S, CEILING_S = 0.5, 1.0
ROUNDING_S = 1e-9
"""Largest difference between two sums of the same times."""

gaps = st.lists(st.floats(0.0, 100.0), max_size=50)


def detector_after(gaps: list[float], begun_s: float = 0.0) -> tuple[FailureDetector, float]:
    """Return a detector that has heard a leader after each of these gaps, and the time when it last did."""
    detector, now_s = FailureDetector(FLOOR_S, CEILING_S), begun_s
    for now_s in accumulate([begun_s, *gaps]):
        detector.hear(now_s)
    return detector, now_s


@given(gaps)
def test_leader_is_suspected_between_the_floor_and_the_ceiling(gaps: list[float]) -> None:
    detector, now_s = detector_after(gaps)
    assert not detector.suspects(now_s)
    assert not detector.suspects(now_s + 0.99 * FLOOR_S)
    assert not detector.presumes_dead(now_s + 0.99 * CEILING_S)
    assert detector.suspects(now_s + 1.01 * CEILING_S)
    assert detector.presumes_dead(now_s + 1.01 * CEILING_S)


@given(st.lists(st.floats(0.3, 0.9), min_size=5, max_size=50))
def test_leader_is_not_suspected_after_a_usual_silence(gaps: list[float]) -> None:
    detector, now_s = detector_after(gaps)
    assert not detector.suspects(now_s + 0.99 * max(gaps[-5:]))


@given(st.floats(0.01, 3.0), gaps)
@example(0.4960059820635621, [0.5])
def test_patience_grows_with_the_silences_of_the_leader(gap_s: float, gaps: list[float]) -> None:
    before, _ = detector_after(gaps)
    after, _ = detector_after([*gaps, gap_s])
    assert after.patience_s >= min(UNUSUAL * gap_s, CEILING_S) - ROUNDING_S
    assert after.patience_s <= max(before.patience_s, UNUSUAL * gap_s) + ROUNDING_S


@given(gaps)
def test_forgotten_leader_is_suspected_until_a_heartbeat(
    gaps: list[float],
) -> None:
    detector, now_s = detector_after(gaps)
    patience_s = detector.patience_s
    detector.forget()
    assert detector.suspects(now_s)
    assert detector.presumes_dead(now_s)
    detector.hear(now_s + 50.0)
    assert not detector.suspects(now_s + 50.0)
    assert detector.patience_s == patience_s


def test_a_long_gap_is_forgotten_in_time() -> None:
    detector, now_s = detector_after([0.1, 0.4])
    assert detector.patience_s == pytest.approx(0.8)
    for _ in range(int(HALF_LIFE_S / 0.1)):
        now_s += 0.1
        detector.hear(now_s)
    assert detector.patience_s == pytest.approx(FLOOR_S)


def test_a_floor_above_the_ceiling_is_the_ceiling() -> None:
    detector = FailureDetector(2 * CEILING_S, CEILING_S)
    detector.hear(0.0)
    assert detector.patience_s == CEILING_S


@given(st.lists(st.floats(0.0, 10.0), max_size=50))
def test_time_awake_passes_as_time_does_without_the_stalls(steps: list[float]) -> None:
    times = list(accumulate([100.0, *steps]))
    clock = AwakeClock(100.0, step_max_s=0.1)
    awake = [clock.read(now_s) for now_s in times]
    assert awake[0] == 100.0
    for (before_s, after_s), step_s in zip(pairwise(awake), steps, strict=True):
        assert after_s - before_s == pytest.approx(min(step_s, 0.1), abs=1e-9)
