"""How long members wait before they campaign."""

from __future__ import annotations

import pytest

from cluster.raft.timing import STORE_MAX_S, Timing

TIMING = Timing(heartbeat_s=0.1, campaign_retry_s=0.2)


def test_between_two_campaigns_there_is_once_to_twice_the_pause() -> None:
    assert [TIMING.retry_s(draw, 0.0) for draw in (0.0, 0.5, 1.0)] == pytest.approx([0.2, 0.3, 0.4])


def test_who_takes_long_to_vote_takes_it_that_others_do_too() -> None:
    assert [TIMING.retry_s(draw, 2.0) for draw in (0.0, 1.0)] == pytest.approx([6.0, 12.0])
    assert [TIMING.result_s(draw, 2.0) for draw in (0.0, 1.0)] == pytest.approx([6.0, 7.0])


def test_a_disk_that_has_hung_once_keeps_nobody_from_standing_for_leader() -> None:
    assert TIMING.retry_s(0.0, 60.0) == TIMING.retry_s(0.0, STORE_MAX_S)


def test_a_leader_is_not_suspected_before_it_has_missed_some_heartbeats() -> None:
    assert TIMING.suspicion_min_s == pytest.approx(0.5)
