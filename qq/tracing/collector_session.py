"""HTTP session to the collector that bounds its answers and remembers why a request failed.

Invariant: an answer from any server takes bounded memory and time. An answer other than success counts as a
failure.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from threading import Event, Timer
from typing import TYPE_CHECKING, Any

from requests import RequestException, Session
from requests.adapters import HTTPAdapter
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

if TYPE_CHECKING:
    from collections.abc import Callable

    from requests import Response

ANSWER_BYTES_MAX = 64 * 1024
"""Bytes of an answer at most. A collector answers with the spans that it refused, if with any content."""
_ENDLESS = "its answer does not end"


class CollectorSession(Session):
    """HTTP session that remembers why the last request failed."""

    def __init__(self) -> None:
        super().__init__()
        self.why = ""
        """Reason why the last request failed; empty if it succeeded."""
        self._socket: socket.socket | None = None
        """Socket of the newest connection. Requests run singly, so it is the socket of the current request."""
        for scheme in ("http://", "https://"):
            self.mount(scheme, _TellingAdapter(self._connected))

    def request(self, method: str, url: str | bytes, *more: Any, **options: Any) -> Response:
        """Send a request and read its answer. Raises RequestException without a valid answer of a collector."""
        options |= {"stream": True, "allow_redirects": False}
        if (
            self.verify is not True
        ):  # requests prefers REQUESTS_CA_BUNDLE to the session's authority, but not to the request's
            options["verify"] = self.verify
        # The libraries apply the timeout to each part of an answer, and the number of parts is unbounded.
        is_over = Event()
        end = Timer(options["timeout"], self._hang_up, [is_over])
        end.start()
        try:
            response = super().request(method, url, *more, **options)
            flaw = _read(response)
        except Exception as error:
            self.why = _ENDLESS if is_over.is_set() else type(error).__name__
            raise
        finally:
            end.cancel()
        if is_over.is_set():  # the libraries take an answer for complete when its connection ends
            flaw = _ENDLESS
        self.why = flaw or ("" if response.ok else f"status {response.status_code}")
        if flaw:
            raise RequestException(flaw)
        return response

    def _connected(self, connection: socket.socket) -> None:
        self._socket = connection

    def _hang_up(self, is_over: Event) -> None:
        """End the current request. Runs on the timer's thread."""
        is_over.set()
        if self._socket is not None:
            with suppress(OSError):  # already closed
                # The method of a TLS connection would let the other thread go on reading without TLS.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


class _TellingAdapter(HTTPAdapter):
    """HTTP adapter that passes each new socket to `connected`."""

    def __init__(self, connected: Callable[[socket.socket], None]) -> None:
        self._connected = connected
        super().__init__()

    def init_poolmanager(self, *settings: Any, **more: Any) -> None:
        super().init_poolmanager(*settings, **more)
        pools = {"http": HTTPConnectionPool, "https": HTTPSConnectionPool}
        self.poolmanager.pool_classes_by_scheme = {
            scheme: _reporting_sockets(pool, self._connected) for scheme, pool in pools.items()
        }


def _reporting_sockets(pool: Any, connected: Callable[[socket.socket], None]) -> Any:
    """Return a subclass of a connection pool that passes the socket of each connection to `connected`."""

    class _ReportingConnection(pool.ConnectionCls):
        def connect(self) -> None:
            super().connect()
            connected(self.sock)

    class _ReportingPool(pool):
        ConnectionCls = _ReportingConnection

    return _ReportingPool


def _read(response: Response) -> str:
    """Read and discard an answer, because only its head matters; return its flaw, or "" if it has none."""
    flaw = "what is there is elsewhere" if response.is_redirect else ""
    try:
        count = 0
        # Read each part when it arrives.
        while not flaw and (part := response.raw.read1(ANSWER_BYTES_MAX, decode_content=False)):
            count += len(part)
            if count > ANSWER_BYTES_MAX:
                flaw = _ENDLESS
    except BaseException:
        response.close()
        raise
    if flaw:
        response.close()
    return flaw
