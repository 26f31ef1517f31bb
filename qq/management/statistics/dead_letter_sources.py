"""The queues that dead-letter messages, and the queues that keep dead letters for operators.

Invariant: only reads the state. The work is counted in steps, each less than a microsecond: a slice of `trace` takes at
most SLICE_STEPS_MAX + ROUTE_STEPS_MAX, a pass PASS_STEPS_MAX and a slice, whatever exchanges, keys and bindings exist.
A queue that was not reached within these bounds counts as a queue without dead letters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from qq.routing.content import NeedsContent
from qq.routing.exchanges import DEFAULT_EXCHANGE
from qq.routing.routers import DestinationKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from qq.machine.catalog.vhost import VirtualHost
    from qq.machine.queue.queue import Queue

PASS_STEPS_MAX = 50_000
"""Steps of a pass before the next pass continues: some 20 ms every few seconds."""
SLICE_STEPS_MAX = 2_000
"""Steps before other tasks run."""
ROUTE_STEPS_MAX = 3_000
"""Steps of a single route. The queues on a longer route are not marked, because following it would block the node."""
WAYS_MAX = 5
"""Routes that are remembered of a queue at most."""
SOURCES_MAX = 5
"""Queues that are remembered of a route at most."""
_STEPS = 5
"""Steps of each route and each virtual host, whatever is found there."""

_Way = tuple[str, str | None]
"""A dead-letter exchange and a dead-letter routing key; the key is None if each message keeps its own."""


class _Topology(NamedTuple):
    """Facts about a virtual host. While they are equal, the known routes are still right."""

    vhost: VirtualHost
    routing_revision: int
    ways: int


class _Trace:
    """The way of the dead letters in a virtual host, followed route by route."""

    def __init__(self, topology: _Topology, ways: Iterable[_Way]) -> None:
        self.topology = topology
        self.pending = iter(ways)
        self.reached: dict[str, dict[_Way, None]] = {}
        """Queue -> some of the routes that end there."""
        self.is_complete = False

    def follow(self, way: _Way) -> int:
        """Record the queues that a route reaches. Return the steps."""
        queues, steps = _route(self.topology.vhost, *way)
        for name in queues:
            ways = self.reached.setdefault(name, {})
            if len(ways) < WAYS_MAX:
                ways[way] = None
        return _STEPS + steps


class DeadLetterSources:
    """The dead-letter exchange and routing key of all queues, gathered pass by pass."""

    def __init__(self) -> None:
        self._complete: dict[str, dict[_Way, dict[str, bool]]] = {}
        """Virtual host -> route -> queue -> whether messages only wait there until they expire."""
        self._gathered: dict[str, dict[_Way, dict[str, bool]]] = {}
        self._changed: set[str] = set()
        """Virtual hosts with a route that the pass before had not."""
        self._traces: dict[str, _Trace] = {}
        """The latest trace of each virtual host; it may be under way."""
        self._reached: dict[str, dict[str, dict[_Way, None]]] = {}
        """Virtual host -> the result of its latest complete trace."""
        self._last = ""
        """The virtual host in which the last pass ended."""

    def add(self, queue: Queue, *, is_taken: bool) -> None:
        """Record where a queue dead-letters to. `is_taken` says whether messages were ever taken from it."""
        way = _way(queue)
        if way is None:
            return
        if way not in self._complete.get(queue.vhost, ()):
            self._changed.add(queue.vhost)
        sources = self._gathered.setdefault(queue.vhost, {}).setdefault(way, {})
        if len(sources) < SOURCES_MAX:
            expires = queue.settings.message_ttl_ms is not None or queue.backlog.expires_ms() > 0
            sources[queue.name] = expires and not is_taken

    def end_pass(self) -> None:
        self._complete, self._gathered = self._gathered, {}

    def trace(self, vhosts: Mapping[str, VirtualHost]) -> Iterator[int]:
        """Follow the routes of dead letters wherever they may have changed. Yield the steps of each slice at its end.

        A virtual host with very many routes takes several passes, and its old result counts until then. The next pass
        begins with a different virtual host.
        """
        for known in (self._traces, self._reached):
            for name in known.keys() - self._complete.keys():
                del known[name]
        self._changed &= self._complete.keys()
        names = [name for name in self._complete if name in vhosts]
        after = names.index(self._last) + 1 if self._last in names else 0
        spent = steps = 0
        for name in names[after:] + names[:after]:
            self._last = name
            trace = self._trace(vhosts[name])
            steps += _STEPS
            while not trace.is_complete and spent + steps < PASS_STEPS_MAX:
                way = next(trace.pending, None)
                if way is None:
                    trace.is_complete = True
                    self._reached[name] = trace.reached
                else:
                    steps += trace.follow(way)
                if steps >= SLICE_STEPS_MAX:
                    yield steps
                    spent, steps = spent + steps, 0
            if spent + steps >= PASS_STEPS_MAX:
                break
        yield steps

    def _trace(self, vhost: VirtualHost) -> _Trace:
        """Return the trace of a virtual host that is under way or still right, or else a new one."""
        ways = self._complete[vhost.name]
        topology = _Topology(vhost, vhost.routing_revision, len(ways))
        trace = self._traces.get(vhost.name)
        is_outdated = trace is not None and (vhost.name in self._changed or trace.topology != topology)
        # A trace under way is completed first. Otherwise frequent changes would hold up the result for ever.
        if trace is None or (trace.is_complete and is_outdated) or trace.topology.vhost is not vhost:
            self._changed.discard(vhost.name)
            trace = self._traces[vhost.name] = _Trace(topology, ways)
        return trace

    def is_kept(self, queue: Queue, *, is_taken: bool) -> bool:
        """Return whether a different queue dead-letters to this one, so that operators look at its messages.

        A queue that messages return to after a wait is worked on instead: if it dead-letters to that source itself, or
        if messages were taken from it and only waiting ones come.
        """
        reached, sources = self._reached.get(queue.vhost, {}), self._complete.get(queue.vhost, {})
        onward = _way(queue)
        for way in reached.get(queue.name, ()):
            for name, waits in sources.get(way, {}).items():
                if (
                    name != queue.name
                    and not (waits and is_taken)
                    and not _leads(onward, reached.get(name, {}))
                ):
                    return True
        return False


def _way(queue: Queue) -> _Way | None:
    """Return the route of the queue's dead letters; None if it has none."""
    settings = queue.settings
    exchange = settings.dead_letter_exchange
    return None if exchange is None else (exchange, settings.dead_letter_routing_key)


def _leads(way: _Way | None, ways: Mapping[_Way, None]) -> bool:
    """Return whether a route is among those that end at a queue, or may be among those that were not remembered."""
    return way is not None and (way in ways or len(ways) >= WAYS_MAX)


def _route(vhost: VirtualHost, exchange: str, key: str | None) -> tuple[Iterable[str], int]:
    """Return the queues that dead letters reach, and the steps to find them."""
    if key is None:
        return _bound(vhost, exchange, 0)
    try:
        queues = vhost.route_dead_letters(exchange, (key,), steps_max=ROUTE_STEPS_MAX)
    except NeedsContent:
        return _bound(vhost, exchange, vhost.route_steps)
    # A match that would cost more is counted, although it was not made.
    return [queue.name for queue in queues], min(vhost.route_steps, ROUTE_STEPS_MAX)


def _bound(vhost: VirtualHost, exchange: str, steps: int) -> tuple[Iterable[str], int]:
    """Return the queues that an exchange has bindings to, directly or through other exchanges, and the steps.

    Messages with unknown keys or headers may reach any of them. `steps` were taken before.
    """
    queues: dict[str, None] = {}
    sources = {exchange: None}
    pending = [exchange] if exchange != DEFAULT_EXCHANGE else []
    for source in pending:
        for binding in vhost.bindings_from(source):
            if steps >= ROUTE_STEPS_MAX:
                return queues, steps
            steps += 1
            kind, name = binding.destination
            if kind is DestinationKind.QUEUE:
                queues[name] = None
            elif name not in sources:
                sources[name] = None
                pending.append(name)
    return queues, steps
