"""Reads a part of a history: each line is parsed once, counted, and put into the bucket of its message.

Invariant: what a scan keeps in memory is its own part of the history.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from chaos import history
from chaos.judge.event import ANSWERS, OF_CLIENTS, OF_LEASES, OF_MESSAGES, Event, packed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chaos.history import Row

NS = 1_000_000_000
UNAVAILABLE_NS = NS // 4
"""Nanoseconds; a shorter wait for a confirm counts as latency."""

Tally = Counter[tuple[int, str | None, str, str]]
"""Number of rows by second since the run began, node, operation and type."""


@dataclass(slots=True)
class Digest:
    """The facts of a part of a history that concern many messages."""

    tally: Tally = field(default_factory=Counter)
    clients: list[Event] = field(default_factory=list)
    """Rows of `OF_CLIENTS`."""
    leases: list[Event] = field(default_factory=list)
    """Rows of `OF_LEASES`."""
    confirms: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """The first and last confirm at a node, by node and interval of `UNAVAILABLE_NS`."""
    publishing: set[tuple[str, str]] = field(default_factory=set)
    """Process and node of publishes."""
    takes: set[tuple[str, str]] = field(default_factory=set)
    """Queue and process of deliveries."""
    answers: set[tuple[str, str]] = field(default_factory=set)
    """Queue and process of acknowledgements and rejections."""
    taking: set[tuple[str, str]] = field(default_factory=set)
    """Queue and connection of deliveries and gets: the answer of a get may be lost."""

    def add(self, other: Digest) -> None:
        self.tally.update(other.tally)
        self.clients += other.clients
        self.leases += other.leases
        self.publishing |= other.publishing
        self.takes |= other.takes
        self.answers |= other.answers
        self.taking |= other.taking
        for key, (first_ns, last_ns) in other.confirms.items():
            self.confirm(key, first_ns, last_ns)

    def confirm(self, key: tuple[str, int], first_ns: int, last_ns: int) -> None:
        """Add confirms of a node and interval."""
        known = self.confirms.get(key)
        if known is not None:
            first_ns, last_ns = min(first_ns, known[0]), max(last_ns, known[1])
        self.confirms[key] = first_ns, last_ns


class Place(NamedTuple):
    """A line: its number within its part of the file, its time if it has any, and its text."""

    number: int
    time_ns: int
    text: str


class Scan:
    """Scans a part of a file, whose rows must be in the order of time if it is `ordered`."""

    def __init__(self, started_ns: int, buckets: int, *, ordered: bool = True) -> None:
        self.digest = Digest()
        self.messages: list[list[tuple[Any, ...]]] = [[] for _ in range(buckets)]
        """Rows about messages, in the order of `Event`: a bucket has all rows of its messages."""
        self.lines = 0
        self.first: Place | None = None
        """The first row."""
        self.last_ns = 0
        self.wrong: tuple[str, Place] | None = None
        """What is wrong with the first line that is no good, and that line."""
        self._started_ns = started_ns
        self._ordered = ordered

    def read(self, lines: Iterable[str | bytes]) -> None:
        """Parse and add lines, until one is wrong; empty lines are skipped."""
        for line in lines:
            self.lines += 1
            if not line.strip():
                continue
            try:
                row = history.parse(line)
            except ValueError:
                self.wrong = "no row of a history", self._place(line, 0)
                return
            time_ns = row["time_ns"]
            if self.first is None:
                self.first = self._place(line, time_ns)
            elif self._ordered and time_ns <= self.last_ns:
                self.wrong = "time_ns does not rise", self._place(line, time_ns)
                return
            self.add(row)

    def _place(self, line: str | bytes, time_ns: int) -> Place:
        text = line.decode("utf-8", "replace") if isinstance(line, bytes) else line
        return Place(self.lines, time_ns, text)

    def add(self, row: Row) -> None:
        """Add a row."""
        time_ns, op, type_ = row["time_ns"], row["op"], row["type"]
        self.last_ns = time_ns
        digest = self.digest
        digest.tally[(time_ns - self._started_ns) // NS, row.get("node"), op, type_] += 1
        if op in OF_MESSAGES:
            name = row.get("id")
            if name is None:
                return
            self.messages[crc32(name.encode()) % len(self.messages)].append(packed(row))
            if op == "publish":
                self._count_publish(row, type_)
            elif op == "deliver":
                queue = row.get("queue", "")
                digest.takes.add((queue, row["process"]))
                digest.taking.add((queue, row.get("connection", "")))
            elif op in ANSWERS:
                digest.answers.add((row.get("queue", ""), row["process"]))
        elif op == "get":
            digest.taking.add((row.get("queue", ""), row.get("connection", "")))
        elif op in OF_CLIENTS:
            digest.clients.append(Event._make(packed(row)))
        elif op in OF_LEASES:
            digest.leases.append(Event._make(packed(row)))

    def _count_publish(self, row: Row, type_: str) -> None:
        node = row.get("node")
        if node is None:
            return
        if type_ == "ok":
            time_ns = row["time_ns"]
            self.digest.confirm((node, time_ns // UNAVAILABLE_NS), time_ns, time_ns)
        elif type_ == "invoke":
            self.digest.publishing.add((row["process"], node))
