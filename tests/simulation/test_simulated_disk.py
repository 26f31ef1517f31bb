"""What the simulated disk keeps, and what it loses."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING

import pytest

from chaos.sim.disk import SECTOR_BYTES, SimulatedDisk, SimulatedFile

if TYPE_CHECKING:
    from collections.abc import Callable

SEEDS = range(200)


class Agenda:
    """Collects what the disk schedules."""

    def __init__(self) -> None:
        self.due: list[tuple[float, Callable[[], None]]] = []

    def schedule(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.due.append((delay_s, callback))

    def run(self) -> None:
        while self.due:
            self.due.pop(0)[1]()


def new_disk(seed: int = 0) -> tuple[SimulatedDisk, Agenda]:
    agenda = Agenda()
    return SimulatedDisk(Random(seed), agenda.schedule), agenda


def disk_with(data: bytes, seed: int = 0) -> SimulatedDisk:
    disk, _ = new_disk(seed)
    disk.replace_file("file", data)
    return disk


def after_power_loss(disk: SimulatedDisk) -> bytes:
    disk.crash(power_loss=True)
    return disk.read_file("file")


def test_what_was_synced_survives_a_power_loss() -> None:
    for seed in SEEDS:
        disk = disk_with(b"old", seed)
        file = disk.open("file")
        file.append([b"new", b"er"])
        file.sync()
        assert after_power_loss(disk) == b"oldnewer"


def test_unsynced_bytes_survive_whole_in_part_as_garbage_or_not_at_all() -> None:
    kinds: Counter[str] = Counter()
    added = b"x" * 3 * SECTOR_BYTES
    for seed in SEEDS:
        disk = disk_with(b"old", seed)
        disk.open("file").append([added])
        found = after_power_loss(disk)
        assert found.startswith(b"old")
        rest = found[3:]
        assert len(rest) <= len(added)
        if rest.strip(b"x"):
            kinds["damaged"] += 1
            kinds["out of order"] += rest.endswith(b"x")
        else:
            kinds["nothing" if not rest else "whole" if rest == added else "part"] += 1
    assert kinds.keys() == {"damaged", "out of order", "nothing", "whole", "part"}


def test_an_unsynced_truncation_may_not_have_happened_and_its_bytes_may_mix_with_new_ones() -> None:
    found: set[bytes] = set()
    for seed in SEEDS:
        disk = disk_with(b"a" * 4 * SECTOR_BYTES, seed)
        file = disk.open("file")
        file.truncate(SECTOR_BYTES)
        file.append([b"b" * 2 * SECTOR_BYTES])
        found.add(after_power_loss(disk))
    a, b = b"a" * SECTOR_BYTES, b"b" * SECTOR_BYTES
    assert {a * 4, a, a + b + b, a + a + b} <= found


def test_a_kill_keeps_everything_that_was_written_but_does_not_make_it_durable() -> None:
    lost = False
    for seed in SEEDS:
        disk = disk_with(b"old", seed)
        disk.open("file").append([b"new"])
        disk.crash(power_loss=False)
        assert disk.read_file("file") == b"oldnew"
        lost |= after_power_loss(disk) != b"oldnew"
    assert lost


def test_unsynced_names_may_vanish_and_unsynced_removals_may_be_undone() -> None:
    outcomes: set[tuple[str, ...]] = set()
    for seed in SEEDS:
        disk, _ = new_disk(seed)
        disk.make_directory("d")
        disk.replace_file("d/old", b"")
        disk.open("d/new", create=True)
        disk.remove("d/old")
        disk.crash(power_loss=True)
        outcomes.add(tuple(disk.list_directory("d")))
    assert outcomes == {(), ("new",), ("old",), ("new", "old")}


def test_synced_names_stay() -> None:
    for seed in SEEDS:
        disk, _ = new_disk(seed)
        disk.open("new", create=True)
        disk.sync_directory("")
        disk.crash(power_loss=True)
        assert disk.list_directory("") == ["new"]


def test_jobs_run_in_order_and_take_time() -> None:
    disk, agenda = new_disk()
    results: list[object] = []
    for number in range(3):
        disk.submit(lambda number=number: number, lambda result, _error: results.append(result))
    disk.submit_read(lambda: "read", lambda result, _error: results.append(result))
    assert len(agenda.due) == 2
    assert all(delay > 0 for delay, _ in agenda.due)
    agenda.run()
    assert results == [0, "read", 1, 2]


def test_a_slow_disk_takes_longer() -> None:
    delays: list[float] = []
    for slow in (1.0, 50.0):
        disk, agenda = new_disk(7)
        disk.slow = slow
        disk.submit(lambda: None, lambda _result, _error: None)
        delays.append(agenda.due[0][0])
    assert delays[1] == pytest.approx(delays[0] * 50)


def test_a_crash_cancels_jobs_and_kills_open_files() -> None:
    disk, agenda = new_disk()
    file = disk.open("file", create=True)
    answers: list[object] = []
    disk.submit(lambda: None, lambda result, _error: answers.append(result))
    disk.crash(power_loss=False)
    agenda.run()
    assert not answers
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.append([b"x"])


def test_a_job_under_way_at_the_crash_may_have_done_a_part() -> None:
    sizes: set[int] = set()
    for seed in SEEDS:
        disk, _ = new_disk(seed)
        file = disk.open("file", create=True)

        def append_thrice(file: SimulatedFile = file) -> None:
            for _ in range(3):
                file.append([b"x"])

        disk.submit(append_thrice, lambda _result, _error: None)
        disk.crash(power_loss=False)
        sizes.add(len(disk.read_file("file")))
    assert sizes == {0, 1, 2, 3}


def test_a_failed_sync_is_not_made_good_by_the_next() -> None:
    lost = False
    for seed in SEEDS:
        disk = disk_with(b"old", seed)
        file = disk.open("file")
        file.append([b"new"])
        disk.fail_next_sync()
        with pytest.raises(OSError, match="Input/output error"):
            file.sync()
        file.sync()
        lost |= after_power_loss(disk) != b"oldnew"
    assert lost


def test_a_full_disk_takes_a_part_and_nothing_new() -> None:
    disk = disk_with(b"old")
    file = disk.open("file")
    disk.full = True
    with pytest.raises(OSError, match="No space left"):
        file.append([b"0123456789" * 10])
    assert 3 <= file.size < 103
    with pytest.raises(OSError, match="No space left"):
        disk.replace_file("file", b"")
    with pytest.raises(OSError, match="No space left"):
        disk.open("other", create=True)
    disk.full = False
    file.append([b"x"])


def test_a_flipped_bit_is_there() -> None:
    disk = disk_with(b"\x00\x00")
    disk.flip_bit("file", 9)
    assert disk.read_file("file") == b"\x00\x02"


def test_the_same_seed_gives_the_same_run() -> None:
    def run() -> bytes:
        disk = disk_with(b"old", seed=5)
        disk.open("file").append([b"x" * 5000])
        return after_power_loss(disk)

    assert run() == run()
