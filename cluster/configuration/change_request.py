"""Operators' requests to change the members: add, promote, remove, replace, drain, revive, finish an upgrade.

A node forwards a request to the leader, and repeats it until the change is visible in the configuration. Each request
names a data directory. So a request that arrives after the change was made has no effect.

Invariant: pure, except for the requests that `PendingRequests` remembers.
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
    """Let the directory that answered at an address become a member."""
    PROMOTE = 2
    """Wait until a learner votes. The leader promotes each learner that has caught up, so the request only waits."""
    REMOVE = 3
    REPLACE = 4
    """Mark the member as pending: a new data directory takes the place of the lost directory."""
    DRAIN = 5
    REVIVE = 6
    """End the maintenance that `DRAIN` has begun."""
    FINISH_UPGRADE = 7
    """Raise the version of the state, which ends an upgrade."""


def not_before_upgrade(old: Sequence[str]) -> str:
    """Return why the members cannot be changed yet. `old` lists the nodes that run release 0.1."""
    first = f"start this release at {', '.join(old)}, too, and then " if old else ""
    return f"the members cannot be changed before the upgrade to this release is finished: {first}`qq upgrade finish`"


class PendingRequests:
    """The requests to the leader that may still be refused."""

    def __init__(self) -> None:
        self._count = 0
        self._waiting: dict[int, Callable[[str], None]] = {}
        """Callback for a refusal, by the number of the request."""

    def add(self, refused: Callable[[str], None]) -> int:
        """Keep the callback `refused` for a new request, and return the request's number.

        Only the last `QUESTIONS_MAX` requests are kept, because the leader answers only refused requests.
        """
        self._count += 1
        self._waiting[self._count] = refused
        self._waiting.pop(self._count - QUESTIONS_MAX, None)
        return self._count

    def answered(self, number: int, text: str) -> None:
        """Report that the leader refuses the request with this number."""
        refused = self._waiting.pop(number, None)
        if refused is not None:
            refused(text)


class MemberChange(NamedTuple):
    """A single change of the members."""

    verb: int
    """A `Verb`, as a number."""
    name: str = ""
    member_id: bytes = b""
    """Id of the data directory to change; `NOBODY` if the member has no directory yet, or the id does not matter."""
    host: str = ""
    port: int = 0
    version: int = 0
    """The version of the state that ends the upgrade."""

    def step(self, before: Configuration) -> Configuration:
        """Return the configuration after this change, or `before` if it was made already. Raises MembershipRefused.

        The end of an upgrade is not made here, but in cluster/membership/joining.py.
        """
        match self.verb:
            case Verb.ADD:
                return before.added(self.name, PeerAddress(self.host, self.port), self.member_id)
            case Verb.PROMOTE:
                before.promoted(self.name)  # raises if the member cannot vote yet
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
        """Return whether a configuration already contains the change."""
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
