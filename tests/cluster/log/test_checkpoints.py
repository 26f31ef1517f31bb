"""The files that hold a state, on the simulated disk."""

from __future__ import annotations

import errno
import logging
from random import Random

import pytest

from chaos.sim.world.disk import ProcessEnds, SimulatedDisk
from cluster.log.checkpoints import (
    CHECKPOINT_HEADER_BYTES,
    Checkpoint,
    adopt_checkpoint,
    checkpoint_name,
    list_checkpoints,
    load_newest,
    read_checkpoint,
    write_checkpoint,
)
from cluster.log.segment import CorruptJournal, ForeignJournal, UnknownFormat

OURS = b"cluster/one/0"
THEIRS = b"cluster/two/0"
BODY = bytes(range(256)) * 9


def make_disk(seed: int = 1) -> SimulatedDisk:
    disk = SimulatedDisk(Random(seed), lambda _delay_s, callback: callback())
    disk.make_directory("log")
    return disk


def path_of(index: int) -> str:
    return f"log/{checkpoint_name(index)}"


def write(disk: SimulatedDisk, index: int, body: bytes = BODY) -> int:
    return write_checkpoint(disk, "log", OURS, index, 3, [body[:1], body[1:]])


def load(disk: SimulatedDisk, last_index: int = 1000) -> Checkpoint | None:
    return load_newest(disk, "log", OURS, last_index)


def test_no_checkpoint_is_found_in_an_empty_log() -> None:
    assert load(make_disk()) is None


def test_the_newest_is_loaded() -> None:
    disk = make_disk()
    for index in (9, 100, 20):
        assert write(disk, index, b"state %d" % index) == disk.files()[path_of(index)]
    assert list_checkpoints(disk, "log") == [9, 20, 100]
    assert load(disk) == Checkpoint(100, 3, b"state 100")


def test_an_empty_state_is_a_state() -> None:
    disk = make_disk()
    write(disk, 5, b"")
    assert load(disk) == Checkpoint(5, 3, b"")


def test_other_files_are_not_taken_for_checkpoints() -> None:
    disk = make_disk()
    for name in ("manifest", "1.checkpoint", f"{checkpoint_name(7)}.tmp", "x" * 20 + ".checkpoint"):
        disk.replace_file(f"log/{name}", b"")
    assert list_checkpoints(disk, "log") == []


def test_checkpoint_survives_a_power_loss() -> None:
    for seed in range(50):
        disk = make_disk(seed)
        write(disk, 5)
        disk.crash(power_loss=True)
        assert load(disk) == Checkpoint(5, 3, BODY)


@pytest.mark.parametrize("power_loss", [False, True])
def test_checkpoint_is_whole_or_absent_after_a_crash_at_any_step(
    power_loss: bool, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes: list[int] = []
    for seed in range(20):
        for steps in range(7):
            disk = make_disk(seed)
            write(disk, 5)
            disk.end_process_after(steps)
            try:
                write(disk, 8)
            except ProcessEnds:
                pass
            else:
                disk.spare_process()
            disk.crash(power_loss=power_loss)
            found = load(disk)
            assert found in (Checkpoint(5, 3, BODY), Checkpoint(8, 3, BODY))
            outcomes.append(found.index)
            write(disk, 8)  # leftovers of the crash do not disturb
            assert load(disk) == Checkpoint(8, 3, BODY)
    assert not caplog.records
    assert {5, 8} == set(outcomes)


def test_write_on_a_full_disk_leaves_no_file_behind() -> None:
    disk = make_disk()
    write(disk, 5)
    before = disk.files()
    disk.capacity_bytes = disk.used_bytes() + 1000
    with pytest.raises(OSError, match="No space") as failure:
        write(disk, 8)
    assert failure.value.errno == errno.ENOSPC
    assert disk.files() == before


@pytest.mark.parametrize("bit", [0, 40, 8 * 10, 8 * 45, 8 * (CHECKPOINT_HEADER_BYTES - 1), 8 * 1000])
def test_damaged_checkpoint_is_skipped_with_a_warning(bit: int, caplog: pytest.LogCaptureFixture) -> None:
    disk = make_disk()
    write(disk, 5)
    write(disk, 8)
    disk.flip_bit(path_of(8), bit)
    assert load(disk) == Checkpoint(5, 3, BODY)
    assert [(record.levelno, path_of(8) in record.message) for record in caplog.records] == [
        (logging.WARNING, True)
    ]


@pytest.mark.parametrize("size", [0, 20, CHECKPOINT_HEADER_BYTES, 500])
def test_truncated_checkpoint_is_skipped(size: int) -> None:
    disk = make_disk()
    write(disk, 5)
    write(disk, 8)
    disk.open(path_of(8)).truncate(size)
    assert load(disk) == Checkpoint(5, 3, BODY)


def test_unreadable_checkpoint_is_skipped() -> None:
    disk = make_disk()
    write(disk, 5)
    write(disk, 8)
    disk.fail_reads(path_of(8))
    assert load(disk) == Checkpoint(5, 3, BODY)
    with pytest.raises(CorruptJournal, match="cannot be read"):
        read_checkpoint(disk, path_of(8), OURS)


def test_checkpoint_under_the_wrong_name_is_skipped() -> None:
    disk = make_disk()
    write(disk, 5)
    disk.rename(path_of(5), path_of(8))
    assert load(disk) is None


def test_no_checkpoint_is_found_if_all_are_damaged() -> None:
    disk = make_disk()
    write(disk, 5)
    disk.flip_bit(path_of(5), 1)
    assert load(disk) is None


def test_checkpoint_of_a_foreign_node_is_an_error() -> None:
    disk = make_disk()
    write(disk, 5)
    with pytest.raises(ForeignJournal, match=path_of(5)):
        load_newest(disk, "log", THEIRS, 1000)


def test_checkpoint_of_an_unknown_version_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = make_disk()
    with monkeypatch.context() as patch:
        patch.setattr("cluster.log.checkpoints.FORMAT_VERSION", 77)
        write(disk, 5)
    with pytest.raises(UnknownFormat, match="77"):
        load(disk)


def test_checkpoint_newer_than_the_log_convicts_the_log() -> None:
    disk = make_disk()
    write(disk, 5)
    assert load(disk, last_index=5)
    with pytest.raises(CorruptJournal, match="newer than the log, which ends with index 4"):
        load(disk, last_index=4)


def test_checkpoint_of_a_foreign_node_can_be_adopted() -> None:
    disk = make_disk()
    write_checkpoint(disk, "log", THEIRS, 5, 3, [BODY])
    disk.replace_file(path_of(5), adopt_checkpoint(disk.read_file(path_of(5)), OURS))
    assert load(disk) == Checkpoint(5, 3, BODY)


def test_first_piece_of_a_checkpoint_is_enough_to_adopt_it() -> None:
    disk = make_disk()
    write_checkpoint(disk, "log", THEIRS, 5, 3, [BODY])
    data = disk.read_file(path_of(5))
    disk.replace_file(path_of(5), adopt_checkpoint(data[:200], OURS) + data[200:])
    assert load(disk) == Checkpoint(5, 3, BODY)


@pytest.mark.parametrize("data", [b"", b"RCKP", bytes(500)])
def test_data_that_is_no_checkpoint_is_not_adopted(data: bytes) -> None:
    with pytest.raises(CorruptJournal, match="not a checkpoint"):
        adopt_checkpoint(data, OURS)
