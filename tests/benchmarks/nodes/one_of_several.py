"""The process of one log of several, for several_logs.py: `one_of_several.py [OPTION...] serve --config FILE`.

    --take SOCKET         serve the connections that are passed on at this Unix socket, too
    --pass VHOST=SOCKET   pass connections to this virtual host on to the process that takes them at the socket

It is `qq serve` with its own log, state and broker, but for whose connections it serves. The process that has accepted
a connection reads it until the client asks for a virtual host. If that is another log's, three things are passed on:
the descriptor of the socket (SCM_RIGHTS), where the client is, and all that was read of it. Whoever takes the
connection reads the same bytes again, and so comes to where the other one was; what it would answer to them, the client
has had. It does not look at the password: the process of log 0 has.

Left out, and needed in a product: users and permissions that come from log 0; TLS; a taker that is gone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

sys.path.insert(0, str(Path(__file__).parents[3]))
from cluster.net.acceptor import accept, readable
from cluster.net.connection_slots import Place
from qq.amqp.connection import LoginAttempt, Phase
from qq.amqp_server import listener
from qq.amqp_server.connection import ClientConnection, Peer
from qq.amqp_server.server import AmqpServer
from qq.cli.serve import serve
from qq.node import node

PASSED_BYTES_MAX = 256 * 1024
"""More than a client may send before its connection is open (AHEAD_BYTES_MAX of qq/amqp/connection.py, and the
handshake)."""
AGAIN_S = 0.001
"""How long to wait for the answers that the client was given to be in its socket, or for room in the Unix socket."""


class Taker:
    """The process of another log, to which connections are passed on."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket: socket.socket | None = None

    def take(self, descriptor: int, peer: Peer, heard: bytes) -> bool:
        """Pass a connection on; False if there is no room for it now. Raises OSError."""
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._socket.connect(self._path)
            self._socket.setblocking(False)
        try:
            socket.send_fds(self._socket, [json.dumps(peer).encode(), b"\n", heard], [descriptor])
        except BlockingIOError:
            return False
        return True


class Arriving(ClientConnection):
    """A connection that was accepted here, perhaps for another log."""

    def __init__(self, takers: dict[str, Taker], *arguments: Any) -> None:
        super().__init__(*arguments)
        self._takers = takers
        self._heard: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        if not self.vhost:
            self._heard.append(data)
        super().data_received(data)

    def _open_vhost(self, vhost: str) -> None:
        taker = self._takers.get(vhost)
        if taker is None:
            self._heard.clear()
            super()._open_vhost(vhost)
            return
        self.pause_for(taker)
        self._pass_on(taker)

    def _pass_on(self, taker: Taker) -> None:
        if self._transport.is_closing():
            return
        is_answered = not self._amqp.out and not self._transport.get_write_buffer_size()
        descriptor = self._transport.get_extra_info("socket").fileno()
        peer = Peer(self.peer_host, self.peer_port, self._proxy_host)
        if is_answered and taker.take(descriptor, peer, b"".join(self._heard)):
            self._transport.abort()  # of the socket there are two descriptors now: it stays open
        else:
            self._broker.runtime.call_later(AGAIN_S, partial(self._pass_on, taker))


class TakenOver(ClientConnection):
    """A connection that another process has accepted, and read up to its connection.open or further."""

    def __init__(self, server: AmqpServer, peer: Peer, place: Place, heard: bytes) -> None:
        super().__init__(server, peer, place)
        self._heard = heard

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.data_received(self._heard)
        if self._amqp.phase is Phase.VHOST:
            self._amqp.out.clear()  # connection.start and connection.tune, which the client has
        else:
            transport.abort()

    def _login(self, attempt: LoginAttempt) -> None:
        self.user = attempt.user
        self._place.make_known()
        self._go_on(self._amqp.accept_login)


class TakingPort:
    """Serves connections that are passed on at a Unix socket."""

    def __init__(self, server: AmqpServer, path: str) -> None:
        self._server = server
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(path)
        self._listener.listen(1)
        self._listener.setblocking(False)

    async def serve(self) -> None:
        with self._listener:
            giver, _ = await accept(self._listener)
        with giver:
            while True:
                await readable(giver)
                told, descriptors, _, _ = socket.recv_fds(giver, PASSED_BYTES_MAX, 1)
                if not descriptors:  # the giver is gone
                    return
                await self._begin(socket.socket(fileno=descriptors[0]), told)

    async def _begin(self, sock: socket.socket, told: bytes) -> None:
        about, _, heard = told.partition(b"\n")
        peer = Peer(*json.loads(about))
        place = self._server.places.take(peer.host)
        if place is None:
            sock.close()
            return
        sock.setblocking(False)
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: TakenOver(self._server, peer, place, heard), sock
        )


class TakingNode(node.Node):
    """A node that serves clients of another process's port, too."""

    path: ClassVar[str]

    async def _listen(self) -> list[Any]:
        return [*await super()._listen(), TakingPort(self.amqp_server, self.path)]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--take", metavar="SOCKET")
    parser.add_argument("--pass", dest="passed", metavar="VHOST=SOCKET", action="append", default=[])
    parser.add_argument("serve", choices=["serve"])
    parser.add_argument("--config", type=Path, required=True)
    options = parser.parse_args()
    if options.take:
        TakingNode.path = options.take
        node.Node = TakingNode
    takers = {vhost: Taker(path) for vhost, _, path in (each.partition("=") for each in options.passed)}
    listener.ClientConnection = partial(Arriving, takers)
    return serve(options.config)


if __name__ == "__main__":
    sys.exit(main())
