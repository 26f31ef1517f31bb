"""Exchanges and their bindings: from (exchange, routing key) to the queues.

Lives here: what each exchange type matches, and the way from exchange to exchange. A new type is one more class in
`EXCHANGE_TYPES`. Not here: declaration rules and who may bind what (machine/catalog.py), messages that are delayed
(machine/queue.py).

Law: the result depends on the bindings that are there, not on the order in which they came.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from qq.routing.topics import TopicTrie

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DEFAULT_EXCHANGE = ""
DELAYED = "x-delayed-message"
"""The type of the plugin: messages are routed as the argument x-delayed-type says, and may be delayed."""


class DestinationKind(IntEnum):
    QUEUE = 0
    EXCHANGE = 1


class Destination(NamedTuple):
    """Where a binding leads."""

    kind: DestinationKind
    name: str


class Binding(NamedTuple):
    """One binding; its identity is all of it. `arguments` is the packed table, so that bindings are hashable."""

    source: str
    destination: Destination
    routing_key: str
    arguments: bytes


class Router(Protocol):
    """The bindings of one exchange, arranged so that its type can match fast."""

    def bind(self, binding: Binding) -> None: ...

    def unbind(self, binding: Binding) -> None:
        """Forget a binding that is there."""
        ...

    def match(self, routing_key: str) -> Iterable[Binding]: ...


class Direct:
    """The routing key equals the binding key."""

    __slots__ = ("_bindings",)

    def __init__(self) -> None:
        self._bindings: dict[str, dict[Binding, None]] = {}

    def bind(self, binding: Binding) -> None:
        self._bindings.setdefault(binding.routing_key, {})[binding] = None

    def unbind(self, binding: Binding) -> None:
        same_key = self._bindings[binding.routing_key]
        del same_key[binding]
        if not same_key:
            del self._bindings[binding.routing_key]

    def match(self, routing_key: str) -> Iterable[Binding]:
        return self._bindings.get(routing_key, ())


class Fanout:
    """Every binding matches."""

    __slots__ = ("_bindings",)

    def __init__(self) -> None:
        self._bindings: dict[Binding, None] = {}

    def bind(self, binding: Binding) -> None:
        self._bindings[binding] = None

    def unbind(self, binding: Binding) -> None:
        del self._bindings[binding]

    def match(self, routing_key: str) -> Iterable[Binding]:  # noqa: ARG002  # a fanout exchange does not look at it
        return self._bindings


class Topic:
    """The binding key is a pattern of words."""

    __slots__ = ("_trie",)

    def __init__(self) -> None:
        self._trie: TopicTrie[Binding] = TopicTrie()

    def bind(self, binding: Binding) -> None:
        self._trie.add(binding.routing_key, binding)

    def unbind(self, binding: Binding) -> None:
        self._trie.remove(binding.routing_key, binding)

    def match(self, routing_key: str) -> Iterable[Binding]:
        return self._trie.match(routing_key)


EXCHANGE_TYPES: dict[str, type[Direct | Fanout | Topic]] = {
    "direct": Direct,
    "fanout": Fanout,
    "topic": Topic,
}


class UnknownExchangeType(ValueError):
    """No exchange can be made of that type; the text is RabbitMQ's."""


def routing_type(exchange_type: str, arguments: Mapping[str, object]) -> str:
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


class RoutingTable:
    """All exchanges of a virtual host, by name, with their bindings.

    The default exchange is a direct exchange to which every queue is bound under its own name.
    """

    __slots__ = ("_alternates", "_routers")

    def __init__(self) -> None:
        self._routers: dict[str, Router] = {DEFAULT_EXCHANGE: Direct()}
        self._alternates: dict[str, str] = {}

    def add_exchange(self, name: str, routing_type: str) -> None:
        """Know an exchange; its type is one of EXCHANGE_TYPES."""
        self._routers[name] = EXCHANGE_TYPES[routing_type]()

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
        self._routers[DEFAULT_EXCHANGE].bind(_default_binding(name))

    def remove_queue(self, name: str) -> None:
        """Forget a queue; its bindings are gone already."""
        self._routers[DEFAULT_EXCHANGE].unbind(_default_binding(name))

    def bind(self, binding: Binding) -> None:
        """Add a binding that is not there, between things that are."""
        self._routers[binding.source].bind(binding)

    def unbind(self, binding: Binding) -> None:
        """Forget a binding that is there."""
        self._routers[binding.source].unbind(binding)

    def route(self, exchange: str, *routing_keys: str) -> tuple[str, ...]:
        """Names of the queues that a message with these keys reaches by `exchange`, each once, sorted.

        An exchange at which no binding matches any of the keys passes the message on to its alternate exchange.
        Exchanges without a router match nothing; exchanges may be bound in circles, and be alternates of each other.
        """
        queues: dict[str, None] = {}
        seen = {exchange: None}
        pending = [exchange]
        while pending:
            exchange = pending.pop()
            router = self._routers.get(exchange)
            matched = False
            if router is not None:
                for routing_key in routing_keys:
                    for binding in router.match(routing_key):
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


def _default_binding(queue: str) -> Binding:
    return Binding(DEFAULT_EXCHANGE, Destination(DestinationKind.QUEUE, queue), queue, b"")
