"""Finds clients that wait or do not read, and the heaviest tenants, with each sample of this node's connections.

Invariant: bounded by the number of connections; a check of a connection costs a microsecond.
"""

from __future__ import annotations

from heapq import nlargest
from operator import attrgetter
from typing import TYPE_CHECKING

from qq.diagnosis.lasting import Lasting
from qq.diagnosis.limits import TenantUse
from qq.diagnosis.node_rules import REPORTED_MAX, SlowReader
from qq.metrics.counters import Transferred
from qq.sessions.session_info import Traffic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qq.sessions.ports import Connection
    from qq.sessions.session_info import ConnectionFacts

UNREAD_OCTETS = 256 * 1024
"""Octets that a client must leave unread to count as a slow reader."""
UNREAD_MS = 30_000
"""Milliseconds after which a slow reader is reported."""
_NO_TRAFFIC = Traffic()


class ClientWatch:
    """Findings about the clients of this node."""

    def __init__(self) -> None:
        self.blocked = 0
        """Connections with publishing stopped by an alarm or a limit at the last sample."""
        self.slow_readers: Sequence[SlowReader] = ()
        self.tenants: Sequence[TenantUse] = ()
        """The tenants with most traffic between the last two samples."""
        self.octets_per_s = 0.0
        """Octets per second that all clients together sent and received."""
        self.transferred = Transferred()
        self.octets_of: dict[str, tuple[int, int]] = {}
        """Octets received from and sent to the clients in each virtual host, since this node started."""
        self._traffic: dict[int, Traffic] = {}
        """Traffic of each connection at the last sample, by its number."""
        self._slow = Lasting[int]()
        """Connections whose clients read slowly, by their numbers. The state is the windows that a client keeps closed,
        or None for unread octets."""
        self._began_ms = 0
        self._begin(0)

    def _begin(self, now_ms: int) -> None:
        self._last_ms, self._began_ms = self._began_ms, now_ms
        self._now_blocked = 0
        self._now_traffic: dict[int, Traffic] = {}
        self._unread: list[SlowReader] = []
        self._used: dict[tuple[str, str], list[int]] = {}

    def begin_pass(self, now_ms: int) -> None:
        self._begin(now_ms)

    def check(self, connection: Connection, facts: ConnectionFacts, *, is_held: bool, now_ms: int) -> None:
        """Check a connection, once in a pass. `is_held` says whether a limit delays its publishing."""
        number, traffic = connection.id, facts.traffic
        self._now_blocked += facts.is_blocked or is_held
        self._now_traffic[number] = traffic
        before, all_clients = self._traffic.get(number, _NO_TRAFFIC), self.transferred
        octets_in, octets_out = traffic.octets_in - before.octets_in, traffic.octets_out - before.octets_out
        all_clients.octets_in += octets_in
        all_clients.octets_out += octets_out
        all_clients.reads += traffic.reads - before.reads
        all_clients.writes += traffic.writes - before.writes
        before_in, before_out = self.octets_of.get(connection.vhost, (0, 0))
        self.octets_of[connection.vhost] = before_in + octets_in, before_out + octets_out
        used = self._used.setdefault((connection.vhost, connection.user), [0, 0])
        used[0] += octets_in + octets_out
        used[1] += 1
        closed = facts.closed_windows
        if traffic.octets_waiting >= UNREAD_OCTETS:
            since_ms = self._slow.since_ms(number, now_ms)
            reader = SlowReader(connection.name, traffic.octets_waiting, since_ms)
        elif closed.sessions:
            since_ms = self._slow.since_ms(number, now_ms, closed)
            reader = SlowReader(connection.name, 0, since_ms, closed.sessions)
        else:
            return
        if now_ms - since_ms >= UNREAD_MS:
            self._unread.append(reader)

    def end_pass(self) -> None:
        seconds = max(self._began_ms - self._last_ms, 1) / 1000 if self._last_ms else 0.0
        self.blocked = self._now_blocked
        self.slow_readers = nlargest(REPORTED_MAX, self._unread, key=attrgetter("octets"))
        tenants = [
            TenantUse(vhost, user, octets / seconds if seconds else 0.0, connections)
            for (vhost, user), (octets, connections) in self._used.items()
        ]
        self.octets_per_s = sum(tenant.octets_per_s for tenant in tenants)
        self.tenants = nlargest(REPORTED_MAX, tenants, key=attrgetter("octets_per_s"))
        self._traffic = self._now_traffic
        self._slow.end_pass()
