"""The schemas of the job: rows of a history, queues of a run, violations."""

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
"""Column beside those of `HISTORY`: the text of a malformed line, else null."""
FILE = "file"
"""Column beside those of `HISTORY`: the file of the row."""
BLOCK, PLACE = "block", "place"
"""Columns beside those of `HISTORY`, for rows in lines: start of the block, and place within it.

A task reads a block of a file and numbers its lines upwards.
"""

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
"""`queues` of meta.json, a row for each queue."""

REACH = StructType([StructField("queue", StringType()), StructField("target", StringType())])
"""The queues that a message of a queue may reach: the queue itself, and all dead-letter targets behind it."""

VIOLATION = ("promise", "queue", "id", "op", "time_ns")
"""Columns of a violation: the promise, and the row of the history that shows the violation best."""
