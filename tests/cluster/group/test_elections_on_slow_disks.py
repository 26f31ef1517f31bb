"""Elections with slow writes of votes: no second candidate may campaign meanwhile."""

from __future__ import annotations

import pytest

from tests.cluster.harness import Growing

DISK_FACTORS = [100.0, 500.0]
"""With the last factor a write takes about a second, and an election needs six writes in sequence."""
ROUNDS = 8
WITHIN_FACTOR_S = 0.06
"""Longest election for each unit of the factor: twice the time of the writes."""


@pytest.mark.parametrize("factor", DISK_FACTORS)
@pytest.mark.slow
def test_leader_is_elected_although_all_disks_are_slow(factor: float) -> None:
    growing = Growing("abcdef")
    growing.start()
    terms = 0
    for _ in range(ROUNDS):
        growing.pass_ms(3_000)
        dead, followers = growing.leader(), growing.followers()
        term = dead.group.engine.term
        for node in growing.members:
            node.disk.slow = factor
        dead.end()
        growing.pass_ms(int(1000 * WITHIN_FACTOR_S * factor))
        leader = growing.leader()
        assert all(node.group.leader == leader.name for node in followers)
        terms += leader.group.engine.term - term
        for node in growing.members:
            node.disk.slow = 1.0
        dead.start()
    assert terms <= 2 * ROUNDS
