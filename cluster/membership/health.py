"""Health verdicts: whether the cluster goes on without a member, and which members can lead.

All verdicts follow from the statuses that the members report of themselves. The functions `flaw`, `_gap` and `why_...`
return a line for operators: the reason and often the remedy. They return None if no such reason is known.

Invariant: pure. A member counts as fit only if its status says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cluster.configuration.quorum import Membership
from cluster.log.hardstate import VoterStatus
from cluster.raft.messages import Alarm

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from cluster.raft.messages import Status

    Known = Mapping[str, Status | None]
    """The last status that each member reported; None if the member does not answer."""

LAG_MAX = 2000
"""Entries that a member may lack and still count as up to date.

Members report their last index once a second. So even a member with the whole log seems to lack the entries since its
last report.
"""

FULL_BYTES = 4096
"""Free bytes below which a disk counts as full: a block of usual file systems, so no file can grow."""

OBSOLETE_FACTOR = 2
"""A log is obsolete if it is this many times as large as the leader's: most of its entries are no longer needed."""


class Verdict(NamedTuple):
    """Whether an operation is safe, with a line that gives the reason or what the operator must do first."""

    is_safe: bool
    text: str


def flaw(name: str, known: Known) -> str | None:
    """Return why this member cannot be relied on, and the remedy."""
    status = known.get(name)
    if status is None:
        return f"{name} does not answer (start it, or look at its network)"
    if status.voter_status != VoterStatus.VOTER:
        return f"{name} is under repair (wait until it is a voter)"
    if _has_full_disk(status):
        return f"{name} has a full disk (make room on it)"
    if status.disk_hangs:
        return f"{name} has a disk that does not answer (look what is wrong with it)"
    if not status.hears_leader:
        return f"{name} does not hear the leader (look at the network between them)"
    lacks = max(each.last_index for each in known.values() if each is not None) - status.last_index
    if lacks > LAG_MAX:
        return f"{name} lacks {lacks:,} entries of the log (wait until it has caught up)"
    return None


def _gap(one: str, other: str, known: Known) -> str | None:
    """Return why these two members cannot work with each other: either reports a missing link."""
    for teller, missed in ((one, other), (other, one)):
        status = known.get(teller)
        if status is not None and missed in status.misses:
            return f"{one} and {other} have no link (look at the network between them, and at their secrets)"
    return None


def _led_by(leader: str, names: Collection[str], known: Known) -> list[str]:
    """Return the given members that `leader` could lead, including itself."""
    return [name for name in names if name == leader or _gap(leader, name, known) is None]


def _who_go_on(names: Collection[str], known: Known) -> dict[str, str | None]:
    """Map each of these members to the reason why it cannot go on with the rest, or to None if it can.

    The members go on only with a leader among them: the able member that has links with most of them.
    """
    leaders = [name for name in names if why_cannot_lead(name, known) is None]
    if not leaders:
        return {name: why_cannot_lead(name, known) for name in names}
    leader = max(leaders, key=lambda name: len(_led_by(name, names, known)))
    return {name: None if name == leader else _gap(leader, name, known) for name in names}


def _has_full_disk(status: Status) -> bool:
    """Return whether the member's disk is full, so that it stores and acknowledges no entry.

    The disk has refused a write, or would refuse the next write: without publishes, no write is refused.
    """
    return bool(status.alarm & Alarm.DISK) and (not status.may_lead or status.disk_free_bytes < FULL_BYTES)


def why_no_leader(
    membership: Membership,
    known: Known,
    own_flaw: str | None = None,
    why_hopeless: str | None = None,
    foreign: Collection[str] = (),
) -> str:
    """Return why no leader is known: the members that do not answer, and the members that hear a leader.

    A leader sends no heartbeats to a node that has not joined yet. `own_flaw` is why this node cannot take part, and
    `why_hopeless` that a majority has lost its logs. `foreign` are the names under which other data directories than
    the members' are connected.
    """
    if why_hopeless is not None:
        return f"no majority: {why_hopeless}"
    silent = sorted(name for name in membership.voters if known.get(name) is None)
    hearing = sorted(name for name, status in known.items() if status is not None and status.hears_leader)
    if hearing and own_flaw is not None:
        return f"no leader: {own_flaw}"
    if hearing:
        hear = "hears" if len(hearing) == 1 else "hear"
        those = f"; {', '.join(silent)} cannot be heard" if silent else ""
        return (
            f"no leader: this node hears none, and {', '.join(hearing)} {hear} one{those} (look at the network between "
            "the nodes)"
        )
    if not silent:
        return "no leader: all members answer, and should elect one in a moment"
    those = "; ".join(why_absent(silent, foreign))
    is_majority = membership.is_majority(membership.voters - set(silent))
    return f"no leader: {those}; the others are a majority" if is_majority else f"no majority: {those}"


def why_entries_lost(committed_index: int, last_index: int) -> str | None:
    """Return that no node that answers has an entry that was committed; `last_index` is the end of the longest log.

    Then nodes were put back as they were earlier, or nodes with that entry are down.
    """
    if last_index >= committed_index:
        return None
    return (
        f"entry {committed_index} was committed, and the logs of the nodes that answer end with entry {last_index}: "
        "start the other nodes, or put the last data directories back; if that is impossible, stop all nodes, and `qq "
        "recover` lets a single node go on with its data, and may lose confirmed messages"
    )


def why_absent(silent: Sequence[str], foreign: Collection[str]) -> list[str]:
    """Return the texts for members that are not heard; `foreign` is as for `why_no_leader`."""
    absent = [name for name in silent if name not in foreign]
    others = [name for name in silent if name in foreign]
    verb = "does not answer" if len(absent) == 1 else "do not answer"
    return [
        *([f"{', '.join(absent)} {verb}"] if absent else []),
        *(f"another data directory than that of the member is up under the name {name}" for name in others),
    ]


def why_not_lead(name: str, known: Known) -> str | None:
    """Return why leadership should not go to this member."""
    return why_short(name, known) or why_cannot_lead(name, known) or flaw(name, known)


def why_short(name: str, known: Known) -> str | None:
    """Return that this member is low on disk: it may soon be unable to store entries."""
    status = known.get(name)
    if status is not None and status.alarm & Alarm.DISK:
        return f"{name} is low on disk (make room on it)"
    return None


def why_not_all(name: str, membership: Membership, known: Known) -> str | None:
    """Return why this member could not lead all voters that answer: a voter has no link with it."""
    others = sorted(other for other in membership.voters - {name} if known.get(other) is not None)
    return next(filter(None, (_gap(name, other, known) for other in others)), None)


def why_cannot_lead(name: str, known: Known) -> str | None:
    """Return why this member could not lead even as the last candidate."""
    status = known.get(name)
    if status is None or status.voter_status != VoterStatus.VOTER:
        return flaw(name, known)
    if status.may_lead:
        return None
    if _has_full_disk(status):
        return flaw(name, known)
    return f"{name} has a damaged log (that is repaired once the other voters can go on without it)"


def successors(name: str, membership: Membership, drained: Collection[str], known: Known) -> list[str]:
    """Return the voters that leadership may go to from this member: the best of three groups that is not empty.

    The groups are: fit voters that are not under maintenance; fit voters; voters that could lead at all. Of the group,
    only the voters that have links with the most voters are returned.
    """
    others = sorted(membership.voters - {name})
    able = [other for other in others if why_cannot_lead(other, known) is None]
    fit = [other for other in able if why_not_lead(other, known) is None]
    group = [other for other in fit if other not in drained] or fit or able
    led = {other: len(_led_by(other, membership.voters, known)) for other in group}
    return [other for other in group if led[other] == max(led.values())]


def reaching_more(
    name: str, membership: Membership, drained: Collection[str], known: Known
) -> dict[str, list[str]]:
    """Return the candidates that reach every voter this member reaches and more: candidate -> the extra voters.

    A candidate is fit and not under maintenance, because a leader under maintenance would hand over again.
    """
    reached = set(_led_by(name, membership.voters, known))
    led = {
        other: set(_led_by(other, membership.voters, known))
        for other in successors(name, membership, drained, known)
        if other not in drained and why_not_lead(other, known) is None
    }
    return {other: sorted(those - reached) for other, those in led.items() if those > reached}


def _fit(names: Collection[str], known: Known) -> tuple[list[str], dict[str, str]]:
    """Divide these members into those that can go on with each other, and the reasons why the rest cannot."""
    flaws = {name: why for name in sorted(names) if (why := flaw(name, known)) is not None}
    fit = [name for name in sorted(names) if name not in flaws]
    flaws |= {name: why for name, why in _who_go_on(fit, known).items() if why is not None}
    return [name for name in fit if name not in flaws], flaws


def _why_nobody_serves(fit: Sequence[str], drained: Collection[str]) -> str | None:
    """Return why no clients would be served if only the members `fit` went on."""
    if any(name not in drained for name in fit):
        return None
    return (
        f"{', '.join(fit)} would go on, but under maintenance nobody serves clients: end that first "
        f"(`qq revive {fit[0]}`)"
    )


def may_stop(
    name: str, leader: str | None, membership: Membership, drained: Collection[str], known: Known
) -> Verdict:
    """Judge whether the remaining voters are a majority, and serve clients, when this member stops."""
    if leader is None:
        flaws = [f"{each} does not answer" for each in membership.members if known.get(each) is None]
        why = "; ".join(["no leader is known", *flaws])
        advice = "start the nodes that are down" if flaws else "wait until the members have elected one"
        return Verdict(False, f"do not stop {name}: {why}: {advice}")
    fit, flaws = _fit(membership.voters - {name}, known)
    names = ", ".join(fit)
    if not membership.is_majority(fit):
        few = f"{names or 'what is left'} would be no majority of {len(membership.voters)} voters"
        return Verdict(False, f"do not stop {name}: " + "; ".join([few, *flaws.values()]))
    idle = _why_nobody_serves(fit, drained)
    if idle is not None:
        return Verdict(False, f"do not stop {name}: {idle}")
    if known.get(name) is None:
        return Verdict(
            True, f"{name} does not answer, as if it were stopped already; {names} go on without it"
        )
    note = "; it leads, and hands over before it stops" if name == leader else ""
    return Verdict(True, f"{name} may be stopped: {names} go on{note}")


def may_leave(name: str, membership: Membership, drained: Collection[str], known: Known) -> Verdict:
    """Judge whether the remaining voters are a majority, and serve clients, after this member is removed."""
    if name not in membership.voters:
        return Verdict(True, f"{name} does not vote, so all goes on without it")
    left = Membership(membership.voters - {name}, membership.learners)
    if not left.voters:
        return Verdict(False, f"{name} is the only voter: add another one first")
    fit, flaws = _fit(left.voters, known)
    if left.is_majority(fit):
        idle = _why_nobody_serves(fit, drained)
        if idle is not None:
            return Verdict(False, f"{name} stays a voter: {idle}")
        return Verdict(True, f"{', '.join(fit)} go on without {name}")
    voters = ", ".join(sorted(left.voters))
    few = f"{', '.join(fit)} would be no majority of {voters}" if fit else f"of {voters} nobody could go on"
    return Verdict(False, f"{name} stays a voter: " + "; ".join([few, *flaws.values()]))


def why_no_majority(before: Membership, after: Membership, known: Known) -> str | None:
    """Return why the answering voters of both configurations are no majority of the new voters.

    A configuration counts as soon as it is in the log, so there would be no way back. These voters do not count:

    - Voters under repair, because they elect no leader: if the leader died, the cluster would have none.
    - A voter that gets its vote by this change, because it may be lost at this very moment. Only a lone voter must rely
      on the voter that is added.
    """
    if after.voters == before.voters:
        return None
    is_alone = len(before.voters) == 1
    relied_on = after.voters if is_alone else after.voters & before.voters
    there = [
        name
        for name in relied_on
        if (status := known.get(name)) is not None
        and (status.voter_status == VoterStatus.VOTER or name not in before.voters)
    ]
    if after.is_majority(there):
        return None
    away = sorted(relied_on.difference(there))
    are, do = ("is", "does") if len(away) == 1 else ("are", "do")
    rest = " without ".join(["the rest", *sorted(after.voters - relied_on)])
    return (
        f"there would be {len(after.voters)} voters, and of these {', '.join(away)} {do} not answer, or {are} under "
        f"repair, so {rest} would be no majority: start, replace or remove them first"
    )


def may_drain(name: str, membership: Membership, drained: Collection[str], known: Known) -> Verdict:
    """Judge whether another member can lead, and serve clients, while this member is under maintenance."""
    others = sorted(membership.voters - {name})
    flaws = {
        other: f"{other} is under maintenance itself"
        if other in drained
        else why_not_lead(other, known) or why_not_all(other, membership, known)
        for other in others
    }
    fit = [other for other in others if flaws[other] is None]
    if fit:
        return Verdict(True, f"{', '.join(fit)} can serve in place of {name}")
    reasons = "; ".join(str(why) for why in flaws.values())
    return Verdict(False, f"{name} goes on serving: nobody else can: {reasons or 'it is the only voter'}")


def why_nothing_is_stored(name: str, membership: Membership, known: Known) -> str | None:
    """Return how full disks keep this member or the cluster from storing entries."""
    full = sorted(other for other, status in known.items() if status is not None and _has_full_disk(status))
    if name in full:
        return "the node's disk is full: it goes on when there is space"
    silent = sorted(other for other, status in known.items() if status is None)
    if not full or membership.has_majority_without([*full, *silent]):
        return None
    down = f", and {', '.join(silent)} not heard" if silent else ""
    return f"the disks of too many nodes are full: {', '.join(full)}{down}: the cluster goes on when there is space"


def why_log_is_obsolete(
    name: str, leader: str | None, membership: Membership, known: Known, durable_bytes: int, synced_index: int
) -> str | None:
    """Return why a follower with a full disk may discard its log.

    `durable_bytes` is the size of its log on the disk, and `synced_index` the last entry there. The leader must have
    committed an entry after `synced_index`. Then every committed entry is on a majority of voters without this
    follower. All of that majority must be fit. The leader's log must take half the space at most, because the follower
    gets that log back.
    """
    leads = known.get(leader) if leader not in (None, name) else None
    voters = [other for other in known if other != name and flaw(other, known) is None]
    if leads is None or not membership.is_majority(voters) or leads.commit_index <= synced_index:
        return None
    if OBSOLETE_FACTOR * leads.disk_bytes > durable_bytes:
        return None
    return (
        f"the disk is full, with a log of {durable_bytes:,} bytes where that of {leader} has {leads.disk_bytes:,}: "
        "it is given up, and this node is repaired from the others"
    )
