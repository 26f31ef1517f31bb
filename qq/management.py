"""What operators see of the broker and have it do: the broker behind the HTTP interface.

Lives here: which of the machine's state is shown under which of RabbitMQ's names, and how a change gets into the log.
Not here: HTTP and JSON (qq/http), what a change does (qq/machine), rates (broker/rates.py).

Law: only looks at the machine; what is to be changed goes through the log, like everything else.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from qq.broker.browse import browse
from qq.broker.channel import LIVE_UNLIMITED
from qq.broker.rates import SAMPLE_INTERVAL_S, Rates, counts_of
from qq.http.view import ConsumerStatus, Deduplication, Message, QueueStatus, Unavailable
from qq.machine.commands import DeletePolicy, LimitPublishers, PutPolicy
from qq.machine.policies import effective_definition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cluster.group import Group
    from cluster.ports import Runtime
    from qq.broker.broker import Broker
    from qq.machine.commands import Command
    from qq.machine.consumers import Consumer
    from qq.machine.machine import QueueMachine
    from qq.machine.policies import Policy
    from qq.machine.queue import Queue

CHANGE_TIMEOUT_S = 10.0
"""Without a majority a change is not applied, and whoever asked for it must be told."""
QUEUES_PER_SAMPLE = 200
"""Of which samples are taken at a time: about a millisecond."""
DOWN = "down"


class Management:
    """Implements `qq.http.view.Management`."""

    def __init__(self, broker: Broker, group: Group, runtime: Runtime) -> None:
        self._broker = broker
        self._group = group
        self._runtime = runtime
        self._rates = Rates()

    @property
    def vhost(self) -> str:
        return self._broker.vhost

    @property
    def _machine(self) -> QueueMachine:
        return self._broker.machine

    async def watch(self) -> None:
        """Take samples for rates, until cancelled."""
        while True:
            await self._sample()
            await asyncio.sleep(SAMPLE_INTERVAL_S)

    async def _sample(self) -> None:
        queues = list(self._machine.queues.values())
        self._rates.keep_only(queues)
        for start in range(0, len(queues), QUEUES_PER_SAMPLE):
            self._rates.sample(queues[start : start + QUEUES_PER_SAMPLE], self._runtime.wall_ms())
            await asyncio.sleep(0)

    # Queues and consumers

    def queues(self) -> Iterator[QueueStatus]:
        members, online = self._members()
        for queue in list(self._machine.queues.values()):
            yield self._queue_status(queue, members, online)

    def queue(self, name: str) -> QueueStatus | None:
        queue = self._machine.queues.get(name)
        return None if queue is None else self._queue_status(queue, *self._members())

    def consumers(self) -> Iterator[ConsumerStatus]:
        for consumer in list(self._machine.consumers.values()):
            if consumer.live:
                yield self._consumer_status(consumer)

    async def browse(self, queue: str, offset: int, count: int, bytes_max: int) -> Sequence[Message] | None:
        known = self._machine.queues.get(queue)
        if known is None:
            return None
        page = await browse(known, self._broker.entries, offset, count, bytes_max)
        return [Message(*browsed) for browsed in page]

    def _members(self) -> tuple[list[str], list[str]]:
        """The nodes, and those that are connected."""
        statuses = self._group.statuses()
        return [status.name for status in statuses], [
            status.name for status in statuses if status.state != DOWN
        ]

    def _queue_status(self, queue: Queue, members: list[str], online: list[str]) -> QueueStatus:
        now_ms, backlog, leader = self._runtime.wall_ms(), queue.backlog, self._group.leader
        policy, operator_policy = queue.policies
        capacity = self._rates.capacity(queue, now_ms)
        limit = queue.settings.delivery_limit
        return QueueStatus(
            name=queue.name,
            vhost=self.vhost,
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
            message_bytes=backlog.size + queue.unacked_size + backlog.delayed_size,
            message_bytes_ready=backlog.size,
            message_bytes_unacknowledged=queue.unacked_size,
            message_bytes_delayed=backlog.delayed_size,
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
            queue={"name": queue.name, "vhost": self.vhost},
            channel_details=self._channel_details(consumer),
            ack_required=not consumer.no_ack,
            exclusive=consumer.exclusive,
            prefetch_count=consumer.prefetch if is_limited else 0,
            active=is_active,
            activity_status=activity,
            arguments=consumer.arguments,
        )

    def _channel_details(self, consumer: Consumer) -> dict[str, Any]:
        """Where the consumer is; its node only knows from where its client came."""
        details: dict[str, Any] = {"node": consumer.node, "number": consumer.channel}
        channel = self._broker.channel(consumer.session) if consumer.node == self._broker.name else None
        if channel is not None:
            connection = channel.connection
            details["name"] = f"{connection.name} ({consumer.channel})"
            details["connection_name"] = connection.name
            details["peer_host"], details["peer_port"] = connection.peer_host, connection.peer_port
            details["user"] = connection.user
        return details

    # Changes

    def policies(self, *, operator: bool) -> Sequence[Policy]:
        return [policy for policy in self._machine.policies if policy.operator == operator]

    async def put_policy(self, policy: Policy) -> bool:
        is_new = not self._has_policy(policy.name, operator=policy.operator)
        name, pattern, definition, priority, apply_to, operator = policy
        command = PutPolicy(name, operator, pattern, apply_to, priority, definition)
        await self._change(command, lambda: policy in self.policies(operator=operator))
        return is_new

    async def delete_policy(self, name: str, *, operator: bool) -> bool:
        was_there = self._has_policy(name, operator=operator)
        command = DeletePolicy(name, operator)
        await self._change(command, lambda: not self._has_policy(name, operator=operator))
        return was_there

    def _has_policy(self, name: str, *, operator: bool) -> bool:
        return any(policy.name == name for policy in self.policies(operator=operator))

    def deduplication(self) -> Deduplication:
        return Deduplication(*self._machine.publishers_bounds)

    async def set_deduplication(self, bounds: Deduplication) -> None:
        command = LimitPublishers(bounds.limit, bounds.age_ms)
        await self._change(command, lambda: self.deduplication() == bounds)

    async def _change(self, command: Command, is_made: Callable[[], bool]) -> None:
        """Have a command carried out; returns when this node has. Raises Unavailable.

        `is_made` tells whether it was: the node may have to give up what it submitted.
        """
        applied: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def look() -> None:
            if not applied.done():
                applied.set_result(is_made())

        self._broker.submissions.when_applied(look)
        self._broker.submissions.add(command)
        try:
            async with asyncio.timeout(CHANGE_TIMEOUT_S):
                is_there = await applied
        except TimeoutError:
            raise Unavailable("no majority of the nodes has taken the change; it may still be made") from None
        if not is_there:
            raise Unavailable(
                "the change is not there: the node was away from its cluster, or it was changed again"
            )
