"""The file format of the log: what a scan accepts, cuts and refuses."""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.segment import (
    FILE_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    CorruptJournal,
    Extent,
    ForeignJournal,
    Record,
    Segment,
    UnknownFormat,
    pack_file_header,
    pack_records,
    read_extent,
    record_seed,
    scan,
    segment_name,
)

IDENTITY = b"cluster/0"
PATH = "log/5.segment"


def segment_bytes(*batches: list[Record], first: int = 5, identity: bytes = IDENTITY) -> bytes:
    """A file in which each batch was synced before the next was written."""
    data = pack_file_header(identity, first)
    durable = 0
    for batch in batches:
        data += b"".join(pack_records(batch, durable, record_seed(identity, first)))
        durable = len(data)
    return data


class Memory:
    """A file to read from."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def pread(self, offset: int, length: int) -> bytes:
        return self.data[offset : offset + length]


TWO_BATCHES = [[(b"one", 5, 1), (b"", 6, 1)], [(b"three", 7, 2)]]


def test_a_scan_finds_every_record_and_where_terms_change() -> None:
    data = segment_bytes(*TWO_BATCHES)
    segment, terms = scan(data, PATH, IDENTITY, 5, last=True)
    assert segment.size == len(data)
    assert terms == [(5, 1), (7, 2)]
    assert [segment.extent(index)[0] for index in (5, 6, 7)] == [
        FILE_HEADER_BYTES,
        FILE_HEADER_BYTES + RECORD_HEADER_BYTES + 3,
        FILE_HEADER_BYTES + 2 * RECORD_HEADER_BYTES + 3,
    ]
    assert segment.extent(7)[1] == len(data)


def test_an_index_entry_costs_four_bytes() -> None:
    assert Segment(1).offsets.itemsize == 4


@pytest.mark.parametrize("tail", [b"", bytes(100), b"\xff" * 100])
def test_a_torn_last_batch_is_cut_at_every_offset_of_it(tail: bytes) -> None:
    durable = len(segment_bytes(TWO_BATCHES[0]))
    data = segment_bytes(*TWO_BATCHES)
    for cut in range(durable, len(data)):
        segment, _ = scan(data[:cut] + tail, PATH, IDENTITY, 5, last=True)
        assert (segment.end, segment.size) == (7, durable)


def test_a_torn_file_header_of_the_last_segment_leaves_nothing() -> None:
    data = segment_bytes(TWO_BATCHES[0])
    for cut in range(FILE_HEADER_BYTES):
        segment, _ = scan(data[:cut] + bytes(len(data) - cut), PATH, IDENTITY, 5, last=True)
        assert (segment.end, segment.size) == (5, 0)


def test_a_torn_tail_of_an_earlier_segment_is_corruption() -> None:
    data = segment_bytes(*TWO_BATCHES)
    with pytest.raises(
        CorruptJournal, match=rf"{PATH}: offset \d+: bad record in a segment that is not the last"
    ):
        scan(data[:-1], PATH, IDENTITY, 5, last=False)


def test_a_bad_record_that_a_later_one_knows_as_durable_is_corruption() -> None:
    data = bytearray(segment_bytes(*TWO_BATCHES))
    data[FILE_HEADER_BYTES + RECORD_HEADER_BYTES] ^= 1
    with pytest.raises(CorruptJournal) as caught:
        scan(bytes(data), PATH, IDENTITY, 5, last=True)
    assert (caught.value.path, caught.value.offset) == (PATH, FILE_HEADER_BYTES)
    assert "\n" not in str(caught.value)


@given(st.data())
def test_any_flipped_bit_below_a_durable_claim_is_detected(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(0, 60), min_size=3, max_size=8))
    batches = [[(bytes([number] * size), 5 + number, 1)] for number, size in enumerate(sizes)]
    image = bytearray(segment_bytes(*batches))
    claimed = len(segment_bytes(*batches[:-1]))
    bit = data.draw(st.integers(0, claimed * 8 - 1))
    image[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptJournal):
        scan(bytes(image), PATH, IDENTITY, 5, last=True)


def test_records_of_another_file_vouch_for_nothing() -> None:
    embedded = segment_bytes(*TWO_BATCHES, first=9)
    data = segment_bytes([(b"one", 5, 1)])
    torn = b"".join(pack_records([(embedded, 6, 1)], len(data), record_seed(IDENTITY, 5)))[:-1]
    segment, _ = scan(data + torn, PATH, IDENTITY, 5, last=True)
    assert segment.end == 6


def test_a_gap_in_the_indexes_is_corruption() -> None:
    data = segment_bytes([(b"one", 5, 1)], [(b"three", 7, 1)])
    with pytest.raises(CorruptJournal, match="index 7 where 6 should be"):
        scan(data, PATH, IDENTITY, 5, last=True)


def test_a_file_of_another_cluster_is_refused() -> None:
    data = segment_bytes(*TWO_BATCHES, identity=b"other")
    with pytest.raises(ForeignJournal, match=f"{PATH}: belongs to another cluster"):
        scan(data, PATH, IDENTITY, 5, last=True)


def test_a_file_of_a_newer_version_is_refused() -> None:
    header = bytearray(pack_file_header(IDENTITY, 5))
    header[4] += 1
    header[-4:] = crc32(header[:-4]).to_bytes(4, "little")
    with pytest.raises(UnknownFormat, match=f"{PATH}: format version 2 is unknown"):
        scan(bytes(header), PATH, IDENTITY, 5, last=True)


def test_a_renamed_file_is_refused() -> None:
    with pytest.raises(CorruptJournal, match="the name says first index 6, the file says 5"):
        scan(segment_bytes(*TWO_BATCHES), segment_name(6), IDENTITY, 6, last=True)


def test_an_extent_reads_what_was_written_and_verifies_it() -> None:
    data = segment_bytes(*TWO_BATCHES)
    segment, _ = scan(data, PATH, IDENTITY, 5, last=True)
    extent = Extent(5, segment.extent(5)[0], segment.extent(6)[1], 5, 7, 1)
    seed = record_seed(IDENTITY, 5)
    assert read_extent(Memory(data), PATH, seed, extent) == [b"one", b""]  # pyright: ignore[reportArgumentType]
    damaged = bytearray(data)
    damaged[FILE_HEADER_BYTES + RECORD_HEADER_BYTES] ^= 1
    with pytest.raises(CorruptJournal, match="wrong checksum of entry 5"):
        read_extent(Memory(bytes(damaged)), PATH, seed, extent)  # pyright: ignore[reportArgumentType]
