"""Load for the queue machine: publishers and consumers at every node that submit commands as the broker would.

Invariant: as in workload.py. Each delivery is looked up in the node's own log, as the broker finds bodies, and must
equal the message that its publisher wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from chaos.sim.checks.lease_checks import leases_of
from chaos.sim.checks.queue_checks import QueueOracle, messages_of
from chaos.sim.checks.sink_checks import staged_in
from chaos.sim.checks.stored import batch_payloads
from chaos.sim.workload.queue_features import (
    CHANNEL,
    QUEUES,
    TO_ALL,
    draw_headers,
    draw_move,
    draw_policy,
    draw_properties,
    draw_queues,
    one_of_each,
    publishes,
    stored_message,
    with_sequence,
)
from chaos.sim.workload.tenants import Tenants
from chaos.sim.workload.workload import MAY_WAIT, ActingClient, SimulatedWorkload
from chaos.sim.world.brokers import Brokers
from chaos.sim.world.compared_machines import TAG
from cluster.log.segment import CorruptJournal
from qq.config import NodeLimits
from qq.machine.protocol.codec import encode_batch
from qq.machine.protocol.commands import (
    DEFAULT_VHOST,
    SINCE,
    AttachConsumer,
    BindQueue,
    Cancel,
    Checkout,
    CloseGroup,
    CloseSink,
    Command,
    Commit,
    CommitEpoch,
    CommitLeases,
    DeclareExchange,
    DeclareQueue,
    Discard,
    EndMove,
    Enqueue,
    Get,
    GetMessages,
    JoinFragments,
    LeaseMessages,
    Limit,
    Method,
    Modify,
    OpenGroup,
    OpenSink,
    Publish,
    PurgeQueue,
    PutUser,
    Recover,
    Reject,
    ReleaseLease,
    Return,
    SessionDown,
    SetCredit,
    SetPermissions,
    SetPrefetch,
    Settle,
    StageMessages,
    StoreFragment,
)
from qq.machine.protocol.effects import (
    AttachRefused,
    ConnectionForced,
    ConsumerCancelled,
    ConsumerGone,
    ConsumerState,
    Deliver,
    Failed,
    GetOk,
    Got,
    Known,
    Rejected,
    Reply,
    Result,
)
from qq.ranges import MESSAGE_BITS, MESSAGE_MASK, Range
from qq.stored.properties import NO_PRIORITY, NO_TTL

if TYPE_CHECKING:
    from chaos.sim.checks.checks import Checks
    from chaos.sim.world.cluster import SimulatedNode, SimulationOptions
    from chaos.sim.world.world import SimulatedWorld
    from qq.machine.machine import QueueMachine

CONNECTION = 1
MOVING_RUNS = 0.4
"""Share of the runs with moves; then each message goes to a single queue, so no queue holds a message twice."""
FRAGMENTED = 0.1
"""Probability that a published message ends with fragments."""
MOVES = 0.12
"""Probability per action that a move begins or is stopped."""
MOVER = "mover"
LEASING_RUNS = 0.5
"""Share of the runs without moves in which readers lease messages."""
LEASES = 0.5
"""Probability per action that a reader leases messages, or ends a lease."""
GROUPS = ("a", "b")
"""Groups of each queue."""
SINKING_RUNS = 0.5
"""Share of the runs without moves in which writers store messages in sinks."""
SINKING = 0.3
"""Probability per action that a writer stores messages, or commits an epoch."""
SINKS = ("s", "t")
LINKING_RUNS = 0.3
"""Share of the runs with consumers whose clients set the credit, as in AMQP 1.0."""
LINKING = 0.6
"""Probability per action that a client sets the credit of such a consumer, starts it or ends it."""
LINKS_MAX = 2
"""Such consumers of a client."""
MODIFIED = 0.4
"""Share of the deliveries to such consumers with the outcome `modified`."""
LAST_FENCE = 1_000_000
"""The fences with which clients end all groups are higher."""
TENANTS = 0.15
"""Probability per action of a step in the second virtual host."""
CONSUMERS_MAX = 4
LEASING_CONSUMERS_MAX = 1
"""As CONSUMERS_MAX, in runs in which messages stay ready for leases."""
TAKERS_MAX = 3
"""Consumers per session with a channel limit, at most."""
GETS_MAX = 4
"""Messages per GetMessages, at most."""
THINKING_MAX_S = 1.0
DRAIN_CREDIT = 1_000_000
PUBLISHERS = ("a", "b")
"""Publishers with deduplication: each message is enqueued once, even if it is published again."""
FORGOTTEN_MAX = 30
PATIENCE_MAX_S = 2.0
"""Seconds that a publisher waits for a confirm, at most, before it publishes again at any node."""


class RepeatingPublisher:
    """A client that repeats its messages at any node until it knows that they are enqueued."""

    def __init__(self, name: str, queue: str) -> None:
        self.name = name
        self.queue = queue
        self.next_sequence = 1
        """First sequence number that may not be enqueued yet."""
        self.waits_until_s = 0.0


class Attempt(NamedTuple):
    """A publisher's messages whose outcome is still unknown."""

    publisher: RepeatingPublisher
    sequence: int
    first_seq: int
    """Number of the first message among all publishes of the channel."""
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here

    def accepted(self, number: int) -> None:
        """Record that the first `number` messages are enqueued, and that the rest is not."""
        publisher = self.publisher
        publisher.next_sequence = max(publisher.next_sequence, self.sequence + number)
        publisher.waits_until_s = 0.0


class HeldMessages(NamedTuple):
    """Messages that a client is processing."""

    consumer: int
    first_id: int
    last_id: int
    range: Range
    """Some of these messages, which will be read again."""


@dataclass(slots=True)
class Session:
    """A client's view of a session.

    Answers are numbered. The client waits for each answer except that of a cancellation.
    """

    requested: int = 0
    answered: int = 0
    cancels: int = 0
    """Cancellations without an answer yet."""
    consumers: dict[int, str] = field(default_factory=dict)
    """The session's consumers, with their queues."""
    is_limited: bool = False

    @property
    def waits(self) -> bool:
        return self.requested > self.answered


@dataclass(slots=True)
class Link:
    """A client's view of a consumer whose credit it sets."""

    session: int
    sent: SetCredit | None = None
    """The last command that was submitted."""
    drain: int = 0
    """Number of the command whose drain has not been reported yet; 0 for none."""
    wants_state: int = 0
    """Number of the command after which the state has not been reported yet; 0 for none."""


class QueueClient(ActingClient):
    """Sessions of a client generation.

    A single session gets, purges and commits; the remaining sessions have a consumer or several.
    """

    def __init__(self, node: SimulatedNode, number: int, workload: QueueWorkload) -> None:
        super().__init__(node, number, workload)
        self.workload = workload
        self._ids = CONNECTION
        self._sessions: dict[int, Session] = {}
        self._requester = 0
        """The session that gets, purges and commits."""
        self._publishing = self._fresh_id()
        """The session that publishes; it gets no replies."""
        self._published = 0
        self._attempts: dict[int, Attempt] = {}
        """Attempts that may still be confirmed or refused, by sequence of their batch."""
        self._next_ids: dict[int, int] = {}
        """Next message id of each consumer."""
        self._reading: dict[int, HeldMessages] = {}
        """Deliveries that will be read again, by number."""
        self._deliveries = 0
        self._links: dict[int, Link] = {}
        """By consumer."""
        self._draining = False
        self._tenants = Tenants(node, self.workload.tenants_random, self._fresh_id)

    def act(self) -> None:
        random = self.workload.random
        if not self._requester:
            self._set_up()
        if self.workload.tenants_random.random() < TENANTS:
            self._command(*self._tenants.act())
        if self.workload.moves_messages and self.workload.moves_random.random() < MOVES:
            self._command(*self._move_something())
        if self.workload.leases_messages and self.workload.leases_random.random() < LEASES:
            self._lease_something()
        if self.workload.fills_sinks and self.workload.sinks_random.random() < SINKING:
            self._sink_something()
        if self.workload.sets_credit and self.workload.links_random.random() < LINKING:
            self._link_something()
        queue = random.choice(QUEUES)
        choice = random.random()
        if choice < 0.53:
            if not self.must_wait():
                self._publish_something(queue)
        elif choice < 0.70:
            self._consume(queue, random.choice((1, 3, 10, 100)))
        elif choice < 0.79:
            self._end_a_session()
        elif choice < 0.83:
            self._get(queue)
        elif choice < 0.86:
            self._request(self._any_session(), Recover(0))
        elif choice < 0.89:
            self._cancel()
        elif choice < 0.91:
            self._request(self._requester, PurgeQueue(0, CONNECTION, queue))
        elif choice < 0.95:
            self._change_limits()
        elif choice < 0.98:
            self._change_policies()
        else:
            self._request(self._new_session(), self._declaration(queue))

    def _set_up(self) -> None:
        """Declare the exchange and all queues, and open the session that gets, purges and commits."""
        kind = {"passive": False, "durable": True, "auto_delete": False, "internal": False}
        self._request(self._new_session(), DeclareExchange(0, TO_ALL, "fanout", **kind, arguments={}))
        for queue in QUEUES:
            self._request(self._new_session(), self._declaration(queue))
            self._request(self._new_session(), BindQueue(0, CONNECTION, queue, TO_ALL, "", {}))
        self._requester = self._new_session()

    def _move_something(self) -> list[Command]:
        """Return commands that begin or stop a move, or none before the agreed version has moves."""
        if self.machine.version < 8:
            return []
        random = self.workload.moves_random
        running = list(self.machine.moves.running.values())
        if running and random.random() < 0.2:
            return [EndMove(DEFAULT_VHOST, random.choice(running).id, "")]
        may_do_all = SetPermissions(MOVER, DEFAULT_VHOST, ".*", ".*", ".*")
        name = f"{self.node.name} {self.number} {self._fresh_id()}"
        return [PutUser(MOVER, b"", b"", []), may_do_all, draw_move(random, name, MOVER)]

    def _lease_something(self) -> None:
        """Read a lease, and submit a command of a group, which may belong to another client."""
        if self.machine.version < SINCE[OpenGroup]:
            return
        random = self.workload.leases_random
        for ranges in leases_of(self.machine):
            self._check_stored(random.choice(ranges))
        queues = [
            queue for queue in self.machine.vhosts[DEFAULT_VHOST].queues.values() if queue.name in QUEUES
        ]
        with_messages = [queue for queue in queues if queue.ready]
        if not queues:
            return
        queue, name = random.choice(with_messages or queues), random.choice(GROUPS)
        group, place, choice = queue.groups.get(name), (DEFAULT_VHOST, queue.name, name), random.random()
        if group is None or choice < 0.05:
            fence = (0 if group is None else group.fence) + random.choice((0, 1))
            order, expires_ms = random.choice(("ready", "arrival")), random.choice((0, 0, 2_000, 10_000))
            self._command(OpenGroup(*place, fence, self.node.name, "guest", order, False, expires_ms))
            return
        fence = max(group.fence - (random.random() < 0.1), 0)
        number = random.choice([*group.leases, max(group.last, 0), group.last + 1])
        generation = random.choice((0, group.generation, group.generation, max(group.generation - 1, 0)))
        if choice < 0.6:
            bounds = random.randint(1, 20), random.choice((1, 200, 2**40))
            self._command(LeaseMessages(*place, fence, number, *bounds, generation))
        elif choice < 0.8:
            self._command(CommitLeases(*place, fence, number, generation))
        elif choice < 0.95:
            self._command(ReleaseLease(*place, fence, number, generation))
        else:
            self._command(CloseGroup(*place, fence, random.random() < 0.5, generation))

    def _sink_something(self) -> None:
        """Read a staged message, and submit a command of a sink, which other clients use, too."""
        if self.machine.version < SINCE[OpenSink]:
            return
        random = self.workload.sinks_random
        staged = list(staged_in(self.machine))
        if staged:
            self._check_stored(random.choice(staged))
        name, choice = random.choice(SINKS), random.random()
        sink, place = self.machine.vhosts[DEFAULT_VHOST].sinks.get(name), (DEFAULT_VHOST, name, "guest")
        if sink is None or choice < 0.03:
            self._command(OpenSink(*place, random.choice((0, 0, 2_000, 10_000))))
            return
        epoch = max(sink.first_free + random.choice((-1, 0, 0, 0, 0, 1)), 0)
        known = {attempt.name: attempt.steps for attempt in sink.attempts.values() if attempt.epoch == epoch}
        if choice < 0.7:
            attempt = random.choice([*known, f"{self.node.name} {self.number} {self._fresh_id()}"])
            self._stage(place, epoch, attempt, known.get(attempt, 0))
        elif choice < 0.97:
            names = random.sample(list(known), random.randint(0, len(known)))
            steps = [known[each] + (random.random() < 0.05) for each in names]
            self._command(CommitEpoch(*place, epoch, names, steps))
        else:
            self._command(CloseSink(*place))

    def _stage(self, place: tuple[str, str, str], epoch: int, attempt: str, step: int) -> None:
        """Submit the next step of an attempt, sometimes with a wrong number."""
        random = self.workload.sinks_random
        queue = random.choice(QUEUES)
        exchange = TO_ALL if random.random() < 0.1 else ""
        messages = self._messages(queue, random.randint(1, 6))
        first = max(step + random.choice((0, 0, 0, 0, 0, 0, 0, 0, -1, 1)), 0)
        commands = [
            staged_by(publish, place, epoch, attempt, number)
            for number, publish in enumerate(publishes(0, 0, exchange, queue, messages), first)
        ]
        self._batch(commands, messages)

    def _link_something(self) -> None:
        """Start or end a consumer whose credit this client sets, or set its credit, perhaps with an old command."""
        if self.machine.version < SINCE[AttachConsumer]:
            return
        random = self.workload.links_random
        self._links = {
            consumer: link
            for consumer, link in self._links.items()
            if link.session in self._sessions and consumer in self._sessions[link.session].consumers
        }
        if len(self._links) < LINKS_MAX and random.random() < 0.3:
            self._attach(random.choice(QUEUES))
            return
        if not self._links:
            return
        consumer = random.choice(list(self._links))
        link, choice = self._links[consumer], random.random()
        session = self._sessions[link.session]
        if choice < 0.1 and link.sent is not None:
            self._command(link.sent)
        elif choice < 0.15 and not session.waits:
            session.requested += 1
            session.cancels += 1
            del session.consumers[consumer], self._links[consumer]
            self._command(Cancel(link.session, consumer), Return(consumer, 0, 2**40))
        else:
            number = 1 if link.sent is None else link.sent.number + 1
            limit = max(self._next_ids.get(consumer, 0) + random.randint(-2, 12), 0)
            is_drain, wants_state = random.random() < 0.3, random.random() < 0.2
            link.sent = SetCredit(consumer, number, limit, is_drain, wants_state)
            link.drain = number if is_drain else 0
            link.wants_state = number if wants_state else link.wants_state
            self._command(link.sent)

    def _attach(self, queue: str) -> None:
        random = self.workload.links_random
        number, consumer = self._new_session(), self._fresh_id()
        self._sessions[number].consumers[consumer] = queue
        self._links[consumer] = Link(number)
        arguments = {"x-priority": 5} if random.random() < 0.2 else {}
        ids = number, CONNECTION, CHANNEL, consumer, queue, f"tag {consumer}"
        flags = False, random.random() < 0.5
        self._request(number, AttachConsumer(*ids, *flags, random.choice((0, 0, 2_000)), arguments))

    def _reported(self, state: ConsumerState) -> None:
        """Record which reports the client no longer waits for."""
        link = self._links.get(state.consumer)
        if link is None:
            return
        if link.drain and state.number >= link.drain and not state.is_draining:
            link.drain = 0
        if link.wants_state and state.number >= link.wants_state:
            link.wants_state = 0

    @property
    def machine(self) -> QueueMachine:
        return cast("QueueMachine", cast("Any", self.node.machine).inner)

    def drain(self) -> None:
        """Consume every queue and settle each delivery at once."""
        self._draining = True
        if not self._requester:
            self._set_up()
        for queue in QUEUES:
            self._checkout(self._new_session(), queue, DRAIN_CREDIT)
        if self.workload.leases_messages and self.machine.version >= SINCE[OpenGroup]:
            for place in ((DEFAULT_VHOST, queue, name) for queue in QUEUES for name in GROUPS):
                fence = LAST_FENCE + self.number
                self._command(OpenGroup(*place, fence, self.node.name, "guest", "ready", False, 0))
                self._command(CloseGroup(*place, fence, True))
        if self.workload.fills_sinks and self.machine.version >= SINCE[OpenSink]:
            self._command(*(CloseSink(DEFAULT_VHOST, name, "guest") for name in SINKS))

    def stop_consuming(self) -> None:
        """Close all sessions, so that unsettled messages return to their queues."""
        self._command(*(SessionDown(session) for session in self._sessions))
        self._sessions.clear()
        self._links.clear()
        self._requester = 0

    def problem(self) -> str:
        """Return the first missing answer or delivery at rest, or ""."""
        waiting = [number for number, session in self._sessions.items() if session.waits]
        if waiting:
            return f"sessions {waiting} wait for answers"
        consumers = [consumer for session in self._sessions.values() for consumer in session.consumers]
        for consumer, message_id in self.workload.oracle.held_ids(self.node.name):
            if consumer in consumers and message_id >= self._next_ids.get(consumer, 0):
                return f"consumer {consumer} was not given message {message_id}"
        unreported = self.workload.oracle.unreported(self.node.name)
        unreported += [each for each, link in self._links.items() if link.drain or link.wants_state]
        for consumer in unreported:
            if consumer in consumers:
                return f"the state of consumer {consumer} was not reported"
        return self._tenants.problem()

    # Reports of the node

    def confirmed(self, sequence: int) -> None:
        super().confirmed(sequence)
        attempt = self._attempts.pop(sequence, None)
        if attempt is not None:
            attempt.accepted(attempt.count)
            last = attempt.sequence + attempt.count - 1
            if self.workload.oracle.admitted(attempt.publisher.name) < last:
                self._fail(f"is told that {attempt} is enqueued, and it is not")

    def effect(self, effect: Any) -> None:
        if effect[0] != self.node.name:
            return
        match effect:
            case Deliver(_, _, consumer, first_id, ranges):
                if first_id < self._next_ids.get(consumer, 0):
                    self._fail(f"is given messages again: {effect}")
                self._delivered(consumer, first_id, ranges)
            case Reply(_, number, result, answer):
                session = self._sessions.get(number)
                self._tenants.answered(effect)
                if session is not None:
                    if answer != session.answered + 1:
                        self._fail(f"gets an answer after answer {session.answered}: {effect}")
                    self._answered(session, result)
            case Failed(_, number):
                self._session_failed(number)
            case ConnectionForced(_, number):
                self._command(*self._tenants.close_requested(number))
            case Rejected(_, number, first_seq, count) if number == self._publishing:
                self._rejected(first_seq, count)
            case ConsumerGone(_, number, consumer):
                self._consumer_gone(number, consumer)
            case ConsumerState(_, _, consumer, _, next_id):
                if next_id != self._next_ids.get(consumer, 0):
                    self._fail(f"has {self._next_ids.get(consumer, 0)} messages: {effect}")
                self._reported(effect)
            case _:
                pass

    def resumed(self, sequence: int, outstanding: Sequence[Any]) -> None:
        """Take the new parts of the state that the sessions are owed after a gap in the entries.

        Deliveries below the next id and answers up to the last number are known.
        """
        for unseen in [known for known in self._attempts if known <= sequence]:
            del self._attempts[unseen]  # it may have been refused
        super().resumed(sequence, outstanding)
        self._reading.clear()  # messages that returned meanwhile may have been removed with the old log
        untold = [number for number, session in self._sessions.items() if session.answered]
        for effect in outstanding:
            match effect:
                case Deliver(_, _, consumer, first_id, ranges):
                    self._delivered_again(consumer, first_id, ranges)
                case Reply(_, number, result, answer):
                    session = self._sessions.get(number)
                    self._tenants.answered(effect)
                    if session is not None and answer > session.answered:
                        self._answered_late(session, answer, result)
                case Failed(_, number):
                    self._session_failed(number)
                case ConnectionForced(_, number):
                    self._command(*self._tenants.close_requested(number))
                case ConsumerState(_, _, consumer, _, next_id):
                    # Messages that were delivered and released meanwhile are not among those that it holds.
                    self._next_ids[consumer] = max(next_id, self._next_ids.get(consumer, 0))
                    self._reported(effect)
                case Known(_, number, answers, consumers):
                    if number in untold:
                        untold.remove(number)
                    session = self._sessions.get(number)
                    if session is not None:
                        self._known(number, session, answers, consumers)
                case _:
                    self._fail(f"resumes with {effect}")
        if untold:
            self._fail(f"is not told what became of sessions {untold}")

    def _delivered_again(self, consumer: int, first_id: int, ranges: Sequence[Range]) -> None:
        had = self._next_ids.get(consumer, 0) - first_id
        if had > 0:
            ranges = _without(ranges, had)
            first_id += had
        if ranges:
            self._delivered(consumer, first_id, ranges)

    def _answered_late(self, session: Session, answer: int, result: Result) -> None:
        cancels = answer - session.answered - 1
        if cancels > session.cancels:
            self._fail(f"has lost answers: the last is {answer}, after {session.answered}")
        session.cancels -= cancels
        session.answered = answer - 1
        self._answered(session, result)

    def _known(self, number: int, session: Session, answers: int, consumers: Sequence[int]) -> None:
        if answers - session.answered > session.cancels:
            self._fail(f"has lost answers: there were {answers}, {session.answered} were told")
        session.cancels -= answers - session.answered
        session.answered = answers
        if session.waits:
            return
        for consumer in [mine for mine in session.consumers if mine not in consumers]:
            if not self.workload.oracle.is_gone(self.node.name, consumer):
                self._fail(f"has lost consumer {consumer}")
            self._consumer_gone(number, consumer)

    def _answered(self, session: Session, result: Result) -> None:
        session.answered += 1
        match result:
            case ConsumerCancelled():
                session.cancels -= 1
            case GetOk(consumer, range_):
                self._delivered(consumer, 0, [range_])
            case Got(consumer, ranges) if ranges:
                self._delivered(consumer, 0, ranges)
            case AttachRefused(consumer):
                link = self._links.pop(consumer, None)
                if link is not None and link.session in self._sessions:
                    self._sessions[link.session].consumers.pop(consumer, None)
            case _:
                pass

    def _session_failed(self, number: int) -> None:
        """Handle a closed channel: its queue was deleted, its transaction failed, or its consumer was too slow."""
        session = self._sessions.pop(number, None)
        if session is None:
            return
        self._command(SessionDown(number))
        if number == self._requester:
            self._requester = 0
        self._drain_again(session.consumers.values())

    def _consumer_gone(self, number: int, consumer: int) -> None:
        session = self._sessions.get(number)
        if session is not None and consumer in session.consumers:
            self._drain_again([session.consumers.pop(consumer)])

    def _drain_again(self, queues: Iterable[str]) -> None:
        if self._draining:
            for queue in queues:
                self._checkout(self._new_session(), queue, DRAIN_CREDIT)

    def _rejected(self, first_seq: int, count: int) -> None:
        """Handle refused messages.

        Of a publisher's attempt, all messages from the first refused message on must be refused.
        """
        for sequence, attempt in list(self._attempts.items()):
            accepted = first_seq - attempt.first_seq
            if 0 <= accepted < attempt.count:
                del self._attempts[sequence]
                attempt.accepted(accepted)
                if accepted + count != attempt.count:
                    self._fail(f"is refused messages {first_seq} and on, {count}, of {attempt}")

    # Publishing

    def _publish_something(self, queue: str) -> None:
        random = self.workload.random
        choice = random.random()
        publisher = self.workload.impatient_publisher()
        if choice < 0.2:
            self._commit(random.sample(QUEUES, random.randint(1, 3)))
        elif choice < 0.4 and publisher is not None:
            self._publish_again(publisher)
        else:
            exchange = TO_ALL if choice > 0.95 and not self.workload.moves_messages else ""
            messages = self._messages(queue, random.randint(1, 12))
            # The joined fragments are not checked here: they stay with their message.
            joins = self._store_fragments()
            self._batch([*joins, *self._publishes(exchange, queue, messages)], messages)

    def _store_fragments(self) -> list[Command]:
        """Sometimes store fragments for the next message; return the command that joins them to it."""
        random = self.workload.fragments_random
        if random.random() >= FRAGMENTED or self.machine.version < SINCE[StoreFragment]:
            return []
        fragments = [bytes(random.randint(0, 9)) for _ in range(random.randint(1, 3))]
        self._batch([StoreFragment(self._publishing)] * len(fragments), fragments)
        return [JoinFragments(self._publishing)]

    def _publish_again(self, publisher: RepeatingPublisher) -> None:
        """Publish new messages, or repeat any part of an earlier attempt.

        Sometimes the publisher has lost count, and repeats messages that were enqueued long ago.
        """
        random = self.workload.random
        first = publisher.next_sequence
        if random.random() < 0.3:
            first = random.randint(max(first - FORGOTTEN_MAX, 1), first)
        messages = [
            with_sequence(message, publisher.name, first + number)
            for number, message in enumerate(self._messages(publisher.queue, random.randint(1, 8)))
        ]
        first_seq = self._published + 1
        commands = self._publishes("", publisher.queue, messages)
        sequence = self._batch(commands, messages)
        self._attempts[sequence] = Attempt(publisher, first, first_seq, len(messages))
        publisher.waits_until_s = self.workload.world.now_s + random.uniform(0.1, PATIENCE_MAX_S)

    def _commit(self, queues: Sequence[str]) -> None:
        """Submit a transaction with messages for some queues and perhaps a settlement."""
        session = self._sessions[self._requester]
        if session.waits:
            return
        random = self.workload.random
        content: list[Command] = []
        messages: list[bytes] = []
        if self._reading and random.random() < 0.7:
            delivery = random.choice(list(self._reading.values()))
            kind = random.choice((Settle, Settle, Return, Discard))
            content.append(kind(delivery.consumer, delivery.first_id, delivery.last_id))
        for queue in queues:
            to_queue = self._messages(queue, random.randint(1, 4))
            content += publishes(self._requester, 0, "", queue, to_queue)
            messages += to_queue
        session.requested += 1
        self._batch([Commit(self._requester, len(content)), *content], messages)

    def _messages(self, queue: str, count: int) -> list[bytes]:
        """Return some messages with the same properties."""
        random = self.workload.random
        size = random.randint(2_000, 10_000) if random.random() < self.workload.options.large_batches else 8
        body = f"{self.node.name} {self.number}".encode().ljust(size, b".")
        if not self.workload.has_features:
            return [stored_message(body)] * count
        to_one = self.workload.moves_messages
        headers = draw_headers(random, queue, to_one=to_one) if random.random() < 0.4 else {}
        priority, expiration_ms = draw_properties(random)
        return [stored_message(body, priority, expiration_ms, headers)] * count

    def _publishes(self, exchange: str, key: str, messages: list[bytes]) -> list[Enqueue | Publish]:
        commands = publishes(self._publishing, self._published + 1, exchange, key, messages)
        self._published += len(messages)
        return commands

    # Consuming

    def _get(self, queue: str) -> None:
        if not self.workload.arguments[queue].get("x-single-active-consumer"):
            requested = (0, CONNECTION, CHANNEL, self._fresh_id(), queue, False, 0)
            count = self.workload.gets_random.randint(1, GETS_MAX)
            is_known = self.machine.version >= SINCE[GetMessages]
            self._request(self._requester, GetMessages(*requested, count) if is_known else Get(*requested))

    def _consume(self, queue: str, credit: int) -> None:
        random = self.workload.random
        consumers = sum(len(session.consumers) for session in self._sessions.values()) - len(self._links)
        if consumers >= (LEASING_CONSUMERS_MAX if self.workload.leases_messages else CONSUMERS_MAX):
            return
        limited = [number for number, session in self._sessions.items() if session.is_limited]
        if limited and random.random() < 0.6:
            number = random.choice(limited)
            if len(self._sessions[number].consumers) < TAKERS_MAX:
                self._checkout(number, queue, credit)
            return
        number = self._new_session()
        if random.random() < 0.3:
            self._sessions[number].is_limited = True
            self._request(number, Limit(0, random.choice((1, 4, 15))))
        else:
            self._checkout(number, queue, credit)

    def _checkout(self, number: int, queue: str, credit: int) -> None:
        session = self._sessions[number]
        if session.waits:
            return
        consumer = self._fresh_id()
        session.consumers[consumer] = queue
        is_important = not self._draining and self.workload.random.random() < 0.2
        checkout = Checkout(
            number,
            CONNECTION,
            CHANNEL,
            consumer,
            queue,
            f"tag {consumer}",
            credit,
            no_ack=False,
            exclusive=False,
            auto_credit=True,
            cancel_on_failover=False,
            can_be_cancelled=True,
            timeout_ms=0,
            arguments={"x-priority": 5} if is_important else {},
        )
        self._request(number, checkout)

    def _end_a_session(self) -> None:
        if self._consuming():
            number = self.workload.random.choice(self._consuming())
            del self._sessions[number]
            self._command(SessionDown(number))

    def _cancel(self) -> None:
        if self._consuming():
            number = self.workload.random.choice(self._consuming())
            session = self._sessions[number]
            if not session.waits:
                session.requested += 1
                session.cancels += 1
                consumer = self.workload.random.choice(list(session.consumers))
                del session.consumers[consumer]
                self._command(Cancel(number, consumer))

    def _change_limits(self) -> None:
        """Change the limit of a channel or the prefetch of a consumer."""
        random = self.workload.random
        limited = [number for number, session in self._sessions.items() if session.is_limited]
        if limited and random.random() < 0.5:
            self._request(random.choice(limited), Limit(0, random.choice((0, 1, 2, 8, 30))))
        elif self._consuming():
            session = self._sessions[random.choice(self._consuming())]
            consumer = random.choice(list(session.consumers))
            self._command(SetPrefetch(consumer, random.choice((1, 2, 8, 50))))

    def _change_policies(self) -> None:
        if self.workload.has_features:
            self._command(draw_policy(self.workload.random))

    def _consuming(self) -> list[int]:
        return [number for number, session in self._sessions.items() if session.consumers]

    def _any_session(self) -> int:
        return self.workload.random.choice([self._requester, *self._consuming()])

    def _delivered(self, consumer: int, first_id: int, ranges: Sequence[Range]) -> None:
        message_id = first_id
        for range_ in ranges:
            for slot in range(range_.slot, range_.slot + range_.count):
                known = self.workload.oracle.place(self.node.name, consumer, message_id)
                if known != (range_.index, slot):
                    self._fail(f"consumer {consumer} is given {range_} as {message_id}, which is {known}")
                message_id += 1
        self._next_ids[consumer] = message_id
        self._check_content(ranges[0])
        if self._draining:
            self._command(Settle(consumer, first_id, message_id - 1))
            return
        delay_s = self.workload.random.uniform(0.0, THINKING_MAX_S)
        self._deliveries += 1
        delivery = HeldMessages(consumer, first_id, message_id - 1, ranges[-1])
        self._reading[self._deliveries] = delivery
        self.node.runtime.call_later(delay_s, partial(self._decide, self._deliveries, delivery))

    def _decide(self, number: int, delivery: HeldMessages) -> None:
        """Usually settle a delivery; sometimes settle a part of it, or keep it."""
        was_there = self._reading.pop(number, None) is not None
        if self.workload.clients.get(self.node.name) is not self:
            return
        if was_there:
            self._check_content(delivery.range)
        consumer, first_id, last_id, _ = delivery
        if consumer in self._links and self.workload.links_random.random() < MODIFIED:
            self._command(self._modified(delivery))
            return
        random = self.workload.random
        choice = random.random()
        if choice < 0.6:
            self._command(Settle(consumer, first_id, last_id))
        elif choice < 0.7:
            middle = random.randint(first_id, last_id)
            self._command(Settle(consumer, middle, last_id))
        elif choice < 0.78:
            self._command(Return(consumer, first_id, last_id))
        elif choice < 0.86:
            self._command(Reject(consumer, first_id, last_id))
        elif choice < 0.95:
            self._command(Discard(consumer, first_id, random.randint(first_id, last_id)))

    def _modified(self, delivery: HeldMessages) -> Modify:
        """Return an outcome for a delivery or a part of it, mostly with annotations."""
        random = self.workload.links_random
        keys = random.sample(["x-a", "x-b"], random.randint(0, 2))
        values = [bytes([random.randint(0, 3)]) for _ in keys]
        first = random.randint(delivery.first_id, delivery.last_id)
        ready_ms = self.workload.oracle.now_ms + random.randint(1, 2_000) if random.random() < 0.3 else 0
        flags = random.random() < 0.5, random.random() < 0.15
        return Modify(delivery.consumer, first, delivery.last_id, *flags, keys, values, ready_ms)

    def needed_from(self) -> int | None:
        return min((delivery.range.index for delivery in self._reading.values()), default=None)

    def _check_stored(self, range_: Range) -> None:
        """Check the body of a range of the node's state, unless the node replays: then the body may be removed."""
        if not self.workload.checks.is_replaying(self.node):
            self._check_content(range_)

    def _check_content(self, range_: Range) -> None:
        """Check the body of a range in the log.

        The entry may already be compacted, except from `needed_from` on.
        """
        try:
            entry = self.node.group.journal.read(range_.index)
        except CorruptJournal as damage:
            self.node.group.disk_failed(damage)
            return
        payload = batch_payloads(entry)[range_.slot >> MESSAGE_BITS]
        client, _ = TAG.unpack_from(payload)
        body = messages_of(payload[TAG.size :])[range_.slot & MESSAGE_MASK]
        submitted = self.workload.checks.batches[range_.index, range_.slot >> MESSAGE_BITS]
        expected = messages_of(submitted[TAG.size :])[range_.slot & MESSAGE_MASK]
        if body != expected or client != TAG.unpack_from(submitted)[0]:
            self._fail(f"{range_} leads to another body: {body[:40]!r}")

    # Submitting

    def _fresh_id(self) -> int:
        self._ids += 1
        return self._ids

    def _new_session(self) -> int:
        number = self._fresh_id()
        self._sessions[number] = Session()
        return number

    def _declaration(self, queue: str) -> DeclareQueue:
        arguments = self.workload.arguments[queue]
        flags = {"passive": False, "durable": True, "exclusive": False, "auto_delete": False}
        return DeclareQueue(0, CONNECTION, queue, **flags, server_named=False, arguments=arguments)

    def _request(self, number: int, command: Method | AttachConsumer) -> None:
        """Submit a command that will be answered, unless the session still waits for an answer."""
        session = self._sessions[number]
        if not session.waits:
            session.requested += 1
            self._command(command._replace(session=number))

    def _command(self, *commands: Command) -> None:
        self._batch(commands, [])

    def _batch(self, commands: Sequence[Command], messages: Sequence[bytes]) -> int:
        may_wait = self.random.random() < MAY_WAIT
        return self.submit(encode_batch(commands, messages), may_wait=may_wait)

    def _fail(self, problem: str) -> None:
        self.workload.checks.fail(f"client {self.number} of {self.node.name} {problem}")


def staged_by(
    publish: Enqueue | Publish, place: tuple[str, str, str], epoch: int, attempt: str, step: int
) -> StageMessages:
    """Return the command that stores the messages of a publish as a step."""
    properties = publish[7:11] if isinstance(publish, Publish) else ([], NO_PRIORITY, NO_TTL, 0)
    route = (publish.count, publish.exchange, publish.routing_key, publish.frames_channel)
    return StageMessages(*place, epoch, attempt, step, *route, *properties)


def _without(ranges: Sequence[Range], count: int) -> list[Range]:
    """Return the ranges without their first `count` messages."""
    rest: list[Range] = []
    for range_ in ranges:
        if count < range_.count:
            rest.append(range_.part(count, range_.count - count))
        count = max(count - range_.count, 0)
    return rest


class QueueWorkload(SimulatedWorkload[QueueClient]):
    def __init__(
        self, world: SimulatedWorld, checks: Checks, options: SimulationOptions, oracle: QueueOracle
    ) -> None:
        super().__init__(world, checks, options)
        self.oracle = oracle
        self.brokers = Brokers(world, self.submit, NodeLimits(), logins=())
        self.arguments = draw_queues(world.random("queues"))
        """Arguments of each queue."""
        self.has_features = any(self.arguments.values())
        self.moves_random = world.random("moves")
        self.moves_messages = self.moves_random.random() < MOVING_RUNS and not options.leases
        if self.moves_messages:
            one_of_each(self.arguments)
        self.leases_random = world.random("leases")
        leases_messages = self.leases_random.random() < LEASING_RUNS or options.leases
        self.leases_messages = leases_messages and not self.moves_messages
        self.sinks_random = world.random("sinks")
        self.fills_sinks = not self.moves_messages and self.sinks_random.random() < SINKING_RUNS
        self.links_random = world.random("links")
        self.sets_credit = self.links_random.random() < LINKING_RUNS or options.links
        self.tenants_random = world.random("tenants")
        self.gets_random = world.random("gets")
        self.fragments_random = world.random("fragments of batches")
        self._publishers = [RepeatingPublisher(name, self.random.choice(QUEUES)) for name in PUBLISHERS]

    def new_client(self, node: SimulatedNode, number: int) -> QueueClient:
        return QueueClient(node, number, self)

    def check_clients(self) -> None:
        """Check that at rest every client has got all its answers and deliveries."""
        for client in self.clients.values():
            problem = client.problem()
            if problem:
                self.checks.fail(f"client {client.number} of {client.node.name}: {problem}")

    def stop_consuming(self) -> None:
        for client in self.clients.values():
            client.node.runtime.enter(client.stop_consuming)

    def drain(self) -> None:
        for client in self.clients.values():
            client.node.runtime.enter(client.drain)

    def left(self) -> dict[str, int]:
        """Return the number of remaining messages by queue, and of running moves; all must become 0."""
        oracle = self.oracle
        return {"moves": oracle.moves_under_way} | {
            queue: oracle.ready(queue) + oracle.held(queue) + oracle.leased(queue) + oracle.dead(queue)
            for queue in QUEUES
        }

    def impatient_publisher(self) -> RepeatingPublisher | None:
        """Return a random publisher that may publish now; None if all wait, or if this run has no such publishers."""
        now_s = self.world.now_s
        waiting = [publisher for publisher in self._publishers if publisher.waits_until_s <= now_s]
        return self.random.choice(waiting) if waiting and self.has_features else None
