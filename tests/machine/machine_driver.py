"""Drives a machine the way a group and its leader do, and looks into it message by message."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from qq.machine.machine import QueueMachine
from qq.machine.protocol.codec import encode_batch
from qq.machine.protocol.commands import (
    AttachConsumer,
    Checkout,
    DeadLetter,
    DeclareQueue,
    Enqueue,
    Publish,
    StageMessages,
    StoreFragment,
)
from qq.machine.protocol.effects import (
    ConnectionForced,
    ConsumerCancelled,
    ConsumerState,
    Deliver,
    Failed,
    GetOk,
    Got,
    Known,
    Reply,
)
from qq.machine.queue.backlog import Backlog
from qq.machine.queue.leaving import ranges_of
from qq.machine.queue.stuck_lines import Target
from qq.ranges import MESSAGE_BITS, MESSAGE_MASK, Range
from qq.stored.properties import NO_PRIORITY, NO_TTL

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from qq.machine.handlers.fragments import Fragment
    from qq.machine.machine import PendingDeadLetters
    from qq.machine.protocol.commands import Command, Table
    from qq.machine.protocol.effects import Effect
    from qq.machine.queue.queue import Consumer, DeadMessages, Queue

Message = tuple[int, int, int]
"""Index, slot, deliveries."""
Place = tuple[int, int, int]
"""Index, ordinal of the batch, ordinal of the message."""

TICKS_MAX = 1_000
"""Bound for the entries of a leader at a single moment: more mean an endless loop."""


def declare(name: str, session: int = 1, **arguments: object) -> DeclareQueue:
    """A durable queue; x_max_length=5 is the argument x-max-length."""
    table = {key.replace("_", "-"): value for key, value in arguments.items()}
    return DeclareQueue(session, 1, name, False, True, False, False, False, table)


def consume(
    number: int,
    queue: str,
    credit: int,
    session: int = 1,
    *,
    no_ack: bool = False,
    auto_credit: bool = True,
    can_be_cancelled: bool = False,
    timeout_ms: int = 0,
    arguments: Table | None = None,
) -> Checkout:
    ids = (session, 1, 1, number, queue, f"t{number}", credit)
    flags = (no_ack, False, auto_credit, False, can_be_cancelled)
    return Checkout(*ids, *flags, timeout_ms, arguments or {})


def attach(
    number: int,
    queue: str,
    session: int = 1,
    *,
    no_ack: bool = False,
    wants_activity: bool = False,
    timeout_ms: int = 0,
    arguments: Table | None = None,
) -> AttachConsumer:
    ids = (session, 1, 1, number, queue, f"t{number}")
    return AttachConsumer(*ids, no_ack, wants_activity, timeout_ms, arguments or {})


def publish(
    count: int,
    key: str = "q",
    exchange: str = "",
    session: int = 1,
    *,
    first_seq: int = 1,
    more_keys: Sequence[str] = (),
    priority: int = NO_PRIORITY,
    ttl_ms: int = NO_TTL,
    delay_ms: int = 0,
    publisher: str = "",
    publish_seq: int = 0,
) -> Enqueue | Publish:
    """Plain messages, or those with a property that matters."""
    plain = Enqueue(session, first_seq, count, exchange, key, False, 1)
    properties = (list(more_keys), priority, ttl_ms, delay_ms, publisher, publish_seq)
    return plain if properties == ([], NO_PRIORITY, NO_TTL, 0, "", 0) else Publish(*plain, *properties)


def batch(commands: Sequence[Command], messages: Sequence[bytes] = ()) -> bytes:
    return b"".join(encode_batch(commands, messages))


def reloaded(machine: QueueMachine) -> QueueMachine:
    """A machine that knows the other only from its dump."""
    other = QueueMachine(machine._core.content_of)
    other.adopt(other.read(machine.dump()))
    assert other.digest() == machine.digest()
    return other


def assert_kept_is_current(machine: QueueMachine) -> None:
    """Assert that the kept parts of the last freeze equal a new freeze. Queues use them afterwards."""
    dumped = machine.dump()
    kept = {queue: queue._frozen for queue in machine.queues()}
    for queue in kept:
        queue._frozen = None
    assert machine.dump() == dumped
    for queue, frozen in kept.items():
        queue._frozen = frozen


def never_later(old: QueueMachine, loaded: QueueMachine) -> bool:
    """Return whether no timer is late.

    A loaded machine sets its timers anew; the old one may have more without effect.
    """
    due_ms, exact_ms = old.due_ms(), loaded.due_ms()
    return exact_ms is None or (due_ms is not None and due_ms <= exact_ms)


def messages_of(ranges: Sequence[Range]) -> list[Message]:
    return [(r.index, r.slot + offset, r.deliveries) for r in ranges for offset in range(r.count)]


def ready_ranges(queue: Queue) -> list[Range]:
    """Return every ready message, in the present order of delivery."""
    backlog = Backlog()
    backlog.load(queue.backlog.freeze().dump())
    return backlog.take(queue.ready)


def ready_messages(queue: Queue) -> list[Message]:
    return messages_of(ready_ranges(queue))


def delayed_ranges(queue: Queue) -> list[Range]:
    """Return every delayed message, in the order of their delays."""
    return list(queue.backlog._delayed.browse())


def held_ranges(consumer: Consumer) -> list[tuple[int, Range]]:
    return [(piece.first, piece.value.part(piece.offset, piece.count)) for piece in consumer.unacked.pieces()]


def leaving_ranges(queue: Queue) -> list[Range]:
    """Return the messages that consumers released, and that have not arrived at their next place yet."""
    return [messages for each in (*queue.leaving, *queue.returning) for messages in ranges_of(each.pieces())]


def leased_ranges(queue: Queue) -> list[Range]:
    """Return the messages of open and ended leases."""
    return [messages for chunk in queue._leased_chunks() for messages in chunk.unpack()]


def dead_ranges(queue: Queue) -> list[Range]:
    """Return the dead messages: those in no line of a target first."""
    return [dead.range for dead in (*queue.dead, *(dead for _, dead, _ in stuck_dead(queue)))]


def stuck_dead(queue: Queue) -> list[tuple[int, DeadMessages, str]]:
    """Return the messages in the lines: number of the first, the messages, and the target."""
    return sorted(
        (number, dead, target)
        for target in queue.stuck
        for number, dead in queue.stuck_messages(target, 0, 10**9)
    )


def held_messages(consumer: Consumer) -> dict[int, Message]:
    held: dict[int, Message] = {}
    for first, messages in held_ranges(consumer):
        held.update(enumerate(messages_of([messages]), first))
    return held


def live_messages(machine: QueueMachine) -> list[Place]:
    """Return all references to messages, with repetitions."""
    ranges: list[Range] = []
    for queue in machine.queues():
        ranges += ready_ranges(queue) + delayed_ranges(queue) + dead_ranges(queue)
        ranges += leaving_ranges(queue) + leased_ranges(queue)
    for vhost in machine.vhosts.values():
        attempts = [attempt for sink in vhost.sinks.values() for attempt in sink.attempts.values()]
        ranges += [run.messages for attempt in attempts for run in attempt.runs]
    for consumer in machine.consumers.values():
        ranges += [messages for _, messages in held_ranges(consumer)]
    for session in machine._core.sessions.values():
        answer = session.answer
        if isinstance(answer, Reply) and isinstance(answer.result, GetOk):
            ranges.append(answer.result.range)
        elif isinstance(answer, Reply) and isinstance(answer.result, Got):
            ranges += answer.result.ranges
        ranges += map(_range_of, session.fragments)
    for index, slot in {place[:2] for place in messages_of(ranges)}:
        ranges += map(_range_of, machine.fragments_of(index).get(slot, ()))
    return [(index, slot >> MESSAGE_BITS, slot & MESSAGE_MASK) for index, slot, _ in messages_of(ranges)]


def _range_of(fragment: Fragment) -> Range:
    return Range(fragment.index, fragment.slot, 1)


class Published(NamedTuple):
    """The fields of a publish, as `DeadLetter` has them."""

    exchange: str
    routing_key: str
    cc: tuple[str, ...] = ()
    bcc: tuple[str, ...] = ()
    expiration: str = ""
    priority: int = NO_PRIORITY
    headers: tuple[tuple[str, object], ...] = ()


class Log:
    """The fields of all publishes in a log, for its leader."""

    def __init__(self) -> None:
        self.published: dict[tuple[int, int], Published] = {}

    def record(
        self, index: int, ordinal: int, commands: Sequence[Command], bcc: Collection[str] = ()
    ) -> list[tuple[int, int]]:
        """Read a batch; `bcc` are the keys that no header CC names. Returns the places of the messages."""
        places: list[tuple[int, int]] = []
        for command in commands:
            if isinstance(command, Enqueue | Publish):
                published = Published(command.exchange, command.routing_key)
                if isinstance(command, Publish):
                    published = published._replace(
                        cc=tuple(key for key in command.more_keys if key not in bcc),
                        bcc=tuple(key for key in command.more_keys if key in bcc),
                        expiration="" if command.ttl_ms == NO_TTL else str(command.ttl_ms),
                        priority=command.priority,
                    )
                for _ in range(command.count):
                    places.append((index, ordinal << MESSAGE_BITS | len(places)))
                    self.published[places[-1]] = published
            elif isinstance(command, StageMessages):
                for _ in range(command.count):
                    places.append((index, ordinal << MESSAGE_BITS | len(places)))
                    self.published[places[-1]] = Published(command.exchange, command.routing_key)
            elif isinstance(command, StoreFragment):
                places.append((index, ordinal << MESSAGE_BITS | len(places)))
        return places

    def dead_letters(self, machine: QueueMachine, ranges_max: int = 500) -> list[DeadLetter]:
        """The next step of the leader, as qq/broker/dead_letters.py takes it."""
        commands: list[DeadLetter] = []
        for dead in machine.pending_dead_letters(ranges_max):
            commands += self.dead_letters_of(dead)
        for queue in machine.stuck_lines.queues:
            for target in queue.stuck:
                stuck = machine.stuck_dead_letters(queue, target, 0, ranges_max)
                tried = self.dead_letters_of(stuck)
                size = stuck.parts[0][1].part(0, 1).size
                room = machine.room_for_stuck(Target(queue.vhost, target)).fits(size)
                commands += [each for each in tried if room or not machine.is_still_stuck(each, target)]
        return commands

    def dead_letters_of(self, dead: PendingDeadLetters) -> Iterator[DeadLetter]:
        numbered: list[tuple[Published, int]] = []
        for number, messages in dead.parts:
            for place, (index, slot, _) in enumerate(messages_of([messages])):
                published = self.published[index, slot]
                if not dead.needs_content:
                    published = published._replace(headers=())
                numbered.append((published, number + place))
        # Equal publishes with consecutive numbers.
        for _, group in groupby(enumerate(numbered), lambda each: (each[1][0], each[1][1] - each[0])):
            alike = [each for _, each in group]
            (published, first), count = alike[0], len(alike)
            exchange, key, cc, bcc, expiration, priority, headers = published
            yield DeadLetter(
                dead.vhost,
                dead.queue,
                dead.number,
                first,
                count,
                exchange,
                key,
                list(cc),
                list(bcc),
                expiration,
                priority,
                dead.needs_content,
                dict(headers),
                {},
            )


class Shell:
    """A node's view of its sessions: from effects, and from the state after a gap."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.missed = False
        self._answers: dict[int, int] = {}
        self._last: dict[int, Reply | Failed] = {}
        self._messages: dict[int, dict[int, Message]] = {}
        """By consumer and message id, everything that it was ever given."""
        self._next_ids: dict[int, int] = {}
        """The message id of each consumer's next delivery."""

    def receive(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if effect.node != self.node:
                continue
            match effect:
                case Reply() | Failed():
                    assert effect.number == self._answers.get(effect.session, 0) + 1
                    self._answered(effect)
                case Deliver():
                    assert effect.first_id > max(self._messages.get(effect.consumer, ()), default=-1)
                    self._given(effect)
                case ConsumerState():
                    # It comes behind all deliveries that it includes.
                    assert effect.next_id == self._next_ids.get(effect.consumer, 0)
                case _:
                    pass

    def forget(self, session: int) -> None:
        """Forget a session that is down; a new session may reuse its number."""
        self._answers.pop(session, None)
        self._last.pop(session, None)

    def resume(self, machine: QueueMachine) -> None:
        """Catch up from the state, and assert that the view equals the state then."""
        self.missed = False
        effects = machine.outstanding(self.node)
        assert {effect.node for effect in effects} <= {self.node}
        for effect in effects:
            match effect:
                case Reply() | Failed():
                    assert not (isinstance(effect, Reply) and isinstance(effect.result, ConsumerCancelled))
                    self._answered(effect)
                case Deliver():
                    self._given(effect)
                case Known():
                    self._answers[effect.session] = effect.answers
                case ConsumerState():
                    consumer = machine.consumers[self.node, effect.consumer]
                    assert effect == consumer.queue.state_of(consumer)
                    assert effect.next_id >= self._next_ids.get(effect.consumer, 0)
                    self._next_ids[effect.consumer] = effect.next_id
                case ConnectionForced():
                    assert machine.catalog.connections[effect.node, effect.session].closing in effect.text
                case _:
                    raise AssertionError(f"{effect} is not about a session's due")
        known = [effect for effect in effects if isinstance(effect, Known)]
        assert {(effect.node, effect.session) for effect in known} == {
            key for key in machine._core.sessions if key[0] == self.node
        }
        live = {consumer for effect in known for consumer in effect.consumers}
        for (node, number), consumer in machine.consumers.items():
            if node == self.node:
                assert (number in live) == consumer.live
                # `Get` has its message in the answer.
                for message_id, message in held_messages(consumer).items() if consumer.next_id else ():
                    assert self._messages[number][message_id] == message

    def _answered(self, effect: Reply | Failed) -> None:
        self._answers[effect.session] = max(effect.number, self._answers.get(effect.session, 0))
        if not (isinstance(effect, Reply) and isinstance(effect.result, ConsumerCancelled)):
            known = self._last.get(effect.session)
            if known is not None and known.number == effect.number:
                assert known == effect
            self._last[effect.session] = effect

    def _given(self, effect: Deliver) -> None:
        had = self._messages.setdefault(effect.consumer, {})
        for message_id, message in enumerate(messages_of(effect.ranges), effect.first_id):
            assert had.setdefault(message_id, message) == message
            self._next_ids[effect.consumer] = message_id + 1


class Driver:
    """A machine; each call is an entry with a batch of one node. Tests set the clock."""

    def __init__(self) -> None:
        self.machine = QueueMachine()
        self.index = 0
        self.time_ms = 1_000_000
        self.log = Log()

    def apply(self, *commands: Command, node: str = "n1", messages: Sequence[bytes] = ()) -> list[Effect]:
        """Apply an entry; messages that are not given have a single octet."""
        self.index += 1
        places = self.log.record(self.index, 0, commands)
        payload = batch(commands, messages or [b"x"] * len(places))
        effects = self.machine.apply_batch(node, self.index, 0, self.time_ms, payload)
        return effects + self.machine.end_entry(self.time_ms)

    def lead(self) -> list[Effect]:
        """Apply the entries that a leader would submit now: for due timers and for dead letters."""
        effects: list[Effect] = []
        for _ in range(TICKS_MAX):
            due_ms = self.machine.due_ms()
            commands = self.log.dead_letters(self.machine)
            if not commands and (due_ms is None or due_ms > self.time_ms):
                return effects
            effects += self.apply(*commands)
        raise AssertionError(f"the machine is not done at {self.time_ms}")

    def wait_until(self, time_ms: int) -> list[Effect]:
        """Let time pass, with an entry at each moment that the machine asks for."""
        effects = self.lead()
        while (due_ms := self.machine.due_ms()) is not None and due_ms <= time_ms:
            self.time_ms = max(due_ms, self.time_ms)
            effects += self.lead()
        self.time_ms = time_ms
        return effects
