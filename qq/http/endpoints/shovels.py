"""RabbitMQ's dynamic shovels over HTTP: check, show, restart, delete.

Invariant: the user who sets a shovel needs the permissions for everything that it does in this cluster. Documents
contain no passwords.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiohttp import web

from qq.http.base.error_responses import Refusal, invalid, not_found
from qq.http.base.login import POLICYMAKERS, login_of, require
from qq.http.documents.lists import Listing, write_listing
from qq.http.documents.requests import check_permitted, done, existing, named_vhost, sees, vhost_if_named
from qq.machine.protocol.commands import BindQueue, DeclareQueue, DeleteParameter, Get
from qq.machine.queue.moves import SHOVEL
from qq.management.reports.messages import AllPublications
from qq.shovels.definition import InvalidShovel, NotSupported, definition_of
from qq.shovels.uris import redacted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qq.machine.protocol.commands import Declaration
    from qq.management.management import Management
    from qq.management.reports.catalog import ShovelStatus
    from qq.shovels.definition import Definition

_ONE = "/api/shovels/vhost/{vhost}/{name}"
_SHOWN = [f"{end}-{what}" for end in ("src", "dest") for what in ("queue", "exchange", "exchange-key")]
"""Keys of a shovel's value that are shown unchanged."""


class NotCarriedOut(Refusal):
    """The shovel is valid in RabbitMQ, but this cluster does not support it."""


# --- input


def check_shovel(vhost: str, _name: str, value: Any) -> None:
    """Check the value of a shovel. Raises Refusal."""
    try:
        definition_of(vhost, value)
    except InvalidShovel as error:
        refused = invalid(str(error))
        if isinstance(error, NotSupported):
            raise NotCarriedOut(refused.status, refused.reason) from None
        raise refused from None


async def check_may_set(request: web.Request, management: Management, vhost: str, value: Any) -> None:
    """Raise Refusal or RequestRefused unless the user has the permissions that the shovel needs in this cluster."""
    sees_vhost = sees(request, management)
    for where, command in _needed(definition_of(vhost, value)):
        if not (management.catalog.has_vhost(where) and sees_vhost(where)):
            raise invalid(f'user "{login_of(request).user}" may not connect to vhost "{where}"')
        await check_permitted(request, management, where, command)


def _needed(definition: Definition) -> Iterator[tuple[str, Declaration | AllPublications | Get]]:
    """Yield each virtual host and command that needs permission, for the ends in this cluster without a password."""
    for end, is_source in ((definition.source, True), (definition.target, False)):
        for vhost in dict.fromkeys(uri.vhost for uri in end.uris if uri.is_local):
            if end.queue:
                # Writing to a queue needs the same permission as binding it to the default exchange.
                writes = BindQueue(0, 0, end.queue, "", "", {})
                yield vhost, Get(0, 0, 0, 0, end.queue, False, 0) if is_source else writes
            elif is_source:
                yield vhost, BindQueue(0, 0, "amq.gen-", end.exchange or "", end.key or "", {})
            if not is_source and not definition.is_move:
                # Messages have routing keys of their own (CC and BCC), besides the key in the shovel.
                yield vhost, AllPublications(end.exchange or "")
            if end.queue and not end.is_predeclared and not definition.is_move:
                yield vhost, DeclareQueue(0, 0, end.queue, False, True, False, False, False, end.queue_args)


# --- documents


def shovel_document(shovel: ShovelStatus) -> dict[str, Any]:
    """Return the state of a shovel in the form of RabbitMQ's lists; for a shovel that is a move, with the move."""
    value = shovel.value
    return {
        "name": shovel.name,
        "vhost": shovel.vhost,
        "type": "dynamic",
        "node": shovel.node,
        "state": shovel.state,
        "reason": shovel.reason,
        "src_protocol": value.get("src-protocol", "amqp091"),
        "dest_protocol": value.get("dest-protocol", "amqp091"),
        **{key.replace("-", "_"): value[key] for key in _SHOWN if key in value},
        "src_uri": redacted(value.get("src-uri", "amqp://")),
        "dest_uri": redacted(value.get("dest-uri", "amqp://")),
        **shovel.figures,
    }


class ShovelEndpoints:
    """Handlers for shovels, which are created and changed as parameters."""

    def __init__(self, management: Management) -> None:
        self._management = management

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/shovels", self.shovels),
            web.get("/api/shovels/{vhost}", self.shovels),
            web.get(_ONE, self.shovel),
            web.delete(_ONE, self.delete),
            web.delete(f"{_ONE}/restart", self.restart),
        ]

    async def shovels(self, request: web.Request) -> web.StreamResponse:
        vhost, is_seen = await vhost_if_named(request, self._management), sees(request, self._management)
        found = await self._management.shovels.all(vhost)
        seen = (shovel_document(each) for each in found if is_seen(each.vhost))
        return await write_listing(request, Listing(seen))

    async def shovel(self, request: web.Request) -> web.Response:
        """Answer with the state of a shovel and its parameter. RabbitMQ answers with the parameter only."""
        shovel = await self._existing(request)
        uris = {key: redacted(shovel.value[key]) for key in ("src-uri", "dest-uri") if key in shovel.value}
        parameter = {"component": SHOVEL, "value": {**shovel.value, **uris}}
        return web.json_response(shovel_document(shovel) | parameter)

    async def delete(self, request: web.Request) -> web.Response:
        require(request, POLICYMAKERS)
        shovel = await self._existing(request)
        await self._management.changes.apply(DeleteParameter(shovel.vhost, SHOVEL, shovel.name))
        return done()

    async def restart(self, request: web.Request) -> web.Response:
        """Stop a shovel and start it again."""
        require(request, POLICYMAKERS)
        shovel = await self._existing(request)
        await self._management.shovels.restart(shovel)
        return done()

    async def _existing(self, request: web.Request) -> ShovelStatus:
        vhost, name = await named_vhost(request, self._management), request.match_info["name"]
        await existing(self._management, lambda: self._management.catalog.parameter(vhost, SHOVEL, name))
        for each in await self._management.shovels.all(vhost):
            if each.name == name:
                return each
        raise not_found()  # deleted while the leader was asked
