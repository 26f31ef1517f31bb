"""How far each publisher has come: deduplication of messages that it sends again, from whatever connection.

A user's publishers are its own: nobody who may not log in as that user can use up their numbers.

A publisher's numbers ascend, so the last one that was admitted tells which others were. Not quite: a queue may have
refused some and then taken later ones. Those are remembered as *refused*, and admitted when they come again.

Invariant: the memory is bounded, and what a call costs does not depend on how many publishers there are. Where the
bound is too small, a message may be admitted twice, and none is taken for a repetition that was not admitted.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

PUBLISHERS_MAX = 100_000
PUBLISHER_AGE_MS = 7 * 24 * 3600 * 1000

_FORGOTTEN_AT_ONCE = 2
"""How many publishers out of date a call may forget: more than the one that it can add, so that all go at last; few,
so that no call is long."""

REFUSED_MAX = 64
"""How many runs of refused numbers a publisher may have. Beyond that two become one, with what lies between them."""

Run = tuple[int, int]
"""Consecutive sequence numbers: the first and the last."""

Names = tuple[str, ...]
"""The names by which a publisher may be remembered: the first is the one that it has from now on."""


def names_of(user: str, publisher: str, version: int) -> Names:
    """The names of this publisher of a user. Before version 8 all users of a virtual host had the same publishers."""
    return (publisher,) if version < 8 else (f"{len(user)} {user} {publisher}", publisher)


class KnownPublisher(NamedTuple):
    """What is remembered of a publisher; its row in a dump, too."""

    name: str
    last_seq: int
    seen_ms: int
    """When the publisher was seen last (cluster time)."""
    refused: tuple[Run, ...]
    """The runs of numbers that were refused, ascending: these may be published again."""

    @classmethod
    def of(cls, row: Sequence[Any]) -> KnownPublisher:
        """The publisher that was written as this row."""
        name, last_seq, seen_ms, refused = row
        return cls(name, last_seq, seen_ms, tuple((first, last) for first, last in refused))


class FrozenPublishers(NamedTuple):
    """The publishers at one moment, for any thread; their row in a dump, too."""

    limit: int
    age_ms: int
    publishers: list[KnownPublisher]
    """All publishers, the least recently used first."""


class Publishers:
    """The publishers that are remembered: `limit` at most, the last seen, each for `age_ms` after it was seen last."""

    __slots__ = ("_age_ms", "_limit", "_rows")

    def __init__(self, limit: int = PUBLISHERS_MAX, age_ms: int = PUBLISHER_AGE_MS) -> None:
        self._limit = limit
        self._age_ms = age_ms
        self._rows: OrderedDict[str, KnownPublisher] = OrderedDict()
        """The publishers by name, in the order of their last use. Their times ascend, too: time does not go back."""

    def new(self, publisher: Names, first_seq: int, count: int, time_ms: int) -> list[Run]:
        """Those of `count` messages that have not been admitted before, as runs of sequence numbers.

        A message was admitted before if its number is not above the last that its publisher had admitted, and it was
        not refused. A publisher that is not remembered has sent none.
        """
        last_seq, refused = self._known(publisher, time_ms)
        end_seq = first_seq + count - 1
        # Above the last one all are new; a run of refused ones may reach there, if two have become one.
        stop = min(last_seq, end_seq)
        runs = [(max(first, first_seq), min(last, stop)) for first, last in refused]
        runs.append((max(first_seq, last_seq + 1), end_seq))
        return [(first, last) for first, last in runs if first <= last]

    def admit(self, publisher: Names, run: Run, time_ms: int) -> None:
        """Remember that these messages are in their queues."""
        last_seq, refused = self._known(publisher, time_ms)
        first, last = run
        left = [(low, min(high, first - 1)) for low, high in refused]
        left += [(max(low, last + 1), high) for low, high in refused]
        self._remember(publisher, max(last_seq, last), left, time_ms)

    def refuse(self, publisher: Names, run: Run, time_ms: int) -> None:
        """Remember that these messages, which were new, are in no queue."""
        last_seq, refused = self._known(publisher, time_ms)
        self._remember(publisher, last_seq, [*refused, run], time_ms)

    @property
    def bounds(self) -> tuple[int, int]:
        """How many publishers are remembered at most, and how long, in ms."""
        return self._limit, self._age_ms

    def configure(self, limit: int, age_ms: int) -> None:
        """Change the bounds; those that are too many are forgotten at once."""
        self._limit, self._age_ms = limit, age_ms
        self._shrink()

    def __len__(self) -> int:
        return len(self._rows)

    def freeze(self) -> FrozenPublishers:
        return FrozenPublishers(self._limit, self._age_ms, list(self._rows.values()))

    def load(self, dumped: Sequence[Any]) -> None:
        """Replace everything by what was frozen and written."""
        row = FrozenPublishers(*dumped)
        self._limit, self._age_ms = row.limit, row.age_ms
        self._rows = OrderedDict((known.name, known) for known in map(KnownPublisher.of, row.publishers))

    def _known(self, publisher: Names, time_ms: int) -> tuple[int, tuple[Run, ...]]:
        """The last sequence number of a publisher, and its refused runs; 0 and no runs if it is not remembered."""
        for name in publisher:
            known = self._rows.get(name)
            if known is not None and time_ms - known.seen_ms < self._age_ms:
                return known.last_seq, known.refused
        return 0, ()

    def _remember(self, publisher: Names, last_seq: int, refused: list[Run], time_ms: int) -> None:
        runs = _merged(refused) if refused else ()
        name = publisher[0]
        self._rows[name] = KnownPublisher(name, last_seq, time_ms, runs)
        self._rows.move_to_end(name)
        self._forget(time_ms)

    def _forget(self, time_ms: int) -> None:
        rows = self._rows
        for known in list(islice(rows.values(), _FORGOTTEN_AT_ONCE)):
            if time_ms - known.seen_ms >= self._age_ms:
                del rows[known.name]
        self._shrink()

    def _shrink(self) -> None:
        while len(self._rows) > self._limit:
            self._rows.popitem(last=False)


def _merged(runs: list[Run]) -> tuple[Run, ...]:
    """The runs that are not empty, ascending. Those that touch are one, and so are the first if there are too many."""
    merged: list[Run] = []
    for first, last in sorted(run for run in runs if run[0] <= run[1]):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    while len(merged) > REFUSED_MAX:
        merged[:2] = [(merged[0][0], merged[1][1])]
    return tuple(merged)
