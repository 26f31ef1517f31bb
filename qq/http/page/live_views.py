"""Documents of the page's live views: each document has the changing data of a view.

Invariant: a document is bounded, because lists come in pages.
"""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING, Any

from aiohttp import web
from pamqp.commands import Basic

import qq
from qq.diagnosis.findings import document_of
from qq.http.base.error_responses import bad_request
from qq.http.base.login import ADMINISTRATORS, MONITORS, login_of, only_own, require
from qq.http.documents.lists import Listing, listed_page
from qq.http.documents.rendering import fields_of, queue_document, row_fields
from qq.http.documents.requests import check_permitted, existing, number, sees
from qq.http.endpoints.connections import CLIENT_NAMES, channel_listing, connection_listing
from qq.http.endpoints.consumers import consumer_documents
from qq.http.endpoints.leases import group_listing, group_row
from qq.http.endpoints.nodes import node_document
from qq.http.endpoints.sinks import sink_listing
from qq.http.page.health_events import cluster_document
from qq.machine.protocol.commands import DeleteExchange, DeleteQueue, Get
from qq.management.errors import RequestRefused
from qq.management.reports.catalog import ExchangeStatus
from qq.management.reports.messages import NewMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from qq.http.base.node_view import NodeView
    from qq.http.page.event_stream import View
    from qq.machine.protocol.commands import Declaration
    from qq.management.management import Management
    from qq.management.reports.queues import ConsumerStatus

CONSUMERS_MAX = 200
"""Consumers shown in the view of a queue at most."""
AGE_DEFAULT_S = 600
AGE_MAX_S = 7 * 24 * 3600
"""Seconds of the longest history."""


class LiveViews:
    """Makes the documents of the views, and handles requests for histories and permissions."""

    def __init__(self, view: NodeView, management: Management) -> None:
        self._view = view
        self._management = management

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/api/history", self.history), web.get("/api/may", self.may)]

    def by_name(self) -> Mapping[str, View]:
        return {
            "overview": self.overview,
            "members": self.members,
            "queues": self.queues,
            "queue": self.queue,
            "dead-letters": self.dead_letters,
            "exchanges": self.exchanges,
            "connections": self.connections,
            "channels": self.channels,
            "sessions": self.sessions,
            "groups": self.groups,
            "sinks": self.sinks,
            "health": self.health,
        }

    async def health(self, _: web.Request) -> bytes:
        """Return an empty document, for views that only need the verdict on the cluster."""
        return _json({})

    async def overview(self, request: web.Request) -> bytes:
        vhost = await self._vhost(request, MONITORS)
        is_seen, own = self._is_seen(request, vhost), only_own(request)
        is_monitor = own is None
        happened, lengths, _ = self._management.statistics.vhost_stats(is_seen)
        totals = self._management.catalog.object_totals(is_seen, own)
        document: dict[str, Any] = {
            "cluster_name": self._management.catalog.cluster_name(),
            "version": qq.__version__,
            "message_stats": happened,
            "queue_totals": lengths,
            "object_totals": totals._asdict(),
        }
        if vhost is not None:
            document["sample"] = self._management.charts.newest_sample(("vhost", vhost))
        elif is_monitor:
            document["sample"] = self._management.charts.newest_sample(("all",))
        if is_monitor:
            document["churn_rates"] = self._management.clients.churn()
            document["alarms"] = [each._asdict() for each in self._management.nodes.alarms()]
            document["flaw"] = self._management.nodes.flaw()
            document["cluster"] = cluster_document(self._view)
            document["doctor"] = document_of(await self._management.doctor.recent())
        return _json(document)

    async def members(self, request: web.Request) -> bytes:
        require(request, MONITORS)
        reports = await self._management.nodes.reports()
        members = self._management.members.report()
        nodes = [node_document(each, reports.get(each.name)) for each in self._view.cluster_status().nodes]
        return _json(
            {
                "cluster": cluster_document(self._view),
                "members": members._asdict()
                | {
                    "members": [member._asdict() for member in members.members],
                    "removed": [removed._asdict() for removed in members.removed],
                },
                "nodes": nodes,
            }
        )

    async def queues(self, request: web.Request) -> bytes:
        vhost = await self._vhost(request)
        is_seen = sees(request, self._management) if vhost is None else vhost.__eq__
        rows = await self._management.queues.rows_by_name(is_seen)
        listing = Listing(rows.things, row_fields(rows), is_in_order=True, parts=rows.parts)
        return await listed_page(request, listing)

    async def dead_letters(self, request: web.Request) -> bytes:
        rows = self._management.queues.dead_letter_rows(await self._vhost(request))
        is_seen, vhost_of = sees(request, self._management), rows.fields["vhost"]

        def is_seen_queue(queue: Any) -> bool:
            return is_seen(vhost_of(queue))

        return await listed_page(request, Listing(rows.things, rows.fields, is_seen_queue))

    async def queue(self, request: web.Request) -> bytes:
        vhost, name = await self._queue_named(request)
        queue = await existing(self._management, lambda: self._management.queues.find(vhost, name))
        consumers = self._management.consumers.of_queue(vhost, name)
        if client := request.query.get("client"):
            consumers = await self._consumers_of_client(consumers, client)
        found = list(islice(consumers, CONSUMERS_MAX))
        details = await consumer_documents(self._management, found)
        sample = self._management.charts.newest_sample(("queue", vhost, name))
        groups = [group_row(group) for group in self._management.leases.groups(vhost, name)]
        return _json(
            queue_document(queue) | {"consumer_details": details, "groups": groups, "sample": sample}
        )

    async def groups(self, request: web.Request) -> bytes:
        listing = await group_listing(request, self._management, await self._vhost(request))
        return await listed_page(request, listing)

    async def sinks(self, request: web.Request) -> bytes:
        listing = await sink_listing(request, self._management, await self._vhost(request))
        return await listed_page(request, listing)

    async def _consumers_of_client(
        self, consumers: Iterable[ConsumerStatus], client: str
    ) -> Iterator[ConsumerStatus]:
        """Return the consumers with this text in their tag or in the name of their connection."""
        heads = await self._management.clients.channel_heads()
        names = {(head.node, head.id): f"{head.name} {head.client}".lower() for head in heads}
        wanted = client.lower()

        def is_wanted(consumer: ConsumerStatus) -> bool:
            details = consumer.channel_details
            name = names.get((details["node"], details["id"]), "")
            return wanted in name or wanted in consumer.consumer_tag.lower()

        return filter(is_wanted, consumers)

    async def exchanges(self, request: web.Request) -> bytes:
        vhost, is_seen = await self._vhost(request), sees(request, self._management)

        def is_seen_exchange(exchange: ExchangeStatus) -> bool:
            return is_seen(exchange.vhost)

        def stats(exchange: ExchangeStatus) -> Mapping[str, Any]:
            return self._management.statistics.exchange_stats(exchange.vhost, exchange.name)

        fields = {**fields_of(ExchangeStatus), "message_stats": stats}
        return await listed_page(
            request, Listing(self._management.catalog.exchanges(vhost), fields, is_seen_exchange)
        )

    async def connections(self, request: web.Request) -> bytes:
        """Return a page of connections: those of all users, or of the client's own user, filtered by the query.

        The query may have a virtual host, a node and a connection name.
        """
        vhost, own = await self._vhost(request, MONITORS), only_own(request)
        name, node = request.query.get("connection"), request.query.get("node")
        heads = [
            head
            for head in await self._management.clients.connection_heads()
            if vhost in (None, head.vhost)
            and own in (None, head.user)
            and name in (None, head.name)
            and node in (None, head.node)
        ]
        listing = connection_listing(self._management, heads)
        return await listed_page(request, listing._replace(searched=CLIENT_NAMES))

    async def channels(self, request: web.Request) -> bytes:
        """Return a page of channels: those of all users, or of the client's own user, filtered by the query.

        The query may have a virtual host and a connection name.
        """
        vhost, own = await self._vhost(request, MONITORS), only_own(request)
        connection = request.query.get("connection")
        heads = [
            head
            for head in await self._management.clients.channel_heads()
            if vhost in (None, head.vhost)
            and own in (None, head.user)
            and connection in (None, head.connection)
        ]
        listing = channel_listing(self._management, heads)
        return await listed_page(request, listing._replace(searched=CLIENT_NAMES))

    async def sessions(self, request: web.Request) -> bytes:
        """Return the AMQP 1.0 sessions of the connection that the query names; none if it has ended."""
        clients, own = self._management.clients, only_own(request)
        heads = [
            head
            for head in await clients.connection_heads()
            if head.name == request.query.get("connection") and own in (None, head.user)
        ]
        sessions = [await clients.link_sessions_of(each) for each in await clients.connections_of(heads)]
        return _json({"items": [session for some in sessions for session in some or ()]})

    async def history(self, request: web.Request) -> web.Response:
        age_s = number(request, "age", AGE_DEFAULT_S, AGE_MAX_S)
        if "name" in request.query:
            vhost, name = await self._queue_named(request)
            await existing(self._management, lambda: self._management.queues.find(vhost, name))
            thing = ("queue", vhost, name)
        elif (vhost := await self._vhost(request, MONITORS)) is not None:
            thing = ("vhost", vhost)
        else:
            require(request, MONITORS)
            thing = ("all",)
        return web.json_response(self._management.charts.history(thing, age_s))

    async def may(self, request: web.Request) -> web.Response:
        """Answer with the permissions of the user for a queue or an exchange, or whether the user may declare any."""
        vhost, queue, exchange = (request.query.get(name) for name in ("vhost", "queue", "exchange"))
        if vhost is None or (queue is not None and exchange is not None):
            raise bad_request("vhost says where, and queue or exchange what is meant")
        if queue is not None:
            acts = {
                "configure": DeleteQueue(0, 0, queue, False, False),
                "read": Get(0, 0, 0, 0, queue, False, 0),
                "write": NewMessage("", queue, Basic.Properties(), b""),
            }
        elif exchange is not None:
            acts = {
                "configure": DeleteExchange(0, exchange, False),
                "write": NewMessage(exchange, "", Basic.Properties(), b""),
            }
        else:
            return web.json_response({"declare": self._declares(login_of(request).user, vhost)})
        permitted = {name: await self._is_permitted(request, vhost, act) for name, act in acts.items()}
        return web.json_response(permitted)

    def _declares(self, user: str, vhost: str) -> bool:
        rows = self._management.catalog.permissions()
        return any((row.user, row.vhost) == (user, vhost) and row.configure not in ("", "^$") for row in rows)

    async def _is_permitted(
        self, request: web.Request, vhost: str, act: Declaration | Get | NewMessage
    ) -> bool:
        try:
            await check_permitted(request, self._management, vhost, act)
        except RequestRefused:
            return False
        return True

    async def _queue_named(self, request: web.Request) -> tuple[str, str]:
        vhost, name = await self._vhost(request), request.query.get("name")
        if vhost is None or name is None:
            raise bad_request("vhost and name say which queue is meant")
        return vhost, name

    async def _vhost(self, request: web.Request, all_seeing: frozenset[str] = ADMINISTRATORS) -> str | None:
        """Return the virtual host in the query, or None without it. Raises Refusal."""
        vhost = request.query.get("vhost")
        if vhost is None:
            return None
        is_seen = sees(request, self._management, all_seeing)
        await existing(self._management, lambda: self._management.catalog.has_vhost(vhost) and is_seen(vhost))
        return vhost

    def _is_seen(self, request: web.Request, vhost: str | None) -> Callable[[str], bool]:
        return sees(request, self._management, MONITORS) if vhost is None else vhost.__eq__


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document).encode()
