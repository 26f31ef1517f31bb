"""What the job reads and writes: rows of a history, queues of a run, violations."""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from chaos.history import FIELD_TYPES

_SPARK = {int: LongType(), str: StringType(), bool: BooleanType()}
_DEATH = StructType([StructField(name, _SPARK[str]) for name in ("queue", "reason")]).add(
    "count", _SPARK[int]
)

HISTORY = StructType(
    [StructField(name, _SPARK.get(type_) or ArrayType(_DEATH)) for name, type_ in FIELD_TYPES.items()]
)
"""A row of a history."""

BROKEN = "broken"
"""Column beside those of `HISTORY`: the text of a line that is no row, else null."""
FILE = "file"
"""Column beside those of `HISTORY`: where the row was read."""
BLOCK, PLACE = "block", "place"
"""Columns beside those of `HISTORY`, of rows in lines: a task reads a block of a file and numbers its lines upwards."""

QUEUES = StructType(
    [
        StructField("queue", StringType()),
        StructField("workload", StringType()),
        StructField("delivery_limit", LongType()),
        StructField("max_length", LongType()),
        StructField("dead_letters_to", StringType()),
        StructField("drained", BooleanType()),
        StructField("single_active", BooleanType()),
        StructField("priorities", BooleanType()),
        StructField("dedup", BooleanType()),
    ]
)
"""`queues` of meta.json, one a row."""

REACH = StructType([StructField("queue", StringType()), StructField("target", StringType())])
"""Where a message of a queue may turn up: there, and wherever its dead letters go, and theirs."""

VIOLATION = ("promise", "queue", "id", "op", "time_ns")
"""Columns of what a promise's transform gives: which row of the history shows the violation best."""
