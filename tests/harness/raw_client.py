"""An AMQP client at the level of frames, which may break the protocol."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Sequence
from struct import Struct
from types import TracebackType
from typing import Any, Self, TypeVar

import pamqp.frame
from pamqp import commands, exceptions, header
from pamqp.base import Frame
from pamqp.body import ContentBody
from pamqp.heartbeat import Heartbeat

HEADER = b"AMQP\x00\x00\x09\x01"
CAPABILITIES = {"authentication_failure_close": True, "consumer_cancel_notify": True, "basic.nack": True}
FRAME_HEAD = Struct(">BHI")
"""Type, channel and payload length; the frame's end octet follows the payload."""
F = TypeVar("F")


class RawClient:
    """A connection to a broker; opened up to connection.open-ok, or up to connection.open, or not at all.

    `user` has a password of the same text.
    """

    def __init__(
        self,
        port: int,
        *,
        frame_max: int = 131_072,
        channel_max: int = 2047,
        heartbeat: int = 0,
        handshake: bool = True,
        more_capabilities: Sequence[str] = (),
        tls: ssl.SSLContext | None = None,
        source: str | None = None,
        user: str = "guest",
        vhost: str = "/",
        admitted: bool = True,
    ) -> None:
        address = None if source is None else (source, 0)
        self.socket = socket.create_connection(("127.0.0.1", port), source_address=address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            with self.socket as plain:  # closed if the handshake fails
                self.socket = tls.wrap_socket(plain, server_hostname="localhost")
        self._buffer = b""
        if handshake:
            self.write(HEADER)
            self.expect(commands.Connection.Start)
            capabilities = CAPABILITIES | dict.fromkeys(more_capabilities, True)
            self.send(0, self.start_ok(f"\0{user}\0{user}", capabilities=capabilities))
            self.expect(commands.Connection.Tune)
            self.send(0, commands.Connection.TuneOk(channel_max, frame_max, heartbeat))
            self.send(0, commands.Connection.Open(vhost))
            if admitted:
                self.expect(commands.Connection.OpenOk)

    @staticmethod
    def start_ok(response: str = "\0guest\0guest", mechanism: str = "PLAIN", **more: Any) -> Frame:
        properties = {"capabilities": CAPABILITIES} | more
        return commands.Connection.StartOk(properties, mechanism, response, "en_US")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    # Out

    def write(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send(self, channel: int, *frames: Any) -> None:
        self.write(b"".join(marshal(channel, frame) for frame in frames))

    def write_until_stopped(self, data: bytes, limit: int, patience_s: float = 1.0) -> int:
        """Write `data` again and again; returns how much was taken when the broker stops taking it."""
        self.socket.setblocking(False)
        view, taken, last_s = memoryview(data), 0, time.monotonic()
        while taken < limit and time.monotonic() - last_s < patience_s:
            try:
                taken += self.socket.send(view[taken % len(data) :])
                last_s = time.monotonic()
            except BlockingIOError:
                time.sleep(0.01)
        self.socket.setblocking(True)
        return taken

    def open_channel(self, number: int) -> None:
        self.call(number, commands.Channel.Open(), commands.Channel.OpenOk)

    def call(self, channel: int, frame: Frame, answer: type[F]) -> F:
        self.send(channel, frame)
        return self.expect(answer, channel)

    # In

    def receive(self, timeout_s: float = 10.0) -> tuple[int, Any]:
        """The next frame that is not a heartbeat; raises EOFError at the end of the stream.

        A frame that pamqp cannot decode, as a message may have it that a test made by hand, is returned as bytes.
        """
        while True:
            size, channel, frame = self._next_frame()
            if size:
                self._buffer = self._buffer[size:]
                if isinstance(frame, Heartbeat):
                    continue
                return channel, frame
            self.read(timeout_s)

    def _next_frame(self) -> tuple[int, int, Any]:
        """Size, channel and content of the frame that is first in the buffer; a size of 0 if it is not complete."""
        if len(self._buffer) < FRAME_HEAD.size:
            return 0, 0, None
        _, channel, length = FRAME_HEAD.unpack_from(self._buffer)
        size = FRAME_HEAD.size + length + 1
        if len(self._buffer) < size:
            return 0, 0, None
        frame = bytes(self._buffer[:size])
        try:
            return size, channel, pamqp.frame.unmarshal(frame)[2]
        except exceptions.UnmarshalingException:
            return size, channel, frame

    def read(self, timeout_s: float = 10.0) -> None:
        self.socket.settimeout(timeout_s)
        data = self.socket.recv(1 << 20)
        self.socket.settimeout(None)
        if not data:
            raise EOFError
        self._buffer += data

    def expect(self, kind: type[F], channel: int | None = None) -> F:
        got, frame = self.receive()
        assert isinstance(frame, kind), f"{frame!r} instead of {kind.__name__}"
        assert channel is None or got == channel
        return frame

    def expect_close(self, code: int, text: str, *, channel: int = 0) -> Any:
        """The close of the channel, or of the connection, that comes next (after other frames)."""
        kind = commands.Channel.Close if channel else commands.Connection.Close
        while True:
            got, frame = self.receive()
            if isinstance(frame, kind):
                assert (got, frame.reply_code, frame.reply_text) == (channel, code, text)
                return frame
            assert not isinstance(frame, commands.Channel.Close | commands.Connection.Close), frame.reply_text

    def expect_end(self) -> None:
        """The broker closes the socket."""
        while True:
            try:
                self.receive()
            except (EOFError, ConnectionResetError):
                return

    def expect_message(self) -> tuple[Any, Any, bytes]:
        """A method with content: the method, the header, the body."""
        _, method = self.receive()
        assert isinstance(method, commands.Basic.Deliver | commands.Basic.GetOk | commands.Basic.Return), (
            method
        )
        content = self.expect(header.ContentHeader)
        body = b""
        while len(body) < content.body_size:
            body += self.expect(ContentBody).value
        return method, content, body

    def close(self) -> None:
        """Close in good order."""
        self.send(0, commands.Connection.Close(200, "bye", 0, 0))
        while not isinstance(self.receive()[1], commands.Connection.CloseOk):
            pass
        self.part()

    def part(self) -> None:
        """Close the socket behind close-ok; so does the broker then."""
        self.socket.shutdown(socket.SHUT_WR)
        self.expect_end()


def marshal(channel: int, frame: Any) -> bytes:
    return pamqp.frame.marshal(frame, channel)


def frame_bytes(kind: int, channel: int, payload: bytes) -> bytes:
    return bytes([kind]) + channel.to_bytes(2, "big") + len(payload).to_bytes(4, "big") + payload + b"\xce"


def publish(
    channel: int,
    routing_key: str,
    body: bytes,
    *,
    exchange: str = "",
    mandatory: bool = False,
    frame_max: int = 131_072,
    properties: bytes = b"\0\0",
) -> bytes:
    """basic.publish with its content."""
    names = b"".join(bytes([len(name.encode())]) + name.encode() for name in (exchange, routing_key))
    method = b"\0\x3c\0\x28\0\0" + names + bytes([mandatory])
    content = b"\0\x3c\0\0" + len(body).to_bytes(8, "big") + properties
    step = frame_max - 8
    bodies = [frame_bytes(3, channel, body[at : at + step]) for at in range(0, len(body), step)]
    return b"".join([frame_bytes(1, channel, method), frame_bytes(2, channel, content), *bodies])
