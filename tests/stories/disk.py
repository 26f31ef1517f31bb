"""Faults of a node's disk for tests: damage, loss, files of a foreign node, no space, failing calls.

Damage is done while the node does not run; `qq inspect` then finds it. Space is taken on a file system of the node's
own, which needs the right to mount one. A module in the node's process raises failing calls of the operating system,
because no test can break a disk.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast
from zlib import crc32

import pytest

from cluster.configuration.configuration import Versions
from cluster.log.segment import FILE_HEADER_BYTES
from cluster.log.sync_mark import Mark
from cluster.runtime.asyncio_runtime import ReadOnlyDisk
from cluster.storage.inspect import CheckpointFound, LogFound, MarkFound, SegmentFound, inspect
from qq.machine.machine import QueueMachine

if TYPE_CHECKING:
    from collections.abc import Generator

    from cluster.runtime.ports import Disk
    from cluster.storage.inspect import Finding
    from qq.testing import ClusterNode

MIB = 1024 * 1024
RECORD_MAGIC = 0xD1B54A32.to_bytes(4, "little")
_UNSHARED = "TEST_UNSHARED"
_BALLAST = "ballast"
_TRY_TO_MOUNT = """
    directory=$(mktemp -d) && mount -t tmpfs tmpfs "$directory" && umount "$directory" && rmdir "$directory"
"""
_FAILING_CALLS = """
    import errno, os

    def failing(name):
        call = getattr(os, name)

        def checked(descriptor, *arguments):
            order = os.environ["TEST_FAILURE"]
            try:
                with open(order) as file:
                    failing, path = file.read().split()
            except FileNotFoundError:
                return call(descriptor, *arguments)
            if name == failing and path in os.readlink(f"/proc/self/fd/{descriptor}"):
                os.unlink(order)
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return call(descriptor, *arguments)

        setattr(os, name, checked)

    failing("fdatasync")
    failing("pread")
"""


class NodeFiles:
    """The data directory of a node."""

    def __init__(self, node: ClusterNode) -> None:
        self.root = node.log.parent / "data"
        self.group = self.root / "groups" / "0"
        self.log = self.group / "log"

    def findings(self) -> list[Finding]:
        disk, versions = cast("Disk", ReadOnlyDisk(self.group)), Versions(*QueueMachine.versions)
        while True:
            # A running node removes files, so a listed file may be missing.
            with suppress(FileNotFoundError):
                return list(inspect(disk, "", lambda _: "", versions))

    def problems(self) -> list[Finding]:
        found = self.findings()
        return [finding for finding in found if not isinstance(finding, LogFound) and finding.problem]

    def segments(self, kind: str) -> list[Path]:
        """Of this kind ("dense", "sparse" or "open"), ascending."""
        found = self.findings()
        return [self.log / row.name for row in found if isinstance(row, SegmentFound) and row.kind == kind]

    @property
    def mark(self) -> Mark:
        [mark] = [row.mark for row in self.findings() if isinstance(row, MarkFound) and row.mark]
        return mark

    @property
    def is_open_segment_marked(self) -> bool:
        """Whether the open segment has a sync mark; false if the node was killed before its first sync."""
        return [each.name for each in self.segments("open")] == [self.mark.name]

    def cut_last_synced_record(self) -> Path:
        """Shorten the open segment to the beginning of the last record that was synced; the file."""
        mark = self.mark
        file = self.log / mark.name
        with file.open("r+b") as opened:
            opened.truncate(file.read_bytes().rindex(RECORD_MAGIC, 0, mark.size))
        return file

    def checkpoints(self) -> list[Path]:
        return [self.log / row.name for row in self.findings() if isinstance(row, CheckpointFound)]

    # Space, on a file system of its own

    def fill(self, *, leaving: int) -> None:
        """Take all space but `leaving` bytes."""
        with (self.root / _BALLAST).open("ab") as ballast:
            while (size := shutil.disk_usage(self.root).free - leaving) > 0:
                with suppress(OSError):  # the node has taken some of it meanwhile
                    os.posix_fallocate(ballast.fileno(), os.fstat(ballast.fileno()).st_size, size)

    def clear(self) -> None:
        """Give the space back."""
        (self.root / _BALLAST).unlink(missing_ok=True)


def flip(file: Path, place: int | None = None) -> None:
    """Flip a bit; in the middle unless a place is given."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2 if place is None else place] ^= 0x04
    file.write_bytes(data)


def flip_copies(file: Path) -> None:
    """Flip a bit in both of the copies that the file holds."""
    flip(file, 20)
    flip(file, file.stat().st_size // 2 + 20)


def change_version(file: Path) -> None:
    """Give the file an unknown format version, with the right checksums."""
    data = bytearray(file.read_bytes())
    starts = (0, len(data) // 2) if file.name in ("identity", "manifest") else (0,)
    for start in starts:
        data[start + 4] = 99
    for start in starts if len(starts) > 1 else ():
        end = start + 44 + int.from_bytes(data[start + 40 : start + 44], "little")
        data[end : end + 4] = _crc(data[start:end])
    if file.name.startswith(("hardstate", "start")):
        data[-4:] = _crc(data[:-4])
    elif file.suffix == ".checkpoint":
        data[64:68] = _crc(data[:64])
    elif file.suffix in (".segment", ".sparse"):
        end = FILE_HEADER_BYTES - 4
        data[end : end + 4] = _crc(data[:end])
    file.write_bytes(data)


def _crc(data: bytes | bytearray) -> bytes:
    return crc32(data).to_bytes(4, "little")


def lines_since(node: ClusterNode, size: int) -> list[str]:
    """Return the lines that the node has logged since its log had `size` bytes."""
    return node.log.read_bytes()[size:].decode().splitlines()


# File systems


@contextmanager
def mounted(directory: Path, size: int) -> Generator[None]:
    """An empty file system in memory in place of `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", directory], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", directory], check=True)


def ran_where_it_may_mount(request: pytest.FixtureRequest) -> bool:
    """Whether this test has been run in a name space of its own, because this process may not mount."""
    if _may_mount([]):
        return False
    unshare = ["unshare", "--user", "--map-root-user", "--mount"]
    if _UNSHARED in os.environ or not _may_mount(unshare):
        pytest.fail(
            "needs the right to mount a tmpfs: run as root, or allow user name spaces (`unshare -rm`)"
        )
    test = f"{request.path}::{request.node.name}"
    command = [*unshare, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    environ = os.environ | {_UNSHARED: "1"}
    run = subprocess.run(command, env=environ, cwd=request.config.rootpath, capture_output=True, check=False)
    assert run.returncode == 0, (run.stdout + run.stderr).decode()
    return True


def _may_mount(prefix: list[str]) -> bool:
    try:
        run = subprocess.run([*prefix, "sh", "-c", _TRY_TO_MOUNT], capture_output=True, check=False)
    except FileNotFoundError:
        return False
    return run.returncode == 0


# Failing calls


class FailingCalls:
    """Has calls of the operating system fail in nodes that are started after this was made."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._order = directory / "order"
        (directory / "sitecustomize.py").write_text(textwrap.dedent(_FAILING_CALLS))
        monkeypatch.setenv("PYTHONPATH", str(directory))
        monkeypatch.setenv("TEST_FAILURE", str(self._order))

    def order(self, call: str, path: str) -> None:
        """Make the next such call fail, on a file whose path contains `path`."""
        temporary = self._order.with_suffix(".new")
        temporary.write_text(f"{call} {path}")
        temporary.replace(self._order)

    @property
    def happened(self) -> bool:
        return not self._order.exists()
