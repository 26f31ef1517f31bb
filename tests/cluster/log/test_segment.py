"""The file format of a segment: accepted, cut and refused contents."""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.log.manifest import segment_name
from cluster.log.segment import (
    FILE_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    CorruptJournal,
    EntryNotFound,
    Extent,
    FileHeader,
    ForeignJournal,
    Record,
    RecordIndex,
    Scan,
    UnknownFormat,
    adopt_header,
    check_tail,
    file_seed,
    pack_file_header,
    pack_records,
    read_extent,
    scan_records,
    unpack_file_header,
)

IDENTITY = b"cluster/0"
NAME = segment_name(5, 1)
PATH = f"log/{NAME}"
HEADER = FileHeader(5, 0, file_seed(IDENTITY, NAME))


def a_segment(*batches: list[Record], header: FileHeader = HEADER) -> bytes:
    """Return a file whose batches were each synced before the next was written."""
    data = pack_file_header(IDENTITY, header)
    durable = 0
    for batch in batches:
        data += b"".join(pack_records(batch, durable, header.seed))
        durable = len(data)
    return data


def scan(data: bytes, *, writes_lost: bool = True) -> Scan:
    """As the open segment is read at a start."""
    header = unpack_file_header(data, PATH, IDENTITY)
    found = scan_records(data, PATH, NAME, header)
    if found.records.size < len(data):
        check_tail(data, PATH, found.records.size, header.seed, writes_lost=writes_lost)
    return found


class Memory:
    """A file to read from."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def pread(self, offset: int, length: int) -> bytes:
        return self.data[offset : offset + length]


TWO_BATCHES = [[(b"one", 5, 1), (b"", 6, 1)], [(b"three", 7, 2)]]


def test_a_scan_finds_every_record_and_where_terms_change() -> None:
    data = a_segment(*TWO_BATCHES)
    records, runs = scan(data, writes_lost=False)
    assert (records.size, records.end) == (len(data), 8)
    assert runs == [(5, 1), (7, 2)]
    assert [records.extent(index)[0] for index in (5, 6, 7)] == [
        FILE_HEADER_BYTES,
        FILE_HEADER_BYTES + RECORD_HEADER_BYTES + 3,
        FILE_HEADER_BYTES + 2 * RECORD_HEADER_BYTES + 3,
    ]
    assert records.extent(7)[1] == len(data)


def test_an_index_entry_costs_four_bytes() -> None:
    assert RecordIndex(NAME, 1).offsets.itemsize == 4


def test_a_cut_index_is_a_copy() -> None:
    records = scan(a_segment(*TWO_BATCHES)).records
    cut = records.cut_from(7)
    assert (cut.end, cut.size) == (7, records.extent(7)[0])
    assert records.end == 8


# A tail that is not whole


@pytest.mark.parametrize("tail", [b"", bytes(100), b"\xff" * 100])
def test_a_torn_last_batch_is_cut_at_every_offset_of_it(tail: bytes) -> None:
    durable = len(a_segment(TWO_BATCHES[0]))
    data = a_segment(*TWO_BATCHES)
    for cut in range(durable, len(data)):
        records = scan(data[:cut] + tail).records
        assert (records.end, records.size) == (7, durable)


def test_killed_process_leaves_only_the_beginning_of_a_record() -> None:
    durable = len(a_segment(TWO_BATCHES[0]))
    data = a_segment(*TWO_BATCHES)
    for cut in range(durable, len(data)):
        assert scan(data[:cut], writes_lost=False).records.end == 7
        for tail in (bytes(100), b"\xff" * 100):
            with pytest.raises(CorruptJournal, match="bad record, and no write can have been lost"):
                scan(data[:cut] + tail, writes_lost=False)


def test_flipped_bit_is_damage_if_no_writes_were_lost() -> None:
    data = a_segment(*TWO_BATCHES)
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises((CorruptJournal, UnknownFormat)):
            scan(bytes(damaged), writes_lost=False)


def test_bad_record_before_a_vouching_record_is_corruption() -> None:
    data = bytearray(a_segment(*TWO_BATCHES))
    data[FILE_HEADER_BYTES + RECORD_HEADER_BYTES] ^= 1
    with pytest.raises(CorruptJournal, match="which a later record knows to have been durable") as caught:
        scan(bytes(data))
    assert (caught.value.path, caught.value.offset) == (PATH, FILE_HEADER_BYTES)
    assert "\n" not in str(caught.value)


@given(st.data())
def test_any_flipped_bit_below_a_durable_claim_is_detected(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(0, 60), min_size=3, max_size=8))
    batches = [[(bytes([number] * size), 5 + number, 1)] for number, size in enumerate(sizes)]
    image = bytearray(a_segment(*batches))
    claimed = len(a_segment(*batches[:-1]))
    bit = data.draw(st.integers(0, claimed * 8 - 1))
    image[bit // 8] ^= 1 << bit % 8
    with pytest.raises((CorruptJournal, UnknownFormat)):
        scan(bytes(image))


def test_records_of_a_foreign_file_do_not_vouch() -> None:
    other = segment_name(9, 2)
    embedded = a_segment(*TWO_BATCHES, header=FileHeader(9, 0, file_seed(IDENTITY, other)))
    data = a_segment([(b"one", 5, 1)])
    torn = b"".join(pack_records([(embedded, 6, 1)], len(data), HEADER.seed))[:-1]
    assert scan(data + torn).records.end == 6


def test_files_of_equal_first_index_have_different_seeds() -> None:
    seeds = {file_seed(IDENTITY, segment_name(5, serial)) for serial in range(100)}
    assert len(seeds) == 100
    assert file_seed(b"cluster/1", NAME) not in seeds


# Foreign files


def test_a_gap_in_the_indexes_is_corruption() -> None:
    data = a_segment([(b"one", 5, 1)], [(b"three", 7, 1)])
    with pytest.raises(CorruptJournal, match="index 7 where 6 should be"):
        scan(data)


def test_a_sparse_segment_may_have_gaps_but_no_way_back() -> None:
    header = HEADER._replace(end=20)
    records, runs = scan(a_segment([(b"one", 5, 1), (b"two", 9, 2), (b"", 19, 2)], header=header))
    assert (records.size, runs) == (FILE_HEADER_BYTES + 3 * RECORD_HEADER_BYTES + 6, [(5, 1), (9, 2)])
    assert records.extent(9) == (
        FILE_HEADER_BYTES + RECORD_HEADER_BYTES + 3,
        records.size - RECORD_HEADER_BYTES,
    )
    for index in (6, 18, 20):
        with pytest.raises(EntryNotFound):
            records.extent(index)
    for indexes in ((5, 5), (9, 5), (4, 5), (5, 20)):
        with pytest.raises(CorruptJournal, match="is not from"):
            scan(a_segment([(b"", index, 1) for index in indexes], header=header))


def test_file_of_a_foreign_cluster_is_refused() -> None:
    data = a_segment(*TWO_BATCHES)
    with pytest.raises(ForeignJournal, match=f"{PATH}: belongs to another node, cluster"):
        unpack_file_header(data, PATH, b"other")


def test_file_of_an_unknown_version_is_refused() -> None:
    newer = bytearray(pack_file_header(IDENTITY, HEADER))
    newer[4] += 1
    with pytest.raises(CorruptJournal, match="wrong checksum of the file header"):
        unpack_file_header(bytes(newer), PATH, IDENTITY)
    newer[-4:] = crc32(newer[:-4]).to_bytes(4, "little")
    with pytest.raises(UnknownFormat, match=f"{PATH}: format version 3 is unknown"):
        unpack_file_header(bytes(newer), PATH, IDENTITY)


def test_a_damaged_header_is_corruption() -> None:
    header = pack_file_header(IDENTITY, HEADER)
    assert len(header) == FILE_HEADER_BYTES
    for data in (b"", header[:-1], bytes(100), header[:-1] + b"x"):
        with pytest.raises(CorruptJournal):
            unpack_file_header(data, PATH, IDENTITY)


def test_foreign_segment_becomes_ours_with_a_new_header() -> None:
    data = a_segment(*TWO_BATCHES)
    adopted = adopt_header(data, b"other")
    assert unpack_file_header(adopted, PATH, b"other") == HEADER
    assert adopted[FILE_HEADER_BYTES:] == data[FILE_HEADER_BYTES:]
    assert scan_records(adopted, PATH, NAME, HEADER).records.size == len(data)
    damaged = bytearray(data)
    damaged[40] ^= 1
    assert crc32(damaged) != crc32(data)
    with pytest.raises(CorruptJournal, match="received segment"):
        adopt_header(bytes(damaged), b"other")


def test_extent_is_read_as_written_and_verified() -> None:
    data = a_segment(*TWO_BATCHES)
    records = scan(data).records
    extent = Extent(NAME, records.extent(5)[0], records.extent(6)[1], 5, 7, 1)
    assert read_extent(Memory(data), PATH, HEADER.seed, extent) == [b"one", b""]  # pyright: ignore[reportArgumentType]
    damaged = bytearray(data)
    damaged[FILE_HEADER_BYTES + RECORD_HEADER_BYTES] ^= 1
    with pytest.raises(CorruptJournal, match="wrong checksum of entry 5"):
        read_extent(Memory(bytes(damaged)), PATH, HEADER.seed, extent)  # pyright: ignore[reportArgumentType]
    with pytest.raises(CorruptJournal, match="entry 6 ends too early"):
        read_extent(Memory(data), PATH, HEADER.seed, extent._replace(end=len(data)))  # pyright: ignore[reportArgumentType]


def test_errors_have_a_single_line() -> None:
    for error in (
        CorruptJournal("a", 1, "b"),
        UnknownFormat("a", 9),
        UnknownFormat("a"),
        ForeignJournal("a"),
    ):
        assert "\n" not in str(error)
        assert str(error).startswith("a: ")
