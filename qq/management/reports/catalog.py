"""Virtual hosts, exchanges, bindings, parameters, moves and shovels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class VhostStatus(NamedTuple):
    """A virtual host."""

    name: str
    description: str
    tags: Sequence[str]
    default_queue_type: str
    """Type of queues that are declared without a type; "" if the virtual host has no default of its own."""
    limits: Mapping[str, int]
    is_protected: bool = False
    """Whether it is protected from deletion."""


class ExchangeStatus(NamedTuple):
    """An exchange, with the field names that tools for RabbitMQ read."""

    name: str
    vhost: str
    type: str
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: Mapping[str, Any]
    policy: str | None
    user_who_performed_action: str | None
    """The user that declared it, or RabbitMQ's name of the broker; None if it was declared before version 12."""


class BindingStatus(NamedTuple):
    """A binding, with the field names that tools for RabbitMQ read."""

    source: str
    vhost: str
    destination: str
    destination_type: str
    """"queue" or "exchange"."""
    routing_key: str
    arguments: Mapping[str, Any]
    properties_key: str
    """Text that distinguishes bindings with the same source and destination."""


class ObjectTotals(NamedTuple):
    """Numbers of objects."""

    consumers: int
    queues: int
    exchanges: int
    connections: int
    channels: int


class MoveStatus(NamedTuple):
    """A move of messages, with the visible fields of qq/machine/queue/moves.py."""

    vhost: str
    id: str
    user: str
    source: str
    destination: str
    """Queue that receives the messages; empty if each goes back to the queue where it was first dead-lettered."""
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here
    rate: int
    reason: str
    from_queue: str
    headers: Mapping[str, Any]
    begun_ms: int
    ready: int
    examined: int
    moved: int
    waits_for: str
    state: str
    error: str
    ended_ms: int
    text: str


class ShovelStatus(NamedTuple):
    """A shovel of a virtual host."""

    vhost: str
    name: str
    text: str
    """Value of its parameter, as JSON."""
    value: Mapping[str, Any]
    node: str | None
    """Node that runs the shovel: the leader."""
    state: str
    """State in RabbitMQ's words: starting, running, blocked or terminated."""
    reason: str | None
    """Why it does not run; None if it runs or is about to run."""
    figures: Mapping[str, Any]
    """Further figures, such as the number of forwarded messages and the move that carries out the shovel."""


class ParameterStatus(NamedTuple):
    """A parameter of a virtual host."""

    vhost: str
    component: str
    name: str
    value: Any


class GlobalParameter(NamedTuple):
    """A parameter of the whole cluster."""

    name: str
    value: Any


class Product(NamedTuple):
    """Names that clients see: of the product and its version, and of the cluster."""

    name: str
    version: str
    cluster: str


class Deduplication(NamedTuple):
    """Number of publishers that each virtual host remembers, and how long after their last message."""

    limit: int
    age_ms: int
