"""The queues that dead-letter messages, and the queues that keep dead letters for operators.

Invariant: only reads the state. The work for a queue is bounded by `WAYS_MAX`, `KEYS_MAX` and `SOURCES_MAX`; beyond
these bounds the queue counts as a queue without dead letters.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from qq.routing.exchanges import DEFAULT_EXCHANGE
from qq.routing.routers import Destination, DestinationKind
from qq.routing.topics import TopicPatterns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qq.machine.catalog.vhost import VirtualHost
    from qq.machine.queue.queue import Queue

WAYS_MAX = 100
"""Bindings that are followed backwards from a queue at most."""
KEYS_MAX = 1000
"""Different dead-letter routing keys that are remembered of an exchange at most."""
SOURCES_MAX = 8
"""Queues that are remembered of a dead-letter exchange and routing key at most."""


class _Way(NamedTuple):
    """A binding on the way from an exchange to a queue."""

    exchange: str
    type: str
    binding_key: str


class DeadLetterSources:
    """The dead-letter exchange and routing key of all queues, gathered pass by pass."""

    def __init__(self) -> None:
        self._complete: dict[tuple[str, str], dict[str | None, dict[str, bool]]] = {}
        """(virtual host, exchange) -> routing key -> queue -> whether messages only wait there until they expire."""
        self._gathered: dict[tuple[str, str], dict[str | None, dict[str, bool]]] = {}

    def add(self, queue: Queue, *, is_taken: bool) -> None:
        """Record where a queue dead-letters to. `is_taken` says whether messages were ever taken from it."""
        settings = queue.settings
        if settings.dead_letter_exchange is None:
            return
        keys = self._gathered.setdefault((queue.vhost, settings.dead_letter_exchange), {})
        if settings.dead_letter_routing_key not in keys and len(keys) >= KEYS_MAX:
            return
        sources = keys.setdefault(settings.dead_letter_routing_key, {})
        if len(sources) < SOURCES_MAX:
            expires = settings.message_ttl_ms is not None or queue.backlog.expires_ms() > 0
            sources[queue.name] = expires and not is_taken

    def end_pass(self) -> None:
        self._complete, self._gathered = self._gathered, {}

    def is_kept(self, vhost: VirtualHost, queue: Queue, *, is_taken: bool) -> bool:
        """Return whether a different queue dead-letters to this one, so that operators look at its messages.

        A queue that messages return to after a wait is worked on instead: if it dead-letters to that source itself, or
        if messages were taken from it and only waiting ones come.
        """
        for way in _ways(vhost, queue.name):
            keys = self._complete.get((vhost.name, way.exchange), {})
            for key, sources in keys.items():
                if _matches(way, key):
                    others = (name for name, waits in sources.items() if not (waits and is_taken))
                    if any(name != queue.name and not _leads(vhost, queue, name) for name in others):
                        return True
        return False


def _leads(vhost: VirtualHost, source: Queue, name: str) -> bool:
    """Return whether dead letters of a queue reach the queue of this name."""
    settings = source.settings
    return any(
        way.exchange == settings.dead_letter_exchange and _matches(way, settings.dead_letter_routing_key)
        for way in _ways(vhost, name)
    )


def _ways(vhost: VirtualHost, queue: str) -> Iterator[_Way]:
    """Yield the bindings that lead to a queue, directly or through other exchanges."""
    return islice(_all_ways(vhost, queue), WAYS_MAX)


def _all_ways(vhost: VirtualHost, queue: str) -> Iterator[_Way]:
    yield _Way(DEFAULT_EXCHANGE, "direct", queue)
    followed = [Destination(DestinationKind.QUEUE, queue)]
    for destination in followed:
        for binding in vhost.bindings_of(destination):
            yield _Way(binding.source, vhost.exchanges[binding.source].type, binding.routing_key)
            source = Destination(DestinationKind.EXCHANGE, binding.source)
            if source not in followed:
                followed.append(source)


def _matches(way: _Way, key: str | None) -> bool:
    """Return whether a message with this key may take the way. `None` stands for the keys of the publishers."""
    if key is None:
        return way.exchange != DEFAULT_EXCHANGE
    if way.type == "direct":
        return way.binding_key == key
    return way.type != "topic" or _matches_pattern(way.binding_key, key)


@lru_cache(maxsize=10_000)
def _matches_pattern(pattern: str, key: str) -> bool:
    patterns: TopicPatterns[None] = TopicPatterns()
    patterns.add(pattern, None)
    return bool(patterns.match(key))
