"""One node: the composition root. Builds everything, owns the order of start and stop.

Start: the disk (locked), the log (verified), the links, HTTP for health and metrics, and, once this node has caught up
with the cluster, the AMQP listener. Stop: the listener, leadership handed over, the clients, the last checkpoint, the
links, the disk. A node that finds its log damaged starts anew in the same process and is repaired from the others.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import socket
import ssl
import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from cluster.engine import Timing
from cluster.group import Group, GroupConfig
from cluster.identity import ForeignDirectory
from cluster.links import Limits as LinkLimits
from cluster.links import PeerLinks, Tls
from cluster.realworld import AsyncioRuntime, DirectoryInUse, RealDisk
from cluster.segment import CorruptJournal, JournalError
from qq.amqp.connection import Settings
from qq.broker.broker import SALT_BYTES, Broker, hash_password
from qq.broker.listener import ClientConnection
from qq.errors import StartError
from qq.http.app import build_app, listen
from qq.http.view import ClusterStatus, NodeState, NodeStatus
from qq.machine.commands import PutUser
from qq.machine.machine import QueueMachine
from qq.management import Management
from qq.metrics import DiskMetrics, MetricsSnapshot, RaftMetrics, node_registry

if TYPE_CHECKING:
    from collections.abc import Collection

    from qq.config import NodeConfig, TlsFiles

log = logging.getLogger(__name__)

SWITCH_INTERVAL_S = 0.0005
"""The interpreter's default of 5 ms is how long the fsync thread would wait for a busy loop to let it report."""
GC_THRESHOLD = 100_000
"""Garbage is almost all acyclic here; a full collection walks the whole backlog's bookkeeping."""
CATCH_UP_POLL_S = 0.02
LEADER_HANDOVER_S = 2.0
LAST_SYNC_S = 2.0
REPAIRS_MAX = 3
"""Damage so often in a row, each time soon after the start, is no accident: the node gives up."""
DAMAGED_AGAIN_S = 30.0
"""What "soon after the start" means."""
BACKLOG = 1024
LOOPBACK = "127.0.0.1"
FRAME_SLACK_BYTES = 64 * 1024 * 1024
"""A peer frame holds one large message, or many small ones up to a few MiB, and their frames' envelopes."""


class Node:
    """A running node, and what its HTTP interface sees of it."""

    def __init__(self, config: NodeConfig) -> None:
        self.config = config
        self._failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.runtime = AsyncioRuntime(asyncio.get_running_loop(), self._fail)
        asyncio.get_running_loop().set_exception_handler(self._unhandled)
        self.machine = QueueMachine()
        self._started = self._stopping = False
        self._amqp: asyncio.Server | None = None

    # Start and stop

    async def start(self) -> None:
        """Come up as far as serving HTTP and taking part in the cluster; raises StartError."""
        config = self.config
        self.disk = self._open_disk()
        self.links = PeerLinks(
            config.name,
            config.cluster_name,
            config.secret.encode(),
            {node.name: (node.host, node.peer_port) for node in config.nodes if node.name != config.name},
            (config.peer_host, config.address.peer_port),
            tls=_peer_tls(config.peer_tls) if config.peer_tls else None,
            limits=LinkLimits(frame_bytes_max=config.limits.message_bytes + FRAME_SLACK_BYTES),
        )
        self.broker = self._make_broker()
        self.group = Group(
            self._group_config(), self.machine, self.runtime, self.disk, self.links, self.broker
        )
        self.broker.attach(self.group, self.disk)
        try:
            self.group.start()
        except (JournalError, ForeignDirectory, OSError) as error:
            raise StartError(f"{config.data_dir}: {error}") from error
        self._started = True
        try:
            await self.links.start()
        except OSError as error:
            port = config.address.peer_port
            raise StartError(
                f"peers cannot be served on {config.peer_host}:{port}: {error.strerror}"
            ) from None
        self.management = Management(self.broker, self.group, self.runtime)
        app = build_app(self, self.management, node_registry(self.metrics), config.loopback_users)
        self._http = await listen(app, config.http_host, config.address.http_port)

    async def serve(self) -> None:
        """Serve AMQP until cancelled.

        Raises StartError if the listener cannot be opened or the node fails, CorruptJournal if its log is damaged; in a
        group, as a task group does.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_for_failure())
            tasks.create_task(self.management.watch())
            await self._catch_up()
            gc.collect()
            gc.freeze()
            await self._listen()

    async def _watch_for_failure(self) -> None:
        error = await asyncio.shield(self._failure)  # who stops waiting does not take it away from the others
        if isinstance(error, CorruptJournal):
            raise error
        what = f"its disk failed: {error}" if isinstance(error, OSError) else str(error)
        raise StartError(f"node {self.config.name} stops: {what}") from error

    async def _catch_up(self) -> None:
        # The group is not asynchronous: it has no event to wait for.
        while not self.broker.live or self.group.describe_standing() is not None:  # noqa: ASYNC110
            await asyncio.sleep(CATCH_UP_POLL_S)
        while not self.machine.users:
            if self.group.leader == self.config.name:
                salt = self.runtime.random.randbytes(SALT_BYTES)
                hashed = hash_password(salt, self.config.default_password.encode())
                self.broker.submissions.add(
                    PutUser(self.config.default_user, salt, hashed, ["administrator"])
                )
            await asyncio.sleep(CATCH_UP_POLL_S)

    async def _listen(self) -> None:
        host, port = self.config.amqp_host, self.config.address.amqp_port
        loop = asyncio.get_running_loop()
        try:
            self._amqp = await loop.create_server(
                partial(ClientConnection, self.broker), host, port, backlog=BACKLOG
            )
        except OSError as error:
            raise StartError(f"AMQP cannot listen on {host}:{port}: {error.strerror}") from None
        log.info("serving AMQP on %s:%d", host, port)

    async def stop(self) -> None:
        """Stop serving; leadership is handed over first, so that the others need no election timeout.

        The next start replays nothing: the group writes its last checkpoint, of what its log then holds durably.
        """
        self._stopping = True
        if self._amqp is not None:
            self._amqp.close()
        if self._started:
            await self._hand_over()
            for connection in list(self.broker.connections.values()):
                connection.shut_down()
            await asyncio.sleep(0)
            await self._finish_sync()
            self.group.stop()
        if hasattr(self, "_http"):
            await self._http.cleanup()
        if hasattr(self, "links"):
            await self.links.stop()
        if hasattr(self, "disk"):
            self.disk.close()

    async def _hand_over(self) -> None:
        if self._failure.done() or not self.group.transfer_leadership():
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(LEADER_HANDOVER_S):
                while self.group.leader in (self.config.name, None) and not self.group.is_alone:  # noqa: ASYNC110
                    await asyncio.sleep(CATCH_UP_POLL_S)

    async def _finish_sync(self) -> None:
        """Wait until this node's disk has what this node has applied, unless that disk has failed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_SYNC_S):
                while self.group.journal.synced_index < self.group.engine.applied_index:
                    if self._failure.done():
                        return
                    await asyncio.sleep(CATCH_UP_POLL_S)

    def _fail(self, error: BaseException) -> None:
        if not isinstance(error, CorruptJournal):
            log.critical("cannot go on: %s", error)
        if not self._failure.done():
            self._failure.set_result(error)

    def _unhandled(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An exception that no component expects breaks an invariant: better no node than a wrong one."""
        log.critical("unexpected: %s", context["message"], exc_info=context.get("exception"))
        self._fail(context.get("exception") or RuntimeError(context["message"]))

    # Parts

    def _open_disk(self) -> RealDisk:
        try:
            self.config.data_dir.mkdir(parents=True, exist_ok=True)
            return RealDisk(self.config.data_dir)
        except DirectoryInUse as error:
            raise StartError(str(error)) from None
        except OSError as error:
            raise StartError(f"data directory {self.config.data_dir}: {error.strerror}") from None

    def _group_config(self) -> GroupConfig:
        config, limits = self.config, self.config.limits
        return GroupConfig(
            name=config.name,
            peers=sorted(node.name for node in config.nodes if node.name != config.name),
            cluster=config.cluster_name,
            timing=Timing(config.election_timeout_min_s, config.election_timeout_max_s, config.heartbeat_s),
            segment_bytes=limits.segment_bytes,
            segment_entries=limits.segment_entries,
            cache_bytes=limits.cache_bytes,
            checkpoint_entries=limits.checkpoint_entries,
            checkpoint_bytes=limits.checkpoint_bytes,
            checkpoint_interval_s=limits.checkpoint_interval_s,
            retained_bytes=limits.retained_bytes,
            disk_free_limit_bytes=limits.disk_free_limit_bytes,
        )

    def _make_broker(self) -> Broker:
        config = self.config
        settings = Settings(
            product=config.product,
            version=config.version,
            cluster_name=config.cluster_name,
            channel_max=config.limits.channel_max,
            frame_max=config.limits.frame_max,
            message_bytes_max=config.limits.message_bytes,
            platform=f"Python {sys.version_info.major}.{sys.version_info.minor} on {socket.gethostname()}",
        )
        return Broker(config.name, self.machine, self.runtime, settings, config.loopback_users, config.limits)

    # What HTTP sees

    def cluster_status(self) -> ClusterStatus:
        return ClusterStatus(
            cluster=self.config.cluster_name,
            node=self.config.name,
            leader=self.group.leader,
            nodes=[
                NodeStatus(
                    name=status.name,
                    state=NodeState(status.state),
                    standing=status.standing,
                    term=status.term,
                    first_index=status.first_index,
                    last_index=status.last_index,
                    commit_index=status.commit_index,
                    applied_index=status.applied_index,
                    checkpoint_index=status.checkpoint_index,
                    disk_free_bytes=status.disk_free_bytes,
                    alarm=status.alarm,
                )
                for status in self.group.statuses()
            ],
        )

    def metrics(self) -> MetricsSnapshot:
        group, queues = self.group, self.machine.queues.values()
        engine, journal = group.engine, group.journal
        own = next(status for status in group.statuses() if status.name == self.config.name)
        return MetricsSnapshot(
            node=self.config.name,
            cluster=self.config.cluster_name,
            version=self.config.version,
            counters=self.broker.counters,
            raft=RaftMetrics(
                term=engine.term,
                is_leader=engine.is_leader,
                standing=own.standing or "",
                first_index=journal.first_index,
                last_index=journal.last_index,
                commit_index=engine.commit_index,
                applied_index=engine.applied_index,
                checkpoint_index=group.housekeeping.newest_index,
                elections=self.broker.elections,
                snapshots_installed=group.snapshots_installed,
            ),
            disk=DiskMetrics(
                log_bytes=journal.disk_bytes,
                free_bytes=own.disk_free_bytes or 0,
                free_limit_bytes=self.config.limits.disk_free_limit_bytes,
                alarm=group.alarm is not None,
            ),
            queues=len(queues),
            messages_ready=sum(queue.ready for queue in queues),
            messages_unacked=sum(queue.unacked for queue in queues),
            consumers=sum(queue.consumers for queue in queues),
        )

    def ready(self) -> str | None:
        if self._stopping:
            return "the node stops"
        under_repair = self.group.describe_standing()
        if under_repair is not None:
            return under_repair
        if self.group.leader is None:
            return "no leader is known: fewer than a majority of the nodes are up"
        if self._amqp is None:
            return "the node is catching up with the cluster"
        return None

    async def authenticate(self, user: str, password: str) -> Collection[str] | None:
        # Where from is checked by the application, before the password.
        admitted = self.broker.authenticate(user, password.encode(), LOOPBACK)
        return self.machine.users[user].tags if admitted else None


async def run(config: NodeConfig) -> None:
    """Serve until cancelled. Raises StartError when the node cannot start or cannot go on.

    A node whose log is damaged is started anew: it sets that log aside and comes back without a vote.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))  # each client is an open file
    gc.set_threshold(GC_THRESHOLD)
    clock = asyncio.get_running_loop().time
    repairs = 0
    while True:
        began_s = clock()
        try:
            return await _run_once(config)
        except CorruptJournal as damage:
            repairs = repairs + 1 if clock() - began_s < DAMAGED_AGAIN_S else 1
            if repairs > REPAIRS_MAX:
                raise StartError(
                    f"{config.data_dir}: the log is damaged again and again: {damage}"
                ) from damage
            log.error("node %s starts anew: %s", config.name, damage)  # noqa: TRY400
        gc.unfreeze()


async def _run_once(config: NodeConfig) -> None:
    node = Node(config)
    try:
        await node.start()
        await node.serve()
    except ExceptionGroup as group:
        # Not except*: what is raised in one arrives in a group again with some versions of Python 3.11.
        known = group.subgroup((StartError, CorruptJournal))
        if known is None:
            raise
        raise known.exceptions[0] from None
    finally:
        await node.stop()


def _peer_tls(files: TlsFiles) -> Tls:
    try:
        server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(files.ca))
        server.verify_mode = ssl.CERT_REQUIRED
        client = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(files.ca))
        client.check_hostname = (
            False  # the certificate shows membership; the handshake shows which node it is
        )
        for context in (server, client):
            context.load_cert_chain(files.cert, files.key)
    except (OSError, ssl.SSLError) as error:
        raise StartError(f"TLS for peers cannot be set up from {files.cert}: {error}") from None
    return Tls(server, client)
