"""Moves: messages go from a queue to a different queue, or back to the queues where they were first dead-lettered.

Invariant: the user of a move needs permission to read the source and to write to the destination until the move ends.
Moved messages stay moved.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import quote

from aiohttp import hdrs, web

from qq.http.base.error_responses import forbidden
from qq.http.base.login import ADMINISTRATORS, login_of
from qq.http.documents.lists import Listing, write_listing
from qq.http.documents.parsing import read_move
from qq.http.documents.rendering import move_document
from qq.http.documents.requests import (
    check_permitted,
    done,
    existing,
    find,
    named_vhost,
    read_body,
    sees,
    vhost_if_named,
)
from qq.machine.protocol.commands import EndMove, Get

if TYPE_CHECKING:
    from qq.machine.protocol.commands import BeginMove, BeginTextMove
    from qq.management.management import Management
    from qq.management.reports.catalog import MoveStatus

_MOVE = "/api/moves/{vhost}/{id}"


class MoveEndpoints:
    """Handlers for moves."""

    def __init__(self, management: Management) -> None:
        self._management = management

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/moves", self.moves),
            web.get("/api/moves/{vhost}", self.moves),
            web.post("/api/moves/{vhost}", self.begin),
            web.get(_MOVE, self.move),
            web.delete(_MOVE, self.stop),
        ]

    async def moves(self, request: web.Request) -> web.StreamResponse:
        vhost, is_seen = await vhost_if_named(request, self._management), sees(request, self._management)
        seen = (move_document(each) for each in self._management.catalog.moves(vhost) if is_seen(each.vhost))
        return await write_listing(request, Listing(seen, order=("begun_at", "id")))

    async def move(self, request: web.Request) -> web.Response:
        return web.json_response(move_document(await self._existing(request)))

    async def begin(self, request: web.Request) -> web.Response:
        """Begin a move, and answer with its document when the cluster has committed it."""
        vhost, management = await named_vhost(request, self._management), self._management
        login = login_of(request)
        if login.scopes is not None:
            raise forbidden("messages are moved with a password: a move goes on when a token has expired")
        user = login.user
        command = read_move(vhost, management.changes.new_id(), user, await read_body(request))
        await check_permitted(request, management, vhost, command)
        await find(management, lambda: self._are_there(command))
        await management.changes.apply(command)
        move = await existing(management, lambda: management.catalog.move(vhost, command.move))
        place = f"/api/moves/{quote(vhost, safe='')}/{command.move}"
        document = move_document(move)
        return web.json_response(document, status=HTTPStatus.CREATED, headers={hdrs.LOCATION: place})

    async def stop(self, request: web.Request) -> web.Response:
        move = await self._existing(request)
        if not login_of(request).has_one_of(ADMINISTRATORS):
            read = Get(0, 0, 0, 0, move.source, False, 0)
            await check_permitted(request, self._management, move.vhost, read)
        await self._management.changes.apply(EndMove(move.vhost, move.id, ""))
        return done()

    def _are_there(self, command: BeginMove | BeginTextMove) -> bool:
        queues = filter(None, (command.source, command.destination))
        return all(self._management.queues.find(command.vhost, name) for name in queues)

    async def _existing(self, request: web.Request) -> MoveStatus:
        """Return the move in the path. Raises Refusal."""
        vhost, name = await named_vhost(request, self._management), request.match_info["id"]
        return await existing(self._management, lambda: self._management.catalog.move(vhost, name))
