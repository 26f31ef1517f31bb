"""Sealed segments: the footer, sparse segments, verification."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from chaos.sim.world.disk import SimulatedDisk
from cluster.log.manifest import segment_name
from cluster.log.sealed_segment import load_index, pack_footer, records, verify, write_sparse
from cluster.log.segment import (
    FILE_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    CorruptJournal,
    FileHeader,
    ForeignJournal,
    Record,
    Segment,
    adopt_header,
    file_seed,
    pack_file_header,
    pack_records,
    scan_records,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

IDENTITY = b"cluster/a/0"
DENSE = segment_name(5, 1)
SPARSE = segment_name(5, 2, sparse=True)
ENTRIES: list[Record] = [(b"five", 5, 1), (b"", 6, 1), (b"seven", 7, 3), (b"eight" * 9, 8, 3)]
LIVE: list[Record] = [ENTRIES[1], ENTRIES[3]]


def ignore(_delay_s: float, _callback: Callable[[], None]) -> None:
    """Drop the callback."""


class Directory:
    """A dense segment, and a sparse segment with a part of its entries."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk(Random(1), ignore)
        self.disk.make_directory("log")
        self.segments = {
            DENSE: Segment.sealed_file(DENSE, 5, 9, self.write_dense(), sparse=False),
            SPARSE: Segment.sealed_file(SPARSE, 5, 9, self.write_sparse(LIVE), sparse=True),
        }

    def write_dense(self) -> int:
        header = FileHeader(5, 0, file_seed(IDENTITY, DENSE))
        data = b"".join([pack_file_header(IDENTITY, header), *pack_records(ENTRIES, 0, header.seed)])
        found = scan_records(data, DENSE, DENSE, header)
        found.records.runs = found.runs
        data += pack_footer(found.records, header.seed)
        self.disk.replace_file(f"log/{DENSE}", data)
        return len(data)

    def write_sparse(self, entries: list[Record], name: str = SPARSE) -> int:
        return write_sparse(self.disk, f"log/{name}", IDENTITY, 5, 9, entries)

    def records(self, name: str) -> list[Record]:
        found = records(self.disk, "log", IDENTITY, self.segments[name])
        return [(payload, index, term) for index, term, payload in found]

    def verify(self, name: str) -> None:
        verify(self.disk, f"log/{name}", IDENTITY)

    def size(self, name: str) -> int:
        return len(self.disk.read_file(f"log/{name}"))


@pytest.mark.parametrize(("name", "entries"), [(DENSE, ENTRIES), (SPARSE, LIVE)])
def test_records_of_a_segment_are_read_as_written(name: str, entries: list[Record]) -> None:
    directory = Directory()
    assert directory.records(name) == entries
    directory.verify(name)
    index = load_index(directory.disk, "log", IDENTITY, directory.segments[name])
    assert list(index.runs) == ([(5, 1), (7, 3)] if name == DENSE else [(6, 1), (8, 3)])
    assert index.size == FILE_HEADER_BYTES + sum(len(entry[0]) + RECORD_HEADER_BYTES for entry in entries)


@pytest.mark.parametrize("name", [DENSE, SPARSE])
def test_a_damaged_footer_costs_a_scan_and_no_record(name: str, caplog: pytest.LogCaptureFixture) -> None:
    directory = Directory()
    start = load_index(directory.disk, "log", IDENTITY, directory.segments[name]).size
    expected = directory.records(name)
    for bit in range(start * 8, directory.size(name) * 8):
        caplog.clear()
        directory.disk.flip_bit(f"log/{name}", bit)
        assert directory.records(name) == expected
        assert "the index at its end is damaged" in caplog.text
        with pytest.raises(CorruptJournal):
            directory.verify(name)
        directory.disk.flip_bit(f"log/{name}", bit)


@pytest.mark.parametrize("name", [DENSE, SPARSE])
def test_any_flipped_bit_of_header_and_records_is_found(name: str) -> None:
    directory = Directory()
    end = load_index(directory.disk, "log", IDENTITY, directory.segments[name]).size
    for bit in range(end * 8):
        directory.disk.flip_bit(f"log/{name}", bit)
        with pytest.raises(Exception, match=name):
            directory.records(name)
        with pytest.raises(Exception, match=name):
            directory.verify(name)
        directory.disk.flip_bit(f"log/{name}", bit)


@pytest.mark.parametrize("name", [DENSE, SPARSE])
def test_damaged_record_and_footer_are_corruption(name: str) -> None:
    directory = Directory()
    directory.disk.flip_bit(f"log/{name}", directory.size(name) * 8 - 1)
    directory.disk.flip_bit(f"log/{name}", (directory.size(name) - 130) * 8)
    with pytest.raises(CorruptJournal, match="bad record in a sealed segment"):
        directory.records(name)


@pytest.mark.parametrize("name", [DENSE, SPARSE])
def test_file_of_the_wrong_length_is_corruption(name: str) -> None:
    directory = Directory()
    file = directory.disk.open(f"log/{name}")
    for size in (file.size + 1, file.size - 1, FILE_HEADER_BYTES, 10, 0):
        file.truncate(size)
        with pytest.raises(CorruptJournal, match=name):
            directory.records(name)
        with pytest.raises(CorruptJournal, match=name):
            directory.verify(name)


def test_a_missing_or_unreadable_file_is_corruption() -> None:
    directory = Directory()
    directory.disk.fail_reads(f"log/{DENSE}")
    with pytest.raises(CorruptJournal, match="cannot be read: Input/output error"):
        directory.records(DENSE)
    directory.disk.remove(f"log/{SPARSE}")
    with pytest.raises(CorruptJournal, match="the file is missing"):
        directory.records(SPARSE)


def test_file_of_the_wrong_range_is_corruption() -> None:
    directory = Directory()
    for name in (DENSE, SPARSE):
        segment = directory.segments[name]
        directory.segments[name] = Segment.sealed_file(name, 5, 10, segment.file_bytes, sparse=segment.sparse)
        with pytest.raises(CorruptJournal, match="the file holds entries 5 to 8, not 5 to 9"):
            directory.records(name)


@pytest.mark.parametrize("name", [DENSE, SPARSE])
def test_file_of_a_foreign_node_is_read_with_a_header_of_ours(name: str) -> None:
    directory = Directory()
    path = f"log/{name}"
    with pytest.raises(ForeignJournal):
        verify(directory.disk, path, b"cluster/b/0")
    directory.disk.replace_file(path, adopt_header(directory.disk.read_file(path), b"cluster/b/0"))
    verify(directory.disk, path, b"cluster/b/0")


def test_a_sparse_segment_may_be_large_or_empty() -> None:
    directory = Directory()
    entries = [(bytes(1000), 10 * number + 1, number // 1000) for number in range(3000)]
    name = segment_name(1, 3, sparse=True)
    size = write_sparse(directory.disk, f"log/{name}", IDENTITY, 1, 30_000, entries)
    directory.segments[name] = Segment.sealed_file(name, 1, 30_000, size, sparse=True)
    assert directory.records(name) == entries
    directory.verify(name)
    name = segment_name(5, 4, sparse=True)
    directory.segments[name] = Segment.sealed_file(name, 5, 9, directory.write_sparse([], name), sparse=True)
    assert directory.records(name) == []
    directory.verify(name)


def test_a_sparse_segment_is_durable_when_it_is_written() -> None:
    directory = Directory()
    directory.disk.crash(power_loss=True)
    assert directory.records(SPARSE) == LIVE


def test_a_sparse_segment_that_cannot_be_written_leaves_no_file() -> None:
    directory = Directory()
    name = segment_name(5, 3, sparse=True)
    needed = directory.size(SPARSE)
    for free in range(needed + 10):
        directory.disk.capacity_bytes = directory.disk.used_bytes() + free
        if free < needed:
            with pytest.raises(OSError, match="No space"):
                directory.write_sparse(LIVE, name)
        else:
            directory.write_sparse(LIVE, name)
            directory.disk.remove(f"log/{name}")
        assert name not in directory.disk.list_directory("log")
    directory.disk.capacity_bytes = None

    def broken() -> Iterator[Record]:
        yield LIVE[0]
        raise CorruptJournal("other", 0, "bad")

    with pytest.raises(CorruptJournal, match="other"):
        write_sparse(directory.disk, f"log/{name}", IDENTITY, 5, 9, broken())
    assert name not in directory.disk.list_directory("log")
