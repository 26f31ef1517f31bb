"""Vitals of this node: its measurements of the last minutes, for diagnosis.

Invariant: only reads the state. Files are read on a thread.
"""

from __future__ import annotations

import asyncio
import time
from heapq import nlargest
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

import qq
from qq.diagnosis.limits import Vitals
from qq.diagnosis.node_rules import (
    REPORTED_MAX,
    Certificate,
    HeldLimit,
    IdleShovel,
    NodeFacts,
    findings_of_node,
)
from qq.diagnosis.window import TimesWindow, Trend
from qq.metrics.counters import CertificateEnd
from qq.process import descriptors, memory
from qq.shovels.report import RUNNING
from qq.tls.certificates import InvalidCertificate, validities

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from cluster.group.group import Group
    from qq.diagnosis.findings import Finding
    from qq.management.nodes.node_reports import OwnNode
    from qq.management.reports.catalog import ShovelStatus
    from qq.management.reports.nodes import CertificateFiles
    from qq.management.statistics.client_watch import ClientWatch
    from qq.management.statistics.session_watch import SessionWatch
    from qq.sessions.broker import Broker

LONG_SAMPLES = 120
"""Samples in the longer windows: ten minutes, at a sample every 5 s."""
CERTIFICATES_EVERY = 60
"""Samples between two reads of the certificates: every five minutes."""
HELD_KEPT_S = 60.0
"""Seconds that a publishing limit is reported after a publisher waited for it."""
HIGH = 0.99
MEDIAN = 0.5


class NodeVitals:
    """Measures the vitals of this node."""

    def __init__(
        self, broker: Broker, group: Group, own: OwnNode, clients: ClientWatch, sessions: SessionWatch
    ) -> None:
        self._broker = broker
        self._group = group
        self._own = own
        self._clients = clients
        self._sessions = sessions
        self._writes = TimesWindow(own.write_times)
        self._loop = TimesWindow(group.heartbeat_delays)
        self._commits = TimesWindow(broker.submissions.commit_times)
        self._applying = TimesWindow(group.apply_times)
        self._cpu = Trend()
        self._logins_failed = Trend()
        self._elections = Trend(LONG_SAMPLES)
        self._elections_sampled = 0
        self._free_bytes = Trend(LONG_SAMPLES)
        self._held: dict[tuple[str, str, str], tuple[float, HeldLimit]] = {}
        """Time at which publishers last waited for each limit. Short waits fall between samples."""
        self._idle_shovels: dict[tuple[str, str], IdleShovel] = {}
        self._samples = 0
        self._certificates: list[Certificate] = []

    async def sample(self) -> None:
        """Take a sample of all measurements."""
        now_s = self._broker.runtime.monotonic()
        if self._group.leader is None or self._broker.elections != self._elections_sampled:
            # Commits that waited for an election say nothing about the network.
            self._commits.restart()
            self._elections_sampled = self._broker.elections
        for window in (self._writes, self._loop, self._commits, self._applying):
            window.sample(now_s)
        self._cpu.sample(time.process_time(), now_s)
        self._logins_failed.sample(self._broker.counters.logins_failed, now_s)
        self._elections.sample(self._broker.elections, now_s)
        self._free_bytes.sample(self._group.alarms.free_bytes, now_s)
        self._record_limits(now_s)
        if self._samples % CERTIFICATES_EVERY == 0 and self._own.certificates:
            self._certificates = await asyncio.to_thread(_read_all, list(self._own.certificates))
        self._samples += 1

    def _record_limits(self, now_s: float) -> None:
        kept = {key: seen for key, seen in self._held.items() if now_s - seen[0] < HELD_KEPT_S}
        for held in self._broker.throttle.delaying_limits(REPORTED_MAX):
            kept[held.kind, held.of, held.name] = now_s, HeldLimit(*held)
        self._held = kept

    def record_shovels(self, shovels: Sequence[ShovelStatus]) -> None:
        """Record which shovels of this node are idle. A restarting shovel that has not yet run again stays idle."""
        known, self._idle_shovels = self._idle_shovels, {}
        for each in shovels:
            key = each.vhost, each.name
            if each.reason is not None:
                self._idle_shovels[key] = IdleShovel(*key, each.reason)
            elif key in known and each.state != RUNNING:
                self._idle_shovels[key] = known[key]

    def certificate_ends(self) -> Iterator[CertificateEnd]:
        """Return the ends of the readable certificates of this node's ports, up to five minutes old."""
        ends_s = {each.path: each.ends_s for each in self._certificates}
        for files in self._own.certificates:
            for name, path in (("cert", files.cert), ("ca", files.ca)):
                if path is not None and (ends := ends_s.get(path)) is not None:
                    yield CertificateEnd(files.protocol, name, ends)

    @property
    def commit_s(self) -> float:
        """Return the mean seconds of a commit; 0 without commits."""
        return self._commits.mean_s

    def findings(self) -> Iterator[Finding]:
        """Return the findings of this node about itself."""
        return findings_of_node(self.facts(), self._broker.runtime.wall_ms() / 1000)

    def facts(self) -> NodeFacts:
        """Return the facts for judging this node."""
        broker, own, clients = self._broker, self._own, self._clients
        return NodeFacts(
            name=broker.name,
            why_publishers_wait=broker.alarm,
            writes=self._writes.count,
            write_median_s=self._writes.quantile(MEDIAN),
            # Writes run one at a time. The slowest is spared, because it may be slow only since the process was
            # stopped.
            write_high_s=self._writes.quantile(HIGH, spared=1),
            # Starting makes the loop of a node late, so the first minute is left out.
            loop_high_s=self._loop.quantile(HIGH) if self._loop.is_whole else 0.0,
            cores=self._cpu.per_second,
            memory_bytes=memory.resident_bytes(),
            memory_limit_bytes=own.live.memory_limit_bytes,
            disk_free_bytes=self._group.alarms.free_bytes,
            disk_free_limit_bytes=own.live.disk_free_limit_bytes,
            disk_change_per_s=self._free_bytes.per_second,
            disk_watched_s=self._free_bytes.seconds,
            files=descriptors.in_use(),
            files_max=descriptors.allowed(),
            connections=len(broker.connections),
            connections_max=own.connections_max,
            logins_failed_per_s=self._logins_failed.per_second,
            blocked=clients.blocked,
            held=nlargest(REPORTED_MAX, (held for _, held in self._held.values()), attrgetter("publishers")),
            throttled=self._sessions.throttled,
            slow_readers=clients.slow_readers,
            certificates=self._certificates,
            idle_shovels=list(self._idle_shovels.values()),
            leader_changes=self._elections.amount,
        )

    def vitals(self) -> Vitals:
        """Return the measurements for other nodes."""
        return Vitals(
            name=self._broker.name,
            release=qq.__version__,
            writes=self._writes.count,
            write_s=self._writes.mean_s,
            loop_s=self._loop.mean_s,
            commits_per_s=self._commits.per_second,
            commit_s=self.commit_s,
            apply_share=self._applying.share,
            cores=self._cpu.per_second,
            octets_per_s=self._clients.octets_per_s,
            tenants=self._clients.tenants,
            settings=dict(self._own.common_settings),
        )


def _read_all(files: Iterable[CertificateFiles]) -> list[Certificate]:
    paths = dict.fromkeys(path for each in files for path in (each.cert, each.ca) if path is not None)
    return list(map(_read, paths))


def _read(path: str) -> Certificate:
    """Return the certificate in a file that ends first."""
    try:
        found = validities(Path(path).read_bytes())
    except OSError as error:
        return Certificate(path, None, f"it cannot be read: {error.strerror}")
    except InvalidCertificate as error:
        return Certificate(path, None, str(error))
    return Certificate(path, min(each.ends for each in found).timestamp())
