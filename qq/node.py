"""One node: the composition root. Builds everything, owns the order of start and stop.

Start: the disk (locked), HTTP, which tells that the node is alive while the log is read (verified, on a thread), the
links, and, once this node has caught up, the AMQP listener. Stop: the listener, leadership handed over,
the clients, the last checkpoint, the links, the disk. A node that finds its log damaged starts anew in the same process
and is repaired from the others.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import sys
from contextlib import suppress
from functools import partial
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any

from cluster.complaints import Complaints
from cluster.configuration import PeerAddress, Versions, host_problem
from cluster.envelope import Alarm
from cluster.group import Group
from cluster.group_config import GroupConfig
from cluster.identity import ForeignDirectory
from cluster.links import PeerLinks
from cluster.log.segment import CorruptJournal, JournalError
from cluster.new_cluster import UNFINISHED
from cluster.realworld import AsyncioRuntime, DirectoryInUse, RealDisk
from cluster.stopping import ObsoleteLog, RemovedFromCluster
from cluster.strangers import Places
from cluster.timing import Timing
from qq import descriptors, garbage, memory, tls
from qq.amqp.connection import Settings
from qq.amqp_server import own_clients
from qq.amqp_server.channel.channel import Channel
from qq.amqp_server.listener import AmqpPort, Tls
from qq.amqp_server.server import AmqpServer, complaints
from qq.amqp_server.traced import TracedChannel
from qq.config import ConfigError, read_secrets
from qq.errors import StartError
from qq.http.app import READING, build_app, listen, reading_app
from qq.http.server import HttpLimits
from qq.http.view import (
    NOT_CARRIED_OUT,
    CertificateFiles,
    ClusterStatus,
    Listener,
    LoggedIn,
    LoginThrottled,
    NodeState,
    NodeStatus,
    Product,
    Unavailable,
)
from qq.machine.commands import DEFAULT_VHOST, PutUser, SetPermissions
from qq.machine.machine import QueueMachine
from qq.management import Management
from qq.management.maintenance import ClientDrain
from qq.management.nodes import OwnNode
from qq.metrics import (
    DelayMetrics,
    DiskMetrics,
    MemoryMetrics,
    MetricsSnapshot,
    RaftMetrics,
    infos,
    node_registry,
)
from qq.reloadable import Reloadable
from qq.scopes import TokenUser
from qq.sessions.broker import Broker
from qq.sessions.login import SALT_BYTES, Login, hash_password
from qq.shovels.carrier import ShovelCarrier
from qq.shovels.connecting import READ_AHEAD_BYTES
from qq.stored.content import content_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from cluster.peers import MemberStatus
    from qq.config import NodeAddress, NodeConfig, NodeLimits, Seed
    from qq.http.view import ClusterMember
    from qq.oauth2.code_flow import CodeFlow
    from qq.oauth2.verifier import Verifier
    from qq.sessions.login import Attempt, Outcome
    from qq.tracing.tracer import OpenTelemetryTracer

    OpenDisk = Callable[[Path], RealDisk]
    MakeRuntime = Callable[[asyncio.AbstractEventLoop, Callable[[BaseException], None]], AsyncioRuntime]

log = logging.getLogger(__name__)

SWITCH_INTERVAL_S = 0.0005
"""How often the interpreter switches threads. With its default of 5 ms the fsync thread would wait for that long until
a busy loop lets it report."""
APPLIED_POLL_S = 0.02
WAITING_NOTICE_S = 2.0
"""A node that does not serve after this time says what it waits for, and again when that changes; one whose cluster is
there needs less."""
MEMORY_CHECK_INTERVAL_S = 1.0
RATES_PAUSE_S = 60.0
"""How long rates are not counted after an error in counting them."""
FILES_CHECK_INTERVAL_S = 1.0
"""How soon it is noticed that certificates or secrets have changed. It takes some calls of stat()."""
HTTP_LOGIN_TIMEOUT_S = 12.0
"""How long a request waits for its login: longer than any login waits and its answer is held back."""
HTTP_LOGIN_WAIT_MAX_S = 5.0
"""A login that would wait for longer is answered with 429."""
HTTP_LOGINS_SHARE = 4
"""One in so many connections may wait for a login; when more would, they are answered with 429, too."""
LEADER_HANDOVER_S = 2.0
LAST_SYNC_S = 2.0
REPAIRS_MAX = 3
"""How often in a row the node may find damage soon after a start: more often is no accident, and it gives up."""
SHUTDOWN = "broker forced connection closure with reason 'shutdown'"
"""RabbitMQ's text for clients when the node stops."""
DAMAGED_AGAIN_S = 30.0
"""Damage that is found within this many seconds after a start counts as found soon after it."""


class RemovedError(StartError):
    """The node was removed from its cluster."""

    exit_status = (
        os.EX_CONFIG
    )  # as with a configuration: a start with the same directory ends in the same way


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
        self._complaints = Complaints(log)
        self._garbage = garbage.Collector()
        self._is_serving = False
        limits = config.limits
        self._shares = descriptors.shares(limits)
        self._http_logins = 0
        """Logins over HTTP that wait, for others or for their answer."""
        self.memory_limit_bytes = limits.memory_high_watermark_bytes or int(
            limits.memory_high_watermark * memory.available_bytes()
        )

    # Start and stop

    async def start(self) -> None:
        """Come up as far as serving HTTP and taking part in the cluster; raises StartError."""
        config = self.config
        if config.is_open_to_all:
            text = (
                "[users]: %s may log in from anywhere, with a password that everybody knows, as administrator"
            )
            log.warning(text, config.default_user)
        self._tls = tls.for_clients(config.tls) if config.tls else None
        self._peer_tls = tls.for_peers(config.peer_tls) if config.peer_tls else None
        self._tokens = _tokens(config)
        self.login_provider = _login_provider(config, self._tokens)
        self._tracer = _tracer(config)
        secret_file = config.secret_file
        self._secrets = Reloadable([secret_file], partial(read_secrets, secret_file)) if secret_file else None
        self.disk = self._opened_disk()
        if (config.data_dir / UNFINISHED).exists():
            raise StartError(
                f"{config.data_dir}: a restore was begun there and did not end: give `qq restore` again, or remove "
                f"{UNFINISHED} in it"
            )
        self.links = PeerLinks(
            config.name,
            config.cluster_name,
            self._cluster_secrets(),
            (config.peer_host, config.address.peer_port),
            versions=Versions(*self.machine.versions),
            tls=self._peer_tls.current if self._peer_tls else None,
            listed=_addresses(config.nodes),
            prefers_listed=config.peer_addresses == "file",
            seeds=_seeds(config),
        )
        limits = _http_limits(config.limits, self._shares.http)
        app = reading_app(self, limits)
        self._http = await listen(app, config.http_host, config.address.http_port, limits)
        self._opening = asyncio.ensure_future(asyncio.to_thread(self._read_log))
        try:
            self.group = await asyncio.shield(self._opening)
            self.broker = Broker(
                config.name,
                self.machine,
                self.group,
                self.disk,
                self.runtime,
                config.loopback_users,
                config.limits,
            )
            self.broker.logins.verifier = self._tokens
            self._maintenance = ClientDrain(self.group, self.broker, config.limits.drain_grace_s)
            self._tell_beginning()
            self.group.start(self.broker)
        except RemovedFromCluster as error:
            raise RemovedError(f"{config.data_dir}: {error}") from error
        except CorruptJournal as error:
            raise StartError(
                f"{config.data_dir}: {error}; no other node has a copy: put the file back from a backup "
                f"(`qq inspect {config.data_dir}` tells what is there)"
            ) from error
        except (JournalError, ForeignDirectory, OSError) as error:
            raise StartError(f"{config.data_dir}: {error}") from error
        self._started = True
        self._tell_differences()
        try:
            await self.links.start()
        except OSError as error:
            port = config.address.peer_port
            raise StartError(
                f"peers cannot be served on {config.peer_host}:{port}: {error.strerror}"
            ) from None
        product = Product(config.product, config.version, config.cluster_name)
        self._shovels = self._make_carrier()
        self.management = Management(
            self.broker,
            self.group,
            product,
            self._own_node(),
            self.links,
            self._cluster_secrets,
            self._shovels,
        )
        await self._http.replace(build_app(self, self.management, node_registry(self.metrics), limits))

    async def serve(self) -> None:
        """Serve AMQP until cancelled.

        Raises StartError if the listener cannot be opened or the node fails, CorruptJournal if its log is damaged,
        ObsoleteLog if it has given it up; in a group, as a task group does.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_for_failure())
            tasks.create_task(self._watch_rates())
            tasks.create_task(self.management.watch_sessions())
            tasks.create_task(self._watch_memory())
            tasks.create_task(self._watch_files())
            await self._wait_serving()
            self._amqp_server = self._make_amqp_server()
            self._garbage.begin()
            tasks.create_task(self._shovels.run(self.management.change))
            await self._serve_clients(tasks)

    async def _watch_for_failure(self) -> None:
        error = await asyncio.shield(self._failure)  # who stops waiting does not take it away from the others
        if isinstance(error, CorruptJournal | ObsoleteLog):
            raise error
        if isinstance(error, RemovedFromCluster):
            raise RemovedError(f"node {self.config.name} stops: {error}") from error
        what = f"its disk failed: {error}" if isinstance(error, OSError) else _named(error)
        raise StartError(f"node {self.config.name} stops: {what}") from error

    async def _watch_memory(self) -> None:
        while True:
            try:
                self.group.alarms.low_on_memory = self._is_low_on_memory()
            except OSError as error:  # whether publishers wait stays as it is
                self._complaints.about("memory", f"cannot tell how much memory is in use: {error}")
            await asyncio.sleep(MEMORY_CHECK_INTERVAL_S)

    def _is_low_on_memory(self) -> bool:
        is_low = memory.resident_bytes() > self.memory_limit_bytes
        if self._garbage.look(is_short=is_low, now_s=self.runtime.monotonic()):
            is_low = memory.resident_bytes() > self.memory_limit_bytes
        return is_low

    def _cluster_secrets(self) -> tuple[bytes, ...]:
        """The secrets of the cluster that are in use now."""
        return self._secrets.current if self._secrets else self.config.secrets

    async def _watch_files(self) -> None:
        while True:
            await asyncio.sleep(FILES_CHECK_INTERVAL_S)
            if self._tls is not None:
                self._tls.reload()
            if self._peer_tls is not None and self._peer_tls.reload():
                self.links.renew_tls(self._peer_tls.current)
            if self._secrets is not None and self._secrets.reload():
                self.links.renew_secrets(self._secrets.current)

    async def _watch_rates(self) -> None:
        """Take samples for rates. An error there does not end the node: no message depends on what the page shows."""
        while True:
            try:
                await self.management.watch()
            except Exception:
                log.exception("rates are not counted for a while")
            await asyncio.sleep(RATES_PAUSE_S)

    async def _wait_serving(self) -> None:
        telling = asyncio.ensure_future(self._tell_what_is_awaited())
        try:
            await self._wait_applied()
        finally:
            telling.cancel()

    async def _tell_what_is_awaited(self) -> None:
        told = None
        while True:
            await asyncio.sleep(WAITING_NOTICE_S)
            if (reason := self.ready()) != told:
                told = reason
                log.info("not serving yet: %s", reason)

    async def _wait_applied(self) -> None:
        # The group is not asynchronous: it has no event to wait for.
        while not self.broker.live or self.group.own_status.flaw() is not None:  # noqa: ASYNC110
            await asyncio.sleep(APPLIED_POLL_S)
        while not self.machine.users:
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
            self._is_serving = True

        async def close_ports() -> None:
            self._is_serving = False
            for port in ports:
                port.cancel()
            await asyncio.wait(ports)
            ports.clear()

        await self._maintenance.watch(open_ports, close_ports)

    async def _listen(self) -> list[AmqpPort]:
        config, address = self.config, self.config.address
        ports: list[AmqpPort] = []
        if config.tls is not None and self._tls is not None and address.amqps_port is not None:
            contexts = self._tls
            name_in = partial(tls.name_in, login_from=config.tls.cert_login_from)
            speaks_tls = Tls(lambda: contexts.current, name_in)
            ports.append(await self._listen_on(config.amqps_host, address.amqps_port, speaks_tls))
        ports.append(await self._listen_on(config.amqp_host, address.amqp_port))
        return ports

    async def _listen_on(self, host: str, port: int, speaks_tls: Tls | None = None) -> AmqpPort:
        what = "AMQP" if speaks_tls is None else "AMQP over TLS"
        proxies = [ip_network(network) for network in self.config.proxy_protocol_from]
        listener = AmqpPort(self._amqp_server, speaks_tls, proxies)
        try:
            await listener.listen(host, port)
        except OSError as error:
            raise StartError(f"{what} cannot listen on {host}:{port}: {error.strerror}") from None
        log.info("serving %s on %s:%d", what, host, port)
        return listener

    async def stop(self) -> None:
        """Stop serving; leadership is handed over first, so that the others need no election timeout.

        The next start replays nothing: the group writes its last checkpoint, of what its log then holds durably.
        """
        self._stopping = True
        if self._started:
            await self._hand_over()
            for connection in list(self.broker.connections.values()):
                connection.shut_down(SHUTDOWN)
            await asyncio.sleep(0)
            await self._finish_sync()
            self.group.stop()
        if hasattr(self, "_opening"):
            await asyncio.wait(
                [self._opening]
            )  # it reads and writes what another process must not touch meanwhile
        if hasattr(self, "_http"):
            await self._http.cleanup()
        if hasattr(self, "_tokens") and self._tokens is not None:
            await self._tokens.close()
        if hasattr(self, "_tracer") and self._tracer is not None:
            await self._tracer.close()
        if hasattr(self, "links"):
            await self.links.stop()
        if hasattr(self, "disk"):
            self.disk.close()

    async def _hand_over(self) -> None:
        if self._failure.done() or not self.group.leadership.transfer():
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(LEADER_HANDOVER_S):
                while self.group.leader in (self.config.name, None) and not self.group.members.is_alone:  # noqa: ASYNC110
                    await asyncio.sleep(APPLIED_POLL_S)

    async def _finish_sync(self) -> None:
        """Wait until this node's disk has all entries that the node has applied, unless that disk has failed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_SYNC_S):
                while self.group.journal.synced_index < self.group.engine.applied_index:
                    if self._failure.done():
                        return
                    await asyncio.sleep(APPLIED_POLL_S)

    def _fail(self, error: BaseException) -> None:
        if not isinstance(error, CorruptJournal | ObsoleteLog):
            log.critical("cannot go on: %s", _named(error))
        if not self._failure.done():
            self._failure.set_result(error)

    def _unhandled(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Stop the node after an exception that no component expects: better no node than a wrong one."""
        text, error = context.get("message"), context.get("exception")
        if _is_of_a_connection(error, context.get("future")):
            log.info("a connection has failed for which nobody waits any more: %s", error)
            return
        rest = ", ".join(
            f"{key} {value!r}" for key, value in context.items() if key not in ("message", "exception")
        )
        log.critical("unexpected: %s (%s)", text or "nothing handles this error", rest, exc_info=error)
        self._fail(error or RuntimeError(text or f"nothing handles: {rest}"))

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
        listed = [config.address] if config.join else config.nodes
        return GroupConfig(
            name=config.name,
            nodes=_addresses(listed),
            cluster=config.cluster_name,
            joins=bool(config.join),
            replaces_emptied=config.replace_emptied,
            raises_version=config.finish_upgrades,
            timing=Timing(
                config.election_timeout_min_s,
                config.election_timeout_max_s,
                config.heartbeat_s,
                learner_bytes_per_s=limits.catch_up_bytes_per_s,
            ),
            segment_bytes=limits.segment_bytes,
            segment_entries=limits.segment_entries,
            cache_bytes=limits.cache_bytes,
            checkpoint_entries=limits.checkpoint_entries,
            checkpoint_bytes=limits.checkpoint_bytes,
            checkpoint_interval_s=limits.checkpoint_interval_s,
            retained_bytes=limits.retained_bytes,
            disk_free_limit_bytes=limits.disk_free_limit_bytes,
        )

    def _read_log(self) -> Group:
        with garbage.none_expected():
            return Group(self._group_config(), self.machine, self.runtime, self.disk, self.links)

    def _tell_beginning(self) -> None:
        """Log that this node begins a cluster of its own, which may not be meant: it may have lost its disk."""
        config = self.config
        is_new = self.group.last_index <= 1  # every log begins with one entry
        if is_new and len(config.nodes) == 1 and not config.join:
            log.info(
                "the data directory is new, and [[nodes]] lists no other node: this node begins a cluster of its own; "
                "to join one, it needs `join`"
            )

    def _tell_differences(self) -> None:
        """Log in which members the configuration differs from the log, which counts."""
        config, agreed = self.config, self.group.configurations.newest
        if config.join or not agreed.cluster:
            return
        listed = _addresses(config.nodes)
        members = {member.name: member.address for member in agreed.members}
        told = [f"{name} is not listed" for name in sorted(members.keys() - listed)]
        told += [f"{name} is no member" for name in sorted(listed.keys() - members)]
        if config.peer_addresses == "log":
            told += [
                f"{name} is at {members[name]} and not at {listed[name]}"
                for name in sorted((listed.keys() & members) - {config.name})
                if listed[name] != members[name]
            ]
        if told:
            log.warning("the members are those in the log, not those in [[nodes]]: %s", ", ".join(told))

    def _make_amqp_server(self) -> AmqpServer:
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
        places = Places(self._shares.strangers, self._shares.clients)
        make_channel = Channel if self._tracer is None else partial(TracedChannel, self._tracer)
        return AmqpServer(self.broker, settings, places, complaints(), make_channel)

    def _cluster_name(self) -> str:
        """The name that operators have given the cluster; until they do, the one in the configuration."""
        return self.machine.catalog.cluster_name or self.config.cluster_name

    def _make_carrier(self) -> ShovelCarrier:
        return ShovelCarrier(
            self.machine,
            leads=lambda: self.group.leader == self.config.name,
            cluster=self._cluster_name,
            open_own=lambda vhost: own_clients.connect(self._amqp_server, vhost, READ_AHEAD_BYTES),
            wall_ms=self.runtime.wall_ms,
            random=self.runtime.random,
            message_bytes_max=self.config.limits.message_bytes,
            may_reach=self.config.shovels_may_reach,
        )

    # What HTTP sees

    def _own_node(self) -> OwnNode:
        config = self.config
        return OwnNode(
            data_dir=str(config.data_dir.absolute()),
            connections_max=self._shares.logged_in,
            memory_limit_bytes=self.memory_limit_bytes,
            disk_free_limit_bytes=config.limits.disk_free_limit_bytes,
            write_times=self.disk.write_times,
            listeners=self._listeners,
            certificates=_certificates(config),
            settings=config.shown(),
            common_settings=config.common(),
            why_apart_from=self.links.why_apart_from,
            is_twice=self.links.is_twice,
        )

    def _listeners(self) -> list[Listener]:
        """The ports that are open now."""
        config, peer_tls = self.config, self._peer_tls is not None
        clustering = "clustering/ssl" if peer_tls else "clustering"
        ports = [
            Listener("http", config.http_host, self._http.port),
            Listener(clustering, config.peer_host, config.address.peer_port, peer_tls),
        ]
        if self._is_serving:
            ports.append(Listener("amqp", config.amqp_host, config.address.amqp_port))
        if self._is_serving and config.address.amqps_port is not None:
            ports.append(Listener("amqp/ssl", config.amqps_host, config.address.amqps_port, uses_tls=True))
        return ports

    def cluster_status(self) -> ClusterStatus:
        agreed = self.management.cluster_members()
        members = {member.name: member for member in agreed.members}
        return ClusterStatus(
            cluster=self.config.cluster_name,
            node=self.config.name,
            leader=self.group.leader,
            version=agreed.version,
            nodes=[
                _node_status(status, members[status.name])
                for status in self.group.statuses.all()
                if status.name in members  # else it is about to be one
            ],
        )

    def metrics(self) -> MetricsSnapshot:
        group = self.group
        engine, journal = group.engine, group.journal
        own = group.statuses.own()
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
                synced_index=journal.synced_index,
                commit_index=engine.commit_index,
                applied_index=engine.applied_index,
                checkpoint_index=group.housekeeping.newest_index,
                elections=self.broker.elections,
                snapshots_installed=group.snapshots_installed,
                members=len(group.members.names),
            ),
            disk=DiskMetrics(
                log_bytes=journal.disk_bytes,
                free_bytes=own.disk_free_bytes or 0,
                free_limit_bytes=self.config.limits.disk_free_limit_bytes,
                alarm=Alarm.DISK in group.alarms.active,
            ),
            memory=MemoryMetrics(self.memory_limit_bytes, alarm=Alarm.MEMORY in group.alarms.active),
            delays=DelayMetrics(
                group.apply_times,
                group.beat_delays,
                self.disk.write_times,
                self.broker.submissions.commit_times,
                self.broker.submissions.queueing_times,
                group.housekeeping.checkpoint_times,
                group.catch_up_times,
            ),
            clock_offset_s=None if own.clock_offset_ms is None else own.clock_offset_ms / 1000,
            uptime_s=self.management.uptime_s,
            consumers=self.management.own_consumers,
            blocked=self.management.client_watch.blocked,
            totals=self.management.totals if engine.is_leader else None,
            cluster_id=group.configurations.newest.cluster.hex(),
            spans=None if self._tracer is None else self._tracer.counts,
        )

    def infos(self, endpoint: str) -> Mapping[str, tuple[str, Mapping[str, str]]]:
        return infos(self.metrics(), endpoint)

    def ready(self) -> str | None:
        if self._stopping:
            return "the node stops"
        if not self._started:
            return READING
        unable = self._why_unable()
        if self._maintenance.is_on:
            maintained = f"the node is under maintenance; `qq revive {self.config.name}` ends it"
            return f"{maintained}; {unable}" if unable else maintained
        if unable is None and not self._is_serving:
            short = ", and its disk has no space for what it lacks" if self.group.alarms.lacks_space else ""
            return f"the node is catching up with the cluster{short}"
        return unable

    def _why_unable(self) -> str | None:
        """Why the node could serve nobody, whether it is under maintenance or not; None if it could."""
        under_repair = self.group.own_status.flaw()
        apart = self.links.why_apart
        missing = f"no connection with {apart}" if apart else None
        if under_repair is not None:
            # A new directory that was told of one cluster is refused by those of another one, until its next start.
            return self.links.why_not_joined or "; ".join(filter(None, [under_repair, missing]))
        if self.group.leader is None:
            return f"no leader is known: {missing or 'fewer than a majority of the nodes are up'}"
        return self.group.statuses.why_nothing_is_stored()

    @property
    def takes_tokens(self) -> bool:
        return self._tokens is not None

    async def authenticate(self, user: str, password: str, peer_host: str) -> LoggedIn | None:
        decided: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def answer(outcome: Outcome) -> None:
            if not decided.done():
                decided.set_result(outcome)

        login = Login(user, password.encode(), peer_host, protocol="http")
        attempt = self.broker.logins.attempt(login, answer)
        if attempt is not None:
            await self._wait_for(attempt, decided)
        outcome = decided.result()
        if isinstance(outcome, TokenUser):
            return LoggedIn(outcome.name, outcome.scopes.tags, outcome.scopes, outcome.expires_s)
        known = self.machine.users.get(user)  # who may have been deleted since the answer
        return LoggedIn(user, known.tags) if known is not None and outcome else None

    async def _wait_for(self, attempt: Attempt, decided: asyncio.Future[Outcome]) -> None:
        """Wait for an answer that is held back, if few wait, and not for long. Raises LoginThrottled, Unavailable."""
        self._http_logins += 1
        try:
            if (
                self._http_logins > self._shares.http // HTTP_LOGINS_SHARE
                or attempt.wait_s > HTTP_LOGIN_WAIT_MAX_S
            ):
                raise LoginThrottled(attempt.wait_s)
            async with asyncio.timeout(HTTP_LOGIN_TIMEOUT_S):
                await decided
        except TimeoutError:  # nobody is refused for good
            why = self.group.why_undecided() or "the log does not go on"
            raise Unavailable(f"the login cannot be decided: {why}; {NOT_CARRIED_OUT}") from None
        finally:
            self._http_logins -= 1
            attempt.cancel()


async def run(
    config: NodeConfig, *, open_disk: OpenDisk = RealDisk, make_runtime: MakeRuntime = AsyncioRuntime
) -> None:
    """Serve until cancelled. Raises StartError when the node cannot start or cannot go on.

    A node whose log is damaged is started anew: it sets that log aside and comes back without a vote. So is one whose
    log is obsolete and leaves no space for what the others have: it is without that log then. `open_disk` and
    `make_runtime` may be replaced by those that hurt the disk or the clock.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    descriptors.allow_all()
    gc.set_threshold(*garbage.THRESHOLDS)
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
        except ObsoleteLog as error:
            log.warning("node %s starts anew: %s", config.name, error)
        garbage.collect()  # the node that has ended, with its state


def _is_of_a_connection(error: BaseException | None, future: object) -> bool:
    """Whether an attempt to connect has failed that somebody has given up before.

    uvloop leaves futures behind that nobody looks at: of a name that is looked up, and of a TLS handshake, if the
    attempt is cancelled before the answer, or before the handshake begins. Nothing that replicates waits for the system
    with such a future: disks tell their errors to callbacks, and a task is one of ours.
    """
    is_left = isinstance(future, asyncio.Future) and not isinstance(future, asyncio.Task)
    return is_left and isinstance(error, OSError)


def _tokens(config: NodeConfig) -> Verifier | None:
    """What judges tokens, if there are any. Raises StartError. Only then are its libraries loaded, which takes time."""
    if config.oauth2 is None:
        return None
    try:
        from qq.oauth2.verifier import Verifier  # noqa: PLC0415
    except ModuleNotFoundError as missing:
        raise StartError(
            f"[oauth2] needs {missing.name}: pip install 'qq-broker[oauth2]', or -r requirements/oauth2.txt"
        ) from None
    return Verifier(config.oauth2)


def _login_provider(config: NodeConfig, verifier: Verifier | None) -> CodeFlow | None:
    """What has a page with which one logs in to the management page, besides passwords."""
    if verifier is None or config.oauth2 is None or config.oauth2.client_id is None:
        return None
    from qq.oauth2.code_flow import CodeFlow  # noqa: PLC0415

    return CodeFlow(config.oauth2, config.oauth2.client_id, verifier)


def _tracer(config: NodeConfig) -> OpenTelemetryTracer | None:
    """What traces messages, if anything does. Raises StartError."""
    if config.tracing is None:
        return None
    try:
        from qq.tracing.tracer import OpenTelemetryTracer  # noqa: PLC0415
    except ModuleNotFoundError as missing:
        raise StartError(
            f"[tracing] needs {missing.name}: pip install 'qq-broker[tracing]', or -r requirements/tracing.txt"
        ) from None
    return OpenTelemetryTracer(config.tracing, config.name, config.cluster_name)


def _addresses(nodes: Iterable[NodeAddress]) -> dict[str, PeerAddress]:
    """Where nodes listen for each other. Raises ConfigError for a host that nobody could look up."""
    for node in nodes:
        _check_host(f"[[nodes]] {node.name}: host", node.host)
    return {node.name: PeerAddress(node.host, node.peer_port) for node in nodes}


def _seeds(config: NodeConfig) -> tuple[Seed, ...]:
    for seed in config.join:
        _check_host("[cluster] join: host", seed.host)
    return config.join


def _check_host(what: str, host: str) -> None:
    problem = host_problem(host)
    if problem is not None:
        raise ConfigError(f"{what}: {host!r} {problem}")


def _node_status(status: MemberStatus, member: ClusterMember) -> NodeStatus:
    return NodeStatus(
        name=status.name,
        state=NodeState(status.state),
        standing=status.standing,
        role=member.role,
        term=status.term,
        first_index=status.first_index,
        last_index=status.last_index,
        commit_index=status.commit_index,
        applied_index=status.applied_index,
        checkpoint_index=status.checkpoint_index,
        disk_free_bytes=status.disk_free_bytes,
        alarm=status.alarm,
        clock_offset_ms=status.clock_offset_ms,
        versions=member.versions,
        drained=member.drained,
        disk_hangs=status.disk_hangs,
        misses=status.misses,
        hears_leader=status.hears_leader,
    )


def _certificates(config: NodeConfig) -> list[CertificateFiles]:
    shown = (("amqp/ssl", config.tls), ("clustering/ssl", config.peer_tls))
    return [
        CertificateFiles(protocol, str(files.cert), None if files.ca is None else str(files.ca))
        for protocol, files in shown
        if files is not None
    ]


def _http_limits(limits: NodeLimits, connections: int) -> HttpLimits:
    return HttpLimits(
        connections=connections,
        requests=limits.http_request_max or connections // 2,
        header_timeout_s=limits.http_header_timeout_s,
        body_timeout_s=limits.http_body_timeout_s,
        idle_timeout_s=limits.http_idle_timeout_s,
    )


async def _run_once(node: Node) -> None:
    try:
        await node.start()
        await node.serve()
    except ExceptionGroup as group:
        # Not except*: what is raised in one arrives in a group again with some versions of Python 3.11.
        known = group.subgroup((StartError, CorruptJournal, ObsoleteLog))
        if known is None:
            raise
        raise known.exceptions[0] from None
    finally:
        await node.stop()


def _named(error: BaseException) -> str:
    """Say what an error is. Our errors do so in their text; Python's get their type: a KeyError's text is the key."""
    is_bare = type(error).__module__ == "builtins" and not isinstance(error, OSError)
    return f"{type(error).__name__}: {error}" if is_bare else str(error)
