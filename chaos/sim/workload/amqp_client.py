"""The connection of a simulated AMQP client to a node, without the client's work.

Invariant: it takes the protocol from pamqp, not from the node's code, and relies only on the node's answers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import pamqp.frame
from pamqp import commands, header
from pamqp.base import Frame
from pamqp.body import ContentBody
from pamqp.common import FieldTable
from pamqp.constants import FRAME_END
from pamqp.heartbeat import Heartbeat

from chaos.sim.workload.simulated_client import GONE_TEXT, SimulatedClient

if TYPE_CHECKING:
    from collections.abc import Callable

Basic, Channel, Confirm, Connection = commands.Basic, commands.Channel, commands.Confirm, commands.Connection


@dataclass(slots=True)
class ClientChannel:
    """The client's state of an open channel."""

    number: int
    is_open: bool = False
    calls: deque[tuple[type[Frame] | tuple[type[Frame], ...], Callable[[Any], None]]] = field(
        default_factory=deque
    )
    """Pending answers, with their callbacks."""
    next_tag: int = 1
    """Delivery tag of the next delivery."""
    unacked: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Queue and message of each unsettled delivery, by delivery tag."""
    consumers: dict[str, str] = field(default_factory=dict)
    """Queue of each consumer, by consumer tag."""
    content: Any = None
    """The method whose content frames are arriving, with the queue of a get."""
    header: header.ContentHeader | None = None
    body: bytes = b""
    published: int = 0
    """Publish sequence number of the last message, in confirm mode."""
    confirmed: int = 0

    def confirms(self, frame: Any) -> range:
        """Return the sequence numbers that a confirm or a refusal answers; empty if they are not the next ones."""
        first = self.confirmed + 1 if frame.multiple else frame.delivery_tag
        if first != self.confirmed + 1 or frame.delivery_tag > self.published:
            return range(0)
        self.confirmed = frame.delivery_tag
        return range(first, frame.delivery_tag + 1)


class Content(NamedTuple):
    """A message that has arrived completely."""

    frame: Any
    """The method that brought it."""
    queue: str
    """The queue of a get; "" for a delivery or a returned message."""
    properties: commands.Basic.Properties
    body: bytes

    @property
    def ident(self) -> str:
        """The name of the message, which is the first word of its body."""
        return self.body.split(b" ", 1)[0].decode()


class AmqpClient(SimulatedClient):
    """A client of AMQP 0-9-1."""

    VERSION = "0-9-1"

    def _reset(self) -> None:
        super()._reset()
        self._buffer = b""
        self._channels: dict[int, ClientChannel] = {}
        self._blocked = False
        self._has_offended = False
        self._unconfirmed: dict[int, Any] = {}
        """Published messages without a confirm, by publish sequence number."""

    # The client's work

    @abstractmethod
    def _opened(self) -> None:
        """Set up channels and their modes on a new connection."""

    @abstractmethod
    def _confirmed(self, tag: int, *, refused: bool) -> None:
        """Take the confirm or the refusal of a message."""

    @abstractmethod
    def _arrived(self, channel: ClientChannel, content: Content) -> None:
        """Take a message."""

    # Its course

    @property
    def problem(self) -> str:
        """The answers that the client still waits for, or ""."""
        if not self._is_ready:
            return f"client {self.name} is not connected"
        if self._unconfirmed:
            return f"client {self.name} waits for {len(self._unconfirmed)} confirms"
        waiting = [number for number, channel in self._channels.items() if channel.calls]
        return f"client {self.name} waits for answers on channels {waiting}" if waiting else ""

    def _greet(self) -> None:
        assert self._socket is not None
        self._socket.send(b"AMQP\x00\x00\x09\x01")

    def _close(self) -> None:
        """Close the connection with the closing handshake."""
        self._call(0, Connection.Close(200, "bye", 0, 0), Connection.CloseOk, self._closed)
        self._closing = True

    # The protocol

    def _send(self, number: int, *frames: Any) -> None:
        if self._socket is not None and not self._finished:
            self._socket.send(b"".join(pamqp.frame.marshal(frame, number) for frame in frames))

    def _send_message(
        self,
        number: int,
        publish: commands.Basic.Publish,
        body: bytes,
        properties: commands.Basic.Properties | None = None,
    ) -> None:
        content = header.ContentHeader(0, len(body), properties or Basic.Properties())
        self._send(number, publish, content, ContentBody(body))

    def _call(
        self,
        number: int,
        frame: Frame,
        answer: type[Frame] | tuple[type[Frame], ...],
        done: Callable[[Any], None] = lambda _: None,
    ) -> None:
        self._channels.setdefault(number, ClientChannel(number)).calls.append((answer, done))
        self._send(number, frame)

    def _open_channel(self, number: int, opened: Callable[[], None] = lambda: None) -> None:
        channel = self._channels[number] = ClientChannel(number)

        def answered(_: Any) -> None:
            channel.is_open = True
            opened()

        self._call(number, Channel.Open(), Channel.OpenOk, answered)

    def received(self, data: bytes) -> None:
        self._buffer += data
        generation = self._generation
        while self._socket is not None and self._generation == generation and len(self._buffer) >= 7:
            size = 8 + int.from_bytes(self._buffer[3:7], "big")
            if len(self._buffer) < size:
                return
            frame_bytes, self._buffer = self._buffer[:size], self._buffer[size:]
            if frame_bytes[-1] != FRAME_END:
                self._fail(f"gets a frame without its end: {frame_bytes[:40]!r}")
            _, number, frame = pamqp.frame.unmarshal(frame_bytes)
            self._frame(number, frame)

    def _frame(self, number: int, frame: Any) -> None:
        match frame:
            case Connection.Start():
                self._start()
            case Connection.Tune():
                tune = Connection.TuneOk(frame.channel_max, frame.frame_max, 0)
                self._send(0, tune, Connection.Open(self._login.vhost))
            case Connection.OpenOk():
                self._opened()
            case Connection.Blocked() | Connection.Unblocked():
                self._blocked = isinstance(frame, Connection.Blocked)
            case Connection.Close():
                self._closed_by_node(frame)
            case Channel.Close():
                self._channel_closed(number, frame)
            case Basic.Ack() | Basic.Nack():
                self._confirm(self._channels[number], frame)
            case Basic.Deliver() | Basic.Return():
                self._channels[number].content = (frame, "")
            case header.ContentHeader():
                self._begin_content(number, frame)
            case ContentBody():
                self._add_content(number, frame)
            case Basic.Cancel():
                self._cancelled_by_node(number, frame)
            case Heartbeat():
                pass
            case _:
                self._answered(number, frame)

    def _start(self) -> None:
        capabilities: FieldTable = {
            "basic.nack": True,
            "consumer_cancel_notify": True,
            "connection.blocked": True,
        }
        properties: FieldTable = {"capabilities": capabilities}
        response = f"\0{self._login.user}\0{self._login.password}"
        self._send(0, Connection.StartOk(properties, "PLAIN", response, "en_US"))

    def _confirm(self, channel: ClientChannel, frame: Any) -> None:
        tags = channel.confirms(frame)
        if not tags:
            self._fail(f"is confirmed {frame} after {channel.confirmed}, of {channel.published} published")
        for tag in tags:
            self._confirmed(tag, refused=isinstance(frame, Basic.Nack))

    def _answered(self, number: int, frame: Any) -> None:
        channel = self._channels.get(number)
        if channel is None or not channel.calls:
            self._fail(f"gets {frame.name} on channel {number}, for which it did not ask")
            return
        expected, done = channel.calls.popleft()
        if not isinstance(frame, expected):
            self._fail(f"gets {frame.name} on channel {number} instead of {expected}")
        done(frame)

    def _closed_by_node(self, frame: Any) -> None:
        if frame.reply_code == 541 and GONE_TEXT not in frame.reply_text:
            self._fail(f"is told of an error of the node: {frame.reply_text}")
        is_deserved = self._has_offended and frame.reply_code == 504
        if not is_deserved and frame.reply_code not in (320, 506, 541):
            self._fail(f"has its connection closed: {frame.reply_code} {frame.reply_text}")
        self._send(0, Connection.CloseOk())
        self._closed(None)

    def _channel_closed(self, number: int, frame: Any) -> None:
        self._fail(f"has channel {number} closed: {frame.reply_code} {frame.reply_text}")

    def _cancelled_by_node(self, number: int, frame: Any) -> None:
        self._fail(f"is told that consumer {frame.consumer_tag} on channel {number} is cancelled")

    # Messages

    def _begin_content(self, number: int, frame: header.ContentHeader) -> None:
        channel = self._channels[number]
        channel.header, channel.body = frame, b""
        if not frame.body_size:
            self._message_is_there(channel)

    def _add_content(self, number: int, frame: ContentBody) -> None:
        channel = self._channels[number]
        channel.body += frame.value or b""
        if channel.header is not None and len(channel.body) >= channel.header.body_size:
            self._message_is_there(channel)

    def _message_is_there(self, channel: ClientChannel) -> None:
        if channel.content is None or channel.header is None:
            self._fail(f"gets a message without a method on channel {channel.number}")
            return
        (frame, queue), channel.content = channel.content, None
        size = channel.header.body_size
        if len(channel.body) != size:
            self._fail(f"gets a message of {len(channel.body)} octets instead of {size}")
        if not isinstance(frame, Basic.Return):
            self._count_delivery(channel, frame)
        self._arrived(channel, Content(frame, queue, channel.header.properties, channel.body))

    def _count_delivery(self, channel: ClientChannel, frame: Any) -> None:
        tag = frame.delivery_tag or 0
        if tag != channel.next_tag:
            self._fail(f"is given tag {tag} on channel {channel.number} after {channel.next_tag - 1}")
        channel.next_tag += 1
        if isinstance(frame, Basic.Deliver) and (frame.consumer_tag or "") not in channel.consumers:
            self._fail(f"is given a message for {frame.consumer_tag}, which does not consume")
