"""RabbitMQ's management API, as far as there is one.

Lives here: paths, parameters and statuses. Not here: what a document holds (documents.py, view.py), who may ask
(login.py), where the answers come from and what a change does (management.py).

Law: a handler reads the request, asks the broker, and tells the answer. A list is written in slices: there may be tens
of thousands of queues, and other tasks run between them.
"""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from itertools import islice
from typing import TYPE_CHECKING, Any

from aiohttp import hdrs, web

from qq.http.documents import (
    consumer_document,
    message_document,
    policy_document,
    queue_document,
    read_deduplication,
    read_object,
    read_policy,
)
from qq.http.errors import bad_request, not_found
from qq.http.login import ADMINISTRATOR, POLICYMAKER, require

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from qq.http.view import Deduplication, Management
    from qq.machine.policies import Policy

DOCUMENTS_PER_SLICE = 50
"""Some milliseconds of encoding, then other tasks run."""
BROWSE_COUNT = 50
BROWSE_COUNT_MAX = 1000
BROWSE_BYTES_MAX = 1024 * 1024
"""Of all bodies of an answer; of a single larger body so much is shown."""
OFFSET_MAX = 10**18
DIGITS_MAX = 19

DEDUPLICATION = "publisher-deduplication"


class Api:
    """The handlers."""

    def __init__(self, management: Management) -> None:
        self._management = management

    def routes(self) -> list[web.RouteDef]:
        routes = [
            web.get("/api/queues", self.queues),
            web.get("/api/queues/{vhost}", self.queues),
            web.get("/api/queues/{vhost}/{name}", self.queue),
            web.get("/api/queues/{vhost}/{name}/browse", self.browse),
            web.get("/api/consumers", self.consumers),
            web.get("/api/consumers/{vhost}", self.consumers),
            web.get("/api/global-parameters/{name}", self.parameter),
            web.put("/api/global-parameters/{name}", self.put_parameter),
        ]
        for policies in (_Policies(self._management, operator=operator) for operator in (False, True)):
            routes += policies.routes()
        return routes

    async def queues(self, request: web.Request) -> web.StreamResponse:
        _check_vhost(request, self._management)
        return await _write_list(request, map(queue_document, self._management.queues()))

    async def queue(self, request: web.Request) -> web.Response:
        _check_vhost(request, self._management)
        queue = self._management.queue(request.match_info["name"])
        if queue is None:
            raise not_found()
        return web.json_response(queue_document(queue))

    async def consumers(self, request: web.Request) -> web.StreamResponse:
        _check_vhost(request, self._management)
        return await _write_list(request, map(consumer_document, self._management.consumers()))

    async def browse(self, request: web.Request) -> web.StreamResponse:
        _check_vhost(request, self._management)
        offset = _number(request, "offset", 0, OFFSET_MAX)
        count = _number(request, "count", BROWSE_COUNT, BROWSE_COUNT_MAX)
        truncate = _number(request, "truncate", BROWSE_BYTES_MAX, BROWSE_BYTES_MAX)
        encoding = request.query.get("encoding", "auto")
        if encoding not in ("auto", "base64"):
            raise bad_request("Unsupported encoding. Please use auto or base64.")
        name = request.match_info["name"]
        messages = await self._management.browse(name, offset, count, BROWSE_BYTES_MAX)
        if messages is None:
            raise not_found()
        as_base64 = encoding == "base64"
        documents = (message_document(each, as_base64=as_base64, truncate=truncate) for each in messages)
        return await _write_list(request, documents)

    async def parameter(self, request: web.Request) -> web.Response:
        _check_parameter(request)
        return web.json_response(_parameter_document(self._management.deduplication()))

    async def put_parameter(self, request: web.Request) -> web.Response:
        require(request, (POLICYMAKER, ADMINISTRATOR))
        _check_parameter(request)
        bounds = read_deduplication(read_object(await request.read()), self._management.deduplication())
        await self._management.set_deduplication(bounds)
        return web.Response(status=HTTPStatus.NO_CONTENT)


class _Policies:
    """The handlers for the policies of users, or for those of operators."""

    def __init__(self, management: Management, *, operator: bool) -> None:
        self._management = management
        self._operator = operator

    def routes(self) -> list[web.RouteDef]:
        base = "/api/operator-policies" if self._operator else "/api/policies"
        return [
            web.get(base, self.policies),
            web.get(f"{base}/{{vhost}}", self.policies),
            web.get(f"{base}/{{vhost}}/{{name}}", self.policy),
            web.put(f"{base}/{{vhost}}/{{name}}", self.put),
            web.delete(f"{base}/{{vhost}}/{{name}}", self.delete),
        ]

    async def policies(self, request: web.Request) -> web.Response:
        _check_vhost(request, self._management)
        return web.json_response([self._document(policy) for policy in self._all()])

    async def policy(self, request: web.Request) -> web.Response:
        _check_vhost(request, self._management)
        name = request.match_info["name"]
        for policy in self._all():
            if policy.name == name:
                return web.json_response(self._document(policy))
        raise not_found()

    async def put(self, request: web.Request) -> web.Response:
        self._require_author(request)
        _check_vhost(request, self._management)
        body = read_object(await request.read())
        policy = read_policy(request.match_info["name"], body, operator=self._operator)
        is_new = await self._management.put_policy(policy)
        return web.Response(status=HTTPStatus.CREATED if is_new else HTTPStatus.NO_CONTENT)

    async def delete(self, request: web.Request) -> web.Response:
        self._require_author(request)
        _check_vhost(request, self._management)
        if not await self._management.delete_policy(request.match_info["name"], operator=self._operator):
            raise not_found()
        return web.Response(status=HTTPStatus.NO_CONTENT)

    def _all(self) -> Iterable[Policy]:
        return self._management.policies(operator=self._operator)

    def _document(self, policy: Policy) -> dict[str, Any]:
        return policy_document(self._management.vhost, policy)

    def _require_author(self, request: web.Request) -> None:
        # What operators set binds those who make policies.
        require(request, (ADMINISTRATOR,) if self._operator else (POLICYMAKER, ADMINISTRATOR))


def _check_vhost(request: web.Request, management: Management) -> None:
    if request.match_info.get("vhost", management.vhost) != management.vhost:
        raise not_found("vhost_not_found")


def _check_parameter(request: web.Request) -> None:
    if request.match_info["name"] != DEDUPLICATION:
        raise not_found()


def _parameter_document(bounds: Deduplication) -> dict[str, Any]:
    return {"name": DEDUPLICATION, "value": bounds._asdict()}


def _number(request: web.Request, name: str, default: int, highest: int) -> int:
    text = request.query.get(name, str(default))
    if text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX and int(text) <= highest:
        return int(text)
    raise bad_request(f"{name} must be a whole number from 0 to {highest}")


async def _write_list(request: web.Request, documents: Iterator[dict[str, Any]]) -> web.StreamResponse:
    response = web.StreamResponse(headers={hdrs.CONTENT_TYPE: "application/json; charset=utf-8"})
    await response.prepare(request)
    separator = "["
    while part := list(islice(documents, DOCUMENTS_PER_SLICE)):
        await response.write((separator + json.dumps(part)[1:-1]).encode())
        separator = ","
        await asyncio.sleep(0)
    await response.write(b"[]" if separator == "[" else b"]")
    await response.write_eof()
    return response
