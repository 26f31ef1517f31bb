"""Traces of messages at real nodes, sent to a real collector."""

from __future__ import annotations

import re
import time
from collections.abc import Generator
from typing import Any
from urllib.request import urlopen

import pika
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from prometheus_client.parser import text_string_to_metric_families

from qq.testing import ClusterNode, LocalCluster
from tests.harness.stopwatch import Stopwatch
from tests.tracing.collector import Collector

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-00"


@pytest.fixture(scope="module")
def collector() -> Generator[Collector]:
    with Collector() as collector:
        yield collector


@pytest.fixture(scope="module")
def cluster(collector: Collector) -> Generator[LocalCluster]:
    tracing = {"endpoint": collector.url, "headers": ["x-key=secret"], "spans_per_s_max": 20}
    with LocalCluster(nodes=3, settings={"tracing": tracing}) as cluster:
        yield cluster


def connect(node: ClusterNode) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.URLParameters(node.url))


def traced(traceparent: Any = SAMPLED, **headers: Any) -> pika.BasicProperties:
    return pika.BasicProperties(
        headers={"traceparent": traceparent, **headers}, message_id="m1", correlation_id="c1"
    )


def counts(node: ClusterNode) -> dict[str, float]:
    """Return the counts of a node's spans by outcome."""
    with urlopen(f"http://127.0.0.1:{node.http_port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    samples = families["rabbitmq_trace_spans"].samples
    return {sample.labels["outcome"]: sample.value for sample in samples if sample.name.endswith("_total")}


def test_message_is_traced_across_nodes(cluster: LocalCluster, collector: Collector) -> None:
    first, second, _ = cluster.nodes
    with connect(first) as one, connect(second) as other:
        publishing, consuming = one.channel(), other.channel()
        publishing.confirm_delivery()
        publishing.queue_declare("way", durable=True)
        publishing.queue_bind("way", "amq.topic", "eu.#")
        publishing.basic_publish("amq.topic", "eu.berlin", b"hello", traced(tracestate="vendor=1"))
        publishing.basic_publish("amq.topic", "eu.paris", b"hello", traced(UNSAMPLED))
        publishing.basic_publish("amq.topic", "eu.rome", b"hello", traced(b"\xff"))
        publishing.basic_publish("amq.topic", "eu.oslo", b"hello")
        for method, _, _ in consuming.consume("way"):
            consuming.basic_ack(method.delivery_tag)
            if method.routing_key == "eu.oslo":
                break
        consuming.cancel()
    publish, deliver, ack = sorted(
        collector.wait(lambda spans: len(spans) == 3),
        key=lambda span: ["publish", "deliver", "ack"].index(span.name.partition(" ")[0]),
    )
    assert {span.trace for span in (publish, deliver, ack)} == {TRACE}
    assert (publish.parent, deliver.parent, ack.parent) == (PARENT, PARENT, deliver.id)
    assert (publish.node, deliver.node, ack.node) == ("n1", "n2", "n2")
    assert publish.state == deliver.state == "vendor=1"
    assert publish.name == "publish amq.topic:eu.berlin"
    assert deliver.name == "deliver amq.topic:eu.berlin:way"
    assert ack.name == "ack amq.topic:eu.berlin:way"
    kinds = Span.SPAN_KIND_SERVER, Span.SPAN_KIND_PRODUCER, Span.SPAN_KIND_SERVER
    assert (publish.kind, deliver.kind, ack.kind) == kinds
    assert (publish.events, deliver.events, ack.events) == (["commit"], [], ["commit"])
    assert all(0 < span.seconds < 5 and not span.is_error for span in (publish, deliver, ack))
    port = publish.facts.pop("client.port")
    assert isinstance(port, int)
    assert publish.facts == {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": "amq.topic:eu.berlin",
        "messaging.rabbitmq.destination.routing_key": "eu.berlin",
        "messaging.message.id": "m1",
        "messaging.message.conversation_id": "c1",
        "messaging.message.body.size": 5,
        "client.address": "127.0.0.1",
        "qq.vhost": "/",
    }
    assert deliver.facts["messaging.rabbitmq.message.delivery_tag"] == 1
    assert deliver.facts["messaging.operation.type"] == "receive"
    assert ack.facts["messaging.operation.type"] == "settle"
    assert collector.resource["service.name"] == "qq"
    assert {headers["x-key"] for headers in collector.headers} == {"secret"}


def test_spans_above_the_rate_are_dropped(cluster: LocalCluster, collector: Collector) -> None:
    node = cluster.nodes[2]
    before = counts(node)
    with connect(node) as connection:
        channel = connection.channel()
        for _ in range(60):
            channel.basic_publish("", "nowhere", b"", traced())
        channel.queue_declare("", passive=False, exclusive=True)
    deadline_s = time.monotonic() + 10
    while (dropped := counts(node)["dropped"] - before["dropped"]) == 0:  # the last answer may be given again
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    spans = collector.wait(lambda spans: len(spans) == 60 - dropped)
    assert {span.name for span in spans} == {"publish nowhere"}


def test_a_collector_that_does_not_answer_costs_its_spans(
    cluster: LocalCluster, collector: Collector
) -> None:
    node = cluster.nodes[0]
    before, log_end = counts(node), node.log.stat().st_size
    collector.status = 400
    with connect(node) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        with Stopwatch() as watch:
            channel.basic_publish("", "nowhere", b"", traced())
        assert watch.seconds < watch.slowness
        deadline_s = time.monotonic() + 10
        while counts(node)["failed"] == before["failed"]:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        collector.status = 200
        channel.basic_publish("", "nowhere", b"", traced())
    collector.wait(bool)
    while "again" not in (logged := node.log_since(log_end)):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    assert len(re.findall(r"traces cannot be sent to http://127\S+/v1/traces, and are dropped", logged)) == 1
    assert len(re.findall(r"traces are sent to \S+ again", logged)) == 1
    assert "secret" not in logged
