"""What a client publishes and gets: messages on a channel of AMQP 0-9-1, sections of deliveries, outcomes."""

from __future__ import annotations

from typing import Any

from qq.amqp10.performatives import DispositionFrame
from qq.amqp10.sections import MessageHeader, MessageProperties, decode_section, find_sections
from tests.amqp10_server.socket_client import SocketClient
from tests.stored.messages10 import message10

ACCEPTED, RELEASED = "AcceptedState", "ReleasedState"


def addressed(to: str | None, **sections: Any) -> bytes:
    """Return a message with this address in its properties."""
    return message10(properties=MessageProperties(to=to), **sections)


def put(channel: Any, queue: str, *bodies: bytes) -> None:
    channel.confirm_delivery()
    for body in bodies:
        channel.basic_publish("", queue, body)


def ready(channel: Any, queue: str) -> int:
    """Return the number of messages of a queue that no consumer holds."""
    return channel.queue_declare(queue, passive=True).method.message_count


def body_of(message: bytes) -> bytes:
    return decode_section(message[find_sections(message).body :])


def header_of(message: bytes) -> MessageHeader:
    sections = find_sections(message)
    end = sections.delivery_annotations
    return decode_section(message[:end]) if end else MessageHeader()


def annotations_of(message: bytes) -> dict[Any, Any]:
    sections = find_sections(message)
    begin, end = sections.message_annotations, sections.properties
    return decode_section(message[begin:end]) if begin < end else {}


def bodies(client: SocketClient, count: int) -> list[bytes]:
    return [body_of(client.message()[1]) for _ in range(count)]


def states(client: SocketClient, count: int) -> list[Any]:
    """Return the states of the next `count` deliveries of the client, in the order of their ids."""
    found: list[Any] = []
    expected = None
    while len(found) < count:
        disposition = client.until(DispositionFrame)
        assert disposition.role
        assert disposition.settled
        first, last = disposition.first, disposition.last
        assert expected in (None, first), "an outcome out of order"
        expected = (first if last is None else last) + 1
        found += [disposition.state] * (expected - first)
    return found


def outcomes(client: SocketClient, count: int) -> list[str]:
    """Return the names of the outcomes of the next `count` deliveries."""
    return [type(state).__name__ for state in states(client, count)]
