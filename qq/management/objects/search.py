"""Searches ready messages of a queue with the filter of a move, and counts all of them by their last death.

Invariant: a search looks at a bounded number of messages and octets, in steps with other tasks in between. A node
searches a single queue at a time. A search finds the messages that a move with the same filter would move.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing
from itertools import compress
from typing import TYPE_CHECKING, NamedTuple

from qq.management.objects.browse import read_groups
from qq.management.time_slices import Slices

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping

    from qq.machine.catalog.vhost import VirtualHost
    from qq.machine.protocol.death_history import History
    from qq.machine.queue.queue import Queue
    from qq.management.objects.browse import BrowsedGroup
    from qq.management.reports.messages import Message
    from qq.ranges import Range
    from qq.sessions.entries import Entries
    from qq.sessions.message_filter import MessageFilter

READ_MAX = 1000
"""Messages that a search reads at most."""
READ_BYTES_MAX = 16 * 1024 * 1024
"""Octets of messages after which a search reads no further message."""
PORTION = 5000
"""Messages whose places are looked up at a time."""
COUNTED_MAX = 100_000
"""Messages that a search looks at if it need not read them: filters by reason and queue, and empty filters."""


class SearchLimits(NamedTuple):
    """Offset of the first message that a search looks at, and the limits of the search."""

    offset: int
    looked_at: int
    messages: int
    bytes: int


class Searched(NamedTuple):
    """Result of a search."""

    messages: list[Message]
    """The first matching messages."""
    looked_at: int
    ready: int
    """Number of all ready messages in the queue."""
    matched: int
    returnable: int
    """Number of matching messages that a move can send back to where they died first."""
    died: Mapping[tuple[str, str], int]
    """(queue, reason) of the last death -> number of messages among those looked at, whether they match or not."""


class Search:
    """A search of a queue."""

    def __init__(self, vhost: VirtualHost, queue: Queue, wanted: MessageFilter, limits: SearchLimits) -> None:
        self._vhost = vhost
        self._queue = queue
        self._wanted = wanted
        self._limits = limits
        self._found: list[Message] = []
        self._bytes = limits.bytes
        self._matched = self._returnable = 0
        self._died: Counter[tuple[str, str]] = Counter()

    async def run(self, entries: Entries) -> Searched:
        """Search the queue as it is now."""
        queue, wanted, limits = self._queue, self._wanted, self._limits
        ready = queue.ready
        histories, frozen = queue.histories.freeze(), queue.backlog.freeze()
        known: dict[int, History | None] = {0: None}
        most = min(limits.looked_at, READ_MAX if wanted.reads_messages else COUNTED_MAX)
        looked_at, size, slices = 0, 0, Slices()
        while looked_at < most and (not wanted.reads_messages or size < READ_BYTES_MAX):
            # A thread, because skipping many messages takes long.
            portion = min(PORTION, most - looked_at)
            ranges = await asyncio.to_thread(frozen.browse, limits.offset + looked_at, portion)
            if not ranges:
                break
            for messages in ranges:
                if wanted.reads_messages and size >= READ_BYTES_MAX:
                    break
                if messages.history not in known:
                    known[messages.history] = histories.get(messages.history)
                history = known[messages.history]
                if history is not None and history.deaths:
                    self._died[history.last[1], history.last[0]] += messages.count
                if wanted.takes_history(history):
                    size += messages.size
                    part = self._to_read(messages, history)
                    if part.count:
                        groups = read_groups(entries, [part], histories, limits.offset + looked_at)
                        await self._look(groups, history)
                looked_at += messages.count
                await slices.give_way()
        return Searched(self._found, looked_at, ready, self._matched, self._returnable, self._died)

    def _to_read(self, messages: Range, history: History | None) -> Range:
        """Return the messages to be read: all, or those to show if their history is enough to count them."""
        if self._wanted.reads_messages:
            return messages
        self._count(messages.count, history)
        lacking = self._limits.messages - len(self._found) if self._bytes > 0 else 0
        return messages.part(0, min(messages.count, max(lacking, 0)))

    async def _look(self, groups: AsyncGenerator[BrowsedGroup], history: History | None) -> None:
        """Count the matching messages of a range, and keep the first of them."""
        contract = self._queue.count_contract
        async with aclosing(groups):
            async for group in groups:
                stored = group.stored.messages
                matches = list(map(self._wanted.takes_message, stored))
                if self._wanted.reads_messages:
                    self._count(sum(matches), history)
                if any(matches) and len(self._found) < self._limits.messages and self._bytes > 0:
                    self._keep(compress(zip(group.browsed(contract), map(len, stored), strict=True), matches))

    def _count(self, matched: int, history: History | None) -> None:
        self._matched += matched
        origin = None if history is None else self._vhost.queues.get(history.first[1])
        if origin is not None and origin is not self._queue and origin.owner is None:
            self._returnable += matched

    def _keep(self, found: Iterable[tuple[Message, int]]) -> None:
        """Keep messages, each with its octets, as far as the limits allow, but at least a single message."""
        for message, size in found:
            self._bytes -= size
            if self._found and (self._bytes < 0 or len(self._found) >= self._limits.messages):
                return
            self._found.append(message)
