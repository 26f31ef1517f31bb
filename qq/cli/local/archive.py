"""Opens a backup: a directory, a tar archive in a file, or a tar archive from standard input.

Invariant: the only file ever written is a temporary copy of standard input.
"""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, cast

from cluster.runtime.asyncio_runtime import ReadOnlyDisk
from cluster.snapshots.backup import CONTENTS
from qq.cli.terminal.streams import STANDARD_STREAM
from qq.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Generator

    from cluster.runtime.ports import Disk


def is_backup(path: Path) -> bool:
    """Return whether the path names a backup, complete or not."""
    return path.is_file() or (path / CONTENTS).exists()


@contextmanager
def opened(path: str) -> Generator[Disk]:
    """Open the backup at this path, or from standard input (`-`). Raises CommandError, OSError."""
    if path != STANDARD_STREAM and Path(path).is_dir():
        yield cast("Disk", ReadOnlyDisk(Path(path)))
        return
    with _archive_file(path) as file:
        yield cast("Disk", _ArchiveDisk(file, path))


@contextmanager
def _archive_file(path: str) -> Generator[BinaryIO]:
    if path != STANDARD_STREAM:
        with Path(path).open("rb") as file:
            yield file
        return
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
        copy.seek(0)  # it also flushes the buffer
        yield cast("BinaryIO", copy)


class _Extent(NamedTuple):
    start: int
    size: int


class _ArchiveDisk:
    """The files of a tar archive, with the read methods of a `Disk`."""

    def __init__(self, file: BinaryIO, path: str) -> None:
        self._descriptor = file.fileno()
        try:
            with tarfile.open(fileobj=file, mode="r:") as archive:
                self._extents = {
                    entry.name: _Extent(entry.offset_data, entry.size) for entry in archive if entry.isfile()
                }
        except tarfile.TarError as error:
            raise CommandError(f"{path}: this is no backup, or a cut one ({error})") from None

    def list_directory(self, _path: str) -> list[str]:
        return sorted(self._extents)

    def read_file(self, path: str) -> bytes:
        return os.pread(self._descriptor, *reversed(self._extents[path]))

    def open(self, path: str) -> _ArchiveFile:
        return _ArchiveFile(self._descriptor, self._extents[path])


class _ArchiveFile:
    """A file of an archive, opened for reading."""

    def __init__(self, descriptor: int, extent: _Extent) -> None:
        self._descriptor = descriptor
        self._start, self.size = extent

    def pread(self, offset: int, length: int) -> bytes:
        return os.pread(self._descriptor, max(0, min(length, self.size - offset)), self._start + offset)

    def close(self) -> None:
        """Leave the descriptor open: the archive is closed when `opened` ends."""
