"""Processes forked from a server that has imported the program."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from qq import __version__
from qq.cli.local.launch import PARENT_VARIABLE
from qq.process.fork_server import ForkedProcess, ForkServer, fork_server
from qq.testing import LocalCluster

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def server() -> Generator[ForkServer]:
    server = ForkServer()
    yield server
    server.close()


def forked(
    server: ForkServer, *arguments: str, environment: dict[str, str] | None = None
) -> tuple[ForkedProcess, str, str]:
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = server.start(arguments, environment or {}, stdout=output.fileno(), stderr=errors.fileno())
        process.wait(PATIENCE_S)
        output.seek(0)
        errors.seek(0)
        return process, output.read(), errors.read()


def frozen(server: ForkServer, directory: Path, kept: Sequence[int] = ()) -> ForkedProcess:
    """Start a command that never ends: it waits for a pipe without a writer."""
    pipe = directory / "pipe"
    os.mkfifo(pipe)
    return server.start(["serve", "--config", str(pipe)], {}, stdout=2, stderr=2, kept=kept)


def has_ended(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z"


def test_forked_process_has_its_own_arguments_and_status(server: ForkServer) -> None:
    process, output, errors = forked(server, "--version")
    assert (process.poll(), output.split()[-1], errors) == (0, __version__, "")
    process, output, errors = forked(server, "status", "--http", "nonsense://x", environment={"QQ_USER": "u"})
    assert process.poll() not in (None, 0)
    assert (output, "nonsense" in errors) == ("", True)


def test_fork_server_starts_a_second_program(server: ForkServer, tmp_path: Path) -> None:
    with (tmp_path / "output").open("w+") as output:
        process = server.start(
            ["--help"], {}, stdout=output.fileno(), stderr=output.fileno(), program="chaos.live.faulty_node"
        )
        assert process.wait(PATIENCE_S) == 0
        output.seek(0)
        assert "usage: faulty_node" in output.read()


def test_a_descriptor_is_kept_as_long_as_the_process_runs(server: ForkServer, tmp_path: Path) -> None:
    ours, kept = os.pipe()
    process = frozen(server, tmp_path, [kept])
    os.close(kept)
    assert select.select([ours], [], [], 0.1) == ([], [], [])
    process.kill()
    assert os.read(ours, 1) == b""
    os.close(ours)


def test_names_and_environments_may_be_long(server: ForkServer) -> None:
    process, _, errors = forked(
        server, "inspect", "/nowhere/" + "x" * 300_000, environment={"LONG": "x" * 100_000}
    )
    assert process.poll() not in (None, 0)
    assert "xxx" in errors


def test_signal_is_the_status_of_a_killed_process(server: ForkServer, tmp_path: Path) -> None:
    process = frozen(server, tmp_path)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.kill()
    assert process.wait(PATIENCE_S) == process.poll() == -signal.SIGKILL
    process.kill()
    assert process.wait() == -signal.SIGKILL


def test_processes_side_by_side_end_each_with_its_own_status(server: ForkServer, tmp_path: Path) -> None:
    waiting = frozen(server, tmp_path)
    forked(server, "--version")
    assert waiting.poll() is None
    waiting.terminate()
    assert waiting.wait(PATIENCE_S) == -signal.SIGTERM


def test_nodes_end_with_their_fork_server(tmp_path: Path) -> None:
    with LocalCluster(1, tmp_path) as cluster:
        [node] = cluster.nodes
        number = node.pid
        parent = int(Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()[1])
        os.kill(parent, signal.SIGKILL)
        while not has_ended(number):
            time.sleep(0.01)
        assert not node.running
        node.start()
        node.wait_ready()


def test_node_without_its_fork_server_does_not_start(server: ForkServer, tmp_path: Path) -> None:
    environment = {PARENT_VARIABLE: "1"}
    process, _, errors = forked(server, "serve", "--config", str(tmp_path / "none"), environment=environment)
    assert process.poll() == 1
    assert "is gone" in errors


def test_changed_interpreter_environment_gets_a_new_server(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = fork_server()
    assert fork_server("n2") is not usual
    monkeypatch.setenv("PYTHONDEVMODE", "1")
    other = fork_server()
    assert other is not usual
    monkeypatch.undo()
    assert fork_server() is usual
    other.close()


def test_concurrent_requests_share_a_fork_server() -> None:
    barrier = threading.Barrier(4)

    def start_child(_number: int) -> ForkServer:
        barrier.wait()
        return fork_server("asked for at once")

    with ThreadPoolExecutor(4) as threads:
        servers = set(threads.map(start_child, range(4)))
    assert len(servers) == 1
