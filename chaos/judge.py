"""Judges a small history in memory by the rules of chaos/promises.py: finds each message that breaks a promise.

Invariant: all queues of the history were drained at the end and lose no messages by themselves: no message in them
dies, is purged or is deleted with its queue.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from chaos import promises

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from chaos.history import Row, Type

Name = tuple[str, str]
"""A message in a queue: queue and id."""
Consumer = tuple[str, str, int, str]
"""Process, connection, channel and tag; a consumer sees deliveries in the order in which the broker sent them."""

ANSWERS = ("ack", "nack", "reject")
NEVER_NS = 0


class Violation(NamedTuple):
    promise: str
    queue: str
    id: str


@dataclass(slots=True)
class Seen:
    """A delivery; `is_first` is false if it is marked as redelivered or as a dead letter."""

    time_ns: int
    call: int
    consumer: Consumer
    connection: str
    connected_ns: int
    is_first: bool


@dataclass(slots=True)
class Fate:
    """The facts of a message in a queue."""

    invokes: int = 0
    oks: int = 0
    fails: int = 0
    attempt: int = 0
    dedup: int = 0
    invoked_ns: int = 0
    confirmed_ns: int = 0
    publisher: str = ""
    sequence: int = 0
    priority: int = 0
    channel: tuple[str, int] = ("", 0)
    """Connection and channel of its publish."""
    seen: list[Seen] = field(default_factory=list)
    deliveries: int = 0
    unmarked: int = 0
    dead_arrivals: int = 0
    acks: int = 0
    rejects: int = 0

    @property
    def first(self) -> Seen:
        """The only first delivery."""
        return next(seen for seen in self.seen if seen.is_first)

    def record(self, row: Row, connected_ns: int) -> None:
        match row["op"]:
            case "publish":
                self._record_publish(row)
            case "deliver":
                is_dead = bool(row.get("deaths"))
                is_first = not (row.get("redelivered") or is_dead)
                self.deliveries += 1
                self.dead_arrivals += is_dead
                self.unmarked += is_first
                consumer = _consumer(row)
                self.seen.append(
                    Seen(row["time_ns"], row["call"], consumer, consumer[1], connected_ns, is_first)
                )
            case "ack":
                self.acks += 1
            case "reject":
                self.rejects += 1
            case _:
                pass

    def _record_publish(self, row: Row) -> None:
        match row["type"]:
            case "invoke":
                self.invoked_ns = self.invoked_ns if self.invokes else row["time_ns"]
                self.invokes += 1
                self.attempt = max(self.attempt, row.get("attempt", 1))
                self.dedup |= row.get("dedup", False)
                self.publisher, self.sequence = row.get("publisher", ""), row.get("sequence", 0)
                self.priority = row.get("priority", 0)
                self.channel = row.get("connection", ""), row.get("channel", 0)
            case "ok":
                self.confirmed_ns = min(self.confirmed_ns, row["time_ns"]) if self.oks else row["time_ns"]
                self.oks += 1
            case "fail":
                self.fails += 1
            case _:
                pass


@dataclass(slots=True)
class Transaction:
    """A transaction; without an attempt to commit it has failed."""

    outcome: Type = "fail"
    ended_ns: int = NEVER_NS
    published: list[Name] = field(default_factory=list)
    acked: list[Name] = field(default_factory=list)


def violations(rows: Sequence[Row]) -> set[Violation]:
    """Return all violations in the history, whose rows must be in the order of time."""
    history = _History(rows)
    found = {Violation(promise, *name) for name in history.fates for promise in history.broken(name)}
    found.update(Violation("order", *name) for name in history.overtaken())
    found.update(Violation("tx_atomic", *name) for name in history.torn())
    return found


class _History:
    """The parts of a history that are looked up more than once."""

    def __init__(self, rows: Sequence[Row]) -> None:
        connected_ns = {
            row.get("connection", ""): row["time_ns"]
            for row in reversed(rows)
            if (row["op"], row["type"]) == ("connect", "invoke")
        }
        self._transactions = _transactions(rows)
        self._requested_ns = _requested(rows, connected_ns)
        self._silent = _silent(rows)
        self.fates: dict[Name, Fate] = defaultdict(Fate)
        for row in _with_ends(rows, self._transactions):
            if "id" in row and row["op"] in ("publish", "deliver", *ANSWERS):
                self.fates[_name(row)].record(row, connected_ns.get(row.get("connection", ""), NEVER_NS))

    def broken(self, name: Name) -> Iterator[str]:
        """Yield the promises that a message breaks by itself."""
        fate = self.fates[name]
        if promises.is_owed(fate) and promises.has_disappeared(
            fate, self._must_be_settled(name), is_limited=False
        ):
            yield "lost"
        if promises.is_phantom(fate):
            yield "phantom"
        is_late = promises.may_prove_late(fate) and any(
            promises.was_sent_before(seen, fate.first) for seen in fate.seen
        )
        if promises.is_new_too_often(fate) or is_late:
            yield "dedup_duplicate" if fate.dedup else "unmarked_duplicate"

    def _must_be_settled(self, name: Name) -> bool:
        return name[0] not in self._silent

    # Order

    def overtaken(self) -> Iterator[Name]:
        """Yield messages sent after a message of the same publisher and priority that must be behind them."""
        streams: dict[tuple[str, str, int], list[tuple[Name, Fate]]] = defaultdict(list)
        for name, fate in self.fates.items():
            if promises.is_comparable(fate):
                streams[name[0], fate.publisher, fate.priority].append((name, fate))
        for stream in streams.values():
            stream.sort(key=lambda item: (item[1].first.time_ns, item[1].first.call))
            yield from _overtaken_at_a_consumer(stream)
            yield from self._overtaken_at_another(stream)

    def _overtaken_at_another(self, stream: Sequence[tuple[Name, Fate]]) -> Iterator[Name]:
        """Yield messages whose consumer was requested after a message published after their confirm had been seen."""
        times = [fate.first.time_ns for _, fate in stream]
        latest_ns = [NEVER_NS, *accumulate((fate.invoked_ns for _, fate in stream), max)]
        for name, fate in stream:
            seen_before = bisect_left(times, self._requested_ns[fate.first.consumer])
            if latest_ns[seen_before] > fate.confirmed_ns:
                yield name

    # Transactions

    def torn(self) -> Iterator[Name]:
        """Yield messages of torn transactions: committed in part, or in part effective without a commit."""
        settled_ns: dict[Name, int] = {}
        void: Counter[Name] = Counter()
        for transaction in self._transactions.values():
            # A message that was published more than once, or in several transactions, is no proof.
            published = [name for name in transaction.published if self.fates[name].invokes == 1]
            seen = [name for name in published if self.fates[name].seen]
            missing = [name for name in published if not self.fates[name].seen]
            if transaction.outcome == "fail":
                yield from seen
                continue
            happened_ns = transaction.ended_ns
            if transaction.outcome == "unknown":
                if missing and not seen:
                    void.update(transaction.acked)
                if not seen:
                    continue
                happened_ns = min(self.fates[name].seen[0].time_ns for name in seen)
            yield from missing
            for name in transaction.acked:
                settled_ns[name] = min(settled_ns.get(name, happened_ns), happened_ns)
        yield from (name for name, at_ns in settled_ns.items() if self._is_back(self.fates[name], at_ns))
        yield from (name for name, times in void.items() if self._is_taken(name, times))

    def _is_back(self, fate: Fate, settled_ns: int) -> bool:
        """Return whether the message came to a consumer requested after a commit had acknowledged it."""
        is_one = fate.invokes > 0 and promises.copies(fate) == 1
        return is_one and any(self._requested_ns[seen.consumer] > settled_ns for seen in fate.seen)

    def _is_taken(self, name: Name, void_acks: int) -> bool:
        """Return whether the message disappeared, though only commits without effect acknowledged it."""
        fate = self.fates[name]
        is_alone = fate.acks == void_acks and not fate.rejects and promises.copies(fate) <= 1
        return is_alone and promises.is_owed(fate) and self._must_be_settled(name)


def _overtaken_at_a_consumer(stream: Iterable[tuple[Name, Fate]]) -> Iterator[Name]:
    sequences: dict[tuple[Consumer, tuple[str, int]], int] = {}
    invoked_ns: dict[Consumer, int] = {}
    for name, fate in stream:
        consumer = fate.first.consumer
        before, before_ns = sequences.get((consumer, fate.channel), 0), invoked_ns.get(consumer, NEVER_NS)
        if promises.is_overtaken(fate, before, before_ns):
            yield name
        sequences[consumer, fate.channel] = max(before, fate.sequence)
        invoked_ns[consumer] = max(before_ns, fate.invoked_ns)


def _name(row: Row) -> Name:
    return row.get("queue", ""), row.get("id", "")


def _consumer(row: Row) -> Consumer:
    return row["process"], row.get("connection", ""), row.get("channel", 0), row.get("consumer") or ""


def _transactions(rows: Iterable[Row]) -> dict[str, Transaction]:
    transactions: dict[str, Transaction] = defaultdict(Transaction)
    for row in rows:
        tx = row.get("tx")
        if tx is None:
            continue
        transaction = transactions[tx]
        match row["op"], row["type"]:
            case "publish", "invoke":
                transaction.published.append(_name(row))
            case "ack", "invoke":
                transaction.acked.append(_name(row))
            case "tx_commit", ("ok" | "fail") as outcome:
                transaction.outcome, transaction.ended_ns = outcome, row["time_ns"]
            case "tx_commit", _ if not transaction.ended_ns:
                transaction.outcome = "unknown"
            case _:
                pass
    return transactions


def _with_ends(rows: Iterable[Row], transactions: Mapping[str, Transaction]) -> Iterator[Row]:
    """End each operation in a transaction as the transaction ended: without a commit it had no effect."""
    for row in rows:
        tx = row.get("tx")
        if tx is None or row["op"] not in ("publish", *ANSWERS):
            yield row
        elif row["type"] == "invoke":
            if row["op"] == "publish":
                yield row
            transaction = transactions[tx]
            if row["op"] == "publish" or transaction.outcome != "fail":
                time_ns = transaction.ended_ns or row["time_ns"]
                yield {**row, "type": transaction.outcome, "time_ns": time_ns}


def _requested(rows: Iterable[Row], connected_ns: Mapping[str, int]) -> dict[Consumer, int]:
    """Return when each consumer or its connection was requested: deliveries to it came later."""
    requested_ns: dict[Consumer, int] = {}
    for row in rows:
        is_consume = (row["op"], row["type"]) == ("consume", "invoke")
        if row["op"] == "deliver" or is_consume:
            # A consumer with an earlier delivery existed before: the request in the history was a later request.
            consumed_ns = row["time_ns"] if is_consume else NEVER_NS
            of_connection_ns = connected_ns.get(row.get("connection", ""), NEVER_NS)
            requested_ns.setdefault(_consumer(row), max(of_connection_ns, consumed_ns))
    return requested_ns


def _silent(rows: Iterable[Row]) -> set[str]:
    """Return queues that some process consumes without any answer: its messages are settled when they are sent."""
    takes: set[tuple[str, str]] = set()
    answers: set[tuple[str, str]] = set()
    for row in rows:
        if row["op"] == "deliver":
            takes.add((row.get("queue", ""), row["process"]))
        elif row["op"] in ANSWERS:
            answers.add((row.get("queue", ""), row["process"]))
    return {queue for queue, _ in takes - answers}
