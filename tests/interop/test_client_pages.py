"""The programs on the pages of clients: a node of their cluster is killed, or their queue deleted."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from os import environ
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pika
import pytest

from qq.testing import LocalCluster
from tests.harness.node_in_use import node_in_use
from tests.interop.balancer import balancer
from tests.interop.needed import fetched, installed, needs
from tests.interop.queues import declare_queue
from tests.interop.sources import (
    CARGO_ENVIRONMENT,
    GO_ENVIRONMENT,
    java_client,
    java_clients,
    node_clients,
    python_clients,
)
from tests.page.demo import api

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from qq.testing import ClusterNode

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop-suites"), pytest.mark.timeout(600)]

PROGRAMS = Path(__file__).parents[2] / "examples" / "clients"
MESSAGES = 2000
BUILD_S = 300.0
CONSUMER_S = 30.0
END_S = 120.0
UNDECLARED = ("survive-cpp", "survive-jms", "survive-proton", "survive-rhea", "survive-rust10")
"""Queues that their programs do not declare."""


class Program(NamedTuple):
    """How the program of a page is run; the addresses of the nodes follow its command."""

    command: Sequence[str]
    queue: str
    environment: dict[str, str]
    directory: Path = PROGRAMS


def go() -> Program:
    needs("go")
    return Program(["go", "run", "."], "survive-go", GO_ENVIRONMENT, PROGRAMS / "go")


def rust() -> Program:
    needs("cargo")
    command = ["cargo", "run", "--quiet", "--locked", "--"]
    return Program(command, "survive-rust", CARGO_ENVIRONMENT, PROGRAMS / "rust")


def node() -> Program:
    needs("node", "npm")
    return Program(["node", "survive.js"], "survive-node", {"NODE_PATH": str(fetched(node_clients))})


def java() -> Program:
    needs("java", "javac", "mvn")
    return Program(["java", "-cp", f"{fetched(java_client)}/*", "Survive.java"], "survive-java", {})


def java10(program: str, queue: str) -> Program:
    needs("java", "mvn")
    return Program(["java", "-cp", f"{fetched(java_clients)}/*", program], queue, {})


def go10() -> Program:
    needs("go")
    return Program(["go", "run", "."], "survive-go10", GO_ENVIRONMENT, PROGRAMS / "go10")


def rhea() -> Program:
    needs("node", "npm")
    return Program(["node", "survive_rhea.js"], "survive-rhea", {"NODE_PATH": str(fetched(node_clients))})


def rust10() -> Program:
    return Program(rust().command, "survive-rust10", CARGO_ENVIRONMENT, PROGRAMS / "rust10")


def cpp(directory: Path) -> Program:
    """With a compiled program."""
    installed("g++", "libqpid-proton-cpp12-dev", "libsasl2-modules")
    program = directory / "survive"
    command = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-o", program, "survive.cpp"]
    subprocess.run([*command, "-lqpid-proton-cpp"], cwd=PROGRAMS / "cpp", check=True)
    return Program([str(program)], "survive-cpp", {})


def ruby() -> Program:
    installed("ruby-bunny")
    return Program(["ruby", "survive.rb"], "survive-ruby", {})


def php(directory: Path) -> Program:
    """With an autoloader where Composer would make it."""
    installed("php-amqplib", "php-cli")
    (directory / "vendor").mkdir()
    (directory / "vendor" / "autoload.php").write_text("<?php\nrequire_once 'PhpAmqpLib/autoload.php';\n")
    return Program(
        ["php", "-d", f"include_path={directory}:/usr/share/php", "survive.php"], "survive-php", {}
    )


def python(name: str) -> Program:
    packages = str(fetched(python_clients))
    return Program([sys.executable, f"survive_{name}.py"], f"survive-{name}", {"PYTHONPATH": packages})


def urls(cluster: LocalCluster) -> list[str]:
    return cluster.urls


def short_urls(cluster: LocalCluster) -> list[str]:
    """Return addresses whose path `/` means the default virtual host."""
    return [url.removesuffix("%2F") for url in cluster.urls]


def addresses(cluster: LocalCluster) -> list[str]:
    return [f"127.0.0.1:{each.amqp_port}" for each in cluster.nodes]


@pytest.fixture
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Program:
    return request.param(tmp_path) if request.param in (php, cpp) else request.param()


@contextmanager
def started(program: Program, nodes: Sequence[str]) -> Generator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*program.command, *nodes],
        cwd=program.directory,
        env=environ | program.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()


def survives(program: Program, cluster: LocalCluster, nodes: Sequence[str]) -> None:
    """Run the program, kill the node with most of its connections, and expect that nothing is lost."""
    with started(program, nodes) as process:
        victim = node_in_use(cluster, process, BUILD_S)
        time.sleep(0.5)
        victim.kill()
        printed, _ = process.communicate(timeout=END_S)
    assert process.returncode == 0, printed
    assert f"{MESSAGES} messages are consumed" in printed
    left = {each["name"]: each["messages"] for each in cluster.leader().queues()}
    assert left[program.queue] <= 1  # the last message, if its confirm was lost


BY_URL = [(go, urls), (node, urls), (partial(python, "dramatiq"), urls)]
BY_ADDRESS = [(java, addresses), (rust, addresses), (ruby, addresses), (php, addresses)]
NAMES = ["go", "node", "dramatiq", "java", "rust", "ruby", "php"]


AMQP10 = [
    (go10, short_urls),
    (partial(java10, "SurviveAmqp10.java", "survive-amqp10"), addresses),
    (partial(java10, "SurviveJms.java", "survive-jms"), addresses),
    (partial(python, "proton"), addresses),
    (rhea, addresses),
    (rust10, addresses),
    (cpp, addresses),
]


@pytest.mark.parametrize(
    ("program", "nodes"),
    [*BY_URL, *BY_ADDRESS, *AMQP10],
    ids=[*NAMES, "go10", "java10", "jms", "proton", "rhea", "rust10", "cpp"],
    indirect=["program"],
)
def test_program_survives_the_death_of_its_node(
    program: Program, nodes: Callable[[LocalCluster], list[str]]
) -> None:
    with LocalCluster() as cluster:
        if program.queue in UNDECLARED:
            declare_queue(cluster.nodes[0], program.queue)
            wait_for_no_client(cluster)
        survives(program, cluster, nodes(cluster))


def test_faststream_survives_node_death_behind_a_balancer() -> None:
    program = python("faststream")
    with LocalCluster() as cluster, balancer([each.amqp_port for each in cluster.nodes]) as port:
        survives(program, cluster, [f"amqp://guest:guest@127.0.0.1:{port}/"])


@pytest.mark.parametrize(
    ("program", "nodes"),
    # A message for Dramatiq has an envelope, and its worker declares its queue when it sends to it.
    [(partial(python, "faststream"), urls), *BY_URL[:2], *BY_ADDRESS],
    ids=["faststream", *NAMES[:2], *NAMES[3:]],
    indirect=["program"],
)
def test_program_consumes_again_when_its_queue_is_deleted(
    program: Program, nodes: Callable[[LocalCluster], list[str]]
) -> None:
    with LocalCluster(nodes=1) as cluster, started(program, nodes(cluster)) as process:
        [only] = cluster.nodes
        node_in_use(cluster, process, BUILD_S)
        wait_for_consumer(only, program.queue)
        with pika.BlockingConnection(pika.URLParameters(only.url)) as connection:
            channel = connection.channel()
            channel.queue_delete(program.queue)
            wait_for_consumer(only, program.queue)
            # The messages of the deleted queue, and more: the program ends when it has seen each number.
            for number in range(1, MESSAGES + 1):
                channel.basic_publish("", program.queue, str(number).encode())
        printed, _ = process.communicate(timeout=END_S)
    assert process.returncode == 0, printed
    assert f"{MESSAGES} messages are consumed" in printed


def wait_for_no_client(cluster: LocalCluster) -> None:
    """Wait until operators see no connection: a connection that has ended is shown for a moment."""
    deadline = time.monotonic() + CONSUMER_S
    while api(cluster.nodes[0], "connections"):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def wait_for_consumer(node: ClusterNode, queue: str) -> None:
    deadline = time.monotonic() + CONSUMER_S
    while not any(each["name"] == queue and each["consumers"] for each in node.queues()):
        assert time.monotonic() < deadline, f"nothing consumes {queue}"
        time.sleep(0.02)
