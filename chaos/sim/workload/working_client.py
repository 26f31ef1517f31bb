"""A simulated AMQP client that works at random: it publishes, consumes, gets, commits and breaks connections.

Invariant: each operation and each answer is a row of the history.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Literal

from pamqp import commands

from chaos.sim.workload.amqp_client import AmqpClient
from chaos.sim.workload.published import deaths_in, ident_in
from chaos.sim.workload.shared_queues import QUEUES, SINGLE_ACTIVE, SMALL, TO_ALL
from chaos.sim.workload.simulated_client import RecordedClient

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from pamqp.base import Frame

    from chaos.history import Call, Process
    from chaos.sim.workload.amqp_client import ClientChannel, Content
    from chaos.sim.workload.published import Published
    from chaos.sim.workload.shared_queues import SharedQueues
    from chaos.sim.workload.simulated_client import ConnectionHooks
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

NOWHERE = "nowhere"
"""A routing key that leads to no queue."""
PUBLISHING, TRANSACTING, CONSUMING = 1, 2, (3, 4)
"""Channel numbers."""
UNCONFIRMED_MAX = 40
GETS_MAX = 4
"""basic.get requests sent in a row, before the first answer, at most."""
THINKING_MAX_S = 0.8
IGNORING_MAX_S = 6.0
"""Seconds; longer than a node waits for a client that does not read the connection.close."""
LARGE_BYTES = 20_000


@dataclass(slots=True)
class Unconfirmed:
    """A published message without a confirm."""

    ident: str
    calls: list[Call]
    """The operations in the history, a publish for each queue of the message."""


class WorkingClient(RecordedClient, AmqpClient):
    """An application that publishes, consumes, gets and commits."""

    _unconfirmed: dict[int, Unconfirmed]

    def __init__(
        self,
        name: str,
        world: SimulatedWorld,
        process: Process,
        confirmed: Callable[[str], None],
        published: Published,
        hooks: ConnectionHooks,
        interval_s: float,
        queues: SharedQueues = QUEUES,
    ) -> None:
        """`confirmed` is called for each confirmed message."""
        self._published = published
        self._queues = queues
        self._names = queues.names
        self.has_declared = False
        """Whether the exchange and all queues exist."""
        self._gets_random: Random = world.random(f"gets of {name}")
        self._process = process
        self._check_confirmed = confirmed
        self._last = 0
        """Number of the last message."""
        self._tags = count(1)
        """Numbers for consumer tags."""
        self._transactions = count(1)
        super().__init__(name, world, hooks, interval_s)

    def _reset(self) -> None:
        super()._reset()
        self._returned: set[str] = set()

    # Its course

    def settle(self) -> None:
        """Settle all open deliveries of basic.get in a transaction."""
        self._draining = True
        if self._is_ready:
            self._transact()

    # Operations

    def _do_something(self) -> None:
        random = self._random
        choice = random.random()
        if choice < 0.40:
            self._publish_some()
        elif choice < 0.62:
            self._consume(random.choice(CONSUMING), random.choice(self._names), random.choice((1, 3, 20)))
        elif choice < 0.66:
            self._cancel()
        elif choice < 0.74:
            self._get(random.choice([name for name in self._names if name != SINGLE_ACTIVE]))
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
        self._published.add(ident, body)
        method = Basic.Publish(exchange=exchange, routing_key=key, mandatory=not queues)
        self._send_message(number, method, body)
        return Unconfirmed(ident, calls)

    def _place(self) -> tuple[str, str, tuple[str, ...]]:
        """Return a random exchange, a routing key, and the queues that they lead to."""
        choice = self._random.random()
        if choice < 0.1:
            return TO_ALL, "", self._names
        if choice < 0.2:
            return "", NOWHERE, ()
        queue = self._random.choice(self._names)
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
            channel.published += 1
            self._unconfirmed[channel.published] = self._publish(PUBLISHING, *self._place())

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
            queue = self._random.choice([queue for queue in self._names if queue != SMALL])
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
                self._check_confirmed(ident)

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
                number, Channel.Close(200, "", 0, 0), Channel.CloseOk, lambda _: self._begin_channel(number)
            )

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

    # A new connection

    def _opened(self) -> None:
        for number in (PUBLISHING, TRANSACTING, *CONSUMING):
            self._begin_channel(number)
        self._call(
            PUBLISHING,
            Exchange.Declare(exchange=TO_ALL, exchange_type="fanout", durable=True),
            Exchange.DeclareOk,
        )
        for queue, arguments in self._queues.arguments.items():
            declare = Queue.Declare(queue=queue, durable=True, arguments=dict(arguments))
            self._call(PUBLISHING, declare, Queue.DeclareOk)
            self._call(PUBLISHING, Queue.Bind(queue=queue, exchange=TO_ALL, routing_key=""), Queue.BindOk)
        self._call(TRANSACTING, Tx.Select(), Tx.SelectOk)
        self._call(PUBLISHING, Confirm.Select(), Confirm.SelectOk, lambda _: self._ready())

    def _begin_channel(self, number: int) -> None:
        def opened() -> None:
            if self._draining and number == CONSUMING[0] and self._is_ready:
                self._drain_all()

        self._open_channel(number, opened)

    def _ready(self) -> None:
        super()._ready()
        self.has_declared = True
        if self._draining:
            self._drain_all()

    def _drain_all(self) -> None:
        channel = self._channels[CONSUMING[0]]
        if not channel.is_open:
            return
        for queue in self._names:
            self._begin_to_consume(channel, queue, prefetch=200)

    # Messages

    def _arrived(self, channel: ClientChannel, content: Content) -> None:
        frame, queue, properties, body = content
        ident = ident_in(body)
        self._published.check(ident, body)
        if isinstance(frame, Basic.Return):
            self._returned.add(ident)
            return
        consumer: str | None = None
        if isinstance(frame, Basic.Deliver):
            consumer = frame.consumer_tag or ""
            queue = consumer.split(" ", 1)[0]
        deaths = deaths_in((properties.headers or {}).get("x-death"))
        if deaths is None:
            self._published.check_new(queue, ident, self._connected_s)
        arrived = self._on(
            channel.number,
            queue=queue,
            id=ident,
            consumer=consumer,
            redelivered=frame.redelivered,
            deaths=deaths,
        )
        self._process.event("deliver", **arrived)
        tag = frame.delivery_tag or 0
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

    def _confirmed(self, tag: int, *, refused: bool) -> None:
        published = self._unconfirmed.pop(tag)
        if refused:
            return
        if published.calls:
            self._check_confirmed(published.ident)
        elif published.ident not in self._returned:
            self._fail(f"is confirmed {published.ident}, which no queue got, before it is returned")
        for call in published.calls:
            call.ok()


def _without(channel: ClientChannel, tag: str, _: Any) -> None:
    del channel.consumers[tag]
