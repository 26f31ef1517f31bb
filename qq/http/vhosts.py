"""Virtual hosts and their limits.

Lives here: their paths and statuses. Not here: what goes with a virtual host (machine/operating.py), who may use one
(permissions.py).

Law: only administrators change anything; who creates a virtual host may use it, as in RabbitMQ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from qq.http.bodies import VHOST_LIMITS, check_limit, read_limit, read_vhost
from qq.http.documents import vhost_document
from qq.http.errors import bad_request, not_found
from qq.http.login import ADMINISTRATORS, MONITORS, login_of, require
from qq.http.requests import done, named_vhost, put_answer, read_body, sees, vhost_if_named
from qq.machine.commands import DeleteVhost, PutVhost, SetPermissions, SetVhostLimits

if TYPE_CHECKING:
    from qq.http.view import Management, VhostStatus
    from qq.machine.commands import Change

ALL = ".*"
"""Whoever has this permission has it for everything."""


class Vhosts:
    """The handlers."""

    def __init__(self, management: Management) -> None:
        self._management = management

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/vhosts", self.vhosts),
            web.get("/api/vhosts/{vhost}", self.vhost),
            web.put("/api/vhosts/{vhost}", self.put),
            web.delete("/api/vhosts/{vhost}", self.delete),
            web.get("/api/vhost-limits", self.limits),
            web.get("/api/vhost-limits/{vhost}", self.limits),
            web.put("/api/vhost-limits/{vhost}/{name}", self.put_limit),
            web.delete("/api/vhost-limits/{vhost}/{name}", self.delete_limit),
        ]

    async def vhosts(self, request: web.Request) -> web.Response:
        is_seen = sees(request, self._management, MONITORS)
        return web.json_response(
            [vhost_document(each) for each in self._management.vhosts() if is_seen(each.name)]
        )

    async def vhost(self, request: web.Request) -> web.Response:
        return web.json_response(vhost_document(self._existing(request)))

    async def put(self, request: web.Request) -> web.Response:
        require(request, ADMINISTRATORS)
        name = request.match_info["vhost"]
        current = self._find(name)
        current_type = "" if current is None else current.default_queue_type
        command = read_vhost(name, await read_body(request, optional=True), current_type)
        await self._management.change(*creation(self._management, command, login_of(request).user))
        return put_answer(is_new=current is None)

    async def delete(self, request: web.Request) -> web.Response:
        require(request, ADMINISTRATORS)
        await self._management.change(DeleteVhost(self._existing(request).name))
        return done()

    async def limits(self, request: web.Request) -> web.Response:
        vhost = vhost_if_named(request, self._management, MONITORS)
        is_seen = sees(request, self._management, MONITORS)
        return web.json_response(
            [
                {"vhost": each.name, "value": each.limits}
                for each in self._management.vhosts()
                if each.limits and vhost in (None, each.name) and is_seen(each.name)
            ]
        )

    async def put_limit(self, request: web.Request) -> web.Response:
        require(request, ADMINISTRATORS)
        vhost, name = self._existing(request), request.match_info["name"]
        check_limit(name, VHOST_LIMITS)
        limits = {**vhost.limits, name: read_limit(await read_body(request))}
        await self._management.change(SetVhostLimits(vhost.name, limits))
        return done()

    async def delete_limit(self, request: web.Request) -> web.Response:
        require(request, ADMINISTRATORS)
        vhost, name = self._existing(request), request.match_info["name"]
        limits = {each: limit for each, limit in vhost.limits.items() if each != name}
        await self._management.change(SetVhostLimits(vhost.name, limits))
        return done()

    def _existing(self, request: web.Request) -> VhostStatus:
        """The virtual host that the path names. Raises Refusal."""
        vhost = self._find(named_vhost(request, self._management, MONITORS))
        if vhost is None:
            raise not_found("vhost_not_found")
        return vhost

    def _find(self, name: str) -> VhostStatus | None:
        return next((each for each in self._management.vhosts() if each.name == name), None)


def creation(management: Management, command: PutVhost, user: str) -> list[Change]:
    """What makes a virtual host, or describes it anew. Raises Refusal."""
    if not command.name:
        raise bad_request("a virtual host has to have a name")
    if management.has_vhost(command.name) or user not in management.users():
        return [command]
    return [command, SetPermissions(user, command.name, ALL, ALL, ALL)]
