"""Requests to the collector: what becomes of its answers.

Invariant: whatever answers at the collector's address, an answer takes bounded memory and time, and one that is no yes
is a failure.
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
"""A collector says which spans it has refused, if it says anything."""
_ENDLESS = "its answer does not end"


class CollectorSession(Session):
    """Remembers why the last request has failed."""

    def __init__(self) -> None:
        super().__init__()
        self.why = ""
        """Why the last request has failed; empty if it has not."""
        self._socket: socket.socket | None = None
        """That of the connection that was made last: there is one request at a time."""
        for scheme in ("http://", "https://"):
            self.mount(scheme, _TellingAdapter(self._connected))

    def request(self, method: str, url: str | bytes, *more: Any, **options: Any) -> Response:
        """Send a request and read its answer. Raises RequestException if there is none, or none of a collector."""
        options |= {"stream": True, "allow_redirects": False}
        if (
            self.verify is not True
        ):  # of the session alone, an authority counts less than one in the environment
            options["verify"] = self.verify
        # The libraries wait for so long for each part of an answer, and there may be any number of them.
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
        if is_over.is_set():  # to the libraries, an answer whose connection ends may be whole
            flaw = _ENDLESS
        self.why = flaw or ("" if response.ok else f"status {response.status_code}")
        if flaw:
            raise RequestException(flaw)
        return response

    def _connected(self, connection: socket.socket) -> None:
        self._socket = connection

    def _hang_up(self, is_over: Event) -> None:
        """End the request under way; on a thread of its own."""
        is_over.set()
        if self._socket is not None:
            with suppress(OSError):  # it is closed already
                # Not the method of a connection with TLS, which would have the other thread read on without it.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


class _TellingAdapter(HTTPAdapter):
    """Tells the socket of each connection that it makes."""

    def __init__(self, connected: Callable[[socket.socket], None]) -> None:
        self._connected = connected
        super().__init__()

    def init_poolmanager(self, *settings: Any, **more: Any) -> None:
        super().init_poolmanager(*settings, **more)
        pools = {"http": HTTPConnectionPool, "https": HTTPSConnectionPool}
        self.poolmanager.pool_classes_by_scheme = {
            scheme: _telling(pool, self._connected) for scheme, pool in pools.items()
        }


def _telling(pool: Any, connected: Callable[[socket.socket], None]) -> Any:
    """A class of connection pools whose connections tell their sockets."""

    class _TellingConnection(pool.ConnectionCls):
        def connect(self) -> None:
            super().connect()
            connected(self.sock)

    class _TellingPool(pool):
        ConnectionCls = _TellingConnection

    return _TellingPool


def _read(response: Response) -> str:
    """Read an answer, of which nobody needs more than its head; why it is none of a collector, if so."""
    flaw = "what is there is elsewhere" if response.is_redirect else ""
    try:
        count = 0
        # Each part is taken as it comes.
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
