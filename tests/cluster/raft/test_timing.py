"""How long members wait before they campaign."""

from __future__ import annotations

import pytest

from cluster.raft.timing import STORE_MAX_S, Timing

TIMING = Timing(heartbeat_s=0.1, campaign_retry_s=0.2)


def test_between_two_campaigns_there_is_once_to_twice_the_pause() -> None:
    assert [TIMING.retry_s(draw, 0.0) for draw in (0.0, 0.5, 1.0)] == pytest.approx([0.2, 0.3, 0.4])


def test_slow_voter_expects_slow_voters() -> None:
    assert [TIMING.retry_s(draw, 2.0) for draw in (0.0, 1.0)] == pytest.approx([6.0, 12.0])
    assert [TIMING.result_s(draw, 2.0) for draw in (0.0, 1.0)] == pytest.approx([6.0, 7.0])


def test_disk_that_hung_once_does_not_prevent_a_campaign() -> None:
    assert TIMING.retry_s(0.0, 60.0) == TIMING.retry_s(0.0, STORE_MAX_S)


def test_leader_is_not_suspected_before_several_heartbeats() -> None:
    assert TIMING.suspicion_min_s == pytest.approx(0.5)
