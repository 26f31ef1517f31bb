"""The manifest: its contents after each change of a log, and after damage."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from chaos.sim.world.disk import SimulatedDisk
from cluster.log.manifest import (
    Manifest,
    Row,
    is_segment_name,
    load_manifest,
    segment_name,
    serial_of,
    store_manifest,
)
from cluster.log.segment import CorruptJournal, ForeignJournal

if TYPE_CHECKING:
    from collections.abc import Callable

IDENTITY = b"cluster/a/0"
ONE, TWO, THREE = segment_name(1, 1), segment_name(11, 2), segment_name(21, 3)
FULL = Manifest(
    4,
    (Row(ONE, 1, 11, 100, sparse=False), Row(TWO, 11, 21, 200, sparse=False)),
    THREE,
    21,
    ((1, 0), (5, 3), (15, 4)),
)


def ignore(_delay_s: float, _callback: Callable[[], None]) -> None:
    """Drop the callback."""


def test_segment_name_has_first_index_serial_and_kind() -> None:
    assert segment_name(7, 8) == "00000000000000000007-00000008.segment"
    assert segment_name(7, 123456789, sparse=True) == "00000000000000000007-123456789.sparse"
    assert serial_of(segment_name(7, 123456789)) == 123456789
    assert is_segment_name(segment_name(7, 8, sparse=True))
    for name in ("7-8.segment", "00000000000000000007.segment", segment_name(7, 8) + ".tmp", "manifest"):
        assert not is_segment_name(name)


def test_stored_manifest_is_loaded_also_from_a_single_copy() -> None:
    disk = SimulatedDisk(Random(1), ignore)
    for manifest in (Manifest(), FULL):
        store_manifest(disk, "manifest", IDENTITY, manifest)
        assert load_manifest(disk, "manifest", IDENTITY) == manifest
        disk.flip_bit("manifest", 300)
        assert load_manifest(disk, "manifest", IDENTITY) == manifest
        disk.flip_bit("manifest", len(disk.read_file("manifest")) * 4 + 300)
        with pytest.raises(CorruptJournal, match="manifest: offset 0: both copies"):
            load_manifest(disk, "manifest", IDENTITY)
    store_manifest(disk, "manifest", IDENTITY, FULL)
    with pytest.raises(ForeignJournal):
        load_manifest(disk, "manifest", b"cluster/b/0")


def test_rollover_seals_the_open_segment_and_begins_the_next() -> None:
    sealed = FULL.with_open_sealed(31, 300, [(21, 4), (25, 6)])
    assert sealed.names() == [ONE, TWO, THREE]
    assert (sealed.open_name, sealed.sealed[-1]) == (None, Row(THREE, 21, 31, 300, sparse=False))
    assert sealed.runs == ((1, 0), (5, 3), (15, 4), (25, 6))
    four = segment_name(31, 4)
    begun = sealed.begun(four, 31)
    assert (begun.open_name, begun.open_first, begun.next_serial) == (four, 31, 5)
    assert begun.names() == [ONE, TWO, THREE, four]
    with pytest.raises(ValueError, match="no segment is open"):
        sealed.with_open_sealed(41, 300, [])


@pytest.mark.parametrize(
    ("end", "names", "open_name", "runs"),
    [
        (25, [ONE, TWO, THREE], THREE, FULL.runs),
        (21, [ONE, TWO], None, FULL.runs),
        (16, [ONE, TWO], TWO, FULL.runs[:2]),
        (11, [ONE], None, FULL.runs[:2]),
        (4, [ONE], ONE, ()),
    ],
)
def test_cut_leaves_the_segments_before_it(end: int, names: list[str], open_name: str, runs: object) -> None:
    cut = FULL.cut(end)
    assert (cut.names(), cut.open_name, cut.runs) == (names, open_name, runs)
    assert cut.next_serial == FULL.next_serial
    assert cut.cut(end) == cut


def test_replacement_keeps_the_terms_of_the_rest() -> None:
    sparse = Row(segment_name(1, 9, sparse=True), 1, 11, 50, sparse=True)
    replaced = FULL.replaced([ONE], sparse)
    assert replaced == FULL._replace(next_serial=10, sealed=(sparse, FULL.sealed[1]))
    assert FULL.replaced([TWO], None) == FULL._replace(sealed=FULL.sealed[:1])
    assert FULL.replaced([ONE], None) == FULL._replace(sealed=FULL.sealed[1:], runs=((5, 3), (15, 4)))
    assert FULL.replaced([ONE, TWO], None) == FULL._replace(sealed=(), runs=())


def test_an_adopted_log_takes_the_place_of_everything() -> None:
    rows = [Row(segment_name(5, 7), 5, 9, 50, sparse=False)]
    assert FULL.adopted(rows, [(5, 2)]) == Manifest(8, tuple(rows), None, 0, ((5, 2),))
