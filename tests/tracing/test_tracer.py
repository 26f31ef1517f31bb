"""Which messages are traced, as far as no collector is needed for it."""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pamqp.commands
import pytest

import qq.tracing.tracer
from qq.amqp10.sections import DATA, MessageProperties
from qq.amqp10.values import ULong
from qq.config import NodeConfig, Tracing
from qq.errors import StartError
from qq.node import part_settings
from qq.sessions.tracing import Address
from qq.stored.editing import make
from qq.tracing.tracer import OpenTelemetryTracer
from tests.stored.messages10 import message10

CONNECTION: Any = SimpleNamespace(peer_host="10.0.0.1", peer_port=1, vhost="/")
NOWHERE = "http://127.0.0.1:9"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331"

PUBLISHED, DELIVERED = Address("x", "k"), Address("x", "k", "q")


def message(**headers: Any) -> bytes:
    return make(pamqp.commands.Basic.Properties(headers=headers), b"x", 4096)


@pytest.fixture
def tracer() -> Generator[OpenTelemetryTracer]:
    tracer = OpenTelemetryTracer(Tracing(NOWHERE, ratio=1.0), "n1", "qq")
    tracer._processor._batch_processor._exporter.export = lambda _spans: None
    yield tracer
    tracer._processor.shutdown()


def publish(tracer: OpenTelemetryTracer, message: bytes, address: Address = PUBLISHED) -> Any:
    return tracer.publish(message, address, CONNECTION, 1)


def deliver(tracer: OpenTelemetryTracer, message: bytes, address: Address = DELIVERED) -> Any:
    return tracer.deliver("deliver", message, address, CONNECTION, 1, 1)


@pytest.mark.parametrize(
    ("flags", "is_traced"), [("01", True), ("03", True), ("0f", True), ("00", False), ("02", False)]
)
def test_sampled_flag_decides_whether_a_message_is_traced(
    tracer: OpenTelemetryTracer, flags: str, is_traced: bool
) -> None:
    sent = message(traceparent=f"{PARENT}-{flags}")
    assert (publish(tracer, sent) is not None) == is_traced
    assert (deliver(tracer, sent) is not None) == is_traced


def test_facts_of_sections_are_those_of_their_frames(tracer: OpenTelemetryTracer) -> None:
    properties = MessageProperties(ULong(5), correlation_id="c")
    sent = message10(properties=properties, named={"traceparent": f"{PARENT}-01"}, body=[(DATA, b"four")])
    facts = publish(tracer, sent)._span.attributes
    assert facts["messaging.message.id"] == "5"
    assert facts["messaging.message.conversation_id"] == "c"
    assert facts["messaging.message.body.size"] == 4
    assert deliver(tracer, sent) is not None


def test_without_a_context_publishes_are_traced_by_the_ratio(tracer: OpenTelemetryTracer) -> None:
    assert publish(tracer, message()) is not None
    assert deliver(tracer, message()) is None
    tracer._ratio = 0.0
    assert publish(tracer, message()) is None
    tracer._ratio = 0.2
    tracer._left = 10_000
    assert 100 < sum(publish(tracer, message()) is not None for _ in range(1000)) < 300


@pytest.mark.parametrize(
    ("address", "name"),
    [
        (Address("x", "k"), "x:k"),
        (Address("", "k"), "k"),
        (Address("x", ""), "x"),
        (Address("", ""), "amq.default"),
        (Address("", "q", "q"), "q"),
        (Address("x", "k", "q"), "x:k:q"),
    ],
)
def test_names_of_destinations(tracer: OpenTelemetryTracer, address: Address, name: str) -> None:
    span = publish(tracer, message(), address)._span
    assert span.name == f"publish {name}"
    assert span.attributes["messaging.destination.name"] == name


def test_spans_that_the_collector_does_not_take_are_few(
    tracer: OpenTelemetryTracer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qq.tracing.tracer, "QUEUED_MAX", 2)
    for _ in range(3):
        if (span := publish(tracer, message())) is not None:
            span.end()
            span.end()
            span.event("too late")
    assert (tracer.counts.made, tracer.counts.dropped) == (2, 1)
    tracer.counts.failed = 1
    assert publish(tracer, message()) is not None


def test_missing_tracing_library_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    config = NodeConfig("n1", Path(), (), (), tracing=Tracing(NOWHERE))
    monkeypatch.delitem(sys.modules, "qq.tracing.tracer")
    monkeypatch.setitem(sys.modules, "opentelemetry.context", None)
    with pytest.raises(
        StartError, match=r"\[tracing\] needs opentelemetry\S*: pip install 'qq-broker\[tracing\]'"
    ):
        part_settings.tracer(config)
