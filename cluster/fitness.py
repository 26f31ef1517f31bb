"""Who goes on when a member stops, and who can lead: judged from what the members say of themselves.

Lives here: the judgement, and its words for operators. Not here: what is known of each member (peers.py), how many are
enough (membership.py), what is done about it (leadership.py, reconfiguration.py).

Law: pure. A member of which it is not known that it is fit is not fit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cluster.envelope import Alarm
from cluster.log.hardstate import Standing
from cluster.membership import Membership

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from cluster.envelope import Status

    Known = Mapping[str, Status | None]
    """What each member has last said of itself; None for one that does not answer."""

LAG_MAX = 2000
"""A member that lacks no more entries than this counts as up to date. Members tell how far they are once a second, so
even one that lacks nothing seems to lack what has come since."""


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
    if not status.hears_leader:
        return f"{name} does not hear the leader (look at the network between them)"
    lacks = max(each.last_index for each in known.values() if each is not None) - status.last_index
    if lacks > LAG_MAX:
        return f"{name} lacks {lacks:,} entries of the log (wait until it has caught up)"
    return None


def why_not_lead(name: str, known: Known) -> str | None:
    """Why leadership should not go to this member; None if it may."""
    status = known.get(name)
    if status is not None and status.alarm & Alarm.DISK:
        return f"{name} is low on disk (make room on it)"
    return why_cannot_lead(name, known) or flaw(name, known)


def why_cannot_lead(name: str, known: Known) -> str | None:
    """Why this member could not lead, even if nobody else can; None if it could."""
    status = known.get(name)
    if status is None or status.standing != Standing.VOTER:
        return flaw(name, known)
    if status.may_lead:
        return None
    if status.alarm & Alarm.DISK:
        return f"{name} has a full disk (make room on it)"
    return f"{name} has a damaged log (that is repaired once the other voters can go on without it)"


def successors(name: str, membership: Membership, drained: Collection[str], known: Known) -> list[str]:
    """The voters to which leadership may go from this member: the first of these groups that is not empty.

    Those that are fit and not under maintenance; those that are fit; those that could lead at all.
    """
    others = sorted(membership.voters - {name})
    able = [other for other in others if why_cannot_lead(other, known) is None]
    fit = [other for other in able if why_not_lead(other, known) is None]
    return [other for other in fit if other not in drained] or fit or able


def may_stop(
    name: str, leader: str | None, membership: Membership, drained: Collection[str], known: Known
) -> Verdict:
    """Judge whether the voters that are left are a majority, and serve clients, when this member stops."""
    if leader is None:
        flaws = [f"{each} does not answer" for each in membership.members if known.get(each) is None]
        why = "; ".join(["no leader is known", *flaws])
        return Verdict(False, f"do not stop {name}: {why}: start the nodes that are down")
    others = sorted(membership.voters - {name})
    flaws = {other: why for other in others if (why := flaw(other, known)) is not None}
    fit = [other for other in others if other not in flaws]
    names = ", ".join(fit)
    if not membership.is_majority(fit):
        few = f"{names or 'what is left'} would be no majority of {len(membership.voters)} voters"
        return Verdict(False, f"do not stop {name}: " + "; ".join([few, *flaws.values()]))
    if known.get(name) is None:
        return Verdict(
            True, f"{name} does not answer, as if it were stopped already; {names} go on without it"
        )
    if name not in drained and all(other in drained for other in fit):
        return Verdict(
            False,
            f"do not stop {name}: {names} would go on, but under maintenance nobody serves clients: end that first "
            f"(`qq revive {fit[0]}`)",
        )
    note = "; it leads, and hands over before it stops" if name == leader else ""
    return Verdict(True, f"{name} may be stopped: {names} go on{note}")


def may_leave(name: str, membership: Membership, known: Known) -> Verdict:
    """Judge whether those that are left can go on, and agree on it, when this member is none any more."""
    if name not in membership.voters:
        return Verdict(True, f"{name} does not vote, so all goes on without it")
    left = Membership(membership.voters - {name}, membership.learners)
    if not left.voters:
        return Verdict(False, f"{name} is the only voter: add another one first")
    flaws = {other: why for other in sorted(left.voters) if (why := flaw(other, known)) is not None}
    fit = [other for other in sorted(left.voters) if other not in flaws]
    if left.is_majority(fit):
        return Verdict(True, f"{', '.join(fit)} go on without {name}")
    voters = ", ".join(sorted(left.voters))
    few = f"{', '.join(fit)} would be no majority of {voters}" if fit else f"of {voters} nobody could go on"
    return Verdict(False, f"{name} stays a voter: " + "; ".join([few, *flaws.values()]))


def may_drain(name: str, membership: Membership, drained: Collection[str], known: Known) -> Verdict:
    """Judge whether another member can lead, and serve clients, while this one is under maintenance."""
    others = sorted(membership.voters - {name})
    flaws = {
        other: f"{other} is under maintenance itself" if other in drained else why_not_lead(other, known)
        for other in others
    }
    fit = [other for other in others if flaws[other] is None]
    if fit:
        return Verdict(True, f"{', '.join(fit)} can serve in place of {name}")
    reasons = "; ".join(str(why) for why in flaws.values())
    return Verdict(False, f"{name} goes on serving: nobody else can: {reasons or 'it is the only voter'}")
