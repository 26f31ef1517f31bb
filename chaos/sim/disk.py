"""A disk in memory that forgets, tears and damages what real disks may.

Lives here: the `Disk` port with crash semantics and fault hooks. When things happen is the world's business:
it gives `schedule` and calls `crash`.

Law: everything random comes from the given generator, and after a crash the disk may show anything that POSIX
allows and nothing else: what was synced is there, what was not may be there, in part, or as garbage.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from cluster.ports import Buffer, T

SECTOR_BYTES = 512
LATENCY_MIN_S = 0.000_3
LATENCY_MEAN_S = 0.001_5
_STEPS_MAX = 12  # disk operations that a job under way may have done when the crash comes


class SimulatedDisk:
    """The disk of one node; it survives the node's crashes."""

    slow: float = 1.0
    """Factor of all latencies."""

    full: bool = False
    """Whatever needs space fails with ENOSPC, appends after having written a part."""

    def __init__(self, rng: Random, schedule: Callable[[float, Callable[[], None]], object]) -> None:
        self._rng = rng
        self._files: dict[str, _Inode] = {}
        self._directories: set[str] = {""}
        self._name_changes: dict[str, list[_NameChange]] = {}
        self._life = 0
        self._steps_left: int | None = None
        self._next_sync_error: OSError | None = None
        self._writes = _Lane(self, rng, schedule)
        self._reads = _Lane(self, rng, schedule)

    # The port

    def make_directory(self, path: str) -> None:
        while path:
            self._directories.add(path)
            path = path.rpartition("/")[0]

    def list_directory(self, path: str) -> list[str]:
        self._check_directory(path)
        return sorted(
            name
            for directory, _, name in (
                known.rpartition("/") for known in self._files.keys() | self._directories - {""}
            )
            if directory == path
        )

    def read_file(self, path: str) -> bytes:
        return bytes(self._inode(path).content)

    def replace_file(self, path: str, data: bytes) -> None:
        self._step()
        self._check_space()
        inode = _Inode()
        inode.append(data)
        self._sync(inode)
        self._set_name(path, inode)
        self.sync_directory(path.rpartition("/")[0])

    def open(self, path: str, *, create: bool = False) -> SimulatedFile:
        if create:
            self._step()
            self._check_space()
            if path in self._files:
                raise _os_error(errno.EEXIST, path)
            self._set_name(path, _Inode())
        return SimulatedFile(self, self._inode(path))

    def remove(self, path: str) -> None:
        self._step()
        self._inode(path)
        self._set_name(path, None)

    def sync_directory(self, path: str) -> None:
        self._step()
        self._check_directory(path)
        self._name_changes.pop(path, None)

    def submit(self, job: Callable[[], T], done: Callable[[T | None, Exception | None], None]) -> None:
        self._writes.submit(job, done)

    def submit_read(self, job: Callable[[], T], done: Callable[[T | None, Exception | None], None]) -> None:
        self._reads.submit(job, done)

    # Faults

    def crash(self, *, power_loss: bool) -> None:
        """End the node's process now; with `power_loss` lose what was not synced.

        A job that was under way may have done a part of its work; its `done` is never called. Files opened
        before are dead.
        """
        self._interrupt()
        self._life += 1
        inodes = self._all_inodes()
        if power_loss:
            self._lose_names()
        for inode in inodes:
            # After a failed sync the lost pages count as clean: a new process reads what the disk has.
            if power_loss or inode.sync_failed:
                inode.lose(self._rng)

    def fail_next_sync(self, code: int = errno.EIO) -> None:
        """Let the next sync of a file fail; what it should have written may never become durable."""
        self._next_sync_error = _os_error(code, "sync")

    def flip_bit(self, path: str, bit: int) -> None:
        """Damage one bit, counted from the start of the file."""
        self._inode(path).content[bit // 8] ^= 1 << bit % 8

    # Inside

    def life(self) -> int:
        """Count of the crashes; a file opened in an earlier life is dead."""
        return self._life

    def append_to(self, inode: _Inode, data: bytes) -> None:
        self._step()
        if self.full:
            inode.append(data[: self._rng.randint(0, len(data))])
            self._check_space()
        inode.append(data)

    def truncate(self, inode: _Inode, size: int) -> None:
        self._step()
        inode.truncate(size)

    def sync(self, inode: _Inode) -> None:
        self._step()
        self._sync(inode)

    def _sync(self, inode: _Inode) -> None:
        if self._next_sync_error is not None:
            error, self._next_sync_error = self._next_sync_error, None
            inode.sync_failed = True
            raise error
        inode.sync()

    def _step(self) -> None:
        """Stop before a change if the process ends here."""
        if self._steps_left is not None:
            if self._steps_left == 0:
                raise _Interrupted
            self._steps_left -= 1

    def _interrupt(self) -> None:
        job = self._writes.job_under_way()
        self._writes.cancel()
        self._reads.cancel()
        if job is None:
            return
        self._steps_left = self._rng.randint(0, _STEPS_MAX)
        try:
            job()
        except (_Interrupted, OSError):
            pass
        finally:
            self._steps_left = None

    def _inode(self, path: str) -> _Inode:
        inode = self._files.get(path)
        if inode is None:
            raise _os_error(errno.ENOENT, path)
        return inode

    def _check_directory(self, path: str) -> None:
        if path not in self._directories:
            raise _os_error(errno.ENOENT, path)

    def _check_space(self) -> None:
        if self.full:
            raise _os_error(errno.ENOSPC, "disk")

    def _set_name(self, path: str, inode: _Inode | None) -> None:
        directory = path.rpartition("/")[0]
        self._check_directory(directory)
        change = (path, self._files.get(path), inode)
        self._name_changes.setdefault(directory, []).append(change)
        self._put_name(path, inode)

    def _put_name(self, path: str, inode: _Inode | None) -> None:
        if inode is None:
            self._files.pop(path, None)
        else:
            self._files[path] = inode

    def _all_inodes(self) -> list[_Inode]:
        """All that may have a name after a crash, in an order that the seed determines."""
        inodes = [self._files[path] for path in sorted(self._files)]
        for changes in self._name_changes.values():
            for _, before, after in changes:
                inodes.extend(inode for inode in (before, after) if inode is not None)
        return list({id(inode): inode for inode in inodes}.values())

    def _lose_names(self) -> None:
        """For each name some of its unsynced changes survive, oldest first; names are independent."""
        for changes in self._name_changes.values():
            for path in dict.fromkeys(path for path, _, _ in changes):
                states = [change for change in changes if change[0] == path]
                survived = self._rng.randint(0, len(states))
                self._put_name(path, states[survived - 1][2] if survived else states[0][1])
        self._name_changes.clear()


class SimulatedFile:
    """One open file."""

    def __init__(self, disk: SimulatedDisk, inode: _Inode) -> None:
        self._disk = disk
        self._inode = inode
        self._life = disk.life()
        self._open = True

    @property
    def size(self) -> int:
        return len(self._inode.content)

    def append(self, buffers: Sequence[Buffer]) -> None:
        self._disk.append_to(self._alive(), b"".join(buffers))

    def pread(self, offset: int, length: int) -> bytes:
        return bytes(self._alive().content[offset : offset + length])

    def truncate(self, size: int) -> None:
        self._disk.truncate(self._alive(), size)

    def sync(self) -> None:
        self._disk.sync(self._alive())

    def close(self) -> None:
        self._open = False

    def _alive(self) -> _Inode:
        if not self._open or self._life != self._disk.life():
            raise _os_error(errno.EBADF, "file")
        return self._inode


class _Inode:
    """The bytes of a file: as a process sees them, and what is needed to know which of them are durable."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.sync_failed = False
        self._durable = 0  # content[:_durable] + _hidden is what the last sync left on the disk
        self._hidden = b""
        self._unsynced: list[bytes | int] = []  # appended bytes, or the size that was truncated to

    def append(self, data: bytes) -> None:
        self.content += data
        self._unsynced.append(data)

    def truncate(self, size: int) -> None:
        if size < self._durable:
            self._hidden = bytes(self.content[size : self._durable]) + self._hidden
            self._durable = size
        _resize(self.content, size)
        self._unsynced.append(size)

    def sync(self) -> None:
        if self.sync_failed:
            return
        self._durable = len(self.content)
        self._hidden = b""
        self._unsynced.clear()

    def lose(self, rng: Random) -> None:
        """Keep what was durable and a random part of the rest."""
        durable = bytes(self.content[: self._durable]) + self._hidden
        image = bytearray(durable)
        safe = len(durable)
        survived = rng.randint(0, len(self._unsynced))
        for change in self._unsynced[:survived]:
            safe = min(safe, _change(image, change))
        if survived < len(self._unsynced):
            torn = self._unsynced[survived]
            if isinstance(torn, bytes) and rng.random() < 0.7:
                image += torn[: rng.randint(0, len(torn))]
        _damage(image, safe, durable, rng)
        self.content = image
        self.sync_failed = False
        self._durable = len(image)
        self._hidden = b""
        self._unsynced.clear()


def _change(image: bytearray, change: bytes | int) -> int:
    """Carry out one change; the length below which it left everything as it was."""
    if isinstance(change, bytes):
        image += change
        return len(image) - len(change)
    _resize(image, change)
    return change


def _resize(content: bytearray, size: int) -> None:
    del content[size:]
    content.extend(bytes(size - len(content)))


def _damage(image: bytearray, safe: int, durable: bytes, rng: Random) -> None:
    """Sectors reach the disk in any order: some that were not synced hold zeros, garbage or older content."""
    if rng.random() < 0.4:
        return
    for start in range(safe - safe % SECTOR_BYTES, len(image), SECTOR_BYTES):
        if rng.random() < 0.6:
            continue
        begin, end = max(start, safe), min(start + SECTOR_BYTES, len(image))
        kind = rng.choice(("zeros", "garbage", "older"))
        if kind == "zeros":
            image[begin:end] = bytes(end - begin)
        elif kind == "garbage":
            image[begin:end] = rng.randbytes(end - begin)
        else:
            older = durable[begin:end]
            image[begin : begin + len(older)] = older


class _Lane:
    """Jobs of one thread, in order, each taking some time."""

    def __init__(
        self, disk: SimulatedDisk, rng: Random, schedule: Callable[[float, Callable[[], None]], object]
    ) -> None:
        self._disk = disk
        self._rng = rng
        self._schedule = schedule
        self._jobs: deque[tuple[Callable[[], object], Callable[[], None]]] = deque()

    def submit(self, job: Callable[[], T], done: Callable[[T | None, Exception | None], None]) -> None:
        def complete() -> None:
            try:
                result = job()
            except Exception as error:  # noqa: BLE001 - it is the submitter's to judge
                done(None, error)
            else:
                done(result, None)

        self._jobs.append((job, complete))
        if len(self._jobs) == 1:
            self._start()

    def job_under_way(self) -> Callable[[], object] | None:
        return self._jobs[0][0] if self._jobs else None

    def cancel(self) -> None:
        self._jobs.clear()

    def _start(self) -> None:
        life = self._disk.life()
        latency_s = LATENCY_MIN_S + self._rng.expovariate(1 / LATENCY_MEAN_S)

        def finish() -> None:
            if self._disk.life() != life:
                return
            _, complete = self._jobs.popleft()
            if self._jobs:
                self._start()
            complete()

        self._schedule(latency_s * self._disk.slow, finish)


_NameChange = tuple[str, "_Inode | None", "_Inode | None"]
"""Path, what it named before, what it names after."""


class _Interrupted(BaseException):
    """The process ends inside a disk operation; not an Exception, so that no job goes on after it."""


def _os_error(code: int, what: str) -> OSError:
    return OSError(code, os.strerror(code), what)
