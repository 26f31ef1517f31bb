"""Checks whether limits leave room for many new objects at once, before an import of definitions.

Invariant: only reads the machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qq.errors import ReplyCode
from qq.machine.catalog import limits as lim
from qq.machine.catalog.vhost import RESERVED, check_exchange_type, check_quorum_properties
from qq.machine.policy import arguments as args
from qq.machine.protocol import commands as c
from qq.machine.protocol import refusals
from qq.machine.protocol.queue_types import CLASSIC, QUORUM
from qq.management.errors import RequestRefused
from qq.routing.routers import Destination, DestinationKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qq.machine.catalog.catalog import Catalog
    from qq.machine.catalog.vhost import VirtualHost
    from qq.machine.protocol.commands import Change, Declaration, Table


class LimitClaims:
    """Counts claimed objects on top of existing objects, and refuses a claim that exceeds a limit."""

    def __init__(self, catalog: Catalog, new_limits: Mapping[str, Table], version: int) -> None:
        """`new_limits` are the limits that the import sets, by virtual host. The looser of old and new limit applies.

        `version` is the version of the state.
        """
        self._catalog = catalog
        self._new_limits = new_limits
        self._version = version
        self._empty = catalog.deleted_vhost("")
        self._claimed: dict[tuple[str, str], int] = {}
        self._made: set[tuple[str, Destination]] = set()
        """(virtual host, queue or exchange) of all declarations so far."""

    def loosened(self, vhost: str) -> Table:
        """Return the limits that the import sets for a virtual host and that are looser than the present limits."""
        now = self._vhost(vhost).limits
        new = self._new_limits.get(vhost, {})
        return {name: new[name] for name in new if _looser(lim.limit_of(new, name), lim.limit_of(now, name))}

    def claim_change(self, change: Change) -> None:
        """Claim room for the objects that an operator's change adds. Raises RequestRefused."""
        catalog, access = self._catalog, self._catalog.access
        match change:
            case c.PutVhost(name) if name not in catalog.vhosts:
                self._claim("max-vhosts", _CLUSTER, lim.VHOSTS_MAX, len(catalog.vhosts))
            case c.PutUser(name) | c.PutHashedUser(name) if name not in access.users:
                self._claim("max-users", _CLUSTER, lim.USERS_MAX, len(access.users))
            case c.PutParameter(vhost, component, name):
                parameters = self._vhost(vhost).parameters
                if (component, name) not in parameters:
                    self._claim("max-parameters", f"vhost '{vhost}'", lim.PARAMETERS_MAX, len(parameters))
            case c.PutGlobalParameter(name) if name not in catalog.global_parameters:
                there = len(catalog.global_parameters)
                self._claim("max-parameters", _CLUSTER, lim.PARAMETERS_MAX, there)
            case c.SetPermissions(user, vhost) if access.permissions(user, vhost) is None:
                there = len(access.all_permissions)
                self._claim("max-permissions", _CLUSTER, lim.PERMISSIONS_MAX, there)
            case c.SetTopicPermissions(user, vhost, exchange) if (
                access.topic_permissions(user, vhost, exchange) is None
            ):
                there = len(access.all_topic_permissions)
                self._claim("max-topic-permissions", _CLUSTER, lim.TOPIC_PERMISSIONS_MAX, there)
            case c.PutPolicy(vhost, name, operator):
                policies = self._vhost(vhost).policies
                if not policies.has(name, operator=operator):
                    self._claim_in(vhost, lim.MAX_POLICIES, len(policies))
            case _:
                pass

    def claim_declaration(self, vhost: str, declaration: Declaration) -> None:
        """Claim room for the objects that a declaration adds.

        Call it in the order of declarations. Raises RequestRefused.
        """
        try:
            self._check(vhost, declaration)
        except refusals.Refused as refused:
            raise RequestRefused(refused.code, refused.text) from None
        known, arguments = self._vhost(vhost), {}
        match declaration:
            case c.DeclareQueue(name=name) if name not in known.queues:
                arguments = declaration.arguments
                self._claim_in(vhost, lim.MAX_QUEUES, len(known.queues))
            case c.DeclareExchange(name=name) if name not in known.exchanges:
                arguments = declaration.arguments
                self._claim_in(vhost, lim.MAX_EXCHANGES, len(known.exchanges))
            case c.BindQueue(_, _, name, source):
                self._claim_binding(
                    vhost, known, declaration, source, Destination(DestinationKind.QUEUE, name)
                )
            case c.BindExchange(_, name, source):
                self._claim_binding(
                    vhost, known, declaration, source, Destination(DestinationKind.EXCHANGE, name)
                )
            case _:
                pass
        self._claim_in(vhost, lim.MAX_ARGUMENT_BYTES, known.argument_bytes, lim.table_bytes(arguments))

    def _check(self, vhost: str, declaration: Declaration) -> None:
        """Raise errors.Refused for a declaration that is invalid regardless of limits."""
        known = self._vhost(vhost)
        match declaration:
            case c.DeclareQueue(name=name):
                if name not in known.queues:
                    _check_queue(refusals.the_queue(name, vhost), declaration, self._version)
                self._made.add((vhost, Destination(DestinationKind.QUEUE, name)))
            case c.DeclareExchange(name=name):
                if name not in known.exchanges:
                    check_exchange_type(declaration)
                self._made.add((vhost, Destination(DestinationKind.EXCHANGE, name)))
            case c.BindQueue(_, _, name, source):
                self._check_exchange(vhost, known, source)
                if (
                    name not in known.queues
                    and (vhost, Destination(DestinationKind.QUEUE, name)) not in self._made
                ):
                    raise refusals.not_found(refusals.the_queue(name, vhost))
            case c.BindExchange(_, name, source):
                self._check_exchange(vhost, known, source)
                self._check_exchange(vhost, known, name)
            case _:
                pass

    def _check_exchange(self, vhost: str, known: VirtualHost, name: str) -> None:
        is_made = (vhost, Destination(DestinationKind.EXCHANGE, name)) in self._made
        # A new virtual host will have the predeclared exchanges.
        if not (is_made or name in known.exchanges or name.startswith(RESERVED)):
            raise refusals.not_found(refusals.the_exchange(name, vhost))

    def _claim_binding(
        self,
        vhost: str,
        known: VirtualHost,
        command: c.BindQueue | c.BindExchange,
        source: str,
        destination: Destination,
    ) -> None:
        if known.is_bound(source, destination, command.routing_key, command.arguments):
            return
        to_it, from_there = known.binding_counts(source, destination)
        self._claim_in(vhost, lim.MAX_BINDINGS, len(known.bindings))
        of_queue = f"{destination.kind.name.lower()} '{destination.name}' in vhost '{vhost}'"
        self._claim_in(vhost, lim.MAX_BINDINGS_PER_QUEUE, to_it, where=of_queue)
        of_exchange = f"exchange '{source}' in vhost '{vhost}'"
        self._claim_in(vhost, lim.MAX_BINDINGS_PER_EXCHANGE, from_there, where=of_exchange)
        size = lim.table_bytes(command.arguments)
        self._claim_in(vhost, lim.MAX_ARGUMENT_BYTES, known.argument_bytes, size)

    def _vhost(self, name: str) -> VirtualHost:
        """Return the virtual host with this name, or an empty virtual host if it does not exist yet."""
        return self._catalog.vhosts.get(name, self._empty)

    def _claim_in(self, vhost: str, name: str, there: int, amount: int = 1, where: str = "") -> None:
        limit = lim.limit_of(self._vhost(vhost).limits, name)
        new = self._new_limits.get(vhost, {})
        if name in new and _looser(lim.limit_of(new, name), limit):
            limit = lim.limit_of(new, name)
        self._claim(name, where or f"vhost '{vhost}'", limit, there, amount)

    def _claim(self, name: str, where: str, limit: int | None, there: int, amount: int = 1) -> None:
        if not amount:
            return
        claimed = self._claimed[name, where] = self._claimed.get((name, where), 0) + amount
        if limit is not None and there + claimed > limit:
            raise RequestRefused(
                ReplyCode.PRECONDITION_FAILED, f"limit {name} ({limit}) of {where} would be exceeded"
            )


def _check_queue(thing: str, command: c.DeclareQueue, version: int) -> None:
    args.check_exchange_argument(thing, "x-dead-letter-exchange", command.arguments)
    if "x-queue-type" in command.arguments:
        _check_queue_as(thing, args.queue_kind(thing, command.arguments), command, version)
        return
    # The default type of the virtual host may change before the queue is declared, so either type may accept it.
    try:
        _check_queue_as(thing, CLASSIC, command, version)
    except refusals.Refused as refused:
        try:
            _check_queue_as(thing, QUORUM, command, version)
        except refusals.Refused:
            raise refused from None


def _check_queue_as(thing: str, kind: str, command: c.DeclareQueue, version: int) -> None:
    args.check_queue_arguments(thing, kind, command.arguments, version)
    if kind == QUORUM:
        check_quorum_properties(thing, command)


def _looser(one: int | None, other: int | None) -> bool:
    return other is not None and (one is None or one > other)


_CLUSTER = "the cluster"
