"""Exchanges and their bindings: from (exchange, routing key) to the queues.

Lives here: what each exchange type matches, and the way from exchange to exchange. A new type is one more class in
`EXCHANGE_TYPES`. Not here: declaration rules and who may bind what (machine/catalog.py).

Law: the result depends on the bindings that are there, not on the order in which they came.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from qq.routing.topics import TopicTrie

if TYPE_CHECKING:
    from collections.abc import Iterable

DEFAULT_EXCHANGE = ""


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


class RoutingTable:
    """All exchanges of a virtual host, by name, with their bindings.

    The default exchange is a direct exchange to which every queue is bound under its own name.
    """

    __slots__ = ("_routers",)

    def __init__(self) -> None:
        self._routers: dict[str, Router] = {DEFAULT_EXCHANGE: Direct()}

    def add_exchange(self, name: str, exchange_type: str) -> None:
        self._routers[name] = EXCHANGE_TYPES[exchange_type]()

    def remove_exchange(self, name: str) -> None:
        """Forget an exchange; its bindings, to and from it, are gone already."""
        del self._routers[name]

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

    def route(self, exchange: str, routing_key: str) -> tuple[str, ...]:
        """Names of the queues that a message to `exchange` reaches, each once, sorted.

        Exchanges without a router match nothing; exchanges may be bound in circles.
        """
        queues: dict[str, None] = {}
        seen = {exchange: None}
        pending = [exchange]
        while pending:
            router = self._routers.get(pending.pop())
            if router is None:
                continue
            for binding in router.match(routing_key):
                kind, name = binding.destination
                if kind is DestinationKind.QUEUE:
                    queues[name] = None
                elif name not in seen:
                    seen[name] = None
                    pending.append(name)
        return tuple(sorted(queues))


def _default_binding(queue: str) -> Binding:
    return Binding(DEFAULT_EXCHANGE, Destination(DestinationKind.QUEUE, queue), queue, b"")
