"""`qq.testing.LocalCluster`, as its users rely on it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pika
import pytest

from qq.cli.local.local_requests import request_change
from qq.errors import CommandError
from qq.testing import ClusterError, LocalCluster
from tests.harness.certificates import Authority

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[1]

pytestmark = [pytest.mark.xdist_group("releases"), pytest.mark.timeout(60)]

HOLDER = """
import sys
from qq.testing import LocalCluster
with LocalCluster(nodes=1) as cluster:
    print(cluster.nodes[0].pid, cluster.nodes[0].log.parents[1], flush=True)
    sys.stdin.read()
"""


def is_alive(pid: int) -> bool:
    status = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return status.stdout.strip() not in ("", "Z", "Zs")


def test_the_fixture_is_a_cluster_of_three_that_serves(qq_cluster: LocalCluster) -> None:
    assert len(qq_cluster.urls) == 3
    for url in qq_cluster.urls:
        with pika.BlockingConnection(pika.URLParameters(url)) as connection:
            connection.channel().queue_declare("greetings", durable=True)
    assert [queue["name"] for queue in qq_cluster.queues()] == ["greetings"]
    assert {node["state"] for node in qq_cluster.status()["nodes"]} == {"leader", "follower"}


@pytest.mark.slow
def test_node_restarts_with_its_data_after_kill_and_stop(tmp_path: Path) -> None:
    with LocalCluster(1, tmp_path) as cluster:
        [node] = cluster.nodes
        with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
            connection.channel().queue_declare("kept", durable=True)
        for end in (node.kill, node.stop):
            end()
            assert not node.running
            node.start()
            node.wait_ready()
            assert [queue["name"] for queue in cluster.queues()] == ["kept"]
    assert not node.running


def test_cluster_runs_with_the_longest_allowed_heartbeat() -> None:
    times = {"election_timeout_min_s": 0.3, "election_timeout_max_s": 0.4, "heartbeat_s": 0.0999}
    with LocalCluster(1, settings={"cluster": times}) as cluster:
        assert cluster.leader() is cluster.nodes[0]


def test_cluster_with_a_certificate_serves_amqps(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    cert, key = authority.issue("server")
    settings = {"tls": {"cert": str(cert), "key": str(key)}}
    with LocalCluster(1, tmp_path / "cluster", settings) as cluster:
        parameters = pika.ConnectionParameters(
            "localhost",
            cluster.nodes[0].amqps_port,
            ssl_options=pika.SSLOptions(authority.context(), "localhost"),
        )
        with pika.BlockingConnection(parameters) as connection:
            assert connection.channel().queue_declare("q").method.queue == "q"


@pytest.mark.slow
def test_clusters_side_by_side_have_ports_of_their_own() -> None:
    with LocalCluster(1) as one, LocalCluster(1) as other:
        assert one.urls != other.urls
        assert one.leader().name == other.leader().name == "n1"


def test_a_test_that_fails_leaves_no_process_behind() -> None:
    pids: list[int] = []

    def failing_test() -> None:
        with LocalCluster(1) as cluster:
            pids.append(cluster.nodes[0].pid)
            cluster.nodes[0].pause()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing_test()
    assert not is_alive(pids[0])


@pytest.mark.slow
def test_nodes_and_files_go_with_the_process_that_started_them() -> None:
    command = [sys.executable, "-c", HOLDER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        number, directory = holder.stdout.readline().split()
        assert is_alive(int(number))
        assert Path(directory).exists()
        holder.send_signal(signal.SIGKILL)
    while is_alive(int(number)) or Path(directory).exists():
        time.sleep(0.01)


FORKING_HOLDER = """
import os, sys, time
from qq.testing import LocalCluster
with LocalCluster(nodes=1) as cluster:
    if (worker := os.fork()) == 0:
        time.sleep(60)
        os._exit(0)
    print(worker, cluster.nodes[0].pid, cluster.nodes[0].log.parents[1], flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [False, True])
def test_forked_workers_keep_neither_nodes_nor_files(is_killed: bool) -> None:
    """Workers of `multiprocessing` and process pools may outlive the block, and may be killed."""
    command = [sys.executable, "-c", FORKING_HOLDER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        worker, number, directory = holder.stdout.readline().split()
        try:
            if is_killed:
                holder.kill()
            holder.stdin.close()
            assert holder.wait(20) == (-signal.SIGKILL if is_killed else 0)
            deadline = time.monotonic() + 20
            while is_alive(int(number)) or Path(directory).exists():
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert is_alive(int(worker))
        finally:
            os.kill(int(worker), signal.SIGKILL)


def test_node_is_killed_when_its_start_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalCluster(1) as cluster:
        [node] = cluster.nodes
        node.kill()
        with monkeypatch.context() as patched:
            patched.setattr("concurrent.futures.Future.result", Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                node.start()
    assert not node.running
    assert not node.log.exists()


HOLDER_OF_A_SLOW_NODE = """
import os, subprocess, sys
from qq.testing import _temporary_directory
with _temporary_directory() as (directory, kept):
    node = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], stdout=2, pass_fds=[kept])
    print(node.pid, directory, flush=True)
    os.abort()
"""


def test_files_are_deleted_when_the_last_node_process_has_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER_OF_A_SLOW_NODE]
    environ = os.environ | {"TMPDIR": str(tmp_path), "PATH": "/nowhere"}
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environ, check=False).stdout
    number, directory = printed.split()
    try:
        time.sleep(0.2)
        assert list(tmp_path.iterdir()) == [Path(directory)]
    finally:
        os.kill(int(number), signal.SIGKILL)
    while list(tmp_path.iterdir()):
        time.sleep(0.01)


def test_local_cluster_errors_give_the_exact_reason(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="a cluster has 1, 3 or 5 nodes, not 2"):
        LocalCluster(2)
    with pytest.raises(ClusterError, match="settings are keys by section, and 'frame_max' is given 8192"):
        LocalCluster(settings={"frame_max": 8192})
    with pytest.raises(ClusterError, match="the first user of a local cluster is guest"):
        LocalCluster(settings={"users": {"default_password": "another"}})
    with LocalCluster(1, tmp_path) as cluster:
        [node] = cluster.nodes
        with pytest.raises(ClusterError, match="n1 is running already"):
            node.start()
        node.kill()
        with pytest.raises(ClusterError, match="n1 is not running"):
            node.kill()
        with pytest.raises(ClusterError, match="n1 is not running"):
            _ = node.pid
        with pytest.raises(ClusterError, match="does not answer over HTTP"):
            node.status()


def _in_a_child(action: Callable[[], object]) -> None:
    """Run an action in a forked process, and raise its exception here."""
    here, there = multiprocessing.get_context("fork").Pipe(duplex=False)

    def act() -> None:
        try:
            action()
        except ClusterError as error:
            there.send(error)

    child = multiprocessing.get_context("fork").Process(target=act)
    child.start()
    child.join(10)
    child.kill()
    with here, there:
        if here.poll():
            raise here.recv()


def test_local_cluster_refuses_calls_before_and_after_its_block(tmp_path: Path) -> None:
    cluster = LocalCluster(1, tmp_path)
    for early in (cluster.leader, lambda: cluster.urls):
        with pytest.raises(ClusterError, match=r"not started: use `with LocalCluster\(\) as cluster:`"):
            early()
    with pytest.raises(ClusterError, match="a node can be added only in the block of its cluster"):
        cluster.add_node()
    with cluster:
        with pytest.raises(ClusterError, match="the cluster is running already"), cluster:
            pass
        with pytest.raises(CommandError, match=f"{tmp_path} is in use by another local cluster"):
            LocalCluster(1, tmp_path).__enter__()
        [node] = cluster.nodes
        node.kill()
        with pytest.raises(ClusterError, match="no node of the cluster runs, so none can lead"):
            cluster.queues()
        with pytest.raises(ClusterError, match="n1 can be started only by the process that has started its"):
            _in_a_child(node.start)
    with pytest.raises(ClusterError, match="n1 cannot be started: the block of its cluster has ended"):
        node.start()
    with pytest.raises(ClusterError, match="a node can be added only in the block of its cluster"):
        cluster.add_node()
    assert len(cluster.nodes) == 1
    with cluster:
        assert cluster.leader().name == "n1"
    with LocalCluster(1) as cluster:
        [node] = cluster.nodes
    with pytest.raises(ClusterError, match="n1 is not running"):  # and its log is deleted
        node.wait_ready()


def test_cluster_directory_may_be_relative_and_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with LocalCluster(1, "new/directory") as cluster:
        monkeypatch.chdir("/")
        [node] = cluster.nodes
        node.kill()
        cluster.restore()
        assert node.log == tmp_path / "new" / "directory" / "n1" / "log"


def test_settings_apply_to_all_nodes_and_wrong_keys_are_reported() -> None:
    settings = {
        "limits": {"frame_max": 8192},
        "product": {"name": "mine \N{SPARKLES} \N{BOTTLE WITH POPPING CORK}"},
    }
    with (
        LocalCluster(1, settings=settings) as cluster,
        pika.BlockingConnection(pika.URLParameters(cluster.urls[0])) as connection,
    ):
        assert connection._impl.params.frame_max == 8192
        assert connection._impl.server_properties["product"] == settings["product"]["name"]
    with (
        pytest.raises(ClusterError, match=r"n1 is not running; the end of (?s:.*)limits.*nonsense"),
        LocalCluster(1, settings={"limits": {"nonsense": 1}}),
    ):
        pass


@pytest.mark.slow
def test_virtual_host_is_deleted_with_its_block() -> None:
    with LocalCluster(3) as cluster:
        for _ in range(2):
            with cluster.vhost() as vhost:
                for url in vhost.urls:
                    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
                        connection.channel().queue_declare("mine", durable=True)
                assert [queue["vhost"] for queue in cluster.queues()] == [vhost.name]
                cluster.nodes[0].kill()
                cluster.nodes[1].pause()
            assert cluster.queues() == []
            assert all(node.running for node in cluster.nodes)


def test_a_virtual_host_may_be_deleted_before_its_block_ends() -> None:
    with LocalCluster(1) as cluster, cluster.vhost() as vhost:
        assert request_change(cluster.nodes[0].http_port, "DELETE", f"/api/vhosts/{vhost.name}") is None


def test_simultaneous_starts_of_a_node_start_it_once() -> None:
    with LocalCluster(1) as cluster:
        [node] = cluster.nodes
        node.kill()
        with ThreadPoolExecutor(4) as threads:
            starts = [threads.submit(node.start) for _ in range(4)]
        printed = sorted(str(start.exception()) for start in starts)
        assert printed == ["None", *["n1 is running already"] * 3]


def test_an_error_carries_the_ends_of_the_nodes_logs() -> None:
    def failing_test() -> None:
        with LocalCluster(1):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        failing_test()
    (note,) = caught.value.__notes__
    assert note.startswith("The end of the log of n1:\n")
    assert "serving AMQP" in note


def test_node_that_cannot_start_is_reported_with_its_log(tmp_path: Path) -> None:
    with LocalCluster(1, tmp_path) as cluster:
        [node] = cluster.nodes
        node.kill()
        (tmp_path / "n1" / "node.toml").write_text("nonsense")
        node.start()
        with pytest.raises(ClusterError, match=r"n1 is not running; the end of .*log:(?s:.*)node\.toml"):
            node.wait_ready()


APPLICATION = """
import sys
import chaos, cluster
from qq.testing import LocalCluster
with LocalCluster(nodes=1) as started:
    assert started.status()["leader"] == "n1"
assert (chaos.OF, cluster.OF) == ("the application", "the application")
assert [name for name in sys.modules if name.startswith(("cluster.", "chaos.", "qq.node", "aiohttp"))] == []
"""


@pytest.mark.slow
def test_application_may_have_modules_named_chaos_and_cluster(tmp_path: Path) -> None:
    for name in ("chaos", "cluster"):
        (tmp_path / f"{name}.py").write_text("OF = 'the application'\n")
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    for command in ([sys.executable, "-c", APPLICATION], [sys.executable, "-P", "-c", APPLICATION]):
        subprocess.run(command, cwd=tmp_path, env=environ, check=True, timeout=50)


@pytest.mark.slow
def test_lone_node_logs_the_peers_it_waits_for() -> None:
    with LocalCluster() as cluster:
        first, *followers = cluster.nodes
        for node in cluster.nodes:
            node.kill()
        before = len(first.log.read_text())
        first.start()

        def printed() -> str:
            return first.log.read_text()[before:]

        while "not serving yet: no leader is known" not in printed():
            time.sleep(0.05)
        for other in followers:
            assert printed().count(f"waiting for peer {other.name}: nobody listens") == 1
        assert "is dead" not in printed()
