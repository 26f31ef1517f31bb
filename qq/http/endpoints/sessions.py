"""Login and logout of the page: a web session, whose token is in the browser's cookie.

Invariant: a page of a different site can neither log users in nor out.
"""

from __future__ import annotations

from time import time
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from aiohttp import web

from qq.http.base.error_responses import bad_request, unauthorized
from qq.http.base.login import (
    LOGIN_PATH,
    SESSION_PATH,
    check_csrf,
    check_origin,
    log_in,
    session_of,
    set_cookie,
)
from qq.http.documents.parsing import field, read_object
from qq.http.documents.requests import done, read_raw

if TYPE_CHECKING:
    from qq.http.base.node_view import NodeView
    from qq.management.management import Management
    from qq.management.reports.logins import WebLogin

_FIELDS = ("username", "password")


class LoginEndpoints:
    """Handlers of web sessions."""

    def __init__(self, view: NodeView, management: Management) -> None:
        self._view = view
        self._management = management

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post(LOGIN_PATH, self.login),
            web.delete(LOGIN_PATH, self.logout),
            web.get(SESSION_PATH, self.session),
            web.delete(SESSION_PATH, self.logout),
        ]

    async def login(self, request: web.Request) -> web.Response:
        check_origin(request)
        user, password = await _credentials(request)
        operator = await log_in(self._view, request, user, password)
        if operator.scopes is not None:  # it expires earlier than a session, and no browser keeps it
            raise unauthorized("a token is sent with each request, and begins no session")
        session = self._management.sessions.begin(operator.user)
        if session is None:
            raise unauthorized("login was refused")
        response = web.json_response(_document(session))
        set_session_cookie(request, response, session)
        return response

    async def session(self, request: web.Request) -> web.Response:
        session = await session_of(self._management, request)
        if session is None:
            raise unauthorized("there is no session: log in")
        return web.json_response(_document(session))

    async def logout(self, request: web.Request) -> web.Response:
        """End the session if it exists, and delete its cookie in any case."""
        check_origin(request)
        session = await session_of(self._management, request)
        if session is not None:
            check_csrf(request, session)
            await self._management.sessions.end(session.token)
        response = done()
        set_cookie(request, response, "", 0)
        return response


async def _credentials(request: web.Request) -> tuple[str, str]:
    """Return the user and the password in a form, or in JSON. Raises Refusal."""
    raw = await read_raw(request)
    if request.content_type == "application/json":
        body = read_object(raw)
        return field(body, "username", str), field(body, "password", str)
    try:
        form = parse_qs(raw.decode(), max_num_fields=len(_FIELDS) + 2)
    except ValueError:
        raise bad_request("the body is no form") from None
    user, password = (form.get(name, [""])[0] for name in _FIELDS)
    return user, password


def _document(session: WebLogin) -> dict[str, Any]:
    return {
        "name": session.user,
        "tags": sorted(session.tags),
        "csrf_token": session.csrf_token,
        "expiry": session.expires_s,
    }


def set_session_cookie(request: web.Request, response: web.Response, session: WebLogin) -> None:
    """Set the cookie of a session that has just begun."""
    set_cookie(request, response, session.token, session.expires_s - int(time()))
