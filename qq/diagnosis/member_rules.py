"""Rules about members, from the status that each member reports: missing links, lag, unfinished changes of membership.

Invariant: pure, and independent of a majority: the facts that this node has suffice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from qq.diagnosis.findings import Finding
from qq.diagnosis.words import number

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

LAG_MAX = 2000
"""Entries that an up-to-date member may lack, because members report their progress only once a second."""
CLOCK_OFF_MS = 5000
FEW = 3
"""Voters below which a cluster does not survive the loss of a voter."""

CLUSTER = "cluster"


class MemberFacts(NamedTuple):
    """A member as the reporting node sees it. None means that the reporting node does not know."""

    name: str
    is_up: bool
    role: str
    """Role in the configuration of the log: "voter", "learner" or "awaited" (added, not yet started)."""
    standing: str | None = None
    """Voter status: "voter", or "learner" or "blank" while the member's log is repaired."""
    lag: int | None = None
    clock_offset_ms: int | None = None
    misses: Sequence[str] = ()
    """Names of the members that it has no link with or does not hear."""
    highest: int | None = None
    """Highest version of the state that the member's program can run."""
    is_drained: bool = False
    disk_hangs: bool = False
    hears_leader: bool = False
    """Whether the member leads or hears the leader, as it reports itself."""
    why_apart: str | None = None
    """Reason why the reporting node has no link with the member; None if unknown."""
    lost_ms: int | None = None
    """When the member's data directory was lost or replaced within the last day, in milliseconds since 1970."""
    rolled_back_ms: int | None = None
    """When the member learnt that its directory was put back as it was earlier, in milliseconds since 1970."""
    has_other_directory: bool = False
    """Whether another data directory than the member's is up under its name."""


class ClusterFacts(NamedTuple):
    """The cluster as the reporting node sees it."""

    leader: str | None
    members: Sequence[MemberFacts]
    version: int
    """Version of the state that the cluster has agreed on."""
    majority_lost: str | None = None
    """Which logs are damaged or lost, if the members with intact logs are no majority; else None."""


def findings_of_members(facts: ClusterFacts) -> Iterator[Finding]:
    yield from _whole(facts)
    for member in facts.members:
        yield from _member(member)
    yield from _links(facts.members)


def findings_of_names(twice: Iterable[str]) -> Iterator[Finding]:
    """Yield a finding for each name that a rejected process uses although a linked member has it."""
    for name in twice:
        text = "a second process uses its name; the other nodes refuse that process"
        yield Finding("name-twice", f"node {name}", text)


def unlinked(misses: Mapping[str, Iterable[str]]) -> list[tuple[str, str]]:
    """Return the pairs of nodes without a link, each pair once, sorted.

    `misses` maps each node to the nodes that it has no link with. Nodes without an entry in it are ignored.
    """
    pairs = {(min(one, other), max(one, other)) for one in misses for other in misses[one] if other in misses}
    return sorted(pairs)


def _whole(facts: ClusterFacts) -> Iterator[Finding]:
    voters = [member for member in facts.members if member.role == "voter"]
    hearing = [member.name for member in facts.members if member.is_up and member.hears_leader]
    if facts.leader is None and hearing:
        text = (
            f"the asked node hears no leader, so its clients wait; {', '.join(hearing)} can name the leader"
        )
        yield Finding("leader-unheard", CLUSTER, text)
    elif facts.leader is None and facts.majority_lost:
        yield Finding("majority-lost", CLUSTER, facts.majority_lost)
    elif facts.leader is None:
        up = sum(member.is_up for member in voters)
        text = f"no message is confirmed: no leader is known, and this node sees {up} of {len(voters)} voters"
        yield Finding("no-leader", CLUSTER, text)
    elif all(member.is_drained for member in voters if member.is_up and member.standing in (None, "voter")):
        drained = ", ".join(member.name for member in voters if member.is_up and member.is_drained)
        text = f"no client can connect: all nodes that are up are under maintenance ({drained})"
        yield Finding("nobody-serves", CLUSTER, text)
    if len(voters) < FEW:
        text = f"it has {number(len(voters), 'voter')}: after the loss of one, no message is confirmed"
        yield Finding("members-few", CLUSTER, text)
    elif len(voters) % 2 == 0:
        text = f"it has {len(voters)} voters, which tolerate no more failures than {len(voters) - 1}"
        yield Finding("members-even", CLUSTER, text)
    able = [member.name for member in facts.members if (member.highest or 0) > facts.version]
    if able:
        others = [member.name for member in facts.members if member.name not in able]
        why = f"; {', '.join(others)} cannot, or is down" if others else ", as all members can"
        text = (
            f"it is at version {facts.version} of the state; {', '.join(able)} can run a later version{why}"
        )
        yield Finding("upgrade-waits", CLUSTER, text)


def _member(member: MemberFacts) -> Iterator[Finding]:
    node = f"node {member.name}"
    if member.role == "awaited":
        yield Finding("member-awaited", node, "it is a member that has not connected yet")
    elif not member.is_up and member.has_other_directory:
        text = "another data directory than the member's is up under its name, and does not count"
        yield Finding("directory-differs", node, text)
    elif not member.is_up:
        text = f"there is no link with it: {member.why_apart}" if member.why_apart else "it does not answer"
        yield Finding("node-down", node, text)
    elif member.standing not in (None, "voter"):
        yield Finding("node-under-repair", node, "it receives its log anew from other nodes: it has no vote")
    elif member.role == "learner":
        yield Finding("member-learns", node, "it receives the log, and does not vote yet")
    elif member.lag is not None and member.lag > LAG_MAX:
        yield Finding("node-behind", node, f"it lacks {member.lag:,} entries of the log")
    if member.lost_ms is not None:
        text = "it lost its data: a new data directory has taken the place of the last one"
        yield Finding("data-lost", node, text, member.lost_ms)
    if member.rolled_back_ms is not None:
        text = "its data directory was put back as it was earlier, so it had forgotten entries that it acknowledged"
        yield Finding("rolled-back", node, text, member.rolled_back_ms)
    if member.is_up and member.clock_offset_ms is not None and abs(member.clock_offset_ms) > CLOCK_OFF_MS:
        way = "ahead of" if member.clock_offset_ms > 0 else "behind"
        text = f"its clock is {abs(member.clock_offset_ms) / 1000:.1f} s {way} the cluster's time"
        yield Finding("clock-off", node, text)
    if member.disk_hangs:
        yield Finding("disk-slow", node, "a write of its disk hangs: it has stored no entry since")
    if member.is_drained:
        yield Finding(
            "node-drained",
            node,
            "it is under maintenance: it serves no clients, and leads only if no other node can",
        )


def _links(members: Sequence[MemberFacts]) -> Iterator[Finding]:
    """Yield each pair of members that are up and have no link with each other, once."""
    for one, other in unlinked({member.name: member.misses for member in members if member.is_up}):
        yield Finding(
            "link-missing", f"nodes {one} and {other}", "both are up, and have no link with each other"
        )
