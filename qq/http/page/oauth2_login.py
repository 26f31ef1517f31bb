"""Logging in to the page with the page of who issues tokens (OAuth 2, OpenID Connect).

A browser goes to `OAUTH2_LOGIN_PATH`, from there to the issuer, comes back to `CALLBACK_PATH`, and has the cookie of a
web session then. In between it keeps a cookie that no script can read: the seed of the round. Each round has one of its
own, so that somebody may log in in several tabs at once.

Invariant: no token is in an address, or where a script could read it. Nobody is logged in who has not begun the round
in the same browser (`state`), with the code of another round (`nonce`, PKCE), or by another issuer.
"""

from __future__ import annotations

import hmac
import logging
import re
import secrets
from base64 import urlsafe_b64encode
from http import HTTPStatus
from typing import TYPE_CHECKING

from aiohttp import hdrs, web

from cluster.net.log_throttle import Complaints
from qq.http.base.error_responses import Refusal, not_found
from qq.http.base.login import (
    AUTH_PATH,
    CALLBACK_PATH,
    OAUTH2_LOGIN_PATH,
    authenticated,
    cookie_name,
    host,
    is_encrypted,
    set_cookie,
)
from qq.http.endpoints.sessions import set_session_cookie
from qq.http.view import LoginRefused, LoginRound, LoginThrottled, Unavailable

if TYPE_CHECKING:
    from qq.http.view import LoginProvider, ManagementView, NodeView

log = logging.getLogger(__name__)

ROUND_S = 600
"""How long somebody may take at the issuer's page."""
ROUNDS_MAX = 8
"""How many rounds a browser keeps: it sends all its cookies with each request."""
_KEY_LENGTH = 8
"""How much of its `state` the cookie of a round has in its name."""
_SEED_BYTES = 32
_SEED_LENGTH = 43
"""Characters of a seed, in base64."""
_NOT_BEGUN = "it was not begun in this browser, or too long ago (state)"
COMPLAINTS_PER_S = 50
"""Lines of each kind that are logged in a second: anybody may come here, as often as they like."""
REFUSED, UNAVAILABLE = "refused", "unavailable"
"""What the page is told of a login that has failed; the log has the reason."""


class OAuth2Endpoints:
    """The handlers of a login with the issuer's page."""

    def __init__(self, view: NodeView, management: ManagementView) -> None:
        self._view = view
        self._management = management
        self._complaints = Complaints(log, COMPLAINTS_PER_S)

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get(AUTH_PATH, self.auth),
            web.get(OAUTH2_LOGIN_PATH, self.login),
            web.get(CALLBACK_PATH, self.callback),
        ]

    async def auth(self, _: web.Request) -> web.Response:
        """Tell which other page logs in, as RabbitMQ does."""
        provider = self._view.login_provider
        if provider is None:
            return web.json_response({"oauth_enabled": False})
        return web.json_response(
            {
                "oauth_enabled": True,
                "oauth_client_id": provider.client_id,
                "oauth_provider_url": provider.issuer,
            }
        )

    async def login(self, request: web.Request) -> web.Response:
        provider = self._provider()
        seed = _text(secrets.token_bytes(_SEED_BYTES))
        begun = _round(request, seed)
        try:
            address = await provider.login_address(begun)
        except Unavailable as error:
            self._complaints.about("begin", f"nobody can log in with the issuer's page: {error}")
            return _to_page(UNAVAILABLE)
        response = web.Response(status=HTTPStatus.SEE_OTHER, headers={hdrs.LOCATION: address})
        for use in _rounds(request)[: 1 - ROUNDS_MAX]:  # browsers send the oldest ones first (RFC 6265, 5.4)
            _set_round_cookie(request, response, use, "", 0)
        _set_round_cookie(request, response, _use(begun.state), seed, ROUND_S)
        return response

    async def callback(self, request: web.Request) -> web.Response:
        """Take a browser that comes back from the issuer."""
        provider = self._provider()
        login = _login_begun(request)
        try:
            response = await self._logged_in(request, provider, login)
        except (LoginRefused, Refusal) as refused:
            text = f"a login with the issuer's page from {request.remote} is refused: {refused}"
            self._complaints.about("refused", text)
            response = _to_page(REFUSED)
        except (LoginThrottled, Unavailable) as error:
            text = f"a login with the issuer's page from {request.remote} is not decided: {error}"
            self._complaints.about("undecided", text)
            response = _to_page(UNAVAILABLE)
        if login is not None:
            _set_round_cookie(request, response, _use(login.state), "", 0)
        return response

    async def _logged_in(
        self, request: web.Request, provider: LoginProvider, login: LoginRound | None
    ) -> web.Response:
        query = request.query
        if login is None:
            raise LoginRefused(_NOT_BEGUN)
        if query.get("iss", provider.issuer) != provider.issuer:  # RFC 9207
            raise LoginRefused("another issuer has sent the browser")
        if "error" in query or "code" not in query:
            raise LoginRefused(f"the issuer says {query.get('error', '')[:100]!r}")
        token = await provider.redeem(query["code"], login)
        found = await authenticated(self._view, request, "", token)
        session = self._management.begin_vouched_session(found)
        if session is None:
            raise LoginRefused("the token says too much for the cookie of a browser, or is about to expire")
        response = _to_page("")
        set_session_cookie(request, response, session)
        return response

    def _provider(self) -> LoginProvider:
        provider = self._view.login_provider
        if provider is None:
            raise not_found("this node is logged in to with passwords: [oauth2] client_id is not set")
        return provider


def _login_begun(request: web.Request) -> LoginRound | None:
    """The round that was begun in this browser with the `state` that it comes back with; None if there is none."""
    told = request.query.get("state", "")
    seed = request.cookies.get(cookie_name(request, _use(told)), "")
    if len(seed) != _SEED_LENGTH or not seed.isascii():
        return None
    login = _round(request, seed)
    is_its = hmac.compare_digest(told.encode(errors="surrogateescape"), login.state.encode())
    return login if is_its else None


def _round(request: web.Request, seed: str) -> LoginRound:
    """What a login is recognised by: nobody can tell any of it from another one, without the seed."""
    state, nonce, verifier = (_derived(seed, use) for use in ("state", "nonce", "verifier"))
    scheme = "https" if is_encrypted(request) else "http"
    return LoginRound(f"{scheme}://{host(request)}{CALLBACK_PATH}", state, nonce, verifier)


def _derived(seed: str, use: str) -> str:
    return _text(hmac.digest(seed.encode(), use.encode(), "sha256"))


def _text(octets: bytes) -> str:
    return urlsafe_b64encode(octets).rstrip(b"=").decode()


def _to_page(failure: str) -> web.Response:
    address = f"/?login={failure}" if failure else "/"
    return web.Response(status=HTTPStatus.SEE_OTHER, headers={hdrs.LOCATION: address})


# --- the rounds' cookies


def _use(state: str) -> str:
    """What the cookie of a round is for, in its name."""
    return f"login-{state[:_KEY_LENGTH]}"


def _rounds(request: web.Request) -> list[str]:
    """What the cookies are for of the rounds that this browser has begun."""
    name = re.escape(cookie_name(request, _use("*"))).replace(r"\*", rf"([\w-]{{{_KEY_LENGTH}}})")
    matches = (re.fullmatch(name, cookie, re.ASCII) for cookie in request.cookies)
    return [_use(match[1]) for match in matches if match]


def _set_round_cookie(
    request: web.Request, response: web.Response, use: str, seed: str, lifetime_s: int
) -> None:
    # The browser comes back from another site, with which a strict one would stay behind.
    set_cookie(request, response, seed, lifetime_s, use=use, same_site="Lax")
