"""Queues, their consumers and their messages.

Invariant: requests that change a queue or show its messages need the same permissions as an AMQP client of the user.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiohttp import web

from qq.http.base.error_responses import NOT_FOUND, bad_request, not_found
from qq.http.base.login import ADMINISTRATORS, login_of, require
from qq.http.base.payloads import message_parts
from qq.http.documents.lists import STATS_DISABLED, Listing, narrowed, write_listing
from qq.http.documents.parsing import query_filter, read_get, read_queue
from qq.http.documents.rendering import (
    QUEUE_BASICS,
    QUEUE_TOTALS,
    browsed_document,
    got_document,
    queue_document,
    row_fields,
    without_other_types,
)
from qq.http.documents.requests import (
    check_permitted,
    declare,
    done,
    existing,
    find,
    is_asked,
    named_vhost,
    number,
    put_answer,
    read_body,
    sees,
    vhost_if_named,
    write_list,
    write_parts,
)
from qq.http.documents.samples import adding_samples, with_samples
from qq.http.endpoints.consumers import consumer_documents, consumer_listing
from qq.http.endpoints.topology import binding_listing
from qq.machine.protocol.commands import DeleteQueue, Get, PurgeQueue
from qq.management.objects.search import COUNTED_MAX, SearchLimits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qq.management.management import Management

BROWSE_COUNT = 50
BROWSE_COUNT_MAX = 1000
BROWSE_BYTES_MAX = 1024 * 1024
"""Bytes of bodies in an answer at most. A single larger body is cut off there."""
OFFSET_MAX = 10**18
SEARCH_LOOK_AT = 1000
SEARCH_COUNT = 20
SEARCH_COUNT_MAX = 200

_QUEUE = "/api/queues/{vhost}/{name}"


class QueueEndpoints:
    """Handlers for queues."""

    def __init__(self, management: Management) -> None:
        self._management = management

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/queues", self.queues),
            web.get("/api/queues/detailed", self.queues),
            web.get("/api/queues/{vhost}", self.queues),
            web.get(_QUEUE, self.queue),
            web.put(_QUEUE, self.put),
            web.delete(_QUEUE, self.delete),
            web.get(f"{_QUEUE}/bindings", self.bindings),
            web.get(f"{_QUEUE}/browse", self.browse),
            web.get(f"{_QUEUE}/search", self.search),
            web.delete(f"{_QUEUE}/contents", self.purge),
            web.post(f"{_QUEUE}/get", self.get),
            web.post(f"{_QUEUE}/actions", self.act),
            web.get("/api/consumers", self.consumers),
            web.get("/api/consumers/{vhost}", self.consumers),
        ]

    async def queues(self, request: web.Request) -> web.StreamResponse:
        vhost, is_seen = await vhost_if_named(request, self._management), sees(request, self._management)
        rows = await self._management.queues.rows_by_name(is_seen if vhost is None else vhost.__eq__)
        vhost_of, name_of = rows.fields["vhost"], rows.fields["name"]
        type_of, is_exclusive = rows.fields["type"], rows.fields["exclusive"]

        def key_of(queue: Any) -> tuple[str, ...]:
            return "queue", vhost_of(queue), name_of(queue)

        add_samples = adding_samples(request, self._management, key_of)

        def completed(queue: Any, document: Mapping[str, Any]) -> Mapping[str, Any]:
            kind, exclusive = type_of(queue), is_exclusive(queue)
            return add_samples(queue, without_other_types(document, kind, is_exclusive=exclusive))

        listing = Listing(
            rows.things,
            row_fields(rows),
            is_in_order=True,
            parts=rows.parts,
            basic=_basics(request),
            completed=completed,
        )
        return await write_listing(request, listing)

    async def queue(self, request: web.Request) -> web.Response:
        vhost, name = await named_vhost(request, self._management), request.match_info["name"]
        queue = await existing(self._management, lambda: self._management.queues.find(vhost, name))
        document = queue_document(queue)
        if is_asked(request, "disable_stats"):
            basic = _basics(request)
            return narrowed(request, {key: value for key, value in document.items() if key in basic})
        found = list(self._management.consumers.of_queue(vhost, name))
        consumers = await consumer_documents(self._management, found)
        # RabbitMQ shows counts between a queue and each channel or exchange in its rates mode "detailed" only.
        details: dict[str, Any] = {"consumer_details": consumers, "incoming": [], "deliveries": []}
        thing = ("queue", vhost, name)
        return narrowed(request, with_samples(request, self._management, thing, document) | details)

    async def put(self, request: web.Request) -> web.Response:
        vhost, name = await named_vhost(request, self._management), request.match_info["name"]
        command = read_queue(name, await read_body(request))
        is_new = await find(self._management, lambda: self._management.queues.find(vhost, name)) is None
        await declare(request, self._management, vhost, command)
        return put_answer(is_new=is_new)

    async def delete(self, request: web.Request) -> web.Response:
        vhost, name = await self._existing(request)
        command = DeleteQueue(0, 0, name, is_asked(request, "if-unused"), is_asked(request, "if-empty"))
        await declare(request, self._management, vhost, command)
        return done()

    async def purge(self, request: web.Request) -> web.Response:
        vhost, name = await self._existing(request)
        await declare(request, self._management, vhost, PurgeQueue(0, 0, name))
        return done()

    async def bindings(self, request: web.Request) -> web.StreamResponse:
        vhost, name = await self._existing(request)
        found = self._management.catalog.binding_rows(vhost, destination=("queue", name))
        return await write_listing(request, binding_listing(found))

    async def browse(self, request: web.Request) -> web.StreamResponse:
        vhost, name = await self._existing(request)
        offset = number(request, "offset", 0, OFFSET_MAX)
        count = number(request, "count", BROWSE_COUNT, BROWSE_COUNT_MAX)
        truncate = number(request, "truncate", BROWSE_BYTES_MAX, BROWSE_BYTES_MAX)
        encoding = request.query.get("encoding", "auto")
        if encoding not in ("auto", "base64"):
            raise bad_request("Unsupported encoding. Please use auto or base64.")
        await self._check_reader(request, vhost, name)
        messages = await self._management.queues.browse(vhost, name, offset, count, BROWSE_BYTES_MAX)
        if messages is None:
            raise not_found()
        as_base64 = encoding == "base64"
        documents = (browsed_document(each, as_base64=as_base64, truncate=truncate) for each in messages)
        return await write_list(request, documents)

    async def search(self, request: web.Request) -> web.Response:
        """Answer with the messages that a move with the same filter would move, and with their number."""
        vhost, name = await self._existing(request)
        limits = SearchLimits(
            offset=number(request, "offset", 0, OFFSET_MAX),
            looked_at=number(request, "look_at", SEARCH_LOOK_AT, COUNTED_MAX),
            messages=number(request, "count", SEARCH_COUNT, SEARCH_COUNT_MAX),
            bytes=BROWSE_BYTES_MAX,
        )
        truncate = number(request, "truncate", BROWSE_BYTES_MAX, BROWSE_BYTES_MAX)
        await self._check_reader(request, vhost, name)
        wanted = query_filter(request.query)
        found = await self._management.queues.search(vhost, name, wanted, limits)
        if found is None:
            raise not_found()
        next_offset = limits.offset + found.looked_at
        died = [
            {"queue": queue, "reason": reason, "count": count}
            for (queue, reason), count in found.died.items()
        ]
        messages = [browsed_document(each, as_base64=False, truncate=truncate) for each in found.messages]
        return web.json_response(
            {
                "messages": messages,
                "matched": found.matched,
                "returnable": found.returnable,
                "looked_at": found.looked_at,
                "ready": found.ready,
                "next_offset": next_offset if found.looked_at and next_offset < found.ready else None,
                "died": died,
            }
        )

    async def get(self, request: web.Request) -> web.StreamResponse:
        vhost, name = await self._existing(request)
        count, ack_mode, as_base64, truncate = read_get(await read_body(request))
        await self._check_reader(request, vhost, name)
        login = login_of(request)
        messages = await self._management.operations.get(
            vhost, name, login.user, count, ack_mode, login.scopes
        )
        parts = message_parts(messages, got_document, as_base64=as_base64, truncate=truncate)
        return await write_parts(request, parts)

    async def act(self, request: web.Request) -> web.Response:
        """Refuse any action, as RabbitMQ 4 does: its actions were for mirrored queues, which no longer exist."""
        require(request, ADMINISTRATORS)
        await self._existing(request, "queue_not_found")
        body = await read_body(request)
        if "action" not in body:
            raise bad_request("key_missing: action")
        raise bad_request(f"unknown: {body['action']}")

    async def consumers(self, request: web.Request) -> web.StreamResponse:
        vhost, is_seen = await vhost_if_named(request, self._management), sees(request, self._management)
        if is_asked(request, "disable_stats"):
            raise bad_request(STATS_DISABLED)
        consumers = self._management.consumers.all(vhost)
        return await write_listing(request, consumer_listing(self._management, consumers, is_seen))

    async def _check_reader(self, request: web.Request, vhost: str, name: str) -> None:
        await check_permitted(request, self._management, vhost, Get(0, 0, 0, 0, name, False, 0))

    async def _existing(self, request: web.Request, reason: str = NOT_FOUND) -> tuple[str, str]:
        """Return the virtual host and the name of the queue in the path. Raises Refusal if it does not exist."""
        vhost, name = await named_vhost(request, self._management), request.match_info["name"]
        await existing(self._management, lambda: self._management.queues.find(vhost, name), reason)
        return vhost, name


def _basics(request: web.Request) -> tuple[str, ...]:
    """Return the fields of a queue that are no statistics, with its totals if requested."""
    return (*QUEUE_BASICS, *(QUEUE_TOTALS if is_asked(request, "enable_queue_totals") else ()))
