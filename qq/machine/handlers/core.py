"""The core that all command handlers share: the state, the current log position, and the collected effects.

Invariant: each command with an answer adds exactly one to its session's count of answers, whatever its result. So a
node neither repeats nor loses an answer.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
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
    DeliveriesReleased,
    DeliveryTimeout,
    Effect,
    Failed,
    Reply,
)
from qq.machine.protocol.refusals import CONNECTION_FORCED, internal_error, not_found, precondition_failed
from qq.machine.protocol.versions import VERSIONS
from qq.machine.protocol.work_meter import (
    DUE_QUEUES_MAX,
    FREED_MAX,
    LOST_MAX,
    QUEUES_GONE_MAX,
    RANGES_AT_ONCE,
    RANGES_MAX,
    RANGES_OF_QUEUE_MAX,
    REVIEW_STEPS_MAX,
    SERVED_MAX,
    SERVING_RANGES,
)
from qq.machine.queue.consumers import Budget
from qq.machine.queue.leaving import ENDED, FAILED, RETURNED
from qq.machine.queue.stuck_lines import StuckLines
from qq.machine.queue.timers import NEVER_MS, NOW_MS, Timers
from qq.ranges import MESSAGE_MASK
from qq.routing.content import Content
from qq.routing.routers import Destination, DestinationKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from qq.machine.catalog.catalog import ConnectionState
    from qq.machine.catalog.reply_names import Requester
    from qq.machine.catalog.sinks import Sink, StagedRun
    from qq.machine.catalog.vhost import VhostRef, VirtualHost
    from qq.machine.protocol.commands import Method
    from qq.machine.protocol.effects import Answer, ConsumerState, Result
    from qq.machine.protocol.refusals import Refused
    from qq.machine.queue.deferred_free import DeferredFree
    from qq.machine.queue.queue import Consumer, LeaseGroup, Queue


WOKEN_MAX = 1000
"""Consumers that are asked at once whether they can use free room in their channel."""

ContentOf = Callable[[Buffer, int], Content]
"""Returns the parts of a stored message that routing may use; its second argument is the message's number. It must not
raise."""


@dataclass(slots=True, eq=False)
class SessionState:
    """The state of a channel, from its opening until `SessionDown`, or of a connection's channel 0.

    A session that was never opened is created by its first answered command.
    """

    vhost: VirtualHost
    """The virtual host of the session; it may be deleted already."""
    user: str | None = None
    """The user whose channel limit the session counts towards; None if the session was never opened."""
    queue: str = ""
    """The name of the queue that the session declared last, or ""."""
    consumers: dict[int, Consumer] = field(default_factory=dict)
    tags: dict[str, Consumer] = field(default_factory=dict)
    """Consumers that are not cancelled, by consumer tag."""
    requester: Requester | None = None
    """The session's consumer of direct replies, or None."""
    budget: Budget = field(default_factory=Budget)
    answers: int = 0
    """Number of answered commands of the session."""
    answer: Answer | None = None
    """The last answer, for a node that missed it. `ConsumerCancelled` is left out, because it holds no information and
    several of them may be missed at once."""
    fragments: list[Fragment] = field(default_factory=list)
    """The stored fragments of the large message that the session will publish."""
    dropped: int = 0
    """Messages of the session that were not mandatory and reached no queue, since this process began. Not part of the
    state."""

    @property
    def failed(self) -> bool:
        """Whether an error was sent. If so, later commands of the session must have no effect."""
        return type(self.answer) is Failed

    def freeze(self, key: tuple[str, int]) -> FrozenSession:
        """Return the session as it is now; `key` is its node and its number."""
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
    """A session at a moment, without its consumers."""

    key: tuple[str, int]
    vhost: VhostRef
    user: str | None
    queue: str
    limit: int
    requester: tuple[int, str] | None
    answers: int
    answer: Answer | None
    fragments: Sequence[Fragment]


class CommittedRuns(NamedTuple):
    """Messages that a sink has committed and that are still to enter their queues, the next ones last."""

    vhost: str
    runs: list[StagedRun]


class Core:
    """The state of a machine, and the context of the entry that is being applied."""

    def __init__(self, content_of: ContentOf) -> None:
        self.version = VERSIONS[0]
        """The version of the state that the log has agreed on. The current entry follows it."""
        self.content_of = content_of
        self.queue_removed: Callable[[Queue], None] = _ignored
        """Called with each removed queue. It must not change the state."""
        self.catalog = Catalog()
        self.work = self.catalog.work
        self.sessions: dict[tuple[str, int], SessionState] = {}
        self.consumers: dict[tuple[str, int], Consumer] = {}
        self.dirty: dict[Queue, None] = {}
        """Changed queues of this entry, and queues that were left unserved for the next entries."""
        self.queues_with_dead: dict[Queue, None] = {}
        """Queues with messages that await dead-lettering and were not tried yet."""
        self.stuck_lines = StuckLines()
        """Where dead messages wait that their targets could not take."""
        self.fragments = Fragments()
        self.behind: dict[Queue, None] = {}
        """Queues with put-off work, because too much was settled or returned at once; the next queue first."""
        self.abandoned: dict[Queue, None] = {}
        """Unneeded queues that are still to be removed, because they were too many to be removed at once."""
        self.lost: dict[str, list[tuple[str, int]]] = {}
        """Disconnected or evicted nodes -> keys of their sessions that are still to be ended, the next session last.
        They were too many to end at once. Their consumers receive no messages."""
        self.deferred_free = self.catalog.deferred_free
        self.reviewing: dict[str, VirtualHost] = {}
        """Virtual hosts whose queues and exchanges are still to be matched with policies, by name."""
        self.channels_with_room: dict[tuple[str, int], int] = {}
        """Sessions with free room for waiting consumers -> id of the consumer that was asked last."""
        self.queue_timers: Timers[Queue] = Timers(_queue_key)
        """Cluster times at which the messages of queues need work; before version 9 also the expiries of unused
        queues."""
        self.idle_timers: Timers[Queue] = Timers(_queue_key)
        """Times (without outages) at which unused queues expire."""
        self.group_timers: Timers[LeaseGroup] = Timers(_group_key)
        """Times (without outages) at which idle groups end."""
        self.sink_timers: Timers[Sink] = Timers(_sink_key)
        """Times (without outages) at which idle sinks end."""
        self.committed: deque[CommittedRuns] = deque()
        """Messages of committed epochs that are still to enter their queues, as put-off work."""
        self.consumer_timers: Timers[Consumer] = Timers(_consumer_key)
        """Times (without outages) at which consumers have held a message for too long."""
        self.effects: list[Effect] = []
        self.behind_answer: list[Effect] = []
        """Effects of the current command that follow its answer."""
        self.origin = ""
        self.index = 0
        self.time_ms = 0
        self.outage_ms = 0
        """Milliseconds of the cluster's time that were outage, in which clients could not act. It is 0 before version
        9."""
        self.next_slot = 0
        """The slot of the batch's first message that no command has published yet."""
        self.sizes = array("I")
        """The size of each message of the batch, in octets."""
        self.size = 0
        """The octets of all these messages."""
        self.payload: Buffer = b""
        """The whole batch; the messages are at its end."""
        self._offsets: list[int] = []
        """Start of each message in the payload, and at the end the end of the last message, in bytes."""
        self._offsets_of = self.sizes
        """The `sizes` that the offsets were computed for; they are computed only when they are needed."""
        self.position = 0
        """The place of the current command in the batch."""
        self.routed = Counter[str]()
        """Node -> number of times that a message from it entered a queue, since this process began. Like `dropped`, it
        is not part of the state."""
        self.routed10 = Counter[str]()
        """The messages in `routed` that clients of AMQP 1.0 have published."""
        self.dropped = Counter[str]()
        """Node -> number of messages from it that were not mandatory and reached no queue."""

    @property
    def available_ms(self) -> int:
        """The cluster's time without outages, in milliseconds. Timers that wait for an action of a client use it."""
        return self.time_ms - self.outage_ms

    def take_apart(self, deferred_free: DeferredFree) -> None:
        """Hand the large containers to `deferred_free`, because a different state replaces this state."""
        for vhost in self.catalog.vhosts.values():
            vhost.take_apart(deferred_free)
        deferred_free.add(self.catalog.vhosts, self.catalog.connections, self.sessions, self.consumers)
        deferred_free.free_between_entries(FREED_MAX)

    # Messages

    def contents(self, slot: int, count: int) -> Iterator[Content]:
        """Yield the parts that routing may use of each of `count` messages of the batch, from `slot` on."""
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
        """Append the session's stored fragments to the next message of the batch, and add their size to it."""
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
            self.consumer_timers.set(consumer, None)  # because its channel will be closed soon

    # Sessions

    def session(self, node: str, number: int) -> SessionState:
        known = self.sessions.get((node, number))
        if known is None:
            known = self.sessions[node, number] = SessionState(self.catalog.default_vhost)
        return known

    def restore_session(self, key: tuple[str, int], session: SessionState) -> None:
        """Restore a session without its consumers."""
        self.sessions[key] = session
        if session.requester is not None:
            self.enter_requester(session, session.requester)
        if session.user is not None:
            self.catalog.count_channel(session.user, 1)

    def end_session(self, number: int) -> None:
        """End a closed session, if it exists, and return the messages that its consumers held."""
        session = self.sessions.pop((self.origin, number), None)
        if session is not None:
            self._forget_channel(session)
            self.end_consumers(list(session.consumers.values()), failed=True)

    def lose_sessions_of(self, node: str) -> None:
        """End all sessions and connections of a node.

        Sessions beyond the limit of an entry end in the next entries, or with the node's next command.
        """
        for key in [key for key in self.catalog.connections if key[0] == node]:
            self.catalog.disconnect(*key)
        if node not in self.lost:
            self._put_off_sessions_of(node)
            for key in self.lost[node]:
                self.forget_requester(self.sessions[key])
                self.channels_with_room.pop(key, None)
        self._end_lost_sessions(node, LOST_MAX)

    def restore_lost(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            self._put_off_sessions_of(node)

    def _put_off_sessions_of(self, node: str) -> None:
        self.lost[node] = [key for key in self.sessions if key[0] == node]
        self.lost[node].reverse()

    def end_lost(self, node: str) -> None:
        """End all remaining sessions of a disconnected node at once.

        The node's new incarnation reuses their numbers.
        """
        while node in self.lost:
            self._end_lost_sessions(node, LOST_MAX)

    def _end_some_lost(self) -> None:
        left = LOST_MAX
        for node in list(self.lost):
            if left > 0:
                left -= self._end_lost_sessions(node, left)

    def _end_lost_sessions(self, node: str, most: int) -> int:
        """End about `most` consumers and sessions of a disconnected node, and return their number."""
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
        """Ask a connection's node to close it, unless it was asked before."""
        if not connection.closing:
            connection.closing = reason
            self.effects.append(self.closing(connection))

    def closing(self, connection: ConnectionState) -> ConnectionForced:
        return ConnectionForced(connection.node, connection.id, CONNECTION_FORCED, connection.closing)

    def vhost(self, number: int) -> VirtualHost:
        """Return the virtual host of the session. Raise Refused if it is deleted."""
        vhost = self.session(self.origin, number).vhost
        vhost.check()
        return vhost

    def has_failed(self, session: int) -> bool:
        known = self.sessions.get((self.origin, session))
        return known is not None and known.failed

    def publishes_to(self, session: int) -> VirtualHost | None:
        """Return the virtual host to which the session publishes, or None if it has failed. No session is created."""
        known = self.sessions.get((self.origin, session))
        if known is None:
            return self.catalog.default_vhost
        return None if known.failed else known.vhost

    def last_declared(self, session: int) -> str:
        """Return the queue that an empty name means in a command.

        Raises Refused if the session has declared no queue.
        """
        queue = self.session(self.origin, session).queue
        if not queue:
            raise not_found("previously declared queue")
        return queue

    def queue(self, session: int, connection: int, name: str) -> Queue:
        """Return the queue that a command names, if this connection may use it. Raise Refused."""
        vhost = self.vhost(session)
        return vhost.queue(name or self.last_declared(session), (self.origin, connection))

    # Consumers

    def enter_requester(self, session: SessionState, requester: Requester) -> None:
        session.requester = session.vhost.requesters[requester.name] = requester

    def forget_requester(self, session: SessionState) -> None:
        """Forget the session's consumer of direct replies and its name, if it has such a consumer."""
        if session.requester is not None:
            del session.vhost.requesters[session.requester.name]
            session.requester = None

    def requester(self, session: int, name: str) -> Requester | None:
        """Return the consumer of direct replies with this name, or None. Raise Refused."""
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

    def forget_if_done(self, consumer: Consumer) -> None:
        """Forget a cancelled consumer that holds no more messages."""
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

    def changed(self, queue: Queue) -> None:
        """Let the entry's end serve a queue, and do its put-off work."""
        if queue.is_behind:
            self.behind[queue] = None
        self.touch(queue)

    def released(self, consumer: Consumer) -> None:
        """Serve channel and queue after a consumer released messages, and forget the consumer if it is done."""
        if consumer.budget is not None and consumer.budget.limit:
            consumer.queue.make_way(consumer)  # because the other consumers of its channel have waited
            self._offer_room(consumer)
        self.changed(consumer.queue)
        self.forget_if_done(consumer)

    def _offer_room(self, consumer: Consumer) -> None:
        """Offer the room that a consumer has freed to the other consumers of its channel."""
        key = consumer.node, consumer.session
        if key in self.sessions and consumer.node not in self.lost:
            self.wake_waiting_consumers(key, consumer.id)

    def wake_waiting_consumers(self, key: tuple[str, int], last: int = 0) -> int:
        """Ask consumers that wait for room in their channel whether they want messages, and return how many were asked.

        The channel has room again, or a new limit. As many consumers are asked now as there is room for. The rest is
        asked at the end of the entry, if room is left. They are asked in the order of their ids, beginning after the id
        `last`, because the order must follow from the state, even after a load. From version 12 on, the waiting
        consumer with the highest priority in the same queue takes the place of each.
        """
        session, by_priority = self.sessions[key], self.version >= 12
        budget, asked, woken = session.budget, 0, 0
        room = min(budget.room, WOKEN_MAX)
        while budget.waiting and woken < room and asked < WOKEN_MAX:
            last = budget.next_after(last)
            asked += 1
            consumer = session.consumers[last]
            if by_priority:
                consumer = session.consumers[budget.first_of_queue(consumer.rank)]
            budget.stop_waiting(consumer.rank)
            consumer.queue.give_credit(consumer, 0)
            if consumer in consumer.queue.rotation:
                self.touch(consumer.queue)
                woken += 1
        if budget.waiting and room:
            self.channels_with_room[key] = last
        return asked

    def give_back(self, consumers: list[Consumer], fate: int = RETURNED) -> None:
        """Return all messages that these consumers hold to their queues, in message order.

        Large amounts return in portions.
        """
        by_queue: dict[Queue, list[Consumer]] = {}
        for consumer in consumers:
            by_queue.setdefault(consumer.queue, []).append(consumer)
        left = RANGES_AT_ONCE
        for queue, holders in by_queue.items():
            left -= queue.give_back_all(holders, fate, self.time_ms, left)
            for consumer in holders:
                self.released(consumer)

    def end_consumers(self, consumers: list[Consumer], *, failed: bool) -> None:
        """Cancel consumers and return their messages; `failed` is whether these count as failed deliveries."""
        lost_a_consumer: dict[Queue, None] = {}
        for consumer in consumers:
            if consumer.live:
                consumer.queue.cancel(consumer, self.available_ms)
                lost_a_consumer[consumer.queue] = None
                self.touch(consumer.queue)
        fate = RETURNED if not failed else FAILED if self.version < 11 else ENDED
        self.give_back(consumers, fate)
        self.abandon([queue for queue in lost_a_consumer if _is_deleted_with_consumers(queue)])

    # Groups

    def end_group(self, group: LeaseGroup) -> None:
        """End a group. The messages of its open leases return to their places."""
        queue = group.queue
        self.group_timers.set(group, None)
        queue.close_group(group)
        queue.use(self.available_ms)
        self.changed(queue)
        self.remove_if_automatic(queue)

    def _check_due_groups(self) -> None:
        left = DUE_QUEUES_MAX
        while left > 0 and self.group_timers.next_ms <= self.available_ms:
            self.end_group(self.group_timers.pop())
            left -= 1

    # Queues

    # Sinks

    def use_sink(self, sink: Sink) -> None:
        """Record a command of a sink's user."""
        sink.used_ms = self.available_ms
        self.sink_timers.set(sink, sink.expires_at_ms())

    def end_sink(self, sink: Sink) -> None:
        """End a sink, and drop its messages that are not committed."""
        self.sink_timers.set(sink, None)
        del self.catalog.vhosts[sink.vhost].sinks[sink.name]
        self._drop_attempts(sink)

    def _drop_attempts(self, sink: Sink) -> None:
        self.deferred_free.add(*[attempt.runs for attempt in sink.attempts.values()], sink.attempts)

    def _check_due_sinks(self) -> None:
        left = DUE_QUEUES_MAX
        while left > 0 and self.sink_timers.next_ms <= self.available_ms:
            self.end_sink(self.sink_timers.pop())
            left -= 1

    def publish_runs(self, vhost: str, runs: list[StagedRun]) -> None:
        """Put messages into their queues, behind those that still wait for it. Very many of them are put off."""
        runs.reverse()
        self.committed.append(CommittedRuns(vhost, runs))
        self._publish_committed(RANGES_AT_ONCE)

    def _publish_committed(self, most: int) -> None:
        """Put committed messages into their queues, about `most` ranges. Deleted queues are left out."""
        while self.committed and most > 0:
            name, runs = self.committed[0]
            vhost = self.catalog.vhosts.get(name)
            while runs and most > 0:
                run = runs.pop()
                most -= 1 + len(run.queues)
                if vhost is None:
                    continue
                vhost.count_published(run.exchange, run.count, len(run.queues))
                for queue_name, number in run.queues:
                    queue = vhost.queues.get(queue_name)
                    if queue is not None and queue.number == number:
                        queue.publish(run.messages, run.priority, run.ttl_ms, run.delay_ms, self.time_ms)
                        self.touch(queue)
            if not runs:
                self.committed.popleft()

    def touch(self, queue: Queue) -> None:
        """Mark the queue as changed: its consumers are served at the end of the entry."""
        self.dirty[queue] = None
        if queue.dead:
            self.queues_with_dead[queue] = None

    def serve(self, queue: Queue, at_least: int = 0) -> None:
        """Serve the queue's consumers before its remaining messages are counted or taken.

        They get as many ranges as this entry still allows, but at least `at_least`.
        """
        due_ms = self._due_ms_of(queue)
        if queue in self.dirty or (due_ms is not None and due_ms <= self.time_ms):
            most = max(SERVED_MAX - self.work.served, at_least)
            self.work.served += self._serve_some(queue, most)
            self.touch(queue)

    def _serve_some(self, queue: Queue, most: int) -> int:
        """Serve a queue, for about `most` ranges, and return the cost in ranges."""
        if queue.to_report:
            self._report(queue.activity_reports())
        served, moved = queue.serve(self.time_ms, self.time_ms - self.outage_ms, most, self.lost)
        ranges = SERVING_RANGES + moved
        for consumer, delivery in served:
            ranges += len(delivery.ranges)
            self.effects.append(delivery)
            if consumer.marks:
                self.watch(consumer)
        if queue.to_report:
            ranges += len(queue.to_report)
            self._report(queue.credit_reports(self.time_ms))
        if queue.dead:
            self.queues_with_dead[queue] = None
        return ranges

    def _report(self, states: list[ConsumerState]) -> None:
        """Report states of consumers, except those of disconnected nodes, whose numbers may be used again."""
        self.effects += [state for state in states if state.node not in self.lost]

    def watch(self, consumer: Consumer) -> None:
        """Set a timer for the acknowledgement timeout of the consumer's oldest message."""
        if consumer in self.consumer_timers or consumer.node in self.lost:
            return
        if not self.session(consumer.node, consumer.session).failed:
            self.consumer_timers.set(consumer, self._deadline_ms(consumer))

    def _deadline_ms(self, consumer: Consumer) -> int | None:
        if consumer.no_ack and consumer.client_credit is not None:
            return None
        timeout_ms, since_ms = consumer.queue.timeout_ms(consumer), consumer.out_since_ms()
        return since_ms + timeout_ms if timeout_ms and since_ms is not None else None

    def remove_if_automatic(self, queue: Queue) -> None:
        """Remove an auto-delete queue that has lost its last consumer."""
        if _is_deleted_with_consumers(queue):
            self.remove_queue(queue)

    def remove_queue(self, queue: Queue) -> None:
        """Remove a queue with all its messages, and notify its consumers. Later settlements are ignored."""
        self.effects += self.take_queue(queue)

    def abandon(self, queues: list[Queue]) -> None:
        """Remove unneeded queues. Those beyond the limit of an entry go later, and cannot be used until then."""
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

    def remove_if_abandoned(self, vhost: VirtualHost, name: str) -> None:
        """Remove the queue of this name if its removal was put off, because clients must not see it any more."""
        queue = vhost.queues.get(name)
        if queue in self.abandoned:
            self.remove_queue(queue)

    def _remove_abandoned(self, queue: Queue) -> int:
        """Remove a queue, and return how many objects were removed: queue, bindings, and consumers with messages."""
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
        """Remove a queue, and return the notices for its consumers."""
        self.catalog.vhosts[queue.vhost].delete_queue(queue)
        self.queue_removed(queue)
        gone = self._forget_queue(queue)
        for consumer in queue.holders:
            self._offer_room(consumer)
        self.deferred_free.add_queues((queue,))
        return gone

    def remove_vhost(self, vhost: VirtualHost) -> None:
        """Remove a virtual host with everything in it, at once.

        Its consumers get no notice, because their connections are closed.
        """
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
        self.group_timers.keep(lambda group: group.queue.vhost != name)
        self.sink_timers.keep(lambda sink: sink.vhost != name)
        for sink in vhost.sinks.values():
            self._drop_attempts(sink)
        self.committed = deque(each for each in self.committed if each.vhost != name)
        for queue in vhost.queues.values():
            self.stuck_lines.forget(queue)
        self.dirty, self.queues_with_dead, self.behind, self.abandoned = (
            {queue: None for queue in queues if queue.vhost != name}
            for queues in (
                self.dirty,
                self.queues_with_dead,
                self.behind,
                self.abandoned,
            )
        )
        self.reviewing.pop(name, None)
        self.catalog.delete_vhost(vhost)

    def _forget_queue(self, queue: Queue) -> list[ConsumerGone]:
        self.dirty.pop(queue, None)
        self.queues_with_dead.pop(queue, None)
        self.stuck_lines.forget(queue)
        self.behind.pop(queue, None)
        self.abandoned.pop(queue, None)
        self.queue_timers.set(queue, None)
        self.idle_timers.set(queue, None)
        for group in queue.groups.values():
            self.group_timers.set(group, None)
        gone: list[ConsumerGone] = []
        for consumer in queue.holders:
            self._forget(consumer)
            consumer.leave_channel()
            if consumer.live and consumer.node not in self.lost:
                gone.append(ConsumerGone(consumer.node, consumer.session, consumer.id))
        return gone

    def _do_postponed_work(self) -> None:
        """Do part of the put-off work, queue by queue."""
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
        """Match the policies of a virtual host with its queues and exchanges; work beyond the limit is put off."""
        if self.work.steps < REVIEW_STEPS_MAX:
            self._review(vhost)
        if vhost.is_unreviewed:
            self.reviewing[vhost.name] = vhost
        else:
            self.reviewing.pop(vhost.name, None)  # the virtual hosts left here decide the order of service

    def _review_policies(self) -> None:
        """Continue the put-off matching of policies, a little in every entry."""
        names = sorted(self.reviewing)
        first = self.time_ms % len(names)  # so that no virtual host is always the first
        for name in names[first:] + names[:first]:
            self._review(self.reviewing[name])
            if not self.reviewing[name].is_unreviewed:
                del self.reviewing[name]
            if self.work.steps >= REVIEW_STEPS_MAX:
                break

    def _review(self, vhost: VirtualHost) -> None:
        """Match a part of a virtual host. For changed settings, enforce limits and set timers again."""
        for queue, before in vhost.review(REVIEW_STEPS_MAX):
            if self.version >= 9 and queue.settings.expires_ms != before.expires_ms:
                queue.use(self.available_ms)  # the policy cannot apply to the time before it
            self.touch(queue)
            for consumer in queue.holders:
                self.consumer_timers.set(consumer, None)
                self.watch(consumer)

    # Time

    def due_ms(self) -> int | None:
        """Return the time from which an entry without commands would do work, or None for never."""
        if (
            self.dirty
            or self.behind
            or self.committed
            or self.channels_with_room
            or self.reviewing
            or self.abandoned
            or self.lost
            or self.deferred_free
        ):
            return NOW_MS
        timers = self.idle_timers, self.consumer_timers, self.group_timers, self.sink_timers
        available_ms = min([each.next_ms for each in timers])
        due_ms = min(self.queue_timers.next_ms, available_ms + self.outage_ms)
        return None if due_ms >= NEVER_MS else due_ms

    def end_entry(self) -> None:
        """Do work that is due or was put off, and serve the changed queues, the longest wait first."""
        now_ms = self.time_ms
        if self.reviewing:
            self._review_policies()
        if self.lost:
            self._end_some_lost()
        if self.group_timers.next_ms <= self.available_ms:
            self._check_due_groups()
        if self.sink_timers.next_ms <= self.available_ms:
            self._check_due_sinks()
        if self.committed:
            self._publish_committed(RANGES_MAX)
        if self.behind:
            self._do_postponed_work()
        if self.abandoned:
            self._remove_some_abandoned()
        if self.deferred_free:
            self.deferred_free.free(FREED_MAX)
        available_ms = now_ms - self.outage_ms
        if self.consumer_timers.next_ms <= available_ms:
            self._check_due_consumers()
        if self.queue_timers.next_ms <= now_ms or self.idle_timers.next_ms <= available_ms:
            self._check_due_queues()
        left = self._serve_dirty(SERVED_MAX)
        if self.channels_with_room:
            self._fill_channels(left)
        self.work.clear()

    def _check_due_consumers(self) -> None:
        timers = self.consumer_timers
        due: list[Consumer] = []
        while timers.next_ms <= self.available_ms:
            due.append(timers.pop())
        # On a node that set its timers long ago, some timers expire without need, so their order must have no effect.
        for consumer in sorted(due, key=_consumer_key):
            self._time_out_consumer(consumer)

    def _check_due_queues(self) -> None:
        left = DUE_QUEUES_MAX
        unused: dict[Queue, None] = {}
        now_ms, available_ms = self.time_ms, self.available_ms
        for timers, until_ms in ((self.queue_timers, now_ms), (self.idle_timers, available_ms)):
            while left > 0 and timers.next_ms <= until_ms:
                queue = timers.pop()
                if queue in self.dirty or queue in self.abandoned:
                    continue  # it is served in any case, and not every node has a timer for it
                left -= 1
                if self._has_expired(queue):
                    unused[queue] = None
                else:
                    self.touch(queue)
        self.abandon(list(unused))

    def _due_ms_of(self, queue: Queue) -> int | None:
        """Return the time from which the queue has work without a command, or None for never."""
        due_ms = queue.due_ms()
        abandoned_ms = None if self.version >= 9 else queue.abandoned_ms()
        if abandoned_ms is not None:
            due_ms = abandoned_ms if due_ms is None else min(due_ms, abandoned_ms)
        return due_ms

    def _has_expired(self, queue: Queue) -> bool:
        """Return whether an unused queue has expired (x-expires), and its dead messages have been moved."""
        abandoned_ms = queue.abandoned_ms()
        if abandoned_ms is None or abandoned_ms > self.available_ms:
            return False
        return self.version < 9 or not (queue.has_dead or queue.loses_dead(self.time_ms))

    def _set_timers(self, queue: Queue) -> None:
        """Set the timers of a queue, which must have been served."""
        timers, due_ms = self.queue_timers, queue.due_ms()
        if due_ms is not None or timers.next_ms != NEVER_MS:
            timers.set(queue, due_ms)
        if queue.settings.expires_ms is not None or self.idle_timers.next_ms != NEVER_MS:
            self._set_idle_timer(queue)

    def _set_idle_timer(self, queue: Queue) -> None:
        """Set the timer of an unused queue's expiry; a queue with dead messages gets it when these have left."""
        if self.version >= 9:
            self.idle_timers.set(queue, None if queue.has_dead else queue.abandoned_ms())
        else:
            self.queue_timers.set(queue, self._due_ms_of(queue))

    def _serve_dirty(self, most: int) -> int:
        """Serve the changed queues, for about `most` ranges, and return how many ranges are left.

        The timer of a queue that is left out is set when the queue is served.
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
        if partly is not None:  # it was served in part, so it goes behind the unserved queues
            dirty[partly] = None
        return most

    def _fill_channels(self, most: int) -> None:
        """Ask waiting consumers of channels that have room, and serve their queues, while room is left."""
        asked = 0
        while self.channels_with_room and asked < WOKEN_MAX:
            channels_with_room, self.channels_with_room = self.channels_with_room, {}
            for key, last in channels_with_room.items():
                if key in self.sessions:
                    asked += self.wake_waiting_consumers(key, last)
            most = self._serve_dirty(most)
        # The rest is left for the next entry. The last ids are reset, because a node that loads the state does not know
        # them.
        self.channels_with_room = dict.fromkeys(sorted(self.channels_with_room), 0)

    def restore_waiting(self) -> None:
        """Compute, after a load, which consumers wait for room in their channel."""
        for consumer in self.consumers.values():
            consumer.queue.restore_waiting(consumer)
        for key in sorted(self.sessions):
            budget = self.sessions[key].budget
            if budget.waiting and budget.room and key[0] not in self.lost:
                self.channels_with_room[key] = 0

    def restore_timers(self) -> None:
        """Set the timers of queues after a load, as on a node that has applied all entries.

        Queues that will be served in any case get no timer. The number of queues examined in an entry depends on that.
        """
        for queue in self.catalog.queues():
            if queue not in self.dirty and queue not in self.abandoned:
                self._set_timers(queue)
            for group in queue.groups.values():
                self.group_timers.set(group, group.expires_at_ms())
        for vhost in self.catalog.vhosts.values():
            for sink in vhost.sinks.values():
                self.sink_timers.set(sink, sink.expires_at_ms())

    def _time_out_consumer(self, consumer: Consumer) -> None:
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
            return  # its channel will be closed soon
        place = queue.vhost, queue.name, message_id
        self.effects.append(DeliveryTimeout(node, number, consumer.id, consumer.tag, *place, timeout_ms))
        if consumer.client_credit is not None:
            self._release_overdue(consumer, message_id, timeout_ms)
            return
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

    def _release_overdue(self, consumer: Consumer, first: int, timeout_ms: int) -> None:
        """Return the messages that a consumer holds for too long, from the id `first` on; the consumer stays."""
        last = consumer.last_out_since(self.available_ms - timeout_ms)
        assert last is not None
        self.effects.append(DeliveriesReleased(consumer.node, consumer.session, consumer.id, first, last))
        consumer.queue.settle(consumer, first, last, self.time_ms, RETURNED)
        self.watch(consumer)
        self.released(consumer)


def _is_deleted_with_consumers(queue: Queue) -> bool:
    return queue.auto_delete and queue.had_consumer and not queue.consumers and not queue.groups


def message_number(index: int, slot: int) -> int:
    """Return the number of a message, which is unique."""
    return index << _SLOT_BITS | slot


_SLOT_BITS = 32
"""Bits of a slot: the batch's ordinal in the entry and the message's ordinal in the batch."""


def no_content(_message: Buffer, number: int) -> Content:
    """A `ContentOf` for a machine without exchanges that look into messages."""
    return Content({}, {}, number)


def _ignored(_queue: Queue) -> None:
    """Do nothing, because no session watches queues."""


def _queue_key(queue: Queue) -> int:
    return queue.number


def _group_key(group: LeaseGroup) -> tuple[int, str]:
    return group.queue.number, group.name


def _sink_key(sink: Sink) -> tuple[str, str]:
    return sink.vhost, sink.name


def _consumer_key(consumer: Consumer) -> tuple[str, int]:
    return consumer.node, consumer.id
