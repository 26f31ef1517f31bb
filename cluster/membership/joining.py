"""Membership changes that a leader makes by itself: it admits and promotes learners, and raises versions.

A node with a new data directory is admitted as a learner if its name is new. It is also admitted in the place of a
member with the same name and address, because that member's directory must be lost. A node with a removed name needs
`join` in its file, or an operator adds it.

A learner is promoted when it has caught up (Raft thesis, 4.2.1). It gets the log in rounds, each up to the end of the
log when the round began. The last round must be shorter than an election timeout. So a new voter never makes the
cluster wait for entries that it lacks.

The leader writes the versions of the state that each member's program can run, and each member's address, into the
configuration. A member may move to the address of a member that has moved as well. Members that block each other in
this way move in the same step: addresses change no majority. A refused address does not stop the versions from being
updated.

The leader raises the version when the programs of all members can run the next version. For disconnected members, the
versions in the configuration count. The first raise creates the first configuration in the log. Until then the list in
each node's file counts, and programs of release 0.1 can take part.

Invariant: pure. A step may be returned repeatedly until it is taken.
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
    """A round of catching up of a learner (Raft thesis, 4.2.1)."""

    goal: int
    """The end of the log when the round began: the learner must reach this index."""
    began_s: float


class Joining:
    """The introductions of this node and all linked nodes, and the membership changes that follow from them."""

    def __init__(self, round_s: float, high: int, *, replaces_emptied: bool, raises_version: bool) -> None:
        """`round_s` is the length in seconds of a round of catching up that is short enough for a promotion.

        - `high`: the highest version of the state that this node's program can run.
        - `replaces_emptied`: whether a new data directory replaces the member at the same name and address.
        - `raises_version`: whether the version is raised as soon as possible, without an operator's request.
        """
        self._round_s = round_s
        self._high = high
        self._replaces_emptied = replaces_emptied
        self._raises_version = raises_version
        self._introductions: dict[str, Introduction] = {}
        self._rounds: dict[str, _Round] = {}

    def record_introduction(self, name: str, introduction: Introduction) -> None:
        """Store the introduction that a node has sent on its new link: its directory, address and versions."""
        self._introductions[name] = introduction
        self._rounds.pop(name, None)

    def forget(self, name: str) -> None:
        """Forget the introduction of a node with a lost link, because it may be out of date."""
        self._introductions.pop(name, None)

    def versions(self, name: str) -> Versions | None:
        """Return the versions of the state that a node can run by its introduction, or None without one."""
        node = self._introductions.get(name)
        return None if node is None else Versions(node.low, node.high)

    def due_steps(
        self,
        configuration: Configuration,
        acknowledged: Mapping[str, int],
        last_index: int,
        now_s: float,
        new_id: Callable[[], bytes],
    ) -> list[Step]:
        """Return the membership changes that are possible now; the first that is not refused must be made.

        `acknowledged` maps each learner to the index up to which it is known to hold the log. `last_index` is the end
        of the log. `new_id` makes an id for a cluster that has none.
        """
        steps = self._address_changes(configuration)
        admissions = [
            self._admission(configuration, name, node) for name, node in self._introductions.items()
        ]
        steps += [step for step in admissions if step is not None]
        steps += [
            partial(_promote, name=member.name)
            for member in configuration.members
            if not member.is_voter and self._has_caught_up(member.name, acknowledged, last_index, now_s)
        ]
        if self._raises_version and configuration.version < self._high:
            steps.append(partial(self.raise_version, new_id=new_id))
        return steps

    def _address_changes(self, configuration: Configuration) -> list[Step]:
        """Return a step for each member with a new address, together with members that move out of its way."""
        moved: dict[str, PeerAddress] = {}
        holders = {member.address: member.name for member in configuration.members}
        for member in configuration.members:
            node = self._introductions.get(member.name)
            if node is not None and node.member_id == member.id and _address_of(node) != member.address:
                moved[member.name] = _address_of(node)
        steps: list[Step] = []
        for name in moved:
            together: dict[str, PeerAddress] = {}
            in_the_way: str | None = name
            while in_the_way in moved and in_the_way not in together:
                together[in_the_way] = moved[in_the_way]
                in_the_way = holders.get(moved[in_the_way])
            steps.append(partial(_readdress, addresses=together))
        return steps

    def _admission(self, configuration: Configuration, name: str, node: Introduction) -> Step | None:
        """Return the change that admits this node or updates its versions; None if no change is needed or allowed."""
        if not configuration.cluster or configuration.is_removed(node.member_id):
            return None
        member = configuration.member(name)
        if member is None:
            # A removed node whose settings were left as they were must not come back with its next start.
            may_come = node.joins or not configuration.was_removed(name)
            return partial(_join, name=name, node=node) if node.may_join and may_come else None
        if member.id == node.member_id and member.versions == Versions(node.low, node.high):
            return None
        if member.id in (None, node.member_id):
            return partial(_join, name=name, node=node)
        # A member's name at a new address may be a mistake: only an operator can confirm it.
        is_emptied = node.may_join and member.address == _address_of(node)
        if is_emptied and self._replaces_emptied:
            return partial(_vacate, name=name, member_id=member.id)
        return None

    def raise_version(self, configuration: Configuration, new_id: Callable[[], bytes]) -> Configuration:
        """Return the configuration with the next version, or the same configuration if this program cannot run it.

        The first raise records the directories of all members. So all must be linked, and no member may have lost its
        memory: its new directory would be taken for the directory that has made the old promises. Raises
        MembershipRefused.
        """
        if configuration.version >= self._high:
            return configuration
        version = configuration.version + 1
        if configuration.cluster:
            return configuration.raised(version, configuration.cluster)
        for member in configuration.members:
            node = self._introductions.get(member.name)
            if node is None:
                raise MembershipRefused(
                    f"node {member.name!r} has not told yet which data directory it has: start it, with a program "
                    f"that can run version {version} of the state"
                )
            if node.may_join:
                raise MembershipRefused(f"node {member.name!r} is under repair: wait until it is a voter")
        introductions = {member.name: self._introductions[member.name] for member in configuration.members}
        after = configuration.readdressed({name: _address_of(node) for name, node in introductions.items()})
        for name, node in introductions.items():
            after = _join(after, name, node)
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


def _address_of(node: Introduction) -> PeerAddress:
    return PeerAddress(node.host, node.port)


def _join(configuration: Configuration, name: str, node: Introduction) -> Configuration:
    return configuration.joined(name, node.member_id, _address_of(node), Versions(node.low, node.high))


def _readdress(configuration: Configuration, addresses: Mapping[str, PeerAddress]) -> Configuration:
    return configuration.readdressed(addresses)


def _vacate(configuration: Configuration, name: str, member_id: bytes) -> Configuration:
    return configuration.vacated(name, member_id)


def _promote(configuration: Configuration, name: str) -> Configuration:
    return configuration.promoted(name)
