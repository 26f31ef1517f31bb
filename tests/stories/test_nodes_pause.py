"""Clients see a pause when a node freezes (SIGSTOP) and continues, longer for the clients of that node.

A frozen node keeps its clients' connections and their unacknowledged messages.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from qq.testing import LocalCluster
from tests.stories.load import loaded

if TYPE_CHECKING:
    from pathlib import Path

    from qq.testing import ClusterNode
    from tests.stories.load import Load

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(120)]

FROZEN_S = 8.0
"""Longer than any patience of the nodes with each other."""


def freeze(load: Load, node: ClusterNode, duration_s: float) -> None:
    """Pause the node while clients of its peers work, and then wait for all clients."""
    end_s = time.monotonic() + duration_s
    load.pause(node)
    load.until_all_work(besides=[node])
    print(f"the others waited {load.longest_wait_s():.2f} s")
    while time.monotonic() < end_s:
        load.until_all_work(besides=[node])
    node.resume()
    load.until_all_work()


@pytest.mark.long
def test_frozen_follower_continues_with_its_clients(tmp_path: Path) -> None:
    with LocalCluster(3, tmp_path) as cluster, loaded(cluster) as load:
        leader = cluster.leader()
        freeze(load, cluster.followers()[0], FROZEN_S)
        assert cluster.leader() is leader


def test_frozen_leader_is_replaced_and_returns_as_a_follower(tmp_path: Path) -> None:
    with LocalCluster(3, tmp_path) as cluster, loaded(cluster) as load:
        leader = cluster.leader()
        freeze(load, leader, 2.0)
        assert cluster.leader() is not leader
        assert leader.leads() is None
