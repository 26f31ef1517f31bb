"""Routers: the bindings of one exchange, arranged so that its type can match fast.

Lives here: what every type has in common, and the types that look at the routing key only. Not here: types that look
at headers (headers.py) or pick one destination (hashing.py), the way from exchange to exchange (exchanges.py).

Law: what matches depends on the bindings that are there, not on the order in which they came.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from qq.routing.content import Content
from qq.routing.topics import TopicTrie

Arguments = Mapping[str, object]


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


class InvalidExchange(ValueError):
    """No exchange can be made of that type and those arguments; the text is RabbitMQ's."""


class InvalidBinding(ValueError):
    """An exchange of that type takes no such binding; the text is RabbitMQ's."""


class Router(ABC):
    """The bindings of one exchange. Made with the exchange's arguments; raises InvalidExchange if they cannot be."""

    __slots__ = ()

    def __init__(self, _arguments: Arguments) -> None:
        return

    def check(self, routing_key: str, arguments: Arguments, /) -> None:  # noqa: B027  # most types take any binding
        """Raise InvalidBinding for a binding that this type does not take; `bind` need not be asked for it."""

    @abstractmethod
    def bind(self, binding: Binding, arguments: Arguments, /) -> None:
        """Add a binding that is not there. `arguments` are the binding's own, as a table."""

    @abstractmethod
    def unbind(self, binding: Binding) -> None:
        """Forget a binding that is there."""

    @abstractmethod
    def match(self, routing_keys: Sequence[str], content: Content | None, /) -> Iterable[Binding]:
        """The bindings that a message takes; one may come twice. Raises NeedsContent if they depend on the content."""


class Direct(Router):
    """The routing key equals the binding key."""

    __slots__ = ("_bindings",)

    def __init__(self, _arguments: Arguments) -> None:
        self._bindings: dict[str, dict[Binding, None]] = {}

    def bind(self, binding: Binding, _arguments: Arguments, /) -> None:
        self._bindings.setdefault(binding.routing_key, {})[binding] = None

    def unbind(self, binding: Binding) -> None:
        same_key = self._bindings[binding.routing_key]
        del same_key[binding]
        if not same_key:
            del self._bindings[binding.routing_key]

    def match(self, routing_keys: Sequence[str], _content: Content | None, /) -> Iterable[Binding]:
        if len(routing_keys) == 1:  # as nearly always, and this is the way of every message
            return self._bindings.get(routing_keys[0], ())
        return [binding for key in routing_keys for binding in self._bindings.get(key, ())]


class Fanout(Router):
    """Every binding matches."""

    __slots__ = ("_bindings",)

    def __init__(self, _arguments: Arguments) -> None:
        self._bindings: dict[Binding, None] = {}

    def bind(self, binding: Binding, _arguments: Arguments, /) -> None:
        self._bindings[binding] = None

    def unbind(self, binding: Binding) -> None:
        del self._bindings[binding]

    def match(self, _routing_keys: Sequence[str], _content: Content | None, /) -> Iterable[Binding]:
        return self._bindings


class Topic(Router):
    """The binding key is a pattern of words."""

    __slots__ = ("_trie",)

    def __init__(self, _arguments: Arguments) -> None:
        self._trie: TopicTrie[Binding] = TopicTrie()

    def bind(self, binding: Binding, _arguments: Arguments, /) -> None:
        self._trie.add(binding.routing_key, binding)

    def unbind(self, binding: Binding) -> None:
        self._trie.remove(binding.routing_key, binding)

    def match(self, routing_keys: Sequence[str], _content: Content | None, /) -> Iterable[Binding]:
        if len(routing_keys) == 1:  # as above
            return self._trie.match(routing_keys[0])
        return [binding for key in routing_keys for binding in self._trie.match(key)]
