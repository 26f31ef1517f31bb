"""An in-memory disk that loses, tears and damages data as real disks may.

Invariant: all randomness comes from the given generator. After a crash the disk may show anything that a journaling
file system allows, and only that: synced data is there; unsynced data may be there, in part, or as garbage; a rename
loses no file.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from cluster.runtime.ports import TEMPORARY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from cluster.runtime.ports import Buffer, Disk, T

SECTOR_BYTES = 512
LATENCY_MIN_S = 0.000_3
LATENCY_MEAN_S = 0.001_5
BACKGROUND_FACTOR = 2.0
"""Latency factor of the background lane, so that more of its jobs are under way when a fault happens."""
UNLIMITED_BYTES = 1 << 50
_STEPS_MAX = (4, 12, 60)  # disk operations that a job may complete before a crash interrupts it


class ProcessEnds(BaseException):
    """Ends the process inside a disk operation; not an Exception, so that no handler continues after it."""


def replace_in_steps(disk: Disk, path: str, data: bytes) -> None:
    """Write a small file as `RealDisk.replace_file` does, in steps; the process may end before each step."""
    directory, _, name = path.rpartition("/")
    temporary = path + TEMPORARY
    if name + TEMPORARY in disk.list_directory(directory):
        disk.remove(temporary)
    file = disk.open(temporary, create=True)
    try:
        file.append([data])
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, path)
    disk.sync_directory(directory)


class DiskContent(NamedTuple):
    """All files and directories of a disk."""

    by_path: dict[str, _Inode]
    directories: dict[str, None]


def _no_wait(_seconds: float) -> None:
    """Return at once."""


class SimulatedDisk:
    """The disk of a node; it survives the node's crashes."""

    slow: float = 1.0
    """Factor of all latencies."""

    full: bool = False
    """Whether every operation that needs space fails with ENOSPC; appends write a part first."""

    wait: Callable[[float], None] = staticmethod(_no_wait)
    """Called with the seconds that the process itself waits for a slow disk."""

    at_once_share: float = 0.0
    """Share of the short jobs that finish before `submit` returns while the disk is not slow."""

    capacity_bytes: int | None = None
    """Upper bound of the bytes of all files together; None is no limit."""

    def __init__(self, rng: Random, schedule: Callable[[float, Callable[[], None]], object]) -> None:
        self._rng = rng
        self.by_path: dict[str, _Inode] = {}
        self.directories: dict[str, None] = {"": None}
        self._name_changes: dict[str, list[_NameChange]] = {}
        self._moves: list[tuple[str, str]] = []
        self._flipped: list[tuple[_Inode, int, int]] = []
        self._incarnation = 0
        self._boot_id = 1
        self._steps_left: int | None = None
        self._fills_in: int | None = None
        self._next_sync_error: OSError | None = None
        self._writes = _Lane(self, rng, schedule)
        self._reads = _Lane(self, rng, schedule)
        self._background = _Lane(self, rng, schedule, BACKGROUND_FACTOR)

    # The port

    def make_directory(self, path: str) -> None:
        if path in self.directories:
            return
        parent = _directory_of(path)
        self.make_directory(parent)
        self._step()
        self._check_space()
        self.directories[path] = None
        self._make_names_durable(parent)

    def list_directory(self, path: str) -> list[str]:
        self._check_directory(path)
        known = [*self.by_path, *self.directories]
        return sorted(name.rpartition("/")[2] for name in known if name and _directory_of(name) == path)

    def read_file(self, path: str) -> bytes:
        return self.read(self.inode(path), 0, None)

    def replace_file(self, path: str, data: bytes) -> None:
        replace_in_steps(self, path, data)

    def overwrite_file(self, path: str, data: bytes) -> None:
        inode = self.inode(path)
        if len(data) != len(inode.content):
            raise ValueError(
                f"{path}: has {len(inode.content)} bytes and cannot be overwritten with {len(data)}"
            )
        self._step()
        inode.overwrite(data)
        if self.slow > 1.0:
            self.wait(_latency_s(self._rng) * self.slow)
        self.sync(inode)

    def open(self, path: str, *, create: bool = False) -> SimulatedFile:
        if create:
            self._step()
            self._check_space()
            if path in self.by_path:
                raise _os_error(errno.EEXIST, path)
            self._set_name(path, _Inode())
        return SimulatedFile(self, self.inode(path))

    def rename(self, source: str, target: str) -> None:
        self._step()
        if source in self.directories:
            self._check_directory(_directory_of(target))
            if target in self.directories:
                raise _os_error(errno.ENOTEMPTY, target)
            self._move_directory(source, target)
            self._moves.append((source, target))
        else:
            arrival = self._set_name(target, self.inode(source))
            self._set_name(source, None, after=arrival)

    def remove(self, path: str) -> None:
        self._step()
        self.inode(path)
        self._set_name(path, None)

    def remove_in_parts(self, path: str) -> None:
        self._step()
        self.inode(path).truncate(0)
        self.remove(path)

    def remove_directory(self, path: str) -> None:
        if path not in self.directories:
            return
        for name in self.list_directory(path):
            inside = f"{path}/{name}"
            if inside in self.directories:
                self.remove_directory(inside)
            else:
                self.remove(inside)
        self._step()
        del self.directories[path]

    def sync_directory(self, path: str) -> None:
        self._step()
        self._check_directory(path)
        self._make_names_durable(path)

    def free_bytes(self) -> int:
        if self.full:
            return 0
        if self.capacity_bytes is None:
            return UNLIMITED_BYTES
        return max(self.capacity_bytes - self.used_bytes(), 0)

    def boot_id(self) -> str:
        return f"session-{self._boot_id}"

    def submit(
        self,
        job: Callable[[], T],
        done: Callable[[T | None, Exception | None], None],
        *,
        is_short: bool = False,
    ) -> None:
        at_once = is_short and self.slow <= 1.0 and self._rng.random() < self.at_once_share
        self._writes.submit(job, done, at_once=at_once)

    def submit_read(self, job: Callable[[], T], done: Callable[[T | None, Exception | None], None]) -> None:
        self._reads.submit(job, done)

    def submit_background(
        self, job: Callable[[], T], done: Callable[[T | None, Exception | None], None]
    ) -> None:
        self._background.submit(job, done)

    # Faults

    def crash(self, *, power_loss: bool) -> None:
        """End the node's process now; with `power_loss`, lose unsynced data.

        The current job of each lane may have done a part of its work; its `done` is never called. Files opened before
        are unusable.
        """
        self._interrupt()
        self._incarnation += 1
        inodes = self.all_inodes()
        if power_loss:
            self._boot_id += 1
            self._lose_names()
        for inode in inodes:
            inode.unreadable = False
            # After a failed sync the lost pages count as clean: a new process reads the data on the disk.
            if power_loss or inode.sync_failed:
                inode.lose(self._rng)

    def end_process_after(self, steps: int) -> None:
        """Let the operation after `steps` more changes raise ProcessEnds; `crash` must follow."""
        self._steps_left = steps

    def spare_process(self) -> None:
        """Undo `end_process_after`."""
        self._steps_left = None

    def fill_after(self, steps: int) -> None:
        """Fill the disk after `steps` more changes, even in the middle of a job."""
        self._fills_in = steps

    def empty(self) -> None:
        """Undo `fill_after`: the disk has space again."""
        self.full, self._fills_in = False, None

    def fail_next_sync(self, code: int = errno.EIO) -> None:
        """Let the next sync of a file fail; its unsynced data may never become durable."""
        self._next_sync_error = _os_error(code, "sync")

    def fail_reads(self, path: str) -> None:
        """Make a file unreadable until `heal_reads` or the next crash."""
        self.inode(path).unreadable = True

    def heal_reads(self) -> None:
        for inode in self.all_inodes():
            inode.unreadable = False

    def flip_bit(self, path: str, bit: int) -> None:
        """Flip a bit, counted from the start of the file."""
        inode = self.inode(path)
        inode.content[bit // 8] ^= 1 << bit % 8
        self._flipped.append((inode, bit // 8, inode.content[bit // 8]))

    def shorten(self, path: str, size: int) -> None:
        """Cut off the end of a file; only while the process is down."""
        inode = self.inode(path)
        inode.truncate(size)
        inode.sync()

    def lose_file(self, path: str) -> None:
        """Remove a file durably; only while the process is down."""
        self._set_name(path, None)
        self._make_names_durable(_directory_of(path))

    def lose_everything(self) -> None:
        """Replace the disk by an empty disk; only while the process is down."""
        self.by_path.clear()
        self.directories = {"": None}
        self._name_changes.clear()
        self._moves.clear()
        self._flipped.clear()

    def content(self) -> DiskContent:
        """Return the present content, for `put_back`; only while the process is down."""
        return DiskContent(dict(self.by_path), dict(self.directories))

    def snapshot(self) -> DiskContent:
        """Return a copy of all files as they are, for `put_back`, as a snapshot of a virtual machine has them."""
        copies = {path: inode.copy() for path, inode in self.by_path.items()}
        return DiskContent(copies, dict(self.directories))

    def put_back(self, content: DiskContent) -> None:
        """Replace the present content by an earlier content; only while the process is down."""
        self.lose_everything()
        self.by_path.update(content.by_path)
        self.directories.update(content.directories)

    # For the checks of the simulation

    def files(self) -> dict[str, int]:
        """Return the size of each file by path, sorted."""
        return {path: len(self.by_path[path].content) for path in sorted(self.by_path)}

    def vouched_bytes(self, path: str) -> int:
        """Return the bytes, from the start of the file, that were durable before the last sync that added data."""
        return self.inode(path).vouched_bytes()

    def damaged_files(self) -> list[str]:
        """Return the paths of files with a flipped bit or a read error."""
        self._flipped = [
            (inode, place, value)
            for inode, place, value in self._flipped
            if place < len(inode.content) and inode.content[place] == value
        ]
        flipped = [inode for inode, _, _ in self._flipped]
        return [path for path, inode in self.by_path.items() if inode.unreadable or inode in flipped]

    def used_bytes(self) -> int:
        return sum(len(inode.content) for inode in self.by_path.values())

    # Internals

    def incarnation(self) -> int:
        """Return the number of crashes; a file opened before the last crash is unusable."""
        return self._incarnation

    def append_to(self, inode: _Inode, data: bytes) -> None:
        self._step()
        free = len(data) if self.full else self.free_bytes()
        if self.full or free < len(data):
            inode.append(data[: self._rng.randint(0, free)])
            raise _os_error(errno.ENOSPC, "disk")
        inode.append(data)

    def read(self, inode: _Inode, offset: int, end: int | None) -> bytes:
        if inode.unreadable:
            raise _os_error(errno.EIO, "read")
        return bytes(inode.content[offset:end])

    def truncate(self, inode: _Inode, size: int) -> None:
        self._step()
        inode.truncate(size)

    def overwrite(self, inode: _Inode, data: bytes) -> None:
        self._step()
        inode.overwrite(data)

    def sync(self, inode: _Inode) -> None:
        self._step()
        self._sync(inode)

    def _sync(self, inode: _Inode) -> None:
        # A sync never fails while the process is ending, because the knowledge of the failure would be lost with it.
        if self._next_sync_error is not None and self._steps_left is None:
            error, self._next_sync_error = self._next_sync_error, None
            inode.sync_failed = True
            raise error
        inode.sync()

    def _step(self) -> None:
        """Raise ProcessEnds if the process must end before this change; fill the disk if that is due."""
        if self._fills_in is not None:
            self.full = self.full or self._fills_in == 0
            self._fills_in = None if self.full else self._fills_in - 1
        if self._steps_left is not None:
            if self._steps_left == 0:
                raise ProcessEnds
            self._steps_left -= 1

    def _interrupt(self) -> None:
        """Do a part of the current jobs of the writing lanes, in random order and to a random extent."""
        jobs = [lane.job_under_way() for lane in (self._writes, self._background)]
        for lane in (self._writes, self._reads, self._background):
            lane.cancel()
        under_way = [job for job in jobs if job is not None]
        self._rng.shuffle(under_way)
        for job in under_way:
            self._steps_left = self._rng.randint(0, self._rng.choice(_STEPS_MAX))
            try:
                job()
            except (ProcessEnds, Exception):  # noqa: BLE001, S112 - nobody is left who could be told
                continue
        self._steps_left = None

    def inode(self, path: str) -> _Inode:
        inode = self.by_path.get(path)
        if inode is None:
            raise _os_error(errno.ENOENT, path)
        return inode

    def _check_directory(self, path: str) -> None:
        if path not in self.directories:
            raise _os_error(errno.ENOENT, path)

    def _check_space(self, size: int = 1) -> None:
        if self.free_bytes() < size:
            raise _os_error(errno.ENOSPC, "disk")

    # Names

    def _set_name(self, path: str, inode: _Inode | None, after: _NameChange | None = None) -> _NameChange:
        """Let the path name `inode`, or no file if None.

        The change is not durable yet, and becomes durable only after the change `after`.
        """
        directory = _directory_of(path)
        self._check_directory(directory)
        change = _NameChange(path, self.by_path.get(path), inode, after)
        self._name_changes.setdefault(directory, []).append(change)
        self._put_name(path, inode)
        return change

    def _put_name(self, path: str, inode: _Inode | None) -> None:
        if inode is None:
            self.by_path.pop(path, None)
        else:
            self.by_path[path] = inode

    def _make_names_durable(self, directory: str) -> None:
        self._moves = [move for move in self._moves if directory not in map(_directory_of, move)]
        for known in list(self._name_changes):
            if self._last_directory(known) == directory:
                for change in self._name_changes.pop(known, ()):
                    self._make_durable(change.after)

    def _last_directory(self, path: str) -> str:
        """Return the directory or, if it was removed, its nearest present ancestor."""
        while path not in self.directories:
            path = _directory_of(path)
        return path

    def _make_durable(self, change: _NameChange | None) -> None:
        """Make a change durable, with the change before it that a rename implies.

        The new name of a rename is never less durable than the loss of the old name.
        """
        if change is None:
            return
        directory = _directory_of(change.path)
        changes = self._name_changes.get(directory, [])
        if change not in changes:
            return
        cut = changes.index(change) + 1
        durable = [earlier for earlier in changes[:cut] if earlier.path == change.path]
        self._name_changes[directory] = [other for other in changes if other not in durable]
        for earlier in durable:
            self._make_durable(earlier.after)

    def _move_directory(self, source: str, target: str) -> None:
        def moved(path: str) -> str:
            return target + path[len(source) :] if f"{path}/".startswith(f"{source}/") else path

        self.by_path = {moved(path): inode for path, inode in self.by_path.items()}
        self.directories = {moved(path): None for path in self.directories}
        self._name_changes = {moved(path): changes for path, changes in self._name_changes.items()}
        for changes in self._name_changes.values():
            for change in changes:
                change.path = moved(change.path)

    def all_inodes(self) -> list[_Inode]:
        """Return all inodes that may have a name after a crash, in an order that the seed determines."""
        inodes = [self.by_path[path] for path in sorted(self.by_path)]
        for changes in self._name_changes.values():
            for change in changes:
                inodes.extend(inode for inode in (change.before, change.inode) if inode is not None)
        return list({id(inode): inode for inode in inodes}.values())

    def _lose_names(self) -> None:
        """Keep a random number of the unsynced changes of each name, oldest first.

        Names are independent except for renames.
        """
        while self._moves:
            source, target = self._moves.pop()
            if self._rng.random() < 0.5 and target in self.directories and source not in self.directories:
                self._move_directory(target, source)
        by_path: dict[str, list[_NameChange]] = {}
        for changes in self._name_changes.values():
            for change in changes:
                by_path.setdefault(change.path, []).append(change)
        self._name_changes.clear()
        survived: list[_NameChange] = []
        for states in by_path.values():
            survived += states[: self._rng.randint(0, len(states))]
        while survivors := _implied(survived, by_path):
            survived += survivors
        for path, states in by_path.items():
            done = [change for change in states if change in survived]
            self._put_name(path, done[-1].inode if done else states[0].before)
        for path in list(self.by_path):
            # The directory was removed, but the loss of names restored one of its files.
            self._restore_directory(_directory_of(path))

    def _restore_directory(self, path: str) -> None:
        while path not in self.directories:
            self.directories[path] = None
            path = _directory_of(path)


def _implied(survived: list[_NameChange], by_path: dict[str, list[_NameChange]]) -> list[_NameChange]:
    """Return the changes that must have survived because a surviving change depends on them."""
    implied: list[_NameChange] = []
    for change in survived:
        needed = change.after
        states = by_path.get(needed.path, []) if needed is not None else []
        if needed in states:
            implied += states[: states.index(needed) + 1]
    return [change for change in dict.fromkeys(implied) if change not in survived]


@dataclass(eq=False, slots=True)
class _NameChange:
    """A change of the file that a path names."""

    path: str
    before: _Inode | None
    inode: _Inode | None
    after: _NameChange | None
    """A change that becomes durable no later than this change."""


class SimulatedFile:
    """An open file."""

    def __init__(self, disk: SimulatedDisk, inode: _Inode) -> None:
        self._disk = disk
        self.inode = inode
        self._incarnation = disk.incarnation()
        self._open = True

    @property
    def size(self) -> int:
        return len(self.inode.content)

    def append(self, buffers: Sequence[Buffer]) -> None:
        self._disk.append_to(self._alive(), b"".join(buffers))

    def pread(self, offset: int, length: int) -> bytes:
        return self._disk.read(self._alive(), offset, offset + length)

    def truncate(self, size: int) -> None:
        self._disk.truncate(self._alive(), size)

    def overwrite(self, data: Buffer) -> None:
        self._disk.overwrite(self._alive(), bytes(data))

    def sync(self) -> None:
        self._disk.sync(self._alive())

    def close(self) -> None:
        self._open = False

    def _alive(self) -> _Inode:
        if not self._open or self._incarnation != self._disk.incarnation():
            raise _os_error(errno.EBADF, "file")
        return self.inode


class _Inode:
    """The bytes of a file: the content that a process sees, and the record of which bytes are durable."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.sync_failed = False
        self.unreadable = False
        # The content at the last sync, and later contents, if the file was overwritten in place since.
        self._overwritten: list[bytes] = []
        self._durable = 0  # content[:_durable] + _hidden is the content on disk after the last sync
        self._hidden = b""
        self._marks: list[int] = []  # file sizes at each sync that added data
        self._unsynced: list[bytes | int] = []  # appended bytes, or the size of a truncation

    def append(self, data: bytes) -> None:
        self.content += data
        self._unsynced.append(data)

    def truncate(self, size: int) -> None:
        if size < self._durable:
            self._hidden = bytes(self.content[size : self._durable]) + self._hidden
            self._durable = size
        self._cut_marks(size)
        _resize(self.content, size)
        self._unsynced.append(size)

    def overwrite(self, data: bytes) -> None:
        """Write in place, from the start. Raises ValueError after other unsynced changes: the mix is not modelled."""
        if self._unsynced:
            raise ValueError("overwritten with unsynced changes")
        self._overwritten.append(bytes(self.content))
        self.content[: len(data)] = data

    def sync(self) -> None:
        if self.sync_failed:
            return
        self._overwritten.clear()
        if self._durable < len(self.content):
            self._marks.append(len(self.content))
        self._durable = len(self.content)
        self._hidden = b""
        self._unsynced.clear()

    def copy(self) -> _Inode:
        """Return a file with the same content, all of it durable."""
        copy = _Inode()
        copy.append(bytes(self.content))
        copy.sync()
        return copy

    def vouched_bytes(self) -> int:
        return self._marks[-2] if len(self._marks) > 1 else 0

    def _cut_marks(self, size: int) -> None:
        if self._marks and self._marks[-1] > size:
            self._marks = [mark for mark in self._marks if mark < size] + [size]

    def lose(self, rng: Random) -> None:
        """Keep the durable bytes and a random part of the unsynced changes."""
        if self._overwritten:
            self.content = _mix(self._overwritten, self.content, rng)
            self._overwritten.clear()
            self.sync_failed = False
            return
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
        self._cut_marks(safe)
        self._durable = len(image)
        self._hidden = b""
        self._unsynced.clear()


def _mix(older: Sequence[bytes], new: bytearray, rng: Random) -> bytearray:
    """Return a mix of old and new sectors of an overwritten file; the sector being written may hold garbage."""
    image = bytearray(new)
    starts = range(0, len(image), SECTOR_BYTES)
    for start in starts:
        if rng.random() < 0.5:
            image[start : start + SECTOR_BYTES] = rng.choice(older)[start : start + SECTOR_BYTES]
    if starts and rng.random() < 0.3:
        start = rng.choice(starts)
        end = min(start + SECTOR_BYTES, len(image))
        image[start:end] = rng.randbytes(end - start)
    return image


def _change(image: bytearray, change: bytes | int) -> int:
    """Apply a change; return the length of the prefix that it left unchanged."""
    if isinstance(change, bytes):
        image += change
        return len(image) - len(change)
    _resize(image, change)
    return change


def _resize(content: bytearray, size: int) -> None:
    del content[size:]
    content.extend(bytes(size - len(content)))


def _damage(image: bytearray, safe: int, durable: bytes, rng: Random) -> None:
    """Damage unsynced sectors, which reach the disk in any order: some hold zeros, garbage or older content."""
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
    """Runs the jobs of a single thread in order; each job takes some time."""

    def __init__(
        self,
        disk: SimulatedDisk,
        rng: Random,
        schedule: Callable[[float, Callable[[], None]], object],
        factor: float = 1.0,
    ) -> None:
        self._factor = factor
        self._disk = disk
        self._rng = rng
        self._schedule = schedule
        self._jobs: deque[tuple[Callable[[], object], Callable[[], None]]] = deque()

    def submit(
        self,
        job: Callable[[], T],
        done: Callable[[T | None, Exception | None], None],
        *,
        at_once: bool = False,
    ) -> None:
        def complete() -> None:
            try:
                result = job()
            except Exception as error:  # noqa: BLE001 - it is the submitter's to judge
                done(None, error)
            else:
                done(result, None)

        if at_once and not self._jobs:
            complete()
            return
        self._jobs.append((job, complete))
        if len(self._jobs) == 1:
            self._start()

    def job_under_way(self) -> Callable[[], object] | None:
        return self._jobs[0][0] if self._jobs else None

    def cancel(self) -> None:
        self._jobs.clear()

    def _start(self) -> None:
        incarnation = self._disk.incarnation()
        latency_s = _latency_s(self._rng) * self._factor

        def finish() -> None:
            if self._disk.incarnation() != incarnation:
                return
            _, complete = self._jobs.popleft()
            if self._jobs:
                self._start()
            complete()

        self._schedule(latency_s * self._disk.slow, finish)


def _latency_s(rng: Random) -> float:
    return LATENCY_MIN_S + rng.expovariate(1 / LATENCY_MEAN_S)


def _directory_of(path: str) -> str:
    return path.rpartition("/")[0]


def _os_error(code: int, what: str) -> OSError:
    return OSError(code, os.strerror(code), what)
