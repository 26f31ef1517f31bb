"""What operators do with nodes: move the leadership, and ask whether a node may stop.

Lives here: their paths and statuses, two of them RabbitMQ's. Not here: the judgement (cluster/fitness.py), what waits
until it is done (management/leadership.py).

Law: a check is answered with 200 if all is well, and else with 503 and the reason, as RabbitMQ's health checks.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from aiohttp import web

from qq.http.bodies import field
from qq.http.errors import bad_request
from qq.http.login import ADMINISTRATORS, require
from qq.http.requests import read_body, write_object

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qq.http.view import ManagementView

_CRITICAL = "There are quorum queues that would lose their quorum if the target node is shut down"
"""RabbitMQ's text for a critical node, which some tools look for."""
_OK: dict[str, Any] = {"status": "ok"}
_FAILED: dict[str, Any] = {"status": "failed"}


class OperationEndpoints:
    """The handlers for transfers of leadership, health checks and the end of an upgrade."""

    def __init__(self, management: ManagementView) -> None:
        self._management = management

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/cluster/leader", self.leader),
            web.put("/api/cluster/leader", self.transfer),
            web.get("/api/health/checks/safe-to-stop", self.safe_to_stop),
            web.get("/api/health/checks/safe-to-stop/{name}", self.safe_to_stop),
            web.get("/api/health/checks/node-is-quorum-critical", self.quorum_critical),
        ]

    async def leader(self, _: web.Request) -> web.Response:
        return web.json_response({"leader": self._management.leader()})

    async def transfer(self, request: web.Request) -> web.Response:
        require(request, ADMINISTRATORS)
        body = await read_body(request, optional=True)
        unknown = sorted(body.keys() - {"to"})
        if unknown:
            raise bad_request(f"there is no '{unknown[0]}'; 'to' names the node that shall lead")
        to = field(body, "to", str) if "to" in body else None
        return web.json_response({"leader": await self._management.transfer_leadership(to)})

    async def safe_to_stop(self, request: web.Request) -> web.Response:
        verdict = self._management.may_stop(request.match_info.get("name"))
        if verdict.is_safe:
            return web.json_response(_OK | {"reason": verdict.text})
        return web.json_response(_FAILED | {"reason": verdict.text}, status=HTTPStatus.SERVICE_UNAVAILABLE)

    async def quorum_critical(self, request: web.Request) -> web.StreamResponse:
        if len(self._management.members()) == 1:
            return web.json_response(_OK | {"reason": "single node cluster"})
        if self._management.may_stop(None).is_safe:
            return web.json_response(_OK)
        failed = _FAILED | {"reason": _CRITICAL}
        return await write_object(request, failed, {"queues": self._queues()}, HTTPStatus.SERVICE_UNAVAILABLE)

    def _queues(self) -> Iterator[dict[str, str]]:
        """All queues, as RabbitMQ lists queues that would lose their majority: all are in the same log."""
        for queue in self._management.queues(None):
            readable_name = f"queue '{queue.name}' in vhost '{queue.vhost}'"
            yield {
                "readable_name": readable_name,
                "name": queue.name,
                "virtual_host": queue.vhost,
                "type": "rabbit_quorum_queue",
            }
