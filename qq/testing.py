"""A cluster of real nodes on this machine, for tests.

    with LocalCluster(nodes=3) as cluster:
        connection = pika.BlockingConnection(pika.URLParameters(cluster.urls[0]))
        cluster.leader().kill()

Under pytest the fixture `qq_cluster` is such a cluster of three (qq/pytest_plugin.py).

Lives here: the processes, their ports, and asking the nodes how they are. Not here: a node's files (cli/layout.py).

Law: however the block or the process that holds it ends, no node of it goes on running.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from qq.cli.asking import ask, why_not_ready
from qq.cli.launch import PARENT_VARIABLE, SERVE_COMMAND
from qq.cli.layout import (
    HOST,
    HTTP_PORT_OFFSET,
    NODE_COUNT_MAX,
    PASSWORD,
    PEER_PORT_OFFSET,
    USER,
    LocalNode,
    local_nodes,
    prepare,
)
from qq.errors import OperatingError

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_S = 30.0
"""How long the methods that wait do so at most."""

_POLL_S = 0.02
_LOG_LINES_SHOWN = 15
# Below the ports that the system gives to outgoing connections, also with the offsets of HTTP and peers added.
_BASE_PORTS = range(12_000, 12_700, NODE_COUNT_MAX + 1)


class ClusterError(OperatingError):
    """The local cluster does not do what the test asked of it."""


class ClusterNode:
    """One node: a process that can be killed, paused and started again on the same data."""

    def __init__(self, files: LocalNode, spawner: ThreadPoolExecutor) -> None:
        self.name = files.name
        self.amqp_port = files.address.amqp_port
        self.http_port = files.address.http_port
        self.url = f"amqp://{USER}:{PASSWORD}@{HOST}:{self.amqp_port}/"
        self.log = files.log
        self._config = files.config
        self._spawner = spawner
        self._process: subprocess.Popen[bytes] | None = None
        self._paused = False

    def __repr__(self) -> str:
        return f"<{self.name} at {self.url}, {'running' if self.running else 'not running'}>"

    # The process

    @property
    def running(self) -> bool:
        """Whether there is a process; a paused one counts."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._running_process().pid

    def start(self) -> None:
        """Start the process, on the data of the last one; `wait_ready` waits until it serves."""
        if self.running:
            raise ClusterError(f"{self.name} is running already")
        self._paused = False
        # The system kills a child when the *thread* that started it ends, so one that lives as long as the cluster
        # does it.
        self._process = self._spawner.submit(self._spawn).result()

    def _spawn(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(  # noqa: S603
                [*SERVE_COMMAND, "--config", str(self._config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {PARENT_VARIABLE: str(os.getpid())},
                start_new_session=True,  # Ctrl-C is for the test
            )

    def kill(self) -> None:
        """End the process without warning, as SIGKILL does, and wait until it is gone."""
        process = self._running_process()
        process.kill()
        process.wait()

    def stop(self) -> None:
        """Have the process end in good order, and wait until it has."""
        process = self._running_process()
        if self._paused:
            self.resume()
        process.terminate()
        try:
            status = process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ClusterError(f"{self.name} did not stop in {PATIENCE_S:g} s{self._log_tail()}") from None
        if status != 0:
            raise ClusterError(f"{self.name} stopped with status {status}{self._log_tail()}")

    def pause(self) -> None:
        """Freeze the process: its connections stay open and nothing is answered."""
        self._running_process().send_signal(signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        self._running_process().send_signal(signal.SIGCONT)
        self._paused = False

    def wait_ready(self) -> None:
        """Wait until the node serves AMQP clients and knows a leader."""
        _wait_until(lambda: self._not_ready() is None, lambda: f"{self.name}: {self._not_ready()}")

    def _running_process(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise ClusterError(f"{self.name} is not running")
        return self._process

    def _log_tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:]
        return "\n".join([f"; the end of {self.log}:", *lines])

    # Questions

    def status(self) -> dict[str, Any]:
        """The cluster as this node sees it: the document at /api/cluster. Raises ClusterError if it does not answer."""
        return self._ask("/api/cluster")

    def queues(self) -> list[dict[str, Any]]:
        """The queues as this node sees them: the document at /api/queues. Raises ClusterError if it does not answer."""
        return self._ask("/api/queues")

    def _ask(self, path: str) -> Any:
        answer = self._get(path)
        if answer is None:
            raise ClusterError(f"{self.name} does not answer over HTTP")
        return answer

    def leads(self) -> int | None:
        """The term that this node leads; None if it does not lead, or does not answer."""
        answer = self._get("/api/cluster")
        if answer is None or answer["leader"] != self.name:
            return None
        return next(node["term"] for node in answer["nodes"] if node["name"] == self.name)

    def _not_ready(self) -> str | None:
        """Say why the node does not serve; raises ClusterError if it never will."""
        if not self.running:
            raise ClusterError(f"{self.name} is not running{self._log_tail()}")
        return "it is paused" if self._paused else why_not_ready(self.http_port)

    def _get(self, path: str) -> Any:
        if self._paused or not self.running:
            return None
        return ask(self.http_port, path)


class LocalCluster:
    """Nodes `n1`, `n2` ... on free ports of the loopback interface, in a temporary directory or a given one.

    A given directory stays, with the nodes' data and logs.
    """

    def __init__(self, nodes: int = 3, directory: Path | None = None) -> None:
        if nodes not in (1, 3, 5):
            raise ClusterError(f"a cluster has 1, 3 or 5 nodes, not {nodes}")
        self._node_count = nodes
        self._directory = directory
        self._cleanup = ExitStack()
        self.nodes: list[ClusterNode] = []

    def __enter__(self) -> Self:
        """Start the nodes and wait until they serve."""
        with ExitStack() as cleanup:
            directory = self._directory
            if directory is None:
                directory = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="qq-")))
            files = local_nodes(directory, self._node_count, _reserve_ports(self._node_count, cleanup))
            prepare(directory, files, fresh=False)
            spawner = cleanup.enter_context(ThreadPoolExecutor(max_workers=1))
            self.nodes = [ClusterNode(node, spawner) for node in files]
            cleanup.callback(self._kill_all)
            for node in self.nodes:
                node.start()
            for node in self.nodes:
                node.wait_ready()
            self._cleanup = cleanup.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Kill whatever still runs, and delete the temporary directory."""
        self._cleanup.close()

    def _kill_all(self) -> None:
        for node in self.nodes:
            with suppress(ClusterError):
                node.kill()

    @property
    def urls(self) -> list[str]:
        """Where AMQP clients connect: one address for each node."""
        return [node.url for node in self.nodes]

    def leader(self) -> ClusterNode:
        """The node that leads; waits for an election to end. Raises ClusterError if there is no majority."""
        found: ClusterNode | None = None

        def is_found() -> bool:
            nonlocal found
            # For a moment after it was cut off, a former leader may still think it leads: the newest term counts.
            reigns = [(term, node) for node in self.nodes if (term := node.leads()) is not None]
            found = max(reigns, key=lambda reign: reign[0])[1] if reigns else None
            return found is not None

        _wait_until(is_found, lambda: f"no node leads; running: {[node.name for node in self._running()]}")
        if found is None:
            raise AssertionError("waited for a leader and has none")
        return found

    def followers(self) -> list[ClusterNode]:
        """The running nodes that do not lead."""
        leader = self.leader()
        return [node for node in self._running() if node is not leader]

    def status(self) -> dict[str, Any]:
        """The cluster as its leader sees it: the document at /api/cluster."""
        return self.leader().status()

    def queues(self) -> list[dict[str, Any]]:
        """The queues as the leader sees them: the document at /api/queues."""
        return self.leader().queues()

    def wait_caught_up(self) -> None:
        """Wait until every running node serves and has applied what the leader had committed when this was called."""
        for node in self._running():
            node.wait_ready()
        status = self.status()
        goal = next(node["commit_index"] for node in status["nodes"] if node["name"] == status["leader"])
        for node in self._running():
            _wait_until(
                lambda node=node: _applied_index(node) >= goal,
                lambda node=node: f"{node.name} has applied {_applied_index(node)} of {goal} entries",
            )

    def _running(self) -> list[ClusterNode]:
        return [node for node in self.nodes if node.running]


def _applied_index(node: ClusterNode) -> int:
    return next(view["applied_index"] for view in node.status()["nodes"] if view["name"] == node.name)


def _wait_until(condition: Callable[[], bool], complaint: Callable[[], str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise ClusterError(f"after {PATIENCE_S:g} s: {complaint()}")
        time.sleep(_POLL_S)


def _reserve_ports(node_count: int, cleanup: ExitStack) -> int:
    """Find a base port whose ports are free, for `local_nodes`, and keep it until `cleanup`.

    A socket bound to the port behind the last AMQP port marks it as taken, for this process and all others.
    """
    for base in random.sample(_BASE_PORTS, len(_BASE_PORTS)):
        mark = cleanup.enter_context(socket.socket())
        try:
            mark.bind((HOST, base + NODE_COUNT_MAX))
        except OSError:
            continue
        offsets = (0, HTTP_PORT_OFFSET, PEER_PORT_OFFSET)
        if all(_is_free(base + offset + number) for offset in offsets for number in range(node_count)):
            return base
    raise ClusterError(f"no {node_count} free AMQP ports in {_BASE_PORTS.start}-{_BASE_PORTS.stop}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
