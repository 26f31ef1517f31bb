"""Changes by operators: each goes into the log, and its outcome is returned.

Invariant: after a change has returned, this node has it in its state, unless it has been changed again since. Passwords
are hashed before they leave this node.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from qq.errors import ReplyCode
from qq.machine.catalog.permissions import ADMINISTRATOR, Permissions, TopicPermissions, user_of
from qq.machine.policy.policies import InvalidPolicy, check_version, policy_of
from qq.machine.protocol import commands as c
from qq.machine.protocol import refusals
from qq.machine.protocol.codec import InvalidCommand, check_command
from qq.machine.protocol.versions import OCTETS_SINCE, octets_need_version
from qq.machine.queue.moves import ID_BYTES
from qq.management.changes.limit_claims import LimitClaims
from qq.management.changes.request_session import until_applied
from qq.management.errors import UNKNOWN, RequestRefused, Unavailable
from qq.sessions.login import SALT_BYTES, hash_password
from qq.tables import has_utf8_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from qq.machine.catalog.catalog import Catalog
    from qq.machine.protocol.commands import Change, Declaration, Table
    from qq.sessions.broker import Broker


class Changes:
    """Makes changes of the state. Methods return when this node has applied the change."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def hash_password(self, password: str) -> tuple[bytes, bytes]:
        """Return a fresh salt, and the hash of the password with it, for storing in the cluster."""
        salt = secrets.token_bytes(SALT_BYTES)
        return salt, hash_password(salt, password.encode())

    def new_id(self) -> str:
        """Return a new random id."""
        return secrets.token_hex(ID_BYTES)

    async def wait_applied(self) -> None:
        """Return when this node has applied all entries that the cluster has committed by now. Raises Unavailable."""
        await until_applied(self._broker, [], lambda: None)

    def check_command(self, command: Change | Declaration) -> None:
        """Raise InvalidCommand if the log cannot hold the command, or not at the agreed version of the state."""
        version = self._broker.machine.version
        check_command(command, version)
        if version < OCTETS_SINCE and not has_utf8_names(getattr(command, "arguments", None)):
            raise InvalidCommand(octets_need_version(version))
        if isinstance(command, c.PutPolicy):
            try:
                check_version(policy_of(command), version)
            except InvalidPolicy as error:
                raise InvalidCommand(str(error)) from None

    def is_made(self, change: Change) -> bool:
        """Return whether the change is in the state already."""
        return is_made(self._broker.machine.catalog, change)

    async def apply(self, *changes: Change) -> None:
        """Put changes into the log, and return when they are in the state of this node.

        Raises RequestRefused if a limit is reached, if no administrator would be left, or if the virtual host or user
        of a change has been deleted. Raises Unavailable, also if this node missed the outcome of a change, and the
        change is not in its state. If a change is missing from the state otherwise, a concurrent change has overwritten
        it: the last of concurrent changes stays.
        """
        catalog, submissions = self._broker.machine.catalog, self._broker.submissions
        self._check(changes)
        unseen_before = submissions.times_unseen

        def missing() -> list[Change]:
            return [change for change in changes if not is_made(catalog, change)]

        missed = await until_applied(self._broker, changes, missing)
        # Concurrent changes may have used up the limit, or removed the other administrators.
        self._check(missed)
        for change in missed:
            _check_place(catalog, change)
        if missed and submissions.times_unseen != unseen_before:
            raise Unavailable(f"the change is not there, and the node was away from its cluster; {UNKNOWN}")

    async def dismiss_administrators(self, *changes: Change) -> None:
        """Take the tag `administrator` from users so that the changes need not leave an administrator.

        Before version 10 of the state, changes need not do so anyway.
        """
        access = self._broker.machine.catalog.access
        dismissed = access.dismissed_by(changes) if self._keeps_administrator else ()
        if dismissed:
            await self.apply(*map(c.DismissAdministrator, dismissed))

    def check_administrators(self, changes: Sequence[Change]) -> None:
        """Raise RequestRefused if the log would refuse a change because it leaves no administrator."""
        try:
            if self._keeps_administrator:
                self._broker.machine.catalog.access.check_administrators(changes)
        except refusals.Refused as refused:
            raise RequestRefused(refused.code, refused.text) from None

    @property
    def _keeps_administrator(self) -> bool:
        return self._broker.machine.version >= c.SINCE[c.DismissAdministrator]

    def _check(self, changes: Sequence[Change]) -> None:
        """Raise RequestRefused if a limit leaves no room for a change, or if no administrator would be left."""
        self.check_administrators(changes)
        for change in changes:
            try:
                self._broker.machine.catalog.check_room(change)
            except refusals.Refused as refused:
                raise RequestRefused(refused.code, refused.text) from None

    def limit_claims(self, limits: Mapping[str, Table]) -> LimitClaims:
        """Count many new objects before any of them is made; `limits` are the limits that virtual hosts will have."""
        machine = self._broker.machine
        return LimitClaims(machine.catalog, limits, machine.version)


def _check_place(catalog: Catalog, change: Change) -> None:
    """Raise RequestRefused if the virtual host or the user of a change does not exist."""
    for field, there in (("vhost", catalog.vhosts), ("user", catalog.access.users)):
        name = getattr(change, field, None)
        if name is not None and name not in there:
            raise RequestRefused(ReplyCode.NOT_FOUND, f"no {field} '{name}': it was deleted meanwhile")


def is_made(catalog: Catalog, change: Change) -> bool:
    """Return whether the change is in the state already."""
    access, vhosts = catalog.access, catalog.vhosts
    match change:
        case c.PutVhost(name):
            vhost = vhosts.get(name)
            return vhost is not None and change == c.PutVhost(
                name, vhost.description, vhost.tags, vhost.default_queue_type
            )
        case c.DeleteVhost(name):
            return name not in vhosts
        case c.ProtectVhost(name, is_protected):
            return name in vhosts and vhosts[name].is_protected == is_protected
        case c.SetVhostLimits(name, limits):
            return name in vhosts and vhosts[name].limits == limits
        case c.ChangeVhostLimits(name, limits):
            return name in vhosts and _are_among(limits, vhosts[name].limits)
        case c.PutUser(name) | c.PutHashedUser(name):
            return access.users.get(name) == user_of(change)
        case c.DeleteUser(name):
            return name not in access.users
        case c.DismissAdministrator(name):
            return name not in access.users or ADMINISTRATOR not in access.users[name].tags
        case c.SetUserLimits(user, limits):
            return user in access.users and access.limits.get(user, {}) == limits
        case c.ChangeUserLimits(user, limits):
            return user in access.users and _are_among(limits, access.limits.get(user, {}))
        case c.SetPermissions(user, vhost):
            return access.permissions(user, vhost) == Permissions(*change)
        case c.ClearPermissions(user, vhost):
            return access.permissions(user, vhost) is None
        case c.SetTopicPermissions(user, vhost, exchange):
            return access.topic_permissions(user, vhost, exchange) == TopicPermissions(*change)
        case c.ClearTopicPermissions():
            return not any(
                key[:2] == change[:2] and change.exchange in ("", key[2])
                for key in access.all_topic_permissions
            )
        case c.PutPolicy() | c.DeletePolicy():
            return _is_policy_made(catalog, change)
        case c.PutParameter(name, component, parameter, value):
            return name in vhosts and vhosts[name].parameters.get((component, parameter)) == value
        case c.DeleteParameter(name, component, parameter):
            return name not in vhosts or (component, parameter) not in vhosts[name].parameters
        case c.PutGlobalParameter(name, value):
            return catalog.global_parameters.get(name) == value
        case c.DeleteGlobalParameter(name):
            return name not in catalog.global_parameters
        case c.BeginMove(vhost=name, move=move) | c.BeginTextMove(vhost=name, move=move):
            return (name, move) in catalog.moves.all
        case c.EndMove(vhost=name, move=move):
            known = catalog.moves.all.get((name, move))
            return known is None or not known.is_running
        case c.LimitPublishers():
            return catalog.publishers_bounds == tuple(change)
        case c.CloseConnection(node, number):
            row = catalog.connections.get((node, number))
            return row is None or bool(row.closing)


def _are_among(changed: Table, limits: Table) -> bool:
    """Return whether `limits` contains the changed limits; None in `changed` means a removed limit."""
    return all(limits.get(name) == limit for name, limit in changed.items())


def _is_policy_made(catalog: Catalog, change: c.PutPolicy | c.DeletePolicy) -> bool:
    vhost = catalog.vhosts.get(change.vhost)
    policy = None if vhost is None else vhost.policies.get(change.name, operator=change.operator)
    return policy == (None if isinstance(change, c.DeletePolicy) else policy_of(change))
