"""Health checks, under RabbitMQ's paths and with its answers.

Invariant: a passed check is answered with 200, a failed check with 503 and the reason. Checks are cheap, because load
balancers ask every second, and the node repeats them four times a second (base/repeated_checks.py).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import hdrs, web

from qq.http.base.error_responses import Refusal, bad_request, not_found
from qq.http.base.login import MONITORS, has_login, is_by_session, login_of
from qq.http.base.repeated_checks import CheckResult
from qq.http.documents.requests import ERLANG_PREFIX, named_vhost, sees, vhost_if_named, write_object
from qq.machine.policy.patterns import InvalidPattern, Pattern
from qq.machine.protocol.queue_types import QUORUM
from qq.management.reports.members import NodeState
from qq.management.time_slices import Slices
from qq.tls.certificates import InvalidCertificate, validities

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from qq.http.base.node_view import NodeView
    from qq.http.base.repeated_checks import RepeatedChecks
    from qq.management.management import Management
    from qq.management.reports.nodes import CertificateFiles, Listener, NodeReport
    from qq.management.reports.queues import QueueStatus

    Parts = Mapping[str, str]
    """The named parts of a path."""
    Check = Callable[[Parts], CheckResult]

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

    def __init__(self, view: NodeView, management: Management, repeated: RepeatedChecks) -> None:
        self._view = view
        self._management = management
        self._repeated = repeated

    def routes(self) -> list[web.RouteDef]:
        checks = "/api/health/checks"
        leaderless = f"{checks}/quorum-queues-without-elected-leaders"
        return [
            self._route(f"{checks}/alarms", self.alarms),
            self._route(f"{checks}/local-alarms", self.local_alarms),
            self._route(f"{checks}/metadata-store/initialized", self.initialized),
            self._route(f"{checks}/metadata-store/initialized/with-data", self.initialized_with_data),
            web.get(f"{checks}/certificate-expiration/{{within}}/{{unit}}", self.certificates),
            self._route(f"{checks}/port-listener/{{port}}", self.port_listener),
            self._route(f"{checks}/protocol-listener/{{protocols}}", self.protocol_listener),
            web.get(f"{checks}/virtual-hosts", self.virtual_hosts),
            web.get(f"{leaderless}/all-vhosts", self.leaderless),
            web.get(f"{leaderless}/all-vhosts/pattern/{{pattern}}", self.leaderless),
            web.get(f"{leaderless}/vhost/{{vhost}}", self.leaderless),
            web.get(f"{leaderless}/vhost/{{vhost}}/pattern/{{pattern}}", self.leaderless),
            web.get(f"{checks}/node-is-quorum-critical", self.quorum_critical),
            self._route(f"{checks}/is-in-service", self.in_service),
            self._route(f"{checks}/below-node-connection-limit", self.below_connection_limit),
            self._route(f"{checks}/ready-to-serve-clients", self.ready_to_serve),
            self._route(f"{checks}/reached-target-cluster-size", self.cluster_size),
            self._route(f"{checks}/safe-to-stop", self.safe_to_stop),
            self._route(f"{checks}/safe-to-stop/{{name}}", self.safe_to_stop),
            web.get("/api/aliveness-test/{vhost}", self.aliveness),
            self._route("/api/healthchecks/node", self.node),
            self._route("/api/healthchecks/node/{name}", self.node),
        ]

    def _route(self, path: str, check: Check) -> web.RouteDef:
        """Return the route of a check that the thread may answer, too."""

        async def handle(request: web.Request) -> web.Response:
            parts = dict(request.match_info)
            return self._answer(request, check(parts), partial(check, parts))

        return web.get(path, handle)

    def _answer(
        self, request: web.Request, result: CheckResult, repeat: Callable[[], CheckResult | None]
    ) -> web.Response:
        """Answer a check, and let the thread answer equal requests."""
        response = _response(result)
        is_unchanged = self._account_check(request)
        if is_unchanged is not None:

            def again() -> CheckResult | None:
                with suppress(Refusal):  # the object of the check is gone
                    return repeat() if is_unchanged() else None

            authorization = request.headers.get(hdrs.AUTHORIZATION, "")
            host, has_tls = request.remote or "", request.secure
            self._repeated.remember(host, request.raw_path, authorization, again, has_tls=has_tls)
            if has_tls:
                self._repeated.expect_tls(host)
            response.force_close()  # the thread answers only the first request of a connection
        return response

    def _account_check(self, request: web.Request) -> Callable[[], bool] | None:
        """Return a function that returns whether the login of a request is still valid.

        The result is None if the thread may not answer such requests: it knows no sessions and tokens.
        """
        if is_by_session(request):
            return None
        if not has_login(request):
            return lambda: True  # the path needs no login
        login, account = login_of(request), self._view.account
        if login.scopes is not None:
            return None
        admitted = account(login.user)
        return lambda: account(login.user) == admitted

    # Alarms

    def alarms(self, _parts: Parts) -> CheckResult:
        return self._alarms(None, "There are alarms in effect in the cluster")

    def local_alarms(self, _parts: Parts) -> CheckResult:
        return self._alarms(self._own_name(), "There are alarms in effect on the node")

    def _alarms(self, node: str | None, reason: str) -> CheckResult:
        alarms = [
            {"resource": _RESOURCES[alarm.resource], "node": alarm.node}
            for alarm in self._management.nodes.alarms()
            if node in (None, alarm.node)
        ]
        return _failed(reason, alarms=alarms) if alarms else _ok()

    # This node

    def initialized(self, _parts: Parts) -> CheckResult:
        flaw = self._management.nodes.flaw()
        return _verdict(flaw and f"Metadata store has not yet reported as initialized: {flaw}")

    def initialized_with_data(self, parts: Parts) -> CheckResult:
        if self._management.nodes.flaw() is None and not self._management.catalog.has_vhosts:
            return _failed("Metadata store has not yet been initialized: it reports to have no virtual hosts")
        return self.initialized(parts)

    async def virtual_hosts(self, request: web.Request) -> web.Response:
        result = self._virtual_hosts_up()
        if result is not None:
            return self._answer(request, result, self._virtual_hosts_up)
        # All virtual hosts are listed, because all are in the same log.
        names = [vhost.name for vhost in self._management.catalog.vhosts()]
        reason = f"Some virtual hosts are down: {self._management.nodes.flaw()}"
        return _response(_failed(reason, **{"virtual-hosts": names}))

    def _virtual_hosts_up(self) -> CheckResult | None:
        """Return the result of a node whose virtual hosts are up, or None."""
        return _ok() if self._management.nodes.flaw() is None else None

    def in_service(self, _parts: Parts) -> CheckResult:
        why = self._view.ready()
        return _verdict(why and f"this rabbit node is not currently available to serve: {why}")

    def below_connection_limit(self, _parts: Parts) -> CheckResult:
        return _verdict(_at_limit(self._management.nodes.own_report()))

    def ready_to_serve(self, _parts: Parts) -> CheckResult:
        why, report = self._view.ready(), self._management.nodes.own_report()
        if why is not None:
            return _failed(f"the rabbit node is not currently available to serve: {why}")
        if not any(each.protocol in ("amqp", "amqp/ssl") for each in report.listeners):
            return _failed("no active listeners for AMQP/AMQPS")
        reason = _at_limit(report)
        return _ok() if reason is None else _failed(reason, connections=report.connections)

    async def aliveness(self, request: web.Request) -> web.Response:
        vhost = await named_vhost(request, self._management)

        def repeat() -> CheckResult | None:
            return _verdict(self._view.ready()) if sees(request, self._management)(vhost) else None

        return self._answer(request, _verdict(self._view.ready()), repeat)

    def node(self, parts: Parts) -> CheckResult:
        """Check a node by the facts that this node has.

        RabbitMQ's documentation recommends the checks above instead.
        """
        name = parts.get("name", self._own_name()).removeprefix(ERLANG_PREFIX)
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

    def port_listener(self, parts: Parts) -> CheckResult:
        text = parts["port"]
        if not (text.isascii() and text.isdigit() and len(text) <= 9):
            raise bad_request("Invalid port")
        port, ports = int(text), sorted({each.port for each in self._listeners()})
        if port in ports:
            return _ok(port=port)
        return _failed("No active listener", missing=port, ports=ports)

    def protocol_listener(self, parts: Parts) -> CheckResult:
        asked = [name.strip().lower() for name in parts["protocols"].split(",")]
        there = sorted({each.protocol for each in self._listeners()})
        missing = sorted({_PROTOCOLS.get(name, name) for name in asked} - set(there))
        if not missing:
            return _ok(protocol=",".join(asked), protocols=there)
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
        return _response(_failed("Certificates expiring", expired=expired) if expired else _ok())

    # The cluster

    def cluster_size(self, _parts: Parts) -> CheckResult:
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

        def led() -> CheckResult | None:
            is_seen = vhost is None or sees(request, self._management, MONITORS)(vhost)
            return _ok() if is_seen and self._management.leadership.leader() is not None else None

        result = led()
        if result is not None:
            return self._answer(request, result, led)
        slices, found = Slices(), list[dict[str, str]]()
        for queue in self._management.queues.all(vhost):
            await slices.give_way()
            if queue.type == QUORUM and pattern.search(queue.name):
                found.append(_queue_in_minority(queue))
        if not found:
            return _response(_ok())
        failed = _FAILED | {"reason": _LEADERLESS}
        return await write_object(request, failed, {"queues": found}, HTTPStatus.SERVICE_UNAVAILABLE)

    def safe_to_stop(self, parts: Parts) -> CheckResult:
        verdict = self._management.leadership.may_stop(parts.get("name"))
        return _ok(reason=verdict.text) if verdict.is_safe else _failed(verdict.text)

    async def quorum_critical(self, request: web.Request) -> web.StreamResponse:
        result = self._not_critical()
        if result is not None:
            return self._answer(request, result, self._not_critical)
        # All queues are listed, because all are in the same log and lose their majority together.
        queues = map(_queue_in_minority, self._management.queues.all(None))
        failed = _FAILED | {"reason": _CRITICAL}
        return await write_object(request, failed, {"queues": queues}, HTTPStatus.SERVICE_UNAVAILABLE)

    def _not_critical(self) -> CheckResult | None:
        """Return the result of a node that is not critical, or None."""
        if len(self._management.members.names()) == 1:
            return _ok(reason="single node cluster")
        return _ok() if self._management.leadership.may_stop(None).is_safe else None

    # Sources of facts

    def _own_name(self) -> str:
        return self._view.cluster_status().node

    def _listeners(self) -> Sequence[Listener]:
        return self._management.nodes.own_report().listeners


def _ok(**more: Any) -> CheckResult:
    return CheckResult(HTTPStatus.OK, _OK | more)


def _failed(reason: str, **more: Any) -> CheckResult:
    return CheckResult(HTTPStatus.SERVICE_UNAVAILABLE, _FAILED | {"reason": reason} | more)


def _verdict(why: str | None) -> CheckResult:
    return _ok() if why is None else _failed(why)


def _response(result: CheckResult) -> web.Response:
    return web.json_response(result.document, status=result.status)


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
