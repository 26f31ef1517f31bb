"""Reads ready messages of a queue without delivering them: the queue stays as it is.

Invariant: pages are small, and other tasks run in between. The messages of a page are chosen at its beginning. The
queue changes meanwhile, and messages that are no longer stored when they are to be read are left out.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, NamedTuple

from qq.management.reports.messages import Message
from qq.sessions.entries import MessagesGone
from qq.sessions.headers import delivered, in_frames, is_redelivered, published_to
from qq.stored.editing import content

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence

    from qq.machine.protocol.death_history import FrozenHistories, History
    from qq.machine.protocol.effects import CountContract
    from qq.machine.queue.queue import Queue
    from qq.ranges import Range
    from qq.sessions.entries import Entries, Messages

STEP_MESSAGES = 50
"""Messages decoded at a time: about a millisecond of work."""
STEP_BYTES = 256 * 1024
"""Octets of messages decoded at a time; a larger message is decoded whole."""
READ_AHEAD_RANGES = 64
"""Ranges ahead of the current range whose entries are read from the disk together with it."""


class BrowsedGroup(NamedTuple):
    """Stored messages of a queue with the same published properties and the same history."""

    stored: Messages
    part: Range
    history: History | None
    offset: int
    """Number of ready messages before the first of these."""

    def browsed(self, count_contract: CountContract | None) -> Iterator[Message]:
        """Yield the messages as consumers would get them."""
        exchange, routing_key = published_to(self.stored, self.history)
        frames = in_frames(self.stored).messages
        framed = delivered(frames, self.part, self.history, count_contract=count_contract)
        redelivered = is_redelivered(self.part, self.history, count_contract)
        for number, message in enumerate(framed, self.offset):
            yield Message(number, exchange, routing_key, redelivered, *content(message))


async def browse(queue: Queue, entries: Entries, offset: int, count: int, bytes_max: int) -> list[Message]:
    """Read up to `count` ready messages in delivery order, from position `offset` on.

    Their bodies have at most `bytes_max` octets in all, but at least a single message is read. The list is empty only
    if the queue has no more ready messages. The next page begins after the offset of the last message.
    """
    page: list[Message] = []
    while count > 0 and not page:
        histories, frozen = queue.histories.freeze(), queue.backlog.freeze()
        # A thread, because skipping many messages takes long.
        ranges = await asyncio.to_thread(frozen.browse, offset, count)
        if not ranges:
            break
        groups = read_groups(entries, ranges, histories, offset)
        async with aclosing(groups):
            async for group in groups:
                for message in group.browsed(queue.count_contract):
                    bytes_max -= len(message.body)
                    if page and bytes_max < 0:
                        return page
                    page.append(message)
        offset += count  # if all of them were removed meanwhile, the next page is read
    return page


async def read_groups(
    entries: Entries, ranges: Sequence[Range], histories: FrozenHistories, offset: int
) -> AsyncGenerator[BrowsedGroup]:
    """Read the messages of ranges, whose first is at position `offset`, in steps with other tasks in between."""
    for number, messages in enumerate(ranges):
        ahead = ranges[number : number + READ_AHEAD_RANGES]
        history = histories.get(messages.history) if messages.history else None
        for part in steps(entries, messages, STEP_MESSAGES, STEP_BYTES):
            for place, stored in await _read(entries, part, ahead):
                yield BrowsedGroup(stored, part, history, offset + place)
            offset += part.count
            await asyncio.sleep(0)


def steps(entries: Entries, messages: Range, count: int, size: int) -> Iterator[Range]:
    """Yield parts of a range of at most `count` messages and about `size` octets, but at least a message."""
    step = max(min(count, size * messages.count // max(messages.size, 1)), 1)
    at = 0
    while at < messages.count:
        part = messages.part(at, min(step, messages.count - at))
        part = part.part(0, entries.portion(part))
        yield part
        at += part.count


async def _read(entries: Entries, part: Range, ahead: Sequence[Range]) -> list[tuple[int, Messages]]:
    """Return the messages of `part` that are still stored, each group with the position of its first message."""
    try:
        groups = await stored_messages(entries, part, ahead)
    except MessagesGone:
        if part.count == 1:
            return []
        singles = [(place, part.part(place, 1)) for place in range(part.count)]
        found = [(place, await _read(entries, single, ahead)) for place, single in singles]
        return [(place, stored) for place, groups in found for _, stored in groups]
    placed: list[tuple[int, Messages]] = []
    place = 0
    for stored in groups:
        placed.append((place, stored))
        place += len(stored.messages)
    return placed


async def stored_messages(entries: Entries, part: Range, ahead: Sequence[Range]) -> list[Messages]:
    """Return the messages of `part`, read from the disk if needed. Raises MessagesGone."""
    return await _Reading(entries, part, ahead).whole


class _Reading:
    """A read of messages with a future for its caller.

    An object instead of a function that passes itself as callback: the messages in such a reference cycle would stay in
    memory until the garbage collector finds it.
    """

    def __init__(self, entries: Entries, part: Range, ahead: Sequence[Range]) -> None:
        self.whole: asyncio.Future[list[Messages]] = asyncio.get_running_loop().create_future()
        self._entries = entries
        self._part = part
        self._indexes = list(dict.fromkeys(following.index for following in ahead))
        self._load()

    def _load(self) -> None:
        # Called when the entries are in memory. It must take the messages now, because the entries may be evicted
        # again.
        if self.whole.done():  # the caller has been cancelled
            return
        try:
            stored = self._entries.messages(self._part)
        except MessagesGone as gone:
            self.whole.set_exception(gone)
            return
        if stored is not None:
            self.whole.set_result(stored)
        else:
            self._entries.load(self._indexes, self._load)
