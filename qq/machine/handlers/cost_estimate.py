"""Estimates of the time that commands will cost every node, made before they enter the log.

Invariant: an estimate reads the state of this node and changes no state. It follows the objects that a command touches:
the queues that a message reaches, or the bindings and consumers that are removed with a queue. It costs a look-up,
except for an unknown route, which is computed within the budget `LOOKED_MAX`. Above the budget the result is None, and
the caller tries again in the next pass of the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from qq.machine.protocol import commands as c
from qq.machine.protocol.refusals import Refused
from qq.machine.protocol.work_meter import (
    CHEAP_STEPS_MAX,
    GOT_AT_ONCE,
    MOVED_AT_ONCE,
    QUEUES_GONE_MAX,
    RANGES_AT_ONCE,
)
from qq.routing.content import NeedsContent
from qq.routing.routers import Destination, DestinationKind
from qq.routing.values import values_inside

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qq.machine.catalog.vhost import VirtualHost
    from qq.machine.handlers.core import Core
    from qq.machine.queue.queue import Queue
    from qq.routing.content import Content

BATCH_STEPS_MAX = 5_000
"""Steps at which a batch ends; an entry has room for three such batches from any nodes."""
LOOKED_MAX = 5_000
"""Steps of routes above CHEAP_STEPS_MAX that may be computed in a pass of the event loop, before the messages are in
the log."""
TRANSACTION_STEPS_MAX = 50_000
"""Maximum steps of a transaction: 50 ms of every node's time."""
COMMIT_STEPS = 5
"""Steps for each part of a transaction, to check it before it is carried out."""
CREDIT_STEPS = 8
FRAGMENT_STEPS = 15
"""Steps for each fragment of a large message, without its octets."""
SETTLED_STEPS: dict[type[c.Settlement], int] = {c.Settle: 10, c.Return: 15, c.Reject: 15, c.Discard: 15}
"""Steps for each settled piece of a delivery, even if several pieces may become a single command."""

_COMMAND = 15
_RUN = 6
_ROUTE_STEPS = 2
"""Router steps (`Router.steps`) per step here."""
_COPY = 4
"""Steps for each queue that gets plain messages."""
_COPY_WITH_PROPERTIES = 6
"""Steps for each queue that gets messages with properties."""
_MESSAGE_BY_SIZE = 2
"""Steps for each message in each queue with a limit in octets."""
_CONTENT = 15
"""Steps to look into a message."""
_VALUES_INSIDE = 2
"""Values per step, for values in tables and arrays of the headers that must be read."""
_RANGE = 3
"""Steps for each range of messages that is returned or settled."""
_PUT_OFF = 16
"""Such ranges per step, if they are put off."""
_BINDING = 12
_HOLDER = 6
_QUEUE = 60
_QUEUE_GONE = 10
_CONNECTION = 2
_IN_A_MASS = 4
"""Queues and consumers per step, when very many of them are removed together."""
_GET = 25
_GOT = 3
"""Steps for each message that is got, if each message is a range of its own."""
_DYING = 10
_HISTORY_OCTETS = 16
"""Octets of a dead letter's history per step, when it is read, and written for a single queue."""
_MOVED = 12
"""Steps for each message that is moved, if each message is a range of its own."""
_CHUNKS = 1_000
"""Steps to read inside of a backlog and to take messages out of it, because a chunk or two are packed again."""

_FLAT: dict[type[c.Command], int] = {
    c.DeclareQueue: _QUEUE,
    c.BindQueue: 40,
    c.BindExchange: 40,
    c.UnbindQueue: 30,
    c.UnbindExchange: 30,
    c.Checkout: 25,
    c.Get: _GET,
    c.Credit: CREDIT_STEPS,
    c.SetPrefetch: 8,
    c.PutPolicy: BATCH_STEPS_MAX,
    c.DeletePolicy: BATCH_STEPS_MAX,
    c.LimitPublishers: BATCH_STEPS_MAX,
}


class Price(NamedTuple):
    """The price in steps of messages with the same route: a fixed part, and a part per message."""

    once: int
    each: int

    def of(self, count: int) -> int:
        """Return the steps of `count` such messages together."""
        return self.once + self.each * count


class Costs:
    """Estimates the cost of commands from the state of a machine."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.looked = 0
        """Steps of expensive routes that were computed in this pass."""
        self._counted: set[tuple[str, str, str]] = set()
        """Routes whose steps have been counted in this pass. This node has cached them, but the other nodes may not
        have."""

    def begin_pass(self) -> None:
        """Reset the budget for computing routes, in a new pass of the event loop."""
        self.looked = 0
        self._counted.clear()

    @property
    def may_store_fragments(self) -> bool:
        """Whether large messages may be stored in fragments, because all nodes can read them."""
        return self._core.version >= c.SINCE[c.StoreFragment]

    @property
    def looked_enough(self) -> bool:
        """Whether the budget for computing routes in this pass is used up."""
        return self.looked > LOOKED_MAX

    def of(self, origin: str, command: c.Command) -> int:
        """Return the steps of a command that does not publish."""
        core = self._core
        match command:
            case c.Settle() | c.Return() | c.Reject() | c.Discard():
                consumer = core.consumers.get((origin, command.consumer))
                if consumer is None or command.first == command.last:
                    return _COMMAND
                return _COMMAND + _of_ranges(min(consumer.unacked.count_pieces, command.last - command.first))
            case c.DeleteQueue() | c.PurgeQueue():
                queue = self._vhost_of(origin, command.session).queues.get(command.name)
                return _COMMAND if queue is None else self._of_queue(queue)
            case c.DeleteExchange():
                vhost = self._vhost_of(origin, command.session)
                return _COMMAND + _BINDING * vhost.count_bindings(command.name)
            case c.SessionDown() | c.Recover():
                return self._of_session(origin, command.session)
            case c.ConnectionDown():
                owner = (origin, command.connection)
                connection = core.catalog.connections.get(owner)
                owned = connection.vhost.owned_queues(owner) if connection is not None else []
                at_once = sum(map(self._of_queue, owned[:QUEUES_GONE_MAX]))
                return self._of_session(origin, command.connection) + at_once + len(owned) // _IN_A_MASS
            case c.DeleteVhost():
                vhost = core.catalog.vhosts.get(command.name)
                objects = len(vhost.queues) + vhost.consumers if vhost is not None else 0
                return _COMMAND + _CONNECTION * len(core.catalog.connections) + objects // _IN_A_MASS
            case c.DeleteUser():
                return _COMMAND + _CONNECTION * len(core.catalog.connections)
            case c.GetMessages():
                return _GET + _GOT * min(command.count, GOT_AT_ONCE)
            case c.MoveMessages():
                return _CHUNKS + _MOVED * min(command.examined, MOVED_AT_ONCE)
            case c.DeadLetter():
                return self._of_dead_letter(command)
            case _:
                return _FLAT.get(type(command), _COMMAND)

    def looks_into(self, vhost: str, exchange: str) -> bool:
        """Return whether messages with equal keys may have different routes at this exchange."""
        known = self._core.catalog.vhosts.get(vhost)
        return known is not None and known.looks_at_content(exchange)

    def of_messages(self, vhost: str, exchange: str, keys: Sequence[str], *, is_plain: bool) -> Price | None:
        """Return the price of messages of equal routing; None if the pass has no budget left for an unknown route."""
        known = self._core.catalog.vhosts.get(vhost)
        if known is None:
            return Price(_RUN, 0)
        steps = _RUN
        route = known.known_route(exchange, keys[0]) if len(keys) == 1 else None
        if route is None:
            route = self._look(known, exchange, keys, None)
            if route is None:
                return None
            steps += known.route_steps // _ROUTE_STEPS
        elif (vhost, exchange, keys[0]) not in self._counted:
            steps += known.known_steps(exchange, keys[0]) // _ROUTE_STEPS
        self._counted.add((vhost, exchange, keys[0]))
        copy = _COPY if is_plain else _COPY_WITH_PROPERTIES
        by_size = sum(queue.settings.max_length_bytes is not None for queue in route)
        return Price(steps + copy * len(route), _MESSAGE_BY_SIZE * by_size)

    def of_content(self, vhost: str, exchange: str, keys: Sequence[str], message: bytes) -> int | None:
        """Return the steps of a message whose content decides its route; None if the pass has no budget left."""
        known = self._core.catalog.vhosts.get(vhost)
        if known is None:
            return _RUN
        if self.looked_enough:
            return None
        content = self._core.content_of(message, self.looked)
        route = self._look(known, exchange, keys, content)
        if route is None:
            return None
        inside = values_inside(content.headers.values()) // _VALUES_INSIDE
        if inside > CHEAP_STEPS_MAX:
            self.looked += inside
        steps = inside + known.route_steps // _ROUTE_STEPS
        return _RUN + _CONTENT + steps + _COPY_WITH_PROPERTIES * len(route)

    def _look(
        self, vhost: VirtualHost, exchange: str, keys: Sequence[str], content: Content | None
    ) -> tuple[Queue, ...] | None:
        """Return the queues that are reached; None if the pass has no budget left."""
        if self.looked_enough:
            return None
        try:
            if content is not None:
                route = vhost.route_all(exchange, keys, content)
            elif len(keys) == 1:
                route = vhost.route(exchange, keys[0])
            else:
                route = vhost.route_all(exchange, keys)
        except (Refused, NeedsContent):
            route = ()
        self._count_look(vhost)
        return route

    def _count_look(self, vhost: VirtualHost) -> None:
        if vhost.route_steps > CHEAP_STEPS_MAX:
            self.looked += vhost.route_steps // _ROUTE_STEPS

    def _of_dead_letter(self, command: c.DeadLetter) -> int:
        vhost = self._core.catalog.vhosts.get(command.vhost)
        queue = None if vhost is None else vhost.queues.get(command.queue)
        if vhost is None or queue is None or queue.settings.dead_letter_exchange is None:
            return _COMMAND
        exchange, key = queue.settings.dead_letter_exchange, queue.settings.dead_letter_routing_key
        history = queue.history_octets_of_dying(command.first)
        if command.has_content:
            return _COMMAND + command.count * (_CONTENT + _DYING) + history // _HISTORY_OCTETS
        keys = [command.routing_key, *command.cc, *command.bcc] if key is None else [key]
        known = vhost.known_route(exchange, keys[0]) if len(keys) == 1 else None
        if known is not None:
            width, steps = len(known), vhost.known_steps(exchange, keys[0])
        elif self.looked_enough:
            return BATCH_STEPS_MAX
        else:
            width, steps = len(vhost.route_dead_letters(exchange, keys)), vhost.route_steps
            self._count_look(vhost)
        told = history * (2 + width) // (3 * _HISTORY_OCTETS)
        return _COMMAND + _DYING * (1 + width) + told + steps // _ROUTE_STEPS + command.count

    def _of_queue(self, queue: Queue) -> int:
        vhost = self._core.catalog.vhosts[queue.vhost]
        bindings = vhost.count_bindings_of(Destination(DestinationKind.QUEUE, queue.name))
        return _QUEUE_GONE + _BINDING * bindings + _HOLDER * len(queue.holders)

    def _of_session(self, origin: str, number: int) -> int:
        session = self._core.sessions.get((origin, number))
        if session is None:
            return _COMMAND
        held = sum(consumer.unacked.count_pieces for consumer in session.consumers.values())
        return _COMMAND + _COMMAND * len(session.consumers) + _of_ranges(held)

    def _vhost_of(self, origin: str, number: int) -> VirtualHost:
        session = self._core.sessions.get((origin, number))
        return self._core.catalog.default_vhost if session is None else session.vhost


def _of_ranges(number: int) -> int:
    """Return the steps of `number` ranges that are returned or settled."""
    return _RANGE * number if number <= RANGES_AT_ONCE else _RANGE * RANGES_AT_ONCE + number // _PUT_OFF
