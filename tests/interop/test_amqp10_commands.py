"""Commands of omq over AMQP 1.0: two high priorities for each normal one, in the order of each publisher."""

from __future__ import annotations

import subprocess
from collections import Counter
from os import environ
from typing import TYPE_CHECKING

import pika
import pytest

from tests.interop.needed import needs
from tests.interop.sources import GO_ENVIRONMENT, HERE

if TYPE_CHECKING:
    from pathlib import Path

    from qq.testing import ClusterNode, LocalCluster

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop-suites"), pytest.mark.timeout(1500)]

PUBLISHERS, EACH = 10, 10_000
TOTAL = 2 * PUBLISHERS * EACH
COMMAND_S = 600.0
PUBLISH = "amqp --publishers 10 --consumers 0 --publish-to /queues/qq --message-priority {} --pmessages 10000"
CONSUME = "amqp --publishers 0 --consumers 1 --consume-from /queues/qq --consumer-credits 100"


@pytest.fixture
def omq(tmp_path: Path) -> Path:
    needs("go")
    program = tmp_path / "omq"
    directory = HERE / "go" / "omq"
    subprocess.run(
        ["go", "build", "-o", program, "."], cwd=directory, env=environ | GO_ENVIRONMENT, check=True
    )
    return program


def run(omq: Path, node: ClusterNode, arguments: str) -> tuple[str, str]:
    """Run a command against a node; return what it prints about messages, and about its publishers."""
    command = [omq, *arguments.split(), "--uri", f"amqp://localhost:{node.amqp_port}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr.strip()


def test_omq_gets_two_high_priorities_for_each_normal(cluster: LocalCluster, omq: Path) -> None:
    node = cluster.followers()[0]
    with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
        connection.channel().queue_declare("qq", durable=True, arguments={"x-queue-type": "quorum"})
    for priority in (1, 10):
        assert run(omq, node, PUBLISH.format(priority))[1] == f"accepted {PUBLISHERS * EACH}"
    printed, _ = run(omq, node, f"{CONSUME} --cmessages {TOTAL}")
    messages = [tuple(map(int, line.split())) for line in printed.splitlines()]
    priorities = [priority for priority, _, _ in messages]
    assert Counter(priorities) == {1: TOTAL // 2, 10: TOTAL // 2}
    # A high priority first, and then two for each normal one while both are there.
    while_both = priorities[: TOTAL // 4 * 3]
    assert {tuple(while_both[at : at + 3]) for at in range(0, len(while_both), 3)} == {(10, 10, 1)}
    for publisher in range(PUBLISHERS):
        for priority in (1, 10):
            numbers = [message[2] for message in messages if message[:2] == (priority, publisher)]
            assert numbers == list(range(EACH))
    assert next(each["messages"] for each in node.queues() if each["name"] == "qq") == 0
