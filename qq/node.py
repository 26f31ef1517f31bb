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
import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from cluster.engine import Timing
from cluster.envelope import Alarm
from cluster.group import Group, GroupConfig
from cluster.identity import ForeignDirectory
from cluster.links import Limits as LinkLimits
from cluster.links import PeerLinks
from cluster.realworld import AsyncioRuntime, DirectoryInUse, RealDisk
from cluster.segment import CorruptJournal, JournalError
from qq import memory, tls
from qq.amqp.connection import Settings
from qq.amqp.content import content_of
from qq.broker.broker import Broker
from qq.broker.listener import ClientConnection
from qq.broker.login import SALT_BYTES, Login, hash_password
from qq.broker.tls_listener import TlsListener
from qq.errors import StartError
from qq.http.app import build_app, listen
from qq.http.view import ClusterStatus, NodeState, NodeStatus
from qq.machine.commands import DEFAULT_VHOST, PutUser, SetPermissions
from qq.machine.machine import QueueMachine
from qq.management import Management
from qq.metrics import DiskMetrics, MemoryMetrics, MetricsSnapshot, RaftMetrics, node_registry

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Collection
    from pathlib import Path

    from qq.config import ClientTls, NodeConfig

    OpenDisk = Callable[[Path], RealDisk]
    MakeRuntime = Callable[[asyncio.AbstractEventLoop, Callable[[BaseException], None]], AsyncioRuntime]

log = logging.getLogger(__name__)

SWITCH_INTERVAL_S = 0.0005
"""The interpreter's default of 5 ms is how long the fsync thread would wait for a busy loop to let it report."""
GC_THRESHOLD = 100_000
"""Garbage is almost all acyclic here; a full collection walks the whole backlog's bookkeeping."""
CATCH_UP_POLL_S = 0.02
MEMORY_CHECK_INTERVAL_S = 1.0
CERTIFICATE_CHECK_INTERVAL_S = 5.0
HTTP_LOGIN_TIMEOUT_S = 10.0
"""As for the handshake of AMQP: longer than any answer is held back."""
LEADER_HANDOVER_S = 2.0
LAST_SYNC_S = 2.0
REPAIRS_MAX = 3
"""Damage so often in a row, each time soon after the start, is no accident: the node gives up."""
DAMAGED_AGAIN_S = 30.0
"""What "soon after the start" means."""
BACKLOG = 1024
FRAME_SLACK_BYTES = 64 * 1024 * 1024
"""A peer frame holds one large message, or many small ones up to a few MiB, and their frames' envelopes."""


class Node:
    """A running node, and what its HTTP interface sees of it."""

    def __init__(self, config: NodeConfig, open_disk: OpenDisk, make_runtime: MakeRuntime) -> None:
        self.config = config
        self._open_disk = open_disk
        self._failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.runtime = make_runtime(asyncio.get_running_loop(), self._fail)
        asyncio.get_running_loop().set_exception_handler(self._unhandled)
        self.machine = QueueMachine(content_of)
        self._started = self._stopping = False
        self._amqp: asyncio.Server | None = None
        limits = config.limits
        self.memory_limit_bytes = limits.memory_high_watermark_bytes or int(
            limits.memory_high_watermark * memory.available_bytes()
        )

    # Start and stop

    async def start(self) -> None:
        """Come up as far as serving HTTP and taking part in the cluster; raises StartError."""
        config = self.config
        self._tls = tls.for_clients(config.tls) if config.tls else None
        self._peer_tls = tls.for_peers(config.peer_tls) if config.peer_tls else None
        self.disk = self._opened_disk()
        self.links = PeerLinks(
            config.name,
            config.cluster_name,
            config.secret.encode(),
            {node.name: (node.host, node.peer_port) for node in config.nodes if node.name != config.name},
            (config.peer_host, config.address.peer_port),
            tls=self._peer_tls.current if self._peer_tls else None,
            limits=LinkLimits(frame_bytes_max=config.limits.message_bytes + FRAME_SLACK_BYTES),
        )
        self.broker = self._make_broker()
        self.group = Group(
            self._group_config(), self.machine, self.runtime, self.disk, self.links, self.broker
        )
        self.broker.attach(self.group, self.disk)
        try:
            self.group.start()
        except CorruptJournal as error:
            raise StartError(
                f"{config.data_dir}: {error}; no other node has a copy: put the file back from a backup "
                f"(`qq inspect {config.data_dir}` tells what is there)"
            ) from error
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
        app = build_app(self, self.management, node_registry(self.metrics))
        self._http = await listen(app, config.http_host, config.address.http_port)

    async def serve(self) -> None:
        """Serve AMQP until cancelled.

        Raises StartError if the listener cannot be opened or the node fails, CorruptJournal if its log is damaged; in a
        group, as a task group does.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_for_failure())
            tasks.create_task(self.management.watch())
            tasks.create_task(self._watch_memory())
            tasks.create_task(self._watch_certificates())
            await self._catch_up()
            gc.collect()
            gc.freeze()
            await self._listen(tasks)

    async def _watch_for_failure(self) -> None:
        error = await asyncio.shield(self._failure)  # who stops waiting does not take it away from the others
        if isinstance(error, CorruptJournal):
            raise error
        what = f"its disk failed: {error}" if isinstance(error, OSError) else _named(error)
        raise StartError(f"node {self.config.name} stops: {what}") from error

    async def _watch_memory(self) -> None:
        while True:
            self.group.low_on_memory = memory.resident_bytes() > self.memory_limit_bytes
            await asyncio.sleep(MEMORY_CHECK_INTERVAL_S)

    async def _watch_certificates(self) -> None:
        while True:
            await asyncio.sleep(CERTIFICATE_CHECK_INTERVAL_S)
            if self._tls is not None:
                self._tls.reload()
            if self._peer_tls is not None and self._peer_tls.reload():
                self.links.renew_tls(self._peer_tls.current)

    async def _catch_up(self) -> None:
        # The group is not asynchronous: it has no event to wait for.
        while not self.broker.live or self.group.describe_standing() is not None:  # noqa: ASYNC110
            await asyncio.sleep(CATCH_UP_POLL_S)
        while not self.machine.users:
            if self.group.leader == self.config.name:
                salt = self.runtime.random.randbytes(SALT_BYTES)
                user = self.config.default_user
                hashed = hash_password(salt, self.config.default_password.encode())
                self.broker.submissions.add(PutUser(user, salt, hashed, ["administrator"]))
                self.broker.submissions.add(SetPermissions(user, DEFAULT_VHOST, ".*", ".*", ".*"))
            await asyncio.sleep(CATCH_UP_POLL_S)

    async def _listen(self, tasks: asyncio.TaskGroup) -> None:
        config, address = self.config, self.config.address
        if self._tls is not None and config.tls is not None and address.amqps_port is not None:
            await self._listen_for_tls(self._tls, config.tls, address.amqps_port, tasks)
        host, port = config.amqp_host, address.amqp_port
        loop = asyncio.get_running_loop()
        try:
            self._amqp = await loop.create_server(
                partial(ClientConnection, self.broker), host, port, backlog=BACKLOG
            )
        except OSError as error:
            raise StartError(f"AMQP cannot listen on {host}:{port}: {error.strerror}") from None
        log.info("serving AMQP on %s:%d", host, port)

    async def _listen_for_tls(
        self,
        contexts: tls.Reloadable[ssl.SSLContext],
        settings: ClientTls,
        port: int,
        tasks: asyncio.TaskGroup,
    ) -> None:
        host = self.config.amqps_host
        name_in = partial(tls.name_in, login_from=settings.cert_login_from)
        listener = TlsListener(self.broker, lambda: contexts.current, name_in)
        try:
            await listener.listen(host, port)
        except OSError as error:
            raise StartError(f"AMQP over TLS cannot listen on {host}:{port}: {error.strerror}") from None
        tasks.create_task(listener.serve())
        log.info("serving AMQP over TLS on %s:%d", host, port)

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
            log.critical("cannot go on: %s", _named(error))
        if not self._failure.done():
            self._failure.set_result(error)

    def _unhandled(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An exception that no component expects breaks an invariant: better no node than a wrong one."""
        log.critical("unexpected: %s", context["message"], exc_info=context.get("exception"))
        self._fail(context.get("exception") or RuntimeError(context["message"]))

    # Parts

    def _opened_disk(self) -> RealDisk:
        try:
            self.config.data_dir.mkdir(parents=True, exist_ok=True)
            return self._open_disk(self.config.data_dir)
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
            heartbeat_s=config.limits.client_heartbeat_s,
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
        group, queues = self.group, list(self.machine.queues())
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
                alarm=Alarm.DISK in group.alarms,
            ),
            memory=MemoryMetrics(self.memory_limit_bytes, alarm=Alarm.MEMORY in group.alarms),
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

    async def authenticate(self, user: str, password: str, peer_host: str) -> Collection[str] | None:
        decided: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def answer(admitted: bool) -> None:
            if not decided.done():
                decided.set_result(admitted)

        attempt = self.broker.logins.attempt(Login(user, password.encode(), peer_host), answer)
        try:
            admitted = await asyncio.wait_for(decided, HTTP_LOGIN_TIMEOUT_S)
        except TimeoutError:  # without a majority nobody is refused for good
            admitted = False
        finally:
            if attempt is not None:
                attempt.cancel()
        return self.machine.users[user].tags if admitted else None


async def run(
    config: NodeConfig, *, open_disk: OpenDisk = RealDisk, make_runtime: MakeRuntime = AsyncioRuntime
) -> None:
    """Serve until cancelled. Raises StartError when the node cannot start or cannot go on.

    A node whose log is damaged is started anew: it sets that log aside and comes back without a vote. `open_disk` and
    `make_runtime` are for who wants to hurt the disk or the clock.
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
            return await _run_once(Node(config, open_disk, make_runtime))
        except CorruptJournal as damage:
            repairs = repairs + 1 if clock() - began_s < DAMAGED_AGAIN_S else 1
            if repairs > REPAIRS_MAX:
                raise StartError(
                    f"{config.data_dir}: the log is damaged again and again, so look at the disk: {damage}"
                ) from damage
            log.error("node %s starts anew: %s", config.name, damage)  # noqa: TRY400
        gc.unfreeze()


async def _run_once(node: Node) -> None:
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


def _named(error: BaseException) -> str:
    """Ours say in a sentence what is wrong; of a KeyError the text is nothing but the key."""
    is_bare = type(error).__module__ == "builtins" and not isinstance(error, OSError)
    return f"{type(error).__name__}: {error}" if is_bare else str(error)
