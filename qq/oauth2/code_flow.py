"""Login to the page through the issuer: OpenID Connect's authorization code flow, with PKCE.

The node redirects the browser to the issuer, and the browser returns with a code. The node exchanges the code for
tokens. So only the node sees tokens, and no URL contains them.

Invariant: the node believes data from the browser only after the issuer has confirmed it to the node directly.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus

from yarl import URL

from qq.http.base.node_view import LoginRefused
from qq.management.errors import Unavailable
from qq.oauth2.provider import ProviderError
from qq.sessions.login import InvalidToken

if TYPE_CHECKING:
    from qq.config import OAuth2
    from qq.http.base.node_view import LoginRound
    from qq.oauth2.verifier import Verifier

REDEEMING_MAX = 16
"""Codes exchanged for tokens at a time: any client may send codes, and each costs a request to the issuer."""


class CodeFlow:
    """The page as an OAuth 2 client of the issuer. Implements `LoginProvider` of the HTTP interface."""

    def __init__(self, config: OAuth2, client_id: str, verifier: Verifier) -> None:
        self.client_id = client_id
        self.issuer = config.issuer or ""
        self._config = config
        self._provider = verifier.provider
        self._verifier = verifier
        self._redeeming = 0

    async def login_address(self, login: LoginRound) -> str:
        try:
            url = URL(await self._provider.address("authorization_endpoint"))
        except (ProviderError, ValueError) as error:
            raise Unavailable(str(error)) from None
        digest = hashlib.sha256(login.verifier.encode()).digest()
        asked = {
            "response_type": "code",
            "client_id": self.client_id,
            "redirect_uri": login.redirect_uri,
            "scope": " ".join(self._config.scopes),
            "state": login.state,
            "nonce": login.nonce,
            "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        return str(url.update_query(asked))

    async def redeem(self, code: str, login: LoginRound) -> str:
        if self._redeeming >= REDEEMING_MAX:
            raise Unavailable("too many log in with the issuer's page at this moment")
        self._redeeming += 1
        try:
            return await self._redeem(code, login)
        except ProviderError as error:
            raise LoginRefused(str(error)) from None
        except InvalidToken as error:
            raise LoginRefused(f"the ID token: {error}") from None
        finally:
            self._redeeming -= 1

    async def _redeem(self, code: str, login: LoginRound) -> str:
        url = await self._provider.address("token_endpoint")
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": login.redirect_uri,
            "client_id": self.client_id,
            "code_verifier": login.verifier,
        }
        proof, headers = self._proof()
        answer = await self._provider.post(url, form | proof, headers)
        access_token, id_token = answer.get("access_token"), answer.get("id_token")
        if not isinstance(access_token, str) or not isinstance(id_token, str):
            raise ProviderError(f"{url}: the answer has no access_token or no id_token")
        claims = await self._claims(id_token)
        nonce = claims.get("nonce")
        if not isinstance(nonce, str) or not hmac.compare_digest(nonce.encode(), login.nonce.encode()):
            raise InvalidToken("its nonce is not that of this login")
        return access_token

    def _proof(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return the form fields and the headers that authenticate this client to the issuer (RFC 6749, 2.3.1).

        The secret is sent in a header, the standard's default, unless the issuer says that it accepts no secret there.
        """
        secret, methods = self._config.client_secret, self._provider.methods
        if secret is None:
            return {}, {}
        if isinstance(methods, list) and "client_secret_basic" not in methods:
            return {"client_secret": secret}, {}
        pair = f"{quote_plus(self.client_id)}:{quote_plus(secret)}"
        return {}, {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}

    async def _claims(self, id_token: str) -> dict[str, Any]:
        """Return the claims of an ID token that was issued to this client. Raises InvalidToken."""
        token = id_token.encode()
        renewed = asyncio.Event()
        if self._verifier.renew_keys(token, renewed.set):
            await renewed.wait()
        claims = self._verifier.claims(token, audience=self.client_id)
        audience = claims["aud"]
        if isinstance(audience, list) and len(audience) > 1 and claims.get("azp") != self.client_id:
            raise InvalidToken("it was issued to another client")
        return claims
