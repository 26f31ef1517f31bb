"""A failed test must leave no running nodes to later tests in the same process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.queues.nodes_here import ClusterHere


def test_failed_node_stops_the_cluster_and_its_reason_is_raised(tmp_path: Path) -> None:
    cluster = ClusterHere(tmp_path)
    with pytest.RaisesGroup(pytest.RaisesExc(match="its disk failed: gone")), cluster:
        failed = cluster.nodes[0]
        assert failed.node is not None
        cluster.call(failed.node.group.disk_failed, OSError("gone"))
        cluster.wait_until(failed._serving.done)
    assert cluster.running == []
    assert not cluster._thread.is_alive()
