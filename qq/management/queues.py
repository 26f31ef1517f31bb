"""What operators see of queues, their consumers and their messages.

Lives here: which of the machine's state is shown under which of RabbitMQ's names. Not here: how rates are computed
(rates.py), what else there is (catalog.py), what changes something (changes.py, sessions.py).

Law: only looks at the machine.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from qq.http.view import ConsumerStatus, Message, QueueStatus
from qq.machine.commands import LIVE_UNLIMITED
from qq.machine.policies import effective_definition
from qq.management.browse import browse
from qq.management.rates import SAMPLE_INTERVAL_S, Rates, counts_of
from qq.metrics import ClusterTotals

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cluster.group import Group
    from qq.machine.machine import QueueMachine
    from qq.machine.queue import Consumer, Queue
    from qq.sessions.broker import Broker

QUEUES_PER_SAMPLE = 200
"""How many queues are sampled at a time: it takes about a millisecond."""
CONSUMERS_PER_SAMPLE = 2000
"""How many consumers are counted at a time."""
DOWN = "down"


class QueueReports:
    """The part of `qq.http.view.ManagementView` that is about queues."""

    def __init__(self, broker: Broker, group: Group) -> None:
        self._broker = broker
        self._group = group
        self._rates = Rates()
        self.totals: ClusterTotals | None = None
        """What there was in the cluster at the last sample; None before the first one."""
        self.own_consumers = 0
        """How many consumers this node's clients had at the last sample."""

    @property
    def _machine(self) -> QueueMachine:
        return self._broker.machine

    async def watch(self) -> None:
        """Take samples for rates, until cancelled."""
        while True:
            await self._sample()
            await asyncio.sleep(SAMPLE_INTERVAL_S)

    async def _sample(self) -> None:
        queues = list(self._machine.queues())
        self._rates.keep_only(queues)
        ready = unacked = 0
        for start in range(0, len(queues), QUEUES_PER_SAMPLE):
            some = queues[start : start + QUEUES_PER_SAMPLE]
            self._rates.sample(some, self._group.time_ms())
            ready += sum(queue.ready for queue in some)
            unacked += sum(queue.unacked for queue in some)
            await asyncio.sleep(0)
        created = self._machine.catalog.queues_declared
        self.totals = ClusterTotals(
            queues=len(queues),
            queues_created=created,
            queues_deleted=created - len(queues),
            messages_ready=ready,
            messages_unacked=unacked,
            messages_routed=self._machine.routed,
            messages_dropped=self._machine.dropped,
        )
        self.own_consumers = await self._count_own_consumers()

    async def _count_own_consumers(self) -> int:
        consumers, own = list(self._machine.consumers.values()), 0
        for start in range(0, len(consumers), CONSUMERS_PER_SAMPLE):
            some = consumers[start : start + CONSUMERS_PER_SAMPLE]
            own += sum(consumer.live and consumer.node == self._broker.name for consumer in some)
            await asyncio.sleep(0)
        return own

    def queues(self, vhost: str | None) -> Iterator[QueueStatus]:
        members, online = self._members()
        for queue in list(self._machine.queues()):
            if vhost in (None, queue.vhost):
                yield self._queue_status(queue, members, online)

    def queue(self, vhost: str, name: str) -> QueueStatus | None:
        queue = self._queue(vhost, name)
        return None if queue is None else self._queue_status(queue, *self._members())

    def consumers(self, vhost: str | None) -> Iterator[ConsumerStatus]:
        for consumer in list(self._machine.consumers.values()):
            if consumer.live and vhost in (None, consumer.queue.vhost):
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
        """The names of all nodes, and of those that are connected."""
        statuses = self._group.statuses.all()
        return [status.name for status in statuses], [
            status.name for status in statuses if status.state != DOWN
        ]

    def _queue_status(self, queue: Queue, members: list[str], online: list[str]) -> QueueStatus:
        now_ms, backlog, leader = self._group.time_ms(), queue.backlog, self._group.leader
        policy, operator_policy = queue.policies
        capacity = self._rates.capacity(queue, now_ms)
        limit = queue.settings.delivery_limit
        return QueueStatus(
            name=queue.name,
            vhost=queue.vhost,
            type=queue.kind,
            durable=queue.durable,
            exclusive=queue.owner is not None,
            auto_delete=queue.auto_delete,
            arguments=queue.arguments,
            policy=policy.name if policy else None,
            operator_policy=operator_policy.name if operator_policy else None,
            effective_policy_definition=effective_definition(policy, operator_policy),
            state="running" if leader else "minority",
            node=leader,
            leader=leader,
            members=members,
            online=online,
            consumers=queue.consumers,
            consumer_capacity=capacity,
            consumer_utilisation=capacity,
            single_active_consumer_tag=queue.active.tag if queue.active else None,
            delivery_limit=limit if limit >= 0 else "unlimited",
            messages=backlog.count + queue.unacked + backlog.delayed + queue.dying_count,
            messages_ready=backlog.count,
            messages_unacknowledged=queue.unacked,
            messages_delayed=backlog.delayed,
            messages_dlx=queue.dying_count,
            message_bytes=backlog.size + queue.unacked_size + backlog.delayed_size + queue.dying_size,
            message_bytes_ready=backlog.size,
            message_bytes_unacknowledged=queue.unacked_size,
            message_bytes_delayed=backlog.delayed_size,
            message_bytes_dlx=queue.dying_size,
            message_stats=self._message_stats(queue, now_ms),
        )

    def _message_stats(self, queue: Queue, now_ms: int) -> dict[str, Any]:
        stats: dict[str, Any] = dict(counts_of(queue)._asdict())
        for name, rate in self._rates.per_second(queue, now_ms).items():
            stats[f"{name}_details"] = {"rate": rate}
        stats["died"] = dict(queue.tally.died)
        return stats

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
        )

    def _channel_details(self, consumer: Consumer) -> dict[str, Any]:
        """Where the consumer is and, if it is on this node, from where its client came."""
        details: dict[str, Any] = {"node": consumer.node, "number": consumer.channel}
        session = self._broker.session(consumer.session) if consumer.node == self._broker.name else None
        if session is not None:
            connection = session.connection
            details["name"] = f"{connection.name} ({consumer.channel})"
            details["connection_name"] = connection.name
            details["peer_host"], details["peer_port"] = connection.peer_host, connection.peer_port
            details["user"] = connection.user
        return details
