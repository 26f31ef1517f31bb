"""Groups and their leases: fixed lists of messages that a reader takes, reads as often as it likes, and commits.

A *group* belongs to a queue, and its *fence* names its owner: a higher fence ends the rights of all lower fences. A
*lease* is a list of messages that left the backlog. It never changes until the group commits or releases it, so each
read of it gives the same messages in the same order.

A lease keeps its messages as packed ranges, some tens of bytes for consecutive messages. Bodies stay in the log.

Invariant: a lease is immutable, so a frozen state shares it. A new lease has a higher number than all earlier leases of
its group. So a command that is repeated late, after its lease was released, takes no messages, which a commit of a
higher number would remove unread. All open leases have higher numbers than the committed leases.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from qq.machine.protocol.refusals import no_access, not_found, precondition_failed, the_queue
from qq.machine.queue import packed_columns
from qq.ranges import LEVELS, MESSAGE_BITS, MESSAGE_MASK, Range

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

READY, ARRIVAL = "ready", "arrival"
ORDERS = (READY, ARRIVAL)
"""The orders of leases: as consumers would get the messages, or by arrival without regard to priorities."""

GROUPS_MAX = 32
"""Groups of a queue."""
OPEN_LEASES_MAX = 2_000
"""Open leases of a group, of some hundred bytes each."""
LEASE_MESSAGES_MAX = 1_000_000
"""Messages of a lease."""
LEASE_RANGES_MAX = 10_000
"""Ranges of a lease: taking and packing them takes 3 us each. Messages that were published one by one are a range
each."""
CHUNK_RANGES = 1_000
"""Ranges that are packed together, and that return to the queue together."""
CHUNK_COST = 16
"""Ranges that unpacking a chunk counts as."""
CHUNKS_AT_ONCE = 60
"""Chunks of ended leases that are unpacked at once; with more, all of them are put off."""
NAME_BYTES_MAX = 255
"""Bytes of the name of a group, and of the name of its owner."""

_MARK_BITS = 5
"""Bits of the level in `marks`; the bits above are the history."""
_CODES = "qQqQqQQQ"
"""The type codes of the packed columns: index, place (slot and count), position, size, expiry, deliveries, failures and
marks. The columns in _RISING hold differences."""
_RISING = (0, 2, 4)


class LeaseChunk(NamedTuple):
    """Packed consecutive ranges of a lease."""

    messages: int
    size: int
    ranges: int
    has_histories: bool
    data: bytes

    def unpack(self) -> list[Range]:
        """Return the ranges in their order."""
        table = packed_columns.unpack_rising(self.data, _CODES, _RISING)
        return [
            Range(
                index,
                place >> MESSAGE_BITS,
                place & MESSAGE_MASK,
                deliveries,
                size,
                position,
                expires_ms,
                marks % LEVELS,
                marks >> _MARK_BITS,
                failures,
            )
            for index, place, position, size, expires_ms, deliveries, failures, marks in zip(
                *table, strict=True
            )
        ]


class Lease(NamedTuple):
    """A list of messages that a group holds until it commits or releases them."""

    number: int
    time_ms: int
    """Cluster time (ms) at which the messages were taken."""
    messages: int
    size: int
    chunks: tuple[LeaseChunk, ...]

    def ranges(self) -> Iterator[Range]:
        """Yield the messages in their order."""
        for chunk in self.chunks:
            yield from chunk.unpack()

    @property
    def count_ranges(self) -> int:
        return sum(chunk.ranges for chunk in self.chunks)


class EndedChunk(NamedTuple):
    """Messages of a lease that ended, as put-off work. Until it is done, they count as leased."""

    is_released: bool
    """Whether they return to their places; otherwise they are settled."""
    chunk: LeaseChunk


class GroupSettings(NamedTuple):
    """Properties of a group that its opener chooses."""

    order: str
    """An element of `ORDERS`."""
    is_exclusive: bool
    """Whether the queue has neither consumers nor gets nor other groups while the group exists."""
    expires_ms: int
    """Milliseconds without a command of the group (outages left out) after which it ends; 0 is never."""


@dataclass(slots=True, eq=False, kw_only=True)
class LeaseHolder:
    """A group without its queue. Only methods of its queue change it."""

    name: str
    label: str
    """Group and queue, for texts."""
    fence: int
    owner: str
    """The name that the reader gave itself."""
    user: str
    """The user who opened the group."""
    settings: GroupSettings
    generation: int
    """The log index at which the group was opened. A group that is closed and opened again gets a higher generation."""
    used_ms: int = 0
    """Time (without outages, ms) of the last command of the group."""
    first_free: int = 0
    """The lowest number that was not committed: all lower numbers are used up."""
    last: int = -1
    """The highest number that a lease had."""
    leases: dict[int, Lease] = field(default_factory=dict)
    """The open leases, by number, in the order in which they were taken."""
    leased: int = 0
    """Number of messages in open leases."""
    leased_size: int = 0

    def expires_at_ms(self) -> int | None:
        """Return the time (without outages) at which the idle group ends, or None for never."""
        return self.used_ms + self.settings.expires_ms if self.settings.expires_ms else None

    def check_fence(self, fence: int) -> None:
        """Raise Refused unless the fence is that of the owner."""
        if fence != self.fence:
            problem = "is stale" if fence < self.fence else "was not used to open the group"
            raise no_access(
                f"fence {fence} {problem}: {self.label} is open with fence {self.fence}, owner '{self.owner}'"
            )

    def is_of(self, generation: int) -> bool:
        """Return whether a command for this generation is for this group; 0 stands for any."""
        return generation in (0, self.generation)

    def check_generation(self, generation: int) -> None:
        """Raise Refused if a command is for an earlier group of this name."""
        if not self.is_of(generation):
            raise no_access(
                f"generation {generation} of {self.label} was ended: the group was opened again, and has generation "
                f"{self.generation}"
            )

    def check_lease(self, number: int) -> Lease:
        """Return the open lease with this number. Raise Refused."""
        lease = self.leases.get(number)
        if lease is not None:
            return lease
        self.check_unused(number)
        raise not_found(f"lease {number} of {self.label}")

    def check_unused(self, number: int) -> None:
        """Raise Refused if no new lease may have this number, because it is not above all earlier numbers."""
        if number < self.first_free:
            raise precondition_failed(f"lease {number} of {self.label} was committed")
        if number <= self.last:
            raise precondition_failed(
                f"lease {number} of {self.label} is not open: it was released or not taken, "
                f"and a new lease has a number from {self.last + 1} on"
            )


class FrozenGroup(NamedTuple):
    """A group at a moment; `queue` is the number of its queue."""

    queue: int
    name: str
    fence: int
    owner: str
    user: str
    settings: GroupSettings
    generation: int
    used_ms: int
    first_free: int
    last: int
    leases: Collection[Lease]


def make_lease(number: int, time_ms: int, ranges: Sequence[Range]) -> Lease:
    """Pack messages as a lease."""
    chunks = tuple(_chunk(ranges[at : at + CHUNK_RANGES]) for at in range(0, len(ranges), CHUNK_RANGES))
    messages, size = sum(chunk.messages for chunk in chunks), sum(chunk.size for chunk in chunks)
    return Lease(number, time_ms, messages, size, chunks)


def _chunk(ranges: Sequence[Range]) -> LeaseChunk:
    rows = list(zip(*ranges, strict=True))
    indexes, slots, counts, deliveries, sizes, positions, expiries, levels, histories, failures = rows
    table = [
        array("Q", indexes),
        array("Q", [slot << MESSAGE_BITS | count for slot, count in zip(slots, counts, strict=True)]),
        array("Q", positions),
        array("Q", sizes),
        array("Q", expiries),
        array("Q", deliveries),
        array("Q", failures),
        array("Q", [history << _MARK_BITS | level for history, level in zip(histories, levels, strict=True)]),
    ]
    data = packed_columns.pack_rising(table, _RISING)
    return LeaseChunk(sum(counts), sum(sizes), len(ranges), any(histories), data)


def chunks_of(leases: Iterable[Iterable[Lease]], ended: Iterable[EndedChunk]) -> Iterator[LeaseChunk]:
    """Yield the chunks of open leases, group by group, and of ended leases."""
    for each in chain.from_iterable(leases):
        yield from each.chunks
    for _, chunk in ended:
        yield chunk


def with_histories(chunks: Iterable[LeaseChunk]) -> Iterator[Range]:
    """Yield the ranges of these chunks that have a dead-letter history."""
    for chunk in chunks:
        if chunk.has_histories:
            yield from (messages for messages in chunk.unpack() if messages.history)


def the_group(name: str, queue: str, vhost: str) -> str:
    return f"group '{name}' of {the_queue(queue, vhost)}"
