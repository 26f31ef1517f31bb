"""Ports through which `cluster` uses the outside world: time, randomness and a disk.

The port for links is in cluster/transport/ports.py.

Invariant: every part of `cluster` that touches the outside world uses these protocols. So a simulation of the ports is
a simulation of the node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Protocol, TypeVar, cast

import msgpack

Buffer = bytes | bytearray | memoryview
T = TypeVar("T")

TEMPORARY = ".tmp"
"""Suffix of files that are being written. A crash may leave such files; no start reads them."""


class Timer(Protocol):
    """A pending call of `Runtime.call_later`."""

    def cancel(self) -> None:
        """Cancel the call. Has no effect if the call has already happened."""
        ...


class Runtime(Protocol):
    """Clock, scheduler and randomness of a node. All callbacks run on the node's single thread, in order."""

    random: Random
    """The only source of randomness of the node."""

    def monotonic(self) -> float:
        """Return the seconds of a clock that never goes backwards."""
        ...

    def wall_ms(self) -> int:
        """Return the milliseconds since 1970. The clock may jump to any time, also to before 1970."""
        ...

    def call_soon(self, callback: Callable[[], None]) -> None: ...

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer: ...

    def fail(self, error: BaseException) -> None:
        """Stop the node, because an invariant is broken or its disk cannot be trusted.

        It sends no messages after this.
        """
        ...


class File(Protocol):
    """An open file, which grows at its end."""

    @property
    def size(self) -> int:
        """Bytes of the file, including bytes that are not yet on stable storage."""
        ...

    def append(self, buffers: Sequence[Buffer]) -> None:
        """Write all buffers at the end, in order. Raises OSError; then the file may hold a part of them."""
        ...

    def pread(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset`; fewer only at the end of the file."""
        ...

    def truncate(self, size: int) -> None: ...

    def overwrite(self, data: Buffer) -> None:
        """Overwrite the beginning of the file, which must be at least as long as `data`. Needs no free space."""
        ...

    def sync(self) -> None:
        """Make all appends, overwrites and truncations so far durable before returning (fdatasync)."""
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    """The files of a node. Paths are relative to the node's data directory, with ``/`` between parts."""

    def make_directory(self, path: str) -> None:
        """Create the directory and its parents durably. An existing directory is fine."""
        ...

    def list_directory(self, path: str) -> list[str]:
        """Return the names in the directory, sorted."""
        ...

    def read_file(self, path: str) -> bytes:
        """Return the whole content. Raises FileNotFoundError."""
        ...

    def replace_file(self, path: str, data: bytes) -> None:
        """Write a small file atomically and durably: temporary file, fsync, rename, fsync of the directory."""
        ...

    def overwrite_file(self, path: str, data: bytes) -> None:
        """Overwrite a file of the same size in place, durably: needs no space, and is not atomic.

        Raises FileNotFoundError, or ValueError if the size differs.
        """
        ...

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and appending. `create` makes a new empty file, which is durable after `sync_directory`."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename a file or a directory atomically. The rename is durable after `sync_directory` of both directories.

        A file replaces an existing file `target`. A directory `target` must not exist.
        """
        ...

    def remove(self, path: str) -> None: ...

    def remove_in_parts(self, path: str) -> None:
        """Remove a large unused file so slowly that syncs are not delayed. Not atomic."""
        ...

    def remove_directory(self, path: str) -> None:
        """Remove a directory with its content. A missing directory is fine. Not durable, not atomic."""
        ...

    def sync_directory(self, path: str) -> None:
        """Make creations, renames and removals in the directory durable."""
        ...

    def free_bytes(self) -> int:
        """Return the number of bytes that may still be written."""
        ...

    def boot_id(self) -> str:
        """Return the id of the machine's boot. After a change of the id, unsynced writes may have been lost."""
        ...

    def submit(
        self,
        job: Callable[[], T],
        done: Callable[[T | None, Exception | None], None],
        *,
        is_short: bool = False,
    ) -> None:
        """Run `job` on the single writer thread, in order of submission.

        Then call `done(result, error)` on the event loop.

        A job that `is_short` may run at once on the event loop, if the writer thread is idle. Then `done` is called
        before this method returns.
        """
        ...

    def submit_read(self, job: Callable[[], T], done: Callable[[T | None, Exception | None], None]) -> None:
        """Run `job` as `submit` does, on a second thread, so that reads do not wait behind a sync."""
        ...

    def submit_background(
        self, job: Callable[[], T], done: Callable[[T | None, Exception | None], None]
    ) -> None:
        """Run `job` as `submit` does, on a third thread, for work that may take seconds."""
        ...


def pack(value: Any) -> bytes:
    """Encode a value with msgpack. The cast is needed because msgpack's type allows `None`, which it never returns."""
    return cast("bytes", msgpack.packb(value))
