"""Login to the page through the issuer's page (OAuth 2, OpenID Connect).

A browser visits `OAUTH2_LOGIN_PATH`, is sent to the issuer, returns to `CALLBACK_PATH`, and then has the cookie of a
web session. Meanwhile it keeps the seed of this round in a cookie that scripts cannot read. Each round has a seed of
its own, so a user may log in from several tabs at once.

Invariant: no token is in a URL or readable by scripts. A login is refused if its round was not begun in the same
browser (`state`), if the code belongs to a different round (`nonce`, PKCE), or if it comes from a different issuer.
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

from cluster.net.log_throttle import ThrottledLog
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
from qq.http.base.node_view import LoginRefused, LoginRound
from qq.http.endpoints.sessions import set_session_cookie
from qq.management.errors import LoginThrottled, Unavailable

if TYPE_CHECKING:
    from qq.http.base.node_view import LoginProvider, NodeView
    from qq.management.management import Management

log = logging.getLogger(__name__)

ROUND_S = 600
"""Seconds that a user may take at the issuer's page."""
ROUNDS_MAX = 8
"""Rounds that a browser keeps at most, because it sends all its cookies with each request."""
_KEY_LENGTH = 8
"""Characters of its `state` in the name of a round's cookie."""
_SEED_BYTES = 32
_SEED_LENGTH = 43
"""Characters of a seed, in base64."""
_NOT_BEGUN = "it was not begun in this browser, or too long ago (state)"
LOG_LINES_PER_S = 50
"""Log lines of each kind per second at most, because these paths need no login."""
REFUSED, UNAVAILABLE = "refused", "unavailable"
"""Result of a failed login for the page; the log has the reason."""


class OAuth2Endpoints:
    """Handlers of a login through the issuer's page."""

    def __init__(self, view: NodeView, management: Management) -> None:
        self._view = view
        self._management = management
        self._throttled_log = ThrottledLog(log, LOG_LINES_PER_S)

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get(AUTH_PATH, self.auth),
            web.get(OAUTH2_LOGIN_PATH, self.login),
            web.get(CALLBACK_PATH, self.callback),
        ]

    async def auth(self, _: web.Request) -> web.Response:
        """Answer with the issuer's login page, as RabbitMQ does."""
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
            self._throttled_log.warning("begin", f"logins with the issuer's page fail: {error}")
            return _to_page(UNAVAILABLE)
        response = web.Response(status=HTTPStatus.SEE_OTHER, headers={hdrs.LOCATION: address})
        for use in _rounds(request)[: 1 - ROUNDS_MAX]:  # browsers send the oldest first (RFC 6265, 5.4)
            _set_round_cookie(request, response, use, "", 0)
        _set_round_cookie(request, response, _use(begun.state), seed, ROUND_S)
        return response

    async def callback(self, request: web.Request) -> web.Response:
        """Finish the login of a browser that returns from the issuer."""
        provider = self._provider()
        login = _login_begun(request)
        try:
            response = await self._logged_in(request, provider, login)
        except (LoginRefused, Refusal) as refused:
            text = f"a login with the issuer's page from {request.remote} is refused: {refused}"
            self._throttled_log.warning("refused", text)
            response = _to_page(REFUSED)
        except (LoginThrottled, Unavailable) as error:
            text = f"a login with the issuer's page from {request.remote} is not decided: {error}"
            self._throttled_log.warning("undecided", text)
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
        session = self._management.sessions.begin_vouched(found)
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
    """Return the round that this browser began with the `state` in the query, or None."""
    returned = request.query.get("state", "")
    seed = request.cookies.get(cookie_name(request, _use(returned)), "")
    if len(seed) != _SEED_LENGTH or not seed.isascii():
        return None
    login = _round(request, seed)
    is_its = hmac.compare_digest(returned.encode(errors="surrogateescape"), login.state.encode())
    return login if is_its else None


def _round(request: web.Request, seed: str) -> LoginRound:
    """Return a round's values, which are derived from the seed and are unpredictable without it."""
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
    """Return the name part of a round's cookie."""
    return f"login-{state[:_KEY_LENGTH]}"


def _rounds(request: web.Request) -> list[str]:
    """Return the name parts of the cookies of all rounds that this browser has begun."""
    name = re.escape(cookie_name(request, _use("*"))).replace(r"\*", rf"([\w-]{{{_KEY_LENGTH}}})")
    matches = (re.fullmatch(name, cookie, re.ASCII) for cookie in request.cookies)
    return [_use(match[1]) for match in matches if match]


def _set_round_cookie(
    request: web.Request, response: web.Response, use: str, seed: str, lifetime_s: int
) -> None:
    # The browser returns from a different site, where a strict cookie would not be sent.
    set_cookie(request, response, seed, lifetime_s, use=use, same_site="Lax")
