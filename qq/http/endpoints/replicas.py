"""Replicas of queues, for RabbitMQ's tools: all members of the cluster have every queue.

Invariant: a request that is already fulfilled succeeds. A request for different replicas of a single queue is refused
with a line that names the alternative.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from aiohttp import web

from qq.http.base.error_responses import Refusal, bad_request, not_found
from qq.http.base.login import ADMINISTRATORS, require
from qq.http.documents.parsing import field
from qq.http.documents.requests import done, existing, named_vhost, read_body
from qq.machine.protocol.queue_types import QUORUM
from qq.management.reports.members import NodeState

if TYPE_CHECKING:
    from qq.http.base.node_view import NodeView
    from qq.management.management import Management
    from qq.management.reports.members import NodeStatus
    from qq.management.reports.queues import QueueStatus

_QUEUE = "/api/queues/quorum/{vhost}/{name}"
_NOT_QUORUM = "classic_queue_not_supported"


class ReplicaEndpoints:
    """Handlers for replicas of queues."""

    def __init__(self, view: NodeView, management: Management) -> None:
        self._view = view
        self._management = management

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get(f"{_QUEUE}/status", self.status),
            web.post(f"{_QUEUE}/replicas/add", self.add),
            web.delete(f"{_QUEUE}/replicas/delete", self.delete),
            web.post("/api/queues/quorum/replicas/on/{node}/grow", self.grow),
            web.delete("/api/queues/quorum/replicas/on/{node}/shrink", self.shrink),
            web.post("/api/rebalance/queues", self.rebalance),
        ]

    async def status(self, request: web.Request) -> web.Response:
        await self._queue(request)
        status = self._view.cluster_status()
        return web.json_response([_row(node, status.version) for node in status.nodes])

    async def add(self, request: web.Request) -> web.Response:
        require(request, ADMINISTRATORS)
        await self._queue(request)
        self._check_member(field(await read_body(request), "node", str))
        return done()

    async def delete(self, request: web.Request) -> web.Response:
        require(request, ADMINISTRATORS)
        await self._queue(request)
        node = field(await read_body(request), "node", str)
        if node not in self._management.members.names():
            return web.Response(status=HTTPStatus.ACCEPTED)
        raise self._refusal(node)

    async def grow(self, request: web.Request) -> web.Response:
        require(request, ADMINISTRATORS)
        if request.match_info["node"] not in self._management.members.names():
            raise not_found()
        body = await read_body(request)
        for name in ("vhost_pattern", "queue_pattern", "strategy"):
            field(body, name, str)
        return done()

    async def shrink(self, request: web.Request) -> web.Response:
        require(request, ADMINISTRATORS)
        node = request.match_info["node"]
        if node not in self._management.members.names():
            raise not_found()
        raise self._refusal(node)

    async def rebalance(self, request: web.Request) -> web.Response:
        """Answer that the leaders are balanced, because a single leader leads all queues."""
        require(request, ADMINISTRATORS)
        return done()

    async def _queue(self, request: web.Request) -> QueueStatus:
        """Return the quorum queue in the path. Raises Refusal."""
        vhost, name = await named_vhost(request, self._management), request.match_info["name"]
        queue = await existing(self._management, lambda: self._management.queues.find(vhost, name))
        if queue.type != QUORUM:
            raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, _NOT_QUORUM)
        return queue

    def _check_member(self, node: str) -> None:
        if node not in self._management.members.names():
            raise bad_request(
                f"{node} is no node of this cluster: `qq member add {node}` makes it one, and gives it every queue"
            )

    def _refusal(self, node: str) -> Refusal:
        return bad_request(
            f"every member has every queue: `qq member remove {node}` takes it from all of them, `qq drain {node}` "
            "has it lead none"
        )


def _row(node: NodeStatus, version: int) -> dict[str, Any]:
    """Return a row of a queue's status, which is that of the log. Unknown values are empty, as in RabbitMQ."""
    is_up = node.state not in (NodeState.DOWN, NodeState.UNKNOWN)
    figures = {
        "Membership": node.role,
        "Last Log Index": node.last_index,
        "Last Written": node.last_index,
        "Last Applied": node.applied_index,
        "Commit Index": node.commit_index,
        "Snapshot Index": node.checkpoint_index,
        "Term": node.term,
        "Machine Version": version,
    }
    return {"Node Name": node.name, "Raft State": node.state if is_up else "noproc"} | {
        name: figure if is_up and figure is not None else "" for name, figure in figures.items()
    }
