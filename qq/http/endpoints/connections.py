"""Connections and channels of all nodes.

Invariant: monitors see all connections and administrators close all. Other users see and close their own.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from aiohttp import web

from qq.http.base.error_responses import bad_request, not_found
from qq.http.base.login import ADMINISTRATORS, MONITORS, only_own, require_owner
from qq.http.documents.lists import STATS_DISABLED, Listing, narrowed, write_listing
from qq.http.documents.rendering import by_place, client_document, consumer_document
from qq.http.documents.requests import done, is_asked, vhost_if_named
from qq.machine.protocol.commands import CloseConnection
from qq.management.time_slices import Slices

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

    from qq.management.management import Management
    from qq.management.reports.clients import ChannelHead, Client, ConnectionHead

H = TypeVar("H", "ConnectionHead", "ChannelHead")

REASON_HEADER = "X-Reason"
REASON = "Closed via management plugin"
"""Default reason for closing a connection that its client receives: RabbitMQ's text."""
REASON_BYTES_MAX = 200
"""Bytes of a reason at most: it must fit into the close text after its beginning."""


CONNECTION_BASICS = (
    *("name", "node", "vhost", "user", "user_who_performed_action", "user_provided_name", "state"),
    *(
        "protocol",
        "type",
        "host",
        "port",
        "peer_host",
        "peer_port",
        "ssl",
        "ssl_protocol",
        "ssl_key_exchange",
    ),
    *("ssl_cipher", "ssl_hash", "peer_cert_subject", "peer_cert_issuer", "peer_cert_validity"),
    *("auth_mechanism", "timeout", "frame_max", "channel_max", "client_properties", "connected_at"),
)
"""Fields of a connection that are no statistics. CHANNEL_BASICS are those of a channel."""
CHANNEL_BASICS = (
    *("name", "node", "number", "user", "user_who_performed_action", "vhost", "connection_details"),
)


class ConnectionEndpoints:
    """Handlers for connections and channels."""

    def __init__(self, management: Management) -> None:
        self._management = management

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/connections", self.connections),
            web.get("/api/vhosts/{vhost}/connections", self.connections),
            web.get("/api/connections/username/{user}", self.connections_of),
            web.delete("/api/connections/username/{user}", self.close_all),
            web.get("/api/connections/{name}", self.connection),
            web.delete("/api/connections/{name}", self.close),
            web.get("/api/connections/{name}/channels", self.channels_of),
            web.get("/api/connections/{name}/sessions", self.sessions_of),
            web.get("/api/channels", self.channels),
            web.get("/api/vhosts/{vhost}/channels", self.channels_in),
            web.get("/api/channels/{name}", self.channel),
        ]

    # Connections

    async def connections(self, request: web.Request) -> web.StreamResponse:
        heads = await self._matching(request, self._management.clients.connection_heads)
        return await write_listing(request, connection_listing(self._management, heads))

    async def connections_of(self, request: web.Request) -> web.StreamResponse:
        require_owner(request, request.match_info["user"], MONITORS)
        return await self.connections(request)

    async def connection(self, request: web.Request) -> web.Response:
        head = await self._existing(request, self._management.clients.connection_heads)
        return narrowed(
            request, client_document(await self._details(self._management.clients.connections_of, head))
        )

    async def close(self, request: web.Request) -> web.Response:
        connection = await self._existing(request, self._management.clients.connection_heads, ADMINISTRATORS)
        await self._management.changes.apply(_closing(request, connection))
        return done()

    async def close_all(self, request: web.Request) -> web.Response:
        require_owner(request, request.match_info["user"], ADMINISTRATORS)
        await self._management.changes.wait_applied()
        connections = await self._matching(request, self._management.clients.connection_heads)
        await self._management.changes.apply(*(_closing(request, connection) for connection in connections))
        return done()

    # Channels

    async def channels(self, request: web.Request) -> web.StreamResponse:
        return await self._write_channels(request)

    async def channels_in(self, request: web.Request) -> web.StreamResponse:
        """Answer with the channels of a virtual host. RabbitMQ refuses that list without statistics."""
        if is_asked(request, "disable_stats"):
            raise bad_request(STATS_DISABLED)
        return await self._write_channels(request)

    async def channels_of(self, request: web.Request) -> web.StreamResponse:
        connection = await self._existing(request, self._management.clients.connection_heads)
        return await self._write_channels(request, connection.name)

    async def sessions_of(self, request: web.Request) -> web.StreamResponse:
        """Answer with the AMQP 1.0 sessions of a connection, as RabbitMQ does since release 4.1."""
        clients = self._management.clients
        head = await self._existing(request, clients.connection_heads)
        sessions = await clients.link_sessions_of(await self._details(clients.connections_of, head))
        if sessions is None:
            raise bad_request("connection does not use AMQP 1.0")
        return await write_listing(request, Listing(sessions, order=("channel_number",)))

    async def _write_channels(
        self, request: web.Request, connection: str | None = None
    ) -> web.StreamResponse:
        heads = await self._matching(request, self._management.clients.channel_heads)
        found = [head for head in heads if connection in (None, head.connection)]
        return await write_listing(request, channel_listing(self._management, found))

    async def channel(self, request: web.Request) -> web.Response:
        head = await self._existing(request, self._management.clients.channel_heads)
        channel = await self._details(self._management.clients.channels_of, head)
        found, channels = self._management.consumers.of_channel(channel), by_place([channel])
        consumers = [consumer_document(each, channels) for each in found]
        # RabbitMQ shows counts between a channel and each queue or exchange in its rates mode "detailed" only.
        details: dict[str, Any] = {"consumer_details": consumers, "publishes": [], "deliveries": []}
        return narrowed(request, client_document(channel) | details)

    # Both

    async def _matching(
        self, request: web.Request, all_heads: Callable[[], Awaitable[Sequence[H]]]
    ) -> list[H]:
        """Return the heads that match the user or virtual host in the path, and that the client may see."""
        vhost = await vhost_if_named(request, self._management, MONITORS)
        user = request.match_info.get("user")
        own = only_own(request)
        return [
            head
            for head in await all_heads()
            if vhost in (None, head.vhost) and user in (None, head.user) and own in (None, head.user)
        ]

    async def _existing(
        self,
        request: web.Request,
        all_heads: Callable[[], Awaitable[Sequence[H]]],
        all_seeing: Collection[str] = MONITORS,
    ) -> H:
        """Return the head with the name in the path. Raises Refusal if it is missing or belongs to another user."""
        for is_known in (False, True):
            if is_known:
                await self._management.changes.wait_applied()
            for head in await all_heads():
                if head.name == request.match_info["name"]:
                    require_owner(request, head.user, all_seeing)
                    return head
        raise not_found()

    async def _details(
        self, of_heads: Callable[[Sequence[H]], Awaitable[Sequence[Client]]], head: H
    ) -> Client:
        """Return all fields of a connection or channel. Raises Refusal if it has just been closed."""
        for each in await of_heads([head]):
            return each
        raise not_found()


def connection_listing(management: Management, heads: Sequence[ConnectionHead]) -> Listing[ConnectionHead]:
    """Return the list of these connections. Details are requested from nodes only for shown connections."""

    async def whole(some: Sequence[ConnectionHead]) -> Sequence[dict[str, Any]]:
        return await _documents(await management.clients.connections_of(some))

    return Listing(heads, _HEAD, is_in_order=True, basic=CONNECTION_BASICS, whole=whole)


def channel_listing(management: Management, heads: Sequence[ChannelHead]) -> Listing[ChannelHead]:
    """Return the list of these channels. Details are requested from nodes only for shown channels."""

    async def whole(some: Sequence[ChannelHead]) -> Sequence[dict[str, Any]]:
        return await _documents(await management.clients.channels_of(some))

    return Listing(heads, _HEAD, is_in_order=True, basic=CHANNEL_BASICS, whole=whole)


async def _documents(clients: Iterable[Client]) -> list[dict[str, Any]]:
    documents: list[dict[str, Any]] = []
    slices = Slices()
    for each in clients:
        documents.append(client_document(each))
        await slices.give_way()
    return documents


_HEAD = {name: attrgetter(name) for name in ("name", "vhost", "user", "node")} | {
    "user_provided_name": attrgetter("client")
}
"""Fields of a connection or a channel that all nodes know."""
CLIENT_NAMES = ("name", "user_provided_name")
"""Fields in which the page searches clients."""


def _closing(request: web.Request, connection: ConnectionHead) -> CloseConnection:
    reason = request.headers.get(REASON_HEADER) or REASON
    # Bytes of a header that are not UTF-8 arrive as halves of surrogate pairs.
    octets = reason.encode(errors="replace")[:REASON_BYTES_MAX]
    return CloseConnection(connection.node, connection.id, octets.decode(errors="ignore"))
