"""Answers of the management node, as messages: status, correlation id, body. The body has RabbitMQ 4's types."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import quote

from qq.amqp10.composites import encode_composite
from qq.amqp10.sections import APPLICATION_PROPERTIES, VALUE, MessageProperties
from qq.amqp10.values import DESCRIBED, SMALL_ULONG, Array, Long, Symbol, Timestamp, UInt, ULong, encode
from qq.machine.catalog.vhost import arguments_hash, binding_arguments
from qq.octets import is_utf8, octets_of, readable
from qq.routing.routers import DestinationKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from qq.amqp10.values import Value
    from qq.machine.queue.queue import Queue
    from qq.routing.routers import Binding
    from qq.tables import Table

ANSWER_BYTES_MAX = 1024 * 1024
"""Octets of the largest answer. Each session of a connection may hold an answer that its client does not take."""
TOO_LARGE = f"the answer has more than ANSWER_BYTES_MAX={ANSWER_BYTES_MAX} octets"
_STRING32 = 0xB1
_LONG_MAX = 2**63 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_VERSION: dict[Value, Value] = {"http:response": "1.1"}


class ManagementAnswer(NamedTuple):
    """An answer: the status, and the value in its body."""

    status: int
    body: Value = None


class QueueReplicas(NamedTuple):
    """The nodes that have a queue, by their names."""

    leader: str | None
    members: Sequence[str]


def encode_answer(message_id: Value, answer: ManagementAnswer) -> bytes:
    """Encode the message that answers the request with this message id."""
    body = readable(answer.body) if isinstance(answer.body, str) else answer.body
    properties = MessageProperties(subject=str(answer.status), correlation_id=cast("Any", message_id))
    return (
        encode_composite(properties)
        + bytes((DESCRIBED, SMALL_ULONG, APPLICATION_PROPERTIES))
        + encode(_VERSION)
        + bytes((DESCRIBED, SMALL_ULONG, VALUE))
        + encode(body)
    )


def queue_body(queue: Queue, replicas: QueueReplicas) -> Value:
    """Return the description of a queue."""
    body: dict[Value, Value] = {
        "message_count": ULong(queue.ready),
        "consumer_count": UInt(queue.consumers),
        "name": readable(queue.name),
        "vhost": readable(queue.vhost),
        "durable": queue.durable,
        "auto_delete": queue.auto_delete,
        "exclusive": queue.owner is not None,
        "type": queue.kind,
        "arguments": _arguments(queue.arguments),
        "replicas": Array(_STRING32, list(replicas.members)),
    }
    return _with_leader(body, replicas)


def reply_queue_body(name: str, vhost: str, replicas: QueueReplicas) -> Value:
    """Return the description of the queue that a name of direct replies stands for, as RabbitMQ 4.2 answers it."""
    body: dict[Value, Value] = {
        "message_count": ULong(0),
        "consumer_count": UInt(1),
        "name": readable(name),
        "vhost": readable(vhost),
        "durable": False,
        "auto_delete": True,
        "exclusive": False,
        "type": "rabbit_volatile_queue",
        "arguments": {},
        "replicas": Array(_STRING32, list(replicas.members)),
    }
    return _with_leader(body, replicas)


def _with_leader(body: dict[Value, Value], replicas: QueueReplicas) -> Value:
    if replicas.leader is not None:
        body["leader"] = replicas.leader
    return body


def count_body(messages: int) -> Value:
    """Return the number of messages that were deleted."""
    return {"message_count": ULong(messages)}


def bindings_body(bindings: Iterable[Binding]) -> list[Value]:
    """Return a description of each binding."""
    return [_binding(binding) for binding in bindings]


def _binding(binding: Binding) -> Value:
    source, (kind, destination), key, _ = binding
    word = "exchange" if kind is DestinationKind.EXCHANGE else "queue"
    path = f"src={_quoted(source)};dst{word[0]}={_quoted(destination)};key={_quoted(key)}"
    return {
        "source": readable(source),
        f"destination_{word}": readable(destination),
        "binding_key": readable(key),
        "arguments": _arguments(binding_arguments(binding)),
        "location": f"/bindings/{path};args={arguments_hash(binding)}",
    }


def _quoted(name: str) -> str:
    return quote(octets_of(name), safe="")


def _arguments(table: Table) -> Value:
    return {readable(name): _value(value) for name, value in table.items()}


def _value(value: Any) -> Value:
    """Return a field's value of AMQP 0-9-1 with a type of AMQP 1.0."""
    if value is None or isinstance(value, (bool, float, bytes)):
        return value
    if isinstance(value, str):
        return value if is_utf8(value) else octets_of(value)
    if isinstance(value, int):
        return Long(value) if value <= _LONG_MAX else ULong(value)
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, datetime):
        return Timestamp((value - _EPOCH).days * 86_400_000 + (value - _EPOCH).seconds * 1000)
    if isinstance(value, list):
        return [_value(each) for each in cast("list[Any]", value)]
    return {Symbol(readable(name)): _value(each) for name, each in cast("Table", value).items()}
