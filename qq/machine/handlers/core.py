"""What all commands share: the state, where in the log we are, and the effects so far.

Invariant: nothing is told twice and nothing is forgotten: each command that a client waits for adds one to its
session's answers, whatever becomes of it.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate, groupby, islice, pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from qq.machine.catalog.catalog import Catalog
from qq.machine.handlers.fragments import Fragment, Fragments
from qq.machine.protocol.codec import Buffer
from qq.machine.protocol.commands import NO_COMMAND, OPCODES
from qq.machine.protocol.effects import (
    ConnectionForced,
    ConsumerCancelled,
    ConsumerGone,
    DeliveryTimeout,
    Effect,
    Failed,
    Reply,
)
from qq.machine.protocol.refusals import CONNECTION_FORCED, internal_error, not_found, precondition_failed
from qq.machine.protocol.versions import VERSIONS
from qq.machine.protocol.work_meter import (
    DUE_QUEUES_MAX,
    LOST_MAX,
    QUEUES_GONE_MAX,
    RANGES_AT_ONCE,
    RANGES_MAX,
    RANGES_OF_QUEUE_MAX,
    REMAINS_MAX,
    REVIEW_STEPS_MAX,
    SERVED_MAX,
    SERVING_RANGES,
)
from qq.machine.queue.consumers import Budget
from qq.machine.queue.leaving import FAILED, RETURNED
from qq.machine.queue.timers import NEVER_MS, NOW_MS, Timers
from qq.ranges import MESSAGE_MASK
from qq.routing.content import Content
from qq.routing.routers import Destination, DestinationKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from qq.machine.catalog.catalog import ConnectionState
    from qq.machine.catalog.reply_names import Requester
    from qq.machine.catalog.vhost import VhostRef, VirtualHost
    from qq.machine.protocol.commands import Method
    from qq.machine.protocol.effects import Answer, Result
    from qq.machine.protocol.refusals import Refused
    from qq.machine.queue.deferred_free import Remains
    from qq.machine.queue.queue import Consumer, Queue


WOKEN_MAX = 1000
"""How many consumers are asked at once whether they want what the limit of their channel leaves."""

ContentOf = Callable[[Buffer, int], Content]
"""A function that reads from a stored message what routing may look at, given its number; it never raises."""


@dataclass(slots=True, eq=False)
class SessionState:
    """One AMQP channel, from its opening until `SessionDown`, or a connection's channel 0.

    A session that was never opened is there from its first command that is answered.
    """

    vhost: VirtualHost
    """The virtual host in which the session acts; it may be deleted."""
    user: str | None = None
    """The user whose channel it counts as; None if it was never opened."""
    queue: str = ""
    """The name of the queue that the session declared last; empty if none."""
    consumers: dict[int, Consumer] = field(default_factory=dict)
    tags: dict[str, Consumer] = field(default_factory=dict)
    """Consumers that are not cancelled, by consumer tag."""
    requester: Requester | None = None
    """The session's consumer of direct replies, if it has one."""
    budget: Budget = field(default_factory=Budget)
    answers: int = 0
    """How many of the session's commands were answered."""
    answer: Answer | None = None
    """The last answer, for a node that missed it. `ConsumerCancelled` does not count: it tells nothing, and several
    can be missed at once."""
    fragments: list[Fragment] = field(default_factory=list)
    """What was stored of the large message that the session is going to publish."""

    @property
    def failed(self) -> bool:
        """Whether an error was sent: then whatever was under way behind it must not happen."""
        return type(self.answer) is Failed

    def freeze(self, key: tuple[str, int]) -> FrozenSession:
        """The session as it is now; `key` is its node and its number."""
        requester = self.requester and self.requester[2:]
        limit = self.budget.limit
        return FrozenSession(
            key,
            self.vhost.ref,
            self.user,
            self.queue,
            limit,
            requester,
            self.answers,
            self.answer,
            tuple(self.fragments),
        )


class FrozenSession(NamedTuple):
    """A session at one moment, without its consumers."""

    key: tuple[str, int]
    vhost: VhostRef
    user: str | None
    queue: str
    limit: int
    requester: tuple[int, str] | None
    answers: int
    answer: Answer | None
    fragments: Sequence[Fragment]


class Core:
    """The state of a machine, and the entry that is being applied to it."""

    def __init__(self, content_of: ContentOf) -> None:
        self.version = VERSIONS[0]
        """The version of the state that the log has agreed on: what the entry under way does goes by it."""
        self.content_of = content_of
        self.catalog = Catalog()
        self.work = self.catalog.work
        self.sessions: dict[tuple[str, int], SessionState] = {}
        self.consumers: dict[tuple[str, int], Consumer] = {}
        self.dirty: dict[Queue, None] = {}
        """Queues that have something new in this entry, and those whose consumers were left for the next entries."""
        self.dying: dict[Queue, None] = {}
        """Queues that have messages to dead-letter."""
        self.fragments = Fragments()
        self.behind: dict[Queue, None] = {}
        """Queues that have put off work, because too much was settled or returned at once; the next one first."""
        self.abandoned: dict[Queue, None] = {}
        """Queues that nobody needs any more and that are still to be removed: they were too many to go at once."""
        self.lost: dict[str, list[tuple[str, int]]] = {}
        """Nodes that are gone, each with the keys of its sessions that are still to be ended, the next one last: they
        were too many to end at once. Their consumers are given nothing."""
        self.remains = self.catalog.remains
        self.reviewing: dict[str, VirtualHost] = {}
        """Virtual hosts in which it is still to be found out what the policies apply to, by name."""
        self.roomy: dict[tuple[str, int], int] = {}
        """Sessions in which consumers wait and may have more, with the id of the one that was asked last."""
        self.queue_timers: Timers[Queue] = Timers(_queue_key)
        """When something is due with the messages of queues; before version 9 also when queues are abandoned."""
        self.idle_timers: Timers[Queue] = Timers(_queue_key)
        """When queues are abandoned, by available time."""
        self.consumer_timers: Timers[Consumer] = Timers(_consumer_key)
        """When consumers hold messages for too long, by available time."""
        self.effects: list[Effect] = []
        self.behind_answer: list[Effect] = []
        """Effects of the command under way that come behind its answer."""
        self.origin = ""
        self.index = 0
        self.time_ms = 0
        self.outage_ms = 0
        """How much of the cluster's time was outage, in which clients could not act. It is 0 before version 9."""
        self.next_slot = 0
        """The slot of the first message of the batch that no command has published yet."""
        self.sizes = array("I")
        """The size of each message of the batch, in octets."""
        self.size = 0
        """The octets of all these messages."""
        self.payload: Buffer = b""
        """The whole batch; the messages are at its end."""
        self._offsets: list[int] = []
        """Where in the payload each message begins, and at the end where the last one ends."""
        self._offsets_of = self.sizes
        """The `sizes` of the batch that the offsets are of: they are computed only when they are needed."""
        self.position = 0
        """The place of the command under way in the batch."""
        self.routed = Counter[str]()
        """How many messages that came to each node went into queues since this process began, each as often as there
        were queues for it; like `dropped`, no part of the state."""
        self.dropped = Counter[str]()
        """How many messages that came to each node reached no queue, and were not mandatory."""

    @property
    def available_ms(self) -> int:
        """The available time: the cluster's time without outages. Timers that wait for an act of a client go by it."""
        return self.time_ms - self.outage_ms

    def take_apart(self, remains: Remains) -> None:
        """Leave to `remains` what there may be very much of: another state takes this one's place."""
        for vhost in self.catalog.vhosts.values():
            vhost.take_apart(remains)
        remains.add(self.catalog.vhosts, self.catalog.connections, self.sessions, self.consumers)
        remains.let_go(REMAINS_MAX)

    # Messages

    def contents(self, slot: int, count: int) -> Iterator[Content]:
        """What routing may look at of each of `count` messages of the batch, from `slot` on."""
        self._find_offsets()
        first = slot & MESSAGE_MASK
        for start, end in pairwise(self._offsets[first : first + count + 1]):
            yield self.content_of(self.payload[start:end], message_number(self.index, slot))
            slot += 1

    def _find_offsets(self) -> None:
        if self._offsets_of is not self.sizes:
            start = len(self.payload) - self.size
            self._offsets = list(accumulate(self.sizes, initial=start))
            self._offsets_of = self.sizes

    def join_fragments(self, session: SessionState) -> None:
        """Let the next message of the batch go on with what the session has stored; it is so much larger then."""
        if not session.fragments:
            return
        self._find_offsets()
        self.fragments.join(self.index, self.next_slot, tuple(session.fragments))
        size = sum(fragment.size for fragment in session.fragments)
        session.fragments.clear()
        self.sizes[self.next_slot & MESSAGE_MASK] += size
        self.size += size

    # Answers

    def take_effects(self) -> list[Effect]:
        effects, self.effects = self.effects, []
        return effects

    def answer(self, session: SessionState, number: int, result: Result) -> None:
        session.answers += 1
        reply = Reply(self.origin, number, result, session.answers)
        if type(result) is not ConsumerCancelled:
            session.answer = reply
        self.effects.append(reply)
        self.effects += self.behind_answer
        self.behind_answer = []

    def fail(self, command: Method, refused: Refused) -> None:
        """Close the channel of a command that cannot be carried out."""
        self._fail(self.origin, command.session, refused.code, refused.text, OPCODES[type(command)])

    def _fail(self, node: str, number: int, code: int, text: str, opcode: int) -> None:
        session = self.session(node, number)
        session.answers += 1
        session.answer = Failed(node, number, code, text, opcode, session.answers)
        session.fragments.clear()
        self.effects.append(session.answer)
        for consumer in session.consumers.values():
            self.consumer_timers.set(consumer, None)  # its channel is about to go

    # Sessions

    def session(self, node: str, number: int) -> SessionState:
        known = self.sessions.get((node, number))
        if known is None:
            known = self.sessions[node, number] = SessionState(self.catalog.default_vhost)
        return known

    def restore_session(self, key: tuple[str, int], session: SessionState) -> None:
        """Enter a session without its consumers."""
        self.sessions[key] = session
        if session.requester is not None:
            self.enter_requester(session, session.requester)
        if session.user is not None:
            self.catalog.count_channel(session.user, 1)

    def end_session(self, number: int) -> None:
        """End a session that is down, if it is there: what its consumers held returns."""
        session = self.sessions.pop((self.origin, number), None)
        if session is not None:
            self._forget_channel(session)
            self.end_consumers(list(session.consumers.values()), failed=True)

    def lose_sessions_of(self, node: str) -> None:
        """End all that a node had opened; very much of it ends in the next entries, or with the node's next command."""
        for key in [key for key in self.catalog.connections if key[0] == node]:
            self.catalog.disconnect(*key)
        if node not in self.lost:
            self._put_off_sessions_of(node)
            for key in self.lost[node]:
                self.forget_requester(self.sessions[key])
                self.roomy.pop(key, None)
        self._end_lost_sessions(node, LOST_MAX)

    def restore_lost(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            self._put_off_sessions_of(node)

    def _put_off_sessions_of(self, node: str) -> None:
        self.lost[node] = [key for key in self.sessions if key[0] == node]
        self.lost[node].reverse()

    def end_lost(self, node: str) -> None:
        """End at once what is left of a node that was gone: it begins anew, with the same numbers."""
        while node in self.lost:
            self._end_lost_sessions(node, LOST_MAX)

    def _end_some_lost(self) -> None:
        left = LOST_MAX
        for node in list(self.lost):
            if left > 0:
                left -= self._end_lost_sessions(node, left)

    def _end_lost_sessions(self, node: str, most: int) -> int:
        """End about `most` consumers and sessions of a node that is gone. Returns how many they were."""
        keys, left = self.lost[node], most
        ended: list[Consumer] = []
        while keys and left > 0:
            session = self.sessions[keys[-1]]
            some = list(islice(session.consumers.values(), left))
            ended += some
            left -= 1 + len(some)
            if len(some) == len(session.consumers):
                self._forget_channel(self.sessions.pop(keys.pop()))
        if not keys:
            del self.lost[node]
        self.end_consumers(ended, failed=False)
        return most - left

    def _forget_channel(self, session: SessionState) -> None:
        self.forget_requester(session)
        if session.user is not None:
            self.catalog.count_channel(session.user, -1)

    def close(self, connection: ConnectionState, reason: str) -> None:
        """Have a connection closed by its node, unless that was told already."""
        if not connection.closing:
            connection.closing = reason
            self.effects.append(self.closing(connection))

    def closing(self, connection: ConnectionState) -> ConnectionForced:
        return ConnectionForced(connection.node, connection.id, CONNECTION_FORCED, connection.closing)

    def vhost(self, number: int) -> VirtualHost:
        """The virtual host in which the session acts. Raises Refused if it is deleted."""
        vhost = self.session(self.origin, number).vhost
        vhost.check()
        return vhost

    def has_failed(self, session: int) -> bool:
        known = self.sessions.get((self.origin, session))
        return known is not None and known.failed

    def publishes_to(self, session: int) -> VirtualHost | None:
        """The virtual host to which the session publishes; None if it has failed. It makes no session."""
        known = self.sessions.get((self.origin, session))
        if known is None:
            return self.catalog.default_vhost
        return None if known.failed else known.vhost

    def last_declared(self, session: int) -> str:
        """The queue that a command means by an empty name. Raises Refused if the session has declared none."""
        queue = self.session(self.origin, session).queue
        if not queue:
            raise not_found("previously declared queue")
        return queue

    def queue(self, session: int, connection: int, name: str) -> Queue:
        """The queue that the command means, if this connection may use it. Raises Refused."""
        vhost = self.vhost(session)
        return vhost.queue(name or self.last_declared(session), (self.origin, connection))

    # Consumers

    def enter_requester(self, session: SessionState, requester: Requester) -> None:
        session.requester = session.vhost.requesters[requester.name] = requester

    def forget_requester(self, session: SessionState) -> None:
        """Forget the session's consumer of direct replies, if it has one, and its name."""
        if session.requester is not None:
            del session.vhost.requesters[session.requester.name]
            session.requester = None

    def requester(self, session: int, name: str) -> Requester | None:
        """The consumer of direct replies that has this name; None if there is none. Raises Refused."""
        return self.vhost(session).requesters.get(name or self.last_declared(session))

    def check_fresh(self, consumer: int) -> None:
        if (self.origin, consumer) in self.consumers:
            raise internal_error(f"consumer {consumer} of node {self.origin} is there already")

    def enter_consumer(self, consumer: Consumer) -> None:
        session = self.session(consumer.node, consumer.session)
        session.consumers[consumer.id] = consumer
        if consumer.live:
            session.tags[consumer.tag] = consumer
        self.consumers[consumer.node, consumer.id] = consumer
        self.catalog.vhosts[consumer.queue.vhost].consumers += 1

    def forget_if_over(self, consumer: Consumer) -> None:
        """Forget a consumer that has stopped and holds no messages any more."""
        if not consumer.live and not consumer.unacked:
            self._forget(consumer)

    def _forget(self, consumer: Consumer) -> None:
        del self.consumers[consumer.node, consumer.id]
        self.catalog.vhosts[consumer.queue.vhost].consumers -= 1
        self.consumer_timers.set(consumer, None)
        session = self.sessions.get((consumer.node, consumer.session))
        if session is not None:
            del session.consumers[consumer.id]
            if session.tags.get(consumer.tag) is consumer:
                del session.tags[consumer.tag]

    def checked_in(self, consumer: Consumer) -> None:
        """Do what follows when a consumer holds less: others of its channel may have more, or it is over."""
        if consumer.budget is not None and consumer.budget.limit:
            consumer.queue.make_way(consumer)  # the others of its channel have waited for it
            self._room_for_others(consumer)
        if consumer.queue.is_behind:
            self.behind[consumer.queue] = None
        self.touch(consumer.queue)
        self.forget_if_over(consumer)

    def _room_for_others(self, consumer: Consumer) -> None:
        """Let others of its channel have what a consumer does not hold any more."""
        key = consumer.node, consumer.session
        if key in self.sessions and consumer.node not in self.lost:
            self.look_again(key, consumer.id)

    def look_again(self, key: tuple[str, int], last: int = 0) -> int:
        """Ask consumers that wait for room in their channel whether they want some; it has room again, or a new limit.

        As many as there is room for are asked now, and the others at the end of the entry, if these have not taken it
        all. They are asked in the order of their ids, the one with the id `last` last: who is next must follow
        from the state, also from one that was loaded. Returns how many were asked.
        """
        session = self.sessions[key]
        budget, asked, woken = session.budget, 0, 0
        room = min(budget.room, WOKEN_MAX)
        while budget.waiting and woken < room and asked < WOKEN_MAX:
            last = budget.pop_after(last)
            asked += 1
            consumer = session.consumers[last]
            consumer.queue.give_credit(consumer, 0)
            if consumer in consumer.queue.rotation:
                self.touch(consumer.queue)
                woken += 1
        if budget.waiting and room:
            self.roomy[key] = last
        return asked

    def give_back(self, consumers: list[Consumer], *, failed: bool) -> None:
        """Return all that these consumers hold to its queues, in the order of messages; very much of it in portions."""
        by_queue: dict[Queue, list[Consumer]] = {}
        for consumer in consumers:
            by_queue.setdefault(consumer.queue, []).append(consumer)
        fate = FAILED if failed else RETURNED
        left = RANGES_AT_ONCE
        for queue, holders in by_queue.items():
            left -= queue.give_back_all(holders, fate, self.time_ms, left)
            for consumer in holders:
                self.checked_in(consumer)

    def end_consumers(self, consumers: list[Consumer], *, failed: bool) -> None:
        """Cancel consumers and return what they hold; `failed` is whether that counts as failed deliveries."""
        lost_a_consumer: dict[Queue, None] = {}
        for consumer in consumers:
            if consumer.live:
                consumer.queue.cancel(consumer, self.available_ms)
                lost_a_consumer[consumer.queue] = None
                self.touch(consumer.queue)
        self.give_back(consumers, failed=failed)
        self.abandon([queue for queue in lost_a_consumer if _goes_with_its_consumers(queue)])

    # Queues

    def touch(self, queue: Queue) -> None:
        """Note that the queue has something new: at the end of the entry, its consumers get what is theirs."""
        self.dirty[queue] = None
        if queue.dying:
            self.dying[queue] = None

    def serve(self, queue: Queue, at_least: int = 0) -> None:
        """Let the queue's consumers have what is theirs before somebody counts or takes what is left.

        They get as many ranges as the entry may still cost, or `at_least` so many.
        """
        due_ms = self._due_ms_of(queue)
        if queue in self.dirty or (due_ms is not None and due_ms <= self.time_ms):
            most = max(SERVED_MAX - self.work.served, at_least)
            self.work.served += self._serve_some(queue, most)
            self.touch(queue)

    def _serve_some(self, queue: Queue, most: int) -> int:
        """Serve a queue, for about `most` ranges. Returns what it has cost, in ranges."""
        served, moved = queue.serve(self.time_ms, self.time_ms - self.outage_ms, most, self.lost)
        ranges = SERVING_RANGES + moved
        for consumer, delivery in served:
            ranges += len(delivery.ranges)
            self.effects.append(delivery)
            if consumer.marks:
                self.watch(consumer)
        if queue.dying:
            self.dying[queue] = None
        return ranges

    def watch(self, consumer: Consumer) -> None:
        """See to it that it is noticed when the consumer holds a message for too long."""
        if consumer in self.consumer_timers or consumer.node in self.lost:
            return
        if not self.session(consumer.node, consumer.session).failed:
            self.consumer_timers.set(consumer, self._deadline_ms(consumer))

    def _deadline_ms(self, consumer: Consumer) -> int | None:
        timeout_ms, since_ms = consumer.queue.timeout_ms(consumer), consumer.out_since_ms()
        return since_ms + timeout_ms if timeout_ms and since_ms is not None else None

    def remove_if_automatic(self, queue: Queue) -> None:
        """Remove an auto-delete queue that has lost its last consumer."""
        if _goes_with_its_consumers(queue):
            self.remove_queue(queue)

    def remove_queue(self, queue: Queue) -> None:
        """Remove a queue with all its messages, and tell its consumers. Later settlements find nothing."""
        self.effects += self.take_queue(queue)

    def abandon(self, queues: list[Queue]) -> None:
        """Remove queues that nobody needs any more. Of very many, most go later, and nobody can use them till then."""
        left = QUEUES_GONE_MAX
        for number, queue in enumerate(queues):
            if left <= 0:
                self._remove_later(queues[number:])
                return
            left -= self._remove_abandoned(queue)

    def _remove_later(self, queues: list[Queue]) -> None:
        for name, in_vhost in groupby(queues, key=attrgetter("vhost")):
            self.catalog.vhosts[name].disown(in_vhost)
        self.abandoned.update(dict.fromkeys(queues))

    def make_way_for(self, vhost: VirtualHost, name: str) -> None:
        """Remove the queue of this name if it was to be removed later: for its clients it is gone."""
        queue = vhost.queues.get(name)
        if queue in self.abandoned:
            self.remove_queue(queue)

    def _remove_abandoned(self, queue: Queue) -> int:
        """Remove a queue. Returns how many objects are gone: it, its bindings and those who held its messages."""
        destination = Destination(DestinationKind.QUEUE, queue.name)
        bindings = self.catalog.vhosts[queue.vhost].count_bindings_of(destination)
        self.remove_queue(queue)
        return 1 + bindings + len(queue.holders)

    def _remove_some_abandoned(self) -> None:
        left = QUEUES_GONE_MAX
        for queue in list(islice(self.abandoned, left)):
            if left > 0:
                left -= self._remove_abandoned(queue)

    def take_queue(self, queue: Queue) -> list[ConsumerGone]:
        """Remove a queue; returns what its consumers are to be told."""
        self.catalog.vhosts[queue.vhost].delete_queue(queue)
        gone = self._forget_queue(queue)
        for consumer in queue.holders:
            self._room_for_others(consumer)
        self.remains.add_queues((queue,))
        return gone

    def remove_vhost(self, vhost: VirtualHost) -> None:
        """Remove a virtual host with everything in it, all at once. No consumer is told: its connection closes."""
        consumers, name = self.consumers, vhost.name
        for (node, _), session in self.sessions.items():
            if session.vhost is vhost:
                for number in session.consumers:
                    del consumers[node, number]
                session.consumers, session.tags = {}, {}
                session.budget = Budget(session.budget.limit)
        self.consumer_timers.keep(lambda consumer: consumer.queue.vhost != name)
        self.queue_timers.keep(lambda queue: queue.vhost != name)
        self.idle_timers.keep(lambda queue: queue.vhost != name)
        self.dirty, self.dying, self.behind, self.abandoned = (
            {queue: None for queue in queues if queue.vhost != name}
            for queues in (self.dirty, self.dying, self.behind, self.abandoned)
        )
        self.reviewing.pop(name, None)
        self.catalog.delete_vhost(vhost)

    def _forget_queue(self, queue: Queue) -> list[ConsumerGone]:
        self.dirty.pop(queue, None)
        self.dying.pop(queue, None)
        self.behind.pop(queue, None)
        self.abandoned.pop(queue, None)
        self.queue_timers.set(queue, None)
        self.idle_timers.set(queue, None)
        gone: list[ConsumerGone] = []
        for consumer in queue.holders:
            self._forget(consumer)
            consumer.leave_channel()
            if consumer.live and consumer.node not in self.lost:
                gone.append(ConsumerGone(consumer.node, consumer.session, consumer.id))
        return gone

    def _do_put_off(self) -> None:
        """Do some of what was put off, queue by queue."""
        left = RANGES_MAX
        while self.behind and left > 0:
            for queue in list(islice(self.behind, left)):
                if left <= 0:
                    break
                del self.behind[queue]
                left -= queue.go_on(min(left, RANGES_OF_QUEUE_MAX), self.time_ms)
                if queue.is_behind:
                    self.behind[queue] = None
                self.touch(queue)

    # Policies

    def review(self, vhost: VirtualHost) -> None:
        """Find out which policies apply now to what is in a virtual host; what costs too much is left for later."""
        if self.work.steps < REVIEW_STEPS_MAX:
            self._review(vhost)
        if vhost.is_unreviewed:
            self.reviewing[vhost.name] = vhost
        else:
            self.reviewing.pop(vhost.name, None)  # who waits here decides who is served next

    def _review_policies(self) -> None:
        """Go on finding out which policies apply where that was left for later, a little in every entry."""
        names = sorted(self.reviewing)
        first = self.time_ms % len(names)  # not always the same
        for name in names[first:] + names[:first]:
            self._review(self.reviewing[name])
            if not self.reviewing[name].is_unreviewed:
                del self.reviewing[name]
            if self.work.steps >= REVIEW_STEPS_MAX:
                break

    def _review(self, vhost: VirtualHost) -> None:
        """Review a part of a virtual host. Where settings change, limits are enforced and timers set anew."""
        for queue, before in vhost.review(REVIEW_STEPS_MAX):
            if self.version >= 9 and queue.settings.expires_ms != before.expires_ms:
                queue.use(self.available_ms)  # the policy cannot have meant the time before it
            self.touch(queue)
            for consumer in queue.holders:
                self.consumer_timers.set(consumer, None)
                self.watch(consumer)

    # Time

    def due_ms(self) -> int | None:
        """The time at which there will be something to do that no command asks for; None for never."""
        if (
            self.dirty
            or self.behind
            or self.roomy
            or self.reviewing
            or self.abandoned
            or self.lost
            or self.remains
        ):
            return NOW_MS
        available_ms = min(self.idle_timers.next_ms, self.consumer_timers.next_ms)
        due_ms = min(self.queue_timers.next_ms, available_ms + self.outage_ms)
        return None if due_ms >= NEVER_MS else due_ms

    def end_entry(self) -> None:
        """Do what is due or was put off, and serve the queues that have something new: who waited longest first."""
        now_ms = self.time_ms
        if self.reviewing:
            self._review_policies()
        if self.lost:
            self._end_some_lost()
        if self.behind:
            self._do_put_off()
        if self.abandoned:
            self._remove_some_abandoned()
        if self.remains:
            self.remains.shrink(REMAINS_MAX)
        available_ms = now_ms - self.outage_ms
        if self.consumer_timers.next_ms <= available_ms:
            self._look_at_due_consumers()
        if self.queue_timers.next_ms <= now_ms or self.idle_timers.next_ms <= available_ms:
            self._look_at_due_queues()
        left = self._serve_dirty(SERVED_MAX)
        if self.roomy:
            self._fill_channels(left)
        self.work.clear()

    def _look_at_due_consumers(self) -> None:
        timers = self.consumer_timers
        due: list[Consumer] = []
        while timers.next_ms <= self.available_ms:
            due.append(timers.pop())
        # Some timers go off for nothing on a node that has set them long ago, so their order must not count.
        for consumer in sorted(due, key=_consumer_key):
            self._consumer_is_due(consumer)

    def _look_at_due_queues(self) -> None:
        left = DUE_QUEUES_MAX
        unused: dict[Queue, None] = {}
        now_ms, available_ms = self.time_ms, self.available_ms
        for timers, until_ms in ((self.queue_timers, now_ms), (self.idle_timers, available_ms)):
            while left > 0 and timers.next_ms <= until_ms:
                queue = timers.pop()
                if queue in self.dirty or queue in self.abandoned:
                    continue  # it is served anyhow, and not every node has a timer for it
                left -= 1
                if self._is_abandoned(queue):
                    unused[queue] = None
                else:
                    self.touch(queue)
        self.abandon(list(unused))

    def _due_ms_of(self, queue: Queue) -> int | None:
        """The time at which the queue has to do something that no command asks for; None for never."""
        due_ms = queue.due_ms()
        abandoned_ms = None if self.version >= 9 else queue.abandoned_ms()
        if abandoned_ms is not None:
            due_ms = abandoned_ms if due_ms is None else min(due_ms, abandoned_ms)
        return due_ms

    def _is_abandoned(self, queue: Queue) -> bool:
        """Whether the queue is to go because it is unused (x-expires), and its dead messages are elsewhere."""
        abandoned_ms = queue.abandoned_ms()
        if abandoned_ms is None or abandoned_ms > self.available_ms:
            return False
        return self.version < 9 or not (queue.has_dead or queue.loses_dead(self.time_ms))

    def _set_timers(self, queue: Queue) -> None:
        """Set the timers of a queue, which must be served."""
        timers, due_ms = self.queue_timers, queue.due_ms()
        if due_ms is not None or timers.next_ms != NEVER_MS:
            timers.set(queue, due_ms)
        if queue.settings.expires_ms is not None or self.idle_timers.next_ms != NEVER_MS:
            self._set_idle_timer(queue)

    def _set_idle_timer(self, queue: Queue) -> None:
        """Set the timer that ends an unused queue; a queue with dead messages gets it when these are gone."""
        if self.version >= 9:
            self.idle_timers.set(queue, None if queue.has_dead else queue.abandoned_ms())
        else:
            self.queue_timers.set(queue, self._due_ms_of(queue))

    def _serve_dirty(self, most: int) -> int:
        """Serve the queues that have something new, for about `most` ranges; returns how many are left.

        The timer of a queue that is not served now is set when it is.
        """
        dirty = self.dirty
        partly: Queue | None = None
        for queue in list(islice(dirty, max(most, 0))):
            if most <= 0:
                break
            del dirty[queue]
            most -= self._serve_some(queue, most)
            if most <= 0 and queue.is_unserved:
                partly = queue
            self._set_timers(queue)
        if partly is not None:  # it has had something, the others have not
            dirty[partly] = None
        return most

    def _fill_channels(self, most: int) -> None:
        """Ask consumers that wait for room in their channels, as long as there is some, and serve their queues."""
        asked = 0
        while self.roomy and asked < WOKEN_MAX:
            roomy, self.roomy = self.roomy, {}
            for key, last in roomy.items():
                if key in self.sessions:
                    asked += self.look_again(key, last)
            most = self._serve_dirty(most)
        # What is left is for the next entry, on a node that has loaded the state since, too.
        self.roomy = dict.fromkeys(sorted(self.roomy), 0)

    def restore_waiting(self) -> None:
        """Find out who waits for the limit of a channel, in a state that was loaded."""
        for consumer in self.consumers.values():
            consumer.queue.restore_waiting(consumer)
        for key in sorted(self.sessions):
            budget = self.sessions[key].budget
            if budget.waiting and budget.room and key[0] not in self.lost:
                self.roomy[key] = 0

    def restore_timers(self) -> None:
        """Set the timers of the queues in a state that was loaded, as a node has them that has lived through it.

        Queues that are served anyhow get none. How many queues are looked at in an entry depends on that.
        """
        for queue in self.catalog.queues():
            if queue not in self.dirty and queue not in self.abandoned:
                self._set_timers(queue)

    def _consumer_is_due(self, consumer: Consumer) -> None:
        if consumer.node in self.lost:
            return
        queue, deadline_ms = consumer.queue, self._deadline_ms(consumer)
        message_id = consumer.unacked.first()
        if deadline_ms is None or message_id is None or deadline_ms > self.available_ms:
            self.consumer_timers.set(consumer, deadline_ms)
            return
        timeout_ms = queue.timeout_ms(consumer)
        node, number = consumer.node, consumer.session
        if self.session(node, number).failed:
            return  # its channel is about to go
        place = queue.vhost, queue.name, message_id
        self.effects.append(DeliveryTimeout(node, number, consumer.id, consumer.tag, *place, timeout_ms))
        by_cancelling = queue.settings.timeout_action == "cancel-consumer" and consumer.can_be_cancelled
        if by_cancelling and consumer.live:
            self.effects.append(ConsumerGone(node, number, consumer.id))
            self.end_consumers([consumer], failed=False)
        else:
            refused = precondition_failed(
                f"delivery acknowledgement on channel {consumer.channel} timed out. Timeout value used: "
                f"{timeout_ms} ms. This timeout value can be configured, see consumers doc guide to learn more"
            )
            self._fail(node, number, refused.code, refused.text, NO_COMMAND)


def _goes_with_its_consumers(queue: Queue) -> bool:
    return queue.auto_delete and queue.had_consumer and not queue.consumers


def message_number(index: int, slot: int) -> int:
    """The number of a message, which no other message has."""
    return index << _SLOT_BITS | slot


_SLOT_BITS = 32
"""The bits of a slot: of the batch's ordinal in the entry and of the message's in the batch."""


def no_content(_message: Buffer, number: int) -> Content:
    """A `ContentOf` for a machine that routes nothing by what is in a message."""
    return Content({}, {}, number)


def _queue_key(queue: Queue) -> int:
    return queue.number


def _consumer_key(consumer: Consumer) -> tuple[str, int]:
    return consumer.node, consumer.id
