"""What the cluster needs from the outside world: time, randomness and a disk; its links are in link_ports.py.

Invariant: everything in `cluster` that touches the world goes through these protocols, so a simulation of the ports is
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
"""What the names of files end with that are being written: a crash may leave them, and nobody reads them."""


class Timer(Protocol):
    """A pending call of `Runtime.call_later`."""

    def cancel(self) -> None:
        """Forget the call; harmless when it has already happened."""
        ...


class Runtime(Protocol):
    """Clock, scheduler and randomness of one node. All callbacks run on the node's one thread, in order."""

    random: Random
    """The only source of randomness of the node."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes backwards."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since the epoch; may jump anywhere, also to before the epoch."""
        ...

    def call_soon(self, callback: Callable[[], None]) -> None: ...

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer: ...

    def fail(self, error: BaseException) -> None:
        """Stop the node: an invariant is broken or its disk cannot be trusted. Nothing more is sent after this."""
        ...


class File(Protocol):
    """One open file, which grows at its end."""

    @property
    def size(self) -> int:
        """Length in bytes, including what is not yet on stable storage."""
        ...

    def append(self, buffers: Sequence[Buffer]) -> None:
        """Write all buffers at the end, in order; raises OSError (the file may then hold a part of them)."""
        ...

    def pread(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset`; fewer only at the end of the file."""
        ...

    def truncate(self, size: int) -> None: ...

    def overwrite(self, data: Buffer) -> None:
        """Write over the beginning of the file, which is at least as long; needs no space."""
        ...

    def sync(self) -> None:
        """fdatasync: everything appended, overwritten and truncated so far is on stable storage when this returns."""
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    """The files of one node. Paths are relative to the node's data directory, with ``/`` between parts."""

    def make_directory(self, path: str) -> None:
        """Create the directory and its parents, durably; fine if it exists."""
        ...

    def list_directory(self, path: str) -> list[str]:
        """Names in the directory, sorted."""
        ...

    def read_file(self, path: str) -> bytes:
        """Whole content; raises FileNotFoundError."""
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
        """Open for reading and appending; `create` makes a new empty file (not durable before `sync_directory`)."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename a file or a directory, atomically; durable after `sync_directory` of both directories.

        A file takes the place of a file named `target`; a directory must not be there yet.
        """
        ...

    def remove(self, path: str) -> None: ...

    def remove_in_parts(self, path: str) -> None:
        """Remove a large file that nobody needs, so slowly that nobody's sync waits for it; not atomic."""
        ...

    def remove_directory(self, path: str) -> None:
        """Remove a directory and everything in it; fine if it does not exist. Not durable, not atomic."""
        ...

    def sync_directory(self, path: str) -> None:
        """Make creations, renames and removals in the directory durable."""
        ...

    def free_bytes(self) -> int:
        """How many more bytes may be written."""
        ...

    def session(self) -> str:
        """A name of the machine's boot: when it changes, writes that were not synced may have been lost."""
        ...

    def submit(
        self,
        job: Callable[[], T],
        done: Callable[[T | None, Exception | None], None],
        *,
        is_short: bool = False,
    ) -> None:
        """Run `job` off the loop on the one writer thread, in order of submission.

        Then `done(result, error)` on the loop. A job that `is_short` may be run at once, here, if nothing is under way
        on that thread; then `done` is called before this returns.
        """
        ...

    def submit_read(self, job: Callable[[], T], done: Callable[[T | None, Exception | None], None]) -> None:
        """Like `submit`, on a second thread, so that reads do not wait behind an fsync."""
        ...

    def submit_background(
        self, job: Callable[[], T], done: Callable[[T | None, Exception | None], None]
    ) -> None:
        """Like `submit`, on a third thread, for what may take seconds."""
        ...


def pack(value: Any) -> bytes:
    """Encode a value with msgpack, whose own type says that it may return None, which it never does."""
    return cast("bytes", msgpack.packb(value))
