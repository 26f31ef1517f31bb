"""How fast things happen in queues: what their tallies say now, and what they said some seconds ago.

Lives here: rates, and the consumer capacity. Not here: the counts (`Tally` in machine/queue.py), when it is time for a
sample.

Law: a sample costs the same for a queue of any length. The time is the cluster's, like all that queues note.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from qq.machine.queue import Queue

SAMPLE_INTERVAL_S = 5.0
"""How often samples are taken: rates are of this time at least, and of twice as much at most."""
_SHORT_MS = 1000
"""No rates are told of a time that is shorter than this."""


class Counts(NamedTuple):
    """What happened in a queue, under RabbitMQ's names; the last two are ours."""

    publish: int
    deliver: int
    get: int
    deliver_get: int
    """How many messages were delivered or fetched."""
    redeliver: int
    ack: int
    dead_letter: int
    """How many messages were moved to a dead-letter exchange."""
    reject_publish: int


class _Sample(NamedTuple):
    time_ms: int
    counts: Counts
    waited_ms: int


class Rates:
    """The last two samples of every queue."""

    def __init__(self) -> None:
        self._samples: dict[int, tuple[_Sample, _Sample]] = {}
        """The two samples of each queue, by its number, the older one first."""

    def sample(self, queues: Iterable[Queue], now_ms: int) -> None:
        """Take the next sample of some queues."""
        for queue in queues:
            sample = _sample(queue, now_ms)
            known = self._samples.get(queue.number)
            self._samples[queue.number] = (known[1] if known else sample, sample)

    def keep_only(self, queues: Iterable[Queue]) -> None:
        """Forget the samples of all other queues."""
        there = {queue.number for queue in queues}
        self._samples = {number: samples for number, samples in self._samples.items() if number in there}

    def per_second(self, queue: Queue, now_ms: int) -> dict[str, float]:
        """How often a second each thing that is counted has happened of late, by its name."""
        since = self._since(queue, now_ms)
        now = counts_of(queue)
        if since is None:
            return dict.fromkeys(Counts._fields, 0.0)
        elapsed_s = (now_ms - since.time_ms) / 1000
        # Counts that are smaller than before are those of a state that was loaded: it has begun to count anew.
        return {
            name: round(max(new - old, 0) / elapsed_s, 2)
            for name, new, old in zip(Counts._fields, now, since.counts, strict=True)
        }

    def capacity(self, queue: Queue, now_ms: int) -> float:
        """The share of the last time in which a message that came would have been delivered at once, from 0 to 1."""
        if not queue.consumers:
            return 0.0
        since = self._since(queue, now_ms)
        if since is None:
            return 0.0 if queue.waiting_since_ms else 1.0
        waited_ms = _waited_ms(queue, now_ms) - since.waited_ms
        return round(1 - min(max(waited_ms / (now_ms - since.time_ms), 0.0), 1.0), 3)

    def _since(self, queue: Queue, now_ms: int) -> _Sample | None:
        older, _ = self._samples.get(queue.number, (None, None))
        return older if older is not None and now_ms - older.time_ms >= _SHORT_MS else None


def counts_of(queue: Queue) -> Counts:
    tally = queue.tally
    return Counts(
        publish=tally.published,
        deliver=tally.delivered,
        get=tally.got,
        deliver_get=tally.delivered + tally.got,
        redeliver=tally.redelivered,
        ack=tally.acknowledged,
        dead_letter=tally.dead_lettered,
        reject_publish=tally.rejected_publishes,
    )


def _sample(queue: Queue, now_ms: int) -> _Sample:
    return _Sample(now_ms, counts_of(queue), _waited_ms(queue, now_ms))


def _waited_ms(queue: Queue, now_ms: int) -> int:
    """How long messages have waited for a consumer that can take them, up to now."""
    since_ms = queue.waiting_since_ms
    return queue.tally.waited_ms + (max(now_ms - since_ms, 0) if since_ms else 0)
