"""Files with two copies: survived and refused damage."""

from __future__ import annotations

import errno
from random import Random
from typing import TYPE_CHECKING

import pytest

from chaos.sim.world.disk import SimulatedDisk, SimulatedFile
from cluster.log.mirrored_file import SECTOR_BYTES, pack_twice, read_copies, read_twice
from cluster.log.segment import CorruptJournal, ForeignJournal, UnknownFormat

if TYPE_CHECKING:
    from collections.abc import Callable

MAGIC = b"TEST"
IDENTITY = b"cluster/a/0"
BODIES = [b"", b"body", bytes(range(256)) * 5, bytes(512 - 48)]


def ignore(_delay_s: float, _callback: Callable[[], None]) -> None:
    """Drop the callback."""


def unpack(data: bytes) -> bytes:
    disk = SimulatedDisk(Random(1), ignore)
    disk.replace_file("file", data)
    return read_twice(disk, "file", MAGIC, 3, IDENTITY)


@pytest.mark.parametrize("body", BODIES)
def test_the_two_copies_share_no_sector(body: bytes) -> None:
    data = pack_twice(MAGIC, 3, IDENTITY, body)
    assert unpack(data) == body
    assert len(data) % (2 * SECTOR_BYTES) == 0
    assert data[: len(data) // 2] == data[len(data) // 2 :]


@pytest.mark.parametrize("body", BODIES)
def test_file_survives_the_loss_of_a_sector(body: bytes, caplog: pytest.LogCaptureFixture) -> None:
    data = pack_twice(MAGIC, 3, IDENTITY, body)
    for start in range(0, len(data), SECTOR_BYTES):
        for filler in (bytes(SECTOR_BYTES), b"\xa5" * SECTOR_BYTES):
            caplog.clear()
            assert unpack(data[:start] + filler + data[start + SECTOR_BYTES :]) == body
            padding_only = data[start : start + SECTOR_BYTES] == bytes(SECTOR_BYTES)
            assert padding_only or "one of the two copies" in caplog.text


def test_file_survives_a_flipped_bit() -> None:
    data = pack_twice(MAGIC, 3, IDENTITY, b"body")
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert unpack(bytes(damaged)) == b"body"


def test_a_file_cut_short_is_used_if_the_first_copy_is_whole() -> None:
    data = pack_twice(MAGIC, 3, IDENTITY, b"body" * 200)
    assert unpack(data[: len(data) // 2 + 100]) == b"body" * 200
    with pytest.raises(CorruptJournal):
        unpack(data[: len(data) // 2 - SECTOR_BYTES])


@pytest.mark.parametrize("data", [b"", bytes(1024), b"x" * 1024, b"short"])
def test_file_without_a_whole_copy_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptJournal, match="file: offset 0: both copies of the content are damaged"):
        unpack(data)


def test_file_with_a_foreign_copy_is_refused() -> None:
    ours = pack_twice(MAGIC, 3, IDENTITY, b"body")
    half = len(ours) // 2
    for theirs, error in (
        (pack_twice(MAGIC, 4, IDENTITY, b"body"), UnknownFormat),
        (pack_twice(MAGIC, 3, b"cluster/b/0", b"body"), ForeignJournal),
    ):
        for data in (theirs, ours[:half] + theirs[half:], theirs[:half] + ours[half:]):
            with pytest.raises(error):
                unpack(data)
    # With a wrong checksum the version itself may be damaged.
    damaged = bytearray(ours)
    damaged[4] ^= 1
    assert unpack(bytes(damaged)) == b"body"


def test_a_file_that_cannot_be_read_is_damaged() -> None:
    disk = SimulatedDisk(Random(1), ignore)
    disk.replace_file("file", pack_twice(MAGIC, 3, IDENTITY, b"body"))
    assert read_twice(disk, "file", MAGIC, 3, IDENTITY) == b"body"
    disk.fail_reads("file")
    with pytest.raises(CorruptJournal):
        read_twice(disk, "file", MAGIC, 3, IDENTITY)
    with pytest.raises(FileNotFoundError):
        read_twice(disk, "other", MAGIC, 3, IDENTITY)


def test_unreadable_copy_is_known_to_be_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimulatedDisk(Random(1), ignore)
    disk.replace_file("file", pack_twice(MAGIC, 3, IDENTITY, b"body"))
    pread = SimulatedFile.pread
    for bad, copies in ((0, [None, b"body"]), (SECTOR_BYTES, [b"body", None])):

        def reading(file: SimulatedFile, offset: int, length: int, bad: int = bad) -> bytes:
            if offset == bad:
                raise OSError(errno.EIO, "Input/output error")
            return pread(file, offset, length)

        monkeypatch.setattr(SimulatedFile, "pread", reading)
        assert read_copies(disk, "file", MAGIC, 3, IDENTITY) == copies
        assert read_twice(disk, "file", MAGIC, 3, IDENTITY) == b"body"
