"""Users, their limits, and the user of the request.

Invariant: only administrators see other users, or change users. The last administrator stays, unless a request says
`force=true`. The node's configuration recreates a user only if no user is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from qq.http.base.error_responses import bad_request
from qq.http.base.login import ADMINISTRATORS, MONITORS, login_of, require, require_owner
from qq.http.documents.lists import Listing, narrowed, write_listing
from qq.http.documents.parsing import check_limit, field, limits, read_limit, read_user
from qq.http.documents.rendering import user_document, whoami_document
from qq.http.documents.requests import done, existing, find, is_asked, put_answer, read_body, unless_made
from qq.machine.catalog.limits import USER_LIMITS
from qq.machine.protocol.commands import ChangeUserLimits, DeleteUser, SetUserLimits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qq.machine.catalog.permissions import User
    from qq.machine.protocol.commands import Change
    from qq.management.management import Management


class UserEndpoints:
    """Handlers for users."""

    def __init__(self, management: Management) -> None:
        self._management = management

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/whoami", self.whoami),
            web.get("/api/users", self.users),
            web.get("/api/users/without-permissions", self.without_permissions),
            web.post("/api/users/bulk-delete", self.bulk_delete),
            web.get("/api/users/{user}", self.user),
            web.put("/api/users/{user}", self.put),
            web.delete("/api/users/{user}", self.delete),
            web.get("/api/user-limits", self.all_limits),
            web.get("/api/user-limits/{user}", self.limits),
            web.put("/api/user-limits/{user}/{name}", self.put_limit),
            web.delete("/api/user-limits/{user}/{name}", self.delete_limit),
        ]

    async def whoami(self, request: web.Request) -> web.Response:
        return web.json_response(whoami_document(login_of(request)))

    # Users

    async def users(self, request: web.Request) -> web.StreamResponse:
        require(request, ADMINISTRATORS)
        return await self._answer(request, list(self._management.catalog.users().values()))

    async def without_permissions(self, request: web.Request) -> web.StreamResponse:
        require(request, ADMINISTRATORS)
        permitted = {row.user for row in self._management.catalog.permissions()}
        others = [user for user in self._management.catalog.users().values() if user.name not in permitted]
        return await self._answer(request, others)

    async def _answer(self, request: web.Request, users: list[User]) -> web.StreamResponse:
        limits = self._management.catalog.user_limits()
        documents = (user_document(user, limits.get(user.name, {})) for user in users)
        return await write_listing(request, Listing(documents))

    async def user(self, request: web.Request) -> web.Response:
        require(request, ADMINISTRATORS)
        name = await self._existing(request)
        user = self._management.catalog.users()[name]
        return narrowed(request, user_document(user, self._limits_of(user.name)))

    async def put(self, request: web.Request) -> web.Response:
        require(request, ADMINISTRATORS)
        name = request.match_info["user"]
        body = await read_body(request)
        changes: list[Change] = [read_user(name, body, self._management.changes.hash_password)]
        if body.get("limits") is not None:
            changes.append(SetUserLimits(name, limits(body["limits"], USER_LIMITS)))
        is_new = not await find(self._management, lambda: name in self._management.catalog.users())
        await self._apply(request, changes)
        return put_answer(is_new=is_new)

    async def delete(self, request: web.Request) -> web.Response:
        require(request, ADMINISTRATORS)
        await self._delete(request, [await self._existing(request)])
        return done()

    async def bulk_delete(self, request: web.Request) -> web.Response:
        """Delete several users. Missing users are ignored."""
        require(request, ADMINISTRATORS)
        names = field(await read_body(request), "users", list)
        if not all(isinstance(name, str) for name in names):
            raise bad_request("users should be a list of names")
        await self._delete(request, names)
        return done()

    async def _delete(self, request: web.Request, names: Sequence[str]) -> None:
        has_user = self._management.catalog.has_user
        if not all(map(has_user, names)):  # other nodes may have just created the missing users
            await self._management.changes.wait_applied()
        there = [name for name in names if has_user(name)]
        await self._apply(request, list(map(DeleteUser, names)))
        await self._management.sessions.end_of_users(there)

    async def _apply(self, request: web.Request, changes: Sequence[Change]) -> None:
        if is_asked(request, "force"):
            await self._management.changes.dismiss_administrators(*changes)
        await self._management.changes.apply(*changes)

    # Limits

    async def all_limits(self, request: web.Request) -> web.StreamResponse:
        require(request, ADMINISTRATORS)
        limits = self._management.catalog.user_limits().items()
        documents = ({"user": user, "value": dict(value)} for user, value in limits)
        return await write_listing(request, Listing(documents, order=("user",)))

    async def limits(self, request: web.Request) -> web.StreamResponse:
        require_owner(request, request.match_info["user"], MONITORS)
        user = await self._existing(request)
        value = self._limits_of(user)
        documents = [{"user": user, "value": value}] if value else []
        return await write_listing(request, Listing(documents, order=("user",)))

    async def put_limit(self, request: web.Request) -> web.Response:
        require(request, ADMINISTRATORS)
        user, name = await self._existing(request), request.match_info["name"]
        check_limit(name, USER_LIMITS)
        limit = read_limit(await read_body(request), name)
        await self._management.changes.apply(ChangeUserLimits(user, {name: limit}))
        return done()

    async def delete_limit(self, request: web.Request) -> web.Response:
        require(request, ADMINISTRATORS)
        user, name = await self._existing(request), request.match_info["name"]
        await self._management.changes.apply(ChangeUserLimits(user, {name: None}))
        return done()

    def _limits_of(self, user: str) -> dict[str, int]:
        return dict(self._management.catalog.user_limits().get(user, {}))

    async def _existing(self, request: web.Request) -> str:
        """Return the user in the path. Raises Refusal."""
        user = request.match_info["user"]
        reason = unless_made(request, "user_not_found")
        await existing(self._management, lambda: user in self._management.catalog.users(), reason)
        return user
