"""Implementation of the ports with asyncio and the operating system.

Invariant: of the package `cluster`, only this module, `cluster/net` and `cluster/transport/peer_links.py` touch the
operating system. The bytes have no meaning here.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import shutil
import stat
import threading
import time
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from random import Random, SystemRandom
from typing import TYPE_CHECKING, Any

from cluster.runtime.histogram import Histogram
from cluster.runtime.inline_writes import InlineWrites
from cluster.runtime.ports import TEMPORARY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cluster.runtime.ports import Buffer, T, Timer

log = logging.getLogger(__name__)

_BUFFERS_MAX = os.sysconf("SC_IOV_MAX")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_LOCK_NAME = "lock"
_LOCK_BYTES = 32
"""Bytes of the lock file. It is always overwritten as a whole, so a start needs no free space for it."""
_RIGHTS_OF_OTHERS = stat.S_IRWXG | stat.S_IRWXO
PART_BYTES = 4 * 2**20
"""Bytes of a large file that are removed at once. Syncs may wait 50 ms for the removal of a whole segment, and 2 ms for
a part."""
PART_REST_S = 0.01
"""Pause in seconds after each part, in which the disk serves other work."""


class DirectoryInUse(Exception):
    """A second process has opened this data directory."""


class RealFile:
    """An open file of the operating system."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._size = os.fstat(descriptor).st_size

    @property
    def size(self) -> int:
        return self._size

    def append(self, buffers: Sequence[Buffer]) -> None:
        try:
            for start in range(0, len(buffers), _BUFFERS_MAX):
                self._write(buffers[start : start + _BUFFERS_MAX])
        except OSError:
            self._size = os.fstat(self._descriptor).st_size
            raise

    def _write(self, buffers: Sequence[Buffer]) -> None:
        end = self._size + sum(map(len, buffers))
        self._size += os.pwritev(self._descriptor, buffers, self._size)
        if self._size < end:
            # A short write is rare (a signal, a full disk, 2 GiB at once), so the rest may be copied.
            rest = memoryview(b"".join(buffers))
            while self._size < end:
                self._size += os.pwrite(self._descriptor, rest[self._size - end :], self._size)

    def overwrite(self, data: Buffer) -> None:
        if os.pwrite(self._descriptor, data, 0) != len(data):
            raise OSError(errno.EIO, "overwritten in part")

    def pread(self, offset: int, length: int) -> bytes:
        data = os.pread(self._descriptor, length, offset)
        if len(data) == length or not data:
            return data
        parts = [data]
        while data:
            offset += len(data)
            length -= len(data)
            data = os.pread(self._descriptor, length, offset)
            parts.append(data)
        return b"".join(parts)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)
        self._size = size

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


class RealDisk:
    """The data directory `root`, locked for this process. Raises DirectoryInUse if a second process has it."""

    def __init__(self, root: str | Path) -> None:
        self._root = Path(root)
        make_directory(self._root)
        self._lock = _lock_directory(self._root)
        _make_private(self._root)
        self._boot_id = _boot_id()
        self._writer = _Worker("disk-writer")
        self._reader = _Worker("disk-reader")
        self._background = _Worker("disk-background")
        self._closing = threading.Event()
        self._inline_writes = InlineWrites()
        self.write_times = Histogram()
        """Time that each write to the log took, with its sync."""

    def make_directory(self, path: str) -> None:
        make_directory(self._root / path)

    def list_directory(self, path: str) -> list[str]:
        return sorted(entry.name for entry in (self._root / path).iterdir())

    def read_file(self, path: str) -> bytes:
        return (self._root / path).read_bytes()

    def replace_file(self, path: str, data: bytes) -> None:
        target = self._root / path
        temporary = target.with_name(target.name + TEMPORARY)
        with open(temporary, "wb", opener=_open_private) as file:  # Path.open has no opener
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
        _sync_directory(target.parent)

    def overwrite_file(self, path: str, data: bytes) -> None:
        descriptor = os.open(self._root / path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            if size != len(data):
                raise ValueError(f"{path}: has {size} bytes and cannot be overwritten with {len(data)}")
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)

    def open(self, path: str, *, create: bool = False) -> RealFile:
        flags = os.O_RDWR | os.O_CLOEXEC
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        return RealFile(os.open(self._root / path, flags, 0o600))

    def rename(self, source: str, target: str) -> None:
        (self._root / source).rename(self._root / target)

    def remove(self, path: str) -> None:
        (self._root / path).unlink()

    def remove_in_parts(self, path: str) -> None:
        target = self._root / path
        while (found := target.stat()).st_nlink == 1 and found.st_size > PART_BYTES:
            # A second hard link keeps the content, so the file is not truncated. While the process ends, there are no
            # pauses.
            if self._closing.wait(PART_REST_S):
                break
            os.truncate(target, found.st_size - PART_BYTES)
        target.unlink()

    def remove_directory(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._root / path)

    def sync_directory(self, path: str) -> None:
        _sync_directory(self._root / path)

    def free_bytes(self) -> int:
        return shutil.disk_usage(self._root).free

    def boot_id(self) -> str:
        return self._boot_id

    def submit(
        self,
        job: Callable[[], T],
        done: Callable[[T | None, Exception | None], None],
        *,
        is_short: bool = False,
    ) -> None:
        is_inline = is_short and self._writer.is_idle and self._inline_writes.are_wise
        timed = partial(self._timed, job, is_short=is_short, is_inline=is_inline)
        if is_inline:
            done(*_outcome(timed))
        else:
            self._writer.submit(timed, done)

    def _timed(self, job: Callable[[], T], *, is_short: bool, is_inline: bool) -> T:
        began_s = time.monotonic()
        try:
            return job()
        finally:
            took_s = time.monotonic() - began_s
            self.write_times.add(took_s)
            if is_short:
                self._inline_writes.took(took_s, is_inline=is_inline)

    def submit_read(self, job: Callable[[], T], done: Callable[[T | None, Exception | None], None]) -> None:
        self._reader.submit(job, done)

    def submit_background(
        self, job: Callable[[], T], done: Callable[[T | None, Exception | None], None]
    ) -> None:
        self._background.submit(job, done)

    def close(self) -> None:
        """Finish the submitted jobs, and unlock the directory."""
        self._closing.set()
        self._writer.close()
        self._reader.close()
        self._background.close()
        os.close(self._lock)


class ReadOnlyDisk:
    """The directory `root` for reading. It has the reading methods of `Disk`, and takes no lock."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def list_directory(self, path: str) -> list[str]:
        return sorted(entry.name for entry in (self._root / path).iterdir())

    def read_file(self, path: str) -> bytes:
        return (self._root / path).read_bytes()

    def open(self, path: str) -> RealFile:
        return RealFile(os.open(self._root / path, os.O_RDONLY | os.O_CLOEXEC))

    def boot_id(self) -> str:
        return _boot_id()


def check_not_in_use(root: Path) -> None:
    """Raise DirectoryInUse if a process has opened this data directory. A process may start right after the check."""
    try:
        descriptor = os.open(root / _LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        _lock(root, descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except FileNotFoundError:
        # Without Linux's boot id, each start must assume that the machine has lost power before.
        return f"start-{os.getpid()}-{time.time_ns()}"


def make_directory(path: Path) -> None:
    """Create the directory and its parents, durably; fine if it exists. Raises OSError."""
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    _sync_directory(path.parent)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _make_private(root: Path) -> None:
    """Withdraw the rights of other users from the directory and all files in it, as far as the files are ours."""
    narrowed: list[Path] = []
    for path in (root, *root.rglob("*")):
        with contextlib.suppress(FileNotFoundError):
            mode = path.lstat().st_mode
            if mode & _RIGHTS_OF_OTHERS and not stat.S_ISLNK(mode):
                try:
                    path.chmod(stat.S_IMODE(mode) & ~_RIGHTS_OF_OTHERS)
                    narrowed.append(path)
                except PermissionError:
                    log.warning(
                        "%s: other users may have access to it, and it belongs to a different user", path
                    )
    if narrowed:
        log.warning(
            "%s: other users had access to %d files and directories, such as %s; their rights are withdrawn",
            root,
            len(narrowed),
            narrowed[0],
        )


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lock_directory(root: Path) -> int:
    """Lock the directory. Return a descriptor that holds the lock until it is closed or the process ends."""
    descriptor = os.open(root / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _lock(root, descriptor, fcntl.LOCK_EX)
    except DirectoryInUse:
        os.close(descriptor)
        raise
    with contextlib.suppress(OSError):  # the content is for operators, and the disk may be full
        os.pwrite(descriptor, f"{os.getpid()}\n".ljust(_LOCK_BYTES).encode(), 0)
    return descriptor


def _lock(root: Path, descriptor: int, kind: int) -> None:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, _LOCK_BYTES, 0).decode(errors="replace").strip()
        raise DirectoryInUse(f"{root}: in use by another process (pid {holder or 'unknown'})") from None


class _Worker:
    """A thread that runs jobs in order, and reports each result on the event loop that submitted the job."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        # A daemon, because a disk that hangs must not keep a failed node from exiting.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._unanswered = 0

    @property
    def is_idle(self) -> bool:
        """Whether all submitted jobs are done and their results reported."""
        return self._unanswered == 0

    def submit(self, job: Callable[[], T], done: Callable[[T | None, Exception | None], None]) -> None:
        loop = asyncio.get_running_loop()
        self._unanswered += 1

        def answer(outcome: tuple[T | None, Exception | None]) -> None:
            self._unanswered -= 1
            done(*outcome)

        self._jobs.put(lambda: _answer(loop, answer, _outcome(job)))

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (work := self._jobs.get()) is not None:
            work()


def _outcome(job: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return job(), None
    except Exception as error:  # noqa: BLE001 - it is the submitter's to judge
        return None, error


def _answer(loop: asyncio.AbstractEventLoop, answer: Callable[[Any], None], outcome: Any) -> None:
    try:
        loop.call_soon_threadsafe(answer, outcome)
    except RuntimeError:
        if not loop.is_closed():
            raise
        # The node has stopped, so the result is not needed.


class AsyncioRuntime:
    """Clock, scheduler and randomness of a real node."""

    monotonic = staticmethod(
        time.monotonic
    )  # no function around it: each message reads the time dozens of times

    def __init__(self, loop: asyncio.AbstractEventLoop, on_failure: Callable[[BaseException], None]) -> None:
        # Names and salts that must be unguessable are drawn from it, too.
        self.random: Random = SystemRandom()
        self._loop = loop
        self._on_failure = on_failure

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        return self._loop.call_later(delay_s, callback)

    def fail(self, error: BaseException) -> None:
        self._on_failure(error)
