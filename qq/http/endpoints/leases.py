"""Groups of queues and their leases: readers take lists of messages, read them repeatedly, and commit them.

Invariant: an answer to a change comes when the change is in the state of this node. A stream of messages is complete,
or it breaks off without an end mark.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

from aiohttp import hdrs, web

from qq.errors import ReplyCode
from qq.http.base.error_responses import Refusal, bad_request, has_left
from qq.http.base.login import login_of
from qq.http.base.user_quota import UserShares
from qq.http.documents.arrow import COLUMNS, CONTENT_TYPE, ArrowMessages, load_pyarrow
from qq.http.documents.lists import Listing, write_listing
from qq.http.documents.parsing import check_keys, read_group, whole_number
from qq.http.documents.requests import (
    answered,
    check_permitted,
    done,
    existing,
    is_asked,
    named_vhost,
    number,
    path_number,
    read_body,
    sees,
    vhost_if_named,
)
from qq.machine.policy.value_checks import INTEGERS
from qq.machine.protocol.commands import CloseGroup, CommitLeases, Get, LeaseMessages, ReleaseLease
from qq.machine.queue.leases import LEASE_MESSAGES_MAX
from qq.management.changes.leases import LeasePath
from qq.management.time_slices import Slices
from qq.sessions.entries import MessagesGone

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

    from qq.management.changes.leases import LeaseRead
    from qq.management.management import Management
    from qq.management.reports.leases import GroupStatus, LeaseStatus

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

log = logging.getLogger(__name__)

LEASE_MESSAGES = 10_000
LEASE_BYTES = 16 * 1024 * 1024
"""Messages and bytes of a lease without other bounds."""
WRITE_BYTES = 64 * 1024
"""Bytes that are written at a time: a client that reads this much within `http_idle_timeout_s` is not disconnected."""
PARTS_MAX = 1_024
"""Parts in which a lease may be read."""

_GROUPS = "/api/queues/{vhost}/{name}/groups"
_GROUP = f"{_GROUPS}/{{group}}"
_LEASE = f"{_GROUP}/leases/{{lease}}"
_STATUSES = {
    ReplyCode.ACCESS_REFUSED: HTTPStatus.CONFLICT,
    ReplyCode.RESOURCE_LOCKED: HTTPStatus.CONFLICT,
    ReplyCode.PRECONDITION_FAILED: HTTPStatus.PRECONDITION_FAILED,
}
"""The answers to refusals of the log, where they differ from those of other requests."""


class _GroupPath(NamedTuple):
    vhost: str
    queue: str
    group: str


class LeaseEndpoints:
    """Handlers for groups and leases."""

    def __init__(self, management: Management, streams_max: int) -> None:
        """`streams_max` is the number of streams of messages that may be written at a time."""
        self._management = management
        self._streams = UserShares(streams_max, "streams of leases", "lease_stream_max")
        self._one_at_a_time = asyncio.Lock()

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/groups", self.all_groups),
            web.get("/api/groups/{vhost}", self.all_groups),
            web.get(_GROUPS, self.groups),
            web.get(_GROUP, self.group),
            web.put(_GROUP, self.open),
            web.delete(_GROUP, self.close),
            web.post(f"{_GROUP}/commit", self.commit),
            web.get(_LEASE, self.lease),
            web.put(_LEASE, self.take),
            web.delete(_LEASE, self.release),
            web.get(f"{_LEASE}/messages", self.messages),
        ]

    # Groups

    async def all_groups(self, request: web.Request) -> web.StreamResponse:
        vhost = await vhost_if_named(request, self._management)
        return await write_listing(request, await group_listing(request, self._management, vhost))

    async def groups(self, request: web.Request) -> web.StreamResponse:
        vhost, queue = await self._queue(request)
        await self._check_reader(request, vhost, queue)
        found = map(group_row, self._management.leases.groups(vhost, queue))
        return await write_listing(request, Listing(found, order=("name",)))

    async def group(self, request: web.Request) -> web.Response:
        place = await self._place(request)
        await self._check_reader(request, place.vhost, place.queue)
        leases = self._management.leases
        found = await existing(self._management, lambda: leases.group(*place), _no_group(place))
        return web.json_response(group_document(found))

    async def open(self, request: web.Request) -> web.Response:
        place = await self._place(request)
        command = read_group(*place, login_of(request).user, await read_body(request))
        await check_permitted(request, self._management, place.vhost, command)
        leases = self._management.leases
        is_new = leases.group(*place) is None
        opened = await answered(leases.open(command), _STATUSES)
        return web.json_response(
            group_document(opened), status=HTTPStatus.CREATED if is_new else HTTPStatus.OK
        )

    async def close(self, request: web.Request) -> web.Response:
        place = await self._place(request)
        command = CloseGroup(*place, _fence(request), is_asked(request, "release"), _generation(request))
        await check_permitted(request, self._management, place.vhost, command)
        leases = self._management.leases
        await existing(self._management, lambda: leases.group(*place), _no_group(place))
        await answered(leases.end(command), _STATUSES)
        return done()

    async def commit(self, request: web.Request) -> web.Response:
        place, body = await self._place(request), await read_body(request)
        check_keys(body, ("fence", "up_to", "generation"), "a commit")
        fence, up_to = whole_number(body, "fence", 0), whole_number(body, "up_to", 0)
        generation = whole_number(body, "generation", 0, default=0)
        return await self._end(request, CommitLeases(*place, fence, up_to, generation))

    # Leases

    async def lease(self, request: web.Request) -> web.Response:
        place = await self._place(request)
        await self._check_reader(request, place.vhost, place.queue)
        found = await answered(self._management.leases.lease_status(_lease_path(place, request)), _STATUSES)
        return web.json_response(lease_document(found))

    async def take(self, request: web.Request) -> web.Response:
        place, body = await self._place(request), await read_body(request)
        check_keys(body, ("fence", "max_messages", "max_bytes", "generation"), "a lease")
        command = LeaseMessages(
            *place,
            whole_number(body, "fence", 0),
            path_number(request, "lease", "a lease"),
            whole_number(body, "max_messages", 1, LEASE_MESSAGES_MAX, LEASE_MESSAGES),
            whole_number(body, "max_bytes", 1, default=LEASE_BYTES),
            whole_number(body, "generation", 0, default=0),
        )
        await check_permitted(request, self._management, place.vhost, command)
        lease = await answered(self._management.leases.lease(command), _STATUSES)
        return done() if lease is None else web.json_response(lease_document(lease))

    async def release(self, request: web.Request) -> web.Response:
        place = await self._place(request)
        lease = path_number(request, "lease", "a lease")
        return await self._end(request, ReleaseLease(*place, _fence(request), lease, _generation(request)))

    async def messages(self, request: web.Request) -> web.StreamResponse:
        """Answer with the messages of a part of a lease."""
        place = await self._place(request)
        path = _lease_path(place, request)
        if ("of" in request.query) != ("part" in request.query):
            raise bad_request("`part` and `of` belong together: the number of a part, and of all parts")
        parts = number(request, "of", 1, PARTS_MAX)
        part = number(request, "part", 0, PARTS_MAX)
        if part >= parts:
            raise bad_request("part must be a whole number below the number of parts, which is `of`")
        columns = _columns(request)
        await self._check_reader(request, place.vhost, place.queue)
        try:
            pyarrow = await load_pyarrow()
        except ImportError:
            raise Refusal(
                HTTPStatus.NOT_IMPLEMENTED,
                "this node has no pyarrow, which writes Arrow streams: pip install 'qq-broker[arrow]', or "
                "-r requirements/arrow.txt",
            ) from None
        with self._streams.place(login_of(request).user):
            wanted = await answered(self._management.leases.part(path, part, parts), _STATUSES)
            return await self._write(request, wanted, ArrowMessages(pyarrow, wanted.queue, columns))

    async def _write(
        self, request: web.Request, wanted: LeaseRead, arrow: ArrowMessages
    ) -> web.StreamResponse:
        """Answer with messages of a lease, in slices, between which other tasks run."""
        response = web.StreamResponse(headers={hdrs.CONTENT_TYPE: CONTENT_TYPE})
        await response.prepare(request)
        if request.method != hdrs.METH_HEAD:
            stream = arrow.parts(self._management.leases.read(wanted), Slices(partial(has_left, request)))
            try:
                async with aclosing(stream):
                    while octets := await self._next_of(stream):
                        for at in range(0, len(octets), WRITE_BYTES):
                            await response.write(octets[at : at + WRITE_BYTES])
                        octets = b""  # so that it is not in memory beside the next octets
            except MessagesGone as gone:
                log.info("a stream of messages of queue '%s' breaks off: %s", wanted.queue, gone)
                if request.transport is not None:
                    request.transport.abort()
                return response
        await response.write_eof()
        return response

    async def _next_of(self, stream: AsyncGenerator[memoryview]) -> memoryview | bytes:
        """Return the next octets of a stream, b"" at its end.

        Streams take turns, so that other tasks of the node wait for the work of a single stream.
        """
        async with self._one_at_a_time:
            return await anext(stream, b"")

    # Helpers

    async def _end(self, request: web.Request, command: CommitLeases | ReleaseLease) -> web.Response:
        await check_permitted(request, self._management, command.vhost, command)
        await answered(self._management.leases.end(command), _STATUSES)
        return done()

    async def _check_reader(self, request: web.Request, vhost: str, queue: str) -> None:
        await check_permitted(request, self._management, vhost, Get(0, 0, 0, 0, queue, False, 0))

    async def _queue(self, request: web.Request) -> tuple[str, str]:
        vhost, name = await named_vhost(request, self._management), request.match_info["name"]
        reason = f"no queue '{name}' in vhost '{vhost}'"
        await existing(self._management, lambda: self._management.queues.find(vhost, name), reason)
        return vhost, name

    async def _place(self, request: web.Request) -> _GroupPath:
        return _GroupPath(*await self._queue(request), request.match_info["group"])


async def group_listing(
    request: web.Request, management: Management, vhost: str | None
) -> Listing[Mapping[str, Any]]:
    """Return the list of the groups of a virtual host, or of all that the client may see, without their leases."""
    is_seen = sees(request, management) if vhost is None else vhost.__eq__
    found = map(group_row, await management.leases.all(is_seen))
    return Listing(found, order=("vhost", "queue", "name"), searched=("name", "queue"))


def group_row(group: GroupStatus) -> dict[str, Any]:
    """Return the document of a group without its leases."""
    document = group._asdict() | {"lag": group.lag._asdict()}
    del document["leases"]
    return document


def group_document(group: GroupStatus) -> dict[str, Any]:
    return group_row(group) | {"leases": [lease_document(lease) for lease in group.leases]}


def lease_document(lease: LeaseStatus) -> dict[str, Any]:
    return lease._asdict()


def _no_group(place: _GroupPath) -> str:
    return f"no group '{place.group}' of queue '{place.queue}' in vhost '{place.vhost}'"


def _fence(request: web.Request) -> int:
    if "fence" not in request.query:
        raise bad_request("key_missing: fence")
    return number(request, "fence", 0, INTEGERS.stop - 1)


def _lease_path(place: _GroupPath, request: web.Request) -> LeasePath:
    return LeasePath(*place, path_number(request, "lease", "a lease"), _generation(request))


def _generation(request: web.Request) -> int:
    return number(request, "generation", 0, INTEGERS.stop - 1) if "generation" in request.query else 0


def _columns(request: web.Request) -> list[str]:
    """Return the wanted columns, in their order in the table."""
    wanted = request.query.get("columns")
    if wanted is None:
        return list(COLUMNS)
    names = wanted.split(",")
    for name in names:
        if name not in COLUMNS:
            raise bad_request(f"there is no column '{name}'; there are {', '.join(COLUMNS)}")
    return [name for name in COLUMNS if name in names]
