"""The catalog: virtual hosts, users, and open connections of the whole cluster.

Invariant: counts that are compared with limits are exact for the whole cluster, because every opening is in the log.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qq.machine.catalog.deduplication import PUBLISHER_AGE_MS, PUBLISHERS_MAX
from qq.machine.catalog.limits import (
    MAX_CHANNELS,
    MAX_CONNECTIONS,
    MAX_POLICIES,
    PARAMETER_BYTES_MAX,
    PARAMETERS_MAX,
    PERMISSIONS_MAX,
    TOPIC_PERMISSIONS_MAX,
    USERS_MAX,
    VHOSTS_MAX,
    check_table_size,
    limit_of,
    reached,
    table_bytes,
)
from qq.machine.catalog.permissions import AccessControl
from qq.machine.catalog.vhost import VirtualHost
from qq.machine.protocol.commands import (
    DEFAULT_VHOST,
    BeginMove,
    BeginTextMove,
    DeleteVhost,
    PutGlobalParameter,
    PutHashedUser,
    PutParameter,
    PutPolicy,
    PutUser,
    PutVhost,
    SetPermissions,
    SetTopicPermissions,
)
from qq.machine.protocol.refusals import (
    internal_error,
    not_allowed,
    not_found,
    precondition_failed,
    the_queue,
)
from qq.machine.protocol.work_meter import Work
from qq.machine.queue.deferred_free import DeferredFree
from qq.machine.queue.moves import FILTER_BYTES_MAX, SHOVEL, Moves

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qq.machine.catalog.vhost import VhostRef
    from qq.machine.protocol.commands import Change
    from qq.machine.queue.queue import Queue

CLUSTER_NAME = "cluster_name"
"""The global parameter that holds the name of the cluster."""
DEFAULT_DESCRIPTION = "Default virtual host"


@dataclass(slots=True, eq=False)
class ConnectionState:
    """A client's connection, from connection.open until its node reports that it is down."""

    node: str
    id: int
    vhost: VirtualHost
    user: str
    closing: str = ""
    """The reason that was sent to the connection's node for closing it; empty without such a request."""


class Catalog:
    """Virtual hosts, users and connections. The public maps may be read; only the methods change them."""

    def __init__(self) -> None:
        self.work = Work()
        self.deferred_free = DeferredFree()
        self.access = AccessControl()
        self.vhosts: dict[str, VirtualHost] = {}
        self.connections: dict[tuple[str, int], ConnectionState] = {}
        """The open connections, by node and id."""
        self.global_parameters: dict[str, str] = {}
        """Parameters of the whole cluster: name -> value as JSON."""
        self.moves = Moves()
        self.queues_declared = 0
        """Number of queues ever declared in all virtual hosts, which is the number of the last queue."""
        self.publishers_bounds = (PUBLISHERS_MAX, PUBLISHER_AGE_MS)
        """Maximum publishers that a virtual host remembers, and how long after their last message, in ms."""
        self._connections_of: dict[str, int] = {}
        self._channels_of: dict[str, int] = {}
        """Open channels, and above open connections, of each user; users without any are left out."""

    def begin(self) -> None:
        """Create the virtual host of a new cluster."""
        self.put_vhost(DEFAULT_VHOST).describe(DEFAULT_DESCRIPTION, [], "")

    @property
    def revision(self) -> int:
        """A number that grows when users, permissions or virtual hosts change. It is not part of the state."""
        return self.access.revision

    @property
    def cluster_name(self) -> str | None:
        """The name that operators have given the cluster, or None."""
        value = self.global_parameters.get(CLUSTER_NAME)
        return None if value is None else str(json.loads(value))

    # Virtual hosts

    @property
    def default_vhost(self) -> VirtualHost:
        """The virtual host "/" of sessions that were never opened; a deleted virtual host if it does not exist."""
        return self.vhosts.get(DEFAULT_VHOST) or self.deleted_vhost(DEFAULT_VHOST)

    def deleted_vhost(self, name: str) -> VirtualHost:
        """Return a deleted virtual host of this name, in place of a missing virtual host."""
        vhost = self._new_vhost(name, DeferredFree())
        vhost.delete()
        return vhost

    def vhost_of(self, ref: VhostRef) -> VirtualHost:
        """Return the virtual host that `ref` refers to; a `deleted_vhost` if it is deleted."""
        name, is_deleted = ref
        return self.deleted_vhost(name) if is_deleted else self.vhosts[name]

    def put_vhost(self, name: str) -> VirtualHost:
        """Return the virtual host of this name; it is created if it does not exist."""
        vhost = self.vhosts.get(name)
        if vhost is None:
            vhost = self.vhosts[name] = self._new_vhost(name, self.deferred_free)
            vhost.publishers.configure(*self.publishers_bounds)
        self.access.revision += 1
        return vhost

    def delete_vhost(self, vhost: VirtualHost) -> None:
        """Remove a virtual host with everything in it, and the permissions for it."""
        del self.vhosts[vhost.name]
        vhost.delete()
        self.access.forget_vhost(vhost.name)
        self.moves.forget_vhost(vhost.name)

    def _new_vhost(self, name: str, deferred_free: DeferredFree) -> VirtualHost:
        return VirtualHost(name, self._new_number, self.work, deferred_free)

    def _new_number(self) -> int:
        self.queues_declared += 1
        return self.queues_declared

    @property
    def queue_count(self) -> int:
        """Number of queues in all virtual hosts."""
        return sum(len(vhost.queues) for vhost in self.vhosts.values())

    def queues(self) -> Iterator[Queue]:
        """Yield the queues of all virtual hosts."""
        for vhost in self.vhosts.values():
            yield from vhost.queues.values()

    def limit_publishers(self, limit: int, age_ms: int) -> None:
        self.publishers_bounds = limit, age_ms
        for vhost in self.vhosts.values():
            vhost.publishers.configure(limit, age_ms)

    def check_room(self, change: Change) -> None:
        """Raise Refused if a change would exceed a limit, or delete a protected virtual host."""
        access = self.access
        match change:
            case PutVhost(name) if name not in self.vhosts:
                _check_room(f"create vhost '{name}'", "max-vhosts", VHOSTS_MAX, len(self.vhosts))
            case DeleteVhost(name) if name in self.vhosts and self.vhosts[name].is_protected:
                raise precondition_failed(
                    f"Refusing to delete virtual host '{name}' because it is protected from deletion"
                )
            case PutParameter(vhost_name, component, name, value) if vhost_name in self.vhosts:
                parameters = self.vhosts[vhost_name].parameters
                count = len(parameters) - ((component, name) in parameters)
                _check_parameter(f"vhost '{vhost_name}'", f"parameter '{name}'", count, value)
            case PutGlobalParameter(name, value):
                count = len(self.global_parameters) - (name in self.global_parameters)
                _check_parameter("the cluster", f"global parameter '{name}'", count, value)
            case PutUser(name) | PutHashedUser(name) if name not in access.users:
                _check_room(f"create user '{name}'", "max-users", USERS_MAX, len(access.users))
            case SetPermissions(user, vhost) if access.permissions(user, vhost) is None:
                doing, count = f"set permissions of user '{user}'", len(access.all_permissions)
                _check_room(doing, "max-permissions", PERMISSIONS_MAX, count)
            case SetTopicPermissions(user, vhost, exchange) if (
                access.topic_permissions(user, vhost, exchange) is None
            ):
                doing, count = f"set topic permissions of user '{user}'", len(access.all_topic_permissions)
                _check_room(doing, "max-topic-permissions", TOPIC_PERMISSIONS_MAX, count)
            case PutPolicy(vhost_name, name, operator) if vhost_name in self.vhosts:
                vhost, doing = self.vhosts[vhost_name], f"create policy '{name}'"
                check_table_size(doing, change.definition)
                if not vhost.policies.has(name, operator=operator):
                    vhost.check_room(doing, MAX_POLICIES, len(vhost.policies))
            case BeginMove(vhost_name) | BeginTextMove(vhost_name) if vhost_name in self.vhosts:
                self._check_move(self.vhosts[vhost_name], change)
            case _:
                pass

    def _check_move(self, vhost: VirtualHost, command: BeginMove | BeginTextMove) -> None:
        source = vhost.queue(command.source, None)
        if command.destination and vhost.queue(command.destination, None) is source:
            thing = the_queue(source.name, vhost.name)
            raise precondition_failed(f"messages of {thing} cannot be moved to where they are")
        size = table_bytes(command.headers)
        if size > FILTER_BYTES_MAX:
            raise precondition_failed(
                f"cannot begin a move: the headers of its filter take {size} bytes, the limit is {FILTER_BYTES_MAX}"
            )
        shovel = command.shovel if isinstance(command, BeginMove) else ""
        if shovel and (SHOVEL, shovel) not in vhost.parameters:
            raise not_found(f"shovel '{shovel}' in vhost '{vhost.name}'")
        self.moves.check_room(vhost.name, source.name, source.number, for_shovel=bool(shovel))

    # Connections and channels

    def connect(
        self, node: str, number: int, vhost_name: str, user: str, *, is_vouched: bool = False
    ) -> None:
        """Add a new connection. Raise Refused without access to the virtual host, or at a limit.

        If the node vouches for the user (`is_vouched`), the node has checked the access.
        """
        if (node, number) in self.connections:
            raise internal_error(f"connection {number} of node {node} is there already")
        vhost = self.vhosts.get(vhost_name)
        if vhost is None:
            raise not_allowed(f"vhost {vhost_name} not found")
        refused = f"access to vhost '{vhost_name}' refused for user '{user}'"
        if not is_vouched and self.access.permissions(user, vhost_name) is None:
            raise not_allowed(refused)
        limit = limit_of(vhost.limits, MAX_CONNECTIONS)
        if limit is not None and vhost.connections >= limit:
            raise not_allowed(f"{refused}: connection limit ({limit}) is reached")
        limit = self._user_limit(user, MAX_CONNECTIONS)
        if limit is not None and self.connections_of(user) >= limit:
            raise not_allowed(
                f"connection refused for user '{user}': user connection limit ({limit}) is reached"
            )
        self.restore_connection(ConnectionState(node, number, vhost, user))

    def restore_connection(self, connection: ConnectionState) -> None:
        self.connections[connection.node, connection.id] = connection
        connection.vhost.connections += 1
        _count(self._connections_of, connection.user, 1)

    def disconnect(self, node: str, number: int) -> None:
        """Forget a connection, if it exists."""
        connection = self.connections.pop((node, number), None)
        if connection is not None:
            connection.vhost.connections -= 1
            _count(self._connections_of, connection.user, -1)

    def connections_of(self, user: str) -> int:
        """Return the number of a user's connections at all nodes."""
        return self._connections_of.get(user, 0)

    def open_channel(self, node: str, connection_number: int) -> ConnectionState:
        """Count a new channel for a connection's user, and return the connection. Raise Refused."""
        connection = self.connections.get((node, connection_number))
        if connection is None:
            raise internal_error(f"connection {connection_number} of node {node} is not open")
        if connection.closing:
            raise not_allowed(connection.closing)
        user = connection.user
        limit = self._user_limit(user, MAX_CHANNELS)
        if limit is not None and self._channels_of.get(user, 0) >= limit:
            raise not_allowed(
                f"number of channels opened for user '{user}' has reached the maximum allowed user limit of ({limit})"
            )
        self.count_channel(user, 1)
        return connection

    def channels_of(self, user: str | None) -> int:
        """Return the number of a user's open channels at all nodes, or of all users' channels if `user` is None."""
        return sum(self._channels_of.values()) if user is None else self._channels_of.get(user, 0)

    def count_channel(self, user: str, change: int) -> None:
        """Record that the user has a channel more (`change` is 1) or less (-1)."""
        _count(self._channels_of, user, change)

    def _user_limit(self, user: str, name: str) -> int | None:
        return limit_of(self.access.limits.get(user, {}), name)


def _check_parameter(where: str, which: str, others: int, value: str) -> None:
    doing = f"set {which}"
    if others >= PARAMETERS_MAX:
        raise reached(doing, "max-parameters", PARAMETERS_MAX, where)
    size = len(value.encode(errors="surrogateescape"))
    if size > PARAMETER_BYTES_MAX:
        raise precondition_failed(
            f"cannot {doing}: the value takes {size} bytes, the limit is {PARAMETER_BYTES_MAX}"
        )


def _check_room(doing: str, name: str, limit: int, count: int) -> None:
    if count >= limit:
        raise reached(doing, name, limit, "the cluster")


def _count(counts: dict[str, int], key: str, change: int) -> None:
    """Add `change` to the count of a key; a count of 0 is removed."""
    number = counts.get(key, 0) + change
    if number:
        counts[key] = number
    else:
        del counts[key]
