"""Rate limits of publishing: for the clients of a virtual host, the clients of a user, and each connection.

A limit of a virtual host or a user is that of the whole cluster. The log tells every node how much is published at all
nodes, so nodes need not ask each other about their shares. A message passes at a node in two cases. Either the limit
has room for it beside all that was published anywhere. Or the node's share has room for it beside all that was
published here. The share is an equal part for each node with publishers. Without shares, the node that happens to be
ahead would use all of the limit.

Invariant: messages are delayed, never refused, and never pass early. Passed messages are within the limits except for
the last message, so a publisher leaves no debt that its neighbours would pay. Connections take turns, however many
channels they have. A connection that publishes little goes before connections that publish much.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from heapq import nlargest
from math import floor
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from qq.machine.catalog.limits import MAX_PUBLISH_BYTES, MAX_PUBLISHES, limit_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from cluster.runtime.ports import Runtime
    from qq.config import NodeLimits
    from qq.machine.catalog.publish_rates import Published
    from qq.machine.machine import QueueMachine
    from qq.sessions.ports import LimitedConnection, PatientPublisher

BURST_S = 1.0
"""Seconds for which an unused limit is saved up: after a quiet time, that much may be published at once."""
SHARE_BURST_S = 0.1
"""Seconds for which an unused share of a node is saved up, beside the limit of all nodes: the time by which a busy
event loop may be late."""
TURN_S = 0.01
"""Seconds' worth of a limit that a publisher uses before the next has its turn. A turn costs 0.1 ms."""
TICK_S = 0.001
"""Seconds to wait, at least, so that other tasks of the event loop run."""
CHECK_S = 0.1
"""Seconds between checks, at most, of whether a limit with waiting publishers has changed and how much other nodes
leave."""
AHEAD_S = 2 * TURN_S
"""Seconds' worth of a limit by which a connection that published little goes ahead of those that publish much."""
ACTIVE_S = 10.0
"""Seconds for which a node without further publishes keeps its share, at least. It also keeps the share until its use
of it has been paid off."""
DEBT_S = ACTIVE_S / 2
"""Seconds, at most, for which only the share passes because other nodes have exceeded the limit: nodes of release 0.1
apply no limit. The share uses half of the limit at most, so this debt is paid off by the time the other nodes' shares
end. A single message that uses up a limit for longer than that counts as a whole."""
SWEEP_S = 1.0
"""Seconds, at least, between two sweeps that forget unused limits."""


class _Key(NamedTuple):
    """The object of a limit: a virtual host or a user by name, or a connection by its number."""

    kind: str
    of: str | int
    name: str
    """The name of the limit."""


class DelayingLimit(NamedTuple):
    """A limit with waiting publishers."""

    kind: str
    """"vhost", "user" or "connection"."""
    of: str
    name: str
    limit: int
    publishers: int
    """Channels that wait."""


class _Limit(NamedTuple):
    key: _Key
    limit: int
    published: Published | None
    """Counts of publishes at all nodes; None if the limit applies to this node alone."""


class _Elsewhere(NamedTuple):
    """Messages and octets that were published at a different node."""

    messages: int
    size: int
    until_s: float
    """Monotonic time, in seconds, until which the node keeps its share because of that."""


_NOTHING = _Elsewhere(0, 0, 0.0)


class _Bucket:
    """How far a limit is used up, with the publishers that wait for it."""

    __slots__ = (
        "is_watched",
        "limit",
        "most_used_s",
        "name",
        "others",
        "paid_s",
        "share_paid_s",
        "used_s",
        "waiting",
    )

    def __init__(self, name: str, limit: int) -> None:
        self.name = name
        self.limit = limit
        self.paid_s = 0.0
        """Monotonic time, in seconds, at which all that was published at any node will be within the limit."""
        self.share_paid_s = 0.0
        """Monotonic time, in seconds, at which the messages published here from the share will be within the share."""
        self.others: dict[str, _Elsewhere] = {}
        """The counts of each other node at the last update."""
        self.waiting: dict[int, dict[int, PatientPublisher]] = {}
        """Waiting publishers by connection and then by session, both in order of arrival."""
        self.used_s: dict[int, float] = {}
        """Seconds' worth of the limit that each connection has used, as far as that decides the order of turns."""
        self.most_used_s = 0.0
        """The highest value of `used_s` so far."""
        self.is_watched = False

    def update(self, published: Iterable[tuple[str, int, int]], now_s: float) -> None:
        """Charge the publishes of other nodes since the last update. Forget allowance that was unused for too long."""
        more_s = large_s = 0.0
        for node, messages, size in published:
            before = self.others.get(node, _NOTHING)
            if messages != before.messages:
                if messages < before.messages:
                    before = _NOTHING  # the counts come from a replica that has started again
                new = messages - before.messages
                cost_s = (new if self.name == MAX_PUBLISHES else size - before.size) / self.limit
                more_s += cost_s
                message_s = cost_s / new
                if message_s > DEBT_S:
                    large_s += message_s
                active_s = max(ACTIVE_S, message_s * (len(self.others) + 2))
                self.others[node] = _Elsewhere(messages, size, now_s + active_s)
        owed_s = min(self.paid_s + more_s, max(now_s + DEBT_S, self.paid_s + large_s))
        self.paid_s = max(self.paid_s, owed_s, now_s - BURST_S)
        self.share_paid_s = max(self.share_paid_s, now_s - SHARE_BURST_S)

    def begin(self, published: Iterable[tuple[str, int, int]], now_s: float) -> None:
        """Update for the first time. Earlier publishes of other nodes do not count."""
        self.update(published, now_s)
        self.paid_s = now_s - BURST_S

    def _nodes(self, now_s: float) -> int:
        return 1 + sum(now_s < seen.until_s for seen in self.others.values())

    def is_due(self, now_s: float) -> bool:
        return self.due_s(now_s) <= now_s

    def due_s(self, now_s: float) -> float:
        """Return the monotonic time, in seconds, at which the next message may pass."""
        return self.paid_s if self._nodes(now_s) == 1 else min(self.paid_s, self.share_paid_s)

    def fitting(self, messages: Sequence[bytes], now_s: float) -> int:
        """Return how many of the messages may pass now. The last message may exceed the limit."""
        if not self.is_due(now_s):
            return 0
        if self.paid_s <= now_s:
            room = (now_s + TURN_S - self.paid_s) * self.limit
        else:
            room = (now_s + TURN_S - self.share_paid_s) * self.limit / self._nodes(now_s)
        if self.name == MAX_PUBLISHES:
            return min(len(messages), floor(room) + 1)
        for count, message in enumerate(messages):
            if room < 0:
                return count
            room -= len(message)
        return len(messages)

    def charge(self, connection: int, messages: Sequence[bytes], now_s: float) -> None:
        """Charge messages that a connection has published at this node."""
        cost_s = (len(messages) if self.name == MAX_PUBLISHES else sum(map(len, messages))) / self.limit
        share_s = cost_s * self._nodes(now_s)
        if self.paid_s > now_s:
            self.share_paid_s += share_s
        else:  # other nodes leave room, so of the share only this cost counts
            self.share_paid_s = max(self.share_paid_s, now_s + share_s)
        self.paid_s += cost_s
        most_s = self.most_used_s
        used_s = max(self.used_s.get(connection, most_s), most_s - AHEAD_S) + cost_s
        self.used_s[connection] = used_s
        self.most_used_s = max(most_s, used_s)

    def add(self, publisher: PatientPublisher) -> None:
        """Add a waiting publisher.

        A new connection starts behind all earlier ones, so reconnecting gains no advantage.
        """
        connection = publisher.connection.id
        self.waiting.setdefault(connection, {})[publisher.session] = publisher
        self.used_s.setdefault(connection, self.most_used_s)

    def take_next(self) -> PatientPublisher:
        """Take out the next publisher: of the connection that has used least, the channel that has waited longest."""
        connection = min(self.waiting, key=self.used_s.__getitem__)
        mine = self.waiting.pop(connection)
        publisher = mine.pop(next(iter(mine)))
        if mine:
            self.waiting[connection] = mine
        return publisher

    def remove(self, publisher: PatientPublisher) -> None:
        connection = publisher.connection.id
        mine = self.waiting[connection]
        del mine[publisher.session]
        if not mine:
            del self.waiting[connection]

    @property
    def all_waiting(self) -> list[PatientPublisher]:
        return [publisher for mine in self.waiting.values() for publisher in mine.values()]


class Throttle:
    """The limits of publishing on a node."""

    def __init__(self, node: str, machine: QueueMachine, runtime: Runtime, limits: NodeLimits) -> None:
        self._node = node
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
        self._buckets: dict[_Key, _Bucket] = {}
        self._waits_for: dict[int, _Bucket] = {}
        """The bucket that each waiting publisher waits for, by session."""
        self._waiting_of: Counter[int] = Counter()
        """Waiting publishers of each connection, counted by its number."""
        self._turn: int | None = None
        """The session of the publisher that has the turn now. It goes ahead of the waiting publishers."""
        self._prepaid: dict[int, set[_Key]] = {}
        """Limits that the next message of a publisher is already charged to, by session. At its turn there, a different
        limit was used up. If the message had to wait until all limits have room at once, it might wait for ever."""
        self._swept_s = 0.0

    def delays(self, connection: int) -> bool:
        """Return whether messages of this connection wait because of a limit."""
        return connection in self._waiting_of

    def limit_of(self, session: int) -> tuple[str, int] | None:
        """Return name and value of the limit that delays the publisher of this session, or None."""
        bucket = self._waits_for.get(session)
        return None if bucket is None else (bucket.name, bucket.limit)

    def delaying_limits(self, most: int) -> list[DelayingLimit]:
        """Return the limits with waiting publishers, those with most publishers first, at most `most` limits."""
        counts = Counter(self._waits_for.values())
        found = [
            DelayingLimit(key.kind, str(key.of), key.name, bucket.limit, counts[bucket])
            for key, bucket in self._buckets.items()
            if bucket.waiting
        ]
        return nlargest(most, found, key=attrgetter("publishers"))

    def count_passing(self, publisher: PatientPublisher, messages: Sequence[bytes]) -> int:
        """Return how many of these messages, with their headers and frames, may be published now.

        The rest must `wait`.
        """
        count = len(messages)
        if not self.may_limit(publisher.connection):
            return count
        now_s = self._runtime.monotonic()
        is_its_turn = publisher.session == self._turn
        prepaid = self._prepaid.get(publisher.session, ())
        with_room: dict[_Key, _Bucket] = {}
        for limit in self._limits_of(publisher.connection):
            bucket = self._updated_bucket(limit, now_s)
            if limit.key in prepaid:
                count = min(count, 1)
                continue
            if bucket.waiting and not is_its_turn:
                return 0
            fitting = bucket.fitting(messages, now_s)
            if fitting:
                with_room[limit.key] = bucket
            count = min(count, fitting)
        if not count and is_its_turn:
            for bucket in with_room.values():
                bucket.charge(publisher.connection.id, messages[:1], now_s)
            self._prepaid.setdefault(publisher.session, set()).update(with_room)
        return count

    def charge(self, publisher: PatientPublisher, messages: Sequence[bytes], count: int) -> None:
        """Charge the first `count` of these messages, which were published."""
        connection = publisher.connection
        if count and self.may_limit(connection):
            now_s = self._runtime.monotonic()
            prepaid = self._prepaid.pop(publisher.session, ())
            for limit in self._limits_of(connection):
                first = 1 if limit.key in prepaid else 0
                self._updated_bucket(limit, now_s).charge(connection.id, messages[first:count], now_s)

    def wait(self, publisher: PatientPublisher) -> None:
        """Add a publisher to the waiting publishers of a limit.

        It publishes no message until `resume` is called at its turn.
        """
        now_s = self._runtime.monotonic()
        prepaid = self._prepaid.get(publisher.session, ())
        limits = {
            limit.key: self._updated_bucket(limit, now_s)
            for limit in self._limits_of(publisher.connection)
            if limit.key not in prepaid
        }
        used_up = {key: bucket for key, bucket in limits.items() if not bucket.is_due(now_s)}
        in_turns = {key: bucket for key, bucket in limits.items() if bucket.waiting}
        key, bucket = next(iter((used_up or in_turns or limits).items()))
        bucket.add(publisher)
        self._waits_for[publisher.session] = bucket
        self._waiting_of[publisher.connection.id] += 1
        if not bucket.is_watched:
            bucket.is_watched = True
            self._watch(bucket, key)

    def connection_left(self, connection: LimitedConnection) -> None:
        """Remove a connection's use of each limit. None of its publishers waits any more."""
        for limit in self._limits_of(connection):
            bucket = self._buckets.get(limit.key)
            if bucket is not None:
                bucket.used_s.pop(connection.id, None)

    def remove(self, publisher: PatientPublisher) -> None:
        """Remove a publisher, because it has ended, or the limit that it waits for was removed."""
        self._prepaid.pop(publisher.session, None)
        bucket = self._waits_for.get(publisher.session)
        if bucket is not None:
            bucket.remove(publisher)
            self._forget(publisher)

    def _forget(self, publisher: PatientPublisher) -> None:
        del self._waits_for[publisher.session]
        connection = publisher.connection.id
        self._waiting_of[connection] -= 1
        if not self._waiting_of[connection]:
            del self._waiting_of[connection]

    # The limits

    def may_limit(self, connection: LimitedConnection) -> bool:
        """Return whether a limit may apply to this connection. Called for every publish, so it must be quick."""
        vhost = self._machine.vhosts.get(connection.vhost)
        return bool(
            self._of_connection or (vhost is not None and vhost.limits) or self._machine.catalog.access.limits
        )

    def _limits_of(self, connection: LimitedConnection) -> Iterator[_Limit]:
        access = self._machine.catalog.access
        for name, limit in self._of_connection:
            yield _Limit(_Key("connection", connection.id, name), limit, None)
        vhost = self._machine.vhosts.get(connection.vhost)
        if vhost is not None and vhost.limits:
            yield from _limits("vhost", vhost.name, vhost.limits, vhost.published)
        limits = access.limits.get(connection.user)
        if limits:
            yield from _limits("user", connection.user, limits, access.published[connection.user])

    def _updated_bucket(self, limit: _Limit, now_s: float) -> _Bucket:
        """Return the up-to-date bucket of a limit. If the limit has changed, its waiting publishers continue first."""
        key, value, published = limit
        elsewhere = () if published is None else published.elsewhere(self._node)
        bucket = self._buckets.get(key)
        if bucket is not None and (bucket.limit == value or bucket.waiting):
            bucket.update(elsewhere, now_s)
            return bucket
        self._sweep(now_s)
        bucket = self._buckets[key] = _Bucket(key.name, value)
        bucket.begin(elsewhere, now_s)
        return bucket

    def _sweep(self, now_s: float) -> None:
        """Forget unused limits from time to time."""
        if self._swept_s + SWEEP_S <= now_s:
            self._swept_s = now_s
            for key, bucket in list(self._buckets.items()):
                if bucket.paid_s + BURST_S <= now_s and not bucket.waiting:
                    del self._buckets[key]

    # Turns

    def _watch(self, bucket: _Bucket, key: _Key) -> None:
        now_s = self._runtime.monotonic()
        wait_s = bucket.due_s(now_s) - now_s
        self._runtime.call_later(min(max(wait_s, TICK_S), CHECK_S), partial(self._check, bucket, key))

    def _check(self, bucket: _Bucket, key: _Key) -> None:
        """Let the next waiting publisher of this limit continue if it is time, or all if the limit has changed."""
        bucket.is_watched = False
        if not bucket.waiting:
            return
        now_s = self._runtime.monotonic()
        first = next(iter(next(iter(bucket.waiting.values())).values()))
        limit = next((each for each in self._limits_of(first.connection) if each.key == key), None)
        if limit is None or limit.limit != bucket.limit:
            del self._buckets[key]
            for publisher in bucket.all_waiting:
                if publisher.session in self._waits_for:  # an earlier turn may have ended it
                    self.remove(publisher)
                    self._give_turn(publisher)
            return
        bucket.is_watched = True
        if self._updated_bucket(limit, now_s).is_due(now_s):
            publisher = bucket.take_next()
            self._forget(publisher)
            self._give_turn(publisher)
        self._watch(bucket, key)

    def _give_turn(self, publisher: PatientPublisher) -> None:
        self._turn = publisher.session
        try:
            publisher.resume()
        finally:
            self._turn = None


def _limits(kind: str, of: str, limits: Mapping[str, object], published: Published) -> Iterator[_Limit]:
    for name in (MAX_PUBLISHES, MAX_PUBLISH_BYTES):
        limit = limit_of(limits, name)
        if limit:  # a limit of 0 cannot be set
            yield _Limit(_Key(kind, of, name), limit, published)
