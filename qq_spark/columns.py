"""The columns of a data frame of messages, and their Arrow types.

Invariant: the batches of a reader have exactly the Arrow schema that Spark derives from the schema of the data frame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
        try:
            arrays.append(batch.column(field.name).cast(field.type))
        except pa.ArrowInvalid as error:
            raise QueueSourceError(
                f"queue '{queue}' has a message that does not fit column '{field.name}' of type {field.type}: {error}"
            ) from None
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
