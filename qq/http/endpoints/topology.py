"""Exchanges and bindings.

Invariant: requests that change them need the same permissions as an AMQP client of the user.
"""

from __future__ import annotations

from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from aiohttp import hdrs, web

from qq.errors import ReplyCode
from qq.http.base.error_responses import NOT_FOUND, bad_request
from qq.http.base.login import login_of
from qq.http.documents.lists import Listing, narrowed, write_listing
from qq.http.documents.parsing import read_binding, read_exchange, read_publication
from qq.http.documents.rendering import (
    binding_document,
    exchange_document,
    fields_of,
    row_fields,
    without_unset,
)
from qq.http.documents.requests import (
    check_permitted,
    declare,
    done,
    existing,
    find,
    is_asked,
    named_vhost,
    put_answer,
    read_body,
    sees,
    vhost_if_named,
)
from qq.http.documents.samples import adding_samples, with_samples
from qq.machine.handlers.declaring import stripped
from qq.machine.protocol.commands import DeleteExchange, UnbindExchange, UnbindQueue
from qq.management.errors import PublicationRejected, RequestRefused, Unavailable
from qq.management.reports.catalog import BindingStatus, ExchangeStatus
from qq.routing.exchanges import DEFAULT_EXCHANGE, DEFAULT_EXCHANGE_SHOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from qq.management.management import Management
    from qq.management.reports.rows import ThingRows

KINDS = {"q": "queue", "e": "exchange"}
"""Kind of a binding's destination by its letter in a path."""

PUBLISH_BYTES_MAX = 1024 * 1024
"""Bytes of a publish request's body at most: parsing its JSON takes some milliseconds."""

_EXCHANGE = "/api/exchanges/{vhost}/{name}"
_PUBLISH = "/api/exchanges/{vhost}/{name:[^/]*}/publish"
"""The name of the default exchange may be empty here, as with rabbitmqadmin."""
_BINDINGS = "/api/bindings/{vhost}/e/{source}/{kind:[qe]}/{destination}"


class ExchangeEndpoints:
    """Handlers for exchanges."""

    def __init__(self, management: Management) -> None:
        self._management = management

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/exchanges", self.exchanges),
            web.get("/api/exchanges/{vhost}", self.exchanges),
            web.get(_EXCHANGE, self.exchange),
            web.put(_EXCHANGE, self.put),
            web.delete(_EXCHANGE, self.delete),
            web.post(_PUBLISH, self.publish),
        ]

    async def exchanges(self, request: web.Request) -> web.StreamResponse:
        vhost, is_seen = await vhost_if_named(request, self._management), sees(request, self._management)
        exchanges = self._management.catalog.exchanges(vhost)

        def is_seen_exchange(exchange: ExchangeStatus) -> bool:
            return is_seen(exchange.vhost)

        def stats(exchange: ExchangeStatus) -> Mapping[str, Any]:
            return self._management.statistics.exchange_stats(exchange.vhost, exchange.name)

        fields = fields_of(ExchangeStatus)
        add_samples = adding_samples(request, self._management, _key_of)

        def completed(exchange: ExchangeStatus, document: Mapping[str, Any]) -> Mapping[str, Any]:
            if document.get("message_stats") == {}:
                document = {name: value for name, value in document.items() if name != "message_stats"}
            return add_samples(exchange, without_unset(document))

        listing = Listing(
            exchanges,
            {**fields, "message_stats": stats},
            is_seen_exchange,
            basic=tuple(fields),
            completed=completed,
        )
        return await write_listing(request, listing)

    async def exchange(self, request: web.Request) -> web.Response:
        exchange = await self._existing(request)
        # RabbitMQ shows counts between an exchange and each channel or queue in its rates mode "detailed" only.
        stats = {**self._stats(exchange), "incoming": [], "outgoing": []}
        document = exchange_document(exchange)
        if is_asked(request, "disable_stats"):
            return narrowed(request, document)
        return narrowed(request, with_samples(request, self._management, _key_of(exchange), document | stats))

    def _stats(self, exchange: ExchangeStatus) -> dict[str, Any]:
        """Return the publish counts of an exchange; {} before the first publish, as in RabbitMQ."""
        stats = self._management.statistics.exchange_stats(exchange.vhost, exchange.name)
        return {"message_stats": stats} if stats else {}

    async def put(self, request: web.Request) -> web.Response:
        vhost, name = await named_vhost(request, self._management), _name(request, "name")
        command = read_exchange(name, await read_body(request))
        is_new = await find(self._management, lambda: self._find(vhost, name)) is None
        await declare(request, self._management, vhost, command)
        return put_answer(is_new=is_new)

    async def delete(self, request: web.Request) -> web.Response:
        exchange = await self._existing(request)
        command = DeleteExchange(0, exchange.name, is_asked(request, "if-unused"))
        await declare(request, self._management, exchange.vhost, command)
        return done()

    async def publish(self, request: web.Request) -> web.Response:
        exchange = await self._existing(request, "exchange_not_found")
        vhost, login = exchange.vhost, login_of(request)
        publication = read_publication(exchange.name, await read_body(request, bytes_max=PUBLISH_BYTES_MAX))
        try:
            await check_permitted(request, self._management, vhost, publication)
            is_routed = await self._management.operations.publish(
                vhost, login.user, publication, login.scopes
            )
        except RequestRefused as refused:
            # RabbitMQ publishes before it learns of the refusal, and answers with the AMQP error.
            name = ReplyCode(refused.code).name
            raise bad_request(f"{refused.code:d} {name} - {refused.explanation}") from None
        except PublicationRejected:
            raise bad_request("rejected Unable to publish message. Check queue limits.") from None
        return web.json_response({"routed": is_routed})

    async def _existing(self, request: web.Request, reason: str = NOT_FOUND) -> ExchangeStatus:
        """Return the exchange in the path. Raises Refusal."""
        vhost, name = await named_vhost(request, self._management), _name(request, "name")
        return await existing(self._management, lambda: self._find(vhost, name), reason)

    def _find(self, vhost: str, name: str) -> ExchangeStatus | None:
        return next(self._management.catalog.exchanges(vhost, name), None)


class BindingEndpoints:
    """Handlers for bindings."""

    def __init__(self, management: Management) -> None:
        self._management = management

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/bindings", self.bindings),
            web.get("/api/bindings/{vhost}", self.bindings),
            web.get(f"{_EXCHANGE}/bindings/source", self.from_exchange),
            web.get(f"{_EXCHANGE}/bindings/destination", self.to_exchange),
            web.get(_BINDINGS, self.between),
            web.post(_BINDINGS, self.post),
            web.get(f"{_BINDINGS}/{{key}}", self.binding),
            web.delete(f"{_BINDINGS}/{{key}}", self.delete),
        ]

    async def bindings(self, request: web.Request) -> web.StreamResponse:
        vhost, is_seen = await vhost_if_named(request, self._management), sees(request, self._management)
        rows = await self._management.catalog.sorted_binding_rows(is_seen if vhost is None else vhost.__eq__)
        return await write_listing(request, binding_listing(rows)._replace(is_in_order=True))

    async def from_exchange(self, request: web.Request) -> web.StreamResponse:
        return await self._write(request, source=_name(request, "name"))

    async def to_exchange(self, request: web.Request) -> web.StreamResponse:
        return await self._write(request, destination=("exchange", _name(request, "name")))

    async def between(self, request: web.Request) -> web.StreamResponse:
        source, destination = _ends(request)
        return await self._write(request, source, destination)

    async def _write(
        self,
        request: web.Request,
        source: str | None = None,
        destination: tuple[str, str] | None = None,
    ) -> web.StreamResponse:
        vhost, is_seen = await vhost_if_named(request, self._management), sees(request, self._management)
        rows = self._management.catalog.binding_rows(vhost, source, destination)
        return await write_listing(request, binding_listing(rows, is_seen))

    async def post(self, request: web.Request) -> web.Response:
        vhost, (source, (kind, name)) = await named_vhost(request, self._management), _ends(request)
        command = read_binding(source, name, kind, await read_body(request))
        await declare(request, self._management, vhost, command)
        wanted = command.routing_key, command.arguments
        for each in self._management.catalog.bindings(vhost, source, (kind, name)):
            if (each.routing_key, each.arguments) == wanted:
                location = f"{quote(name, safe='')}/{quote(each.properties_key, safe='')}"
                return web.Response(status=HTTPStatus.CREATED, headers={hdrs.LOCATION: location})
        raise Unavailable("the binding is not there: it was removed again")

    async def binding(self, request: web.Request) -> web.Response:
        return narrowed(request, binding_document(await self._existing(request)))

    async def delete(self, request: web.Request) -> web.Response:
        binding = await self._existing(request)
        ends = binding.destination, binding.source, binding.routing_key, dict(binding.arguments)
        is_queue = binding.destination_type == "queue"
        command = UnbindQueue(0, 0, *ends) if is_queue else UnbindExchange(0, *ends)
        await declare(request, self._management, binding.vhost, command)
        return done()

    async def _existing(self, request: web.Request) -> BindingStatus:
        """Return the binding in the path. Raises Refusal."""
        vhost, key = await named_vhost(request, self._management), request.match_info["key"]

        def read() -> BindingStatus | None:
            bindings = self._management.catalog.bindings(vhost, *_ends(request))
            return next((each for each in bindings if each.properties_key == key), None)

        return await existing(self._management, read)


def binding_listing(rows: ThingRows, is_seen: Callable[[str], bool] | None = None) -> Listing[Any]:
    """Return the list of the bindings in visible virtual hosts."""
    listing: Listing[Any] = Listing(rows.things, row_fields(rows), order=_ORDER)
    if is_seen is None:
        return listing
    vhost_of, sees_vhost = rows.fields["vhost"], cache(is_seen)

    def is_seen_binding(binding: Any) -> bool:
        return sees_vhost(vhost_of(binding))

    return listing._replace(is_seen=is_seen_binding)


_ORDER = ("vhost", "source", "type", "destination", "routing_key")
"""RabbitMQ's sort columns of bindings, including a column that does not exist. RabbitMQ's last column,
`properties_key`, is left out because it is costly; bindings that differ only in it are in the order of creation.
"""


def _key_of(exchange: ExchangeStatus) -> tuple[str, ...]:
    return "exchange", exchange.vhost, exchange.name


def _name(request: web.Request, part: str) -> str:
    """Return the name of an exchange in the path."""
    name = request.match_info[part]
    return DEFAULT_EXCHANGE if name == DEFAULT_EXCHANGE_SHOWN else name


def _ends(request: web.Request) -> tuple[str, tuple[str, str]]:
    """Return the source of the binding in the path, and kind and name of its destination, as they are in the log."""
    kind = KINDS[request.match_info["kind"]]
    name = request.match_info["destination"] if kind == "queue" else _name(request, "destination")
    return stripped(_name(request, "source")), (kind, stripped(name))
