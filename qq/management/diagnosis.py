"""Diagnosis of the cluster by this node, from its own state, its view of the members, all queues, and other nodes.

With each sample a node judges itself and the queues. For a request it also judges the members as it sees them at that
moment, as the status of the cluster does. It adds the findings of the other nodes about themselves, and the findings
from a comparison of all nodes.

Invariant: only reads the state, and works without a majority. A request costs a question to each node, and its cost is
independent of the number of queues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qq.diagnosis.findings import Diagnosis, Finding, Since, diagnosis_of, finding_in
from qq.diagnosis.limits import TenantUse, Vitals, findings_of_all
from qq.diagnosis.member_rules import ClusterFacts, MemberFacts, findings_of_members, findings_of_names
from qq.diagnosis.node_rules import findings_of_node
from qq.http.view import NodeState
from qq.management.vitals import NodeVitals

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from cluster.group.group import Group
    from qq.http.view import ClusterMember, ClusterMembers, ShovelStatus
    from qq.management.client_watch import ClientWatch
    from qq.management.nodes import OwnNode
    from qq.management.others import OtherNodes
    from qq.management.queues import QueueReports
    from qq.sessions.broker import Broker

TOPIC = "diagnosis"
"""Topic of the question for a node's vitals and findings."""
FORGOTTEN_MS = 3600_000
"""Milliseconds of maintenance after which a node is reported as possibly forgotten."""


class Diagnoses:
    """Implements the part of `qq.http.view.ManagementView` that finds faults."""

    def __init__(
        self,
        broker: Broker,
        group: Group,
        own: OwnNode,
        others: OtherNodes,
        clients: ClientWatch,
        queues: QueueReports,
        members: Callable[[], ClusterMembers],
        shovels: Callable[[None], Awaitable[Sequence[ShovelStatus]]],
    ) -> None:
        self._diagnosed = broker
        self._group = group
        self._own = own
        self._others = others
        self._queues = queues
        self._who_they_are = members
        self._all_shovels = shovels
        self._vitals = NodeVitals(broker, group, own, clients)
        self._since = Since()
        self._own_findings: list[Finding] = []
        others.tell(TOPIC, self._tell_diagnosis)

    async def diagnose(self) -> None:
        """Judge the facts that this node has by itself. Called after each sample."""
        await self._vitals.sample()
        # The leader carries out all shovels, so it need not ask another node about them.
        leads = self._group.leader == self._diagnosed.name
        self._vitals.look_at_shovels(await self._all_shovels(None) if leads else [])
        self._queues.queue_watch.commit_s = self._vitals.commit_s
        members = self._cluster_facts()
        own = [
            *findings_of_node(self._vitals.facts(), self._diagnosed.runtime.wall_ms() / 1000),
            *findings_of_names(each.name for each in members.members if self._own.is_twice(each.name)),
        ]
        self._own_findings = self._since.note(own, self._group.time_ms())
        self._judged_members(members)  # records when findings about members began

    def _judged_members(self, facts: ClusterFacts) -> list[Finding]:
        """Return the findings about members as this node sees them now."""
        now_ms = self._group.time_ms()
        found = self._since.note(findings_of_members(facts), now_ms)
        return [_judged(finding, now_ms) for finding in found]

    async def diagnosis(self) -> Diagnosis:
        """Return the findings of all nodes that answered in time, as a diagnosis of the cluster."""
        told = await self._others.told_by_all(TOPIC)
        vitals = {self._diagnosed.name: self._vitals.vitals()}
        facts = self._cluster_facts()
        findings = [
            *self._own_findings,
            *self._judged_members(facts),
            *self._queues.queue_watch.findings,
            *self._queues.held_watch.findings,
        ]
        up = {member.name for member in facts.members if member.is_up}
        for name, answer in told.items():
            parts = _in(answer)
            if parts is not None:
                vitals[name], theirs = parts
                findings += theirs
            elif name in up:
                text = "it says nothing of itself: its release does not, or it did not answer in time"
                findings.append(Finding("node-tells-nothing", f"node {name}", text))
        findings += findings_of_all(vitals, self._group.leader)
        return diagnosis_of(findings)

    def _tell_diagnosis(self) -> Any:
        return [self._vitals.vitals(), self._own_findings]

    def _cluster_facts(self) -> ClusterFacts:
        shown = self._who_they_are()
        return ClusterFacts(shown.leader, list(self._member_facts(shown)), shown.version)

    def _member_facts(self, shown: ClusterMembers) -> Iterator[MemberFacts]:
        group = self._group
        statuses = {status.name: status for status in group.statuses.all()}
        known = group.statuses.known()
        for member in shown.members:
            status, said = statuses.get(member.name), known.get(member.name)
            yield MemberFacts(
                name=member.name,
                is_up=member.state not in (NodeState.DOWN, NodeState.UNKNOWN) and said is not None,
                role=member.role,
                standing=None if status is None else status.standing,
                lag=member.lag,
                clock_offset_ms=None if status is None else status.clock_offset_ms,
                misses=() if said is None else said.misses,
                highest=_highest(member),
                is_drained=member.drained,
                disk_hangs=bool(said is not None and said.disk_hangs),
                hears_leader=bool(said is not None and said.hears_leader),
                why_apart=self._own.why_apart_from(member.name),
            )


def _highest(member: ClusterMember) -> int | None:
    """Return the highest version of the state that a member's program can run, from a text such as "7 to 8"."""
    return None if member.versions is None else int(member.versions.rpartition(" ")[2])


def _judged(finding: Finding, now_ms: int) -> Finding:
    """Return the finding, with the code "drain-forgotten" if a maintenance has lasted too long."""
    is_old = finding.since_ms is not None and now_ms - finding.since_ms >= FORGOTTEN_MS
    return finding._replace(code="drain-forgotten") if finding.code == "node-drained" and is_old else finding


def _in(answer: Any) -> tuple[Vitals, Sequence[Finding]] | None:
    """Decode the vitals and findings of another node; return None if they are malformed.

    A later program may append further fields to each part.
    """
    match answer:
        case [list() as vitals, list() as findings, *_] if len(vitals) >= len(Vitals._fields):
            told = Vitals(*vitals[: len(Vitals._fields)])
            rows: Sequence[Any] = told.tenants
            tenants = [TenantUse(*row[: len(TenantUse._fields)]) for row in rows]
            found = [finding for each in findings if (finding := finding_in(each)) is not None]
            return told._replace(tenants=tenants), found
        case _:
            return None
