"""The broker as a whole: product, totals, settings, and the supported feature flags of RabbitMQ.

Invariant: features of RabbitMQ's plugins are absent, as in a RabbitMQ without them.
"""

from __future__ import annotations

import platform
import ssl
from base64 import b64encode
from itertools import islice
from typing import TYPE_CHECKING, Any

from aiohttp import web

from cluster.configuration.change_request import MemberChange, Verb
from qq.http.base.error_responses import bad_request, not_found
from qq.http.base.login import ADMINISTRATORS, MONITORS, only_own, require
from qq.http.documents.lists import STEP, Listing, narrowed, write_listing
from qq.http.documents.rendering import queue_document
from qq.http.documents.requests import done, is_asked, read_body, sees, write_list
from qq.http.documents.samples import with_samples
from qq.http.endpoints.nodes import RATES_MODE, context_documents, exchange_types, listener_document
from qq.machine.protocol.versions import VERSIONS
from qq.management.statistics.totals import SAMPLES_KEPT_S
from qq.management.time_slices import Slices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from qq.management.management import Management
    from qq.management.reports.queues import QueueStatus

FEATURES = {
    "drop_unroutable_metric": "Count unroutable publishes to be dropped in stats",
    "empty_basic_get_metric": "Count AMQP `basic.get` on empty queues in stats",
    "implicit_default_bindings": "Default bindings are now implicit, instead of being stored in the database",
    "maintenance_mode_status": "Maintenance mode status",
    "quorum_queue": "Support queues of type `quorum`",
    "user_limits": "Configure connection and channel limits for a user",
    "virtual_host_metadata": "Virtual host metadata (description, tags, etc)",
    "rabbitmq_4.0.0": "Allows rolling upgrades from 3.13.x to 4.0.x",
}
"""RabbitMQ's feature flags for features of every version of qq, with RabbitMQ's descriptions."""
_STATE = "qq_state_version_"
"""Prefix of a version of the state. The flag is enabled when all members have agreed on that version."""

TRANSIENT = {
    "name": "transient_nonexcl_queues",
    "desc": "Queues that are neither durable nor exclusive",
    "deprecation_phase": "permitted_by_default",
    "doc_url": "",
    "provided_by": "rabbit",
}
"""RabbitMQ's deprecated feature whose use can be detected here. It stays supported."""


class OverviewEndpoints:
    """Handlers for the broker as a whole."""

    def __init__(self, management: Management) -> None:
        self._management = management

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/overview", self.overview),
            web.get("/api/version", self.version),
            web.get("/api/extensions", self.extensions),
            web.get("/api/feature-flags", self.feature_flags),
            web.put("/api/feature-flags/{name}/enable", self.enable),
            web.get("/api/deprecated-features", self.deprecated),
            web.get("/api/deprecated-features/used", self.deprecated_in_use),
            web.get("/api/config/effective", self.settings),
            web.put("/api/config/effective/{name}", self.change_setting),
            web.delete("/api/config/effective/{name}", self.reset_setting),
            web.get("/api/auth/hash_password/{password}", self.hash_password),
            web.get("/api/users/{user}/queues", self.queues_of_user),
            web.delete("/api/reset", self.reset),
            web.delete("/api/reset/{node}", self.reset),
        ]

    async def overview(self, request: web.Request) -> web.Response:
        is_seen, own = sees(request, self._management, MONITORS), only_own(request)
        is_monitor = own is None
        document = self._product() | {
            "disable_stats": is_asked(request, "disable_stats"),
            "enable_queue_totals": is_asked(request, "enable_queue_totals"),
            "object_totals": self._management.catalog.object_totals(is_seen, own)._asdict(),
        }
        if not is_asked(request, "disable_stats"):
            document |= self._statistics(request, is_seen, sees_all=is_monitor)
        if is_monitor:
            document |= await self._of_nodes()
        return narrowed(request, document)

    def _product(self) -> dict[str, Any]:
        product, tags = (
            self._management.catalog.product(),
            self._management.catalog.global_parameter("cluster_tags"),
        )
        return {
            "management_version": product.version,
            "rates_mode": RATES_MODE,
            "sample_retention_policies": {of: [SAMPLES_KEPT_S] for of in ("global", "basic", "detailed")},
            "exchange_types": exchange_types(),
            "product_version": product.version,
            "product_name": product.name,
            "rabbitmq_version": product.version,
            "cluster_name": self._management.catalog.cluster_name(),
            "cluster_tags": {} if tags is None else tags.value,
            "node_tags": {},
            "erlang_version": platform.python_version(),
            "erlang_full_version": f"{platform.python_implementation()} {platform.python_version()}",
            "crypto_lib_version": ssl.OPENSSL_VERSION,
            "default_queue_type": "classic",
            "is_op_policy_updating_enabled": True,
            "require_definition_json_extension": False,
        }

    def _statistics(
        self, request: web.Request, is_seen: Callable[[str], bool], *, sees_all: bool
    ) -> dict[str, Any]:
        """Return the counts in the visible virtual hosts. Samples exist only for all virtual hosts together."""
        happened, lengths, _ = self._management.statistics.vhost_stats(is_seen)
        totals = {"message_stats": happened, **lengths}
        if sees_all:
            totals = with_samples(request, self._management, ("all",), totals)
        return {
            "message_stats": totals.pop("message_stats"),
            "churn_rates": self._management.clients.churn(),
            "queue_totals": totals,
            "statistics_db_event_queue": 0,
        }

    async def _of_nodes(self) -> dict[str, Any]:
        reports = await self._management.nodes.reports()
        listeners = [
            listener_document(report.name, each) for report in reports.values() for each in report.listeners
        ]
        return {
            "node": self._management.members.report().node,
            "listeners": sorted(listeners, key=lambda each: (each["protocol"], each["port"], each["node"])),
            "contexts": [each for report in reports.values() for each in context_documents(report)],
        }

    async def version(self, _request: web.Request) -> web.Response:
        return web.json_response(self._management.catalog.product().version)

    async def extensions(self, _request: web.Request) -> web.Response:
        return web.json_response([])

    # Features

    async def feature_flags(self, request: web.Request) -> web.StreamResponse:
        agreed = self._management.members.report().version
        flags = [_flag(name, text, is_enabled=True) for name, text in FEATURES.items()]
        for version in range(VERSIONS[0], VERSIONS[1] + 1):
            text = f"Version {version} of the state"
            flags.append(_flag(f"{_STATE}{version}", text, is_enabled=agreed >= version))
        return await write_listing(request, Listing(flags))

    async def enable(self, request: web.Request) -> web.Response:
        require(request, ADMINISTRATORS)
        name = request.match_info["name"]
        agreed = self._management.members.report().version
        versions = {f"{_STATE}{version}": version for version in range(VERSIONS[0], VERSIONS[1] + 1)}
        if name not in FEATURES and name not in versions:
            raise bad_request("unsupported")
        if versions.get(name, 0) > agreed:
            await self._management.members.change(MemberChange(Verb.FINISH_UPGRADE))
        return done()

    async def deprecated(self, _request: web.Request) -> web.Response:
        return web.json_response([TRANSIENT])

    async def deprecated_in_use(self, _request: web.Request) -> web.Response:
        slices, rows = Slices(), await self._management.queues.rows_by_name(lambda _: True)
        is_durable, is_exclusive = rows.fields["durable"], rows.fields["exclusive"]
        following = iter(rows.things)
        while some := list(islice(following, STEP)):
            if not all(is_exclusive(queue) for queue in some if not is_durable(queue)):
                return web.json_response([TRANSIENT])
            await slices.give_way()
        return web.json_response([])

    # For operators

    async def settings(self, request: web.Request) -> web.Response:
        require(request, ADMINISTRATORS)
        settings = self._management.nodes.settings.shown()
        return web.Response(text="".join(f"{name} = {value}\n" for name, value in sorted(settings.items())))

    async def change_setting(self, request: web.Request) -> web.Response:
        """Change a setting of this node until its next start, or with `nodes=all` of all nodes."""
        require(request, ADMINISTRATORS)
        body = await read_body(request)
        if "value" not in body:
            raise bad_request("value_not_present")
        if _all_nodes(request):
            return await self._change_setting_of_all(request, body["value"])
        try:
            self._management.nodes.settings.change(request.match_info["name"], body["value"])
        except ValueError as error:
            raise bad_request(str(error)) from None
        return done()

    async def reset_setting(self, request: web.Request) -> web.Response:
        require(request, ADMINISTRATORS)
        if _all_nodes(request):
            return await self._change_setting_of_all(request)
        try:
            self._management.nodes.settings.reset(request.match_info["name"])
        except ValueError as error:
            raise bad_request(str(error)) from None
        return done()

    async def _change_setting_of_all(self, request: web.Request, *value: Any) -> web.Response:
        name = request.match_info["name"]
        try:
            reasons = await self._management.nodes.change_setting_of_all(name, *value)
        except ValueError as error:
            raise bad_request(str(error)) from None
        return web.json_response(
            {
                "changed": [node for node, reason in reasons.items() if not reason],
                "unconfirmed": {node: reason for node, reason in reasons.items() if reason},
            }
        )

    async def hash_password(self, request: web.Request) -> web.Response:
        require(request, ADMINISTRATORS)
        salt, hashed = self._management.changes.hash_password(request.match_info["password"])
        return web.json_response({"ok": b64encode(salt + hashed).decode()})

    async def queues_of_user(self, request: web.Request) -> web.StreamResponse:
        is_seen, user = sees(request, self._management), request.match_info["user"]

        def queues() -> Iterator[QueueStatus]:
            for vhost, name in self._management.catalog.queues_owned_by(user):
                queue = self._management.queues.find(vhost, name)
                if queue is not None and is_seen(vhost):
                    yield queue

        return await write_list(request, map(queue_document, queues()))

    async def reset(self, request: web.Request) -> web.Response:
        """Reset the login counts, because only they are kept for this interface, and only at this node."""
        require(request, ADMINISTRATORS)
        if request.match_info.get("node", self._own_name()) != self._own_name():
            raise not_found()
        self._management.nodes.reset_logins()
        return done()

    def _own_name(self) -> str:
        return self._management.members.report().node


def _flag(name: str, text: str, *, is_enabled: bool) -> dict[str, Any]:
    return {
        "name": name,
        "desc": text,
        "doc_url": "",
        "state": "enabled" if is_enabled else "disabled",
        "stability": "stable",
        "require_level": "soft",
        "experiment_level": "unsupported",
        "callbacks": [],
        "provided_by": "rabbit",
    }


def _all_nodes(request: web.Request) -> bool:
    """Return whether a request is for all nodes and not only for the asked node."""
    nodes = request.query.get("nodes")
    if nodes not in (None, "all"):
        raise bad_request(f"nodes: it is {nodes!r}, and can only be all")
    return nodes == "all"
