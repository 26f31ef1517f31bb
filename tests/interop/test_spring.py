"""A Spring Boot program with a listener of each kind, while the nodes of its cluster are killed in turn."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from qq.testing import LocalCluster
from tests.interop.sources import HERE, UNPACKED, SourceMissingError, run

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop-suites"), pytest.mark.timeout(600)]

BUILD_S = 300.0
GO_ON_S = 60.0
END_S = 60.0
MORE = 3
LISTENERS = {
    "answers",
    "attempts",
    "confirmed",
    "dead",
    "exclusive-direct",
    "exclusive-simple",
    "quorum-direct",
    "quorum-simple",
}
SETTINGS = {
    "spring.rabbitmq.publisher-confirm-type": "correlated",
    "spring.rabbitmq.publisher-returns": "true",
    "spring.rabbitmq.template.mandatory": "true",
    "spring.rabbitmq.template.reply-timeout": "2s",
    "spring.rabbitmq.requested-heartbeat": "5s",
    "spring.rabbitmq.connection-timeout": "2s",
    "spring.rabbitmq.address-shuffle-mode": "random",
    "spring.rabbitmq.listener.simple.retry.enabled": "true",
    "spring.rabbitmq.listener.simple.retry.max-attempts": "3",
    "spring.rabbitmq.listener.simple.retry.initial-interval": "20ms",
    "spring.rabbitmq.listener.simple.default-requeue-rejected": "false",
    "spring.main.banner-mode": "off",
    "logging.level.root": "ERROR",
}


class Program:
    """The running program; it tells how many messages each of its listeners has had."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.counts: dict[str, int] = {}
        self.printed: list[str] = []
        self._process = process
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            pairs = [field.partition("=") for field in line.split()]
            if pairs and all(number.isdecimal() for _, _, number in pairs):
                self.counts |= {name: int(number) for name, _, number in pairs}
            else:
                self.printed.append(line)

    def wait_all_continue(self, event: str) -> float:
        """Wait until each listener has had some messages more; gives after how long. Fails with those that do not."""
        before, began = dict(self.counts), time.monotonic()
        while still := {name for name in LISTENERS if self.counts.get(name, 0) < before.get(name, 0) + MORE}:
            after_s = time.monotonic() - began
            assert after_s < GO_ON_S, f"{event}: {sorted(still)} stand still\n{''.join(self.printed[-40:])}"
            time.sleep(0.05)
        return time.monotonic() - began

    def end(self) -> dict[str, int]:
        """Have it publish no more, and wait until all that was confirmed was consumed."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.close()
        self._process.wait(END_S)
        self._reader.join(END_S)
        return self.counts


def built() -> Path:
    if shutil.which("mvn") is None:
        pytest.fail("no Maven here: apt-get install maven", pytrace=False)
    UNPACKED.mkdir(exist_ok=True)
    target = UNPACKED / "spring"
    command = ["mvn", "--batch-mode", "--quiet", f"-Dmaven.repo.local={UNPACKED / 'maven'}"]
    try:
        run([*command, f"-Dbuild.to={target}", "package"], HERE / "spring", "Spring Boot", timeout_s=BUILD_S)
    except SourceMissingError as error:
        pytest.fail(str(error), pytrace=False)
    return target / "listeners-1.jar"


@contextmanager
def running(jar: Path, cluster: LocalCluster) -> Generator[Program]:
    addresses = ",".join(f"127.0.0.1:{node.amqp_port}" for node in cluster.nodes)
    settings = SETTINGS | {"spring.rabbitmq.addresses": addresses}
    with subprocess.Popen(
        ["java", "-jar", str(jar), *(f"--{name}={value}" for name, value in settings.items())],
        env=os.environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield Program(process)
        finally:
            process.kill()


def test_spring_listeners_continue_when_nodes_are_killed() -> None:
    jar = built()
    with LocalCluster(3) as cluster, running(jar, cluster) as program:
        program.wait_all_continue("at the start")
        # The program is connected to a single node: each round kills this node, and then the next.
        for node in [*cluster.nodes, *cluster.nodes]:
            node.kill()
            after_s = program.wait_all_continue(f"{node} was killed")
            print(f"{node.name} was killed: all go on after {after_s:.1f} s")
            node.start()
            node.wait_ready()
        counts = program.end()
    assert counts["missing"] == counts["unconfirmed"] == 0
    # Of those that were redelivered, the attempts of a listener that was cut off count, too.
    assert counts["attempts"] >= 3 * counts["dead"]
