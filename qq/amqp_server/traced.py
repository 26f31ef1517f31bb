"""Channels that trace messages: publishes, deliveries and settlements become spans.

A publish span lasts from the read of the publish until its batch is applied. A delivery span lasts from the moment when
the log gives the message to the consumer until the message is written. A settlement span lasts until its batch is
applied. Spans of a transaction that is rolled back end with the rollback.

Invariant: tracing is in subclasses, chosen when a node starts, so it costs nothing per message if it is off. It never
changes a client's view. Its memory is bounded: by the limit of a connection's requests, and by DELIVERED_MAX.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from itertools import islice
from time import time_ns
from typing import TYPE_CHECKING, NamedTuple

from qq.amqp_server.channel.channel import Channel, ChannelParts
from qq.amqp_server.channel.consuming import ConsumingMethods
from qq.amqp_server.channel.publishing import PublishingMethods
from qq.amqp_server.methods import ACK, NACK, REJECT
from qq.amqp_server.outgoing import Outgoing
from qq.sessions.headers import published_to
from qq.sessions.tracing import Address

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from qq.amqp.framing import Method
    from qq.amqp_server.channel.core import ChannelCore
    from qq.amqp_server.outgoing import OutgoingConsumer, _Got, _Item
    from qq.amqp_server.ports import Carrier
    from qq.machine.protocol import commands
    from qq.machine.protocol.death_history import History
    from qq.machine.protocol.effects import CountContract, Deliver
    from qq.ranges import Range
    from qq.sessions.broker import Broker
    from qq.sessions.entries import Messages
    from qq.sessions.session_info import SessionCounts
    from qq.sessions.tracing import MessageTracer, TraceSpan
    from qq.stored.properties import Attributes

DELIVERED_MAX = 10_000
"""Traced deliveries that are remembered for each channel. Settlements of further messages are not traced."""
_OPERATIONS = {ACK: "ack", NACK: "nack", REJECT: "reject"}
COMMITTED = "commit"
"""The event of a span when its request is on the disks of a majority, and applied here."""
UNKNOWN, REFUSED, ROLLED_BACK = "outcome_unknown", "refused", "rolled_back"
"""Kinds of errors with which a span ends uncommitted."""


class _Shown(NamedTuple):
    """Messages that are being written, with the exchange and routing key shown to the consumer."""

    exchange: str
    routing_key: str
    messages: Sequence[bytes]


class ChannelSpans:
    """The open spans of a channel: steps that wait for the log, and deliveries that the client may settle."""

    def __init__(self, broker: Broker, connection: Carrier) -> None:
        self._submissions = broker.submissions
        self._connection = connection
        self._transaction: list[TraceSpan] = []
        """Spans that wait for tx.commit."""
        self._delivered: dict[int, TraceSpan] = {}
        """Traced deliveries that the client holds, by delivery tag, in the order of the tags."""
        self._uncommitted: dict[int, TraceSpan] = {}
        """Traced deliveries that were settled since the last tx.commit, by delivery tag."""

    # Deliveries

    def hold(self, spans: Mapping[int, TraceSpan]) -> None:
        """Remember traced deliveries by delivery tag, as far as there is room. They are the newest deliveries."""
        room = max(0, DELIVERED_MAX - len(self._delivered))
        self._delivered.update(islice(spans.items(), room))

    def take(self, tag: int, *, multiple: bool) -> dict[int, TraceSpan]:
        """Remove the traced deliveries that an acknowledgement covers, and return them by delivery tag."""
        delivered = self._delivered
        if not multiple:
            return {tag: delivered.pop(tag)} if tag in delivered else {}
        taken: dict[int, TraceSpan] = {}
        while delivered and ((first := next(iter(delivered))) <= tag or not tag):
            taken[first] = delivered.pop(first)
        return taken

    def recovered(self) -> None:
        """Forget all deliveries, because the messages have returned to their queues."""
        self._delivered.clear()

    # The log

    def settled(self, delivered: Mapping[int, TraceSpan], spans: list[TraceSpan], core: ChannelCore) -> None:
        """End the spans of settlements of these deliveries when they are committed."""
        if core.transaction is not None:
            self._uncommitted |= delivered
        self.wait(spans, core, is_urgent=False)

    def wait(self, spans: list[TraceSpan], core: ChannelCore, *, is_urgent: bool = True) -> None:
        """End the spans when all of the channel's requests so far are committed and applied."""
        if core.transaction is not None:
            self._transaction += spans
        elif spans:
            self._end_when_applied(spans, core, is_urgent=is_urgent)

    def committed(self, core: ChannelCore) -> None:
        """React to tx.commit: the spans of the transaction end when it is applied."""
        spans, self._transaction = self._transaction, []
        self._uncommitted.clear()
        if spans:
            self._end_when_applied(spans, core, is_urgent=True)

    def rolled_back(self) -> None:
        """End the spans of a transaction that is rolled back. The client holds its settled messages again."""
        spans, self._transaction = self._transaction, []
        if self._uncommitted:
            self._delivered = dict(sorted((self._delivered | self._uncommitted).items()))
            self._uncommitted.clear()
        for span in spans:
            span.end(ROLLED_BACK)

    def _end_when_applied(self, spans: list[TraceSpan], core: ChannelCore, *, is_urgent: bool) -> None:
        submissions = self._submissions
        unseen_before = submissions.times_unseen

        def applied() -> None:
            # After a refusal by the log, it is unknown which of the channel's later requests were carried out.
            is_known = submissions.times_unseen == unseen_before and not core.has_failed
            for span in spans:
                if is_known:
                    span.event(COMMITTED)
                span.end("" if is_known else UNKNOWN)

        submissions.read_barrier(applied, self._connection.lane, is_urgent=is_urgent)


class TracedPublishing(PublishingMethods):
    """The publisher of a channel that traces messages."""

    __slots__ = ("_spans", "_tracer", "_unconfirmed_spans")

    def __init__(self, tracer: MessageTracer, spans: ChannelSpans, core: ChannelCore) -> None:
        super().__init__(core)
        self._tracer = tracer
        self._spans = spans
        self._unconfirmed_spans: dict[int, TraceSpan] = {}
        """The spans of messages that wait for their confirm, by publish sequence number."""

    def _publish_alike(self, method: bytes, attributes: Attributes | None, messages: list[bytes]) -> None:
        began_ns, core = time_ns(), self._core
        super()._publish_alike(method, attributes, messages)
        exchange, routing_key, _ = core.connection.publish_fields(method)
        address, publish = Address(exchange, routing_key), self._tracer.publish
        spans = {
            number: span
            for number, message in enumerate(messages, self.published - len(messages) + 1)
            if (span := publish(message, address, core.connection, began_ns)) is not None
        }
        if core.confirming:
            self._unconfirmed_spans |= spans
        self._spans.wait(list(spans.values()), core)

    def confirm(self, published: int) -> None:
        super().confirm(published)
        waiting = self._unconfirmed_spans
        while waiting and (first := next(iter(waiting))) <= published:
            del waiting[first]

    def refuse(self, first: int, last: int, queue: str = "") -> None:
        super().refuse(first, last, queue)
        self._end_spans(first, last, REFUSED)

    def refuse_unconfirmed(self, published: int) -> None:
        self._end_spans(1, published, UNKNOWN)
        super().refuse_unconfirmed(published)

    def _end_spans(self, first: int, last: int, error: str) -> None:
        for number in [number for number in self._unconfirmed_spans if first <= number <= last]:
            self._unconfirmed_spans.pop(number).end(error)


class TracedOutgoing(Outgoing):
    """The output of a channel that traces messages."""

    def __init__(
        self,
        tracer: MessageTracer,
        spans: ChannelSpans,
        broker: Broker,
        connection: Carrier,
        number: int,
        counts: SessionCounts,
    ) -> None:
        super().__init__(broker, connection, number, counts)
        self._tracer = tracer
        self._spans = spans
        self._given: dict[int, deque[tuple[int, int]]] = {}
        """Times at which the log gave messages to consumers, while messages wait to be written.

        By consumer: the first message id, and the time in nanoseconds since 1970, of each delivery by the log."""
        self._shown: list[_Shown] = []
        """The messages that are being written."""

    def deliver(self, consumer: OutgoingConsumer, effect: Deliver) -> None:
        if not self._waiting:
            self._given.clear()
        self._given.setdefault(consumer.id, deque()).append((effect.first_id, time_ns()))
        super().deliver(consumer, effect)

    def end_recovery(self) -> None:
        self._spans.recovered()
        super().end_recovery()

    def _write(self, item: _Item) -> bool:
        self._shown.clear()
        return super()._write(item)

    def _framed(
        self, stored: Messages, part: Range, history: History | None, count_contract: CountContract | None
    ) -> Sequence[bytes]:
        self._shown.append(_Shown(*published_to(stored, history), stored.messages))
        return super()._framed(stored, part, history, count_contract)

    def _count_written(
        self, consumer: OutgoingConsumer, first_id: int, count: int, *, redelivered: bool
    ) -> None:
        first_tag = self._next_tag
        super()._count_written(consumer, first_id, count, redelivered=redelivered)
        began_ns = self._given_ns(consumer.id, first_id)
        self._trace("deliver", consumer.id, first_tag, began_ns, holds=not consumer.no_ack)

    def _write_got(self, item: _Got) -> bool:
        tag, began_ns = self._next_tag, time_ns()
        is_written = super()._write_got(item)
        if self._next_tag > tag:
            self._trace("get", item.consumer, tag, began_ns, holds=not item.no_ack)
        return is_written

    def _given_ns(self, consumer: int, message_id: int) -> int:
        """Return the time, in nanoseconds since 1970, at which the log gave a message to its consumer."""
        given = self._given[consumer]  # a message is given before it can be written
        while len(given) > 1 and given[1][0] <= message_id:
            given.popleft()
        return given[0][1]

    def _trace(self, operation: str, consumer: int, tag: int, began_ns: int, *, holds: bool) -> None:
        """Make the spans of the messages that were just written. Their delivery tags begin with `tag`."""
        broker, connection = self._broker, self._connection
        spans: dict[int, TraceSpan] = {}
        known = broker.machine.consumers.get((broker.name, consumer))
        queue = "" if known is None else known.queue.name
        for exchange, routing_key, messages in self._shown:
            address = Address(exchange, routing_key, queue)
            for number, message in enumerate(messages, tag):
                span = self._tracer.deliver(operation, message, address, connection, number, began_ns)
                if span is not None:
                    span.end()
                    spans[number] = span
            tag += len(messages)
        self._shown.clear()
        if holds:
            self._spans.hold(spans)


class TracedConsuming(ConsumingMethods):
    """The consumers of a channel that traces messages."""

    __slots__ = ("_spans",)

    def __init__(self, spans: ChannelSpans, core: ChannelCore) -> None:
        super().__init__(core)
        self._spans = spans

    def _settle(
        self, kind: type[commands.Settlement], tag: int, multiple: bool, method: tuple[int, int]
    ) -> None:
        began_ns = time_ns()
        delivered = self._spans.take(tag, multiple=multiple)
        super()._settle(kind, tag, multiple, method)
        if delivered:
            operation = _OPERATIONS[method]
            spans = [span.settle(operation, began_ns) for span in delivered.values()]
            self._spans.settled(delivered, [span for span in spans if span is not None], self._core)


class TracedChannel(Channel):
    """A channel that traces messages."""

    __slots__ = ("_spans",)

    def __init__(self, tracer: MessageTracer, broker: Broker, connection: Carrier, number: int) -> None:
        self._spans = spans = ChannelSpans(broker, connection)
        parts = ChannelParts(
            partial(TracedOutgoing, tracer, spans),
            partial(TracedPublishing, tracer, spans),
            partial(TracedConsuming, spans),
        )
        super().__init__(broker, connection, number, parts)

    def _method(self, event: Method) -> None:
        super()._method(event)
        match event.frame.name:
            case "Tx.Commit":
                self._spans.committed(self.core)
            case "Tx.Rollback":
                self._spans.rolled_back()
            case _:
                pass

    def end(self) -> None:
        super().end()
        self._spans.rolled_back()
