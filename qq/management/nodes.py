"""Reports of nodes about themselves: resources, ports, alarms, logins.

Invariant: only reads the state. Each node makes its own report, as plain data.
"""

from __future__ import annotations

import gc
import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cluster.membership.alarms import RESOURCES
from cluster.raft.messages import Alarm
from qq.http.view import Listener, LoginCount, NodeReport, ResourceAlarm
from qq.process import descriptors, memory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cluster.group.group import Group
    from cluster.runtime.histogram import Histogram
    from qq.http.view import CertificateFiles
    from qq.management.others import OtherNodes
    from qq.sessions.broker import Broker

TOPIC = "node"
"""Topic of the question for a node's report."""
_LOAD = Path("/proc/loadavg")
"""Its fourth word has the runnable threads of the machine, a slash, and the number of all threads."""


class OwnNode(NamedTuple):
    """Facts about this node that neither its broker nor its group knows."""

    data_dir: str
    connections_max: int
    memory_limit_bytes: int
    disk_free_limit_bytes: int
    write_times: Histogram
    """Times of all writes to the log, each with its sync."""
    listeners: Callable[[], Sequence[Listener]]
    """Returns the open ports."""
    certificates: Sequence[CertificateFiles]
    settings: Mapping[str, str]
    common_settings: Mapping[str, str]
    """Settings that should be equal on all nodes."""
    why_apart_from: Callable[[str], str | None]
    """Returns why this node has no link with a member, or None for a linked or merely unreachable member."""
    is_twice: Callable[[str], bool]
    """Returns whether a second process keeps using the name of a linked member."""


class NodeReports:
    """Implements the part of `qq.http.view.ManagementView` that reports on nodes."""

    def __init__(self, broker: Broker, group: Group, own: OwnNode, others: OtherNodes) -> None:
        self._broker = broker
        self._asking = others
        self._reporting = group
        self._own = own
        self._began_s = broker.runtime.monotonic()
        others.tell(TOPIC, self.own_report)

    async def node_reports(self) -> Mapping[str, NodeReport]:
        told = await self._asking.told_by_all(TOPIC)
        found = [self.own_report(), *map(report_in, told.values())]
        return {report.name: report for report in found if report is not None}

    async def node_report(self, name: str) -> NodeReport | None:
        if name == self._broker.name:
            return self.own_report()
        return report_in(await self._asking.told(name, TOPIC))

    @property
    def uptime_s(self) -> float:
        """Return the seconds since this node started."""
        return self._broker.runtime.monotonic() - self._began_s

    def own_report(self) -> NodeReport:
        broker, alarms, own = self._broker, self._reporting.alarms, self._own
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
            memory_limit_bytes=own.memory_limit_bytes,
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
            disk_free_limit_bytes=own.disk_free_limit_bytes,
            disk_alarm=Alarm.DISK in short_of,
            log_bytes=self._reporting.journal.disk_bytes,
            writes=sum(own.write_times.counts),
            write_ms=own.write_times.total_s * 1000,
            data_dir=own.data_dir,
            listeners=own.listeners(),
            logins=self._logins(),
        )

    def _logins(self) -> list[LoginCount]:
        outcomes = self._broker.logins.outcomes
        protocols = sorted({protocol for protocol, _ in outcomes})
        return [
            LoginCount(protocol, outcomes[protocol, True], outcomes[protocol, False])
            for protocol in protocols
        ]

    def reset_logins(self) -> None:
        self._broker.logins.outcomes.clear()

    def flaw(self) -> str | None:
        return self._reporting.own_status.flaw()

    def alarms(self) -> Sequence[ResourceAlarm]:
        known = self._reporting.statuses.known()
        return [
            ResourceAlarm(name, resource)
            for name, status in sorted(known.items())
            if status is not None
            for alarm, resource in RESOURCES.items()
            if status.alarm & alarm
        ]

    def settings(self) -> Mapping[str, str]:
        return self._own.settings

    def certificates(self) -> Sequence[CertificateFiles]:
        return self._own.certificates


def report_in(told: Any) -> NodeReport | None:
    """Decode the report of a node; return None if it is missing or incomplete.

    A later program may append further fields.
    """
    if not isinstance(told, list) or len(told) < len(NodeReport._fields):
        return None
    report = NodeReport(*told[: len(NodeReport._fields)])
    return report._replace(
        listeners=[Listener(*each) for each in report.listeners],
        logins=[LoginCount(*each) for each in report.logins],
    )
