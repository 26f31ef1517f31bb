"""Virtual hosts and their limits.

Invariant: only administrators change them. The creator of a virtual host gets permissions in it, as in RabbitMQ.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from aiohttp import web

from qq.errors import ReplyCode
from qq.http.base.error_responses import Refusal, bad_request
from qq.http.base.login import ADMINISTRATORS, MONITORS, login_of, require
from qq.http.documents.lists import Listing, narrowed, write_listing
from qq.http.documents.parsing import check_limit, read_limit, read_vhost
from qq.http.documents.rendering import vhost_document
from qq.http.documents.requests import (
    done,
    existing,
    is_asked,
    named_vhost,
    put_answer,
    read_body,
    sees,
    unless_made,
    vhost_if_named,
)
from qq.http.documents.samples import adding_samples, with_samples
from qq.machine.catalog.limits import VHOST_LIMITS
from qq.machine.protocol.commands import (
    ChangeVhostLimits,
    DeleteVhost,
    ProtectVhost,
    PutVhost,
    SetPermissions,
)
from qq.management.errors import RequestRefused
from qq.management.reports.members import NodeState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qq.machine.protocol.commands import Change
    from qq.management.management import Management
    from qq.management.reports.catalog import VhostStatus

ALL = ".*"
"""Permission pattern that matches all names."""
_VHOST = "/api/vhosts/{vhost}"


class VhostEndpoints:
    """Handlers for virtual hosts."""

    def __init__(self, management: Management) -> None:
        self._management = management
        self._one_at_a_time = asyncio.Lock()
        """Lock for changes that keep values which are missing in the request."""

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/vhosts", self.vhosts),
            web.get(_VHOST, self.vhost),
            web.put(_VHOST, self.put),
            web.delete(_VHOST, self.delete),
            web.get(f"{_VHOST}/deletion/protection", self.protection),
            web.post(f"{_VHOST}/deletion/protection", self.protect),
            web.delete(f"{_VHOST}/deletion/protection", self.unprotect),
            web.get("/api/vhost-limits", self.limits),
            web.get("/api/vhost-limits/{vhost}", self.limits),
            web.put("/api/vhost-limits/{vhost}/{name}", self.put_limit),
            web.delete("/api/vhost-limits/{vhost}/{name}", self.delete_limit),
        ]

    async def vhosts(self, request: web.Request) -> web.StreamResponse:
        is_seen, states = sees(request, self._management, MONITORS), self._states()
        has_stats = not is_asked(request, "disable_stats")
        seen = (
            vhost_document(each, states) | (self._stats(each.name) if has_stats else {})
            for each in self._management.catalog.vhosts()
            if is_seen(each.name)
        )

        def key_of(document: Mapping[str, Any]) -> tuple[str, ...]:
            return "vhost", document["name"]

        completed = adding_samples(request, self._management, key_of)
        return await write_listing(request, Listing(seen, completed=completed))

    async def vhost(self, request: web.Request) -> web.Response:
        vhost = await self._existing(request)
        document = vhost_document(vhost, self._states())
        if is_asked(request, "disable_stats"):
            return narrowed(request, document)
        stats = with_samples(request, self._management, ("vhost", vhost.name), self._stats(vhost.name))
        return narrowed(request, document | stats)

    def _stats(self, name: str) -> dict[str, Any]:
        happened, lengths, octets = self._management.statistics.vhost_stats(name.__eq__)
        return {"message_stats": happened, **lengths, **octets}

    async def put(self, request: web.Request) -> web.Response:
        require(request, ADMINISTRATORS)
        name, body = request.match_info["vhost"], await read_body(request)
        async with self._one_at_a_time:
            await self._management.changes.wait_applied()
            current = self._find(name)
            command = read_vhost(name, body, "" if current is None else current.default_queue_type)
            login = login_of(request)
            # A user with a token differs from the cluster's user with the same name.
            creator = login.user if login.scopes is None else ""
            await self._management.changes.apply(*creation(self._management, command, creator))
        return put_answer(is_new=current is None)

    async def delete(self, request: web.Request) -> web.Response:
        require(request, ADMINISTRATORS)
        vhost = await self._existing(request)
        try:
            await self._management.changes.apply(DeleteVhost(vhost.name))
        except RequestRefused as refused:
            if refused.code != ReplyCode.PRECONDITION_FAILED:
                raise
            raise Refusal(HTTPStatus.PRECONDITION_FAILED, refused.explanation) from None
        return done()

    async def protection(self, request: web.Request) -> web.Response:
        vhost = await self._existing(request)
        return web.json_response({"protected_from_deletion": vhost.is_protected})

    async def protect(self, request: web.Request) -> web.Response:
        return await self._protect(request, is_protected=True)

    async def unprotect(self, request: web.Request) -> web.Response:
        return await self._protect(request, is_protected=False)

    async def _protect(self, request: web.Request, *, is_protected: bool) -> web.Response:
        require(request, ADMINISTRATORS)
        vhost = await self._existing(request)
        await self._management.changes.apply(ProtectVhost(vhost.name, is_protected))
        return done()

    async def limits(self, request: web.Request) -> web.StreamResponse:
        vhost = await vhost_if_named(request, self._management, MONITORS)
        is_seen = sees(request, self._management, MONITORS)
        documents = (
            {"vhost": each.name, "value": each.limits}
            for each in self._management.catalog.vhosts()
            if each.limits and vhost in (None, each.name) and is_seen(each.name)
        )
        return await write_listing(request, Listing(documents))

    async def put_limit(self, request: web.Request) -> web.Response:
        require(request, ADMINISTRATORS)
        vhost, name = await self._existing(request), request.match_info["name"]
        check_limit(name, VHOST_LIMITS)
        limit = read_limit(await read_body(request), name)
        await self._management.changes.apply(ChangeVhostLimits(vhost.name, {name: limit}))
        return done()

    async def delete_limit(self, request: web.Request) -> web.Response:
        require(request, ADMINISTRATORS)
        vhost, name = await self._existing(request), request.match_info["name"]
        await self._management.changes.apply(ChangeVhostLimits(vhost.name, {name: None}))
        return done()

    async def _existing(self, request: web.Request) -> VhostStatus:
        """Return the virtual host in the path. Raises Refusal."""
        name = await named_vhost(request, self._management, MONITORS)
        return await existing(
            self._management, lambda: self._find(name), unless_made(request, "vhost_not_found")
        )

    def _states(self) -> dict[str, str]:
        """Return the state of virtual hosts by node, in RabbitMQ's words: all of them run while their node is up."""
        members = self._management.members.report().members
        return {each.name: "nodedown" if each.state == NodeState.DOWN else "running" for each in members}

    def _find(self, name: str) -> VhostStatus | None:
        return next((each for each in self._management.catalog.vhosts() if each.name == name), None)


def creation(management: Management, command: PutVhost, user: str) -> list[Change]:
    """Return the changes that create or update a virtual host. Raises Refusal."""
    if not command.name:
        raise bad_request("a virtual host has to have a name")
    if management.catalog.has_vhost(command.name) or not management.catalog.has_user(user):
        return [command]
    return [command, SetPermissions(user, command.name, ALL, ALL, ALL)]
