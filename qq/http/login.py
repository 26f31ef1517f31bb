"""Who asks, and whether they may.

Lives here: basic authentication against the cluster's users, and what their tags allow. Not here: passwords
(broker/broker.py).

Law: nothing below /api is told, not even that it does not exist, to somebody who has not logged in.
"""

from __future__ import annotations

import base64
import ipaddress
from typing import TYPE_CHECKING

from aiohttp import hdrs, web

from qq.http.errors import unauthorized

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from qq.http.errors import Handler
    from qq.http.view import NodeView

ADMINISTRATOR = "administrator"
POLICYMAKER = "policymaker"
READERS = frozenset({"management", "monitoring", POLICYMAKER, ADMINISTRATOR})
"""Tags of RabbitMQ's users; each of these lets its user read everything."""

_TAGS = web.RequestKey("tags", frozenset[str])


def login_required(
    view: NodeView, loopback_users: Collection[str]
) -> Callable[..., Awaitable[web.StreamResponse]]:
    """Make the middleware that guards the page and everything below /api, also what does not exist there.

    The page holds no secret, but a browser asks for the password when it opens a page, not when a script fetches.
    """

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path == "/" or request.path.startswith("/api"):
            user, password = _credentials(request)
            allowed = user not in loopback_users or _from_loopback(request)
            tags = await view.authenticate(user, password) if allowed else None
            if tags is None:
                raise unauthorized("login was refused")
            request[_TAGS] = frozenset(tags)
            require(request, READERS)
        return await handler(request)

    return check


def require(request: web.Request, tags: Collection[str]) -> None:
    """Refuse a user who has none of these tags."""
    if request[_TAGS].isdisjoint(tags):
        raise unauthorized(f"the user needs one of the tags {', '.join(sorted(tags))}")


def _credentials(request: web.Request) -> tuple[str, str]:
    scheme, _, encoded = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    try:
        user, colon, password = base64.b64decode(encoded, validate=True).decode().partition(":")
    except ValueError:  # not base64, or not UTF-8
        user = colon = password = ""
    if scheme.lower() != "basic" or not colon:
        raise unauthorized("a user and a password are needed (basic authentication)")
    return user, password


def _from_loopback(request: web.Request) -> bool:
    try:
        return ipaddress.ip_address(request.remote or "").is_loopback
    except ValueError:  # no address is known
        return False
