"""A node: builds its parts, starts and stops them in order, and serves clients.

Invariant: every opened resource is handed to an exit stack at once, which closes it in all cases.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import time
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_network
from typing import TYPE_CHECKING

from cluster.configuration.configuration import Versions
from cluster.group.group import Group
from cluster.log.segment import CorruptJournal, JournalError
from cluster.net.connection_slots import QUICK_SHARE, ConnectionSlots, SlotLimits
from cluster.runtime.asyncio_runtime import AsyncioRuntime, DirectoryInUse, RealDisk
from cluster.snapshots.restore import UNFINISHED
from cluster.storage.fail_stop import ObsoleteLog, RemovedFromCluster
from cluster.storage.identity import ForeignDirectory
from cluster.transport.peer_links import LinkConfig, PeerLinks
from qq.amqp10_server.connection import served10
from qq.amqp10_server.server import Amqp10Server
from qq.amqp_server import in_process_clients
from qq.amqp_server.channel.channel import Channel
from qq.amqp_server.connection import served
from qq.amqp_server.server import AmqpServer
from qq.amqp_server.traced import TracedChannel
from qq.client_sockets.listener import ClientPort, Tls
from qq.client_sockets.partial_messages import SHARE, PartialMessages
from qq.client_sockets.protocol_choice import ProtocolChooser
from qq.client_sockets.shared import ClientSockets, connection_log
from qq.client_sockets.turns import ProcessorTurns
from qq.errors import StartError
from qq.machine.protocol.commands import DEFAULT_VHOST, PutUser, SetPermissions
from qq.management.logins.http_logins import HttpLogins
from qq.management.management import Management, make_management
from qq.management.nodes.maintenance import ClientDrain
from qq.management.nodes.node_reports import OwnNode
from qq.management.reports.catalog import Product
from qq.node import part_settings
from qq.node.failure import Failure, RemovedError
from qq.node.http_port import HttpPort
from qq.node.live_settings import LiveSettings
from qq.node.memory_watch import MemoryWatch, limit_bytes
from qq.node.node_info import NodeInfo
from qq.node.node_machine import NodeMachine
from qq.node.node_metrics import NodeMetrics
from qq.node.notices import log_differences, log_new_cluster
from qq.node.readiness import Readiness, catch_up
from qq.node.reloading import RereadFiles
from qq.node.rescue import watch_requests
from qq.node.turn_pacing import TurnPacing
from qq.process import descriptors, garbage
from qq.sessions.broker import END_CLAIMS_S, Broker, QueueReplica
from qq.sessions.login import SALT_BYTES, hash_password
from qq.shovels.carrier import ShovelCarrier
from qq.shovels.connecting import READ_AHEAD_BYTES, Connector
from qq.stored.content import content_of
from qq.tls import contexts as tls

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Sequence
    from pathlib import Path

    from qq.client_sockets.protocol_choice import ServedProtocol
    from qq.config import NodeConfig

    OpenDisk = Callable[[Path], RealDisk]
    MakeRuntime = Callable[[asyncio.AbstractEventLoop, Callable[[BaseException], None]], AsyncioRuntime]

log = logging.getLogger(__name__)

SWITCH_INTERVAL_S = 0.0005
"""Seconds between thread switches of the interpreter.

With its default of 5 ms, a busy event loop would delay the report of the fsync thread for that long.
"""
APPLIED_POLL_S = 0.02
WATCH_PAUSE_S = 60.0
"""Seconds that work of the management pauses after an error in it."""
LEADER_HANDOVER_S = 2.0
LAST_SYNC_S = 2.0
REPAIRS_MAX = 3
"""Most restarts in succession after damage soon after a start. More damage is no accident, and the node stops."""
SHUTDOWN = "broker forced connection closure with reason 'shutdown'"
"""RabbitMQ's text for clients when the node stops."""
DAMAGED_AGAIN_S = 30.0
"""Seconds after a start within which found damage counts towards `REPAIRS_MAX`."""


@dataclass(frozen=True)
class Node:
    """A node that is connected to its cluster; made by `start`."""

    config: NodeConfig
    runtime: AsyncioRuntime
    failure: Failure
    files: RereadFiles
    disk: RealDisk
    group: Group
    broker: Broker
    links: PeerLinks
    http: HttpPort
    maintenance: ClientDrain
    readiness: Readiness
    memory: MemoryWatch
    sockets: ClientSockets
    served: Sequence[ServedProtocol]
    """The client protocols of each port."""
    shovels: ShovelCarrier
    management: Management

    async def serve(self) -> None:
        """Serve AMQP until cancelled.

        Raises StartError if the listener cannot be opened or the node fails. Raises CorruptJournal if the log is
        damaged, and ObsoleteLog if the node has discarded an obsolete log. All are raised in an exception group, as by
        a task group.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.failure.raised())
            _watch_management(self.management, tasks)
            tasks.create_task(self.memory.watch())
            tasks.create_task(self.files.watch(self.links))
            await self._wait_serving()
            self.memory.begin()
            tasks.create_task(watch_requests(self.config.data_dir, self.management))
            tasks.create_task(self.shovels.run(self.management.changes.apply))
            await self._serve_clients(tasks)

    async def _wait_serving(self) -> None:
        reporting = asyncio.ensure_future(self.readiness.log_changes())
        try:
            await self._wait_applied()
        finally:
            reporting.cancel()

    async def _wait_applied(self) -> None:
        submissions, flaw = self.broker.submissions, self.group.own_status.flaw
        await catch_up(
            lambda: self.broker.live and flaw() is None, submissions.read_barrier, self.runtime.monotonic
        )
        while not self.broker.machine.users:
            if self.group.leader == self.config.name:
                salt = self.runtime.random.randbytes(SALT_BYTES)
                user = self.config.default_user
                hashed = hash_password(salt, self.config.default_password.encode())
                self.broker.submissions.add(PutUser(user, salt, hashed, ["administrator"]))
                self.broker.submissions.add(SetPermissions(user, DEFAULT_VHOST, ".*", ".*", ".*"))
            await asyncio.sleep(APPLIED_POLL_S)

    async def _serve_clients(self, tasks: asyncio.TaskGroup) -> None:
        """Listen for clients, except while the node is under maintenance."""
        ports: list[asyncio.Task[None]] = []

        async def open_ports() -> None:
            ports.extend([tasks.create_task(listener.serve()) for listener in await self._listen()])
            self.readiness.is_serving = True
            self.http.begin()

        async def close_ports() -> None:
            self.readiness.is_serving = False
            for port in ports:
                port.cancel()
            await asyncio.wait(ports)
            ports.clear()

        await self.maintenance.watch(open_ports, close_ports)

    async def _listen(self) -> list[ClientPort]:
        config, address, contexts = self.config, self.config.address, self.files.client_tls
        ports: list[ClientPort] = []
        if config.tls is not None and contexts is not None and address.amqps_port is not None:
            name_in = partial(tls.name_in, login_from=config.tls.cert_login_from)
            speaks_tls = Tls(lambda: contexts.current, name_in)
            ports.append(await self._listen_on(config.amqps_host, address.amqps_port, speaks_tls))
        ports.append(await self._listen_on(config.amqp_host, address.amqp_port))
        return ports

    async def _listen_on(self, host: str, port: int, speaks_tls: Tls | None = None) -> ClientPort:
        what = "AMQP" if speaks_tls is None else "AMQP over TLS"
        proxies = [ip_network(network) for network in self.config.proxy_protocol_from]
        choose = partial(ProtocolChooser, self.runtime, self.sockets, self.served)
        listener = ClientPort(self.sockets, choose, speaks_tls, proxies)
        try:
            await listener.listen(host, port)
        except OSError as error:
            raise StartError(f"{what} cannot listen on {host}:{port}: {error.strerror}") from None
        log.info("serving %s on %s:%d", what, host, port)
        return listener


async def start(
    config: NodeConfig,
    closing: AsyncExitStack,
    *,
    open_disk: OpenDisk = RealDisk,
    make_runtime: MakeRuntime = AsyncioRuntime,
) -> Node:
    """Build the node and connect it to its cluster; raises StartError.

    Closing `closing` stops the node, even a partially started node. The node first hands leadership over, so that its
    peers need no election timeout. At last the group writes a checkpoint of all that its log durably holds, so that the
    next start replays no entries.
    """
    if config.is_open_to_all:
        text = "[users]: %s may log in from anywhere, with a password that everybody knows, as administrator"
        log.warning(text, config.default_user)
    memory_bytes = limit_bytes(config.limits)
    if memory_bytes < config.limits.message_bytes:
        # The first part of such a message would raise an alarm, which would stop the reading of the rest.
        raise StartError(
            f"[limits] memory_high_watermark: {config.limits.memory_high_watermark} of the memory is {memory_bytes} "
            f"bytes, which must be at least message_bytes, {config.limits.message_bytes}"
        )
    shares = descriptors.shares(config.limits, memory_bytes)
    loop = asyncio.get_running_loop()
    failure = Failure(config.name)
    loop.set_exception_handler(failure.unhandled)
    runtime = make_runtime(loop, failure.come)
    files = RereadFiles(config)
    tokens, tracer = part_settings.verifier(config), part_settings.tracer(config)
    for outside in filter(None, (tokens, tracer)):
        closing.push_async_callback(outside.close)

    machine = NodeMachine(content_of)
    disk = closing.enter_context(_opened(config.data_dir, open_disk))
    links = _make_links(config, files, machine)
    closing.push_async_callback(links.stop)
    http_limits = part_settings.http_limits(config, shares.http)
    handshakes = part_settings.http_handshakes(config, files.http_tls)
    http = await HttpPort.open(
        config.http_host, config.address.http_port, http_limits, failure.come, handshakes
    )
    closing.push_async_callback(http.close)

    with _start_errors(config.data_dir):
        group = await _read(
            partial(Group, part_settings.group_config(config), machine, runtime, disk, links), closing
        )
        replica = QueueReplica(config.name, machine, group, disk, runtime)
        broker = Broker(replica, config.loopback_users, config.limits)
        broker.logins.verifier = tokens
        maintenance = ClientDrain(group, broker, config.limits.drain_grace_s)
        readiness = Readiness(config.name, group, links, maintenance, broker.no_quorum.why_stuck)
        log_new_cluster(config, group)
        group.start(broker)
    closing.push_async_callback(_leave, config.name, group, broker, failure, readiness)
    log_differences(config, group)
    await _start(links, config)

    make_channel = Channel if tracer is None else partial(TracedChannel, tracer)
    throttled_log = connection_log()
    slots = ConnectionSlots(
        SlotLimits(shares.strangers, shares.clients, quick_max=shares.strangers // QUICK_SHARE),
        throttled_log=throttled_log,
    )
    memory = MemoryWatch(config.limits, group, runtime)
    partial_messages = PartialMessages(runtime, memory.limit_bytes // SHARE, lambda: len(broker.connections))
    turns = ProcessorTurns(TurnPacing(broker, runtime, time.thread_time).call_after_rest, time.thread_time)
    sockets = ClientSockets(slots, throttled_log, partial_messages, turns, config.limits)
    amqp_server = AmqpServer(broker, part_settings.amqp_settings(config), sockets, make_channel)
    amqp10_server = Amqp10Server(
        broker,
        part_settings.amqp10_settings(config),
        sockets,
        config.limits.client_heartbeat_s,
        config.anonymous_login_user,
        config.amqp_address_v1,
        lambda: [status.name for status in group.statuses.all()],
    )
    shovels = _make_carrier(config, broker, group, amqp_server)
    own = OwnNode(
        product=Product(config.product, config.version, config.cluster_name),
        data_dir=str(config.data_dir.absolute()),
        connections_max=shares.logged_in,
        live=LiveSettings(config, memory, group.alarms),
        write_times=disk.write_times,
        listeners=lambda: part_settings.open_ports(config, http.number, is_serving=readiness.is_serving),
        certificates=part_settings.certificates(config),
        common_settings=config.common(),
        cluster_secrets=files.cluster_secrets,
        peers=links,
    )
    management = make_management(broker, group, own, shovels)
    metrics = NodeMetrics(config, group, broker, management, own, tracer)
    logins = HttpLogins(broker, shares.http)
    info = NodeInfo(
        group, management.members, readiness, metrics, logins, part_settings.login_provider(config, tokens)
    )
    http.show(info, management, metrics.snapshot)
    return Node(
        config,
        runtime,
        failure,
        files,
        disk,
        group,
        broker,
        links,
        http,
        maintenance,
        readiness,
        memory,
        sockets,
        [served(amqp_server), served10(amqp10_server)],
        shovels,
        management,
    )


@contextmanager
def _opened(directory: Path, open_disk: OpenDisk) -> Generator[RealDisk]:
    """Open the disk for the block. Raises StartError if it is unavailable or holds an unfinished restore."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        disk = open_disk(directory)
    except DirectoryInUse as error:
        raise StartError(str(error)) from None
    except OSError as error:
        raise StartError(f"data directory {directory}: {error.strerror}") from None
    try:
        if (directory / UNFINISHED).exists():
            raise StartError(
                f"{directory}: a restore was begun there and did not end: give `qq restore` again, or remove "
                f"{UNFINISHED} in it"
            )
        yield disk
    finally:
        disk.close()


def _make_links(config: NodeConfig, files: RereadFiles, machine: NodeMachine) -> PeerLinks:
    link_config = LinkConfig(
        config.name,
        config.cluster_name,
        bind=(config.peer_host, config.address.peer_port),
        versions=Versions(*machine.versions),
        listed=part_settings.addresses(config.nodes),
        prefers_listed=config.peer_addresses == "file",
        seeds=part_settings.seeds(config),
    )
    tls = files.peer_tls.current if files.peer_tls else None
    return PeerLinks(link_config, files.cluster_secrets(), tls=tls)


async def _read(make_group: Callable[[], Group], closing: AsyncExitStack) -> Group:
    """Make the group on a thread, because it reads its log. No part that it uses is closed before that has ended."""

    def read() -> Group:
        with garbage.none_expected():
            return make_group()

    reading = asyncio.ensure_future(asyncio.to_thread(read))
    closing.push_async_callback(asyncio.wait, [reading])
    return await asyncio.shield(reading)


@contextmanager
def _start_errors(directory: Path) -> Generator[None]:
    """Turn errors that make the log unusable into a StartError that names the directory."""
    try:
        yield
    except RemovedFromCluster as error:
        raise RemovedError(f"{directory}: {error}") from error
    except CorruptJournal as error:
        raise StartError(
            f"{directory}: {error}; no other node has a copy: put the file back from a backup "
            f"(`qq inspect {directory}` shows its contents)"
        ) from error
    except (JournalError, ForeignDirectory, OSError) as error:
        raise StartError(f"{directory}: {error}") from error


async def _start(links: PeerLinks, config: NodeConfig) -> None:
    try:
        await links.start()
    except OSError as error:
        port = config.address.peer_port
        raise StartError(f"peers cannot be served on {config.peer_host}:{port}: {error.strerror}") from None


def _make_carrier(config: NodeConfig, broker: Broker, group: Group, amqp_server: AmqpServer) -> ShovelCarrier:
    connector = Connector(
        lambda vhost: in_process_clients.connect(amqp_server, vhost, READ_AHEAD_BYTES),
        config.shovels_may_reach,
        config.limits.message_bytes,
        broker.runtime.random,
    )
    return ShovelCarrier(
        broker.machine,
        connector,
        leads=lambda: group.leader == config.name,
        cluster=lambda: amqp_server.current_settings.cluster_name,
        wall_ms=broker.runtime.wall_ms,
    )


def _watch_management(management: Management, tasks: asyncio.TaskGroup) -> None:
    """Begin the work that the management repeats."""
    for watch in (management.watch, management.sessions.watch, management.vhost_clients.watch):
        tasks.create_task(_watch(watch))


async def _watch(watch: Callable[[], Awaitable[None]]) -> None:
    """Repeat work for ever. An error there does not end the node, because no message depends on the management."""
    while True:
        try:
            await watch()
        except Exception:
            log.exception("work of the management pauses after an error")
        await asyncio.sleep(WATCH_PAUSE_S)


async def _leave(name: str, group: Group, broker: Broker, failure: Failure, readiness: Readiness) -> None:
    """Hand leadership over, disconnect the clients, and stop the group."""
    readiness.is_stopping = True
    if not failure.has_come and group.leadership.transfer():
        await _until(lambda: group.leader not in (name, None) or group.members.is_alone, LEADER_HANDOVER_S)
    for connection in list(broker.connections.values()):
        connection.shut_down(SHUTDOWN)
    # First the claims of the clients end (`Broker.end_claims`): otherwise other nodes would refuse the same clients.
    await _until(lambda: failure.has_come or not broker.submissions.pending_bytes, END_CLAIMS_S)
    await asyncio.sleep(0)
    # The disk should hold all entries that the node has applied, unless that disk has failed.
    await _until(
        lambda: failure.has_come or group.journal.synced_index >= group.engine.applied_index, LAST_SYNC_S
    )
    group.stop()


async def _until(is_so: Callable[[], bool], within_s: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while not is_so():  # noqa: ASYNC110  # of a group, which has no events
                await asyncio.sleep(APPLIED_POLL_S)


async def run(
    config: NodeConfig, *, open_disk: OpenDisk = RealDisk, make_runtime: MakeRuntime = AsyncioRuntime
) -> None:
    """Serve until cancelled. Raises StartError when the node cannot start or cannot go on.

    A node with a damaged log is restarted: it sets that log aside and returns without a vote. A node with an obsolete
    log, which leaves no space for its peers' entries, is restarted without that log. Tests may replace `open_disk` and
    `make_runtime` with versions that inject faults of the disk or the clock.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    descriptors.allow_all()
    gc.set_threshold(*garbage.THRESHOLDS)
    clock = asyncio.get_running_loop().time
    repairs = 0
    while True:
        began_s = clock()
        try:
            return await _run_once(config, open_disk, make_runtime)
        except CorruptJournal as damage:
            repairs = repairs + 1 if clock() - began_s < DAMAGED_AGAIN_S else 1
            if repairs > REPAIRS_MAX:
                raise StartError(
                    f"{config.data_dir}: the log is damaged again and again, so check the disk: {damage}"
                ) from damage
            log.error("node %s restarts: %s", config.name, damage)  # noqa: TRY400
        except ObsoleteLog as error:
            log.warning("node %s restarts: %s", config.name, error)
        garbage.collect()  # frees the state of the node that has ended


async def _run_once(config: NodeConfig, open_disk: OpenDisk, make_runtime: MakeRuntime) -> None:
    try:
        async with AsyncExitStack() as closing:
            node = await start(config, closing, open_disk=open_disk, make_runtime=make_runtime)
            await node.serve()
    except ExceptionGroup as group:
        # Not except*: some versions of Python 3.11 wrap an exception that is raised there in a group again.
        known = group.subgroup((StartError, CorruptJournal, ObsoleteLog))
        if known is None:
            raise
        raise known.exceptions[0] from None
