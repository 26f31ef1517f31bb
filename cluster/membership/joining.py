"""What a leader does about the members by itself: notes what each tells of itself, lets learners vote, raises versions.

A node that comes with a new data directory is taken in as a learner: under a name that nobody has, or in the place of
the member that had its name and its address, whose directory must be lost then. Under a name that was removed it has to
be told to join, or an operator adds it.

A learner is promoted when it has caught up (Raft thesis, 4.2.1): it is given the log in rounds, each up to where the
log ended when the round began, and the last round has to be shorter than an election timeout. So a new voter never
makes the others wait for what it lacks.

What members tell of themselves is noted: which versions of the state their programs can run, and where they are. One
may be where another one was that has moved as well, so those that are in each other's way move in one step: addresses
change no majority. An address that is refused does not keep the versions from being noted.

The version is raised when the program of every member can run the next one, also of those that are away: what they have
told last is in the configuration. The first raise puts a configuration into the log at all; until then the list in each
node's file counts, and programs of release 0.1 can take part.

Invariant: pure. A step that is returned again and again until it is taken does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from cluster.configuration.configuration import Configuration, MembershipRefused, PeerAddress, Versions

if TYPE_CHECKING:
    from cluster.raft.messages import Introduction

Step = Callable[[Configuration], Configuration]


class _Round(NamedTuple):
    """One round of catching up of a learner."""

    goal: int
    """The index at which the log ended when the round began: the learner has to reach it."""
    began_s: float


class Enrolment:
    """What one leader knows of the nodes that its links lead to, itself included."""

    def __init__(self, round_s: float, high: int, *, replaces_emptied: bool, raises_version: bool) -> None:
        """A round that takes no longer than `round_s` seconds is short enough.

        `high` is the highest version of the state that this node's program can run.
        `replaces_emptied`: a new data directory takes the place of the one that was at its name and address.
        `raises_version`: the version is raised as soon as it can be, and not only when somebody asks for it.
        """
        self._round_s = round_s
        self._high = high
        self._replaces_emptied = replaces_emptied
        self._raises_version = raises_version
        self._told: dict[str, Introduction] = {}
        self._rounds: dict[str, _Round] = {}

    def introduced(self, name: str, introduction: Introduction) -> None:
        """A node has told, on a new link, which directory it has and what its program can run."""
        self._told[name] = introduction
        self._rounds.pop(name, None)

    def left(self, name: str) -> None:
        """The link to a node is lost: forget what it has told, which may not be true any more."""
        self._told.pop(name, None)

    def versions_told(self, name: str) -> Versions | None:
        """Which versions of the state a node's program can run, as it has told; None if it has not."""
        told = self._told.get(name)
        return None if told is None else Versions(told.low, told.high)

    def due_steps(
        self,
        configuration: Configuration,
        acknowledged: Mapping[str, int],
        last_index: int,
        now_s: float,
        new_id: Callable[[], bytes],
    ) -> list[Step]:
        """The steps of which one is to be taken now, the first that is not refused.

        `acknowledged` is how far each learner is known to hold the log, which ends with `last_index`; `new_id` makes an
        id for a cluster that has none.
        """
        steps = self._moves(configuration)
        admissions = [self._admission(configuration, name, told) for name, told in self._told.items()]
        steps += [step for step in admissions if step is not None]
        steps += [
            partial(_promote, name=member.name)
            for member in configuration.members
            if not member.is_voter and self._has_caught_up(member.name, acknowledged, last_index, now_s)
        ]
        if self._raises_version and configuration.version < self._high:
            steps.append(partial(self.raise_version, new_id=new_id))
        return steps

    def _moves(self, configuration: Configuration) -> list[Step]:
        """One step for each member that is elsewhere by now, together with those that have moved out of its way."""
        moved: dict[str, PeerAddress] = {}
        holders = {member.address: member.name for member in configuration.members}
        for member in configuration.members:
            told = self._told.get(member.name)
            if told is not None and told.member_id == member.id and _address_of(told) != member.address:
                moved[member.name] = _address_of(told)
        steps: list[Step] = []
        for name in moved:
            together: dict[str, PeerAddress] = {}
            in_the_way: str | None = name
            while in_the_way in moved and in_the_way not in together:
                together[in_the_way] = moved[in_the_way]
                in_the_way = holders.get(moved[in_the_way])
            steps.append(partial(_move, addresses=together))
        return steps

    def _admission(self, configuration: Configuration, name: str, told: Introduction) -> Step | None:
        """What the members have to be changed by for this node to be one, as its program is; None if by nothing."""
        if not configuration.cluster or configuration.is_removed(told.member_id):
            return None
        member = configuration.member(name)
        if member is None:
            # Whoever has removed a node, and left its file as it was, does not want it back with its next start.
            may_come = told.joins or not configuration.was_removed(name)
            return partial(_join, name=name, told=told) if told.may_join and may_come else None
        if member.id == told.member_id and member.versions == Versions(told.low, told.high):
            return None
        if member.id in (None, told.member_id):
            return partial(_join, name=name, told=told)
        # Whoever calls itself a member from another address may be a mistake: that takes an operator.
        is_emptied = told.may_join and member.address == _address_of(told)
        if is_emptied and self._replaces_emptied:
            return partial(_vacate, name=name, member_id=member.id)
        return None

    def raise_version(self, configuration: Configuration, new_id: Callable[[], bytes]) -> Configuration:
        """Take the step to the next version, if there is one that this program can run.

        The first one notes who all members are, so all have to be there, and none of them may have lost its memory: the
        directory that it has now would be taken for the one that has made its promises. Raises MembershipRefused.
        """
        if configuration.version >= self._high:
            return configuration
        version = configuration.version + 1
        if configuration.cluster:
            return configuration.raised(version, configuration.cluster)
        for member in configuration.members:
            told = self._told.get(member.name)
            if told is None:
                raise MembershipRefused(
                    f"node {member.name!r} has not told yet which data directory it has: start it, with a program "
                    f"that can run version {version} of the state"
                )
            if told.may_join:
                raise MembershipRefused(f"node {member.name!r} is under repair: wait until it is a voter")
        told_by = {member.name: self._told[member.name] for member in configuration.members}
        after = configuration.moved({name: _address_of(told) for name, told in told_by.items()})
        for name, told in told_by.items():
            after = _join(after, name, told)
        return after.raised(version, new_id())

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


def _address_of(told: Introduction) -> PeerAddress:
    return PeerAddress(told.host, told.port)


def _join(configuration: Configuration, name: str, told: Introduction) -> Configuration:
    return configuration.joined(name, told.member_id, _address_of(told), Versions(told.low, told.high))


def _move(configuration: Configuration, addresses: Mapping[str, PeerAddress]) -> Configuration:
    return configuration.moved(addresses)


def _vacate(configuration: Configuration, name: str, member_id: bytes) -> Configuration:
    return configuration.vacated(name, member_id)


def _promote(configuration: Configuration, name: str) -> Configuration:
    return configuration.promoted(name)
