"""Helpers of all handlers: names in paths, numbers in queries, request bodies, lists as answers, permission checks.

Two invariants. A virtual host that a user may not see does not exist for that user. And a node reports a missing object
only after it has caught up with the cluster, because the object may just have been created through a different node.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from http import HTTPStatus
from itertools import islice
from mmap import ACCESS_READ, mmap
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from aiohttp import BodyPartReader, hdrs, web
from aiohttp.http_exceptions import BadHttpMessage

from qq.errors import ReplyCode
from qq.http.base.error_responses import NOT_FOUND, Refusal, bad_request, not_found
from qq.http.base.login import ADMINISTRATORS, SAFE_METHODS, login_of
from qq.http.documents.parsing import read_object
from qq.machine.policy.value_checks import INTEGERS
from qq.management.errors import RequestRefused
from qq.management.time_slices import next_slice

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Awaitable,
        Callable,
        Collection,
        Iterable,
        Iterator,
        Mapping,
    )

    from qq.machine.protocol.commands import Declaration
    from qq.management.changes.permission_checks import CheckedCommand
    from qq.management.management import Management

    Documents = Iterable[Mapping[str, Any] | None]
    """Documents of a list, made in turn; None for a skipped object, so that skipping is done in slices, too."""

T = TypeVar("T")

DOCUMENTS_PER_SLICE = 50
"""Documents made or skipped before other tasks run: some milliseconds of work."""
DIGITS_MAX = 19
STORED_PART_BYTES = 16 * 1024 * 1024
"""Octets of a stored body that must come within the timeout of a body."""
FORM = "multipart/form-data"
ERLANG_PREFIX = "rabbit@"
"""The beginning of the names of RabbitMQ's nodes, which scripts put before a node's name."""

BODY_TIMEOUT_S = web.AppKey("body_timeout_s", float)
"""Application key: seconds to wait for a request's body."""

_JSON = {hdrs.CONTENT_TYPE: "application/json; charset=utf-8"}


# --- lookups


async def find(management: Management, read: Callable[[], T]) -> T:
    """Return the result of `read`. If it is empty, read again after this node has caught up. Raises Unavailable."""
    found = read()
    if not found:
        await management.changes.wait_applied()
        found = read()
    return found


async def existing(management: Management, read: Callable[[], T | None], reason: str = NOT_FOUND) -> T:
    """Return the result of `read`. Raises Refusal if it is empty, also after this node has caught up."""
    found = await find(management, read)
    if not found:
        raise not_found(reason)
    return found


def unless_made(request: web.Request, reason: str) -> str:
    """Return the reason for a missing object in the path.

    RabbitMQ names it only in requests that create objects in it.
    """
    return NOT_FOUND if request.method in _LOOKING_OR_REMOVING else reason


_LOOKING_OR_REMOVING = SAFE_METHODS | {hdrs.METH_DELETE}


# --- visibility


def sees(
    request: web.Request, management: Management, all_seeing: Collection[str] = ADMINISTRATORS
) -> Callable[[str], bool]:
    """Return a function that returns whether the client may see the contents of a virtual host.

    Users with any of the `all_seeing` tags see all virtual hosts, other users those that they have permissions for.
    """
    login = login_of(request)
    if login.has_one_of(all_seeing):
        return management.catalog.has_vhost
    if login.scopes is not None:
        return login.scopes.opens
    mine = frozenset(row.vhost for row in management.catalog.permissions() if row.user == login.user)
    return mine.__contains__


async def named_vhost(
    request: web.Request, management: Management, all_seeing: Collection[str] = ADMINISTRATORS
) -> str:
    """Return the virtual host in the path. Raises Refusal."""
    vhost = request.match_info["vhost"]

    def is_seen() -> bool:
        return management.catalog.has_vhost(vhost) and sees(request, management, all_seeing)(vhost)

    await existing(management, is_seen, unless_made(request, "vhost_not_found"))
    return vhost


async def vhost_if_named(
    request: web.Request, management: Management, all_seeing: Collection[str] = ADMINISTRATORS
) -> str | None:
    """Return the virtual host in the path, or None if the path has none. Raises Refusal."""
    return await named_vhost(request, management, all_seeing) if "vhost" in request.match_info else None


async def answered(outcome: Awaitable[T], statuses: Mapping[ReplyCode, HTTPStatus]) -> T:
    """Return the outcome of a command. Raises Refusal with the status of a refusal that `statuses` names."""
    try:
        return await outcome
    except RequestRefused as refused:
        status = statuses.get(ReplyCode(refused.code))
        if status is None:
            raise
        raise Refusal(status, refused.explanation) from None


# --- input


def number(request: web.Request, name: str, default: int, highest: int) -> int:
    """Return a number of the query. Raises Refusal."""
    text = request.query.get(name, str(default))
    if text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX and int(text) <= highest:
        return int(text)
    raise bad_request(f"{name} must be a whole number from 0 to {highest}")


def path_number(request: web.Request, name: str, described: str) -> int:
    """Return a number of the path. The log can hold it and the next number.

    Raises Refusal that names it as `described`.
    """
    text, highest = request.match_info[name], INTEGERS.stop - 2
    if text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX and int(text) <= highest:
        return int(text)
    raise bad_request(f"{described} has a whole number from 0 to {highest}")


def is_asked(request: web.Request, name: str) -> bool:
    """Return whether a query parameter is "true"."""
    return request.query.get(name) == "true"


async def read_body(request: web.Request, bytes_max: int | None = None) -> dict[str, Any]:
    """Return the JSON object in a request's body; a missing body is an empty object. Raises Refusal."""
    return read_object(await read_raw(request, bytes_max))


async def read_raw(request: web.Request, bytes_max: int | None = None) -> bytes:
    """Return a request's body of at most `bytes_max` octets (None: the limit of the application). Raises Refusal."""
    timeout_s = request.app[BODY_TIMEOUT_S]
    _check_encoding(request)
    if bytes_max is not None:
        request = request.clone(client_max_size=bytes_max)
    try:
        async with asyncio.timeout(timeout_s):
            return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise _too_large(request.client_max_size) from None
    except TimeoutError:
        raise _too_slow(timeout_s) from None


@asynccontextmanager
async def stored_body(request: web.Request, bytes_max: int) -> AsyncGenerator[bytes | mmap]:
    """Store a request's body of at most `bytes_max` octets in a temporary file, so that it takes no memory.

    Of a form, only the part `file` is stored. Each part of `STORED_PART_BYTES` must come within the timeout of a body.
    Raises Refusal.
    """
    timeout_s = request.app[BODY_TIMEOUT_S]
    _check_encoding(request)
    with TemporaryFile() as file:
        size = 0
        try:
            async with asyncio.timeout(timeout_s):
                body = await _body_of(request)
            while not body.is_over():
                part_ends = size + STORED_PART_BYTES
                async with asyncio.timeout(timeout_s):
                    while size < part_ends and not body.is_over():
                        octets = await body.read()
                        size += len(octets)
                        if size > bytes_max:
                            raise _too_large(bytes_max)
                        file.write(octets)
        except TimeoutError:
            raise _too_slow(timeout_s) from None
        except (ValueError, RuntimeError, BadHttpMessage) as error:
            raise bad_request(f"the form is malformed: {error}") from None
        file.flush()
        if not size:
            yield b""
            return
        with mmap(file.fileno(), 0, access=ACCESS_READ) as octets:
            yield octets


class _Body(NamedTuple):
    """A body that is read in parts."""

    read: Callable[[], Awaitable[bytes]]
    is_over: Callable[[], bool]


async def _body_of(request: web.Request) -> _Body:
    """Return a request's body, or its part `file` if it is a form, as `curl -F file=@FILE` sends it.

    Raises Refusal, ValueError, RuntimeError, BadHttpMessage.
    """
    if request.content_type != FORM:
        return _Body(request.content.readany, request.content.at_eof)
    async for part in await request.multipart():
        if isinstance(part, BodyPartReader) and part.name == "file":
            return _Body(part.read_chunk, part.at_eof)
    raise bad_request("the form has no part 'file'")


def _check_encoding(request: web.Request) -> None:
    if request.headers.get(hdrs.CONTENT_ENCODING, "identity").lower() != "identity":
        text = "a body may not be compressed: send it without Content-Encoding"
        raise Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, text)


def _too_large(bytes_max: int) -> Refusal:
    return Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is larger than {bytes_max} octets")


def _too_slow(timeout_s: float) -> Refusal:
    text = f"the body takes longer than {timeout_s:g} s (http_body_timeout_s)"
    return Refusal(HTTPStatus.REQUEST_TIMEOUT, text)


# --- answers


def put_answer(*, is_new: bool) -> web.Response:
    """Answer a successful PUT: 201 for a new object, 204 for an existing object."""
    return web.Response(status=HTTPStatus.CREATED if is_new else HTTPStatus.NO_CONTENT)


def done() -> web.Response:
    """Answer a successful request without content: 204."""
    return web.Response(status=HTTPStatus.NO_CONTENT)


async def write_list(request: web.Request, documents: Documents) -> web.StreamResponse:
    """Answer with a list in slices, between which other tasks run."""
    return await write_parts(request, _list_parts(documents))


async def write_object(
    request: web.Request,
    plain: Mapping[str, Any],
    lists: Mapping[str, Documents],
    status: HTTPStatus = HTTPStatus.OK,
) -> web.StreamResponse:
    """Answer with an object of small fields (`plain`), and of lists that may be long, in slices."""
    return await write_parts(request, object_parts(plain, lists), status)


async def write_parts(
    request: web.Request, parts: AsyncIterator[bytes], status: HTTPStatus = HTTPStatus.OK
) -> web.StreamResponse:
    """Answer with JSON that comes in parts."""
    response = web.StreamResponse(status=status, headers=_JSON)
    await response.prepare(request)
    if request.method != hdrs.METH_HEAD:  # otherwise the client would take the body for the next answer
        async for part in parts:
            await response.write(part)
    await response.write_eof()
    return response


async def object_parts(plain: Mapping[str, Any], lists: Mapping[str, Documents]) -> AsyncIterator[bytes]:
    """Yield the JSON of an object, in parts between which other tasks run."""
    separator = json.dumps(plain)[:-1] + (", " if plain else "")
    for name, documents in lists.items():
        yield f"{separator}{json.dumps(name)}: ".encode()
        async for part in _list_parts(documents):
            yield part
        separator = ", "
    yield b"}"


async def _list_parts(documents: Documents) -> AsyncIterator[bytes]:
    separator, following = "[", iter(documents)
    await next_slice()
    while part := _slice(following):
        shown = [document for document in part if document is not None]
        if shown:
            yield (separator + json.dumps(shown)[1:-1]).encode()
            separator = ","
        await next_slice()
    yield b"[]" if separator == "[" else b"]"


def _slice(documents: Iterator[Mapping[str, Any] | None]) -> list[Mapping[str, Any] | None]:
    return list(islice(documents, DOCUMENTS_PER_SLICE))


# --- commands with a client's permissions


async def check_permitted(
    request: web.Request,
    management: Management,
    vhost: str,
    command: CheckedCommand,
) -> None:
    """Raise RequestRefused unless an AMQP client of the same user has the permissions for this."""
    login = login_of(request)
    await management.operations.check_permitted(login.user, command, vhost, login.scopes)


async def declare(request: web.Request, management: Management, vhost: str, declaration: Declaration) -> None:
    """Carry out a declaration with the permissions of the request's user. Raises RequestRefused, InvalidCommand."""
    await check_permitted(request, management, vhost, declaration)
    management.changes.check_command(declaration)
    login = login_of(request)
    await management.operations.declare(vhost, login.user, [declaration], login.scopes)
