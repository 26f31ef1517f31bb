"""Takes the messages of queues into an archive: leases become files, then a manifest, and then leave the queue.

Invariant: a lease is committed only after its manifest is written, and a lease with a manifest is never read again. So
a run that ends at any step is continued by the next run, and the archive has each message once.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, NamedTuple

from qq_spark.archive.store import (
    Archive,
    ArchiveError,
    DataFile,
    Manifest,
    Series,
    data_name,
    leftovers,
    partition,
)
from qq_spark.client import LeaseClient, Parts
from qq_spark.columns import COLUMNS, arrow_type, converted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from qq_spark.archive.store import Contents
    from qq_spark.client import Access, Group, Lease

LEASE_MESSAGES = 500_000
LEASE_BYTES = 128 * 2**20
"""Bounds of a lease. A single larger message is a lease, too."""
PART_BYTES = 32 * 2**20
"""Bytes of the messages of a file, which a task holds in memory."""
BATCH_BYTES = 512 * 2**20
BATCH_LEASES = 100
"""Bounds of the leases that are archived by a job."""
ROW_GROUP = 65_536
SNAPSHOT_EXPIRES_MS = 600_000
"""Time after which the messages return to the queue if a snapshot ends in the middle."""
FILE_COLUMNS = {
    **{name: types[0] for name, types in COLUMNS.items()},
    "series": "string",
    "lease": "bigint",
    "archived": "timestamp",
}
"""Columns of the files, with their types in Spark. `archived` is when the lease was taken."""


class Part(NamedTuple):
    """A part of a lease, which a task writes to a file."""

    location: str
    access: Access
    series: Series
    generation: int
    """Number of the series' group as it was opened."""
    lease: int
    taken_ms: int
    parts: Parts

    @property
    def name(self) -> str:
        return data_name(self.series.name, self.lease, self.parts.part)


class Taken(NamedTuple):
    """Messages of a queue that a run has archived."""

    queue: str
    messages: int = 0
    bytes: int = 0
    """Bytes of the files."""
    files: int = 0


class Archiver:
    """Archives queues. `execute` writes parts to files, as `write_part` does, and returns the files in order."""

    def __init__(
        self,
        archive: Archive,
        client: LeaseClient,
        access: Access,
        execute: Callable[[Sequence[Part]], Sequence[DataFile]],
        *,
        keep: bool,
    ) -> None:
        self._archive = archive
        self._client = client
        self._access = access
        self._execute = execute
        self._keep = keep
        self._owner = f"archive {archive.location}"[:200]

    def run(self, queue: str) -> Taken:
        """Archive the messages of a queue that are ready now, after those of an earlier run that did not finish."""
        series = self._series(queue, self._archive.contents())
        group = self._client.take_over(queue, series.group, self._owner, self._settings)
        # A former owner that still lives may go on with these leases, and then writes the same files.
        contents = self._archive.contents()
        known = {each.lease for each in contents.manifests if each.series == series.name}
        pending = [lease for lease in group.leases if lease.number not in known]
        self._archive.delete(
            leftovers(contents, series, group.last_lease, [lease.number for lease in pending])
        )
        if not self._keep:
            self._commit(group, known, pending)
        taken = Taken(queue)
        for batch in self._batches(group, pending):
            taken = self._archived(series, group, batch, taken)
        if self._keep:
            self._archive.write_series(series._replace(is_complete=True))
            if self._client.group(queue, series.group) is not None:
                self._client.end_group(queue, series.group, group.fence, release=True)
        return taken

    @property
    def _settings(self) -> dict[str, object]:
        return {"expires_ms": SNAPSHOT_EXPIRES_MS} if self._keep else {}

    # Series

    def _series(self, queue: str, contents: Contents) -> Series:
        """Return the series of an earlier run if its group still exists, and otherwise begin a new series."""
        series = contents.series.get(queue)
        if series is not None:
            self._check_mode(series)
            group = self._client.group(queue, series.group)
            if group is not None and self._continues(series, group, contents):
                return series
            if group is not None:
                self._client.end_group(queue, series.group, group.fence, release=True)
            if series.is_complete:
                raise ArchiveError(
                    f"{self._archive.location} has a snapshot of queue '{queue}' already: use a new directory for a "
                    "further snapshot"
                )
            if series.is_snapshot:  # its messages are in the queue again
                self._archive.delete(each.name for each in contents.manifests if each.series == series.name)
        made = Series(queue, uuid.uuid4().hex[:12], self._keep)
        self._archive.write_series(made)
        return made

    def _check_mode(self, series: Series) -> None:
        if series.is_snapshot != self._keep:
            kind = "snapshots" if series.is_snapshot else "messages that left the queue"
            option = "without" if self._keep else "with"
            raise ArchiveError(
                f"{self._archive.location} is for {kind} of queue '{series.queue}': archive it {option} --keep, or in "
                "a new directory"
            )

    def _continues(self, series: Series, group: Group, contents: Contents) -> bool:
        """Return whether a group has all leases of its series. It has fewer in a cluster restored from a backup."""
        found = (each.lease for each in contents.manifests if each.series == series.name)
        newest = max(series.deleted_up_to, *found, -1)
        if group.committed > newest:
            raise ArchiveError(
                f"{self._archive.location} lacks leases {newest + 1} to {group.committed} of queue "
                f"'{series.queue}', which have left the queue: the archive was cut. Use a new directory"
            )
        return group.last_lease >= newest and not series.is_complete

    # Leases

    def _commit(self, group: Group, known: set[int], pending: Sequence[Lease]) -> None:
        """Commit the leases that an earlier run has archived."""
        first = min((lease.number for lease in pending), default=group.last_lease + 1)
        done = [lease.number for lease in group.leases if lease.number in known and lease.number < first]
        if done:
            self._client.commit(group.queue, group.name, group.fence, max(done))

    def _batches(self, group: Group, pending: Sequence[Lease]) -> Iterator[list[Lease]]:
        """Yield the leases of a job each: open leases, and then new leases."""
        batch: list[Lease] = []
        for lease in self._leases(group, pending):
            batch.append(lease)
            if len(batch) == BATCH_LEASES or sum(each.bytes for each in batch) >= BATCH_BYTES:
                yield batch
                batch = []
        if batch:
            yield batch

    def _leases(self, group: Group, pending: Sequence[Lease]) -> Iterator[Lease]:
        yield from pending
        allowed, number = group.ready, max(group.last_lease, group.committed) + 1
        while allowed > 0:
            wanted = min(allowed, LEASE_MESSAGES)
            lease = self._client.take(group.queue, group.name, group.fence, number, wanted, LEASE_BYTES)
            if lease is None:
                return
            yield lease
            allowed -= lease.messages
            number += 1

    def _archived(self, series: Series, group: Group, batch: Sequence[Lease], taken: Taken) -> Taken:
        """Write the files and the manifests of leases, and commit them."""
        if self._keep:  # the group must not expire: the same lease again is a sign of life
            first = batch[0]
            self._client.take(
                series.queue, series.group, group.fence, first.number, first.messages, LEASE_BYTES
            )
        parts = [part for lease in batch for part in self._parts(series, group, lease)]
        written = list(zip(parts, self._execute(parts), strict=True))
        for lease in batch:
            files = tuple(file for part, file in written if part.lease == lease.number)
            found = sum(file.messages for file in files)
            if found != lease.messages:
                raise ArchiveError(
                    f"lease {lease.number} of queue '{series.queue}' gave {found} messages of {lease.messages}"
                )
            self._archive.write_manifest(
                Manifest(
                    series.queue,
                    series.name,
                    group.queue_number,
                    lease.number,
                    lease.taken_ms,
                    lease.messages,
                    files,
                )
            )
            taken = Taken(
                taken.queue,
                taken.messages + found,
                taken.bytes + sum(file.bytes for file in files),
                taken.files + len(files),
            )
        if not self._keep:
            self._client.commit(series.queue, series.group, group.fence, batch[-1].number)
        return taken

    def _parts(self, series: Series, group: Group, lease: Lease) -> list[Part]:
        """Divide a lease. The parts depend on the lease only, as repeated attempts must write the same files."""
        count = max(min(-(-lease.bytes // PART_BYTES), lease.messages, 1_024), 1)
        return [
            Part(
                self._archive.location,
                self._access,
                series,
                group.generation,
                lease.number,
                lease.taken_ms,
                Parts(part, count),
            )
            for part in range(count)
        ]


def write_part(part: Part) -> DataFile:
    """Write the messages of a part to its file."""
    with LeaseClient(part.access) as client:
        return write_part_with(client, part)


def write_part_with(client: LeaseClient, part: Part) -> DataFile:
    import pyarrow as pa  # noqa: PLC0415 - only tasks need it
    from pyarrow import parquet  # noqa: PLC0415 - the same

    series = part.series
    place = series.queue, series.group, part.lease
    messages = client.read(*place, part.parts, list(COLUMNS), part.generation)
    schema = pa.schema([(name, arrow_type(FILE_COLUMNS[name])) for name in COLUMNS])
    batches = [converted(batch, schema, series.queue) for batch in messages]
    table = pa.Table.from_batches(batches, schema)
    for name, value in (("series", series.name), ("lease", part.lease), ("archived", part.taken_ms * 1000)):
        kind = arrow_type(FILE_COLUMNS[name])
        table = table.append_column(name, pa.repeat(pa.scalar(value, kind), table.num_rows))
    archive = Archive(part.location)
    with archive.writing(f"{partition(series.queue, part.taken_ms)}/{part.name}") as file:
        parquet.write_table(table, file, compression="zstd", row_group_size=ROW_GROUP)
    return DataFile(part.name, table.num_rows, file.length, file.sha256())
