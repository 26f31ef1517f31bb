"""Messages for sinks as Arrow streams.

A column is read into Python values at once, and messages are built in slices: other tasks run in between.
Equal properties are encoded once. An error names the column and the row, before any message is stored.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from itertools import repeat
from struct import Struct
from typing import TYPE_CHECKING, Any

from qq.http.base.error_responses import bad_request
from qq.http.documents.arrow_input import read_table
from qq.management.reports.sinks import RoutedMessages
from qq.management.time_slices import Slices
from qq.octets import octets_of
from qq.stored import layout
from qq.stored.editing import body_frames, field_value
from qq.stored.fields import FieldError, check_properties, join_properties, property_of
from qq.tables import TABLE_BYTES_MAX, too_deep

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from qq.http.base.error_responses import Refusal

HEADERS_TEXT_MAX = 4 * TABLE_BYTES_MAX
"""Characters of headers in JSON: the headers of a row are built without a pause."""
KNOWN_MAX = 4_096
"""Property lists that are remembered for a table."""
NAME_BYTES_MAX = 255

TEXTS = {
    "content_type": "content_type",
    "content_encoding": "content_encoding",
    "correlation_id": "correlation_id",
    "reply_to": "reply_to",
    "expiration": "expiration",
    "message_id": "message_id",
    "type": "message_type",
    "app_id": "app_id",
}
"""Column -> property, for properties that are short strings."""
NUMBERS = {"delivery_mode": range(1, 3), "priority": range(256), "timestamp": range(2**63)}
"""Column -> possible values, for properties that are numbers. A timestamp has seconds since 1970."""
PLACES = ("exchange", "routing_key")
COLUMNS = ("body", *PLACES, *TEXTS, *NUMBERS, "headers", "delay")

_HEAD = Struct(">BHIHHQ")
_FRAME = Struct(">BHI")
_CLASS_BASIC = 60
_END = bytes([layout.FRAME_END])
_PERSISTENT = property_of("delivery_mode", 2)


class _Wrong(ValueError):
    """A value does not fit its column."""


class SinkTable:
    """Turns an Arrow stream into stored messages."""

    def __init__(self, pyarrow: Any, defaults: Mapping[str, str], message_bytes: int) -> None:
        """`defaults` are `exchange` and `routing_key` of rows without them.

        `message_bytes` is the limit of a body.
        """
        self._message_bytes = message_bytes
        self._pyarrow = pyarrow
        self._table: Any = None
        self._defaults = defaults
        self._known: dict[Any, bytes] = {}

    async def read(self, octets: bytes) -> int:
        """Read an Arrow stream, and return the number of its rows. Raises Refusal."""
        self._table = await read_table(self._pyarrow, octets, self._check_columns)
        count: int = self._table.num_rows
        return count

    def _check_columns(self, schema: Any) -> None:
        names = schema.names
        if "body" not in names:
            raise bad_request("column 'body' is missing")
        for field in schema:
            if field.name not in COLUMNS or names.count(field.name) > 1:
                raise bad_request(
                    f"column '{field.name}' is unknown or there twice; the columns are {', '.join(COLUMNS)}"
                )
            if not self._fits(field.name, field.type):
                raise bad_request(f"column '{field.name}' has type {field.type}, which it cannot have")

    def _fits(self, name: str, kind: Any) -> bool:
        types = self._pyarrow.types
        is_text = types.is_string(kind) or types.is_large_string(kind)
        if types.is_null(kind):
            return name != "body"
        if name == "body":
            return is_text or types.is_binary(kind) or types.is_large_binary(kind)
        if name == "headers":
            return is_text or (types.is_map(kind) and self._fits_headers(kind))
        if name in NUMBERS or name == "delay":
            return types.is_integer(kind) or (name == "timestamp" and types.is_timestamp(kind))
        return is_text

    def _fits_headers(self, kind: Any) -> bool:
        """Return whether a map has names and values of headers. Nested values are possible in JSON only."""
        types, value = self._pyarrow.types, kind.item_type
        return (types.is_string(kind.key_type) or types.is_large_string(kind.key_type)) and (
            types.is_string(value)
            or types.is_large_string(value)
            or types.is_null(value)
            or types.is_boolean(value)
            or types.is_integer(value)
            or types.is_floating(value)
            or types.is_timestamp(value)
        )

    async def routed(self) -> list[RoutedMessages]:
        """Return the messages of equal exchange and routing key together, in their order. Raises Refusal."""
        found: dict[tuple[str, str], tuple[list[bytes], list[int]]] = {}
        slices = Slices()
        for place, properties, body in self._rows():
            messages, flags = found.setdefault(place, ([], []))
            messages.append(_message(properties, body))
            flags.append(properties[0] << 8 | properties[1])
            await slices.give_way()
        tables: list[RoutedMessages] = []
        for (exchange, key), (messages, flags) in found.items():
            tables.append(RoutedMessages(exchange, key, _union(flags), messages))
            await slices.give_way()
        return tables

    def _rows(self) -> Iterator[tuple[tuple[str, str], bytes, bytes]]:
        """Yield place, encoded properties and body of each row. Raises Refusal."""
        count = self._table.num_rows
        bodies = self._values("body")
        places = [self._places(name, count) for name in PLACES]
        names = [name for name in self._table.column_names if name not in ("body", *PLACES)]
        columns = [self._values(name) for name in names]
        plain = join_properties({"delivery_mode": _PERSISTENT})
        properties = (
            (self._properties(names, columns, row) for row in range(count)) if names else repeat(plain, count)
        )
        for row, (exchange, key, encoded, body) in enumerate(zip(*places, properties, bodies, strict=True)):
            if body is None:
                raise bad_request(f"column 'body' has no value in row {row}")
            if len(body) > self._message_bytes:
                raise bad_request(
                    f"column 'body' has {len(body)} bytes in row {row}, above message_bytes ({self._message_bytes})"
                )
            yield (exchange, key), encoded, body

    def _values(self, name: str) -> list[Any]:
        """Return the values of a column. Raises Refusal."""
        column, pyarrow = self._table.column(name), self._pyarrow
        try:
            if name == "body":
                column = column.cast(pyarrow.large_binary())
            elif pyarrow.types.is_timestamp(column.type):
                column = column.cast(pyarrow.timestamp("s", column.type.tz), safe=False).cast(pyarrow.int64())
            return column.to_pylist()
        except (pyarrow.ArrowException, ValueError, OverflowError, LookupError, OSError) as error:
            # Python has no value for some times and time zones.
            raise bad_request(f"column '{name}' has a value that cannot be read: {error}") from None

    def _places(self, name: str, count: int) -> Iterator[str]:
        """Yield the exchange or the routing key of each row."""
        default = self._defaults[name]
        if name not in self._table.column_names:
            return repeat(default, count)
        values = self._values(name)
        for row, value in enumerate(values):
            if value is not None and len(octets_of(value)) > NAME_BYTES_MAX:
                raise bad_request(f"column '{name}' has more than {NAME_BYTES_MAX} bytes in row {row}")
        return (default if value is None else value for value in values)

    def _properties(self, names: list[str], columns: list[list[Any]], row: int) -> bytes:
        """Return the encoded properties of a row. Raises Refusal."""
        values = [column[row] for column in columns]
        key = tuple([tuple(value) if isinstance(value, list) else value for value in values])
        try:
            known = self._known.get(key)
        except TypeError:
            raise bad_request(f"column 'headers' has a value in row {row} that no header can have") from None
        if known is None:
            known = self._encoded(dict(zip(names, values, strict=True)), row)
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[key] = known
        return known

    def _encoded(self, values: dict[str, Any], row: int) -> bytes:
        encoded = {"delivery_mode": _PERSISTENT}
        name = ""
        try:
            for name, value in values.items():
                if value is not None and name not in ("headers", "delay"):
                    encoded[TEXTS.get(name, name)] = _property(name, value)
            name = "delay"
            delay = values.get("delay")
            if delay is not None and delay < 0:
                raise _Wrong("is negative")
            name = "headers"
            headers = _headers(values.get("headers")) | ({} if delay is None else {"x-delay": delay})
            if headers:
                encoded["headers"] = field_value(headers)[1:]
            properties = join_properties(encoded)
            check_properties(properties)
        except RecursionError:
            raise _wrong(name, row, _Wrong(too_deep())) from None
        except (ValueError, OverflowError, TypeError, FieldError) as error:
            raise _wrong(name, row, error) from None
        return properties


def _property(name: str, value: Any) -> bytes:
    if name in NUMBERS:
        if value not in NUMBERS[name]:
            raise _Wrong(f"is {value}, which this property cannot have")
    elif len(octets_of(value)) > NAME_BYTES_MAX:
        raise _Wrong(f"has more than {NAME_BYTES_MAX} bytes")
    return property_of(TEXTS.get(name, name), value)


def _headers(value: Any) -> dict[str, Any]:
    """Return the headers of a row, which are a JSON object, or the pairs of a map."""
    if value is None:
        return {}
    if isinstance(value, str) and len(value) > HEADERS_TEXT_MAX:
        raise _Wrong(f"has more than {HEADERS_TEXT_MAX} characters")
    found = json.loads(value) if isinstance(value, str) else dict(value)
    if not isinstance(found, dict):
        raise _Wrong("is no JSON object")
    for name, each in found.items():
        if isinstance(each, datetime) and each.tzinfo is None:
            found[name] = each.replace(tzinfo=UTC)  # as in the column `timestamp`
        if len(octets_of(name)) > NAME_BYTES_MAX:
            raise _Wrong(f"has a name of more than {NAME_BYTES_MAX} bytes")
        if not isinstance(each, None | bool | int | float | str | datetime | list | dict):
            raise _Wrong(f"has a header '{name}' of type {type(each).__name__}, which no header can have")
    return found


def _wrong(name: str, row: int, error: Exception) -> Refusal:
    return bad_request(f"column '{name}' does not fit in row {row}: {error}")


def _message(properties: bytes, body: bytes) -> bytes:
    """Return a stored message."""
    size = len(body)
    head = _HEAD.pack(layout.FRAME_HEADER, 1, 12 + len(properties), _CLASS_BASIC, 0, size)
    if size <= layout.FRAME_MAX - layout.FRAME_OVERHEAD:
        if not size:
            return b"".join((head, properties, _END))
        return b"".join((head, properties, _END, _FRAME.pack(layout.FRAME_BODY, 1, size), body, _END))
    return b"".join((head, properties, _END, body_frames(body, 1, layout.FRAME_MAX)))


def _union(flags: list[int]) -> int:
    union = 0
    for each in set(flags):
        union |= each
    return union
