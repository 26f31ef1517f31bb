"""Nodes that are short of memory: their publishers wait, and all publishers if too many nodes are."""

from __future__ import annotations

from tests.queues.nodes_here import ClusterHere, NodeHere


def alarm(node: NodeHere) -> str | None:
    assert node.node is not None
    return node.node.broker.alarm


def make_short(*nodes: NodeHere) -> None:
    for node in nodes:
        assert node.node is not None
        node.node.memory.limit_bytes = 1


def test_majority_short_of_memory_blocks_publishers_everywhere(
    cluster_here: ClusterHere,
) -> None:
    one, two, three = cluster_here.nodes
    cluster_here.wait_until(lambda: [alarm(node) for node in cluster_here.nodes] == [None] * 3)
    make_short(one)
    cluster_here.wait_until(lambda: alarm(one) == "low on memory")
    assert [cluster_here.call(alarm, node) for node in (two, three)] == [None, None]
    make_short(two)
    cluster_here.wait_until(lambda: [alarm(node) for node in cluster_here.nodes] == ["low on memory"] * 3)
    for node in (one, two):
        assert node.node is not None
        node.node.memory.limit_bytes = 1 << 60
    cluster_here.wait_until(lambda: [alarm(node) for node in cluster_here.nodes] == [None] * 3)
