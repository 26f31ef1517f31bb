"""Three nodes for all these tests, and leaders that change in the middle of them."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from qq.testing import LocalCluster
from tests.queues.leader_changes import CHANGES
from tests.queues.nodes_here import ClusterHere
from tests.queues.world import World, world_here

HERE = Path(__file__).parent
_numbers = itertools.count(1)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Distribute the tests over workers so that a single worker needs each cluster."""
    ours = [item for item in items if item.path.parent == HERE]
    modules = sorted({item.path for item in ours})
    for item in ours:
        group = f"queues-{modules.index(item.path) % 2}"
        parameters = getattr(item, "callspec", None)
        if parameters is not None and parameters.params.get("world") == "kill":
            group = "queues-processes"
        item.add_marker(pytest.mark.xdist_group(group))


class Trouble(logging.Handler):
    """Collects errors from the logs of nodes."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(self.format(record))


@pytest.fixture(scope="module")
def cluster_here(tmp_path_factory: pytest.TempPathFactory) -> Generator[ClusterHere]:
    with ClusterHere(tmp_path_factory.mktemp("here")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def checked_cluster(cluster_here: ClusterHere) -> Generator[ClusterHere]:
    """The same; all its nodes have the same state after the tests of a module."""
    yield cluster_here
    assert len(cluster_here.digests()) == 1


@pytest.fixture(scope="module")
def processes(until_left: Callable[[str, AbstractContextManager[Any]], Any]) -> LocalCluster:
    return until_left("cluster", LocalCluster(3))


@pytest.fixture
def trouble() -> Generator[Trouble]:
    handler = Trouble()
    loggers = [logging.getLogger(name) for name in ("asyncio", "cluster", "qq")]
    for logger in loggers:
        logger.addHandler(handler)
    yield handler
    for logger in loggers:
        logger.removeHandler(handler)
    assert handler.records == []


@pytest.fixture(params=CHANGES)
def world(request: pytest.FixtureRequest) -> Generator[World]:
    """The cluster, for two runs of a test: with a change of the leader, and without.

    `ALSO_KILLED` adds a run in which the leader is killed.
    """
    if request.param == "kill":
        yield from _world_of_processes(request.getfixturevalue("processes"))
    else:
        request.getfixturevalue("trouble")
        yield from world_here(request.getfixturevalue("checked_cluster"), request.param)


def _world_of_processes(cluster: LocalCluster) -> Generator[World]:
    leader, followers = cluster.leader(), cluster.followers()

    def kill() -> None:
        leader.kill()
        cluster.leader()

    world = World([leader, *followers], kill, leader_dies=True)
    yield world
    if not leader.running:
        leader.start()
    world.close()
    cluster.wait_caught_up()


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """A queue name that no other test uses."""
    return f"{request.node.name.split('[')[0][5:65]}-{next(_numbers)}"
