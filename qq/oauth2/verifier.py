"""Whether a token is good, and whom it vouches for (RFC 7519, RFC 9068; https://www.rabbitmq.com/docs/oauth2).

Invariant: nothing but the id of its key and its algorithm is read of a token before its signature is checked, and only
algorithms with a public key are known: a token cannot choose to be checked with something that is no secret.
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
"""The claims that name the user if no other is there, as in RabbitMQ."""
NAME_BYTES_MAX = 255
EXPIRY_S_MAX = 2**40
"""The last moment of which anybody can tell that it has come."""
SCOPES_MAX = 200
"""The most scopes of a token: each may be looked at for each thing that a client has not asked for before."""
_BEGIN_OF_JSON = b"eyJ"
"""What every JSON object begins with in base64."""


class Verifier:
    """Judges tokens. It is the `TokenVerifier` of the logins."""

    def __init__(self, config: OAuth2) -> None:
        """Raise StartError for keys that cannot be used."""
        self._config = config
        self.provider = Provider(config)
        self._keys = Keys(config, self.provider)
        self._jwt = jwt.PyJWT()

    def is_token(self, password: bytes) -> bool:
        return password.startswith(_BEGIN_OF_JSON) and password.count(b".") == 2

    def renew_keys(self, token: bytes, renewed: Callable[[], None]) -> bool:
        """Have keys fetched if the token names one that is not known here."""
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
        """What a token says that is good, and for this audience (None: for any). Raises InvalidToken."""
        key, config = self._key_of(token), self._config
        if key is None:
            raise InvalidToken("nobody knows the key that it is signed with")
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
        for claim in (*self._config.preferred_username_claims, *DEFAULT_CLAIMS):
            name = claims.get(claim)
            if isinstance(name, str) and name:
                break
        else:
            raise InvalidToken("no claim of it names a user")
        try:
            length = len(name.encode())
        except UnicodeEncodeError:
            raise InvalidToken("the user's name has characters that are none") from None
        if length > NAME_BYTES_MAX:
            raise InvalidToken(f"the user's name is longer than {NAME_BYTES_MAX} bytes")
        return name

    def _scopes(self, claims: Mapping[str, Any]) -> list[str]:
        """The scopes that are for this service, without their prefix."""
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
    """The scopes in a claim: a text with spaces between them, a list, or those of each service."""
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
