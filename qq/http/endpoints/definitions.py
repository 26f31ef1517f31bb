"""Definitions: all declared and configured objects as a document, in RabbitMQ's format.

Invariants: a document can be imported by qq and by RabbitMQ. But RabbitMQ refuses unknown limits, if a virtual host has
any. A document shows the state at the moment of the request, however long writing it takes. So it contains no binding
without its queue.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from typing import TYPE_CHECKING, Any

from aiohttp import web

from qq.http.base.error_responses import forbidden, not_found
from qq.http.base.login import ADMINISTRATORS, login_of, require
from qq.http.documents.large_bodies import read_large_object
from qq.http.documents.parsing import ENCODED_ARGUMENTS
from qq.http.documents.rendering import policy_document, user_document, vhost_metadata
from qq.http.documents.requests import done, is_asked, stored_body, vhost_if_named, write_object
from qq.http.endpoints.importing import RESERVED, Import
from qq.http.endpoints.parameters import global_parameter_documents, parameter_documents
from qq.stored.exact_tables import encode_table
from qq.tables import is_json, json_value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from qq.http.documents.requests import Documents
    from qq.management.management import Management
    from qq.management.reports.catalog import BindingStatus, ExchangeStatus
    from qq.management.reports.queues import QueueStatus

DEFINITIONS_BYTES_MAX = 1024 * 1024 * 1024
"""Bytes of a document at most: some millions of queues."""


class DefinitionEndpoints:
    """Handlers for definitions."""

    def __init__(self, management: Management) -> None:
        self._management = management
        self._one_at_a_time = asyncio.Lock()
        """Held during an import, because its document takes room on the disk, and its objects take memory."""

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/definitions", self.get),
            web.post("/api/definitions", self.post),
            # The same under the old name.
            web.get("/api/all-configuration", self.get),
            web.post("/api/all-configuration", self.post),
            web.get("/api/definitions/{vhost}", self.get),
            web.post("/api/definitions/{vhost}", self.post),
        ]

    async def get(self, request: web.Request) -> web.StreamResponse:
        require(request, ADMINISTRATORS)
        vhost = await vhost_if_named(request, self._management)
        whole = self._cluster() if vhost is None else self._single_vhost(vhost)
        exclusive: set[tuple[str, str]] = set()
        # No await between these calls, so that all lists are of the same moment.
        lists: dict[str, Documents] = {
            "parameters": parameter_documents(self._management, vhost),
            "policies": (
                policy_document(*row) for row in self._management.catalog.policies(vhost, operator=False)
            ),
            "exchanges": _exchanges(self._management.catalog.exchanges(vhost)),
            "queues": _queues(self._management.queues.all(vhost), exclusive),
            "bindings": _bindings(self._management.catalog.bindings(vhost), exclusive),
        }
        if vhost is None:
            lists = (
                self._who_may() | {"global_parameters": global_parameter_documents(self._management)} | lists
            )
        else:
            lists = {name: map(_without_vhost, documents) for name, documents in lists.items()}
        return await write_object(request, whole, lists)

    async def post(self, request: web.Request) -> web.StreamResponse:
        """Import a document. The answer names objects that are left out; it is empty if there are none."""
        require(request, ADMINISTRATORS)
        login = login_of(request)
        if login.scopes is not None:
            raise forbidden(
                "definitions are imported with a password: a token gives no permissions to import with"
            )
        vhost = await vhost_if_named(request, self._management)
        # The body comes outside of the lock, because a client may be slow.
        async with stored_body(request, DEFINITIONS_BYTES_MAX) as octets, self._one_at_a_time:
            body = await read_large_object(octets)
            # Catch up first, because existing objects stay as they are, also those created through a different node.
            await self._management.changes.wait_applied()
            importing = Import(self._management, login.user, vhost, is_forced=is_asked(request, "force"))
            left_out = await importing.run(body)
        if not left_out:
            return done()
        return await write_object(request, {}, {"left_out": (each._asdict() for each in left_out)})

    # Written at once

    def _head(self) -> dict[str, Any]:
        product = self._management.catalog.product()
        return {
            "rabbit_version": product.version,
            "rabbitmq_version": product.version,
            "product_name": product.name,
            "product_version": product.version,
        }

    def _cluster(self) -> dict[str, Any]:
        cluster = self._management.catalog.cluster_name()
        return self._head() | {
            "rabbitmq_definition_format": "cluster",
            "original_cluster_name": cluster,
            "explanation": f"Definitions of cluster '{cluster}'",
        }

    def _single_vhost(self, name: str) -> dict[str, Any]:
        for vhost in self._management.catalog.vhosts():
            if vhost.name == name:
                return self._head() | {
                    "rabbitmq_definition_format": "single_virtual_host",
                    "original_vhost_name": name,
                    "explanation": f"Definitions of virtual host '{name}'",
                    "metadata": vhost_metadata(vhost),
                    "description": vhost.description,
                    "limits": vhost.limits,
                }
        raise not_found("vhost_not_found")

    # Written in slices

    def _who_may(self) -> dict[str, Documents]:
        """Return the users, virtual hosts and permissions of the whole cluster, for a definitions document."""
        management = self._management
        limits = management.catalog.user_limits()
        return {
            "users": (
                user_document(user, limits.get(name, {})) for name, user in management.catalog.users().items()
            ),
            "vhosts": (
                {"name": vhost.name, "limits": vhost.limits, **metadata, "metadata": metadata}
                for vhost in management.catalog.vhosts()
                for metadata in (vhost_metadata(vhost),)
            ),
            "permissions": (row._asdict() for row in management.catalog.permissions()),
            "topic_permissions": (row._asdict() for row in management.catalog.topic_permissions()),
        }


_QUEUE_FIELDS = ("name", "vhost", "type", "durable", "auto_delete")
_EXCHANGE_FIELDS = (*_QUEUE_FIELDS, "internal")
"""Fields of an object in a document of definitions, before its `arguments`."""


def _definition(declared: QueueStatus | ExchangeStatus, fields: Sequence[str]) -> dict[str, Any]:
    document = {name: getattr(declared, name) for name in fields}
    return document | _arguments(declared.arguments)


def _arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields for an object's arguments: as JSON, and in AMQP's encoding if they are no JSON."""
    fields: dict[str, Any] = {"arguments": json_value(arguments)}
    if not is_json(arguments):
        fields[ENCODED_ARGUMENTS] = b64encode(encode_table(arguments)).decode()
    return fields


# These yield None for skipped objects, because skipping many may take long, too.


def _exchanges(exchanges: Iterator[ExchangeStatus]) -> Iterator[dict[str, Any] | None]:
    for exchange in exchanges:
        if not exchange.name or exchange.name.startswith(RESERVED):
            yield None
        else:
            yield _definition(exchange, _EXCHANGE_FIELDS)


def _queues(
    queues: Iterator[QueueStatus], exclusive: set[tuple[str, str]]
) -> Iterator[dict[str, Any] | None]:
    """Yield the queues. Exclusive queues are skipped and added to `exclusive`, because they belong to a connection."""
    for queue in queues:
        if queue.exclusive:
            exclusive.add((queue.vhost, queue.name))
            yield None
        else:
            yield _definition(queue, _QUEUE_FIELDS)


def _bindings(
    bindings: Iterator[BindingStatus], exclusive: set[tuple[str, str]]
) -> Iterator[dict[str, Any] | None]:
    """Yield the bindings without those of the default exchange, which every queue has, and of exclusive queues."""
    for binding in bindings:
        is_of_queue = binding.destination_type == "queue"
        if not binding.source or (is_of_queue and (binding.vhost, binding.destination) in exclusive):
            yield None
        else:
            document = binding._asdict() | _arguments(binding.arguments)
            del document["properties_key"]
            yield document


def _without_vhost(document: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if document is None else {name: value for name, value in document.items() if name != "vhost"}
