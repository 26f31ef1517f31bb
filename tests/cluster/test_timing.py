"""How long members wait before they campaign."""

from __future__ import annotations

import pytest

from cluster.timing import Timing

TIMING = Timing(heartbeat_s=0.1, campaign_retry_s=0.2)


def test_between_two_campaigns_there_is_once_to_twice_the_pause() -> None:
    assert [TIMING.retry_s(draw) for draw in (0.0, 0.5, 1.0)] == pytest.approx([0.2, 0.3, 0.4])


def test_a_leader_is_not_suspected_before_it_has_missed_some_heartbeats() -> None:
    assert TIMING.suspicion_min_s == pytest.approx(0.5)
