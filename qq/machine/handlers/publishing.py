"""Handlers of commands that put messages into queues: publishes, transactions, dead letters.

Invariant: all or nothing. A message that any of its queues has no room for enters no queue. A transaction is carried
out as a whole or not at all. A dead letter leaves its queue in the same step in which it enters its targets.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from qq.machine.catalog.deduplication import names_of
from qq.machine.catalog.reply_names import is_reply_name
from qq.machine.handlers.core import message_number
from qq.machine.handlers.cost_estimate import BATCH_STEPS_MAX, COMMAND_STEPS, FRAGMENT_STEPS
from qq.machine.handlers.cost_estimate import CONTENT_STEPS as LOOK_STEPS
from qq.machine.handlers.fragments import Fragment
from qq.machine.handlers.leasing import check_commit
from qq.machine.handlers.registry import handles
from qq.machine.protocol import commands as c
from qq.machine.protocol.death_history import REJECTED, SPREAD_MAX, died, is_cycle
from qq.machine.protocol.effects import Committed, DeadLettered, DirectReply, Failed, Rejected, Returned
from qq.machine.protocol.queue_types import CLASSIC
from qq.machine.protocol.refusals import Refused, precondition_failed
from qq.machine.protocol.work_meter import CONTENT_STEPS, COPIES_MAX, FEW_QUEUES
from qq.machine.queue.queue import UNROUTED
from qq.ranges import MESSAGE_MASK, Range
from qq.routing.content import Content, NeedsContent
from qq.routing.exchanges import DEFAULT_EXCHANGE
from qq.stored.kinds import SECTIONS_CHANNEL
from qq.stored.properties import NO_PRIORITY, NO_TTL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from qq.machine.catalog.deduplication import Names
    from qq.machine.catalog.vhost import VirtualHost
    from qq.machine.handlers.core import Core
    from qq.machine.handlers.cost_estimate import Costs
    from qq.machine.protocol.death_history import History
    from qq.machine.queue.consumers import Budget
    from qq.machine.queue.queue import DeadMessages, Queue


Part = tuple[int, int, "Sequence[Queue]"]
"""Messages of a command that go to the same queues: offset of the first, count, and the queues."""

_DYING_STEPS = 20
"""Routing steps that moving a dead letter with its history to a queue counts as."""
SEQUENCE_MAX = 2**63 - 1
"""Maximum sequence number of a publisher with deduplication."""


_DEAD_STEPS = 10
"""Steps to take dead messages out of their queue, and for each queue that they enter."""
_HISTORY_OCTETS = 16
"""Octets of a dead letter's history per step, when it is read, and written for a single queue."""


def _dead_letter_steps(costs: Costs, _origin: str, command: c.DeadLetter) -> int:
    vhost = costs.core.catalog.vhosts.get(command.vhost)
    queue = None if vhost is None else vhost.queues.get(command.queue)
    if vhost is None or queue is None or queue.settings.dead_letter_exchange is None:
        return COMMAND_STEPS
    exchange, key = queue.settings.dead_letter_exchange, queue.settings.dead_letter_routing_key
    history = queue.history_octets_of_dead(command.first)
    lines = len(queue.stuck) if command.first < queue.first_dead else 0
    if command.has_content:
        looks = command.count * (LOOK_STEPS + _DEAD_STEPS)
        return COMMAND_STEPS + lines + looks + history // _HISTORY_OCTETS
    keys = [command.routing_key, *command.cc, *command.bcc] if key is None else [key]
    route = costs.dead_letter_route(vhost, exchange, keys)
    if route is None:
        return BATCH_STEPS_MAX
    width, steps = route
    written = history * (2 + width) // (3 * _HISTORY_OCTETS)
    return COMMAND_STEPS + lines + _DEAD_STEPS * (1 + width) + written + steps + command.count


class Moved(NamedTuple):
    """What became of consecutive dead messages."""

    moved: int
    """Number of the messages that left the queue: the first ones."""
    blocked: int
    """Number of the next messages, which `target` cannot take. More messages may follow that were not tried."""
    target: str


class PublishHandlers:
    """Carries out the commands that publish messages, and dead letters."""

    def __init__(self, core: Core) -> None:
        self._core = core
        # Consecutive plain messages for the same queues, from any publisher. So many publishers of a message each cost
        # little more than a single publisher of many messages.
        self._queues: tuple[Queue, ...] | None = None
        self._slot = 0
        self._count = 0
        self._size = 0
        self._count10 = 0
        """The messages in `_count` that clients of AMQP 1.0 have published."""

    def enqueue(self, command: c.Enqueue) -> None:
        """Publish plain messages. This is the hot path, and must stay fast."""
        core = self._core
        session, _, count, exchange, routing_key, _, frames_channel = command
        slot = core.next_slot
        core.next_slot = slot + count
        known = core.sessions.get((core.origin, session))  # as in `publishes_to`
        if known is None:
            vhost = core.catalog.default_vhost
        elif type(known.answer) is Failed:
            return
        else:
            vhost = known.vhost
            if vhost.limits or core.catalog.access.published:
                self.count_published(vhost, known.user or "", slot, count)
        try:
            queues = vhost.route(exchange, routing_key)
            if vhost.expensive_routes:
                self._count_cached_route(vhost, exchange, routing_key)
        except Refused as refused:
            core.work.count_route(vhost.name, vhost.route_steps)
            core.fail(command, refused)
            return
        except NeedsContent:
            self.flush()
            try:
                publish = _as_publish(command)
                self._publish_parts(publish, vhost, slot, self.parts(vhost, publish, slot))
            except Refused as refused:
                core.fail(command, refused)
            return
        vhost.count_published(exchange, count, len(queues))
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
            if frames_channel == SECTIONS_CHANNEL:
                self._count10 += count
            return
        self.flush()
        if len(queues) > FEW_QUEUES:
            try:
                self._count_copies(vhost, queues)
            except Refused as refused:
                core.fail(command, refused)
                return
        for queue in queues:
            if not queue.is_plain:
                self._publish_plain(command, vhost, queues, slot)
                return
        if queues:
            self._queues, self._slot, self._count, self._size = queues, slot, count, size
            self._count10 = count if frames_channel == SECTIONS_CHANNEL else 0
        else:
            self._send_or_return(command, (routing_key,), vhost, slot, count)

    def flush(self) -> None:
        """Put the messages gathered by `enqueue` into the queues. Call it before any other command, and at the end."""
        queues, core = self._queues, self._core
        if queues is None:
            return
        self._queues = None
        index, slot, count, size = core.index, self._slot, self._count, self._size
        core.routed[core.origin] += count * len(queues)
        if self._count10:
            core.routed10[core.origin] += self._count10 * len(queues)
        for queue in queues:
            queue.enqueue(index, slot, count, size)
            core.touch(queue)

    @handles(c.Publish, cost=COMMAND_STEPS)
    def publish(self, command: c.Publish) -> None:
        """Publish messages with properties that matter to queues."""
        core = self._core
        slot = core.next_slot
        core.next_slot = slot + command.count
        vhost = self._counted_vhost(command.session, slot, command.count)
        if vhost is None:
            return
        try:
            self._publish_parts(command, vhost, slot, self.parts(vhost, command, slot))
        except Refused as refused:
            core.fail(command, refused)

    @handles(c.StoreFragment, cost=FRAGMENT_STEPS)
    def store_fragment(self, command: c.StoreFragment) -> None:
        """Store a fragment of a large message that the session will publish; it enters no queue."""
        core = self._core
        slot = core.next_slot
        core.next_slot = slot + 1
        session = core.session(core.origin, command.session)
        if not session.failed:
            session.fragments.append(Fragment(core.index, slot, core.sizes[slot & MESSAGE_MASK]))

    @handles(c.JoinFragments, cost=COMMAND_STEPS)
    def join_fragments(self, command: c.JoinFragments) -> None:
        """Append the session's stored fragments to the next message."""
        session = self._core.sessions.get((self._core.origin, command.session))
        if session is not None:
            self._core.join_fragments(session)

    def commit(
        self, command: c.Commit, content: Sequence[c.Command], settle: Callable[[c.Command], None]
    ) -> None:
        """Carry out all commands of a transaction, or refuse it as a whole; `settle` carries out a settlement."""
        core = self._core
        start = core.next_slot
        published = sum(part.count for part in content if isinstance(part, c.Enqueue | c.Publish))
        vhost = self._counted_vhost(command.session, start, published)
        if vhost is not None:
            try:
                ways = self._check(vhost, content)
            except Refused as refused:
                core.fail(command, refused)
            else:
                # Publish first, as RabbitMQ does, so that returned messages cannot take the room of published messages.
                for publish, slot, parts in ways:
                    self._publish_parts(publish, vhost, slot, parts)
                for part in content:
                    if not isinstance(part, c.Enqueue | c.Publish):
                        settle(part)
                core.answer(core.session(core.origin, command.session), command.session, Committed())
        core.next_slot = start + published

    @handles(c.DeadLetter, cost=_dead_letter_steps)
    def dead_letter(self, command: c.DeadLetter) -> None:
        """Move messages that await dead-lettering to their targets, if they are still where the leader read them.

        With at-least-once, messages that a target cannot take wait for it in a line of their own, outside of the way of
        the others.
        """
        core = self._core
        vhost = core.catalog.vhosts.get(command.vhost)
        queue = None if vhost is None else vhost.queues.get(command.queue)
        if vhost is None or queue is None or queue.number != command.number:
            return
        if self.needs_content(queue) and not command.has_content:
            return  # exchanges or bindings have changed since the leader read them; it tries again
        if core.work.has_dead_lettered_enough(vhost.name):
            return  # the entry has done enough work; the leader tries again
        if core.version < 11:
            left = self._dead_letter_in_order(vhost, queue, command)
        elif command.first < queue.first_dead:
            left = self._dead_letter_stuck(vhost, queue, command)
        else:
            left = self._dead_letter_first(vhost, queue, command)
        if not queue.dead:
            core.queues_with_dead.pop(queue, None)
        if queue.settings.dead_letter_exchange is not None:
            strategy = queue.settings.dead_letter_strategy
            core.effects += [
                DeadLettered(core.origin, reason, strategy, count) for reason, count in left.items()
            ]

    # Parts of the above

    def _dead_letter_in_order(
        self, vhost: VirtualHost, queue: Queue, command: c.DeadLetter
    ) -> dict[str, int]:
        """Move the first dead messages as before version 11. Return how many left the queue, by reason."""
        core = self._core
        taken = queue.take_dead(command.first, command.count)
        kept: list[DeadMessages] = []
        left: dict[str, int] = {}
        is_stuck = True
        for dead in taken:
            # In their order: if a dead letter has to stay, all dead letters behind it stay, too.
            waits = bool(kept) or (not is_stuck and core.work.has_dead_lettered_enough(vhost.name))
            moved = 0 if waits else self._move(vhost, queue, command.first, dead, command).moved
            is_stuck = is_stuck and not moved
            if moved:
                left[dead.reason] = left.get(dead.reason, 0) + moved
            if moved < dead.range.count:
                kept.append(dead.part(moved, dead.range.count - moved))
        if kept:
            queue.keep_dead(kept, core.time_ms, is_stuck=is_stuck)
        if taken:
            core.touch(queue)
        return left

    def _dead_letter_first(self, vhost: VirtualHost, queue: Queue, command: c.DeadLetter) -> dict[str, int]:
        """Move the first dead messages, or put them into a line. Return how many left the queue, by reason."""
        number = command.first
        numbered: list[tuple[int, DeadMessages]] = []
        for dead in queue.take_dead(command.first, command.count):
            numbered.append((number, dead))
            number += dead.range.count
        left, kept = self._move_or_hold_back(vhost, queue, numbered, command)
        if kept:
            queue.keep_dead([dead for _, dead in kept], self._core.time_ms, is_stuck=False)
        return left

    def _dead_letter_stuck(self, vhost: VirtualHost, queue: Queue, command: c.DeadLetter) -> dict[str, int]:
        """Try stuck dead messages again. Return how many left the queue, by reason."""
        self._core.work.count_dead_letter_route(vhost.name, len(queue.stuck))
        target, numbered = queue.take_stuck(command.first, command.count)
        left, kept = self._move_or_hold_back(vhost, queue, numbered, command)
        for number, dead in kept:
            queue.hold_back(number, dead, target)
        self._core.stuck_lines.forget_emptied(queue, target)
        return left

    def _move_or_hold_back(
        self,
        vhost: VirtualHost,
        queue: Queue,
        numbered: list[tuple[int, DeadMessages]],
        command: c.DeadLetter,
    ) -> tuple[dict[str, int], list[tuple[int, DeadMessages]]]:
        """Move dead messages, each with its number, to their targets, or put them into the line of a target.

        Returns how many left the queue, by reason, and the messages that wait for the next entry, with their numbers.
        """
        core = self._core
        left: dict[str, int] = {}
        kept: list[tuple[int, DeadMessages]] = []
        is_first = True
        for first, dead in numbered:
            at, count = 0, dead.range.count
            while at < count and (is_first or not core.work.has_dead_lettered_enough(vhost.name)):
                is_first = False
                moved, blocked, target = self._move(
                    vhost, queue, first + at, dead.part(at, count - at), command
                )
                at += moved
                if moved:
                    left[dead.reason] = left.get(dead.reason, 0) + moved
                if blocked:
                    queue.hold_back(first + at, dead.part(at, blocked), target)
                    core.stuck_lines.add(queue, [target])
                    at += blocked
            if at < count:
                kept.append((first + at, dead.part(at, count - at)))
        if numbered:
            core.touch(queue)
        return left, kept

    def _counted_vhost(self, session: int, slot: int, count: int) -> VirtualHost | None:
        """Count these messages and return the virtual host they are published to, or None if the session has failed."""
        core = self._core
        vhost = core.publishes_to(session)
        if vhost is not None and (vhost.limits or core.catalog.access.published):
            known = core.sessions.get((core.origin, session))
            if known is not None:
                self.count_published(known.vhost, known.user or "", slot, count)
        return vhost

    def count_published(self, vhost: VirtualHost, user: str, slot: int, count: int) -> None:
        """Count messages of the batch towards limits of publishing."""
        core, first = self._core, slot & MESSAGE_MASK
        size = sum(core.sizes[first : first + count])
        vhost.published.count(core.origin, count, size)
        of_user = core.catalog.access.published.get(user)
        if of_user is not None:
            of_user.count(core.origin, count, size)

    def _count_copies(self, vhost: VirtualHost, queues: Sequence[Queue]) -> None:
        """Raise Refused if the messages of this entry reach too many queues."""
        if self._core.work.copy(vhost.name, len(queues)):
            raise precondition_failed(
                f"messages in vhost '{vhost.name}' reach more queues at once than the limit ({COPIES_MAX})"
            )

    def _count_cached_route(self, vhost: VirtualHost, exchange: str, routing_key: str) -> None:
        """Count an expensive route, even a cached route. Raise Refused if this entry has computed too many."""
        steps = vhost.expensive_routes.get((exchange, routing_key))
        if steps is not None:
            work = self._core.work
            if work.has_routed_enough(vhost.name):
                raise vhost.too_many_routes()
            work.count_cached_route(vhost.name, exchange, routing_key, steps)

    def _publish_parts(
        self, command: c.Publish, vhost: VirtualHost, slot: int, parts: Sequence[Part]
    ) -> None:
        """Publish messages, each part to its queues. Raise Refused before the first change."""
        for _, _, queues in parts:
            if len(queues) > FEW_QUEUES:
                self._count_copies(vhost, queues)
        for first, count, queues in parts:
            vhost.count_published(command.exchange, count, len(queues))
            start = slot + first & MESSAGE_MASK
            sizes = self._core.sizes[start : start + count]
            self._publish(_part(command, first, count), vhost, queues, slot + first, sizes)

    def parts(self, vhost: VirtualHost, command: c.Publish, slot: int) -> list[Part]:
        """Return the queues for the messages of a command. Raise Refused."""
        exchange, keys = command.exchange, [command.routing_key, *command.more_keys]
        try:
            return [(0, command.count, self._reached(vhost, exchange, keys))]
        except NeedsContent:
            return self._parts_by_content(vhost, command, slot, keys)

    def _reached(
        self, vhost: VirtualHost, exchange: str, keys: Sequence[str], content: Content | None = None
    ) -> tuple[Queue, ...]:
        """Return the queues that a message reaches, and count the cost of routing. Raise Refused, NeedsContent."""
        work = self._core.work
        try:
            if len(keys) == 1 and content is None:
                queues = vhost.route(exchange, keys[0])
                self._count_cached_route(vhost, exchange, keys[0])
            else:
                queues = vhost.route_all(exchange, keys, content)
                work.count_route(vhost.name, vhost.route_steps)
        except Refused:
            work.count_route(vhost.name, vhost.route_steps)
            raise
        return queues

    def _parts_by_content(
        self, vhost: VirtualHost, command: c.Publish, slot: int, keys: Sequence[str]
    ) -> list[Part]:
        parts: list[Part] = []
        core = self._core
        for number, content in enumerate(core.contents(slot, command.count)):
            if core.work.has_routed_enough(vhost.name):
                raise vhost.too_many_routes()
            core.work.count_route(vhost.name, CONTENT_STEPS)
            queues = self._reached(vhost, command.exchange, keys, content)
            if parts and parts[-1][2] == queues:
                first, count, _ = parts[-1]
                parts[-1] = first, count + 1, queues
            else:
                parts.append((number, 1, queues))
        return parts

    def _publish_plain(
        self, command: c.Enqueue, vhost: VirtualHost, queues: Sequence[Queue], slot: int
    ) -> None:
        """Publish messages without properties to queues that do more than append them."""
        first = slot & MESSAGE_MASK
        sizes = self._core.sizes[first : first + command.count]
        self._publish(_as_publish(command), vhost, queues, slot, sizes)

    def _check(
        self, vhost: VirtualHost, content: Sequence[c.Command]
    ) -> list[tuple[c.Publish, int, list[Part]]]:
        """Return each publish of a transaction with its slot and queues.

        Raises Refused if a queue lacks room for all its messages, or if leases cannot be committed.
        """
        ways: list[tuple[c.Publish, int, list[Part]]] = []
        wanted: dict[Queue, list[int]] = {}
        copies = self._core.work.copies.get(vhost.name, 0)
        slot = self._core.next_slot
        for command in content:
            if isinstance(command, c.Enqueue | c.Publish):
                publish = command if isinstance(command, c.Publish) else _as_publish(command)
                ways.append((publish, slot, self.parts(vhost, publish, slot)))
                for first, count, queues in ways[-1][2]:
                    copies += len(queues) if len(queues) > FEW_QUEUES else 0
                    if copies > COPIES_MAX:
                        raise precondition_failed(
                            f"the messages of a transaction reach more queues than the limit ({COPIES_MAX})"
                        )
                    sizes = self._new_sizes(vhost, _part(publish, first, count), slot + first)
                    for queue in queues:
                        wanted.setdefault(queue, []).extend(sizes)
                slot += command.count
            elif isinstance(command, c.CommitLeases):
                check_commit(self._core.catalog, command)
        for queue, sizes in wanted.items():
            # Deliveries to waiting consumers do not count as room here. Queues that share a channel's limit would count
            # it twice, and a part that is refused after other parts were published would break the invariant.
            if self.rooms([queue], sizes, at_once=False) != [len(sizes)]:
                raise precondition_failed("partial tx completion")
        return ways

    def _new(self, vhost: VirtualHost, command: c.Publish) -> list[tuple[int, int]]:
        """Return the messages of a command that are no duplicates, as runs: (offset of the first, count)."""
        publisher = self._publisher(command)
        if not publisher:
            return [(0, command.count)]
        first_seq = _publish_seq(command)
        runs = vhost.publishers.new(publisher, first_seq, command.count, self._core.available_ms)
        return [(first - first_seq, last - first + 1) for first, last in runs]

    def _publisher(self, command: c.Publish) -> Names:
        """Return the name of the publisher for deduplication; empty without deduplication."""
        core = self._core
        if not command.publisher:
            return ()
        session = core.sessions.get((core.origin, command.session))
        user = "" if session is None else session.user or ""
        return names_of(user, command.publisher, core.version)

    def _new_sizes(self, vhost: VirtualHost, command: c.Publish, slot: int) -> list[int]:
        """Return the sizes of the messages of a command that are no duplicates."""
        sizes: list[int] = []
        for first, count in self._new(vhost, command):
            start = slot + first & MESSAGE_MASK
            sizes += self._core.sizes[start : start + count]
        return sizes

    def rooms(self, queues: Sequence[Queue], sizes: Sequence[int], *, at_once: bool) -> list[int]:
        """Return how many of the same messages each queue accepts.

        With `at_once`, messages that waiting consumers receive at once are accepted in addition, because they need no
        room: see `serve_if_full`.
        """
        core, count = self._core, len(sizes)
        rooms = [queue.room(sizes) for queue in queues]
        if all(room == count for room in rooms):
            return rooms
        for queue, room in zip(queues, rooms, strict=True):
            if room < count:
                core.serve(queue)  # because consumers may take messages that are already ready
        # Consumers of several of these queues may share a channel's limit, so each queue's share reduces it for the
        # next.
        promised: dict[Budget, int] = {}
        for number, queue in enumerate(queues):
            room = queue.room(sizes)
            if room < count and at_once:
                wanted = queue.wanted(count, core.time_ms, promised, core.lost)
                room = wanted + queue.room(sizes[wanted:])
            rooms[number] = room
        return rooms

    def serve_if_full(self, queues: Iterable[Queue], count: int) -> None:
        """Deliver the `count` messages that were accepted only for waiting consumers, before any other change."""
        for queue in queues:
            if queue.is_overfull:
                self._core.serve(queue, count)

    def _publish(
        self,
        command: c.Publish,
        vhost: VirtualHost,
        queues: Sequence[Queue],
        slot: int,
        sizes: Sequence[int],
    ) -> None:
        for first, count in self._new(vhost, command):
            self._publish_new(command, vhost, queues, slot, sizes, first, first + count)

    def _publish_new(
        self,
        command: c.Publish,
        vhost: VirtualHost,
        queues: Sequence[Queue],
        slot: int,
        sizes: Sequence[int],
        first: int,
        end: int,
    ) -> None:
        """Publish the messages from `first` to before `end` of a command, as far as there is room for them."""
        core = self._core
        publisher, publish_seq = self._publisher(command), _publish_seq(command)
        wanted = sizes[first:end]
        rooms = self.rooms(queues, wanted, at_once=not command.delay_ms)
        accepted = first + min(rooms, default=len(wanted))
        if accepted > first:
            core.routed[core.origin] += (accepted - first) * len(queues)
            if command.frames_channel == SECTIONS_CHANNEL:
                core.routed10[core.origin] += (accepted - first) * len(queues)
            for queue in queues:
                self._add(queue, command, slot + first, sizes[first:accepted])
            self.serve_if_full(queues, accepted - first)
            is_returned = False
            if command.more_keys or not queues:
                keys = command.routing_key, *command.more_keys
                part = _part(command, first, accepted - first)
                is_returned = self._send_or_return(part, keys, vhost, slot + first, part.count, queues)
            if publisher:
                # A returned message is not stored, and its publisher may want to publish it again.
                remember = (
                    vhost.publishers.refuse if is_returned and core.version >= 8 else vhost.publishers.admit
                )
                remember(publisher, (publish_seq + first, publish_seq + accepted - 1), core.available_ms)
        if accepted < end:
            if publisher:
                run = (publish_seq + accepted, publish_seq + end - 1)
                vhost.publishers.refuse(publisher, run, core.available_ms)
            for queue in queues:
                queue.refuse(end - accepted)
            if command.first_seq:
                refused_seq = command.first_seq + accepted
                full = queues[rooms.index(accepted - first)]
                refused = (refused_seq, end - accepted, full.name)
                core.effects.append(Rejected(core.origin, command.session, *refused))

    def _send_or_return(
        self,
        command: c.Enqueue | c.Publish,
        keys: Sequence[str],
        vhost: VirtualHost,
        slot: int,
        count: int,
        queues: Sequence[Queue] = (),
    ) -> bool:
        """Send messages to the direct-reply consumers that the keys name, and return unroutable mandatory messages.

        Returns whether they were returned. A requester that is gone counts as a recipient, as in RabbitMQ since 4.2
        (before that, each mandatory reply came back). Replies are sent without delay.
        """
        core = self._core
        is_reply = False
        if command.exchange == DEFAULT_EXCHANGE:
            for name in filter(is_reply_name, dict.fromkeys(keys)):
                is_reply = True
                requester = vhost.requesters.get(name)
                if requester is not None:
                    replies = (core.index, slot, count, core.origin, command.session)
                    core.effects.append(DirectReply(*requester[:3], *replies))
        if queues or is_reply:
            return False
        vhost.count_unroutable(count, returned=command.mandatory)
        if command.mandatory:
            self._return(command, slot, count)
            return True
        core.dropped[core.origin] += count
        session = core.sessions.get((core.origin, command.session))
        if session is not None:
            session.dropped += count
        return False

    def _return(self, command: c.Enqueue | c.Publish, slot: int, count: int) -> None:
        """Return mandatory messages that reached no queue to their publisher."""
        core = self._core
        place = (core.index, slot, count, command.exchange, command.routing_key, command.frames_channel)
        delay_ms = command.delay_ms if isinstance(command, c.Publish) else 0
        core.effects.append(Returned(core.origin, command.session, *place, delay_ms, command.first_seq))

    def _add(self, queue: Queue, command: c.Publish, slot: int, sizes: Sequence[int]) -> None:
        """Add messages to a queue, now or after their delay."""
        core = self._core
        for count, size in size_runs(sizes, by_size=queue.backlog.exact_sizes):
            messages = Range(core.index, slot, count, 0, size)
            queue.publish(messages, command.priority, command.ttl_ms, command.delay_ms, core.time_ms)
            slot += count
        core.touch(queue)

    def needs_content(self, queue: Queue) -> bool:
        """Return whether the routes of the queue's dead letters may depend on their headers and properties."""
        exchange = queue.settings.dead_letter_exchange
        return exchange is not None and self._core.catalog.vhosts[queue.vhost].depends_on_content(exchange)

    def is_still_stuck(self, command: c.DeadLetter, target: str) -> bool:
        """Return whether the first message of the command would still wait for `target`. It changes nothing."""
        vhost = self._core.catalog.vhosts[command.vhost]
        queue = vhost.queues[command.queue]
        dead = queue.stuck_message(command.first)
        settings = queue.settings
        if dead is None or settings.dead_letter_exchange is None:
            return dead is None
        if settings.dead_letter_strategy != "at-least-once":
            return False
        content = _content_of(command, dead.range) if command.has_content else None
        try:
            routed, targets, _ = self._targets(vhost, queue, dead, command, content)
        except NeedsContent:
            return False
        return any(each.name == target for each in targets) if routed else target == UNROUTED

    def _move(
        self, vhost: VirtualHost, queue: Queue, number: int, dead: DeadMessages, command: c.DeadLetter
    ) -> Moved:
        """Move dead messages, the first with this number, to the queues that the dead-letter exchange routes them to.

        It tries a part of them if they have to be tried one by one.
        """
        try:
            return self._move_alike(vhost, queue, number, dead, command, None)
        except NeedsContent:
            pass
        for place, single in enumerate(singles(dead.range)):
            if place and self._core.work.has_dead_lettered_enough(vhost.name):
                return Moved(place, 0, UNROUTED)
            content = _content_of(command, single)
            one = dead._replace(range=single)
            tried = self._move_alike(vhost, queue, number + place, one, command, content)
            if not tried.moved:
                return Moved(place, 1, tried.target)
        return Moved(dead.range.count, 0, UNROUTED)

    def _move_alike(
        self,
        vhost: VirtualHost,
        queue: Queue,
        number: int,
        dead: DeadMessages,
        command: c.DeadLetter,
        content: Content | None,
    ) -> Moved:
        """Move dead messages that all have the same route. Raise NeedsContent before the first change."""
        core, settings = self._core, queue.settings
        messages = dead.range
        if settings.dead_letter_exchange is None:  # the exchange was set when the messages died
            queue.forget((messages,))
            return Moved(messages.count, 0, UNROUTED)
        routed, targets, new = self._targets(vhost, queue, dead, command, content)
        core.work.count_dead_letter_route(vhost.name, vhost.route_steps + _DYING_STEPS * routed)
        if routed > FEW_QUEUES:
            core.work.copy(vhost.name, routed)
        rooms = [messages.count] * len(targets)
        blocker = UNROUTED
        if settings.dead_letter_strategy == "at-least-once":
            if not routed:
                return Moved(0, messages.count, UNROUTED)
            if queue.stuck:
                for target in targets:
                    if queue.is_behind_others(number, target.name):
                        return Moved(0, messages.count, target.name)
        if any(map(is_bounded, targets)):
            rooms = self.rooms(targets, [part.size for part in singles(messages)], at_once=True)
            if settings.dead_letter_strategy == "at-least-once":
                count = min(rooms)
                blocker = targets[rooms.index(count)].name
                messages = messages.part(0, count)
        for target, room in zip(targets, rooms, strict=True):
            accepted = messages.part(0, min(room, messages.count))
            if not accepted.count:
                continue
            target.enqueue_again(accepted, new, command.priority, None, core.time_ms)
            core.touch(target)
        self.serve_if_full(targets, messages.count)
        queue.dead_lettered(messages)
        return Moved(messages.count, dead.range.count - messages.count, blocker)

    def _targets(
        self,
        vhost: VirtualHost,
        queue: Queue,
        dead: DeadMessages,
        command: c.DeadLetter,
        content: Content | None,
    ) -> tuple[int, list[Queue], History]:
        """Route dead messages that all have the same route.

        Returns the number of queues that the exchange names, those of them that take the messages, and their new
        history. Raises NeedsContent.
        """
        settings = queue.settings
        exchange, key = settings.dead_letter_exchange or "", settings.dead_letter_routing_key
        old = queue.histories.get(dead.range.history)
        published = (command.routing_key, *command.cc)
        expiration = command.expiration or None
        failures = 0
        if self._core.version >= 11 and queue.kind != CLASSIC:
            failures = dead.range.failures + (dead.reason == REJECTED)
        new = died(
            old,
            queue.name,
            dead.reason,
            dead.time_ms,
            command.exchange,
            published,
            expiration,
            exchange,
            key,
            failures,
        )
        keys = (key,) if key is not None else (*published, *command.bcc)
        if key is None and old is not None:
            keys = old.keys(keys)
        routed = vhost.route_dead_letters(exchange, keys, content)
        targets = [target for target in routed if not is_cycle(new, target.name)]
        new = new._replace(spread=new.spread * len(targets))
        if new.spread > SPREAD_MAX:
            targets = []
        return len(routed), targets, new


def _content_of(command: c.DeadLetter, single: Range) -> Content:
    return Content(command.headers, command.properties, message_number(single.index, single.slot))


def _as_publish(command: c.Enqueue) -> c.Publish:
    return c.Publish(*command, [], NO_PRIORITY, NO_TTL, 0, "", 0)


def _part(command: c.Publish, first: int, count: int) -> c.Publish:
    """Return the command for a part of its messages."""
    if count == command.count:
        return command
    first_seq = command.first_seq and command.first_seq + first
    publish_seq = command.publish_seq + first
    return command._replace(first_seq=first_seq, count=count, publish_seq=publish_seq)


def _publish_seq(command: c.Publish) -> int:
    """Return the first message's number, limited to 63 bits. Publishers cannot exceed the limit, but a node could."""
    return min(command.publish_seq, SEQUENCE_MAX)


def size_runs(sizes: Sequence[int], *, by_size: bool) -> list[tuple[int, int]]:
    """Return count and size of runs of messages. With `by_size`, all messages of a run are equally large."""
    if not by_size:
        return [(len(sizes), sum(sizes))]
    counted = [(size, sum(1 for _ in alike)) for size, alike in groupby(sizes)]
    return [(count, count * size) for size, count in counted]


def singles(messages: Range) -> list[Range]:
    return [messages.part(offset, 1) for offset in range(messages.count)]


def is_bounded(queue: Queue) -> bool:
    return queue.settings.overflow == "reject-publish"
