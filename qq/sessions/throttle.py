"""Limits of how much is published in a second: by the clients of a virtual host, by those of a user, on a connection.

Lives here: what counts, whose publishers wait for how long, and who goes on first. Not here: the limits themselves
(machine/limits.py; `NodeLimits` for connections), what it means to wait (a connection's `pause_for`).

Law: nothing is refused and nothing is lost: what was read passes and is charged, and then its connection is not read
until it is paid for. Who does not publish never waits. A limit of a virtual host or a user is that of the whole
cluster: a node grants as large a share of it as it has of those connections. Nobody asks other nodes for that: the log
tells every node of all connections.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from qq.machine.limits import MAX_PUBLISH_BYTES, MAX_PUBLISHES, limit_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from cluster.ports import Runtime
    from qq.config import NodeLimits
    from qq.machine.machine import QueueMachine
    from qq.sessions.ports import Connection, PausableConnection

BURST_S = 1.0
"""For how long a limit that was not used up counts: a second's worth may be published at once after some quiet."""
TURN_S = 0.001
"""How long after one of those who wait the next one goes on: by then it is known how much the first has published."""
LOOK_S = 0.1
"""How often it is looked whether a limit that somebody waits for is still the same: an operator may have raised it."""
COUNT_S = 1.0
"""How long the numbers of this node's connections hold that shares are made of."""
_LIMIT = "a limit of publishing"
"""Why connections wait."""


class _Key(NamedTuple):
    """What a limit is of: a virtual host or a user by name, or a connection by its number."""

    kind: str
    of: str | int
    name: str
    """The name of the limit."""


class _Limit(NamedTuple):
    key: _Key
    limit: int
    """The limit, of the whole cluster."""
    per_s: float
    """What this node grants of it."""


class _Bucket:
    """How far a limit is used up, and who waits because of that."""

    __slots__ = ("is_watched", "limit", "paid_s", "waiting")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.paid_s = 0.0
        """The (monotonic) time at which all that was published will be within the limit."""
        self.waiting: dict[int, PausableConnection] = {}
        """Who waits, by number, in the order in which they go on."""
        self.is_watched = False


class Throttle:
    """The limits of publishing on one node."""

    def __init__(
        self,
        machine: QueueMachine,
        runtime: Runtime,
        limits: NodeLimits,
        connections: Callable[[], Mapping[int, Connection]],
    ) -> None:
        """`connections` tells those of this node."""
        self._machine = machine
        self._runtime = runtime
        self._of_connection = [
            (name, limit)
            for name, limit in (
                (MAX_PUBLISHES, limits.connection_publishes_per_s),
                (MAX_PUBLISH_BYTES, limits.connection_publish_bytes_per_s),
            )
            if limit
        ]
        self._connections = connections
        self._buckets: dict[_Key, _Bucket] = {}
        self._held: dict[int, _Bucket] = {}
        """Which limit those connections wait for that wait, by number."""
        self._counted_s = -COUNT_S
        self._own: Counter[tuple[str, str]] = Counter()
        """How many connections each virtual host and each user has at this node."""

    def holds(self, number: int) -> bool:
        """Whether the connection of this number waits because of a limit."""
        return number in self._held

    def published(self, connection: PausableConnection, messages: Sequence[bytes]) -> None:
        """Charge messages, with their headers and frames, that were published; the connection waits if it is time."""
        machine = self._machine
        vhost = machine.vhosts.get(connection.vhost)
        if not (self._of_connection or machine.catalog.access.limits or (vhost is not None and vhost.limits)):
            return
        for key, limit, per_s in self._limits_of(connection):
            amount = len(messages) if key.name == MAX_PUBLISHES else sum(map(len, messages))
            bucket = self._buckets.get(key)
            if bucket is None:
                bucket = self._buckets[key] = _Bucket(limit)
            now_s = self._runtime.monotonic()
            bucket.paid_s = max(bucket.paid_s, now_s - BURST_S) + amount / per_s
            if bucket.paid_s > now_s:
                self._hold(connection, bucket, key)

    def left(self, number: int) -> None:
        """Forget a connection that is gone."""
        bucket = self._held.pop(number, None)
        if bucket is not None:
            del bucket.waiting[number]

    # The limits

    def _limits_of(self, connection: PausableConnection) -> Iterator[_Limit]:
        catalog = self._machine.catalog
        for name, limit in self._of_connection:
            yield _Limit(_Key("connection", connection.id, name), limit, limit)
        vhost = catalog.vhosts.get(connection.vhost)
        if vhost is not None and vhost.limits:
            yield from self._shares("vhost", vhost.name, vhost.limits, vhost.connections)
        limits = catalog.access.limits.get(connection.user)
        if limits:
            total = catalog.connections_of(connection.user)
            yield from self._shares("user", connection.user, limits, total)

    def _shares(self, kind: str, of: str, limits: Mapping[str, object], total: int) -> Iterator[_Limit]:
        """Which limits there are in `limits` of a virtual host, or user, with so many connections in all."""
        for name in (MAX_PUBLISHES, MAX_PUBLISH_BYTES):
            limit = limit_of(limits, name)
            if limit:  # 0 is refused where limits are set
                own = max(1, self._counted()[kind, of])
                yield _Limit(_Key(kind, of, name), limit, limit * own / max(own, total))

    def _counted(self) -> Counter[tuple[str, str]]:
        now_s = self._runtime.monotonic()
        if self._counted_s + COUNT_S <= now_s:
            self._counted_s = now_s
            admitted = [each for each in self._connections().values() if each.is_admitted]
            self._own = Counter(("vhost", each.vhost) for each in admitted)
            self._own.update(("user", each.user) for each in admitted)
            unused = [
                key
                for key, bucket in self._buckets.items()
                if bucket.paid_s + BURST_S <= now_s and not bucket.waiting
            ]
            for key in unused:
                del self._buckets[key]
        return self._own

    # Waiting

    def _hold(self, connection: PausableConnection, bucket: _Bucket, key: _Key) -> None:
        if connection.id not in self._held:
            self._held[connection.id] = bucket
            bucket.waiting[connection.id] = connection
            connection.pause_for(_LIMIT)
        if not bucket.is_watched:
            bucket.is_watched = True
            self._watch(bucket, key)

    def _watch(self, bucket: _Bucket, key: _Key) -> None:
        wait_s = bucket.paid_s - self._runtime.monotonic()
        self._runtime.call_later(min(max(wait_s, TURN_S), LOOK_S), partial(self._look, bucket, key))

    def _look(self, bucket: _Bucket, key: _Key) -> None:
        """Let the next one go on that waits for this limit, if it is time; all of them if the limit has changed."""
        if not bucket.waiting:
            bucket.is_watched = False
            return
        first = next(iter(bucket.waiting.values()))
        known = {each.key: each.limit for each in self._limits_of(first)}
        if known.get(key) != bucket.limit:
            if self._buckets.get(key) is bucket:
                del self._buckets[key]
            for connection in list(bucket.waiting.values()):
                self._release(connection)
        elif bucket.paid_s <= self._runtime.monotonic():
            self._release(first)
        self._watch(bucket, key)

    def _release(self, connection: PausableConnection) -> None:
        """Let a connection go on, unless it has to wait for another limit."""
        self.left(connection.id)
        now_s = self._runtime.monotonic()
        for key, *_ in self._limits_of(connection):
            other = self._buckets.get(key)
            if other is not None and other.paid_s > now_s:
                self._hold(connection, other, key)
                return
        connection.resume_for(_LIMIT)
