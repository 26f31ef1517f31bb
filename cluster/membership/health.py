"""Who goes on when a member stops, and who can lead: judged from what the members say of themselves.

Invariant: pure. A member of which it is not known that it is fit is not fit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cluster.configuration.voters import Membership
from cluster.log.hardstate import Standing
from cluster.raft.messages import Alarm

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from cluster.raft.messages import Status

    Known = Mapping[str, Status | None]
    """What each member has last said of itself; None for one that does not answer."""

LAG_MAX = 2000
"""A member that lacks no more entries than this counts as up to date. Members tell how far they are once a second, so
even one that lacks nothing seems to lack what has come since."""

FULL_BYTES = 4096
"""With less than this left a disk is full: that is a block of usual file systems, so no file can grow."""

OBSOLETE_FACTOR = 2
"""A log that is so many times as large as the leader's is for the greater part of what nobody needs any more."""


class Verdict(NamedTuple):
    """Whether something may be done, and a line that says why, or what to do first."""

    is_safe: bool
    text: str


def flaw(name: str, known: Known) -> str | None:
    """Why this member does not count as one that goes on, and what to do about it; None if it counts."""
    status = known.get(name)
    if status is None:
        return f"{name} does not answer (start it, or look at its network)"
    if status.standing != Standing.VOTER:
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
    """Why these two members cannot work with each other; None if they have a link, as far as is known."""
    for teller, missed in ((one, other), (other, one)):
        status = known.get(teller)
        if status is not None and missed in status.misses:
            return f"{one} and {other} have no link (look at the network between them, and at their secrets)"
    return None


def _led_by(leader: str, names: Collection[str], known: Known) -> list[str]:
    """Those of the given members that this one could lead, itself included."""
    return [name for name in names if name == leader or _gap(leader, name, known) is None]


def _who_go_on(names: Collection[str], known: Known) -> dict[str, str | None]:
    """Why each of these members would not go on with the others, without anybody else; None for those that would.

    They need one among them that can lead and has links with as many as possible.
    """
    leaders = [name for name in names if why_cannot_lead(name, known) is None]
    if not leaders:
        return {name: why_cannot_lead(name, known) for name in names}
    leader = max(leaders, key=lambda name: len(_led_by(name, names, known)))
    return {name: None if name == leader else _gap(leader, name, known) for name in names}


def _has_full_disk(status: Status) -> bool:
    """Whether the member can store nothing more, so that it acknowledges nothing either.

    Its disk has refused a write, or would do so with the next one: while nothing is published, nothing is refused.
    """
    return bool(status.alarm & Alarm.DISK) and (not status.may_lead or status.disk_free_bytes < FULL_BYTES)


def why_no_leader(membership: Membership, known: Known, own_flaw: str | None = None) -> str:
    """Why there is no leader, where none is known: who does not answer, and who hears one all the same.

    A leader is silent to a node that takes no part yet: `own_flaw` is why this one does not.
    """
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
        return "no leader: the members elect one"
    those = f"{', '.join(silent)} {'does' if len(silent) == 1 else 'do'} not answer"
    is_majority = membership.is_majority(membership.voters - set(silent))
    return f"no leader: {those}, and the others elect one" if is_majority else f"no majority: {those}"


def why_not_lead(name: str, known: Known) -> str | None:
    """Why leadership should not go to this member; None if it may."""
    return why_short(name, known) or why_cannot_lead(name, known) or flaw(name, known)


def why_short(name: str, known: Known) -> str | None:
    """Why this member may soon store nothing, or cannot be given what it lacks; None if it has space."""
    status = known.get(name)
    if status is not None and status.alarm & Alarm.DISK:
        return f"{name} is low on disk (make room on it)"
    return None


def why_not_all(name: str, membership: Membership, known: Known) -> str | None:
    """Which voter that answers would not be led by this member, and why; None if there is none."""
    others = sorted(other for other in membership.voters - {name} if known.get(other) is not None)
    return next(filter(None, (_gap(name, other, known) for other in others)), None)


def why_cannot_lead(name: str, known: Known) -> str | None:
    """Why this member could not lead, even if nobody else can; None if it could."""
    status = known.get(name)
    if status is None or status.standing != Standing.VOTER:
        return flaw(name, known)
    if status.may_lead:
        return None
    if _has_full_disk(status):
        return flaw(name, known)
    return f"{name} has a damaged log (that is repaired once the other voters can go on without it)"


def successors(name: str, membership: Membership, drained: Collection[str], known: Known) -> list[str]:
    """The voters to which leadership may go from this member: the first of these groups that is not empty.

    Those that are fit and not under maintenance; those that are fit; those that could lead at all. Of such a group,
    those that have links with the most voters.
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
    """The voters that could lead all that this member could lead, and others that it could not: for each, these others.

    Who is fit and under maintenance would hand over again.
    """
    reached = set(_led_by(name, membership.voters, known))
    led = {
        other: set(_led_by(other, membership.voters, known))
        for other in successors(name, membership, drained, known)
        if other not in drained and why_not_lead(other, known) is None
    }
    return {other: sorted(those - reached) for other, those in led.items() if those > reached}


def _fit(names: Collection[str], known: Known) -> tuple[list[str], dict[str, str]]:
    """Divide these members: those that can go on with each other, and why the others cannot."""
    flaws = {name: why for name in sorted(names) if (why := flaw(name, known)) is not None}
    fit = [name for name in sorted(names) if name not in flaws]
    flaws |= {name: why for name, why in _who_go_on(fit, known).items() if why is not None}
    return [name for name in fit if name not in flaws], flaws


def _why_nobody_serves(fit: Sequence[str], drained: Collection[str]) -> str | None:
    """Why no clients are served where these go on without others; None if one of them serves some."""
    if any(name not in drained for name in fit):
        return None
    return (
        f"{', '.join(fit)} would go on, but under maintenance nobody serves clients: end that first "
        f"(`qq revive {fit[0]}`)"
    )


def may_stop(
    name: str, leader: str | None, membership: Membership, drained: Collection[str], known: Known
) -> Verdict:
    """Judge whether the voters that are left are a majority, and serve clients, when this member stops."""
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
    """Judge whether those that are left agree on it, and serve clients, when this member is none any more."""
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
    """Why those who vote before a change and are there would be no majority after it; None if they would be one.

    What they have agreed on counts as soon as it is in the log, so there would be no way back. Voters under repair
    elect nobody, so they do not count: if the leader died, there would be none. Nor does one that gets its vote by the
    change: it may be lost in this very moment. Only a lone voter has to rely on another one.
    """
    if after.voters == before.voters:
        return None
    is_alone = len(before.voters) == 1
    relied_on = after.voters if is_alone else after.voters & before.voters
    there = [
        name
        for name in relied_on
        if (status := known.get(name)) is not None
        and (status.standing == Standing.VOTER or name not in before.voters)
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
    """Judge whether another member can lead, and serve clients, while this one is under maintenance."""
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
    """Why this member, or the cluster, stores nothing for want of space, in words for operators; None if it does."""
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
    """Why a follower without space may be without its log, in words for operators; None if it may not.

    `durable_bytes` is the size of its log on the disk, and `synced_index` its last entry there. All that is committed
    behind that entry is, with everything before it, on a majority of the voters that this one is not part of. They all
    must be there, and give it back as a log that takes less than half the space.
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
