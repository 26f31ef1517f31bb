"""Permissions and topic permissions.

Invariant: only administrators see or change them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from aiohttp import web

from qq.http.base.error_responses import bad_request
from qq.http.base.login import ADMINISTRATORS, require
from qq.http.documents.lists import Listing, write_listing
from qq.http.documents.parsing import read_permissions, read_topic_permissions
from qq.http.documents.requests import done, existing, find, put_answer, read_body
from qq.machine.protocol.commands import ClearPermissions, ClearTopicPermissions

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from qq.http.documents.parsing import Body
    from qq.machine.catalog import permissions
    from qq.machine.protocol.commands import Change
    from qq.management.management import Management


class _Rows(ABC):
    """Common part of the handlers for permissions and for topic permissions."""

    def __init__(self, management: Management, name: str) -> None:
        self._management = management
        self._name = name

    def routes(self) -> list[web.RouteDef]:
        one = f"/api/{self._name}/{{vhost}}/{{user}}"
        return [
            web.get(f"/api/{self._name}", self.rows),
            web.get(f"/api/vhosts/{{vhost}}/{self._name}", self.rows),
            web.get(f"/api/users/{{user}}/{self._name}", self.rows),
            web.get(one, self.one),
            web.put(one, self.put),
            web.delete(one, self.delete),
        ]

    @abstractmethod
    def _all(self) -> Sequence[permissions.Permissions | permissions.TopicPermissions]: ...

    async def rows(self, request: web.Request) -> web.StreamResponse:
        require(request, ADMINISTRATORS)
        await self._check(request)
        return await write_listing(request, _listing(self._matching(request)))

    @abstractmethod
    async def one(self, request: web.Request) -> web.StreamResponse: ...

    @abstractmethod
    def _read(self, user: str, vhost: str, body: Body) -> Change:
        """Return the change that a PUT asks for. Raises Refusal."""

    @abstractmethod
    def _clearing(self, request: web.Request) -> Change:
        """Return the change that a DELETE asks for."""

    async def put(self, request: web.Request) -> web.Response:
        require(request, ADMINISTRATORS)
        user, vhost = _named(request)
        if not await find(self._management, lambda: self._are_there(user, vhost)):
            raise bad_request("vhost_or_user_not_found")
        change = self._read(user, vhost, await read_body(request))
        is_new = not await find(self._management, lambda: self._matching(request))
        await self._management.changes.apply(change)
        return put_answer(is_new=is_new)

    async def delete(self, request: web.Request) -> web.Response:
        await self._existing(request)
        await self._management.changes.apply(self._clearing(request))
        return done()

    async def _existing(
        self, request: web.Request
    ) -> list[permissions.Permissions | permissions.TopicPermissions]:
        """Return the rows that match the path. Raises Refusal if no row does."""
        require(request, ADMINISTRATORS)
        await self._check(request)
        return await existing(self._management, lambda: self._matching(request))

    def _matching(self, request: web.Request) -> list[permissions.Permissions | permissions.TopicPermissions]:
        """Return the rows that match the user and the virtual host in the path."""
        named = request.match_info
        return [row for row in self._all() if all(getattr(row, part) == name for part, name in named.items())]

    async def _check(self, request: web.Request) -> None:
        """Raise Refusal unless the virtual host and the user in the path exist."""
        named, management = request.match_info, self._management
        if "vhost" in named:
            await existing(management, lambda: management.catalog.has_vhost(named["vhost"]))
        if "user" in named:
            await existing(management, lambda: named["user"] in management.catalog.users())

    def _are_there(self, user: str, vhost: str) -> bool:
        return self._management.catalog.has_vhost(vhost) and user in self._management.catalog.users()


class PermissionEndpoints(_Rows):
    """Handlers for permissions for queues and exchanges."""

    def __init__(self, management: Management) -> None:
        super().__init__(management, "permissions")

    def _all(self) -> Sequence[permissions.Permissions]:
        return self._management.catalog.permissions()

    async def one(self, request: web.Request) -> web.Response:
        (row,) = await self._existing(request)
        return web.json_response(row._asdict())

    def _read(self, user: str, vhost: str, body: Body) -> Change:
        return read_permissions(user, vhost, body)

    def _clearing(self, request: web.Request) -> Change:
        return ClearPermissions(*_named(request))


class TopicPermissionEndpoints(_Rows):
    """Handlers for permissions for routing keys. A user may have several in a virtual host, a row for each exchange."""

    def __init__(self, management: Management) -> None:
        super().__init__(management, "topic-permissions")

    def routes(self) -> list[web.RouteDef]:
        one = "/api/topic-permissions/{vhost}/{user}/{exchange}"
        # As in RabbitMQ, the body of a PUT names the exchange.
        own = [web.get(one, self.one), web.put(one, self.put), web.delete(one, self.delete)]
        return [*super().routes(), *own]

    def _all(self) -> Sequence[permissions.TopicPermissions]:
        return self._management.catalog.topic_permissions()

    async def one(self, request: web.Request) -> web.StreamResponse:
        return await write_listing(request, _listing(await self._existing(request)))

    def _read(self, user: str, vhost: str, body: Body) -> Change:
        return read_topic_permissions(user, vhost, body)

    def _clearing(self, request: web.Request) -> Change:
        return ClearTopicPermissions(*_named(request), request.match_info.get("exchange", ""))


def _listing(
    rows: Iterable[permissions.Permissions | permissions.TopicPermissions],
) -> Listing[dict[str, Any]]:
    return Listing([row._asdict() for row in rows], order=("vhost", "user"))


def _named(request: web.Request) -> tuple[str, str]:
    """Return the user and the virtual host in the path."""
    return request.match_info["user"], request.match_info["vhost"]
