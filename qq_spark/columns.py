"""The columns of a data frame of messages, and their Arrow types.

Invariant: the batches of a reader have exactly the Arrow schema that Spark derives from the schema of the data frame.
Each message that the broker accepts has a row, except for a body that is no text in a column of texts.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from qq_spark.errors import QueueSourceError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from qq_spark.arrow import Array, DataType, RecordBatch, Schema

COLUMNS = {
    "body": ("binary", "string"),
    "routing_key": ("string",),
    "exchange": ("string",),
    "queue": ("string",),
    "timestamp": ("timestamp",),
    "properties": ("string",),
    "headers": ("string",),
    "redelivered": ("boolean",),
    "deliveries": ("int",),
    "publisher_id": ("string",),
    "publish_seq": ("bigint",),
    "position": ("bigint",),
    "row": ("bigint",),
    "octets": ("binary",),
}
"""The types that each column may have, the usual type first."""
SCHEMA = ", ".join(f"{name} {types[0]}" for name, types in COLUMNS.items())
TIME_MAX_MS = 253_402_300_799_999
"""The end of the year 9999: Python shows no later time, and Spark's microseconds overflow soon after."""


def check_columns(schema: StructType) -> None:
    """Raise QueueSourceError unless the messages can fill a schema."""
    for field in schema.fields:
        types = COLUMNS.get(field.name)
        if types is None:
            raise QueueSourceError(
                f"a queue has no column '{field.name}'; its columns are: {', '.join(COLUMNS)}"
            )
        if field.dataType.simpleString() not in types:
            raise QueueSourceError(
                f"column '{field.name}' must be {' or '.join(types)}: {field.dataType.simpleString()}"
            )


def arrow_schema(schema: StructType) -> Schema:
    """Return the Arrow schema of a data frame."""
    import pyarrow as pa  # noqa: PLC0415 - only tasks need it

    return pa.schema(
        [
            pa.field(field.name, arrow_type(field.dataType.simpleString()), field.nullable)
            for field in schema.fields
        ]
    )


def arrow_type(name: str) -> DataType:
    """Return the Arrow type of a type of Spark."""
    import pyarrow as pa  # noqa: PLC0415 - only tasks need it

    types = {
        "binary": pa.binary(),
        "string": pa.string(),
        "timestamp": pa.timestamp("us", "UTC"),
        "boolean": pa.bool_(),
        "int": pa.int32(),
        "bigint": pa.int64(),
    }
    return types[name]


def converted(batch: RecordBatch, schema: Schema, queue: str) -> RecordBatch:
    """Return a batch of a node with the schema of the data frame."""
    import pyarrow as pa  # noqa: PLC0415 - only tasks need it

    arrays: list[Array] = []
    for field in schema:
        column = batch.column(field.name)
        if field.name == "timestamp":
            column = _valid_times(column)
        try:
            arrays.append(column.cast(field.type))
        except pa.ArrowInvalid as error:
            raise QueueSourceError(
                f"queue '{queue}' has a message that does not fit column '{field.name}' of type {field.type}: {error}"
            ) from None
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _valid_times(times: Any) -> Array:
    """Replace times after the year 9999 by null; the column `properties` has their numbers."""
    import pyarrow as pa  # noqa: PLC0415 - only tasks need it

    compute: Any = import_module("pyarrow.compute")
    is_valid = compute.less_equal(times, pa.scalar(TIME_MAX_MS, times.type))
    return compute.if_else(is_valid, times, pa.scalar(None, times.type))
