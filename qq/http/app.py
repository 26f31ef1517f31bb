"""The HTTP application.

Invariant: a request never reaches into the node and never holds the event loop for long. Each failed request is
answered with a status and JSON.
"""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from pathlib import Path
from time import monotonic, thread_time
from typing import TYPE_CHECKING

from aiohttp import hdrs, web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from qq.http import api
from qq.http.base.door import READING
from qq.http.base.error_responses import errors_as_json
from qq.http.base.listener import HttpLimits
from qq.http.base.login import is_forwarded_tls, login_required
from qq.http.base.repeated_checks import RepeatedChecks
from qq.http.documents.prometheus import PER_OBJECT, ObjectExposition, info_lines
from qq.http.documents.requests import BODY_TIMEOUT_S
from qq.http.page import guides
from qq.http.page.health_events import cluster_document
from qq.http.server import HttpServer, requests_watched, tls_required, users_bounded
from qq.management.errors import Unavailable

if TYPE_CHECKING:
    import socket
    from collections.abc import Collection, Sequence

    from aiohttp.typedefs import Handler
    from prometheus_client import CollectorRegistry

    from qq.http.base.door import Door
    from qq.http.base.node_view import NodeView
    from qq.management.management import Management
    from qq.tls.handshakes import TlsHandshakes

REQUEST_BYTES_MAX = 64 * 1024
"""Largest body of a request, except for definitions. The next largest document, a policy, has a few lines."""
METRICS_SHARE = 20
"""Metrics are kept for this multiple of the processor time that they took. So a flood of requests takes about 5 %."""
_STATIC = Path(__file__).parent / "static"
_STATIC_PATH = "/static"
_HEADERS = {
    "Cache-Control": "no-store",
    # The page has its scripts and styles in files of their own, fetches from its own node only, and allows no frames.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; manifest-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    # With no-referrer, browsers would also hide the site of a page that sends a form.
    "Referrer-Policy": "same-origin",
}
_KEPT_IF_SAME = "no-cache"
"""Browsers cache the files of the page, and ask each time whether they have changed."""
_STRICT_TRANSPORT = "max-age=31536000"
"""A browser that came over a proxy's TLS uses only TLS for a year, at all ports of the host.

Without a proxy, the node's host may have other services without TLS.
"""


def reading_app(limits: HttpLimits, repeated: RepeatedChecks) -> web.Application:
    """Make the application for the time while the node reads its log: it reports that the node lives and reads."""
    app = web.Application(middlewares=[requests_watched, errors_as_json, tls_required])
    app[BODY_TIMEOUT_S] = limits.body_timeout_s
    app.on_response_prepare.append(_add_headers)
    app.add_routes(
        [
            web.get("/livez", _expecting_more(repeated, _alive)),
            web.get("/healthz", _expecting_more(repeated, _not_healthy_yet)),
            web.route("*", "/{path:.*}", _reading),
        ]
    )
    return app


def build_app(
    view: NodeView,
    management: Management,
    registry: CollectorRegistry,
    limits: HttpLimits | None = None,
    repeated: RepeatedChecks | None = None,
) -> web.Application:
    """Make the application of a node that has read its log. `repeated` gets the health checks."""
    limits, repeated = limits or HttpLimits(), repeated or RepeatedChecks()
    pages = _Pages(view, management, registry)
    app = web.Application(
        middlewares=[
            requests_watched,
            errors_as_json,
            tls_required,
            _options_answered,
            login_required(view, management, metrics_need_login=limits.metrics_need_login),
            users_bounded(limits),
        ],
        client_max_size=REQUEST_BYTES_MAX,
    )
    app[BODY_TIMEOUT_S] = limits.body_timeout_s
    app.on_response_prepare.append(_add_headers)
    of_api = api.routes(view, management, repeated, limits)
    app.add_routes(
        [
            web.get("/", _page),
            web.get("/livez", _expecting_more(repeated, _alive)),
            web.get("/healthz", _expecting_more(repeated, partial(_health, view))),
            web.get("/metrics", pages.metrics),
            web.get("/metrics/per-object", pages.metrics_per_object),
            web.get("/metrics/detailed", pages.metrics_detailed),
            web.get("/api/cluster", pages.cluster),
            *guides.routes(of_api),
            *of_api,
            web.static(_STATIC_PATH, _STATIC),
        ]
    )
    return app


@web.middleware
async def _options_answered(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer OPTIONS with the methods of the path, without a login, as RabbitMQ does: load balancers check with it."""
    if request.method != hdrs.METH_OPTIONS:
        return await handler(request)
    path = request.rel_url.raw_path.removesuffix("/") or "/"
    plain = request.rel_url.with_path(path, encoded=True)
    problem = (await request.app.router.resolve(request.clone(rel_url=plain))).http_exception
    if not isinstance(problem, web.HTTPMethodNotAllowed):
        return await handler(request)
    return web.Response(
        headers={hdrs.ALLOW: ", ".join(sorted({*problem.allowed_methods, hdrs.METH_OPTIONS}))}
    )


async def serve(
    app: web.Application,
    listeners: Sequence[socket.socket],
    limits: HttpLimits | None = None,
    door: Door | None = None,
    handshakes: TlsHandshakes | None = None,
) -> HttpServer:
    """Serve connections to these sockets until the result's `cleanup()`, which closes the sockets, too.

    With a `door`, that accepts the connections. With `handshakes`, requests without TLS are redirected.
    """
    server = HttpServer(app, limits or HttpLimits(), handshakes)
    await server.serve(listeners, door)
    return server


class _Pages:
    """Handlers for the metrics and the status of the node."""

    def __init__(self, view: NodeView, management: Management, registry: CollectorRegistry) -> None:
        self._view = view
        self._management = management
        self._objects = ObjectExposition()
        self._registry = registry
        self._metrics = b""
        self._metrics_until_s = 0.0

    async def metrics(self, _: web.Request) -> web.Response:
        """Answer with the metrics. They are cached, because gathering is costly and requests need no login.

        The cost is measured in processor time. So the cache time stays short when the machine is busy or the process is
        stopped while metrics are gathered.
        """
        if monotonic() >= self._metrics_until_s:
            began_s = thread_time()
            self._metrics = generate_latest(self._registry)
            took_s = thread_time() - began_s
            self._metrics_until_s = monotonic() + took_s * METRICS_SHARE
        return web.Response(body=self._metrics, headers={hdrs.CONTENT_TYPE: CONTENT_TYPE_LATEST})

    async def metrics_per_object(self, request: web.Request) -> web.StreamResponse:
        """Answer with the metrics of each queue."""
        return await self._of_objects(request, PER_OBJECT, None, "per-object", "rabbitmq_")

    async def metrics_detailed(self, request: web.Request) -> web.StreamResponse:
        """Answer with the requested families of metrics, of all virtual hosts or of the named virtual hosts."""
        families = request.query.getall("family", [])
        vhosts = request.query.getall("vhost", None)
        return await self._of_objects(request, families, vhosts, "detailed", "rabbitmq_detailed_")

    async def _of_objects(
        self,
        request: web.Request,
        families: Collection[str],
        vhosts: Collection[str] | None,
        endpoint: str,
        prefix: str,
    ) -> web.StreamResponse:
        tables = self._management.metrics.tables(families, vhosts)

        def infos() -> str:
            return "".join(info_lines(name, *info) for name, info in self._view.infos(endpoint).items())

        return await self._objects.write(request, tables, prefix, infos)

    async def cluster(self, _: web.Request) -> web.Response:
        return web.json_response(cluster_document(self._view))


def _expecting_more(repeated: RepeatedChecks, check: Handler) -> Handler:
    """Return a handler of a check. After a check over TLS, the thread answers further checks from that address."""

    async def handle(request: web.Request) -> web.StreamResponse:
        response = await check(request)
        if request.secure:
            repeated.expect_tls(request.remote or "")
            response.force_close()  # the thread answers only the first request of a connection
        return response

    return handle


async def _health(view: NodeView, _: web.Request) -> web.Response:
    reason = view.ready()
    return web.json_response({"status": "ok"}) if reason is None else _unhealthy(reason)


async def _not_healthy_yet(_: web.Request) -> web.Response:
    return _unhealthy(READING)


def _unhealthy(reason: str) -> web.Response:
    return web.json_response({"status": "failed", "reason": reason}, status=HTTPStatus.SERVICE_UNAVAILABLE)


async def _reading(_: web.Request) -> web.Response:
    raise Unavailable(READING)


async def _alive(_: web.Request) -> web.Response:
    """Answer while the event loop runs, because a restart would not help a node that waits for other nodes."""
    return web.json_response({"status": "ok"})


async def _page(_: web.Request) -> web.FileResponse:
    return web.FileResponse(_STATIC / "index.html")


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)
    if is_forwarded_tls(request):
        response.headers["Strict-Transport-Security"] = _STRICT_TRANSPORT
    if request.path.startswith(_STATIC_PATH):
        response.headers[hdrs.CACHE_CONTROL] = _KEPT_IF_SAME
