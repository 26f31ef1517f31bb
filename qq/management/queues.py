"""Reports on queues, their consumers and their messages.

Invariant: only reads the machine.
"""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from qq.diagnosis.queue_watch import HeldFacts, HeldWatch, QueueFacts, QueueWatch
from qq.http.base.slices import Slices
from qq.http.view import ConsumerStatus, Message, QueueStatus, ThingRows
from qq.machine.policy.policies import effective_definition
from qq.machine.protocol.commands import LIVE_UNLIMITED
from qq.management.browse import browse
from qq.management.entry_times import EntryTimes
from qq.management.queue_sets import InOrder
from qq.management.rates import LENGTHS, UNTOLD, QueueNumbers, Rates, numbers_of, with_rates
from qq.management.totals import ExchangeNumbers, KeptSamples, VhostNumbers, VhostTotals, of_exchange
from qq.metrics.counters import ClusterTotals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from cluster.group.group import Group
    from qq.http.view import Client, Samples
    from qq.machine.catalog.catalog import Catalog
    from qq.machine.machine import QueueMachine
    from qq.machine.queue.queue import Consumer, Queue
    from qq.sessions.broker import Broker

QUEUES_PER_SAMPLE = 200
"""Queues sampled at a time: about a millisecond of work."""
CONSUMERS_ASKED = 10
"""Maximum number of consumers of a queue whose prefetch is read."""
DOWN = "down"
_FIELD_NAMES = QueueNumbers._fields
_COUNTS = [name for name in _FIELD_NAMES if name not in UNTOLD]
"""Counts that the `message_stats` of a queue contain."""


class QueueReports:
    """Implements the part of `qq.http.view.ManagementView` that shows queues."""

    def __init__(self, broker: Broker, group: Group) -> None:
        self._broker = broker
        self._group = group
        self._rates = Rates()
        self._catalog: Catalog | None = None
        """The catalog that was sampled last; loading a state replaces it."""
        self._revisions: dict[int, int] = {}
        """Revision of each queue at its last sample, by queue number."""
        self._sampled: dict[int, int] = {}
        """Revisions of the queues sampled in the pass under way."""
        self._vhost_totals = VhostTotals()
        self._counts = False
        """Whether the samples are from after the start, and not from the replay of the log."""
        self._kept_samples = KeptSamples()
        self.in_order = InOrder()
        self.entry_times = EntryTimes()
        self.queue_watch = QueueWatch()
        self.held_watch = HeldWatch()
        self.totals: ClusterTotals | None = None
        """Totals of the cluster at the last sample; None before the first sample."""
        self.own_consumers = 0
        """Consumers of this node's clients at the last sample."""

    @property
    def _machine(self) -> QueueMachine:
        return self._broker.machine

    async def _sample_queues(self) -> None:
        """Sample the numbers of all queues for their rates, totals and diagnosis."""
        self.entry_times.note(self._group.engine.applied_index, self._group.time_ms())
        if self._machine.catalog is not self._catalog:
            self._catalog, self._revisions = self._machine.catalog, {}
        if self._broker.live and not self._counts:
            self._counts = True
            self._rates, self._revisions, self._vhost_totals = Rates(), {}, VhostTotals()
        queues = list(self._machine.queues())
        for start in range(0, len(queues), QUEUES_PER_SAMPLE):
            now_ms = self._group.time_ms()
            for queue in queues[start : start + QUEUES_PER_SAMPLE]:
                self._sample_queue(queue, now_ms)
            await asyncio.sleep(0)
        self._rates.end_pass()
        self._revisions, self._sampled = self._sampled, {}
        self.queue_watch.end_pass()
        self._vhost_totals.end_pass(self._machine.vhosts.values(), self._group.time_ms())
        for thing in self._kept_samples.watched():
            numbers = self._numbers_of(thing)
            if numbers is not None:
                self._kept_samples.note(thing, numbers, self._group.time_ms())
        catalog = self._machine.catalog
        together = self._vhost_totals.of_all(catalog.vhosts.values())
        self.totals = ClusterTotals(
            queues=catalog.queue_count,
            queues_created=catalog.queues_declared,
            queues_deleted=catalog.queues_declared - catalog.queue_count,
            messages_ready=together.messages_ready,
            messages_unacked=together.messages_unacknowledged,
        )
        self.own_consumers = await self._look_at_consumers()

    def _sample_queue(self, queue: Queue, now_ms: int) -> None:
        number, before = queue.number, self._rates.last(queue.number)
        # While messages wait for consumers, their waiting time changes without a new revision.
        is_counted = queue.revision == self._revisions.get(number) and not queue.waiting_since_ms
        numbers = numbers_of(queue, now_ms) if before is None or not is_counted else before
        self._sampled[number] = queue.revision
        is_same = numbers == before
        if before is not None and is_same:
            numbers = before  # keep equal numbers once
        self._rates.sample(number, numbers, now_ms)
        if is_same and not numbers.messages and not self.queue_watch.knows(number):
            return  # true for most queues when there are very many
        self._vhost_totals.take(queue.vhost, before, numbers)
        self.queue_watch.look(_facts(queue, before, numbers), now_ms)

    async def _look_at_consumers(self) -> int:
        """Look for consumers that hold messages for long; return the number of this node's own consumers."""
        own, slices = 0, Slices()
        for consumer in list(self._machine.consumers.values()):
            own += consumer.live and consumer.node == self._broker.name
            since_ms = consumer.out_since_ms()
            if since_ms is not None:
                self._look_at_held(consumer, since_ms)
            await slices.give_way()
        self.held_watch.end_pass()
        return own

    def _look_at_held(self, consumer: Consumer, since_ms: int) -> None:
        queue = consumer.queue
        timeout_ms = queue.timeout_ms(consumer)
        outage_ms = self._machine.outage_ms
        if timeout_ms and self._group.time_ms() - outage_ms - since_ms > timeout_ms // 2:
            held = len(consumer.unacked)
            facts = HeldFacts(
                queue.vhost, queue.name, consumer.tag, consumer.node, since_ms + outage_ms, timeout_ms, held
            )
            self.held_watch.look(facts)

    def vhost_stats(self, is_seen: Callable[[str], bool]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        vhosts = [vhost for vhost in self._machine.vhosts.values() if is_seen(vhost.name)]
        return self._vhost_totals.stats(vhosts, self._group.time_ms())

    def samples(self, thing: tuple[str, ...], wanted: Samples) -> Mapping[str, Mapping[str, Any]]:
        numbers = self._numbers_of(thing)
        if numbers is None:
            return {}
        return self._kept_samples.told(thing, numbers, wanted, self._group.time_ms())

    def _numbers_of(self, thing: tuple[str, ...]) -> QueueNumbers | VhostNumbers | ExchangeNumbers | None:
        """Return the numbers of an object, or None if it does not exist."""
        vhost = self._machine.vhosts.get(thing[1]) if len(thing) > 1 else None
        match thing:
            case ("queue", _, name) if vhost is not None and name in vhost.queues:
                return numbers_of(vhost.queues[name], self._group.time_ms())
            case ("exchange", _, name) if vhost is not None:
                return of_exchange(vhost, name)
            case ("vhost", _) if vhost is not None:
                return self._vhost_totals.of_vhost(vhost)
            case ("all",):
                return self._vhost_totals.of_all(self._machine.vhosts.values())
            case _:
                return None

    def exchange_stats(self, vhost: str, name: str) -> Mapping[str, Any]:
        known = self._machine.vhosts.get(vhost)
        return {} if known is None else self._vhost_totals.exchange_stats(known, name, self._group.time_ms())

    def queues(self, vhost: str | None) -> Iterator[QueueStatus]:
        rows = self.queue_rows(vhost)
        return (_status(rows, queue) for queue in rows.things)

    def queue(self, vhost: str, name: str) -> QueueStatus | None:
        queue = self._queue(vhost, name)
        return None if queue is None else _status(self._rows([queue]), queue)

    def queue_rows(self, vhost: str | None) -> ThingRows:
        known = [each for each in self._machine.vhosts.values() if vhost in (None, each.name)]
        return self._rows([queue for each in known for queue in each.queues.values()])

    async def queues_by_name(self, is_seen: Callable[[str], bool]) -> ThingRows:
        vhosts = self._machine.vhosts
        seen = [vhost for name, vhost in sorted(vhosts.items()) if is_seen(name)]
        lists = [await self.in_order.queues(vhost, vhosts) for vhost in seen]
        return self._rows(lists[0] if len(lists) == 1 else [queue for each in lists for queue in each])

    def dead_lettering_queues(self, vhost: str | None) -> ThingRows:
        rows = self.queue_rows(vhost)
        fields = {name: field for name, field in rows.fields.items() if name in _DEAD_LETTERING}
        died = [queue for queue in rows.things if queue.tally.died]
        return ThingRows(died, fields | _DEATHS)

    def consumers(self, vhost: str | None) -> Iterator[ConsumerStatus]:
        for consumer in list(self._machine.consumers.values()):
            if consumer.live and vhost in (None, consumer.queue.vhost):
                yield self._consumer_status(consumer)

    def consumers_of_queue(self, vhost: str, name: str) -> Iterator[ConsumerStatus]:
        queue = self._queue(vhost, name)
        for consumer in () if queue is None else list(queue.holders):
            if consumer.live:
                yield self._consumer_status(consumer)

    def consumers_of_channel(self, channel: Client) -> Iterator[ConsumerStatus]:
        session = self._machine.sessions.get((channel["node"], channel["id"]))
        for consumer in () if session is None else list(session.consumers.values()):
            if consumer.live:
                yield self._consumer_status(consumer)

    async def browse(
        self, vhost: str, queue: str, offset: int, count: int, bytes_max: int
    ) -> Sequence[Message] | None:
        known = self._queue(vhost, queue)
        if known is None:
            return None
        page = await browse(known, self._broker.entries, offset, count, bytes_max)
        return [Message(*browsed) for browsed in page]

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
            return self._rates.capacity(queue, now_ms)

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
        return self._rates.of_one(queue.number, numbers_of(queue, now_ms), now_ms, place)

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

    def _message_stats(self, queue: Queue, now_ms: int) -> dict[str, Any]:
        numbers = numbers_of(queue, now_ms)
        rates = self._rates.per_second(queue.number, numbers, now_ms)
        stats = with_rates({name: getattr(numbers, name) for name in _COUNTS}, rates)
        return stats | {"died": dict(queue.tally.died)}

    def _length_rate(self, queue: Queue, now_ms: int, place: int) -> dict[str, float]:
        return {"rate": self._rate(queue, now_ms, place)}

    def _consumer_status(self, consumer: Consumer) -> ConsumerStatus:
        queue = consumer.queue
        is_active = queue.is_active(consumer)
        activity = "up"
        if queue.settings.single_active_consumer:
            activity = "single_active" if is_active else "waiting"
        is_limited = consumer.auto_credit and not consumer.no_ack and consumer.prefetch != LIVE_UNLIMITED
        return ConsumerStatus(
            consumer_tag=consumer.tag,
            queue={"name": queue.name, "vhost": queue.vhost},
            channel_details=self._channel_details(consumer),
            ack_required=not consumer.no_ack,
            exclusive=consumer.exclusive,
            prefetch_count=consumer.prefetch if is_limited else 0,
            active=is_active,
            activity_status=activity,
            arguments=consumer.arguments,
            messages_unacknowledged=len(consumer.unacked),
            credit=consumer.credit if is_limited else None,
        )

    def _channel_details(self, consumer: Consumer) -> dict[str, Any]:
        """Return the place of a consumer's channel and, if it is at this node, its client's address.

        The `id` finds the channel among the channels of all nodes.
        """
        details: dict[str, Any] = {
            "id": consumer.session,
            "node": consumer.node,
            "number": consumer.channel,
        }
        session = self._broker.session(consumer.session) if consumer.node == self._broker.name else None
        if session is not None:
            connection = session.connection
            details["name"] = f"{connection.name} ({consumer.channel})"
            details["connection_name"] = connection.name
            details["peer_host"], details["peer_port"] = connection.peer_host, connection.peer_port
            details["user"] = connection.user
        return details


def _facts(queue: Queue, before: QueueNumbers | None, numbers: QueueNumbers) -> QueueFacts:
    """Return the facts for judging a queue. `before` are the numbers of its last sample; None at the first sample."""
    return QueueFacts(
        number=queue.number,
        vhost=queue.vhost,
        name=queue.name,
        ready=numbers.messages_ready,
        unacked=numbers.messages_unacknowledged,
        consumers=queue.consumers,
        dying=queue.dead_count,
        acknowledged=numbers.ack,
        waited_ms=numbers.waited_ms,
        # A count decreases only when a state was loaded: then counting starts again.
        failed=max(0, numbers.failed - (before.failed if before else 0)),
        refused=max(0, numbers.reject_publish - (before.reject_publish if before else 0)),
        prefetch=_prefetch(queue) if queue.waiting_since_ms else 0,
        taken=numbers.deliver_get,
        expires_to_exchange=queue.settings.dead_letter_exchange is not None
        and queue.backlog.expires_ms() > 0,
    )


def _prefetch(queue: Queue) -> int:
    """Return the largest prefetch among some consumers of a queue; 0 if any of them has no limit."""
    some = [0 if each.no_ack else each.prefetch for each in islice(queue.holders, CONSUMERS_ASKED)]
    return 0 if 0 in some or LIVE_UNLIMITED in some else max(some, default=0)


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
    return backlog.count + queue.unacked + backlog.delayed + queue.dead_count


def _message_bytes(queue: Queue) -> int:
    backlog = queue.backlog
    return backlog.size + queue.unacked_size + backlog.delayed_size + queue.dead_size


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
    "messages_delayed": attrgetter("backlog.delayed"),
    "messages_dlx": attrgetter("dead_count"),
    "message_bytes": _message_bytes,
    "message_bytes_ready": attrgetter("backlog.size"),
    "message_bytes_unacknowledged": attrgetter("unacked_size"),
    "message_bytes_delayed": attrgetter("backlog.delayed_size"),
    "message_bytes_dlx": attrgetter("dead_size"),
    "messages_persistent": _messages,
    "message_bytes_persistent": _message_bytes,
    "messages_ram": lambda _: 0,
    "message_bytes_ram": lambda _: 0,
}
"""Field of `QueueStatus` -> function that computes it from the queue alone."""

_DEAD_LETTERING = ("name", "vhost", "type", "policy", "messages", "messages_dlx")
_DEATHS: dict[str, Callable[[Queue], Any]] = {
    "died": lambda queue: dict(queue.tally.died),
    "died_in_all": lambda queue: sum(queue.tally.died.values()),
    "dead_letter": attrgetter("tally.dead_lettered"),
    "dead_letter_exchange": attrgetter("settings.dead_letter_exchange"),
    "dead_letter_routing_key": attrgetter("settings.dead_letter_routing_key"),
    "dead_letter_strategy": attrgetter("settings.dead_letter_strategy"),
}
"""Fields shown for a queue with dead letters, besides `_DEAD_LETTERING`."""
