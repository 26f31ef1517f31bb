"""Access control: users, their permissions in virtual hosts, and their limits.

Invariant: `revision` grows with each change that could alter a result, so that callers may cache results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from qq.machine.catalog.publish_rates import Published
from qq.machine.protocol.commands import DeleteUser, PutHashedUser, PutUser
from qq.machine.protocol.refusals import precondition_failed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from qq.machine.protocol.commands import Change, Table

ADMINISTRATOR = "administrator"
"""The tag of a user that may change everything."""
SHA256, MD5 = "sha256", "md5"
HASH_BYTES = {SHA256: 32, "sha512": 64, MD5: 16}
"""Password hash algorithm (its name in hashlib) -> octets of the hash."""


class User(NamedTuple):
    name: str
    salt: bytes
    hash: bytes
    """The hash of salt and password; empty without a password."""
    tags: list[str]
    hashing: str
    """The algorithm of the hash, a key of HASH_BYTES."""

    @property
    def is_administrator(self) -> bool:
        """Whether the user may change everything, and has a password for a login to the management API."""
        return ADMINISTRATOR in self.tags and self.hash != b""


class Permissions(NamedTuple):
    """A user's permissions in a virtual host, as patterns of the names of queues and exchanges."""

    user: str
    vhost: str
    configure: str
    write: str
    read: str


class TopicPermissions(NamedTuple):
    """The routing keys that a user may use at an exchange, as patterns."""

    user: str
    vhost: str
    exchange: str
    write: str
    read: str


def user_of(command: PutUser | PutHashedUser) -> User:
    hashing = command.hashing if isinstance(command, PutHashedUser) else SHA256
    return User(command.name, command.salt, command.hash, command.tags, hashing)


def _dismissed_by(change: Change) -> str | None:
    """Return the user that is no administrator after the change; None if the change makes no user less."""
    match change:
        case DeleteUser(name):
            return name
        case PutUser(name) | PutHashedUser(name) if not user_of(change).is_administrator:
            return name
        case _:
            return None


class AccessControl:
    """Users, their permissions and limits. The public maps may be read; only its methods change them."""

    def __init__(self) -> None:
        self.revision = 0
        self.users: dict[str, User] = {}
        self.administrators: set[str] = set()
        """Names of the users that can log in as administrators."""
        self.limits: dict[str, Table] = {}
        """The limits of users, by user name; users without limits are left out."""
        self.published: dict[str, Published] = {}
        """Counts of the messages that each of these users has published since its limits were set."""
        self._permissions: dict[tuple[str, str], Permissions] = {}
        self._topic_permissions: dict[tuple[str, str, str], TopicPermissions] = {}

    # Reading

    def permissions(self, user: str, vhost: str) -> Permissions | None:
        """Return the user's permissions in the virtual host, or None if the user has no access to it."""
        return self._permissions.get((user, vhost))

    def topic_permissions(self, user: str, vhost: str, exchange: str) -> TopicPermissions | None:
        """Return the user's restriction of routing keys at the exchange, or None."""
        return self._topic_permissions.get((user, vhost, exchange))

    @property
    def all_permissions(self) -> Mapping[tuple[str, str], Permissions]:
        """All permissions, by user and virtual host."""
        return self._permissions

    @property
    def all_topic_permissions(self) -> Mapping[tuple[str, str, str], TopicPermissions]:
        """All restrictions of routing keys, by user, virtual host and exchange."""
        return self._topic_permissions

    def check_administrators(self, changes: Iterable[Change]) -> None:
        """Raise Refused if one of the changes, made in this order, would leave no administrator."""
        gained: set[str] = set()
        lost: set[str] = set()
        for change in changes:
            name = _dismissed_by(change)
            if name is None:
                if isinstance(change, PutUser | PutHashedUser):
                    gained.add(change.name)
                    lost.discard(change.name)
                continue
            gained.discard(name)
            if name in self.administrators:
                lost.add(name)
                if len(lost) == len(self.administrators) and not gained:
                    raise precondition_failed(
                        f"user '{name}' is the last administrator that has a password: make another administrator "
                        "first, or force the change"
                    )

    def dismissed_by(self, changes: Iterable[Change]) -> list[str]:
        """Return the administrators that are none after one of the changes."""
        return [name for name in map(_dismissed_by, changes) if name in self.administrators]

    # Changes

    def put_user(self, user: User) -> None:
        self.users[user.name] = user
        if user.is_administrator:
            self.administrators.add(user.name)
        else:
            self.administrators.discard(user.name)
        self.revision += 1

    def delete_user(self, name: str) -> None:
        del self.users[name]
        self.administrators.discard(name)
        self.set_limits(name, {})
        self._forget(_USER, name)

    def set_limits(self, user: str, limits: Table) -> None:
        if limits:
            self.limits[user] = limits
            self.published.setdefault(user, Published())
        else:
            self.limits.pop(user, None)
            self.published.pop(user, None)

    def set_permissions(self, permissions: Permissions) -> None:
        self._permissions[permissions.user, permissions.vhost] = permissions
        self.revision += 1

    def clear_permissions(self, user: str, vhost: str) -> None:
        self._permissions.pop((user, vhost), None)
        self.revision += 1

    def set_topic_permissions(self, permissions: TopicPermissions) -> None:
        self._topic_permissions[permissions[:3]] = permissions
        self.revision += 1

    def clear_topic_permissions(self, user: str, vhost: str, exchange: str) -> None:
        """Lift the user's restriction at an exchange, or in the whole virtual host if `exchange` is empty."""
        for key in [key for key in self._topic_permissions if key[:2] == (user, vhost)]:
            if exchange in ("", key[2]):
                del self._topic_permissions[key]
        self.revision += 1

    def forget_vhost(self, vhost: str) -> None:
        """Remove all permissions in a deleted virtual host."""
        self._forget(_VHOST, vhost)

    def _forget(self, position: int, name: str) -> None:
        """Remove every permission that has this name at this position of its key."""
        for key in [key for key in self._permissions if key[position] == name]:
            del self._permissions[key]
        for key in [key for key in self._topic_permissions if key[position] == name]:
            del self._topic_permissions[key]
        self.revision += 1


_USER, _VHOST = 0, 1
