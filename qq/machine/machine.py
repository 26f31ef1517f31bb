"""The replicated state machine: what the log calls, and which command is carried out by whom.

Lives here: the order of an entry, and the whole state as bytes. Not here: what commands do (publishing.py,
consuming.py, declaring.py, connecting.py, operating.py), what they share (core.py), bytes (codec.py, state.py),
replication (cluster).

Law: a method depends on its arguments and on self, nothing else. No clock, no randomness, no iteration over sets, no
floats. Nothing that a client or an operator can send makes it raise: a command that cannot be carried out yields
`Failed` and changes nothing. A batch that cannot be read is a fault of the node that submitted it, which has told its
clients something else: it raises `MalformedBatch` and changes nothing.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

from qq.machine import commands as c
from qq.machine.access import Permissions, TopicPermissions, User
from qq.machine.catalog import Connection
from qq.machine.codec import decode_commands, keep, message_sizes
from qq.machine.connecting import Connecting
from qq.machine.consuming import Taking
from qq.machine.core import ContentOf, Core, no_content
from qq.machine.costs import Costs
from qq.machine.declaring import Declaring
from qq.machine.effects import Known, OriginExpelled
from qq.machine.errors import Refused
from qq.machine.leaving import Leaving
from qq.machine.operating import Operating
from qq.machine.policies import Policy
from qq.machine.publishing import Publishing
from qq.machine.queue import Consumer, Dying, Queue, held
from qq.machine.requesters import Requester
from qq.machine.settings import consumer_settings_of, settings_of
from qq.machine.state import (
    VERSION,
    ConnectionRow,
    ConsumerRow,
    Frozen,
    SessionRow,
    VhostRow,
    answer_of,
    applied_of,
    read_dump,
)
from qq.machine.vhost import Exchange
from qq.ranges import MESSAGE_BITS, Range, RangeMap
from qq.routing.routers import Binding, Destination, DestinationKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from qq.machine.catalog import Catalog
    from qq.machine.effects import Deliver, Effect, Result
    from qq.machine.state import Dump, VhostRef
    from qq.machine.vhost import VirtualHost


class DyingMessages(NamedTuple):
    """The first messages of a queue that wait to be dead-lettered, for the node that sees to it."""

    vhost: str
    queue: str
    number: int
    """Of the queue."""
    first: int
    """Number of the first of these messages."""
    ranges: list[Range]
    needs_content: bool
    """The command has to tell what routing may look at of the messages."""


class QueueMachine:
    """Virtual hosts with their queues, and who may use them."""

    version = VERSION

    def __init__(self, content_of: ContentOf = no_content) -> None:
        """`content_of` is for exchanges that look into messages; it is the same on all nodes."""
        core = Core(content_of)
        core.catalog.begin()
        self._begin(core)

    def _begin(self, core: Core) -> None:
        self._core = core
        publishing, taking, declaring = Publishing(core), Taking(core), Declaring(core)
        connecting, operating = Connecting(core), Operating(core)
        self._publishing = publishing
        self.costs = Costs(core)
        """What commands will cost, for those who gather them; another one after `load`."""
        self._handlers: dict[type[c.Command], Callable[[Any], None]] = {
            c.Publish: publishing.publish,
            c.DeadLetter: publishing.dead_letter,
            c.Settle: taking.settle,
            c.Discard: taking.settle,
            c.Return: taking.settle,
            c.Reject: taking.settle,
            c.Credit: taking.credit,
            c.SetPrefetch: taking.set_prefetch,
            c.OpenChannel: connecting.open_channel,
            c.SessionDown: connecting.session_down,
            c.ConnectionDown: connecting.connection_down,
            c.CloseConnection: connecting.close_connection,
            c.PutVhost: operating.put_vhost,
            c.DeleteVhost: operating.delete_vhost,
            c.SetVhostLimits: operating.set_vhost_limits,
            c.ChangeVhostLimits: operating.change_vhost_limits,
            c.PutUser: operating.put_user,
            c.PutHashedUser: operating.put_user,
            c.DeleteUser: operating.delete_user,
            c.SetUserLimits: operating.set_user_limits,
            c.ChangeUserLimits: operating.change_user_limits,
            c.SetPermissions: operating.set_permissions,
            c.ClearPermissions: operating.clear_permissions,
            c.SetTopicPermissions: operating.set_topic_permissions,
            c.ClearTopicPermissions: operating.clear_topic_permissions,
            c.PutPolicy: operating.put_policy,
            c.DeletePolicy: operating.delete_policy,
            c.LimitPublishers: operating.limit_publishers,
        }
        self._methods: dict[type[c.Command], Callable[[Any], Result]] = {
            c.Connect: connecting.connect,
            c.Checkout: taking.checkout,
            c.ReplyTo: taking.reply_to,
            c.Cancel: taking.cancel,
            c.Get: taking.get,
            c.Recover: taking.recover,
            c.Limit: taking.limit,
            c.DeclareQueue: declaring.declare_queue,
            c.DeleteQueue: declaring.delete_queue,
            c.PurgeQueue: declaring.purge_queue,
            c.BindQueue: declaring.bind_queue,
            c.UnbindQueue: declaring.unbind_queue,
            c.DeclareExchange: declaring.declare_exchange,
            c.DeleteExchange: declaring.delete_exchange,
            c.BindExchange: declaring.bind_exchange,
            c.UnbindExchange: declaring.unbind_exchange,
        }

    # What the log calls

    def apply_batch(
        self, origin: str, index: int, ordinal: int, time_ms: int, payload: bytes | memoryview
    ) -> list[Effect]:
        """Carry out the commands of one batch, in order; `ordinal` is its place in the entry. Raises MalformedBatch."""
        commands = decode_commands(payload)
        core = self._core
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
                publishing.commit(command, content, handlers[c.Settle])
                for _ in content:
                    next(ahead)
            else:
                self._answer(command)
        publishing.flush()
        core.payload = b""
        return core.take_effects()

    def end_entry(self, time_ms: int) -> list[Effect]:
        """Do what time brings, and serve the queues that have something new, in the order in which they got it."""
        self._core.time_ms = time_ms
        self._core.end_entry()
        return self._core.take_effects()

    def due_ms(self) -> int | None:
        """When an entry will do something although nobody asks for anything; None for never."""
        return self._core.due_ms()

    def origin_down(self, origin: str, time_ms: int, *, expelled: bool) -> list[Effect]:
        """The node restarted or was given up: what its sessions held returns, its exclusive queues go."""
        core = self._core
        core.time_ms = time_ms
        core.lose_sessions_of(origin)
        vhosts = core.catalog.vhosts.values()
        core.abandon([queue for vhost in vhosts for queue in vhost.owned_queues_of_node(origin)])
        if expelled:
            core.effects.append(OriginExpelled(origin))
        return core.take_effects()

    def outstanding(self, origin: str) -> list[Effect]:
        """What the sessions of a node are owed: for each its last answer, all that its consumers hold, and `Known`.

        At the end come the connections that it has to close.
        """
        effects: list[Effect] = []
        if self.has_lost_sessions(origin):
            return effects  # of a life that is over
        for (node, number), session in self._core.sessions.items():
            if node != origin:
                continue
            if session.answer is not None:
                effects.append(session.answer)
            for consumer in session.consumers.values():
                # What `Get` took was told in its answer.
                if consumer.next_id:
                    effects.extend(_deliveries(consumer))
            live = [consumer.id for consumer in session.consumers.values() if consumer.live]
            if session.requester is not None:
                live.append(session.requester.consumer)
            effects.append(Known(node, number, session.answers, live))
        connections = self._core.catalog.connections.values()
        mine = [connection for connection in connections if connection.node == origin]
        effects.extend(self._core.closing(connection) for connection in mine if connection.closing)
        return effects

    def compact(self, payload: bytes | memoryview, messages: Sequence[tuple[int, int]]) -> bytes:
        """Reduce a batch to some of its messages. Raises MalformedBatch."""
        return keep(payload, messages)

    def _answer(self, command: Any) -> None:
        """Carry out what a client waits for, unless an error has already closed its channel."""
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

    # What the shell may look at

    def has_lost_sessions(self, origin: str) -> bool:
        """Whether sessions of an earlier life of this node are still ending. Its next command would end all at once."""
        return origin in self._core.lost

    @property
    def vhosts(self) -> Mapping[str, VirtualHost]:
        """By name. `ready`, `unacked` and `consumers` of their queues are the counts to show."""
        return self._core.catalog.vhosts

    @property
    def catalog(self) -> Catalog:
        """Users and what they are permitted (`access`), and the connections of the whole cluster."""
        return self._core.catalog

    @property
    def revision(self) -> int:
        """That of the catalog, at hand for those who ask it often."""
        return self._core.catalog.access.revision

    @property
    def users(self) -> Mapping[str, User]:
        return self._core.catalog.access.users

    def queues(self) -> Iterator[Queue]:
        """Those of all virtual hosts."""
        return self._core.catalog.queues()

    @property
    def consumers(self) -> Mapping[tuple[str, int], Consumer]:
        """By node and consumer id; those that are not `live` only hold messages."""
        return self._core.consumers

    def dying(self, ranges_max: int, start: int = 0) -> Iterator[DyingMessages]:
        """What waits to be dead-lettered, queue by queue; at most so many ranges of each.

        Begins with the queue in the place `start`, or as far round as that is.
        """
        queues = list(self._core.dying)
        start = start % len(queues) if queues else 0
        for queue in queues[start:] + queues[:start]:
            if not queue.retry_ms:
                first = [dead.range for dead, _ in zip(queue.dying, range(ranges_max), strict=False)]
                needs_content = self._publishing.needs_content(queue)
                place = queue.vhost, queue.name, queue.number, queue.dying_first
                yield DyingMessages(*place, first, needs_content)

    # The whole state

    def freeze(self) -> Frozen:
        """The state as it is now, to be read on any thread."""
        core, catalog = self._core, self._core.catalog
        access = catalog.access
        return Frozen(
            users=list(access.users.values()),
            user_limits=list(access.limits.items()),
            permissions=list(access.all_permissions.values()),
            topic_permissions=list(access.all_topic_permissions.values()),
            publishers_bounds=catalog.publishers_bounds,
            vhosts=[_vhost_row(vhost) for vhost in catalog.vhosts.values()],
            queues_declared=catalog.queues_declared,
            queues=[queue.freeze() for queue in catalog.queues()],
            connections=[
                ConnectionRow(*key, _vhost_ref(connection.vhost), connection.user, connection.closing)
                for key, connection in catalog.connections.items()
            ],
            sessions=[
                SessionRow(
                    key,
                    _vhost_ref(session.vhost),
                    session.user,
                    session.queue,
                    session.budget.limit,
                    session.requester and session.requester[2:],
                    session.answers,
                    session.answer,
                )
                for key, session in core.sessions.items()
            ],
            consumers=[
                ConsumerRow(
                    consumer,
                    consumer.credit,
                    consumer.prefetch,
                    consumer.live,
                    consumer.next_id,
                    [(first_id, time_ms) for first_id, time_ms in consumer.marks],
                    consumer.unacked.freeze(),
                )
                for consumer in core.consumers.values()
            ],
            dirty=list(core.dirty),
            behind=[queue.freeze_behind() for queue in core.behind],
            abandoned=list(core.abandoned),
            lost=list(core.lost),
        )

    def dump(self) -> bytes:
        return self.freeze().dump()

    def load(self, data: bytes) -> None:
        """Replace the state by a dumped one. Raises MalformedDump."""
        state = read_dump(data)
        revision = self._core.catalog.revision
        self._begin(Core(self._core.content_of))
        core, catalog = self._core, self._core.catalog
        self._load_access(state)
        catalog.limit_publishers(*state.publishers_bounds)
        for row in state.vhosts:
            self._load_vhost(row)
        queues: dict[int, Queue] = {}
        for row, dying in zip(state.queues, state.dying, strict=True):
            queue = self._load_queue(row, dying)
            queues[queue.number] = queue
        catalog.queues_declared = state.queues_declared
        for row in state.vhosts:
            self._load_bindings(row)
        for node, number, vhost, user, closing in state.connections:
            catalog.restore_connection(Connection(node, number, self._vhost(vhost), user, closing))
        for (node, number), vhost, user, last_declared, limit, requester, answers, answer in state.sessions:
            session = core.session(node, number)
            session.vhost, session.user = self._vhost(vhost), user
            session.queue, session.answers = last_declared, answers
            session.budget.limit = limit
            if requester is not None:
                core.enter_requester(session, Requester(node, number, *requester))
            session.answer = answer_of(node, number, answer)
            if user is not None:
                catalog.count_channel(user, 1)
        core.restore_lost(state.lost)
        for row, unacked in zip(state.consumers, state.unacked, strict=True):
            self._load_consumer(queues, row, unacked)
        for queue, row in zip(queues.values(), state.queues, strict=True):
            *_, turns, active = row
            queue.restore_turns(
                [core.consumers[node, number] for node, number in turns],
                core.consumers.get(tuple(active)) if active else None,
            )
            if queue.dying:
                core.dying[queue] = None
        core.dirty = {queues[number]: None for number in state.dirty}
        core.abandoned = {queues[number]: None for number in state.abandoned}
        for number, came_back, leaving in state.behind:
            core.behind[queues[number]] = None
            queues[number].restore_behind(came_back, [_leaving(*row) for row in leaving])
        core.restore_waiting()
        core.restore_timers()
        # Whoever remembers something of the former state has to look again.
        catalog.access.revision += revision + 1

    def _load_access(self, state: Dump) -> None:
        access = self._core.catalog.access
        for user in state.users:
            access.put_user(User(*user))
        for user, limits in state.user_limits:
            access.set_limits(user, limits)
        for row in state.permissions:
            access.set_permissions(Permissions(*row))
        for row in state.topic_permissions:
            access.set_topic_permissions(TopicPermissions(*row))

    def _load_vhost(self, row: list[Any]) -> None:
        """A virtual host without its bindings: they are between queues."""
        name, description, tags, default_queue_type, limits, policies, exchanges, _, *rest = row
        exchange_policies, unreviewed_queues, unreviewed_exchanges, publishers = rest
        vhost = self._core.catalog.put_vhost(name)
        vhost.describe(description, tags, default_queue_type)
        vhost.set_limits(limits)
        for policy in policies:
            vhost.restore_policy(Policy(*policy))
        for exchange in exchanges:
            if exchange[0] not in vhost.exchanges:
                vhost.restore_exchange(Exchange(*exchange))
        for exchange, applied in exchange_policies:
            vhost.restore_exchange_policies(exchange, applied_of(vhost.policies, applied))
        vhost.unreviewed_queues, vhost.unreviewed_exchanges = unreviewed_queues, unreviewed_exchanges
        if vhost.is_unreviewed:
            self._core.reviewing[name] = vhost
        vhost.publishers.load(publishers)

    def _load_bindings(self, row: list[Any]) -> None:
        name, *_, bindings, _, _, _, _ = row
        vhost = self._core.catalog.vhosts[name]
        for source, kind, destination_name, routing_key, arguments in bindings:
            destination = Destination(DestinationKind(kind), destination_name)
            vhost.restore_binding(Binding(source, destination, routing_key, arguments))

    def _vhost(self, ref: VhostRef) -> VirtualHost:
        name, is_deleted = ref
        catalog = self._core.catalog
        return catalog.gone_vhost(name) if is_deleted else catalog.vhosts[name]

    def _load_queue(self, row: list[Any], dying: list[list[Any]]) -> Queue:
        vhost, name, kind, durable, owner, auto_delete, arguments, number, had_consumer, used_ms = row[:10]
        applied, backlog, histories, (dying_first, dying_count, retry_ms), _, _ = row[10:]
        policies = applied_of(self._core.catalog.vhosts[vhost].policies, applied)
        queue = Queue(
            vhost=vhost,
            name=name,
            kind=kind,
            durable=durable,
            owner=tuple(owner) if owner else None,
            auto_delete=auto_delete,
            arguments=arguments,
            number=number,
            settings=settings_of(kind, arguments, *policies),
            policies=policies,
            had_consumer=had_consumer,
            used_ms=used_ms,
            dying_first=dying_first,
            dying_count=dying_count,
            retry_ms=retry_ms,
        )
        queue.restore_messages(
            backlog,
            histories,
            [Dying(Range(*messages), reason, time_ms) for messages, reason, time_ms in dying],
        )
        self._core.catalog.vhosts[vhost].restore_queue(queue)
        return queue

    def _load_consumer(
        self, queues: Mapping[int, Queue], row: list[Any], unacked: list[tuple[int, list[int]]]
    ) -> None:
        core = self._core
        node, session, channel, number, queue_number, tag, *properties = row
        credit, prefetch, no_ack, exclusive, auto_credit, cancel_on_failover, can_be_cancelled = properties[
            :7
        ]
        timeout_ms, arguments, budgeted, live, next_id, marks = properties[7:]
        queue = queues[queue_number]
        consumer = Consumer(
            node=node,
            session=session,
            channel=channel,
            id=number,
            queue=queue,
            tag=tag,
            credit=credit,
            prefetch=prefetch,
            no_ack=no_ack,
            exclusive=exclusive,
            auto_credit=auto_credit,
            cancel_on_failover=cancel_on_failover,
            can_be_cancelled=can_be_cancelled,
            default_timeout_ms=timeout_ms,
            arguments=arguments,
            settings=consumer_settings_of(arguments),
            budget=core.session(node, session).budget if budgeted else None,
            live=live,
            next_id=next_id,
            unacked=_held(unacked),
            marks=[list(mark) for mark in marks],
        )
        queue.restore_consumer(consumer)
        core.enter_consumer(consumer)
        core.watch(consumer)

    def digest(self) -> str:
        """Equal states, equal digests."""
        return hashlib.sha256(self.dump()).hexdigest()


def _vhost_ref(vhost: VirtualHost) -> VhostRef:
    return vhost.name, vhost.is_deleted


def _vhost_row(vhost: VirtualHost) -> VhostRow:
    return VhostRow(
        vhost.name,
        vhost.description,
        vhost.tags,
        vhost.default_queue_type,
        vhost.limits,
        vhost.policies.rows(),
        list(vhost.exchanges.values()),
        list(vhost.bindings),
        list(vhost.exchange_policies.items()),
        vhost.unreviewed_queues.copy(),
        vhost.unreviewed_exchanges.copy(),
        vhost.publishers.freeze(),
    )


def _held(rows: list[tuple[int, list[int]]]) -> RangeMap[Range]:
    """What was dumped of messages that a consumer holds, or has held."""
    held: RangeMap[Range] = RangeMap()
    for first, row in rows:
        messages = Range(*row)
        held.append(first, messages.count, messages)
    return held


def _leaving(fate: int, held: list[list[tuple[int, list[int]]]]) -> Leaving:
    return Leaving(fate, [_held(rows) for rows in held])


def _deliveries(consumer: Consumer) -> Iterator[Deliver]:
    """Everything that the consumer holds, as if it were delivered again."""
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
