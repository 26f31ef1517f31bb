"""One AMQP channel: methods in, commands out; effects in, frames out.

Lives here: what a client's method means for the log, delivery tags, confirms, the order of what leaves the channel.
Not here: bytes (qq/amqp), batching (submissions.py), what a command does (qq/machine).

Two laws. A method that needs an answer from the log holds back the channel's later methods until it has it, as if the
channel's methods were carried out one by one. What leaves the channel leaves in order: frames queue behind deliveries
that the socket cannot take yet.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import pamqp.commands as amqp
from pamqp.base import Frame

from qq.amqp.connection import ChannelCloseRequested
from qq.amqp.encoding import confirm_frame, deliveries, encode, get_ok, reframe, returned
from qq.amqp.framing import Acks, ChannelFault, Method, Publishes
from qq.broker.submissions import OpenEnqueue
from qq.errors import AmqpError, ChannelError, ConnectionFault, Reply, amqp_error
from qq.machine import commands, effects
from qq.ranges import Range, RangeMap

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qq.broker.broker import Broker
    from qq.broker.entries import Messages
    from qq.broker.listener import ClientConnection

PACED_WINDOW = 2000
"""Messages on their way to a consumer that has no prefetch limit; more are asked for as the socket takes them."""

HELD_EVENTS_MAX = 1000
"""Events held back while an earlier method waits for the log; above it the node stops reading from the connection."""


class Consumer:
    """A consumer of this channel, as the shell knows it."""

    __slots__ = ("cancel_on_failover", "id", "no_ack", "paced", "queue", "tag")

    def __init__(
        self, consumer: int, tag: str, queue: str, *, no_ack: bool, paced: bool, cancel_on_failover: bool
    ) -> None:
        self.id = consumer
        self.tag = tag
        self.queue = queue
        self.no_ack = no_ack
        self.paced = paced
        self.cancel_on_failover = cancel_on_failover


class _Delivery(NamedTuple):
    """Messages checked out to a consumer and not yet written; `first_id` is the first message id of `ranges`."""

    consumer: Consumer
    first_id: int
    ranges: deque[Range]


class _Tagged(NamedTuple):
    """What consecutive delivery tags stand for: consecutive message ids of a consumer."""

    consumer: int
    first_id: int


class _GetDelivery(NamedTuple):
    consumer: int
    part: Range
    remaining: int
    no_ack: bool


class _ReturnDelivery(NamedTuple):
    effect: effects.Returned


Event = Publishes | Acks | Method | ChannelFault | ChannelCloseRequested
_Outgoing = bytes | _Delivery | _GetDelivery | _ReturnDelivery


class Channel:
    """An open channel. `session` names it in the log: unlike its number it is never used again."""

    def __init__(self, broker: Broker, connection: ClientConnection, number: int) -> None:
        self.broker = broker
        self.connection = connection
        self.number = number
        self.session = broker.new_id()
        self.confirming = False
        self.published = 0
        """Publish sequence number of the last message, in confirm mode."""
        self._confirmed = 0
        self.consumers: dict[str, Consumer] = {}
        self._consumers_by_id: dict[int, Consumer] = {}
        self._prefetch = 0
        self._next_tag = 1
        self._unacked: RangeMap[_Tagged] = RangeMap()
        self._run: OpenEnqueue | None = None
        self._run_method = b""
        self._answer: Callable[[Any], None] | None = None
        self._held: deque[Event] = deque()
        self._outgoing: deque[_Outgoing] = deque()
        self._loading = False
        self.closed = False

    # Events from the client

    def receive(self, event: Event) -> None:
        """Carry out an event, or hold it back while an earlier method waits for its answer."""
        if self._answer is not None:
            self._held.append(event)
            if len(self._held) == HELD_EVENTS_MAX:
                self.connection.pause_for(self)
            return
        self._carry_out(event)

    def _carry_out(self, event: Event) -> None:
        try:
            match event:
                case Publishes():
                    self._publish(event)
                case Acks():
                    for tag, multiple in event.acks:
                        self._settle(commands.Settle, tag, multiple, (60, 80))
                case Method():
                    self._method(event.frame)
                case ChannelFault():
                    self.fail(event.error)
                case ChannelCloseRequested():
                    self.end()
                    self.connection.channel_closed(self)
        except ConnectionFault as error:
            self.connection.fail(error)
        except ChannelError as error:
            self.fail(error)

    def _release_held(self) -> None:
        while self._held and self._answer is None and not self.closed:
            self._carry_out(self._held.popleft())
        if len(self._held) < HELD_EVENTS_MAX:
            self.connection.resume_for(self)

    def _publish(self, event: Publishes) -> None:
        run = self._run
        is_new = run is None or event.method != self._run_method or not self.broker.submissions.holds(run)
        if run is None or is_new:
            exchange, routing_key, mandatory = self.connection.publish_fields(event.method)
            first_sequence = self.published + 1 if self.confirming else 0
            run = self._run = OpenEnqueue(self, first_sequence, exchange, routing_key, mandatory)
            self._run_method = event.method
        counters = self.broker.counters
        counters.messages_received += len(event.messages)
        if self.confirming:
            self.published += len(event.messages)
            counters.messages_received_confirm += len(event.messages)
        self.broker.submissions.publish(run, event.messages, is_new=is_new)

    def _settle(
        self,
        kind: type[commands.Settle | commands.Return | commands.Discard],
        tag: int,
        multiple: bool,
        method: tuple[int, int],
    ) -> None:
        """AMQP 0-9-1 1.8.3.13: multiple with tag 0 means all outstanding."""
        if multiple:
            if tag >= self._next_tag or (tag and not self._unacked):
                raise ChannelError(Reply.PRECONDITION_FAILED, f"unknown delivery tag {tag}", *method)
            pieces = self._unacked.take_all() if tag == 0 else self._unacked.take_through(tag)
        else:
            pieces = self._unacked.take(tag, tag)
            if not pieces:
                raise ChannelError(Reply.PRECONDITION_FAILED, f"unknown delivery tag {tag}", *method)
        settle = self.broker.submissions.settle
        for piece in pieces:
            first = piece.value.first_id + piece.offset
            settle(kind, piece.value.consumer, first, first + piece.count - 1)
            if kind is commands.Settle:
                self.broker.counters.messages_acknowledged += piece.count

    def _method(self, frame: Frame) -> None:
        handler = _HANDLERS.get(frame.name)
        if handler is None:
            raise ConnectionFault(
                Reply.NOT_IMPLEMENTED,
                f"method {frame.name} is not implemented",
                frame.frame_id >> 16,
                frame.frame_id & 0xFFFF,
            )
        self._run = None
        handler(self, frame)

    # Methods answered here

    def _on_flow(self, frame: amqp.Channel.Flow) -> None:
        if not frame.active:
            raise ConnectionFault(Reply.NOT_IMPLEMENTED, "active=false", 20, 20)
        self.send(amqp.Channel.FlowOk(active=True))

    def _on_confirm_select(self, frame: amqp.Confirm.Select) -> None:
        self.confirming = True
        if not frame.nowait:
            self.send(amqp.Confirm.SelectOk())

    def _on_qos(self, frame: amqp.Basic.Qos) -> None:
        if frame.prefetch_size:
            raise ConnectionFault(Reply.NOT_IMPLEMENTED, f"prefetch_size!=0 ({frame.prefetch_size})", 60, 10)
        self._prefetch = frame.prefetch_count
        self.send(amqp.Basic.QosOk())

    def _on_ack(self, frame: amqp.Basic.Ack) -> None:
        self._settle(commands.Settle, frame.delivery_tag or 0, frame.multiple, (60, 80))

    def _on_nack(self, frame: amqp.Basic.Nack) -> None:
        kind = commands.Return if frame.requeue else commands.Discard
        self._settle(kind, frame.delivery_tag or 0, frame.multiple, (60, 120))

    def _on_reject(self, frame: amqp.Basic.Reject) -> None:
        kind = commands.Return if frame.requeue else commands.Discard
        self._settle(kind, frame.delivery_tag or 0, False, (60, 90))

    # Methods answered by the log

    def _ask(
        self, command: commands.Command, answer: Callable[[Any], Frame | None], *, nowait: bool = False
    ) -> None:
        """Submit a command; its result becomes the answering frame, unless the client wants none."""

        def answered(result: Any) -> None:
            frame = answer(result)
            if frame is not None and not nowait:
                self.send(frame)

        self._answer = answered
        self.broker.submissions.add(command)

    def _on_exchange_declare(self, frame: amqp.Exchange.Declare) -> None:
        command = commands.DeclareExchange(
            self.session,
            frame.exchange,
            frame.exchange_type,
            frame.passive,
            frame.durable,
            frame.auto_delete,
            frame.internal,
            frame.arguments or {},
        )
        self._ask(command, lambda _: amqp.Exchange.DeclareOk(), nowait=frame.nowait)

    def _on_exchange_delete(self, frame: amqp.Exchange.Delete) -> None:
        command = commands.DeleteExchange(self.session, frame.exchange, frame.if_unused)
        self._ask(command, lambda _: amqp.Exchange.DeleteOk(), nowait=frame.nowait)

    def _on_exchange_bind(self, frame: amqp.Exchange.Bind) -> None:
        command = commands.BindExchange(
            self.session, frame.destination, frame.source, frame.routing_key, frame.arguments or {}
        )
        self._ask(command, lambda _: amqp.Exchange.BindOk(), nowait=frame.nowait)

    def _on_exchange_unbind(self, frame: amqp.Exchange.Unbind) -> None:
        command = commands.UnbindExchange(
            self.session, frame.destination, frame.source, frame.routing_key, frame.arguments or {}
        )
        self._ask(command, lambda _: amqp.Exchange.UnbindOk(), nowait=frame.nowait)

    def _on_queue_declare(self, frame: amqp.Queue.Declare) -> None:
        arguments = frame.arguments or {}
        command = commands.DeclareQueue(
            self.session,
            self.connection.id,
            frame.queue,
            frame.passive,
            frame.durable,
            frame.exclusive,
            frame.auto_delete,
            arguments,
        )

        def answer(result: effects.QueueDeclared) -> Frame:
            return amqp.Queue.DeclareOk(result.name, result.messages, result.consumers)

        self._ask(command, answer, nowait=frame.nowait)

    def _on_queue_bind(self, frame: amqp.Queue.Bind) -> None:
        command = commands.BindQueue(
            self.session,
            self.connection.id,
            frame.queue,
            frame.exchange,
            frame.routing_key,
            frame.arguments or {},
        )
        self._ask(command, lambda _: amqp.Queue.BindOk(), nowait=frame.nowait)

    def _on_queue_unbind(self, frame: amqp.Queue.Unbind) -> None:
        command = commands.UnbindQueue(
            self.session,
            self.connection.id,
            frame.queue,
            frame.exchange,
            frame.routing_key,
            frame.arguments or {},
        )
        self._ask(command, lambda _: amqp.Queue.UnbindOk())

    def _on_queue_purge(self, frame: amqp.Queue.Purge) -> None:
        command = commands.PurgeQueue(self.session, self.connection.id, frame.queue)
        self._ask(command, lambda result: amqp.Queue.PurgeOk(result.messages), nowait=frame.nowait)

    def _on_queue_delete(self, frame: amqp.Queue.Delete) -> None:
        command = commands.DeleteQueue(
            self.session, self.connection.id, frame.queue, frame.if_unused, frame.if_empty
        )
        self._ask(command, lambda result: amqp.Queue.DeleteOk(result.messages), nowait=frame.nowait)

    def _on_consume(self, frame: amqp.Basic.Consume) -> None:
        tag = frame.consumer_tag or self.broker.server_name("amq.ctag-")
        if tag in self.consumers:
            raise ConnectionFault(Reply.NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'", 60, 20)
        paced = frame.no_ack or self._prefetch == 0
        arguments = frame.arguments or {}
        consumer = Consumer(
            self.broker.new_id(),
            tag,
            frame.queue,
            no_ack=frame.no_ack,
            paced=paced and not frame.no_ack,
            cancel_on_failover=arguments.get("x-cancel-on-ha-failover") is True,
        )
        self.consumers[tag] = self._consumers_by_id[consumer.id] = consumer
        command = commands.Checkout(
            self.session,
            self.connection.id,
            consumer.id,
            frame.queue,
            tag,
            PACED_WINDOW if paced else self._prefetch,
            frame.no_ack,
            frame.exclusive,
            not consumer.paced,
            consumer.cancel_on_failover,
            arguments,
        )
        self._ask(command, lambda _: amqp.Basic.ConsumeOk(tag), nowait=frame.nowait)

    def _on_cancel(self, frame: amqp.Basic.Cancel) -> None:
        tag = frame.consumer_tag or ""
        consumer = self.consumers.pop(tag, None)
        if consumer is None:  # never there, or cancelled by the broker a moment ago: both are fine
            if not frame.nowait:
                self.send(amqp.Basic.CancelOk(tag))
            return
        command = commands.Cancel(self.session, consumer.id)
        self._ask(command, lambda _: amqp.Basic.CancelOk(tag), nowait=frame.nowait)

    def _on_get(self, frame: amqp.Basic.Get) -> None:
        command = commands.Get(
            self.session, self.connection.id, self.broker.new_id(), frame.queue, frame.no_ack
        )

        def answer(result: effects.GetOk | effects.GetEmpty) -> Frame | None:
            if isinstance(result, effects.GetEmpty):
                self.broker.counters.get_empty += 1
                return amqp.Basic.GetEmpty()
            self._queue_out(_GetDelivery(result.consumer, result.range, result.remaining, frame.no_ack))
            return None

        self._ask(command, answer)

    def _on_recover(self, frame: amqp.Basic.Recover) -> None:
        self._recover(frame.requeue, (60, 110), amqp.Basic.RecoverOk())

    def _on_recover_async(self, frame: amqp.Basic.RecoverAsync) -> None:
        self._recover(frame.requeue, (60, 100), None)

    def _recover(self, requeue: bool, method: tuple[int, int], ok: Frame | None) -> None:
        if not requeue:
            raise ConnectionFault(Reply.NOT_IMPLEMENTED, "requeue=false", *method)

        def answer(_result: effects.Recovered) -> Frame | None:
            self._unacked.take_all()
            self._outgoing = deque(item for item in self._outgoing if not isinstance(item, _Delivery))
            return ok

        self._ask(commands.Recover(self.session), answer)

    # Effects from the log

    def replied(self, result: Any) -> None:
        """The log's answer to the method that this channel waits on."""
        answer, self._answer = self._answer, None
        if answer is not None:
            answer(result)
            self._release_held()

    def failed(self, effect: effects.Failed) -> None:
        error = amqp_error(effect.code, effect.text, effect.class_id, effect.method_id)
        if isinstance(error, ConnectionFault):
            self.connection.fail(error)
        else:
            self.fail(error)

    def deliver(self, effect: effects.Deliver) -> None:
        consumer = self._consumers_by_id.get(effect.consumer)
        if consumer is not None:
            self._queue_out(_Delivery(consumer, effect.first_id, deque(effect.ranges)))

    def unroutable(self, effect: effects.Returned) -> None:
        self._queue_out(_ReturnDelivery(effect))

    def confirm(self, published: int) -> None:
        """Everything up to publish sequence number `published` is safe."""
        if not self.closed:
            self.broker.counters.messages_confirmed += published - self._confirmed
            self._confirmed = published
            self._queue_out(confirm_frame(self.number, published, True))

    def consumer_gone(self, consumer_id: int) -> None:
        """Consumer cancel notification: the queue was deleted."""
        consumer = self._consumers_by_id.pop(consumer_id, None)
        if consumer is not None and self.consumers.pop(consumer.tag, None) is not None:
            self._notify_cancel(consumer)

    def leader_changed(self) -> None:
        """Cancel the consumers that asked for it on a change of leader (x-cancel-on-ha-failover)."""
        for consumer in [consumer for consumer in self.consumers.values() if consumer.cancel_on_failover]:
            del self.consumers[consumer.tag]
            self.broker.submissions.add(commands.Cancel(self.session, consumer.id))
            self._notify_cancel(consumer)

    def _notify_cancel(self, consumer: Consumer) -> None:
        if self.connection.wants_cancel_notify:
            self.send(amqp.Basic.Cancel(consumer.tag, nowait=True))

    # Out

    def send(self, frame: Frame) -> None:
        self._queue_out(encode(self.number, frame))

    def _queue_out(self, item: _Outgoing) -> None:
        if not self._outgoing and isinstance(item, bytes):
            self.connection.write([item])
            return
        self._outgoing.append(item)
        self.pump()

    def pump(self) -> None:
        """Write what waits, as far as the socket takes it and the messages are in memory."""
        while self._outgoing and not self._loading and not self.closed:
            if not self.connection.has_room:
                self.connection.pump_later(self)
                return
            item = self._outgoing[0]
            if isinstance(item, bytes):
                self.connection.write([item])
            elif not self._write(item):
                return
            self._outgoing.popleft()

    def _write(self, item: _Delivery | _GetDelivery | _ReturnDelivery) -> bool:
        """Write a delivery; False if its messages must be read first, or the socket is full half-way."""
        match item:
            case _Delivery():
                return self._write_delivery(item)
            case _GetDelivery():
                return self._write_get(item)
            case _ReturnDelivery():
                return self._write_return(item.effect)

    def _write_delivery(self, delivery: _Delivery) -> bool:
        consumer, message_id, ranges = delivery
        while ranges:
            part = ranges[0]
            stored = self._stored(part, ranges)
            if stored is None:
                self._outgoing[0] = _Delivery(consumer, message_id, ranges)
                return False
            out: list[bytes] = []
            deliveries(
                self.number,
                consumer.tag,
                self._next_tag,
                part.deliveries > 0,
                stored.exchange,
                stored.routing_key,
                self._framed(stored),
                out,
            )
            self.connection.write(out)
            self._count_written(consumer, message_id, part.count, redelivered=part.deliveries > 0)
            message_id += part.count
            ranges.popleft()
            if ranges and not self.connection.has_room:
                self._outgoing[0] = _Delivery(consumer, message_id, ranges)
                self.connection.pump_later(self)
                return False
        return True

    def _count_written(self, consumer: Consumer, first_id: int, count: int, *, redelivered: bool) -> None:
        submissions, counters = self.broker.submissions, self.broker.counters
        if redelivered:
            counters.messages_redelivered += count
        if consumer.no_ack:
            counters.messages_delivered_auto_ack += count
            submissions.settle(commands.Settle, consumer.id, first_id, first_id + count - 1)
        else:
            counters.messages_delivered_manual_ack += count
            self._unacked.append(self._next_tag, count, _Tagged(consumer.id, first_id))
            if consumer.paced:
                submissions.credit(consumer.id, count)
        self._next_tag += count

    def _write_get(self, item: _GetDelivery) -> bool:
        stored = self._stored(item.part, (item.part,))
        if stored is None:
            return False
        tag = self._next_tag
        [message] = self._framed(stored)
        redelivered = item.part.deliveries > 0
        frame = get_ok(
            self.number, tag, redelivered, stored.exchange, stored.routing_key, item.remaining, message
        )
        self.connection.write([frame])
        counters = self.broker.counters
        counters.messages_redelivered += redelivered
        if item.no_ack:
            counters.messages_got_auto_ack += 1
        else:
            counters.messages_got_manual_ack += 1
            self._unacked.append(tag, 1, _Tagged(item.consumer, 0))
        self._next_tag += 1
        return True

    def _write_return(self, effect: effects.Returned) -> bool:
        part = Range(effect.index, effect.first_slot, effect.count, 0)
        stored = self._stored(part, (part,))
        if stored is None:
            return False
        self.broker.counters.messages_unroutable_returned += effect.count
        for message in self._framed(stored):
            self.connection.write(
                [
                    returned(
                        self.number, effect.code, effect.text, effect.exchange, effect.routing_key, message
                    )
                ]
            )
        return True

    def _stored(self, part: Range, ahead: Sequence[Range]) -> Messages | None:
        """The messages of `part`; None while they are being read, with those of `ahead` behind them."""
        entries = self.broker.entries
        stored = entries.messages(part)
        if stored is None:
            self._loading = True
            indexes = dict.fromkeys(following.index for following, _ in zip(ahead, range(64), strict=False))
            entries.load(list(indexes), self._loaded)
        return stored

    def _loaded(self) -> None:
        self._loading = False
        self.pump()

    def _framed(self, stored: Messages) -> list[bytes]:
        """The frames as this channel must send them: usually as they came."""
        messages = stored.messages
        frame_max = self.connection.frame_max
        if stored.frames_channel == self.number and max(map(len, messages)) <= frame_max:
            return messages
        return [reframe(message, self.number, frame_max) for message in messages]

    # Ends

    def fail(self, error: AmqpError) -> None:
        """Close the channel with an error."""
        if not self.closed:
            self.end()
            self.connection.fail_channel(self, error)

    def end(self) -> None:
        """The channel is no more: what it holds goes back to the queues."""
        if not self.closed:
            self.closed = True
            self._held.clear()
            self._outgoing.clear()
            self.connection.resume_for(self)
            self.broker.session_ended(self)


_HANDLERS: dict[str, Callable[[Channel, Any], None]] = {
    "Channel.Flow": Channel._on_flow,
    "Confirm.Select": Channel._on_confirm_select,
    "Exchange.Declare": Channel._on_exchange_declare,
    "Exchange.Delete": Channel._on_exchange_delete,
    "Exchange.Bind": Channel._on_exchange_bind,
    "Exchange.Unbind": Channel._on_exchange_unbind,
    "Queue.Declare": Channel._on_queue_declare,
    "Queue.Bind": Channel._on_queue_bind,
    "Queue.Unbind": Channel._on_queue_unbind,
    "Queue.Purge": Channel._on_queue_purge,
    "Queue.Delete": Channel._on_queue_delete,
    "Basic.Qos": Channel._on_qos,
    "Basic.Consume": Channel._on_consume,
    "Basic.Cancel": Channel._on_cancel,
    "Basic.Get": Channel._on_get,
    "Basic.Ack": Channel._on_ack,
    "Basic.Nack": Channel._on_nack,
    "Basic.Reject": Channel._on_reject,
    "Basic.Recover": Channel._on_recover,
    "Basic.RecoverAsync": Channel._on_recover_async,
}
