"""Requests to the management node, as values: HTTP over AMQP 1.0, as RabbitMQ 4 speaks it.

A request is a message: property `subject` is the method, `to` the path, and its body an amqp-value.

Invariant: a message is a request, or it raises `ManagementRefused` with the status and the text of the answer. No other
exception leaves this module, except the `ConditionError` of a message that cannot be decoded.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, cast
from urllib.parse import parse_qsl, unquote_to_bytes

from qq.amqp10.composites import from_described
from qq.amqp10.conditions import UndecodableValue
from qq.amqp10.sections import VALUE, MessageProperties
from qq.amqp10.values import (
    Array,
    Byte,
    Described,
    Float,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    ValueReader,
)
from qq.octets import text_of
from qq.routing.exchanges import DEFAULT_EXCHANGE
from qq.routing.routers import Destination, DestinationKind
from qq.tables import NAME_BYTES_MAX

if TYPE_CHECKING:
    from qq.amqp10.values import Value
    from qq.tables import Table

QUERY_FIELDS_MAX = 16
"""Fields of a query. The requests have four."""
SHOWN_MAX = 200
"""Characters of an invalid value or path in the text of an answer."""

_INVALID_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_BINDING = re.compile(
    r"src=([0-9A-Za-z\-._~%]+);dst([eq])=([0-9A-Za-z\-._~%]+);key=([0-9A-Za-z\-._~%]*);args=([0-9A-Za-z\-_]*)"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_VALUE_DESCRIPTORS = (VALUE, "amqp:amqp-value:*")
_INTEGERS = frozenset((UByte, UShort, UInt, ULong, Byte, Short, Int, Long))
_FLOATS = frozenset((float, Float))


class ManagementRefused(Exception):
    """The request cannot be carried out: the status and the text of the answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status
        self.text = text


class QueueQuery(NamedTuple):
    """Describe a queue."""

    name: str


class QueueDeclaration(NamedTuple):
    """Declare a queue."""

    name: str
    durable: bool
    exclusive: bool
    auto_delete: bool
    arguments: Table


class QueueDeletion(NamedTuple):
    """Delete a queue."""

    name: str


class QueuePurge(NamedTuple):
    """Delete the ready messages of a queue."""

    name: str


class ExchangeDeclaration(NamedTuple):
    """Declare an exchange."""

    name: str
    type: str
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: Table


class ExchangeDeletion(NamedTuple):
    """Delete an exchange."""

    name: str


class BindingEnds(NamedTuple):
    """Source, destination and key of a binding."""

    source: str
    destination: Destination
    key: str


class BindingCreation(NamedTuple):
    """Bind a queue or an exchange."""

    ends: BindingEnds
    arguments: Table


class BindingsQuery(NamedTuple):
    """List the bindings with these ends and this key."""

    ends: BindingEnds


class BindingDeletion(NamedTuple):
    """Remove a binding."""

    ends: BindingEnds
    arguments_hash: str


class TokenRenewal(NamedTuple):
    """Present a newer token."""

    token: bytes


ManagementRequest: TypeAlias = (
    QueueQuery
    | QueueDeclaration
    | QueueDeletion
    | QueuePurge
    | ExchangeDeclaration
    | ExchangeDeletion
    | BindingCreation
    | BindingsQuery
    | BindingDeletion
    | TokenRenewal
)


class RequestEnvelope(NamedTuple):
    """A request's message, before its path and body are read."""

    message_id: Value
    method: str
    target: str
    body: Value


def open_envelope(message: bytes) -> RequestEnvelope:
    """Decode the message of a request. Absent properties are empty texts. Raises a `ConditionError`.

    The sections may have any order, because Proton writes a body of null before the properties.
    """
    properties, body = MessageProperties(), None
    reader = ValueReader(message, 0, len(message))
    while reader.at < reader.end:
        section = reader.read()
        if not isinstance(section, Described):
            raise UndecodableValue("no section")
        if section.descriptor in _VALUE_DESCRIPTORS:
            body = section.value
        elif isinstance(known := from_described(section), MessageProperties):
            properties = known
    return RequestEnvelope(properties.message_id, properties.subject or "", properties.to or "", body)


def read_request(envelope: RequestEnvelope) -> ManagementRequest:
    """Return the request. Raises ManagementRefused."""
    path, query = _split(envelope.target)
    method, body = envelope.method, envelope.body
    match method, path:
        case "GET", ["queues", name]:
            return QueueQuery(_unquoted(name))
        case "PUT", ["queues", name]:
            return _put_queue(_unquoted(name), body)
        case "DELETE", ["queues", name]:
            return QueueDeletion(_checked_name(_unquoted(name)))
        case "DELETE", ["queues", name, "messages"]:
            return QueuePurge(_unquoted(name))
        case "PUT", ["exchanges", name]:
            return _put_exchange(_unquoted(name), body)
        case "DELETE", ["exchanges", name]:
            return _delete_exchange(_unquoted(name))
        case "POST", ["bindings"]:
            return _post_binding(body)
        case "GET", ["bindings"]:
            return BindingsQuery(_queried_ends(query))
        case "DELETE", ["bindings", segment]:
            return _delete_binding(segment)
        case "PUT", ["auth", "tokens"]:
            if not isinstance(body, bytes):
                raise ManagementRefused(400, "the body of a request for a new token must be binary")
            return TokenRenewal(body)
        case _:
            raise ManagementRefused(404, f"no resource for {_shown(method)} {_shown(envelope.target)}")


# Paths


def _split(target: str) -> tuple[list[str], str]:
    """Return the segments of a path, which are still quoted, and the query."""
    path, _, query = target.partition("?")
    if _INVALID_PERCENT.search(target) or not target.startswith("/"):
        raise ManagementRefused(400, f"failed to normalize URI '{_shown(target)}': invalid_uri")
    return path[1:].split("/"), query


def _unquoted(segment: str) -> str:
    return _utf8(unquote_to_bytes(segment), segment)


def _utf8(octets: bytes, segment: str) -> str:
    try:
        return octets.decode()
    except UnicodeDecodeError:
        text = f"failed to normalize URI '{_shown(segment)}': invalid_utf8"
        raise ManagementRefused(400, text) from None


def _checked_name(name: str) -> str:
    """Return the name of a queue or an exchange.

    Raises ManagementRefused for line ends in it, and for a length that AMQP 0-9-1 cannot write in a delivery.
    """
    _check_length(name)
    if "\n" in name or "\r" in name:
        raise ManagementRefused(
            400, f"Bad name '{_shown(name)}': line feed and carriage return characters not allowed"
        )
    return name


def _check_length(name: str) -> None:
    if len(name.encode()) > NAME_BYTES_MAX:
        raise ManagementRefused(400, f"name '{_shown(name)}' is longer than {NAME_BYTES_MAX} octets")


def _queried_ends(query: str) -> BindingEnds:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=QUERY_FIELDS_MAX)
    except ValueError:
        raise ManagementRefused(400, f"failed to dissect query '{_shown(query)}'") from None
    fields = dict(pairs)
    if "src" not in fields or "key" not in fields:
        raise ManagementRefused(400, f"missing 'src' or 'key' in query: {_shown(query)}")
    if "dste" in fields:
        destination = Destination(DestinationKind.EXCHANGE, fields["dste"])
    elif "dstq" in fields:
        destination = Destination(DestinationKind.QUEUE, fields["dstq"])
    else:
        raise ManagementRefused(400, f"missing 'dste' or 'dstq' in query: {_shown(query)}")
    return BindingEnds(fields["src"], destination, fields["key"])


def _delete_binding(segment: str) -> BindingDeletion:
    found = _BINDING.fullmatch(segment)
    if found is None:
        raise ManagementRefused(400, f"bad binding path segment '{_shown(segment)}'")
    source, kind, destination, key, arguments_hash = found.groups()
    destination_kind = DestinationKind.EXCHANGE if kind == "e" else DestinationKind.QUEUE
    ends = BindingEnds(
        _unquoted(source), Destination(destination_kind, _unquoted(destination)), _unquoted(key)
    )
    return BindingDeletion(_checked_ends(ends), arguments_hash)


# Bodies

T = TypeVar("T", bool, str)


class _Fields:
    """The fields of a body. A request takes out each field that it knows."""

    def __init__(self, body: Value, kind: str) -> None:
        """`kind` is the name for a field in errors: "queue property"."""
        if not isinstance(body, dict):
            raise ManagementRefused(400, f"the body of the request must be a map, not {_shown(body)}")
        self._fields = dict(body)
        self._kind = kind

    def take(self, name: str, default: T) -> T:
        """Return a field of the type that its default has. Raises ManagementRefused."""
        if name not in self._fields:
            return default
        value = self._fields.pop(name)
        if type(value) is not type(default):
            raise self._bad(name, value)
        return cast("T", value)

    def take_arguments(self) -> Table:
        """Return the field `arguments` as a table of AMQP 0-9-1. Raises ManagementRefused."""
        if "arguments" not in self._fields:
            return {}
        value = self._fields.pop("arguments")
        if not isinstance(value, dict):
            raise self._bad("arguments", value)
        return _table(value)

    def finish(self) -> None:
        """Raise ManagementRefused if a field is left, because its name is unknown."""
        for name, value in self._fields.items():
            raise self._bad(name, value)

    def _bad(self, name: Value, value: Value) -> ManagementRefused:
        return ManagementRefused(400, f"bad {self._kind} {_shown(name)}: {_shown(value)}")


def _put_queue(name: str, body: Value) -> QueueDeclaration:
    fields = _Fields(body, "queue property")
    request = QueueDeclaration(
        name,
        durable=fields.take("durable", True),
        exclusive=fields.take("exclusive", False),
        auto_delete=fields.take("auto_delete", False),
        arguments=fields.take_arguments(),
    )
    fields.finish()
    if not name:
        raise ManagementRefused(400, "declare queue with empty name not allowed")
    _checked_name(name)
    return request


def _put_exchange(name: str, body: Value) -> ExchangeDeclaration:
    fields = _Fields(body, "exchange property")
    request = ExchangeDeclaration(
        name,
        type=fields.take("type", "direct"),
        durable=fields.take("durable", True),
        auto_delete=fields.take("auto_delete", False),
        internal=fields.take("internal", False),
        arguments=fields.take_arguments(),
    )
    fields.finish()
    _check_not_default(name)
    _checked_name(name)
    return request


def _delete_exchange(name: str) -> ExchangeDeletion:
    _checked_name(name)
    _check_not_default(name)
    return ExchangeDeletion(name)


def _post_binding(body: Value) -> BindingCreation:
    fields = _Fields(body, "binding field")
    given = frozenset(body) if isinstance(body, dict) else frozenset()
    source = fields.take("source", "")
    queue, exchange = fields.take("destination_queue", ""), fields.take("destination_exchange", "")
    key = fields.take("binding_key", "")
    arguments = fields.take_arguments()
    fields.finish()
    for name in ("source", "binding_key"):
        if name not in given:
            raise ManagementRefused(400, f"missing binding field '{name}'")
    if "destination_queue" in given:
        destination = Destination(DestinationKind.QUEUE, queue)
    elif "destination_exchange" in given:
        destination = Destination(DestinationKind.EXCHANGE, exchange)
    else:
        raise ManagementRefused(400, "missing binding field 'destination_queue' or 'destination_exchange'")
    return BindingCreation(_checked_ends(BindingEnds(source, destination, key)), arguments)


def _checked_ends(ends: BindingEnds) -> BindingEnds:
    source, (kind, destination), key = ends
    _check_length(key)
    _check_not_default(source)
    _checked_name(source)
    if kind is DestinationKind.EXCHANGE:
        _check_not_default(destination)
    _checked_name(destination)
    return ends


def _check_not_default(exchange: str) -> None:
    if exchange == DEFAULT_EXCHANGE:
        raise ManagementRefused(403, "operation not permitted on the default exchange")


def _table(pairs: dict[Value, Value]) -> Table:
    """Return a map as a table of AMQP 0-9-1. Raises ManagementRefused."""
    table: Table = {}
    for name, value in pairs.items():
        if not isinstance(name, str):
            raise _unsupported(name)
        table[str(name)] = _field_value(value)
    return table


def _field_value(value: Value) -> Any:
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is Symbol:
        return str(cast("str", value))
    if kind in _INTEGERS:
        return int(cast("int", value))
    if kind in _FLOATS:
        return float(cast("float", value))
    if kind is bytes:
        return text_of(cast("bytes", value))
    if kind is Timestamp:
        return _time(cast("int", value))
    if isinstance(value, list):
        return [_field_value(each) for each in value]
    if isinstance(value, Array) and value.descriptor is None:
        return [_field_value(each) for each in value.elements]
    if isinstance(value, dict):
        return _table(value)
    raise _unsupported(value)


def _time(milliseconds: int) -> datetime:
    """Return the time in whole seconds, as AMQP 0-9-1 has them: none before 1970. Raises ManagementRefused."""
    if milliseconds < 0:
        raise _unsupported(Timestamp(milliseconds))
    try:
        return _EPOCH + timedelta(seconds=milliseconds // 1000)
    except OverflowError:
        raise _unsupported(Timestamp(milliseconds)) from None


def _unsupported(value: Value) -> ManagementRefused:
    return ManagementRefused(400, f"unsupported argument {_shown(value)}")


def _shown(value: Value) -> str:
    """Return a short text for a value."""
    text = str(value) if isinstance(value, str) else repr(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."
