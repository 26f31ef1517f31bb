"""Messages on their way into queues: published, in a transaction, dead-lettered.

Lives here: which queues get a message, which refuse it, which repeats are dropped. Not here: what an exchange matches
(qq/routing), what a queue does with a message (queue.py).

Law: all or nothing. A message that one queue has no room for is in no queue; a transaction is carried out whole or not
at all; a dead letter leaves its queue in the same step in which it arrives in others.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from qq.machine.arguments import EXPIRY_MAX_MS
from qq.machine.commands import NO_PRIORITY, NO_TTL, Enqueue, Publish
from qq.machine.effects import Committed, Rejected, Returned
from qq.machine.errors import NO_ROUTE, Refused, precondition_failed
from qq.machine.history import died, is_cycle
from qq.ranges import MESSAGE_MASK, Range

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qq.machine.commands import Command, Commit, DeadLetter
    from qq.machine.core import Core
    from qq.machine.queue import Dying, Queue


SEQUENCE_MAX = 2**63 - 1
"""Of a publisher that wants deduplication."""


class Publishing:
    """Carries out the commands that bring messages."""

    def __init__(self, core: Core) -> None:
        self._core = core
        # Consecutive plain messages for the same queues, whoever published them: many publishers that send a message
        # each cost little more than one that sends many.
        self._queues: tuple[Queue, ...] | None = None
        self._slot = 0
        self._count = 0
        self._size = 0

    def enqueue(self, command: Enqueue) -> None:
        """Publish plain messages: the path that nothing else may slow down."""
        core = self._core
        session, _, count, exchange, routing_key, mandatory, _ = command
        slot = core.next_slot
        core.next_slot = slot + count
        if core.has_failed(session):
            return
        try:
            queues = core.catalog.route(exchange, routing_key)
        except Refused as refused:
            core.fail(command, refused)
            return
        first = slot & MESSAGE_MASK
        if count == 1:
            size = core.sizes[first]
        elif count == len(core.sizes):
            size = core.size
        else:
            size = sum(core.sizes[first : first + count])
        if queues is self._queues and slot == self._slot + self._count:
            self._count += count
            self._size += size
            return
        self.flush()
        for queue in queues:
            if not queue.is_plain:
                self._publish_plain(command, queues, slot)
                return
        if queues:
            self._queues, self._slot, self._count, self._size = queues, slot, count, size
        elif mandatory:
            self._return(command, slot, count)

    def flush(self) -> None:
        """Bring into the queues what `enqueue` has gathered: to be called before any other command, and at the end."""
        queues, core = self._queues, self._core
        if queues is None:
            return
        self._queues = None
        for queue in queues:
            queue.backlog.add(core.index, self._slot, self._count, self._size)
            queue.tally.published += self._count
            core.touch(queue)

    def publish(self, command: Publish) -> None:
        """Publish messages with properties that matter."""
        slot, sizes = self._next(command.count)
        if self._core.has_failed(command.session):
            return
        try:
            queues = self._route(command)
        except Refused as refused:
            self._core.fail(command, refused)
            return
        self._publish(command, queues, slot, sizes)

    def commit(self, command: Commit, content: Sequence[Command], settle: Callable[[Command], None]) -> None:
        """Carry out what a transaction consists of, or nothing of it; `settle` carries out a settlement."""
        core = self._core
        start = core.next_slot
        published = sum(part.count for part in content if isinstance(part, Enqueue | Publish))
        if not core.has_failed(command.session):
            try:
                self._check(content)
            except Refused as refused:
                core.fail(command, refused)
            else:
                # As RabbitMQ does it, and so that nothing that returns takes the room of what is published.
                for part in content:
                    if isinstance(part, Enqueue):
                        self.enqueue(part)
                    elif isinstance(part, Publish):
                        self.flush()
                        self.publish(part)
                self.flush()
                for part in content:
                    if not isinstance(part, Enqueue | Publish):
                        settle(part)
                core.answer(core.session(core.origin, command.session), command.session, Committed())
        core.next_slot = start + published

    def dead_letter(self, command: DeadLetter) -> None:
        """Move dying messages on, if they are still where the command says."""
        core = self._core
        queue = core.catalog.queues.get(command.queue)
        if queue is None or queue.number != command.number:
            return
        taken = queue.take_dying(command.first, command.count)
        kept: list[Dying] = []
        is_stuck = True
        for dead in taken:
            # In their order: behind one that has to stay the others stay, too.
            moved = 0 if kept else self._move(queue, dead, command)
            is_stuck = is_stuck and not moved
            if moved < dead.range.count:
                kept.append(dead._replace(range=dead.range.part(moved, dead.range.count - moved)))
        if kept:
            queue.keep_dying(kept, core.time_ms, is_stuck=is_stuck)
        if not queue.dying:
            core.dying.pop(queue, None)
        if taken:
            core.touch(queue)

    # What the above is made of

    def _next(self, count: int) -> tuple[int, Sequence[int]]:
        """Slot of the next message of the batch, and the sizes of so many."""
        core = self._core
        slot = core.next_slot
        core.next_slot = slot + count
        first = slot & MESSAGE_MASK
        return slot, core.sizes[first : first + count]

    def _publish_plain(self, command: Enqueue, queues: Sequence[Queue], slot: int) -> None:
        """Publish messages without properties to queues that do more than append them."""
        first = slot & MESSAGE_MASK
        plain = Publish(*command, [], NO_PRIORITY, NO_TTL, 0, "", 0)
        self._publish(plain, queues, slot, self._core.sizes[first : first + command.count])

    def _route(self, command: Enqueue | Publish) -> Sequence[Queue]:
        """The queues for a publication. Raises Refused."""
        catalog = self._core.catalog
        if isinstance(command, Publish) and command.more_keys:
            return catalog.route_all(command.exchange, [command.routing_key, *command.more_keys])
        return catalog.route(command.exchange, command.routing_key)

    def _check(self, content: Sequence[Command]) -> None:
        """Raise Refused unless all messages of a transaction can be published."""
        wanted: dict[Queue, list[int]] = {}
        ordinal = self._core.next_slot & MESSAGE_MASK
        for part in content:
            if isinstance(part, Enqueue | Publish):
                queues = self._route(part)
                for first, count in self._new(part):
                    start = ordinal + first
                    for queue in queues:
                        wanted.setdefault(queue, []).extend(self._core.sizes[start : start + count])
                ordinal += part.count
        for queue, sizes in wanted.items():
            if self._room(queue, sizes) < len(sizes):
                raise precondition_failed("partial tx completion")

    def _new(self, command: Enqueue | Publish) -> list[tuple[int, int]]:
        """Those of a command's messages that were not published before: the first of each run, and how many."""
        if isinstance(command, Enqueue) or not command.publisher:
            return [(0, command.count)]
        core, first_seq = self._core, _publish_seq(command)
        runs = core.publishers.new(command.publisher, first_seq, command.count, core.time_ms)
        return [(first - first_seq, last - first + 1) for first, last in runs]

    def _room(self, queue: Queue, sizes: Sequence[int]) -> int:
        room = queue.room(sizes)
        if room < len(sizes):
            self._core.serve(queue)  # what consumers can have at once takes no room
            room = queue.room(sizes)
        return room

    def _publish(self, command: Publish, queues: Sequence[Queue], slot: int, sizes: Sequence[int]) -> None:
        for first, count in self._new(command):
            self._publish_new(command, queues, slot, sizes, first, first + count)

    def _publish_new(
        self,
        command: Publish,
        queues: Sequence[Queue],
        slot: int,
        sizes: Sequence[int],
        first: int,
        end: int,
    ) -> None:
        """Publish the messages from `first` to before `end` of a command, or as many as there is room for."""
        core = self._core
        publisher, publish_seq = command.publisher, _publish_seq(command)
        wanted = sizes[first:end]
        accepted = first + min((self._room(queue, wanted) for queue in queues), default=len(wanted))
        if accepted > first:
            if publisher:
                run = (publish_seq + first, publish_seq + accepted - 1)
                core.publishers.admit(publisher, run, core.time_ms)
            for queue in queues:
                self._add(queue, command, slot + first, sizes[first:accepted])
            if command.mandatory and not queues:
                self._return(command, slot + first, accepted - first)
        if accepted < end:
            if publisher:
                run = (publish_seq + accepted, publish_seq + end - 1)
                core.publishers.refuse(publisher, run, core.time_ms)
            for queue in queues:
                queue.tally.rejected_publishes += end - accepted
            if command.first_seq:
                refused_seq = command.first_seq + accepted
                core.effects.append(Rejected(core.origin, command.session, refused_seq, end - accepted))

    def _return(self, command: Enqueue | Publish, slot: int, count: int) -> None:
        """Give mandatory messages back that no queue gets."""
        core = self._core
        place = (core.index, slot, count, command.exchange, command.routing_key, command.frames_channel)
        core.effects.append(Returned(core.origin, command.session, *place, NO_ROUTE, "NO_ROUTE"))

    def _add(self, queue: Queue, command: Publish, slot: int, sizes: Sequence[int]) -> None:
        """Add messages to one queue, now or after their delay."""
        core = self._core
        now_ms, index = core.time_ms, core.index
        # Nobody may ask for more, but sums of what a node says must fit in 63 bits.
        ready_ms = now_ms + min(command.delay_ms, EXPIRY_MAX_MS)
        ttl_ms = None if command.ttl_ms == NO_TTL else min(command.ttl_ms, EXPIRY_MAX_MS)
        expires_ms = queue.expiry_ms(ttl_ms, ready_ms)
        level = queue.settings.level(command.priority)
        for count, size in _runs(sizes, by_size=queue.backlog.exact_sizes):
            if command.delay_ms:
                messages = Range(index, slot, count, 0, size, 0, expires_ms, level)
                queue.backlog.delay(messages, ready_ms, returned=False)
            else:
                queue.backlog.add(index, slot, count, size, level, expires_ms)
            slot += count
        queue.tally.published += len(sizes)
        core.touch(queue)

    def _move(self, queue: Queue, dead: Dying, command: DeadLetter) -> int:
        """Bring dead messages to where the dead-letter exchange routes them. How many of them need not stay."""
        core, settings = self._core, queue.settings
        messages = dead.range
        exchange, key = settings.dead_letter_exchange, settings.dead_letter_routing_key
        if exchange is None:  # there is none any more
            queue.forget((messages,))
            return messages.count
        old = queue.histories.get(messages.history)
        published = (command.routing_key, *command.cc)
        expiration = command.expiration or None
        new = died(
            old, queue.name, dead.reason, dead.time_ms, command.exchange, published, expiration, exchange, key
        )
        keys = (key,) if key is not None else (*published, *command.bcc)
        if key is None and old is not None:
            keys = old.keys(keys)
        routed = core.catalog.route_dead_letters(exchange, keys)
        targets = [target for target in routed if not is_cycle(new, target.name)]
        sizes = [part.size for part in _singles(messages)] if any(map(_is_bounded, targets)) else ()
        room = {target: self._room(target, sizes) if sizes else messages.count for target in targets}
        if settings.dead_letter_strategy == "at-least-once":
            count = min(room.values(), default=messages.count) if routed else 0
            messages = messages.part(0, count)
        for target, free in room.items():
            accepted = messages.part(0, min(free, messages.count))
            if not accepted.count:
                continue
            history = target.histories.intern(new, accepted.count)
            level = target.settings.level(messages.level)
            expires_ms = target.expiry_ms(None, core.time_ms)
            target.backlog.add(*accepted[:3], accepted.size, level, expires_ms, history)
            target.tally.published += accepted.count
            core.touch(target)
        queue.tally.dead_lettered += messages.count
        queue.forget((messages,))
        return messages.count


def _publish_seq(command: Publish) -> int:
    """Of the first message. Nobody may number higher, but what a node says must fit in 63 bits."""
    return min(command.publish_seq, SEQUENCE_MAX)


def _runs(sizes: Sequence[int], *, by_size: bool) -> list[tuple[int, int]]:
    """Count and size of runs of messages; `by_size`, those of one run are equally large."""
    if not by_size:
        return [(len(sizes), sum(sizes))]
    counted = [(size, sum(1 for _ in alike)) for size, alike in groupby(sizes)]
    return [(count, count * size) for size, count in counted]


def _singles(messages: Range) -> list[Range]:
    return [messages.part(offset, 1) for offset in range(messages.count)]


def _is_bounded(queue: Queue) -> bool:
    return queue.settings.overflow == "reject-publish"
