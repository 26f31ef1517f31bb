"""The programs on the pages of clients in other languages, while a node of their cluster is killed."""

from __future__ import annotations

import shutil
import subprocess
import time
from os import environ
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from qq.testing import LocalCluster
from tests.harness.node_in_use import node_in_use
from tests.interop.sources import GO_ENVIRONMENT, SourceMissingError, java_client, node_clients

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop-suites"), pytest.mark.timeout(600)]

PROGRAMS = Path(__file__).parents[2] / "examples" / "clients"
BUILD_S = 300.0
END_S = 120.0


def needs(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program}: install it, and run `make interop` again")


def survives(command: Sequence[str], directory: Path, queue: str, **environment: str) -> None:
    """Run the program, kill the node with most of its connections, and expect that nothing is lost."""
    with LocalCluster(nodes=3) as cluster:
        urls = cluster.urls
        if "Survive.java" in command:
            urls = [f"127.0.0.1:{node.amqp_port}" for node in cluster.nodes]
        process = subprocess.Popen(
            [*command, *urls],
            cwd=directory,
            env=environ | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            victim = node_in_use(cluster, process, BUILD_S)
            time.sleep(0.5)
            victim.kill()
            printed, _ = process.communicate(timeout=END_S)
        finally:
            process.kill()
        assert process.returncode == 0, printed
        assert "2000 messages are consumed" in printed
        left = {each["name"]: each["messages"] for each in cluster.leader().queues()}
        assert left[queue] <= 1  # the last message, if its confirm was lost


def test_go_program_survives_the_death_of_its_node() -> None:
    needs("go")
    survives(["go", "run", "."], PROGRAMS / "go", "survive-go", **GO_ENVIRONMENT)


def test_node_program_survives_the_death_of_its_node() -> None:
    needs("node", "npm")
    packages = fetched(node_clients)
    survives(["node", "survive.js"], PROGRAMS, "survive-node", NODE_PATH=str(packages))


def test_java_program_survives_the_death_of_its_node() -> None:
    needs("java", "javac", "mvn")
    jars = fetched(java_client)
    survives(["java", "-cp", f"{jars}/*", "Survive.java"], PROGRAMS, "survive-java")


def fetched(source: Callable[[], Path]) -> Path:
    try:
        return source()
    except SourceMissingError as error:
        pytest.skip(str(error))
