"""A client connection of a shovel to a broker: login, a single channel, heartbeats and incoming frames.

Invariant: memory is bounded. Sending waits for the socket (`drain`), and reading pauses while `may_read` is cleared.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from pamqp import commands

from qq.amqp.connection import PROTOCOL_HEADER
from qq.amqp.encoding import HEARTBEAT, encode
from qq.amqp.framing import FRAME_MAX_MIN
from qq.shovels import frames
from qq.shovels.frames import CHANNEL, ClientReader, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pamqp import base, common

    from qq.shovels.uris import BrokerUri

T = TypeVar("T")

FRAME_MAX = 128 * 1024
READ_BYTES = 64 * 1024
"""Maximum bytes read in a pass of the event loop, so that other tasks run in between."""
CLOSE_OK_S = 2.0
"""Seconds to wait for connection.close-ok."""


class Closed(Exception):
    """The connection has ended; the text is the reason."""


class ChannelClosed(Closed):
    """The broker has closed the channel with an AMQP reply code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.code = code


class Client:
    """An AMQP connection with a single channel."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        uri: BrokerUri,
        name: str,
        message_bytes_max: int,
    ) -> None:
        """`name` is the connection name that the broker's operators see.

        `message_bytes_max` is the largest message body accepted, in bytes.
        """
        self.shown = uri.shown
        """Address of the broker without user, password and query."""
        self.frame_max = FRAME_MAX
        self.knows_publishers = False
        """Whether the broker knows publishers by `x-publisher-id`, and drops messages that they publish again."""
        self.may_read = asyncio.Event()
        self.may_read.set()
        self.may_publish = asyncio.Event()
        """Cleared while the broker blocks publishers (connection.blocked)."""
        self.may_publish.set()
        self.on_event: Callable[[frames.Delivery | frames.Confirmation], None] = lambda _: None
        """Called with each delivery and confirmation."""
        self.on_read: Callable[[], None] = lambda: None
        """Called after all events of a read have been taken."""
        self._uri = uri
        self._name = name
        self._reader = reader
        self._writer = writer
        self._frames = ClientReader(message_bytes_max)
        self._ahead: deque[frames.Event] = deque()
        """Events received and not processed yet. The login takes from it before the task of `read` begins."""
        self._answers: deque[asyncio.Future[Any]] = deque()
        """Futures of pending requests on the channel; answers arrive in the order of the requests."""
        self._heartbeat_s = 0.0
        self._is_silent = False

    # Begin

    async def log_in(self) -> None:
        """Run the AMQP handshake up to connection.open-ok. Raises Closed, OSError."""
        self._write(PROTOCOL_HEADER)
        start = await self._receive(commands.Connection.Start)
        announced = start.server_properties.get("capabilities")
        self.knows_publishers = (
            isinstance(announced, dict) and announced.get("publisher_deduplication") is True
        )
        self._send(0, self._start_ok(start))
        tune = await self._receive(commands.Connection.Tune)
        self.frame_max = self._frames.frame_max = min(tune.frame_max or FRAME_MAX, FRAME_MAX)
        if self.frame_max < FRAME_MAX_MIN:
            raise Closed(
                f"it takes frames of {self.frame_max} octets, and AMQP wants {FRAME_MAX_MIN} at least"
            )
        wanted_s, offered_s = self._uri.heartbeat_s, tune.heartbeat
        self._heartbeat_s = min(wanted_s, offered_s) if offered_s else wanted_s
        self._send(0, commands.Connection.TuneOk(tune.channel_max, self.frame_max, int(self._heartbeat_s)))
        self._send(0, frames.OpenVhost(self._uri.vhost))
        await self._receive(commands.Connection.OpenOk)

    def _start_ok(self, start: commands.Connection.Start) -> commands.Connection.StartOk:
        uri = self._uri
        offered = start.mechanisms.split()
        mechanism, response = "PLAIN", f"\0{uri.user}\0{uri.password}"
        if (uri.is_external or uri.is_local) and "EXTERNAL" in offered:
            mechanism, response = "EXTERNAL", ""
        elif mechanism not in offered:
            raise Closed(f"it offers no login with {mechanism}, only with {start.mechanisms}")
        capabilities = "publisher_confirms", "basic.nack", "connection.blocked", "consumer_cancel_notify"
        properties: common.FieldTable = {
            "product": "qq shovel",
            "connection_name": self._name,
            "capabilities": dict.fromkeys((*capabilities, "authentication_failure_close"), True),
        }
        return commands.Connection.StartOk(properties, mechanism, response, "en_US")

    async def _receive(self, expected: type[T]) -> T:
        """Return the next method of the login. Raises Closed unless it has the expected type."""
        while not self._ahead:
            self._ahead.extend(self._read_events(await self._reader.read(READ_BYTES)))
        event = self._ahead.popleft()
        if isinstance(event, expected):
            return event
        self._check_close(event)
        raise Closed("it answers the login with an unexpected method")

    # While the connection is open

    async def read(self) -> None:
        """Receive and dispatch frames until the connection ends. Raises Closed."""
        while True:
            try:
                for event in self._ahead:
                    self._dispatch(event)
            finally:  # also when an event ends the connection: earlier events were dispatched
                self.on_read()
            self._ahead.clear()
            await self.may_read.wait()
            try:
                data = await self._reader.read(READ_BYTES)
            except OSError as error:
                raise Closed(error.strerror or "the connection broke") from None
            self._is_silent = False
            self._ahead.extend(self._read_events(data))
            await asyncio.sleep(0)

    def _read_events(self, data: bytes) -> list[frames.Event]:
        if not data:
            raise Closed("it has closed the connection without a reason")
        try:
            return self._frames.feed(data)
        except ProtocolError as error:
            raise Closed(str(error)) from None

    def _dispatch(self, event: frames.Event) -> None:
        match event:
            case frames.Delivery() | frames.Confirmation():
                self.on_event(event)
            case commands.Connection.Blocked():
                self.may_publish.clear()
            case commands.Connection.Unblocked():
                self.may_publish.set()
            case commands.Channel.Close():
                self._send(CHANNEL, commands.Channel.CloseOk())
                closed = ChannelClosed(event.reply_code or 0, event.reply_text)
                if not self._answers or self._answers[0].done():
                    raise closed
                self._answers.popleft().set_exception(closed)
            case frames.Unroutable(code, text):
                raise Closed(f"no queue takes a message: {code} {text}")
            case commands.Basic.Cancel():
                raise Closed("it has cancelled the consumer: its queue is gone")
            case commands.Connection.Close():
                self._check_close(event)
            case _ if self._answers:
                answer = self._answers.popleft()
                if not answer.done():
                    answer.set_result(event)
            case _:
                raise Closed("it sends an answer without a request")

    def _check_close(self, event: frames.Event) -> None:
        """Answer connection.close and raise Closed; ignore any other event."""
        if isinstance(event, commands.Connection.Close):
            self._send(0, commands.Connection.CloseOk())
            raise Closed(f"{event.reply_code} {event.reply_text}")

    async def send_heartbeats(self) -> None:
        """Send heartbeats; raise Closed after two heartbeat intervals of silence (AMQP 0-9-1 4.2.7)."""
        missed = 0
        while self._heartbeat_s:
            self._is_silent = True
            await asyncio.sleep(self._heartbeat_s / 2)
            self._write(HEARTBEAT)
            # While reading is paused, heartbeats of the broker stay unread.
            missed = missed + 1 if self._is_silent and self.may_read.is_set() else 0
            if missed >= 4:
                raise Closed("heartbeat timeout")

    # Requests and sending

    async def open_channel(self) -> None:
        await self.call(commands.Channel.Open())

    async def call(self, method: base.Frame) -> Any:
        """Send a method on the channel and return the answer. Raises Closed."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            self._send(CHANNEL, method)
        except (TypeError, ValueError, OverflowError) as error:
            raise Closed(f"{method.name.lower()} cannot be written: {error}") from None
        self._answers.append(answer)
        return await answer

    def _send(self, channel: int, method: base.Frame) -> None:
        self._write(encode(channel, method))

    def send(self, octets: list[bytes]) -> None:
        """Write frames to the socket. A caller that sends much must await `drain`. Raises Closed."""
        self._write(b"".join(octets))

    def _write(self, octets: bytes) -> None:
        if self._writer.transport.is_closing():  # uvloop raises an error on such a write
            raise Closed("the connection is lost")
        self._writer.write(octets)

    async def drain(self) -> None:
        try:
            await self._writer.drain()
        except OSError as error:
            raise Closed(error.strerror or "the connection broke") from None

    # End

    async def close(self) -> None:
        """Close the connection with connection.close, so that the broker processes everything sent before."""
        try:
            with suppress(OSError, TimeoutError, Closed):
                async with asyncio.timeout(CLOSE_OK_S):
                    self._send(0, commands.Connection.Close(200, "the shovel stops", 0, 0))
                    while not any(isinstance(event, commands.Connection.CloseOk) for event in self._ahead):
                        self._ahead.clear()
                        self._ahead.extend(self._read_events(await self._reader.read(READ_BYTES)))
        finally:  # the task may be cancelled in the block, or from CPython 3.13 on just before it
            self.abort()

    def abort(self) -> None:
        """Drop the connection without a closing handshake."""
        self._writer.transport.abort()
