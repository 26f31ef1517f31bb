"""A load balancer: it forwards each connection to a node that accepts it."""

from __future__ import annotations

import socket
from contextlib import contextmanager, suppress
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

HOST = "127.0.0.1"
BYTES_AT_ONCE = 65536


@contextmanager
def balancer(ports: Sequence[int]) -> Generator[int]:
    """The port of a balancer over the nodes at these ports, which it tries in their order."""

    class Forward(BaseRequestHandler):
        def handle(self) -> None:
            for port in ports:
                with suppress(ConnectionError), socket.create_connection((HOST, port)) as node:
                    back = Thread(target=_copy, args=(node, self.request), daemon=True)
                    back.start()
                    _copy(self.request, node)
                    back.join()
                    return

    class Server(ThreadingTCPServer):
        daemon_threads = True

    with Server((HOST, 0), Forward) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while part := source.recv(BYTES_AT_ONCE):
            target.sendall(part)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
