"""RabbitMQ's tutorials 1 to 6 over AMQP 1.0 in Python, Go and Java: sender and receiver on different nodes."""

from __future__ import annotations

import subprocess
import sys
from os import environ
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.interop.needed import fetched, needs
from tests.interop.sources import GO_ENVIRONMENT, java_clients, python_clients

if TYPE_CHECKING:
    from qq.testing import LocalCluster

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop-suites"), pytest.mark.timeout(400)]

PROGRAMS = Path(__file__).parents[2] / "examples" / "amqp10"
PROGRAM_S = 300.0
PRINTED = """\
1 hello world: Hello World!
2 work queues: 10 tasks done by 2 workers
3 publish/subscribe: info: Hello World! | info: Hello World!
4 routing: error, warning
5 topics: kern.info, cron.critical
6 remote procedure call: fib(10) = 55
"""


def run(command: list[str], urls: list[str], directory: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [*command, *urls],
        cwd=directory,
        env=environ | environment,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_tutorials_work_in_python(cluster: LocalCluster) -> None:
    environment = {"PYTHONPATH": str(fetched(python_clients))}
    urls = [url.removesuffix("%2F") for url in cluster.urls]
    assert run([sys.executable, "tutorials.py"], urls, PROGRAMS, environment) == PRINTED


def test_tutorials_work_in_go(cluster: LocalCluster) -> None:
    needs("go")
    urls = [url.removesuffix("%2F") for url in cluster.urls]
    assert run(["go", "run", "."], urls, PROGRAMS / "go", GO_ENVIRONMENT) == PRINTED


def test_tutorials_work_in_java(cluster: LocalCluster) -> None:
    needs("java", "mvn")
    command = ["java", "-cp", f"{fetched(java_clients)}/*", "Tutorials.java"]
    urls = [f"amqp://guest:guest@127.0.0.1:{node.amqp_port}/%2f" for node in cluster.nodes]
    assert run(command, urls, PROGRAMS, {}) == PRINTED
