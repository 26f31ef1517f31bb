"""The micro-batches of a stream: its groups, its leases and its offsets.

An offset is `{queue: {"queue": number of the queue, "group": generation of the group, "first": lease, "next": lease}}`:
`first` is the first lease that the stream reads of this queue, and `next` the first lease behind the offset. If leases
before a batch were released unread, its end has `from`, the first lease of the batch.

Invariant: the leases between two offsets are a function of these offsets. A lease is committed only after Spark has
recorded the batch with this lease as finished.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from qq_spark.client import Group, Lease, LeaseClient, Parts
from qq_spark.errors import QueueSourceError
from qq_spark.options import LEASE_MESSAGES_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qq_spark.options import StreamOptions

Offset = dict[str, dict[str, int]]

TRIGGER_LEASES_MAX = 500
"""Most leases of a queue that a trigger takes: a group may have 2,000 open leases."""
_UNBOUNDED = 2**53
_IDLE_S = 0.1
"""Seconds between two requests while the queues are empty."""
_DISCOVERY_S = 10.0
"""Seconds between two searches for new queues of a pattern."""


class Limits(NamedTuple):
    """Bounds of a trigger."""

    messages: int
    bytes: int


NO_LIMITS = Limits(_UNBOUNDED, _UNBOUNDED)


class OpenedLease(NamedTuple):
    """A lease of a group that the stream has opened."""

    queue: str
    generation: int
    """Number of the opened group."""
    lease: Lease


class Slice(NamedTuple):
    """A part of a lease."""

    queue: str
    group: str
    generation: int
    lease: int
    parts: Parts
    bytes: int


class _Reading:
    """A queue that the stream reads, with the group that the stream has opened."""

    def __init__(self, group: Group) -> None:
        self.queue = group.queue
        self.number = group.queue_number
        self.fence = group.fence
        self.generation = group.generation
        self.committed = group.committed
        self.first = group.committed + 1
        self.leases = {lease.number: lease for lease in group.leases}
        self.last = max(group.last_lease, group.committed)
        """The highest lease that was ever taken."""
        self.allowed: int | None = None
        """Messages that may still be leased with `Trigger.AvailableNow`; `None` without a bound."""

    def start(self) -> dict[str, int]:
        return {"queue": self.number, "group": self.generation, "first": self.first, "next": self.first}

    def add(self, lease: Lease) -> None:
        self.leases[lease.number] = lease
        self.last = lease.number
        if self.allowed is not None:
            self.allowed -= lease.messages

    def following(self, begin: int) -> range:
        """Return the first open leases from `begin` on that have no released lease among them."""
        first = min((number for number in self.leases if number >= begin), default=begin)
        end = first
        while end in self.leases:
            end += 1
        return range(first, end)


class Planner:
    """Plans the micro-batches of a stream, in the driver."""

    def __init__(self, options: StreamOptions, client: LeaseClient, owner: str) -> None:
        self._options = options
        self._client = client
        self._owner = owner
        self._readings: dict[str, _Reading] = {}
        self._wanted: set[str] = set()
        """The queues of the options. A checkpoint may have further queues, with leases that are not committed."""
        self._position: Offset | None = None
        """The end of the last planned batch."""
        self._is_available_now = False
        """Whether the query ends with the messages that are ready at its start."""
        self._is_idle = False
        self._discovered_at: float | None = None

    def close(self) -> None:
        self._client.close()

    # Offsets

    def initial(self) -> Offset:
        """Return the offset before the first lease that is not committed."""
        self._discover(self._position)
        return {reading.queue: reading.start() for reading in self._sorted()}

    def latest(self, start: Offset | None, limits: Limits) -> Offset:
        """Return the end of the next batch, and take its leases.

        `start` is the end of the batches that Spark has finished; `None` if this version of Spark does not say it.
        """
        if self._is_idle:
            time.sleep(_IDLE_S)
        if start is None:
            start = self._position
        self._discover(start)
        end = dict(start or {})
        readings = self._sorted()
        if self._is_available_now:
            self._bound(readings)
        is_idle = True
        for number, reading in enumerate(readings):
            known = (start or {}).get(reading.queue) or reading.start()
            begin = known["next"]
            self._check(reading, known)
            # Leases that an earlier driver took and did not plan come first.
            if start is None or not reading.following(begin):
                left = len(readings) - number
                taken = self._take(reading, Limits(limits.messages // left, limits.bytes // left))
                limits = Limits(limits.messages - taken.messages, limits.bytes - taken.bytes)
            batch = reading.following(begin)
            if batch:
                is_idle = False
                skipped = {"from": batch.start} if batch.start > begin else {}
                end[reading.queue] = known | skipped | {"next": batch.stop}
            elif start is None:
                end[reading.queue] = known
        self._is_idle = is_idle
        if is_idle and start is not None:
            self.commit(start)  # Spark itself would commit the last batch only when it plans a further batch
        return dict(sorted(end.items()))

    def prepare_available_now(self) -> None:
        """Let the following offsets end with the messages that are ready when the first of them is planned."""
        self._is_available_now = True

    def commit(self, end: Offset) -> None:
        """Commit the leases before an offset."""
        for queue, position in end.items():
            up_to = position["next"] - 1
            reading = self._readings.get(queue)
            if (
                reading is None
                and up_to >= position["first"]
                and self._client.group(queue, self._options.group)
            ):
                reading = self._reading(queue, position)
            if reading is None or up_to <= reading.committed:
                continue
            self._check(reading, position)
            self._client.commit(queue, self._options.group, reading.fence, up_to)
            reading.committed = up_to
            for number in [number for number in reading.leases if number <= up_to]:
                del reading.leases[number]

    # Batches

    def slices(self, start: Offset, end: Offset) -> list[list[Slice]]:
        """Return the parts of the leases between two offsets, divided into tasks."""
        self._position = end
        leases: list[OpenedLease] = []
        for queue, position in sorted(end.items()):
            begin = start[queue]["next"] if queue in start else position["first"]
            begin = max(begin, position.get("from", begin))
            if begin == position["next"]:
                continue
            reading = self._reading(queue, position)
            self._check(reading, position)
            for number in range(begin, position["next"]):
                lease = reading.leases.get(number) or self._client.lease(queue, self._options.group, number)
                leases.append(OpenedLease(queue, reading.generation, lease))
        return divided(leases, self._options.group, self._options.source.partitions)

    # Queues

    def _sorted(self) -> list[_Reading]:
        """Return the queues of which the stream takes new leases."""
        return [self._readings[queue] for queue in sorted(self._wanted)]

    def _discover(self, known: Offset | None) -> None:
        """Open the groups of all queues of the options, and now and then of new queues.

        `known` has the queues of the checkpoint.
        """
        for queue in self._options.queues:
            self._want(queue, known)
        pattern, now = self._options.pattern, time.monotonic()
        if pattern is None or (self._discovered_at is not None and now < self._discovered_at + _DISCOVERY_S):
            return
        self._discovered_at = now
        for queue in self._client.queues():
            if pattern.fullmatch(queue):
                self._want(queue, known)

    def _want(self, queue: str, known: Offset | None) -> None:
        self._reading(queue, (known or {}).get(queue))
        self._wanted.add(queue)

    def _bound(self, readings: Sequence[_Reading]) -> None:
        """Let each queue that has no bound yet end with the messages that are ready now."""
        for reading in readings:
            if reading.allowed is None:
                group = self._client.group(reading.queue, self._options.group)
                reading.allowed = 0 if group is None else group.ready

    def _reading(self, queue: str, known: dict[str, int] | None) -> _Reading:
        """Return a queue whose group is open. `known` is its offset in the checkpoint.

        A query that cannot go on must leave a group to its present owner, and open none.
        """
        reading = self._readings.get(queue)
        if reading is None:
            options = self._options
            if known is not None:
                group = self._client.group(queue, options.group)
                if group is None:
                    raise _lost(
                        f"queue '{queue}' was deleted, or its group '{options.group}' was ended, since this checkpoint"
                    )
                self._check(_Reading(group), known)
            reading = _Reading(
                self._client.take_over(queue, options.group, self._owner, options.source.settings)
            )
            self._readings[queue] = reading
        return reading

    def _check(self, reading: _Reading, position: dict[str, int]) -> None:
        """Raise QueueSourceError if an offset of the checkpoint is of an earlier queue or group."""
        # Offsets of earlier programs have no generation, and a restored cluster may lack the last leases of a group.
        is_of_group = (
            position.get("group") in (None, reading.generation) and position["next"] <= reading.last + 1
        )
        if position["queue"] != reading.number:
            raise _lost(f"queue '{reading.queue}' was deleted and declared again since this checkpoint")
        if not is_of_group:
            raise _lost(
                f"group '{self._options.group}' of queue '{reading.queue}' is not the group of this checkpoint: "
                "it was ended and opened again, or option 'group' has changed"
            )

    # Leases

    def _take(self, reading: _Reading, share: Limits) -> Limits:
        """Take leases up to a share, and return the messages and bytes of these."""
        messages = octets = 0
        for _ in range(TRIGGER_LEASES_MAX):
            wanted = min(max(share.messages, 1) - messages, LEASE_MESSAGES_MAX)
            if reading.allowed is not None:
                wanted = min(wanted, reading.allowed)
            if wanted <= 0 or (self._is_idle and not self._has_ready(reading)):
                break
            room = max(share.bytes, 1) - octets
            lease = self._client.take(
                reading.queue, self._options.group, reading.fence, reading.last + 1, wanted, room
            )
            if lease is None:
                break
            reading.add(lease)
            messages += lease.messages
            octets += lease.bytes
            # A lease may be small because its messages are scattered. A rest of the share waits for the next trigger.
            if 2 * messages > share.messages or 2 * octets > share.bytes:
                break
        return Limits(messages, octets)

    def _has_ready(self, reading: _Reading) -> bool:
        """Return whether the queue has ready messages, without a change of the log."""
        group = self._client.group(reading.queue, self._options.group)
        return group is None or group.fence != reading.fence or group.ready > 0


def _lost(reason: str) -> QueueSourceError:
    return QueueSourceError(
        f"{reason}. The batches of this checkpoint cannot be read again: start with a new checkpoint"
    )


def divided(leases: Sequence[OpenedLease], group: str, tasks: int) -> list[list[Slice]]:
    """Divide leases into at most `tasks` lists of parts, in order."""
    parts = max(-(-tasks // max(len(leases), 1)), 1)
    slices: list[Slice] = []
    for queue, generation, lease in leases:
        of = min(parts, lease.messages)
        slices += [
            Slice(queue, group, generation, lease.number, Parts(part, of), lease.bytes // of)
            for part in range(of)
        ]
    together = max(-(-len(slices) // tasks), 1)
    return [slices[at : at + together] for at in range(0, len(slices), together)]
