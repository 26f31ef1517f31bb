"""RabbitMQ's login with a form: its page asks so whether a password is right, and then sends it with each request.

Lives here: the form. Not here: what a login is good for (login.py).

Law: nothing is kept of it; there are no sessions.
"""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from aiohttp import web

from qq.http.documents import whoami_document
from qq.http.errors import bad_request
from qq.http.login import LOGIN_PATH, check_origin, log_in
from qq.http.requests import done, read_raw

if TYPE_CHECKING:
    from qq.http.view import NodeView


class LoginEndpoints:
    """The handlers for a login by itself."""

    def __init__(self, view: NodeView) -> None:
        self._view = view

    def routes(self) -> list[web.RouteDef]:
        return [web.post(LOGIN_PATH, self.login), web.delete(LOGIN_PATH, self.logout)]

    async def login(self, request: web.Request) -> web.Response:
        check_origin(request)
        try:
            form = parse_qs((await read_raw(request)).decode(), max_num_fields=4)
        except ValueError:
            raise bad_request("the body is no form") from None
        user, password = (form.get(name, [""])[0] for name in ("username", "password"))
        operator = await log_in(self._view, request, user, password)
        token = b64encode(f"{user}:{password}".encode()).decode()
        return web.json_response(
            {"token": {"type": "basic", "value": token}, "user": whoami_document(operator)}
        )

    async def logout(self, _request: web.Request) -> web.Response:
        return done()
