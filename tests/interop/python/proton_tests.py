"""Conversations of Apache Qpid Proton with a node over AMQP 1.0, by its blocking client and by its container."""

from __future__ import annotations

import os
import uuid
from collections.abc import Generator
from typing import Any

import pika
import pytest
from proton import Delivery, Message, symbol
from proton.handlers import MessagingHandler
from proton.reactor import AtLeastOnce, AtMostOnce, Container, LinkOption
from proton.utils import BlockingConnection, LinkDetached, SendException

from qq.testing import ClusterNode, LocalCluster

PORT = int(os.environ["QQ_INTEROP_PORT"])
URL = f"amqp://guest:guest@127.0.0.1:{PORT}"
WAIT_S = 30
LARGE = 1 << 20


@pytest.fixture
def channel() -> Generator[Any]:
    with pika.BlockingConnection(pika.URLParameters(f"{URL}/%2F")) as connection:
        yield connection.channel()


@pytest.fixture
def queue(channel: Any) -> Generator[str]:
    name = f"proton-{uuid.uuid4()}"
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum"})
    yield name
    channel.queue_delete(name)


@pytest.fixture
def connection() -> Generator[BlockingConnection]:
    connection = BlockingConnection(URL, timeout=WAIT_S)
    yield connection
    connection.close()


class Publisher(MessagingHandler):
    """Sends messages as far as it has credit, and closes when all are settled."""

    def __init__(self, address: str, count: int, body: Any = None) -> None:
        super().__init__()
        self._address, self._count, self._body = address, count, body
        self._sent = 0
        self.outcomes: list[str] = []

    def on_start(self, event: Any) -> None:
        connection = event.container.connect(URL, reconnect=False)
        event.container.create_sender(connection, self._address)

    def on_sendable(self, event: Any) -> None:
        while event.sender.credit and self._sent < self._count:
            event.sender.send(Message(id=self._sent, body=self._body or self._sent, durable=True))
            self._sent += 1

    def _settled(self, event: Any, outcome: str) -> None:
        self.outcomes.append(outcome)
        if len(self.outcomes) == self._count:
            event.connection.close()

    def on_accepted(self, event: Any) -> None:
        self._settled(event, "accepted")

    def on_rejected(self, event: Any) -> None:
        self._settled(event, "rejected")

    def on_released(self, event: Any) -> None:
        self._settled(event, "released")


class Consumer(MessagingHandler):
    """Accepts a number of messages, and closes."""

    def __init__(self, address: str, count: int, options: LinkOption | None = None) -> None:
        super().__init__(prefetch=50)
        self._address, self._count, self._options = address, count, options
        self.messages: list[Message] = []

    def on_start(self, event: Any) -> None:
        connection = event.container.connect(URL, reconnect=False)
        event.container.create_receiver(connection, self._address, options=self._options)

    def on_message(self, event: Any) -> None:
        self.messages.append(event.message)
        if len(self.messages) == self._count:
            event.connection.close()


def test_container_publishes_and_consumes_in_order(queue: str) -> None:
    address = f"/queues/{queue}"
    publisher = Publisher(address, 1000)
    Container(publisher).run()
    assert publisher.outcomes == ["accepted"] * 1000
    consumer = Consumer(address, 1000, AtLeastOnce())
    Container(consumer).run()
    assert [message.body for message in consumer.messages] == list(range(1000))


def test_consumer_gets_settled_deliveries(queue: str, channel: Any) -> None:
    address = f"/queues/{queue}"
    Container(Publisher(address, 100)).run()
    consumer = Consumer(address, 100, AtMostOnce())
    Container(consumer).run()
    assert [message.body for message in consumer.messages] == list(range(100))
    assert channel.queue_declare(queue, passive=True).method.message_count == 0


def test_message_keeps_types_of_its_values(queue: str, connection: BlockingConnection) -> None:
    sender = connection.create_sender(f"/queues/{queue}")
    receiver = connection.create_receiver(f"/queues/{queue}", credit=10)
    sent = Message(
        id=uuid.uuid4(),
        correlation_id="correlated",
        subject="a subject",
        reply_to="/queues/answers",
        content_type=symbol("text/plain"),
        group_id="group",
        group_sequence=7,
        properties={"text": "é", "number": 12, "yes": True, "half": 0.5, "nothing": None},
        annotations={symbol("x-note"): "noted"},
        priority=3,
        durable=True,
        ttl=100,
        body={"list": [1, "two", None], "map": {"key": b"octets"}},
    )
    sender.send(sent)
    got = receiver.receive(timeout=WAIT_S)
    receiver.accept()
    names = ("id", "correlation_id", "subject", "reply_to", "content_type", "group_id", "group_sequence")
    for name in (*names, "properties", "priority", "durable", "body"):
        assert getattr(got, name) == getattr(sent, name), name
    assert got.annotations["x-note"] == "noted"
    assert got.first_acquirer
    assert got.delivery_count == 0


@pytest.mark.parametrize("size", [0, 1, 131_072, LARGE, 10 * LARGE])
def test_large_message_arrives_whole(queue: str, connection: BlockingConnection, size: int) -> None:
    body = os.urandom(size)
    connection.create_sender(f"/queues/{queue}").send(Message(body=body))
    receiver = connection.create_receiver(f"/queues/{queue}")
    assert receiver.receive(timeout=WAIT_S).body == body
    receiver.accept()


def test_rejected_message_is_dead_lettered(channel: Any, connection: BlockingConnection) -> None:
    dead, queue = f"dead-{uuid.uuid4()}", f"proton-{uuid.uuid4()}"
    channel.queue_declare(dead, durable=True, arguments={"x-queue-type": "quorum"})
    arguments = {"x-queue-type": "quorum", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    channel.queue_declare(queue, durable=True, arguments=arguments)
    connection.create_sender(f"/queues/{queue}").send(Message(body="refused"))
    receiver = connection.create_receiver(f"/queues/{queue}")
    receiver.receive(timeout=WAIT_S)
    receiver.reject()
    receiver = connection.create_receiver(f"/queues/{dead}")
    message = receiver.receive(timeout=WAIT_S)
    receiver.accept()
    assert message.body == "refused"
    assert message.annotations["x-first-death-queue"] == queue
    assert message.annotations["x-first-death-reason"] == "rejected"
    [death] = message.annotations["x-opt-deaths"].elements
    assert death["reason"] == "rejected"
    assert death["count"] == 1
    channel.queue_delete(queue)
    channel.queue_delete(dead)


def test_released_and_modified_messages_return(queue: str, connection: BlockingConnection) -> None:
    connection.create_sender(f"/queues/{queue}").send(Message(body="again"))
    receiver = connection.create_receiver(f"/queues/{queue}")
    counts = []
    for failed in (False, True, True):
        counts.append(receiver.receive(timeout=WAIT_S).delivery_count)
        receiver.fetcher.unsettled[0].local.failed = failed
        receiver.release(delivered=failed)
    counts.append(receiver.receive(timeout=WAIT_S).delivery_count)
    receiver.accept()
    assert counts == [0, 0, 1, 2]


def test_full_queue_rejects_and_no_queue_releases(channel: Any, connection: BlockingConnection) -> None:
    queue = f"full-{uuid.uuid4()}"
    arguments = {"x-queue-type": "quorum", "x-max-length": 1, "x-overflow": "reject-publish"}
    channel.queue_declare(queue, durable=True, arguments=arguments)
    sender = connection.create_sender(f"/queues/{queue}")
    outcomes = []
    for _ in range(5):
        try:
            sender.send(Message(body="more"))
        except SendException as refused:
            outcomes.append(refused.state)
    # The limit takes effect behind the message that fills the queue.
    assert outcomes
    assert set(outcomes) == {Delivery.REJECTED}
    with pytest.raises(SendException) as released:
        connection.create_sender("/exchanges/amq.direct/no-such-key").send(Message(body="lost"))
    assert released.value.state == Delivery.RELEASED
    channel.queue_delete(queue)


def test_link_to_an_unknown_queue_is_refused(connection: BlockingConnection) -> None:
    for create in (connection.create_sender, connection.create_receiver):
        with pytest.raises(LinkDetached) as refused:
            create("/queues/no-such-queue")
        assert refused.value.condition == "amqp:not-found"


def test_anonymous_sender_publishes_to_addresses(queue: str, connection: BlockingConnection) -> None:
    sender = connection.create_sender(None)
    sender.send(Message(address=f"/queues/{queue}", body="addressed"))
    receiver = connection.create_receiver(f"/queues/{queue}")
    assert receiver.receive(timeout=WAIT_S).body == "addressed"
    receiver.accept()


class Reconnecting(MessagingHandler):
    """Publishes numbers and consumes them. Its node is killed and started again when half of them are confirmed."""

    def __init__(self, node: ClusterNode, address: str, count: int) -> None:
        super().__init__(prefetch=20)
        self._node, self._address, self._count = node, address, count
        self._unsettled: dict[Any, int] = {}
        self._waiting = list(range(count))
        self.confirmed: set[int] = set()
        self.consumed: set[int] = set()
        self.opened = 0

    def on_start(self, event: Any) -> None:
        connection = event.container.connect(self._node.url.removesuffix("/"), reconnect=[0.05] * 1000)
        event.container.create_sender(connection, self._address)
        event.container.create_receiver(connection, self._address)

    def on_connection_opened(self, event: Any) -> None:
        self.opened += 1

    def on_sendable(self, event: Any) -> None:
        while event.sender.credit and self._waiting:
            number = self._waiting.pop(0)
            self._unsettled[event.sender.send(Message(body=number))] = number

    def on_accepted(self, event: Any) -> None:
        self.confirmed.add(self._unsettled.pop(event.delivery))
        if len(self.confirmed) == self._count // 2 and self.opened == 1:
            self._node.kill()
            self._node.start()
        self._end(event)

    def on_disconnected(self, event: Any) -> None:
        self._waiting += self._unsettled.values()
        self._unsettled.clear()

    def on_message(self, event: Any) -> None:
        self.consumed.add(event.message.body)
        self._end(event)

    def _end(self, event: Any) -> None:
        if len(self.confirmed) == len(self.consumed) == self._count:
            event.connection.close()


def test_container_connects_again_when_its_node_restarts() -> None:
    with LocalCluster(nodes=1) as cluster:
        [node] = cluster.nodes
        with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
            connection.channel().queue_declare("again", durable=True, arguments={"x-queue-type": "quorum"})
        client = Reconnecting(node, "/queues/again", 1000)
        Container(client).run()
        assert client.opened == 2
        assert client.confirmed == client.consumed == set(range(1000))
