"""Backups of a cluster at work, new clusters of them and of a survivor, and that the old life stays away."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, cast

import pytest

from cluster.runtime.asyncio_runtime import ReadOnlyDisk
from cluster.storage.identity import load_copies
from qq.cli.local.local_requests import reason_not_ready
from qq.testing import LocalCluster
from tests.stories.clients import PERSISTENT, pika_connection
from tests.stories.commands import run_qq
from tests.stories.disk import NodeFiles
from tests.stories.load import COMMAND_POLL_S, loaded, poll

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.runtime.ports import Disk
    from qq.testing import ClusterNode

pytestmark = [pytest.mark.xdist_group("members"), pytest.mark.timeout(120)]

QUEUE = "kept"
INTERRUPTED_VOTE = re.compile(
    r"(groups/0/hardstate-[01] is older than the other one or damaged; written anew\n)?"
)
"""The kill of a node may interrupt the write of its vote; `qq recover` reports this."""
LIMITS = {
    "SEGMENT_BYTES": "40000",
    "CHECKPOINT_ENTRIES": "60",
    "CHECKPOINT_BYTES": "80000",
    "RETAINED_BYTES": "120000",
}
"""Small, so that there are many files, and housekeeping has much to remove."""
HELD = 5
INTERVAL_S = 0.01
"""Between two messages of a publisher."""
PAUSE_MAX_S = 2.0
LINK_S = 1.0
"""Nodes that may connect need less."""


@pytest.fixture(autouse=True)
def _limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in LIMITS.items():
        monkeypatch.setenv(f"QQ_LIMITS_{name}", value)


def qq(*arguments: object) -> tuple[int, str, str]:
    """Run a command; return its exit status, output and errors."""
    done = run_qq(*map(str, arguments))
    return done.returncode, done.stdout, done.stderr


def make_backup(node: ClusterNode, target: Path) -> None:
    status, _, errors = qq("backup", target, *backup_target(node))
    assert (status, errors) == (0, "")


def restore(node: ClusterNode, backup: Path) -> None:
    """Begin a new cluster on the node, after emptying its directory."""
    shutil.rmtree(NodeFiles(node).root)
    status, _, errors = qq("restore", backup, "--config", config_of(node))
    assert (status, errors) == (0, "")


def piped(*arguments: object, given: bytes = b"") -> bytes:
    """Return the output of a command that reads a pipe and writes to a pipe."""
    command = [sys.executable, "-m", "qq", *map(str, arguments)]
    done = subprocess.run(command, input=given, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout


def backup_target(node: ClusterNode) -> tuple[str, str]:
    return "--http", f"http://127.0.0.1:{node.http_port}"


def config_of(node: ClusterNode) -> Path:
    return node.log.parent / "node.toml"


class Publisher(threading.Thread):
    """Publishes numbers to the queue, each a moment after the confirm of its predecessor."""

    def __init__(self, node: ClusterNode) -> None:
        super().__init__(daemon=True)
        self.node = node
        self.confirmed: list[str] = []
        self.stopping = threading.Event()
        self.start()

    def run(self) -> None:
        with pika_connection(self.node) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            while not self.stopping.wait(INTERVAL_S):
                name = f"{self.node.name}:{len(self.confirmed)}"
                channel.basic_publish("", QUEUE, name.encode().ljust(500), PERSISTENT)
                self.confirmed.append(name)


def declare(node: ClusterNode) -> None:
    with pika_connection(node) as connection:
        connection.channel().queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})


def stored(node: ClusterNode) -> list[str]:
    """Take all messages out of the queue, and return them."""
    with pika_connection(node) as connection:
        channel = connection.channel()
        found: list[str] = []
        while (body := channel.basic_get(QUEUE, auto_ack=True)[2]) is not None:
            found.append(body.decode().rstrip())
        return found


def kill_all(cluster: LocalCluster) -> None:
    for node in cluster.nodes:
        if node.running:
            node.kill()


@pytest.mark.parametrize("source", [pytest.param("leader", marks=pytest.mark.long), "follower"])
def test_backup_under_load_holds_all_messages_confirmed_before(tmp_path: Path, source: str) -> None:
    """Including unacknowledged messages; messages confirmed later may be in it, once; exclusive queues are not."""
    with LocalCluster(3, made(tmp_path / "cluster")) as cluster:
        first = cluster.nodes[0]
        declare(first)
        publishers = [Publisher(node) for node in cluster.nodes]
        with pika_connection(first) as connection:
            channel = connection.channel()
            channel.queue_declare("mine", exclusive=True)
            poll(lambda: len(publishers[0].confirmed) > 150, lambda: "nothing is confirmed")
            for _ in range(HELD):
                assert channel.basic_get(QUEUE)[2] is not None
            node = cluster.leader() if source == "leader" else cluster.followers()[0]
            before = [name for publisher in publishers for name in list(publisher.confirmed)]
            make_backup(node, tmp_path / "backup")
            assert "broken off" not in node.log.read_text()
            for publisher in publishers:
                publisher.stopping.set()
                publisher.join()
        confirmed = {name for publisher in publishers for name in publisher.confirmed}
        assert qq("inspect", tmp_path / "backup")[0] == 0
        kill_all(cluster)
        restore(first, tmp_path / "backup")
        first.start()
        first.wait_ready()
        assert "mine" not in {queue["name"] for queue in first.queues()}
        found = stored(first)
        assert [name for name in before if name not in found] == []
        assert len(set(found)) == len(found)
        assert set(found) <= confirmed
        print(f"{len(before)} confirmed before, {len(found)} restored, {len(confirmed)} confirmed in all")


def made(directory: Path) -> Path:
    directory.mkdir()
    return directory


@pytest.mark.long
def test_backups_do_not_delay_clients(tmp_path: Path) -> None:
    """The nodes give backups in turn, while housekeeping removes old segments."""
    with LocalCluster(3, made(tmp_path / "cluster")) as cluster, loaded(cluster) as load:
        load.fault_begins()
        for node in cluster.nodes:
            make_backup(node, tmp_path / node.name)
        load.until_all_work()
        load.assert_waited_less_than(PAUSE_MAX_S)
        for node in cluster.nodes:
            assert qq("inspect", tmp_path / node.name)[0] == 0


def publish_to(node: ClusterNode, count: int) -> list[str]:
    """Publish until more than so many messages are confirmed; returns those that are."""
    publisher = Publisher(node)
    poll(lambda: len(publisher.confirmed) > count, lambda: "nothing is confirmed")
    publisher.stopping.set()
    publisher.join()
    return publisher.confirmed


def test_restored_cluster_grows_and_old_nodes_cannot_rejoin(tmp_path: Path) -> None:
    with LocalCluster(3, made(tmp_path / "cluster")) as cluster:
        first, second, _ = cluster.nodes
        declare(first)
        confirmed = publish_to(second, 20)
        data = piped("backup", "-", *backup_target(second))
        until_named(cluster)
        kill_all(cluster)
        shutil.rmtree(NodeFiles(first).root)
        piped("restore", "-", "--config", config_of(first), given=data)
        first.start()
        first.wait_ready()
        stays_away(second, first)
        for node in cluster.nodes[1:]:
            shutil.rmtree(NodeFiles(node).root)
            node.start()
        cluster.wait_caught_up()
        until_safe_to_stop(first)
        first.kill()
        assert stored(second) == confirmed


def until_safe_to_stop(node: ClusterNode) -> None:
    """Wait until the rest votes, and is a majority."""
    poll(
        lambda: qq("check", "safe-to-stop", *backup_target(node))[0] == 0,
        lambda: "the others are not enough",
        COMMAND_POLL_S,
    )


def test_survivor_serves_without_peers_after_qq_recover(tmp_path: Path) -> None:
    with LocalCluster(3, made(tmp_path / "cluster")) as cluster:
        first, second, _ = cluster.nodes
        declare(first)
        confirmed = publish_to(first, 200)
        until_named(cluster)
        cluster.wait_caught_up()
        root = NodeFiles(second).root
        status, _, errors = qq("recover", "--unsafe-from", root, "--yes")
        assert status == 1
        assert "in use by another process" in errors
        kill_all(cluster)
        status, output, _ = qq("recover", "--unsafe-from", root)
        assert status == 1
        assert "may be missing" in output
        status, output, errors = qq("recover", "--unsafe-from", root, "--yes")
        assert status == 0, errors
        assert INTERRUPTED_VOTE.fullmatch(errors)
        second.start()
        second.wait_ready()
        stays_away(first, second)
        assert stored(second) == confirmed


def until_named(cluster: LocalCluster) -> None:
    """Wait until every node has a configuration in its log, which gives the cluster an id."""

    def is_named(node: ClusterNode) -> bool:
        [found, _] = load_copies(cast("Disk", ReadOnlyDisk(NodeFiles(node).group)), "")
        return found is not None and not found.members

    poll(lambda: all(map(is_named, cluster.nodes)), lambda: "the cluster gets no id")


def stays_away(old: ClusterNode, new: ClusterNode) -> None:
    """Assert that the new cluster refuses a node with a directory from before the restore, and continues."""
    old.start()
    poll(
        lambda: (
            f"no leader is known: no connection with {new.name} (" in str(reason_not_ready(old.http_port))
        ),
        lambda: f"{old.name}: {reason_not_ready(old.http_port)}",
    )
    time.sleep(LINK_S)
    declare(new)
    assert [status["name"] for status in new.status()["nodes"]] == [new.name]
    for one, other in ((old, new), (new, old)):
        last_log = one.log.read_text().rpartition("qq.cli.local.serve: node")[2]
        assert f"peer {other.name} is connected" not in last_log
    old.kill()
