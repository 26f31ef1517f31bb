"""Exchanges and their bindings: from an exchange and a message's routing keys to the queues.

Lives here: which types there are, and the way from exchange to exchange. A new type is one more Router in
`EXCHANGE_TYPES`. Not here: what a type matches (routers.py, headers.py, hashing.py), declaration rules and who may bind
what (machine/vhost.py), messages that are delayed (machine/queue.py).

Law: the result depends on the bindings that are there, not on the order in which they came.
"""

from __future__ import annotations

from qq.routing.content import Content, NeedsContent
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
"""What permissions, and paths of the HTTP API, call the exchange without a name."""
DELAYED = "x-delayed-message"
"""The type of the plugin: messages are routed as the argument x-delayed-type says, and may be delayed."""


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
"""Types of RabbitMQ's core and of plugins that come with it."""


class UnknownExchangeType(InvalidExchange):
    """There is no such type."""


def routing_type(exchange_type: str, arguments: Arguments) -> str:
    """Key in `EXCHANGE_TYPES` of what routes for an exchange of that type. Raises UnknownExchangeType."""
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

    __slots__ = ("_alternates", "_routers")

    def __init__(self) -> None:
        self._routers: dict[str, Router] = {DEFAULT_EXCHANGE: Direct({})}
        self._alternates: dict[str, str] = {}

    def add_exchange(self, name: str, exchange_type: str, arguments: Arguments) -> None:
        """Know an exchange. Raises InvalidExchange as `check_exchange` does."""
        self._routers[name] = _router(exchange_type, arguments)

    def remove_exchange(self, name: str) -> None:
        """Forget an exchange, whether or not it has a router; its bindings, to and from it, are gone already."""
        self._routers.pop(name, None)
        self._alternates.pop(name, None)

    def set_alternate(self, exchange: str, alternate: str | None) -> None:
        """Say where the messages go that `exchange` does not route; nothing need be there. None is nowhere."""
        if alternate is None:
            self._alternates.pop(exchange, None)
        else:
            self._alternates[exchange] = alternate

    def add_queue(self, name: str) -> None:
        self._routers[DEFAULT_EXCHANGE].bind(_default_binding(name), {})

    def remove_queue(self, name: str) -> None:
        """Forget a queue; its bindings are gone already."""
        self._routers[DEFAULT_EXCHANGE].unbind(_default_binding(name))

    def check_binding(self, source: str, routing_key: str, arguments: Arguments) -> None:
        """Raise InvalidBinding if the exchange, which is there, takes no such binding."""
        self._routers[source].check(routing_key, arguments)

    def bind(self, binding: Binding, arguments: Arguments) -> None:
        """Add a binding that is not there and that the exchange takes, between things that are.

        `arguments` is what is packed in `binding.arguments`.
        """
        self._routers[binding.source].bind(binding, arguments)

    def unbind(self, binding: Binding) -> None:
        """Forget a binding that is there."""
        self._routers[binding.source].unbind(binding)

    def wants_content(self, exchange: str) -> bool:
        """Whether that exchange, if it is there, looks at more of a message than its keys."""
        router = self._routers.get(exchange)
        try:
            if router is not None:
                router.match(("",), None)
        except NeedsContent:
            return True
        return False

    def route(self, exchange: str, *routing_keys: str, content: Content | None = None) -> tuple[str, ...]:
        """Names of the queues that a message with these keys reaches by `exchange`, each once, sorted.

        An exchange at which no binding matches any of the keys passes the message on to its alternate exchange.
        Exchanges without a router match nothing; exchanges may be bound in circles, and be alternates of each other.
        Without `content`, raises NeedsContent if the message gets to an exchange that looks at more than the keys.
        """
        queues: dict[str, None] = {}
        seen = {exchange: None}
        pending = [exchange]
        while pending:
            exchange = pending.pop()
            router = self._routers.get(exchange)
            matched = False
            if router is not None:
                for binding in router.match(routing_keys, content):
                    matched = True
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
        return tuple(sorted(queues)) if len(queues) > 1 else tuple(queues)


def _router(exchange_type: str, arguments: Arguments) -> Router:
    return EXCHANGE_TYPES[routing_type(exchange_type, arguments)](arguments)


def _default_binding(queue: str) -> Binding:
    return Binding(DEFAULT_EXCHANGE, Destination(DestinationKind.QUEUE, queue), queue, b"")
