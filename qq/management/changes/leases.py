"""Groups and leases: their reports, the commands of their readers, and the reading of leases.

Invariant: a read of a lease gives all its messages in their order, or raises. The lease is taken from the state when
the read begins, so commands meanwhile cannot change it; but the messages of a lease that has ended may be removed.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from qq.machine.protocol import commands as c
from qq.machine.protocol.commands import SINCE
from qq.machine.protocol.refusals import Refused
from qq.management.changes.request_session import outcome_of, until_applied
from qq.management.changes.version_wait import wait_for_version
from qq.management.errors import RequestRefused
from qq.management.objects.browse import READ_AHEAD_RANGES, steps, stored_messages
from qq.management.reports.leases import GroupStatus, Lag, LeaseStatus
from qq.management.time_slices import Slices
from qq.sessions.headers import delivered, in_frames, is_redelivered, published_to

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
    from typing import TypeVar

    from cluster.group.group import Group
    from qq.machine.protocol.commands import GroupCommand
    from qq.machine.protocol.death_history import FrozenHistories, History
    from qq.machine.protocol.effects import CountContract
    from qq.machine.queue.leases import Lease, LeaseChunk
    from qq.machine.queue.queue import LeaseGroup, Queue
    from qq.ranges import Range
    from qq.sessions.broker import Broker
    from qq.sessions.entries import Messages

    T = TypeVar("T")

STEP_MESSAGES = 250
"""Messages of a lease that are read together: some milliseconds of work."""
STEP_BYTES = 512 * 1024
"""Bytes of messages that are read together; a larger message is read by itself."""


class LeasedMessages(NamedTuple):
    """Consecutive messages of a lease, in the form that a consumer gets."""

    row: int
    """Number of the first message in the lease."""
    position: int
    """Position of the first message in the queue."""
    exchange: str
    routing_key: str
    is_redelivered: bool
    deliveries: int
    messages: Sequence[bytes]


class LeaseRead(NamedTuple):
    """A part of a lease that is to be read."""

    queue: str
    lease: Lease
    part: int
    parts: int
    histories: FrozenHistories
    count_contract: CountContract | None


class LeasePath(NamedTuple):
    """Names and numbers that find a lease."""

    vhost: str
    queue: str
    group: str
    number: int
    generation: int = 0
    """Of the group; 0 stands for any. Without it, each read waits until the node has caught up."""


class Leases:
    """Groups and leases of the queues of a node."""

    def __init__(self, broker: Broker, group: Group) -> None:
        self._broker = broker
        self._group = group

    # Reports

    def groups(self, vhost: str, queue: str) -> list[GroupStatus]:
        """Return the groups of a queue without their leases; none if there is no such queue."""
        known = self._queue(vhost, queue)
        return [] if known is None else self._rows(known)

    def group(self, vhost: str, queue: str, name: str) -> GroupStatus | None:
        known = self._queue(vhost, queue)
        group = None if known is None else known.groups.get(name)
        return None if known is None or group is None else self._status(known, group, group.leases.values())

    async def all(self, is_visible: Callable[[str], bool]) -> list[GroupStatus]:
        """Return the groups of the queues of the visible virtual hosts, without their leases."""
        slices, found = Slices(), list[GroupStatus]()
        for queue in list(self._broker.machine.queues()):
            if queue.groups and is_visible(queue.vhost):
                found += self._rows(queue)
            await slices.give_way()
        return found

    def _rows(self, queue: Queue) -> list[GroupStatus]:
        return [self._status(queue, group, ()) for group in queue.groups.values()]

    def _queue(self, vhost: str, name: str) -> Queue | None:
        known = self._broker.machine.vhosts.get(vhost)
        return None if known is None else known.queues.get(name)

    def _status(self, queue: Queue, group: LeaseGroup, shown: Iterable[Lease]) -> GroupStatus:
        """Return a group with these of its leases."""
        backlog, now_ms = queue.backlog, self._group.time_ms()
        oldest = backlog.oldest_index() if backlog.count else None
        age_ms = 0 if oldest is None else self._group.entry_times.age_ms(oldest, now_ms)
        for lease in islice(group.leases.values(), 1):  # the first was taken first
            age_ms = max(age_ms, now_ms - lease.time_ms)
        return GroupStatus(
            name=group.name,
            vhost=queue.vhost,
            queue=queue.name,
            queue_number=queue.number,
            generation=group.generation,
            fence=group.fence,
            owner=group.owner,
            user=group.user,
            order=group.settings.order,
            exclusive=group.settings.is_exclusive,
            expires_ms=group.settings.expires_ms,
            committed=group.first_free - 1 if group.first_free else None,
            last_lease=group.last if group.last >= 0 else None,
            open_leases=len(group.leases),
            leases=list(map(status_of, shown)),
            messages_leased=group.leased,
            bytes_leased=group.leased_size,
            lag=Lag(backlog.count + group.leased, backlog.size + group.leased_size, age_ms),
            idle_ms=max(now_ms - self._broker.machine.outage_ms - group.used_ms, 0),
        )

    # Commands

    async def open(self, command: c.OpenGroup) -> GroupStatus:
        """Open a group, or take it over. Raises RequestRefused, Unavailable, InvalidCommand."""
        machine = self._broker.machine

        def opened() -> GroupStatus:
            queue = machine.groups.check_open(command)
            group = machine.groups.opened(queue, command)
            return self._status(queue, group, group.leases.values())

        return await self._run(command, opened)

    async def lease(self, command: c.LeaseMessages) -> LeaseStatus | None:
        """Take a lease, or find it; return None if no message is ready. Raises as `open`."""

        def taken() -> LeaseStatus | None:
            lease = self._broker.machine.groups.taken(command)
            return None if lease is None else status_of(lease)

        return await self._run(command, taken)

    async def end(self, command: c.CommitLeases | c.ReleaseLease | c.CloseGroup) -> None:
        """Commit or release leases, or end a group. Raises as `open`."""
        await self._run(command, lambda: self._broker.machine.groups.check_ended(command))

    async def _run(self, command: GroupCommand, outcome: Callable[[], T]) -> T:
        """Put a command into the log, and return its outcome. Raises as `open`."""
        await wait_for_version(self._group, self._broker.machine, SINCE[type(command)], "groups")
        return await outcome_of(self._broker, [command], outcome)

    # Reading

    async def lease_status(self, path: LeasePath) -> LeaseStatus:
        """Return an open lease. Raises RequestRefused, Unavailable."""
        return status_of((await self._found(path))[1])

    async def part(self, path: LeasePath, part: int, parts: int) -> LeaseRead:
        """Return part `part` of `parts` of a lease, to be read. Raises RequestRefused, Unavailable."""
        known, lease = await self._found(path)
        return LeaseRead(known.name, lease, part, parts, known.histories.freeze(), known.count_contract)

    async def _found(self, path: LeasePath) -> tuple[Queue, Lease]:
        """Return a queue and an open lease of it. A node that lacks the lease catches up first.

        Without a generation, it catches up in any case: it might have a lease with this number of an earlier group.
        """
        groups = self._broker.machine.groups
        if path.generation:
            with suppress(Refused):
                return groups.find_lease(*path)
        await until_applied(self._broker, [], lambda: None)
        try:
            return groups.find_lease(*path)
        except Refused as refused:
            raise RequestRefused(refused.code, refused.text) from None

    async def read(self, wanted: LeaseRead) -> AsyncIterator[LeasedMessages]:
        """Yield the messages of a part in their order, some milliseconds of work at a time. Raises MessagesGone."""
        entries, contract = self._broker.entries, wanted.count_contract
        for row, messages, ahead in _with_following(part_of(wanted.lease, wanted.part, wanted.parts)):
            history = wanted.histories.get(messages.history) if messages.history else None
            at = 0
            for step in steps(entries, messages, STEP_MESSAGES, STEP_BYTES):
                found = await stored_messages(entries, step, ahead)
                while found:
                    count = len(found[0].messages)
                    # Only the caller refers to the messages, because a slow client would keep large ones in memory.
                    yield _leased(found.pop(0), row + at, at, messages, history, contract)
                    at += count


def _leased(
    stored: Messages, row: int, at: int, part: Range, history: History | None, contract: CountContract | None
) -> LeasedMessages:
    """Return messages of a part, from number `at` on, in the form that a consumer gets."""
    framed = delivered(in_frames(stored).messages, part, history, count_contract=contract)
    redelivered = is_redelivered(part, history, contract)
    published = published_to(stored, history)
    return LeasedMessages(row, part.position + at, *published, redelivered, part.deliveries, framed)


def status_of(lease: Lease) -> LeaseStatus:
    return LeaseStatus(lease.number, lease.messages, lease.size, lease.time_ms)


def part_of(lease: Lease, part: int, parts: int) -> Iterator[list[tuple[int, Range]]]:
    """Yield the ranges of a part in lists, each range with the number of its first message in the lease.

    A message belongs to the part in which its first byte lies, if all bytes are divided evenly. A list has the ranges
    of a chunk: unpacking it takes a millisecond.
    """
    row = before = 0
    begin, end = lease.size * part, lease.size * (part + 1)
    for chunk in lease.chunks:
        after = before + chunk.size
        is_last = part == parts - 1
        if after * parts >= begin and (is_last or before * parts <= end):
            yield list(_part_of_chunk(chunk, row, before, (begin, None if is_last else end), parts))
        row += chunk.messages
        before = after


def _part_of_chunk(
    chunk: LeaseChunk, row: int, before: int, bounds: tuple[int, int | None], parts: int
) -> Iterator[tuple[int, Range]]:
    begin, end = bounds
    for messages in chunk.unpack():
        low = _count_before(messages, before, begin, parts)
        high = messages.count if end is None else _count_before(messages, before, end, parts)
        if low < high:
            yield row + low, messages.part(low, high - low)
        row += messages.count
        before += messages.size


def _with_following(
    lists: Iterable[list[tuple[int, Range]]],
) -> Iterator[tuple[int, Range, list[Range]]]:
    """Yield each range with its row, and with some of the following ranges, which are read ahead."""
    for ranges in lists:
        for number, (row, messages) in enumerate(ranges):
            yield row, messages, [each for _, each in ranges[number : number + READ_AHEAD_RANGES]]


def _count_before(messages: Range, before: int, end: int, parts: int) -> int:
    """Return how many messages of a range begin before byte `end` / `parts`; `before` bytes are in front of them."""
    found = -((before * parts - end) * messages.count // (parts * max(messages.size, 1)))
    return min(max(found, 0), messages.count)
