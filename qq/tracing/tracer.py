"""Decides which messages are traced, and makes their spans.

A message whose headers bring a trace context is traced if the context is sampled. Then its publish, its deliveries and
their settlements are spans of that trace, on all nodes. Of the messages without a context, a configured share begins a
trace with the publish. Such a trace gets no later spans, because a node never changes a message to add a context.

Names are those of OpenTelemetry's semantic conventions for messaging and for RabbitMQ
(https://opentelemetry.io/docs/specs/semconv/messaging/rabbitmq/).

Invariant: a message that is not traced costs a look into its headers. Spans are made at a bounded rate.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import qq
from qq.metrics.counters import SpanCounts
from qq.octets import readable
from qq.stored import layout
from qq.stored.kinds import has_sections
from qq.stored.to_frames import to_frames
from qq.stored.trace_context import trace_context
from qq.tracing.exporting import BATCH_MAX, DELAY_MS, QUEUED_MAX, CountingExporter

if TYPE_CHECKING:
    from opentelemetry.trace import Span
    from opentelemetry.util.types import AttributeValue

    from qq.config import Tracing
    from qq.sessions.ports import Connection
    from qq.sessions.tracing import Address
    from qq.stored.trace_context import TraceContext

STOP_S = 2.0
"""Seconds that a stopping node waits for the collector to accept the last spans."""
LOOK_S = 0.02
DESTINATION = "messaging.destination.name"
DEFAULT_EXCHANGE = "amq.default"
"""Destination of a span in the conventions when exchange, routing key and queue are all empty."""
_TYPES = {"publish": "send", "deliver": "receive", "get": "receive"}
_KINDS = {"deliver": SpanKind.PRODUCER}
"""Span kinds by operation. The other operations are requests that a client waits for, so their kind is SERVER."""
_NAMES = (
    (layout.MESSAGE_ID, "messaging.message.id"),
    (layout.CORRELATION_ID, "messaging.message.conversation_id"),
)


class OpenSpan:
    """A span that ends once, even if `end` is called again. Implements `TraceSpan`."""

    __slots__ = ("_facts", "_span", "_tracer")

    def __init__(self, span: Span, facts: dict[str, AttributeValue], tracer: OpenTelemetryTracer) -> None:
        """`facts` are the attributes that spans of settling the same message share."""
        self._span = span
        self._facts = facts
        self._tracer = tracer

    def event(self, name: str) -> None:
        if self._span.is_recording():
            self._span.add_event(name)

    def end(self, error: str = "") -> None:
        if not self._span.is_recording():
            return
        if error:
            self._span.set_attribute("error.type", error)
            self._span.set_status(StatusCode.ERROR)
        self._span.end()
        self._tracer.counts.made += 1

    def settle(self, operation: str, began_ns: int) -> OpenSpan | None:
        return self._tracer.settle(operation, self._span, self._facts, began_ns)


class OpenTelemetryTracer:
    """Makes the spans of a node. Implements `MessageTracer`."""

    def __init__(self, config: Tracing, node: str, cluster: str) -> None:
        self.counts = SpanCounts()
        self._ratio = config.ratio
        self._spans_per_s_max = config.spans_per_s_max
        self._second_ends_s = 0.0
        self._left = 0
        """Spans that may still be made in the current second."""
        resource = {
            "service.name": config.service_name,
            "service.namespace": cluster,
            "service.instance.id": node,
            "service.version": qq.__version__,
        }
        # Sampling is decided before a span is made, because every message would cost as much as a span otherwise.
        provider = TracerProvider(ALWAYS_ON, Resource.create(resource), shutdown_on_exit=False)
        self._processor = BatchSpanProcessor(
            CountingExporter(config, self.counts),
            max_queue_size=QUEUED_MAX,
            schedule_delay_millis=DELAY_MS,
            max_export_batch_size=BATCH_MAX,
        )
        provider.add_span_processor(self._processor)
        self._tracer = provider.get_tracer("qq", qq.__version__)
        self._propagator = TraceContextTextMapPropagator()

    # The steps

    def publish(
        self, message: bytes, address: Address, connection: Connection, began_ns: int
    ) -> OpenSpan | None:
        sent = trace_context(message)
        wanted = random.random() < self._ratio if sent is None else sent.is_sampled  # noqa: S311
        if not wanted or not self._may_make():
            return None
        return self._of_message("publish", message, sent, _facts(address, connection), began_ns)

    def deliver(
        self,
        operation: str,
        message: bytes,
        address: Address,
        connection: Connection,
        tag: int,
        began_ns: int,
    ) -> OpenSpan | None:
        sent = trace_context(message)
        if sent is None or not sent.is_sampled or not self._may_make():
            return None
        facts = _facts(address, connection)
        facts["messaging.rabbitmq.message.delivery_tag"] = tag
        return self._of_message(operation, message, sent, facts, began_ns)

    def settle(
        self, operation: str, delivered: Span, facts: dict[str, AttributeValue], began_ns: int
    ) -> OpenSpan | None:
        if not self._may_make():
            return None
        return self._begin(operation, set_span_in_context(delivered), facts, {}, began_ns)

    def _of_message(
        self,
        operation: str,
        message: bytes,
        sent: TraceContext | None,
        facts: dict[str, AttributeValue],
        began_ns: int,
    ) -> OpenSpan:
        context = Context()
        if sent is not None:
            carrier = {"traceparent": sent.traceparent, "tracestate": sent.tracestate}
            context = self._propagator.extract(carrier, context)
        return self._begin(operation, context, facts, _message_facts(message), began_ns)

    def _begin(
        self,
        operation: str,
        context: Context,
        facts: dict[str, AttributeValue],
        more: dict[str, AttributeValue],
        began_ns: int,
    ) -> OpenSpan:
        attributes = facts | more
        attributes["messaging.operation.name"] = operation
        attributes["messaging.operation.type"] = _TYPES.get(operation, "settle")
        name, kind = f"{operation} {facts[DESTINATION]}", _KINDS.get(operation, SpanKind.SERVER)
        span = self._tracer.start_span(name, context, kind, attributes, start_time=began_ns)
        return OpenSpan(span, facts, self)

    def _may_make(self) -> bool:
        """Return whether another span may be made now, and count a dropped span if not."""
        now_s, counts = monotonic(), self.counts
        if now_s >= self._second_ends_s:
            self._second_ends_s, self._left = now_s + 1, self._spans_per_s_max
        if not self._left or counts.made - counts.exported - counts.failed >= QUEUED_MAX:
            counts.dropped += 1
            return False
        self._left -= 1
        return True

    # The end

    async def close(self) -> None:
        """Send the remaining spans, for at most STOP_S seconds."""
        stopping = Thread(target=self._processor.shutdown, daemon=True)  # waits for the exporter's thread
        stopping.start()
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                while stopping.is_alive():  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_S)


def _facts(address: Address, connection: Connection) -> dict[str, AttributeValue]:
    """Return the attributes that spans of all operations have, by the conventions for RabbitMQ."""
    exchange, routing_key, queue = map(readable, address)
    names = (exchange, routing_key, queue if queue != routing_key else "")
    facts: dict[str, AttributeValue] = {
        "messaging.system": "rabbitmq",
        DESTINATION: ":".join(filter(None, names)) or DEFAULT_EXCHANGE,
        "client.address": connection.peer_host,
        "client.port": connection.peer_port,
        "qq.vhost": connection.vhost,
    }
    if routing_key:
        facts["messaging.rabbitmq.destination.routing_key"] = routing_key
    return facts


def _message_facts(message: bytes) -> dict[str, AttributeValue]:
    if has_sections(message):
        [message] = to_frames([message], 1, layout.FRAME_MAX)
    found: dict[str, AttributeValue] = {"messaging.message.body.size": layout.body_size(message)}
    for flag, name in _NAMES:
        if layout.flags(message) & flag:
            text = layout.short_string(message, layout.place(message, flag))
            found[name] = text.decode("utf-8", "replace")
    return found
