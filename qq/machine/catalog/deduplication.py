"""Deduplication of messages that publishers send again: the last sequence number of each publisher.

Publishers are kept per user, so that only connections of the user can use up their numbers. A publisher may change its
connection.

A publisher's numbers ascend, so the last admitted number tells which earlier numbers were admitted. The exception is a
queue that refused some messages and then took later ones. Such numbers are remembered as *refused*, and admitted when
they come again.

Invariant: the memory is bounded, and the cost of a call does not depend on the number of publishers. If the bound is
too small, a message may be admitted twice; but a message that was not admitted never counts as a duplicate.
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
"""Expired publishers that a call may forget. It is more than the one that a call can add, so that all expire in the
end, and few, so that every call is short."""

REFUSED_MAX = 64
"""Maximum runs of refused numbers per publisher. Above that, two runs are merged with the numbers between them."""

Run = tuple[int, int]
"""Consecutive sequence numbers: the first and the last."""

Names = tuple[str, ...]
"""Names of a publisher to look up. The first is its current name, and used for storing."""


def names_of(user: str, publisher: str, version: int) -> Names:
    """Return the names of a user's publisher. Before version 8, all users of a virtual host shared publishers."""
    return (publisher,) if version < 8 else (f"{len(user)} {user} {publisher}", publisher)


class KnownPublisher(NamedTuple):
    """The remembered sequence numbers of a publisher; also its row in a dump."""

    name: str
    last_seq: int
    seen_ms: int
    """Cluster time (without outages, ms) of the publisher's last message."""
    refused: tuple[Run, ...]
    """The runs of refused numbers, ascending: they may be published again."""

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> KnownPublisher:
        """Return the publisher in a row."""
        name, last_seq, seen_ms, refused = row
        return cls(name, last_seq, seen_ms, tuple((first, last) for first, last in refused))


class FrozenPublishers(NamedTuple):
    """The publishers at a moment, for any thread; also their row in a dump."""

    limit: int
    age_ms: int
    publishers: list[KnownPublisher]
    """All publishers, the least recently used first."""


class Publishers:
    """The remembered publishers: the `limit` most recently used, each for `age_ms` after its last message."""

    __slots__ = ("_age_ms", "_limit", "_rows")

    def __init__(self, limit: int = PUBLISHERS_MAX, age_ms: int = PUBLISHER_AGE_MS) -> None:
        self._limit = limit
        self._age_ms = age_ms
        self._rows: OrderedDict[str, KnownPublisher] = OrderedDict()
        """The publishers by name, in the order of their last use. Their times ascend, because the cluster's time
        does."""

    def new(self, publisher: Names, first_seq: int, count: int, time_ms: int) -> list[Run]:
        """Return the messages among `count` that were not admitted before, as runs of sequence numbers.

        A message was admitted before if its number is not above its publisher's last admitted number, and was not
        refused. A forgotten publisher has admitted no messages.
        """
        last_seq, refused = self._known(publisher, time_ms)
        end_seq = first_seq + count - 1
        # All numbers above the last are new. A merged run of refused numbers may extend above the last.
        stop = min(last_seq, end_seq)
        runs = [(max(first, first_seq), min(last, stop)) for first, last in refused]
        runs.append((max(first_seq, last_seq + 1), end_seq))
        return [(first, last) for first, last in runs if first <= last]

    def admit(self, publisher: Names, run: Run, time_ms: int) -> None:
        """Record that these messages are in their queues."""
        last_seq, refused = self._known(publisher, time_ms)
        first, last = run
        left = [(low, min(high, first - 1)) for low, high in refused]
        left += [(max(low, last + 1), high) for low, high in refused]
        self._remember(publisher, max(last_seq, last), left, time_ms)

    def refuse(self, publisher: Names, run: Run, time_ms: int) -> None:
        """Record that these messages, which were new, are in no queue."""
        last_seq, refused = self._known(publisher, time_ms)
        self._remember(publisher, last_seq, [*refused, run], time_ms)

    @property
    def bounds(self) -> tuple[int, int]:
        """Maximum remembered publishers, and how long they are remembered, in ms."""
        return self._limit, self._age_ms

    def configure(self, limit: int, age_ms: int) -> None:
        """Change the bounds, and forget publishers above them at once."""
        self._limit, self._age_ms = limit, age_ms
        self._shrink()

    def __len__(self) -> int:
        return len(self._rows)

    def freeze(self) -> FrozenPublishers:
        return FrozenPublishers(self._limit, self._age_ms, list(self._rows.values()))

    def load(self, dumped: Sequence[Any]) -> None:
        """Replace everything by a dumped `FrozenPublishers`."""
        row = FrozenPublishers(*dumped)
        self._limit, self._age_ms = row.limit, row.age_ms
        self._rows = OrderedDict(
            (known.name, known) for known in map(KnownPublisher.from_row, row.publishers)
        )

    def _known(self, publisher: Names, time_ms: int) -> tuple[int, tuple[Run, ...]]:
        """Return a publisher's last sequence number and refused runs; 0 and no runs if it is forgotten."""
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
    """Return the non-empty runs, ascending.

    Touching runs are merged, and so are the first runs if there are more than REFUSED_MAX.
    """
    merged: list[Run] = []
    for first, last in sorted(run for run in runs if run[0] <= run[1]):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    while len(merged) > REFUSED_MAX:
        merged[:2] = [(merged[0][0], merged[1][1])]
    return tuple(merged)
