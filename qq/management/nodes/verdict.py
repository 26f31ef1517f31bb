"""The verdict on the cluster: a line that says whether it is well, and the severity of its problems.

`qq status` and every view of the management page begin with this line.

Invariant: pure. The verdict follows from the document of `/api/cluster`, also from that of a node of an earlier
release.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from cluster.configuration.quorum import is_majority
from qq.diagnosis.findings import Severity
from qq.diagnosis.member_rules import unlinked
from qq.diagnosis.words import utc

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_DOWN = "down"
_BEHIND_ENTRIES = 10_000
"""Entries that a member may lack at a moment. Statuses are up to a second old, and a busy cluster commits thousands of
entries in a second."""


class Health(NamedTuple):
    """Whether the cluster is well, and a line that says so or lists the problems."""

    severity: Severity
    """CRITICAL if clients wait or a member is down; INFO if the cluster is well."""
    text: str
    is_well: bool = False


def judge(answer: Mapping[str, Any]) -> Health:
    """Judge the health of the cluster from an answer of `/api/cluster`."""
    from cluster.membership.health import FULL_BYTES  # noqa: PLC0415 -- large

    nodes, leader = answer["nodes"], answer["leader"]
    voters = [each for each in nodes if each["role"] in ("voter", None)]
    silent = [each["name"] for each in nodes if each["state"] == _DOWN and each["role"] != "awaited"]
    connected = [
        each["name"] for each in voters if each["state"] != _DOWN and each["standing"] in ("voter", None)
    ]
    # The leader may reach nodes that the asked node does not. A former leader may still believe that it leads.
    others = [name for name in connected if name != answer["node"]]
    sees_majority = is_majority(len(connected), len(voters))
    # Nodes of earlier releases do not report lost logs.
    if leader is None and answer.get("majority_lost"):
        return Health(Severity.CRITICAL, f"no majority: {answer['majority_lost']}")
    if not sees_majority and leader not in others:
        return Health(Severity.CRITICAL, f"no majority: {'; '.join(_troubles(nodes, silent))}")
    if leader is None and (hear_leader := [each["name"] for each in nodes if _hears_leader(each)]):
        troubles = "; ".join([f"{_names(hear_leader)} can tell who leads", *_troubles(nodes, silent)])
        return Health(Severity.CRITICAL, f"{answer['node']} hears no leader, so its clients wait: {troubles}")
    if leader is None:
        return Health(
            Severity.CRITICAL,
            f"nobody leads: {_names(connected)} are a majority, and should elect a leader in a moment; ask again",
        )
    troubles = _troubles(nodes, silent)
    full = [each["name"] for each in voters if each["alarm"] and each["disk_free_bytes"] < FULL_BYTES]
    hanging = _hanging(voters)
    if sees_majority and not is_majority(len(set(connected).difference(full, hanging)), len(voters)):
        why = f"the disks of {_names(full)} are full; " if full else ""
        return Health(Severity.CRITICAL, f"nothing is confirmed: {why}{'; '.join(troubles)}")
    drained = [each["name"] for each in nodes if each["drained"]]
    if set(connected) <= set(drained):
        why = [*troubles, f"under maintenance: {_names(drained)} (`qq revive` ends that)"]
        return Health(Severity.CRITICAL, f"nobody serves clients: {'; '.join(why)}")
    note = f"; under maintenance: {_names(drained)}" if drained else ""
    # Nodes of earlier releases do not report lost directories.
    lost = [
        f"{each['name']} lost its data at {utc(each['lost_ms'])}" for each in nodes if each.get("lost_ms")
    ]
    lost += [
        f"{each['name']} had an older data directory at {utc(each['rolled_back_ms'])}"
        for each in nodes
        if each.get("rolled_back_ms")
    ]
    note = "; ".join([note, *lost])
    if troubles:
        is_grave = silent or any(each["alarm"] for each in nodes)
        severity = Severity.CRITICAL if is_grave else Severity.WARNING
        return Health(severity, f"not well: {'; '.join(troubles)}; {leader} leads{note}")
    if not is_majority(len(voters) - 1, len(voters)):
        note = f"; if a voter stops, nothing is confirmed{note}"
    text = f"all well: {len(nodes)} of {len(nodes)} members, {leader} leads{note}"
    return Health(Severity.WARNING if drained or lost else Severity.INFO, text, is_well=True)


def _troubles(nodes: Sequence[Mapping[str, Any]], silent: Sequence[str]) -> list[str]:
    """Return the problems that do not stop the cluster."""
    alarmed = [each["name"] for each in nodes if each["alarm"]]
    awaited = [each["name"] for each in nodes if each["role"] == "awaited"]
    lagging = [
        each["name"]
        for each in nodes
        if each["name"] not in (*silent, *awaited)
        and (each["role"] == "learner" or each["standing"] in ("learner", "blank"))
    ]
    committed = max((each["commit_index"] or 0 for each in nodes), default=0)
    behind = [
        each["name"]
        for each in nodes
        if each["applied_index"] is not None
        and each["name"] not in lagging
        and committed - each["applied_index"] > _BEHIND_ENTRIES
    ]
    found = [
        (alarmed, "publishers wait, for want of disk or memory of"),
        (awaited, "has not come yet:"),
        (lagging, "is being given the log:"),
        (behind, "applies what it lacks, and its clients wait:"),
        (_hanging(nodes), "has a disk that does not answer:"),
    ]
    texts = [f"{text} {_names(names)}" for names, text in found if names]
    # Nodes of earlier releases do not report their missing links.
    misses = {each["name"]: each.get("misses") or () for each in nodes if each["state"] != _DOWN}
    texts += [f"{one} and {other} have no link" for one, other in unlinked(misses)]
    from cluster.membership.health import why_absent  # noqa: PLC0415 -- large

    # Nodes of earlier releases do not report other directories.
    foreign = [each["name"] for each in nodes if each.get("other_directory")]
    return [*why_absent(silent, foreign), *texts]


def _hanging(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of nodes whose disks hang; nodes of earlier releases do not report this."""
    return [each["name"] for each in nodes if each.get("disk_hangs") and each["state"] != _DOWN]


def _hears_leader(node: Mapping[str, Any]) -> bool:
    """Return whether a node hears the leader; nodes of earlier releases do not report this."""
    return node["state"] != _DOWN and bool(node.get("hears_leader"))


def _names(names: Sequence[str]) -> str:
    return ", ".join(names)
