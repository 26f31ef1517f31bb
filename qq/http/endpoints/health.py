"""Health checks, under RabbitMQ's paths and with its answers.

Invariant: a passed check is answered with 200, a failed check with 503 and the reason. Checks are cheap, because load
balancers ask every second.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web

from qq.http.base.error_responses import bad_request, not_found
from qq.http.base.login import MONITORS
from qq.http.documents.requests import ERLANG_PREFIX, named_vhost, vhost_if_named, write_object
from qq.machine.policy.patterns import InvalidPattern, Pattern
from qq.machine.protocol.queue_types import QUORUM
from qq.management.reports.members import NodeState
from qq.management.time_slices import Slices
from qq.tls.certificates import InvalidCertificate, validities

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qq.http.base.node_view import NodeView
    from qq.management.management import Management
    from qq.management.reports.nodes import CertificateFiles, Listener, NodeReport
    from qq.management.reports.queues import QueueStatus

_CRITICAL = "There are quorum queues that would lose their quorum if the target node is shut down"
"""RabbitMQ's text for a critical node, which some tools search for."""
_LEADERLESS = "Detected quorum queues without an elected leader"
_OK: dict[str, Any] = {"status": "ok"}
_FAILED: dict[str, Any] = {"status": "failed"}
_RESOURCES = {"disk": "disk space", "memory": "memory"}
"""RabbitMQ's words in alarms."""
_DAYS = {"days": 1.0, "weeks": 7.0, "months": 365 / 12, "years": 365.0}
_DAYS_MAX = 365_000
_PROTOCOLS = {
    **dict.fromkeys(("amqp091", "amqp0.9.1", "amqp0-9-1", "amqp0_9_1"), "amqp"),
    **dict.fromkeys(("amqps", "amqp+ssl", "amqp+tls"), "amqp/ssl"),
    **dict.fromkeys(("http1", "http1.1", "http_api", "management", "management_ui", "ui"), "http"),
    **dict.fromkeys(("cli", "distribution"), "clustering"),
    **dict.fromkeys(("cli/ssl", "cli/tls", "distribution/ssl", "distribution/tls"), "clustering/ssl"),
}
"""Further names that RabbitMQ accepts for the protocols of listeners."""


class HealthEndpoints:
    """Handlers for health checks."""

    def __init__(self, view: NodeView, management: Management) -> None:
        self._view = view
        self._management = management

    def routes(self) -> list[web.RouteDef]:
        checks = "/api/health/checks"
        leaderless = f"{checks}/quorum-queues-without-elected-leaders"
        return [
            web.get(f"{checks}/alarms", self.alarms),
            web.get(f"{checks}/local-alarms", self.local_alarms),
            web.get(f"{checks}/metadata-store/initialized", self.initialized),
            web.get(f"{checks}/metadata-store/initialized/with-data", self.initialized_with_data),
            web.get(f"{checks}/certificate-expiration/{{within}}/{{unit}}", self.certificates),
            web.get(f"{checks}/port-listener/{{port}}", self.port_listener),
            web.get(f"{checks}/protocol-listener/{{protocols}}", self.protocol_listener),
            web.get(f"{checks}/virtual-hosts", self.virtual_hosts),
            web.get(f"{leaderless}/all-vhosts", self.leaderless),
            web.get(f"{leaderless}/all-vhosts/pattern/{{pattern}}", self.leaderless),
            web.get(f"{leaderless}/vhost/{{vhost}}", self.leaderless),
            web.get(f"{leaderless}/vhost/{{vhost}}/pattern/{{pattern}}", self.leaderless),
            web.get(f"{checks}/node-is-quorum-critical", self.quorum_critical),
            web.get(f"{checks}/is-in-service", self.in_service),
            web.get(f"{checks}/below-node-connection-limit", self.below_connection_limit),
            web.get(f"{checks}/ready-to-serve-clients", self.ready_to_serve),
            web.get(f"{checks}/reached-target-cluster-size", self.cluster_size),
            web.get(f"{checks}/safe-to-stop", self.safe_to_stop),
            web.get(f"{checks}/safe-to-stop/{{name}}", self.safe_to_stop),
            web.get("/api/aliveness-test/{vhost}", self.aliveness),
            web.get("/api/healthchecks/node", self.node),
            web.get("/api/healthchecks/node/{name}", self.node),
        ]

    # Alarms

    async def alarms(self, _request: web.Request) -> web.Response:
        return self._alarms(None, "There are alarms in effect in the cluster")

    async def local_alarms(self, _request: web.Request) -> web.Response:
        return self._alarms(self._own_name(), "There are alarms in effect on the node")

    def _alarms(self, node: str | None, reason: str) -> web.Response:
        alarms = [
            {"resource": _RESOURCES[alarm.resource], "node": alarm.node}
            for alarm in self._management.nodes.alarms()
            if node in (None, alarm.node)
        ]
        return _failed(reason, alarms=alarms) if alarms else _ok()

    # This node

    async def initialized(self, _request: web.Request) -> web.Response:
        flaw = self._management.nodes.flaw()
        return _verdict(flaw and f"Metadata store has not yet reported as initialized: {flaw}")

    async def initialized_with_data(self, request: web.Request) -> web.Response:
        if self._management.nodes.flaw() is None and not self._management.catalog.vhosts():
            return _failed("Metadata store has not yet been initialized: it reports to have no virtual hosts")
        return await self.initialized(request)

    async def virtual_hosts(self, _request: web.Request) -> web.Response:
        flaw = self._management.nodes.flaw()
        if flaw is None:
            return _ok()
        names = [vhost.name for vhost in self._management.catalog.vhosts()]
        return _failed(f"Some virtual hosts are down: {flaw}", **{"virtual-hosts": names})

    async def in_service(self, _request: web.Request) -> web.Response:
        why = self._view.ready()
        return _verdict(why and f"this rabbit node is not currently available to serve: {why}")

    async def below_connection_limit(self, _request: web.Request) -> web.Response:
        return _verdict(_at_limit(self._management.nodes.own_report()))

    async def ready_to_serve(self, _request: web.Request) -> web.Response:
        why, report = self._view.ready(), self._management.nodes.own_report()
        if why is not None:
            return _failed(f"the rabbit node is not currently available to serve: {why}")
        if not any(each.protocol in ("amqp", "amqp/ssl") for each in report.listeners):
            return _failed("no active listeners for AMQP/AMQPS")
        reason = _at_limit(report)
        return _ok() if reason is None else _failed(reason, connections=report.connections)

    async def aliveness(self, request: web.Request) -> web.Response:
        await named_vhost(request, self._management)
        return _verdict(self._view.ready())

    async def node(self, request: web.Request) -> web.Response:
        """Check a node by the facts that this node has.

        RabbitMQ's documentation recommends the checks above instead.
        """
        name = request.match_info.get("name", self._own_name()).removeprefix(ERLANG_PREFIX)
        if name not in self._management.members.names():
            raise not_found()
        alarms = [alarm.resource for alarm in self._management.nodes.alarms() if alarm.node == name]
        if alarms:
            return _failed(f"resource alarm(s) in effect: {', '.join(alarms)}")
        if name == self._own_name():
            return _verdict(self._view.ready())
        state = next(each.state for each in self._view.cluster_status().nodes if each.name == name)
        return _verdict(f"{name} is {state}" if state in (NodeState.DOWN, NodeState.UNKNOWN) else None)

    # Ports and certificates

    async def port_listener(self, request: web.Request) -> web.Response:
        text = request.match_info["port"]
        if not (text.isascii() and text.isdigit() and len(text) <= 9):
            raise bad_request("Invalid port")
        port, ports = int(text), sorted({each.port for each in self._listeners()})
        if port in ports:
            return web.json_response(_OK | {"port": port})
        return _failed("No active listener", missing=port, ports=ports)

    async def protocol_listener(self, request: web.Request) -> web.Response:
        asked = [name.strip().lower() for name in request.match_info["protocols"].split(",")]
        there = sorted({each.protocol for each in self._listeners()})
        missing = sorted({_PROTOCOLS.get(name, name) for name in asked} - set(there))
        if not missing:
            return web.json_response(_OK | {"protocol": ",".join(asked), "protocols": there})
        return _failed("No active listener", missing=missing, protocols=there)

    async def certificates(self, request: web.Request) -> web.Response:
        before = datetime.now(UTC) + _within(request)
        shown = self._management.nodes.certificates()
        found = await asyncio.to_thread(lambda: [(files, _expiring(files, before)) for files in shown])
        listeners = {each.protocol: each for each in self._listeners()}
        expired = [
            {
                "node": self._own_name(),
                "protocol": files.protocol,
                "interface": listeners[files.protocol].host if files.protocol in listeners else "",
                "port": listeners[files.protocol].port if files.protocol in listeners else None,
                "certfile": files.cert,
                "cacertfile": files.ca,
                "certfile_expires_on": cert,
                "cacertfile_expires_on": ca,
            }
            for files, (cert, ca) in found
            if cert or ca
        ]
        return _failed("Certificates expiring", expired=expired) if expired else _ok()

    # The cluster

    async def cluster_size(self, _request: web.Request) -> web.Response:
        nodes = self._view.cluster_status().nodes
        online = sum(each.state not in (NodeState.DOWN, NodeState.UNKNOWN) for each in nodes)
        if online == len(nodes):
            return _ok()
        reason = f"target cluster size not reached: {online} of {len(nodes)} nodes are online"
        return _failed(reason, online=online, target=len(nodes))

    async def leaderless(self, request: web.Request) -> web.StreamResponse:
        """Check that the cluster has a leader, because it leads every queue."""
        vhost = await vhost_if_named(request, self._management, MONITORS)
        try:
            pattern = Pattern(request.match_info.get("pattern", ".*"))
        except InvalidPattern as error:
            raise bad_request(f"invalid pattern: {error}") from None
        if self._management.leadership.leader() is not None:
            return _ok()
        slices, found = Slices(), list[dict[str, str]]()
        for queue in self._management.queues.all(vhost):
            await slices.give_way()
            if queue.type == QUORUM and pattern.search(queue.name):
                found.append(_queue_in_minority(queue))
        if not found:
            return _ok()
        failed = _FAILED | {"reason": _LEADERLESS}
        return await write_object(request, failed, {"queues": found}, HTTPStatus.SERVICE_UNAVAILABLE)

    async def safe_to_stop(self, request: web.Request) -> web.Response:
        verdict = self._management.leadership.may_stop(request.match_info.get("name"))
        if verdict.is_safe:
            return web.json_response(_OK | {"reason": verdict.text})
        return _failed(verdict.text)

    async def quorum_critical(self, request: web.Request) -> web.StreamResponse:
        if len(self._management.members.names()) == 1:
            return web.json_response(_OK | {"reason": "single node cluster"})
        if self._management.leadership.may_stop(None).is_safe:
            return _ok()
        # All queues are listed, because all are in the same log and lose their majority together.
        queues = map(_queue_in_minority, self._management.queues.all(None))
        failed = _FAILED | {"reason": _CRITICAL}
        return await write_object(request, failed, {"queues": queues}, HTTPStatus.SERVICE_UNAVAILABLE)

    # Sources of facts

    def _own_name(self) -> str:
        return self._view.cluster_status().node

    def _listeners(self) -> Sequence[Listener]:
        return self._management.nodes.own_report().listeners


def _ok() -> web.Response:
    return web.json_response(_OK)


def _failed(reason: str, **more: Any) -> web.Response:
    return web.json_response(_FAILED | {"reason": reason} | more, status=HTTPStatus.SERVICE_UNAVAILABLE)


def _verdict(why: str | None) -> web.Response:
    return _ok() if why is None else _failed(why)


def _at_limit(report: NodeReport) -> str | None:
    return "node connection limit is reached" if report.connections >= report.connections_max else None


def _queue_in_minority(queue: QueueStatus) -> dict[str, str]:
    return {
        "readable_name": f"queue '{queue.name}' in vhost '{queue.vhost}'",
        "name": queue.name,
        "virtual_host": queue.vhost,
        "type": "rabbit_quorum_queue",
    }


def _within(request: web.Request) -> timedelta:
    """Return the time within which a certificate must not expire. Raises Refusal."""
    text, unit = request.match_info["within"], request.match_info["unit"].lower()
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise bad_request("Invalid expiration value.")
    if unit not in _DAYS:
        raise bad_request("Time unit not recognised. Supported units: days, weeks, months, years.")
    return timedelta(days=min(int(text) * _DAYS[unit], _DAYS_MAX))


def _expiring(files: CertificateFiles, before: datetime) -> tuple[list[str], list[str]]:
    """Return the ends of a port's certificates that expire before `before`, or their errors; also for its authority."""
    return _expiring_in(files.cert, before), [] if files.ca is None else _expiring_in(files.ca, before)


def _expiring_in(path: str, before: datetime) -> list[str]:
    try:
        found = validities(Path(path).read_bytes())
    except OSError as error:
        return [f"it cannot be read: {error.strerror}"]
    except InvalidCertificate as error:
        return [str(error)]
    now = datetime.now(UTC)
    early = ["Certificate is not yet valid" for each in found if each.begins > now]
    return early + [f"{each.ends:%Y-%m-%d %H:%M:%S}" for each in found if each.ends < before]
