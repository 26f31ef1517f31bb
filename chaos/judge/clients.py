"""The clients of a run: begin and end of their connections and consumers, and their removals of messages."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from chaos.history import CLOCK_OFFSET
from chaos.judge.event import Consumer, Event

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from chaos.judge.scan import Digest

NEVER_NS = 0
FOREVER_NS = 2**63 - 1


class Removal(NamedTuple):
    """A purge or delete without an error; `ended_ns` is None if the outcome is unknown."""

    op: str
    queue: str
    connection: str | None
    channel: int | None
    invoked_ns: int
    ended_ns: int | None


@dataclass(slots=True)
class Consuming:
    """A consumer's requests."""

    requests_ns: list[int] = field(default_factory=list)
    """When it was requested; a consumer may consume again under its old tag."""
    cancelling_ns: int | None = None
    """When it first asked to be cancelled."""
    gone_ns: int | None = None
    """When it was cancelled for the last time: by an answer to its request, or by the node."""


class Jump(NamedTuple):
    """A change of the wall clocks of nodes."""

    time_ns: int
    nodes: Sequence[str]
    ms: int
    """By how much the clocks moved, forward or back."""


class Removals:
    """The successful removals from a queue that a place in time is certainly behind."""

    def __init__(self, removals: Iterable[Removal]) -> None:
        ended = sorted((removal.ended_ns, removal.invoked_ns) for removal in removals if removal.ended_ns)
        self._ended_ns = [ended_ns for ended_ns, _ in ended]
        self._invoked_ns = [NEVER_NS, *accumulate((invoked_ns for _, invoked_ns in ended), max)]

    def last_before(self, place_ns: int) -> int:
        """Return the latest request among the removals that had ended before."""
        return self._invoked_ns[bisect_left(self._ended_ns, place_ns)]


NO_REMOVALS = Removals(())
_ByChannel = tuple[str, str, str | None, int | None]
"""Operation, queue, connection and channel."""


class Clients:
    """Connections, consumers and removals, from the rows of `event.OF_CLIENTS`."""

    def __init__(self, digest: Digest) -> None:
        rows = sorted(digest.clients, key=lambda row: row.time_ns)
        self.connected_ns: dict[str, int] = {}
        """When a connection was requested; what it got came later."""
        self._jumps = list(_jumps(rows))
        self.request_at: dict[int, Event] = {}
        """The requests of connections and consumers, by their time."""
        self.closed_ns: dict[str, int] = {}
        """When a client noticed that its connection was lost."""
        self.consumers: dict[Consumer, Consuming] = defaultdict(Consuming)
        self.consuming: dict[str, list[Consumer]] = defaultdict(list)
        """The consumers of each queue, by their first request."""
        self.taking: dict[str, list[str]] = defaultdict(list)
        """The connections that got messages of each queue, or asked for a message."""
        for queue, connection in sorted(digest.taking):
            self.taking[queue].append(connection)
        self.answered_ns: dict[str, int] = {}
        """The latest request of a connection that was answered."""
        self.removals = _removals(rows)
        self.vanished_ns: dict[str, int] = {}
        """Until when a removal may have taken messages from a queue; without an outcome, at any time."""
        self.silent = {queue for queue, _ in digest.takes - digest.answers}
        """Queues that some process consumes without any answer: its messages are settled when they are sent."""
        calls: dict[tuple[str, int], int] = {}
        for row in rows:
            self._add(row, calls)
        for removal in self.removals:
            ended_ns = FOREVER_NS if removal.ended_ns is None else removal.ended_ns
            self.vanished_ns[removal.queue] = max(self.vanished_ns.get(removal.queue, 0), ended_ns)
        of_queue: dict[tuple[str, str], list[Removal]] = defaultdict(list)
        of_channel: dict[_ByChannel, list[Removal]] = defaultdict(list)
        for removal in self.removals:
            of_queue[removal.op, removal.queue].append(removal)
            of_channel[removal[:4]].append(removal)
        self._of_queue = {key: Removals(group) for key, group in of_queue.items()}
        self._of_channel = {key: Removals(group) for key, group in of_channel.items()}
        self.last_removal_ns = {
            queue: max(removal.invoked_ns for removal in self.removals if removal.queue == queue)
            for queue in {removal.queue for removal in self.removals if removal.ended_ns is not None}
        }

    def _add(self, row: Event, calls: dict[tuple[str, int], int]) -> None:
        connection = row.connection or ""
        match row.op, row.type:
            case "connect", "invoke":
                self.connected_ns.setdefault(connection, row.time_ns)
            case "connect", "info" | "fail" | "unknown":
                self.closed_ns.setdefault(connection, row.time_ns)
            case "consume", "invoke":
                consumer = self.consumers[row.consuming]
                if not consumer.requests_ns:
                    self.consuming[row.queue or ""].append(row.consuming)
                consumer.requests_ns.append(row.time_ns)
                consumer.gone_ns = None
            case "cancel", "invoke":
                consumer = self.consumers[row.consuming]
                consumer.cancelling_ns = consumer.cancelling_ns or row.time_ns
            case ("cancel", "ok") | ("cancelled", _):
                consumer = self.consumers[row.consuming]
                consumer.gone_ns = row.time_ns
                consumer.cancelling_ns = consumer.cancelling_ns or row.time_ns
            case _:
                pass
        if row.type == "invoke":
            self.request_at[row.time_ns] = row
            calls[row.process, row.call] = row.time_ns
        elif row.type == "ok" and row.connection is not None and (row.process, row.call) in calls:
            asked_ns = calls[row.process, row.call]
            self.answered_ns[connection] = max(self.answered_ns.get(connection, 0), asked_ns)

    def lead_ms(self, since_ns: int, until_ns: int) -> int:
        """Return the largest step forward of the cluster's time in this period, in ms, because wall clocks moved.

        The cluster's time goes no further than the clocks of a majority, so the clock of a single node has no effect.
        """
        moved: Counter[str] = Counter()
        for jump in self._jumps:
            if since_ns < jump.time_ns < until_ns:
                moved.update(dict.fromkeys(jump.nodes, jump.ms))
        return sorted(moved.values())[-2] if len(moved) > 1 else 0

    def requested_ns(self, consumer: Consumer) -> int | None:
        """Return when the consumer or its connection was requested: deliveries to it came later."""
        connected_ns = self.connected_ns.get(consumer[1] or "")
        known = self.consumers.get(consumer)
        consumed_ns = known.requests_ns[0] if known and known.requests_ns else None
        if connected_ns is None or consumed_ns is None:
            return consumed_ns if connected_ns is None else connected_ns
        return max(connected_ns, consumed_ns)

    def instants_ns(self, queue: str) -> list[int]:
        """Return the times when consumers of the queue or their connections were requested, in order."""
        connected = {self.connected_ns.get(connection) for connection in self.taking[queue]}
        consumed = {
            request_ns
            for consumer in self.consuming[queue]
            for request_ns in self.consumers[consumer].requests_ns
        }
        return sorted(instant for instant in connected | consumed if instant is not None)

    def removed(self, op: str, queue: str) -> Removals:
        return self._of_queue.get((op, queue), NO_REMOVALS)

    def removed_by(self, op: str, queue: str, connection: str | None, channel: int | None) -> Removals:
        """Return the removals by requests on this channel: a get after the answer was sent after the removal."""
        return self._of_channel.get((op, queue, connection, channel), NO_REMOVALS)


def _jumps(rows: Iterable[Event]) -> Iterator[Jump]:
    for row in rows:
        if row.op == "fault" and CLOCK_OFFSET in (row.detail or ""):
            yield Jump(
                row.time_ns, (row.node or "").split(","), abs(json.loads(row.detail or "")[CLOCK_OFFSET])
            )


def _removals(rows: Iterable[Event]) -> list[Removal]:
    invokes: dict[tuple[str, int], Event] = {}
    ends: dict[tuple[str, int], Event] = {}
    for row in rows:
        if row.op in ("purge", "delete") and row.queue is not None:
            (invokes if row.type == "invoke" else ends).setdefault((row.process, row.call), row)
    removals: list[Removal] = []
    for key, row in invokes.items():
        end = ends.get(key)
        if end is None or end.type != "fail":
            ended_ns = end.time_ns if end is not None and end.type == "ok" else None
            removals.append(
                Removal(row.op, row.queue or "", row.connection, row.channel, row.time_ns, ended_ns)
            )
    return removals
