"""Reports on virtual hosts, exchanges, bindings, policies, users, permissions, parameters and moves.

Invariant: only reads the machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote_plus

from qq.machine.catalog.vhost import PREDECLARED, arguments_hash, binding_arguments
from qq.machine.protocol.commands import DeclareExchange, DeclareQueue
from qq.machine.queue.moves import LEDGER
from qq.management.objects.sorted_objects import Chained
from qq.management.reports.catalog import (
    BindingStatus,
    Deduplication,
    ExchangeStatus,
    GlobalParameter,
    MoveStatus,
    ObjectTotals,
    ParameterStatus,
    VhostStatus,
)
from qq.management.reports.rows import ThingRows
from qq.routing.exchanges import DEFAULT_EXCHANGE
from qq.routing.routers import Binding, Destination, DestinationKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from qq.machine.catalog.permissions import Permissions, TopicPermissions, User
    from qq.machine.catalog.vhost import Exchange, VirtualHost
    from qq.machine.machine import QueueMachine
    from qq.machine.policy.policies import Policy
    from qq.machine.protocol.commands import Declaration
    from qq.machine.queue.moves import MoveState
    from qq.machine.queue.queue import Queue
    from qq.management.objects.sorted_objects import SortedObjects
    from qq.management.reports.catalog import Product
    from qq.sessions.broker import Broker

T = TypeVar("T")

_KINDS = {"queue": DestinationKind.QUEUE, "exchange": DestinationKind.EXCHANGE}

_INTERNAL = "rmq-internal"
"""RabbitMQ's name for the broker itself, as the user of an action."""


class CatalogReports:
    """Shows objects other than queues and clients."""

    def __init__(self, broker: Broker, product: Product, sorted_objects: SortedObjects) -> None:
        self._broker = broker
        self._product = product
        self._sorted_objects = sorted_objects

    @property
    def _machine(self) -> QueueMachine:
        return self._broker.machine

    def product(self) -> Product:
        return self._product

    # Virtual hosts and their users

    @property
    def has_vhosts(self) -> bool:
        return bool(self._machine.vhosts)

    def has_vhost(self, name: str) -> bool:
        return name in self._machine.vhosts

    def vhosts(self) -> Sequence[VhostStatus]:
        return [
            VhostStatus(
                vhost.name,
                vhost.description,
                list(vhost.tags),
                vhost.default_queue_type,
                dict(vhost.limits),
                vhost.is_protected,
            )
            for _, vhost in sorted(self._machine.vhosts.items())
        ]

    def has_user(self, name: str) -> bool:
        return name in self._machine.users

    def users(self) -> Mapping[str, User]:
        return dict(sorted(self._machine.users.items()))

    def user_limits(self) -> Mapping[str, Mapping[str, int]]:
        """Return the limits of each user that has limits."""
        return dict(sorted(self._machine.catalog.access.limits.items()))

    def permissions(self) -> Sequence[Permissions]:
        return sorted(self._machine.catalog.access.all_permissions.values())

    def topic_permissions(self) -> Sequence[TopicPermissions]:
        return sorted(self._machine.catalog.access.all_topic_permissions.values())

    # Contents of virtual hosts

    def policies(self, vhost: str | None, *, operator: bool) -> Sequence[tuple[str, Policy]]:
        """Return all policies, each with its virtual host."""
        return [
            (known.name, policy)
            for known in self._vhosts(vhost)
            for policy in known.policies.rows()
            if policy.operator == operator
        ]

    def is_declared(self, vhost: str, declaration: Declaration) -> bool:
        """Return whether the queue or exchange that the command declares exists already."""
        known = self._machine.vhosts.get(vhost)
        match declaration:
            case DeclareQueue() if known is not None:
                return declaration.name in known.queues
            case DeclareExchange() if known is not None:
                return declaration.name in known.exchanges
            case _:
                return False

    def exchanges(self, vhost: str | None, name: str | None = None) -> Iterator[ExchangeStatus]:
        """Yield the exchanges that exist now, or only the exchange with this name."""
        there = [(known, _named(known.exchanges, name)) for known in self._vhosts(vhost)]
        return (_exchange_status(known, exchange) for known, exchanges in there for exchange in exchanges)

    def bindings(
        self,
        vhost: str | None,
        source: str | None = None,
        destination: tuple[str, str] | None = None,
    ) -> Iterator[BindingStatus]:
        """Yield the bindings that exist now, of all or a single source, to all or a single destination (kind and name).

        They include the binding of every queue to the default exchange.
        """
        return map(_binding_status, self._bindings(vhost, source, destination))

    def binding_rows(
        self, vhost: str | None, source: str | None = None, destination: tuple[str, str] | None = None
    ) -> ThingRows:
        """Return the same bindings as `bindings`, with the fields of `BindingStatus`."""
        return ThingRows(self._bindings(vhost, source, destination), _BINDING_FIELDS)

    async def sorted_binding_rows(self, is_visible: Callable[[str], bool]) -> ThingRows:
        """Return the bindings of the visible virtual hosts, a sequence in RabbitMQ's order."""
        vhosts = self._machine.vhosts
        parts: list[tuple[Sequence[Any], Callable[[Any], _BindingIn]]] = []
        for name, vhost in sorted(vhosts.items()):
            if is_visible(name):
                parts.append((await self._sorted_objects.queues(vhost, vhosts), _default_binding_of))
                parts.append((await self._sorted_objects.bindings(vhost, vhosts), partial(_binding_in, name)))
        return ThingRows(Chained(parts), _BINDING_FIELDS)

    def _bindings(
        self, vhost: str | None, source: str | None, destination: tuple[str, str] | None
    ) -> Iterator[_BindingIn]:
        kind, name = destination or (None, None)
        end = None if kind is None or name is None else Destination(_KINDS[kind], name)
        of_default = source in (None, DEFAULT_EXCHANGE) and kind in (None, "queue")
        there = [
            (known.name, _named(known.queues, name) if of_default else [], list(known.bindings))
            for known in self._vhosts(vhost)
        ]
        return (
            (where, binding)
            for where, queues, bindings in there
            for binding in chain((_default_binding(queue.name) for queue in queues), bindings)
            if not binding.source or (source in (None, binding.source) and end in (None, binding.destination))
        )

    def _vhosts(self, name: str | None) -> list[VirtualHost]:
        return [vhost for vhost in self._machine.vhosts.values() if name in (None, vhost.name)]

    def deduplication(self) -> Deduplication:
        return Deduplication(*self._machine.catalog.publishers_bounds)

    # Totals

    def object_totals(self, is_visible: Callable[[str], bool], user: str | None) -> ObjectTotals:
        """Return the numbers of objects in the visible virtual hosts, and of connections of all users or of `user`."""
        catalog = self._machine.catalog
        visible = [vhost for vhost in catalog.vhosts.values() if is_visible(vhost.name)]
        return ObjectTotals(
            consumers=sum(vhost.consumers for vhost in visible),
            queues=sum(len(vhost.queues) for vhost in visible),
            exchanges=sum(len(vhost.exchanges) for vhost in visible),
            connections=len(catalog.connections) if user is None else catalog.connections_of(user),
            channels=catalog.channels_of(user),
        )

    def cluster_name(self) -> str:
        """Return the cluster's name as set by operators, or else the name in this node's configuration."""
        return self._machine.catalog.cluster_name or self._product.cluster

    # Parameters

    def global_parameters(self) -> Iterator[GlobalParameter]:
        """Yield the parameters that operators have set for the whole cluster, except for `deduplication`."""
        there = sorted(self._machine.catalog.global_parameters.items())
        return (GlobalParameter(name, json.loads(value)) for name, value in there)

    def global_parameter(self, name: str) -> GlobalParameter | None:
        value = self._machine.catalog.global_parameters.get(name)
        return None if value is None else GlobalParameter(name, json.loads(value))

    def parameters(self, vhost: str | None) -> Iterator[ParameterStatus]:
        """Yield the parameters of components of the broker, except for limits and operator policies."""
        there = [(known.name, sorted(known.parameters.items())) for known in self._vhosts(vhost)]
        return (
            ParameterStatus(where, component, name, json.loads(value))
            for where, parameters in there
            for (component, name), value in parameters
            if component != LEDGER
        )

    def parameter(self, vhost: str, component: str, name: str) -> ParameterStatus | None:
        known = self._machine.vhosts.get(vhost)
        value = None if known is None or component == LEDGER else known.parameters.get((component, name))
        return None if value is None else ParameterStatus(vhost, component, name, json.loads(value))

    # Moves

    def moves(self, vhost: str | None) -> Iterator[MoveStatus]:
        """Yield the running and the recently ended moves, in the order of their begin."""
        for move in list(self._machine.moves.all.values()):
            if vhost in (None, move.vhost):
                yield move_status(move)

    def move(self, vhost: str, move: str) -> MoveStatus | None:
        known = self._machine.moves.all.get((vhost, move))
        return None if known is None else move_status(known)

    def queues_owned_by(self, user: str) -> Sequence[tuple[str, str]]:
        """Return the exclusive queues of a user's connections, as virtual hosts and names."""
        return [
            (queue.vhost, queue.name)
            for key, connection in list(self._machine.catalog.connections.items())
            if connection.user == user
            for queue in connection.vhost.owned_queues(key)
        ]


def move_status(move: MoveState) -> MoveStatus:
    return MoveStatus(*(getattr(move, name) for name in MoveStatus._fields))


def _exchange_status(vhost: VirtualHost, exchange: Exchange) -> ExchangeStatus:
    policy, _ = vhost.exchange_policies.get(exchange.name, (None, None))
    return ExchangeStatus(
        name=exchange.name,
        vhost=vhost.name,
        type=exchange.type,
        durable=exchange.durable,
        auto_delete=exchange.auto_delete,
        internal=exchange.internal,
        arguments=exchange.arguments,
        policy=policy.name if policy else None,
        user_who_performed_action=_INTERNAL if exchange.name in PREDECLARED else exchange.user or None,
    )


def _named(things: Mapping[str, T], name: str | None) -> list[T]:
    """Return the object with this name as a list (empty if it does not exist), or all objects if `name` is None."""
    if name is None:
        return list(things.values())
    return [things[name]] if name in things else []


def _default_binding(queue: str) -> Binding:
    """Return the binding to the default exchange that every queue has."""
    return Binding(DEFAULT_EXCHANGE, Destination(_KINDS["queue"], queue), queue, b"")


_BindingIn = tuple[str, Binding]
"""The name of a virtual host, and a binding in it."""
_BINDING_FIELDS: dict[str, Callable[[_BindingIn], Any]] = {
    "source": lambda row: row[1].source,
    "vhost": itemgetter(0),
    "destination": lambda row: row[1].destination.name,
    "destination_type": lambda row: "queue" if row[1].destination.kind is _KINDS["queue"] else "exchange",
    "routing_key": lambda row: row[1].routing_key,
    "arguments": lambda row: binding_arguments(row[1]),
    "properties_key": lambda row: _properties_key(row[1]),
}
"""Field of `BindingStatus` -> function that computes it from a binding."""


def _binding_in(vhost: str, binding: Binding) -> _BindingIn:
    return vhost, binding


def _default_binding_of(queue: Queue) -> _BindingIn:
    return queue.vhost, _default_binding(queue.name)


def _binding_status(row: _BindingIn) -> BindingStatus:
    return BindingStatus(**{name: field(row) for name, field in _BINDING_FIELDS.items()})


def _properties_key(binding: Binding) -> str:
    """Return a key in RabbitMQ's form (rabbit_mgmt_format:pack_binding_props), with a hash of our own."""
    quoted = quote_plus(binding.routing_key).replace("~", "%7E")
    if not binding.arguments:
        return quoted or "~"
    return f"{quoted}~{arguments_hash(binding)}"
