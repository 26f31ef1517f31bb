"""Sends an HTTP request with the standard library, which loads quickly.

Invariant: only the server of the URL receives the request with its password. Redirects are not followed, and proxies
are not used.
"""

from __future__ import annotations

import base64
import http.client
import ssl
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping


class ClientLogin(NamedTuple):
    user: str
    password: str


class ConnectError(Exception):
    """The connection could not be opened."""


@contextmanager
def send(
    method: str,
    base_url: str,
    path: str,
    login: ClientLogin,
    timeout_s: float,
    *,
    query: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    tls: ssl.SSLContext | None = None,
) -> Generator[http.client.HTTPResponse]:
    """Send a request and open the response. The path is sent unchanged, also with `..`.

    Raises ConnectError, HTTPException, OSError. A pause of more than `timeout_s` raises TimeoutError.
    """
    base = urlsplit(base_url)
    target = quote(base.path.rstrip("/"), safe="/%") + path + (f"?{urlencode(query)}" if query else "")
    credentials = base64.b64encode(":".join(login).encode()).decode()
    values = {"Authorization": f"Basic {credentials}", **(headers or {})}
    host = base.hostname or ""
    if base.scheme == "https":
        connection = http.client.HTTPSConnection(host, base.port, timeout=timeout_s, context=tls)
    else:
        connection = http.client.HTTPConnection(host, base.port, timeout=timeout_s)
    try:
        _connect(connection)
        connection.request(method, target, body, {name: value.encode() for name, value in values.items()})
        with connection.getresponse() as response:
            yield response
    finally:
        connection.close()


def _connect(connection: http.client.HTTPConnection) -> None:
    try:
        connection.connect()
    except (TimeoutError, ssl.SSLError):
        raise
    except (OSError, UnicodeError) as error:  # UnicodeError: the name of the host is invalid
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise ConnectError(f"cannot connect to {connection.host}:{connection.port} ({reason})") from None
