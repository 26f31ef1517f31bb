"""Effects of a power loss, a process crash and a full disk on files of a real disk."""

from __future__ import annotations

import errno
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chaos.live.faulty_disk import FaultyDisk, lose_power

if TYPE_CHECKING:
    from collections.abc import Callable

SEEDS = range(12)
NAMES = ("a", "b", "c")


class Machine:
    """A computer with a disk, a directory `d` on it, and a process that may restart."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "data"
        self._side = directory / "side"
        self.disk = FaultyDisk(self.root, self._side)
        self.disk.make_directory("d")

    def write(self, name: str, data: bytes, *, sync: bool = True) -> None:
        new = name not in self.disk.list_directory("d")
        with closing(self.disk.open(f"d/{name}", create=new)) as file:
            file.append([data])
            if sync:
                file.sync()

    def files(self) -> dict[str, bytes]:
        return {name: self.disk.read_file(f"d/{name}") for name in self.disk.list_directory("d")}

    def restart_process(self) -> None:
        self.disk.close()
        self.disk = FaultyDisk(self.root, self._side)

    def lose_power(self, seed: int) -> int:
        self.disk.close()
        at_risk = lose_power(self.root, self._side, seed)
        self.disk = FaultyDisk(self.root, self._side)
        return at_risk


def outcomes(directory: Path, do: Callable[[Machine], None]) -> list[dict[str, bytes]]:
    """Return the distinct contents after a power loss, over all seeds."""
    found: list[dict[str, bytes]] = []
    for seed in SEEDS:
        machine = Machine(directory / f"machine-{seed}")
        do(machine)
        machine.lose_power(seed)
        if (files := machine.files()) not in found:
            found.append(files)
        machine.disk.close()
    return found


def test_synced_data_survives_a_power_loss(tmp_path: Path) -> None:
    def do(machine: Machine) -> None:
        machine.write("a", b"synced ")
        machine.disk.sync_directory("d")
        machine.write("a", b"unsynced", sync=False)

    found = [files["a"] for files in outcomes(tmp_path, do)]
    assert all(content.startswith(b"synced ") for content in found)
    assert {b"synced ", b"synced unsynced"} < set(found)


def test_unsynced_data_survives_a_restart_but_not_a_power_loss(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.write("a", b"unsynced", sync=False)
    boot_id = machine.disk.boot_id()
    machine.restart_process()
    assert machine.files() == {"a": b"unsynced"}
    assert machine.disk.boot_id() == boot_id
    assert machine.lose_power(0) == len(b"unsynced")
    assert machine.lose_power(0) == 0
    assert machine.disk.boot_id() != boot_id
    machine.disk.close()


def test_unsynced_data_may_be_lost_after_a_process_restart(tmp_path: Path) -> None:
    def do(machine: Machine) -> None:
        machine.write("a", b"")
        machine.disk.sync_directory("d")
        machine.write("a", b"unsynced", sync=False)
        machine.restart_process()

    assert {"a": b""} in outcomes(tmp_path, do)


def test_file_may_vanish_without_a_directory_sync(tmp_path: Path) -> None:
    found = outcomes(tmp_path, lambda machine: machine.write("a", b"synced"))
    assert sorted(found, key=len) == [{}, {"a": b"synced"}]


def test_removed_file_may_come_back_without_a_directory_sync(tmp_path: Path) -> None:
    def do(machine: Machine) -> None:
        machine.write("a", b"content")
        machine.disk.sync_directory("d")
        machine.disk.remove("d/a")

    assert sorted(outcomes(tmp_path, do), key=len) == [{}, {"a": b"content"}]


def test_file_removed_in_parts_may_come_back_incomplete(tmp_path: Path) -> None:
    def do(machine: Machine) -> None:
        machine.write("a", b"content")
        machine.disk.sync_directory("d")
        machine.disk.remove_in_parts("d/a")

    found = outcomes(tmp_path, do)
    assert {} in found
    assert {"a": b"content"} in found
    assert any(len(files.get("a", b"content")) < len(b"content") for files in found)


def test_rename_may_be_undone_without_losing_a_file(tmp_path: Path) -> None:
    def do(machine: Machine) -> None:
        for name in ("a", "b"):
            machine.write(name, name.encode())
        machine.disk.sync_directory("d")
        machine.disk.rename("d/a", "d/b")

    found = outcomes(tmp_path, do)
    assert {"a": b"a", "b": b"b"} in found
    assert {"b": b"a"} in found
    assert all(b"a" in files.values() for files in found)


def test_removed_directory_may_come_back_with_its_files(tmp_path: Path) -> None:
    def do(machine: Machine) -> None:
        machine.disk.make_directory("d/inner")
        with closing(machine.disk.open("d/inner/a", create=True)) as file:
            file.append([b"content"])
            file.sync()
        machine.disk.sync_directory("d/inner")
        machine.disk.remove_directory("d/inner")
        assert machine.disk.list_directory("d") == []
        machine.restart_process()

    seen = set()
    for seed in SEEDS:
        machine = Machine(tmp_path / str(seed))
        do(machine)
        machine.lose_power(seed)
        seen.add((machine.root / "d" / "inner" / "a").exists())
        machine.disk.close()
    assert seen == {True, False}


def test_a_truncation_without_a_sync_may_be_undone(tmp_path: Path) -> None:
    def do(machine: Machine) -> None:
        machine.write("a", b"0123456789")
        machine.disk.sync_directory("d")
        with closing(machine.disk.open("d/a")) as file:
            file.truncate(4)

    assert sorted(files["a"] for files in outcomes(tmp_path, do)) == [b"0123", b"0123456789"]


def test_a_replaced_and_an_overwritten_file_are_durable(tmp_path: Path) -> None:
    def do(machine: Machine) -> None:
        machine.disk.replace_file("d/a", b"old")
        machine.disk.replace_file("d/a", b"new")
        machine.disk.replace_file("d/b", b"old")
        machine.disk.overwrite_file("d/b", b"new")

    assert outcomes(tmp_path, do) == [{"a": b"new", "b": b"new"}]


def test_a_directory_without_history_counts_as_durable(tmp_path: Path) -> None:
    (tmp_path / "data" / "d").mkdir(parents=True)
    (tmp_path / "data" / "d" / "a").write_bytes(b"content")
    machine = Machine(tmp_path)
    machine.lose_power(0)
    assert machine.files() == {"a": b"content"}
    machine.disk.close()


def test_recorded_change_that_was_not_made_has_no_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path)
    machine.write("a", b"a")
    machine.disk.sync_directory("d")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", dies)
        patch.setattr(Path, "rename", dies)
        for change in (lambda: machine.disk.remove("d/a"), lambda: machine.disk.rename("d/a", "d/b")):
            with pytest.raises(Killed):
                change()
            machine.restart_process()
    machine.lose_power(0)
    assert machine.files() == {"a": b"a"}
    machine.disk.close()


class Killed(BaseException):
    """The process ends here."""


def dies(*_: object) -> None:
    raise Killed


def test_the_space_of_removed_files_is_given_back(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    for remove in (machine.disk.remove, machine.disk.remove_in_parts):
        machine.write("a", b"content")
        remove("d/a")
        machine.disk.sync_directory("d")
    assert list((tmp_path / "side" / "files").iterdir()) == []
    machine.disk.close()


def test_full_disk_refuses_growth_and_allows_removal(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.write("a", b"content")
    machine.disk.replace_file("d/b", b"old")
    machine.disk.full = True
    assert machine.disk.free_bytes() == 0
    for growing in (
        lambda: machine.write("a", bytes(100)),
        lambda: machine.write("new", b""),
        lambda: machine.disk.replace_file("d/b", b"new"),
    ):
        with pytest.raises(OSError) as caught:
            growing()
        assert caught.value.errno == errno.ENOSPC
    machine.disk.overwrite_file("d/b", b"was")
    assert machine.files()["b"] == b"was"
    assert len(machine.files()["a"]) < len(b"content") + 100
    machine.disk.remove("d/a")
    machine.disk.full = False
    machine.write("a", b"more")
    assert machine.files() == {"a": b"more", "b": b"was"}
    machine.disk.close()


def test_a_slow_disk_takes_its_time_for_a_sync(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.disk.sync_delay_s = 0.1
    began_s = time.monotonic()
    machine.write("a", b"content")
    assert time.monotonic() - began_s >= 0.05
    machine.disk.close()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            (
                "write",
                "write unsynced",
                "replace",
                "remove",
                "remove in parts",
                "rename",
                "sync names",
                "restart",
            )
        ),
        st.sampled_from(NAMES),
        st.sampled_from(NAMES),
    ),
    max_size=12,
)


@given(steps=STEPS, seed=st.integers(0, 2**32))
@settings(max_examples=15)
def test_power_loss_keeps_all_files_when_everything_is_synced(
    steps: list[tuple[str, str, str]], seed: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        machine = Machine(Path(directory))
        for step in steps:
            carry_out(machine, *step)
        for name in machine.files():
            machine.write(name, b"")
        machine.disk.sync_directory("d")
        before = machine.files()
        machine.lose_power(seed)
        assert machine.files() == before
        machine.disk.close()


@given(steps=STEPS, more=STEPS, seed=st.integers(0, 2**32))
@example(
    steps=[("write", "b", "a"), ("write", "a", "a"), ("rename", "b", "a")],
    more=[("rename", "b", "a"), ("remove", "b", "a")],
    seed=2622250,
)
@settings(max_examples=15, derandomize=True)
def test_disk_works_after_a_power_loss_at_any_step(
    steps: list[tuple[str, str, str]], more: list[tuple[str, str, str]], seed: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        machine = Machine(Path(directory))
        written: set[bytes] = set()
        for part in (steps, more):
            for step in part:
                carry_out(machine, *step)
                written |= set(machine.files().values())
            machine.lose_power(seed)
            synced = {content for content in machine.files().values() if content.endswith(b"!")}
            assert synced <= written
        machine.disk.close()


def carry_out(machine: Machine, step: str, name: str, other: str) -> None:
    there = name in machine.disk.list_directory("d")
    if step == "write":
        machine.write(name, f"{name}!".encode())
    elif step == "write unsynced":
        machine.write(name, b"unsynced", sync=False)
    elif step == "replace":
        machine.disk.replace_file(f"d/{name}", f"{other}!".encode())
    elif step == "remove" and there:
        machine.disk.remove(f"d/{name}")
    elif step == "remove in parts" and there:
        machine.disk.remove_in_parts(f"d/{name}")
    elif step == "rename" and there and name != other:
        machine.disk.rename(f"d/{name}", f"d/{other}")
    elif step == "sync names":
        machine.disk.sync_directory("d")
    elif step == "restart":
        machine.restart_process()
