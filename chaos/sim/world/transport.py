"""Carries the clients of a recorded run, pika and Proton, to simulated nodes over simulated sockets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pika.connection import Connection, Parameters
from pika.exceptions import AMQPConnectionError, StreamLostError

from chaos.workloads.transport import LostError

if TYPE_CHECKING:
    from collections.abc import Callable

    from chaos.sim.world.brokers import Brokers
    from chaos.sim.world.client_socket import ClientSide, ClientSocket
    from chaos.workloads.transport import Endpoint

CONNECT_MAX_S = 0.01


class SimulatedConnection(Connection):
    """pika's connection to the node whose name is the host of its parameters.

    Events of the socket reach pika through the simulated loop, which runs its clients.
    """

    # Methods of pika for its transports, which its types do not declare.
    _on_stream_connected: Callable[[], None]
    _on_data_available: Callable[[bytes], None]
    _on_stream_terminated: Callable[[Exception | None], None]
    _terminate_stream: Callable[[Exception], None]

    def __init__(self, brokers: Brokers, parameters: Parameters, **callbacks: Any) -> None:
        self._brokers = brokers
        self._loop = asyncio.get_running_loop()
        self._socket: ClientSocket | None = None
        super().__init__(parameters, **callbacks)

    # Called by pika

    def _adapter_call_later(self, delay: float, callback: Callable[[], Any]) -> asyncio.TimerHandle:
        return self._loop.call_later(delay, callback)

    def _adapter_remove_timeout(self, timeout_id: Any) -> None:
        timeout_id.cancel()

    def _adapter_add_callback_threadsafe(self, callback: Callable[..., Any]) -> None:
        self._loop.call_soon_threadsafe(callback)

    def _adapter_connect_stream(self) -> None:
        self._loop.call_later(self._brokers.random.uniform(0.0, CONNECT_MAX_S), self._connect)
        self._loop.call_later(self.params.stack_timeout or 0.0, self._time_out)

    def _adapter_disconnect_stream(self) -> None:
        if self._socket is not None:
            self._socket.drop()
            self._socket = None
        self._loop.call_soon(self._terminated, None)

    def _adapter_emit_data(self, data: bytes) -> None:
        if self._socket is not None:
            self._socket.send(data)

    def _connect(self) -> None:
        nodes = {node.name: node for node in self._brokers.listening()}
        node = nodes.get(self.params.host)
        self._socket = self._brokers.connect(node, self) if node else None
        if self._socket is None:
            self._terminated(AMQPConnectionError("connection refused"))
        else:
            self._on_stream_connected()

    def _time_out(self) -> None:
        if not (self.is_open or self.is_closed or self.is_closing):
            self._terminate_stream(AMQPConnectionError("not connected in time"))

    # Called by the socket

    def received(self, data: bytes) -> None:
        self._loop.call_soon(self._read, data)

    def lost(self) -> None:
        self._loop.call_soon(self._lost)

    def _read(self, data: bytes) -> None:
        if self._socket is not None:
            self._on_data_available(data)

    def _lost(self) -> None:
        self._socket = None
        self._terminated(StreamLostError("the connection has ended"))

    def _terminated(self, error: Exception | None) -> None:
        if not self.is_closed:
            self._on_stream_terminated(error)


class SimulatedStream:
    """The octets of a client of AMQP 1.0; events of the socket reach it through the simulated loop."""

    def __init__(self, client: ClientSide) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._socket: ClientSocket | None = None

    async def connect(self, brokers: Brokers, endpoint: Endpoint) -> None:
        """Connect to the node whose name is the host of the endpoint. Raises LostError."""
        await asyncio.sleep(brokers.random.uniform(0.0, CONNECT_MAX_S))
        nodes = {node.name: node for node in brokers.listening()}
        node = nodes.get(endpoint.host)
        self._socket = brokers.connect(node, self, "1.0") if node else None
        if self._socket is None:
            raise LostError("connection refused")

    # Called by the client

    def send(self, octets: bytes) -> None:
        if self._socket is not None:
            self._socket.send(octets)

    def drop(self) -> None:
        if self._socket is not None:
            self._socket.drop()
            self._socket = None

    # Called by the socket

    def received(self, data: bytes) -> None:
        self._loop.call_soon(self._client.received, data)

    def lost(self) -> None:
        self._socket = None
        self._loop.call_soon(self._client.lost)


async def dial(brokers: Brokers, endpoint: Endpoint, client: ClientSide) -> SimulatedStream:
    """Connect a client of AMQP 1.0 to a node. Raises LostError."""
    stream = SimulatedStream(client)
    await stream.connect(brokers, endpoint)
    return stream
