"""The files of an archive, in a directory of this machine or an object store.

Invariant: a file has its name only when it is complete, and a local file also is on disk then. A manifest and its files
have names that depend on the lease only, so a repeated attempt writes the same files.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import uuid
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from qq_spark.errors import QueueSourceError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

FORMAT = 1
PACKAGES = "pip install 'qq-broker[spark]'"
_ARCHIVE = "_archive.json"
_QUEUE = "_queue.json"
_DELETED = "_deleted.json"
"""Marks a partition whose files are being deleted."""
_MANIFEST = re.compile(r"_manifest-([0-9a-f]+)-(\d+)\.json")
_TEMPORARY = "_temporary-"
_DATA = re.compile(r"([0-9a-f]+)-(\d+)-(\d+)\.parquet")
_ESCAPED = re.compile(r"""[\x00-\x1f\x7f"#%'*/:=?\\{[\]^]""")
"""The characters that Hive and Spark escape in the names of partitions."""
_NAME_BYTES_MAX = 200
"""Longest name of a queue in the name of a directory, in bytes."""


class ArchiveError(QueueSourceError):
    """An archive cannot be read or written. The text names the file."""


class DataFile(NamedTuple):
    """A Parquet file with a part of a lease."""

    name: str
    messages: int
    bytes: int
    sha256: str


class Series(NamedTuple):
    """The group with which a queue is archived."""

    queue: str
    name: str
    is_snapshot: bool
    """Whether the messages return to the queue."""
    is_complete: bool = False
    """Whether a snapshot has all its messages."""
    deleted_up_to: int = -1
    """The highest lease whose files were deleted because of their age."""

    @property
    def group(self) -> str:
        return f"archive-{self.name}"

    def counts(self, series: str) -> bool:
        """Return whether messages of a series are in the archive, which has a single and whole snapshot of a queue."""
        return not self.is_snapshot or (self.is_complete and series == self.name)


class Manifest(NamedTuple):
    """A lease whose messages are in the archive."""

    queue: str
    series: str
    queue_number: int
    lease: int
    taken_ms: int
    """When the lease was taken, in milliseconds since 1970."""
    messages: int
    files: tuple[DataFile, ...]

    @property
    def directory(self) -> str:
        return partition(self.queue, self.taken_ms)

    @property
    def name(self) -> str:
        return f"{self.directory}/_manifest-{self.series}-{self.lease:012}.json"


class Contents(NamedTuple):
    """The files of an archive at a moment."""

    sizes: dict[str, int]
    """Bytes of each file, by its path in the archive."""
    series: dict[str, Series]
    """The present series of each queue."""
    manifests: list[Manifest]
    """In the order of the messages."""
    deleted: frozenset[str]
    """Partitions whose files are being deleted."""

    def finished(self, queues: Iterable[str] = ()) -> list[Manifest]:
        """Return the manifests of some or all queues, without unfinished snapshots. Raise ArchiveError."""
        wanted = set(queues)
        if unknown := sorted(wanted - self.series.keys()):
            known = ", ".join(sorted(self.series)) or "none"
            raise ArchiveError(f"the archive has no queue '{unknown[0]}'; its queues are: {known}")
        return [
            each
            for each in self.manifests
            if (not wanted or each.queue in wanted) and self.series[each.queue].counts(each.series)
        ]


def partition(queue: str, taken_ms: int) -> str:
    """Return the directory of a queue and a date (UTC) in the archive."""
    day = datetime.fromtimestamp(taken_ms / 1000, UTC).date()
    return f"{queue_directory(queue)}/date={day.isoformat()}"


def queue_directory(queue: str) -> str:
    name = _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", queue)
    octets = name.encode()
    if len(octets) > _NAME_BYTES_MAX:
        kept = octets[:_NAME_BYTES_MAX].decode(errors="ignore").rpartition("%")[0]
        name = f"{kept}~{hashlib.sha256(queue.encode()).hexdigest()[:16]}"
    return f"queue={name}"


def data_name(series: str, lease: int, part: int) -> str:
    return f"{series}-{lease:012}-{part:04}.parquet"


class Archive:
    """The directory of an archive: a path, or a URI that pyarrow knows, such as `s3://bucket/orders`."""

    def __init__(self, location: str) -> None:
        """Raise ArchiveError if pyarrow is missing or does not know the location."""
        try:
            from pyarrow import ArrowException, fs  # noqa: PLC0415 - the client needs no pyarrow
        except ImportError:
            raise ArchiveError(f"an archive needs the package pyarrow: {PACKAGES}") from None
        self.location = location.rstrip("/") or "/"
        self._fs: Any = fs
        self._errors: tuple[type[Exception], ...] = (OSError, ArrowException)
        try:
            if "://" in location:
                self._files, self._root = fs.FileSystem.from_uri(self.location)
            else:
                self._files, self._root = fs.LocalFileSystem(), os.path.abspath(self.location)  # noqa: PTH100
        except self._errors as error:
            raise ArchiveError(f"{location}: {_reason(error)}") from None
        self._is_local = isinstance(self._files, fs.LocalFileSystem)

    # The whole archive

    def create(self, vhost: str) -> None:
        """Make the directory, or check that it is an archive of this virtual host. Raise ArchiveError."""
        with self._named(self.location):
            self._files.create_dir(self._root, recursive=True)
            known = self._files.get_file_info(self._path(_ARCHIVE)).type != self._fs.FileType.NotFound
        if not known:
            self.write_json(_ARCHIVE, {"format": FORMAT, "vhost": vhost})
        elif (found := self._read_head()["vhost"]) != vhost:
            raise ArchiveError(
                f"{self.location} is an archive of the virtual host '{found}', not of '{vhost}'"
            )

    def contents(self) -> Contents:
        """Read the manifests. Raise ArchiveError if this is no archive, or a manifest is damaged."""
        with self._named(self.location):
            selector = self._fs.FileSelector(self._root, recursive=True, allow_not_found=True)
            found = self._files.get_file_info(selector)
        sizes = {
            os.path.relpath(each.path, self._root): each.size
            for each in found
            if each.type == self._fs.FileType.File
        }
        if _ARCHIVE not in sizes:
            raise ArchiveError(f"{self.location} is no archive: it has no {_ARCHIVE}")
        self._read_head()
        deleted = frozenset(os.path.dirname(name) for name in sizes if name.endswith(f"/{_DELETED}"))  # noqa: PTH120
        series = [self._series(name) for name in sorted(sizes) if name.endswith(f"/{_QUEUE}")]
        manifests = [
            self._manifest(name)
            for name in sizes
            if _MANIFEST.fullmatch(_base(name)) and os.path.dirname(name) not in deleted  # noqa: PTH120
        ]
        known = {each.queue: each for each in series}
        for each in manifests:
            if each.queue not in known:
                raise ArchiveError(f"{self.location}/{queue_directory(each.queue)}/{_QUEUE} is missing")
        started: dict[str, int] = {}
        for each in manifests:
            started[each.series] = min(started.get(each.series, each.taken_ms), each.taken_ms)
        manifests.sort(key=lambda each: (each.queue, started[each.series], each.series, each.lease))
        return Contents(sizes, known, manifests, deleted)

    def check_files(self, contents: Contents, manifests: Iterable[Manifest], *, hashes: bool = False) -> None:
        """Raise ArchiveError if files of manifests are missing or have other sizes.

        `hashes` reads the files, too, and compares their hashes and numbers of rows.
        """
        for manifest in manifests:
            for file in manifest.files:
                name = f"{manifest.directory}/{file.name}"
                size = contents.sizes.get(name)
                if size is None:
                    raise ArchiveError(f"{self.location}/{name} is missing: the archive was cut")
                if size != file.bytes:
                    raise ArchiveError(
                        f"{self.location}/{name} has {size} bytes, not the {file.bytes} of its manifest: "
                        "the archive was cut"
                    )
                if hashes and self._sha256(name) != file.sha256:
                    raise ArchiveError(
                        f"{self.location}/{name} was changed: its hash is not that of its manifest"
                    )
                if hashes and (rows := self._rows(name)) != file.messages:
                    raise ArchiveError(
                        f"{self.location}/{name} has {rows} messages, not the {file.messages} of its manifest"
                    )

    def check_leases(self, contents: Contents, manifests: Iterable[Manifest]) -> None:
        """Raise ArchiveError if a present series lacks a lease: runs number its leases without gaps.

        Of an earlier series, nothing tells which leases were deleted because of their age.
        """
        reached = {each.name: each.deleted_up_to for each in contents.series.values()}
        for each in manifests:
            before = reached.get(each.series)
            if before is None:
                continue
            if each.lease > before + 1:
                first, last = before + 1, each.lease - 1
                raise ArchiveError(
                    f"{self.location}: lease {first} of queue '{each.queue}' is missing: its manifest was lost, or "
                    "somebody released it"
                    if first == last
                    else f"{self.location}: leases {first} to {last} of queue '{each.queue}' are missing: their "
                    "manifests were lost, or somebody released them"
                )
            reached[each.series] = max(before, each.lease)

    def uri(self, name: str) -> str:
        """Return the address of a file for Spark."""
        return f"file://{self._path(name)}" if self._is_local else f"{self.location}/{name}"

    # Files

    @contextmanager
    def writing(self, name: str) -> Generator[HashedFile]:
        """Yield a file that gets its name when the block has ended without an error."""
        directory = os.path.dirname(self._path(name))  # noqa: PTH120
        temporary = f"{directory}/{_TEMPORARY}{uuid.uuid4().hex}"
        with self._named(f"{self.location}/{name}"):
            self._files.create_dir(directory, recursive=True)
            try:
                with self._files.open_output_stream(temporary) as out:
                    yield HashedFile(out)
                if self._is_local:
                    _flush(temporary)
                self._files.move(temporary, self._path(name))
                if self._is_local:
                    _flush(directory)
            except BaseException:
                with suppress(*self._errors):
                    self._files.delete_file(temporary)
                raise

    def write_json(self, name: str, document: dict[str, Any]) -> None:
        with self.writing(name) as file:
            file.write(json.dumps(document, indent=1).encode() + b"\n")

    def write_series(self, series: Series) -> None:
        """Record the present series of a queue."""
        self.write_json(f"{queue_directory(series.queue)}/{_QUEUE}", {"format": FORMAT, **series._asdict()})

    def write_manifest(self, manifest: Manifest) -> None:
        """Record that a lease is in the archive."""
        files = [file._asdict() for file in manifest.files]
        taken = datetime.fromtimestamp(manifest.taken_ms / 1000, UTC).isoformat()
        document = {"format": FORMAT, **manifest._asdict(), "taken": taken, "files": files}
        self.write_json(manifest.name, document)

    def delete(self, names: Iterable[str]) -> None:
        """Delete files, of which some may be gone."""
        for name in names:
            with self._named(f"{self.location}/{name}"), suppress(FileNotFoundError):
                self._files.delete_file(self._path(name))

    # Age

    def delete_older(self, days: int, today: date) -> tuple[list[str], list[str]]:
        """Delete the partitions of more than `days` days ago. Return these, and those that are not complete.

        A partition with a file of a present series that belongs to no manifest, or to an unfinished snapshot, is not
        complete.
        """
        contents = self.contents()
        files = {f"{each.directory}/{file.name}" for each in contents.finished() for file in each.files}
        present = {series.name for series in contents.series.values()}
        by_partition: dict[str, list[str]] = {}
        for name in contents.sizes:
            directory = os.path.dirname(name)  # noqa: PTH120
            if (day := _date_of(directory)) is not None and day < today - timedelta(days=days):
                by_partition.setdefault(directory, []).append(name)
        complete, incomplete = [], []
        for directory, names in sorted(by_partition.items()):
            data = {name for name in names if (found := _DATA.fullmatch(_base(name))) and found[1] in present}
            is_whole = directory in contents.deleted or data <= files
            (complete if is_whole else incomplete).append(directory)
        for directory in complete:
            self._delete_partition(contents, directory, by_partition[directory])
        return complete, incomplete

    def _delete_partition(self, contents: Contents, directory: str, names: list[str]) -> None:
        for series in contents.series.values():
            gone = [
                each.lease
                for each in contents.manifests
                if (each.directory, each.series) == (directory, series.name)
            ]
            if max(gone, default=-1) > series.deleted_up_to:
                self.write_series(series._replace(deleted_up_to=max(gone)))
        mark = f"{directory}/{_DELETED}"
        self.write_json(mark, {"format": FORMAT})
        self.delete(name for name in names if name != mark)
        self.delete([mark])
        if self._is_local:
            with suppress(OSError):
                os.rmdir(self._path(directory))  # noqa: PTH106

    # Reading

    def replay(self, name: str, fields: Iterable[str]) -> dict[str, Any] | None:
        """Return the record of a replay, or `None` if it has not begun. Raise ArchiveError."""
        file = _replay_file(name)
        with self._named(f"{self.location}/{file}"):
            kind = self._files.get_file_info(self._path(file)).type
        return None if kind == self._fs.FileType.NotFound else self._document(file, fields)

    def write_replay(self, name: str, document: dict[str, Any]) -> None:
        self.write_json(_replay_file(name), {"format": FORMAT, **document})

    def _read_head(self) -> dict[str, Any]:
        return self._document(_ARCHIVE, ("vhost",))

    def _series(self, name: str) -> Series:
        document = self._document(name, Series._fields)
        found = Series(*(document[field] for field in Series._fields))
        self._check_place(name, found.queue, 0)
        return found

    def _manifest(self, name: str) -> Manifest:
        document = self._document(name, Manifest._fields)
        try:
            files = tuple(
                DataFile(*(file[field] for field in DataFile._fields)) for file in document["files"]
            )
            values: dict[str, Any] = {field: document[field] for field in Manifest._fields}
            found = Manifest(**values)._replace(files=files)
            counted = sum(file.messages for file in files)
        except (TypeError, KeyError):
            raise ArchiveError(
                f"{self.location}/{name} is damaged: its list of files cannot be read"
            ) from None
        self._check_place(name, found.queue, 1)
        if found.name != name:
            raise ArchiveError(f"{self.location}/{name} is the manifest of {found.name}")
        if found.messages != counted:
            raise ArchiveError(
                f"{self.location}/{name} is damaged: it counts {found.messages} messages, and {counted} in its files"
            )
        return found

    def _check_place(self, name: str, queue: str, depth: int) -> None:
        directory = name.split("/")[-2 - depth] if name.count("/") > depth else ""
        if directory != queue_directory(queue):
            raise ArchiveError(f"{self.location}/{name} belongs to another queue: '{queue}'")

    def _document(self, name: str, fields: Iterable[str]) -> dict[str, Any]:
        path = f"{self.location}/{name}"
        with self._named(path), self._files.open_input_stream(self._path(name)) as file:
            octets = file.read()
        try:
            document = json.loads(octets)
        except ValueError as error:
            raise ArchiveError(f"{path} is damaged: {error}") from None
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise ArchiveError(f"{path} has a format that this release does not know")
        for field in fields:
            if field not in document:
                raise ArchiveError(f"{path} is damaged: {field} is missing")
        return document

    def _sha256(self, name: str) -> str:
        found = hashlib.sha256()
        with self._named(f"{self.location}/{name}"), self._files.open_input_stream(self._path(name)) as file:
            while octets := file.read(2**20):
                found.update(octets)
        return found.hexdigest()

    def _rows(self, name: str) -> int:
        """Return the number of rows that a Parquet file has by its footer."""
        from pyarrow import parquet  # noqa: PLC0415 - the client needs no pyarrow

        with self._named(f"{self.location}/{name}"), self._files.open_input_file(self._path(name)) as file:
            return parquet.read_metadata(file).num_rows

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextmanager
    def _named(self, name: str) -> Generator[None]:
        """Raise ArchiveError with the name of a file in place of an error of the file system."""
        try:
            yield
        except self._errors as error:
            raise ArchiveError(f"{name}: {_reason(error)}") from None


class HashedFile(io.RawIOBase):
    """A file that is written once, with its length and hash."""

    def __init__(self, out: Any) -> None:
        self._out = out
        self._hash = hashlib.sha256()
        self.length = 0

    def writable(self) -> bool:
        return True

    def write(self, octets: Any) -> int:
        self._out.write(octets)
        self._hash.update(octets)
        count = memoryview(octets).nbytes
        self.length += count
        return count

    def tell(self) -> int:
        return self.length

    def sha256(self) -> str:
        return self._hash.hexdigest()


def leftovers(contents: Contents, series: Series, last: int, open_leases: Iterable[int]) -> list[str]:
    """Return the files of a queue that no run will need: it has begun no lease after `last`.

    A former owner of an earlier series may still write its manifests, so files of this series stay.
    """
    kept = {f"{each.directory}/{file.name}" for each in contents.manifests for file in each.files}
    still_open = set(open_leases)
    found: list[str] = []
    for name in contents.sizes:
        if not name.startswith(f"{queue_directory(series.queue)}/") or name in kept:
            continue
        data = _DATA.fullmatch(_base(name))
        if data is None:
            is_left = _base(name).startswith(_TEMPORARY)
        elif data[1] == series.name:
            is_left = int(data[2]) <= last and int(data[2]) not in still_open
        else:
            is_left = series.is_snapshot
        if is_left:
            found.append(name)
    return found


def _replay_file(name: str) -> str:
    return f"_replay-{name}.json"


def _date_of(directory: str) -> date | None:
    try:
        return date.fromisoformat(_base(directory).removeprefix("date="))
    except ValueError:
        return None


def _base(name: str) -> str:
    return name.rpartition("/")[2]


def _flush(path: str) -> None:
    """Write a local file or directory to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return str(error).splitlines()[0] if str(error) else type(error).__name__
