"""Error answers: a status, and JSON with the reason.

Invariant: the answer to each failed request is JSON with `error` and `reason`, like RabbitMQ's. Reasons in RabbitMQ's
words have an `explanation` beside them.
"""

from __future__ import annotations

import logging
import re
from http import HTTPStatus
from math import ceil
from typing import TYPE_CHECKING
from urllib.parse import unquote

from aiohttp import hdrs, web

from qq.errors import ReplyCode
from qq.http.base.explanations import explanation
from qq.machine.protocol.codec import InvalidCommand
from qq.management.errors import LoginThrottled, PublishersWait, RequestRefused, Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

log = logging.getLogger(__name__)

NOT_FOUND = "Not Found"
"""Default reason for a missing object. With it, the error is RabbitMQ's `_NO_OBJECT`."""
_NO_OBJECT = "Object Not Found"
_CHALLENGE: dict[str, str] = {hdrs.WWW_AUTHENTICATE: 'Basic realm="qq", charset="UTF-8"'}
_NOT_AUTHORISED = "not_authorised"
_BAD_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")

_RENAMED = {HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_entity_too_large"}
"""Names of statuses that CPython renamed in 3.13."""

_REQUESTED_WITH, _PAGE = "X-Requested-With", "qq-page"


class Refusal(Exception):
    """A request is refused with a status and a reason."""

    def __init__(
        self, status: HTTPStatus, reason: str, headers: Mapping[str, str] | None = None, error: str = ""
    ) -> None:
        """`error` is RabbitMQ's word for the error, if it differs from the status."""
        self.status = status
        self.reason = reason
        self.headers = headers or {}
        self.error = error
        super().__init__(reason)


def bad_request(reason: str, error: str = "") -> Refusal:
    return Refusal(HTTPStatus.BAD_REQUEST, reason, error=error)


def invalid(text: str) -> Refusal:
    """Return the refusal of an invalid value, in the form of RabbitMQ's validation errors."""
    return bad_request(f"Validation failed\n\n{text}\n")


def not_found(reason: str = NOT_FOUND) -> Refusal:
    return Refusal(HTTPStatus.NOT_FOUND, reason)


def forbidden(reason: str) -> Refusal:
    return Refusal(HTTPStatus.FORBIDDEN, reason)


def unauthorized(reason: str) -> Refusal:
    """Return the refusal of a request without a valid login."""
    return Refusal(HTTPStatus.UNAUTHORIZED, reason, _CHALLENGE, "not_authorized")


def not_authorised(reason: str) -> Refusal:
    """Return the refusal of a logged-in user without permission. RabbitMQ differs only in the spelling of the error."""
    return Refusal(HTTPStatus.UNAUTHORIZED, reason, _CHALLENGE, _NOT_AUTHORISED)


def throttled(reason: str, retry_after_s: float) -> Refusal:
    return Refusal(HTTPStatus.TOO_MANY_REQUESTS, reason, _retry_after(retry_after_s))


def _retry_after(seconds: float) -> dict[str, str]:
    return {hdrs.RETRY_AFTER: str(max(1, ceil(seconds)))}


def overloaded(reason: str) -> Refusal:
    return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, reason, {hdrs.RETRY_AFTER: "1"})


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        _check_path(request)
        return await handler(request)
    except Refusal as refusal:
        return _error(refusal.status, refusal.reason, _headers(request, refusal), refusal.error)
    except RequestRefused as refused:
        return _error(*_refusal_of(refused))
    except LoginThrottled as held_back:
        refusal = throttled(str(held_back), held_back.retry_after_s)
        return _error(refusal.status, refusal.reason, refusal.headers)
    except PublishersWait as wait:
        status = HTTPStatus.TOO_MANY_REQUESTS if wait.is_limited else HTTPStatus.SERVICE_UNAVAILABLE
        return _error(status, str(wait), _retry_after(wait.retry_after_s))
    except Unavailable as unavailable:
        return _error(HTTPStatus.SERVICE_UNAVAILABLE, str(unavailable), {})
    except InvalidCommand as invalid:
        return _error(HTTPStatus.BAD_REQUEST, str(invalid), {})
    except web.HTTPException as error:
        if error.status < HTTPStatus.BAD_REQUEST:
            raise
        kept: dict[str, str] = {hdrs.ALLOW: error.headers[hdrs.ALLOW]} if hdrs.ALLOW in error.headers else {}
        return _error(error.status, error.reason, kept)
    except web.RequestPayloadError as error:
        return _error(HTTPStatus.BAD_REQUEST, f"the body cannot be read: {error}", {})
    except Exception as error:
        if isinstance(error, ConnectionError) and has_left(request):
            return _error(
                HTTPStatus.BAD_REQUEST, "the client has disconnected", {}
            )  # the client has disconnected
        log.exception("%s %s failed", request.method, request.path)
        return _error(HTTPStatus.INTERNAL_SERVER_ERROR, "an error in qq; the node's log has it", {})


def has_left(request: web.Request) -> bool:
    """Return whether the client has disconnected, so that no answer is needed."""
    return request.transport is None or request.transport.is_closing()


def _check_path(request: web.Request) -> None:
    """Raise Refusal unless the path is percent-encoded UTF-8.

    Otherwise a malformed escape would be taken literally, and a path would stand for two names: a queue `%ff` is
    `%25ff` in a path.
    """
    path = request.raw_path.partition("?")[0]
    if _BAD_ESCAPE.search(path):
        raise bad_request("the path has a % that no two hexadecimal digits follow: write %25 for it")
    try:
        unquote(path, errors="strict")
    except UnicodeDecodeError:
        raise bad_request("the path is not UTF-8: names are percent-encoded UTF-8") from None


def is_from_page(request: web.Request) -> bool:
    """Return whether the request comes from our page, by its header."""
    return request.headers.get(_REQUESTED_WITH) == _PAGE


def _headers(request: web.Request, refusal: Refusal) -> Mapping[str, str]:
    """Return the headers of a refusal.

    Our page has its own login form, so it gets no challenge for the browser's form.
    """
    if not is_from_page(request):
        return refusal.headers
    return {name: value for name, value in refusal.headers.items() if name != hdrs.WWW_AUTHENTICATE}


def _refusal_of(refused: RequestRefused) -> tuple[HTTPStatus, str, Mapping[str, str], str]:
    """Return RabbitMQ's HTTP answer for an AMQP error."""
    match refused.code:
        case ReplyCode.NOT_FOUND:
            return HTTPStatus.NOT_FOUND, refused.explanation, {}, ""
        case ReplyCode.ACCESS_REFUSED | ReplyCode.NOT_ALLOWED:
            return HTTPStatus.UNAUTHORIZED, refused.explanation, {}, _NOT_AUTHORISED
        case _:
            return HTTPStatus.BAD_REQUEST, refused.explanation, {}, ""


def _error(status: int, reason: str, headers: Mapping[str, str], error: str = "") -> web.Response:
    if not error:
        is_bare = status == HTTPStatus.NOT_FOUND and reason == NOT_FOUND
        http_status = HTTPStatus(status)
        error = _NO_OBJECT if is_bare else _RENAMED.get(http_status, http_status.name.lower())
    body = {"error": error, "reason": reason}
    if text := explanation(reason):
        body["explanation"] = text
    return web.json_response(body, status=status, headers=headers)
