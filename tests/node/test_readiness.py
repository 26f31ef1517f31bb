"""A node serves when it has caught up with the cluster, not with the commit index at its start."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from qq.node.readiness import ROUND_S, catch_up

if TYPE_CHECKING:
    from collections.abc import Callable


class Cluster:
    """A cluster that commits while a node applies: the time of each round, the first from its start."""

    def __init__(self, first_s: float, rounds_s: list[float]) -> None:
        self.now_s = 0.0
        self.rounds_s = rounds_s
        self.waits_s = [first_s]
        """How long it takes each time until the cluster waits for the node."""

    def is_live(self) -> bool:
        self.now_s += self.waits_s.pop() if self.waits_s else 0.0
        return not self.waits_s

    def have_applied(self, callback: Callable[[], None]) -> None:
        self.now_s += self.rounds_s.pop(0)
        asyncio.get_running_loop().call_soon(callback)


@pytest.mark.parametrize(
    ("first_s", "rounds_s", "left"),
    [
        (ROUND_S / 2, [9.0], 1),
        (15.0, [12.0, 4.0, 1.5, ROUND_S / 2, 9.0], 1),
        (15.0, [3.0, 3.0, 9.0], 1),
    ],
    ids=["at once", "a snapshot came first", "no nearer under this load"],
)
def test_a_node_serves_when_rounds_are_short_or_get_no_shorter(
    first_s: float, rounds_s: list[float], left: int
) -> None:
    cluster = Cluster(first_s, rounds_s)
    asyncio.run(catch_up(cluster.is_live, cluster.have_applied, lambda: cluster.now_s))
    assert len(cluster.rounds_s) == left


def test_evicted_node_serves_only_after_catching_up_again() -> None:
    cluster = Cluster(15.0, [0.0, 9.0])
    applied = cluster.have_applied

    def run_at_once(callback: Callable[[], None]) -> None:
        cluster.waits_s = [2.0, 3.0]
        applied(callback)

    asyncio.run(catch_up(cluster.is_live, run_at_once, lambda: cluster.now_s))
    assert cluster.now_s == 15.0 + 3.0 + 2.0 + 9.0 + 3.0 + 2.0
