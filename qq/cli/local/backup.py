"""`qq backup`: writes the data of a running cluster to a directory, or as a stream to standard output.

The node sends a tar archive (management/backups.py). If the node's own files can be read here, the segments are
hard-linked instead of copied: then only the files up to the checkpoint are taken from the stream. The archive names the
node's log directory. The files there are the node's own if the checkpoint beside them equals the checkpoint of the
stream, because a checkpoint names its owner and its entry.

Invariant: a backup appears under its name only when it is complete and checked.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tarfile
import tempfile
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from cluster.runtime.asyncio_runtime import ReadOnlyDisk
from cluster.snapshots.backup import (
    CHUNK_BYTES,
    CONTENTS,
    SUMS,
    BadBackup,
    check,
    read_contents,
    sum_line,
    unpack_contents,
)
from qq.cli.local.inspect import describe_state, describe_time
from qq.cli.terminal.progress import progress_bar
from qq.cli.terminal.streams import STANDARD_STREAM
from qq.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Generator

    from cluster.runtime.ports import Disk
    from cluster.snapshots.backup import Contents
    from qq.cli.client.remote import Remote
    from qq.cli.terminal.progress import ProgressBar

_PATH = "/api/cluster/backup"


def backup(node: Remote, target: str) -> int:
    """Make a backup of the cluster of a node. Raises CommandError, and then leaves no backup."""
    if target == STANDARD_STREAM:
        done = 0
        with (
            progress_bar("reading the backup", in_bytes=True, prints=True) as bar,
            node.download(_PATH) as stream,
        ):
            while part := stream.read(CHUNK_BYTES):
                _write_out(part)
                done += len(part)
                bar.update(done, None)
        return 0
    try:
        with _new_directory(Path(target)) as directory:
            with (
                progress_bar("reading the backup", in_bytes=True) as bar,
                node.download(_PATH) as stream,
            ):
                are_linked = _write_files(stream, directory, bar)
            contents = _check_backup(directory)
            _sync(directory)
    except tarfile.TarError as error:
        raise CommandError(
            f"{node.url}: the backup was broken off, so there is none: try again ({error})"
        ) from None
    except OSError as error:
        raise CommandError(f"{error.filename or target}: {error.strerror or error}") from None
    how = "linked" if are_linked else "copied"
    print(
        f"{target}: {describe(contents)}; {len(contents.segments) + 1} files of {contents.file_bytes:,} bytes, {how}"
    )
    return 0


def _write_out(part: bytes) -> None:
    """Write bytes to standard output. Raises CommandError."""
    try:
        sys.stdout.buffer.write(part)
        sys.stdout.buffer.flush()
    except OSError as error:
        # Without this, flushing the buffer would fail again at the interpreter's end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise CommandError(f"standard output: {error.strerror}; the output is no backup") from None


def describe(contents: Contents) -> str:
    """Describe in a line the cluster of a backup and its last entry."""
    return (
        f"cluster {contents.cluster} up to entry {contents.index} of term {contents.term} "
        f"({describe_time(contents.time_ms)}), from node {contents.node}"
    )


@contextmanager
def _new_directory(target: Path) -> Generator[Path]:
    """Make a directory beside the target, and rename it to the target at the end of the block.

    If the block fails, the directory is removed.
    """
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise CommandError(f"{target}: is there already; name a new directory")
    try:
        directory = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.absolute().parent))
    except OSError as error:
        raise CommandError(f"{target.absolute().parent}: {error.strerror}") from None
    try:
        yield directory
        try:
            directory.rename(target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            raise CommandError(
                f"{target}: somebody else has made it meanwhile; name a new directory"
            ) from None
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    _sync(target.absolute().parent)


def _write_files(stream: BinaryIO, directory: Path, bar: ProgressBar) -> bool:
    """Write the files of the archive to the directory; return whether the segments are links to the node's own."""
    contents: Contents | None = None
    done = 0
    with tarfile.open(fileobj=stream, mode="r|", bufsize=CHUNK_BYTES) as archive:
        for entry in archive:
            if contents is None and entry.name != CONTENTS:
                raise tarfile.ReadError("it does not begin as a backup")
            _copy(archive, entry, directory / entry.name, contents)
            done += entry.size
            bar.update(done, None if contents is None else contents.file_bytes)
            if contents is None:
                contents = unpack_contents((directory / CONTENTS).read_bytes())
            elif entry.name == contents.checkpoint and _link_segments(contents, directory):
                return True
    return False


def _copy(archive: tarfile.TarFile, entry: tarfile.TarInfo, target: Path, contents: Contents | None) -> None:
    known = {CONTENTS, SUMS} if contents is None else {SUMS, *(name for name, _ in contents.files)}
    source = archive.extractfile(entry)
    if entry.name not in known or source is None:
        raise tarfile.ReadError(f"{entry.name!r} is no file of a backup")
    with source, target.open("xb") as copy:
        shutil.copyfileobj(source, copy, CHUNK_BYTES)
        copy.flush()
        os.fsync(copy.fileno())


def _link_segments(contents: Contents, directory: Path) -> bool:
    """Link all segments from the node's directory, if it is on this machine; if a link fails, remove all links."""
    log = Path(contents.directory)
    names = [segment.name for segment in contents.segments]
    try:
        if not _are_equal(log / contents.checkpoint, directory / contents.checkpoint):
            return False
        for segment in contents.segments:
            (directory / segment.name).hardlink_to(log / segment.name)
    except OSError:  # the files are on a different machine or file system, or not readable
        for name in names:
            (directory / name).unlink(missing_ok=True)
        return False
    sums = "".join(_sum_line(directory, name) for name in (CONTENTS, contents.checkpoint, *names))
    with (directory / SUMS).open("x") as file:
        file.write(sums)
        file.flush()
        os.fsync(file.fileno())
    return True


def _are_equal(one: Path, other: Path) -> bool:
    with one.open("rb") as first, other.open("rb") as second:
        while part := first.read(CHUNK_BYTES):
            if part != second.read(CHUNK_BYTES):
                return False
        return not second.read(1)


def _sum_line(directory: Path, name: str) -> str:
    with (directory / name).open("rb") as file:
        digest = sha256()
        while part := file.read(CHUNK_BYTES):
            digest.update(part)
    return sum_line(digest.hexdigest(), name)


def _sync(directory: Path) -> None:
    """Make the names in a directory durable (fsync)."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_backup(directory: Path) -> Contents:
    """Check the whole backup, as a restore does. Raises CommandError."""
    disk = cast("Disk", ReadOnlyDisk(directory))
    try:
        contents = read_contents(disk)
        check(disk, contents, describe_state)
    except BadBackup as error:
        raise CommandError(f"no backup was made: {error}") from None
    return contents
