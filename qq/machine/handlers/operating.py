"""Handlers of operator commands: virtual hosts, users, permissions, limits, policies, parameters.

Invariant: a command for a missing object, or for an object beyond a limit, has no effect. The submitting node checks
that first, and refuses the request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qq.machine.catalog.permissions import ADMINISTRATOR, Permissions, TopicPermissions, user_of
from qq.machine.catalog.vhost import deleted
from qq.machine.handlers.cost_estimate import BATCH_STEPS_MAX, COMMAND_STEPS, QUEUES_PER_STEP
from qq.machine.handlers.registry import handles
from qq.machine.policy.policies import policy_of
from qq.machine.protocol import commands as c
from qq.machine.protocol.refusals import Refused
from qq.machine.queue.moves import SHOVEL, STOPPED

if TYPE_CHECKING:
    from qq.machine.handlers.core import Core
    from qq.machine.handlers.cost_estimate import Costs
    from qq.tables import Table
_CONNECTION_STEPS = 2
"""Steps for each connection of the cluster, to find those that must be closed."""


def _delete_vhost_steps(costs: Costs, origin: str, command: c.DeleteVhost) -> int:
    vhost = costs.core.catalog.vhosts.get(command.name)
    objects = len(vhost.queues) + vhost.consumers if vhost is not None else 0
    return _delete_user_steps(costs, origin, command) + objects // QUEUES_PER_STEP


def _delete_user_steps(costs: Costs, _origin: str, _command: c.DeleteUser | c.DeleteVhost) -> int:
    return COMMAND_STEPS + _CONNECTION_STEPS * len(costs.core.catalog.connections)


class OperatorHandlers:
    """Carries out the commands of operators."""

    def __init__(self, core: Core) -> None:
        self._core = core

    # Virtual hosts

    @handles(c.PutVhost, cost=COMMAND_STEPS)
    def put_vhost(self, command: c.PutVhost) -> None:
        name, description, tags, default_queue_type = command
        if self._has_room(command):
            self._core.catalog.put_vhost(name).describe(description, tags, default_queue_type)

    @handles(c.DeleteVhost, cost=_delete_vhost_steps)
    def delete_vhost(self, command: c.DeleteVhost) -> None:
        core = self._core
        vhost = core.catalog.vhosts.get(command.name)
        if vhost is None or vhost.is_protected:
            return
        core.remove_vhost(vhost)
        for connection in core.catalog.connections.values():
            if connection.vhost is vhost:
                core.close(connection, deleted(vhost.name))

    @handles(c.ProtectVhost, cost=COMMAND_STEPS)
    def protect_vhost(self, command: c.ProtectVhost) -> None:
        vhost = self._core.catalog.vhosts.get(command.vhost)
        if vhost is not None:
            vhost.is_protected = command.is_protected

    @handles(c.SetVhostLimits, cost=COMMAND_STEPS)
    def set_vhost_limits(self, command: c.SetVhostLimits) -> None:
        vhost = self._core.catalog.vhosts.get(command.vhost)
        if vhost is not None:
            vhost.set_limits(command.limits)

    @handles(c.ChangeVhostLimits, cost=COMMAND_STEPS)
    def change_vhost_limits(self, command: c.ChangeVhostLimits) -> None:
        vhost = self._core.catalog.vhosts.get(command.vhost)
        if vhost is not None:
            vhost.set_limits(_changed(vhost.limits, command.limits))

    # Users

    @handles(c.PutUser, c.PutHashedUser, cost=COMMAND_STEPS)
    def put_user(self, command: c.PutUser | c.PutHashedUser) -> None:
        if self._has_room(command) and self._leaves_administrator(command):
            self._core.catalog.access.put_user(user_of(command))

    @handles(c.DeleteUser, cost=_delete_user_steps)
    def delete_user(self, command: c.DeleteUser) -> None:
        core, name = self._core, command.name
        if name not in core.catalog.access.users or not self._leaves_administrator(command):
            return
        core.catalog.access.delete_user(name)
        for connection in core.catalog.connections.values():
            if connection.user == name:
                core.close(connection, f"user '{name}' is deleted")

    @handles(c.DismissAdministrator, cost=COMMAND_STEPS)
    def dismiss_administrator(self, command: c.DismissAdministrator) -> None:
        access = self._core.catalog.access
        user = access.users.get(command.name)
        if user is not None:
            access.put_user(user._replace(tags=[tag for tag in user.tags if tag != ADMINISTRATOR]))

    def _leaves_administrator(self, change: c.PutUser | c.PutHashedUser | c.DeleteUser) -> bool:
        if self._core.version < 10:
            return True
        try:
            self._core.catalog.access.check_administrators([change])
        except Refused:
            return False
        return True

    @handles(c.SetUserLimits, cost=COMMAND_STEPS)
    def set_user_limits(self, command: c.SetUserLimits) -> None:
        access = self._core.catalog.access
        if command.user in access.users:
            access.set_limits(command.user, command.limits)

    @handles(c.ChangeUserLimits, cost=COMMAND_STEPS)
    def change_user_limits(self, command: c.ChangeUserLimits) -> None:
        access = self._core.catalog.access
        if command.user in access.users:
            limits = access.limits.get(command.user, {})
            access.set_limits(command.user, _changed(limits, command.limits))

    # Permissions

    @handles(c.SetPermissions, cost=COMMAND_STEPS)
    def set_permissions(self, command: c.SetPermissions) -> None:
        if self._are_there(command.user, command.vhost) and self._has_room(command):
            self._core.catalog.access.set_permissions(Permissions(*command))

    @handles(c.ClearPermissions, cost=COMMAND_STEPS)
    def clear_permissions(self, command: c.ClearPermissions) -> None:
        self._core.catalog.access.clear_permissions(*command)

    @handles(c.SetTopicPermissions, cost=COMMAND_STEPS)
    def set_topic_permissions(self, command: c.SetTopicPermissions) -> None:
        if self._are_there(command.user, command.vhost) and self._has_room(command):
            self._core.catalog.access.set_topic_permissions(TopicPermissions(*command))

    @handles(c.ClearTopicPermissions, cost=COMMAND_STEPS)
    def clear_topic_permissions(self, command: c.ClearTopicPermissions) -> None:
        self._core.catalog.access.clear_topic_permissions(*command)

    def _are_there(self, user: str, vhost: str) -> bool:
        catalog = self._core.catalog
        return user in catalog.access.users and vhost in catalog.vhosts

    def _has_room(self, change: c.Change) -> bool:
        try:
            self._core.catalog.check_room(change)
        except Refused:
            return False
        return True

    # Policies

    @handles(c.PutPolicy, cost=BATCH_STEPS_MAX)
    def put_policy(self, command: c.PutPolicy) -> None:
        vhost = self._core.catalog.vhosts.get(command.vhost)
        if vhost is None or not self._has_room(command):
            return
        if vhost.put_policy(policy_of(command), self._core.version):
            self._core.review(vhost)

    @handles(c.DeletePolicy, cost=BATCH_STEPS_MAX)
    def delete_policy(self, command: c.DeletePolicy) -> None:
        vhost = self._core.catalog.vhosts.get(command.vhost)
        if vhost is not None:
            vhost.delete_policy(command.name, operator=command.operator)
            self._core.review(vhost)

    # Parameters

    @handles(c.PutParameter, cost=COMMAND_STEPS)
    def put_parameter(self, command: c.PutParameter) -> None:
        vhost = self._core.catalog.vhosts.get(command.vhost)
        if vhost is not None and self._has_room(command):
            vhost.parameters[command.component, command.name] = command.value
            self._end_shovel(command)

    @handles(c.DeleteParameter, cost=COMMAND_STEPS)
    def delete_parameter(self, command: c.DeleteParameter) -> None:
        vhost = self._core.catalog.vhosts.get(command.vhost)
        if vhost is not None:
            vhost.parameters.pop((command.component, command.name), None)
            self._end_shovel(command)

    def _end_shovel(self, command: c.PutParameter | c.DeleteParameter) -> None:
        """Stop the move of a shovel that was changed or deleted; the leader begins the next move."""
        if command.component == SHOVEL:
            moves = self._core.catalog.moves
            move = moves.running_for_shovel(command.vhost, command.name)
            if move is not None:
                moves.end(move, STOPPED, "", self._core.time_ms)

    @handles(c.PutGlobalParameter, cost=COMMAND_STEPS)
    def put_global_parameter(self, command: c.PutGlobalParameter) -> None:
        if self._has_room(command):
            self._core.catalog.global_parameters[command.name] = command.value

    @handles(c.DeleteGlobalParameter, cost=COMMAND_STEPS)
    def delete_global_parameter(self, command: c.DeleteGlobalParameter) -> None:
        self._core.catalog.global_parameters.pop(command.name, None)

    # Publishers

    @handles(c.LimitPublishers, cost=BATCH_STEPS_MAX)
    def limit_publishers(self, command: c.LimitPublishers) -> None:
        self._core.catalog.limit_publishers(command.count, command.age_ms)


def _changed(limits: Table, changes: Table) -> Table:
    """Return the limits with these changes, as a new table, because a frozen state may refer to the old table."""
    return {name: limit for name, limit in (limits | changes).items() if limit is not None}
