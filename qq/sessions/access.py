"""Permission checks for a session's user, made before a command is submitted to the log, as in RabbitMQ.

A user who logged in with a token has the permissions of the token's scopes (qq/scopes.py). The permissions in the log
then do not apply.

Invariant: a session caches grants only, never refusals. The cache is cleared when users, permissions or virtual hosts
change. An answer that also depends on declared queues or exchanges is computed each time.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from qq.machine.catalog.vhost import RESERVED
from qq.machine.handlers.declaring import stripped
from qq.machine.policy.patterns import InvalidPattern, Pattern
from qq.routing.exchanges import DEFAULT_EXCHANGE_SHOWN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from qq.machine.catalog.permissions import TopicPermissions
    from qq.machine.catalog.vhost import Exchange, VirtualHost
    from qq.machine.machine import QueueMachine
    from qq.machine.queue.queue import Queue
    from qq.scopes import Scopes

Permission = Literal["configure", "write", "read"]
KeyPermission = Literal["write", "read"]
Kind = Literal["queue", "exchange"]

GRANTS_MAX = 1000
"""Entries of each cache of a session: granted permissions, granted topic permissions, checked publish methods."""
PATTERNS_MAX = 1000
"""Compiled patterns that the node caches. Many users and sessions have the same patterns."""
_EVERYTHING = ".*"
"""The pattern that most users have: it matches every name, so no regular expression is run for it."""
_SPECIAL = frozenset("\\^$.|?*+()[]{}-")
"""Characters to escape in a value that replaces a variable of a pattern (rabbit_re:escape)."""


class AccessRefused(Exception):
    """The user lacks a permission, as far as this node has applied the log. The text is for the client."""


class Access:
    """The permissions of a user in a virtual host, for a session.

    Checks raise AccessRefused if the permission is missing.
    """

    __slots__ = (
        "_grants",
        "_keys",
        "_machine",
        "_publishes",
        "_revision",
        "_scopes",
        "_user",
        "_vhost",
        "certain",
    )

    def __init__(self, machine: QueueMachine, user: str, vhost: str, scopes: Scopes | None = None) -> None:
        """Create the checks.

        `scopes` replaces the permissions in the log if a token vouches for the user; else it is None.
        """
        self.certain = False
        """Whether this node has applied all entries that were committed when the check was requested. Then a refusal is
        final."""
        self._machine = machine
        self._user = user
        self._vhost = vhost
        self._scopes = scopes
        self._revision = -1
        self._grants: set[tuple[Permission, Kind, str]] = set()
        self._publishes: dict[bytes, bool] = {}
        self._keys: set[tuple[KeyPermission, str, str]] = set()
        """The granted topic permissions: permission, exchange and routing key."""

    def renew(self, scopes: Scopes) -> None:
        """Replace the scopes, after the client has presented a newer token."""
        self._scopes = scopes
        self._revision = -1

    # Publishing

    def known_publish(self, method: bytes) -> bool | None:
        """Return the cached result of `publish` for the same method, or None.

        It is None if the method was not granted, or if users, permissions or virtual hosts have changed since.
        """
        if self._revision != self._machine.revision:
            return None
        return self._publishes.get(method)

    def publish(self, method: bytes, exchange: str) -> bool:
        """Check the right to publish to `exchange`, and cache the result under `method` (the method frame's bytes).

        Return whether the routing keys of the messages must be checked, too.
        """
        self.check("write", "exchange", exchange)
        if len(self._publishes) >= GRANTS_MAX:
            self._publishes.clear()
        restricts = self._publishes[method] = self._restricts_keys(exchange)
        return restricts

    def publish_keys(self, exchange: str, keys: Iterable[str]) -> None:
        """Check the routing keys of messages.

        The caller must call this if `publish` has returned True for the exchange.
        """
        for key in keys:
            self._check_key("write", exchange, key)

    def publish_all_keys(self, exchange: str) -> None:
        """Check the right to publish to all topics of an exchange, while the messages' routing keys are unknown."""
        if self._restricts_keys(exchange) and self._may_be_topic_exchange(exchange):
            where = f"exchange '{exchange}' in vhost '{self._vhost}'"
            raise AccessRefused(f"write access to all topics in {where} refused for user '{self._user}'")

    # Queues

    def check(self, permission: Permission, kind: Kind, name: str) -> None:
        """Check a permission for a queue or an exchange."""
        if not self._has(permission, kind, name):
            thing = f"{kind} '{_shown(kind, name)}' in vhost '{self._vhost}'"
            text = f"{permission} access to {thing} refused for user '{self._user}'"
            raise AccessRefused(text)

    def declare_queue(self, name: str, arguments: Mapping[str, object], *, passive: bool) -> None:
        if passive:
            return  # as in RabbitMQ 4.0, every user of the virtual host may ask whether a queue exists
        there = self._here and self._here.queues.get(name)
        self._declare("queue", name, there, arguments, "x-dead-letter-exchange")

    # Exchanges

    def declare_exchange(self, name: str, arguments: Mapping[str, object], *, passive: bool) -> None:
        name = stripped(name)
        if not name or passive:
            # the log refuses the default exchange; every user of the virtual host may ask whether an exchange exists
            return
        there = self._here and self._here.exchanges.get(name)
        self._declare("exchange", name, there, arguments, "alternate-exchange")

    def delete_exchange(self, name: str) -> None:
        name = stripped(name)
        if name and not name.startswith(RESERVED):  # for these names, the log refuses every user
            self.check("configure", "exchange", name)

    def bind(self, kind: Kind, destination: str, source: str, routing_key: str) -> None:
        """Check the permissions for adding or removing a binding."""
        source, destination = stripped(source), stripped(destination)
        self.check("write", kind, destination)
        if source and (destination or kind == "queue"):  # the default exchange cannot be bound
            self.check("read", "exchange", source)
            self._check_key("read", source, routing_key)

    # The rules

    def _declare(
        self,
        kind: Kind,
        name: str,
        there: Queue | Exchange | None,
        arguments: Mapping[str, object],
        forwarding: str,
    ) -> None:
        """Check a declaration whose argument `forwarding` may name an exchange that receives its messages.

        To forward messages, the user must be allowed to read from the declared object and to write to that exchange.
        This check is skipped if the existing object `there` has the same argument.
        """
        self.check("configure", kind, name)
        exchange = arguments.get(forwarding)
        known = there.arguments.get(forwarding) if there else None
        if isinstance(exchange, str) and exchange != known:
            self.check("read", kind, name)
            self.check("write", "exchange", exchange)

    def _has(self, permission: Permission, kind: Kind, name: str) -> bool:
        self._forget_what_may_have_changed()
        what = (permission, kind, name)
        if what in self._grants:
            return True
        if not self._is_permitted(permission, _shown(kind, name)):
            return False
        if len(self._grants) >= GRANTS_MAX:
            self._grants.clear()
        self._grants.add(what)
        return True

    def _is_permitted(self, permission: Permission, shown: str) -> bool:
        if self._scopes is not None:
            return self._scopes.permit(permission, self._vhost, shown)
        permissions = self._machine.catalog.access.permissions(self._user, self._vhost)
        return permissions is not None and _matches(getattr(permissions, permission), shown)

    def _forget_what_may_have_changed(self) -> None:
        revision = self._machine.revision
        if self._revision != revision:
            self._revision = revision
            self._grants.clear()
            self._publishes.clear()
            self._keys.clear()

    def _check_key(self, permission: KeyPermission, exchange: str, key: str) -> None:
        if not self._has_key(permission, exchange, key) and self._may_be_topic_exchange(exchange):
            text = (
                f"{permission} access to topic '{key}' in exchange '{exchange}' in vhost '{self._vhost}' "
                f"refused for user '{self._user}'"
            )
            raise AccessRefused(text)

    def _has_key(self, permission: KeyPermission, exchange: str, key: str) -> bool:
        self._forget_what_may_have_changed()
        what = (permission, exchange, key)
        if what in self._keys or not self._restricts_keys(exchange):
            return True
        if not self._is_key_permitted(permission, exchange, key):
            return False
        if len(self._keys) >= GRANTS_MAX:
            self._keys.clear()
        self._keys.add(what)
        return True

    def _restricts_keys(self, exchange: str) -> bool:
        if self._scopes is not None:
            return self._scopes.restricts_keys
        return self._topic_permissions(exchange) is not None

    def _is_key_permitted(self, permission: KeyPermission, exchange: str, key: str) -> bool:
        if self._scopes is not None:
            return self._scopes.permit_key(permission, self._vhost, exchange, key)
        restriction = self._topic_permissions(exchange)
        pattern: str = getattr(restriction, permission)
        for variable, value in (("{username}", self._user), ("{vhost}", self._vhost)):
            pattern = pattern.replace(variable, _escaped(value))
        return _matches(pattern, key)

    def _topic_permissions(self, exchange: str) -> TopicPermissions | None:
        return self._machine.catalog.access.topic_permissions(self._user, self._vhost, exchange)

    def _may_be_topic_exchange(self, name: str) -> bool:
        """Return whether the exchange may be a topic exchange: only topic exchanges restrict routing keys.

        An exchange that this node does not know may be a topic exchange, unless the answer is `certain`: then the log
        refuses the request because the exchange is missing.
        """
        vhost = self._here
        exchange = vhost.exchanges.get(name) if vhost else None
        return not self.certain if exchange is None else exchange.type == "topic"

    @property
    def _here(self) -> VirtualHost | None:
        return self._machine.vhosts.get(self._vhost)


def _shown(kind: Kind, name: str) -> str:
    return DEFAULT_EXCHANGE_SHOWN if kind == "exchange" and not name else name


@lru_cache(PATTERNS_MAX)
def _compiled(text: str) -> Pattern | None:
    try:
        return Pattern(text or "^$")
    except InvalidPattern:
        return None


def _matches(pattern: str, name: str) -> bool:
    """Return whether `pattern` matches `name`.

    As in RabbitMQ, an empty pattern matches only the empty name, and an invalid pattern matches no name.
    """
    if pattern == _EVERYTHING:
        return True
    compiled = _compiled(pattern)
    return compiled is not None and compiled.search(name)


def _escaped(text: str) -> str:
    return "".join(f"\\{character}" if character in _SPECIAL else character for character in text)
