"""Arrow streams from clients.

Invariants: the values of a batch are read after pyarrow has validated all of its offsets, lengths and texts, because
pyarrow itself trusts them and would read foreign memory. And a stream takes no more memory than its octets: compressed
batches are refused before pyarrow would decompress them.
"""

from __future__ import annotations

import struct
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from qq.http.base.error_responses import Refusal, bad_request
from qq.management.time_slices import Slices

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS_MAX = 65_536
"""Rows of a stream. An empty batch counts as a row."""

_HEADER, _ENDIANNESS, _COMPRESSION = 2, 0, 3
"""Fields of Arrow's flatbuffers: of a message, of a schema, of a record batch."""
_SLOTS_AT = 4
_SCHEMA, _BATCH = "schema", "record batch"


async def read_table(pyarrow: Any, octets: bytes, check_schema: Callable[[Any], None]) -> Any:
    """Return the table of a stream. Raises Refusal.

    `check_schema` refuses schemas; it must refuse dictionaries, extension types and nested types that it does not know.
    """
    try:
        reader = pyarrow.ipc.MessageReader.open_stream(octets)
        schema = pyarrow.ipc.read_schema(_little_endian(reader.read_next_message()))
        check_schema(schema)
        batches, rows, slices = [], 0, Slices()
        for message in iter(reader):
            batch = _batch(pyarrow, message, schema)
            batches.append(batch)
            rows += max(batch.num_rows, 1)
            if rows > ROWS_MAX:
                raise Refusal(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body has more than {ROWS_MAX} rows, the limit"
                )
            await slices.give_way()
        return pyarrow.Table.from_batches(batches, schema).combine_chunks()  # thousands of chunks are slow
    except StopIteration:
        raise bad_request("the body is no Arrow stream: it has no schema") from None
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError, struct.error) as error:
        raise bad_request(f"the body is no Arrow stream: {error}") from None


def _little_endian(message: Any) -> Any:
    """Return the message of a schema, unless its batches would have to be converted. Raises ValueError."""
    if message.type != _SCHEMA:
        raise ValueError(f"it begins with a {message.type}")
    if _header_field(memoryview(message.metadata), _ENDIANNESS):
        raise ValueError("its numbers are big-endian")
    return message


def _batch(pyarrow: Any, message: Any, schema: Any) -> Any:
    """Return a validated batch. Raises Refusal, ValueError, ArrowException."""
    if message.type != _BATCH:
        raise ValueError(f"it has a {message.type} behind its schema")
    if _header_field(memoryview(message.metadata), _COMPRESSION):
        raise bad_request("a batch of the Arrow stream is compressed: send it without compression")
    batch = pyarrow.ipc.read_record_batch(message, schema)
    batch.validate(full=True)
    return batch


def _header_field(metadata: memoryview, field: int) -> int:
    """Return where the header of a message has a field, or 0 if the header lacks it. Raises struct.error."""
    (message,) = struct.unpack_from("<I", metadata)
    at = _field(metadata, message, _HEADER)
    (header,) = struct.unpack_from("<I", metadata, at)
    return _field(metadata, at + header, field)


def _field(metadata: memoryview, table: int, field: int) -> int:
    (back,) = struct.unpack_from("<i", metadata, table)
    slots = table - back
    (size,) = struct.unpack_from("<H", metadata, slots)
    slot = _SLOTS_AT + 2 * field
    if slot >= size:
        return 0
    (at,) = struct.unpack_from("<H", metadata, slots + slot)
    return table + at if at else 0
