"""Term, vote and voter status survive a crash at any moment."""

from __future__ import annotations

import errno
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING

import pytest

from chaos.sim.world.disk import ProcessEnds, SimulatedDisk
from cluster.log import hardstate
from cluster.log.hardstate import NAMES, HardState, HardStateFile, VoterStatus
from cluster.log.owned_directory import OwnedDirectory
from cluster.log.segment import ForeignJournal, UnknownFormat

if TYPE_CHECKING:
    from collections.abc import Callable

IDENTITY = b"cluster/a/0"
OLD = HardState(3, "b", VoterStatus.LEARNER)
NEW = HardState(4, None, VoterStatus.VOTER)


def ignore(_delay_s: float, _callback: Callable[[], None]) -> None:
    """Drop the callback."""


def a_disk(seed: int = 1) -> SimulatedDisk:
    disk = SimulatedDisk(Random(seed), ignore)
    disk.make_directory("group")
    return disk


def hard_state(disk: SimulatedDisk, identity: bytes = IDENTITY) -> HardStateFile:
    return HardStateFile(OwnedDirectory(disk, "group", identity))


@pytest.mark.parametrize("state", [OLD, NEW, HardState(2**63, "n" * 300, VoterStatus.BLANK)])
def test_stored_state_is_loaded(state: HardState) -> None:
    disk = a_disk()
    file = hard_state(disk)
    assert file.load() is None
    assert file.state is None
    file.store(state)
    assert file.state == state
    disk.crash(power_loss=True)
    assert hard_state(disk).load() == state
    assert [len(disk.read_file(f"group/{name}")) for name in NAMES] == [512, 512]


def test_second_store_needs_no_disk_space() -> None:
    disk = a_disk()
    file = hard_state(disk)
    file.store(OLD)
    disk.full = True
    file.store(NEW)
    assert hard_state(disk).load() == NEW


@pytest.mark.parametrize("power_loss", [True, False])
def test_load_after_an_interrupted_store_needs_no_space(
    power_loss: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk is full, and the process ends: once a single file existed then, and a start failed."""
    found: list[HardState | None] = []
    for seed in range(20):
        for steps in range(12):
            disk = a_disk(seed)
            disk.end_process_after(steps)
            with suppress(ProcessEnds):
                hard_state(disk).store(NEW)
            disk.spare_process()
            disk.crash(power_loss=power_loss)
            disk.full = True
            found.append(hard_state(disk).load())
            disk.crash(power_loss=True)  # the loaded state is durable in both files
            assert hard_state(disk).load() == found[-1]
            if found[-1] is not None:
                hard_state(disk).store(OLD)
    assert set(found) == {None, NEW}
    assert "damaged: term and vote are lost" not in caplog.text


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("power_loss", [True, False])
def test_crash_at_any_step_leaves_the_old_or_the_new_state(first: bool, power_loss: bool) -> None:
    for seed in range(40):
        for steps in range(12):
            disk = a_disk(seed)
            file = hard_state(disk)
            if not first:
                file.store(OLD)
            disk.end_process_after(steps)
            try:
                file.store(NEW)
                stored = True
            except ProcessEnds:
                stored = False
            disk.spare_process()
            disk.crash(power_loss=power_loss)
            found = hard_state(disk).load()
            assert found == NEW if stored else found in (NEW, None if first else OLD)
            # The loaded state may have been sent since, so it must stay.
            disk.crash(power_loss=True)
            assert hard_state(disk).load() == found


def killed_in_a_store(seed: int, steps: int) -> SimulatedDisk:
    """A disk of a process that was killed after so many steps of storing NEW in the place of OLD."""
    disk = a_disk(seed)
    file = hard_state(disk)
    file.store(OLD)
    disk.end_process_after(steps)
    with suppress(ProcessEnds):
        file.store(NEW)
    disk.crash(power_loss=False)
    return disk


def test_kill_then_power_loss_in_the_next_store_leave_a_state() -> None:
    """Data that a killed process wrote can be read before it is on the disk (simulated: both files damaged)."""
    for seed in range(20):
        for first in range(8):
            for second in range(8):
                disk = killed_in_a_store(seed, first)
                file = hard_state(disk)
                assert file.load() in (OLD, NEW)
                disk.end_process_after(second)
                with suppress(ProcessEnds):
                    file.store(NEW._replace(term=5))
                disk.crash(power_loss=True)
                assert hard_state(disk).load() is not None


def test_kill_then_power_loss_in_the_next_load_leave_a_state() -> None:
    """The first file of a killed process is durable before the next start writes the second file."""
    for seed in range(20):
        for first in range(8):
            for second in range(8):
                for third in range(8):
                    disk = killed_in_a_store(seed, first)
                    for steps, power_loss in ((second, False), (third, True)):
                        disk.end_process_after(steps)
                        with suppress(ProcessEnds):
                            hard_state(disk).load()
                        disk.crash(power_loss=power_loss)
                    assert hard_state(disk).load() in (OLD, NEW)


def test_single_damaged_file_is_written_again_without_loss() -> None:
    for name in NAMES:
        for bit in range(0, 512 * 8, 5):
            disk = a_disk()
            hard_state(disk).store(NEW)
            disk.flip_bit(f"group/{name}", bit)
            assert hard_state(disk).load() == NEW
            assert disk.read_file(f"group/{NAMES[0]}") == disk.read_file(f"group/{NAMES[1]}")


def test_the_state_that_was_stored_later_wins() -> None:
    disk = a_disk()
    file = hard_state(disk)
    file.store(NEW)
    newer = disk.read_file(f"group/{NAMES[0]}")
    file.store(OLD)
    for name in NAMES:
        both = a_disk()
        for other in NAMES:
            both.replace_file(f"group/{other}", newer if other == name else disk.read_file(f"group/{other}"))
        assert hard_state(both).load() == OLD


def test_two_damaged_files_are_no_state_and_an_error_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    disk = a_disk()
    hard_state(disk).store(NEW)
    for name in NAMES:
        disk.flip_bit(f"group/{name}", 400)
    file = hard_state(disk)
    assert file.load() is None
    assert "term and vote are lost" in caplog.text
    file.store(OLD)
    assert hard_state(disk).load() == OLD


def test_a_file_that_cannot_be_read_is_damaged() -> None:
    disk = a_disk()
    hard_state(disk).store(NEW)
    disk.fail_reads(f"group/{NAMES[0]}")
    assert hard_state(disk).load() == NEW


def test_files_of_a_foreign_member_are_refused() -> None:
    disk = a_disk()
    hard_state(disk).store(NEW)
    with pytest.raises(ForeignJournal):
        hard_state(disk, b"cluster/b/0").load()


def test_state_of_an_unknown_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = a_disk()
    hard_state(disk).store(NEW)
    monkeypatch.setattr("cluster.log.hardstate._FORMAT", hardstate._FORMAT._replace(version=3))
    with pytest.raises(UnknownFormat, match="format version 2 is unknown"):
        hard_state(disk).load()


def test_a_state_that_cannot_be_stored_is_not_taken() -> None:
    disk = a_disk()
    file = hard_state(disk)
    file.store(OLD)
    disk.fail_next_sync(errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        file.store(NEW)
    assert file.state == OLD
    with pytest.raises(ValueError, match="500 bytes"):
        file.store(HardState(9, "n" * 500, VoterStatus.VOTER))


def test_forgotten_state_is_absent_until_the_next_store() -> None:
    disk = a_disk()
    file = hard_state(disk)
    file.store(OLD)
    file.forget()
    assert file.state is None
    file.store(NEW)
    assert hard_state(disk).load() == NEW
