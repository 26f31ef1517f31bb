"""Who makes a request, and whether they may.

Lives here: basic authentication against the cluster's users, and what their tags allow. Not here: passwords
and who may log in from where (sessions/login.py), which virtual hosts somebody sees (requests.py).

Two laws. Nothing below /api is told, not even that it does not exist, to somebody who has not logged in, but for the
checks that RabbitMQ's load balancers make without a login. And no page of another site can have a browser change
anything with the password that the browser remembers.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, NamedTuple

from aiohttp import hdrs, web
from yarl import URL

from qq.http.errors import forbidden, unauthorized

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from qq.http.errors import Handler
    from qq.http.view import NodeView

ADMINISTRATOR = "administrator"
MONITORING = "monitoring"
POLICYMAKER = "policymaker"
READERS = frozenset({"management", MONITORING, POLICYMAKER, ADMINISTRATOR})
"""Tags of users; a user who has none of these may not log in here."""
MONITORS = frozenset({MONITORING, ADMINISTRATOR})
"""Users with one of these tags see all virtual hosts and everybody's connections."""
ADMINISTRATORS = frozenset({ADMINISTRATOR})
POLICYMAKERS = frozenset({POLICYMAKER, ADMINISTRATOR})

LOGIN_PATH = "/api/login"
_CHECKS = (
    "below-node-connection-limit",
    "is-in-service",
    "ready-to-serve-clients",
    "reached-target-cluster-size",
)
OPEN_PATHS = frozenset({LOGIN_PATH, *(f"/api/health/checks/{check}" for check in _CHECKS)})
"""What needs no login below /api, with or without a slash at its end."""

SAFE_METHODS = frozenset({hdrs.METH_GET, hdrs.METH_HEAD, hdrs.METH_OPTIONS})
"""Methods that change nothing."""


class Operator(NamedTuple):
    """The user who has logged in and makes a request."""

    user: str
    tags: frozenset[str]

    def has_one_of(self, tags: Collection[str]) -> bool:
        return not self.tags.isdisjoint(tags)


_LOGIN = web.RequestKey("login", Operator)


def login_required(view: NodeView) -> Callable[..., Awaitable[web.StreamResponse]]:
    """Make the middleware that guards the page and everything below /api, also what does not exist there.

    The page holds no secret, but a browser asks for the password when it opens a page, not when a script fetches.
    """

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        is_guarded = request.path == "/" or request.path.startswith("/api")
        if is_guarded and request.path.removesuffix("/") not in OPEN_PATHS:
            request[_LOGIN] = await log_in(view, request, *_credentials(request))
            check_origin(request)
        return await handler(request)

    return check


async def log_in(view: NodeView, request: web.Request, user: str, password: str) -> Operator:
    """The user who makes a request with this password. Raises Refusal, LoginThrottled, Unavailable."""
    tags = await view.authenticate(user, password, request.remote or "")
    if tags is None:
        raise unauthorized("login was refused")
    operator = Operator(user, frozenset(tags))
    _require(operator, READERS)
    return operator


def has_login(request: web.Request) -> bool:
    return _LOGIN in request


def login_of(request: web.Request) -> Operator:
    return request[_LOGIN]


def require(request: web.Request, tags: Collection[str]) -> None:
    """Refuse a user who has none of these tags."""
    _require(login_of(request), tags)


def _require(operator: Operator, tags: Collection[str]) -> None:
    if not operator.has_one_of(tags):
        raise unauthorized(f"the user needs one of the tags {', '.join(sorted(tags))}")


def check_origin(request: web.Request) -> None:
    """Refuse what a browser sends from a page of another site; it says so with everything that is no mere GET."""
    origin = request.headers.get(hdrs.ORIGIN)
    if origin is None or request.method in SAFE_METHODS:
        return
    try:
        is_ours = URL(origin).authority == request.host
    except ValueError:
        is_ours = False
    if not is_ours:
        raise forbidden("a page of another site may not change anything")


def _credentials(request: web.Request) -> tuple[str, str]:
    scheme, _, encoded = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    try:
        user, colon, password = base64.b64decode(encoded, validate=True).decode().partition(":")
    except ValueError:  # not base64, or not UTF-8
        user = colon = password = ""
    if scheme.lower() != "basic" or not colon:
        raise unauthorized("a user and a password are needed (basic authentication)")
    return user, password
