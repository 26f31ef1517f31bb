"""The secret of a cluster is changed while clients are at work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from system_disk import lines_since
from system_load import loaded, poll

from qq.testing import LocalCluster

if TYPE_CHECKING:
    from pathlib import Path

    from qq.testing import ClusterNode

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.timeout(120)]

OLD, NEW = "the secret until now", "the secret from now on"
NAMES = ("n1", "n2", "n3")
OF_EACH_NODE = {"cluster": {"secret_file": "secret"}}
"""A file of its own, which is changed by itself, as on machines of their own."""


def give(node: ClusterNode, *secrets: str) -> None:
    (node.log.parent / "secret").write_text("".join(f"{secret}\n" for secret in secrets))


def give_while_it_runs(node: ClusterNode, *secrets: str, said: str = "read again: ") -> None:
    """Change the node's file, and wait until the node says that it has noticed."""
    size = node.log.stat().st_size
    give(node, *secrets)
    until_said(node, size, said)


def until_said(node: ClusterNode, size: int, text: str) -> None:
    poll(
        lambda: any(text in line for line in lines_since(node, size)),
        lambda: f"{node.name} does not say {text!r}",
    )


def test_the_secret_is_changed_under_load(tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "secret").write_text(f"{OLD}\n")
    with LocalCluster(3, tmp_path, OF_EACH_NODE) as cluster, loaded(cluster) as load:

        def start_again(node: ClusterNode) -> None:
            """Its connections are new ones then: with the secrets that it has now, and the others have."""
            load.stop(node)
            node.start()
            cluster.wait_caught_up()
            load.until_all_work()

        for node in cluster.nodes:
            give(node, OLD, NEW)
            start_again(node)
        sizes = {node: node.log.stat().st_size for node in cluster.nodes}
        for node in cluster.nodes:
            give_while_it_runs(node, NEW)
        load.until_all_work()
        for node, size in sizes.items():
            # A connection that came soon after a lost one is told of a moment later.
            about_links = [line for line in lines_since(node, size) if "cluster.links" in line]
            assert all("is connected" in line for line in about_links)
        for node in cluster.nodes:
            start_again(node)

        # One node is given the wrong one: it is by itself until that is put right, and the others go on.
        first, *others = cluster.nodes
        give_while_it_runs(first, "short", said="; what was read before stays in use")
        give(first, OLD)
        load.stop(first)
        size = first.log.stat().st_size
        first.start()
        until_said(first, size, "the peer rejects this node: its cluster secret differs")
        load.until_all_work(besides=[first])
        for node in others:
            assert "node 'n1' has proved no secret that this node accepts" in node.log.read_text()
        give_while_it_runs(first, OLD, NEW)
        cluster.wait_caught_up()
        load.until_all_work()
