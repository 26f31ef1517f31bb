"""The secret of a cluster is changed while clients are at work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from qq.cli.local.local_requests import reason_not_ready
from qq.testing import LocalCluster
from tests.stories.commands import run_command
from tests.stories.disk import lines_since
from tests.stories.load import COMMAND_POLL_S, loaded, poll

if TYPE_CHECKING:
    from pathlib import Path

    from qq.testing import ClusterNode

pytestmark = [pytest.mark.xdist_group("releases"), pytest.mark.timeout(120)]

OLD, NEW = "the secret until now", "the secret from now on"
NAMES = ("n1", "n2", "n3")
OF_EACH_NODE = {"cluster": {"secret_file": "secret"}}
"""A file of its own, which is changed by itself, as on machines of their own."""


def give(node: ClusterNode, *secrets: str) -> None:
    (node.log.parent / "secret").write_text("".join(f"{secret}\n" for secret in secrets))


def give_while_it_runs(node: ClusterNode, *secrets: str, logged: str = "read again: ") -> None:
    """Change the node's file, and wait until the node says that it has noticed."""
    size = node.log.stat().st_size
    give(node, *secrets)
    until_logged(node, size, logged)


def until_logged(node: ClusterNode, size: int, text: str) -> None:
    poll(
        lambda: any(text in line for line in lines_since(node, size)),
        lambda: f"{node.name} does not say {text!r}",
    )


def until_safe_to_stop(node: ClusterNode, *, via: ClusterNode, but: str = "") -> None:
    """Wait until it is said that this node may be stopped, or the opposite in these words."""

    def logged() -> str:
        return run_command(via, "check", "safe-to-stop", "--node", node.name).stdout.strip()

    poll(
        lambda: logged() == but if but else " may be stopped: " in logged(),
        lambda: f"{via.name} says {logged()}",
        COMMAND_POLL_S,
    )


def give_all_the_old_one(directory: Path) -> None:
    for name in NAMES:
        (directory / name).mkdir()
        (directory / name / "secret").write_text(f"{OLD}\n")


@pytest.mark.long
def test_node_with_the_sole_links_is_not_safe_to_stop(tmp_path: Path) -> None:
    """A node is a step ahead in the rotation, so that it shares no secret with the third node."""
    give_all_the_old_one(tmp_path)
    with LocalCluster(3, tmp_path, OF_EACH_NODE) as cluster:
        ahead, between, behind = cluster.nodes
        give_while_it_runs(between, NEW, OLD)
        give_while_it_runs(ahead, NEW)
        assert run_command(between, "leader", "transfer", "--to", between.name).returncode == 0
        behind.stop()
        behind.start()
        cluster.wait_caught_up()
        apart = f"{ahead.name} and {behind.name} have no link (look at the network between them, and at their secrets)"
        few = f"do not stop {between.name}: {ahead.name} would be no majority of 3 voters; {apart}"
        until_safe_to_stop(between, via=between, but=few)
        for via in (ahead, behind):
            assert run_command(via, "check", "safe-to-stop", "--node", between.name).returncode == 1
        assert run_command(between, "check", "safe-to-stop", "--node", behind.name).returncode == 0
        for change in (["drain", between.name], ["leader", "transfer", "--to", ahead.name]):
            refused = run_command(between, *change)
            assert refused.returncode == 1
            assert apart in refused.stderr
        assert cluster.leader() is between
        give_while_it_runs(behind, NEW, OLD)
        until_safe_to_stop(between, via=between)
        assert run_command(between, "drain", between.name).returncode == 0


def test_the_secret_is_changed_under_load(tmp_path: Path) -> None:
    give_all_the_old_one(tmp_path)
    with LocalCluster(3, tmp_path, OF_EACH_NODE) as cluster, loaded(cluster) as load:

        def start_again(node: ClusterNode) -> None:
            """Restart a node, so that its links are authenticated with the present secrets."""
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
            # A connection soon after a lost link is logged a moment later.
            about_links = [line for line in lines_since(node, size) if "cluster.transport.peer_links" in line]
            assert all("is connected" in line for line in about_links)
        for node in cluster.nodes:
            start_again(node)

        # A node with a wrong secret is isolated until that is corrected, and the rest continues.
        first, *peers = cluster.nodes
        give_while_it_runs(first, "short", logged="; what was read before stays in use")
        give(first, OLD)
        load.stop(first)
        size = first.log.stat().st_size
        first.start()
        until_logged(first, size, "the peer rejects this node: its cluster secret differs")
        differs = "(the peer rejects this node: its cluster secret differs)"
        apart = f"no leader is known: no connection with n2 {differs}, n3 {differs}"
        poll(
            lambda: reason_not_ready(first.http_port) == apart, lambda: str(reason_not_ready(first.http_port))
        )
        load.until_all_work(besides=[first])
        for node in peers:
            assert "node 'n1' has proved no secret that this node accepts" in node.log.read_text()
        give_while_it_runs(first, OLD, NEW)
        cluster.wait_caught_up()
        load.until_all_work()
