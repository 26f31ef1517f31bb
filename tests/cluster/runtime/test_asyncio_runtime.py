"""The ports on the operating system, and the log on them."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cluster.log.hardstate import HardStateFile
from cluster.log.journal import JournalSizes, SegmentedJournal
from cluster.log.manifest import MANIFEST_NAME, Manifest
from cluster.log.owned_directory import OwnedDirectory
from cluster.log.segment_reader import load_log
from cluster.log.sync_mark import MARK_NAME
from cluster.runtime import inline_writes
from cluster.runtime.asyncio_runtime import PART_BYTES, AsyncioRuntime, DirectoryInUse, RealDisk
from cluster.runtime.inline_writes import STALL_REST

if TYPE_CHECKING:
    from collections.abc import Iterator

PROJECT = Path(__file__).parents[3]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[RealDisk]:
    disk = RealDisk(tmp_path / "data")
    yield disk
    disk.close()


def refuse(error: Exception) -> None:
    raise error


def test_a_second_user_of_the_directory_is_refused(disk: RealDisk, tmp_path: Path) -> None:
    with pytest.raises(
        DirectoryInUse, match=rf"{tmp_path}/data: in use by another process \(pid {os.getpid()}\)"
    ):
        RealDisk(tmp_path / "data")


def test_the_lock_of_an_earlier_process_is_overwritten_in_place(tmp_path: Path) -> None:
    sizes: list[int] = []
    for earlier in ("", "4194303\n"):
        (tmp_path / "lock").write_text(earlier)
        RealDisk(tmp_path).close()
        assert (tmp_path / "lock").read_text().strip() == str(os.getpid())
        sizes.append((tmp_path / "lock").stat().st_size)
    assert sizes[0] == sizes[1]


def test_the_directory_is_free_after_close(tmp_path: Path) -> None:
    RealDisk(tmp_path).close()
    RealDisk(tmp_path).close()


def test_buffers_beyond_a_single_system_call_stay_in_order(disk: RealDisk) -> None:
    file = disk.open("many", create=True)
    buffers = [f"{number},".encode() for number in range(3000)]
    file.append(buffers)
    assert file.size == sum(map(len, buffers))
    assert file.pread(0, file.size + 10) == b"".join(buffers)
    file.truncate(4)
    file.append([b"end"])
    file.sync()
    file.close()
    assert disk.read_file("many") == b"0,1,end"


def test_short_writes_are_completed(disk: RealDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_some(descriptor: int, buffers: list[bytes], offset: int) -> int:
        return os.pwrite(descriptor, b"".join(buffers)[:7], offset)

    monkeypatch.setattr("cluster.runtime.asyncio_runtime.os.pwritev", write_some)
    file = disk.open("short", create=True)
    file.append([b"hello ", b"big ", b"world"])
    file.append([b"! ", b"and more"])
    file.close()
    assert disk.read_file("short") == b"hello big world! and more"


def test_size_is_true_after_a_failed_append(disk: RealDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_half_way(descriptor: int, buffers: list[bytes], offset: int) -> int:
        os.pwrite(descriptor, buffers[0][:2], offset)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("cluster.runtime.asyncio_runtime.os.pwritev", fail_half_way)
    file = disk.open("full", create=True)
    with pytest.raises(OSError, match="No space"):
        file.append([b"hello"])
    assert file.size == 2
    file.close()


def test_the_beginning_of_a_file_is_overwritten(disk: RealDisk) -> None:
    file = disk.open("file", create=True)
    file.append([b"before and after"])
    file.overwrite(b"BEFORE")
    file.append([b"wards"])
    file.sync()
    assert (file.size, disk.read_file("file")) == (21, b"BEFORE and afterwards")
    file.close()


def test_directories_and_small_files(disk: RealDisk) -> None:
    disk.make_directory("groups/0/log")
    disk.make_directory("groups/0/log")
    disk.replace_file("groups/0/name", b"one")
    disk.replace_file("groups/0/name", b"two")
    assert disk.read_file("groups/0/name") == b"two"
    assert disk.list_directory("groups/0") == ["log", "name"]
    disk.remove("groups/0/name")
    disk.sync_directory("groups/0")
    with pytest.raises(FileNotFoundError):
        disk.read_file("groups/0/name")
    with pytest.raises(FileNotFoundError):
        disk.open("groups/0/name")


def group_and_world_rights(root: Path) -> set[Path]:
    """Return the paths that users other than the owner can access."""
    return {path for path in (root, *root.rglob("*")) if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)}


def test_files_are_private_even_with_umask_zero(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        disk = RealDisk(tmp_path / "data")
        disk.make_directory("log")
        disk.replace_file("log/small", b"x")
        disk.open("log/large", create=True).close()
        disk.close()
    finally:
        os.umask(before)
    assert group_and_world_rights(tmp_path / "data") == set()


def test_existing_files_are_made_private(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    (root / "log").mkdir(parents=True)
    for file in (root / "log" / "file", elsewhere):
        file.touch()
        file.chmod(0o644)
    for directory in (root / "log", root):
        directory.chmod(0o2755)
    (root / "link").symlink_to(elsewhere)
    for _ in range(2):
        RealDisk(root).close()
    assert group_and_world_rights(root) == {root / "link"}  # its target is outside the directory
    assert (root / "log").stat().st_mode & stat.S_ISGID
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"{root}: other users had access to 3 files")


def test_a_file_is_overwritten_in_place_by_as_many_bytes(disk: RealDisk) -> None:
    disk.replace_file("state", b"before")
    file = disk.open("state")
    disk.overwrite_file("state", b"after!")
    assert file.pread(0, 10) == b"after!"
    file.close()
    with pytest.raises(ValueError, match="state: has 6 bytes and cannot be overwritten with 5"):
        disk.overwrite_file("state", b"after")
    assert disk.read_file("state") == b"after!"
    with pytest.raises(FileNotFoundError):
        disk.overwrite_file("none", b"")


def test_an_overwriting_that_is_cut_short_is_completed(
    disk: RealDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.replace_file("state", b"before")
    write = os.write
    monkeypatch.setattr(
        "cluster.runtime.asyncio_runtime.os.write", lambda descriptor, data: write(descriptor, data[:2])
    )
    disk.overwrite_file("state", b"after!")
    assert disk.read_file("state") == b"after!"


def test_files_and_directories_are_renamed(disk: RealDisk) -> None:
    disk.make_directory("log")
    disk.replace_file("log/one", b"1")
    disk.replace_file("log/two", b"2")
    disk.rename("log/one", "log/two")
    disk.rename("log", "damaged")
    assert disk.list_directory("damaged") == ["two"]
    assert disk.read_file("damaged/two") == b"1"
    with pytest.raises(FileNotFoundError):
        disk.rename("log", "elsewhere")


def test_a_directory_is_removed_with_all_that_is_in_it(disk: RealDisk) -> None:
    disk.make_directory("incoming/deep")
    disk.replace_file("incoming/deep/file", b"1")
    disk.remove_directory("incoming")
    disk.remove_directory("incoming")
    assert "incoming" not in disk.list_directory("")


def test_large_file_is_removed_in_parts_unless_it_is_linked(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    truncate = os.truncate

    def recorded(path: Path, size: int) -> None:
        sizes.append(size)
        truncate(path, size)

    monkeypatch.setattr(os, "truncate", recorded)
    content = bytes(2 * PART_BYTES + 1)
    for name in ("alone", "linked"):
        file = disk.open(name, create=True)
        file.append([content])
        file.close()
    (tmp_path / "data" / "kept").hardlink_to(tmp_path / "data" / "linked")
    for name in ("alone", "linked"):
        disk.remove_in_parts(name)
    assert sizes == [PART_BYTES + 1, 1]
    assert [name for name in disk.list_directory("") if name != "lock"] == ["kept"]
    assert disk.read_file("kept") == content


def test_the_free_space_is_that_of_the_file_system(disk: RealDisk, tmp_path: Path) -> None:
    space = os.statvfs(tmp_path)
    assert disk.free_bytes() == pytest.approx(space.f_bavail * space.f_frsize, rel=0.1)


def test_boot_id_lasts_as_long_as_the_machine_is_up(disk: RealDisk, tmp_path: Path) -> None:
    other = RealDisk(tmp_path / "other")
    assert disk.boot_id() == other.boot_id() != ""
    other.close()


def test_each_start_has_a_boot_id_without_that_of_linux(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.runtime.asyncio_runtime._BOOT_ID", tmp_path / "missing")
    boot_ids: list[str] = []
    for _ in range(2):
        disk = RealDisk(tmp_path)
        boot_ids += [disk.boot_id(), disk.boot_id()]
        disk.close()
    assert boot_ids[0] == boot_ids[1] != boot_ids[2] == boot_ids[3]


def test_jobs_run_in_order_off_the_loop_and_answer_on_it(disk: RealDisk) -> None:
    async def scenario() -> None:
        finished = asyncio.Event()
        answers: list[tuple[object, str, bool]] = []

        def record(result: object, error: Exception | None) -> None:
            on_loop = threading.current_thread() is threading.main_thread()
            answers.append((result, type(error).__name__, on_loop))
            if len(answers) == 3:
                finished.set()

        def broken() -> str:
            raise OSError(5, "Input/output error")

        disk.submit(lambda: threading.current_thread().name, record)
        disk.submit(broken, record)
        disk.submit(lambda: "last", record)
        await finished.wait()
        assert answers == [
            ("disk-writer", "NoneType", True),
            (None, "OSError", True),
            ("last", "NoneType", True),
        ]

    asyncio.run(scenario())


def test_background_job_does_not_delay_short_jobs(disk: RealDisk) -> None:
    async def scenario() -> None:
        release = threading.Event()
        loop = asyncio.get_running_loop()
        names = [loop.create_future() for _ in range(3)]

        def background() -> str:
            release.wait()
            return threading.current_thread().name

        disk.submit_background(background, lambda result, _error: names[0].set_result(result))
        disk.submit(lambda: threading.current_thread().name, lambda result, _: names[1].set_result(result))
        disk.submit_read(
            lambda: threading.current_thread().name, lambda result, _: names[2].set_result(result)
        )
        assert await asyncio.gather(*names[1:]) == ["disk-writer", "disk-reader"]
        assert not names[0].done()
        release.set()
        assert await names[0] == "disk-background"

    asyncio.run(scenario())


def test_a_read_does_not_wait_for_a_write(disk: RealDisk) -> None:
    async def scenario() -> None:
        release = threading.Event()
        read: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        disk.submit(release.wait, lambda _result, _error: written.set_result(None))
        disk.submit_read(lambda: "read", lambda result, _error: read.set_result(result))
        assert await read == "read"
        assert not written.done()
        release.set()
        await written

    asyncio.run(scenario())


def test_result_for_a_closed_loop_is_dropped(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    release = threading.Event()

    async def scenario() -> None:
        disk.submit(release.wait, lambda _result, error: pytest.fail(str(error)))

    asyncio.run(scenario())
    release.set()
    disk.close()


def test_the_runtime_calls_soon_and_later_and_reports_failure() -> None:
    async def scenario() -> list[str]:
        failures: list[BaseException] = []
        calls: list[str] = []
        runtime = AsyncioRuntime(asyncio.get_running_loop(), failures.append)
        before = runtime.monotonic()
        done = asyncio.Event()
        runtime.call_later(0.001, done.set)
        runtime.call_later(0, lambda: calls.append("cancelled")).cancel()
        runtime.call_soon(lambda: calls.append("soon"))
        await done.wait()
        assert runtime.monotonic() >= before
        assert runtime.wall_ms() > 1_600_000_000_000
        error = OSError("broken")
        runtime.fail(error)
        assert failures == [error]
        return calls

    assert asyncio.run(scenario()) == ["soon"]


def test_the_log_can_be_read_while_it_is_written(disk: RealDisk) -> None:
    async def scenario() -> None:
        hard_state = HardStateFile(OwnedDirectory(disk, "", b"x"))
        journal = SegmentedJournal(
            OwnedDirectory(disk, "log", b"x"),
            hard_state,
            JournalSizes(segment_bytes=20_000, cache_bytes=0),
            on_failure=refuse,
        )
        journal.setCurrentTerm(1, None)
        for start in range(1, 1001, 100):
            for index in range(start, start + 100):
                journal.add(b"%d" % index * 10, index, 1)
            synced: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            read: asyncio.Future[list[bytes] | None] = asyncio.get_running_loop().create_future()
            job = journal.read_job(range(1, journal.last_index + 1))
            disk.submit_read(job, lambda result, _error, read=read: read.set_result(result))
            journal.start_sync(lambda synced=synced: synced.set_result(None))
            assert await read == [b"%d" % index * 10 for index in range(1, start + 100)]
            await synced
        assert journal.synced_index == 1000

    asyncio.run(scenario())


WRITER = """
import asyncio, sys
from cluster.log.hardstate import HardStateFile
from cluster.log.journal import JournalSizes, SegmentedJournal
from cluster.log.owned_directory import OwnedDirectory
from cluster.runtime.asyncio_runtime import RealDisk

async def write():
    disk = RealDisk(sys.argv[1])
    hard_state = HardStateFile(OwnedDirectory(disk, "", b"x"))
    journal = SegmentedJournal(
        OwnedDirectory(disk, "log", b"x"), hard_state, JournalSizes(segment_bytes=5000), on_failure=sys.exit
    )
    journal.setCurrentTerm(1, None)
    def next_batch():
        print(journal.synced_index, flush=True)
        for index in range(journal.last_index + 1, journal.last_index + 8):
            journal.add(b"%d" % index * 50, index, 1)
        journal.start_sync(next_batch)
    next_batch()
    await asyncio.Event().wait()

asyncio.run(write())
"""


def test_a_killed_writer_leaves_everything_that_it_called_synced(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], cwd=PROJECT, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        for line in writer.stdout:
            if int(line) > 500:
                break
        with pytest.raises(DirectoryInUse, match=rf"pid {writer.pid}"):
            RealDisk(tmp_path)
        writer.kill()
        reported = [int(line) for line in writer.stdout if line.endswith("\n")]
    disk = RealDisk(tmp_path)
    # A killed process loses no written data.
    journal = SegmentedJournal(
        OwnedDirectory(disk, "log", b"x"),
        HardStateFile(OwnedDirectory(disk, "", b"x")),
        on_failure=refuse,
        writes_lost=False,
    )
    assert journal.last_index >= max(reported, default=500)
    assert all(payload == b"%d" % index * 50 for payload, index, _ in journal[0 : len(journal)])
    disk.close()


@pytest.mark.timeout(60)
def test_a_short_job_is_done_at_once_while_the_disk_is_quick(
    disk: RealDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a stall the next writes go to the thread, the more of them the longer the stall was."""
    # A busy machine may delay even an empty write.
    monkeypatch.setattr(inline_writes, "QUICK_S", 0.1)
    monkeypatch.setattr(inline_writes, "STALL_S", 0.5)
    here = threading.get_ident()
    threads: list[int] = []

    async def submit(seconds: float = 0.0) -> int:
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def job() -> None:
            time.sleep(seconds)
            threads.append(threading.get_ident())

        disk.submit(job, lambda result, error: done.set_result((result, error)), is_short=True)
        assert await done == (None, None)
        return threads[-1]

    async def run() -> None:
        assert await submit() == here
        assert await submit(1.0) == here
        rest = [await submit() for _ in range(10 * STALL_REST - 1)]
        assert here not in rest
        while await submit() != here:
            pass  # a job that the system has kept waiting counts as slow, too

    asyncio.run(run())


def test_short_job_waits_for_earlier_jobs_and_reports_its_error(disk: RealDisk) -> None:
    order: list[str] = []

    def fail() -> None:
        order.append("short")
        raise OSError(5, "broken")

    async def run() -> None:
        disk.submit(lambda: order.append("long"), lambda *_: order.append("done"))
        for _ in range(2):
            done = asyncio.get_running_loop().create_future()
            disk.submit(fail, lambda _, error, done=done: done.set_result(error), is_short=True)
            assert str(await done) == "[Errno 5] broken"

    asyncio.run(run())
    assert [each for each in order if each != "done"] == ["long", "short", "short"]


@pytest.mark.parametrize("is_damaged", [False, True])
def test_remains_of_a_manifest_after_a_crash_prevent_no_start(
    disk: RealDisk, tmp_path: Path, is_damaged: bool
) -> None:
    """A manifest that a start writes anew replaces leftovers of its name."""
    (tmp_path / "data" / "log").mkdir()
    if is_damaged:
        load_log(disk, "log", b"identity", writes_lost=False)
        manifest = tmp_path / "data" / "log" / MANIFEST_NAME
        manifest.write_bytes(b"?" + manifest.read_bytes()[1:])
    (tmp_path / "data" / "log" / f"{MANIFEST_NAME}.tmp").write_bytes(b"half")
    assert load_log(disk, "log", b"identity", writes_lost=False).manifest == Manifest()
    assert sorted(disk.list_directory("log")) == [MANIFEST_NAME, MARK_NAME]
