"""Reading the messages of a queue where they are: nobody gets them, and nothing changes.

Invariant: small pages, and other tasks run between them. What the page refers to is fixed at its beginning; the queue
goes on meanwhile, and messages that are not stored any more when their turn comes are passed over.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, NamedTuple

from qq.sessions.entries import MessagesGone
from qq.sessions.headers import delivered, published_to
from qq.stored.editing import content

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence

    from pamqp.commands import Basic

    from qq.machine.protocol.death_history import FrozenHistories, History
    from qq.machine.protocol.effects import CountContract
    from qq.machine.queue.queue import Queue
    from qq.ranges import Range
    from qq.sessions.entries import Entries, Messages

STEP_MESSAGES = 50
"""How many messages are taken apart at a time: it takes about a millisecond."""
STEP_BYTES = 256 * 1024
"""How many octets of messages are taken apart at a time; a message is taken whole."""
READ_AHEAD_RANGES = 64
"""How many of the ranges that follow are looked at for entries that will have to be read."""


class Browsed(NamedTuple):
    """A message as a consumer would get it now."""

    offset: int
    """How many ready messages were before it."""
    exchange: str
    routing_key: str
    redelivered: bool
    properties: Basic.Properties
    body: bytes


async def browse(queue: Queue, entries: Entries, offset: int, count: int, bytes_max: int) -> list[Browsed]:
    """Read up to `count` ready messages, in the order of delivery, from the `offset`-th on.

    Their bodies together have at most `bytes_max` octets, but one message is read at least. The list is empty only if
    the queue has no more ready messages; the next page begins behind the offset of the last one.
    """
    page: list[Browsed] = []
    while count > 0 and not page:
        histories, frozen = queue.histories.freeze(), queue.backlog.freeze()
        # To pass over many messages takes a while.
        ranges = await asyncio.to_thread(frozen.browse, offset, count)
        if not ranges:
            break
        messages = _messages(entries, ranges, histories, queue.count_contract, offset)
        async with aclosing(messages):
            async for message in messages:
                bytes_max -= len(message.body)
                if page and bytes_max < 0:
                    break
                page.append(message)
        offset += count  # for the case that all of these have gone meanwhile
    return page


async def _messages(
    entries: Entries,
    ranges: Sequence[Range],
    histories: FrozenHistories,
    count_contract: CountContract | None,
    offset: int,
) -> AsyncGenerator[Browsed]:
    for number, messages in enumerate(ranges):
        ahead = ranges[number : number + READ_AHEAD_RANGES]
        history = histories.get(messages.history) if messages.history else None
        for part in _steps(entries, messages):
            for place, stored in await _read(entries, part, ahead):
                for browsed in _browsed(stored, part, history, count_contract, offset + place):
                    yield browsed
            offset += part.count
            await asyncio.sleep(0)


def _steps(entries: Entries, messages: Range) -> Iterator[Range]:
    step = max(min(STEP_MESSAGES, STEP_BYTES * messages.count // max(messages.size, 1)), 1)
    at = 0
    while at < messages.count:
        part = messages.part(at, min(step, messages.count - at))
        part = part.part(0, entries.portion(part))
        yield part
        at += part.count


async def _read(entries: Entries, part: Range, ahead: Sequence[Range]) -> list[tuple[int, Messages]]:
    """The messages of `part` that are still there, each group with the place of its first."""
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
    """The messages of `part`, read from the disk if need be. Raises MessagesGone."""
    return await _Reading(entries, part, ahead).whole


class _Reading:
    """Messages that somebody waits for.

    An object, and no function that gives itself to be called: nobody would look for what such a circle has read.
    """

    def __init__(self, entries: Entries, part: Range, ahead: Sequence[Range]) -> None:
        self.whole: asyncio.Future[list[Messages]] = asyncio.get_running_loop().create_future()
        self._entries = entries
        self._part = part
        self._indexes = list(dict.fromkeys(following.index for following in ahead))
        self._look()

    def _look(self) -> None:
        # It is called as soon as they are in memory, and must take them now: they need not stay there.
        if self.whole.done():  # nobody waits any more
            return
        try:
            stored = self._entries.messages(self._part)
        except MessagesGone as gone:
            self.whole.set_exception(gone)
            return
        if stored is not None:
            self.whole.set_result(stored)
        else:
            self._entries.load(self._indexes, self._look)


def _browsed(
    stored: Messages, part: Range, history: History | None, count_contract: CountContract | None, offset: int
) -> Iterator[Browsed]:
    exchange, routing_key = published_to(stored, history)
    framed = delivered(stored.messages, part, history, count_contract=count_contract)
    for number, message in enumerate(framed, offset):
        yield Browsed(number, exchange, routing_key, part.deliveries > 0, *content(message))
