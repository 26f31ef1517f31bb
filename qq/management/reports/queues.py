"""Queues and consumers, with the field names that tools for RabbitMQ read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class QueueStatus(NamedTuple):
    """A queue, with the field names that tools for RabbitMQ read."""

    name: str
    vhost: str
    type: str
    durable: bool
    exclusive: bool
    auto_delete: bool
    arguments: Mapping[str, Any]
    policy: str | None
    operator_policy: str | None
    effective_policy_definition: Mapping[str, Any]
    state: str
    """"running", or "minority" while no leader is known."""
    node: str | None
    """Leader of the cluster, which leads all queues; `leader` is the same."""
    leader: str | None
    members: Sequence[str]
    online: Sequence[str]
    consumers: int
    consumer_capacity: float
    """Share of the last seconds, from 0 to 1, in which a new message could be delivered at once."""
    consumer_utilisation: float
    """The same as `consumer_capacity`, under its older name."""
    exclusive_consumer_tag: str | None
    single_active_consumer_tag: str | None
    delivery_limit: int | str
    """Delivery limit of the queue, or "unlimited"."""
    messages: int
    """Messages of the queue in all states: ready, unacknowledged, delayed and dead-lettering."""
    messages_ready: int
    messages_unacknowledged: int
    messages_delayed: int
    messages_dlx: int
    messages_leased: int
    """Dead-lettered messages on their way to their next queue."""
    message_bytes: int
    """Sum of the four sizes below, in bytes as stored."""
    message_bytes_ready: int
    message_bytes_unacknowledged: int
    message_bytes_delayed: int
    message_bytes_dlx: int
    message_bytes_leased: int
    messages_persistent: int
    """All messages, because all are on disk, so none counts as being in memory only (`messages_ram`)."""
    message_bytes_persistent: int
    messages_paged_out: int
    message_bytes_paged_out: int
    messages_ram: int
    messages_ready_ram: int
    messages_unacknowledged_ram: int
    message_bytes_ram: int
    messages_details: Mapping[str, float]
    """Growth of the queue in messages per second, as `rate`."""
    messages_ready_details: Mapping[str, float]
    messages_unacknowledged_details: Mapping[str, float]
    idle_since: str | None
    """Time of the last event in the queue, if that is some seconds ago."""
    owner_pid_details: Mapping[str, Any]
    """Connection that owns an exclusive queue, if it is connected to this node."""
    message_stats: Mapping[str, Any]
    """Counts since the node started, each NAME with its rate as NAME_details."""


class ConsumerStatus(NamedTuple):
    """A consumer, with the field names that tools for RabbitMQ read."""

    consumer_tag: str
    queue: Mapping[str, str]
    channel_details: Mapping[str, Any]
    ack_required: bool
    exclusive: bool
    prefetch_count: int
    """Prefetch of the consumer; 0 for no limit."""
    active: bool
    activity_status: str
    """"up"; in a queue with a single active consumer, "single_active" or "waiting"."""
    arguments: Mapping[str, Any]
    messages_unacknowledged: int = 0
    """Messages delivered to the consumer and not yet settled."""
    credit: int | None = None
    """Number of further messages that it would take now; None for no limit."""
    consumer_timeout: int = 0
    """Milliseconds that a delivery may stay unacknowledged; 0 for no limit."""
