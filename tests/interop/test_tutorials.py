"""RabbitMQ's tutorials 1 to 7, as their readers write them in Python: sender and receiver on different nodes."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pika
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from qq.testing import LocalCluster

pytestmark = [pytest.mark.xdist_group("interop-celery"), pytest.mark.timeout(60)]

WAIT_S = 10.0
PERSISTENT = pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent)


@pytest.fixture
def connect(cluster: LocalCluster) -> Generator[Callable[[], pika.BlockingConnection]]:
    """Return connections to all nodes in turn."""
    opened: list[pika.BlockingConnection] = []

    def connected() -> pika.BlockingConnection:
        url = cluster.urls[len(opened) % len(cluster.urls)]
        opened.append(pika.BlockingConnection(pika.URLParameters(url)))
        return opened[-1]

    yield connected
    for connection in opened:
        connection.close()


def received(
    connection: pika.BlockingConnection, channel: Any, queue: str, count: int
) -> list[tuple[str, bytes]]:
    """Consume until so many messages have come: routing keys and bodies."""
    found: list[tuple[str, bytes]] = []

    def callback(_channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        found.append((method.routing_key, body))

    channel.basic_consume(queue=queue, on_message_callback=callback, auto_ack=True)
    take_until(connection, lambda: len(found) >= count)
    return found


def take_until(connection: pika.BlockingConnection, is_done: Callable[[], bool]) -> None:
    deadline = connection.call_later(WAIT_S, lambda: pytest.fail("nothing more came"))
    while not is_done():
        connection.process_data_events(time_limit=0.1)
    connection.remove_timeout(deadline)


def test_1_hello_world(connect: Callable[[], pika.BlockingConnection]) -> None:
    sending, receiving = connect(), connect()
    channel = sending.channel()
    channel.queue_declare(queue="hello")
    channel.basic_publish(exchange="", routing_key="hello", body="Hello World!")
    channel = receiving.channel()
    channel.queue_declare(queue="hello")
    assert received(receiving, channel, "hello", 1) == [("hello", b"Hello World!")]


def test_2_work_queues(connect: Callable[[], pika.BlockingConnection]) -> None:
    workers = [connect(), connect()]
    done: dict[int, list[bytes]] = {0: [], 1: []}

    def start(number: int) -> None:
        def callback(channel: Any, method: Any, _properties: Any, body: bytes) -> None:
            done[number].append(body)
            channel.basic_ack(delivery_tag=method.delivery_tag)

        channel = workers[number].channel()
        channel.queue_declare(queue="task_queue", durable=True)
        channel.basic_qos(prefetch_count=1)
        channel.basic_consume(queue="task_queue", on_message_callback=callback)

    start(0)
    start(1)
    channel = connect().channel()
    channel.queue_declare(queue="task_queue", durable=True)
    for number in range(10):
        channel.basic_publish("", "task_queue", f"task {number}".encode(), PERSISTENT)
    for _ in range(100):
        for worker in workers:
            worker.process_data_events(time_limit=0.05)
        if len(done[0]) + len(done[1]) == 10:
            break
    assert sorted(done[0] + done[1]) == sorted(f"task {number}".encode() for number in range(10))
    # Fair dispatch: a worker gets no further task before it has acknowledged.
    assert done[0]
    assert done[1]


def test_3_publish_subscribe(connect: Callable[[], pika.BlockingConnection]) -> None:
    subscribers = []
    for _ in range(2):
        connection = connect()
        channel = connection.channel()
        channel.exchange_declare(exchange="logs", exchange_type="fanout")
        queue = channel.queue_declare(queue="", exclusive=True).method.queue
        channel.queue_bind(exchange="logs", queue=queue)
        subscribers.append((connection, channel, queue))
    channel = connect().channel()
    channel.exchange_declare(exchange="logs", exchange_type="fanout")
    channel.basic_publish(exchange="logs", routing_key="", body="info: Hello World!")
    for subscriber in subscribers:
        assert received(*subscriber, 1) == [("", b"info: Hello World!")]


@pytest.mark.parametrize(
    ("exchange", "kind", "bindings", "expected"),
    [
        ("direct_logs", "direct", ["warning", "error"], ["error", "warning"]),
        ("topic_logs", "topic", ["kern.*", "*.critical"], ["kern.info", "cron.critical"]),
        ("topic_logs", "topic", ["#"], ["info", "error", "warning", "kern.info", "cron.critical", "a.b.c"]),
    ],
    ids=["4-routing", "5-topics", "5-topics-all"],
)
def test_routing(
    connect: Callable[[], pika.BlockingConnection],
    exchange: str,
    kind: str,
    bindings: list[str],
    expected: list[str],
) -> None:
    receiving = connect()
    channel = receiving.channel()
    channel.exchange_declare(exchange=exchange, exchange_type=kind)
    queue = channel.queue_declare(queue="", exclusive=True).method.queue
    for binding in bindings:
        channel.queue_bind(exchange=exchange, queue=queue, routing_key=binding)
    sender = connect().channel()
    sender.exchange_declare(exchange=exchange, exchange_type=kind)
    for key in ("info", "error", "warning", "kern.info", "cron.critical", "a.b.c"):
        sender.basic_publish(exchange=exchange, routing_key=key, body=f"{key}: Hello World!")
    found = received(receiving, channel, queue, len(expected))
    assert found == [(key, f"{key}: Hello World!".encode()) for key in expected]


def fibonacci(n: int) -> int:
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def test_6_remote_procedure_call(connect: Callable[[], pika.BlockingConnection]) -> None:
    serving, calling = connect(), connect()

    def on_request(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        channel.basic_publish(
            exchange="",
            routing_key=properties.reply_to,
            properties=pika.BasicProperties(correlation_id=properties.correlation_id),
            body=str(fibonacci(int(body))),
        )
        channel.basic_ack(delivery_tag=method.delivery_tag)

    server = serving.channel()
    server.queue_declare(queue="rpc_queue")
    server.basic_qos(prefetch_count=1)
    server.basic_consume(queue="rpc_queue", on_message_callback=on_request)

    replies: dict[str, int] = {}

    def on_response(_channel: Any, _method: Any, properties: Any, body: bytes) -> None:
        replies[properties.correlation_id] = int(body)

    caller = calling.channel()
    callback_queue = caller.queue_declare(queue="", exclusive=True).method.queue
    caller.basic_consume(queue=callback_queue, on_message_callback=on_response, auto_ack=True)
    calls = {str(uuid.uuid4()): number for number in (5, 12, 20)}
    for identity, number in calls.items():
        caller.basic_publish(
            exchange="",
            routing_key="rpc_queue",
            properties=pika.BasicProperties(reply_to=callback_queue, correlation_id=identity),
            body=str(number),
        )

    def is_answered() -> bool:
        serving.process_data_events(time_limit=0)
        return len(replies) == len(calls)

    take_until(calling, is_answered)
    assert replies == {identity: fibonacci(number) for identity, number in calls.items()}


def test_7_publisher_confirms(connect: Callable[[], pika.BlockingConnection]) -> None:
    connection = connect()
    channel = connection.channel()
    queue = channel.queue_declare(queue="", exclusive=True).method.queue
    channel.confirm_delivery()
    for number in range(50):
        # Raises if the message is returned or refused.
        channel.basic_publish("", queue, str(number).encode(), PERSISTENT, mandatory=True)
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("", "no-such-queue", b"", mandatory=True)
    assert channel.queue_declare(queue=queue, passive=True).method.message_count == 50


def test_7_publisher_confirms_that_are_handled_asynchronously(cluster: LocalCluster) -> None:
    outstanding: dict[int, bytes] = {}
    confirmed: list[bytes] = []
    count = 1000

    def on_confirm(frame: Any) -> None:
        assert isinstance(frame.method, pika.spec.Basic.Ack)
        tag = frame.method.delivery_tag
        tags = [other for other in outstanding if other <= tag] if frame.method.multiple else [tag]
        confirmed.extend(outstanding.pop(other) for other in tags)
        if len(confirmed) == count:
            connection.close()

    def on_channel(channel: Any) -> None:
        channel.confirm_delivery(on_confirm)
        channel.queue_declare("confirmed", durable=True, callback=lambda _: publish(channel))

    def publish(channel: Any) -> None:
        for number in range(count):
            outstanding[number + 1] = str(number).encode()
            channel.basic_publish("", "confirmed", outstanding[number + 1], PERSISTENT)

    connection = pika.SelectConnection(
        pika.URLParameters(cluster.urls[0]),
        on_open_callback=lambda opened: opened.channel(on_open_callback=on_channel),
        on_close_callback=lambda closed, _: closed.ioloop.stop(),
    )
    connection.ioloop.start()
    connection.ioloop.close()
    assert not outstanding
    assert sorted(confirmed) == sorted(str(number).encode() for number in range(count))
