"""Nodes: their resources and usage, and their counts of logins.

Invariant: for a node whose report is missing here, the document has only facts that the cluster knows.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from aiohttp import web

from qq.http.base.error_responses import Refusal, bad_request, not_found
from qq.http.base.login import ADMINISTRATORS, MONITORS, require
from qq.http.documents.lists import Listing, narrowed, write_listing
from qq.http.documents.requests import ERLANG_PREFIX, done, named_vhost
from qq.management.reports.members import NodeState
from qq.routing.exchanges import DELAYED, EXCHANGE_TYPES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qq.http.base.node_view import NodeView
    from qq.management.management import Management
    from qq.management.reports.members import ClusterStatus, NodeStatus
    from qq.management.reports.nodes import Listener, NodeReport

RATES_MODE = "basic"
"""RabbitMQ's word for rates of queues, exchanges and connections, without rates for each pair of them."""
NOT_AVAILABLE = "not_available"
"""RabbitMQ's word for the figures of a node that does not report them."""
_MECHANISMS = {
    "PLAIN": "SASL PLAIN",
    "AMQPLAIN": "QPid AMQPLAIN",
    "EXTERNAL": "SASL EXTERNAL with a certificate",
}


def exchange_types() -> list[dict[str, Any]]:
    return [{"name": name, "description": "", "enabled": True} for name in sorted([*EXCHANGE_TYPES, DELAYED])]


def listener_document(node: str, listener: Listener) -> dict[str, Any]:
    return {
        "node": node,
        "protocol": listener.protocol,
        "ip_address": listener.host,
        "port": listener.port,
        "socket_opts": {},
        "tls": listener.uses_tls,
    }


def context_documents(report: NodeReport) -> list[dict[str, Any]]:
    """Return the HTTP listeners of a node."""
    return [
        {
            "node": report.name,
            "description": "Management",
            "path": "/",
            "ip": each.host,
            "port": str(each.port),
        }
        for each in report.listeners
        if each.protocol in ("http", "https")
    ]


def node_document(status: NodeStatus, report: NodeReport | None) -> dict[str, Any]:
    """Return the document of a node. Unknown fields are left out."""
    document: dict[str, Any] = {
        "name": status.name,
        "type": "disc",
        "running": status.state not in (NodeState.DOWN, NodeState.UNKNOWN),
        "being_drained": status.drained,
        "partitions": [],
        "cluster_links": [],
    }
    if report is not None:
        return document | _figures(report)
    if document["running"] and status.disk_free_bytes is not None:
        document |= {"disk_free": status.disk_free_bytes, "disk_free_alarm": bool(status.alarm)}
    return document


def _figures(report: NodeReport) -> dict[str, Any]:
    each_write_ms = round(report.write_ms / report.writes, 3) if report.writes else 0.0
    return {
        "os_pid": str(report.pid),
        "uptime": report.uptime_ms,
        "processors": report.processors,
        "run_queue": report.run_queue,
        "context_switches": report.context_switches,
        "gc_num": report.collections,
        "mem_used": report.memory_bytes,
        "mem_limit": report.memory_limit_bytes,
        "mem_alarm": report.memory_alarm,
        "mem_calculation_strategy": "rss",
        "fd_used": report.files,
        "fd_total": report.files_max,
        "sockets_used": report.connections,
        "sockets_total": report.connections_max,
        "connection_created": report.connections_opened,
        "connection_closed": report.connections_closed,
        "channel_created": report.channels_opened,
        "channel_closed": report.channels_closed,
        "disk_free": report.disk_free_bytes,
        "disk_free_limit": report.disk_free_limit_bytes,
        "disk_free_alarm": report.disk_alarm,
        "io_write_count": report.writes,
        "io_write_avg_time": each_write_ms,
        "io_sync_count": report.writes,
        "io_sync_avg_time": each_write_ms,
        "db_dir": report.data_dir,
        "config_files": [],
        "log_files": [],
        "rates_mode": RATES_MODE,
        "enabled_plugins": [],
        "exchange_types": exchange_types(),
        "auth_mechanisms": [
            {"name": name, "description": description, "enabled": True}
            for name, description in _MECHANISMS.items()
        ],
        "applications": [{"name": "qq", "description": "qq", "version": report.release}],
        "contexts": context_documents(report),
        "queue_declared": report.queues_declared,
        **{f"{name}_details": {"rate": rate} for name, rate in report.rates.items()},
    }


class NodeEndpoints:
    """Handlers for nodes."""

    def __init__(self, view: NodeView, management: Management) -> None:
        self._view = view
        self._management = management

    def routes(self) -> list[web.RouteDef]:
        attempts = "/api/auth/attempts/{node}"
        return [
            web.get("/api/nodes", self.nodes),
            web.get("/api/nodes/{node}", self.node),
            web.get("/api/nodes/{node}/memory", self.memory),
            web.get("/api/nodes/{node}/memory/relative", self.memory_shares),
            web.get(attempts, self.attempts),
            web.get(f"{attempts}/source", self.attempts_by_source),
            web.delete(attempts, self.reset_attempts),
            web.delete(f"{attempts}/source", self.reset_attempts),
            web.post("/api/vhosts/{vhost}/start/{node}", self.start_vhost),
        ]

    async def nodes(self, request: web.Request) -> web.StreamResponse:
        require(request, MONITORS)
        reports = await self._management.nodes.reports()
        status = self._status()
        documents = (node_document(each, reports.get(each.name)) for each in status.nodes)
        return await write_listing(request, Listing(documents))

    async def node(self, request: web.Request) -> web.Response:
        status, report = await self._named(request)
        document = node_document(status, report)
        if request.query.get("memory") == "true":
            document["memory"] = await self._memory(report)
        return narrowed(request, document)

    async def memory(self, request: web.Request) -> web.Response:
        _, report = await self._named(request)
        return web.json_response({"memory": await self._memory(report)})

    async def memory_shares(self, request: web.Request) -> web.Response:
        _, report = await self._named(request)
        memory = await self._memory(report)
        return web.json_response({"memory": memory if report is None else _shares(memory, report)})

    async def _memory(self, report: NodeReport | None) -> Any:
        """Return the memory of a node: the kinds that the node knows, and the rest as a kind of its own."""
        if report is None:
            return NOT_AVAILABLE
        found, total = await self._management.nodes.memory(report.name), report.memory_bytes
        kinds = {kind: found.get(kind, 0) for kind in _KINDS_OF_MEMORY}
        # The process goes on while its memory is counted, so the kinds may be more than its total.
        rest = {_OTHER_MEMORY: max(0, total - sum(kinds.values()))}
        totals = {"erlang": total, "rss": total, "allocated": total}
        return kinds | rest | {"strategy": "rss", "total": totals}

    async def attempts(self, request: web.Request) -> web.Response:
        _, report = await self._named(request)
        return web.json_response(
            NOT_AVAILABLE
            if report is None
            else [
                {
                    "protocol": each.protocol,
                    "auth_attempts": each.succeeded + each.failed,
                    "auth_attempts_failed": each.failed,
                    "auth_attempts_succeeded": each.succeeded,
                }
                for each in report.logins
            ]
        )

    async def attempts_by_source(self, request: web.Request) -> web.Response:
        """Answer with an empty list, as RabbitMQ by default: counts per source could grow without a login."""
        await self._named(request)
        return web.json_response([])

    async def reset_attempts(self, request: web.Request) -> web.Response:
        require(request, ADMINISTRATORS)
        _, report = await self._named(request)
        self._check_own(request, report)
        self._management.nodes.reset_logins()
        return done()

    async def start_vhost(self, request: web.Request) -> web.Response:
        """Answer that the virtual host is started at the node, because all virtual hosts are, while the node is up."""
        require(request, ADMINISTRATORS)
        await named_vhost(request, self._management)
        name = _node_in(request)
        if name not in self._management.members.names():
            raise bad_request(f"Unknown node: {name}")
        return done()

    def _check_own(self, request: web.Request, report: NodeReport | None) -> None:
        name = _node_in(request)
        if report is None or name != self._status().node:
            raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, f"{name} has to be asked for it itself")

    async def _named(self, request: web.Request) -> tuple[NodeStatus, NodeReport | None]:
        """Return status and report of the node in the path; None without a report. Raises Refusal."""
        require(request, MONITORS)
        name = _node_in(request)
        status = next((each for each in self._status().nodes if each.name == name), None)
        if status is None:
            raise not_found()
        return status, await self._management.nodes.report(name)

    def _status(self) -> ClusterStatus:
        return self._view.cluster_status()


def _node_in(request: web.Request) -> str:
    """Return the name of the node in the path."""
    return request.match_info["node"].removeprefix(ERLANG_PREFIX)


_OTHER_MEMORY = "other_system"
_KINDS_OF_MEMORY = (
    *("connection_readers", "connection_writers", "connection_channels", "connection_other"),
    *("queue_procs", "quorum_queue_procs", "quorum_queue_dlx_procs"),
    *("stream_queue_procs", "stream_queue_replica_reader_procs", "stream_queue_coordinator_procs"),
    *(
        "plugins",
        "metadata_store",
        "other_proc",
        "metrics",
        "mgmt_db",
        "mnesia",
        "quorum_ets",
        "metadata_store_ets",
    ),
    *(
        "other_ets",
        "binary",
        "msg_index",
        "code",
        "atom",
        _OTHER_MEMORY,
        "allocated_unused",
        "reserved_unallocated",
    ),
)
"""RabbitMQ's kinds of memory. rabbitmqadmin shows no memory if any of these is missing."""


def _shares(memory: Mapping[str, Any], report: NodeReport) -> dict[str, int]:
    """Return the kinds of memory in percent. As in RabbitMQ, a small kind has 1, and an unused kind 0."""
    kinds = {kind: memory[kind] for kind in _KINDS_OF_MEMORY}
    percent = {kind: round(100 * size / report.memory_bytes) for kind, size in kinds.items()}
    return {kind: share or int(kinds[kind] > 0) for kind, share in percent.items()} | {"total": 100}
