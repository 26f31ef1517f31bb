"""Pages for visitors of RabbitMQ's addresses `/api/index.html` and `/cli/index.html`.

Invariant: the pages need no login, so they contain the same for every node: no names, no settings.
"""

from __future__ import annotations

from html import escape
from http import HTTPStatus
from typing import TYPE_CHECKING

from aiohttp import hdrs, web

from qq.http.base.error_responses import not_found

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

_API_PAGE = "/api/index.html"
_CLI_PAGE = "/cli/index.html"
_ANY_NAME = ":[^/]+"
"""Pattern of a name in the path of a route."""
_RABBITMQADMIN = (
    "this node has no copy of rabbitmqadmin, which is a program of RabbitMQ: take it from there, because both of its "
    "versions work with this node, or use this node's command line, `qq`"
)
_CLI = """<p>The command line of this node is <code>qq</code>; <code>qq --help</code> lists its commands, which have the
names of <code>rabbitmqadmin</code>. <code>rabbitmqadmin</code> itself works, too: take it from RabbitMQ.</p>
<pre>qq list queues --url http://HOST:15672
rabbitmqadmin --host HOST list queues</pre>"""


def routes(api: Iterable[web.RouteDef]) -> list[web.RouteDef]:
    """Return the routes of the pages; `api` are the routes that the page of the API lists."""
    rows = sorted(
        (route.path.replace(_ANY_NAME, ""), route.method) for route in api if route.method != hdrs.METH_ANY
    )
    paths: dict[str, list[str]] = {}
    for path, method in rows:
        paths.setdefault(path, []).append(method)
    table = "".join(
        f"<tr><td><code>{escape(path)}</code></td><td>{', '.join(methods)}</td></tr>"
        for path, methods in paths.items()
    )
    api_page = _page("HTTP API of qq", f"<table><tr><th>Path</th><th>Methods</th></tr>{table}</table>")
    cli_page = _page("Command line of qq", _CLI)

    async def show_api(_: web.Request) -> web.Response:
        return _html(api_page)

    async def show_cli(_: web.Request) -> web.Response:
        return _html(cli_page)

    return [
        web.get(_API_PAGE, show_api),
        web.get(_CLI_PAGE, show_cli),
        web.get("/cli/rabbitmqadmin", _no_rabbitmqadmin),
        *(web.get(path, _moved(_API_PAGE)) for path in ("/api", "/api/", "/doc/stats.html")),
        *(web.get(path, _moved(_CLI_PAGE)) for path in ("/cli", "/cli/")),
        web.get("/index.html", _moved("/")),
    ]


def _page(title: str, body: str) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>'
        f"<body><h1>{title}</h1>{body}</body></html>"
    )


def _html(page: str) -> web.Response:
    return web.Response(text=page, content_type="text/html")


async def _no_rabbitmqadmin(_: web.Request) -> web.Response:
    raise not_found(_RABBITMQADMIN)


def _moved(path: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=HTTPStatus.MOVED_PERMANENTLY, headers={hdrs.LOCATION: path})

    return answer
