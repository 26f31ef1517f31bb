"""Rounds of a leader that confirm its leadership for reads without an entry (Raft thesis 6.4, ReadIndex).

A read must see each entry that was committed before the read began. The leader takes its commit index when the request
arrives, and answers when a majority has confirmed that no higher term was known to it after the read began. An asking
voter confirms by the request itself: it knew no higher term when it began to read. So a follower of a cluster of three
gets its answer in a single round trip. No clock is involved, so a leader that was frozen gives no wrong answer.

Invariant: pure. A round is answered once, with the index that was taken at its beginning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cluster.configuration.history import Configurations


class ReadRequest(NamedTuple):
    """A request for a read index: the asking node, and the number that it gave the request."""

    reader: str
    number: int


@dataclass(slots=True)
class _ReadRound:
    request: ReadRequest
    read_index: int
    confirmed_by: set[str]


class ConfirmedRead(NamedTuple):
    """A request whose read index is confirmed."""

    request: ReadRequest
    read_index: int


class ReadRounds:
    """The rounds of a leader's term that a majority has not confirmed yet."""

    def __init__(self, name: str, configurations: Configurations) -> None:
        self._name = name
        self._configurations = configurations
        self._rounds: dict[int, _ReadRound] = {}
        self.last = 0
        """The number of the last round."""

    def __bool__(self) -> bool:
        return bool(self._rounds)

    def begin(self, request: ReadRequest, read_index: int, *, confirms: bool) -> bool:
        """Begin a round, and return whether it is confirmed already, so that no member must be asked.

        `read_index` is the read index of this moment. `confirms` says whether the request itself confirms the term.
        """
        confirmed_by = {self._name}
        if confirms:
            confirmed_by.add(request.reader)
        if self._is_majority(confirmed_by):
            return True
        self.last += 1
        self._rounds[self.last] = _ReadRound(request, read_index, confirmed_by)
        return False

    def confirm(self, member: str, number: int) -> list[ConfirmedRead]:
        """Count a member's confirmation of this round and of all earlier rounds. Return the requests to answer now."""
        confirmed: list[ConfirmedRead] = []
        for known in list(self._rounds):
            if known > number:
                break
            asked = self._rounds[known]
            asked.confirmed_by.add(member)
            if self._is_majority(asked.confirmed_by):
                del self._rounds[known]
                confirmed.append(ConfirmedRead(asked.request, asked.read_index))
        return confirmed

    def forget_reader(self, reader: str) -> None:
        """Drop the rounds of a node whose link is lost: it repeats its reads."""
        self._rounds = {
            number: known for number, known in self._rounds.items() if known.request.reader != reader
        }

    def clear(self) -> None:
        """Drop all rounds, because the term is over."""
        self._rounds.clear()

    def _is_majority(self, names: set[str]) -> bool:
        return self._configurations.membership.is_majority(names)
