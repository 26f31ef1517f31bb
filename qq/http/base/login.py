"""Authentication and authorization of HTTP requests.

Two invariants:

- Below /api a request without a login learns no facts, not even whether a path exists. Exceptions are the checks that
  RabbitMQ's load balancers make without a login.
- A page of a foreign site cannot make a browser change state with a remembered password or a cookie. SameSite keeps the
  cookie from most such requests. The browser's headers about the origin are checked. With the cookie, each change needs
  a token that only our own page can read.
"""

from __future__ import annotations

import base64
import hmac
import logging
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from aiohttp import hdrs, web
from yarl import URL

from cluster.net.log_throttle import ThrottledLog
from qq.http.base.error_responses import forbidden, is_from_page, not_authorised, unauthorized
from qq.management.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from qq.http.base.error_responses import Handler
    from qq.http.base.node_view import NodeView
    from qq.management.management import Management
    from qq.management.reports.logins import LoggedIn, WebLogin
    from qq.scopes import Scopes

_throttled_log = ThrottledLog(logging.getLogger(__name__), 10)

ADMINISTRATOR = "administrator"
MONITORING = "monitoring"
POLICYMAKER = "policymaker"
READERS = frozenset({"management", MONITORING, POLICYMAKER, ADMINISTRATOR})
"""Tags of users; a user without any of these may not log in here."""
MONITORS = frozenset({MONITORING, ADMINISTRATOR})
"""Users with any of these tags see all virtual hosts and all users' connections."""
ADMINISTRATORS = frozenset({ADMINISTRATOR})
POLICYMAKERS = frozenset({POLICYMAKER, ADMINISTRATOR})

_NOT_YOURS = "User not authorised to access object"
_NOT_ONE_OF = {
    READERS: "Not management user",
    MONITORS: "Not monitor user",
    ADMINISTRATORS: "Not administrator user",
    POLICYMAKERS: _NOT_YOURS,
}
"""RabbitMQ's reason for refusing a user without any of these tags."""

LOGIN_PATH = "/api/login"
SESSION_PATH = "/api/session"
AUTH_PATH = "/api/auth"
OAUTH2_LOGIN_PATH = "/api/oauth2/login"
CALLBACK_PATH = "/api/oauth2/callback"
OPEN_CHECKS = tuple(
    f"/api/health/checks/{check}"
    for check in (
        "below-node-connection-limit",
        "is-in-service",
        "ready-to-serve-clients",
        "reached-target-cluster-size",
    )
)
"""RabbitMQ's health checks for load balancers, which need no login."""
OPEN_PATHS = frozenset(
    {
        *(LOGIN_PATH, SESSION_PATH, AUTH_PATH, OAUTH2_LOGIN_PATH, CALLBACK_PATH),
        *("/api", "/api/index.html"),
        *OPEN_CHECKS,
    }
)
"""Paths below /api that need no login, with or without a slash at the end."""

_METRICS_PATH = "/metrics"
SAFE_METHODS = frozenset({hdrs.METH_GET, hdrs.METH_HEAD, hdrs.METH_OPTIONS})
"""Methods that do not change state."""

CSRF_HEADER = "X-CSRF-Token"
_FETCH_SITE = "Sec-Fetch-Site"
_OUR_OWN = ("same-origin", "none")
"""Values that browsers send for requests of our page, or of the user at the address bar."""
_FORWARDED_PROTO = "X-Forwarded-Proto"
_PORT_DIGITS = 5


class Operator(NamedTuple):
    """The logged-in user of a request."""

    user: str
    tags: frozenset[str]
    scopes: Scopes | None = None
    """Scopes of the user's OAuth 2 token; None if the cluster's permissions apply."""
    expires_s: float = inf
    """When the token of the request expires, in seconds since 1970; infinite without a token."""

    def has_one_of(self, tags: Collection[str]) -> bool:
        return not self.tags.isdisjoint(tags)


_LOGIN = web.RequestKey("login", Operator)
_IS_BY_SESSION = web.RequestKey("is_by_session", bool)


def login_required(
    view: NodeView, management: Management, *, metrics_need_login: bool = False
) -> Callable[..., Awaitable[web.StreamResponse]]:
    """Make the middleware that guards all paths below /api, also unknown paths, and metrics if `metrics_need_login`."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if metrics_need_login and request.path.startswith(_METRICS_PATH):
            request[_LOGIN] = await _operator(view, management, request)
            require(request, MONITORS)
        if request.path.startswith("/api") and request.path.removesuffix("/") not in OPEN_PATHS:
            request[_LOGIN] = await _operator(view, management, request)
            check_origin(request)
        return await handler(request)

    return check


async def _operator(view: NodeView, management: Management, request: web.Request) -> Operator:
    """Return the user of a request. Raises Refusal, LoginThrottled, Unavailable.

    If a script sends both a password and cookies, the password counts. If our page does, the session counts, because
    the browser added a remembered password by accident.
    """
    if hdrs.AUTHORIZATION in request.headers and not is_from_page(request):
        return await log_in(view, request, *_credentials(view, request))
    session = await session_of(management, request)
    if session is None:
        return await log_in(view, request, *_credentials(view, request))
    check_csrf(request, session)
    operator = Operator(session.user, frozenset(session.tags), session.scopes)
    _require(operator.tags, READERS)
    request[_IS_BY_SESSION] = True
    return operator


async def is_logged_in_still(management: Management, request: web.Request) -> bool:
    """Return whether the web session of a long request is still valid; a password is not checked again."""
    if not is_by_session(request):
        return True
    try:
        return await session_of(management, request) is not None
    except Unavailable:
        return True


async def log_in(view: NodeView, request: web.Request, user: str, password: str) -> Operator:
    """Log in, and return the user of the request. Raises Refusal, LoginThrottled, Unavailable."""
    found = await authenticated(view, request, user, password)
    return Operator(found.user, frozenset(found.tags), found.scopes, found.expires_s)


async def authenticated(view: NodeView, request: web.Request, user: str, password: str) -> LoggedIn:
    """Log in a user who may use the HTTP interface. Raises Refusal, LoginThrottled, Unavailable."""
    found = await view.authenticate(user, password, request.remote or "")
    if found is None:
        raise unauthorized("login was refused")
    if READERS.isdisjoint(found.tags):
        text = (
            f"login of user {found.user!r} from {request.remote} (HTTP) refused: the user has no tag for HTTP"
        )
        _throttled_log.warning("tags", text)
    _require(found.tags, READERS)
    return found


def has_login(request: web.Request) -> bool:
    return _LOGIN in request


def login_of(request: web.Request) -> Operator:
    return request[_LOGIN]


def is_by_session(request: web.Request) -> bool:
    """Return whether a web session has logged the request in, in place of a password or token."""
    return _IS_BY_SESSION in request


def only_own(request: web.Request) -> str | None:
    """Return the user if the request may see only that user's connections; None if it may see all."""
    login = login_of(request)
    return None if login.has_one_of(MONITORS) else login.user


def require(request: web.Request, tags: frozenset[str]) -> None:
    """Refuse a user without any of these tags."""
    _require(login_of(request).tags, tags)


def _require(own: Collection[str], tags: frozenset[str]) -> None:
    if tags.isdisjoint(own):
        raise not_authorised(_NOT_ONE_OF[tags])


def require_owner(request: web.Request, owner: str, tags: Collection[str]) -> None:
    """Refuse a user who neither has any of these tags nor owns the object."""
    login = login_of(request)
    if not login.has_one_of(tags) and login.user != owner:
        raise not_authorised(_NOT_YOURS)


def check_origin(request: web.Request) -> None:
    """Refuse a change from a page of a foreign site. Browsers send its origin with all requests other than GET."""
    if request.method in SAFE_METHODS:
        return
    site, origin = request.headers.get(_FETCH_SITE), request.headers.get(hdrs.ORIGIN)
    if (site is not None and site not in _OUR_OWN) or (origin is not None and not _is_ours(origin, request)):
        raise forbidden("a page of another site may not change anything")


def _is_ours(origin: str, request: web.Request) -> bool:
    try:
        return URL(origin).authority == host(request)
    except ValueError:
        return False


def host(request: web.Request) -> str:
    """Return the host in the browser's address bar. Without the header, aiohttp would query DNS."""
    return request.headers.get(hdrs.HOST, "")


# --- cookies, and web sessions


def cookie_name(request: web.Request, use: str = "session") -> str:
    """Return the name of the cookie of a web session, or of a cookie for a different use.

    Browsers send the same cookies to all ports of a host, and each port may belong to a different node or cluster.
    Behind a load balancer the name is the same at all nodes. Over TLS, no other host of the domain can set the cookie
    (`__Host-`).
    """
    port = host(request).rpartition(":")[2]
    is_port = port.isascii() and port.isdigit() and len(port) <= _PORT_DIGITS
    name = f"qq-{use}-{port}" if is_port else f"qq-{use}"
    return f"__Host-{name}" if is_encrypted(request) else name


def set_cookie(
    request: web.Request,
    response: web.Response,
    value: str,
    lifetime_s: int,
    *,
    use: str = "session",
    same_site: str = "Strict",
) -> None:
    """Set a cookie that scripts cannot read; a lifetime of 0 deletes it."""
    response.set_cookie(
        cookie_name(request, use),
        value,
        max_age=lifetime_s,
        path="/",
        httponly=True,
        samesite=same_site,
        secure=is_encrypted(request),
    )


def is_encrypted(request: web.Request) -> bool:
    """Return whether the browser sent the request over TLS, to this node or to a proxy that says so.

    A client that forges the header only gets a cookie, or a header, that browsers ignore without TLS.
    """
    return request.secure or is_forwarded_tls(request)


def is_forwarded_tls(request: web.Request) -> bool:
    """Return whether a proxy says that the browser sent the request over TLS."""
    scheme = request.headers.get(_FORWARDED_PROTO, "").partition(",")[0]
    return scheme.strip().lower() == "https"


async def session_of(management: Management, request: web.Request) -> WebLogin | None:
    """Return the web session of a request, if it is valid. Raises Unavailable."""
    token = request.cookies.get(cookie_name(request))
    return await management.sessions.find(token, request.remote or "") if token else None


def check_csrf(request: web.Request, session: WebLogin) -> None:
    """Refuse a change without its session's CSRF token, which only our page can read. Raises Refusal."""
    given = request.headers.get(CSRF_HEADER, "").encode(errors="surrogateescape")
    if request.method in _READING_METHODS or hmac.compare_digest(given, session.csrf_token.encode()):
        return
    what = "is not that of the session" if given else "is missing"
    raise forbidden(f"the header {CSRF_HEADER} {what}: GET {SESSION_PATH} returns it")


_READING_METHODS = (hdrs.METH_GET, hdrs.METH_HEAD)


def _credentials(view: NodeView, request: web.Request) -> tuple[str, str]:
    """Return user and password of a request, or an empty user and a token (RFC 6750)."""
    scheme, _, encoded = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    if scheme.lower() == "bearer" and view.takes_tokens:
        return "", encoded.strip()
    try:
        user, colon, password = base64.b64decode(encoded, validate=True).decode().partition(":")
    except ValueError:  # not base64, or not UTF-8
        user = colon = password = ""
    if scheme.lower() != "basic" or not colon:
        raise unauthorized("a user and a password are needed (basic authentication), or a web session")
    return user, password
