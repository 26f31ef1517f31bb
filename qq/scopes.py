"""What somebody may do who is known by a token and not by the cluster's list of users: the scopes of OAuth 2.

As in RabbitMQ (https://www.rabbitmq.com/docs/oauth2): `PERMISSION:VHOST/NAME/ROUTINGKEY`, where the last one or two
parts may be left out, and `tag:TAG`. In each part `*` stands for any characters, and what is special is written `%2F`.

Invariant: pure. A scope that means nothing here permits nothing; it is no error, since tokens are made for others, too.
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
    """A pattern in which `*` stands for any characters, also none."""

    def __init__(self, text: str) -> None:
        self._parts = [unquote(part) for part in text.split(_WILDCARD)]

    def matches(self, name: str) -> bool:
        """Whether the whole name is as the pattern says. It takes no more steps than both have characters."""
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
    """What one scope permits something for."""

    permission: str
    vhost: Wildcard
    name: Wildcard
    key: Wildcard | None
    """The routing keys; None: all of them."""


class Scopes:
    """The scopes of one token."""

    def __init__(self, texts: Iterable[str]) -> None:
        """`texts` are scopes without the prefix that says for which service they are."""
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
        """Whether anything is permitted in this virtual host."""
        return any(resource.vhost.matches(vhost) for resource in self._resources)

    def permit(self, permission: str, vhost: str, name: str) -> bool:
        """Whether something may be done with the queue, or the exchange, of this name."""
        return any(self._of(permission, vhost, name))

    def permit_key(self, permission: str, vhost: str, exchange: str, key: str) -> bool:
        """Whether something may be done at an exchange with this routing key."""
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
    """Somebody whom a token vouches for."""

    name: str
    scopes: Scopes
    expires_s: float
    """When the token expires, in seconds since 1970."""
