"""Estimates of the time that commands will cost every node, made before they enter the log.

Invariant: an estimate reads the state of this node and changes no state. It follows the objects that a command touches:
the queues that a message reaches, or the bindings and consumers that are removed with a queue. It costs a look-up,
except for an unknown route, which is computed within the budget `PASS_STEPS_MAX`. Above the budget the result is None,
and the caller tries again in the next pass of the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from qq.machine.protocol import commands as c
from qq.machine.protocol.refusals import Refused
from qq.machine.protocol.work_meter import CHEAP_STEPS_MAX, RANGES_AT_ONCE
from qq.routing.content import NeedsContent
from qq.routing.routers import Destination, DestinationKind
from qq.routing.values import values_inside

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from qq.machine.catalog.vhost import VirtualHost
    from qq.machine.handlers.core import Core
    from qq.machine.queue.queue import Queue
    from qq.routing.content import Content

BATCH_STEPS_MAX = 5_000
"""Steps at which a batch ends; an entry has room for three such batches from any nodes."""
PASS_STEPS_MAX = 5_000
"""Steps of routes above CHEAP_STEPS_MAX that may be computed in a pass of the event loop, before the messages are in
the log."""
TRANSACTION_STEPS_MAX = 50_000
"""Maximum steps of a transaction: 50 ms of every node's time."""
COMMIT_STEPS = 5
"""Steps for each part of a transaction, to check it before it is carried out."""
FRAGMENT_STEPS = 15
"""Steps for each fragment of a large message, without its octets."""
SETTLED_STEPS: dict[type[c.Settlement], int] = {c.Settle: 10, c.Return: 15, c.Reject: 15, c.Discard: 15}
"""Steps for each settled piece of a delivery, even if several pieces may become a single command."""

COMMAND_STEPS = 15
"""Steps of a command that touches a few objects, and steps that each command costs in any case."""
_RUN = 12
"""Steps of consecutive messages with the same route, a command: 9 to put it into a batch, and 4 to apply it."""
_RUN_WITH_PROPERTIES = 16
"""Steps of messages with properties that matter to queues, such as an expiration: a command of its own, whose fields
are read and stored for each queue."""
_ROUTE_STEPS = 2
"""Router steps (`Router.steps`) per step here."""
_COPY = 4
"""Steps for each queue that gets plain messages."""
_COPY_WITH_PROPERTIES = 6
"""Steps for each queue that gets messages with properties."""
_MESSAGE_BY_SIZE = 2
"""Steps for each message in each queue with a limit in octets."""
CONTENT_STEPS = 15
"""Steps to look into a message."""
_VALUES_INSIDE = 2
"""Values per step, for values in tables and arrays of the headers that must be read."""
_RANGE = 3
"""Steps for each range of messages that is returned or settled."""
_PUT_OFF = 16
"""Such ranges per step, if they are put off."""
BINDING_STEPS = 12
"""Steps for each binding that is removed."""
_HOLDER = 6
_QUEUE_GONE = 10
QUEUES_PER_STEP = 4
"""Queues and consumers per step, when very many of them are removed together."""

C = TypeVar("C", bound=c.Command)


class Price(NamedTuple):
    """The price in steps of messages with the same route: a fixed part, and a part per message."""

    once: int
    each: int

    def steps(self, count: int) -> int:
        """Return the steps of `count` such messages together."""
        return self.once + self.each * count


CostFunction: TypeAlias = "Callable[[Costs, str, C], int]"
"""Estimates the cost of a command from its origin."""
Cost: TypeAlias = "int | CostFunction[Any]"
"""The cost of a command in steps, or the function that estimates it."""


class Costs:
    """Estimates the cost of commands from the state of a machine."""

    def __init__(self, core: Core, costs: Mapping[type[c.Command], Cost]) -> None:
        """`costs` are the declared costs of all commands that have a handler (registry.py)."""
        self.core = core
        self._costs = costs
        self.route_steps = 0
        """Steps of expensive routes that were computed in this pass."""
        self._counted: set[tuple[str, str, str]] = set()
        """Routes whose steps have been counted in this pass. This node has cached them, but the other nodes may not
        have."""

    def begin_pass(self) -> None:
        """Reset the budget for computing routes, in a new pass of the event loop."""
        self.route_steps = 0
        self._counted.clear()

    @property
    def may_store_fragments(self) -> bool:
        """Whether large messages may be stored in fragments, because all nodes can read them."""
        return self.core.version >= c.SINCE[c.StoreFragment]

    @property
    def is_budget_spent(self) -> bool:
        """Whether the budget for computing routes in this pass is used up."""
        return self.route_steps > PASS_STEPS_MAX

    def steps(self, origin: str, command: c.Command) -> int:
        """Return the steps of a command that does not publish."""
        cost = self._costs[type(command)]
        return cost if isinstance(cost, int) else cost(self, origin, command)

    def depends_on_content(self, vhost: str, exchange: str) -> bool:
        """Return whether messages with equal keys may have different routes at this exchange."""
        known = self.core.catalog.vhosts.get(vhost)
        return known is not None and known.depends_on_content(exchange)

    def price(self, vhost: str, exchange: str, keys: Sequence[str], *, is_plain: bool) -> Price | None:
        """Return the price of messages of equal routing; None if the pass has no budget left for an unknown route."""
        known = self.core.catalog.vhosts.get(vhost)
        if known is None:
            return Price(_RUN, 0)
        steps = _RUN if is_plain else _RUN_WITH_PROPERTIES
        route = known.known_route(exchange, keys[0]) if len(keys) == 1 else None
        if route is None:
            route = self._route(known, exchange, keys, None)
            if route is None:
                return None
            steps += known.route_steps // _ROUTE_STEPS
        elif (vhost, exchange, keys[0]) not in self._counted:
            steps += known.known_steps(exchange, keys[0]) // _ROUTE_STEPS
        self._counted.add((vhost, exchange, keys[0]))
        copy = _COPY if is_plain else _COPY_WITH_PROPERTIES
        by_size = sum(queue.settings.max_length_bytes is not None for queue in route)
        return Price(steps + copy * len(route), _MESSAGE_BY_SIZE * by_size)

    def staging_steps(self, command: c.StageMessages) -> int | None:
        """Return the steps to store messages for a sink; None if the pass has no budget left for an unknown route."""
        if self.depends_on_content(command.vhost, command.exchange):
            return COMMAND_STEPS + CONTENT_STEPS * command.count
        keys = [command.routing_key, *command.more_keys]
        price = self.price(command.vhost, command.exchange, keys, is_plain=False)
        return None if price is None else price.steps(command.count)

    def message_steps(self, vhost: str, exchange: str, keys: Sequence[str], message: bytes) -> int | None:
        """Return the steps of a message whose content decides its route; None if the pass has no budget left."""
        known = self.core.catalog.vhosts.get(vhost)
        if known is None:
            return _RUN
        if self.is_budget_spent:
            return None
        content = self.core.content_of(message, self.route_steps)
        route = self._route(known, exchange, keys, content)
        if route is None:
            return None
        inside = values_inside(content.headers.values()) // _VALUES_INSIDE
        if inside > CHEAP_STEPS_MAX:
            self.route_steps += inside
        steps = inside + known.route_steps // _ROUTE_STEPS
        return _RUN + CONTENT_STEPS + steps + _COPY_WITH_PROPERTIES * len(route)

    def _route(
        self, vhost: VirtualHost, exchange: str, keys: Sequence[str], content: Content | None
    ) -> tuple[Queue, ...] | None:
        """Return the queues that are reached; None if the pass has no budget left."""
        if self.is_budget_spent:
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
        self._count_route(vhost)
        return route

    def _count_route(self, vhost: VirtualHost) -> None:
        if vhost.route_steps > CHEAP_STEPS_MAX:
            self.route_steps += vhost.route_steps // _ROUTE_STEPS

    def dead_letter_route(
        self, vhost: VirtualHost, exchange: str, keys: Sequence[str]
    ) -> tuple[int, int] | None:
        """Return the number of queues that a dead letter reaches, and the steps of its route.

        The result is None if the pass has no budget left for an unknown route.
        """
        route = vhost.known_route(exchange, keys[0]) if len(keys) == 1 else None
        if route is not None:
            return len(route), vhost.known_steps(exchange, keys[0]) // _ROUTE_STEPS
        if self.is_budget_spent:
            return None
        width, steps = len(vhost.route_dead_letters(exchange, keys)), vhost.route_steps
        self._count_route(vhost)
        return width, steps // _ROUTE_STEPS

    def queue_removal_steps(self, queue: Queue) -> int:
        """Return the steps to remove a queue, or to purge it."""
        vhost = self.core.catalog.vhosts[queue.vhost]
        bindings = vhost.count_bindings_of(Destination(DestinationKind.QUEUE, queue.name))
        return _QUEUE_GONE + BINDING_STEPS * bindings + _HOLDER * len(queue.holders)

    def session_steps(self, origin: str, number: int) -> int:
        """Return the steps to return all messages that a session holds, and to end its consumers."""
        session = self.core.sessions.get((origin, number))
        if session is None:
            return COMMAND_STEPS
        held = sum(consumer.unacked.count_pieces for consumer in session.consumers.values())
        return COMMAND_STEPS + COMMAND_STEPS * len(session.consumers) + range_steps(held)

    def vhost(self, origin: str, number: int) -> VirtualHost:
        """Return the virtual host of a session."""
        session = self.core.sessions.get((origin, number))
        return self.core.catalog.default_vhost if session is None else session.vhost


def range_steps(number: int) -> int:
    """Return the steps of `number` ranges that are returned or settled."""
    return _RANGE * number if number <= RANGES_AT_ONCE else _RANGE * RANGES_AT_ONCE + number // _PUT_OFF
