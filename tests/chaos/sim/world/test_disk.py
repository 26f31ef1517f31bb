"""Data that the simulated disk keeps and loses."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING

import pytest

from chaos.sim.world.disk import SECTOR_BYTES, ProcessEnds, SimulatedDisk, SimulatedFile
from cluster.runtime.ports import TEMPORARY

if TYPE_CHECKING:
    from collections.abc import Callable

SEEDS = range(200)


class Agenda:
    """Collects the callbacks that the disk schedules."""

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


def test_synced_bytes_survive_a_power_loss() -> None:
    for seed in SEEDS:
        disk = disk_with(b"old", seed)
        file = disk.open("file")
        file.append([b"new", b"er"])
        file.sync()
        assert after_power_loss(disk) == b"oldnewer"


def test_unsynced_bytes_survive_whole_in_part_damaged_or_not() -> None:
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


def test_unsynced_truncation_may_be_undone_or_mixed() -> None:
    found: set[bytes] = set()
    for seed in SEEDS:
        disk = disk_with(b"a" * 4 * SECTOR_BYTES, seed)
        file = disk.open("file")
        file.truncate(SECTOR_BYTES)
        file.append([b"b" * 2 * SECTOR_BYTES])
        found.add(after_power_loss(disk))
    a, b = b"a" * SECTOR_BYTES, b"b" * SECTOR_BYTES
    assert {a * 4, a, a + b + b, a + a + b} <= found


def test_killed_process_keeps_written_bytes_that_are_not_durable() -> None:
    lost = False
    for seed in SEEDS:
        disk = disk_with(b"old", seed)
        disk.open("file").append([b"new"])
        disk.crash(power_loss=False)
        assert disk.read_file("file") == b"oldnew"
        lost |= after_power_loss(disk) != b"oldnew"
    assert lost


def test_unsynced_creations_and_removals_may_be_undone() -> None:
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


def test_job_under_way_at_a_crash_may_be_done_in_part() -> None:
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


def test_failed_sync_is_not_repaired_by_the_next_sync() -> None:
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


def test_full_disk_refuses_appends_and_new_files() -> None:
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


def test_disk_about_to_fill_takes_the_given_number_of_changes() -> None:
    disk, _ = new_disk()
    disk.fill_after(2)
    file = disk.open("file", create=True)
    file.append([b"a"])
    with pytest.raises(OSError, match="No space left"):
        disk.open("other", create=True)
    disk.empty()
    file.append([b"b"])
    assert disk.read_file("file") == b"ab"


def test_flipped_bit_is_read_back() -> None:
    disk = disk_with(b"\x00\x00")
    disk.flip_bit("file", 9)
    assert disk.read_file("file") == b"\x00\x02"


def test_overwritten_file_may_be_mixed_after_a_power_loss() -> None:
    old, new = b"a" * 2 * SECTOR_BYTES, b"b" * 2 * SECTOR_BYTES
    killed: set[bytes] = set()
    found: set[bytes] = set()
    for seed in SEEDS:
        for power_loss, outcomes in ((False, killed), (True, found)):
            disk = disk_with(old, seed)
            disk.submit(lambda disk=disk: disk.overwrite_file("file", new), lambda _result, _error: None)
            disk.crash(power_loss=power_loss)
            outcomes.add(disk.read_file("file"))
    assert killed == {old, new}
    mixed = old[:SECTOR_BYTES] + new[SECTOR_BYTES:]
    assert {old, new, mixed} < found


def test_an_overwritten_file_is_durable_and_keeps_its_size() -> None:
    for seed in SEEDS:
        disk = disk_with(b"old", seed)
        disk.full = True
        disk.overwrite_file("file", b"new")
        assert after_power_loss(disk) == b"new"
    with pytest.raises(ValueError, match="3 bytes"):
        disk_with(b"old").overwrite_file("file", b"newer")


def test_a_rename_never_loses_the_file() -> None:
    outcomes: set[tuple[tuple[str, bytes], ...]] = set()
    for seed in SEEDS:
        disk, _ = new_disk(seed)
        disk.make_directory("d")
        disk.make_directory("e")
        disk.replace_file("d/new", b"new")
        disk.replace_file("e/name", b"old")
        disk.rename("d/new", "e/name")
        assert disk.list_directory("d") == []
        assert disk.read_file("e/name") == b"new"
        if seed % 2:
            disk.sync_directory("d")
        disk.crash(power_loss=True)
        outcomes.add(tuple((path, disk.read_file(path)) for path in disk.files()))
        if seed % 2:
            assert disk.files() == {"e/name": 3}
    before = (("d/new", b"new"), ("e/name", b"old"))
    both = (("d/new", b"new"), ("e/name", b"new"))
    assert outcomes == {before, both, (("e/name", b"new"),)}


def test_a_synced_rename_stays() -> None:
    for seed in SEEDS:
        disk = disk_with(b"data", seed)
        disk.rename("file", "renamed")
        disk.sync_directory("")
        disk.crash(power_loss=True)
        assert disk.files() == {"renamed": 4}


def test_renamed_directory_moves_with_its_files_or_stays() -> None:
    outcomes: set[str] = set()
    for seed in SEEDS:
        disk, _ = new_disk(seed)
        disk.make_directory("a/b/c")
        disk.replace_file("a/b/c/file", b"data")
        disk.rename("a/b", "a/d")
        assert disk.list_directory("a") == ["d"]
        if seed % 2:
            disk.make_directory("a/b")
        disk.crash(power_loss=True)
        (path,) = disk.files()
        outcomes.add(path)
        assert path == "a/d/c/file" or not seed % 2
        assert disk.list_directory(path.removesuffix("/c/file")) == ["c"]
    assert outcomes == {"a/b/c/file", "a/d/c/file"}


def test_directory_is_not_renamed_onto_a_nonempty_directory() -> None:
    disk, _ = new_disk()
    disk.make_directory("a")
    disk.make_directory("b")
    with pytest.raises(OSError, match="not empty"):
        disk.rename("a", "b")


def test_files_of_a_removed_directory_may_come_back_until_a_sync() -> None:
    outcomes: set[tuple[str, ...]] = set()
    for seed in SEEDS:
        disk, _ = new_disk(seed)
        disk.make_directory("d/e")
        for path in ("d/1", "d/e/2"):
            disk.replace_file(path, b"")
        disk.remove_directory("d")
        disk.remove_directory("d")
        assert disk.list_directory("") == []
        if seed % 2:
            disk.sync_directory("")
        disk.crash(power_loss=True)
        outcomes.add(tuple(disk.files()))
        assert not (disk.files() and seed % 2)
    assert outcomes == {(), ("d/1",), ("d/e/2",), ("d/1", "d/e/2")}


def test_small_disk_is_full_until_a_file_is_removed() -> None:
    disk = disk_with(b"x" * 600)
    disk.capacity_bytes = 1000
    assert disk.free_bytes() == 400
    file = disk.open("other", create=True)
    with pytest.raises(OSError, match="No space left"):
        file.append([b"y" * 500])
    assert file.size <= 400
    with pytest.raises(OSError, match="No space left"):
        disk.replace_file("file", b"z" * 401)
    assert disk.read_file("file") == b"x" * 600
    disk.remove("file" + TEMPORARY)
    file.truncate(0)
    file.append([b"y" * 400])
    disk.overwrite_file("file", b"z" * 600)
    with pytest.raises(OSError, match="No space left"):
        disk.open("third", create=True)
    disk.remove("file")
    assert disk.free_bytes() == 600
    disk.full = True
    assert disk.free_bytes() == 0


def test_a_file_that_cannot_be_read() -> None:
    disk = disk_with(b"data")
    for heal in (disk.heal_reads, lambda: disk.crash(power_loss=False)):
        disk.fail_reads("file")
        with pytest.raises(OSError, match="Input/output error"):
            disk.open("file").pread(0, 1)
        with pytest.raises(OSError, match="Input/output error"):
            disk.read_file("file")
        heal()
        assert disk.read_file("file") == b"data"


def test_boot_id_changes_when_writes_may_have_been_lost() -> None:
    disk, _ = new_disk()
    first = disk.boot_id()
    disk.crash(power_loss=False)
    assert disk.boot_id() == first
    disk.crash(power_loss=True)
    assert disk.boot_id() != first


def test_crash_interrupts_each_writing_lane_in_some_seed() -> None:
    seen: set[tuple[int, int]] = set()
    for seed in SEEDS:
        disk, _ = new_disk(seed)
        files = [disk.open(name, create=True) for name in ("1", "2")]

        def append_twice(file: SimulatedFile) -> None:
            file.append([b"x"])
            file.append([b"x"])

        disk.submit(lambda files=files: append_twice(files[0]), lambda _result, _error: None)
        disk.submit_background(lambda files=files: append_twice(files[1]), lambda _result, _error: None)
        disk.crash(power_loss=False)
        seen.add((files[0].size, files[1].size))
    assert seen == {(one, other) for one in range(3) for other in range(3)}


def test_the_process_may_end_in_the_middle_of_a_change() -> None:
    disk = disk_with(b"old")
    disk.end_process_after(1)
    with pytest.raises(ProcessEnds):
        disk.overwrite_file("file", b"new")
    with pytest.raises(ProcessEnds):
        disk.remove("file")
    disk.crash(power_loss=True)
    disk.overwrite_file("file", b"new")


def test_emptied_disk_has_no_files() -> None:
    disk, _ = new_disk()
    disk.make_directory("d")
    disk.open("d/file", create=True)
    disk.lose_everything()
    disk.crash(power_loss=True)
    assert disk.list_directory("") == []


def test_the_same_seed_gives_the_same_run() -> None:
    def run() -> bytes:
        disk = disk_with(b"old", seed=5)
        disk.open("file").append([b"x" * 5000])
        return after_power_loss(disk)

    assert run() == run()
