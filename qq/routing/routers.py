"""Routers: the bindings of one exchange, arranged so that its type can match fast.

Invariant: what matches depends on the bindings that are there, not on the order in which they came.
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
"""The most that a match in one topic exchange may cost: 100,000 wildcard keys of six words, or 4000 of 194."""


class DestinationKind(IntEnum):
    QUEUE = 0
    EXCHANGE = 1


class Destination(NamedTuple):
    """A queue or an exchange that a binding leads to."""

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
    """The bindings of one exchange. It is made with the exchange's arguments; raises InvalidExchange for wrong ones."""

    __slots__ = ()

    def __init__(self, _arguments: Arguments) -> None:
        return

    @property
    def wants_content(self) -> bool:
        """Whether the bindings that match depend on more than the keys."""
        return False

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
        """The bindings that a message takes; one may come twice. Raises NeedsContent if they depend on the content.

        With several keys they are found one key at a time, as they are asked for: whoever has seen enough may stop.
        """

    def steps(self, routing_keys: Sequence[str], _content: Content | None, /) -> int:
        """The most that a match costs, without what it finds. A step takes less than a microsecond."""
        return len(routing_keys)


class Direct(Router):
    """The routing key equals the binding key."""

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
        if len(routing_keys) == 1:  # as nearly always, and this is the way of every message
            return self.bindings.get(routing_keys[0], ())
        return (binding for key in routing_keys for binding in self.bindings.get(key, ()))


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
        if len(routing_keys) == 1:  # as nearly always
            return self._patterns.match(routing_keys[0])
        return (binding for key in routing_keys for binding in self._patterns.match(key))

    def steps(self, routing_keys: Sequence[str], _content: Content | None, /) -> int:
        return sum(self._patterns.steps(len(words_of(key))) for key in routing_keys)
