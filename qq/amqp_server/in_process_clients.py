"""Clients of this node that run in its own process: shovels with an end in this cluster.

Invariant: such a client speaks AMQP like any other, over a socket that nobody else can have; it is vouched for instead
of asked for a password, for one virtual host.
"""

from __future__ import annotations

import asyncio
import socket
from math import inf
from typing import TYPE_CHECKING
from urllib.parse import quote

from qq.amqp_server.connection import ClientConnection, Peer
from qq.scopes import PERMISSIONS, Scopes, TokenUser

if TYPE_CHECKING:
    from qq.amqp_server.server import AmqpServer

    Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

HOST = "127.0.0.1"
USER = "rmq-shovel"
"""What RabbitMQ calls the user of its shovels. It need not be among the cluster's users."""


async def connect(server: AmqpServer, vhost: str, limit: int) -> Streams:
    """Connect to this node, reading ahead `limit` octets; the client may do everything in this virtual host.

    Raises OSError. Whoever gives up waiting for it leaves no connection behind.
    """
    # uvloop, if it is broken off in here, closes a socket without a word to the protocol that it has told of it.
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
    place = server.places.take_known(HOST)
    if place is None:
        raise OSError("this node has too many connections")
    try:
        ours, theirs = _socket_pair()
    except BaseException:
        place.leave()
        raise
    everything = [f"{permission}:{quote(vhost, safe='')}/*" for permission in sorted(PERMISSIONS)]
    # What is passed on may be of any user (`user-id`).
    user = TokenUser(USER, Scopes([*everything, "tag:impersonator"]), inf)
    peer = Peer(*ours.getsockname()[:2])
    await asyncio.get_running_loop().connect_accepted_socket(
        lambda: ClientConnection(server, peer, place, own=user), theirs
    )
    return await asyncio.open_connection(sock=ours, limit=limit)


def _socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a TCP connection: sockets without addresses would be unlike all others that connections have."""
    with socket.create_server((HOST, 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        while True:  # anybody on this machine may have been faster
            theirs, address = listener.accept()
            if address == ours.getsockname():
                break
            theirs.close()
    for each in (ours, theirs):
        each.setblocking(False)
    return ours, theirs
