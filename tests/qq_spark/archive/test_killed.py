"""Orders go from a queue into an archive and back to a queue, while the commands are killed at random."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pika
import pytest

from chaos.pipeline import java
from chaos.pipeline.spark import QUICK
from qq.testing import LocalCluster
from tests.docs.documents import ROOT
from tests.qq_spark.archive.local_archive import bodies, publish

if TYPE_CHECKING:
    from pathlib import Path

ORDERS = 40_000
SPARK = ("--master", "local[2]", *(part for name in QUICK.items() for part in ("--conf", "=".join(name))))


def run_for(seconds: float, log: Path, *arguments: str) -> bool:
    """Run a command and return whether it has succeeded. After some seconds, kill it with its Java and its tasks."""
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "qq", "archive", *arguments, *SPARK],
            env=os.environ | {"PYTHONPATH": str(ROOT), "JAVA_HOME": str(java.find())},
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
        try:
            assert process.wait(seconds) == 0, log.read_text()
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return False
        return True


def drained(cluster: LocalCluster, queue: str, count: int) -> list[str]:
    with pika.BlockingConnection(pika.URLParameters(cluster.nodes[-1].url)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=1000)
        found: list[str] = []
        for method, _, body in channel.consume(queue, inactivity_timeout=2):
            if method is None:
                break
            found.append(body.decode())
            if len(found) % 500 == 0 or len(found) >= count:
                channel.basic_ack(method.delivery_tag, multiple=True)
        return found


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(2))
def test_orders_are_equal_when_archive_and_replay_are_killed(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    archive, log = f"{tmp_path}/archive", tmp_path / "log"
    with LocalCluster(3) as cluster:
        urls = [part for node in cluster.nodes for part in ("--url", f"127.0.0.1:{node.http_port}")]
        targets = [part for node in cluster.nodes for part in ("--amqp-url", node.url)]
        sent: list[str] = []
        publish(cluster, "copy", [])
        is_done = False
        for attempt in range(8):
            if attempt < 4:
                more = [f'{{"order": "{attempt}.{number}"}}' for number in range(ORDERS // 4)]
                publish(cluster, "orders", more)
                sent += more
            if attempt == 2:
                cluster.nodes[0].kill()
            is_done = run_for(
                600 if attempt == 7 else 4 + chance.random() * 6,
                log,
                "messages",
                archive,
                "--queue",
                "orders",
                *urls,
            )
            cluster.restore()
        assert is_done
        assert bodies(tmp_path / "archive") == sent
        replay = ("replay", archive, "--id", "back", "--exchange", "", "--to-key", "copy", *targets, *urls)
        for _ in range(6):
            run_for(5 + chance.random() * 5, log, *replay)
        assert run_for(600, log, *replay)
        assert drained(cluster, "copy", len(sent)) == sent
