"""A cluster of release 0.1 is upgraded to this program while clients work, and only then raises its version.

The release's code is taken out of the repository's history (tests/harness/releases.py).
"""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

import pika
import pytest

from cluster.runtime.asyncio_runtime import ReadOnlyDisk
from cluster.storage.identity import load_copies
from qq.cli.local.local_requests import get_document
from qq.machine.machine import QueueMachine
from qq.testing import LocalCluster
from qq_spark import Access, LeaseClient, Refusal
from qq_spark.sink_client import SinkClient
from tests.harness.releases import IN_USE, ROOT, running, unpack_release
from tests.stories.commands import run_command
from tests.stories.disk import NodeFiles, lines_since
from tests.stories.load import loaded, poll
from tests.stories.mixed_clients import OLD, MixedClients

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.runtime.ports import Disk
    from qq.testing import ClusterNode
    from tests.stories.load import Load

pytestmark = [pytest.mark.xdist_group("releases"), pytest.mark.timeout(120)]

RELEASED, NEXT = QueueMachine.versions
"""The versions of the state of release 0.1, and of this program once all nodes run it."""
SMALL_FILES = {
    "limits": {
        "segment_bytes": 20_000,
        "checkpoint_entries": 50,
        "checkpoint_bytes": 20_000,
        "retained_bytes": 20_000,
    }
}
"""Both programs read segments, checkpoints and snapshots of each other."""
PAUSE_MAX_S = 3.0
"""How long a publisher waits for a confirm at most while a node is stopped in good order."""


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The code of release 0.1."""
    directory = tmp_path_factory.mktemp("release-0.1")
    unpack_release("0.1", directory)
    return directory


def start(node: ClusterNode, program: Path) -> None:
    with running(program):
        node.start()


def restart(load: Load, node: ClusterNode, program: Path) -> None:
    """Stop a node in good order, and start it on its data with this program."""
    load.stop(node)
    start(node, program)
    load.cluster.wait_caught_up()
    poll(lambda: row(node)["standing"] == "voter", lambda: f"{node.name} does not vote")
    load.until_all_work()
    load.assert_waited_less_than(PAUSE_MAX_S)


def row(node: ClusterNode) -> dict[str, Any]:
    """Return a node's row in its own status."""
    return next(row for row in node.status()["nodes"] if row["name"] == node.name)


def survive(load: Load, leader: ClusterNode, program: Path, *, emptied: ClusterNode, its: Path) -> None:
    """Let a leader repair an emptied node, and kill it afterwards."""
    load.kill(emptied)
    shutil.rmtree(NodeFiles(emptied).root)
    poll(lambda: row(leader)["first_index"] > 1, lambda: f"{leader.name} keeps its whole log")
    size = emptied.log.stat().st_size
    start(emptied, its)
    load.cluster.wait_caught_up()
    assert "receiving a snapshot" in "\n".join(lines_since(emptied, size))
    kill(load, leader, program)
    load.until_all_work()


def kill(load: Load, node: ClusterNode, program: Path) -> None:
    load.kill(node)
    start(node, program)
    load.cluster.wait_caught_up()


def until_safe_to_stop(node: ClusterNode, *, via: ClusterNode) -> None:
    """Wait until a node of this program reports that a node may be stopped."""

    def why_not() -> str | None:
        answer = get_document(via.http_port, f"/api/health/checks/safe-to-stop/{node.name}")
        return None if answer["status"] == "ok" else answer["reason"]

    poll(lambda: why_not() is None, lambda: str(why_not()))


def until_logged(node: ClusterNode, text: str) -> None:
    poll(lambda: text in node.log.read_text(), lambda: f"{node.name} does not say {text!r}")


def until_raised(cluster: LocalCluster) -> None:
    for node in cluster.nodes:
        poll(lambda node=node: agreed_version(node) == NEXT, lambda node=node: f"{node.name} stays behind")
        until_logged(node, f"the cluster is at version {NEXT} of the state now")


def agreed_version(node: ClusterNode) -> int:
    """The version of the state that the node's directory says its log has agreed on."""
    [found, _] = load_copies(cast("Disk", ReadOnlyDisk(NodeFiles(node).group)), "")
    assert found is not None
    return found.machine_version


def check_reports_during_an_upgrade(cluster: LocalCluster, old: ClusterNode) -> None:
    """Assert that operators see nodes of the old release, and get a reason for each change that needs the upgrade."""
    via = cluster.nodes[0]
    shown = {row["name"]: row["versions"] for row in via.status()["nodes"]}
    new = f"{RELEASED} to {NEXT}"
    assert shown == {node.name: str(RELEASED) if node is old else new for node in cluster.nodes}
    leader = cluster.leader()
    refused = run_command(via, "upgrade", "finish")
    assert refused.returncode == 1
    if leader is old:
        assert f"node '{old.name}' leads, and runs release 0.1" in refused.stderr
    else:
        assert (
            f"node '{old.name}' has not told yet which data directory it has: start it, with"
            in refused.stderr
        )
    refused = run_command(via, "drain", via.name)
    assert refused.returncode == 1
    assert f"start this release at {old.name}, too, and then `qq upgrade finish`" in refused.stderr


def test_release_0_1_is_upgraded_node_by_node_without_loss(tmp_path: Path, release: Path) -> None:
    """A node goes back before the last node is upgraded, and forward again."""
    with (
        running(release),
        LocalCluster(3, tmp_path, settings=SMALL_FILES) as cluster,
        loaded(cluster) as load,
    ):
        first, second, third = cluster.nodes
        restart(load, first, ROOT)
        until_safe_to_stop(second, via=first)
        restart(load, second, ROOT)
        check_reports_during_an_upgrade(cluster, old=third)
        if cluster.leader() is third:
            restart(load, third, release)  # from now on a node of this program leads
        assert cluster.leader() is not third
        restart(load, first, release)
        restart(load, first, ROOT)
        until_safe_to_stop(third, via=second)
        assert [agreed_version(node) for node in cluster.nodes] == [RELEASED] * 3
        restart(load, third, ROOT)
        until_raised(cluster)
        load.until_all_work()
        load.stop(third)
        size = third.log.stat().st_size
        start(third, release)
        poll(lambda: not third.running, lambda: "release 0.1 runs on what it cannot read")
        assert lines_since(third, size)[-1] == (
            f"qq serve: {NodeFiles(third).root}: groups/0: the log was written by version {NEXT} of the state, and "
            f"this program has version {RELEASED}; start the program version that wrote it, or begin anew with an "
            "empty directory on every node"
        )
        shutil.rmtree(NodeFiles(third).root)
        size = third.log.stat().st_size
        start(third, release)
        until_logged(first, "3, this node 4 since the cluster has an id: start this release there")
        until_logged(third, "the peer speaks version 4 of the protocol, this node 3")
        assert "is connected" not in "\n".join(lines_since(third, size))
        third.kill()
        shutil.rmtree(NodeFiles(third).root)
        start(third, ROOT)
        cluster.wait_caught_up()
        load.until_all_work()


@pytest.mark.long
def test_amqp_1_0_begins_when_the_last_node_is_upgraded(tmp_path: Path, release: Path) -> None:
    """Until then, upgraded nodes name the reason. Messages of both protocols survive the restart of each node."""
    with running(release), LocalCluster(3, tmp_path, settings=SMALL_FILES) as cluster:
        clients, last = MixedClients(), cluster.nodes[2]
        clients.declare(last)
        for node in cluster.nodes:
            assert clients.refusal(node)
            clients.publish(node, OLD)
        for node in cluster.nodes:
            with ThreadPoolExecutor() as pool:
                trying = pool.submit(clients.refusal, last)  # a client that connects while nodes restart
                node.stop()
                start(node, ROOT)
                cluster.wait_caught_up()
                assert trying.result() or node is last
            clients.publish(node, OLD)
            reason = f"AMQP 1.0 needs version {NEXT} of the state; the cluster has version {RELEASED}"
            if node is not last:
                assert clients.refusal(node).endswith(reason)
        until_raised(cluster)
        for node in cluster.nodes:
            clients.publish(node)
            node.stop()
            start(node, ROOT)
            cluster.wait_caught_up()
            clients.publish(node)
        assert clients.consume(cluster.nodes) == clients.published
        for node in cluster.nodes:
            assert "Traceback" not in node.log.read_text()


@pytest.mark.long
def test_programs_of_the_same_version_share_mixed_messages(tmp_path: Path) -> None:
    """Nodes of the program in use and of this program deliver the same messages; a node may go back."""
    in_use = tmp_path / "in-use"
    unpack_release(IN_USE, in_use)
    with running(in_use), LocalCluster(3, tmp_path / "cluster", settings=SMALL_FILES) as cluster:
        until_raised(cluster)
        clients = MixedClients()
        clients.declare(cluster.nodes[0])
        received: list[str] = []
        first, second, third = cluster.nodes
        for changed, program in (
            (first, ROOT),
            (second, ROOT),
            (first, in_use),
            (first, ROOT),
            (third, ROOT),
        ):
            for node in cluster.nodes:
                clients.publish(node)
            changed.kill()
            clients.publish(second if changed is first else first)
            start(changed, program)
            cluster.wait_caught_up()
            received += clients.consume(cluster.nodes, most=6)
        received += clients.consume(cluster.nodes)
        assert received == clients.published
        for node in cluster.nodes:
            assert "Traceback" not in node.log.read_text()


@pytest.mark.long
def test_leases_and_sinks_begin_when_the_last_node_is_upgraded(tmp_path: Path, release: Path) -> None:
    """Until then, nodes of both releases name the reason; afterwards the first messages are there, each once."""
    pyarrow = pytest.importorskip("pyarrow")
    with running(release), LocalCluster(3, tmp_path, settings=SMALL_FILES) as cluster:
        old = cluster.nodes[2]
        with pika.BlockingConnection(pika.URLParameters(old.url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("orders", durable=True, arguments={"x-queue-type": "quorum"})
            for number in range(20):
                channel.basic_publish("", "orders", b"%d" % number)
        for node in cluster.nodes[:2]:
            node.stop()
            start(node, ROOT)
            cluster.wait_caught_up()
        addresses = [f"http://127.0.0.1:{node.http_port}" for node in cluster.nodes]
        accesses = [Access((address,)) for address in addresses]
        reason = f"need version 12 of the state, .* node '{old.name}' runs an older release; start this release there"
        for access, text in (
            (accesses[0], reason),
            (accesses[1], reason),
            (accesses[2], "runs an older release"),
        ):
            with LeaseClient(access) as leases, pytest.raises(Refusal, match=text):
                leases.take_over("orders", "report", "job")
            with SinkClient(access) as sinks, pytest.raises(Refusal, match=text):
                sinks.open("writer", 0)
        old.stop()
        start(old, ROOT)
        cluster.wait_caught_up()
        until_raised(cluster)
        rows = pyarrow.record_batch({"body": [b"%d" % number for number in range(20, 30)]})
        defaults = {"exchange": "", "routing_key": "orders"}
        with LeaseClient(accesses[0]) as leases, SinkClient(accesses[2]) as sinks:
            fence = leases.take_over("orders", "report", "job").fence
            assert leases.take("orders", "report", fence, 0, 15, 2**20)
            sinks.open("writer", 0)
            assert sinks.stage("writer", 0, "a", 0, rows, defaults) == 1
            for node in cluster.nodes:
                node.stop()
                start(node, ROOT)
                cluster.wait_caught_up()
            sinks.commit("writer", 0, {"a": 1})
            sinks.commit("writer", 0, {"a": 1})
            assert leases.take("orders", "report", fence, 1, 100, 2**20)
            found = [
                [
                    int(row["body"])
                    for batch in leases.read("orders", "report", lease)
                    for row in batch.to_pylist()
                ]
                for lease in (0, 1)
            ]
            assert found == [list(range(15)), list(range(15, 30))]
            leases.commit("orders", "report", fence, 1)


@pytest.mark.long
def test_upgrade_is_finished_without_a_lost_node(tmp_path: Path, release: Path) -> None:
    """It cannot be removed before. So an empty directory takes its name, and is removed afterwards."""
    with (
        running(release),
        LocalCluster(3, tmp_path, settings=SMALL_FILES) as cluster,
        loaded(cluster) as load,
    ):
        first, second, lost = cluster.nodes
        restart(load, first, ROOT)
        restart(load, second, ROOT)
        load.kill(lost)
        shutil.rmtree(NodeFiles(lost).root)
        load.until_all_work()
        refused = run_command(first, "member", "remove", lost.name)
        assert refused.returncode == 1
        assert (
            "the members cannot be changed before the upgrade to this release is finished" in refused.stderr
        )
        start(lost, ROOT)
        cluster.wait_caught_up()
        until_raised(cluster)
        with load.killed_meanwhile(lost):
            removed = run_command(first, "member", "remove", lost.name)
            assert removed.returncode == 0, removed.stderr
            poll(lambda: not lost.running, lambda: "a removed node goes on")
        assert [row["name"] for row in first.status()["nodes"]] == [first.name, second.name]
        load.until_all_work()


@pytest.mark.long
def test_both_releases_work_together_when_nodes_are_lost(tmp_path: Path, release: Path) -> None:
    """A leader of each program is killed, and each program gives its log to a node of the other program."""
    with (
        running(release),
        LocalCluster(3, tmp_path, settings=SMALL_FILES) as cluster,
        loaded(cluster) as load,
    ):
        first, second, third = cluster.nodes
        restart(load, first, ROOT)
        if cluster.leader() is first:
            kill(load, first, ROOT)
        survive(load, cluster.leader(), release, emptied=first, its=ROOT)
        restart(load, second, ROOT)
        if cluster.leader() is third:
            kill(load, third, release)
        survive(load, cluster.leader(), ROOT, emptied=third, its=release)
        assert {agreed_version(node) for node in cluster.nodes} == {RELEASED}
