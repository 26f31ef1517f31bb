"""RabbitMQ's tutorials 1 to 6 over AMQP 1.0, with rabbitmq-amqp-python-client.

    python tutorials.py [URL...]      the address of each node; by default the first two nodes of `qq up`

Senders and receivers are connected to different nodes.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import cycle

from rabbitmq_amqp_python_client import (
    AddressHelper,
    AMQPMessagingHandler,
    Connection,
    Converter,
    Environment,
    Event,
    ExchangeSpecification,
    ExchangeToQueueBindingSpecification,
    ExchangeType,
    Message,
    QuorumQueueSpecification,
)

urls = cycle(sys.argv[1:] or ["amqp://guest:guest@127.0.0.1:5672/", "amqp://guest:guest@127.0.0.1:5673/"])


@contextmanager
def connected() -> Generator[Connection]:
    """Connect to the next node."""
    with Environment(uri=next(urls)) as environment:
        connection = environment.connection()
        connection.dial()
        yield connection


class _Done(Exception):
    """Ends `Consumer.run`, which otherwise runs for ever."""


class Handler(AMQPMessagingHandler):
    """Accepts a number of messages after some work."""

    def __init__(self, count: int, work: Callable[[Message], None]) -> None:
        super().__init__(auto_accept=False, auto_settle=False)
        self._left, self._work = count, work

    def on_amqp_message(self, event: Event) -> None:
        self._work(event.message)
        self.delivery_context.accept(event)
        self._left -= 1
        if not self._left:
            raise _Done


def consume(connection: Connection, queue: str, count: int, work: Callable[[Message], None]) -> None:
    """Consume so many messages."""
    consumer = connection.consumer(AddressHelper.queue_address(queue), Handler(count, work))
    try:
        consumer.run()
    except _Done:
        consumer.close()


def received(connection: Connection, queue: str, count: int) -> list[str]:
    """Return the next messages of a queue as texts."""
    texts: list[str] = []
    consume(connection, queue, count, lambda message: texts.append(text_of(message)))
    return texts


def publish(connection: Connection, address: str, *texts: str) -> None:
    """Publish messages, and wait until each is accepted."""
    publisher = connection.publisher(address)
    for text in texts:
        publisher.publish(Message(body=Converter.string_to_bytes(text)))  # an exception if it is not accepted
    publisher.close()


def text_of(message: Message) -> str:
    return bytes(message.body).decode()


def declare(connection: Connection, queue: str) -> None:
    management = connection.management()
    management.declare_queue(QuorumQueueSpecification(name=queue))
    management.purge_queue(queue)


def subscribe(connection: Connection, exchange: str, kind: ExchangeType, *keys: str) -> str:
    """Bind a new queue to an exchange, and return its name."""
    queue = f"{exchange}-{uuid.uuid4()}"
    management = connection.management()
    management.declare_exchange(ExchangeSpecification(name=exchange, exchange_type=kind))
    management.declare_queue(QuorumQueueSpecification(name=queue))
    for key in keys or [""]:
        management.bind(ExchangeToQueueBindingSpecification(exchange, queue, key))
    return queue


def hello_world() -> str:
    with connected() as sending, connected() as receiving:
        declare(sending, "hello10")
        publish(sending, AddressHelper.queue_address("hello10"), "Hello World!")
        return received(receiving, "hello10", 1)[0]


def work_queues() -> str:
    def worker(_number: int) -> list[str]:
        with connected() as connection:
            return received(connection, "task_queue10", 5)

    with connected() as sending:
        declare(sending, "task_queue10")
        tasks = [f"task {number}" for number in range(10)]
        publish(sending, AddressHelper.queue_address("task_queue10"), *tasks)
        with ThreadPoolExecutor(2) as threads:
            done = [task for tasks_of_one in threads.map(worker, range(2)) for task in tasks_of_one]
        assert sorted(done) == sorted(tasks)
        return f"{len(done)} tasks done by 2 workers"


def publish_subscribe() -> str:
    with connected() as sending, connected() as first, connected() as second:
        queues = {each: subscribe(each, "logs10", ExchangeType.fanout) for each in (first, second)}
        publish(sending, AddressHelper.exchange_address("logs10"), "info: Hello World!")
        found = [received(connection, queue, 1) for connection, queue in queues.items()]
        for connection, queue in queues.items():
            connection.management().delete_queue(queue)
        return " | ".join(text for texts in found for text in texts)


def routed(exchange: str, kind: ExchangeType, keys: list[str], expected: int) -> str:
    """Return the routing keys that reach a queue, of those that are published."""
    with connected() as sending, connected() as receiving:
        queue = subscribe(receiving, exchange, kind, *keys)
        everything = subscribe(
            receiving, exchange, kind, "info", "error", "warning", "kern.info", "cron.critical"
        )
        for key in ("info", "error", "warning", "kern.info", "cron.critical"):
            publish(sending, AddressHelper.exchange_address(exchange, key), key)
        found = received(receiving, queue, expected)
        for each in (queue, everything):
            receiving.management().delete_queue(each)
        return ", ".join(found)


def fibonacci(n: int) -> int:
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def remote_procedure_call() -> str:
    def serve() -> None:
        with connected() as connection:

            def answer(request: Message) -> None:
                reply = Message(
                    body=str(fibonacci(int(text_of(request)))).encode(), correlation_id=request.correlation_id
                )
                publisher = connection.publisher(request.reply_to)
                publisher.publish(reply)
                publisher.close()

            consume(connection, "rpc_queue10", 1, answer)

    with connected() as calling, ThreadPoolExecutor(1) as threads:
        declare(calling, "rpc_queue10")
        replies = f"replies-{uuid.uuid4()}"
        declare(calling, replies)
        serving = threads.submit(serve)
        request = Message(body=b"10", correlation_id="1", reply_to=AddressHelper.queue_address(replies))
        publisher = calling.publisher(AddressHelper.queue_address("rpc_queue10"))
        publisher.publish(request)
        publisher.close()
        answers: list[Message] = []
        consume(calling, replies, 1, answers.append)
        serving.result()
        calling.management().delete_queue(replies)
        assert answers[0].correlation_id == "1"
        return f"fib(10) = {text_of(answers[0])}"


print("1 hello world:", hello_world())
print("2 work queues:", work_queues())
print("3 publish/subscribe:", publish_subscribe())
print("4 routing:", routed("direct_logs10", ExchangeType.direct, ["warning", "error"], 2))
print("5 topics:", routed("topic_logs10", ExchangeType.topic, ["kern.*", "*.critical"], 2))
print("6 remote procedure call:", remote_procedure_call())
