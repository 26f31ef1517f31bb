"""The replicated state machine: the methods that the log calls, and the dispatch of each command to its handler.

Invariant: a method depends only on its arguments and on self: no clock, no randomness, no iteration over sets, no
floats. No command that a client or an operator can send makes it raise: a command that cannot be carried out yields
`Failed` and changes no state. An unreadable batch is a bug of the node that submitted it, and that node has assumed a
different result. So it raises `MalformedBatch` and changes no state.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from qq.machine.catalog.permissions import User
from qq.machine.handlers.claims import Claims
from qq.machine.handlers.connecting import ConnectionHandlers
from qq.machine.handlers.consuming import ConsumerHandlers
from qq.machine.handlers.core import ContentOf, Core, SessionState, no_content
from qq.machine.handlers.cost_estimate import COMMAND_STEPS, Costs
from qq.machine.handlers.declaring import DeclarationHandlers
from qq.machine.handlers.leasing import GroupHandlers
from qq.machine.handlers.moving import MoveHandlers
from qq.machine.handlers.operating import OperatorHandlers
from qq.machine.handlers.publishing import PublishHandlers
from qq.machine.handlers.reading import ReadAnswers
from qq.machine.handlers.registry import HANDLERS, bound_handlers, check_handlers
from qq.machine.handlers.sinking import SinkHandlers
from qq.machine.protocol import commands as c
from qq.machine.protocol.codec import decode_commands, keep, message_sizes
from qq.machine.protocol.effects import DeadLettered, Known, OriginEvicted
from qq.machine.protocol.refusals import Refused
from qq.machine.protocol.versions import VERSIONS
from qq.machine.queue.queue import Consumer, Queue, held
from qq.machine.snapshot.state import FrozenMachine, MalformedDump, freeze, read_dump, restore
from qq.ranges import MESSAGE_BITS, Range

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from qq.machine.catalog.catalog import Catalog
    from qq.machine.catalog.vhost import VirtualHost
    from qq.machine.handlers.cost_estimate import Cost
    from qq.machine.handlers.fragments import Fragment
    from qq.machine.protocol.effects import Deliver, Effect, Result
    from qq.machine.queue.moves import Moves
    from qq.machine.queue.stuck_lines import StuckLines, Target


_IN_APPLY: dict[type[c.Command], Cost] = {c.Enqueue: COMMAND_STEPS, c.Commit: COMMAND_STEPS}
"""The commands that `apply_batch` itself passes on, because they involve the commands beside them -> their cost."""
check_handlers(*_IN_APPLY)
_COSTS = _IN_APPLY | {command: handler.cost for command, handler in HANDLERS.items()}


ROOMS_MAX = 500
"""Stuck dead letters that a target is tried with at once."""


@dataclass(slots=True)
class Room:
    """How much a queue may take of the messages that wait for it."""

    wanted: int
    """Messages that its consumers may take at once, whatever the limits of the queue."""
    count: int
    size: int | None
    """Bytes; None without a limit. A full queue may hold more than its limit."""

    def fits(self, size: int) -> int:
        """Return the number of messages of this size that fit."""
        count = self.count
        if self.size is not None and self.size < count * size:
            count = max(self.size // max(size, 1), 0)
        return min(self.wanted + count, ROOMS_MAX)

    def take(self, count: int, size: int) -> None:
        """Use room for messages of this size."""
        wanted = min(self.wanted, count)
        self.wanted -= wanted
        self.count = max(self.count - (count - wanted), 0)
        if self.size is not None:
            self.size -= (count - wanted) * size


class PendingDeadLetters(NamedTuple):
    """Messages of a queue that await dead-lettering, for the leader that moves them."""

    vhost: str
    queue: str
    number: int
    """The queue's number."""
    parts: list[tuple[int, Range]]
    """The messages, and the number of the first of each range, counted over all messages that ever died in the
    queue."""
    needs_content: bool
    """Whether `DeadLetter` must carry headers and properties, because the dead-letter exchange looks into messages."""


class QueueMachine:
    """The state machine of a broker: virtual hosts with their queues, users, permissions and connections."""

    versions = VERSIONS
    outages_since = 9
    reads_since = 11
    losses_since = 11
    waiting_batches_since = 12

    def __init__(self, content_of: ContentOf = no_content) -> None:
        """`content_of` returns the properties of a message, for exchanges that look into messages.

        It must be the same on all nodes.
        """
        self.queue_removed: Callable[[str, str], None] = _ignored
        """Called with the virtual host and the name of each removed queue. It must not change the state."""
        core = Core(content_of)
        core.catalog.begin()
        self._begin(core)
        self.needed_from: Callable[[], int | None] = _nothing
        """Returns the lowest log index that a session of this node still reads although the state no longer refers to
        it (such as a returned message), or None. The memory of such fragments is not part of the state."""

    def _begin(self, core: Core) -> None:
        self._core = core
        core.queue_removed = self._queue_removed
        publishing = self._publishing = PublishHandlers(core)
        self.groups = GroupHandlers(core)
        """The groups of queues, and the refusals of their commands. `adopt` makes a new object."""
        self.sinks = SinkHandlers(core, publishing)
        """The sinks, and the refusals of their commands. `adopt` makes a new object."""
        parts = (
            publishing,
            ConsumerHandlers(core),
            DeclarationHandlers(core),
            ConnectionHandlers(core),
            OperatorHandlers(core),
            MoveHandlers(core, publishing),
            self.groups,
            self.sinks,
        )
        self.costs = Costs(core, _COSTS)
        """Estimates of the cost of commands, for building batches. `adopt` makes a new object."""
        self.claims = Claims(core)
        """The claims of nodes that may have died. `adopt` makes a new object."""
        self.reads = ReadAnswers(core)
        """Answers of commands that leave the state as it is. `adopt` makes a new object."""
        self._handlers: dict[type[c.Command], Callable[[Any], None]] = bound_handlers(
            parts, is_answered=False
        )
        self._methods: dict[type[c.Command], Callable[[Any], Result]] = bound_handlers(
            parts, is_answered=True
        )

    def _queue_removed(self, queue: Queue) -> None:
        self.queue_removed(queue.vhost, queue.name)

    # Called by the log

    def apply_batch(
        self, origin: str, index: int, ordinal: int, time_ms: int, payload: bytes | memoryview
    ) -> list[Effect]:
        """Carry out the commands of a batch, in order, and return their effects. Raise MalformedBatch.

        `ordinal` is the position of the batch in its entry.
        """
        core = self._core
        commands = decode_commands(payload, core.version)
        core.origin, core.index, core.time_ms = origin, index, time_ms
        if core.lost and commands:
            core.end_lost(origin)
        core.next_slot = ordinal << MESSAGE_BITS
        core.payload = payload
        core.sizes, core.size = message_sizes(payload)
        handlers, publishing = self._handlers, self._publishing
        ahead = iter(enumerate(commands))
        for core.position, command in ahead:
            if type(command) is c.Enqueue:
                publishing.enqueue(command)
                continue
            publishing.flush()
            handler = handlers.get(type(command))
            if handler is not None:
                handler(command)
            elif isinstance(command, c.Commit):
                content = commands[core.position + 1 : core.position + 1 + command.count]
                publishing.commit(command, content, self._settle)
                for _ in content:
                    next(ahead)
            else:
                self._answer(command)
        publishing.flush()
        core.payload = b""
        return core.take_effects()

    def end_entry(self, time_ms: int) -> list[Effect]:
        """Do work that is due or was put off, serve the changed queues, and return the effects.

        The queue that has waited longest is served first.
        """
        self._core.time_ms = time_ms
        self._core.end_entry()
        return self._core.take_effects()

    def outage(self, length_ms: int) -> None:
        """Count part of the time before the current entry as outage.

        Before version 9 of the state, it counts as normal time.
        """
        if self._core.version >= self.outages_since:
            self._core.outage_ms += length_ms

    def fragments_of(self, index: int) -> Mapping[int, Sequence[Fragment]]:
        """Return slot -> fragments, for the large messages of an entry; messages stored as a whole are not included."""
        return self._core.fragments.in_entry(index)

    def first_fragment_from(self, index: int) -> int:
        """Return the lowest log index that the messages of this and later entries need, including their fragments."""
        return self._core.fragments.first_needed_from(index)

    def raise_to(self, version: int) -> None:
        """Follow this version of the state from the next entry on."""
        core = self._core
        before, core.version = core.version, version
        if before < 9 <= version:
            core.restore_timers()  # since version 9, unused queues have timers of their own

    def due_ms(self) -> int | None:
        """Return the time from which an entry without commands would do work, or None for never."""
        return self._core.due_ms()

    def concerned(self, effects: Sequence[Effect]) -> Iterable[str]:
        """Return the nodes of the sessions that these effects are for."""
        return [effect.node for effect in effects if type(effect) is not DeadLettered]

    def origin_down(self, origin: str, time_ms: int, *, evicted: bool) -> list[Effect]:
        """End all sessions of a node that restarted or was evicted, and return the effects.

        Messages that its clients held return to their queues, and its exclusive queues are deleted.
        """
        core = self._core
        core.time_ms = time_ms
        core.lose_sessions_of(origin)
        vhosts = core.catalog.vhosts.values()
        core.abandon([queue for vhost in vhosts for queue in vhost.owned_queues_of_node(origin)])
        if evicted:
            core.effects.append(OriginEvicted(origin))
        return core.take_effects()

    def outstanding(self, origin: str) -> list[Effect]:
        """Return the pending effects of all sessions of a node: last answers, held messages, and `Known`.

        The connections that the node must close come at the end.
        """
        effects: list[Effect] = []
        if self.has_lost_sessions(origin):
            return effects  # these sessions belong to an earlier incarnation of the node
        for (node, number), session in self._core.sessions.items():
            if node != origin:
                continue
            if session.answer is not None:
                effects.append(session.answer)
            for consumer in session.consumers.values():
                # Messages taken by `Get` were sent in its answer.
                if consumer.next_id:
                    effects.extend(_deliveries(consumer))
                if consumer.live and consumer.client_credit is not None:
                    effects.append(consumer.queue.state_of(consumer))
            live = [consumer.id for consumer in session.consumers.values() if consumer.live]
            if session.requester is not None:
                live.append(session.requester.consumer)
            effects.append(Known(node, number, session.answers, live))
        connections = self._core.catalog.connections.values()
        mine = [connection for connection in connections if connection.node == origin]
        effects.extend(self._core.closing(connection) for connection in mine if connection.closing)
        return effects

    def compact(self, payload: bytes | memoryview, messages: Sequence[tuple[int, int]]) -> bytes:
        """Reduce a batch to some of its messages. Raise MalformedBatch."""
        return keep(payload, messages)

    def _answer(self, command: Any) -> None:
        """Carry out a command and answer its session, unless an error has already closed the channel."""
        core = self._core
        session = core.session(core.origin, command.session)
        if session.failed:
            return
        try:
            result = self._methods[type(command)](command)
        except Refused as refused:
            core.fail(command, refused)
            return
        core.answer(session, command.session, result)

    def _settle(self, command: c.Command) -> None:
        """Carry out a part of a transaction that does not publish."""
        self._handlers[type(command)](command)

    def count_anew(self) -> None:
        """Reset the counts of events.

        This node has replayed its log, and its earlier incarnation has already counted those events.
        """
        core = self._core
        core.routed.clear()
        core.routed10.clear()
        core.dropped.clear()
        for vhost in core.catalog.vhosts.values():
            vhost.count_anew()

    # Read by the node

    def has_lost_sessions(self, origin: str) -> bool:
        """Return whether sessions of an earlier incarnation of this node are still ending.

        The node's next command would end all of them at once.
        """
        return origin in self._core.lost

    @property
    def version(self) -> int:
        """The version of the state that the log has agreed on, as far as this node has applied it."""
        return self._core.version

    @property
    def outage_ms(self) -> int:
        """Milliseconds of the cluster's time that were outage.

        Queue expiry and consumer timeouts count only the remaining time.
        """
        return self._core.outage_ms

    @property
    def routed(self) -> Mapping[str, int]:
        """Node -> number of times that a message from it entered a queue, since this process began."""
        return self._core.routed

    @property
    def routed10(self) -> Mapping[str, int]:
        """Return the part of `routed` that clients of AMQP 1.0 have published."""
        return self._core.routed10

    @property
    def dropped(self) -> Mapping[str, int]:
        """Node -> number of messages from it that were not mandatory and reached no queue, since this process began."""
        return self._core.dropped

    @property
    def vhosts(self) -> Mapping[str, VirtualHost]:
        """All virtual hosts, by name. `ready`, `unacked` and `consumers` of their queues are the counts to show."""
        return self._core.catalog.vhosts

    @property
    def catalog(self) -> Catalog:
        """Users and their permissions (`access`), and the connections of the whole cluster."""
        return self._core.catalog

    @property
    def revision(self) -> int:
        """The `revision` of the catalog, as a shortcut for frequent callers."""
        return self._core.catalog.access.revision

    @property
    def users(self) -> Mapping[str, User]:
        return self._core.catalog.access.users

    @property
    def moves(self) -> Moves:
        """The moves of all virtual hosts."""
        return self._core.catalog.moves

    @property
    def sessions(self) -> Mapping[tuple[str, int], SessionState]:
        """The sessions of all nodes, by node and number."""
        return self._core.sessions

    def queues(self) -> Iterator[Queue]:
        """Return the queues of all virtual hosts."""
        return self._core.catalog.queues()

    @property
    def consumers(self) -> Mapping[tuple[str, int], Consumer]:
        """All consumers, by node and consumer id; consumers that are not `live` only hold messages."""
        return self._core.consumers

    def pending_dead_letters(self, ranges_max: int, start: int = 0) -> Iterator[PendingDeadLetters]:
        """Yield the messages that await dead-lettering, queue by queue; at most `ranges_max` ranges of each.

        It begins at position `start` among these queues, modulo their number.
        """
        queues = list(self._core.queues_with_dead)
        start = start % len(queues) if queues else 0
        for queue in queues[start:] + queues[:start]:
            if not queue.retry_ms:
                number, parts = queue.first_dead, list[tuple[int, Range]]()
                for dead in islice(queue.dead, ranges_max):
                    parts.append((number, dead.range))
                    number += dead.range.count
                yield self._pending(queue, parts)

    def _pending(self, queue: Queue, parts: list[tuple[int, Range]]) -> PendingDeadLetters:
        place = queue.vhost, queue.name, queue.number
        return PendingDeadLetters(*place, parts, self._publishing.needs_content(queue))

    @property
    def stuck_lines(self) -> StuckLines:
        """Where dead messages wait that their targets could not take (`Queue.stuck`)."""
        return self._core.stuck_lines

    def stuck_dead_letters(self, queue: Queue, target: str, first: int, most: int) -> PendingDeadLetters:
        """Return the messages that wait for a target, from the number `first` on, in at most `most` ranges."""
        stuck = queue.stuck_messages(target, first, most)
        return self._pending(queue, [(number, dead.range) for number, dead in stuck])

    def room_for_stuck(self, target: Target) -> Room:
        """Return how much a queue may take now, about, of the messages that wait for it."""
        known = self.vhosts[target.vhost].queues.get(target.name)
        if known is None:
            return Room(0, 0, 0)  # they have another route since then: see `is_still_stuck`
        wanted = 0
        if not (known.backlog.count or known.returning):
            wanted = sum(consumer.room for consumer in islice(known.rotation, ROOMS_MAX))
        return Room(min(wanted, ROOMS_MAX), *known.room_left(ROOMS_MAX))

    def is_still_stuck(self, command: c.DeadLetter, target: str) -> bool:
        """Return whether the first message of the command must still wait for the target."""
        return self._publishing.is_still_stuck(command, target)

    # The whole state

    def freeze(self) -> FrozenMachine:
        """Return the state as it is now; any thread may read it."""
        self._core.fragments.forget_unneeded(self.needed_from())
        return freeze(self._core)

    def dump(self) -> bytes:
        return self.freeze().dump()

    def read(self, data: bytes) -> Core:
        """Return the state in a dump, for `adopt`. Any thread may call it. Raises MalformedDump."""
        core = Core(self._core.content_of)
        try:
            restore(core, read_dump(data))
        except MalformedDump:
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # Rows are not checked one by one, because a value of the wrong type raises somewhere in `restore`.
            raise MalformedDump(f"not a state: {type(error).__name__}: {error}") from error
        return core

    def adopt(self, state: Core) -> None:
        """Replace the state by a state that was read, and follow its version."""
        former = self._core
        self._begin(state)
        state.routed, state.routed10, state.dropped = former.routed, former.routed10, former.dropped
        # A changed revision invalidates all caches that were filled from the former state.
        state.catalog.access.revision += former.catalog.revision + 1
        former.take_apart(state.deferred_free)

    def digest(self) -> str:
        """Return a hash of the state: equal states have equal digests."""
        return hashlib.sha256(self.dump()).hexdigest()


def _nothing() -> None:
    """Return None, as when no session waits for an entry."""


def _ignored(vhost: str, queue: str) -> None:
    """Do nothing, because no session watches queues."""


def _deliveries(consumer: Consumer) -> Iterator[Deliver]:
    """Yield deliveries of all messages that the consumer holds, as if they were delivered again."""
    queue = consumer.queue
    ranges: list[Range] = []
    first_id = next_id = 0
    for first, messages in held(consumer):
        if first != next_id:
            if ranges:
                yield queue.delivery(consumer, first_id, ranges)
            ranges, first_id = [], first
        ranges.append(messages)
        next_id = first + messages.count
    if ranges:
        yield queue.delivery(consumer, first_id, ranges)
