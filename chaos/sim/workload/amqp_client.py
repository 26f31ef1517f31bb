"""A simulated AMQP client that works at random: it publishes, consumes, gets, commits and breaks connections.

Invariant: it takes the protocol from pamqp, not from the node's code, and relies only on the node's answers.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Unpack

import pamqp.frame
from pamqp import commands, header
from pamqp.base import Frame
from pamqp.body import ContentBody
from pamqp.common import FieldTable
from pamqp.constants import FRAME_END
from pamqp.heartbeat import Heartbeat

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from chaos.history import Call, Fields, Process
    from chaos.sim.world.client_socket import ClientSocket
    from chaos.sim.world.world import SimulatedWorld

Basic, Channel, Confirm, Connection, Exchange, Queue, Tx = (
    commands.Basic,
    commands.Channel,
    commands.Confirm,
    commands.Connection,
    commands.Exchange,
    commands.Queue,
    commands.Tx,
)

SMALL = "c3"
"""This queue refuses messages when it is full."""
QUEUES = ("c1", "c2", SMALL)
ROOM = 12
"""Maximum length of the small queue, in messages."""
TO_ALL = "to-all"
NOWHERE = "nowhere"
"""A routing key that leads to no queue."""
PUBLISHING, TRANSACTING, CONSUMING = 1, 2, (3, 4)
"""Channel numbers."""
UNCONFIRMED_MAX = 40
GETS_MAX = 4
"""basic.get requests sent in a row, before the first answer, at most."""
THINKING_MAX_S = 0.8
AWAY_MAX_S = 1.0
NOT_READING_MAX_S = 1.5
IGNORING_MAX_S = 6.0
"""Seconds; longer than a node waits for a client that does not read the connection.close."""
LARGE_BYTES = 20_000
GONE_TEXT = "lost while the node was away"
"""Text of an internal error that is legal: the node cannot deliver a message that it has taken from its queue."""


@dataclass(slots=True)
class Unconfirmed:
    """A published message without a confirm."""

    ident: str
    calls: list[Call]
    """The operations in the history, a publish for each queue of the message."""


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
    size: int = 0
    body: bytes = b""


class ClientHooks(NamedTuple):
    """Calls of a client to the workload."""

    confirmed: Callable[[str], None]
    """Called for each confirmed message."""
    failed: Callable[[str], None]
    """Called for an answer that breaks a promise."""
    connect: Callable[[AmqpClient], ClientSocket | None]
    """Connects to a node; None if no node takes the connection."""


class AmqpClient:
    """An application that lives for the whole run: it reconnects when it has lost its connection."""

    def __init__(
        self,
        name: str,
        world: SimulatedWorld,
        process: Process,
        hooks: ClientHooks,
        interval_s: float,
    ) -> None:
        self.name = name
        self._world = world
        self._random: Random = world.random(f"client {name}")
        self._gets_random: Random = world.random(f"gets of {name}")
        self._process = process
        self._hooks = hooks
        self._interval_s = interval_s
        self._socket: ClientSocket | None = None
        self._generation = 0
        """Number of the connection; callbacks of earlier connections do nothing."""
        self._stopped = self._draining = False
        self._last = 0
        """Number of the last message."""
        self._tags = count(1)
        """Numbers for consumer tags."""
        self._transactions = count(1)
        self._reset()

    def _reset(self) -> None:
        self._buffer = b""
        self._channels: dict[int, ClientChannel] = {}
        self._unconfirmed: dict[int, Unconfirmed] = {}
        self._next_publish = 1
        self._confirmed = 0
        self._returned: set[str] = set()
        self._blocked = False
        self._closing = False
        """Whether the client starts no further operations on this connection."""
        self._has_offended = False
        self._finished = False
        """Whether the client sends no further bytes on this connection."""
        self._is_ready = False
        """Whether all queues and modes are declared."""

    # Its course

    def start(self) -> None:
        self._later(self._random.uniform(0.0, 1.0), self._connect_again)
        self._act_later()

    def stop(self) -> None:
        """Start no further operations."""
        self._stopped = True

    def settle(self) -> None:
        """Settle all open deliveries of basic.get in a transaction."""
        self._draining = True
        if self._is_ready:
            self._transact()

    def drain(self) -> None:
        """Reconnect and consume everything: deliveries now come after all earlier answers."""
        if self._is_ready and not self._closing:
            self._close()

    @property
    def problem(self) -> str:
        """The answers that the client still waits for, or ""."""
        if not self._is_ready:
            return f"client {self.name} is not connected"
        if self._unconfirmed:
            return f"client {self.name} waits for {len(self._unconfirmed)} confirms"
        waiting = [number for number, channel in self._channels.items() if channel.calls]
        return f"client {self.name} waits for answers on channels {waiting}" if waiting else ""

    def _connect_again(self) -> None:
        if self._socket is None:
            self._generation += 1
            self._reset()
            self._socket = self._hooks.connect(self)
            if self._socket is None:
                self._later(self._random.uniform(0.05, AWAY_MAX_S), self._connect_again)
                return
            self._process.invoke("connect", connection=self._connection)
            self._socket.send(b"AMQP\x00\x00\x09\x01")

    def lost(self) -> None:
        """Handle the loss of the connection.

        The fate of unconfirmed messages is unknown, and unsettled deliveries return to their queues.
        """
        self._socket = None
        self._process.event("connect", "info", connection=self._connection, detail="lost")
        self._reset()
        self._later(self._random.uniform(0.0, AWAY_MAX_S), self._connect_again)

    @property
    def _connection(self) -> str:
        return f"{self.name}#{self._generation}"

    def _on(self, number: int, **more: Unpack[Fields]) -> Fields:
        """Return the fields of a history row about a channel."""
        where: Fields = {"connection": self._connection, "channel": number}
        return where | more

    def _later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self._world.after(delay_s, callback)

    def _while_connected(self, delay_s: float, callback: Callable[[], None]) -> None:
        generation = self._generation

        def still() -> None:
            if self._generation == generation and self._socket is not None and not self._finished:
                callback()

        self._later(delay_s, still)

    def _fail(self, problem: str) -> None:
        self._hooks.failed(f"client {self.name} {problem}")

    # Operations

    def _act_later(self) -> None:
        self._later(self._random.expovariate(1 / self._interval_s), self._act)

    def _act(self) -> None:
        if self._is_ready and not self._stopped and not self._closing:
            self._do_something()
        self._act_later()

    def _do_something(self) -> None:
        random = self._random
        choice = random.random()
        if choice < 0.40:
            self._publish_some()
        elif choice < 0.62:
            self._consume(random.choice(CONSUMING), random.choice(QUEUES), random.choice((1, 3, 20)))
        elif choice < 0.66:
            self._cancel()
        elif choice < 0.74:
            self._get(random.choice(QUEUES))
        elif choice < 0.86:
            self._transact()
        elif choice < 0.90:
            self._recover()
        elif choice < 0.94:
            self._close_a_channel()
        elif choice < 0.97:
            self._stop_reading()
        elif choice < 0.977:
            self._close()
        elif choice < 0.981:
            self._offend()
        elif choice < 0.985:
            self._finish()
        else:
            self._drop()

    def publish_once(self) -> None:
        """Publish some messages if the client is connected."""
        if self._is_ready:
            self._publish_some()

    def _publish(
        self, number: int, exchange: str, key: str, queues: tuple[str, ...], tx: str | None = None
    ) -> Unconfirmed:
        self._last += 1
        ident = f"{self.name}:{self._last}"
        about = self._on(number, id=ident, publisher=self.name, sequence=self._last, attempt=1, tx=tx)
        calls = [self._process.invoke("publish", **(about | {"queue": queue})) for queue in queues]
        size = LARGE_BYTES if self._random.random() < 0.02 else 0
        body = f"{ident} ".encode().ljust(size, b".")
        method = Basic.Publish(exchange=exchange, routing_key=key, mandatory=not queues)
        self._send(number, method, header.ContentHeader(0, len(body), Basic.Properties()), ContentBody(body))
        return Unconfirmed(ident, calls)

    def _place(self) -> tuple[str, str, tuple[str, ...]]:
        """Return a random exchange, a routing key, and the queues that they lead to."""
        choice = self._random.random()
        if choice < 0.1:
            return TO_ALL, "", QUEUES
        if choice < 0.2:
            return "", NOWHERE, ()
        queue = self._random.choice(QUEUES)
        return "", queue, (queue,)

    def _publish_some(self) -> None:
        channel = self._channels.get(PUBLISHING)
        if (
            channel is None
            or not channel.is_open
            or self._blocked
            or len(self._unconfirmed) > UNCONFIRMED_MAX
        ):
            return
        for _ in range(self._random.randint(1, 8)):
            self._unconfirmed[self._next_publish] = self._publish(PUBLISHING, *self._place())
            self._next_publish += 1

    def _consume(self, number: int, queue: str, prefetch: int) -> None:
        channel = self._channels.get(number)
        if channel is None or not channel.is_open or channel.calls or len(channel.consumers) >= 2:
            return
        self._begin_to_consume(channel, queue, prefetch)

    def _begin_to_consume(self, channel: ClientChannel, queue: str, prefetch: int) -> None:
        tag = f"{queue} {self.name}.{next(self._tags)}"

        def consuming(_: Any) -> None:
            channel.consumers[tag] = queue

        self._call(channel.number, Basic.Qos(prefetch_count=prefetch), Basic.QosOk)
        self._process.invoke("consume", **self._on(channel.number, queue=queue, consumer=tag))
        self._call(channel.number, Basic.Consume(queue=queue, consumer_tag=tag), Basic.ConsumeOk, consuming)

    def _cancel(self) -> None:
        for number in CONSUMING:
            channel = self._channels.get(number)
            if channel is not None and channel.consumers and not channel.calls:
                tag = self._random.choice(list(channel.consumers))
                self._call(number, Basic.Cancel(tag), Basic.CancelOk, partial(_without, channel, tag))

    def _get(self, queue: str) -> None:
        channel = self._channels.get(TRANSACTING)
        if channel is not None and channel.is_open and not channel.calls:
            for _ in range(self._gets_random.randint(1, GETS_MAX)):
                self._call(
                    TRANSACTING,
                    Basic.Get(queue=queue),
                    (Basic.GetOk, Basic.GetEmpty),
                    partial(self._got, queue),
                )

    def _got(self, queue: str, frame: Any) -> None:
        if isinstance(frame, Basic.GetOk):
            self._channels[TRANSACTING].content = (frame, queue)

    def _transact(self) -> None:
        """Publish some messages and settle some deliveries in a single transaction."""
        channel = self._channels.get(TRANSACTING)
        if channel is None or not channel.is_open or channel.calls or self._blocked:
            return
        tx = f"{self.name}/{next(self._transactions)}"
        idents: list[str] = []
        for _ in range(self._random.randint(0, 4)):
            queue = self._random.choice([queue for queue in QUEUES if queue != SMALL])
            idents.append(self._publish(TRANSACTING, "", queue, (queue,), tx).ident)
        for tag in list(channel.unacked):
            if self._draining or self._random.random() < 0.6:
                self._settle(channel, tag, "ack", Basic.Ack(tag), tx)
            else:
                self._settle(channel, tag, "nack", Basic.Reject(tag, requeue=True), tx)
        commit = self._process.invoke("tx_commit", **self._on(TRANSACTING, tx=tx))

        def committed(_: Any) -> None:
            commit.ok()
            for ident in idents:
                self._hooks.confirmed(ident)

        self._call(TRANSACTING, Tx.Commit(), Tx.CommitOk, committed)

    def _recover(self) -> None:
        number = self._random.choice(CONSUMING)
        channel = self._channels.get(number)
        if channel is not None and channel.is_open and not channel.calls:
            self._call(
                number, Basic.Recover(requeue=True), Basic.RecoverOk, lambda _: channel.unacked.clear()
            )

    def _close_a_channel(self) -> None:
        number = self._random.choice(CONSUMING)
        channel = self._channels.get(number)
        if channel is not None and channel.is_open and not channel.calls:
            channel.is_open = False
            self._call(
                number, Channel.Close(200, "", 0, 0), Channel.CloseOk, lambda _: self._open_channel(number)
            )

    def _stop_reading(self, most_s: float = NOT_READING_MAX_S) -> None:
        assert self._socket is not None
        self._socket.read(reads=False)
        socket = self._socket
        self._later(self._random.uniform(0.0, most_s), lambda: socket.read(reads=True))

    def _close(self) -> None:
        """Close the connection with the closing handshake."""
        self._call(0, Connection.Close(200, "bye", 0, 0), Connection.CloseOk, self._closed)
        self._closing = True

    def _offend(self) -> None:
        """Break the protocol, so that the node closes the connection; perhaps leave its last frames unread."""
        if self._random.random() < 0.5:
            self._stop_reading(IGNORING_MAX_S)
        self._send(0, Basic.Ack(1))
        self._closing = self._has_offended = True

    def _finish(self) -> None:
        """Close the sending direction, and keep reading until the node closes the connection."""
        assert self._socket is not None
        self._socket.finish()
        self._closing = self._finished = True

    def _drop(self) -> None:
        assert self._socket is not None
        self._socket.drop()
        self.lost()

    def _closed(self, _: Any) -> None:
        if self._socket is not None:
            self._socket.drop()
        self.lost()

    # The protocol

    def _send(self, number: int, *frames: Any) -> None:
        if self._socket is not None and not self._finished:
            self._socket.send(b"".join(pamqp.frame.marshal(frame, number) for frame in frames))

    def _call(
        self,
        number: int,
        frame: Frame,
        answer: type[Frame] | tuple[type[Frame], ...],
        done: Callable[[Any], None] = lambda _: None,
    ) -> None:
        self._channels.setdefault(number, ClientChannel(number)).calls.append((answer, done))
        self._send(number, frame)

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
                self._send(0, Connection.TuneOk(frame.channel_max, frame.frame_max, 0), Connection.Open("/"))
            case Connection.OpenOk():
                self._opened()
            case Connection.Blocked() | Connection.Unblocked():
                self._blocked = isinstance(frame, Connection.Blocked)
            case Connection.Close():
                self._closed_by_node(frame)
            case Channel.Close():
                self._channel_closed(number, frame)
            case Basic.Ack() | Basic.Nack():
                self._confirm(frame)
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
        self._send(0, Connection.StartOk(properties, "PLAIN", "\0guest\0guest", "en_US"))

    def _opened(self) -> None:
        self._open_channel(PUBLISHING)
        self._open_channel(TRANSACTING)
        for number in CONSUMING:
            self._open_channel(number)
        self._call(
            PUBLISHING,
            Exchange.Declare(exchange=TO_ALL, exchange_type="fanout", durable=True),
            Exchange.DeclareOk,
        )
        for queue in QUEUES:
            arguments: dict[str, Any] = {"x-queue-type": "quorum", "x-delivery-limit": -1}
            if queue == SMALL:
                arguments |= {"x-max-length": ROOM, "x-overflow": "reject-publish"}
            self._call(
                PUBLISHING, Queue.Declare(queue=queue, durable=True, arguments=arguments), Queue.DeclareOk
            )
            self._call(PUBLISHING, Queue.Bind(queue=queue, exchange=TO_ALL, routing_key=""), Queue.BindOk)
        self._call(TRANSACTING, Tx.Select(), Tx.SelectOk)
        self._call(PUBLISHING, Confirm.Select(), Confirm.SelectOk, lambda _: self._ready())

    def _open_channel(self, number: int) -> None:
        channel = self._channels[number] = ClientChannel(number)

        def opened(_: Any) -> None:
            channel.is_open = True
            if self._draining and number == CONSUMING[0] and self._is_ready:
                self._drain_all()

        self._call(number, Channel.Open(), Channel.OpenOk, opened)

    def _ready(self) -> None:
        self._is_ready = True
        if self._draining:
            self._drain_all()

    def _drain_all(self) -> None:
        channel = self._channels[CONSUMING[0]]
        if not channel.is_open:
            return
        for queue in QUEUES:
            self._begin_to_consume(channel, queue, prefetch=200)

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
        channel.size, channel.body = frame.body_size, b""
        if not channel.size:
            self._message_is_there(channel)

    def _add_content(self, number: int, frame: ContentBody) -> None:
        channel = self._channels[number]
        channel.body += frame.value or b""
        if len(channel.body) >= channel.size:
            self._message_is_there(channel)

    def _message_is_there(self, channel: ClientChannel) -> None:
        if channel.content is None:
            self._fail(f"gets a message without a method on channel {channel.number}")
            return
        (frame, queue), channel.content = channel.content, None
        if len(channel.body) != channel.size:
            self._fail(f"gets a message of {len(channel.body)} octets instead of {channel.size}")
        ident = channel.body.split(b" ", 1)[0].decode()
        if isinstance(frame, Basic.Return):
            self._returned.add(ident)
            return
        self._delivered(channel, frame, queue, ident)

    def _delivered(self, channel: ClientChannel, frame: Any, queue: str, ident: str) -> None:
        tag = frame.delivery_tag or 0
        if tag != channel.next_tag:
            self._fail(f"is given tag {tag} on channel {channel.number} after {channel.next_tag - 1}")
        channel.next_tag += 1
        consumer: str | None = None
        if isinstance(frame, Basic.Deliver):
            consumer = frame.consumer_tag or ""
            queue = consumer.split(" ", 1)[0]
            if consumer not in channel.consumers:
                self._fail(f"is given a message for {consumer}, which does not consume")
        arrived = self._on(
            channel.number, queue=queue, id=ident, consumer=consumer, redelivered=frame.redelivered
        )
        self._process.event("deliver", **arrived)
        channel.unacked[tag] = (queue, ident)
        if isinstance(frame, Basic.Deliver):
            delay_s = 0.0 if self._draining else self._random.uniform(0.0, THINKING_MAX_S)
            self._while_connected(delay_s, partial(self._decide, channel, tag))

    def _decide(self, channel: ClientChannel, tag: int) -> None:
        """Usually acknowledge a delivery; sometimes reject it, requeue it, or keep it for long."""
        if (
            self._channels.get(channel.number) is not channel
            or not channel.is_open
            or tag not in channel.unacked
        ):
            return
        if channel.calls:  # a pending recover or close makes the delivery tag invalid
            self._while_connected(0.05, partial(self._decide, channel, tag))
            return
        choice = 0.0 if self._draining else self._random.random()
        if choice < 0.6:
            self._settle(channel, tag, "ack", Basic.Ack(tag))
        elif choice < 0.75:
            *earlier, _ = [held for held in channel.unacked if held <= tag]
            for each in earlier:
                self._settle(channel, each, "ack")
            self._settle(channel, tag, "ack", Basic.Ack(tag, multiple=True))
        elif choice < 0.85:
            self._settle(channel, tag, "nack", Basic.Nack(tag, requeue=True))
        elif choice < 0.92:
            self._settle(channel, tag, "nack", Basic.Reject(tag, requeue=True))
        else:
            self._while_connected(self._random.uniform(0.5, 3.0), partial(self._decide, channel, tag))

    def _settle(
        self,
        channel: ClientChannel,
        tag: int,
        op: Literal["ack", "nack"],
        frame: Frame | None = None,
        tx: str | None = None,
    ) -> None:
        """Settle a delivery. Without `frame`, the frame of a later delivery settles it too (multiple)."""
        queue, ident = channel.unacked.pop(tag)
        self._process.invoke(op, **self._on(channel.number, queue=queue, id=ident, tx=tx))
        if frame is not None:
            self._send(channel.number, frame)

    # Confirms

    def _confirm(self, frame: Any) -> None:
        last = frame.delivery_tag
        first = self._confirmed + 1 if frame.multiple else last
        if first != self._confirmed + 1 or last >= self._next_publish:
            self._fail(f"is confirmed {frame} after {self._confirmed}, of {self._next_publish - 1} published")
        self._confirmed = last
        for tag in range(first, last + 1):
            published = self._unconfirmed.pop(tag)
            if isinstance(frame, Basic.Nack):
                continue
            if published.calls:
                self._hooks.confirmed(published.ident)
            elif published.ident not in self._returned:
                self._fail(f"is confirmed {published.ident}, which no queue got, before it is returned")
            for call in published.calls:
                call.ok()


def _without(channel: ClientChannel, tag: str, _: Any) -> None:
    del channel.consumers[tag]
