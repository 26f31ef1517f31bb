"""What operators ask for: members that come, go, are replaced or drained, and the end of an upgrade.

Whoever is asked asks the leader, again and again until what was asked for is so: each change names the data directory
that is meant, so one that has been made already changes nothing.

Invariant: pure, but for what `Questions` remembers.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from cluster.configuration.configuration import MembershipRefused, PeerAddress

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cluster.configuration.configuration import Configuration


QUESTIONS_MAX = 100


class Verb(IntEnum):
    """The kind of a change."""

    ADD = 1
    """Let the directory that has answered at an address become a member."""
    PROMOTE = 2
    """Let a learner vote; it does as soon as it has caught up, so there is only to wait until it is there and votes."""
    REMOVE = 3
    REPLACE = 4
    """Await another data directory in the place of a lost one."""
    DRAIN = 5
    REVIVE = 6
    """End the maintenance that `DRAIN` has begun."""
    FINISH_UPGRADE = 7
    """Go over to the next version of the state, which ends an upgrade."""


def not_before_upgrade(old: Sequence[str]) -> str:
    """Why the members cannot be changed yet; `old` are the nodes that run release 0.1."""
    first = f"start this release at {', '.join(old)}, too, and then " if old else ""
    return f"the members cannot be changed before the upgrade to this release is finished: {first}`qq upgrade finish`"


class Questions:
    """The changes that the leader has been asked for, and may refuse."""

    def __init__(self) -> None:
        self._count = 0
        self._waiting: dict[int, Callable[[str], None]] = {}
        """The functions to be called if a change is refused, by the number of the change."""

    def add(self, refused: Callable[[str], None]) -> int:
        """Returns the number of the next change. Only the last ones are remembered, since most are never answered."""
        self._count += 1
        self._waiting[self._count] = refused
        self._waiting.pop(self._count - QUESTIONS_MAX, None)
        return self._count

    def answered(self, number: int, text: str) -> None:
        """The leader refuses the change of this number."""
        refused = self._waiting.pop(number, None)
        if refused is not None:
            refused(text)


class MemberChange(NamedTuple):
    """One change of the members."""

    verb: int
    """A `Verb`, as a number."""
    name: str = ""
    member_id: bytes = b""
    """The id of the data directory that is meant; `NOBODY` where there is none yet, or it does not matter."""
    host: str = ""
    port: int = 0
    version: int = 0
    """The version of the state that an upgrade ends with."""

    def step(self, before: Configuration) -> Configuration:
        """Make this change, unless it is made. Raises MembershipRefused. An upgrade is finished by enrolment.py."""
        match self.verb:
            case Verb.ADD:
                return before.added(self.name, PeerAddress(self.host, self.port), self.member_id)
            case Verb.PROMOTE:
                before.promoted(self.name)  # may it vote at all?
                return before
            case Verb.REMOVE:
                return before.without(self.name, self.member_id)
            case Verb.REPLACE:
                return before.vacated(self.name, self.member_id)
            case Verb.DRAIN:
                return before.drained(self.name, is_drained=True)
            case Verb.REVIVE:
                return before.drained(self.name, is_drained=False)
            case _:
                raise MembershipRefused(
                    f"there is no change {self.verb} of the members: the leader runs another version"
                )

    def is_made(self, configuration: Configuration) -> bool:
        """Whether the change is made according to a configuration."""
        member = configuration.member(self.name)
        match self.verb:
            case Verb.ADD:
                return member is not None
            case Verb.PROMOTE:
                return member is not None and member.is_voter
            case Verb.REMOVE | Verb.REPLACE:
                return configuration.is_gone(self.name, self.member_id)
            case Verb.DRAIN:
                return member is not None and member.is_drained
            case Verb.REVIVE:
                return member is not None and not member.is_drained
            case _:
                return configuration.version >= self.version
