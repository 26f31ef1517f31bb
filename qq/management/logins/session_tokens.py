"""Tokens of web sessions: the content of the page's session cookie.

Every node of a cluster can verify a token, and no node stores it. The token has the user and the begin of the session,
with a MAC under a key of the cluster. The key is derived from the cluster's secret. While the secret is changed there
are two secrets, and the token has a MAC for each, because any two nodes share at least a single secret then.

Invariant: no part of a token is believed, or even parsed, before a MAC has been verified. A second MAC covers the hash
of the password in the log, so the token is void after a change of the password or a recreation of the user. A token
does not help to guess passwords. In a session begun with an OAuth 2 token, it contains that token's scopes and never
the token itself.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import TYPE_CHECKING, NamedTuple

import msgpack

from cluster.runtime.ports import pack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qq.machine.catalog.permissions import User

ID_BYTES = 16
TOKEN_LENGTH_MAX = 3800
"""Characters of a token at most, because browsers keep 4096 octets of a cookie, its name and attributes included. The
token of a user with a password is shorter than 700.
"""
_DIGEST, _DIGEST_BYTES = "sha256", 32
_LABEL = b"qq web session 1"
"""Label for deriving the key. It includes the use, and the cluster's name is added, so keys of clusters differ."""


class WebSession(NamedTuple):
    """A session of a user who has logged in with the page."""

    user: str
    id: bytes
    """Random id of `ID_BYTES` bytes."""
    began_s: int
    """When it began, in seconds since 1970, by the clock of the node that began it."""

    @property
    def csrf_token(self) -> str:
        """Return the token that the page sends with each change, and that pages of foreign sites cannot know."""
        return hmac.digest(self.id, b"X-CSRF-Token", _DIGEST).hex()


class Vouched(NamedTuple):
    """Claims of the OAuth 2 token that began a session. Its user is not in the cluster's list."""

    scopes: Sequence[str]
    expires_s: int
    """When the OAuth 2 token expires, in seconds since 1970."""


class OpenedToken(NamedTuple):
    """A token with a verified MAC."""

    session: WebSession
    key: bytes
    proof: bytes
    vouched: Vouched | None = None
    """Claims of the OAuth 2 token; None in a session of a user with a password."""

    def fits(self, user: User) -> bool:
        """Return whether the user's password is still that at the begin of the session."""
        return hmac.compare_digest(self.proof, _proof(self.key, self.session, user))


class Tokens:
    """Makes and verifies the tokens of a cluster."""

    def __init__(self, cluster: str, secrets: Callable[[], Sequence[bytes]]) -> None:
        """`secrets` returns the secrets of the cluster that are in use now."""
        self._context = _LABEL + b"\0" + cluster.encode()
        self._secrets = secrets

    def seal(self, session: WebSession, user: User) -> str:
        """Return the token of a session of this user."""
        payload = pack(list(session))
        signatures = (_signature(key, payload) + _proof(key, session, user) for key in self._keys())
        return ".".join(map(_text, (payload, *signatures)))

    def seal_vouched(self, session: WebSession, vouched: Vouched) -> str | None:
        """Return the token of a session begun with an OAuth 2 token, or None if it is too long."""
        payload = pack([*session, list(vouched.scopes), vouched.expires_s])
        token = ".".join(map(_text, (payload, *(_signature(key, payload) for key in self._keys()))))
        return token if len(token) <= TOKEN_LENGTH_MAX else None

    def open(self, token: str) -> OpenedToken | None:
        """Return the session of a token, or None unless a MAC of this cluster fits."""
        if len(token) > TOKEN_LENGTH_MAX:
            return None
        try:
            payload, *signatures = map(_octets, token.split("."))
        except ValueError:  # no base64
            return None
        for key in self._keys():
            expected = _signature(key, payload)
            for signature in signatures:
                if hmac.compare_digest(signature[:_DIGEST_BYTES], expected):
                    user, number, began_s, *vouched = msgpack.unpackb(payload)
                    session, proof = WebSession(user, number, began_s), signature[_DIGEST_BYTES:]
                    return OpenedToken(session, key, proof, Vouched(*vouched) if vouched else None)
        return None

    def _keys(self) -> list[bytes]:
        return [hmac.digest(secret, self._context, _DIGEST) for secret in self._secrets()]


def _signature(key: bytes, payload: bytes) -> bytes:
    return hmac.digest(key, b"session" + payload, _DIGEST)


def _proof(key: bytes, session: WebSession, user: User) -> bytes:
    return hmac.digest(key, b"password" + session.id + user.salt + user.hash, _DIGEST)


def _text(octets: bytes) -> str:
    return urlsafe_b64encode(octets).rstrip(b"=").decode()


def _octets(text: str) -> bytes:
    return urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
