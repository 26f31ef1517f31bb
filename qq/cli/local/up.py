"""`qq up`: runs a local cluster, a process for each node, until Ctrl-C.

Invariant: the output of `qq up` never delays a node. A node writes to its own log file, which `qq up` reads and prints.
A stopped terminal or an unread pipe loses lines on the screen only.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
from asyncio.subprocess import DEVNULL, STDOUT, Process
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.storage.paths import REMOVED, group_path
from qq.cli.command_line.values import HTTP_PORT
from qq.cli.local.launch import SERVE_COMMAND, node_environment, settings_of_child
from qq.cli.local.local_requests import reason_not_ready
from qq.cli.local_files import (
    HOST,
    PASSWORD,
    USER,
    LocalNode,
    local_nodes,
    locked,
    prepare,
    write_cluster_file,
)
from qq.cli.terminal.screen import LogReader, Screen
from qq.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Sequence

_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
_POLL_S = 0.1  # seconds between polls of readiness and logs
_WAITING_NOTICE_S = 10.0  # a long replay is normal; silence is not
_STOP_TIMEOUT_S = 10.0
_RESTART_DELAY_S = 1.0  # a node that cannot start must not keep the processor busy


def up(
    *,
    data_dir: Path,
    node_count: int,
    base_port: int,
    fresh: bool,
    restart: bool,
    serve_command: Sequence[str] = SERVE_COMMAND,
) -> int:
    """Run the cluster until SIGINT, SIGTERM or SIGHUP. Raises CommandError."""
    data_dir = data_dir.absolute()
    nodes = local_nodes(data_dir, node_count, base_port)
    with locked(data_dir):
        _refuse_used_ports(nodes)
        prepare(data_dir, nodes, fresh=fresh)
        screen = Screen()
        if warning := _outgoing_ports(nodes, _outgoing_range()):
            screen.print_line(warning)
        try:
            asyncio.run(_Cluster(data_dir, nodes, serve_command, screen, restart=restart).run())
        finally:
            screen.close()
    return 0


def _outgoing_range() -> range:
    """Return the ports that the system gives to outgoing connections; an empty range if they are unknown."""
    try:
        first, last = map(int, _OUTGOING.read_text().split())
    except FileNotFoundError:  # as in some containers
        return range(0)
    return range(first, last + 1)


def _outgoing_ports(nodes: Sequence[LocalNode], outgoing: range) -> str | None:
    """Return a warning if ports of the nodes are in the range for outgoing connections, or `None`."""
    addresses = [node.address for node in nodes]
    ports = {port for each in addresses for port in (each.amqp_port, each.http_port, each.peer_port)}
    shared = sorted(ports.intersection(outgoing))
    if not shared:
        return None
    return (
        f"the system may give ports {', '.join(map(str, shared))} to outgoing connections: "
        "a node that starts again may find its port taken"
    )


def _was_removed(node: LocalNode) -> bool:
    """Return whether the node knows that it was removed from its cluster: it then exits at every start."""
    return (node.data_dir / group_path(0) / REMOVED).exists()


def _refuse_used_ports(nodes: Sequence[LocalNode]) -> None:
    for node in nodes:
        address = node.address
        for what, port in (
            ("AMQP", address.amqp_port),
            ("HTTP", address.http_port),
            ("peers", address.peer_port),
        ):
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((HOST, port))
                except OSError as error:
                    reason = _why_not_bound(error, port, _outgoing_range())
                    raise CommandError(f"port {port} ({what} of {node.name}) {reason}") from None


def _why_not_bound(error: OSError, port: int, outgoing: range) -> str:
    """Return why a port cannot be used; `outgoing` are the ports that the system gives to outgoing connections."""
    if error.errno != errno.EADDRINUSE:
        return f"cannot be used: {error.strerror}"
    if port not in outgoing:
        return "is in use"
    return (
        "is in use, perhaps by an outgoing connection, whose port the system keeps for a minute after its end: try "
        f"again then, or choose --base-port so that all ports are below {outgoing.start}"
    )


class _Cluster:
    """The processes of the cluster, each watched by a task."""

    def __init__(
        self,
        data_dir: Path,
        nodes: Sequence[LocalNode],
        serve_command: Sequence[str],
        screen: Screen,
        *,
        restart: bool,
    ) -> None:
        self._data_dir = data_dir
        self._nodes = nodes
        self._serve_command = serve_command
        self._screen = screen
        self._restart = restart
        self._logs: list[LogReader] = []
        self._running: dict[str, Process] = {}
        self._pids: dict[str, int] = {}
        self._serves = False

    async def run(self) -> None:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        self._logs = [LogReader(node.name, node.log, self._screen) for node in self._nodes]
        printing = asyncio.create_task(self._print_logs())
        try:
            await self._serve_until(stop)
        finally:
            await self._stop_all()
            printing.cancel()
            for log in self._logs:
                log.close()

    async def _serve_until(self, stop: asyncio.Event) -> None:
        """Wait for the stop signal. Raises CommandError if a node cannot start, or all nodes have ended."""
        stopping = asyncio.create_task(stop.wait())
        for node in self._nodes:
            await self._start(node)
        watchers = [asyncio.create_task(self._watch(node)) for node in self._nodes]
        tasks: list[asyncio.Task[Any]] = [stopping, asyncio.create_task(self._announce()), *watchers]
        try:
            while not stopping.done():
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    tasks.remove(task)
                    task.result()
                if not stopping.done() and all(watcher.done() for watcher in watchers):
                    raise CommandError(
                        f"all nodes that were started here have ended; their logs are in {self._data_dir}"
                    )
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # --- processes

    async def _start(self, node: LocalNode) -> None:
        try:
            with node.log.open("ab") as log:
                process = await asyncio.create_subprocess_exec(
                    *self._serve_command,
                    "--config",
                    str(node.config),
                    stdin=DEVNULL,
                    stdout=log,
                    stderr=STDOUT,
                    env=node_environment(),
                    start_new_session=True,  # Ctrl-C is for us: we stop the nodes
                )
        except OSError as error:
            raise CommandError(f"{node.name} cannot be started: {error}") from None
        self._running[node.name] = process
        self._pids[node.name] = process.pid
        if self._serves:
            write_cluster_file(self._data_dir, self._nodes, self._pids)

    async def _watch(self, node: LocalNode) -> None:
        """Report when a node's process ends and, if `--restart` was given, start it again."""
        while True:
            process = self._running[node.name]
            status = await process.wait()
            del self._running[node.name]
            death = f"{node.name} (pid {process.pid}) {_death(status)}"
            if not (self._serves or _was_removed(node)):
                raise CommandError(f"{death} before the cluster was ready; see {node.log}")
            self._screen.print_line(death)
            if not self._restart or status == os.EX_CONFIG:  # a restart would fail in the same way
                return
            await asyncio.sleep(_RESTART_DELAY_S)
            await self._start(node)
            self._screen.print_line(f"{node.name} started again (pid {self._pids[node.name]})")

    async def _stop_all(self) -> None:
        processes = list(self._running.values())
        for process in processes:
            with suppress(ProcessLookupError):
                process.terminate()
        waiting = [asyncio.create_task(process.wait()) for process in processes]
        if not waiting:
            return
        await asyncio.wait(waiting, timeout=_STOP_TIMEOUT_S)
        for name, process in self._running.items():
            if process.returncode is None:
                self._screen.print_line(
                    f"{name} (pid {process.pid}) did not stop in {_STOP_TIMEOUT_S:g} s: killed"
                )
                with suppress(ProcessLookupError):
                    process.kill()
        await asyncio.wait(waiting)

    # --- becoming ready

    async def _announce(self) -> None:
        """Wait until every node serves, then print the cluster and write the file `cluster.json`."""
        await asyncio.gather(*map(self._until_ready, self._nodes))
        self._nodes = [node for node in self._nodes if not _was_removed(node)]
        write_cluster_file(self._data_dir, self._nodes, self._pids)
        self._serves = True
        self._print_new_lines()  # lines logged so far come before the summary
        self._screen.print_line(
            f"{len(self._nodes)} nodes, data in {self._data_dir}, user {USER}, password {PASSWORD}"
        )
        # The environment may have settings for all nodes.
        scheme = "http" if settings_of_child(self._nodes[0].config).http_tls is None else "https"
        for node in self._nodes:
            amqp = f"amqp://{USER}:{PASSWORD}@{HOST}:{node.address.amqp_port}/"
            http = f"{scheme}://{HOST}:{node.address.http_port}/"
            self._screen.print_line(f"  {node.name}  {amqp}  {http}  pid {self._pids[node.name]}")
        port = self._nodes[0].address.http_port
        if port != HTTP_PORT or scheme == "https":
            self._screen.print_line(f"for commands: export QQ_URL={scheme}://{HOST}:{port}")
        self._screen.print_line("cluster ready")

    async def _until_ready(self, node: LocalNode) -> None:
        clock = asyncio.get_running_loop()
        notice_at = clock.time() + _WAITING_NOTICE_S
        port = node.address.http_port
        while (
            not _was_removed(node) and (reason := await asyncio.to_thread(reason_not_ready, port)) is not None
        ):
            if clock.time() >= notice_at:
                self._screen.print_line(f"waiting for {node.name}: {reason}")
                notice_at += _WAITING_NOTICE_S
            await asyncio.sleep(_POLL_S)

    # --- logs of the nodes

    async def _print_logs(self) -> None:
        while True:
            self._print_new_lines()
            await asyncio.sleep(_POLL_S)

    def _print_new_lines(self) -> None:
        for log in self._logs:
            log.print_new()


def _death(status: int) -> str:
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:  # real-time signals have no names
        return f"was killed by signal {-status}"
