"""Who may do what: users, what they are permitted in which virtual host, how much they may have open.

Invariant: `revision` goes up with whatever could alter an answer, so that others may remember answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from qq.machine.catalog.publish_rates import Published
from qq.machine.protocol.commands import PutHashedUser

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qq.machine.protocol.commands import PutUser, Table

SHA256 = "sha256"
HASH_BYTES = {SHA256: 32, "sha512": 64, "md5": 16}
"""The algorithms that passwords may be hashed with, by their names in hashlib, and the octets of their hashes."""


class User(NamedTuple):
    name: str
    salt: bytes
    hash: bytes
    """The hash of salt and password; empty if there is no password."""
    tags: list[str]
    hashing: str
    """How the hash was made: one of HASH_BYTES."""


class Permissions(NamedTuple):
    """What a user may do in a virtual host: patterns of the names of queues and exchanges."""

    user: str
    vhost: str
    configure: str
    write: str
    read: str


class TopicPermissions(NamedTuple):
    """Which routing keys a user may use at an exchange: patterns."""

    user: str
    vhost: str
    exchange: str
    write: str
    read: str


def user_of(command: PutUser | PutHashedUser) -> User:
    hashing = command.hashing if isinstance(command, PutHashedUser) else SHA256
    return User(command.name, command.salt, command.hash, command.tags, hashing)


class AccessControl:
    """Users, their permissions and limits. Readers may look at the public maps; only the methods change them."""

    def __init__(self) -> None:
        self.revision = 0
        self.users: dict[str, User] = {}
        self.limits: dict[str, Table] = {}
        """The limits of each user who has any, by the user's name."""
        self.published: dict[str, Published] = {}
        """What each of them has published since then."""
        self._permissions: dict[tuple[str, str], Permissions] = {}
        self._topic_permissions: dict[tuple[str, str, str], TopicPermissions] = {}

    # What is asked

    def permissions(self, user: str, vhost: str) -> Permissions | None:
        """What the user may do in the virtual host; None if the user has no access to it at all."""
        return self._permissions.get((user, vhost))

    def topic_permissions(self, user: str, vhost: str, exchange: str) -> TopicPermissions | None:
        """The restriction of the routing keys that the user may use at the exchange; None if there is none."""
        return self._topic_permissions.get((user, vhost, exchange))

    @property
    def all_permissions(self) -> Mapping[tuple[str, str], Permissions]:
        """All permissions, by user and virtual host."""
        return self._permissions

    @property
    def all_topic_permissions(self) -> Mapping[tuple[str, str, str], TopicPermissions]:
        """All restrictions of routing keys, by user, virtual host and exchange."""
        return self._topic_permissions

    # Changes

    def put_user(self, user: User) -> None:
        self.users[user.name] = user
        self.revision += 1

    def delete_user(self, name: str) -> None:
        del self.users[name]
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
        """Lift the user's restriction at one exchange, or at all of the virtual host's if `exchange` is empty."""
        for key in [key for key in self._topic_permissions if key[:2] == (user, vhost)]:
            if exchange in ("", key[2]):
                del self._topic_permissions[key]
        self.revision += 1

    def forget_vhost(self, vhost: str) -> None:
        """Remove all permissions in a virtual host that goes."""
        self._forget(_VHOST, vhost)

    def _forget(self, position: int, name: str) -> None:
        """Remove every permission that has this name at this position of its key."""
        for key in [key for key in self._permissions if key[position] == name]:
            del self._permissions[key]
        for key in [key for key in self._topic_permissions if key[position] == name]:
            del self._topic_permissions[key]
        self.revision += 1


_USER, _VHOST = 0, 1
