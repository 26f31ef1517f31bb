"""Permissions that an OAuth 2 token gives to its user: the scopes of the token.

As in RabbitMQ (https://www.rabbitmq.com/docs/oauth2): `PERMISSION:VHOST/NAME/ROUTINGKEY`, where the last one or two
parts may be left out, and `tag:TAG`. In each part `*` matches any characters. Special characters are percent-encoded,
such as `%2F`.

Invariant: pure. An unknown scope permits no operation; it is no error, because tokens also have scopes for other
services.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Iterable

PERMISSIONS = frozenset({"configure", "write", "read"})
_TAG = "tag"
_PARTS_MAX = 3
_WILDCARD = "*"


class Wildcard:
    """A pattern; `*` in it matches any number of characters, also zero."""

    def __init__(self, text: str) -> None:
        self._parts = [unquote(part) for part in text.split(_WILDCARD)]

    def matches(self, name: str) -> bool:
        """Return whether the pattern matches the whole name, in at most as many steps as both have characters."""
        first, *middle = self._parts
        if not middle:
            return name == first
        last = middle.pop()
        if len(name) < len(first) + len(last) or not (name.startswith(first) and name.endswith(last)):
            return False
        at, end = len(first), len(name) - len(last)
        for part in middle:
            found = name.find(part, at, end)
            if found < 0:
                return False
            at = found + len(part)
        return True


class _Resource(NamedTuple):
    """The permission of a scope, and the patterns of the resources that it covers."""

    permission: str
    vhost: Wildcard
    name: Wildcard
    key: Wildcard | None
    """The pattern of routing keys; None covers all."""


class Scopes:
    """The scopes of a token."""

    def __init__(self, texts: Iterable[str]) -> None:
        """`texts` are scopes without the prefix that names their service."""
        self.texts = tuple(texts)
        tags: set[str] = set()
        self._resources: list[_Resource] = []
        for text in self.texts:
            kind, _, what = text.partition(":")
            if kind == _TAG:
                tags.add(what)
            elif kind in PERMISSIONS and what:
                self._add(kind, what.split("/"))
        self.tags = frozenset(tags)
        self.restricts_keys = any(resource.key is not None for resource in self._resources)
        """Whether a permission may depend on the routing key of a message."""

    def _add(self, permission: str, parts: list[str]) -> None:
        if len(parts) <= _PARTS_MAX:
            vhost, name, key = [*map(Wildcard, parts), None, None][:_PARTS_MAX]
            assert vhost is not None
            self._resources.append(_Resource(permission, vhost, name or Wildcard(_WILDCARD), key))

    def opens(self, vhost: str) -> bool:
        """Return whether any operation is permitted in this virtual host."""
        return any(resource.vhost.matches(vhost) for resource in self._resources)

    def permit(self, permission: str, vhost: str, name: str) -> bool:
        """Return whether the operation is permitted on the queue or exchange of this name."""
        return any(self._of(permission, vhost, name))

    def permit_key(self, permission: str, vhost: str, exchange: str, key: str) -> bool:
        """Return whether the operation is permitted at an exchange with this routing key."""
        found = self._of(permission, vhost, exchange)
        return any(resource.key is None or resource.key.matches(key) for resource in found)

    def _of(self, permission: str, vhost: str, name: str) -> Iterable[_Resource]:
        return (
            resource
            for resource in self._resources
            if resource.permission == permission
            and resource.vhost.matches(vhost)
            and resource.name.matches(name)
        )


class TokenUser(NamedTuple):
    """The user of a token, with the token's scopes."""

    name: str
    scopes: Scopes
    expires_s: float
    """When the token expires, in seconds since 1970."""
