"""What a leader does about the members by itself: notes what each tells of itself, lets learners vote, raises versions.

A learner is promoted when it has caught up (Raft thesis, 4.2.1): it is given the log in rounds, each up to where the
log ended when the round began, and the last round has to be shorter than an election timeout. So a new voter never
makes the others wait for what it lacks.

The version is raised when the program of every member can run the next one, also of those that are away: what they have
told last is in the configuration. The first raise puts a configuration into the log at all; until then the list in each
node's file counts, and programs of release 0.1 can take part.

Lives here: which step is to be taken next. Not here: what a step may do (configuration.py), when one may be proposed
(group.py), what operators ask for.

Law: pure. A step that is returned again and again until it is taken does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from cluster.configuration import Configuration, PeerAddress, Versions

if TYPE_CHECKING:
    from cluster.configuration import Member
    from cluster.envelope import Introduction

Step = Callable[[Configuration], Configuration]


class _Round(NamedTuple):
    """What a learner is being given."""

    goal: int
    """The index at which the log ended when the round began."""
    began_s: float


class Enrolment:
    """What one leader knows of the members that its links lead to, itself included."""

    def __init__(self, round_s: float) -> None:
        """A round that takes no longer than `round_s` seconds is short enough."""
        self._round_s = round_s
        self._told: dict[str, Introduction] = {}
        self._rounds: dict[str, _Round] = {}

    def introduced(self, name: str, introduction: Introduction) -> None:
        """A node has told, on a new link, who it is."""
        self._told[name] = introduction
        self._rounds.pop(name, None)

    def next_step(
        self,
        configuration: Configuration,
        acknowledged: Mapping[str, int],
        last_index: int,
        now_s: float,
        new_id: Callable[[], bytes],
    ) -> Step | None:
        """The step that is to be taken now, if any.

        `acknowledged` is how far each learner is known to hold the log, which ends with `last_index`; `new_id` makes an
        id for a cluster that has none.
        """
        if not configuration.cluster:
            return self._first_raise(configuration, new_id)
        for member in configuration.members:
            told = self._told.get(member.name)
            if told is not None and member.id in (None, told.member_id) and _differs(member, told):
                return partial(_join, name=member.name, told=told)
        for member in configuration.members:
            if not member.is_voter and self._has_caught_up(member.name, acknowledged, last_index, now_s):
                return partial(_promote, name=member.name)
        version = configuration.version + 1
        if all(
            member.versions is not None and member.versions.include(version)
            for member in configuration.members
        ):
            return partial(_raise_to, version=version)
        return None

    def _first_raise(self, configuration: Configuration, new_id: Callable[[], bytes]) -> Step | None:
        told = {member.name: self._told.get(member.name) for member in configuration.members}
        version = configuration.version + 1
        if any(known is None or not known.low <= version <= known.high for known in told.values()):
            return None

        cluster_id = new_id()

        def step(before: Configuration) -> Configuration:
            after = before
            for name, known in told.items():
                if known is not None:
                    after = _join(after, name, known)
            return after.raised(version, cluster_id)

        return step

    def _has_caught_up(
        self, name: str, acknowledged: Mapping[str, int], last_index: int, now_s: float
    ) -> bool:
        held = acknowledged.get(name, 0)
        current = self._rounds.get(name)
        if held == 0:
            self._rounds.pop(name, None)
            return False
        if current is None:
            self._rounds[name] = _Round(last_index, now_s)
            return False
        if held < current.goal:
            return False
        if now_s - current.began_s <= self._round_s:
            return True
        self._rounds[name] = _Round(last_index, now_s)
        return False


def _differs(member: Member, told: Introduction) -> bool:
    return (member.id, member.address, member.versions) != (
        told.member_id,
        PeerAddress(told.host, told.port),
        Versions(told.low, told.high),
    )


def _join(configuration: Configuration, name: str, told: Introduction) -> Configuration:
    address, versions = PeerAddress(told.host, told.port), Versions(told.low, told.high)
    return configuration.joined(name, told.member_id, address, versions)


def _promote(configuration: Configuration, name: str) -> Configuration:
    return configuration.promoted(name)


def _raise_to(configuration: Configuration, version: int) -> Configuration:
    return configuration.raised(version, configuration.cluster)
