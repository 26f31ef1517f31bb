"""The replicated state machine: what the log calls, and which command is carried out by whom.

Invariant: a method depends on its arguments and on self, nothing else. No clock, no randomness, no iteration over sets,
no floats. Nothing that a client or an operator can send makes it raise: a command that cannot be carried out yields
`Failed` and changes nothing. A batch that cannot be read is a fault of the node that submitted it, which has told its
clients something else: it raises `MalformedBatch` and changes nothing.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

from qq.machine.catalog.permissions import User
from qq.machine.handlers.claims import Claims
from qq.machine.handlers.connecting import Connecting
from qq.machine.handlers.consuming import Taking
from qq.machine.handlers.core import ContentOf, Core, SessionState, no_content
from qq.machine.handlers.cost_estimate import Costs
from qq.machine.handlers.declaring import Declaring
from qq.machine.handlers.moving import Moving
from qq.machine.handlers.operating import Operating
from qq.machine.handlers.publishing import Publishing
from qq.machine.protocol import commands as c
from qq.machine.protocol.codec import decode_commands, keep, message_sizes
from qq.machine.protocol.effects import DeadLettered, Known, OriginExpelled
from qq.machine.protocol.refusals import Refused
from qq.machine.protocol.versions import VERSIONS
from qq.machine.queue.queue import Consumer, Queue, held
from qq.machine.snapshot.state import FrozenMachine, MalformedDump, freeze, read_dump, restore
from qq.ranges import MESSAGE_BITS, Range

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from qq.machine.catalog.catalog import Catalog
    from qq.machine.catalog.vhost import VirtualHost
    from qq.machine.handlers.fragments import Fragment
    from qq.machine.protocol.effects import Deliver, Effect, Result
    from qq.machine.queue.moves import Moves


class DyingMessages(NamedTuple):
    """The first messages of a queue that wait to be dead-lettered, for the node that sees to it."""

    vhost: str
    queue: str
    number: int
    """The queue's number."""
    first: int
    """The number of the first of these messages, among all that have ever died in this queue."""
    ranges: list[Range]
    needs_content: bool
    """Whether the command has to tell what routing may look at of the messages."""


class QueueMachine:
    """Virtual hosts with their queues, and who may use them."""

    versions = VERSIONS
    outages_since = 9

    def __init__(self, content_of: ContentOf = no_content) -> None:
        """`content_of` is for exchanges that look into messages; it is the same on all nodes."""
        core = Core(content_of)
        core.catalog.begin()
        self._begin(core)
        self.needed_from: Callable[[], int | None] = _nothing
        """Tells the first entry with a message that a session of this node waits for though nothing in the state refers
        to it, such as one that is returned. What is remembered for it is no part of the state."""

    def _begin(self, core: Core) -> None:
        self._core = core
        publishing, taking, declaring = Publishing(core), Taking(core), Declaring(core)
        connecting, operating, moving = Connecting(core), Operating(core), Moving(core, publishing)
        self._publishing = publishing
        self.costs = Costs(core)
        """What commands will cost, for those who gather them. `adopt` makes a new one."""
        self.claims = Claims(core)
        """The claims of nodes that may be dead. `adopt` makes a new object."""
        self._handlers: dict[type[c.Command], Callable[[Any], None]] = {
            c.Publish: publishing.publish,
            c.StoreFragment: publishing.store_fragment,
            c.JoinFragments: publishing.join_fragments,
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
            c.ProtectVhost: operating.protect_vhost,
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
            c.PutParameter: operating.put_parameter,
            c.DeleteParameter: operating.delete_parameter,
            c.PutGlobalParameter: operating.put_global_parameter,
            c.DeleteGlobalParameter: operating.delete_global_parameter,
            c.LimitPublishers: operating.limit_publishers,
            c.BeginMove: moving.begin,
            c.MoveMessages: moving.step,
            c.EndMove: moving.end,
        }
        self._methods: dict[type[c.Command], Callable[[Any], Result]] = {
            c.Connect: connecting.connect,
            c.ConnectVouched: connecting.connect_vouched,
            c.Checkout: taking.checkout,
            c.ReplyTo: taking.reply_to,
            c.Cancel: taking.cancel,
            c.Get: taking.get,
            c.GetMessages: taking.get_messages,
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
                publishing.commit(command, content, handlers[c.Settle])
                for _ in content:
                    next(ahead)
            else:
                self._answer(command)
        publishing.flush()
        core.payload = b""
        return core.take_effects()

    def end_entry(self, time_ms: int) -> list[Effect]:
        """Do what is due or was put off, and serve the queues that have something new: who waited longest first."""
        self._core.time_ms = time_ms
        self._core.end_entry()
        return self._core.take_effects()

    def outage(self, length_ms: int) -> None:
        """Count so much of the time before the entry that begins as outage; before version 9 it counts as any time."""
        if self._core.version >= self.outages_since:
            self._core.outage_ms += length_ms

    def fragments_of(self, index: int) -> Mapping[int, Sequence[Fragment]]:
        """What the large messages of an entry go on with, by slot; messages that were stored whole are not in it."""
        return self._core.fragments.of(index)

    def first_fragment_from(self, index: int) -> int:
        """The first entry that is needed by the messages of this entry and those behind it."""
        return self._core.fragments.first_needed_from(index)

    def raise_to(self, version: int) -> None:
        """Go by this version of the state from the next entry on."""
        core = self._core
        before, core.version = core.version, version
        if before < 9 <= version:
            core.restore_timers()  # unused queues have timers of their own from now on

    def due_ms(self) -> int | None:
        """The time at which an entry will do something although nobody asks for anything; None for never."""
        return self._core.due_ms()

    def concerned(self, effects: Sequence[Effect]) -> Iterable[str]:
        """The nodes whose sessions are told one of these effects."""
        return [effect.node for effect in effects if type(effect) is not DeadLettered]

    def origin_down(self, origin: str, time_ms: int, *, expelled: bool) -> list[Effect]:
        """End what a node had open that restarted or was given up: what clients held returns, exclusive queues go."""
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
            return effects  # what is there is of a life of the node that is over
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

    def count_anew(self) -> None:
        """Forget what was counted so far: this node has read it again of its log, and counted it in an earlier life."""
        core = self._core
        core.routed.clear()
        core.dropped.clear()
        for vhost in core.catalog.vhosts.values():
            vhost.count_anew()

    # What the shell may look at

    def has_lost_sessions(self, origin: str) -> bool:
        """Whether sessions of an earlier life of this node are still ending. Its next command would end all at once."""
        return origin in self._core.lost

    @property
    def version(self) -> int:
        """The version of the state that the log has agreed on, as far as this node has applied it."""
        return self._core.version

    @property
    def outage_ms(self) -> int:
        """How much of the cluster's time was outage. Queues expire, and consumers time out, by the time without it."""
        return self._core.outage_ms

    @property
    def routed(self) -> Mapping[str, int]:
        """How often messages that came to each node went into a queue, since this process began."""
        return self._core.routed

    @property
    def dropped(self) -> Mapping[str, int]:
        """How many messages that came to each node, and were not mandatory, have reached no queue since then."""
        return self._core.dropped

    @property
    def vhosts(self) -> Mapping[str, VirtualHost]:
        """All virtual hosts, by name. `ready`, `unacked` and `consumers` of their queues are the counts to show."""
        return self._core.catalog.vhosts

    @property
    def catalog(self) -> Catalog:
        """Users and what they are permitted (`access`), and the connections of the whole cluster."""
        return self._core.catalog

    @property
    def revision(self) -> int:
        """The `revision` of the catalog, at hand for those who ask for it often."""
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
        """The queues of all virtual hosts."""
        return self._core.catalog.queues()

    @property
    def consumers(self) -> Mapping[tuple[str, int], Consumer]:
        """All consumers, by node and consumer id; those that are not `live` only hold messages."""
        return self._core.consumers

    def dying(self, ranges_max: int, start: int = 0) -> Iterator[DyingMessages]:
        """The messages that wait to be dead-lettered, queue by queue; at most `ranges_max` ranges of each.

        It begins with the queue in the place `start`, modulo their number.
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

    def freeze(self) -> FrozenMachine:
        """The state as it is now, to be read on any thread."""
        self._core.fragments.forget_unneeded(self.needed_from())
        return freeze(self._core)

    def dump(self) -> bytes:
        return self.freeze().dump()

    def read(self, data: bytes) -> Core:
        """A state that was dumped, to be adopted; on any thread. Raises MalformedDump."""
        core = Core(self._core.content_of)
        try:
            restore(core, read_dump(data))
        except MalformedDump:
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # Rows are not looked at one by one: what has another type than it should fails somewhere.
            raise MalformedDump(f"not a state: {type(error).__name__}: {error}") from error
        return core

    def adopt(self, state: Core) -> None:
        """Replace the state by one that was read, and go by the version that this is of."""
        former = self._core
        self._begin(state)
        state.routed, state.dropped = former.routed, former.dropped
        # Whoever remembers something of the former state has to look again.
        state.catalog.access.revision += former.catalog.revision + 1
        former.take_apart(state.remains)

    def digest(self) -> str:
        """A hash of the state: equal states have equal digests."""
        return hashlib.sha256(self.dump()).hexdigest()


def _nothing() -> None:
    """Nobody waits for anything."""


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
