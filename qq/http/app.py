"""The HTTP application.

Lives here: what the node tells of itself (health, metrics, the cluster, the page), and the listening socket. Not here:
the broker's management (api.py), login (login.py), where the answers come from (view.py, metrics.py), the page
(static/).

Law: a request never reaches into the node, never holds the event loop for long, and whatever is wrong with it
is answered with a status and JSON.
"""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import hdrs, web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from qq.errors import StartError
from qq.http import api
from qq.http.errors import errors_as_json
from qq.http.login import login_required

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from qq.http.view import Management, NodeView

REQUEST_BYTES_MAX = 64 * 1024
"""Of a request's body, but for definitions: a policy is some lines."""
_STOP_TIMEOUT_S = 1.0
_STATIC = Path(__file__).parent / "static"
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self'",
    "X-Content-Type-Options": "nosniff",
}


def build_app(view: NodeView, management: Management, registry: CollectorRegistry) -> web.Application:
    """Make the application."""
    pages = _Pages(view, registry)
    app = web.Application(
        middlewares=[errors_as_json, login_required(view)],
        client_max_size=REQUEST_BYTES_MAX,
    )
    app.on_response_prepare.append(_add_headers)
    app.add_routes(
        [
            web.get("/", _page),
            web.get("/livez", _alive),
            web.get("/healthz", pages.health),
            web.get("/metrics", pages.metrics),
            web.get("/api/cluster", pages.cluster),
            *api.routes(management),
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


async def _alive(_: web.Request) -> web.Response:
    """Answer as long as the event loop turns: to end a node that is waiting for others would help nobody."""
    return web.json_response({"status": "ok"})


async def _page(_: web.Request) -> web.FileResponse:
    return web.FileResponse(_STATIC / "index.html")


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)
