"""Messages as the rows that Spark gets of a lease."""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest

from qq.http.documents.arrow import COLUMNS, ArrowMessages
from qq.management.changes.leases import LeasedMessages
from qq.management.time_slices import Slices
from qq_spark.columns import COLUMNS as SPARK_COLUMNS
from qq_spark.columns import arrow_type, converted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

pa: Any = pytest.importorskip("pyarrow")


def rows_of(messages: Sequence[bytes], text: str) -> list[dict[str, Any]]:
    """Return the rows of messages, with a text as their exchange and routing key."""

    async def leased() -> AsyncIterator[LeasedMessages]:
        yield LeasedMessages(0, 0, text, text, False, 0, messages)

    async def stream() -> bytes:
        arrow = ArrowMessages(pa, "queue", list(COLUMNS))
        return b"".join([bytes(part) async for part in arrow.parts(leased(), Slices())])

    schema = pa.schema([(name, arrow_type(types[0])) for name, types in SPARK_COLUMNS.items()])
    batches = pa.ipc.open_stream(asyncio.run(stream()))
    return list(chain.from_iterable(converted(batch, schema, "queue").to_pylist() for batch in batches))


def refuse(constant: str) -> None:
    """Refuse a constant that JSON does not have, as `parse_constant` of a reader of JSON."""
    raise AssertionError(f"{constant} is not JSON")
