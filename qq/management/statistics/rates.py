"""Rates per second: the difference between counts now and counts some seconds ago.

Invariant: a sample costs the same for a queue of any length. Times are the cluster's, like the times in queues.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from qq.machine.protocol.death_history import DELIVERY_LIMIT, REJECTED

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from qq.machine.queue.queue import Queue, Tally
    from qq.sessions.session_info import SessionCounts

SAMPLE_INTERVAL_S = 5.0
"""Seconds between samples. A rate covers at least this time, and at most twice as much."""
LENGTHS = ("messages", "messages_ready", "messages_unacknowledged")
"""Numbers that may decrease, because they count present messages instead of past events."""
GAUGES = frozenset({*LENGTHS, "mem_used", "fd_used", "sockets_used", "disk_free"})
"""The same, and numbers of nodes that may decrease."""
DELIVERIES = (
    "deliver",
    "deliver_no_ack",
    "get",
    "get_no_ack",
    "get_empty",
    "deliver_get",
    "redeliver",
    "ack",
)
"""RabbitMQ's names for the outcomes of messages in a queue and in a channel."""
FAILURES = (REJECTED, DELIVERY_LIMIT)
"""Reasons of dead-lettering that indicate a fault of consumers."""
_ZEROS = (0,) * len(FAILURES)
_SHORT_MS = 1000
"""Milliseconds that a rate must cover at least; otherwise it is 0."""

Numbers = tuple[int, ...]
"""A named tuple of counts."""


class QueueNumbers(NamedTuple):
    """Events in a queue and its length, under RabbitMQ's names; the last four are ours."""

    publish: int
    deliver: int
    """Deliveries with acknowledgement. `deliver_no_ack` counts those without."""
    deliver_no_ack: int
    get: int
    get_no_ack: int
    get_empty: int
    deliver_get: int
    """Number of messages delivered or fetched."""
    redeliver: int
    ack: int
    messages: int
    messages_ready: int
    messages_unacknowledged: int
    dead_letter: int
    """Number of messages moved to a dead-letter exchange."""
    reject_publish: int
    waited_ms: int
    """Milliseconds that messages have waited for a consumer with free prefetch, up to now."""
    failed: int
    """Number of messages dead-lettered because consumers rejected them or failed too often."""


HIDDEN = (*LENGTHS, "waited_ms", "failed")
"""Numbers that the `message_stats` of a queue leave out."""


class _Sample(NamedTuple):
    time_ms: int
    numbers: Numbers


class Rates:
    """The last two samples of the counts of each object."""

    def __init__(self) -> None:
        self._samples: dict[Hashable, tuple[_Sample, _Sample]] = {}
        """The two samples of each key, the older first."""
        self._sampled: dict[Hashable, tuple[_Sample, _Sample]] = {}
        """Samples of the keys that were sampled in the pass under way."""

    def sample(self, key: Hashable, numbers: Numbers, now_ms: int) -> None:
        """Add a sample."""
        sample = _Sample(now_ms, numbers)
        known = self._samples.get(key)
        self._samples[key] = self._sampled[key] = (known[1] if known else sample, sample)

    def end_pass(self) -> None:
        """Drop the keys that were not sampled in this pass.

        Their samples are replaced as a whole, because a search among very many queues would hold up the event loop.
        """
        self._samples, self._sampled = self._sampled, {}

    def last(self, key: Hashable) -> Any:
        """Return the numbers of the last sample as they were given, or None without a sample."""
        samples = self._samples.get(key)
        return None if samples is None else samples[1].numbers

    def per_second(self, key: Hashable, numbers: Any, now_ms: int) -> dict[str, float]:
        """Return the recent increase per second of each number, by its name in the named tuple."""
        since = self._since(key, now_ms)
        if since is None:
            return dict.fromkeys(numbers._fields, 0.0)
        elapsed_s = (now_ms - since.time_ms) / 1000
        return {
            name: _rate(name, new - old, elapsed_s)
            for name, new, old in zip(numbers._fields, numbers, since.numbers, strict=True)
        }

    def rate_at(self, key: Hashable, numbers: Any, now_ms: int, place: int) -> float:
        """Return the recent increase per second of the number at position `place` of the named tuple."""
        since = self._since(key, now_ms)
        if since is None:
            return 0.0
        change = numbers[place] - since.numbers[place]
        return _rate(numbers._fields[place], change, (now_ms - since.time_ms) / 1000) if change else 0.0

    def capacity(self, queue: Queue, now_ms: int) -> float:
        """Return the share of the recent time, from 0 to 1, in which a new message could be delivered at once."""
        if not queue.consumers:
            return 0.0
        since = self._since(queue.number, now_ms)
        if since is None:
            return 0.0 if queue.waiting_since_ms else 1.0
        waited_ms = _waited_ms(queue, now_ms) - QueueNumbers(*since.numbers).waited_ms
        return round(1 - min(max(waited_ms / (now_ms - since.time_ms), 0.0), 1.0), 3)

    def _since(self, key: Hashable, now_ms: int) -> _Sample | None:
        older, _ = self._samples.get(key, (None, None))
        return older if older is not None and now_ms - older.time_ms >= _SHORT_MS else None


def _rate(name: str, change: int, elapsed_s: float) -> float:
    # A count decreases only when a state was loaded: then counting starts again.
    return round((change if name in GAUGES else max(change, 0)) / elapsed_s, 2)


def with_rates(numbers: Mapping[str, int], rates: Mapping[str, float]) -> dict[str, Any]:
    """Return numbers in RabbitMQ's form: each NAME, and its rate as NAME_details."""
    document: dict[str, Any] = dict(numbers)
    for name in numbers:
        document[f"{name}_details"] = {"rate": rates[name]}
    return document


def idle_since(active_ms: int, now_ms: int) -> str | None:
    """Return the time of the last event in RabbitMQ's form; None if the object is not idle, or the time is unknown."""
    if not active_ms or now_ms - active_ms < SAMPLE_INTERVAL_S * 1000:
        return None
    return datetime.fromtimestamp(active_ms / 1000, tz=UTC).isoformat(timespec="milliseconds")


def deliveries_of(counts: Tally | SessionCounts) -> tuple[int, int, int, int, int, int, int, int]:
    """Return the numbers of `DELIVERIES`, in their order."""
    delivered, got = counts.delivered, counts.got
    delivered_no_ack, got_no_ack = counts.delivered_no_ack, counts.got_no_ack
    together = delivered + delivered_no_ack + got + got_no_ack
    empty, again, acknowledged = counts.get_empty, counts.redelivered, counts.acknowledged
    return delivered, delivered_no_ack, got, got_no_ack, empty, together, again, acknowledged


def numbers_of(queue: Queue, now_ms: int) -> QueueNumbers:
    tally, backlog, unacked = queue.tally, queue.backlog, queue.unacked
    ready = backlog.count
    # Positional arguments, because keywords take longer and this runs for each of very many queues.
    return QueueNumbers(
        tally.published,
        *deliveries_of(tally),
        ready + unacked + backlog.delayed + queue.dead_count,
        ready,
        unacked,
        tally.dead_lettered,
        tally.rejected_publishes,
        _waited_ms(queue, now_ms),
        sum(map(tally.died.get, FAILURES, _ZEROS)) if tally.died else 0,
    )


def _waited_ms(queue: Queue, now_ms: int) -> int:
    since_ms = queue.waiting_since_ms
    return queue.tally.waited_ms + (max(now_ms - since_ms, 0) if since_ms else 0)
