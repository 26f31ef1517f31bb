"""Diagnosis of the cluster by this node, from its own state, its view of the members, all queues, and other nodes.

With each sample a node judges itself and the queues. For a request it also judges itself and the members as it sees
them at that moment, as the status of the cluster does. It adds the findings of the other nodes about themselves, and
the findings from a comparison of all nodes.

Invariant: only reads the state, and works without a majority. A request costs a question to each node, and its cost is
independent of the number of queues.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Any

from qq.diagnosis.findings import Diagnosis, Finding, Since, decode_finding, diagnosis_of
from qq.diagnosis.limits import TenantUse, Vitals, findings_of_all
from qq.diagnosis.member_rules import ClusterFacts, MemberFacts, findings_of_members, findings_of_names
from qq.management.reports.members import NodeState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cluster.group.group import Group
    from qq.management.node_queries import NodeQueries
    from qq.management.nodes.members import MemberChanges
    from qq.management.nodes.node_reports import PeerPorts
    from qq.management.nodes.vitals import NodeVitals
    from qq.management.objects.shovels import ShovelReports
    from qq.management.reports.members import ClusterMember, ClusterMembers
    from qq.management.statistics.queue_statistics import QueueStatistics
    from qq.metrics.counters import CertificateEnd

TOPIC = "diagnosis"
"""Topic of the question for a node's vitals and findings."""
RECENT_S = 5.0
"""Seconds that the page shows a diagnosis before it asks for the next."""
FORGOTTEN_MS = 3600_000
"""Milliseconds of maintenance after which a node is reported as possibly forgotten."""


class MemberFindings:
    """Judges the members of the cluster as this node sees them."""

    def __init__(self, group: Group, peers: PeerPorts, members: MemberChanges) -> None:
        self._group = group
        self._peers = peers
        self._members = members
        self._since = Since()

    def findings(self) -> list[Finding]:
        """Return the findings about members, each with the time at which it was first found."""
        now_ms = self._group.time_ms()
        found = self._since.date(findings_of_members(self._facts()), now_ms)
        return [_judged(finding, now_ms) for finding in found]

    def duplicate_names(self) -> Iterator[str]:
        """Yield the names of members that a second process keeps using."""
        return (each.name for each in self._members.report().members if self._peers.is_twice(each.name))

    def connected(self) -> set[str]:
        """Return the names of connected members."""
        return {member.name for member in self._facts().members if member.is_up}

    def _facts(self) -> ClusterFacts:
        report = self._members.report()
        why_lost = self._group.statuses.why_hopeless()
        return ClusterFacts(report.leader, list(self._member_facts(report)), report.version, why_lost)

    def _member_facts(self, report: ClusterMembers) -> Iterator[MemberFacts]:
        group = self._group
        statuses = {status.name: status for status in group.statuses.all()}
        known = group.statuses.known()
        for member in report.members:
            status, reported = statuses.get(member.name), known.get(member.name)
            yield MemberFacts(
                name=member.name,
                is_up=member.state not in (NodeState.DOWN, NodeState.UNKNOWN) and reported is not None,
                role=member.role,
                standing=None if status is None else status.voter_status,
                lag=member.lag,
                clock_offset_ms=None if status is None else status.clock_offset_ms,
                misses=() if reported is None else reported.misses,
                highest=_highest(member),
                is_drained=member.drained,
                disk_hangs=bool(reported is not None and reported.disk_hangs),
                hears_leader=bool(reported is not None and reported.hears_leader),
                why_apart=self._peers.why_apart_from(member.name),
                lost_ms=member.lost_ms,
                rolled_back_ms=None if status is None else status.rolled_back_ms,
                has_other_directory=member.name in group.statuses.foreign,
            )


class Doctor:
    """Finds faults and bottlenecks of the cluster."""

    def __init__(
        self,
        group: Group,
        queries: NodeQueries,
        vitals: NodeVitals,
        members: MemberFindings,
        queues: QueueStatistics,
        shovels: ShovelReports,
    ) -> None:
        self._group = group
        self._queries = queries
        self._vitals = vitals
        self._members = members
        self._queues = queues
        self._shovels = shovels
        self._since = Since()
        self._recent = Diagnosis([])
        self._recent_s = float("-inf")
        self._one_at_a_time = asyncio.Lock()
        queries.answer(TOPIC, self._answer)

    def certificate_ends(self) -> Iterator[CertificateEnd]:
        """Return when the certificates of this node's ports end."""
        return self._vitals.certificate_ends()

    async def sample(self) -> None:
        """Judge the facts that this node has by itself. Called after each sample of queues and clients."""
        await self._vitals.sample()
        # The leader carries out all shovels, so it need not ask another node about them.
        leads = self._group.leader == self._group.config.name
        self._vitals.record_shovels(await self._shovels.all(None) if leads else [])
        self._queues.queue_watch.commit_s = self._vitals.commit_s
        # These record when each finding began.
        self._own_findings()
        self._members.findings()

    async def recent(self) -> Diagnosis:
        """Return a diagnosis that is at most `RECENT_S` old. All viewers of the page share it."""
        async with self._one_at_a_time:
            if monotonic() - self._recent_s >= RECENT_S:
                self._recent, self._recent_s = await self.diagnosis(), monotonic()
        return self._recent

    async def diagnosis(self) -> Diagnosis:
        """Return the findings of all nodes that answered in time, as a diagnosis of the cluster."""
        answers = await self._queries.query_all(TOPIC)
        own = self._vitals.vitals()
        vitals = {own.name: own}
        findings = [
            *self._own_findings(),
            *self._members.findings(),
            *self._queues.queue_watch.findings,
            *self._queues.held_watch.findings,
            *self._queues.credit_watch.findings,
            *self._queues.group_watch.findings,
            *self._queues.silent_sinks.findings,
            *self._queues.growing_sinks.findings,
        ]
        connected = self._members.connected()
        for name, answer in answers.items():
            parts = _decode(answer)
            if parts is not None:
                vitals[name], theirs = parts
                findings += theirs
            elif name in connected:
                text = "it sent no findings: its release cannot, or it did not answer in time"
                findings.append(Finding("node-tells-nothing", f"node {name}", text))
        findings += findings_of_all(vitals, self._group.leader)
        return diagnosis_of(findings)

    def _answer(self) -> Any:
        return [self._vitals.vitals(), self._own_findings()]

    def _own_findings(self) -> list[Finding]:
        """Return the findings about this node as of this moment: an alarm may have begun since the last sample."""
        own = [*self._vitals.findings(), *findings_of_names(self._members.duplicate_names())]
        return self._since.date(own, self._group.time_ms())


def _highest(member: ClusterMember) -> int | None:
    """Return the highest version of the state that a member's program can run, from a text such as "7 to 8"."""
    return None if member.versions is None else int(member.versions.rpartition(" ")[2])


def _judged(finding: Finding, now_ms: int) -> Finding:
    """Return the finding, with the code "drain-forgotten" if a maintenance has lasted too long."""
    is_old = finding.since_ms is not None and now_ms - finding.since_ms >= FORGOTTEN_MS
    return finding._replace(code="drain-forgotten") if finding.code == "node-drained" and is_old else finding


def _decode(answer: Any) -> tuple[Vitals, Sequence[Finding]] | None:
    """Decode the vitals and findings of another node; return None if they are malformed.

    A later program may append further fields to each part.
    """
    match answer:
        case [list() as vitals, list() as findings, *_] if len(vitals) >= len(Vitals._fields):
            decoded = Vitals(*vitals[: len(Vitals._fields)])
            rows: Sequence[Any] = decoded.tenants
            tenants = [TenantUse(*row[: len(TenantUse._fields)]) for row in rows]
            found = [finding for each in findings if (finding := decode_finding(each)) is not None]
            return decoded._replace(tenants=tenants), found
        case _:
            return None
