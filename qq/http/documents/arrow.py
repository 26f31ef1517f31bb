"""Messages of a lease as an Arrow stream.

A batch is built from lists of Python values, a few hundred messages at a time: other tasks run in between. Equal
properties are decoded once. A column that the reader does not want costs nothing.

pyarrow is imported with the first stream, and on a thread, because that takes half a second.
"""

from __future__ import annotations

import asyncio
import importlib
import json
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

from qq.http.documents.rendering import properties_document
from qq.machine.policy.value_checks import INTEGERS
from qq.octets import readable
from qq.stored import layout
from qq.stored.editing import body_of
from qq.stored.fields import SECONDS_MAX, decode_properties

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence

    from qq.management.changes.leases import LeasedMessages
    from qq.management.time_slices import Slices

CONTENT_TYPE = "application/vnd.apache.arrow.stream"
BATCH_BYTES = 1024 * 1024
BATCH_ROWS = 8_192
"""Bytes of bodies, and messages, from which on a batch is written."""
KNOWN_MAX = 4_096
KNOWN_BYTES_MAX = 1_024
"""Property lists whose values are remembered in a stream, and the bytes of each."""
_END = b"\xff\xff\xff\xff\0\0\0\0"
"""The end mark of an Arrow stream."""

COLUMNS = {
    "row": "int64",
    "position": "int64",
    "queue": "string",
    "exchange": "string",
    "routing_key": "string",
    "body": "binary",
    "redelivered": "bool_",
    "deliveries": "int32",
    "properties": "string",
    "headers": "string",
    "octets": "binary",
    "timestamp": "",
    "publisher_id": "string",
    "publish_seq": "int64",
}
"""Column -> the function of pyarrow that makes its type; a timestamp has a unit and a zone, too."""


class _Values(NamedTuple):
    """The columns that come from a property list."""

    properties: str | None
    headers: str | None
    timestamp: int | None
    """Milliseconds since 1970."""
    publisher_id: str | None
    publish_seq: int | None


_BY_PROPERTIES = frozenset(_Values._fields)


async def load_pyarrow() -> Any:
    """Return the module pyarrow. Raises ImportError if it is not installed."""
    return await asyncio.to_thread(importlib.import_module, "pyarrow")


class ArrowMessages:
    """Turns messages into an Arrow stream with the wanted columns."""

    def __init__(self, pyarrow: Any, queue: str, columns: Sequence[str]) -> None:
        self._pyarrow = pyarrow
        self._queue = queue
        types = [
            getattr(pyarrow, COLUMNS[name])() if COLUMNS[name] else pyarrow.timestamp("ms", "UTC")
            for name in columns
        ]
        self._schema = pyarrow.schema(list(zip(columns, types, strict=True)))
        self._values: dict[str, list[Any]] = {name: [] for name in columns}
        self._needs_values = not _BY_PROPERTIES.isdisjoint(columns)
        self._known: dict[bytes, _Values] = {}
        self._rows = self._bytes = 0

    async def parts(
        self, messages: AsyncIterator[LeasedMessages], slices: Slices
    ) -> AsyncGenerator[memoryview]:
        """Yield the octets of the stream, and let other tasks run between `slices` of the work."""
        yield memoryview(self._schema.serialize())
        async for each in messages:
            self._add(each)
            del each  # a large message must not stay in memory while the client reads
            await slices.give_way()
            if self._bytes >= BATCH_BYTES or self._rows >= BATCH_ROWS:
                yield self._batch()
                await slices.give_way()
        if self._rows:
            yield self._batch()
        yield memoryview(_END)

    def _batch(self) -> memoryview:
        """Return the messages added since the last batch."""
        # The system's memory, because pyarrow's own pool keeps the largest batches of all streams.
        pyarrow, pool = self._pyarrow, self._pyarrow.system_memory_pool()
        columns = [
            pyarrow.array(values, field.type, memory_pool=pool)
            for values, field in zip(self._values.values(), self._schema, strict=True)
        ]
        for values in self._values.values():
            values.clear()
        self._rows = self._bytes = 0
        return memoryview(pyarrow.record_batch(columns, schema=self._schema).serialize(memory_pool=pool))

    def _add(self, some: LeasedMessages) -> None:
        messages, count = some.messages, len(some.messages)
        self._rows += count
        self._bytes += sum(map(len, messages))
        octets = [message[layout.FLAGS_AT : layout.frame_stop(message, 0) - 1] for message in messages]
        values = list(map(self._values_of, octets)) if self._needs_values else []
        made: dict[str, Callable[[], Iterable[Any]]] = {
            "row": lambda: range(some.row, some.row + count),
            "position": lambda: range(some.position, some.position + count),
            "queue": lambda: repeat(self._queue, count),
            "exchange": lambda: repeat(readable(some.exchange), count),
            "routing_key": lambda: repeat(readable(some.routing_key), count),
            "body": lambda: map(body_of, messages),
            "redelivered": lambda: repeat(some.is_redelivered, count),
            "deliveries": lambda: repeat(some.deliveries, count),
            "octets": lambda: octets,
        }
        for name, column in self._values.items():
            if name in _BY_PROPERTIES:
                column += [getattr(each, name) for each in values]
            else:
                column += made[name]()

    def _values_of(self, octets: bytes) -> _Values:
        known = self._known.get(octets)
        if known is None:
            known = _values_of(octets)
            if len(octets) <= KNOWN_BYTES_MAX:
                if len(self._known) >= KNOWN_MAX:
                    self._known.clear()
                self._known[octets] = known
        return known


def _values_of(octets: bytes) -> _Values:
    properties = decode_properties(octets)
    document = properties_document(properties)
    headers = document.pop("headers", None)
    table = properties.headers or {}
    publisher, sequence = table.get("x-publisher-id"), table.get("x-publish-seq")
    return _Values(
        json.dumps(document) if document else None,
        json.dumps(headers) if headers else None,
        _milliseconds(properties.timestamp),
        publisher if isinstance(publisher, str) else None,
        sequence if type(sequence) is int and sequence in INTEGERS else None,
    )


def _milliseconds(timestamp: object) -> int | None:
    """Return the property `timestamp` in milliseconds, or `None` if no Arrow timestamp can hold it."""
    if not isinstance(timestamp, int) or timestamp not in INTEGERS:
        return None
    return timestamp * 1000 if timestamp <= SECONDS_MAX else timestamp
