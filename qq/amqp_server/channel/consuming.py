"""The consuming side of a channel: consumers, prefetch, deliveries and their settlement.

Invariant: a consumer is known from basic.consume to the answer to its cancellation, because messages may arrive until
then.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import pamqp.commands as amqp

from qq.amqp.encoding import encode
from qq.amqp.framing import Method
from qq.amqp_server.channel import transacting
from qq.amqp_server.channel.transaction import Transaction
from qq.amqp_server.methods import ACK, CONSUME, NACK, RECOVER, RECOVER_ASYNC, REJECT
from qq.amqp_server.outgoing import OutgoingConsumer
from qq.errors import ChannelError, ConnectionFault, ReplyCode
from qq.machine.catalog.reply_names import REPLY_PREFIX, REPLY_TO
from qq.machine.protocol import commands, effects
from qq.machine.protocol.commands import LIVE_UNLIMITED, SINCE
from qq.machine.protocol.refusals import the_queue
from qq.machine.protocol.work_meter import GOT_AT_ONCE
from qq.sessions.direct_replies import LoggedReplies
from qq.sessions.submissions import Urgency

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pamqp.base import Frame

    from qq.amqp.framing import Acks
    from qq.amqp_server.channel.core import ChannelCore
    from qq.amqp_server.channel.method_queue import Event
    from qq.sessions.ports import Replies

log = logging.getLogger(__name__)

PACED_WINDOW = 2000
"""Messages that may be on their way to a consumer without a prefetch limit. It gets more as they are written."""


class ConsumingMethods:
    """The consumers of a channel. It is the `SessionConsumers` of the channel's session."""

    __slots__ = (
        "_by_id",
        "_by_tag",
        "_core",
        "_logged_replies",
        "_requester",
        "prefetch",
        "prefetch_of_all",
    )

    def __init__(self, core: ChannelCore) -> None:
        self._core = core
        self._by_tag: dict[str, OutgoingConsumer] = {}
        """The consumers that neither side has cancelled, by consumer tag."""
        self._by_id: dict[int, OutgoingConsumer] = {}
        """The consumers for which messages may still arrive, by number in the log."""
        self._requester: OutgoingConsumer | None = None
        """The consumer of direct replies."""
        self._logged_replies: LoggedReplies | None = None
        """The direct replies that have come through the log; None before the first."""
        self.prefetch = core.broker.limits.default_consumer_prefetch
        """The prefetch limit of new consumers, in messages; 0 for none."""
        self.prefetch_of_all = 0
        """The prefetch limit of all consumers together, in messages; 0 for none."""

    # Settling

    def acknowledge(self, event: Acks) -> None:
        for tag, multiple in event.acks:
            self._settle(commands.Settle, tag, multiple, ACK)

    def ack(self, frame: amqp.Basic.Ack) -> None:
        self._settle(commands.Settle, frame.delivery_tag or 0, frame.multiple, ACK)

    def nack(self, frame: amqp.Basic.Nack) -> None:
        kind = commands.Return if frame.requeue else commands.Discard
        self._settle(kind, frame.delivery_tag or 0, frame.multiple, NACK)

    def reject(self, frame: amqp.Basic.Reject) -> None:
        kind = commands.Reject if frame.requeue else commands.Discard
        self._settle(kind, frame.delivery_tag or 0, False, REJECT)

    def _settle(
        self, kind: type[commands.Settlement], tag: int, multiple: bool, method: tuple[int, int]
    ) -> None:
        core = self._core
        pieces = core.outgoing.take(tag, multiple=multiple, method=method)
        if core.transaction is not None:
            core.transaction.settle(kind, pieces, method)
            return
        settle, lane = core.broker.submissions.settle, core.connection.lane
        for piece in pieces:
            consumer, first = piece.value.consumer, piece.value.first_id + piece.offset
            # A returned or rejected message must go to a different consumer, or to a dead-letter exchange.
            urgency = self._urgency(consumer) if kind is commands.Settle else Urgency.AT_ONCE
            settle(kind, consumer, first, first + piece.count - 1, lane, urgency)
            if kind is commands.Settle:
                core.broker.counters.amqp091.messages_acknowledged += piece.count
                core.counts.acknowledged += piece.count

    def _urgency(self, consumer_id: int) -> Urgency:
        """Return the urgency of this consumer's acknowledgement: whether a delivery may wait for it to be applied.

        The log's view decides, not the client's. A client that has just acknowledged all its messages holds none, but
        in the log its consumer has no credit until the acknowledgement is applied.
        """
        broker = self._core.broker
        consumer = broker.machine.consumers.get((broker.name, consumer_id))
        if consumer is None or not consumer.queue.waits_for_settlement(consumer):
            return Urgency.WITH_NEXT_REQUEST
        return Urgency.AT_ONCE if consumer.queue.delivers_when_settled(consumer) else Urgency.WITH_NEXT_ENTRY

    def recover(self, frame: amqp.Basic.Recover) -> None:
        self._recover(frame.requeue, RECOVER, amqp.Basic.RecoverOk())

    def recover_async(self, frame: amqp.Basic.RecoverAsync) -> None:
        self._recover(frame.requeue, RECOVER_ASYNC, None)

    def _recover(self, requeue: bool, method: tuple[int, int], ok: Frame | None) -> None:
        if not requeue:
            raise ConnectionFault(ReplyCode.NOT_IMPLEMENTED, "requeue=false", *method)
        core = self._core
        if core.transaction is not None and core.transaction.settles:
            self._recover_held(method, ok)
            return

        def answer(_result: effects.Recovered) -> Frame | None:
            core.outgoing.end_recovery()
            return ok

        core.outgoing.begin_recovery()
        core.request(commands.Recover(core.session), answer)

    def _recover_held(self, method: tuple[int, int], ok: Frame | None) -> None:
        """Return only the messages that the client holds. Settled messages of the open transaction are not returned."""
        core = self._core
        returns = Transaction(core.broker.limits.transaction_bytes)
        returns.settle(commands.Return, core.outgoing.take(0, multiple=True, method=method), method)
        transacting.carry_out(core, returns.take(), ok)

    # Prefetch

    def qos(self, frame: amqp.Basic.Qos) -> None:
        core = self._core
        if frame.prefetch_size:
            raise ConnectionFault(
                ReplyCode.NOT_IMPLEMENTED, f"prefetch_size!=0 ({frame.prefetch_size})", 60, 10
            )
        if frame.global_:
            self.prefetch_of_all = frame.prefetch_count
            core.request(commands.Limit(core.session, frame.prefetch_count), lambda _: amqp.Basic.QosOk())
            return
        self.prefetch = frame.prefetch_count
        live = [consumer for consumer in self._by_tag.values() if consumer.live_prefetch]
        credit = frame.prefetch_count or LIVE_UNLIMITED
        for consumer in live:
            core.broker.submissions.add(commands.SetPrefetch(consumer.id, credit), core.connection.lane)
        if live:
            # Wait, so that a client cannot cause ever more work with few octets: each basic.qos is a command per
            # consumer.
            core.methods.wait_applied(partial(core.send, amqp.Basic.QosOk()))
        else:
            core.send(amqp.Basic.QosOk())

    # Consumers

    def consume(self, frame: amqp.Basic.Consume) -> None:
        core = self._core
        broker, connection = core.broker, core.connection
        tag = frame.consumer_tag or broker.server_name("amq.ctag-")
        if tag in self._by_tag:
            raise ConnectionFault(ReplyCode.NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'", *CONSUME)
        limits = broker.limits
        if limits.consumer_max_per_channel and len(self._by_tag) >= limits.consumer_max_per_channel:
            text = f"reached maximum ({limits.consumer_max_per_channel}) of consumers per channel"
            raise ConnectionFault(ReplyCode.NOT_ALLOWED, text, *CONSUME)
        if frame.queue == REPLY_TO:
            self._consume_replies(frame, tag)
            return
        core.check_queue("read", frame.queue)
        arguments = frame.arguments or {}
        wants_live_prefetch = arguments.get("x-live-prefetch", connection.wants_live_prefetch) is True
        live_prefetch = wants_live_prefetch and not frame.no_ack
        prefetch = self.prefetch or (LIVE_UNLIMITED if live_prefetch else 0)
        paced = frame.no_ack or not prefetch
        consumer = OutgoingConsumer(
            broker.new_id(),
            tag,
            no_ack=frame.no_ack,
            paced=paced and not frame.no_ack,
            cancel_on_failover=arguments.get("x-cancel-on-ha-failover") is True,
            live_prefetch=live_prefetch,
        )
        self._by_tag[tag] = self._by_id[consumer.id] = consumer
        command = commands.Checkout(
            core.session,
            connection.id,
            core.number,
            consumer.id,
            core.queue_name(frame.queue),
            tag,
            PACED_WINDOW if paced else prefetch,
            frame.no_ack,
            frame.exclusive,
            not consumer.paced,
            consumer.cancel_on_failover,
            connection.wants_cancel_notify,
            limits.consumer_timeout_ms,
            arguments,
        )
        core.request(command, _started(consumer), nowait=frame.nowait)

    def _consume_replies(self, frame: amqp.Basic.Consume, tag: str) -> None:
        """Consume from the pseudo-queue of direct reply-to, which needs no permission."""
        core = self._core
        if not frame.no_ack:
            raise ChannelError(ReplyCode.PRECONDITION_FAILED, "reply consumer cannot acknowledge", *CONSUME)
        if self._requester is not None:
            raise ChannelError(ReplyCode.PRECONDITION_FAILED, "reply consumer already set", *CONSUME)
        consumer = OutgoingConsumer(
            core.broker.new_id(),
            tag,
            no_ack=True,
            paced=False,
            cancel_on_failover=False,
            live_prefetch=False,
        )
        name = core.broker.server_name(REPLY_PREFIX)
        self._requester, core.reply_name = consumer, name.encode()
        self._by_id[consumer.id] = consumer
        core.request(
            commands.ReplyTo(core.session, consumer.id, name), _started(consumer), nowait=frame.nowait
        )

    def cancel(self, frame: amqp.Basic.Cancel) -> None:
        core = self._core
        tag = frame.consumer_tag or ""
        if self._requester is not None and self._requester.tag == tag:
            consumer, self._requester, core.reply_name = self._requester, None, None
        else:
            consumer = self._by_tag.pop(tag, None)
        if consumer is None:  # never there, or just cancelled by the broker: both are fine
            if not frame.nowait:
                core.send(amqp.Basic.CancelOk(tag))
            return
        self._cancel(consumer, amqp.Basic.CancelOk(tag), nowait=frame.nowait)

    def _cancel(self, consumer: OutgoingConsumer, frame: Frame, *, nowait: bool) -> None:
        """Cancel a consumer. `frame` is sent after its last message."""
        core = self._core

        def answer(_result: effects.ConsumerCancelled) -> Frame:
            self._by_id.pop(consumer.id, None)
            return frame

        core.request(commands.Cancel(core.session, consumer.id), answer, nowait=nowait)

    def get(self, frame: amqp.Basic.Get) -> None:
        """Get a message, together with the identical basic.get methods that are held back behind this."""
        core = self._core
        core.check_queue("read", frame.queue)
        broker, connection = core.broker, core.connection
        at_once = GOT_AT_ONCE if broker.machine.version >= SINCE[commands.GetMessages] else 1
        count = 1 + core.methods.take_held(partial(_is_alike, frame), at_once - 1)
        if core.closed:
            return
        asked = (
            core.session,
            connection.id,
            core.number,
            broker.new_id(),
            core.queue_name(frame.queue),
            frame.no_ack,
            broker.limits.consumer_timeout_ms,
        )
        command = commands.GetMessages(*asked, count) if at_once > 1 else commands.Get(*asked)
        core.request(command, partial(self._got, count, no_ack=frame.no_ack))

    def _got(
        self, count: int, result: effects.Got | effects.GetOk | effects.GetEmpty, *, no_ack: bool
    ) -> bytes | None:
        """Deliver what `count` gets got. Return the frames for the gets that found no message."""
        core = self._core
        got = result if isinstance(result, effects.Got) else _as_got(result)
        if got.ranges:
            core.outgoing.got(got, no_ack=no_ack)
        empty = count - sum(part.count for part in got.ranges)
        if not empty:
            return None
        core.broker.counters.amqp091.get_empty += empty
        core.counts.get_empty += empty
        return encode(core.number, amqp.Basic.GetEmpty()) * empty

    # Events from the log

    @property
    def all(self) -> Sequence[OutgoingConsumer]:
        """The consumers for which messages may still arrive."""
        return list(self._by_id.values())

    def find(self, consumer_id: int) -> OutgoingConsumer | None:
        return self._by_id.get(consumer_id)

    def deliver(self, effect: effects.Deliver) -> None:
        consumer = self._by_id.get(effect.consumer)
        if consumer is not None:
            consumer.next_id = effect.first_id + sum(part.count for part in effect.ranges)
            self._core.outgoing.deliver(consumer, effect)

    def direct_reply(self, effect: effects.DirectReply) -> None:
        consumer = self._by_id.get(effect.consumer)
        if consumer is not None:
            if self._logged_replies is None:
                self._logged_replies = LoggedReplies()
            self._logged_replies.record(effect.publisher_node, effect.publisher, effect.index)
            self._core.outgoing.direct_reply(consumer.tag, effect)

    def replies(self, node: str, replies: Replies) -> None:
        """Deliver replies that came without the log, if the client still consumes replies by that name."""
        core, consumer, logged = self._core, self._by_id.get(replies.consumer), self._logged_replies
        is_in_order = logged is None or not logged.have_overtaken(node, replies)
        if consumer is not None and core.reply_name == replies.name.encode() and is_in_order:
            core.outgoing.replies(consumer.tag, replies)
        else:
            core.broker.counters.replies_dropped += len(replies.messages)

    def timed_out(self, effect: effects.DeliveryTimeout) -> None:
        """Log the timeout of an acknowledgement, before the client's channel is closed for it."""
        log.warning(
            "Consumer '%s' on channel %d and %s has timed out waiting for a consumer acknowledgement of a delivery "
            "with delivery tag = %s. Timeout used: %d ms. This timeout value can be configured, see consumers doc "
            "guide to learn more",
            effect.tag,
            self._core.number,
            the_queue(effect.queue, effect.vhost),
            self._core.outgoing.tag_of(effect.consumer, effect.message_id) or "unknown",
            effect.timeout_ms,
        )

    def cancelled(self, consumer_id: int) -> None:
        """Notify the client that its consumer is cancelled: the queue was deleted, or the consumer was too slow."""
        consumer = self._by_id.pop(consumer_id, None)
        if consumer is not None and self._by_tag.get(consumer.tag) is consumer:
            del self._by_tag[consumer.tag]
            if self._core.connection.wants_cancel_notify:
                self._core.send(_cancel_notification(consumer))

    def leader_changed(self) -> None:
        """Cancel the consumers that requested this for a change of leader (x-cancel-on-ha-failover)."""
        for consumer in [consumer for consumer in self._by_tag.values() if consumer.cancel_on_failover]:
            del self._by_tag[consumer.tag]
            nowait = not self._core.connection.wants_cancel_notify
            self._cancel(consumer, _cancel_notification(consumer), nowait=nowait)


def _started(consumer: OutgoingConsumer) -> Callable[[effects.Consuming], Frame]:
    def answer(_result: effects.Consuming) -> Frame:
        consumer.started = True
        return amqp.Basic.ConsumeOk(consumer.tag)

    return answer


def _is_alike(frame: amqp.Basic.Get, event: Event) -> bool:
    """Return whether the event is a basic.get identical to `frame`."""
    if not isinstance(event, Method) or not isinstance(event.frame, amqp.Basic.Get):
        return False
    return event.frame.queue == frame.queue and event.frame.no_ack == frame.no_ack


def _as_got(result: effects.GetOk | effects.GetEmpty) -> effects.Got:
    """Return the result of a `Get` in the form of a `GetMessages` result."""
    if isinstance(result, effects.GetEmpty):
        return effects.Got(0, [], 0, {}, count_contract=None)
    consumer, part, remaining, history, count_contract = result
    histories = {} if history is None else {part.history: history}
    return effects.Got(consumer, [part], remaining, histories, count_contract)


def _cancel_notification(consumer: OutgoingConsumer) -> Frame:
    return amqp.Basic.Cancel(consumer.tag, nowait=True)


HANDLERS: dict[str, Callable[[ConsumingMethods, Any], None]] = {
    "Basic.Qos": ConsumingMethods.qos,
    "Basic.Consume": ConsumingMethods.consume,
    "Basic.Cancel": ConsumingMethods.cancel,
    "Basic.Get": ConsumingMethods.get,
    "Basic.Ack": ConsumingMethods.ack,
    "Basic.Nack": ConsumingMethods.nack,
    "Basic.Reject": ConsumingMethods.reject,
    "Basic.Recover": ConsumingMethods.recover,
    "Basic.RecoverAsync": ConsumingMethods.recover_async,
}
