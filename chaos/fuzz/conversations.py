"""The undamaged conversations of AMQP clients, frame by frame, from the protocol header to the end.

Invariant: a node serves an undamaged conversation to its end and closes neither a channel nor the connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pamqp.frame
from pamqp import commands, header, heartbeat
from pamqp.body import ContentBody

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pamqp.base import Frame

Basic, Channel, Connection = commands.Basic, commands.Channel, commands.Connection
Exchange, Queue, Tx = commands.Exchange, commands.Queue, commands.Tx

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
HEARTBEAT = heartbeat.Heartbeat().marshal()
CAPABILITIES = {
    "authentication_failure_close": True,
    "basic.nack": True,
    "connection.blocked": True,
    "consumer_cancel_notify": True,
    "publisher_confirms": True,
}
QUEUE, CLASSIC, SOURCE = "fuzz", "fuzz-classic", "fuzz-exchange"
QUORUM: Mapping[str, Any] = {"x-queue-type": "quorum"}
BODY_BYTES = 3000
"""Octets of bodies that are sent in several frames."""
_BYE = (200, "bye", 0, 0)
_HEADERS = {
    "text": "ü",
    "number": -5,
    "large": 2**40,
    "yes": True,
    "nothing": None,
    "table": {"list": [1, "two", {"three": [True]}]},
    "CC": ["fuzz-classic"],
    "BCC": ["nowhere"],
    "x-delay": 1,
    "x-publisher-id": "fuzz",
    "x-publish-seq": 1,
}


PAUSE = b""
"""Stands among the frames where the client waits until the node is silent."""


class Conversation(NamedTuple):
    """The frames that a client sends."""

    name: str
    frames: list[bytes]
    opening: int
    """Number of frames before the connection is open."""
    is_amqp10: bool = False


def conversations() -> list[Conversation]:
    """Return all conversations of AMQP 0-9-1, ordered so that each finds the objects that it needs."""
    bodies = {
        "publish": _publish(),
        "consume": _consume(),
        "get": _get(),
        "exchanges": _exchanges(),
        "transaction": _transaction(),
        "requests": _requests(),
        "channels": _channels(),
        "connection": [
            marshal(0, Connection.UpdateSecret("guest", "renewal")),
            HEARTBEAT,
            marshal(0, Connection.Close(*_BYE)),
        ],
    }
    opening = _opening()
    return [Conversation(name, [*opening, *body], len(opening)) for name, body in bodies.items()]


def marshal(channel: int, frame: Frame) -> bytes:
    return pamqp.frame.marshal(frame, channel)


def message(
    channel: int, exchange: str, routing_key: str, body: bytes, part: int = 2000, **properties: Any
) -> list[bytes]:
    """Return basic.publish with its content."""
    content = header.ContentHeader(0, len(body), Basic.Properties(**properties))
    parts = [body[at : at + part] for at in range(0, len(body), part)]
    return [
        marshal(channel, Basic.Publish(exchange=exchange, routing_key=routing_key, mandatory=True)),
        pamqp.frame.marshal(content, channel),
        *(pamqp.frame.marshal(ContentBody(part), channel) for part in parts),
    ]


def unchecked(kind: type[Frame], **fields: Any) -> Frame:
    """Build a method that pamqp rejects as deprecated."""
    method = kind.__new__(kind)
    for name, value in fields.items():
        setattr(method, name, value)
    return method


def _opening() -> list[bytes]:
    introduction: Any = {"product": "fuzz", "capabilities": CAPABILITIES}
    return [
        PROTOCOL_HEADER,
        marshal(0, Connection.StartOk(introduction, "PLAIN", "\0guest\0guest", "en_US")),
        marshal(0, Connection.TuneOk(2047, 131_072, 0)),
        marshal(0, Connection.Open("/")),
        marshal(1, Channel.Open()),
    ]


def _on(channel: int, *frames: Frame) -> list[bytes]:
    return [marshal(channel, frame) for frame in frames]


def _publish() -> list[bytes]:
    plain = message(1, "", QUEUE, b"message", delivery_mode=2)
    return [
        *_on(
            1,
            Queue.Declare(queue=QUEUE, durable=True, arguments=dict(QUORUM)),
            Queue.Declare(queue=CLASSIC, auto_delete=True, arguments={"x-message-ttl": 60_000}),
            commands.Confirm.Select(),
        ),
        *plain * 3,
        HEARTBEAT,
        *message(1, "", QUEUE, bytes(BODY_BYTES), message_id="long"),
        *message(1, "", QUEUE, b"", expiration="60000", priority=9, headers=_HEADERS),
        *message(1, "amq.direct", "nowhere", b"returned", user_id="guest", timestamp=None),
        *_on(1, Channel.Close(*_BYE)),
    ]


def _consume() -> list[bytes]:
    return [
        *_on(
            1,
            Queue.Declare(queue=QUEUE, durable=True, arguments=dict(QUORUM)),
            Basic.Qos(prefetch_count=3),
            Basic.Consume(queue=QUEUE, consumer_tag="first", arguments={"x-priority": 5}),
        ),
        *message(1, "", QUEUE, b"message") * 3,
        *_on(
            1,
            Queue.Declare(queue=QUEUE, passive=True),
            Basic.Consume(queue=QUEUE, consumer_tag="second", no_ack=True),
            Basic.Ack(0, multiple=True),
            Basic.Nack(0, multiple=True, requeue=True),
            Basic.Recover(requeue=True),
            unchecked(Basic.RecoverAsync, requeue=True),
            Basic.Cancel("first"),
            Basic.Cancel("second"),
            Basic.CancelOk("first"),
        ),
    ]


def _get() -> list[bytes]:
    return [
        *_on(1, Queue.Declare(queue="", exclusive=True), Queue.Bind(queue="", exchange="amq.fanout")),
        *message(1, "amq.fanout", "", b"message") * 4,
        *_on(1, *[Basic.Get(queue="")] * 3, Basic.Get(queue="", no_ack=True)),
        *_on(1, Basic.Ack(1), Basic.Nack(2, requeue=False), Basic.Reject(3, requeue=True)),
        *_on(1, Queue.Purge(queue=""), Queue.Delete(queue="")),
    ]


def _exchanges() -> list[bytes]:
    return [
        *_on(
            1,
            Exchange.Declare(exchange=SOURCE, exchange_type="topic", auto_delete=False),
            Exchange.Declare(exchange=f"{SOURCE}-h", exchange_type="headers"),
            Exchange.Bind(destination=f"{SOURCE}-h", source=SOURCE, routing_key="a.#"),
            Queue.Declare(queue=CLASSIC, auto_delete=True, arguments={"x-message-ttl": 60_000}),
            Queue.Bind(queue=CLASSIC, exchange=f"{SOURCE}-h", arguments={"x-match": "any", "text": "ü"}),
        ),
        *message(1, SOURCE, "a.b", b"message", headers=_HEADERS),
        *_on(
            1,
            Queue.Unbind(queue=CLASSIC, exchange=f"{SOURCE}-h", arguments={"x-match": "any", "text": "ü"}),
            Exchange.Unbind(destination=f"{SOURCE}-h", source=SOURCE, routing_key="a.#"),
            Exchange.Delete(exchange=f"{SOURCE}-h"),
            Exchange.Delete(exchange=SOURCE, nowait=True),
        ),
    ]


def _transaction() -> list[bytes]:
    return [
        *_on(1, Queue.Declare(queue="", exclusive=True), Tx.Select()),
        *message(1, "", QUEUE, b"message"),
        *_on(1, Tx.Commit()),
        *message(1, "", QUEUE, b"message"),
        *_on(1, Tx.Rollback(), Channel.Flow(active=True), Tx.Commit()),
    ]


def _requests() -> list[bytes]:
    """Return a conversation with direct reply-to, to which no client replies."""
    requests = "amq.rabbitmq.reply-to"
    return [
        *_on(
            1,
            Queue.Declare(queue="", exclusive=True),
            Queue.Declare(queue=requests, passive=True),
            Basic.Consume(queue=requests, consumer_tag="replies", no_ack=True),
        ),
        *message(1, "", QUEUE, b"request", reply_to=requests, correlation_id="1"),
        *message(1, "", f"{requests}.nobody", b"reply"),
        *_on(1, Basic.Cancel("replies"), Channel.Close(*_BYE)),
    ]


def _channels() -> list[bytes]:
    """Return a conversation on several channels, with a number that is used twice."""
    two, three = (message(channel, "", QUEUE, b"x" * BODY_BYTES) for channel in (2, 3))
    return [
        *_on(2, Channel.Open()),
        *_on(3, Channel.Open()),
        *(frame for pair in zip(two, three, strict=True) for frame in pair),
        *_on(2, Channel.Close(*_BYE)),
        *_on(3, Basic.Qos(prefetch_count=1), Basic.Get(queue=QUEUE, no_ack=True)),
        marshal(0, Connection.Close(*_BYE)),
    ]
