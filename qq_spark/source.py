"""The format `qq` of Spark: leases as micro-batches of a stream, or as a data frame.

Invariant: a reader makes no request until Spark plans with it, because Spark makes further readers for other purposes.
`read` depends on its partition only.
"""

from __future__ import annotations

import os
import socket
import uuid
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)

from qq_spark.client import ANY_GENERATION, LeaseClient
from qq_spark.columns import SCHEMA, arrow_schema, check_columns, converted
from qq_spark.errors import QueueSourceError, Refusal
from qq_spark.options import batch_options, stream_options, writer_options
from qq_spark.planner import NO_LIMITS, Limits, OpenedLease, Planner, Slice, divided
from qq_spark.sink import QueueStreamWriter, QueueWriter, check_sink_columns

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql.types import StructType

    from qq_spark.arrow import RecordBatch
    from qq_spark.client import Access, Lease
    from qq_spark.options import BatchOptions, StreamOptions
    from qq_spark.planner import Offset

try:
    _streaming: Any = import_module("pyspark.sql.streaming.datasource")
except ImportError:  # before PySpark 4.2
    _streaming = None

_SNAPSHOT_FENCE = 0
_RETURNED = (404, 409, 412)
"""Statuses for a lease that is not open any more; 409 if its group was opened again since."""
_SNAPSHOT_LEASES_MAX = 1_000


class MessagesPartition(InputPartition):
    """The parts of leases that a task reads."""

    def __init__(self, slices: Sequence[Slice]) -> None:
        super().__init__(list(slices))


class QueueSource(DataSource):
    """Queues as data frames."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._snapshot = f"snapshot-{uuid.uuid4().hex}"
        """Group of a snapshot: all actions of a data frame read the same messages."""

    @classmethod
    def name(cls) -> str:
        return "qq"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        check_columns(schema)
        return QueueReader(batch_options(self.options), schema, self._snapshot)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        check_columns(schema)
        return QueueStreamReader(stream_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        options = writer_options(self.options, is_stream=False)
        check_sink_columns(schema, options, overwrite=overwrite)
        return QueueWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        options = writer_options(self.options, is_stream=True)
        check_sink_columns(schema, options, overwrite=overwrite)
        return QueueStreamWriter(options)


def _read(access: Access, schema: StructType, partition: InputPartition) -> Iterator[RecordBatch]:
    """Yield the messages of a partition, in order."""
    wanted = arrow_schema(schema)
    with LeaseClient(access) as client:
        for each in partition.value:
            for batch in client.read(
                each.queue, each.group, each.lease, each.parts, wanted.names, each.generation
            ):
                yield converted(batch, wanted, each.queue)


class QueueReader(DataSourceReader):
    """Reads open leases, or a snapshot of the ready messages of a queue."""

    def __init__(self, options: BatchOptions, schema: StructType, snapshot: str) -> None:
        self._options = options
        self._schema = schema
        self._group = options.source.group or snapshot

    def partitions(self) -> list[InputPartition]:
        options = self._options
        with LeaseClient(options.source.access) as client:
            if options.leases is None:
                generation, leases = self._snapshot(client)
            else:
                first, last = options.leases
                group = client.group(options.queue, self._group)
                generation = ANY_GENERATION if group is None else group.generation
                leases = [
                    client.lease(options.queue, self._group, number) for number in range(first, last + 1)
                ]
        opened = [OpenedLease(options.queue, generation, lease) for lease in leases]
        tasks = divided(opened, self._group, options.source.partitions)
        return [MessagesPartition(slices) for slices in tasks] or [MessagesPartition(())]

    def _snapshot(self, client: LeaseClient) -> tuple[int, Sequence[Lease]]:
        """Lease the ready messages, or find the leases of an earlier action. Return the group's generation, too."""
        options = self._options
        settings = options.source.settings | {"expires_ms": options.hold_s * 1000}
        group = client.open_group(options.queue, self._group, _SNAPSHOT_FENCE, "spark.read", settings)
        if group.leases:
            return group.generation, group.leases
        leases: list[Lease] = []
        wanted = options.messages
        first = max(group.committed, group.last_lease) + 1
        for number in range(first, first + _SNAPSHOT_LEASES_MAX):
            lease = client.take(
                options.queue, self._group, group.fence, number, min(wanted, 1_000_000), NO_LIMITS.bytes
            )
            if lease is None:
                break
            leases.append(lease)
            wanted -= lease.messages
            if wanted <= 0:
                break
        return group.generation, leases

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        options = self._options
        try:
            yield from _read(options.source.access, self._schema, partition)
        except Refusal as refusal:
            if options.leases is None and refusal.status in _RETURNED:
                raise QueueSourceError(
                    f"the messages of this snapshot of queue '{options.queue}' have returned to it: load it again, "
                    f"and read it within option 'holdSeconds' ({options.hold_s} s)"
                ) from refusal
            raise


class QueueStreamReader(DataSourceStreamReader):
    """Reads leases of a group as micro-batches."""

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._planner: Planner | None = None

    def _plan(self) -> Planner:
        """Return the planner, which the driver's reader alone has."""
        if self._planner is None:
            owner = f"spark on {socket.gethostname()}, process {os.getpid()}, run {uuid.uuid4().hex[:8]}"
            self._planner = Planner(self._options, LeaseClient(self._options.source.access), owner)
        return self._planner

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        return self._plan().initial()

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:  # noqa: N802 - Spark's name
        """Return the end of the next batch. Before PySpark 4.2, Spark passes no arguments."""
        limits = Limits(self._options.messages, self._options.bytes)
        if limit is not None and isinstance(limit, _streaming.ReadAllAvailable):
            limits = NO_LIMITS
        return self._plan().latest(start, limits)

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - Spark's name
        return _streaming.ReadMaxRows(self._options.messages)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._plan().prepare_available_now()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        return [MessagesPartition(slices) for slices in self._plan().slices(start, end)]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        return _read(self._options.source.access, self._schema, partition)

    def commit(self, end: Offset) -> None:
        self._plan().commit(end)

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.close()


if _streaming is not None:
    _streaming.SupportsTriggerAvailableNow.register(QueueStreamReader)
