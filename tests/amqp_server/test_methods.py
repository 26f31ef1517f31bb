"""Every method of the broker, by an unmodified pika against a running node."""

from __future__ import annotations

import datetime as dt
import time
from decimal import Decimal
from typing import Any

import pika
import pika.exceptions
import pytest
from pamqp.commands import Basic, Connection, Queue

from qq.amqp.encoding import HEARTBEAT
from qq.testing import ClusterNode
from tests.harness.raw_client import HEADER, RawClient
from tests.harness.stopwatch import Stopwatch

QUORUM = {"x-queue-type": "quorum"}


def bodies(channel: Any, queue: str) -> list[bytes]:
    """Take all that is in the queue."""
    taken = []
    while True:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return taken
        taken.append(body)


def take(channel: Any, queue: str, count: int, **options: Any) -> list[tuple[Any, Any, bytes]]:
    """Consume `count` messages, unacknowledged."""
    taken = []
    for message in channel.consume(queue, inactivity_timeout=10, **options):
        assert message[0] is not None, f"{len(taken)} of {count} messages came"
        taken.append(message)
        if len(taken) == count:
            return taken
    raise AssertionError


# Queues


def test_declared_queue_returns_message_and_consumer_counts(channel: Any, queue: str) -> None:
    declared = channel.queue_declare(queue, durable=True, arguments=QUORUM).method
    assert (declared.queue, declared.message_count, declared.consumer_count) == (queue, 0, 0)
    for _ in range(3):
        channel.basic_publish("", queue, b"m")
    passive = channel.queue_declare(queue, passive=True).method
    assert (passive.message_count, passive.consumer_count) == (3, 0)


def test_names_may_have_any_characters(channel: Any, queue: str) -> None:
    name = f"{queue} ü*#!/\t{'é' * 40}"
    assert channel.queue_declare(name).method.queue == name
    channel.exchange_declare(f"x{name}"[:80], "topic")
    channel.queue_bind(name, f"x{name}"[:80], "ключ.#")
    channel.basic_publish(f"x{name}"[:80], "ключ.a", b"m", mandatory=True)
    method, _, _ = channel.basic_get(name)
    assert (method.exchange, method.routing_key) == (f"x{name}"[:80], "ключ.a")


def test_purge_counts_dropped_messages_and_keeps_unacked(channel: Any, queue: str) -> None:
    channel.queue_declare(queue)
    for number in range(3):
        channel.basic_publish("", queue, b"%d" % number)
    held, _, _ = channel.basic_get(queue)
    assert channel.queue_purge(queue).method.message_count == 2
    channel.basic_nack(held.delivery_tag)
    assert bodies(channel, queue) == [b"0"]


def test_delete_counts_messages_and_may_be_repeated(channel: Any, queue: str) -> None:
    channel.queue_declare(queue, durable=True, arguments=QUORUM)
    channel.basic_publish("", queue, b"m")
    assert channel.queue_delete(queue).method.message_count == 1
    assert channel.queue_delete(queue).method.message_count == 0


def test_unnamed_queue_gets_a_name_and_becomes_the_default(channel: Any) -> None:
    name = channel.queue_declare("", exclusive=True).method.queue
    assert name.startswith("amq.gen-")
    channel.queue_bind("", "amq.fanout")
    channel.basic_publish("amq.fanout", "", b"m")
    assert bodies(channel, "") == [b"m"]
    assert channel.queue_declare("", exclusive=True).method.queue != name


def test_exclusive_queue_is_deleted_with_its_connection(node: ClusterNode, channel: Any, queue: str) -> None:
    other = pika.BlockingConnection(pika.URLParameters(node.url))
    other.channel().queue_declare(queue, exclusive=True)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="RESOURCE_LOCKED"):
        channel.queue_declare(queue, passive=True)
    other.close()
    again = channel.connection.channel()
    assert again.queue_declare(queue, exclusive=True).method.message_count == 0


def test_auto_delete_queue_is_deleted_with_its_last_consumer(channel: Any, queue: str) -> None:
    channel.queue_declare(queue, auto_delete=True)
    first, second = (channel.basic_consume(queue, lambda *_: None) for _ in range(2))
    channel.basic_cancel(first)
    channel.queue_declare(queue, passive=True)
    channel.basic_cancel(second)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="no queue"):
        channel.queue_declare(queue, passive=True)


# Exchanges and bindings


def routed(channel: Any, exchange: str, queue: str, keys: list[str]) -> list[str]:
    for key in keys:
        channel.basic_publish(exchange, key, key.encode())
    return [body.decode() for body in bodies(channel, queue)]


@pytest.mark.parametrize(
    ("kind", "binding", "keys", "reached"),
    [
        ("direct", "a", ["a", "b", ""], ["a"]),
        ("fanout", "a", ["a", "b", ""], ["a", "b", ""]),
        ("topic", "a.*.#", ["a", "a.b", "a.b.c", "b.a.b"], ["a.b", "a.b.c"]),
    ],
)
def test_exchange_routes_by_its_type(
    channel: Any, queue: str, kind: str, binding: str, keys: list[str], reached: list[str]
) -> None:
    channel.exchange_declare(queue, kind)
    channel.queue_declare(queue)
    channel.queue_bind(queue, queue, binding)
    assert routed(channel, queue, queue, keys) == reached
    channel.queue_unbind(queue, queue, binding)
    assert routed(channel, queue, queue, keys) == []
    channel.exchange_delete(queue)
    channel.exchange_delete(queue)


def test_exchanges_lead_to_exchanges(channel: Any, queue: str) -> None:
    source, destination = f"{queue}-s", f"{queue}-d"
    channel.exchange_declare(source, "direct")
    channel.exchange_declare(destination, "fanout")
    channel.exchange_bind(destination, source, "k")
    channel.queue_declare(queue)
    channel.queue_bind(queue, destination)
    assert routed(channel, source, queue, ["k", "l"]) == ["k"]
    channel.exchange_unbind(destination, source, "k")
    assert routed(channel, source, queue, ["k"]) == []


def test_message_that_matches_two_bindings_is_delivered_once(channel: Any, queue: str) -> None:
    channel.queue_declare(queue)
    for key in ("a", "#", "*"):
        channel.queue_bind(queue, "amq.topic", key)
    assert routed(channel, "amq.topic", queue, ["a"]) == ["a"]


# Publishing


def test_properties_and_nested_headers_are_delivered_unchanged(channel: Any, queue: str) -> None:
    headers = {
        "text": "ü",
        "yes": True,
        "long": 2**40,
        "negative": -5,
        "nothing": None,
        "decimal": Decimal("3.14"),
        "when": dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC),
        "bytes": b"\xff\x00",
        "table": {"list": [1, "two", {"three": [True, None]}]},
    }
    sent = pika.BasicProperties(
        content_type="text/plain",
        content_encoding="utf-8",
        headers=headers,
        delivery_mode=2,
        priority=9,
        correlation_id="correlation",
        reply_to="reply",
        expiration="60000",
        message_id="id",
        timestamp=1_700_000_000,
        type="type",
        user_id="guest",
        app_id="app",
        cluster_id="cluster",
    )
    channel.queue_declare(queue)
    channel.basic_publish("", queue, b"body", sent)
    method, received, body = channel.basic_get(queue)
    assert (method.redelivered, method.message_count, body) == (False, 0, b"body")
    assert vars(received) == vars(sent)
    assert received.headers == headers


def test_unroutable_mandatory_message_is_returned_and_confirmed(channel: Any) -> None:
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.UnroutableError) as caught:
        channel.basic_publish("amq.direct", "nowhere", b"m", mandatory=True)
    [message] = caught.value.messages
    assert (message.method.reply_code, message.method.reply_text) == (312, "NO_ROUTE")
    assert (message.method.exchange, message.method.routing_key) == ("amq.direct", "nowhere")
    assert message.body == b"m"


def test_an_unroutable_message_is_confirmed(channel: Any) -> None:
    channel.confirm_delivery()
    channel.basic_publish("amq.direct", "nowhere", b"m")


def test_every_message_is_confirmed(channel: Any, queue: str) -> None:
    channel.queue_declare(queue, durable=True, arguments=QUORUM)
    channel.confirm_delivery()
    for number in range(50):
        channel.basic_publish("", queue, b"%d" % number)
    assert bodies(channel, queue) == [b"%d" % number for number in range(50)]


# Consuming


def test_messages_come_in_order_with_growing_tags(channel: Any, queue: str) -> None:
    channel.queue_declare(queue)
    for number in range(100):
        channel.basic_publish("", queue, b"%d" % number)
    taken = take(channel, queue, 100)
    assert [body for _, _, body in taken] == [b"%d" % number for number in range(100)]
    assert [method.delivery_tag for method, _, _ in taken] == list(range(1, 101))
    channel.basic_ack(0, multiple=True)
    channel.cancel()
    assert channel.queue_declare(queue, passive=True).method.message_count == 0


def test_a_prefetch_is_each_consumers_and_never_exceeded(node: ClusterNode, channel: Any, queue: str) -> None:
    channel.queue_declare(queue)
    for _ in range(10):
        channel.basic_publish("", queue, b"m")
    got: list[tuple[str, int]] = []

    def on_message(_channel: Any, method: Any, _properties: Any, _body: bytes) -> None:
        got.append((method.consumer_tag, method.delivery_tag))

    channel.basic_qos(prefetch_count=2)
    channel.basic_consume(queue, on_message, consumer_tag="two")
    channel.basic_qos(prefetch_count=3)
    channel.basic_consume(queue, on_message, consumer_tag="three")
    channel.connection.process_data_events(0.3)
    assert sorted(tag for tag, _ in got) == ["three"] * 3 + ["two"] * 2
    channel.basic_ack(got[0][1])
    channel.connection.process_data_events(0.3)
    assert [tag for tag, _ in got[5:]] == [got[0][0]]


def test_a_consumer_without_acknowledgements_gets_everything(channel: Any, queue: str) -> None:
    channel.queue_declare(queue)
    for number in range(5000):
        channel.basic_publish("", queue, b"%d" % number)
    taken = take(channel, queue, 5000, auto_ack=True)
    assert [body for _, _, body in taken] == [b"%d" % number for number in range(5000)]
    channel.cancel()
    assert channel.queue_declare(queue, passive=True).method.message_count == 0


def test_a_consumer_without_a_prefetch_gets_everything(channel: Any, queue: str) -> None:
    channel.queue_declare(queue)
    for number in range(5000):
        channel.basic_publish("", queue, b"%d" % number)
    taken = take(channel, queue, 5000)
    assert [body for _, _, body in taken] == [b"%d" % number for number in range(5000)]


def test_get_returns_the_remaining_count_or_empty(channel: Any, queue: str) -> None:
    channel.queue_declare(queue)
    for _ in range(3):
        channel.basic_publish("", queue, b"m")
    method, _, _ = channel.basic_get(queue)
    assert method.message_count == 2
    bodies(channel, queue)
    assert channel.basic_get(queue) == (None, None, None)


def test_ack_nack_and_reject_settle_single_or_multiple_tags(channel: Any, queue: str) -> None:
    channel.queue_declare(queue)
    for number in range(8):
        channel.basic_publish("", queue, b"%d" % number)
    for _ in range(8):  # a consumer would be sent them again in between, and "all" would be these, too
        channel.basic_get(queue)
    channel.basic_ack(2, multiple=True)
    channel.basic_nack(4, multiple=True, requeue=True)
    channel.basic_nack(5, requeue=False)
    channel.basic_reject(6, requeue=False)
    channel.basic_reject(7, requeue=True)
    channel.basic_nack(0, multiple=True)
    method, _, _ = channel.basic_get(queue)
    assert method.redelivered
    channel.basic_nack(method.delivery_tag)
    assert sorted(bodies(channel, queue)) == [b"2", b"3", b"6", b"7"]


def test_closed_channel_returns_its_messages_in_order(channel: Any, queue: str) -> None:
    channel.queue_declare(queue)
    for number in range(4):
        channel.basic_publish("", queue, b"%d" % number)
    holder = channel.connection.channel()
    take(holder, queue, 4)
    holder.close()
    assert bodies(channel, queue) == [b"0", b"1", b"2", b"3"]


def test_recover_requeues_and_redelivers_all_messages(channel: Any, queue: str) -> None:
    channel.queue_declare(queue)
    for number in range(3000):
        channel.basic_publish("", queue, b"%d" % number)
    got: list[tuple[bytes, bool]] = []

    def on_message(_channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        got.append((body, method.redelivered))

    channel.basic_consume(queue, on_message)
    while not got:
        channel.connection.process_data_events(1)
    channel.basic_recover(requeue=True)
    got.clear()
    while len({body for body, _ in got}) < 3000:
        before = len(got)
        channel.connection.process_data_events(5)
        assert len(got) > before, f"only {before} came"
    returned = [body for body, redelivered in got if redelivered]
    assert returned == [b"%d" % number for number in range(len(returned))]


def test_cancel_ok_follows_the_last_message_and_acks_still_count(channel: Any, queue: str) -> None:
    channel.queue_declare(queue)
    for _ in range(10):
        channel.basic_publish("", queue, b"m")
    got: list[int] = []
    tag = channel.basic_consume(
        queue, lambda _channel, method, _properties, _body: got.append(method.delivery_tag)
    )
    channel.connection.process_data_events(0.2)
    channel.basic_cancel(tag)
    assert got == list(range(1, 11))
    channel.basic_ack(10, multiple=True)
    assert bodies(channel, queue) == []


def test_consumer_is_cancelled_when_its_queue_is_deleted(channel: Any, queue: str) -> None:
    cancelled: list[Any] = []
    channel.queue_declare(queue)
    channel.add_on_cancel_callback(cancelled.append)
    tag = channel.basic_consume(queue, lambda *_: None)
    channel.connection.channel().queue_delete(queue)
    channel.connection.process_data_events(1)
    assert [frame.method.consumer_tag for frame in cancelled] == [tag]
    channel.basic_cancel(tag)


def test_a_consumer_tag_may_be_used_again_after_its_cancel(channel: Any, queue: str) -> None:
    channel.queue_declare(queue)
    for _ in range(3):
        channel.basic_consume(queue, lambda *_: None, consumer_tag="tag")
        channel.basic_cancel("tag")


def test_a_channel_number_may_be_used_again_at_once(channel: Any, queue: str) -> None:
    channel.queue_declare(queue)
    connection = channel.connection
    for _ in range(20):
        again = connection.channel(7)
        again.basic_publish("", queue, b"m")
        again.basic_get(queue)
        again.close()
    assert channel.queue_declare(queue, passive=True).method.message_count == 20


def test_channel_flow_and_a_second_confirm_select_are_answered(channel: Any) -> None:
    channel.flow(True)
    channel.confirm_delivery()
    channel.flow(True)


def test_delete_is_answered_before_consumers_are_cancelled(raw: RawClient, queue: str) -> None:
    raw.open_channel(2)
    raw.call(1, Queue.Declare(queue=queue), Queue.DeclareOk)
    for channel in (1, 2):
        raw.call(channel, Basic.Consume(queue=queue, consumer_tag="c"), Basic.ConsumeOk)
    raw.call(1, Queue.Delete(queue=queue), Queue.DeleteOk)
    for channel in (1, 2):
        assert raw.expect(Basic.Cancel, channel).consumer_tag == "c"


# Connections


def test_heartbeats_keep_an_idle_connection_open(node: ClusterNode) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(f"{node.url}%2F?heartbeat=1"))
    connection.process_data_events(3.5)
    connection.channel().close()
    connection.close()


def test_idle_client_gets_two_heartbeats_per_interval(node: ClusterNode) -> None:
    with RawClient(node.amqp_port, heartbeat=1) as client:
        received = b""
        with Stopwatch() as watch:
            while received.count(HEARTBEAT) < 5:
                received += client.socket.recv(1000)
                client.write(HEARTBEAT)
        # From the first second on every half second; an interval each would take five seconds.
        assert watch.seconds < 4 * watch.slowness


def test_answered_client_gets_a_heartbeat_within_an_interval(node: ClusterNode) -> None:
    """Java's client with Netty closes its connection after a single silent interval."""
    with RawClient(node.amqp_port, heartbeat=2) as client:
        while client.socket.recv(1000) != HEARTBEAT:
            pass
        client.open_channel(1)
        with Stopwatch() as watch:
            assert client.socket.recv(1000) == HEARTBEAT
        # Half an interval later; if an answer postponed the next heartbeat, it would be a whole interval.
        assert watch.seconds < 1.6 * watch.slowness


def test_slow_handshake_gets_no_heartbeat_before_its_answer(node: ClusterNode) -> None:
    """aiormq takes it for the answer, and fails."""
    with RawClient(node.amqp_port, handshake=False) as client:
        client.write(HEADER)
        client.expect(Connection.Start)
        client.send(0, client.start_ok())
        client.expect(Connection.Tune)
        client.send(0, Connection.TuneOk(2047, 131_072, 1))
        time.sleep(0.4)
        client.send(0, Connection.Open("/"))
        assert not client.socket.recv(1000).startswith(HEARTBEAT)


@pytest.mark.parametrize(
    ("credentials", "vhost", "error"),
    [
        (("guest", "wrong"), "/", pika.exceptions.ProbableAuthenticationError),
        (("nobody", "guest"), "/", pika.exceptions.ProbableAuthenticationError),
        (("guest", "guest"), "elsewhere", pika.exceptions.ProbableAccessDeniedError),
    ],
)
def test_the_wrong_user_password_or_vhost_is_refused(
    node: ClusterNode, credentials: tuple[str, str], vhost: str, error: type[Exception]
) -> None:
    login = pika.PlainCredentials(*credentials)
    parameters = pika.ConnectionParameters("127.0.0.1", node.amqp_port, vhost, login)
    with pytest.raises(error):
        pika.BlockingConnection(parameters)
