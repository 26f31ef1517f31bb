"""The programs of docs/how-to/spark.md and docs/tutorial/spark.md, run as a reader runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.pipeline import java
from qq.testing import LocalCluster
from qq_spark import Access, LeaseClient
from tests.docs.documents import ROOT, blocks

DECLARED = """
with pika.BlockingConnection(pika.URLParameters("amqp://guest:guest@127.0.0.1:5672/")) as connection:
    channel = connection.channel()
    channel.exchange_declare("prices")
    for queue in ("high", "copies"):
        channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
    channel.queue_bind("high", "prices", "high")
"""
COUNTED = """
with pika.BlockingConnection(pika.URLParameters("amqp://guest:guest@127.0.0.1:5672/")) as connection:
    for queue in ("high", "copies"):
        declared = connection.channel().queue_declare(queue, passive=True)
        print(queue, "has", declared.method.message_count)
"""
GUIDE = ROOT / "docs" / "how-to" / "spark.md"
TUTORIAL = ROOT / "docs" / "tutorial" / "spark.md"


def run(cluster: LocalCluster, directory: Path, *programs: str) -> str:
    """Run programs of the guide as one, and return its output."""
    nodes = cluster.nodes
    code = "\n".join(programs).replace("127.0.0.1:5672", f"127.0.0.1:{nodes[0].amqp_port}")
    code = re.sub(
        r"127\.0\.0\.1:1567(\d)", lambda found: f"127.0.0.1:{nodes[int(found[1]) - 2].http_port}", code
    )
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # as in an activated environment
        "JAVA_HOME": str(java.find()),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.timeout(900)
def test_programs_of_the_guide_run(tmp_path: Path) -> None:
    snapshot, stream, write, copy, client = [code for language, code in blocks(GUIDE) if language == "python"]
    publishing = snapshot[: snapshot.index("spark = ")]
    session = snapshot[: snapshot.index("orders = ")]
    snapshot = snapshot.replace('.option("queue"', '.option("group", "look").option("queue"')
    stream, copy = (
        each.replace(".start()", ".trigger(availableNow=True).start()") for each in (stream, copy)
    )
    stream += "\nprint(spark.read.parquet('orders').count(), 'rows')"
    with LocalCluster(3) as cluster:
        assert run(cluster, tmp_path, publishing, client) == "1000\n"
        assert "|    0|   11|" in run(cluster, tmp_path, snapshot)
        assert "high has 1000" in run(cluster, tmp_path, snapshot, DECLARED, write, COUNTED)
        with LeaseClient(Access((f"http://127.0.0.1:{cluster.nodes[1].http_port}",))) as reader:
            reader.end_group("orders", "look", 0, release=True)
        assert run(cluster, tmp_path, session, stream) == "3000 rows\n"
        assert "copies has 1000" in run(cluster, tmp_path, session, copy, COUNTED)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_cells_of_the_tutorial_print_what_it_says(tmp_path: Path) -> None:
    cells = [code for language, code in blocks(TUTORIAL) if language == "python"]
    with LocalCluster(3) as cluster:
        printed = run(cluster, tmp_path, *cells, "print(replay.run(spark, publisher), 'messages published')")
    lines = [line for line in printed.splitlines() if line and line[0] not in "+|"]
    assert lines == [
        "60 orders above 90",
        "1000 messages of orders",
        "1000 messages published",
        "0 messages published",
    ]
    assert "| 1000|" in printed
