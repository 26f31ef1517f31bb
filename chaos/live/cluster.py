"""A cluster of node processes whose traffic, between nodes and with clients, goes through Toxiproxy.

    async with LiveCluster(directory, nodes=3) as cluster:
        connection = await aio_pika.connect(cluster.endpoints["n1"])
        await cluster.kill(await cluster.leader())

    DIR/nodes/NAME/node.toml, secret, data/, side/    a node's files; side/ is the faulty node's (faulty_node.py)
    DIR/logs/NAME.log, DIR/logs/toxiproxy.log

Two nodes share a single TCP connection, which either of them dials. So each pair has two proxies, and each proxy is in
the configuration of the node that dials through it; that node uses the addresses of its file. A node's bytes flow
upstream through its own proxy or downstream through its peer's proxy; loss in a single direction is a toxic on both.

A refused connection tells qq that the process at that address has ended. So a proxy is disabled exactly while the
process behind it is down: a partition drops data and refuses no connections.

Nodes that may join have their ports and proxies from the beginning. A file that founds the cluster can list the first
nodes only. So before the first join, the running nodes are restarted with files that list all nodes. A cluster may
begin with the code of a release (releases.py), which has neither disk faults nor addresses of its own file.

Invariant: no process of the cluster outlives the block or the process that holds it, even after a crash.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import secrets
import shutil
import signal
import socket
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, replace
from http import HTTPStatus
from itertools import permutations
from pathlib import Path
from subprocess import DEVNULL, STDOUT, Popen
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import aiohttp
from yarl import URL

from chaos.live import releases
from chaos.live.faulty_disk import lose_power
from chaos.live.faulty_node import DISK_DIRECTORY, Faults
from chaos.live.toxiproxy import Route, Stream, Toxiproxy
from qq.cli.local.launch import PARENT_VARIABLE, node_environment
from qq.config import NodeAddress
from qq.errors import OperatingError
from qq.machine.machine import QueueMachine
from qq.process.fork_server import ForkedProcess, fork_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

HOST = "127.0.0.1"
USER = PASSWORD = "guest"  # noqa: S105 -- good from loopback only
NODE_COUNTS = (3, 5)
SPARES = 2
"""Nodes that may join, beyond the initial number."""
PATIENCE_S = 60.0
"""Seconds that waiting methods wait by default."""

_POLL_S = 0.05
_ANSWER_TIMEOUT_S = 2.0
_STOP_TIMEOUT_S = 30.0
_TELLING_S = 1.0
_CHANGE_TIMEOUT_S = 15.0  # longer than a node waits for a change of the members
_LOG_LINES_SHOWN = 15
# Below the ports that the system gives to outgoing connections: they must be free when a node restarts.
_PORTS = range(13_000, 22_000)


class LiveClusterError(OperatingError):
    """The cluster has not carried out a request."""


class ProxyStream(NamedTuple):
    """A direction of the connections through a proxy, in Toxiproxy's terms."""

    proxy: str
    stream: Stream


class LiveCluster:
    """Nodes `n1`, `n2` ... with their files in `directory`, which keeps earlier data."""

    def __init__(
        self,
        directory: Path,
        nodes: int = 3,
        *,
        limits: Mapping[str, float] | None = None,
        release: Path | None = None,
    ) -> None:
        """`limits` go into every node's configuration; `release` is the code that the nodes begin with."""
        if nodes not in NODE_COUNTS:
            raise LiveClusterError(
                f"a cluster begins with {' or '.join(map(str, NODE_COUNTS))} nodes, not {nodes}"
            )
        self.everybody = tuple(f"n{number}" for number in range(1, nodes + SPARES + 1))
        """The names of all nodes that are or may become members."""
        self._founders = self.everybody[:nodes]
        self._members = set(self._founders)
        self._listing_all: set[str] = set()
        """Nodes whose files list all nodes."""
        self._release = release
        self._on_release = set(() if release is None else self._founders)
        self.crashes: list[str] = []
        """A report of each node that ended unexpectedly."""
        self._directory = directory
        self._limits = dict(limits or {})
        ports = free_ports()
        self._addresses = {
            name: NodeAddress(name, HOST, next(ports), next(ports), next(ports)) for name in self.everybody
        }
        self._peer_routes = {
            (dialler, target): Route(f"{dialler}-{target}", next(ports), self._addresses[target].peer_port)
            for dialler, target in permutations(self.everybody, 2)
        }
        self._client_routes = {
            name: Route(f"clients-{name}", next(ports), address.amqp_port)
            for name, address in self._addresses.items()
        }
        self.endpoints = {name: _amqp_url(route.listen) for name, route in self._client_routes.items()}
        """The AMQP URL for clients of each node, through a proxy."""
        self.direct = {name: _amqp_url(address.amqp_port) for name, address in self._addresses.items()}
        """The AMQP URL of each node itself, without a proxy."""
        self.http = {name: f"http://{HOST}:{address.http_port}" for name, address in self._addresses.items()}
        self.toxiproxy = Toxiproxy(next(ports), self._logs / "toxiproxy.log")
        self._processes: dict[str, Popen[bytes] | ForkedProcess] = {}
        self._watchers: dict[str, asyncio.Task[None]] = {}
        self._frozen: set[str] = set()
        self._expected_to_end: set[str] = set()
        self._held: dict[str, list[socket.socket]] = {}
        """Sockets that reserve the ports of nodes that are not members."""
        self._secret = secrets.token_hex(32)
        self._cleanup = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Start Toxiproxy and the nodes, and wait until they serve."""
        async with AsyncExitStack() as cleanup:
            self._write_files()
            cleanup.callback(self._let_go, *self.everybody)
            for name in self.absent:
                self._hold_ports(name)
            cleanup.push_async_callback(self.toxiproxy.stop)
            await self.toxiproxy.start()
            await asyncio.to_thread(self._add_proxies)
            timeout = aiohttp.ClientTimeout(total=_ANSWER_TIMEOUT_S)
            headers = {"Authorization": aiohttp.encode_basic_auth(USER, PASSWORD)}
            self._http = await cleanup.enter_async_context(
                aiohttp.ClientSession(timeout=timeout, headers=headers)
            )
            cleanup.push_async_callback(self._kill_all)
            for name in self.names:
                await self.start(name)
            await self.wait_ready()
            self._cleanup = cleanup.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Kill all processes that still run."""
        await self._cleanup.aclose()

    # Processes

    def running(self, name: str) -> bool:
        """Return whether the node has a process; a frozen process counts."""
        process = self._processes.get(name)
        return process is not None and process.poll() is None

    def frozen(self, name: str) -> bool:
        return name in self._frozen

    def serving(self) -> list[str]:
        """Return the names of the nodes that run and are not frozen."""
        return [name for name in self.names if self.running(name) and not self.frozen(name)]

    async def start(self, name: str) -> None:
        """Start the process on the existing data; `wait_ready` waits until it serves. Raises LiveClusterError."""
        if self.running(name):
            raise LiveClusterError(f"{name} is running already")
        if name in self._watchers:
            await self._watchers.pop(name)
        self._expected_to_end.discard(name)
        self._processes[name] = self._spawn(name)
        self._watchers[name] = asyncio.create_task(self._watch(name))
        await self._on_routes_to(name, self.toxiproxy.enable)

    def _spawn(self, name: str) -> Popen[bytes] | ForkedProcess:
        """Start a process from the loop's thread, because the system kills a child when its starting thread ends."""
        config = ("--config", str(self._config(name)))
        with self.log(name).open("ab") as log:
            if self._release is not None and name in self._on_release:
                return Popen(
                    [*releases.serve_command(self._release), *config],
                    stdin=DEVNULL,
                    stdout=log,
                    stderr=STDOUT,
                    env=node_environment() | releases.environment(self._release),
                    start_new_session=True,  # Ctrl-C is for the harness
                )
            server = fork_server(name)
            return server.start(
                ["--side", str(self._side(name)), *config],
                node_environment() | {PARENT_VARIABLE: str(server.pid)},
                stdout=log.fileno(),
                stderr=log.fileno(),
                program="chaos.live.faulty_node",
            )

    async def kill(self, name: str) -> None:
        """Kill the process with SIGKILL, and wait until it has ended."""
        self._signal(name, signal.SIGKILL, last=True)
        await self._wait_ended(name)

    async def stop(self, name: str) -> None:
        """Stop the process gracefully, and wait until it has ended. Raises LiveClusterError."""
        if self.frozen(name):
            self.thaw(name)
        self._signal(name, signal.SIGTERM, last=True)
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await self._wait_ended(name)
        except TimeoutError:
            await self._kill_stuck(name)
            raise self._error(name, f"did not stop in {_STOP_TIMEOUT_S:g} s") from None
        status = self._processes[name].poll()
        # A process that is still loading does not handle the signal yet.
        if status not in (0, -signal.SIGTERM):
            raise self._error(name, f"stopped with status {status}")

    def freeze(self, name: str) -> None:
        """Freeze the process with SIGSTOP: its connections stay open and get no answers."""
        self._signal(name, signal.SIGSTOP)
        self._frozen.add(name)

    def thaw(self, name: str) -> None:
        self._signal(name, signal.SIGCONT)
        self._frozen.discard(name)

    def _signal(self, name: str, number: signal.Signals, *, last: bool = False) -> None:
        if not self.running(name):
            raise LiveClusterError(f"{name} is not running")
        if last:
            self._expected_to_end.add(name)
        with suppress(ProcessLookupError):
            self._processes[name].send_signal(number)

    async def _wait_ended(self, name: str) -> None:
        await asyncio.shield(self._watchers[name])

    async def _watch(self, name: str) -> None:
        """Wait for the end of the node's process, and then let its addresses refuse connections."""
        status = await _status_of(self._processes[name])
        self._frozen.discard(name)
        if name not in self._expected_to_end:
            self.crashes.append(f"{name} ended by itself with status {status}{self._log_tail(name)}")
        await self._on_routes_to(name, self.toxiproxy.disable)

    async def _on_routes_to(self, name: str, change: Callable[[str], None]) -> None:
        routes = [route for (_, target), route in self._peer_routes.items() if target == name]
        for route in [*routes, self._client_routes[name]]:
            await asyncio.to_thread(change, route.name)

    async def _kill_all(self) -> None:
        for name in filter(self.running, self.everybody):
            with suppress(LiveClusterError):
                await self.kill(name)

    # Members and secrets

    @property
    def names(self) -> tuple[str, ...]:
        """The members, including those that are down."""
        return tuple(name for name in self.everybody if name in self._members)

    @property
    def absent(self) -> tuple[str, ...]:
        """The nodes that are not members."""
        return tuple(name for name in self.everybody if name not in self._members)

    async def remove(self, name: str) -> bool:
        """Remove a member, up or down, by the operator's command; return whether it ended by itself because of that."""
        member_id = await self._member_id(name)
        self._expected_to_end.add(name)
        await self._until_changed(name, "DELETE", f"?id={member_id}")
        self._members.discard(name)
        has_ended = await self._has_ended(name)
        self._hold_ports(name)
        return has_ended

    async def _has_ended(self, name: str) -> bool:
        """Wait for a removed node to end, and return whether it ended by itself with the right status.

        A node that does not end in time is killed.
        """
        if not self.running(name):
            return False
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await self._wait_ended(name)
        except TimeoutError:
            await self._kill_stuck(name)
        return self._processes[name].poll() == os.EX_CONFIG

    async def _kill_stuck(self, name: str) -> None:
        """Kill a process that should have ended by itself, after it has logged its stacks."""
        if name not in self._on_release:
            self._signal(name, signal.SIGUSR1)
            await asyncio.sleep(_TELLING_S)
        if self.running(name):
            await self.kill(name)

    async def join(self, name: str) -> None:
        """Let a node that is down join with an empty directory, and wait until it votes."""
        await self.list_everybody([other for other in self.names if other != name])
        await self.wipe(name)
        self.write_secrets(name)
        self._listing_all.add(name)
        self._write_configuration(name)
        self._members.add(name)
        self._let_go(name)
        await self.start(name)
        address = self._addresses[name]
        await self._until_changed(name, "PUT", body={"host": address.host, "port": address.peer_port})
        await self.wait_votes(name)

    async def replace(self, name: str) -> None:
        """Declare the directory of a member, which is down, as lost, so that a new directory may take its place."""
        await self._until_changed(name, "POST", "/replace", body={"id": await self._member_id(name)})

    async def wait_votes(self, name: str) -> None:
        """Wait until a member is up and votes."""
        await self._until_changed(name, "POST", "/promote")

    async def list_everybody(self, names: Sequence[str]) -> None:
        """Restart nodes whose files list the first nodes only, with full files.

        Nodes that are down read theirs at their next start.
        """
        for name in [name for name in names if name not in self._listing_all]:
            self._listing_all.add(name)
            self._write_configuration(name)
            if self.running(name):
                await self.stop(name)
                await self.start(name)
                await self.wait_ready(name)

    def _hold_ports(self, name: str) -> None:
        """Reserve the ports of a node that is not a member, because a second cluster could take them."""
        address = self._addresses[name]
        self._held[name] = [
            socket.create_server((HOST, port))
            for port in (address.peer_port, address.amqp_port, address.http_port)
        ]

    def _let_go(self, *names: str) -> None:
        for name in names:
            for held in self._held.pop(name, ()):
                held.close()

    async def _member_id(self, name: str) -> str:
        """Ask a peer for the id of a member's data directory, and return it. Raises LiveClusterError."""
        found: list[str] = []

        async def reason() -> str | None:
            peer = self._other(name)
            shown = await self._shown_members(peer)
            if shown is None:
                return f"may be a member, but {peer} does not tell"
            found[:] = [
                member["id"] for member in shown["members"] if member["name"] == name and member["id"]
            ]
            return None if found else f"is no member of which {peer} knows the directory"

        await _until(reason, PATIENCE_S, lambda why: LiveClusterError(f"{name} {why}"))
        return found[0]

    async def _shown_members(self, name: str) -> dict[str, Any] | None:
        """Return the document at /api/cluster/members of this node, or None if it does not answer."""
        answer = await self._get(name, "/api/cluster/members")
        return None if answer is None or answer[0] != HTTPStatus.OK else answer[1]

    async def _until_changed(
        self, name: str, method: str, path: str = "", body: dict[str, Any] | None = None
    ) -> None:
        """Ask a peer for a change of a member, as the commands do, until it is made. Raises LiveClusterError."""

        async def reason() -> str | None:
            peer = self._other(name)
            timeout = aiohttp.ClientTimeout(total=_CHANGE_TIMEOUT_S)
            url = f"{self.http[peer]}/api/cluster/members/{name}{path}"
            try:
                async with self._http.request(method, url, json=body, timeout=timeout) as answer:
                    return None if answer.status == HTTPStatus.OK else await answer.text()
            except (aiohttp.ClientError, TimeoutError) as error:
                return f"{peer} does not answer: {error!r}"

        problem = f"is not changed by {method} {path or name}"
        await _until(reason, PATIENCE_S, lambda why: self._error(name, f"{problem}: {why}"))

    async def move(self, source: str, destination: str) -> bool:
        """Declare a shovel between two queues, which is a move in the log; return whether it is declared."""
        value = {"src-uri": "amqp://", "src-queue": source, "dest-uri": "amqp://", "dest-queue": destination}
        peer = next(iter(self.serving()), None)
        if peer is None:
            return False
        url = f"{self.http[peer]}/api/parameters/shovel/%2F/{source}"
        try:
            async with self._http.put(URL(url, encoded=True), json={"value": value}) as answer:
                return answer.status in (HTTPStatus.CREATED, HTTPStatus.NO_CONTENT)
        except (aiohttp.ClientError, TimeoutError):
            return False

    def _other(self, name: str) -> str:
        others = [other for other in self.serving() if other != name]
        if not others:
            raise LiveClusterError(f"nobody is there but {name}")
        return others[0]

    async def change_secret(self, names: Sequence[str]) -> None:
        """Change the secret of the nodes in two rounds; a round ends when all running nodes have read their files."""
        old, self._secret = self._secret, secrets.token_hex(32)
        for known in ([old, self._secret], [self._secret]):
            await asyncio.gather(*(self._rotate_secrets(name, known) for name in names))

    async def _rotate_secrets(self, name: str, known: Sequence[str]) -> None:
        end = self.log(name).stat().st_size
        self.write_secrets(name, known)

        async def reason() -> str | None:
            has_read = b"read again: " in self.log(name).read_bytes()[end:]
            return None if has_read or name not in self.serving() else "has not read its secret again"

        await _until(reason, PATIENCE_S, lambda reason: self._error(name, reason))

    def write_secrets(self, name: str, known: Sequence[str] = ()) -> None:
        """Write the secret file, which the node reads again after a change; without `known`, only the newest secret."""
        file = self._node_dir(name) / "secret"
        replacement = file.with_suffix(".new")
        replacement.write_text("\n".join(known or [self._secret]))
        replacement.replace(file)

    # Programs

    @property
    def on_release(self) -> tuple[str, ...]:
        """The members that still run the release that the cluster began with."""
        return tuple(name for name in self.names if name in self._on_release)

    async def change_program(self, name: str) -> None:
        """Switch the program of a node that is down: from the release to today's program, or back."""
        self._must_be_down(name)
        self._on_release ^= {name}
        self._write_configuration(name)
        history = self._side(name) / DISK_DIRECTORY
        if history.exists():  # the release cannot continue it
            await asyncio.to_thread(shutil.rmtree, history)

    async def wait_upgraded(self, patience_s: float = PATIENCE_S) -> None:
        """Wait until all nodes run at today's version of the state. Raises LiveClusterError."""
        if self._release is None:
            return
        for name in self.names:
            await _until(
                lambda name=name: self._not_upgraded(name),
                patience_s,
                lambda reason, name=name: LiveClusterError(f"{name} {reason}"),
            )

    async def _not_upgraded(self, name: str) -> str | None:
        if name in self._on_release:
            return "runs the release that the cluster began with"
        shown = await self._shown_members(name)
        if shown is None:
            return "does not tell who the members are"
        if shown["version"] < QueueMachine.versions[-1]:
            return f"is at version {shown['version']} of the state"
        return "goes by the list in its file" if shown["cluster_id"] is None else None

    # Connections

    def links(self, source: str, target: str) -> tuple[ProxyStream, ProxyStream]:
        """Return the streams that carry bytes from `source` to `target`, for either dialler."""
        own, others = self._peer_routes[source, target], self._peer_routes[target, source]
        return ProxyStream(own.name, "upstream"), ProxyStream(others.name, "downstream")

    def clients_of(self, name: str) -> tuple[ProxyStream, ProxyStream]:
        """Return the streams from a node's clients to the node, and from the node to its clients."""
        proxy = self._client_routes[name].name
        return ProxyStream(proxy, "upstream"), ProxyStream(proxy, "downstream")

    async def hurt(self, links: Iterable[ProxyStream], toxic: str, kind: str, **attributes: int) -> None:
        """Put a toxic on each of the links; `relieve` removes it by the name `toxic`."""
        for link in links:
            await asyncio.to_thread(
                self.toxiproxy.add_toxic,
                link.proxy,
                f"{toxic}-{link.stream}",
                kind,
                link.stream,
                **attributes,
            )

    async def relieve(self, toxic: str = "") -> None:
        """Remove the toxics of this name or, without a name, all toxics."""
        for proxy, known in await asyncio.to_thread(self.toxiproxy.toxics):
            if not toxic or known.rpartition("-")[0] == toxic:
                await asyncio.to_thread(self.toxiproxy.remove_toxic, proxy, known)

    # Disks and clocks

    def data_dir(self, name: str) -> Path:
        return self._node_dir(name) / "data"

    def faults(self, name: str) -> Faults:
        return Faults.read(self._side(name))

    def set_faults(self, name: str, **faults: float) -> None:
        """Change some faults of a node's disk and clock; they take effect in some milliseconds."""
        replace(self.faults(name), **faults).write(self._side(name))

    async def lose_power(self, name: str, seed: int) -> int:
        """Remove unsynced writes from a node that is down, as a power loss does; return the bytes at risk."""
        self._must_be_down(name)
        return await asyncio.to_thread(
            lose_power, self.data_dir(name), self._side(name) / DISK_DIRECTORY, seed
        )

    async def wipe(self, name: str) -> None:
        """Delete the data directory of a node that is down."""
        self._must_be_down(name)
        for directory in (self.data_dir(name), self._side(name) / DISK_DIRECTORY):
            if directory.exists():
                await asyncio.to_thread(shutil.rmtree, directory)

    def _must_be_down(self, name: str) -> None:
        if self.running(name):
            raise LiveClusterError(f"{name} is running: its files are its own")

    # Queries

    def log(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    async def status(self, name: str) -> dict[str, Any] | None:
        """Return the document at /api/cluster of this node, or None if it does not answer."""
        answer = await self._get(name, "/api/cluster")
        return None if answer is None or answer[0] != HTTPStatus.OK else answer[1]

    async def leader(self, patience_s: float = PATIENCE_S) -> str:
        """Return the leader; wait for an election to end. Raises LiveClusterError without a majority."""
        found: list[str] = []

        async def reason() -> str | None:
            statuses = {name: await self.status(name) for name in self.serving()}
            # A former leader that was just cut off may still believe that it leads: the newest term counts.
            reigns = [
                (view["term"] or 0, name)
                for name, status in statuses.items()
                if status is not None and status["leader"] == name and (view := _view(status, name))
            ]
            found[:] = [name for _, name in sorted(reigns)]
            return None if found else f"no node leads; running: {', '.join(self.serving()) or 'none'}"

        await _until(reason, patience_s, LiveClusterError)
        return found[-1]

    async def wait_ready(self, *names: str, patience_s: float = PATIENCE_S) -> None:
        """Wait until the nodes, by default all members, serve clients.

        Raises LiveClusterError with the last lines of a node's log.
        """
        for name in names or self.names:
            await _until(
                lambda name=name: self.not_ready(name),
                patience_s,
                lambda reason, name=name: self._error(name, reason),
            )

    async def wait_started(self, patience_s: float = PATIENCE_S) -> None:
        """Wait until the running nodes answer over HTTP at all. Raises LiveClusterError."""
        for name in self.serving():
            await _until(
                lambda name=name: self._not_started(name),
                patience_s,
                lambda reason, name=name: self._error(name, reason),
            )

    async def wait_caught_up(self, patience_s: float = PATIENCE_S) -> None:
        """Wait until all nodes serve and have applied the leader's commit index of that time.

        Raises LiveClusterError.
        """
        await self.wait_ready(patience_s=patience_s)
        leader = await self.leader(patience_s)
        status = await self.status(leader)
        view = _view(status, leader) if status else None
        goal = view["commit_index"] if view else 0
        for name in self.names:
            await _until(
                lambda name=name: self._behind(name, goal),
                patience_s,
                lambda reason, name=name: self._error(name, reason),
            )

    async def _not_started(self, name: str) -> str | None:
        if name not in self.serving() or await self._get(name, "/healthz") is not None:
            return None
        return "does not answer over HTTP"

    async def not_ready(self, name: str) -> str | None:
        """Return why a running node does not serve (`/healthz`), or None if it does."""
        if not self.running(name):
            raise self._error(name, "is not running")
        answer = await self._get(name, "/healthz")
        return "does not answer over HTTP" if answer is None else answer[1].get("reason")

    async def _behind(self, name: str, goal: int) -> str | None:
        status = await self.status(name)
        if status is None:
            return "does not answer over HTTP"
        view = _view(status, name)
        if view is None:
            return "is no member"
        known = {node["name"] for node in status["nodes"]}
        if known != self._members:
            return f"takes {', '.join(sorted(known))} for the members"
        for problem in (view["standing"], view.get("role", "voter")):  # release 0.1 has no roles
            if problem != "voter":
                return f"is a {problem}"
        applied = view["applied_index"] or 0
        return None if applied >= goal else f"has applied {applied} of {goal} entries"

    async def _get(self, name: str, path: str) -> tuple[int, Any] | None:
        if self.frozen(name) or not self.running(name):
            return None
        try:
            async with self._http.get(self.http[name] + path) as answer:
                return answer.status, await answer.json()
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return None

    def _error(self, name: str, problem: str) -> LiveClusterError:
        return LiveClusterError(f"{name} {problem}{self._log_tail(name)}")

    def _log_tail(self, name: str) -> str:
        lines = self.log(name).read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:]
        return "\n".join([f"; the end of {self.log(name)}:", *lines])

    # Files

    @property
    def _logs(self) -> Path:
        return self._directory / "logs"

    def _node_dir(self, name: str) -> Path:
        return self._directory / "nodes" / name

    def _side(self, name: str) -> Path:
        return self._node_dir(name) / "side"

    def _config(self, name: str) -> Path:
        return self._node_dir(name) / "node.toml"

    def _write_files(self) -> None:
        self._logs.mkdir(parents=True, exist_ok=True)
        for name in self.everybody:
            self._side(name).mkdir(parents=True, exist_ok=True)
            Faults().write(self._side(name))
        for name in self._founders:
            self.write_secrets(name)
            self._write_configuration(name)

    def _write_configuration(self, name: str) -> None:
        self._config(name).write_text(self._configuration(name))

    def _configuration(self, name: str) -> str:
        """Return the text of node.toml. JSON strings, numbers and lists are valid TOML."""
        listed = self.everybody if name in self._listing_all else self._founders
        of_cluster: dict[str, Any] = {"secret_file": "secret"}
        if name not in self._on_release:
            of_cluster["peer_addresses"] = "file"
        if name in self._listing_all:
            routes = [route for (dialler, _), route in self._peer_routes.items() if dialler == name]
            of_cluster["join"] = [f"{HOST}:{route.listen}" for route in routes]
        sections: list[tuple[str, dict[str, Any]]] = [
            ("[node]", {"name": name, "data_dir": "data"}),
            ("[cluster]", of_cluster),
            ("[users]", {"default_user": USER, "default_password": PASSWORD}),
            ("[limits]", self._limits),
        ]
        for member in listed:
            address = self._addresses[member]
            route = self._peer_routes.get((name, member))
            peer_port = address.peer_port if route is None else route.listen
            sections.append(("[[nodes]]", asdict(replace(address, peer_port=peer_port))))
        lines: list[str] = []
        for header, table in sections:
            lines += ["", header]
            lines += [f"{key} = {json.dumps(value)}" for key, value in table.items() if value is not None]
        return "\n".join(lines) + "\n"

    def _add_proxies(self) -> None:
        for route in (*self._peer_routes.values(), *self._client_routes.values()):
            self.toxiproxy.add(route, enabled=False)  # until its node's process runs


async def _status_of(process: Popen[bytes] | ForkedProcess) -> int:
    """Wait until a process has ended, and return its exit status."""
    with suppress(ProcessLookupError):  # it has ended, and its status is known
        handle = os.pidfd_open(process.pid)
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(handle, ended.set)  # readable when the process has ended
        try:
            await ended.wait()
        finally:
            loop.remove_reader(handle)
            os.close(handle)
    return process.wait()


async def _until(
    reason_against: Callable[[], Any], patience_s: float, error_of: Callable[[str], LiveClusterError]
) -> None:
    """Wait until `reason_against` returns None. Raises the error of `error_of` after `patience_s`."""
    clock = asyncio.get_running_loop().time
    deadline_s = clock() + patience_s
    while (reason := await reason_against()) is not None:
        if clock() > deadline_s:
            raise error_of(reason)
        await asyncio.sleep(_POLL_S)


def _view(status: dict[str, Any], name: str) -> dict[str, Any] | None:
    """Return the member's entry in the cluster's document, or None."""
    return next((node for node in status["nodes"] if node["name"] == name), None)


def _amqp_url(port: int) -> str:
    return f"amqp://{USER}:{PASSWORD}@{HOST}:{port}/"


def free_ports() -> Iterator[int]:
    """Yield free ports in random order, so that clusters started together use different ports."""
    for port in random.sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind((HOST, port))
                yield port
    raise LiveClusterError(f"no free port in {_PORTS.start}-{_PORTS.stop}")
