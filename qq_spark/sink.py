"""Writers of data frames: tasks store messages in a sink, and the driver commits an epoch.

Invariant: a task writes to an attempt of its own, with a random name. The driver commits only attempts that Spark
reports as finished. The epoch is the number of the micro-batch, and the sink belongs to the checkpoint: its name is the
id of the query, which the checkpoint has. So a repeated micro-batch is published once, whatever died before.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, NamedTuple

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from qq_spark.errors import QueueSourceError
from qq_spark.sink_client import SinkClient, pieces

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql.types import StructType

    from qq_spark.arrow import RecordBatch
    from qq_spark.options import WriterOptions

_BATCH_EXPIRES_MS = 24 * 60 * 60 * 1000
"""Milliseconds after which the sink of a batch ends that failed together with its driver."""
_TEXT, _NUMBER = ("string",), ("tinyint", "smallint", "int", "bigint")
_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "body": ("binary", "string"),
    "exchange": _TEXT,
    "routing_key": _TEXT,
    "content_type": _TEXT,
    "content_encoding": _TEXT,
    "correlation_id": _TEXT,
    "reply_to": _TEXT,
    "expiration": _TEXT,
    "message_id": _TEXT,
    "type": _TEXT,
    "app_id": _TEXT,
    "delivery_mode": _NUMBER,
    "priority": _NUMBER,
    "timestamp": (*_NUMBER, "timestamp"),
    "headers": ("map<string,...>", *_TEXT),
    "delay": _NUMBER,
}
"""The types that each column may have."""
_HEADER_TYPES = ("string", "boolean", *_NUMBER, "float", "double", "timestamp")


def check_sink_columns(schema: StructType, options: WriterOptions, *, overwrite: bool) -> None:
    """Raise QueueSourceError unless a data frame can be written."""
    if overwrite:
        raise QueueSourceError("a queue cannot be overwritten: use the mode 'append'")
    names = [field.name for field in schema.fields]
    for field in schema.fields:
        types = _COLUMNS.get(field.name)
        if types is None:
            raise QueueSourceError(
                f"a message has no column '{field.name}', so select others; the columns are: {', '.join(_COLUMNS)}"
            )
        kind = field.dataType.simpleString()
        is_map = field.name == "headers" and kind in {f"map<string,{each}>" for each in _HEADER_TYPES}
        if kind not in types and kind != "void" and not is_map:
            raise QueueSourceError(f"column '{field.name}' must be {' or '.join(types)}: {kind}")
    if "body" not in names:
        raise QueueSourceError("column 'body' is missing")
    if "routing_key" not in names and not any(options.defaults.values()) and "exchange" not in names:
        raise QueueSourceError(
            "option 'queue' is missing: the name of a queue, or use option 'exchange', or column 'routing_key'"
        )


class Written(NamedTuple):
    """What a task has stored."""

    sink: str
    attempt: str
    steps: int | None
    """The number of steps; `None` if the epoch was committed before."""


class AttemptMessage(WriterCommitMessage):
    """A task's report to the driver."""

    def __init__(self, written: Written | None) -> None:
        """`written` is `None` if the messages were published at once."""
        self.written = written


def _stored(
    options: WriterOptions, sink: str, epoch: int, expires_ms: int, batches: Iterator[RecordBatch]
) -> AttemptMessage:
    """Store the rows of a task."""
    attempt, steps = uuid.uuid4().hex, 0
    with SinkClient(options.access) as client:
        for batch in batches:
            for piece in pieces(batch):
                if not steps:
                    client.open(sink, expires_ms)
                after = client.stage(sink, epoch, attempt, steps, piece, options.defaults)
                if after is None:
                    return AttemptMessage(Written(sink, attempt, None))
                steps = after
    return AttemptMessage(Written(sink, attempt, steps))


def _published(options: WriterOptions, batches: Iterator[RecordBatch]) -> AttemptMessage:
    """Publish the rows of a task at once."""
    with SinkClient(options.access) as client:
        for batch in batches:
            for piece in pieces(batch):
                client.publish(piece, options.defaults)
    return AttemptMessage(None)


def _commit(options: WriterOptions, epoch: int, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Commit the attempts of all tasks, unless the epoch was committed before."""
    all_written = [each.written for each in messages if isinstance(each, AttemptMessage) and each.written]
    if any(written.steps is None for written in all_written):
        return
    attempts = {written.attempt: written.steps for written in all_written if written.steps}
    if attempts:
        with SinkClient(options.access) as client:
            client.commit(all_written[0].sink, epoch, attempts)


class QueueWriter(DataSourceArrowWriter):
    """Writes a data frame as a single epoch."""

    def __init__(self, options: WriterOptions) -> None:
        self._options = options
        self._own_sink = f"write-{uuid.uuid4().hex}" if options.sink is None else None
        """The sink of this batch alone, which ends with it."""

    def write(self, iterator: Iterator[RecordBatch]) -> AttemptMessage:
        options = self._options
        if not options.is_exactly_once:
            return _published(options, iterator)
        expires_ms = _BATCH_EXPIRES_MS if self._own_sink else 0
        return _stored(
            options, self._own_sink or options.sink or "", options.epoch or 0, expires_ms, iterator
        )

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _commit(self._options, self._options.epoch or 0, messages)
        self._end()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - Spark's signature
        self._end()

    def _end(self) -> None:
        if self._own_sink and self._options.is_exactly_once:
            with SinkClient(self._options.access) as client:
                client.end(self._own_sink)


class QueueStreamWriter(DataSourceStreamArrowWriter):
    """Writes each micro-batch of a stream as an epoch."""

    def __init__(self, options: WriterOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[RecordBatch]) -> AttemptMessage:
        options = self._options
        if not options.is_exactly_once:
            return _published(options, iterator)
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
        epoch = None if context is None else context.getLocalProperty("streaming.sql.batchId")
        if query is None or epoch is None:
            raise QueueSourceError(
                "Spark does not name the micro-batch, so it cannot be written exactly once: use a trigger with "
                "micro-batches, or option 'guarantee' (at-least-once)"
            )
        return _stored(options, options.sink or f"query-{query}", int(epoch), 0, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        _commit(self._options, batchId, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: the next commit drops the attempts."""
