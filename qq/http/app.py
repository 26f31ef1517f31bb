"""The HTTP application.

Lives here: routes, login, errors as JSON, and the listening socket.
Not here: where the answers come from (view.py, metrics.py), the page (static/).

Law: a request never reaches into the node, never holds the event loop for long, and whatever is wrong with it
is answered with a status and JSON.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import json
import logging
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import hdrs, web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from qq.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from prometheus_client import CollectorRegistry

    from qq.http.view import NodeView

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_QUEUES_PER_SLICE = 200  # about a millisecond of encoding, then other tasks run
_STOP_TIMEOUT_S = 1.0
_STATIC = Path(__file__).parent / "static"
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self'",
    "X-Content-Type-Options": "nosniff",
}

log = logging.getLogger(__name__)


def build_app(
    view: NodeView, registry: CollectorRegistry, loopback_users: Collection[str] = ("guest",)
) -> web.Application:
    """Make the application; `loopback_users` may log in from this machine only."""
    pages = _Pages(view, registry)
    app = web.Application(middlewares=[_errors_as_json, _login_required(view, loopback_users)])
    app.on_response_prepare.append(_add_headers)
    app.add_routes(
        [
            web.get("/", _page),
            web.get("/healthz", pages.health),
            web.get("/metrics", pages.metrics),
            web.get("/api/cluster", pages.cluster),
            web.get("/api/queues", pages.queues),
            web.static("/static", _STATIC),
        ]
    )
    return app


async def listen(app: web.Application, host: str, port: int) -> web.AppRunner:
    """Serve until the result's `cleanup()`; raises StartError if the address cannot be used."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_STOP_TIMEOUT_S)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        await runner.cleanup()
        raise StartError(f"HTTP cannot listen on {host}:{port}: {error.strerror}") from None
    return runner


class _Pages:
    """The handlers that ask the node."""

    def __init__(self, view: NodeView, registry: CollectorRegistry) -> None:
        self._view = view
        self._registry = registry

    async def health(self, _: web.Request) -> web.Response:
        reason = self._view.ready()
        if reason is None:
            return web.json_response({"status": "ok"})
        return web.json_response(
            {"status": "failed", "reason": reason}, status=HTTPStatus.SERVICE_UNAVAILABLE
        )

    async def metrics(self, _: web.Request) -> web.Response:
        body = generate_latest(self._registry)
        return web.Response(body=body, headers={hdrs.CONTENT_TYPE: CONTENT_TYPE_LATEST})

    async def cluster(self, _: web.Request) -> web.Response:
        status = self._view.cluster_status()
        nodes = [node._asdict() for node in status.nodes]
        return web.json_response(status._asdict() | {"nodes": nodes})

    async def queues(self, request: web.Request) -> web.StreamResponse:
        """Write the list in slices: there may be tens of thousands of queues."""
        queues = self._view.queues()
        response = web.StreamResponse(headers={hdrs.CONTENT_TYPE: "application/json; charset=utf-8"})
        await response.prepare(request)
        separator = "["
        for start in range(0, len(queues), _QUEUES_PER_SLICE):
            part = [
                queue._asdict() | {"messages": queue.messages_ready + queue.messages_unacknowledged}
                for queue in queues[start : start + _QUEUES_PER_SLICE]
            ]
            await response.write((separator + json.dumps(part)[1:-1]).encode())
            separator = ","
            await asyncio.sleep(0)
        await response.write(b"]" if queues else b"[]")
        await response.write_eof()
        return response


async def _page(_: web.Request) -> web.FileResponse:
    return web.FileResponse(_STATIC / "index.html")


# --- around every request


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status < HTTPStatus.BAD_REQUEST:
            raise
        kept: dict[str, str] = {
            name: error.headers[name] for name in (hdrs.ALLOW, hdrs.WWW_AUTHENTICATE) if name in error.headers
        }
        return _error(error.status, error.reason, kept)
    except Exception:
        log.exception("%s %s failed", request.method, request.path)
        return _error(HTTPStatus.INTERNAL_SERVER_ERROR, "an error in qq; the node's log has it", {})


def _error(status: int, reason: str, headers: Mapping[str, str]) -> web.Response:
    body = {"error": HTTPStatus(status).name.lower(), "reason": reason}
    return web.json_response(body, status=status, headers=headers)


def _login_required(
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
            if not allowed or not await view.authenticate(user, password):
                raise _unauthorized("login was refused")
        return await handler(request)

    return check


def _credentials(request: web.Request) -> tuple[str, str]:
    scheme, _, encoded = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    try:
        user, colon, password = base64.b64decode(encoded, validate=True).decode().partition(":")
    except ValueError:  # not base64, or not UTF-8
        user = colon = password = ""
    if scheme.lower() != "basic" or not colon:
        raise _unauthorized("a user and a password are needed (basic authentication)")
    return user, password


def _unauthorized(reason: str) -> web.HTTPUnauthorized:
    return web.HTTPUnauthorized(
        reason=reason, headers={hdrs.WWW_AUTHENTICATE: 'Basic realm="qq", charset="UTF-8"'}
    )


def _from_loopback(request: web.Request) -> bool:
    try:
        return ipaddress.ip_address(request.remote or "").is_loopback
    except ValueError:  # no address is known
        return False


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)
