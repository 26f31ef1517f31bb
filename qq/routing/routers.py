"""Routers: the bindings of an exchange, indexed for the matching rule of its type.

Invariant: a match depends on the set of bindings, not on their order of arrival.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from qq.routing.content import Content
from qq.routing.topics import TopicPatterns, words_of

Arguments = Mapping[str, object]

TOPIC_STEPS_MAX = 50_000
"""Largest cost of a match in a topic exchange, in steps: 100,000 wildcard keys of six words, or 4000 of 194."""


class DestinationKind(IntEnum):
    QUEUE = 0
    EXCHANGE = 1


class Destination(NamedTuple):
    """A queue or an exchange that a binding leads to."""

    kind: DestinationKind
    name: str


class Binding(NamedTuple):
    """A binding, identified by all its fields. `arguments` is the packed table, so that bindings are hashable."""

    source: str
    destination: Destination
    routing_key: str
    arguments: bytes


class InvalidExchange(ValueError):
    """An exchange of that type cannot have those arguments; the text is RabbitMQ's."""


class InvalidBinding(ValueError):
    """An exchange of that type accepts no such binding; the text is RabbitMQ's."""


class Router(ABC):
    """The bindings of an exchange; the constructor takes the exchange's arguments and raises InvalidExchange."""

    __slots__ = ()

    def __init__(self, _arguments: Arguments) -> None:
        return

    @property
    def wants_content(self) -> bool:
        """Whether matching depends on more than the routing keys."""
        return False

    def check(self, routing_key: str, arguments: Arguments, /) -> None:  # noqa: B027  # most types take any binding
        """Raise InvalidBinding for a binding that this type does not accept; `bind` relies on this check."""

    @abstractmethod
    def bind(self, binding: Binding, arguments: Arguments, /) -> None:
        """Add a new binding; `arguments` are its arguments as a table."""

    @abstractmethod
    def unbind(self, binding: Binding) -> None:
        """Remove an existing binding."""

    @abstractmethod
    def match(self, routing_keys: Sequence[str], content: Content | None, /) -> Iterable[Binding]:
        """Return the bindings that match a message, possibly with repeats.

        Raises NeedsContent if the match depends on the content and none is given. With several keys the bindings are
        found lazily, a key at a time, so the caller may stop early.
        """

    def steps(self, routing_keys: Sequence[str], _content: Content | None, /) -> int:
        """Return the largest cost of a match in steps, without its results. A step takes less than a microsecond."""
        return len(routing_keys)


class Direct(Router):
    """Direct exchange: the routing key equals the binding key."""

    __slots__ = ("bindings",)

    def __init__(self, _arguments: Arguments) -> None:
        self.bindings: dict[str, dict[Binding, None]] = {}

    def bind(self, binding: Binding, _arguments: Arguments, /) -> None:
        self.bindings.setdefault(binding.routing_key, {})[binding] = None

    def unbind(self, binding: Binding) -> None:
        same_key = self.bindings[binding.routing_key]
        del same_key[binding]
        if not same_key:
            del self.bindings[binding.routing_key]

    def match(self, routing_keys: Sequence[str], _content: Content | None, /) -> Iterable[Binding]:
        if len(routing_keys) == 1:  # nearly always true, and every message passes here
            return self.bindings.get(routing_keys[0], ())
        return (binding for key in routing_keys for binding in self.bindings.get(key, ()))


class Fanout(Router):
    """Fanout exchange: every binding matches."""

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
    """Topic exchange: the binding key is a pattern of words."""

    __slots__ = ("_patterns",)

    def __init__(self, _arguments: Arguments) -> None:
        self._patterns: TopicPatterns[Binding] = TopicPatterns()

    def check(self, routing_key: str, _arguments: Arguments, /) -> None:
        steps = self._patterns.steps_with(routing_key)
        if steps > TOPIC_STEPS_MAX:
            raise InvalidBinding(
                f"binding key '{routing_key}' has too many words for so many binding keys with wildcards: the longest "
                f"routing key would take {steps} steps, above the limit ({TOPIC_STEPS_MAX})"
            )

    def bind(self, binding: Binding, _arguments: Arguments, /) -> None:
        self._patterns.add(binding.routing_key, binding)

    def unbind(self, binding: Binding) -> None:
        self._patterns.remove(binding.routing_key, binding)

    def match(self, routing_keys: Sequence[str], _content: Content | None, /) -> Iterable[Binding]:
        if len(routing_keys) == 1:  # nearly always true
            return self._patterns.match(routing_keys[0])
        return (binding for key in routing_keys for binding in self._patterns.match(key))

    def steps(self, routing_keys: Sequence[str], _content: Content | None, /) -> int:
        return sum(self._patterns.steps(len(words_of(key))) for key in routing_keys)
