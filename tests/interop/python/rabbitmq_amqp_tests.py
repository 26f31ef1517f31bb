"""Conversations of RabbitMQ's Python client for AMQP 1.0 with a node; its own tests are not in its package."""

from __future__ import annotations

import json
import os
import uuid
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
from rabbitmq_amqp_python_client import (
    AddressHelper,
    AmqpMessageRejectedException,
    AMQPMessagingHandler,
    Connection,
    ConnectionClosed,
    ConsumerOptions,
    ConsumerSettleStrategy,
    Environment,
    Event,
    ExchangeSpecification,
    ExchangeToQueueBindingSpecification,
    ExchangeType,
    Management,
    Message,
    OutcomeState,
    QueueType,
    QuorumQueueSpecification,
    ValidationCodeException,
    symbol,
)
from rabbitmq_amqp_python_client.qpid.proton._utils import SendException

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

URL = f"amqp://guest:guest@127.0.0.1:{os.environ['QQ_INTEROP_PORT']}/"


class Done(Exception):
    """Raised by a handler that has got all its messages, because `run` has no other end."""


class Handler(AMQPMessagingHandler):
    """Settles a number of messages."""

    def __init__(self, count: int, settle: Callable[[Any, Event], None]) -> None:
        super().__init__(auto_accept=False, auto_settle=False)
        self._count, self._settle = count, settle
        self.messages: list[Message] = []

    def on_amqp_message(self, event: Event) -> None:
        self.messages.append(event.message)
        self._settle(self.delivery_context, event)
        if len(self.messages) == self._count:
            raise Done


@pytest.fixture
def connection() -> Generator[Connection]:
    with Environment(uri=URL) as environment:
        connection = environment.connection()
        connection.dial()
        yield connection


@pytest.fixture
def management(connection: Connection) -> Management:
    return connection.management()


@pytest.fixture
def queue(management: Management) -> Generator[str]:
    name = f"python-{uuid.uuid4()}"
    management.declare_queue(QuorumQueueSpecification(name=name))
    yield name
    management.delete_queue(name)


def accept(context: Any, event: Event) -> None:
    context.accept(event)


def consume(
    connection: Connection,
    queue: str,
    count: int,
    settle: Callable[[Any, Event], None] = accept,
    options: ConsumerOptions | None = None,
) -> list[Message]:
    handler = Handler(count, settle)
    consumer = connection.consumer(AddressHelper.queue_address(queue), handler, options)
    with pytest.raises(Done):
        consumer.run()
    consumer.close()
    return handler.messages


def publish(connection: Connection, queue: str, *bodies: bytes) -> None:
    publisher = connection.publisher(AddressHelper.queue_address(queue))
    for body in bodies:
        assert publisher.publish(Message(body=body)).remote_state == OutcomeState.ACCEPTED
    publisher.close()


def test_messages_are_consumed_in_order(connection: Connection, management: Management, queue: str) -> None:
    bodies = [str(number).encode() for number in range(200)]
    publish(connection, queue, *bodies)
    assert management.queue_info(queue).message_count == 200
    assert [bytes(message.body) for message in consume(connection, queue, 200)] == bodies
    assert management.queue_info(queue).message_count == 0


def test_topology_is_declared_and_deleted(connection: Connection, management: Management, queue: str) -> None:
    exchange = f"{queue} / events"
    management.declare_exchange(ExchangeSpecification(name=exchange, exchange_type=ExchangeType.topic))
    binding = management.bind(ExchangeToQueueBindingSpecification(exchange, queue, "a.#"))
    publisher = connection.publisher(AddressHelper.exchange_address(exchange, "a.b"))
    publisher.publish(Message(body=b"routed"))
    info = management.queue_info(queue)
    assert (info.queue_type, info.is_durable, info.is_exclusive) == (QueueType.quorum, True, False)
    assert info.leader in info.members
    assert management.purge_queue(queue) == 1
    management.unbind(binding)
    with pytest.raises(SendException):
        publisher.publish(Message(body=b"lost"))
    publisher.close()
    management.delete_exchange(exchange)
    with pytest.raises(ValidationCodeException):
        management.declare_queue(QuorumQueueSpecification(name=queue, max_len=7))


def test_outcomes_of_a_consumer(connection: Connection, management: Management) -> None:
    dead, queue = f"dead-{uuid.uuid4()}", f"python-{uuid.uuid4()}"
    management.declare_queue(QuorumQueueSpecification(name=dead))
    management.declare_queue(
        QuorumQueueSpecification(name=queue, dead_letter_exchange="", dead_letter_routing_key=dead)
    )
    publish(connection, queue, b"again")
    outcomes = [
        lambda context, event: context.requeue(event),
        lambda context, event: context.requeue_with_annotations(event, {symbol("x-opt-try"): "second"}),
        lambda context, event: context.discard_with_annotations(event, {symbol("x-opt-why"): "worn"}),
    ]

    def settle(context: Any, event: Event) -> None:
        outcomes.pop(0)(context, event)

    messages = consume(connection, queue, 3, settle)
    assert messages[2].annotations["x-opt-try"] == "second"
    [message] = consume(connection, dead, 1)
    assert message.annotations["x-opt-why"] == "worn"
    assert message.annotations["x-first-death-queue"] == queue
    management.delete_queue(queue)
    management.delete_queue(dead)


def test_consumer_gets_settled_deliveries(connection: Connection, management: Management, queue: str) -> None:
    publish(connection, queue, b"1", b"2", b"3")
    options = ConsumerOptions(ConsumerSettleStrategy.PreSettled)
    messages = consume(connection, queue, 3, lambda _context, _event: None, options)
    assert [bytes(message.body) for message in messages] == [b"1", b"2", b"3"]
    assert management.queue_info(queue).message_count == 0


def test_full_queue_rejects_a_message(connection: Connection, management: Management) -> None:
    queue = f"full-{uuid.uuid4()}"
    management.declare_queue(
        QuorumQueueSpecification(name=queue, max_len=1, overflow_behaviour="reject-publish")
    )
    publisher = connection.publisher(AddressHelper.queue_address(queue))
    outcomes = []
    for _ in range(5):
        try:
            publisher.publish(Message(body=b"more"))
        except AmqpMessageRejectedException as refused:
            outcomes.append(str(refused))
    assert outcomes
    assert all(f"queue '{queue}' exceeded maximum length" in outcome for outcome in outcomes)
    management.delete_queue(queue)


def test_connection_recovers_when_an_operator_closes_it(connection: Connection, queue: str) -> None:
    publisher = connection.publisher(AddressHelper.queue_address(queue))
    publisher.publish(Message(body=b"before"))
    for name in (each["name"] for each in http("GET", "connections") if each["user"] == "guest"):
        http("DELETE", f"connections/{quote(name)}")
    published = 0
    while not published:
        try:
            publisher.publish(Message(body=b"after"))
            published += 1
        except ConnectionClosed:
            # The client has connected again, and the application publishes again.
            continue
    assert [bytes(message.body) for message in consume(connection, queue, 2)] == [b"before", b"after"]


def http(method: str, path: str) -> Any:
    url = f"{os.environ['AMQP_HTTP_URL']}/api/{path}"
    headers = {"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="}
    with urlopen(Request(url, method=method, headers=headers), timeout=20) as answer:
        return json.loads(answer.read() or b"null")
