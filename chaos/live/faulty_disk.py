"""A node's real disk that can be full or slow, and that can be rolled back as by a power loss.

While the node runs, every change that is not durable at once is written to a journal before it is made. Every file has
a second name in a side directory, so that its content outlives its removal. All of it survives SIGKILL. When the node
is down, `lose_power` rolls the data directory back.

    SIDE/journal         JSON, one change a line
    SIDE/files/NUMBER    second names (hard links) of the files that may have a name after a power loss

The simulated disk (chaos/sim/world/disk.py) decides which changes a power loss takes: the journal is replayed on it.

Invariant: data that the node knows to be durable stays; unsynced data is lost at random. Without a power loss all
written data stays.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import shutil
import threading
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from chaos.sim.world.disk import SimulatedDisk, replace_in_steps
from cluster.runtime.asyncio_runtime import RealDisk, RealFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cluster.runtime.ports import Buffer

_JOURNAL = "journal"
_FILES = "files"
_LOCK = "lock"  # created anew by every process that opens the directory
_PART_BYTES = 64 * 1024
_OF_CONTENT = ("sync", "truncate", "overwrite")


class FaultyDisk(RealDisk):
    """The data directory `root`, with its history in `side`; both must be on the same file system."""

    full = False
    """Whether every operation that needs space fails with ENOSPC; appends write a part first."""

    sync_delay_s = 0.0
    """Mean seconds that each sync is delayed."""

    def __init__(self, root: Path, side: Path) -> None:
        super().__init__(root)
        self.chance = Random(0)
        """Random numbers for the length of failing appends and the delay of slow syncs."""
        self._root_path = root
        self._lock_changes = threading.RLock()
        self._history = History(root, side, self.chance)

    # The port

    def make_directory(self, path: str) -> None:
        with self._lock_changes:
            self._history.record("mkdir", path)
            super().make_directory(path)

    def replace_file(self, path: str, data: bytes) -> None:
        replace_in_steps(self, path, data)

    def overwrite_file(self, path: str, data: bytes) -> None:
        self.delay_sync()
        with self._lock_changes:
            number = self._history.number(path)
            self.record_overwrite(number, self.read_file(path))
            super().overwrite_file(path, data)
            self._history.record("sync", number, len(data))

    def open(self, path: str, *, create: bool = False) -> FaultyFile:
        with self._lock_changes:
            if create:
                self.check_space()
                self._history.create(path)
            descriptor = os.open(self._root_path / path, os.O_RDWR | os.O_CLOEXEC)
            return FaultyFile(descriptor, self._history.number(path), self)

    def rename(self, source: str, target: str) -> None:
        with self._lock_changes:
            self._must_exist(source)
            self._history.record("rename", source, target)
            super().rename(source, target)

    def remove(self, path: str) -> None:
        with self._lock_changes:
            self._must_exist(path)
            self._history.record("remove", path)
            super().remove(path)

    def remove_in_parts(self, path: str) -> None:
        """Remove a file in two parts; the first is small, because the journal must hold its bytes."""
        with closing(self.open(path)) as file:
            file.truncate(max(file.size - _PART_BYTES, 0))
        self.remove(path)

    def remove_directory(self, path: str) -> None:
        if not (self._root_path / path).exists():
            return
        for name in self.list_directory(path):
            inside = f"{path}/{name}"
            if (self._root_path / inside).is_dir():
                self.remove_directory(inside)
            else:
                self.remove(inside)
        with self._lock_changes:
            self._history.record("rmdir", path)
            (self._root_path / path).rmdir()

    def sync_directory(self, path: str) -> None:
        self.delay_sync()
        with self._lock_changes:  # a concurrent change would be taken for durable
            super().sync_directory(path)
            self._history.record("syncdir", path)

    def free_bytes(self) -> int:
        return 0 if self.full else super().free_bytes()

    def boot_id(self) -> str:
        return f"{super().boot_id()}-{self._history.losses}"

    def close(self) -> None:
        super().close()
        self._history.close()

    # Called by its files

    def record(self, change: str, *details: int | str) -> None:
        with self._lock_changes:
            self._history.record(change, *details)

    def record_overwrite(self, number: int, content: bytes) -> None:
        with self._lock_changes:
            if not self._history.is_overwritten(number):
                self._history.record("overwrite", number, _text(content))

    def check_space(self) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._root_path))

    def delay_sync(self) -> None:
        if self.sync_delay_s:
            time.sleep(self.chance.uniform(0.5, 1.5) * self.sync_delay_s)

    def _must_exist(self, path: str) -> None:
        """Raise the error that the change would raise, before it is recorded."""
        (self._root_path / path).lstat()


class FaultyFile(RealFile):
    """A file of a `FaultyDisk`."""

    def __init__(self, descriptor: int, number: int, disk: FaultyDisk) -> None:
        super().__init__(descriptor)
        self._number = number
        self._disk = disk

    def append(self, buffers: Sequence[Buffer]) -> None:
        if self._disk.full:
            data = b"".join(buffers)
            super().append([data[: self._disk.chance.randint(0, len(data))]])
            self._disk.check_space()
        super().append(buffers)

    def overwrite(self, data: Buffer) -> None:
        self._disk.record_overwrite(self._number, self.pread(0, self.size))
        super().overwrite(data)

    def truncate(self, size: int) -> None:
        if size < self.size:
            self._disk.record("truncate", self._number, size, _text(self.pread(size, self.size - size)))
        super().truncate(size)

    def sync(self) -> None:
        self._disk.delay_sync()
        size = self.size
        super().sync()
        self._disk.record("sync", self._number, size)


@dataclass(slots=True)
class _Durable:
    """The durable part of a file: its first `size` bytes as they are, and `hidden` bytes that followed them."""

    size: int = 0
    hidden: bytes = b""
    overwritten: bytes | None = None
    """The complete durable content, if the file was overwritten in place since."""

    def truncate(self, size: int, cut: bytes) -> None:
        if size < self.size:
            self.hidden = cut[: self.size - size] + self.hidden
            self.size = size

    def is_all(self, size: int) -> bool:
        return self.size == size and not self.hidden and self.overwritten is None


class History:
    """The changes of the data directory `root`, and which of them are durable."""

    def __init__(self, root: Path, side: Path, chance: Random) -> None:
        """Continue after the previous process; a directory without history counts as durable."""
        self._root = root
        self._files = side / _FILES
        self._journal = side / _JOURNAL
        self._files.mkdir(parents=True, exist_ok=True)
        self._model = SimulatedDisk(chance, lambda _delay_s, _call: None)
        self._numbers: dict[Any, int] = {}
        """The number of each file, by the model's inode."""
        self._durable: dict[int, _Durable] = {}
        self._next = 1
        self.losses = 0
        if not self._journal.exists():
            self._write([["begin", 0], *self._changes_to_existing_files()])
        self._resume()
        self._descriptor = os.open(self._journal, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def close(self) -> None:
        os.close(self._descriptor)

    # While the node runs

    def record(self, change: str, *details: int | str) -> None:
        """Record a change that is about to be made, or a finished sync."""
        os.write(self._descriptor, _line([change, *details]))
        self._apply(change, *details)

    def create(self, path: str) -> None:
        """Create an empty file. Raises FileExistsError."""
        target = self._root / path
        if target.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        number = self._next
        self.record("create", number, path)
        second = self._files / str(number)
        second.unlink(missing_ok=True)  # of a process that died here
        second.touch(0o600)
        target.hardlink_to(second)

    def number(self, path: str) -> int:
        """Return the number of the file with this name. Raises FileNotFoundError."""
        inode = self._model.by_path.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self._numbers[inode]

    def is_overwritten(self, number: int) -> bool:
        """Return whether the durable content of an overwritten file is recorded already."""
        durable = self._durable.get(number)
        return durable is not None and durable.overwritten is not None

    # Start and end

    def _changes_to_existing_files(self) -> list[list[Any]]:
        """Give every file a second name, and return changes that record everything as durable."""
        changes: list[list[Any]] = []
        directories = [""]
        for number, found in enumerate(sorted(self._root.rglob("*")), 1):
            path = str(found.relative_to(self._root))
            if found.is_dir():
                directories.append(path)
                changes.append(["mkdir", path])
            elif path != _LOCK:
                (self._files / str(number)).unlink(missing_ok=True)
                (self._files / str(number)).hardlink_to(found)
                changes += [["create", number, path], ["sync", number, found.stat().st_size]]
        return changes + [["syncdir", path] for path in directories]

    def _resume(self) -> None:
        *lines, _torn = self._journal.read_bytes().split(b"\n")
        changes = [json.loads(line) for line in lines]
        if changes and not self._was_made(*changes[-1]):
            changes.pop()
        last_syncs = {change[1]: place for place, change in enumerate(changes) if change[0] == "sync"}
        self._write(
            [
                change
                for place, change in enumerate(changes)
                if change[0] not in _OF_CONTENT or place >= last_syncs.get(change[1], 0)
            ]
        )
        for change in changes:
            self._apply(*change)

    def _was_made(self, change: str, *details: Any) -> bool:
        """Return whether the last recorded change was carried out before the process ended."""
        match change:
            case "create":
                return (self._root / details[1]).exists()
            case "rename" | "remove" | "rmdir":
                return not (self._root / details[0]).exists()
            case _:
                return True

    def _write(self, changes: list[list[Any]]) -> None:
        temporary = self._journal.with_suffix(".new")
        temporary.write_bytes(b"".join(map(_line, changes)))
        temporary.replace(self._journal)

    def _apply(self, change: str, *details: Any) -> None:
        match change:
            case "begin":
                self.losses = details[0]
            case "mkdir":
                self._model.make_directory(details[0])
            case "create":
                number, path = details
                self._numbers[self._model.open(path, create=True).inode] = number
                self._durable[number] = _Durable()
                self._next = max(self._next, number + 1)
            case "rename":
                self._model.rename(*details)
            case "remove":
                self._model.remove(*details)
            case "rmdir":
                self._model.remove_directory(*details)
            case "syncdir":
                self._model.sync_directory(*details)
                self._forget_unreachable()
            case _:
                self._apply_to_content(change, *details)

    def _apply_to_content(self, change: str, number: int, size_or_old: Any, cut: str = "") -> None:
        durable = self._durable.get(number)
        if durable is None:  # the file is open and has no name any more
            return
        if change == "sync":
            self._durable[number] = _Durable(size_or_old)
        elif change == "truncate":
            durable.truncate(size_or_old, base64.b64decode(cut))
        elif durable.overwritten is None:
            durable.overwritten = base64.b64decode(size_or_old)

    def _forget_unreachable(self) -> None:
        """Delete files that no power loss can bring back, to free their space."""
        reachable = set(self._model.all_inodes())
        for inode in [known for known in self._numbers if known not in reachable]:
            number = self._numbers.pop(inode)
            del self._durable[number]
            (self._files / str(number)).unlink(missing_ok=True)

    # The power loss

    def lose_power(self) -> int:
        """Roll the data directory back at random, and begin a new history; return the bytes that were not durable."""
        rewritten = [inode for inode, number in self._numbers.items() if self._fill(inode, number)]
        at_risk = sum(len(inode.content) - self._durable[self._numbers[inode]].size for inode in rewritten)
        self._model.crash(power_loss=True)
        new = self._root.with_name(f"{self._root.name}.new")
        for directory in self._model.directories:
            (new / directory).mkdir(mode=0o700, parents=True, exist_ok=True)
        placed: set[Any] = set()
        for path, inode in self._model.by_path.items():
            kept = self._files / str(self._numbers[inode])
            if inode in rewritten:
                kept.write_bytes(inode.content)
            if inode in placed:
                # Both names of a half-undone rename: if they were the same file, a further rename would do nothing
                # (POSIX).
                shutil.copyfile(kept, new / path)
            else:
                (new / path).hardlink_to(kept)
                placed.add(inode)
        shutil.rmtree(self._root)
        new.rename(self._root)
        shutil.rmtree(self._files)
        self._files.mkdir()
        self.losses += 1
        self._write([["begin", self.losses], *self._changes_to_existing_files()])
        return at_risk

    def _fill(self, inode: Any, number: int) -> bool:
        """Put a file's content into the model and return True, or return False if all of it is durable."""
        durable, kept = self._durable[number], self._files / str(number)
        if durable.is_all(kept.stat().st_size):
            return False
        content = kept.read_bytes()
        if durable.overwritten is not None:
            inode.append(durable.overwritten)
            inode.sync()
            inode.overwrite(content)
            return True
        inode.append(content[: durable.size] + durable.hidden)
        inode.sync()
        if durable.hidden:
            inode.truncate(durable.size)
        inode.append(content[durable.size :])
        return True


def lose_power(root: Path, side: Path, seed: int) -> int:
    """Roll the data directory back as a power loss may; return the bytes of files that were not durable.

    Its node must be down.
    """
    history = History(root, side, Random(seed))
    try:
        return history.lose_power()
    finally:
        history.close()


def _line(change: Sequence[Any]) -> bytes:
    return json.dumps(change).encode() + b"\n"


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
