"""A cluster of real nodes on this machine, for tests.

    with LocalCluster(nodes=3, settings={"limits": {"consumer_timeout_ms": 5000}}) as cluster:
        connection = pika.BlockingConnection(pika.URLParameters(cluster.urls[0]))
        cluster.leader().kill()

pytest: every project that has qq installed has the fixtures `qq_cluster`, `qq_vhost` and further fixtures
(qq/pytest_plugin.py).

unittest: `cls.cluster = cls.enterClassContext(LocalCluster())` in `setUpClass`, and a virtual host for each test:
`self.vhost = self.enterContext(self.cluster.vhost())` in `setUp`. A failure then does not show the nodes' logs, unless
pytest runs the test.

asyncio: all methods here block, most of them for milliseconds. Methods that wait for a node (`with`, `start`, `stop`,
`wait_ready`, `wait_caught_up`, `leader`, `followers`, `restore`) must be called in a thread, so that clients in the
same event loop go on: `await asyncio.to_thread(cluster.restore)`. Start the cluster before an event loop runs: in a
fixture, or in `setUpClass`.

If the block ends with an exception, the last lines of each node's log are added to it as notes.

Invariant: however the block or its process ends, all its nodes end, and all files of a temporary directory are deleted.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import socket
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from qq.cli.local.launch import PARENT_VARIABLE, node_environment
from qq.cli.local.local_requests import get_document, reason_not_ready, request_change
from qq.cli.local_files import (
    AMQPS_PORT_OFFSET,
    HOST,
    HTTP_PORT_OFFSET,
    NODE_COUNT_MAX,
    PASSWORD,
    PEER_PORT_OFFSET,
    USER,
    LocalNode,
    Settings,
    local_nodes,
    locked,
    prepare,
    prepare_joining,
)
from qq.errors import OperatingError
from qq.process.fork_server import ForkedProcess, close_in_children, fork_server

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

SERVE_COMMAND: Sequence[str] | None = None
"""The command that starts a node of a different program, if set: no code of this program is loaded before the start."""
PATIENCE_S = 30.0
"""Most seconds that a waiting method waits."""

_POLL_S = 0.02
_LOG_LINES_SHOWN = 30
# `read` returns when the other end of the pipe is closed: by the process with the block, and by all of its nodes, which
# may still add files after that process has been killed.
_DELETE_WHEN_LEFT = 'read _; rm -rf -- "$1"'
_running: list[LocalCluster] = []
# Below the ports that the system gives to outgoing connections, also with the offsets of HTTP and peers added.
_BASE_PORTS = range(12_000, 12_700, NODE_COUNT_MAX + 1)


class ClusterError(OperatingError):
    """The local cluster cannot fulfil a request of the test."""


@dataclass(frozen=True, slots=True)
class LocalVirtualHost:
    """A virtual host of a cluster, empty except for the predeclared exchanges."""

    name: str
    urls: list[str]
    """The AMQP addresses for clients, in the order of the nodes."""
    cluster: LocalCluster


class ClusterNode:
    """A node: a process that can be killed, paused and started again on the same data."""

    def __init__(self, files: LocalNode, spawner: ThreadPoolExecutor, kept: Sequence[int]) -> None:
        """`spawner` starts the process, which has the descriptors `kept` open as long as it runs."""
        self.name = files.name
        self.amqp_port = files.address.amqp_port
        self.amqps_port = files.address.amqps_port
        """The port for AMQP over TLS; None if the settings of the cluster have no section `tls`."""
        self.http_port = files.address.http_port
        self.url = f"amqp://{USER}:{PASSWORD}@{HOST}:{self.amqp_port}/"
        self.log = files.log
        self._config = files.config
        self._spawner = spawner
        self._kept = kept
        self._owner = os.getpid()
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self._paused = False

    def __repr__(self) -> str:
        return f"<{self.name} at {self.url}, {'running' if self.running else 'not running'}>"

    # The process

    @property
    def running(self) -> bool:
        """Whether the node has a process; a paused process counts."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._running_process().pid

    def start(self) -> None:
        """Start the process, on the data of the previous process; `wait_ready` waits until it serves."""
        if os.getpid() != self._owner:
            raise ClusterError(f"{self.name} can be started only by the process that has started its cluster")
        # The system kills a child when the *thread* that started it ends, so a thread that lives as long as the cluster
        # starts it.
        try:
            spawning = self._spawner.submit(self._spawn)
        except RuntimeError:
            raise ClusterError(f"{self.name} cannot be started: the block of its cluster has ended") from None
        spawning.result()

    def _spawn(self) -> None:
        # All in a single thread: several threads may call this at once, and a waiting caller may be interrupted. A
        # process without a record would not be killed.
        if self.running:
            raise ClusterError(f"{self.name} is running already")
        self._process = self._new_process()
        self._paused = False

    def _new_process(self) -> subprocess.Popen[bytes] | ForkedProcess:
        config = ["--config", str(self._config.absolute())]
        with self.log.open("ab") as log:
            if SERVE_COMMAND is None:
                server = fork_server()
                environment = node_environment() | {PARENT_VARIABLE: str(server.pid)}
                try:
                    return server.start(
                        ["serve", *config],
                        environment,
                        stdout=log.fileno(),
                        stderr=log.fileno(),
                        kept=self._kept,
                    )
                except OSError as error:
                    raise ClusterError(f"{self.name} cannot be started: {error}") from error
            return subprocess.Popen(  # noqa: S603
                [*SERVE_COMMAND, *config],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=node_environment(),
                pass_fds=self._kept,
                start_new_session=True,  # Ctrl-C is for the test
            )

    def kill(self) -> None:
        """End the process without warning, as SIGKILL does, and wait until it has ended."""
        process = self._running_process()
        process.kill()
        process.wait()

    def stop(self) -> None:
        """Shut the process down in order, and wait until it has ended."""
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
        """Freeze the process: its connections stay open and get no answers."""
        self._running_process().send_signal(signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        self._running_process().send_signal(signal.SIGCONT)
        self._paused = False

    def wait_ready(self, patience_s: float = PATIENCE_S) -> None:
        """Wait until the node serves AMQP clients and knows a leader."""
        _wait_until(
            lambda: self._not_ready() is None, lambda: f"{self.name}: {self._not_ready()}", patience_s
        )

    def _running_process(self) -> subprocess.Popen[bytes] | ForkedProcess:
        if self._process is None or self._process.poll() is not None:
            raise ClusterError(f"{self.name} is not running")
        return self._process

    def log_since(self, offset_bytes: int = 0) -> str:
        """Return the last lines of the node's log behind its first `offset_bytes` bytes; "" without a log."""
        try:
            with self.log.open("rb") as log:
                log.seek(offset_bytes)
                return "\n".join(log.read().decode(errors="replace").splitlines()[-_LOG_LINES_SHOWN:])
        except FileNotFoundError:
            return ""

    def _log_tail(self) -> str:
        return f"; the end of {self.log}:\n{self.log_since()}"

    # Questions

    def status(self) -> dict[str, Any]:
        """Return the cluster as this node sees it: the document at /api/cluster.

        Raises ClusterError without an answer.
        """
        return self._get_json("/api/cluster")

    def queues(self) -> list[dict[str, Any]]:
        """Return the queues as this node sees them: the document at /api/queues.

        Raises ClusterError without an answer.
        """
        return self._get_json("/api/queues")

    def _get_json(self, path: str) -> Any:
        answer = self._get(path)
        if answer is None:
            raise ClusterError(f"{self.name} does not answer over HTTP")
        return answer

    def leads(self) -> int | None:
        """Return the term that this node leads; None if it does not lead, or does not answer."""
        answer = self._get("/api/cluster")
        if answer is None or answer["leader"] != self.name:
            return None
        return next(node["term"] for node in answer["nodes"] if node["name"] == self.name)

    def _not_ready(self) -> str | None:
        """Return why the node does not serve; raises ClusterError if it never will."""
        if not self.running:
            raise ClusterError(f"{self.name} is not running{self._log_tail()}")
        return "it is paused" if self._paused else reason_not_ready(self.http_port)

    def _get(self, path: str) -> Any:
        """Return the document at `path`; None without an answer, or after an error, such as an undecided login."""
        if self._paused or not self.running:
            return None
        answer = get_document(self.http_port, path)
        return None if isinstance(answer, dict) and "error" in answer else answer


class LocalCluster:
    """Nodes `n1`, `n2` ... on free ports of the loopback interface, in a temporary directory or a given directory.

    A given directory is created if it is missing, and stays, with the nodes' data and logs. `settings` are keys of the
    nodes' configurations by section, as `{"limits": {"consumer_timeout_ms": 5000}}`. With the section `tls`, each node
    has a port for AMQP over TLS, too (`amqps_port`). The first user cannot be set,
    because the cluster logs in to its nodes as that user.
    """

    def __init__(
        self,
        nodes: int = 3,
        directory: Path | str | None = None,
        settings: Settings = MappingProxyType({}),
    ) -> None:
        if nodes not in (1, 3, 5):
            raise ClusterError(f"a cluster has 1, 3 or 5 nodes, not {nodes!r}")
        for section, keys in settings.items():
            if not hasattr(keys, "items"):
                raise ClusterError(f"settings are keys by section, and {section!r} is given {keys!r}")
        if not {"default_user", "default_password"}.isdisjoint(settings.get("users", {})):
            raise ClusterError(
                f"the first user of a local cluster is {USER}: other users are added to that one"
            )
        self._node_count = nodes
        # A test may change the working directory while the cluster runs.
        self._directory = None if directory is None else Path(directory).absolute()
        self._settings = settings
        self._has_tls = "tls" in settings
        self._cleanup = ExitStack()
        self._files: list[LocalNode] = []
        """The files of all nodes that the cluster has ever had."""
        self.nodes: list[ClusterNode] = []

    def __enter__(self) -> Self:
        """Start the nodes and wait until they serve."""
        if self in _running:
            raise ClusterError("the cluster is running already")
        with ExitStack() as cleanup:
            directory, self._kept = self._directory, []
            if directory is None:
                directory, held = cleanup.enter_context(_temporary_directory())
                self._kept.append(held)
            cleanup.enter_context(locked(directory))
            base_port = _reserve_ports(self._node_count, cleanup)
            self._files = list(local_nodes(directory, self._node_count, base_port, has_tls=self._has_tls))
            prepare(directory, self._files, fresh=False, settings=self._settings)
            cleanup.callback(
                self._kill_all
            )  # also nodes that are being started at this moment: it waits for these
            self._spawner = cleanup.enter_context(ThreadPoolExecutor(max_workers=1))
            self.nodes = [ClusterNode(node, self._spawner, self._kept) for node in self._files]
            for node in self.nodes:
                node.start()
            for node in self.nodes:
                node.wait_ready()
            _running.append(self)
            cleanup.callback(_running.remove, self)
            self._cleanup = cleanup.pop_all()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Kill the running nodes, and delete the temporary directory."""
        if isinstance(error, Exception):  # but not exceptions that end a test in order, or the program
            for node in self.nodes:
                error.add_note(f"The end of the log of {node.name}:\n{node.log_since()}")
        self._cleanup.close()

    def add_node(self, patience_s: float = PATIENCE_S) -> ClusterNode:
        """Start a further node, which joins the cluster, and wait until it serves. A cluster has 5 at most.

        With a large backlog and busy clients it may take longer than `patience_s`, because the node must get all of it.
        """
        if self not in _running:
            raise ClusterError("a node can be added only in the block of its cluster")
        first, number = self._files[0], len(self._files)
        if number == NODE_COUNT_MAX:
            raise ClusterError(f"a local cluster has {NODE_COUNT_MAX} nodes at most")
        directory = first.directory.parent
        files = local_nodes(directory, number + 1, first.address.amqp_port, has_tls=self._has_tls)[number]
        members = [each for each in self._files if each.name in {node.name for node in self.nodes}]
        prepare_joining(directory, files, members, self._settings)
        node = ClusterNode(files, self._spawner, self._kept)
        self._files.append(files)
        self.nodes.append(node)
        node.start()
        node.wait_ready(patience_s)
        return node

    def forget_node(self, node: ClusterNode) -> None:
        """Remove a node from `nodes` that was removed from the cluster; it is killed if it still runs."""
        if node.running:
            node.kill()
        self.nodes.remove(node)

    def _kill_all(self) -> None:
        for node in self.nodes:
            with suppress(ClusterError):
                node.kill()

    @property
    def urls(self) -> list[str]:
        """The AMQP addresses for clients, in the order of the nodes. Raises ClusterError before the start."""
        if not self.nodes:
            raise ClusterError("the cluster is not started: use `with LocalCluster() as cluster:`")
        return [node.url for node in self.nodes]

    def leader(self) -> ClusterNode:
        """Return the leader; waits for an election to end. Raises ClusterError if there is no majority."""
        found: ClusterNode | None = None

        def is_found() -> bool:
            nonlocal found
            if not self.urls or not self._running():
                raise ClusterError("no node of the cluster runs, so none can lead")
            # For a moment after it was cut off, a former leader may still report to lead: the newest term counts.
            leaderships = [(term, node) for node in self.nodes if (term := node.leads()) is not None]
            found = max(leaderships, key=lambda leadership: leadership[0])[1] if leaderships else None
            return found is not None

        _wait_until(is_found, lambda: f"no node leads; running: {[node.name for node in self._running()]}")
        if found is None:
            raise AssertionError("waited for a leader and has none")
        return found

    def followers(self) -> list[ClusterNode]:
        """Return the running nodes that do not lead."""
        leader = self.leader()
        return [node for node in self._running() if node is not leader]

    def status(self) -> dict[str, Any]:
        """Return the cluster as its leader sees it: the document at /api/cluster."""
        return self.leader().status()

    def queues(self) -> list[dict[str, Any]]:
        """Return the queues as the leader sees them: the document at /api/queues."""
        return self.leader().queues()

    def wait_caught_up(self) -> None:
        """Wait until every running node serves and has applied all entries that were committed at this call."""
        for node in self._running():
            node.wait_ready()
        status = self.status()
        goal = next(node["commit_index"] for node in status["nodes"] if node["name"] == status["leader"])
        for node in self._running():
            _wait_until(
                lambda node=node: _applied_index(node) >= goal,
                lambda node=node: f"{node.name} has applied {_applied_index(node)} of {goal} entries",
            )

    @contextmanager
    def vhost(self) -> Generator[LocalVirtualHost]:
        """Create a virtual host; the end of the block deletes it with all its contents, and closes its connections."""
        name = f"test-{secrets.token_hex(4)}"
        self._change("PUT", f"/api/vhosts/{name}")
        self.wait_caught_up()  # a client may log in at any node now
        try:
            yield LocalVirtualHost(name, [node.url + name for node in self.nodes], self)
        finally:
            self.restore()  # a deletion needs a majority
            self._change("DELETE", f"/api/vhosts/{name}")

    def _change(self, method: str, path: str) -> None:
        leader = self.leader()
        refusal = request_change(leader.http_port, method, path)
        if refusal is not None:
            raise ClusterError(f"{method} {path} at {leader.name}: {refusal}")

    def restore(self) -> None:
        """Start the nodes that do not run and resume the paused nodes; wait until all have caught up."""
        for node in self.nodes:
            if node.running:
                node.resume()
            else:
                node.start()
        self.wait_caught_up()

    def _running(self) -> list[ClusterNode]:
        return [node for node in self.nodes if node.running]


def running_clusters() -> list[LocalCluster]:
    """Return the clusters of this process whose blocks have been entered and not left."""
    return list(_running)


@contextmanager
def _temporary_directory() -> Generator[tuple[Path, int]]:
    """Make a directory that is deleted at the end of the block, or when this process has ended in any way.

    The block also gets a descriptor: the directory stays as long as a further process has that open, too.
    """
    directory = Path(tempfile.gettempdir(), f"qq-{secrets.token_hex(8)}")  # created after its deleter
    with subprocess.Popen(  # noqa: S603
        ["/bin/sh", "-c", _DELETE_WHEN_LEFT, "sh", directory],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={
            "PATH": os.pathsep.join([*os.get_exec_path(), os.defpath])
        },  # a test may have an empty or wrong PATH
        start_new_session=True,  # Ctrl-C is for the test
    ) as deleting:
        assert deleting.stdin is not None
        close_in_children(deleting.stdin)
        directory.mkdir(mode=0o700)
        yield directory, deleting.stdin.fileno()


def _applied_index(node: ClusterNode) -> int:
    """Return the index that the node has applied, or 0 if it does not answer in time."""
    try:
        nodes = node.status()["nodes"]
    except ClusterError:
        return 0
    return next(view["applied_index"] for view in nodes if view["name"] == node.name)


def _wait_until(
    condition: Callable[[], bool], describe: Callable[[], str], patience_s: float = PATIENCE_S
) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            raise ClusterError(f"after {patience_s:g} s: {describe()}")
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
        offsets = (0, AMQPS_PORT_OFFSET, HTTP_PORT_OFFSET, PEER_PORT_OFFSET)
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
