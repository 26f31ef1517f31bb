"""Backups, as a stream of bytes.

Invariant: a backup contains each message that any node had confirmed before the backup was requested. Files are read
off the event loop, part by part, as fast as the client reads. A slow client delays only the removal of old files.
"""

from __future__ import annotations

import asyncio
import logging
import tarfile
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import TYPE_CHECKING

from cluster.snapshots.backup import CHUNK_BYTES, CONTENTS, SUMS, pack_contents, sum_line
from qq.management.changes.request_session import until_applied
from qq.management.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from cluster.group.group import Group
    from cluster.snapshots.backup import Contents, Digest
    from cluster.snapshots.backup_source import BackupSource
    from qq.sessions.broker import Broker

log = logging.getLogger(__name__)

SEALED_WITHIN_S = 30.0
"""Seconds to wait until the log is sealed and, on a new node, a checkpoint is written: two syncs and some polls."""
_POLL_S = 0.02
_TAR_END = bytes(2 * tarfile.BLOCKSIZE)


class Backups:
    """Makes backups."""

    def __init__(self, broker: Broker, group: Group, data_dir: str) -> None:
        self._broker, self._group, self._data_dir = broker, group, data_dir

    @asynccontextmanager
    async def make(self) -> AsyncGenerator[BackupStream]:
        """Make a backup, and keep its files until the end of the block. Raises Unavailable."""
        group = self._group
        if group.fail_stop.damage is not None:
            raise Unavailable(f"this node's log is damaged, so ask another node: {group.fail_stop.damage}")
        await until_applied(self._broker, [], lambda: None)
        contents = await self._taken(group.engine.applied_index)
        log.info("a backup of entry %d is being made: %d bytes", contents.index, contents.file_bytes)
        try:
            yield BackupStream(group.backups, contents)
        finally:
            group.backups.give_back(contents)

    async def _taken(self, least: int) -> Contents:
        give_up_s = asyncio.get_running_loop().time() + SEALED_WITHIN_S
        while (contents := self._group.backups.take(least, self._data_dir)) is None:
            if asyncio.get_running_loop().time() > give_up_s:
                raise Unavailable("the disk of this node is full or busy, so ask again, or another node")
            await asyncio.sleep(_POLL_S)
        return contents


class BackupStream:
    """A backup as a tar archive. It can be read once."""

    def __init__(self, source: BackupSource, contents: Contents) -> None:
        self._source = source
        self._contents = contents
        self._sums = ""

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the archive in parts of some hundred kilobytes. Raises OSError if a file cannot be read any more."""
        yield self._whole(CONTENTS, pack_contents(self._contents))
        for name, size in self._contents.files:
            yield _head(name, size)
            digest = sha256()
            for offset in range(0, size, CHUNK_BYTES):
                yield await self._read(name, offset, min(CHUNK_BYTES, size - offset), digest)
            yield _padding(size)
            self._sums += sum_line(digest.hexdigest(), name)
        yield self._whole(SUMS, self._sums.encode()) + _TAR_END

    async def _read(self, name: str, offset: int, length: int, digest: Digest) -> bytes:
        had: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def have_read(part: bytes | None, error: Exception | None) -> None:
            if had.done():
                return
            if error is not None:
                had.set_exception(error)
            elif part is None or len(part) != length:
                had.set_exception(OSError(f"{name} has become shorter"))
            else:
                had.set_result(part)

        self._source.read(name, offset, length, digest, have_read)
        return await had

    def _whole(self, name: str, data: bytes) -> bytes:
        self._sums += sum_line(sha256(data).hexdigest(), name)
        return _head(name, len(data)) + data + _padding(len(data))


def _head(name: str, size: int) -> bytes:
    """Return the header of a file in a tar archive."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o600
    return entry.tobuf(tarfile.USTAR_FORMAT)


def _padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)
