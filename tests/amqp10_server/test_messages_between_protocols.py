"""Messages whose publisher and consumer speak different protocols, and properties that the queue acts on."""

from __future__ import annotations

from typing import Any

import pika

from qq.amqp10.sections import DATA, SEQUENCE, VALUE, MessageHeader, MessageProperties, find_sections
from qq.amqp10.values import Array, Int, Long, Symbol, UByte, UInt, encode
from tests.amqp10_server.messages import annotations_of, body_of, header_of
from tests.amqp10_server.settling import send
from tests.amqp10_server.socket_client import SocketClient
from tests.stored.messages10 import message10, section


def got(channel: Any, queue: str) -> tuple[pika.BasicProperties, bytes]:
    method, properties, body = channel.basic_get(queue, auto_ack=True)
    assert not method.redelivered
    return properties, body


def test_body_of_sections_becomes_a_payload(client: SocketClient, channel: Any, queue: str) -> None:
    sections = [
        [(VALUE, b"\x00\xff")],
        [(VALUE, False)],
        [(SEQUENCE, [b"\x00\xff"])],
        [(SEQUENCE, [Long(-1)]), (SEQUENCE, [True, "🐇"])],
    ]
    data = [[(DATA, b"\x00\xff")], [(DATA, b"\x00\x01"), (DATA, b"\x02\x03")]]
    send(client, queue, *(message10(body=body) for body in [*sections, *data]))
    for body in sections:
        properties, payload = got(channel, queue)
        assert properties.type == "amqp-1.0"
        assert payload == b"".join(section(code, value) for code, value in body)
    assert [got(channel, queue)[1] for _ in data] == [b"\x00\xff", b"\x00\x01\x02\x03"]


def test_sections_before_and_behind_the_body_are_converted(
    client: SocketClient, channel: Any, queue: str
) -> None:
    body: Any = [(VALUE, b"\x00\xff")]
    named, correlation = {"my int": Int(-2)}, MessageProperties(correlation_id="my correlation ID")
    footer = {"x-my footer": UByte(255)}
    array = {"x-array": Array(0xA1, ["e1", "e2"])}
    send(
        client,
        queue,
        message10(named=named, body=body),
        message10(properties=correlation, body=body),
        message10(properties=correlation, named=named, body=body),
        message10(body=body, footer=footer),
        message10(annotations=array, body=body),
    )
    encoded = section(VALUE, b"\x00\xff")
    found = [got(channel, queue) for _ in range(5)]
    assert [payload for _, payload in found] == [
        encoded,
        encoded,
        encoded,
        message10(body=body, footer=footer),
        encoded,
    ]
    headers = [properties.headers or {} for properties, _ in found]
    assert [each.get("my int") for each in headers] == [-2, None, -2, None, None]
    assert [properties.correlation_id for properties, _ in found[1:3]] == ["my correlation ID"] * 2
    assert headers[4]["x-array"] == ["e1", "e2"]


def test_header_and_annotations_become_properties(client: SocketClient, channel: Any, queue: str) -> None:
    header = MessageHeader(durable=True, priority=UByte(7), ttl=UInt(88_000))
    annotations = {"x-string": "string-value", "x-int": UInt(3), "x-bool": True}
    named = {"string": "string-val", "int": UInt(2), "bool": False}
    send(client, queue, message10(header, annotations, None, named))
    properties, body = got(channel, queue)
    assert (properties.delivery_mode, properties.priority, properties.expiration) == (2, 7, "88000")
    assert properties.headers == {**annotations, **named}
    assert body == b"body"


def test_headers_become_annotations_and_named_properties(
    client: SocketClient, channel: Any, queue: str
) -> None:
    annotations = {"x-string": "my-string", "x-int": 92, "x-bool": True}
    named = {"string": "my-str", "int": 101, "bool": False}
    forwarding = [{"uri": "amqp://localhost/%2F/upstream"}]
    properties = pika.BasicProperties(headers={**annotations, **named, "x-forwarding": forwarding})
    channel.basic_publish("", queue, b"foobar", properties)
    client.attach_receiver(queue)
    client.credit(1)
    _, message = client.message()
    found = annotations_of(message)
    assert {key: found[Symbol(key)] for key in annotations} == annotations
    assert found[Symbol("x-forwarding")] == [{Symbol("uri"): forwarding[0]["uri"]}]
    where = find_sections(message)
    assert encode("my-str") in message[where.application_properties : where.body]
    assert body_of(message) == b"foobar"


def test_message_expires_after_its_ttl(client: SocketClient, queue: str) -> None:
    brief, lasting = (
        message10(MessageHeader(ttl=UInt(ttl)), body=[(DATA, b"%d" % ttl)]) for ttl in (1, 60_000)
    )
    send(client, queue, brief, lasting)
    client.attach_receiver(queue)
    client.credit(2, drain=True)
    _, message = client.message()
    assert body_of(message) == b"60000"
    assert header_of(message).ttl == 60_000


def test_message_of_a_higher_priority_overtakes(client: SocketClient, queue: str) -> None:
    normal = message10(MessageHeader(durable=True), body=[(DATA, b"normal")])
    high = message10(MessageHeader(durable=True, priority=UByte(5)), body=[(DATA, b"high")])
    send(client, queue, normal, normal, high)
    client.attach_receiver(queue)
    client.credit(3)
    found = [client.message()[1] for _ in range(3)]
    assert [body_of(message) for message in found] == [b"high", b"normal", b"normal"]
    assert [header_of(message).priority for message in found] == [5, None, None]
    assert all(header_of(message).durable for message in found)


def test_sessions_of_a_connection_publish_and_consume_at_once(
    client: SocketClient, channel: Any, queue: str
) -> None:
    client.begin(1)
    other = f"{queue}-other"
    channel.queue_declare(other, durable=True, arguments={"x-queue-type": "quorum"})
    for name in (queue, other):
        channel.queue_bind(name, "amq.fanout")
    client.attach_receiver(queue)
    client.attach_receiver(other, channel=1)
    for number in (0, 1):
        client.credit(40, channel=number)
        client.attach_sender("/exchanges/amq.fanout", channel=number)
    for number in range(20):
        for session in (0, 1):
            message = message10(
                properties=MessageProperties(group_id=f"group {session}"), body=[(DATA, b"%d" % number)]
            )
            client.transfer(number, message, channel=session, settled=True)
    found: dict[tuple[int, bytes], list[int]] = {}
    for _ in range(80):
        received = client.receive_transfer()
        group = b"group 0" if b"group 0" in received.payload else b"group 1"
        found.setdefault((received.channel, group), []).append(int(body_of(received.payload)))
    assert len(found) == 4
    assert all(numbers == list(range(20)) for numbers in found.values())
    channel.queue_delete(other)
