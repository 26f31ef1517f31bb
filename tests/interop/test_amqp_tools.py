"""The command-line programs of Debian's `amqp-tools`, which are written in C with librabbitmq."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from qq.testing import LocalCluster

pytestmark = [
    pytest.mark.xdist_group("interop-celery"),
    pytest.mark.timeout(60),
    pytest.mark.skipif(
        shutil.which("amqp-publish") is None, reason="no amqp-tools here: apt-get install amqp-tools"
    ),
]

WAIT_S = 20.0
NO_MESSAGE = 2


def without_path(url: str) -> str:
    """librabbitmq takes the path `/` for the virtual host with the empty name."""
    return url.removesuffix("/")


def amqp(program: str, url: str, *arguments: str, given: str | None = None, status: int = 0) -> str:
    done = subprocess.run(
        [f"amqp-{program}", f"--url={without_path(url)}", *arguments],
        input=given,
        stdin=subprocess.DEVNULL if given is None else None,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def test_messages_are_published_and_got(cluster: LocalCluster) -> None:
    url, *more_urls = cluster.urls
    assert amqp("declare-queue", url, "--queue=tools", "--durable").strip() == "tools"
    amqp("publish", url, "--routing-key=tools", "--persistent", "--body=one")
    amqp("publish", more_urls[0], "--routing-key=tools", "--line-buffered", given="two\nthree\n")
    assert [amqp("get", more_urls[1], "--queue=tools").rstrip("\n") for _ in range(3)] == [
        "one",
        "two",
        "three",
    ]
    amqp("get", url, "--queue=tools", status=NO_MESSAGE)
    assert amqp("delete-queue", more_urls[0], "--queue=tools").strip() == "0"


def test_each_message_starts_a_program(cluster: LocalCluster) -> None:
    url, other, _ = cluster.urls
    amqp("declare-queue", url, "--queue=commands", "--durable")
    for number in range(3):
        amqp("publish", url, "--routing-key=commands", f"--body=message {number}")
    assert amqp("consume", other, "--queue=commands", "--count=3", "cat") == "message 0message 1message 2"
    assert amqp("delete-queue", url, "--queue=commands").strip() == "0"


def test_message_of_a_failed_program_is_requeued(cluster: LocalCluster) -> None:
    url = cluster.urls[0]
    amqp("declare-queue", url, "--queue=failing", "--durable")
    amqp("publish", url, "--routing-key=failing", "--body=again")
    amqp("consume", url, "--queue=failing", "--count=1", "false")
    assert amqp("get", url, "--queue=failing") == "again"
    amqp("delete-queue", url, "--queue=failing")


def test_a_queue_of_its_own_is_bound_to_an_exchange(cluster: LocalCluster) -> None:
    url, other, _ = cluster.urls
    command = ["amqp-consume", f"--url={without_path(url)}", "--exchange=amq.topic", "--routing-key=tools.#"]
    command += ["--count=1", "cat"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as consumer:
        try:
            while consumer.poll() is None:
                amqp("publish", other, "--exchange=amq.topic", "--routing-key=tools.x", "--body=hello")
        finally:
            consumer.kill()
        assert consumer.stdout is not None
        assert consumer.stdout.read() == "hello"
