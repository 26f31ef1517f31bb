"""The life of a message: what clients saw of it, in each queue.

Invariant: a call is known by process and number, so its invoke and its end may come in any order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from chaos import promises
from chaos.judge.clients import FOREVER_NS, NEVER_NS, Clients
from chaos.judge.event import ANSWERS, Event

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from chaos.judge.run import Queue, Run


@dataclass(slots=True)
class Attempt:
    """A publish: its invoke, and its end if there is any."""

    invoke: Event | None = None
    end: Event | None = None

    @property
    def row(self) -> Event:
        row = self.invoke or self.end
        assert row is not None
        return row

    @property
    def outcome(self) -> str:
        return "unknown" if self.end is None else self.end.type


@dataclass(slots=True)
class Settlement:
    """An acknowledgement or rejection: the row of its request, and its outcome."""

    row: Event
    outcome: str = "unknown"

    @property
    def counts(self) -> bool:
        """Whether it may have taken effect: in a transaction that failed or was rolled back it certainly did not."""
        return self.row.tx is None or self.outcome != "fail"


class Seen(NamedTuple):
    """A delivery."""

    row: Event
    is_first: bool
    """False if it is marked as redelivered or as a dead letter."""
    requested_ns: int
    """When its consumer was requested; `NEVER_NS` if unknown."""
    connected_ns: int

    @property
    def time_ns(self) -> int:
        return self.row.time_ns

    @property
    def connection(self) -> str:
        return self.row.connection or ""


class Fate:
    """The facts of a message in a queue (the facts of chaos/promises.py)."""

    __slots__ = (
        "acks",
        "attempt",
        "attempts",
        "channel",
        "confirmed_ns",
        "dead_arrivals",
        "dedup",
        "deliveries",
        "fails",
        "id",
        "in_tx",
        "invoked_ns",
        "invokes",
        "last_invoked_ns",
        "leased",
        "oks",
        "possible_ns",
        "priority",
        "publisher",
        "queue",
        "rejects",
        "seen",
        "sequence",
        "settings",
        "settlements",
        "unmarked",
    )

    def __init__(self, queue: str, name: str, settings: Queue) -> None:
        self.queue = queue
        self.id = name
        self.settings = settings
        self.attempts: dict[tuple[str, int], Attempt] = {}
        self.seen: list[Seen] = []
        self.leased: list[Event] = []
        self.settlements: dict[tuple[str, int], Settlement] = {}
        self.deliveries = self.unmarked = self.dead_arrivals = 0

    def finish(self) -> None:
        """Count the facts, when all rows are known."""
        self.invokes = self.oks = self.fails = self.attempt = self.dedup = self.priority = self.sequence = 0
        self.invoked_ns, self.last_invoked_ns = FOREVER_NS, NEVER_NS
        self.confirmed_ns = self.possible_ns = FOREVER_NS
        self.publisher, self.channel, self.in_tx = "", ("", 0), False
        for attempt in self.attempts.values():
            row, end = attempt.invoke, attempt.end
            if end is not None and end.type == "ok":
                self.oks += 1
                self.confirmed_ns = min(self.confirmed_ns, end.time_ns)
            elif end is not None and end.type == "fail":
                self.fails += 1
            if row is None:
                continue
            self.invokes += 1
            self.invoked_ns = min(self.invoked_ns, row.time_ns)
            self.last_invoked_ns = max(self.last_invoked_ns, row.time_ns)
            if attempt.outcome != "fail":
                self.possible_ns = min(self.possible_ns, row.time_ns)
            self.attempt = max(self.attempt, row.attempt or 1)
            self.dedup |= bool(row.dedup)
            self.publisher, self.sequence = row.publisher or "", row.sequence or 0
            self.priority = row.priority or 0
            self.channel = row.connection or "", row.channel or 0
            self.in_tx = row.tx is not None
        settled = [each.row.op for each in self.settlements.values() if each.counts]
        self.acks, self.rejects = settled.count("ack"), settled.count("reject")

    def first_arrival(self) -> Event | None:
        """Return the row of the first delivery or lease, or None if the message never arrived."""
        rows = [*self.leased[:1], *(seen.row for seen in self.seen[:1])]
        return min(rows, key=lambda row: row.time_ns, default=None)

    def first(self) -> Seen:
        """Return the only first delivery."""
        return next(seen for seen in self.seen if seen.is_first)


class Life:
    """A message in all its queues."""

    __slots__ = ("fates", "id", "rows")

    def __init__(self, name: str, rows: Iterable[Event], run: Run, clients: Clients) -> None:
        self.id = name
        self.rows = rows
        self.fates: dict[str, Fate] = {}
        for row in rows:
            queue = row.queue or ""
            fate = self.fates.get(queue)
            if fate is None:
                fate = self.fates[queue] = Fate(queue, name, run.queue(queue))
            _record(fate, row, clients)
        for fate in self.fates.values():
            fate.finish()

    def sources(self, queue: str, run: Run) -> Iterator[Fate]:
        """Yield the fates in queues to which the message may have been published before it came to this queue."""
        for name, fate in self.fates.items():
            if (name == queue or queue in run.reach(name)) and promises.may_be_there(fate):
                yield fate

    def arrived_elsewhere(self, queue: str, run: Run) -> bool:
        """Return whether the message was delivered from a dead-letter target of the queue."""
        for target in run.reach(queue)[1:]:
            fate = self.fates.get(target)
            if fate is not None and ((not fate.invokes and fate.deliveries) or fate.dead_arrivals):
                return True
        # A message in a circle also comes back to the queue that it was published to.
        return run.goes_round(queue) and self.fates[queue].dead_arrivals > 0


def _record(fate: Fate, row: Event, clients: Clients) -> None:
    if row.op == "publish":
        attempt = fate.attempts.setdefault((row.process, row.call), Attempt())
        if row.type == "invoke":
            attempt.invoke = attempt.invoke or row
        else:
            attempt.end = attempt.end or row
    elif row.op == "deliver":
        is_dead = bool(row.deaths)
        is_first = not (row.redelivered or is_dead)
        fate.deliveries += 1
        fate.dead_arrivals += is_dead
        fate.unmarked += is_first
        requested_ns = clients.requested_ns(row.consuming)
        connected_ns = clients.connected_ns.get(row.connection or "", NEVER_NS)
        fate.seen.append(
            Seen(row, is_first, NEVER_NS if requested_ns is None else requested_ns, connected_ns)
        )
    elif row.op == "leased":
        fate.leased.append(row)
    elif row.op in ANSWERS:
        settlement = fate.settlements.setdefault((row.process, row.call), Settlement(row))
        if row.type != "invoke":
            settlement.outcome = row.type
