"""A client's TCP connection to a simulated node, under the production connection (`qq.amqp_server.connection`).

Lives here: octets on their way, in order and late, and what becomes of them when a side goes or does not read. Not
here: what they say (amqp_client.py), the network between nodes (network.py).

Law: what one side has written the other reads in that order, or the connection is lost; and a process that is paused or
gone neither reads nor writes.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from qq.amqp_server.connection import ClientConnection, Peer

if TYPE_CHECKING:
    from random import Random

    from chaos.sim.cluster import SimulatedNode
    from chaos.sim.world import World
    from cluster.strangers import Place
    from qq.amqp_server.server import AmqpServer

DELAY_MAX_S = 0.02
NOTICED_AFTER_S = 0.3
"""So late at most a client notices that its node is gone."""


class ClientSide(Protocol):
    """Whoever is at the other end of the connection."""

    def received(self, data: bytes) -> None: ...

    def lost(self) -> None:
        """Nothing more comes, and nothing more arrives."""
        ...


class ClientSocket:
    """The connection; to the node it is an asyncio transport."""

    def __init__(
        self,
        world: World,
        random: Random,
        node: SimulatedNode,
        server: AmqpServer,
        place: Place,
        client: ClientSide,
    ) -> None:
        self._world = world
        self._random = random
        self._node = node
        self._life = node.life
        self._client = client
        self._inbound: deque[bytes] = deque()
        """Arrived at the node, which does not read."""
        self._unread: deque[bytes] = deque()
        """Written by the node, not taken by the client."""
        self._unread_bytes = 0
        self._high, self._low = 65_536, 16_384
        self._reads = True
        self._client_reads = True
        self._writing_paused = False
        self._closing = self._ended = False
        self._over = False
        """For the client."""
        self._to_node_s = self._to_client_s = world.now_s
        self._connection = ClientConnection(server, Peer("10.0.0.1", 1024), place)
        self._enter(partial(self._connection.connection_made, self))
        self._look_at_node()

    # The client's side

    def send(self, data: bytes) -> None:
        self._to_node_s = self._later(self._to_node_s, partial(self._arrived, data))

    def drop(self) -> None:
        """The client is gone, without a word."""
        self._over = True
        self._to_node_s = self._later(self._to_node_s, self._lost_by_node)

    def read(self, *, reads: bool) -> None:
        """Have the client read, or leave what comes where it is."""
        self._client_reads = reads
        if reads:
            self._take()

    # On the way

    def _later(self, not_before_s: float, callback: Any) -> float:
        at_s = max(not_before_s, self._world.now_s + self._random.uniform(0.0, DELAY_MAX_S))
        self._world.at(at_s, callback)
        return at_s

    def _enter(self, callback: Any) -> None:
        """Let the node's process do something, if it still is the one that has accepted the connection."""
        if self._node.life == self._life:
            self._node.runtime.enter(callback)

    def _arrived(self, data: bytes) -> None:
        self._enter(partial(self._feed, data))

    def _feed(self, data: bytes) -> None:
        if self._closing:
            return
        self._inbound.append(data)
        self._read_all()

    def _read_all(self) -> None:
        while self._inbound and self._reads and not self._closing:
            self._connection.data_received(self._inbound.popleft())

    def _left(self, data: bytes) -> None:
        if not self._over:
            self._unread.append(data)
            self._take()

    def _take(self) -> None:
        while self._unread and self._client_reads and not self._over:
            data = self._unread.popleft()
            self._unread_bytes -= len(data)
            self._client.received(data)
        if self._writing_paused and self._unread_bytes <= self._low:
            self._writing_paused = False
            self._enter(self._resume_writing)

    def _resume_writing(self) -> None:
        if not self._closing:
            self._connection.resume_writing()

    def _lost_by_client(self) -> None:
        if not self._over:
            self._over = True
            self._client.lost()

    def _lost_by_node(self) -> None:
        self._enter(self._end)

    def _end(self) -> None:
        self._closing = True
        if not self._ended:
            self._ended = True
            self._connection.connection_lost(None)

    def _look_at_node(self) -> None:
        """A process that is gone resets its connections."""
        if self._over:
            return
        if self._node.life != self._life or not self._node.up:
            self._lost_by_client()
        else:
            self._world.after(self._random.uniform(0.0, NOTICED_AFTER_S), self._look_at_node)

    # The node's side

    def write(self, data: bytes) -> None:
        self._unread_bytes += len(data)
        self._to_client_s = self._later(self._to_client_s, partial(self._left, data))
        if self._unread_bytes > self._high and not self._writing_paused:
            self._writing_paused = True
            self._connection.pause_writing()

    def get_write_buffer_size(self) -> int:
        return self._unread_bytes

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        self._high, self._low = high, low

    def get_extra_info(self, _name: str) -> None:
        """There are no sockets and no certificates."""

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        self._reads = True
        self._node.runtime.call_soon(self._read_all)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """All that was written arrives, and then the end."""
        self.abort()

    def abort(self) -> None:
        if not self._closing:
            self._closing = True
            self._to_client_s = self._later(self._to_client_s, self._lost_by_client)
            self._node.runtime.call_soon(self._end)
