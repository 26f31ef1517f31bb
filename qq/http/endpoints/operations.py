"""Leadership of the cluster: show and transfer it.

Invariant: leadership is transferred only to a node that can lead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from qq.http.base.error_responses import bad_request
from qq.http.base.login import ADMINISTRATORS, require
from qq.http.documents.parsing import field
from qq.http.documents.requests import read_body

if TYPE_CHECKING:
    from qq.management.management import Management


class OperationEndpoints:
    """Handlers for the leader."""

    def __init__(self, management: Management) -> None:
        self._management = management

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/cluster/leader", self.leader),
            web.put("/api/cluster/leader", self.transfer),
        ]

    async def leader(self, _: web.Request) -> web.Response:
        return web.json_response({"leader": self._management.leadership.leader()})

    async def transfer(self, request: web.Request) -> web.Response:
        require(request, ADMINISTRATORS)
        body = await read_body(request)
        unknown = sorted(body.keys() - {"to"})
        if unknown:
            raise bad_request(f"there is no '{unknown[0]}'; 'to' names the node that shall lead")
        to = field(body, "to", str) if "to" in body else None
        return web.json_response({"leader": await self._management.leadership.transfer(to)})
