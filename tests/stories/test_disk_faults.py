"""Nodes whose disk is damaged, lost, swapped, full or failing keep the promises to clients."""

from __future__ import annotations

import json
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, NamedTuple

import pytest

from qq.testing import LocalCluster
from tests.harness.long_cases import cases
from tests.stories.clients import CONNECTION_ERRORS, PERSISTENT, REFUSALS, pika_connection
from tests.stories.disk import (
    MIB,
    FailingCalls,
    NodeFiles,
    change_version,
    flip,
    flip_copies,
    lines_since,
    mounted,
    ran_where_it_may_mount,
)
from tests.stories.load import loaded, poll

if TYPE_CHECKING:
    from collections.abc import Generator

    from qq.testing import ClusterNode

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(90)]

LIMITS = {
    "SEGMENT_BYTES": "40_000",
    "CHECKPOINT_ENTRIES": "60",
    "CHECKPOINT_BYTES": "80_000",
    "RETAINED_BYTES": "240_000",
}
"""Small, so that a few seconds of work leave segments and checkpoints behind."""
STORED = "stored"
STORED_COUNT = 30
FILLER = [bytes(40_000)] * 12
DISK_BYTES = 48 * MIB
FREE_LIMIT_BYTES = 16 * MIB


@pytest.fixture(scope="module")
def limits() -> Generator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in LIMITS.items():
            patch.setenv(f"QQ_LIMITS_{name}", value.replace("_", ""))
        yield


@pytest.fixture(scope="module")
def cluster(limits: None, tmp_path_factory: pytest.TempPathFactory) -> Generator[LocalCluster]:
    """A cluster for all kinds of damage to a node, with messages that have long been in a queue."""
    with LocalCluster(3, tmp_path_factory.mktemp("cluster")) as cluster:
        first, *_ = cluster.nodes
        store(first)
        logs = [NodeFiles(node).log for node in cluster.nodes]
        poll(
            lambda: log_more(first) or all(any(log.glob("*.sparse")) for log in logs),
            lambda: "nothing was compacted",
        )
        yield cluster


def log_more(node: ClusterNode) -> None:
    """Log messages that are consumed at once: a segment is compacted after some checkpoints."""
    with pika_connection(node) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.exchange_declare("nowhere", "fanout", durable=True)
        for body in FILLER:
            channel.basic_publish("nowhere", "", body)


def store(node: ClusterNode) -> None:
    """Put messages into a queue where they stay."""
    with pika_connection(node) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare(STORED, durable=True)
        for number in range(STORED_COUNT):
            channel.basic_publish("", STORED, b"stored %d" % number, PERSISTENT)


def assert_stored(node: ClusterNode) -> None:
    """The node delivers each message that was stored once, and takes them back when the connection ends."""
    with pika_connection(node) as connection:
        channel = connection.channel()
        bodies = [channel.basic_get(STORED)[2] for _ in range(STORED_COUNT)]
        assert sorted(bodies) == sorted(b"stored %d" % number for number in range(STORED_COUNT))
        assert channel.basic_get(STORED)[2] is None


class Damage(NamedTuple):
    """`do` returns the file that it has damaged; `logged` is the text in the node's log."""

    do: Callable[[NodeFiles], Path]
    logged: str = ""


def flipped(file: Path, place: int | None = None) -> Path:
    flip(file, place)
    return file


def both_flipped(file: Path) -> Path:
    flip_copies(file)
    return file


def removed(path: Path) -> Path:
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    return path


def all_flipped(files: list[Path]) -> Path:
    for file in files:
        flip(file)
    return files[-1]


DAMAGES = {
    "sealed segment": Damage(lambda of: flipped(of.segments("dense")[2]), "restarts: "),
    "stored messages": Damage(lambda of: flipped(of.segments("sparse")[0]), "restarts: "),
    "middle segment deleted": Damage(
        lambda of: removed(of.segments("dense")[len(of.segments("dense")) // 2]), "the file is missing"
    ),
    "open segment": Damage(lambda of: flipped(of.segments("open")[0]), "bad record"),
    "end of the open segment": Damage(lambda of: flipped(of.segments("open")[0], -1), "bad record"),
    "last record of the open segment": Damage(NodeFiles.cut_last_synced_record, "were synced"),
    "open segment deleted": Damage(lambda of: removed(of.segments("open")[0]), "the file is missing"),
    "mark": Damage(lambda of: flipped(of.log / "synced"), "missing or damaged; made anew"),
    "newest checkpoint": Damage(lambda of: flipped(of.checkpoints()[-1]), "skipped a damaged checkpoint"),
    "older checkpoint": Damage(lambda of: flipped(of.checkpoints()[0])),
    "all checkpoints": Damage(lambda of: all_flipped(of.checkpoints()), "skipped a damaged checkpoint"),
    "manifest": Damage(lambda of: flipped(of.log / "manifest", 20), "one of the two copies"),
    "whole manifest": Damage(lambda of: both_flipped(of.log / "manifest"), "both copies of the content"),
    "hard state": Damage(lambda of: flipped(of.group / "hardstate-0"), "written anew"),
    "whole hard state": Damage(
        lambda of: all_flipped([of.group / "hardstate-0", of.group / "hardstate-1"]), "term and vote are lost"
    ),
    "identity": Damage(lambda of: flipped(of.group / "identity", 20), "one of the two copies"),
    "everything deleted": Damage(lambda of: removed(of.root), "receiving a snapshot"),
}


ALWAYS_TRIED = {
    "stored messages",
    "everything deleted",
}
"""Tests of `cluster` cover the effects of each damage on the log."""
LOST_LOGS = [
    "sealed segment",
    "stored messages",
    "middle segment deleted",
    "open segment",
    "end of the open segment",
    "last record of the open segment",
    "open segment deleted",
    "all checkpoints",
    "whole manifest",
    "everything deleted",
]


@pytest.mark.parametrize("name", cases(DAMAGES, ALWAYS_TRIED.__contains__))
def test_damaged_node_is_repaired(cluster: LocalCluster, name: str) -> None:
    node = cluster.nodes[list(DAMAGES).index(name) % len(cluster.nodes)]
    files, damage = NodeFiles(node), DAMAGES[name]
    with loaded(cluster) as load:
        load.kill(node)
        while not files.is_open_segment_marked:
            node.start()
            load.until_all_work()
            load.kill(node)
        assert files.problems() == []
        damaged = damage.do(files)
        remains = content(damaged)
        with load.killed_meanwhile(node):
            size = node.log.stat().st_size
            node.start()
            poll(
                lambda: log_text(node, size, damage.logged), lambda: f"{node.name} says nothing of {damaged}"
            )
            poll(
                lambda: remains is None or content(damaged) != remains,
                lambda: f"{damaged} is as it was",
            )
            node.wait_ready()
        cluster.wait_caught_up()
        assert standing(node) == "voter"
        # The logs of its peers begin long after the first entry: an empty node cannot be sent all entries.
        assert bool(log_text(node, size, "installed a snapshot")) == (name in LOST_LOGS)
        load.until_all_work()
        assert_stored(node)
        assert (
            damaged == files.root or damaged.name in log_text(node, size, damage.logged) or not damage.logged
        )
        poll(lambda: is_whole(files), lambda: f"what is damaged: {files.problems()}")


def is_whole(files: NodeFiles) -> bool:
    """Return whether no file is damaged while the node works with its files, some of which may vanish meanwhile."""
    try:
        return files.problems() == []
    except FileNotFoundError:
        return False


def log_text(node: ClusterNode, size: int, text: str) -> str:
    """The lines with this text that the node has logged since its log had `size` bytes."""
    return "\n".join(line for line in lines_since(node, size) if text in line)


def content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def standing(node: ClusterNode) -> str:
    """As the node itself sees it."""
    return next(view["standing"] for view in node.status()["nodes"] if view["name"] == node.name)


# A majority


def test_no_majority_serves_when_two_of_three_logs_are_lost(cluster: LocalCluster, tmp_path: Path) -> None:
    publish(cluster.nodes[0], "confirmed", 50)
    for node in cluster.nodes:
        node.kill()
    deleted, damaged, _ = (NodeFiles(node) for node in cluster.nodes)
    kept = shutil.copytree(damaged.root, tmp_path / "kept")
    shutil.rmtree(deleted.root)
    flip_copies(damaged.log / "manifest")
    sizes = {node: node.log.stat().st_size for node in cluster.nodes}
    for node in cluster.nodes:
        node.start()
    lost = "the logs of n1, n2 are damaged or lost, so no majority knows what was confirmed"
    for node, size in sizes.items():
        poll(lambda node=node: lost in health(node), lambda node=node: f"{node.name}: {health(node)}")
        assert log_text(node, size, lost)
    time.sleep(2.0)  # longer than an election would take
    assert all(lost in health(node) for node in cluster.nodes)
    for node in cluster.nodes:
        node.kill()
    put_back(damaged, kept)
    for node in cluster.nodes:
        node.start()
    cluster.wait_caught_up()
    for node in cluster.nodes:
        assert_stored(node)
    assert consumed(cluster.nodes[0], "confirmed") == [b"%d" % number for number in range(50)]


# Foreign files


@pytest.fixture(scope="module")
def stopped(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Generator[ClusterNode]:
    """A stopped node, whose directory is restored after each test."""
    [_, node, _] = cluster.nodes
    node.kill()
    files = NodeFiles(node)
    original = tmp_path_factory.mktemp("original") / "data"
    shutil.copytree(files.root, original)
    yield node
    put_back(files, original)
    node.start()
    node.wait_ready()


@pytest.fixture
def stopped_files(stopped: ClusterNode, tmp_path: Path) -> Generator[NodeFiles]:
    files = NodeFiles(stopped)
    original = shutil.copytree(files.root, tmp_path / "data")
    yield files
    put_back(files, original)


def put_back(files: NodeFiles, original: Path) -> None:
    shutil.rmtree(files.root)
    shutil.copytree(original, files.root)


@contextmanager
def standing_still(node: ClusterNode) -> Generator[None]:
    """Pause a node, which would otherwise delete files while they are copied."""
    node.pause()
    try:
        yield
    finally:
        node.resume()


def refusal(node: ClusterNode) -> str:
    """Return the last log line of a node that does not start or continue."""
    size = node.log.stat().st_size
    node.start()
    poll(lambda: not node.running, lambda: f"{node.name} runs")
    [*_, last] = lines_since(node, size)
    assert last.startswith("qq serve: ")
    return last


def test_node_refuses_the_directory_of_a_different_node(
    cluster: LocalCluster, stopped: ClusterNode, stopped_files: NodeFiles
) -> None:
    with standing_still(cluster.nodes[0]):
        put_back(stopped_files, NodeFiles(cluster.nodes[0]).root)
    log_text = refusal(stopped)
    assert "groups/0/identity: the directory belongs to node 'n1' of cluster 'qq', not to" in log_text
    assert log_text.endswith("check the data directory setting")


def test_node_refuses_the_directory_of_a_different_cluster(
    stopped: ClusterNode, stopped_files: NodeFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QQ_CLUSTER_NAME", "other")
    assert "groups/0/identity: the directory belongs to node 'n2' of cluster 'qq', not to" in refusal(stopped)


def test_node_refuses_the_log_of_a_different_node(
    cluster: LocalCluster, stopped: ClusterNode, stopped_files: NodeFiles
) -> None:
    shutil.rmtree(stopped_files.log)
    with standing_still(cluster.nodes[0]):
        shutil.copytree(NodeFiles(cluster.nodes[0]).log, stopped_files.log)
    assert "groups/0/log/manifest: belongs to another node" in refusal(stopped)


OF_ANOTHER_VERSION: dict[str, Callable[[NodeFiles], Path]] = {
    "manifest": lambda of: of.log / "manifest",
    "hard state": lambda of: of.group / "hardstate-1",
    "identity": lambda of: of.group / "identity",
    "open segment": lambda of: of.segments("open")[0],
    "sealed segment": lambda of: of.segments("sparse")[0],
    "checkpoint": lambda of: of.checkpoints()[-1],
}


@pytest.mark.parametrize("name", OF_ANOTHER_VERSION)
def test_node_refuses_a_file_of_an_unknown_format_version(
    stopped: ClusterNode, stopped_files: NodeFiles, name: str
) -> None:
    file = OF_ANOTHER_VERSION[name](stopped_files)
    change_version(file)
    assert f"{file.name}: format version " in (log_text := refusal(stopped))
    assert "is unknown; start the program version that wrote it" in log_text


def publish(node: ClusterNode, queue: str, count: int) -> None:
    with pika_connection(node) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare(queue, durable=True)
        for number in range(count):
            channel.basic_publish("", queue, b"%d" % number, PERSISTENT)


def consumed(node: ClusterNode, queue: str) -> list[bytes]:
    with pika_connection(node) as connection:
        channel = connection.channel()
        bodies: list[bytes] = []
        while (body := channel.basic_get(queue, auto_ack=True)[2]) is not None:
            bodies.append(body)
        return bodies


def health(node: ClusterNode) -> str:
    """Why the node does not serve; empty if it does, or does not say."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{node.http_port}/healthz"):
            return ""
    except urllib.error.HTTPError as error:
        with error:
            return json.load(error)["reason"]
    except OSError:
        return ""


def listens(node: ClusterNode) -> bool:
    """Whether it serves AMQP, be its disk full or not."""
    with socket() as client:
        return client.connect_ex(("127.0.0.1", node.amqp_port)) == 0


# No space

FULL = "the node's disk is full: it goes on when there is space"
"""`/healthz` of a node that cannot write to its log."""


class Watcher:
    """A client that has published, and notes when it is told to wait."""

    def __init__(self, node: ClusterNode) -> None:
        self.notices: list[str] = []
        self._connection = pika_connection(node)
        self._connection.add_on_connection_blocked_callback(
            lambda _, frame: self.notices.append(frame.method.reason)
        )
        self._connection.add_on_connection_unblocked_callback(lambda *_: self.notices.append("go on"))
        channel = self._connection.channel()
        channel.queue_declare("watchers", durable=True)
        channel.basic_publish("", "watchers", b"here")

    def until_noticed(self, notice: str) -> None:
        def is_noticed() -> bool:
            self._connection.process_data_events(0.02)
            return self.notices[-1:] == [notice]

        poll(is_noticed, lambda: f"told {self.notices} and not {notice!r}")

    def close(self) -> None:
        self._connection.close()


@contextmanager
def on_small_disks(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[LocalCluster]:
    """A cluster whose nodes have a file system each."""
    monkeypatch.setenv("QQ_LIMITS_DISK_FREE_LIMIT_BYTES", str(FREE_LIMIT_BYTES))
    with ExitStack() as cleanup:
        for name in ("n1", "n2", "n3"):
            cleanup.enter_context(mounted(directory / name / "data", DISK_BYTES))
        yield cleanup.enter_context(LocalCluster(3, directory))


def test_a_node_without_space_holds_up_its_own_publishers_only(
    request: pytest.FixtureRequest, limits: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ran_where_it_may_mount(request):
        return
    with on_small_disks(tmp_path, monkeypatch) as cluster, loaded(cluster) as load:
        node = cluster.leader()
        watcher = Watcher(node)
        files = NodeFiles(node)
        files.fill(leaving=FREE_LIMIT_BYTES // 2)
        watcher.until_noticed("low on disk")
        load.until_all_work(besides=[node])
        files.fill(leaving=0)
        survivors = [other for other in cluster.nodes if other is not node]
        poll(lambda: any(other.leads() for other in survivors), lambda: f"{node.name} leads with a full disk")
        load.until_all_work(besides=[node])
        files.clear()
        watcher.until_noticed("go on")
        load.until_all_work()
        watcher.close()
        files.fill(leaving=0)
        for _ in range(2):
            load.kill(node)
            files.fill(leaving=0)
            node.start()
            poll(lambda: listens(node) and node._not_ready() in (None, FULL), lambda: str(node._not_ready()))
            assert standing(node) == "voter"
        watcher = Watcher(node)
        watcher.until_noticed("low on disk")
        load.until_all_work(besides=[node])
        files.clear()
        watcher.until_noticed("go on")
        watcher.close()
        load.until_all_work()
        poll(lambda: is_whole(files), lambda: f"what is damaged: {files.problems()}")


def test_full_disks_stop_publishers_but_not_consumers(
    request: pytest.FixtureRequest, limits: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ran_where_it_may_mount(request):
        return
    with on_small_disks(tmp_path, monkeypatch) as cluster, loaded(cluster) as load:
        watchers = [Watcher(node) for node in cluster.nodes]
        disks = [NodeFiles(node) for node in cluster.nodes]
        for files in disks:
            files.fill(leaving=FREE_LIMIT_BYTES // 2)
        for watcher in watchers:
            watcher.until_noticed("low on disk")
        poll(load.is_drained, lambda: "consumers do not go on")
        confirmed = len(load.history.confirms)
        for files in disks:
            files.fill(leaving=0)
        late = threading.Thread(target=publish, args=(cluster.nodes[0], "late", 5))
        late.start()
        late.join(1.0)
        assert late.is_alive()
        assert len(load.history.confirms) == confirmed
        for files in disks:
            files.clear()
        for watcher in watchers:
            watcher.until_noticed("go on")
            watcher.close()
        late.join(10.0)
        assert not late.is_alive()
        load.until_all_work()
        assert consumed(cluster.nodes[1], "late") == [b"%d" % number for number in range(5)]


# Failing calls


def test_node_stops_when_a_sync_fails_and_comes_back(
    limits: None, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = FailingCalls(tmp_path_factory.mktemp("calls"), monkeypatch)
    with LocalCluster(3, tmp_path) as cluster, loaded(cluster) as load:
        node = cluster.leader()
        size = node.log.stat().st_size
        with load.killed_meanwhile(node):
            calls.order("fdatasync", f"/{node.name}/data/groups/0/log/")
            poll(lambda: not node.running, lambda: f"{node.name} goes on")
        assert "its disk failed: [Errno 5] Input/output error" in lines_since(node, size)[-1]
        load.until_all_work()
        node.start()
        cluster.wait_caught_up()
        assert standing(node) == "voter"
        load.until_all_work()
        poll(lambda: is_whole(NodeFiles(node)), lambda: f"what is damaged: {NodeFiles(node).problems()}")


@pytest.mark.long
def test_a_node_that_cannot_read_a_sector_is_repaired(
    limits: None, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = FailingCalls(tmp_path_factory.mktemp("calls"), monkeypatch)
    with LocalCluster(3, tmp_path) as cluster, loaded(cluster) as load:
        store(cluster.nodes[0])
        [node, *_] = cluster.followers()
        files = NodeFiles(node)
        poll(
            lambda: log_more(cluster.nodes[0]) or files.segments("sparse"),
            lambda: "nothing was compacted",
        )
        size = node.log.stat().st_size
        with load.killed_meanwhile(node):
            calls.order("pread", files.segments("sparse")[0].name)
            with suppress(*CONNECTION_ERRORS, *REFUSALS):
                assert_stored(node)
            poll(
                lambda: log_text(node, size, "cannot be read: Input/output error"),
                lambda: "no read has failed",
            )
            node.wait_ready()
        cluster.wait_caught_up()
        assert standing(node) == "voter"
        load.until_all_work()
        assert_stored(node)
