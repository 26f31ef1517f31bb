"""The tokens of web sessions: what the cookie of somebody who has logged in with the page holds.

A token is made so that every node of a cluster can judge it, and none has to remember it: it says whose session it is
and when it began, and a key of the cluster vouches for that. The key is derived from the cluster's secret. While the
secret is changed there are two, and a token is vouched for with each: any two nodes have one in common then.

Invariant: nothing of a token is believed, or even read, before a key has vouched for it. A token vouches for the
password, too, as the log has it: with another one, or a user made anew, it is worth nothing. Nobody can try passwords
on it. Of somebody who has logged in with a token of OAuth 2 it has what that permits, and never that token.
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
"""The longest token: browsers keep 4096 octets of a cookie, its name and attributes included. That of a user with a
password is shorter than 700."""
_DIGEST, _DIGEST_BYTES = "sha256", 32
_LABEL = b"qq web session 1"
"""What the key is derived with: of another cluster with the same secret, or for another use, it is another one."""


class WebSession(NamedTuple):
    """A session of somebody who has logged in with the page."""

    user: str
    id: bytes
    """`ID_BYTES` that were drawn at random."""
    began_s: int
    """When it began, in seconds since 1970, by the clock of the node where it did."""

    @property
    def csrf_token(self) -> str:
        """What the page says with each change, and pages of other sites cannot know."""
        return hmac.digest(self.id, b"X-CSRF-Token", _DIGEST).hex()


class Vouched(NamedTuple):
    """What a token of OAuth 2 has said of the user of a session, whom the cluster's list does not know."""

    scopes: Sequence[str]
    expires_s: int
    """When that token expires, in seconds since 1970."""


class OpenedToken(NamedTuple):
    """A token that a key has vouched for."""

    session: WebSession
    key: bytes
    proof: bytes
    vouched: Vouched | None = None
    """None: it is a session of a user with a password."""

    def fits(self, user: User) -> bool:
        """Whether the user's password is the one with which the session began."""
        return hmac.compare_digest(self.proof, _proof(self.key, self.session, user))


class Tokens:
    """Makes and opens the tokens of one cluster."""

    def __init__(self, cluster: str, secrets: Callable[[], Sequence[bytes]]) -> None:
        """`secrets` returns the secrets of the cluster that are in use now."""
        self._context = _LABEL + b"\0" + cluster.encode()
        self._secrets = secrets

    def seal(self, session: WebSession, user: User) -> str:
        """Make the token of a session of this user."""
        payload = pack(list(session))
        signatures = (_signature(key, payload) + _proof(key, session, user) for key in self._keys())
        return ".".join(map(_text, (payload, *signatures)))

    def seal_vouched(self, session: WebSession, vouched: Vouched) -> str | None:
        """Make the token of a session of a user with a token of OAuth 2; None if it is too long."""
        payload = pack([*session, list(vouched.scopes), vouched.expires_s])
        token = ".".join(map(_text, (payload, *(_signature(key, payload) for key in self._keys()))))
        return token if len(token) <= TOKEN_LENGTH_MAX else None

    def open(self, token: str) -> OpenedToken | None:
        """The session that a token is of; None if no key of this cluster vouches for it."""
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
