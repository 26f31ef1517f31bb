"""Sinks: writers store the messages of an epoch in parallel, and publish them together.

Invariant: an answer to a change comes when the change is in the state of this node.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from aiohttp import web

from qq.errors import ReplyCode
from qq.http.base.error_responses import Refusal
from qq.http.base.login import ADMINISTRATORS, login_of
from qq.http.base.user_quota import UserShares
from qq.http.documents.arrow import load_pyarrow
from qq.http.documents.lists import Listing, write_listing
from qq.http.documents.parsing import check_keys, field, name_of, whole_number
from qq.http.documents.requests import (
    answered,
    check_permitted,
    done,
    existing,
    named_vhost,
    number,
    path_number,
    read_body,
    read_raw,
    sees,
    vhost_if_named,
)
from qq.http.documents.sink_tables import SinkTable
from qq.machine.policy.value_checks import INTEGERS
from qq.machine.protocol.commands import CloseSink, CommitEpoch, OpenSink
from qq.management.reports.sinks import AttemptPath, PublishedKeys

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qq.management.management import Management
    from qq.management.reports.sinks import RoutedMessages, SinkStatus

TABLE_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of the body of a request with messages: reading it takes some tens of milliseconds. A single message may be
larger."""
LARGE_TABLES_MAX = 8
"""Requests with larger bodies that a node reads at a time, because each is in memory several times."""

_SINKS = "/api/sinks/{vhost}"
_SINK = f"{_SINKS}/{{sink}}"
_EPOCH = f"{_SINK}/epochs/{{epoch}}"
_STATUSES = {
    ReplyCode.ACCESS_REFUSED: HTTPStatus.CONFLICT,
    ReplyCode.PRECONDITION_FAILED: HTTPStatus.PRECONDITION_FAILED,
}
"""The answers to refusals of the log, where they differ from those of other requests."""


class SinkEndpoints:
    """Handlers for sinks."""

    def __init__(self, management: Management) -> None:
        self._management = management
        self._large_tables = UserShares(LARGE_TABLES_MAX, "requests with large messages", "8 at a time")

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/sinks", self.sinks),
            web.get(_SINKS, self.sinks),
            web.post(_SINKS, self.publish),
            web.get(_SINK, self.sink),
            web.put(_SINK, self.open),
            web.delete(_SINK, self.close),
            web.post(_EPOCH, self.commit),
            web.post(f"{_EPOCH}/attempts/{{attempt}}", self.stage),
        ]

    async def sinks(self, request: web.Request) -> web.StreamResponse:
        vhost = await vhost_if_named(request, self._management)
        return await write_listing(request, await sink_listing(request, self._management, vhost))

    async def sink(self, request: web.Request) -> web.Response:
        return web.json_response(sink_document(await self._found(request)))

    async def open(self, request: web.Request) -> web.Response:
        vhost, sink, body = *await self._place(request), await read_body(request)
        check_keys(body, ("expires_ms",), "a sink")
        sinks = self._management.sinks
        is_new = sinks.find(vhost, sink) is None
        expires_ms = whole_number(body, "expires_ms", 0, default=0)
        opened = await answered(
            sinks.open(OpenSink(vhost, sink, login_of(request).user, expires_ms)), _STATUSES
        )
        return web.json_response(
            sink_document(opened), status=HTTPStatus.CREATED if is_new else HTTPStatus.OK
        )

    async def close(self, request: web.Request) -> web.Response:
        """End a sink of the user; an administrator may end any sink."""
        found, login = await self._found(request), login_of(request)
        user = found.user if login.has_one_of(ADMINISTRATORS) else login.user
        await answered(self._management.sinks.close(CloseSink(found.vhost, found.name, user)), _STATUSES)
        return done()

    async def stage(self, request: web.Request) -> web.Response:
        vhost, sink = await self._place(request)
        path = AttemptPath(
            vhost,
            sink,
            login_of(request).user,
            path_number(request, "epoch", "an epoch"),
            request.match_info["attempt"],
        )
        name_of(path.attempt, "the name of an attempt")
        step = number(request, "step", 0, INTEGERS.stop - 1)
        tables = await self._tables(request, vhost)
        steps = await answered(self._management.sinks.stage(path, step, tables), _STATUSES)
        return web.json_response({"committed": steps is None, "steps": steps})

    async def commit(self, request: web.Request) -> web.Response:
        vhost, sink, body = *await self._place(request), await read_body(request)
        check_keys(body, ("attempts",), "a commit")
        attempts = field(body, "attempts", dict)
        steps = [whole_number(attempts, name, 0) for name in attempts]
        user = login_of(request).user
        command = CommitEpoch(
            vhost, sink, user, path_number(request, "epoch", "an epoch"), list(attempts), steps
        )
        await answered(self._management.sinks.commit(command), _STATUSES)
        return done()

    async def publish(self, request: web.Request) -> web.Response:
        """Publish the messages of a table, all or none."""
        vhost = await named_vhost(request, self._management)
        tables = await self._tables(request, vhost)
        await answered(self._management.sinks.publish(vhost, login_of(request).user, tables), _STATUSES)
        return done()

    # Helpers

    async def _place(self, request: web.Request) -> tuple[str, str]:
        vhost = await named_vhost(request, self._management)
        return vhost, name_of(request.match_info["sink"], "the name of a sink")

    async def _found(self, request: web.Request) -> SinkStatus:
        vhost, sink = await self._place(request)
        sinks = self._management.sinks
        return await existing(
            self._management, lambda: sinks.find(vhost, sink), f"no sink '{sink}' in vhost '{vhost}'"
        )

    async def _tables(self, request: web.Request, vhost: str) -> list[RoutedMessages]:
        """Read the messages of a request. Raises Refusal, also if the user may not publish them."""
        defaults = {name: request.query.get(name, "") for name in ("exchange", "routing_key")}
        for name, value in defaults.items():
            name_of(value, name)
        if (request.content_length or 0) <= TABLE_BYTES_MAX:
            return await self._table(request, vhost, defaults, TABLE_BYTES_MAX)
        with self._large_tables.place(login_of(request).user):
            bytes_max = self._management.sinks.message_bytes + TABLE_BYTES_MAX
            return await self._table(request, vhost, defaults, bytes_max)

    async def _table(
        self, request: web.Request, vhost: str, defaults: dict[str, str], bytes_max: int
    ) -> list[RoutedMessages]:
        octets = await read_raw(request, bytes_max)
        try:
            pyarrow = await load_pyarrow()
        except ImportError:
            raise Refusal(
                HTTPStatus.NOT_IMPLEMENTED,
                "this node has no pyarrow, which reads Arrow streams: install it with pip install 'qq-broker[arrow]'",
            ) from None
        table = SinkTable(pyarrow, defaults, self._management.sinks.message_bytes)
        rows = await table.read(octets)
        if len(octets) > TABLE_BYTES_MAX and rows > 1:
            raise Refusal(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the body has {len(octets)} bytes and {rows} rows; "
                f"above {TABLE_BYTES_MAX} bytes it must have one",
            )
        tables = await table.routed()
        keys: dict[str, list[str]] = {}
        for table in tables:
            keys.setdefault(table.exchange, []).append(table.routing_key)
        for exchange, some in keys.items():
            await check_permitted(request, self._management, vhost, PublishedKeys(exchange, some))
        return tables


async def sink_listing(
    request: web.Request, management: Management, vhost: str | None
) -> Listing[Mapping[str, Any]]:
    """Return the list of the sinks of a virtual host, or of all that the client may see."""
    is_seen = sees(request, management) if vhost is None else vhost.__eq__
    found = map(sink_document, await management.sinks.all(is_seen))
    return Listing(found, order=("vhost", "name"))


def sink_document(sink: SinkStatus) -> dict[str, Any]:
    return sink._asdict()
