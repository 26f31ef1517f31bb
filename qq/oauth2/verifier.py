"""Verifies tokens, and finds their user and scopes (RFC 7519, RFC 9068; https://www.rabbitmq.com/docs/oauth2).

Invariant: before the signature is verified, only the key id and the algorithm of a token are read. Only algorithms with
public keys are accepted, so a token cannot have its signature verified with a public value as the secret.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jwt
from jwt.exceptions import PyJWTError

from qq.oauth2.keys import Keys
from qq.oauth2.provider import Provider
from qq.scopes import Scopes, TokenUser
from qq.sessions.login import InvalidToken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from qq.config import OAuth2

DEFAULT_CLAIMS = ("sub", "client_id")
"""Claims that name the user if the configured claims are missing, as in RabbitMQ."""
UNNAMED_USER = "unknown"
"""The user of a token without a claim for the name, as in RabbitMQ."""
NAME_BYTES_MAX = 255
EXPIRY_S_MAX = 2**40
"""Latest expiry, in seconds since 1970; a later expiry is cut to it."""
SCOPES_MAX = 200
"""Scopes of a token at most, because the first check of each permission may visit all of them."""
_BEGIN_OF_JSON = b"eyJ"
"""The first characters of every JSON object in base64."""


class Verifier:
    """Verifies tokens for logins. Implements `TokenVerifier`."""

    def __init__(self, config: OAuth2) -> None:
        """Load the keys. Raises StartError for keys that cannot be used."""
        self._config = config
        self.provider = Provider(config)
        self._keys = Keys(config, self.provider)
        self._jwt = jwt.PyJWT()

    def is_token(self, password: bytes) -> bool:
        return password.startswith(_BEGIN_OF_JSON) and password.count(b".") == 2

    def renew_keys(self, token: bytes, renewed: Callable[[], None]) -> bool:
        """Start to fetch keys if the token names an unknown key. Return whether `renewed` will be called."""
        try:
            return self._key_of(token) is None and self._keys.renew(renewed)
        except InvalidToken:
            return False

    def verify(self, token: bytes) -> TokenUser:
        config = self._config
        claims = self.claims(token, config.resource_server_id if config.verify_aud else None)
        name = self._name(claims)
        return TokenUser(
            name, Scopes(self._scopes(claims)), min(int(claims["exp"]), EXPIRY_S_MAX) + self._config.leeway_s
        )

    async def close(self) -> None:
        await self._keys.close()

    def _key_of(self, token: bytes) -> Any | None:
        try:
            header = jwt.get_unverified_header(token)
        except (PyJWTError, RecursionError) as error:
            raise InvalidToken(f"its header cannot be read: {error}") from None
        if header.get("alg") not in self._config.algorithms:
            raise InvalidToken(f"its algorithm {header.get('alg')!r} is not among {self._config.algorithms}")
        return self._keys.find(header.get("kid"))

    def claims(self, token: bytes, audience: str | None) -> dict[str, Any]:
        """Return the claims of a valid token for this audience (None: for any). Raises InvalidToken."""
        key, config = self._key_of(token), self._config
        if key is None:
            raise InvalidToken("its signing key is unknown")
        try:
            return self._jwt.decode(
                token,
                key,
                algorithms=list(config.algorithms),
                audience=audience,
                issuer=config.issuer,
                leeway=config.leeway_s,
                options={"require": ["exp"], "verify_aud": audience is not None},
            )
        except (PyJWTError, RecursionError, TypeError, ValueError, ArithmeticError) as error:
            raise InvalidToken(str(error)) from None

    def _name(self, claims: Mapping[str, Any]) -> str:
        values = (claims.get(claim) for claim in (*self._config.preferred_username_claims, *DEFAULT_CLAIMS))
        name = next((value for value in values if isinstance(value, str) and value), UNNAMED_USER)
        try:
            length = len(name.encode())
        except UnicodeEncodeError:
            raise InvalidToken("the user's name has characters that are none") from None
        if length > NAME_BYTES_MAX:
            raise InvalidToken(f"the user's name is longer than {NAME_BYTES_MAX} bytes")
        return name

    def _scopes(self, claims: Mapping[str, Any]) -> list[str]:
        """Return the scopes of this service, without their prefix."""
        config, found = self._config, list[str]()
        for key in ("scope", *config.additional_scopes_keys):
            found += _texts(claims.get(key), config.resource_server_id)
        aliases = dict(config.scope_aliases)
        given = [scope for text in found for scope in aliases.get(text, text).split()]
        if len(given) > SCOPES_MAX:
            raise InvalidToken(f"it has more than {SCOPES_MAX} scopes")
        prefix = config.scope_prefix
        return [scope.removeprefix(prefix) for scope in given if scope.startswith(prefix)]


def _texts(value: Any, resource_server_id: str) -> Iterator[str]:
    """Yield the scopes in a claim: a text separated by spaces, a list, or a mapping from services to scopes."""
    match value:
        case str():
            yield from value.split()
        case list():
            for each in value:
                if isinstance(each, str):
                    yield from each.split()
        case dict():
            yield from _texts(value.get(resource_server_id), resource_server_id)
        case _:
            return
