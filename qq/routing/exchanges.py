"""Exchanges of a virtual host and their bindings: from an exchange and a message's routing keys to queue names.

Invariant: a route depends on the set of bindings, not on their order of arrival. The cost of a route is bounded for any
bindings: the limits below refuse the message, and limits of some exchange types refuse a binding.
"""

from __future__ import annotations

from typing import Any

from qq.routing.content import Content
from qq.routing.hashing import ConsistentHash, ModulusHash, Random
from qq.routing.headers import Headers
from qq.routing.routers import (
    Arguments,
    Binding,
    Destination,
    DestinationKind,
    Direct,
    Fanout,
    InvalidExchange,
    Router,
    Topic,
)

DEFAULT_EXCHANGE = ""
DEFAULT_EXCHANGE_SHOWN = "amq.default"
"""Name of the default exchange in permissions and in paths of the HTTP API."""
DELAYED = "x-delayed-message"
"""Exchange type of the delayed message plugin: routes by the argument x-delayed-type, and may delay messages."""


QUEUES_MAX = 5000
"""Largest number of queues that a message may reach; each costs some microseconds."""
ROUTE_STEPS_MAX = 75_000
"""Largest number of steps to route a message, about 30 ms: the sum of `Router.steps`, and a step per matching
binding."""

EXCHANGE_TYPES: dict[str, type[Router]] = {
    "direct": Direct,
    "fanout": Fanout,
    "headers": Headers,
    "topic": Topic,
    "x-consistent-hash": ConsistentHash,
    # In RabbitMQ it picks a queue on the publisher's node. Here every queue is on every node.
    "x-local-random": Random,
    "x-modulus-hash": ModulusHash,
    "x-random": Random,
}
"""Router of each exchange type of RabbitMQ's core and of the plugins that come with it."""


class RouteTooLong(Exception):
    """Routing the message would cost too much; the text names the limit."""


class UnknownExchangeType(InvalidExchange):
    """The exchange type is unknown."""


def routing_type(exchange_type: str, arguments: Arguments) -> str:
    """Return the key in `EXCHANGE_TYPES` whose router serves an exchange of that type.

    Raises UnknownExchangeType.
    """
    if exchange_type == DELAYED:
        # rabbitmq-delayed-message-exchange, rabbit_exchange_type_delayed_message.erl, validate.
        argument = arguments.get("x-delayed-type")
        if not isinstance(argument, str):
            raise UnknownExchangeType("Invalid argument, 'x-delayed-type' must be an existing exchange type")
        if argument == DELAYED:
            raise UnknownExchangeType(f"Invalid argument, '{DELAYED}' can't be used for 'x-delayed-type'")
        exchange_type = argument
    if exchange_type not in EXCHANGE_TYPES:
        raise UnknownExchangeType(f"unknown exchange type '{exchange_type}'")
    return exchange_type


def check_exchange(exchange_type: str, arguments: Arguments) -> None:
    """Raise InvalidExchange if an exchange of that type cannot have those arguments."""
    _router(exchange_type, arguments)


class RoutingTable:
    """All exchanges of a virtual host, by name, with their bindings.

    The default exchange is a direct exchange to which every queue is bound under its own name.
    """

    __slots__ = ("_alternates", "_content_dependent", "_default", "_onward", "_routers", "steps")

    def __init__(self) -> None:
        self.steps = 0
        """Steps that the last route has cost."""
        self._default = Direct({})
        self._routers: dict[str, Router] = {DEFAULT_EXCHANGE: self._default}
        self._alternates: dict[str, str] = {}
        self._onward: dict[str, dict[str, int]] = {}
        """Number of bindings between exchanges: source -> destination exchange -> number."""
        self._content_dependent: dict[str, bool] = {}
        """Cache of the results of `depends_on_content`."""

    def add_exchange(self, name: str, exchange_type: str, arguments: Arguments) -> None:
        """Add an exchange. Raises the InvalidExchange of `check_exchange`."""
        self._routers[name] = _router(exchange_type, arguments)
        self._content_dependent.clear()

    def remove_exchange(self, name: str) -> Router | None:
        """Remove an exchange, with or without a router, and its own bindings; bindings to it must already be gone.

        Returns its router, which may be large, so that the caller can free it bit by bit.
        """
        router = self._routers.pop(name, None)
        self._onward.pop(name, None)
        self._alternates.pop(name, None)
        self._content_dependent.clear()
        return router

    def set_alternate(self, exchange: str, alternate: str | None) -> None:
        """Set the exchange that gets the messages which `exchange` does not route; `None` removes it.

        Neither exchange has to exist.
        """
        if alternate is None:
            self._alternates.pop(exchange, None)
        else:
            self._alternates[exchange] = alternate
        self._content_dependent.clear()

    def add_queue(self, name: str) -> None:
        self._default.bind(_default_binding(name), {})

    def remove_queue(self, name: str) -> None:
        """Remove a queue; its bindings must already be gone."""
        self._default.unbind(_default_binding(name))

    def check_binding(self, source: str, routing_key: str, arguments: Arguments) -> None:
        """Raise InvalidBinding if the existing exchange `source` accepts no such binding."""
        self._routers[source].check(routing_key, arguments)

    def bind(self, binding: Binding, arguments: Arguments) -> None:
        """Add a new binding that `check_binding` has accepted, between an existing source and destination.

        `arguments` is the unpacked table of `binding.arguments`.
        """
        self._routers[binding.source].bind(binding, arguments)
        self._count(binding, 1)

    def unbind(self, binding: Binding) -> None:
        """Remove an existing binding."""
        self._routers[binding.source].unbind(binding)
        self._count(binding, -1)

    def take_apart(self) -> list[dict[Any, Any]]:
        """Return the containers of everything in this table, to be freed bit by bit; the table is unusable then."""
        return [self._default.bindings, self._routers]

    def _count(self, binding: Binding, change: int) -> None:
        """Update the number of bindings between two exchanges."""
        kind, name = binding.destination
        if kind is DestinationKind.EXCHANGE:
            onward = self._onward.setdefault(binding.source, {})
            onward[name] = onward.get(name, 0) + change
            if not onward[name]:
                del onward[name]
                if not onward:
                    del self._onward[binding.source]
            self._content_dependent.clear()

    def depends_on_content(self, exchange: str) -> bool:
        """Return whether a message from `exchange` can reach an exchange whose router reads more than routing keys."""
        answer = self._content_dependent.get(exchange)
        if answer is None:
            answer = self._content_dependent[exchange] = any(
                map(self._needs_content, self._reachable(exchange))
            )
        return answer

    def _needs_content(self, exchange: str) -> bool:
        router = self._routers.get(exchange)
        return router is not None and router.wants_content

    def _reachable(self, exchange: str) -> list[str]:
        """Return the exchanges that a message from `exchange` can reach, beginning with itself."""
        reached = {exchange: None}
        pending = [exchange]
        while pending:
            name = pending.pop()
            nearest = list(self._onward.get(name, ()))
            if name in self._alternates:
                nearest.append(self._alternates[name])
            pending += [other for other in nearest if other not in reached]
            reached.update(dict.fromkeys(nearest))
        return list(reached)

    def route(
        self,
        exchange: str,
        *routing_keys: str,
        content: Content | None = None,
        steps_max: int = ROUTE_STEPS_MAX,
    ) -> tuple[str, ...]:
        """Return the names of the queues that a message with these keys reaches through `exchange`, each once, sorted.

        If no binding of an exchange matches any of the keys, the message goes on to its alternate exchange. Exchanges
        without a router match no message. Exchanges may be bound in circles, and be alternates of each other. Without
        `content`, raises NeedsContent if the message reaches an exchange whose router reads more than the keys. Raises
        RouteTooLong; if a single router needs more than `steps_max`, it is raised before that router runs.
        """
        queues: dict[str, None] = {}
        steps = self.steps = 0
        seen = {exchange: None}
        pending = [exchange]
        while pending:
            exchange = pending.pop()
            router = self._routers.get(exchange)
            matched = False
            if router is not None:
                steps += 1 + router.steps(routing_keys, content)
                self._count_steps(steps, steps_max)
                for binding in router.match(routing_keys, content):
                    matched = True
                    steps += 1
                    if steps > steps_max:
                        break  # many keys may each match all these bindings
                    kind, name = binding.destination
                    if kind is DestinationKind.QUEUE:
                        queues[name] = None
                    elif name not in seen:
                        seen[name] = None
                        pending.append(name)
            if not matched and exchange in self._alternates:
                alternate = self._alternates[exchange]
                if alternate not in seen:
                    seen[alternate] = None
                    pending.append(alternate)
        # The bindings of the last exchange must count, too, because the set of bindings does not determine the last
        # exchange.
        self._count_steps(steps, steps_max)
        if len(queues) > QUEUES_MAX:
            raise RouteTooLong(f"the message reaches {len(queues)} queues, above the limit ({QUEUES_MAX})")
        return tuple(sorted(queues)) if len(queues) > 1 else tuple(queues)

    def _count_steps(self, steps: int, steps_max: int) -> None:
        """Record the steps that the route has cost so far. Raises RouteTooLong."""
        self.steps = steps
        if steps > steps_max:
            raise RouteTooLong(
                f"the way from exchange to exchange takes more steps than the limit ({steps_max})"
            )


def _router(exchange_type: str, arguments: Arguments) -> Router:
    return EXCHANGE_TYPES[routing_type(exchange_type, arguments)](arguments)


def _default_binding(queue: str) -> Binding:
    return Binding(DEFAULT_EXCHANGE, Destination(DestinationKind.QUEUE, queue), queue, b"")
