"""Connections of all nodes.

Lives here: their paths and statuses. Not here: how one is closed (machine/connecting.py).

Law: monitors see everybody's connections and administrators close them; others see and close their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from qq.http.documents import connection_document
from qq.http.errors import unauthorized
from qq.http.lists import Listing, narrowed, write_listing
from qq.http.login import ADMINISTRATORS, MONITORS, login_of
from qq.http.requests import done, existing, vhost_if_named
from qq.machine.commands import CloseConnection

if TYPE_CHECKING:
    from qq.http.view import ConnectionStatus, ManagementView

REASON_HEADER = "X-Reason"
REASON = "Closed via management plugin"
"""The reason that a client is told if whoever closes its connection gives none. It is RabbitMQ's text."""
REASON_BYTES_MAX = 200
"""The longest reason: it has to fit in the text that a client is told, behind what comes first."""


class ConnectionEndpoints:
    """The handlers for connections."""

    def __init__(self, management: ManagementView) -> None:
        self._management = management

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/connections", self.connections),
            web.get("/api/vhosts/{vhost}/connections", self.connections),
            web.get("/api/connections/username/{user}", self.connections),
            web.delete("/api/connections/username/{user}", self.close_all),
            web.get("/api/connections/{name}", self.connection),
            web.delete("/api/connections/{name}", self.close),
        ]

    async def connections(self, request: web.Request) -> web.StreamResponse:
        return await write_listing(request, Listing(map(connection_document, await self._matching(request))))

    async def connection(self, request: web.Request) -> web.Response:
        connection = await self._existing(request)
        login = login_of(request)
        if not login.has_one_of(MONITORS) and login.user != connection.user:
            raise unauthorized("User not authorised to access object")
        return narrowed(request, connection_document(connection))

    async def close(self, request: web.Request) -> web.Response:
        connection = await self._existing(request)
        _check_closer(request, connection.user)
        await self._management.change(_closing(request, connection))
        return done()

    async def close_all(self, request: web.Request) -> web.Response:
        _check_closer(request, request.match_info["user"])
        await self._management.wait_applied()
        connections = await self._matching(request)
        await self._management.change(*(_closing(request, connection) for connection in connections))
        return done()

    async def _matching(self, request: web.Request) -> list[ConnectionStatus]:
        """The connections of the user or virtual host in the path, as far as the one who asks may see them."""
        vhost = await vhost_if_named(request, self._management, MONITORS)
        user = request.match_info.get("user")
        login = login_of(request)
        own = None if login.has_one_of(MONITORS) else login.user
        return [
            each
            for each in self._management.connections()
            if vhost in (None, each.vhost) and user in (None, each.user) and own in (None, each.user)
        ]

    async def _existing(self, request: web.Request) -> ConnectionStatus:
        """The connection that the path names. Raises Refusal."""
        name = request.match_info["name"]

        def look() -> ConnectionStatus | None:
            return next((each for each in self._management.connections() if each.name == name), None)

        return await existing(self._management, look)


def _check_closer(request: web.Request, user: str) -> None:
    login = login_of(request)
    if not login.has_one_of(ADMINISTRATORS) and login.user != user:
        raise unauthorized("User not authorised to access object")


def _closing(request: web.Request, connection: ConnectionStatus) -> CloseConnection:
    reason = request.headers.get(REASON_HEADER) or REASON
    # Octets of a header that are no UTF-8 arrive as halves of surrogate pairs.
    octets = reason.encode(errors="replace")[:REASON_BYTES_MAX]
    return CloseConnection(connection.node, connection.id, octets.decode(errors="ignore"))
