"""The ports on the operating system, and the log on them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cluster.journal import SegmentedJournal
from cluster.realworld import AsyncioRuntime, DirectoryInUse, RealDisk

if TYPE_CHECKING:
    from collections.abc import Iterator

PROJECT = Path(__file__).parents[2]


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


def test_the_directory_is_free_after_close(tmp_path: Path) -> None:
    RealDisk(tmp_path).close()
    RealDisk(tmp_path).close()


def test_more_buffers_than_one_system_call_takes_are_written_in_order(disk: RealDisk) -> None:
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
    def write_some(descriptor: int, buffers: list[bytes]) -> int:
        return os.write(descriptor, b"".join(buffers)[:7])

    monkeypatch.setattr("cluster.realworld.os.writev", write_some)
    file = disk.open("short", create=True)
    file.append([b"hello ", b"big ", b"world"])
    file.close()
    assert disk.read_file("short") == b"hello big world"


def test_a_failed_append_tells_the_true_size(disk: RealDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_half_way(descriptor: int, buffers: list[bytes]) -> int:
        os.write(descriptor, buffers[0][:2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("cluster.realworld.os.writev", fail_half_way)
    file = disk.open("full", create=True)
    with pytest.raises(OSError, match="No space"):
        file.append([b"hello"])
    assert file.size == 2
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


def test_jobs_run_in_order_off_the_loop_and_answer_on_it(disk: RealDisk) -> None:
    async def scenario() -> None:
        finished = asyncio.Event()
        answers: list[tuple[object, str, bool]] = []

        def note(result: object, error: Exception | None) -> None:
            on_loop = threading.current_thread() is threading.main_thread()
            answers.append((result, type(error).__name__, on_loop))
            if len(answers) == 3:
                finished.set()

        def broken() -> str:
            raise OSError(5, "Input/output error")

        disk.submit(lambda: threading.current_thread().name, note)
        disk.submit(broken, note)
        disk.submit(lambda: "last", note)
        await finished.wait()
        assert answers == [
            ("disk-writer", "NoneType", True),
            (None, "OSError", True),
            ("last", "NoneType", True),
        ]

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


def test_an_answer_for_a_loop_that_is_gone_is_dropped(tmp_path: Path) -> None:
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
        journal = SegmentedJournal(disk, "log", b"x", refuse, segment_bytes=20_000, cache_bytes=0)
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
from cluster.journal import SegmentedJournal
from cluster.realworld import RealDisk

async def write():
    journal = SegmentedJournal(RealDisk(sys.argv[1]), "log", b"x", sys.exit, segment_bytes=5000)
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
    journal = SegmentedJournal(disk, "log", b"x", refuse)
    assert journal.last_index >= max(reported, default=500)
    assert all(payload == b"%d" % index * 50 for payload, index, _ in journal[0 : len(journal)])
    disk.close()
