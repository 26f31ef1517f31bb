"""Reports on consumers.

Invariant: only reads the machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qq.machine.protocol.commands import LIVE_UNLIMITED
from qq.management.objects.clients import given_name
from qq.management.reports.queues import ConsumerStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qq.machine.queue.queue import Consumer
    from qq.management.reports.clients import Client
    from qq.sessions.broker import Broker


class ConsumerReports:
    """Shows the consumers that exist now, each in its state at that moment."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def all(self, vhost: str | None) -> Iterator[ConsumerStatus]:
        """Yield the consumers of all virtual hosts or of `vhost`."""
        for consumer in list(self._broker.machine.consumers.values()):
            if consumer.live and vhost in (None, consumer.queue.vhost):
                yield self._status(consumer)

    def of_queue(self, vhost: str, name: str) -> Iterator[ConsumerStatus]:
        known = self._broker.machine.vhosts.get(vhost)
        queue = None if known is None else known.queues.get(name)
        for consumer in () if queue is None else list(queue.holders):
            if consumer.live:
                yield self._status(consumer)

    def of_channel(self, channel: Client) -> Iterator[ConsumerStatus]:
        session = self._broker.machine.sessions.get((channel["node"], channel["id"]))
        for consumer in () if session is None else list(session.consumers.values()):
            if consumer.live:
                yield self._status(consumer)

    def _status(self, consumer: Consumer) -> ConsumerStatus:
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
            consumer_timeout=queue.timeout_ms(consumer),
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
            details |= given_name(connection)
            details["peer_host"], details["peer_port"] = connection.peer_host, connection.peer_port
            details["user"] = connection.user
        return details
