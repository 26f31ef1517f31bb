"""AMQP clients that run in the node's own process: shovels that have an end in this cluster.

Invariant: such a client speaks AMQP like any other client, over a socket that no other process can get. The node
vouches for it instead of asking for a password, for a single virtual host.
"""

from __future__ import annotations

import asyncio
import socket
from math import inf
from typing import TYPE_CHECKING
from urllib.parse import quote

from qq.amqp_server.connection import AmqpConnection
from qq.client_sockets.shared import Arrival, Peer
from qq.scopes import PERMISSIONS, Scopes, TokenUser

if TYPE_CHECKING:
    from qq.amqp_server.server import AmqpServer

    Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

HOST = "127.0.0.1"
USER = "rmq-shovel"
"""The user name of RabbitMQ's shovels. It need not exist among the cluster's users."""


async def connect(server: AmqpServer, vhost: str, limit: int) -> Streams:
    """Connect to this node with a read buffer of `limit` octets and all permissions in this virtual host.

    Raises OSError. A cancelled caller leaves no connection behind.
    """
    # If uvloop is cancelled in here, it closes the socket without calling the protocol's `connection_lost`.
    connecting = asyncio.ensure_future(_connect(server, vhost, limit))
    try:
        return await asyncio.shield(connecting)
    except asyncio.CancelledError:
        connecting.add_done_callback(_drop)
        raise


def _drop(connecting: asyncio.Task[Streams]) -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        _, writer = connecting.result()
        writer.transport.abort()


async def _connect(server: AmqpServer, vhost: str, limit: int) -> Streams:
    slot = server.sockets.slots.take_authenticated(HOST)
    if slot is None:
        raise OSError("this node has too many connections")
    try:
        ours, theirs = _socket_pair()
    except BaseException:
        slot.release()
        raise
    everything = [f"{permission}:{quote(vhost, safe='')}/*" for permission in sorted(PERMISSIONS)]
    # Messages that are passed on may be from any user (`user-id`).
    user = TokenUser(USER, Scopes([*everything, "tag:impersonator"]), inf)
    arrival = Arrival(Peer(*ours.getsockname()[:2]), slot)
    await asyncio.get_running_loop().connect_accepted_socket(
        lambda: AmqpConnection(server, arrival, user), theirs
    )
    return await asyncio.open_connection(sock=ours, limit=limit)


def _socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a TCP connection.

    A Unix socket pair would have no addresses, unlike all other connections.
    """
    with socket.create_server((HOST, 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        while True:  # another process of this machine may have connected first
            theirs, address = listener.accept()
            if address == ours.getsockname():
                break
            theirs.close()
    for each in (ours, theirs):
        each.setblocking(False)
    return ours, theirs
