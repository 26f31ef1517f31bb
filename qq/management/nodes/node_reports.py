"""Reports of nodes about themselves: resources, ports, alarms, logins.

Invariant: only reads the state. Each node makes its own report, as plain data.
"""

from __future__ import annotations

import gc
import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import qq
from cluster.membership.alarms import RESOURCES
from cluster.raft.messages import Alarm
from qq.management.reports.nodes import Listener, LoginCount, NodeReport, ResourceAlarm
from qq.management.statistics.rates import Rates
from qq.process import descriptors, memory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cluster.configuration.configuration import PeerAddress
    from cluster.group.group import Group
    from cluster.runtime.histogram import Histogram
    from qq.management.node_queries import NodeQueries
    from qq.management.reports.catalog import Product
    from qq.management.reports.nodes import CertificateFiles
    from qq.management.statistics.charts import Charts
    from qq.sessions.broker import Broker

TOPIC = "node"
"""Topic of the question for a node's report."""
NO_ANSWER = "it does not answer, or runs an earlier release"
SETTING = "setting"
"""Topic of the request to change a setting; the answer is the reason why that is impossible, or an empty text."""
MEMORY = "memory"
"""Topic of the question for the parts of a node's memory."""
_LOAD = Path("/proc/loadavg")
"""Its fourth word has the runnable threads of the machine, a slash, and the number of all threads."""


class PeerPorts(Protocol):
    """Peer ports of other nodes. Implemented by `PeerLinks`."""

    def dial_address(self, peer: str, address: PeerAddress) -> PeerAddress:
        """Return the address that this node must use for a peer with the configured `address`."""
        ...

    async def reach(self, peer: str, place: PeerAddress) -> bytes:
        """Connect to a peer and return the id of its data directory.

        Raises HandshakeError if another node listens there, and OSError.
        """
        ...

    def why_apart_from(self, peer: str) -> str | None:
        """Return why this node has no link with a member, or None for a linked or merely unreachable member."""
        ...

    def is_twice(self, peer: str) -> bool:
        """Return whether a second process keeps using the name of a linked member."""
        ...


class SettingsInForce(Protocol):
    """The settings of this node in force, of which some change while it runs. Implemented in qq/node."""

    @property
    def memory_limit_bytes(self) -> int:
        """The bytes of memory above which publishers wait."""
        ...

    @property
    def disk_free_limit_bytes(self) -> int:
        """The free bytes of the disk below which publishers wait."""
        ...

    def shown(self) -> Mapping[str, str]:
        """Return the settings in force, without secrets."""
        ...

    def change(self, name: str, value: Any) -> None:
        """Change a setting until the node's next start. Raises ValueError."""
        ...

    def reset(self, name: str) -> None:
        """Return to the value with which the node has started. Raises ValueError."""
        ...


class OwnNode(NamedTuple):
    """Facts about this node that neither its broker nor its group knows."""

    product: Product
    data_dir: str
    connections_max: int
    live: SettingsInForce
    write_times: Histogram
    """Times of all writes to the log, each with its sync."""
    listeners: Callable[[], Sequence[Listener]]
    """Returns the open ports."""
    certificates: Sequence[CertificateFiles]
    common_settings: Mapping[str, str]
    """Settings that should be equal on all nodes."""
    cluster_secrets: Callable[[], Sequence[bytes]]
    """Returns the secrets of the cluster in use now."""
    peers: PeerPorts


class _Numbers(NamedTuple):
    """Numbers of a node with rates, under RabbitMQ's names."""

    mem_used: int
    fd_used: int
    sockets_used: int
    disk_free: int
    context_switches: int
    gc_num: int
    io_write_count: int
    io_sync_count: int
    connection_created: int
    connection_closed: int
    channel_created: int
    channel_closed: int
    queue_declared: int


class NodeReports:
    """Reports on nodes."""

    def __init__(
        self, broker: Broker, group: Group, own: OwnNode, queries: NodeQueries, charts: Charts
    ) -> None:
        self._broker = broker
        self._charts = charts
        self._queries = queries
        self._group = group
        self._own = own
        self._began_s = broker.runtime.monotonic()
        self._rates = Rates()
        queries.answer(TOPIC, self.own_report)
        queries.answer(MEMORY, self._own_memory)
        queries.answer(SETTING, self._changed_setting)

    async def reports(self) -> Mapping[str, NodeReport]:
        """Return the reports of nodes about themselves, by name: this node, and those that answer within moments."""
        answers = await self._queries.query_all(TOPIC)
        found = [self.own_report(), *map(decode_report, answers.values())]
        return {report.name: report for report in found if report is not None}

    async def report(self, name: str) -> NodeReport | None:
        """Return the report of a node about itself; None if the node does not answer."""
        if name == self._broker.name:
            return self.own_report()
        return decode_report(await self._queries.query(name, TOPIC))

    async def memory(self, name: str) -> Mapping[str, int]:
        """Return the parts of a node's memory that the node knows, in bytes by RabbitMQ's kind of memory.

        {}: the node does not answer, or runs a release that does not know them.
        """
        if name == self._broker.name:
            return self._own_memory()
        return await self._queries.query(name, MEMORY) or {}

    @property
    def uptime_s(self) -> float:
        """Return the seconds since this node started."""
        return self._broker.runtime.monotonic() - self._began_s

    def own_report(self) -> NodeReport:
        """Return the report of this node about itself."""
        report = self._measure()
        rates = self._rates.per_second(TOPIC, _numbers_of(report), self._group.time_ms())
        return report._replace(rates=rates)

    def sample(self) -> None:
        """Sample the numbers of this node for their rates."""
        self._rates.sample(TOPIC, _numbers_of(self._measure()), self._group.time_ms())

    def _measure(self) -> NodeReport:
        """Return the report of this node without rates."""
        broker, alarms, own = self._broker, self._group.alarms, self._own
        counters, now_s = broker.counters, broker.runtime.monotonic()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        short_of = alarms.own(now_s)
        return NodeReport(
            name=broker.name,
            pid=os.getpid(),
            uptime_ms=int(self.uptime_s * 1000),
            processors=len(os.sched_getaffinity(0)),
            run_queue=int(_LOAD.read_text().split()[3].partition("/")[0]),
            context_switches=usage.ru_nvcsw + usage.ru_nivcsw,
            collections=sum(generation["collections"] for generation in gc.get_stats()),
            memory_bytes=memory.resident_bytes(),
            memory_limit_bytes=own.live.memory_limit_bytes,
            memory_alarm=Alarm.MEMORY in short_of,
            files=descriptors.in_use(),
            files_max=descriptors.allowed(),
            connections=len(broker.connections),
            connections_max=own.connections_max,
            connections_opened=counters.connections_opened,
            connections_closed=counters.connections_closed,
            channels_opened=counters.channels_opened,
            channels_closed=counters.channels_closed,
            disk_free_bytes=alarms.free_bytes,
            disk_free_limit_bytes=own.live.disk_free_limit_bytes,
            disk_alarm=Alarm.DISK in short_of,
            log_bytes=self._group.journal.disk_bytes,
            writes=sum(own.write_times.counts),
            write_ms=own.write_times.total * 1000,
            data_dir=own.data_dir,
            listeners=own.listeners(),
            logins=self._logins(),
            release=qq.__version__,
            queues_declared=counters.queues_declared,
        )

    def _own_memory(self) -> dict[str, int]:
        connections = self._broker.connections.values()
        return {
            "binary": self._group.journal.cached_bytes,
            "code": memory.mapped_file_bytes(),
            "connection_readers": sum(each.unread_bytes for each in connections),
            "connection_writers": sum(each.unsent_bytes for each in connections),
            "mgmt_db": self._charts.held_bytes,
        }

    def _logins(self) -> list[LoginCount]:
        outcomes = self._broker.logins.outcomes
        protocols = sorted({protocol for protocol, _ in outcomes})
        return [
            LoginCount(protocol, outcomes[protocol, True], outcomes[protocol, False])
            for protocol in protocols
        ]

    def reset_logins(self) -> None:
        """Set the counts of logins to 0."""
        self._broker.logins.outcomes.clear()

    def flaw(self) -> str | None:
        """Return why this node does not take full part in its cluster, or None if it does."""
        return self._group.own_status.flaw()

    def alarms(self) -> Sequence[ResourceAlarm]:
        """Return the alarms that connected nodes report."""
        known = self._group.statuses.known()
        return [
            ResourceAlarm(name, resource)
            for name, status in sorted(known.items())
            if status is not None
            for alarm, resource in RESOURCES.items()
            if status.alarm & alarm
        ]

    @property
    def settings(self) -> SettingsInForce:
        """The settings of this node."""
        return self._own.live

    async def change_setting_of_all(self, name: str, *value: Any) -> dict[str, str]:
        """Change a setting of all nodes until their next start; without a value, return to the one of their start.

        Return for each node the reason why it has not done so, or an empty text. Raises ValueError, without a change
        at any node, if it is impossible at this node.
        """
        self._change_setting(name, *value)
        answers = await self._queries.query_all(SETTING, name, *value)
        others = {node: NO_ANSWER if reason is None else str(reason) for node, reason in answers.items()}
        return {self._broker.name: ""} | others

    def _change_setting(self, name: str, *value: Any) -> None:
        if value:
            self._own.live.change(name, *value)
        else:
            self._own.live.reset(name)

    def _changed_setting(self, name: str, *value: Any) -> str:
        try:
            self._change_setting(name, *value)
        except ValueError as error:
            return str(error)
        return ""

    def certificates(self) -> Sequence[CertificateFiles]:
        """Return the certificates of this node's ports."""
        return self._own.certificates


def _numbers_of(report: NodeReport) -> _Numbers:
    return _Numbers(
        report.memory_bytes,
        report.files,
        report.connections,
        report.disk_free_bytes,
        report.context_switches,
        report.collections,
        report.writes,
        report.writes,
        report.connections_opened,
        report.connections_closed,
        report.channels_opened,
        report.channels_closed,
        report.queues_declared,
    )


def decode_report(answer: Any) -> NodeReport | None:
    """Decode the report of a node; return None if it is missing or incomplete.

    A later program may append further fields.
    """
    required = len(NodeReport._fields) - len(NodeReport._field_defaults)
    if not isinstance(answer, list) or len(answer) < required:
        return None
    report = NodeReport(*answer[: len(NodeReport._fields)])
    return report._replace(
        listeners=[Listener(*each) for each in report.listeners],
        logins=[LoginCount(*each) for each in report.logins],
    )
