"""Oracle of the queues: follows each message by the simplest means and computes its fate.

Invariant: each enqueued message is ready (or will be, after a delay), held by a consumer, or dead-lettering, until it
has met its fate: settled, expired, dropped by a limit, moved by its dead-letter exchange, and so on. The oracle
computes every fate but two itself: which messages a length limit drops, and whether a full queue takes a dead letter.
For these it reads the machine, and checks that the machine's choice is allowed.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from chaos.sim.checks.credit_checks import CreditOracle
from chaos.sim.checks.lease_checks import LeaseOracle
from chaos.sim.checks.move_checks import MoveOracle
from chaos.sim.checks.queue_model import (
    Consumer,
    Deaths,
    Flow,
    Holder,
    Key,
    Message,
    QueueModel,
    dead_ranges,
    deaths_after,
    deaths_of,
    expiry_ms,
    goes_in_circles,
    is_full,
    names_of,
    over_after,
    ready_messages,
    rejects,
    stuck_of,
    waiting_ranges,
)
from chaos.sim.checks.sink_checks import SinkOracle
from qq.amqp10_server.consuming_link import ALL_IDS
from qq.machine.catalog.deduplication import PUBLISHER_AGE_MS
from qq.machine.policy.queue_options import UNLIMITED
from qq.machine.protocol.codec import decode_batch, decode_commands, decode_kept, is_kept
from qq.machine.protocol.commands import (
    DEFAULT_VHOST,
    AttachConsumer,
    Cancel,
    Checkout,
    Command,
    Commit,
    DeadLetter,
    DeclareQueue,
    DeleteQueue,
    Discard,
    Enqueue,
    Get,
    GetMessages,
    GroupCommand,
    Limit,
    Modify,
    MoveMessages,
    Publish,
    PurgeQueue,
    Recover,
    Reject,
    Return,
    SessionDown,
    SetCredit,
    SetPrefetch,
    Settle,
    SinkCommand,
    StoreFragment,
)
from qq.machine.protocol.death_history import DELIVERY_LIMIT, EXPIRED, MAXLEN, REJECTED, History
from qq.machine.protocol.effects import (
    Attached,
    AttachRefused,
    Committed,
    ConnectionForced,
    ConsumerGone,
    ConsumerState,
    Consuming,
    Deliver,
    DeliveriesReleased,
    DeliveryTimeout,
    Failed,
    GetOk,
    Got,
    QueueDeclared,
    QueueDeleted,
    QueuePurged,
    Rejected,
    Reply,
)
from qq.machine.protocol.queue_types import QUORUM
from qq.machine.queue.queue import DUE_MAX
from qq.ranges import MESSAGE_BITS, Range
from qq.stored.properties import NO_PRIORITY, NO_TTL

if TYPE_CHECKING:
    from qq.machine.machine import QueueMachine
    from qq.machine.queue.queue import Queue

NOT_ALLOWED = 530
UNSEEN_MS = 1_000
"""Milliseconds without a majority that may count as idle time of a queue.

A short silence is no outage, and an entry may be applied later than it was made.
"""
LOOKED_AT_EVERY = 16
"""Entries between two comparisons of all places; message counts are compared after every entry."""


def messages_of(payload: bytes) -> dict[int, bytes]:
    """Return the messages of a batch, or of its compacted form, by ordinal."""
    if not is_kept(payload):
        return dict(enumerate(payload[start:end] for start, end in pairwise(decode_batch(payload).offsets)))
    return {
        piece.first + number: payload[start:end]
        for piece in decode_kept(payload)
        for number, (start, end) in enumerate(pairwise(piece.offsets))
    }


class Outcomes(NamedTuple):
    """The results of a batch's commands, taken from its effects."""

    results: dict[int, Any]
    """Results of the answered commands, by session."""
    refused: dict[int, list[Rejected]]
    """Refused publishes, by session."""

    def refusal(self, command: Enqueue | Publish) -> Rejected | None:
        """Return the refusal of this command's last messages, or of all its messages; None if all were accepted."""
        end = command.first_seq + command.count
        refused = self.refused.get(command.session, ())
        return next((each for each in refused if command.first_seq <= each.first_seq < end), None)


class QueueOracle:
    """The `AppliedListener` of queue runs."""

    def __init__(self, fail: Callable[[str], None], majority_s: Callable[[], float] | None = None) -> None:
        """`majority_s` returns the seconds with a majority so far; without it, the times of entries count as true."""
        self.enqueued = 0
        self.fates: Counter[str] = Counter()
        self._fail = fail
        self._majority_s = majority_s
        self._now_ms = 0
        self._outage_ms = 0
        self._version = 0
        """The version of the state at the last batch."""
        """Milliseconds of the cluster's time that entries have declared as outages."""
        self._counts_outages = False
        """Whether the agreed version has outages."""
        self._entries = 0
        self._numbers = count(1)
        self._queues: dict[str, QueueModel] = {}
        self._bound: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
        """Queues of each exchange, and the regular expression of the keys that are bound."""
        self._published: dict[tuple[int, int], Publish] = {}
        self._admitted: dict[str, int] = {}
        """The highest admitted sequence number of each publisher."""
        self._refused: dict[str, set[int]] = {}
        """Sequence numbers of each publisher that were refused and not admitted since."""
        self._publishers: dict[str, tuple[int, int]] = {}
        """The last sequence number of each remembered publisher, and the time when it was seen."""
        self._sequences: dict[tuple[str, str, int], None] = {}
        """Queue, publisher and sequence number of each enqueued message."""
        self._holders: dict[Consumer, Holder] = {}
        self._delivered_to: dict[Consumer, dict[int, tuple[int, int]]] = {}
        """Place of each message that a consumer has ever got, by message id."""
        self._limits: dict[tuple[str, int], int] = {}
        self._purges: dict[tuple[str, int], str] = {}
        """The queue that each session purges."""
        self._failed: dict[tuple[str, int], None] = {}
        """Sessions whose channel was closed by an error."""
        self._late: dict[tuple[str, int], int] = {}
        """Slow consumer of each session with a reported delivery timeout."""
        self._gone: dict[Consumer, None] = {}
        """Consumers that were cancelled for a delivery timeout."""
        self._refusals: list[list[QueueModel]] = []
        """Targets of the batch's refused messages, except delayed messages and transactions."""
        self._grown: dict[QueueModel, None] = {}
        """Queues that got messages back, or that messages died in, during a batch; a limit does not forbid that."""
        self._created: set[str] = set()
        """The queues that the present batch has created. A refusal of the batch may come before that."""
        self._moves = MoveOracle(fail, self.fates, lambda: self._queues, self._published)
        self._leases = LeaseOracle(fail, self.fates, lambda: self._queues, self._lease, self._release)
        self._sinks = SinkOracle(fail, self.fates, lambda: self._queues, self._route, self._arrive_from_sink)
        self._credit = CreditOracle(fail, self.fates, lambda: self._holders)
        self._firsts: dict[tuple[QueueModel, int], list[int]] = {}
        """Arrival numbers of first deliveries in the current effects, by queue and level."""

    # Queries of clients

    def ready(self, queue: str) -> int:
        """Return the number of messages that are ready or delayed."""
        return self._queues[queue].count if queue in self._queues else 0

    def held(self, queue: str) -> int:
        return self._queues[queue].held if queue in self._queues else 0

    def dead(self, queue: str) -> int:
        """Return the number of messages that await dead-lettering, without those that may wait for ever."""
        model = self._queues.get(queue)
        if model is None:
            return 0
        stuck = sum(not self._may_wait(model, message) for message in model.stuck.values())
        return (0 if self._is_stuck(model) else len(model.dead) + len(model.died)) + stuck

    def leased(self, queue: str) -> int:
        """Return the number of messages in leases."""
        return self._leases.leased(self._queues[queue]) if queue in self._queues else 0

    @property
    def moves_under_way(self) -> int:
        return self._moves.under_way

    def _is_stuck(self, model: QueueModel) -> bool:
        """Return whether a queue's dead letters may wait for ever behind the first one (before version 11)."""
        return self._version < 11 and bool(model.dead) and self._may_wait(model, model.dead[0])

    def _may_wait(self, model: QueueModel, dead: Message) -> bool:
        """Return whether a dead letter may wait for ever, because no client makes room in the target.

        This happens where queues dead-letter at least once to each other: the waiting messages count in their queue.
        """
        if model.settings.dead_letter_strategy != "at-least-once":
            return False
        targets, deaths, _ = self._targets_of_dead(model, dead)
        over = over_after(dead, model.name, dead.reason)
        return any(is_full(target) and not goes_in_circles(deaths, over, target.name) for target in targets)

    def admitted(self, publisher: str) -> int:
        """Return the last sequence number that has taken effect."""
        return self._admitted.get(publisher, 0)

    def is_gone(self, node: str, consumer: int) -> bool:
        """Return whether the consumer was cancelled for being too slow."""
        return (node, consumer) in self._gone

    @property
    def now_ms(self) -> int:
        """The cluster's time in the last entry, in ms."""
        return self._now_ms

    def unreported(self, origin: str) -> list[int]:
        """Return the consumers of a node whose client waits for a report of their state."""
        return [number for node, number in self._credit.unreported() if node == origin]

    def place(self, origin: str, consumer: int, message_id: int) -> tuple[int, int] | None:
        """Return the place of the message that a consumer got under this id, or None."""
        return self._delivered_to.get((origin, consumer), {}).get(message_id)

    def held_ids(self, origin: str) -> Iterator[tuple[int, int]]:
        """Yield consumer and message id of every message that the consumers of a node hold."""
        for (node, consumer), holder in self._holders.items():
            if node == origin:
                for message_id in holder.held:
                    yield consumer, message_id

    # In log order

    def outage(self, machine: QueueMachine, length_ms: int) -> None:
        if machine.version >= machine.outages_since:
            self._outage_ms += length_ms
            self.fates["outages"] += 1

    def batch(
        self,
        machine: QueueMachine,
        origin: str,
        index: int,
        ordinal: int,
        time_ms: int,
        payload: memoryview,
        effects: Sequence[Any],
    ) -> None:
        self._advance(time_ms)
        self._version = machine.version
        outcomes = _outcomes(origin, effects)
        commands = decode_commands(payload)
        self._delete(commands, outcomes)
        queues = machine.vhosts[DEFAULT_VHOST].queues.values()
        self._created = {queue.name for queue in queues if not self._knows(queue)}
        self._check_queues(machine)
        before = {model: model.messages for model in self._queues.values() if rejects(model)}
        slots = count(ordinal << MESSAGE_BITS)
        limited: list[QueueModel] = []
        positions = iter(range(len(commands)))
        done = 0
        for position in positions:
            command = commands[position]
            if isinstance(command, SessionDown | Recover) or _is_return_of_all(command):
                before_it = _effects_before(origin, command, effects)
                self._effects(machine, effects[done:before_it])
                done = max(done, before_it)
            if isinstance(command, Commit):
                content = commands[position + 1 : position + 1 + command.count]
                self._commit(origin, index, slots, content, outcomes, command.session)
                for _ in content:
                    next(positions)
            elif isinstance(command, Enqueue | Publish):
                limited += self._publish(origin, index, slots, command, outcomes)
            elif isinstance(command, DeadLetter):
                self._dead_letter(machine, command)
            elif isinstance(command, MoveMessages):
                self._move_messages(machine, command)
            elif isinstance(command, StoreFragment):
                next(slots)
            elif isinstance(command, SinkCommand):
                limited += self._sinks.carry_out(machine, index, slots, command, self._available_ms)
            elif isinstance(command, DeclareQueue):
                self._declared(machine, origin, command, outcomes)
            else:
                self._command(origin, command, outcomes)
        self._effects(machine, effects[done:])
        for command in commands:
            if isinstance(command, GroupCommand):
                self._leases.carry_out(machine, index, command, self._available_ms)
        self._check_orders()
        for model in limited:
            if model not in self._grown:
                self._check_limit(model, machine.vhosts[DEFAULT_VHOST].queues[model.name], before[model])
        if all(isinstance(command, Enqueue | Publish) for command in commands):
            for targets in self._refusals:
                self._check_refusal(targets)
        self._refusals.clear()
        self._grown.clear()
        for model in self._queues.values():
            queue = machine.vhosts[DEFAULT_VHOST].queues[model.name]
            if model.doubtful:
                self._resolve_doubts(model, queue)
            if queue.first_dead != model.first_dead:
                self._fail(f"{model.name} has moved dead letters that nobody asked for")
        self._moves.record(machine, time_ms)

    def entry_ended(self, machine: QueueMachine, time_ms: int, effects: Sequence[Any]) -> None:
        self._advance(time_ms)
        self._leases.end_idle(machine, self._available_ms)
        self._sinks.end_idle(machine, self._available_ms)
        self._effects(machine, effects, ended=True)
        self._credit.end_entry()
        self._check_orders(ended=True)
        self._check_queues(machine)
        self._entries += 1
        for model in self._queues.values():
            self._end_entry(model, machine.vhosts[DEFAULT_VHOST].queues[model.name])
        self._moves.record(machine, time_ms)
        if self._entries % LOOKED_AT_EVERY == 0:
            self.check_machine("the first node", machine)

    def origin_down(self, machine: QueueMachine, origin: str, time_ms: int, effects: Sequence[Any]) -> None:
        self._advance(time_ms)
        self._check_queues(machine)
        for key in [key for key in self._holders if key[0] == origin]:
            self._give_back(self._holders.pop(key), failed=False)
        for known in (self._limits, self._failed, self._late):
            for key in [key for key in known if key[0] == origin]:
                del known[key]
        self._effects(machine, effects)
        self._check_orders()
        self._moves.record(machine, time_ms)

    @property
    def _available_ms(self) -> int:
        return self._now_ms - self._outage_ms

    def _advance(self, time_ms: int) -> None:
        """Advance the time.

        A delayed message becomes ready, and its time to live begins, at the first entry when it is due.
        """
        self._now_ms = time_ms
        for model in self._queues.values():
            while model.delays and model.delays[0][0] <= time_ms:
                due_ms, _, message = heappop(model.delays)
                if message.expires_ms:
                    message.expires_ms += time_ms - due_ms
                    heappush(model.expiries, (message.expires_ms, next(self._numbers), message))

    # Queues

    def _check_queues(self, machine: QueueMachine) -> None:
        """Take the queues and their settings from the machine; declarations and settings are tested elsewhere."""
        self._counts_outages = machine.version >= machine.outages_since
        for model in list(self._queues.values()):
            if not _is_there(machine, model):
                self._remove(model)
        for name, queue in machine.vhosts[DEFAULT_VHOST].queues.items():
            model = self._queues.get(name)
            if model is None:
                model = QueueModel(name, queue.number, queue.kind == QUORUM, queue.settings, 0, 0.0)
                self._queues[name] = model
                self._use(model)
            if model.settings.expires_ms != queue.settings.expires_ms and self._counts_outages:
                self._use(model)
            model.set_settings(queue.settings)
        for holder in self._holders.values():
            if holder.live:
                self._use(holder.model)
        for model in self._queues.values():
            if self._leases.is_used(model):
                self._use(model)
        self._bound = {}
        vhost = machine.vhosts[DEFAULT_VHOST]
        for binding in vhost.bindings:
            keys = _bound_keys(vhost.exchanges[binding.source].type, binding.routing_key)
            self._bound.setdefault(binding.source, []).append((binding.destination.name, keys))

    def _knows(self, queue: Queue) -> bool:
        model = self._queues.get(queue.name)
        return model is not None and model.number == queue.number

    def _delete(self, commands: Sequence[Command], outcomes: Outcomes) -> None:
        for command in [command for command in commands if isinstance(command, DeleteQueue)]:
            is_done = isinstance(outcomes.results.get(command.session), QueueDeleted)
            if is_done and command.name in self._queues:
                self._forget(self._queues[command.name])

    def _remove(self, model: QueueModel) -> None:
        """Remove a queue that has expired."""
        if model.settings.expires_ms is None:
            self._fail(f"{model.name} is gone")
        for key, holder in self._holders.items():
            if holder.model is model and holder.live:
                self._fail(f"{model.name} is gone, and {key} consumed it")
        self._check_unused(model)
        self._forget(model)

    def _use(self, model: QueueModel) -> None:
        """Record that a client uses a queue."""
        model.used_ms = self._available_ms
        model.used_s = -math.inf
        if self._majority_s is not None and self._counts_outages:
            model.used_s = self._majority_s()

    def _declared(
        self, machine: QueueMachine, origin: str, command: DeclareQueue, outcomes: Outcomes
    ) -> None:
        session, result = (
            machine.sessions.get((origin, command.session)),
            outcomes.results.get(command.session),
        )
        is_here = session is not None and session.vhost is machine.vhosts[DEFAULT_VHOST]
        if is_here and isinstance(result, QueueDeclared) and result.name in self._queues:
            self._use(self._queues[result.name])

    def _check_unused(self, model: QueueModel) -> None:
        """Check that clients could have used an expired queue for its whole `x-expires`, and did not."""
        expires_ms, unused_ms = model.settings.expires_ms or 0, self._available_ms - model.used_ms
        if unused_ms < expires_ms:
            self._fail(f"{model.name} is gone after {unused_ms} of {expires_ms} ms in which it could be used")
        if self._majority_s is not None:
            could_ms = 1000 * (self._majority_s() - model.used_s)
            if could_ms < expires_ms - UNSEEN_MS:
                self._fail(
                    f"{model.name} is gone, and there was a majority for {could_ms:.0f} of {expires_ms} ms"
                )
        self.fates["queues expired"] += 1

    def _forget(self, model: QueueModel) -> None:
        """Forget a removed queue, with all its messages."""
        del self._queues[model.name]
        self._holders = {key: holder for key, holder in self._holders.items() if holder.model is not model}
        self.fates["gone with its queue"] += model.messages + model.held + self._leases.forget(model)

    def _route(self, exchange: str, keys: Iterable[str]) -> list[QueueModel]:
        keys = dict.fromkeys(keys)
        bound = self._bound.get(exchange, ())
        matching = (name for name, pattern in bound if any(map(pattern.fullmatch, keys)))
        names = dict.fromkeys(matching) if exchange else keys
        return [self._queues[name] for name in names if name in self._queues]

    def _end_entry(self, model: QueueModel, queue: Queue) -> None:
        self._expire(model, queue)
        backlog = queue.backlog
        if backlog.count + backlog.delayed != model.count:
            self._drop_over_limit(model, queue)
        settings = model.settings
        if settings.overflow == "drop-head" and settings.max_length is not None:
            over = backlog.count + backlog.delayed - settings.max_length
            # There are never so many that some would stay for the next entry.
            if over > 0 and backlog.count:
                self._fail(f"{model.name} has {over} messages more than its limit")
        if model.died or queue.dead_count != len(model.dead) + len(model.stuck):
            self._check_dead(model, queue)
        if model.stuck or queue.stuck:
            self._check_stuck(model, queue)
        if queue.unacked != model.held:
            self._fail(f"consumers hold {queue.unacked} messages of {model.name}, not {model.held}")
        model.begin_entry()

    def _expire(self, model: QueueModel, queue: Queue) -> None:
        """Expire due messages; the machine may leave some for the next entry if there are very many."""
        due: dict[Message, None] = {}
        while model.expiries and model.expiries[0][0] <= self._now_ms:
            expires_ms, _, message = heappop(model.expiries)
            # A message that became ready late expires later than computed at its publishing.
            if expires_ms == message.expires_ms and message in model.ready.get(message.name, ()):
                due[message] = None
        left: dict[Message, None] = {}
        if len(due) > DUE_MAX:
            there = Counter(names_of(queue, waiting_ranges(queue)))
            there.subtract(message.name for message in ready_messages(model))
            there.update(message.name for message in due)
            for message in reversed(due):
                if there[message.name] > 0:
                    there[message.name] -= 1
                    left[message] = None
            if left and len(due) - len(left) < DUE_MAX:
                self._fail(
                    f"{len(left)} messages of {model.name} do not expire: {[m.name for m in left][:5]}"
                )
        for message in due:
            if message in left:
                self._let_expire(model, message)
            else:
                self._forget_ready(model, message)
                self._die(model, message, EXPIRED)

    def _drop_over_limit(self, model: QueueModel, queue: Queue) -> None:
        """Check that missing messages which did not expire were over the limit, and let them die."""
        there = Counter(names_of(queue, waiting_ranges(queue)))
        dropped: list[Message] = []
        for name, messages in model.ready.items():
            missing = len(messages) - there.pop(name, 0)
            if missing < 0:
                self._fail(f"{model.name} has {name} too often")
            dropped.extend(messages[:missing])
        if there:
            self._fail(f"{model.name} has what should not be there: {list(there)[:5]}")
        bound = 0 if model.least_limit is None else max(model.peak - model.least_limit, 0)
        settings = model.settings
        is_bounded = settings.max_length_bytes is not None or len(dropped) <= bound
        if not (model.drops_head and is_bounded):
            names = [message.name for message in dropped[:5]]
            self._fail(f"{model.name} has lost {len(dropped)} messages (by limit: {bound}): {names}")
        for message in dropped:
            self._take(model, message)
            self._die(model, message, MAXLEN)

    def _check_dead(self, model: QueueModel, queue: Queue) -> None:
        """Take the order of dead letters from the machine, and check that it has exactly the messages that died."""
        there = [(name, dead.reason) for dead in queue.dead for name in names_of(queue, [dead.range])]
        known = [(message.name, message.reason) for message in model.dead]
        if there[: len(known)] != known:
            self._fail(f"the dying messages of {model.name} were {known[:5]} and are {there[:5]}")
        died: dict[tuple[Key, str], list[Message]] = {}
        for message in model.died:
            died.setdefault((message.name, message.reason), []).append(message)
        for death in there[len(known) :]:
            messages = died.get(death)
            if not messages:
                self._fail(f"{death} of {model.name} is dying and should not be")
                return
            model.dead.append(messages.pop())
        lost = [death for death, messages in died.items() if messages]
        if lost and not model.drops_dead:
            self._fail(f"messages of {model.name} are not dead-lettered: {lost[:5]}")
        model.died.clear()

    # Publishing

    def _commit(
        self,
        origin: str,
        index: int,
        slots: Iterator[int],
        content: Sequence[Command],
        outcomes: Outcomes,
        session: int,
    ) -> None:
        """Check that a transaction is carried out completely or not at all."""
        if (origin, session) in self._failed:
            is_done = False
        else:
            is_done = isinstance(outcomes.results.get(session), Committed)
            if is_done and session in outcomes.refused:
                self._fail(f"a transaction is carried out in part: {outcomes.refused[session]}")
            if not is_done and not any(rejects(model) for model in self._targets(content)):
                self._fail(f"a transaction is not carried out: {content}")
        self.fates["transactions" if is_done else "transactions not carried out"] += 1
        for part in content:
            if isinstance(part, Enqueue | Publish):
                if is_done:
                    self._publish(origin, index, slots, part, outcomes)
                else:
                    _pass_over(slots, part.count)
            elif is_done:
                self._settle(origin, part)

    def _publish(
        self,
        origin: str,
        index: int,
        slots: Iterator[int],
        command: Enqueue | Publish,
        outcomes: Outcomes,
    ) -> list[QueueModel]:
        """Publish messages. Returns the queues that took messages and have a limit that they must not exceed."""
        places = [(index, slot) for _, slot in zip(range(command.count), slots, strict=False)]
        if (origin, command.session) in self._failed:
            return []
        properties = command if isinstance(command, Publish) else _plain(command)
        accepted = command.count
        targets = self._route(command.exchange, [command.routing_key, *properties.more_keys])
        refused = outcomes.refusal(command)
        if refused is not None:
            accepted = refused.first_seq - command.first_seq
        publisher, sequence = properties.publisher, properties.publish_seq
        new: Sequence[int] = range(command.count)
        if publisher:
            new = self._new_of(publisher, sequence, command.count, accepted)
        taken = [number for number in new if number < accepted]
        for number in taken:
            self._published[places[number]] = properties
            for model in targets:
                if publisher:
                    enqueued = (model.name, publisher, sequence + number)
                    if enqueued in self._sequences:
                        self._fail(f"{enqueued} is enqueued again")
                    self._sequences[enqueued] = None
                self._arrive(model, self._new_message(model, places[number], properties))
                self.enqueued += 1
        if accepted < command.count:
            self.fates["refused"] += command.count - accepted
            if not any(map(is_full, targets)):
                self._fail(f"{refused} refuses what there is room for")
            if not properties.delay_ms:
                self._refusals.append(targets)
        return [model for model in targets if taken and rejects(model)]

    def _arrive_from_sink(self, model: QueueModel, place: tuple[int, int], properties: Publish) -> None:
        self._published[place] = properties
        self._arrive(model, self._new_message(model, place, properties))
        self.enqueued += 1

    def _new_of(self, publisher: str, sequence: int, count: int, accepted: int) -> list[int]:
        """Return which of `count` messages are new or were refused before.

        The first `accepted` of all messages are accepted.
        """
        seen = self._known_of(publisher)
        refused = self._refused.setdefault(publisher, set())
        new = [number for number in range(count) if sequence + number > seen or sequence + number in refused]
        taken = [number for number in new if number < accepted]
        self.fates["repeated"] += accepted - len(taken)
        if new:
            last = max(seen, sequence + taken[-1]) if taken else seen
            self._publishers[publisher] = (last, self._available_ms)
            self._admitted[publisher] = max(last, self.admitted(publisher))
            refused.update(sequence + number for number in new)
            refused.difference_update(sequence + number for number in taken)
        return new

    def _known_of(self, publisher: str) -> int:
        """Return a publisher's last sequence number, or 0 if it was forgotten after a long time (clocks may jump)."""
        last, seen_ms = self._publishers.get(publisher, (0, self._available_ms))
        if self._available_ms - seen_ms < PUBLISHER_AGE_MS:
            return last
        self._sequences = {key: None for key in self._sequences if key[1] != publisher}
        self._refused.pop(publisher, None)
        return 0

    def _targets(self, content: Iterable[Command]) -> list[QueueModel]:
        targets: list[QueueModel] = []
        for part in content:
            if isinstance(part, Enqueue | Publish):
                keys = part.more_keys if isinstance(part, Publish) else []
                targets += self._route(part.exchange, [part.routing_key, *keys])
        return targets

    def _check_refusal(self, targets: Sequence[QueueModel]) -> None:
        """Check that no target could take a refused message.

        A queue without ready messages and with a waiting consumer needs no room; consumers with a channel limit do not
        count.
        """
        for model in filter(rejects, targets):
            takers = [
                holder
                for (node, _), holder in self._holders.items()
                if holder.model is model
                and holder.live
                and holder.room > 0
                and not self._limits.get((node, holder.session))
            ]
            if model.count or not takers or model.settings.single_active_consumer:
                return
        self._fail(f"refused, though consumers wait: {[model.name for model in targets]}")

    def _check_limit(self, model: QueueModel, queue: Queue, before: int) -> None:
        """Check that a queue does not exceed its limit or its earlier length.

        Messages for waiting consumers leave it at once.
        """
        limit = model.settings.max_length
        if limit is not None and queue.messages > max(limit, before):
            self._fail(f"{model.name} has taken a message more than {limit}")

    def _new_message(self, model: QueueModel, place: tuple[int, int], properties: Publish) -> Message:
        ready_ms = self._now_ms + properties.delay_ms
        own = None if properties.ttl_ms == NO_TTL else properties.ttl_ms
        message = Message(
            place, (), model.settings.level(properties.priority), expiry_ms(model, own, ready_ms), ready_ms
        )
        if not properties.delay_ms:
            message.arrival = next(self._numbers)
        return message

    def _arrive(self, model: QueueModel, message: Message) -> None:
        self._put(model, message)
        if message.arrival:
            model.order.setdefault(message.level, {})[message.arrival] = message
            self._let_expire(model, message)
        else:
            heappush(model.delays, (message.ready_ms, next(self._numbers), message))

    def _put(self, model: QueueModel, message: Message) -> None:
        model.ready.setdefault(message.name, []).append(message)
        model.count += 1
        model.peak += 1

    def _let_expire(self, model: QueueModel, message: Message) -> None:
        if message.expires_ms:
            heappush(model.expiries, (message.expires_ms, next(self._numbers), message))

    def _take(self, model: QueueModel, message: Message) -> bool:
        """Take a message out of a queue; return False if it is not ready."""
        messages = model.ready.get(message.name, ())
        if message not in messages:
            return False
        self._forget_ready(model, message)
        return True

    def _forget_ready(self, model: QueueModel, message: Message) -> None:
        messages = model.ready[message.name]
        messages.remove(message)
        if not messages:
            del model.ready[message.name]
        model.count -= 1
        if message.arrival:
            del model.order[message.level][message.arrival]

    # Dead-lettering

    def _die(self, model: QueueModel, message: Message, reason: str) -> None:
        self.fates[reason] += 1
        message.arrival = 0
        if model.settings.dead_letter_exchange is not None or (
            model.keeps_dead and reason in (EXPIRED, MAXLEN)
        ):
            message.reason = reason
            model.died.append(message)

    def _check_stuck(self, model: QueueModel, queue: Queue) -> None:
        """Check that the messages in the lines of full targets are those that found no room."""
        there = {
            number + place: name
            for number, dead, _ in stuck_of(queue)
            for place, name in enumerate(names_of(queue, [dead.range]))
        }
        known = {number: message.name for number, message in model.stuck.items()}
        if there != known:
            self._fail(f"the stuck messages of {model.name} should be {known} and are {there}")

    def _dead_letter(self, machine: QueueMachine, command: DeadLetter) -> None:
        model = self._queues.get(command.queue)
        is_known = model is not None and model.number == command.number
        if model is not None and is_known and command.first in model.stuck:
            self.fates["tried again"] += 1
            asked = range(command.first, command.first + command.count)
            self._try(machine, model, command, {n: model.stuck.pop(n) for n in asked if n in model.stuck})
            return
        if model is None or not is_known or model.first_dead != command.first:
            self.fates["asked to move in vain"] += 1
            return  # another node has done it already
        self.fates["asked to move"] += 1
        if machine.version < 11:
            self._dead_letter_in_order(machine, model, command)
            return
        tried: dict[int, Message] = {}
        end = min(
            machine.vhosts[DEFAULT_VHOST].queues[command.queue].first_dead, command.first + command.count
        )
        while model.first_dead < end and model.dead:
            tried[model.first_dead] = model.dead.popleft()
            model.first_dead += 1
        self._try(machine, model, command, tried)

    def _try(
        self, machine: QueueMachine, model: QueueModel, command: DeadLetter, tried: dict[int, Message]
    ) -> None:
        """Follow dead letters that were tried: each has left its queue, or waits for a target that refuses messages."""
        waits_for = {
            number + place: target
            for number, dead, target in stuck_of(machine.vhosts[DEFAULT_VHOST].queues[command.queue])
            for place in range(dead.range.count)
        }
        for number, message in tried.items():
            target = waits_for.get(number)
            if target is None:
                self._check_publication(model, message, command)
                self._move(model, message)
                continue
            self.fates["stuck"] += 1
            model.stuck[number] = message
            targets, _, _ = self._targets_of_dead(model, message)
            names = [each.name for each in targets] or [""]
            if model.settings.dead_letter_strategy != "at-least-once":
                self._fail(f"{message.name} of {model.name} stays, and need not: {command}")
            elif target not in names:
                self._fail(f"{message.name} of {model.name} waits for {target!r}, and not for one of {names}")

    def _dead_letter_in_order(self, machine: QueueMachine, model: QueueModel, command: DeadLetter) -> None:
        asked = min(command.count, len(model.dead))
        moved = min(machine.vhosts[DEFAULT_VHOST].queues[command.queue].first_dead - model.first_dead, asked)
        if moved < asked and model.settings.dead_letter_strategy != "at-least-once":
            self._fail(f"dead letters of {model.name} stay, and none has to: {command}")
        for _ in range(moved):
            message = model.dead.popleft()
            model.first_dead += 1
            self._check_publication(model, message, command)
            self._move(model, message)

    def _move_messages(self, machine: QueueMachine, command: MoveMessages) -> None:
        for source, message, target, copy in self._moves.step(machine, command, self._now_ms):
            self._forget_ready(source, message)
            copy.arrival = next(self._numbers)
            self._arrive(target, copy)

    def _check_publication(self, model: QueueModel, message: Message, command: DeadLetter) -> None:
        """Check that a dead letter's properties, read by the leader from its log, equal the published properties."""
        known = self._published[message.place]
        expiration = "" if known.ttl_ms == NO_TTL else str(known.ttl_ms)
        kept = (command.expiration, command.priority)
        moved_as = (command.exchange, command.routing_key, [*command.cc, *command.bcc], *kept)
        if moved_as != (known.exchange, known.routing_key, known.more_keys, expiration, known.priority):
            self._fail(f"{message.name} of {model.name} is dead-lettered as another: {command}, {known}")

    def _move(self, model: QueueModel, message: Message) -> None:
        """Route a dead letter through its dead-letter exchange, in the same step."""
        if model.settings.dead_letter_exchange is None:
            self.fates["no dead-letter exchange any more"] += 1
            return
        targets, deaths, new_key = self._targets_of_dead(model, message)
        over = over_after(message, model.name, message.reason)
        first = message.first or model.name
        is_safe = model.settings.dead_letter_strategy == "at-least-once"
        if not targets:
            self.fates["not routed"] += 1
            if is_safe:
                self._fail(f"{message.name} of {model.name} is dropped, which no queue takes")
        for target in targets:
            if goes_in_circles(deaths, over, target.name):
                self.fates["circles"] += 1
                continue
            level = target.settings.level(self._published[message.place].priority)
            expires_ms = expiry_ms(target, None, self._now_ms)
            number = next(self._numbers)
            place, now_ms = message.place, self._now_ms
            copy = Message(place, deaths, level, expires_ms, now_ms, new_key, number, first=first, over=over)
            copy.annotations = message.annotations
            self.fates["dead-lettered safely" if is_safe else "dead-lettered"] += 1
            self._arrive(target, copy)
            if target.settings.overflow == "reject-publish" and not is_safe:
                target.doubtful.append(copy)
                target.was_full |= is_full(target, 1)

    def _targets_of_dead(
        self, model: QueueModel, message: Message
    ) -> tuple[list[QueueModel], Deaths, str | None]:
        """Return the target queues of a dead message, its new death history, and its new routing key if any."""
        settings = model.settings
        exchange, key = settings.dead_letter_exchange, settings.dead_letter_routing_key
        deaths = deaths_after(message.deaths, model.name, message.reason)
        new_key = message.key if key is None else key
        known = self._published[message.place]
        keys = [known.routing_key, *known.more_keys] if new_key is None else [new_key]
        return self._route(exchange or "", keys), deaths, new_key

    def _resolve_doubts(self, model: QueueModel, queue: Queue) -> None:
        """Drop dead letters that found no room; at-least-once dead letters are kept."""
        there = Counter(names_of(queue, [*waiting_ranges(queue), *dead_ranges(queue)]))
        for message in model.doubtful:
            if there[message.name]:
                there[message.name] -= 1
            elif self._take(model, message):
                # With a time to live of 0 it may make way for the next messages of the same batch.
                has_expired = 0 < message.expires_ms <= self._now_ms
                self.fates["expired" if has_expired else "no room"] += 1
                if not (model.was_full or has_expired):
                    self._fail(f"{message.name} is not moved to {model.name}, which has room")
        model.doubtful.clear()
        model.was_full = False

    # Other commands

    def _command(self, origin: str, command: Command, outcomes: Outcomes) -> None:
        match command:
            case Checkout():
                if isinstance(outcomes.results.get(command.session), Consuming):
                    self._begin(origin, command, command.credit)
            case AttachConsumer():
                self._attach(origin, command, outcomes.results.get(command.session))
            case SetCredit():
                self._credit.set(self._holders.get((origin, command.consumer)), command)
            case Modify():
                self._modify(origin, command)
            case Get():
                if isinstance(outcomes.results.get(command.session), GetOk):
                    self._begin(origin, command, 0)
            case GetMessages():
                result = outcomes.results.get(command.session)
                if isinstance(result, Got) and result.ranges:
                    self._begin(origin, command, 0)
            case Cancel():
                holder = self._holders.get((origin, command.consumer))
                if holder is not None and holder.session == command.session:
                    holder.live = False
            case SetPrefetch():
                holder = self._holders.get((origin, command.consumer))
                if holder is not None and holder.live and holder.flow is None:
                    holder.prefetch = command.credit
            case Limit():
                if command.session in outcomes.results:
                    self._limits[origin, command.session] = command.count
            case PurgeQueue():
                self._purges[origin, command.session] = command.name
            case Recover():
                if command.session in outcomes.results:
                    for holder in self._holders_of(origin, command.session):
                        self._give_back(holder, failed=False)
            case SessionDown():
                self._session_down(origin, command.session)
            case Settle() | Return() | Reject() | Discard():
                self._settle(origin, command)
            case _:
                pass

    def _begin(self, origin: str, command: Checkout | Get | GetMessages, prefetch: int) -> None:
        model = self._queues[command.queue]
        self._holders[origin, command.consumer] = Holder(command.session, model, prefetch, command.timeout_ms)
        self._delivered_to[origin, command.consumer] = {}

    def _attach(self, origin: str, command: AttachConsumer, result: object) -> None:
        if isinstance(result, Attached) and result.consumer == command.consumer:
            model = self._queues[command.queue]
            flow = Flow(command.wants_activity, result.is_active)
            holder = Holder(command.session, model, 0, command.timeout_ms, flow)
            self._holders[origin, command.consumer] = holder
            self._delivered_to[origin, command.consumer] = {}
        elif isinstance(result, AttachRefused) and not (result.code == 404 and command.queue in result.text):
            self._fail(f"refused: {result}")

    def _modify(self, origin: str, command: Modify) -> None:
        holder = self._holders.get((origin, command.consumer))
        if holder is None:
            return
        messages, model = self._let_go(holder, command.first, command.last), holder.model
        annotations = dict(zip(command.annotation_keys, command.annotation_values, strict=True))
        for message in messages:
            message.annotations = tuple((dict(message.annotations) | annotations).items())
        self.fates["modified"] += len(messages)
        if command.undeliverable_here:
            self._grown[model] = None
            for message in messages:
                self._die(model, message, REJECTED)
        else:
            failed, ended = command.delivery_failed, command.delivery_failed and model.is_quorum
            self._put_back(model, messages, failed=failed, ended=ended, ready_ms=command.ready_ms)

    def _purge(self, machine: QueueMachine, model: QueueModel, messages: int) -> None:
        gone = sum(0 < message.expires_ms <= self._now_ms for message in ready_messages(model))
        least = 0 if model.trims else model.messages - gone * model.drops_dead
        if not least <= messages <= model.messages:
            self._fail(f"a purge of {model.name} reports {messages} of {model.messages} messages")
        self.fates["purged"] += model.messages
        for message in list(ready_messages(model)):
            self._forget_ready(model, message)
        model.dead.clear()
        model.stuck.clear()
        model.died.clear()
        model.first_dead = machine.vhosts[DEFAULT_VHOST].queues[model.name].first_dead

    def _session_down(self, origin: str, session: int) -> None:
        for holder in self._holders_of(origin, session):
            self._give_back(holder, failed=True)
        self._holders = {
            key: holder
            for key, holder in self._holders.items()
            if key[0] != origin or holder.session != session
        }
        for known in (self._limits, self._failed, self._late):
            known.pop((origin, session), None)

    def _settle(self, origin: str, command: Command) -> None:
        if not isinstance(command, Settle | Return | Reject | Discard):
            return
        holder = self._holders.get((origin, command.consumer))
        if holder is None:
            return
        messages = self._let_go(holder, command.first, command.last)
        match command:
            case Settle():
                self.fates["settled"] += len(messages)
            case Discard():
                self._grown[holder.model] = None
                for message in messages:
                    self._die(holder.model, message, REJECTED)
            case _:
                self._put_back(holder.model, messages, failed=isinstance(command, Reject))

    def _holders_of(self, origin: str, session: int) -> list[Holder]:
        return [
            holder for key, holder in self._holders.items() if key[0] == origin and holder.session == session
        ]

    def _let_go(self, holder: Holder, first: int, last: int) -> list[Message]:
        ids = [number for number in holder.held if first <= number <= last]
        holder.model.held -= len(ids)
        for number in ids:
            del holder.since_ms[number]
        return [holder.held.pop(number) for number in ids]

    def _give_back(self, holder: Holder, *, failed: bool) -> None:
        ended = failed and self._version >= 11 and holder.model.is_quorum
        messages = self._let_go(holder, 0, holder.next_id)
        self._put_back(holder.model, messages, failed=failed, ended=ended)

    def _put_back(
        self,
        model: QueueModel,
        messages: Sequence[Message],
        *,
        failed: bool,
        ended: bool = False,
        ready_ms: int = 0,
    ) -> None:
        """Return messages to the queue after a failed delivery, now or after a delay, which may end at `ready_ms`.

        Messages over the delivery limit die.
        """
        settings = model.settings
        self._grown[model] = None
        counts_failures = settings.count_contract == "4.3"
        for message in messages:
            message.returns += 1
            message.failures += (failed and counts_failures) or ended
            times = message.failures if counts_failures else message.returns
            if settings.delivery_limit > UNLIMITED and times > settings.delivery_limit:
                self._die(model, message, DELIVERY_LIMIT)
                continue
            if settings.retry_type in ("all", "failed" if failed else "returned"):
                delay_ms = min(settings.retry_min_ms * max(1, times), settings.retry_max_ms)
                message.ready_ms = max(ready_ms, self._now_ms) if ready_ms else self._now_ms + delay_ms
                self.fates["retried later"] += 1
            self._put(model, message)
            self._let_expire(model, message)

    # Effects

    def _effects(self, machine: QueueMachine, effects: Sequence[Any], *, ended: bool = False) -> None:
        """Follow effects; `ended` means those of the entry's end."""
        for effect in effects:
            match effect:
                case Deliver():
                    self._delivered(machine, effect, ended=ended)
                case ConsumerState():
                    self._credit.reported(effect, self._now_ms, ended=ended)
                case DeliveriesReleased():
                    self._released(effect)
                case Reply(node, _, GetOk(consumer, range_, _, history)):
                    self._give(self._holders[node, consumer], (node, consumer), range_, history)
                case Reply(node, _, Got(consumer, ranges, _, histories)):
                    for range_ in ranges:
                        history = histories.get(range_.history)
                        self._give(self._holders[node, consumer], (node, consumer), range_, history)
                case Reply(node, session, QueuePurged(messages)):
                    self._purge(machine, self._queues[self._purges[node, session]], messages)
                case DeliveryTimeout():
                    self._timed_out(effect)
                case ConsumerGone():
                    self._consumer_gone(effect)
                case Failed():
                    self._session_failed(machine, effect)
                case ConnectionForced():
                    self.fates["connections told to close"] += 1
                case _:
                    pass

    def _check_orders(self, *, ended: bool = False) -> None:
        """Check the order of first deliveries, after all effects of a batch are known.

        A part of the effects may end between two consumers that a queue serves in turns.
        """
        for (model, level), arrivals in self._firsts.items():
            self._check_order(model, level, arrivals, ended=ended)
        self._firsts.clear()

    def _delivered(self, machine: QueueMachine, effect: Deliver, *, ended: bool) -> None:
        key = effect.node, effect.consumer
        holder = self._holders.get(key)
        if holder is None:
            self._fail(f"delivered to nobody: {effect}")
            return
        if effect.first_id != holder.next_id:
            self._fail(f"message id {effect.first_id} where {holder.next_id} was due: {effect}")
        for range_ in effect.ranges:
            self._give(holder, key, range_, effect.histories.get(range_.history))
        self._credit.check_delivered(key, holder, ended=ended)
        if holder.flow is None and len(holder.held) > holder.prefetch:
            self._fail(f"{key} holds {len(holder.held)} messages and may hold {holder.prefetch}")
        limit = self._limits.get((effect.node, holder.session), 0)
        others = self._holders_of(effect.node, holder.session)
        # Messages of a queue that has just expired do not count, and make room in the limit at once.
        together = sum(
            len(other.held) for other in others if other.is_consumer and _is_there(machine, other.model)
        )
        if 0 < limit < together:
            self._fail(f"session {holder.session} holds {together} messages and may hold {limit}")
        if holder.model.settings.single_active_consumer:
            self._check_active(key, holder)

    def _check_active(self, key: Consumer, holder: Holder) -> None:
        for other_key, other in self._holders.items():
            if other.model is holder.model and other is not holder and other.live and other.held:
                self._fail(f"{key} and {other_key} are both active at {holder.model.name}")

    def _give(self, holder: Holder, key: Consumer, range_: Range, history: History | None) -> None:
        model = holder.model
        deaths = deaths_of(history)
        for slot in range(range_.slot, range_.slot + range_.count):
            name = (range_.index, slot, deaths)
            messages = model.ready.get(name)
            if not messages:
                self._fail(f"{name} of {model.name} is delivered and was not ready")
                return
            message = self._took(model, messages[0], range_)
            annotations = () if history is None else history.annotations
            if message.annotations != annotations:
                self._fail(f"{message} of {model.name} is delivered with annotations {annotations}")
            model.held += 1
            holder.held[holder.next_id] = message
            holder.since_ms[holder.next_id] = self._available_ms
            self._delivered_to[key][holder.next_id] = message.place
            holder.next_id += 1

    def _lease(self, model: QueueModel, range_: Range, names: Iterable[Key]) -> list[Message]:
        """Take messages out of a queue for a lease, and check that they were ready."""
        leased: list[Message] = []
        for name in names:
            messages = model.ready.get(name)
            if not messages:
                self._fail(f"{name} of {model.name} is leased and was not ready")
                return leased
            leased.append(self._took(model, messages[0], range_))
        return leased

    def _release(self, model: QueueModel, messages: list[Message]) -> None:
        """Return messages of a lease to a queue, as they were."""
        self._grown[model] = None
        for message in messages:
            self._put(model, message)
            self._let_expire(model, message)

    def _took(self, model: QueueModel, message: Message, range_: Range) -> Message:
        """Check a message that leaves a queue as a part of this range, and take it out."""
        self._check_message(model, message, range_)
        if message.arrival:
            self._firsts.setdefault((model, message.level), []).append(message.arrival)
        self._forget_ready(model, message)
        message.arrival = 0
        return message

    def _check_message(self, model: QueueModel, message: Message, range_: Range) -> None:
        now_ms = self._now_ms
        if (message.returns, message.failures) != (range_.deliveries, range_.failures):
            self._fail(f"{message} of {model.name} is delivered as {range_}")
        if message.expires_ms != range_.expires_ms:
            self._fail(f"{message} of {model.name} is said to expire at {range_.expires_ms}")
        if 0 < message.expires_ms < now_ms:
            self._fail(f"{message} of {model.name} is delivered at {now_ms}, after its expiry")
        if message.ready_ms > now_ms:
            self._fail(f"{message} of {model.name} is delivered at {now_ms}, before its time")
        if message.level != range_.level:
            self._fail(f"{message} of {model.name} has level {range_.level}")

    def _check_order(self, model: QueueModel, level: int, arrivals: list[int], *, ended: bool) -> None:
        """Check that the next messages went out; they are compared as a set, because consumers take turns."""
        newest = model.newest.get(level, 0)
        if min(arrivals) < newest:
            self._fail(f"{min(arrivals)} of {model.name} is delivered after {newest}")
        model.newest[level] = max(arrivals)
        if model.trims:
            return  # a message that was passed over may have been dropped
        passed = self._next_arrival(model, level)
        if passed is not None and passed.arrival < max(arrivals):
            self._fail(f"{passed.name} of {model.name} is passed over")
        if ended and model.settings.strict_priorities:
            for other in model.order:
                if other > level and (passed := self._next_arrival(model, other)) is not None:
                    self._fail(f"{passed.name} of {model.name} is passed over for level {level}")

    def _next_arrival(self, model: QueueModel, level: int) -> Message | None:
        for message in model.order.get(level, {}).values():
            if not 0 < message.expires_ms <= self._now_ms and message not in model.doubtful:
                return message
        return None

    def _timed_out(self, effect: DeliveryTimeout) -> None:
        holder = self._holders.get((effect.node, effect.consumer))
        if holder is None or effect.message_id not in holder.held:
            self._fail(f"nobody holds that: {effect}")
            return
        out_ms = self._available_ms - holder.since_ms[effect.message_id]
        queue_ms = holder.model.settings.consumer_timeout_ms
        timeout_ms = holder.timeout_ms if queue_ms is None else queue_ms
        if out_ms < effect.timeout_ms or timeout_ms != effect.timeout_ms:
            self._fail(f"is out for {out_ms} ms: {effect}")
        self.fates["timeouts"] += 1
        if holder.flow is not None:
            return  # its messages are released
        self._late[effect.node, effect.session] = effect.consumer

    def _released(self, effect: DeliveriesReleased) -> None:
        holder = self._holders[effect.node, effect.consumer]
        queue_ms = holder.model.settings.consumer_timeout_ms
        timeout_ms = holder.timeout_ms if queue_ms is None else queue_ms
        for number in range(effect.first, effect.last + 1):
            if number in holder.held and self._available_ms - holder.since_ms[number] < timeout_ms:
                self._fail(f"message {number} is not out for {timeout_ms} ms: {effect}")
        messages = self._let_go(holder, effect.first, effect.last)
        if not messages:
            self._fail(f"releases nothing: {effect}")
        self._put_back(holder.model, messages, failed=False)

    def _consumer_gone(self, effect: ConsumerGone) -> None:
        key = effect.node, effect.consumer
        holder = self._holders.get(key)
        if holder is None:
            return  # its queue was removed, which was checked
        if self._late.pop((effect.node, effect.session), None) != effect.consumer:
            self._fail(f"has no reason: {effect}")
        self._gone[key] = None
        self._give_back(holder, failed=False)
        del self._holders[key]

    def _session_failed(self, machine: QueueMachine, effect: Failed) -> None:
        key = effect.node, effect.session
        self._failed[key] = None
        is_late = self._late.pop(key, None) is not None and "timed out" in effect.text
        is_vain = "partial tx completion" in effect.text
        is_gone = effect.code == 404 and not any(
            f"queue '{name}'" in effect.text
            for name in machine.vhosts[DEFAULT_VHOST].queues
            if name not in self._created
        )
        is_elsewhere = (
            effect.code == NOT_ALLOWED
        )  # of tenants.py: a virtual host is deleted, or a connection must close
        self.fates["refused elsewhere"] += is_elsewhere
        if not (is_late or is_vain or is_gone or is_elsewhere):
            self._fail(f"refused: {effect}")

    # At the end

    def check_machine(self, name: str, machine: QueueMachine) -> None:
        """Check that a node's machine has exactly the messages that have not met their fate."""
        for queue in machine.vhosts[DEFAULT_VHOST].queues.values():
            model = self._queues[queue.name]
            backlog = queue.backlog
            counts = (backlog.count + backlog.delayed, queue.unacked, queue.dead_count)
            expected = (model.count, model.held, len(model.dead) + len(model.stuck))
            if counts != expected:
                self._fail(
                    f"{queue.name} at {name} has {counts} messages ready, unacked, dying, not {expected}"
                )
            there = Counter(names_of(queue, waiting_ranges(queue)))
            if there != {key: len(messages) for key, messages in model.ready.items()}:
                self._fail(f"{queue.name} at {name} has other messages ready than it should")
            sizes = (backlog.size, backlog.delayed_size, queue.unacked_size)
            for number, size in zip((backlog.count, backlog.delayed, queue.unacked), sizes, strict=True):
                if (number == 0) != (size == 0):
                    self._fail(f"{queue.name} at {name} has {number} messages of {size} octets")
            if not any(counts) and not queue.leased and queue.histories:
                self._fail(f"{queue.name} at {name} is empty and remembers {len(queue.histories)} histories")
        self._leases.check(name, machine)
        self._sinks.check(name, machine)
        self._credit.check(name, machine)
        for (node, number), session in machine.sessions.items():
            held = sum(len(other.held) for other in self._holders_of(node, number) if other.is_consumer)
            if session.budget.held != held:
                self._fail(f"session {number} of {node} counts {session.budget.held} messages, not {held}")


def _is_there(machine: QueueMachine, model: QueueModel) -> bool:
    queue = machine.vhosts[DEFAULT_VHOST].queues.get(model.name)
    return queue is not None and queue.number == model.number


def _outcomes(origin: str, effects: Iterable[Any]) -> Outcomes:
    """Sort a batch's effects by the command that they answer; a session has at most one command in a batch."""
    results: dict[int, Any] = {}
    refused: dict[int, list[Rejected]] = {}
    for effect in effects:
        if isinstance(effect, Reply) and effect.node == origin:
            results[effect.session] = effect.result
        elif isinstance(effect, Rejected):
            refused.setdefault(effect.session, []).append(effect)
    return Outcomes(results, refused)


def _is_return_of_all(command: Command) -> TypeGuard[Return]:
    """Return whether a link gives all its messages back, because it ends."""
    return isinstance(command, Return) and command.last >= ALL_IDS


def _effects_before(origin: str, command: SessionDown | Recover | Return, effects: Sequence[Any]) -> int:
    """Return the number of effects before this command, after which its session holds no messages of them."""
    before = 0
    for place, effect in enumerate(effects):
        if isinstance(command, Return):
            if isinstance(effect, Deliver) and (effect.node, effect.consumer) == (origin, command.consumer):
                before = place + 1
        elif isinstance(effect, ConsumerState | Deliver | Reply) and effect[:2] == (origin, command.session):
            if isinstance(command, SessionDown):
                before = place + 1
            elif isinstance(effect, Reply):
                before = place
    return before


def _plain(command: Enqueue) -> Publish:
    return Publish(
        *command, more_keys=[], priority=NO_PRIORITY, ttl_ms=NO_TTL, delay_ms=0, publisher="", publish_seq=0
    )


def _bound_keys(exchange_type: str, key: str) -> re.Pattern[str]:
    """Return the pattern of the routing keys that a binding lets through."""
    match exchange_type:
        case "fanout":
            return re.compile(".*", re.DOTALL)
        case "topic":
            words = re.escape(key).replace(r"\*", r"[^.]*").replace(r"\.\#", r"(\..*)?")
            return re.compile(words, re.DOTALL)
        case _:
            return re.compile(re.escape(key))


def _pass_over(slots: Iterator[int], number: int) -> None:
    for _ in range(number):
        next(slots)
