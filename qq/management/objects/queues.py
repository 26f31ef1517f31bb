"""Reports on queues, their consumers and their messages.

Invariant: only reads the machine.
"""

from __future__ import annotations

import asyncio
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from qq.machine.policy.policies import effective_definition
from qq.management.objects.browse import browse
from qq.management.objects.search import Search
from qq.management.reports.queues import QueueStatus
from qq.management.reports.rows import ThingRows
from qq.management.statistics.rates import HIDDEN, LENGTHS, QueueNumbers, idle_since, numbers_of, with_rates
from qq.octets import readable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from cluster.group.group import Group
    from qq.machine.machine import QueueMachine
    from qq.machine.queue.queue import Queue
    from qq.management.objects.search import Searched, SearchLimits
    from qq.management.objects.sorted_objects import SortedObjects
    from qq.management.reports.messages import Message
    from qq.management.statistics.queue_statistics import QueueStatistics
    from qq.sessions.broker import Broker
    from qq.sessions.message_filter import MessageFilter

DOWN = "down"
_FIELD_NAMES = QueueNumbers._fields
_COUNTS = [name for name in _FIELD_NAMES if name not in HIDDEN]
"""Counts that the `message_stats` of a queue contain."""


class QueueReports:
    """Shows queues and their messages."""

    def __init__(
        self, broker: Broker, group: Group, statistics: QueueStatistics, sorted_objects: SortedObjects
    ) -> None:
        self._broker = broker
        self._group = group
        self._statistics = statistics
        self._searching = asyncio.Lock()
        self._sorted_objects = sorted_objects

    @property
    def _machine(self) -> QueueMachine:
        return self._broker.machine

    def all(self, vhost: str | None) -> Iterator[QueueStatus]:
        """Yield the queues that exist now, of all virtual hosts or of `vhost`, each in its state at that moment."""
        rows = self.rows(vhost)
        return (_status(rows, queue) for queue in rows.things)

    def find(self, vhost: str, name: str) -> QueueStatus | None:
        queue = self._queue(vhost, name)
        return None if queue is None else _status(self._rows([queue]), queue)

    def rows(self, vhost: str | None) -> ThingRows:
        """Return the queues of all virtual hosts or of `vhost`, with the fields of `QueueStatus`."""
        known = [each for each in self._machine.vhosts.values() if vhost in (None, each.name)]
        return self._rows([queue for each in known for queue in each.queues.values()])

    async def rows_by_name(self, is_visible: Callable[[str], bool]) -> ThingRows:
        """Return the queues of the visible virtual hosts, a sequence sorted by `vhost` and `name`."""
        vhosts = self._machine.vhosts
        visible = [vhost for name, vhost in sorted(vhosts.items()) if is_visible(name)]
        lists = [await self._sorted_objects.queues(vhost, vhosts) for vhost in visible]
        return self._rows(lists[0] if len(lists) == 1 else [queue for each in lists for queue in each])

    def dead_letter_rows(self, vhost: str | None) -> ThingRows:
        """Return the queues with dead-lettered messages since this node started, and their targets."""
        rows = self.rows(vhost)
        fields = {name: field for name, field in rows.fields.items() if name in _DEAD_LETTERING}
        died = [queue for queue in rows.things if queue.tally.died]
        return ThingRows(died, fields | _DEATHS)

    async def browse(
        self, vhost: str, queue: str, offset: int, count: int, bytes_max: int
    ) -> Sequence[Message] | None:
        """Read ready messages from position `offset` on without taking them; return None if the queue does not exist.

        Return at most `count` messages with at most `bytes_max` octets of bodies in all, but at least a single message
        if there is any.
        """
        known = self._queue(vhost, queue)
        if known is None:
            return None
        return await browse(known, self._broker.entries, offset, count, bytes_max)

    async def search(
        self, vhost: str, queue: str, wanted: MessageFilter, limits: SearchLimits
    ) -> Searched | None:
        """Search ready messages without taking them; return None if the queue does not exist."""
        known, found = self._machine.vhosts.get(vhost), self._queue(vhost, queue)
        if known is None or found is None:
            return None
        async with self._searching:
            return await Search(known, found, wanted, limits).run(self._broker.entries)

    def _queue(self, vhost: str, name: str) -> Queue | None:
        known = self._machine.vhosts.get(vhost)
        return None if known is None else known.queues.get(name)

    def _members(self) -> tuple[list[str], list[str]]:
        """Return the names of all nodes, and those of the connected nodes."""
        statuses = self._group.statuses.all()
        return [status.name for status in statuses], [
            status.name for status in statuses if status.state != DOWN
        ]

    def _rows(self, queues: Sequence[Queue]) -> ThingRows:
        now_ms, leader, (members, online) = self._group.time_ms(), self._group.leader, self._members()

        def capacity(queue: Queue) -> float:
            return self._statistics.rates.capacity(queue, now_ms)

        fields: dict[str, Callable[[Queue], Any]] = {
            **_FIELDS,
            "state": lambda _: "running" if leader else "minority",
            "node": lambda _: leader,
            "leader": lambda _: leader,
            "members": lambda _: members,
            "online": lambda _: online,
            "consumer_capacity": capacity,
            "consumer_utilisation": capacity,
            **{
                f"{name}_details": partial(self._length_rate, now_ms=now_ms, place=_FIELD_NAMES.index(name))
                for name in LENGTHS
            },
            "idle_since": lambda queue: self._idle_since(queue, now_ms),
            "owner_pid_details": self._owner,
            "message_stats": lambda queue: self._message_stats(queue, now_ms),
        }
        return ThingRows(queues, fields, self._parts(now_ms))

    def _parts(self, now_ms: int) -> dict[str, Callable[[Queue], float]]:
        """Return the functions that compute each number and rate in a queue's row, by their paths."""
        parts: dict[str, Callable[[Queue], float]] = {}
        for name in (*LENGTHS, *_COUNTS):
            path, place = name if name in LENGTHS else f"message_stats.{name}", _FIELD_NAMES.index(name)
            parts[path] = partial(_count, now_ms=now_ms, place=place)
            parts[f"{path}_details.rate"] = partial(self._rate, now_ms=now_ms, place=place)
        return parts

    def _rate(self, queue: Queue, now_ms: int, place: int) -> float:
        return self._statistics.rates.rate_at(queue.number, numbers_of(queue, now_ms), now_ms, place)

    def _owner(self, queue: Queue) -> dict[str, Any]:
        """Return the connection that owns an exclusive queue; {} without an owner at this node."""
        node, number = queue.owner or ("", 0)
        connection = self._broker.connections.get(number) if node == self._broker.name else None
        if connection is None:
            return {}
        return {
            "name": connection.name,
            "peer_host": connection.peer_host,
            "peer_port": connection.peer_port,
        }

    def _idle_since(self, queue: Queue, now_ms: int) -> str | None:
        """Return the time of the last event in an idle queue; events before this node's start are not known."""
        return idle_since(queue.changed_ms or self._statistics.began_ms, now_ms)

    def _message_stats(self, queue: Queue, now_ms: int) -> dict[str, Any]:
        numbers = numbers_of(queue, now_ms)
        rates = self._statistics.rates.per_second(queue.number, numbers, now_ms)
        stats = with_rates({name: getattr(numbers, name) for name in _COUNTS}, rates)
        return stats | {"died": dict(queue.tally.died)}

    def _length_rate(self, queue: Queue, now_ms: int, place: int) -> dict[str, float]:
        return {"rate": self._rate(queue, now_ms, place)}


def _count(queue: Queue, now_ms: int, place: int) -> int:
    return numbers_of(queue, now_ms)[place]


def _status(rows: ThingRows, queue: Queue) -> QueueStatus:
    return QueueStatus(**{name: field(queue) for name, field in rows.fields.items()})


def _effective_definition(queue: Queue) -> Mapping[str, Any]:
    return effective_definition(*queue.policies)


def _policy(queue: Queue) -> str | None:
    policy, _ = queue.policies
    return policy.name if policy else None


def _operator_policy(queue: Queue) -> str | None:
    _, policy = queue.policies
    return policy.name if policy else None


def _exclusive_consumer_tag(queue: Queue) -> str | None:
    return next((consumer.tag for consumer in queue.holders if consumer.live and consumer.exclusive), None)


def _delivery_limit(queue: Queue) -> int | str:
    limit = queue.settings.delivery_limit
    return limit if limit >= 0 else "unlimited"


def _messages(queue: Queue) -> int:
    backlog = queue.backlog
    return backlog.count + queue.unacked + queue.leased + backlog.delayed + queue.dead_count


def _message_bytes(queue: Queue) -> int:
    backlog = queue.backlog
    return backlog.size + queue.unacked_size + queue.leased_size + backlog.delayed_size + queue.dead_size


_IN_MEMORY = ("messages_ram", "messages_ready_ram", "messages_unacknowledged_ram", "message_bytes_ram")
_FIELDS: dict[str, Callable[[Queue], Any]] = {
    "name": attrgetter("name"),
    "vhost": attrgetter("vhost"),
    "type": attrgetter("kind"),
    "durable": attrgetter("durable"),
    "exclusive": lambda queue: queue.owner is not None,
    "auto_delete": attrgetter("auto_delete"),
    "arguments": attrgetter("arguments"),
    "policy": _policy,
    "operator_policy": _operator_policy,
    "effective_policy_definition": _effective_definition,
    "consumers": attrgetter("consumers"),
    "exclusive_consumer_tag": _exclusive_consumer_tag,
    "single_active_consumer_tag": lambda queue: queue.active.tag if queue.active else None,
    "delivery_limit": _delivery_limit,
    "messages": _messages,
    "messages_ready": attrgetter("backlog.count"),
    "messages_unacknowledged": attrgetter("unacked"),
    "messages_leased": attrgetter("leased"),
    "messages_delayed": attrgetter("backlog.delayed"),
    "messages_dlx": attrgetter("dead_count"),
    "message_bytes": _message_bytes,
    "message_bytes_ready": attrgetter("backlog.size"),
    "message_bytes_unacknowledged": attrgetter("unacked_size"),
    "message_bytes_leased": attrgetter("leased_size"),
    "message_bytes_delayed": attrgetter("backlog.delayed_size"),
    "message_bytes_dlx": attrgetter("dead_size"),
    **dict.fromkeys(("messages_persistent", "messages_paged_out"), _messages),
    **dict.fromkeys(("message_bytes_persistent", "message_bytes_paged_out"), _message_bytes),
    **dict.fromkeys(_IN_MEMORY, lambda _: 0),
}
"""Field of `QueueStatus` -> function that computes it from the queue alone."""


def _readable(key: str | None) -> str | None:
    return None if key is None else readable(key)


_DEAD_LETTERING = ("name", "vhost", "type", "policy", "messages", "messages_dlx")
_DEATHS: dict[str, Callable[[Queue], Any]] = {
    "died": lambda queue: dict(queue.tally.died),
    "died_in_all": lambda queue: sum(queue.tally.died.values()),
    "dead_letter": attrgetter("tally.dead_lettered"),
    "dead_letter_exchange": attrgetter("settings.dead_letter_exchange"),
    "dead_letter_routing_key": lambda queue: _readable(queue.settings.dead_letter_routing_key),
    "dead_letter_strategy": attrgetter("settings.dead_letter_strategy"),
}
"""Fields shown for a queue with dead letters, besides `_DEAD_LETTERING`."""
