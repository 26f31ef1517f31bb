"""When the steps of a traced message begin and end: seen by a tracer that writes them down."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import nullcontext
from functools import partial
from threading import Thread
from typing import Any

import pika
import pytest

from qq.amqp_server import traced
from qq.amqp_server.traced import TracedChannel
from qq.stored.trace_context import trace_context
from tests.harness.lone_broker import LoneBroker, wait_until

TRACED = pika.BasicProperties(
    headers={"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
)


class Written:
    """A step, as it was told."""

    def __init__(self, steps: list[Written], operation: str, address: Any, began_ns: int) -> None:
        self.text = operation
        self.address = tuple(address)
        self.began_ns = began_ns
        self.ended_ns = 0
        self._steps = steps
        steps.append(self)

    def event(self, name: str) -> None:
        if not self.ended_ns:
            self.text += f" {name}"

    def end(self, error: str = "") -> None:
        if not self.ended_ns:
            self.ended_ns = time.time_ns()
            self.text += f" {error}" if error else "."

    def settle(self, operation: str, began_ns: int) -> Written:
        return Written(self._steps, operation, self.address, began_ns)


class WritingTracer:
    """Traces the messages that bring a trace context."""

    def __init__(self) -> None:
        self.steps: list[Written] = []

    def publish(self, message: bytes, address: Any, connection: Any, began_ns: int) -> Written | None:
        assert connection.peer_host == "127.0.0.1"
        return Written(self.steps, "publish", address, began_ns) if trace_context(message) else None

    def deliver(
        self, operation: str, message: bytes, address: Any, _connection: Any, tag: int, began_ns: int
    ) -> Written | None:
        if not trace_context(message):
            return None
        return Written(self.steps, f"{operation} {tag}", address, began_ns)

    def taken(self, count: int) -> list[str]:
        """Return the texts of these steps, once all have ended, and forget them."""
        deadline_s = time.monotonic() + 5
        while len(self.steps) < count or not all(step.ended_ns for step in self.steps):
            assert time.monotonic() < deadline_s, [step.text for step in self.steps]
            time.sleep(0.005)
        taken, self.steps[:] = list(self.steps), []
        assert all(step.began_ns <= step.ended_ns for step in taken)
        return [step.text for step in taken]


@pytest.fixture
def tracer() -> WritingTracer:
    return WritingTracer()


@pytest.fixture
def broker(tracer: WritingTracer) -> Generator[LoneBroker]:
    with LoneBroker(make_channel=partial(TracedChannel, tracer)) as broker:
        yield broker


@pytest.fixture
def channel(broker: LoneBroker) -> Generator[Any]:
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port)) as connection:
        channel = connection.channel()
        channel.queue_declare("q")
        yield channel


def until(is_so: Callable[[], bool], channel: Any) -> None:
    deadline_s = time.monotonic() + 5
    while not is_so():
        assert time.monotonic() < deadline_s
        channel.connection.process_data_events(0.1)


def consumed(channel: Any, count: int, **options: Any) -> list[int]:
    """The delivery tags of so many messages that a consumer was given."""
    tags: list[int] = []
    channel.basic_consume("q", lambda _channel, method, *_: tags.append(method.delivery_tag), **options)
    until(lambda: len(tags) == count, channel)
    return tags


def test_a_message_is_published_delivered_and_settled(channel: Any, tracer: WritingTracer) -> None:
    channel.confirm_delivery()
    for properties in (TRACED, None, TRACED):
        channel.basic_publish("", "q", b"x", properties)
    assert tracer.taken(2) == ["publish commit."] * 2
    tags = consumed(channel, 3)
    assert [step.address for step in tracer.steps] == [("", "q", "q")] * 2
    assert tracer.taken(2) == ["deliver 1.", "deliver 3."]
    channel.basic_ack(tags[1])
    channel.basic_nack(tags[0], requeue=False)
    channel.basic_reject(tags[2], requeue=False)
    assert tracer.taken(2) == ["nack commit.", "reject commit."]


def test_several_messages_settled_at_once_end_their_steps(channel: Any, tracer: WritingTracer) -> None:
    for _ in range(4):
        channel.basic_publish("", "q", b"x", TRACED)
    tags = consumed(channel, 4)
    tracer.taken(8)
    channel.basic_ack(tags[1], multiple=True)
    assert tracer.taken(2) == ["ack commit."] * 2
    channel.basic_ack(0, multiple=True)
    assert tracer.taken(2) == ["ack commit."] * 2


def test_auto_ack_and_get_have_their_own_steps(channel: Any, tracer: WritingTracer) -> None:
    for _ in range(3):
        channel.basic_publish("", "q", b"x", TRACED)
    method, _, _ = channel.basic_get("q")
    channel.basic_get("q", auto_ack=True)
    assert sorted(tracer.taken(5)) == ["get 1.", "get 2.", *["publish commit."] * 3]
    channel.basic_ack(method.delivery_tag)
    assert tracer.taken(1) == ["ack commit."]
    consumed(channel, 1, auto_ack=True)
    assert tracer.taken(1) == ["deliver 3."]


def test_a_message_that_its_queue_refuses(channel: Any, tracer: WritingTracer) -> None:
    channel.queue_declare("full", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.confirm_delivery()
    channel.basic_publish("", "full", b"x", TRACED)
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish("", "full", b"x", TRACED)
    assert tracer.taken(2) == ["publish commit.", "publish refused"]


def test_a_transaction_ends_its_steps(channel: Any, tracer: WritingTracer) -> None:
    channel.basic_publish("", "q", b"x", TRACED)
    [tag] = consumed(channel, 1)
    tracer.taken(2)
    channel.tx_select()
    channel.basic_publish("", "elsewhere", b"x", TRACED)
    channel.basic_ack(tag)
    channel.queue_declare("q", passive=True)  # earlier requests have been read
    assert [step.text for step in tracer.steps] == ["publish", "ack"]
    channel.basic_publish("", "q", b"x", TRACED)
    channel.tx_rollback()
    assert tracer.taken(3) == ["publish rolled_back", "ack rolled_back", "publish rolled_back"]
    channel.basic_ack(tag, multiple=True)
    channel.tx_commit()
    assert tracer.taken(1) == ["ack commit."]
    channel.basic_publish("", "elsewhere", b"x", TRACED)
    channel.close()
    assert tracer.taken(1) == ["publish rolled_back"]


def test_recovered_message_starts_a_new_delivery_step(channel: Any, tracer: WritingTracer) -> None:
    channel.basic_publish("", "q", b"x", TRACED)
    tags: list[int] = []
    channel.basic_consume("q", lambda _channel, method, *_: tags.append(method.delivery_tag))
    until(lambda: len(tags) == 1, channel)
    channel.basic_recover(requeue=True)
    until(lambda: len(tags) == 2, channel)
    channel.basic_ack(tags[1])
    assert tracer.taken(4) == ["publish commit.", "deliver 1.", "deliver 2.", "ack commit."]


def test_publish_on_a_failed_channel_has_an_unknown_outcome(channel: Any, tracer: WritingTracer) -> None:
    channel.basic_publish("nowhere", "q", b"x", TRACED)
    assert tracer.taken(1) == ["publish outcome_unknown"]


def test_publish_of_an_evicted_node_has_an_unknown_outcome(
    broker: LoneBroker, channel: Any, tracer: WritingTracer
) -> None:
    def resume_once_published() -> None:
        wait_until(lambda: bool(tracer.steps) and broker.group.last_index > before, "the batch")
        broker.resume()

    for confirms in (False, True):
        if confirms:
            channel.confirm_delivery()
        before = broker.group.last_index
        broker.skip()
        resuming = Thread(target=resume_once_published)
        resuming.start()
        with pytest.raises(pika.exceptions.NackError) if confirms else nullcontext():
            channel.basic_publish("", "q", b"x", TRACED)
        resuming.join()
        assert tracer.taken(1) == ["publish outcome_unknown"]


def test_traced_deliveries_are_bounded(
    channel: Any, tracer: WritingTracer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traced, "DELIVERED_MAX", 1)
    for _ in range(2):
        channel.basic_publish("", "q", b"x", TRACED)
    consumed(channel, 2)
    tracer.taken(4)
    channel.basic_ack(0, multiple=True)
    assert tracer.taken(1) == ["ack commit."]
