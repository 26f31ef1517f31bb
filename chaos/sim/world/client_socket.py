"""A client's TCP connection to a simulated node, below the production connection (`qq.client_sockets`).

Invariant: each side reads bytes in the order in which the other side wrote them. If the connection was closed, the end
of the stream comes after all bytes. If it was reset, the end may come before the last of them. A paused or ended
process neither reads nor writes.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from qq.client_sockets.shared import Arrival, Peer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from chaos.sim.world.cluster import SimulatedNode
    from chaos.sim.world.world import SimulatedWorld
    from cluster.net.connection_slots import Slot
    from qq.client_sockets.client_connection import ClientConnection

DELAY_MAX_S = 0.02
NOTICED_AFTER_S = 0.3
"""Seconds after which a connection has noticed the end of its node's process, at most."""
RESETS = 0.5
"""Share of connection ends, at either side, that lose the bytes in flight."""
_END = b""
"""Marks the end of the stream, after all written bytes."""


class ClientSide(Protocol):
    """The client's side of the connection."""

    def received(self, data: bytes) -> None: ...

    def lost(self) -> None:
        """Handle the loss of the connection: no bytes arrive in either direction any more."""
        ...


class ClientSocket:
    """The connection; the node sees it as an asyncio transport."""

    def __init__(
        self,
        world: SimulatedWorld,
        random: Random,
        node: SimulatedNode,
        make: Callable[[Arrival], ClientConnection[Any]],
        slot: Slot,
        client: ClientSide,
    ) -> None:
        """Accept the connection; `make` makes the node's side of it."""
        self._world = world
        self._random = random
        self._node = node
        self._incarnation = node.incarnation
        self._client = client
        self._inbound: deque[bytes] = deque()
        """Bytes that have arrived at the node while it does not read."""
        self._unread: deque[bytes] = deque()
        """Bytes that have arrived at the client while it does not read."""
        self._unread_bytes = 0
        """Bytes that the node has written and the client has not taken."""
        self._high, self._low = 65_536, 16_384
        self._reads = True
        self._client_reads = True
        self._writing_paused = False
        self._closing = False
        """Whether the node has stopped reading and only flushes the bytes that remain."""
        self._is_lost = False
        """Whether the connection has ended, so that the node's further writes are dropped."""
        self._ended = False
        """Whether the node's connection object knows of the end, or its process has ended."""
        self._is_cut = False
        """Whether the last bytes written by the node are lost."""
        self._over = False
        """Whether the connection is over for the client."""
        self._to_node_s = self._to_client_s = world.now_s
        self._connection = make(Arrival(Peer("10.0.0.1", 1024), slot))
        self._enter(partial(self._connection.connection_made, self))
        self._check_node()

    # The client's side

    def send(self, data: bytes) -> None:
        self._to_node_s = self._later(self._to_node_s, partial(self._enter, partial(self._arrived, data)))

    def finish(self) -> None:
        """Close the sending direction, and keep reading."""
        self.send(_END)

    def drop(self) -> None:
        """End the client's process: its kernel closes the connection, or resets it, as with unread bytes."""
        self._over = True
        if self._unread or self._random.random() < RESETS:
            ends = partial(self._end, ConnectionResetError("reset by the client"))
            self._to_node_s = self._later(self._to_node_s, partial(self._enter, ends))
        else:
            self.finish()

    def read(self, *, reads: bool) -> None:
        """Let the client read, or let arriving bytes wait."""
        self._client_reads = reads
        if reads:
            self._take()

    # In flight

    def _later(self, not_before_s: float, callback: Callable[[], None]) -> float:
        at_s = max(not_before_s, self._world.now_s + self._random.uniform(0.0, DELAY_MAX_S))
        self._world.at(at_s, callback)
        return at_s

    def _enter(self, callback: Callable[[], None]) -> None:
        """Run `callback` in the node's process, if that is still the process that accepted the connection."""
        if self._node.incarnation == self._incarnation:
            self._node.runtime.enter(callback)

    def _arrived(self, data: bytes) -> None:
        self._inbound.append(data)
        self._read_all()

    def _read_all(self) -> None:
        while self._inbound and self._reads and not self._closing:
            data = self._inbound.popleft()
            if data != _END:
                self._connection.data_received(data)
            elif not self._connection.eof_received():
                self.close()

    def _left(self, data: bytes) -> None:
        """Deliver bytes that the node wrote to the client. They are lost if the client has ended."""
        if self._over:
            self._written(len(data))
        elif not self._is_cut:
            self._unread.append(data)
            self._take()

    def _take(self) -> None:
        while self._unread and self._client_reads and not self._over:
            data = self._unread.popleft()
            if data == _END:
                self._lost_by_client()
            else:
                self._written(len(data))
                self._client.received(data)

    def _written(self, size: int) -> None:
        """Account for `size` bytes that have left the node's send buffer."""
        self._unread_bytes -= size
        if self._writing_paused and self._unread_bytes <= self._low:
            self._writing_paused = False
            self._enter(self._resume_writing)
        if self._closing and not self._unread_bytes:
            self._enter(self._end)

    def _resume_writing(self) -> None:
        if not self._ended:
            self._connection.resume_writing()

    def _end(self, error: Exception | None = None) -> None:
        """Report the end to the node's connection, and deliver the end to the client."""
        if self._ended:
            return
        self._ended = self._is_lost = self._closing = True
        self._connection.connection_lost(error)
        self._notify_client()

    def _notify_client(self) -> None:
        """Deliver the end to the client: after the written bytes, or in place of them."""
        end = self._lost_by_client if self._is_cut else partial(self._left, _END)
        self._to_client_s = self._later(self._to_client_s, end)

    def _lost_by_client(self) -> None:
        if not self._over:
            self._over = True
            self._unread.clear()
            self._client.lost()

    def _check_node(self) -> None:
        """Poll the node's process; when it has ended, its kernel closes or resets the connection."""
        if self._over or self._ended:
            return
        if self._node.incarnation == self._incarnation and self._node.up:
            self._world.after(self._random.uniform(0.0, NOTICED_AFTER_S), self._check_node)
            return
        self._ended = self._is_lost = self._closing = True
        self._is_cut = self._random.random() < RESETS
        self._notify_client()

    # The node's side

    def write(self, data: bytes) -> None:
        if self._is_lost:
            return
        self._unread_bytes += len(data)
        self._to_client_s = self._later(self._to_client_s, partial(self._left, data))
        if self._unread_bytes > self._high and not self._writing_paused:
            self._writing_paused = True
            self._connection.pause_writing()

    def writelines(self, buffers: Sequence[bytes]) -> None:
        self.write(b"".join(buffers))

    def get_write_buffer_size(self) -> int:
        return self._unread_bytes

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        self._high, self._low = high, low

    def get_extra_info(self, _name: str) -> None:
        """Return None, because there are no sockets and no certificates."""

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        self._reads = True
        self._node.runtime.call_soon(self._read_all)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Close the connection: all written bytes arrive, and then the end."""
        if not self._closing:
            self._closing = True
            if not self._unread_bytes:
                self._lose()

    def abort(self) -> None:
        """End the connection now, even if the client has unread bytes."""
        if not self._is_lost:
            self._is_cut = self._random.random() < RESETS
            self._lose()

    def _lose(self) -> None:
        self._is_lost = self._closing = True
        self._node.runtime.call_soon(self._end)
