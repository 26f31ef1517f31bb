"""A proxy that breaks connections in the middle of answers."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from types import TracebackType


class BrokenProxy:
    """Breaks each of the first connections after a number of octets of its answers."""

    def __init__(self, url: str, breaks: list[int]) -> None:
        split = urlsplit(url)
        self._target = (split.hostname or "", split.port or 0)
        self.breaks = list(breaks)
        """Octets after which the next connections break."""
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                with client, socket.create_connection(self._target) as node:
                    self._pass_on(client, node, self.breaks.pop(0) if self.breaks else None)

    @staticmethod
    def _pass_on(client: socket.socket, node: socket.socket, left: int | None) -> None:
        """Pass requests on, and their answers: `left` octets of these at most."""
        threading.Thread(target=_copy, args=(client, node), daemon=True).start()
        with suppress(OSError):
            while octets := node.recv(4096):
                client.sendall(octets if left is None else octets[:left])
                if left is not None:
                    left -= len(octets)
                    if left <= 0:
                        break
            client.shutdown(socket.SHUT_RDWR)
            node.shutdown(socket.SHUT_RDWR)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while octets := source.recv(65536):
            target.sendall(octets)
        target.shutdown(socket.SHUT_RDWR)
