"""Tests of puka, because its package has no tests: its calls, its promises, and returned and refused messages."""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING, Any

import puka
import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

URL = os.environ["AMQP_URI"]
WAIT_S = 10.0


@pytest.fixture
def client() -> Generator[Any]:
    connected = puka.Client(URL, pubacks=True)
    connected.wait(connected.connect(), timeout=WAIT_S)
    yield connected
    connected.wait(connected.close(), timeout=WAIT_S)


@pytest.fixture
def queue(client: Any) -> Generator[str]:
    name = str(uuid.uuid4())
    done(client, client.queue_declare(queue=name))
    yield name
    done(client, client.queue_delete(queue=name))


def done(client: Any, promise: int) -> Any:
    return client.wait(promise, timeout=WAIT_S)


def publish(client: Any, queue: str, body: str, **rest: Any) -> Any:
    return done(client, client.basic_publish(exchange="", routing_key=queue, body=body, **rest))


def test_a_message_is_got_and_acknowledged(client: Any, queue: str) -> None:
    publish(client, queue, "one", headers={"persistent": False, "text": "x", "number": 5})
    message = done(client, client.basic_get(queue=queue))
    assert (message["body"], message["redelivered"], message["routing_key"]) == ("one", False, queue)
    assert {name: message["headers"][name] for name in ("text", "number")} == {"text": "x", "number": 5}
    client.basic_ack(message)
    assert done(client, client.basic_get(queue=queue))["empty"]


def test_many_promises_are_kept_at_once(client: Any, queue: str) -> None:
    promises = [
        client.basic_publish(exchange="", routing_key=queue, body=str(number)) for number in range(200)
    ]
    for promise in promises:
        done(client, promise)
    assert done(client, client.queue_declare(queue=queue))["message_count"] == 200
    assert done(client, client.queue_purge(queue=queue))["message_count"] == 200


def test_a_consumer_is_limited_and_cancelled(client: Any, queue: str) -> None:
    for body in ("a", "", "c"):
        publish(client, queue, body)
    consumer = client.basic_consume(queue=queue, prefetch_count=1)
    bodies = []
    for _ in range(3):
        message = done(client, consumer)
        bodies.append(message["body"])
        client.basic_ack(message)
    assert bodies == ["a", "", "c"]
    assert "consumer_tag" in done(client, client.basic_cancel(consumer))


def test_rejected_message_is_redelivered_and_marked(client: Any, queue: str) -> None:
    publish(client, queue, "again")
    client.basic_reject(done(client, client.basic_get(queue=queue)))
    message = done(client, client.basic_get(queue=queue))
    assert message["redelivered"]
    client.basic_ack(message)


def test_single_promise_consumes_from_several_queues(client: Any, queue: str) -> None:
    other = done(client, client.queue_declare(exclusive=True))["queue"]
    consumer = client.basic_consume_multi([queue, other], no_ack=True)
    publish(client, queue, "x")
    publish(client, other, "x")
    assert {done(client, consumer)["routing_key"] for _ in range(2)} == {queue, other}
    done(client, client.basic_cancel(consumer))


def test_exchanges_and_bindings(client: Any, queue: str) -> None:
    first, second = str(uuid.uuid4()), str(uuid.uuid4())
    done(client, client.exchange_declare(exchange=first, type="topic"))
    done(client, client.exchange_declare(exchange=second, type="fanout"))
    done(client, client.exchange_bind(source=first, destination=second, routing_key="a.#"))
    done(client, client.queue_bind(queue=queue, exchange=second))
    done(client, client.basic_publish(exchange=first, routing_key="a.", body="bound"))
    assert done(client, client.basic_get(queue=queue, no_ack=True))["body"] == "bound"
    done(client, client.queue_unbind(queue=queue, exchange=second))
    done(client, client.exchange_unbind(source=first, destination=second, routing_key="a.#"))
    done(client, client.exchange_delete(exchange=first))
    done(client, client.exchange_delete(exchange=second))


def test_a_message_without_a_queue_is_returned(client: Any) -> None:
    with pytest.raises(puka.NoRoute):
        publish(client, str(uuid.uuid4()), "back", mandatory=True)


def test_channel_error_keeps_the_connection_usable(client: Any, queue: str) -> None:
    with pytest.raises(puka.NotFound):
        done(client, client.queue_declare(queue=str(uuid.uuid4()), passive=True))
    with pytest.raises(puka.PreconditionFailed):
        done(client, client.queue_declare(queue=queue, durable=True, auto_delete=True))
    publish(client, queue, "goes on")
    assert done(client, client.queue_purge(queue=queue))["message_count"] == 1


def test_large_message_is_received_unchanged(client: Any, queue: str) -> None:
    body = "x" * (1 << 20)
    publish(client, queue, body)
    assert done(client, client.basic_get(queue=queue, no_ack=True))["body"] == body


def test_wrong_password_is_refused() -> None:
    client = puka.Client(URL.replace("guest:guest", "guest:wrong"))
    with pytest.raises((puka.ConnectionBroken, ConnectionError)):
        client.wait(client.connect(), timeout=WAIT_S)
