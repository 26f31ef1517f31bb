"""How a node's process goes on and ends: damage, failures, a stop in good order."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import socket
import ssl
import time
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Self
from unittest import mock

import pika
import pika.exceptions
import pytest

from cluster.configuration.configuration import Versions
from cluster.log.segment import CorruptJournal
from cluster.runtime.asyncio_runtime import AsyncioRuntime, RealDisk
from cluster.storage.identity import Owner, claim_directory
from qq.config import ConfigError, NodeAddress, NodeConfig, Seed
from qq.errors import StartError
from qq.machine.machine import QueueMachine
from qq.machine.protocol.versions import VERSIONS
from qq.node import memory_watch, node
from qq.node.failure import Failure
from qq.node.readiness import Readiness
from qq.process import garbage, memory
from qq.testing import ClusterNode, LocalCluster

CONFIG = NodeConfig("n1", Path("data"), (NodeAddress("n1", "127.0.0.1", 1, 2, 3),), (b"0123456789abcdef",))
DAMAGE = CorruptJournal("groups/0/log/7.segment", 42, "checksum")
THE_END = StartError("node n1 stops: its disk failed")


class FakeNode:
    """In place of `start`: each node serves for some seconds, and fails with the given error."""

    failures: ClassVar[list[tuple[float, Exception]]]
    events: ClassVar[list[str]]

    @classmethod
    async def start(cls, _config: NodeConfig, closing: AsyncExitStack, **_ports: object) -> Self:
        cls.events.append("start")
        closing.callback(cls.events.append, "stop")
        return cls()

    async def serve(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._fail(*self.failures.pop(0)))

    async def _fail(self, after_s: float, failure: Exception) -> None:
        await asyncio.sleep(after_s)
        raise failure


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNode.failures, FakeNode.events = [], []
    monkeypatch.setattr(node, "start", FakeNode.start)
    # All that the tests have imported would be looked through, for seconds.
    monkeypatch.setattr(node.garbage, "collect", lambda: FakeNode.events.append("collect"))


def run() -> str:
    """The line that the operator reads at the end."""
    with pytest.raises(StartError) as caught:
        asyncio.run(node.run(CONFIG))
    return str(caught.value)


@pytest.mark.usefixtures("fakes")
def test_node_with_a_damaged_log_starts_again(caplog: pytest.LogCaptureFixture) -> None:
    FakeNode.failures = [(0, DAMAGE), (0, THE_END)]
    assert run() == str(THE_END)
    assert FakeNode.events == ["start", "stop", "collect", "start", "stop"]
    assert [record.getMessage() for record in caplog.records] == [f"node n1 restarts: {DAMAGE}"]


@pytest.mark.usefixtures("fakes")
def test_node_with_a_repeatedly_damaged_log_stops() -> None:
    FakeNode.failures = [(0, DAMAGE)] * 10
    assert run() == f"data: the log is damaged again and again, so check the disk: {DAMAGE}"
    assert FakeNode.events.count("stop") == FakeNode.events.count("start") == 1 + node.REPAIRS_MAX


@pytest.mark.usefixtures("fakes")
def test_damage_now_and_then_is_repaired_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "DAMAGED_AGAIN_S", 0.001)
    FakeNode.failures = [(0.002, DAMAGE)] * 10 + [(0, THE_END)]
    assert run() == str(THE_END)
    assert FakeNode.events.count("start") == 11


def failing_with_the_loop() -> Failure:
    failure = Failure("n1")
    asyncio.get_running_loop().set_exception_handler(failure.unhandled)
    return failure


@pytest.mark.parametrize(
    ("context", "line"),
    [
        ({"exception": ZeroDivisionError("why")}, "node n1 stops: ZeroDivisionError: why"),
        ({"message": "what", "exception": ZeroDivisionError("why")}, "node n1 stops: ZeroDivisionError: why"),
        ({"message": "what"}, "node n1 stops: RuntimeError: what"),
        ({"handle": "a handle"}, "node n1 stops: RuntimeError: nothing handles: handle 'a handle'"),
        ({}, "node n1 stops: RuntimeError: nothing handles: "),
    ],
)
def test_last_log_line_of_a_node_gives_the_cause(
    caplog: pytest.LogCaptureFixture, context: dict[str, Any], line: str
) -> None:
    async def story() -> None:
        failure = failing_with_the_loop()
        asyncio.get_running_loop().call_exception_handler(context)
        await failure.raised()

    with pytest.raises(StartError) as caught:
        asyncio.run(story())
    assert str(caught.value) == line
    assert all(repr(value) in caplog.text or str(value) in caplog.text for value in context.values())


def test_memory_limit_below_a_message_is_refused() -> None:
    limits = dataclasses.replace(CONFIG.limits, memory_high_watermark=1e-9)

    async def story() -> None:
        async with AsyncExitStack() as closing:
            await node.start(dataclasses.replace(CONFIG, limits=limits), closing)

    with pytest.raises(
        StartError, match=r"memory_high_watermark: 1e-09 of the memory is \d+ bytes, .* 16777216$"
    ):
        asyncio.run(story())


def test_cancelled_connection_that_fails_later_ends_no_node(caplog: pytest.LogCaptureFixture) -> None:
    """As uvloop leaves behind an attempt to connect with TLS that is cancelled before the handshake begins."""

    async def fail() -> None:
        raise ConnectionResetError

    async def story() -> None:
        failure = failing_with_the_loop()
        for error in (
            ssl.SSLError("no TLS"),
            socket.gaierror(-2, "Name or service not known"),
            OSError(113, "No route"),
        ):
            left = asyncio.get_running_loop().create_future()
            left.set_exception(error)
            del left
            gc.collect()
        assert not failure.has_come
        assert caplog.text.count("an abandoned connection has failed") == 3
        task = asyncio.create_task(fail())
        await asyncio.sleep(0)
        del task
        gc.collect()
        assert failure.has_come

    caplog.set_level("INFO")
    asyncio.run(story())


def test_memory_that_cannot_be_read_does_not_end_a_node(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        group: Any = SimpleNamespace(alarms=SimpleNamespace(low_on_memory=True))
        runtime = AsyncioRuntime(asyncio.get_running_loop(), pytest.fail)
        watch = memory_watch.MemoryWatch(CONFIG.limits, group, runtime)
        answers: list[int | OSError] = [OSError(24, "Too many open files"), 0]

        def resident_bytes() -> int:
            answer = answers.pop(0)
            if isinstance(answer, OSError):
                assert group.alarms.low_on_memory
                raise answer
            return answer

        monkeypatch.setattr(memory, "resident_bytes", resident_bytes)
        monkeypatch.setattr(memory_watch, "MEMORY_CHECK_INTERVAL_S", 0.001)
        with pytest.raises(IndexError):
            await watch.watch()
        assert not group.alarms.low_on_memory

    asyncio.run(story())
    assert "the memory in use is unknown: [Errno 24] Too many open files" in caplog.text


def test_memory_is_read_without_a_new_file() -> None:
    assert memory.resident_bytes() > 0
    with mock.patch("os.open", side_effect=OSError(24, "Too many open files")):
        assert memory.resident_bytes() > 0


def test_freed_memory_raises_no_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that the heap retains is returned before it counts as too much, at once and again after a while."""
    mib = 1 << 20
    limits = dataclasses.replace(CONFIG.limits, memory_high_watermark_bytes=100 * mib)
    group: Any = SimpleNamespace(alarms=SimpleNamespace(low_on_memory=False))
    runtime: Any = SimpleNamespace(monotonic=lambda: now_s)
    now_s, in_use, kept, takes_s = 1_000.0, 0, 0, 0.5

    def give_back() -> None:
        nonlocal kept, now_s
        kept = 0
        now_s += takes_s

    def is_low(used_then: int, kept_then: int) -> bool:
        nonlocal in_use, kept
        in_use, kept = used_then * mib, kept_then * mib

        async def poll() -> None:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.0):
                    await watch.watch()

        asyncio.run(poll())
        return group.alarms.low_on_memory

    monkeypatch.setattr(memory, "resident_bytes", lambda: in_use + kept)
    monkeypatch.setattr(memory, "give_back", give_back)
    monkeypatch.setattr(garbage, "collect", lambda: None)
    monkeypatch.setattr(garbage, "perf_counter", count().__next__)  # so it takes a second
    watch = memory_watch.MemoryWatch(limits, group, runtime)
    assert not is_low(80, 40)
    assert is_low(80, 40), "that is looked for again after a while only"
    now_s += memory_watch.GIVE_BACK_INTERVAL_S
    assert not is_low(80, 40)
    now_s += memory_watch.GIVE_BACK_INTERVAL_S
    takes_s = 0.01
    assert is_low(101, 40)
    assert not is_low(80, 10)
    assert is_low(80, 40)
    now_s += 1.0
    assert not is_low(80, 40), "it takes little"


@pytest.mark.parametrize("part", ["", "sessions", "vhost_clients"])
def test_error_in_the_management_does_not_end_a_node(caplog: pytest.LogCaptureFixture, part: str) -> None:
    """An answer of a later release that this program does not understand would have stopped the node."""

    async def work() -> None:
        await asyncio.Event().wait()

    async def fail() -> None:
        raise ValueError("of ours")

    async def story() -> None:
        parts = {
            name: SimpleNamespace(watch=fail if name == part else work)
            for name in ("sessions", "vhost_clients")
        }
        management: Any = SimpleNamespace(watch=work if part else fail, **parts)
        async with asyncio.TaskGroup() as tasks:
            node._watch_management(management, tasks)
            for _ in range(5):
                await asyncio.sleep(0)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

    asyncio.run(story())
    assert caplog.text.count("ValueError: of ours") == 1


def test_log_of_an_unsupported_state_version_is_refused(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    disk.make_directory("groups/0")
    owner = Owner(CONFIG.cluster_name, CONFIG.name, 0)
    claim_directory(disk, "groups/0", owner, Versions(VERSIONS[0] - 1, VERSIONS[0] - 1), (CONFIG.name,), 1, 0)
    disk.close()
    with pytest.raises(StartError) as caught:
        asyncio.run(node.run(dataclasses.replace(CONFIG, data_dir=tmp_path)))
    assert str(caught.value) == (
        f"{tmp_path}: groups/0: the log is at version {VERSIONS[0] - 1} of the state, and this program can run "
        f"{Versions(*QueueMachine.versions)}: start one that can"
    )


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            {"nodes": (NodeAddress("n1", "db..org", 1, 2, 3),)},
            "[[nodes]] n1: host: 'db..org' is no host name: ",
        ),
        (
            {"join": (Seed("a b", 1),)},
            "[cluster] join: host: 'a b' must have 1 to 255 characters, without blanks",
        ),
    ],
)
def test_invalid_host_name_is_refused(tmp_path: Path, change: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        asyncio.run(node.run(dataclasses.replace(CONFIG, data_dir=tmp_path, **change)))
    assert str(caught.value).startswith(line)


def test_damaged_log_without_a_copy_is_refused(tmp_path: Path) -> None:
    with LocalCluster(nodes=1, directory=tmp_path) as cluster:
        [member] = cluster.nodes
        member.kill()
        (log_directory(tmp_path, member) / "manifest").unlink()
        member.start()
        while member.running:
            time.sleep(0.05)
        *_, last = member.log.read_text().splitlines()
    data = tmp_path / member.name / "data"
    assert last == (
        f"qq serve: {data}: groups/0/log/manifest: offset 0: the file is missing; no other node has a copy: put the "
        f"file back from a backup (`qq inspect {data}` shows its contents)"
    )


def channel_to(member: ClusterNode) -> Any:
    return pika.BlockingConnection(pika.URLParameters(member.url)).channel()


def log_directory(directory: Path, member: ClusterNode) -> Path:
    return directory / member.name / "data" / "groups" / "0" / "log"


def test_clean_stop_leaves_a_checkpoint_of_all_entries(tmp_path: Path) -> None:
    with LocalCluster(nodes=1, directory=tmp_path) as cluster:
        [member] = cluster.nodes
        channel = channel_to(member)
        channel.confirm_delivery()
        channel.queue_declare("q")
        for _ in range(10):
            channel.basic_publish("", "q", b"m")
        channel.connection.close()
        applied = member.status()["nodes"][0]["applied_index"]
        member.stop()
        newest = max(log_directory(tmp_path, member).glob("*.checkpoint"))
        assert int(newest.stem) >= applied
        member.start()
        member.wait_ready()
        assert [queue["messages"] for queue in member.queues()] == [10]


def test_node_that_reads_damage_is_repaired_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, size = 60, 50_000
    monkeypatch.setenv("QQ_LIMITS_CACHE_BYTES", "100000")
    monkeypatch.setenv("QQ_LIMITS_SEGMENT_BYTES", "1000000")
    with LocalCluster(nodes=3, directory=tmp_path) as cluster:
        member = cluster.followers()[0]
        channel = channel_to(member)
        channel.confirm_delivery()
        channel.queue_declare("q")
        for number in range(count):
            channel.basic_publish("", "q", bytes([number]) * size)
        channel.connection.close()
        pid = member.pid
        segment = min(log_directory(tmp_path, member).glob("*.segment"))
        data = segment.read_bytes()
        damaged_at = data.index(bytes([5]) * size)
        with segment.open("r+b") as file:  # the same file: the node has it open
            file.seek(damaged_at)
            file.write(b"damage")
        channel = channel_to(member)
        with pytest.raises(pika.exceptions.AMQPError):
            for _ in channel.consume("q"):
                pass
        member.wait_ready()
        assert member.pid == pid
        channel = channel_to(member)
        bodies = [body for _, (_, _, body) in zip(range(count), channel.consume("q"), strict=False)]
        assert bodies == [bytes([number]) * size for number in range(count)]
        channel.connection.close()
        starts = [line for line in member.log.read_text().splitlines() if " restarts: " in line]
        assert len(starts) == 1
        assert segment.name in starts[0]


@pytest.mark.parametrize(
    ("under_repair", "apart", "leader", "undecided", "stuck", "why"),
    [
        ("it is new", None, None, "", "", "it is new"),
        ("it is new", "n2 (of another)", None, "", "", "it is new; no connection with n2 (of another)"),
        (None, "n2 (cut)", None, "no leader", "", "no leader is known: no connection with n2 (cut)"),
        (
            None,
            None,
            None,
            "no leader: the members elect one",
            "",
            "no leader is known: no leader: the members elect one",
        ),
        (None, None, "n2", "n2 does not hear this node", "nothing for 10 s", "n2 does not hear this node"),
        (None, None, "n2", None, "nothing for 10 s", "nothing for 10 s"),
        (None, None, "n2", None, None, None),
    ],
)
def test_node_that_cannot_serve_gives_the_reason(
    under_repair: str | None,
    apart: str | None,
    leader: str | None,
    undecided: str | None,
    stuck: str | None,
    why: str | None,
) -> None:
    """A node with a new directory that learned a lost cluster must be restarted to join a new one."""
    links: Any = SimpleNamespace(why_not_joined=None, why_apart=apart)
    group: Any = SimpleNamespace(
        own_status=SimpleNamespace(flaw=lambda: under_repair),
        leader=leader,
        why_undecided=lambda: undecided,
    )
    maintenance: Any = SimpleNamespace(is_on=False)
    readiness = Readiness("n1", group, links, maintenance, lambda: stuck)
    readiness.is_serving = True
    assert readiness.why_not() == why


@pytest.mark.parametrize(
    ("applied", "why"), [(10, "the node is catching up with the cluster"), (38000, "nothing for 10 s")]
)
def test_node_that_is_behind_says_that_it_catches_up(applied: int, why: str) -> None:
    """Its first request is behind all that it lacks: an operator should not search for slow disks or links."""
    status = SimpleNamespace(applied_index=applied, commit_index=38000)
    group: Any = SimpleNamespace(
        own_status=SimpleNamespace(flaw=lambda: None, now=lambda: status),
        leader="n2",
        why_undecided=lambda: None,
        alarms=SimpleNamespace(lacks_space=False),
    )
    maintenance: Any = SimpleNamespace(is_on=False)
    links: Any = SimpleNamespace(why_not_joined=None, why_apart=None)
    readiness = Readiness("n1", group, links, maintenance, lambda: "nothing for 10 s")
    assert readiness.why_not() == why


def test_node_that_founds_a_cluster_logs_it_once(tmp_path: Path) -> None:
    """It may have lost its disk, and its file may not name its former cluster."""
    with LocalCluster(nodes=1, directory=tmp_path) as cluster:
        [only] = cluster.nodes
        only.stop()
        only.start()
        only.wait_ready()
        assert only.log.read_text().count("this node begins a cluster of its own") == 1
