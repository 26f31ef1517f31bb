"""The header x-delay for clients: at exchanges of the type of RabbitMQ's plugin, and of other types."""

from __future__ import annotations

import time
from typing import Any

import pika
import pytest

ANY_EXCHANGE = pytest.mark.parametrize("kind", ["direct", "x-delayed-message"])
AT_ONCE_S = 20
"""A delay beyond the length of the test: such a message is delivered at once or not in the test."""


@pytest.fixture
def exchange(channel: Any, queue: str, kind: str) -> str:
    """An exchange of that kind, whose messages all go to the queue."""
    channel.confirm_delivery()
    channel.exchange_declare(queue, kind, auto_delete=True, arguments={"x-delayed-type": "direct"})
    channel.queue_declare(queue, exclusive=True)
    channel.queue_bind(queue, queue, "k")
    return queue


def publish(channel: Any, exchange: str, headers: Any, key: str = "k", **options: Any) -> None:
    channel.basic_publish(exchange, key, b"m", pika.BasicProperties(headers=headers), **options)


def came(channel: Any, queue: str) -> Any:
    """The headers of a message that is ready soon."""
    end_s = time.monotonic() + AT_ONCE_S / 2
    while time.monotonic() < end_s:
        method, properties, _ = channel.basic_get(queue, auto_ack=True)
        if method is not None:
            return properties.headers
        time.sleep(0.01)
    pytest.fail("it does not come")


@ANY_EXCHANGE
@pytest.mark.parametrize("delay", [300, "0300", b"+300"])
def test_delay_header_of_a_delayed_message_is_negative(channel: Any, exchange: str, delay: Any) -> None:
    began_s = time.monotonic()
    publish(channel, exchange, {"a": "b", "x-delay": delay, "z": 1})
    headers = came(channel, exchange)
    assert time.monotonic() - began_s > 0.29  # clocks of nodes agree to some milliseconds
    assert headers == {"a": "b", "x-delay": -300, "z": 1}


@ANY_EXCHANGE
def test_delayed_message_published_again_is_not_delayed(channel: Any, exchange: str) -> None:
    publish(channel, exchange, {"x-delay": 100})
    headers = came(channel, exchange)
    publish(channel, exchange, headers | {"x-delay": headers["x-delay"] * 1000 * AT_ONCE_S})
    assert came(channel, exchange) == {"x-delay": -100_000 * AT_ONCE_S}


@ANY_EXCHANGE
@pytest.mark.parametrize("delay", [0, -60_000, "soon", "", "60000ms", True, None, [60_000], 2**62, "9" * 40])
def test_invalid_delay_is_ignored(channel: Any, exchange: str, delay: Any) -> None:
    publish(channel, exchange, {"x-delay": delay})
    assert came(channel, exchange) == {"x-delay": delay}


@pytest.mark.parametrize(("kind", "is_delayed"), [("direct", True), ("x-delayed-message", False)])
def test_only_delayed_message_exchanges_limit_the_delay(
    channel: Any, exchange: str, is_delayed: bool
) -> None:
    publish(channel, exchange, {"x-delay": 2**32})
    if is_delayed:
        assert channel.basic_get(exchange)[0] is None
    else:
        assert came(channel, exchange) == {"x-delay": 2**32}
    publish(channel, exchange, {"x-delay": 2**32 - 1})
    assert channel.basic_get(exchange)[0] is None
    assert channel.queue_purge(exchange).method.message_count == 1 + is_delayed


@pytest.mark.parametrize("kind", ["direct"])
def test_returned_message_keeps_its_delay_header(channel: Any, exchange: str) -> None:
    with pytest.raises(pika.exceptions.UnroutableError) as error:
        publish(channel, exchange, {"x-delay": 60_000}, "nowhere", mandatory=True)
    [message] = error.value.messages
    assert message.properties.headers == {"x-delay": 60_000}
