"""Exchanges and their bindings: from an exchange and a message's routing keys to the queues.

Invariant: the result depends on the bindings that are there, not on the order in which they came. What a route costs is
bounded, whatever is bound to what: limits below refuse the message, and limits of some types refuse a binding.
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
"""The name of the default exchange in permissions and in paths of the HTTP API."""
DELAYED = "x-delayed-message"
"""The type of the plugin: messages are routed as the argument x-delayed-type says, and may be delayed."""


QUEUES_MAX = 5000
"""The most queues that one message may reach: each costs some microseconds."""
ROUTE_STEPS_MAX = 75_000
"""The most that routing a message may cost (`Router.steps`, and a step for each binding that takes it): some 30 ms."""

EXCHANGE_TYPES: dict[str, type[Router]] = {
    "direct": Direct,
    "fanout": Fanout,
    "headers": Headers,
    "topic": Topic,
    "x-consistent-hash": ConsistentHash,
    # In RabbitMQ one of the queues on the publisher's node. Here every queue is on every node.
    "x-local-random": Random,
    "x-modulus-hash": ModulusHash,
    "x-random": Random,
}
"""The types of RabbitMQ's core and of the plugins that come with it, with what routes for them."""


class RouteTooLong(Exception):
    """Routing the message would cost too much; the text names the limit."""


class UnknownExchangeType(InvalidExchange):
    """There is no such type."""


def routing_type(exchange_type: str, arguments: Arguments) -> str:
    """The key in `EXCHANGE_TYPES` that routes for an exchange of that type. Raises UnknownExchangeType."""
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
    """Raise InvalidExchange if no exchange can be made of that type and those arguments."""
    _router(exchange_type, arguments)


class RoutingTable:
    """All exchanges of a virtual host, by name, with their bindings.

    The default exchange is a direct exchange to which every queue is bound under its own name.
    """

    __slots__ = ("_alternates", "_default", "_lookers", "_onward", "_routers", "steps")

    def __init__(self) -> None:
        self.steps = 0
        """The steps that the last route has cost."""
        self._default = Direct({})
        self._routers: dict[str, Router] = {DEFAULT_EXCHANGE: self._default}
        self._alternates: dict[str, str] = {}
        self._onward: dict[str, dict[str, int]] = {}
        """For each exchange, how many bindings lead from it to each other exchange."""
        self._lookers: dict[str, bool] = {}
        """Remembered answers of `looks_at_content`."""

    def add_exchange(self, name: str, exchange_type: str, arguments: Arguments) -> None:
        """Add an exchange. Raises InvalidExchange as `check_exchange` does."""
        self._routers[name] = _router(exchange_type, arguments)
        self._lookers.clear()

    def remove_exchange(self, name: str) -> Router | None:
        """Forget an exchange, whether or not it has a router, with its own bindings; those to it are gone already.

        Returns its router, in which there may be very much.
        """
        router = self._routers.pop(name, None)
        self._onward.pop(name, None)
        self._alternates.pop(name, None)
        self._lookers.clear()
        return router

    def set_alternate(self, exchange: str, alternate: str | None) -> None:
        """Say where the messages go that `exchange` does not route; nothing need be there. None is nowhere."""
        if alternate is None:
            self._alternates.pop(exchange, None)
        else:
            self._alternates[exchange] = alternate
        self._lookers.clear()

    def add_queue(self, name: str) -> None:
        self._default.bind(_default_binding(name), {})

    def remove_queue(self, name: str) -> None:
        """Forget a queue; its bindings are gone already."""
        self._default.unbind(_default_binding(name))

    def check_binding(self, source: str, routing_key: str, arguments: Arguments) -> None:
        """Raise InvalidBinding if the exchange, which is there, takes no such binding."""
        self._routers[source].check(routing_key, arguments)

    def bind(self, binding: Binding, arguments: Arguments) -> None:
        """Add a binding that is not there and that the exchange takes, between things that are.

        `arguments` is what is packed in `binding.arguments`.
        """
        self._routers[binding.source].bind(binding, arguments)
        self._count(binding, 1)

    def unbind(self, binding: Binding) -> None:
        """Forget a binding that is there."""
        self._routers[binding.source].unbind(binding)
        self._count(binding, -1)

    def take_apart(self) -> list[dict[Any, Any]]:
        """Return what holds everything in this table, which is not used any more."""
        return [self._default.bindings, self._routers]

    def _count(self, binding: Binding, change: int) -> None:
        """Keep how many bindings lead from exchange to exchange."""
        kind, name = binding.destination
        if kind is DestinationKind.EXCHANGE:
            onward = self._onward.setdefault(binding.source, {})
            onward[name] = onward.get(name, 0) + change
            if not onward[name]:
                del onward[name]
                if not onward:
                    del self._onward[binding.source]
            self._lookers.clear()

    def looks_at_content(self, exchange: str) -> bool:
        """Whether a message may get from that exchange, if it is there, to one that looks at more than its keys."""
        answer = self._lookers.get(exchange)
        if answer is None:
            answer = self._lookers[exchange] = any(map(self._wants_content, self._reachable(exchange)))
        return answer

    def _wants_content(self, exchange: str) -> bool:
        router = self._routers.get(exchange)
        return router is not None and router.wants_content

    def _reachable(self, exchange: str) -> list[str]:
        """The exchanges that a message may get to from one, which is the first of them."""
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
        """The names of the queues that a message with these keys reaches through `exchange`, each once, sorted.

        An exchange at which no binding matches any of the keys passes the message on to its alternate exchange.
        Exchanges without a router match nothing; exchanges may be bound in circles, and be alternates of each other.
        Without `content`, raises NeedsContent if the message gets to an exchange that looks at more than the keys.
        Raises RouteTooLong; if a router alone takes more than `steps_max`, before that has cost anything.
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
                        break  # many keys may each match all that is bound here
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
        # The bindings of the last exchange count, too: which is the last does not follow from what is bound.
        self._count_steps(steps, steps_max)
        if len(queues) > QUEUES_MAX:
            raise RouteTooLong(f"the message reaches {len(queues)} queues, above the limit ({QUEUES_MAX})")
        return tuple(sorted(queues)) if len(queues) > 1 else tuple(queues)

    def _count_steps(self, steps: int, steps_max: int) -> None:
        """Note what the route has cost so far. Raises RouteTooLong."""
        self.steps = steps
        if steps > steps_max:
            raise RouteTooLong(
                f"the way from exchange to exchange takes more steps than the limit ({steps_max})"
            )


def _router(exchange_type: str, arguments: Arguments) -> Router:
    return EXCHANGE_TYPES[routing_type(exchange_type, arguments)](arguments)


def _default_binding(queue: str) -> Binding:
    return Binding(DEFAULT_EXCHANGE, Destination(DestinationKind.QUEUE, queue), queue, b"")
