"""A client of AMQP 1.0 on a socket: it writes any frames, and reads those of the node."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, Self, TypeVar

from qq.amqp10.connection import AMQP_HEADER, SASL_HEADER
from qq.amqp10.framing import FrameReceived, Heartbeat10
from qq.amqp10.performatives import (
    AcceptedState,
    AttachFrame,
    BeginFrame,
    CloseFrame,
    DetachFrame,
    DispositionFrame,
    EndFrame,
    FlowFrame,
    OpenFrame,
    SaslInit,
    SaslOutcome,
    SenderSettleMode,
    SourceTerminus,
    TargetTerminus,
    TransferFrame,
)
from qq.amqp10.sections import DATA
from tests.amqp10.amqp10_wire import StreamStage, dumb_read, flat, frame, read_all, reader_of_frames

T = TypeVar("T")
PATIENCE_S = 10.0


def data(body: bytes, before: bytes = b"") -> bytes:
    """Return a message with a data section, behind encoded sections."""
    return before + bytes((0x00, 0x53, DATA, 0xB0)) + len(body).to_bytes(4, "big") + body


class SocketClient:
    """A connection with a single session at a time on each channel."""

    def __init__(self, port: int, host: str = "127.0.0.1", receive_buffer: int | None = None) -> None:
        self._socket = socket.create_connection((host, port), PATIENCE_S)
        if receive_buffer is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._reader = reader_of_frames()
        self._frames: list[Any] = []
        self._octets = b""
        self.next_incoming_ids: dict[int, int] = {}
        """Of each channel with a session: the id of the transfer that the node sends next."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    # Octets

    def write(self, octets: bytes) -> None:
        self._socket.sendall(octets)

    def read_octets(self, count: int) -> bytes:
        """Read octets before any frames are read. They are fewer at the end of the stream."""
        while len(self._octets) < count:
            piece = self._socket.recv(65536)
            if not piece:
                break
            self._octets += piece
        found, self._octets = self._octets[:count], self._octets[count:]
        return found

    # Frames

    def send(self, performative: Any, channel: int = 0, payload: bytes = b"") -> None:
        self.write(frame(performative, channel, payload))

    def receive(self) -> Any:
        """Return the next frame (`FrameReceived`), without heartbeats; None at the end of the stream."""
        while not self._frames:
            piece, self._octets = self._octets, b""
            piece = piece or self._socket.recv(65536)
            if not piece:
                return None
            events = flat(read_all(self._reader, [piece]))
            self._frames += [event for event in events if not isinstance(event, Heartbeat10)]
        received = self._frames.pop(0)
        if isinstance(received.performative, TransferFrame) and received.channel in self.next_incoming_ids:
            self.next_incoming_ids[received.channel] = (self.next_incoming_ids[received.channel] + 1) % 2**32
        return received

    def expect(self, kind: type[T]) -> T:
        """Return the next performative, which must be of this kind."""
        received = self.receive()
        assert isinstance(received, FrameReceived), f"{received} instead of {kind.__name__}"
        assert isinstance(received.performative, kind), f"{received} instead of {kind.__name__}"
        return received.performative

    def until(self, kind: type[T], is_it: Callable[[T], bool] = lambda _: True) -> T:
        """Return the next performative of this kind; drop all others before it."""
        while True:
            received = self.receive()
            assert received is not None, f"the stream ends before {kind.__name__}"
            if isinstance(received.performative, kind) and is_it(received.performative):
                return received.performative

    # Conversations

    def log_in(self, mechanism: str = "PLAIN", response: bytes | None = b"\0guest\0guest") -> SaslOutcome:
        self.write(SASL_HEADER + frame(SaslInit(mechanism, response), stage=StreamStage.SASL))
        assert self.read_octets(8) == SASL_HEADER
        while True:
            size = self.read_octets(4)
            assert size, "the stream ends before the outcome of the login"
            (received,) = dumb_read(size + self.read_octets(int.from_bytes(size, "big") - 4))
            if isinstance(received.performative, SaslOutcome):
                return received.performative

    def open(self, user: str = "guest", **fields: Any) -> OpenFrame:
        """Log in, with the name as the password, and open the connection."""
        assert self.log_in(response=f"\0{user}\0{user}".encode()).code == 0
        return self.open_vhost("/", **fields)

    def open_vhost(self, vhost: str, **fields: Any) -> OpenFrame:
        self.write(AMQP_HEADER + frame(OpenFrame("client", f"vhost:{vhost}", **fields)))
        assert self.read_octets(8) == AMQP_HEADER
        return self.expect(OpenFrame)

    def begin(self, channel: int = 0, window: int = 10_000) -> BeginFrame:
        self.send(BeginFrame(None, 0, window, 10_000), channel)
        begin = self.expect(BeginFrame)
        self.next_incoming_ids[channel] = begin.next_outgoing_id
        return begin

    def attach_sender(
        self, address: str | None, handle: int = 0, channel: int = 0, **fields: Any
    ) -> FlowFrame:
        """Attach a link to publish. Return the flow with its credit."""
        self.send(sender(address, handle, **fields), channel)
        attach = self.expect(AttachFrame)
        assert attach.target is not None
        return self.expect(FlowFrame)

    def attach_receiver(self, queue: str, handle: int = 1, channel: int = 0, **fields: Any) -> AttachFrame:
        """Attach a link to consume. It has no credit."""
        self.send(receiver(f"/queues/{queue}", handle, **fields), channel)
        attach = self.expect(AttachFrame)
        assert attach.source is not None
        return attach

    def transfer(
        self, delivery_id: int, message: bytes, handle: int = 0, channel: int = 0, **fields: Any
    ) -> None:
        tag = delivery_id.to_bytes(4, "big")
        self.send(TransferFrame(handle, delivery_id, tag, 0, **fields), channel, message)

    def credit(
        self, credit: int, handle: int = 1, channel: int = 0, window: int = 10_000, **fields: Any
    ) -> None:
        self.flow(window, channel, handle=handle, link_credit=credit, **fields)

    def flow(self, window: int, channel: int = 0, **fields: Any) -> None:
        """Set the incoming window of a session, and perhaps the state of a link."""
        self.send(FlowFrame(self.next_incoming_ids[channel], window, 0, 10_000, **fields), channel)

    def accept(self, first: int, last: int | None = None, channel: int = 0) -> None:
        self.send(DispositionFrame(True, first, last, settled=True, state=AcceptedState()), channel)

    def receive_transfer(self) -> FrameReceived:
        """Return the next transfer; drop all other frames before it."""
        while True:
            received = self.receive()
            assert received is not None, "the stream ends before a transfer"
            if isinstance(received.performative, TransferFrame):
                return received

    def message(self) -> tuple[TransferFrame, bytes]:
        """Return the next transfer with its payload; drop all other frames before it."""
        received = self.receive_transfer()
        return received.performative, received.payload

    def detach(self, handle: int, channel: int = 0) -> DetachFrame:
        self.send(DetachFrame(handle, closed=True), channel)
        return self.until(DetachFrame)

    def end(self, channel: int = 0) -> EndFrame:
        self.send(EndFrame(), channel)
        return self.until(EndFrame)

    def close(self) -> CloseFrame:
        self.send(CloseFrame())
        return self.until(CloseFrame)


def sender(address: str | None, handle: int = 0, **fields: Any) -> AttachFrame:
    """Return the attach of a link to publish."""
    fields = {
        "name": f"sender {handle}",
        "snd_settle_mode": SenderSettleMode.MIXED,
        "source": SourceTerminus(),
        "target": TargetTerminus(address),
        "initial_delivery_count": 0,
        **fields,
    }
    return AttachFrame(handle=handle, role=False, **fields)


def receiver(address: str | None, handle: int = 1, **fields: Any) -> AttachFrame:
    """Return the attach of a link to consume."""
    fields = {
        "name": f"receiver {handle}",
        "snd_settle_mode": SenderSettleMode.UNSETTLED,
        "source": SourceTerminus(address),
        "target": TargetTerminus(),
        **fields,
    }
    return AttachFrame(handle=handle, role=True, **fields)
