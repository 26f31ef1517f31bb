"""Handlers of operator commands: virtual hosts, users, permissions, limits, policies, parameters.

Invariant: a command for a missing object, or for an object beyond a limit, has no effect. The submitting node checks
that first, and refuses the request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qq.machine.catalog.permissions import Permissions, TopicPermissions, user_of
from qq.machine.catalog.vhost import deleted
from qq.machine.policy.policies import policy_of
from qq.machine.protocol.refusals import Refused
from qq.machine.queue.moves import SHOVEL, STOPPED

if TYPE_CHECKING:
    from qq.machine.handlers.core import Core
    from qq.machine.protocol.commands import (
        Change,
        ChangeUserLimits,
        ChangeVhostLimits,
        ClearPermissions,
        ClearTopicPermissions,
        DeleteGlobalParameter,
        DeleteParameter,
        DeletePolicy,
        DeleteUser,
        DeleteVhost,
        LimitPublishers,
        ProtectVhost,
        PutGlobalParameter,
        PutHashedUser,
        PutParameter,
        PutPolicy,
        PutUser,
        PutVhost,
        SetPermissions,
        SetTopicPermissions,
        SetUserLimits,
        SetVhostLimits,
        Table,
    )


class Operating:
    """Carries out the commands of operators."""

    def __init__(self, core: Core) -> None:
        self._core = core

    # Virtual hosts

    def put_vhost(self, command: PutVhost) -> None:
        name, description, tags, default_queue_type = command
        if self._has_room(command):
            self._core.catalog.put_vhost(name).describe(description, tags, default_queue_type)

    def delete_vhost(self, command: DeleteVhost) -> None:
        core = self._core
        vhost = core.catalog.vhosts.get(command.name)
        if vhost is None or vhost.is_protected:
            return
        core.remove_vhost(vhost)
        for connection in core.catalog.connections.values():
            if connection.vhost is vhost:
                core.close(connection, deleted(vhost.name))

    def protect_vhost(self, command: ProtectVhost) -> None:
        vhost = self._core.catalog.vhosts.get(command.vhost)
        if vhost is not None:
            vhost.is_protected = command.is_protected

    def set_vhost_limits(self, command: SetVhostLimits) -> None:
        vhost = self._core.catalog.vhosts.get(command.vhost)
        if vhost is not None:
            vhost.set_limits(command.limits)

    def change_vhost_limits(self, command: ChangeVhostLimits) -> None:
        vhost = self._core.catalog.vhosts.get(command.vhost)
        if vhost is not None:
            vhost.set_limits(_changed(vhost.limits, command.limits))

    # Users

    def put_user(self, command: PutUser | PutHashedUser) -> None:
        if self._has_room(command):
            self._core.catalog.access.put_user(user_of(command))

    def delete_user(self, command: DeleteUser) -> None:
        core, name = self._core, command.name
        if name not in core.catalog.access.users:
            return
        core.catalog.access.delete_user(name)
        for connection in core.catalog.connections.values():
            if connection.user == name:
                core.close(connection, f"user '{name}' is deleted")

    def set_user_limits(self, command: SetUserLimits) -> None:
        access = self._core.catalog.access
        if command.user in access.users:
            access.set_limits(command.user, command.limits)

    def change_user_limits(self, command: ChangeUserLimits) -> None:
        access = self._core.catalog.access
        if command.user in access.users:
            limits = access.limits.get(command.user, {})
            access.set_limits(command.user, _changed(limits, command.limits))

    # Permissions

    def set_permissions(self, command: SetPermissions) -> None:
        if self._are_there(command.user, command.vhost) and self._has_room(command):
            self._core.catalog.access.set_permissions(Permissions(*command))

    def clear_permissions(self, command: ClearPermissions) -> None:
        self._core.catalog.access.clear_permissions(*command)

    def set_topic_permissions(self, command: SetTopicPermissions) -> None:
        if self._are_there(command.user, command.vhost) and self._has_room(command):
            self._core.catalog.access.set_topic_permissions(TopicPermissions(*command))

    def clear_topic_permissions(self, command: ClearTopicPermissions) -> None:
        self._core.catalog.access.clear_topic_permissions(*command)

    def _are_there(self, user: str, vhost: str) -> bool:
        catalog = self._core.catalog
        return user in catalog.access.users and vhost in catalog.vhosts

    def _has_room(self, change: Change) -> bool:
        try:
            self._core.catalog.check_room(change)
        except Refused:
            return False
        return True

    # Policies

    def put_policy(self, command: PutPolicy) -> None:
        vhost = self._core.catalog.vhosts.get(command.vhost)
        if vhost is None or not self._has_room(command):
            return
        if vhost.put_policy(policy_of(command), self._core.version):
            self._core.review(vhost)

    def delete_policy(self, command: DeletePolicy) -> None:
        vhost = self._core.catalog.vhosts.get(command.vhost)
        if vhost is not None:
            vhost.delete_policy(command.name, operator=command.operator)
            self._core.review(vhost)

    # Parameters

    def put_parameter(self, command: PutParameter) -> None:
        vhost = self._core.catalog.vhosts.get(command.vhost)
        if vhost is not None and self._has_room(command):
            vhost.parameters[command.component, command.name] = command.value
            self._end_shovel(command)

    def delete_parameter(self, command: DeleteParameter) -> None:
        vhost = self._core.catalog.vhosts.get(command.vhost)
        if vhost is not None:
            vhost.parameters.pop((command.component, command.name), None)
            self._end_shovel(command)

    def _end_shovel(self, command: PutParameter | DeleteParameter) -> None:
        """Stop the move of a shovel that was changed or deleted; the leader begins the next move."""
        if command.component == SHOVEL:
            moves = self._core.catalog.moves
            move = moves.of_shovel(command.vhost, command.name)
            if move is not None:
                moves.end(move, STOPPED, "", self._core.time_ms)

    def put_global_parameter(self, command: PutGlobalParameter) -> None:
        if self._has_room(command):
            self._core.catalog.global_parameters[command.name] = command.value

    def delete_global_parameter(self, command: DeleteGlobalParameter) -> None:
        self._core.catalog.global_parameters.pop(command.name, None)

    # Publishers

    def limit_publishers(self, command: LimitPublishers) -> None:
        self._core.catalog.limit_publishers(command.count, command.age_ms)


def _changed(limits: Table, changes: Table) -> Table:
    """Return the limits with these changes, as a new table, because a frozen state may refer to the old table."""
    return {name: limit for name, limit in (limits | changes).items() if limit is not None}
