"""The programs in examples/ keep their promises, also when nodes are killed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pika
import pytest

from tests.harness.node_in_use import node_in_use

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from qq.testing import LocalCluster

pytestmark = pytest.mark.xdist_group("examples")

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE_S = 40.0


class Program:
    """An example as a process, and its output so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                self.lines.append(line.rstrip("\n"))

    def wait_until(self, condition: Callable[[list[str]], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition(self.lines):
            assert time.monotonic() < deadline, self.lines
            time.sleep(0.02)

    def end(self) -> list[str]:
        """Wait for a successful end, and return the output."""
        assert self.process.wait(PATIENCE_S) == 0, self.lines
        self._reader.join()
        return self.lines

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()


@contextmanager
def running(*arguments: str | Path, **environment: str) -> Generator[Program]:
    command = [sys.executable, *map(str, arguments)]
    process = subprocess.Popen(
        command,
        cwd=EXAMPLES,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    program = Program(process)
    try:
        yield program
    finally:
        program.kill()


def run(*arguments: str | Path, **environment: str) -> list[str]:
    with running(*arguments, **environment) as program:
        return program.end()


def drained(url: str, queue: str) -> list[str]:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        found: list[str] = []
        while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
            found.append(got[2].decode())
        return found


def test_first_message_is_received(cluster: LocalCluster) -> None:
    assert run("first_message.py", AMQP_URL=cluster.urls[1]) == ["hello"]


def test_outbox_publishes_each_order_once_when_a_node_is_killed(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    with running("outbox.py", tmp_path / "orders.db", *cluster.urls) as relay:
        # pika tries the addresses in their order.
        wait_for_messages(cluster, "orders", 20)
        cluster.nodes[0].kill()
        lines = relay.end()
    assert sum("connection lost" in line for line in lines) == 1
    assert lines[-1] == "the outbox is empty: each order is published once"
    found = drained(cluster.urls[1], "orders")
    assert found == [f"order {number + 1}: chair {number}" for number in range(200)]


def wait_for_messages(cluster: LocalCluster, queue: str, count: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while sum(each["messages"] for each in cluster.nodes[2].queues() if each["name"] == queue) < count:
        assert time.monotonic() < deadline


def test_failing_job_is_retried_then_parked(cluster: LocalCluster) -> None:
    lines = run("retry.py", cluster.urls[0])
    assert sorted(lines[:2]) == ["flaky: failed at attempt 1", "hopeless: failed at attempt 1"]
    assert lines[2:] == [
        "flaky: done at attempt 2",
        "hopeless: failed at attempt 2",
        "hopeless: failed at attempt 3",
        "hopeless: parked, because of delivery_limit",
    ]


def test_next_consumer_takes_over_in_order_when_active_is_killed(cluster: LocalCluster) -> None:
    with (
        running("single_active.py", "one", cluster.urls[0]) as one,
        running("single_active.py", "two", cluster.urls[1]) as two,
    ):
        for program in (one, two):
            program.wait_until(lambda lines: len(lines) > 0)
        with pika.BlockingConnection(pika.URLParameters(cluster.urls[2])) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for number in range(100):
                channel.basic_publish("", "ledger", str(number).encode())
        first, second = active_first(one, two)
        first.wait_until(lambda lines: len(lines) > 10)
        assert len(second.lines) == 1
        first.kill()
        second.wait_until(lambda lines: lines[-1].endswith(": 99"))
        handled = [int(line.split(": ")[1]) for line in first.lines[1:] + second.lines[1:]]
    # Printed but unacknowledged messages of the first were redelivered; no message is missing or out of order.
    assert sorted(set(handled)) == list(range(100))
    assert handled == sorted(handled)


def active_first(one: Program, two: Program) -> tuple[Program, Program]:
    """Wait until one of the programs has a message, and return it first."""
    deadline = time.monotonic() + PATIENCE_S
    while len(one.lines) == len(two.lines) == 1:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return (one, two) if len(one.lines) > 1 else (two, one)


def test_request_is_answered_by_a_server_at_a_different_node(cluster: LocalCluster) -> None:
    with running("rpc.py", "serve", cluster.urls[0]) as server:
        server.wait_until(lambda lines: lines == ["serving"])
        assert run("rpc.py", "ask", "30", cluster.urls[2]) == ["832040"]


@pytest.mark.long
def test_celery_application_goes_on_when_the_leader_is_killed(cluster: LocalCluster) -> None:
    environment = {"CELERY_BROKER": cluster.followers()[0].url}
    worker = ("-m", "celery", "-A", "celery_app", "worker", "--pool=threads", "--concurrency=1")
    with running(*worker, **environment) as program:
        assert run("celery_app.py", **environment)[-1] == "5"
        cluster.leader().kill()
        assert run("celery_app.py", **environment)[-1] == "5"
        assert not any("lost" in line for line in program.lines), program.lines


def test_confirmed_messages_survive_when_the_leader_is_killed(cluster: LocalCluster) -> None:
    with running("survive.py", *cluster.urls) as program:
        program.wait_until(lambda lines: len(lines) >= 2)
        cluster.leader().kill()
        before = confirmed(program.lines)
        program.wait_until(
            lambda lines: confirmed(lines) > before + 200 and "not yet consumed 0" in lines[-1]
        )


def test_asyncio_program_survives_the_death_of_its_node(cluster: LocalCluster) -> None:
    with running("survive_asyncio.py", *cluster.urls) as program:
        node_in_use(cluster, program.process, PATIENCE_S).kill()
        lines = program.end()
    assert {"2000 messages are confirmed", "2000 messages are consumed"} <= set(lines)
    # Publisher and consumer choose their nodes at random, so the node may have had the connection of either.
    signs = ("publisher:", "consumer:", "cannot connect:")
    assert any(line.startswith(signs) for line in lines), lines


def confirmed(lines: list[str]) -> int:
    return max(
        (int(number) for line in lines for number in re.findall(r"^confirmed (\d+),", line)), default=0
    )


def test_the_test_of_an_application_passes(tmp_path: Path) -> None:
    """In a project of its own, without this repository's settings of pytest."""
    shutil.copy(EXAMPLES / "test_orders.py", tmp_path)
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:aiomisc", ".")
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 passed" in result.stdout, result.stdout


@pytest.mark.parametrize("arguments", [["outbox.py"], ["single_active.py"], ["rpc.py"], ["rpc.py", "ask"]])
def test_program_without_its_argument_prints_its_usage(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=EXAMPLES, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert f"\npython {arguments[0]} " in done.stderr
    assert "Traceback" not in done.stderr


def test_example_for_pytest_needs_no_further_plugin() -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:timeout", "--collect-only", "-q", "test_orders.py"]
    ended = subprocess.run(command, cwd=EXAMPLES, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
