"""pytest fixtures for every project that has qq installed.

    def test_orders(qq_vhost):        # a new virtual host on a cluster that all tests share: milliseconds
        connection = pika.BlockingConnection(pika.URLParameters(qq_vhost.urls[0]))

    def test_failover(qq_cluster):    # a new cluster, which the test may damage: a second
        qq_cluster.leader().kill()

The fixture `qq_options` configures these clusters, for instance in a project's conftest.py:

    @pytest.fixture(scope="session")
    def qq_options():
        return {"nodes": 1, "settings": {"limits": {"consumer_timeout_ms": 5000}}}

When a test fails, its report shows the nodes' log lines since the test began.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from qq.testing import LocalCluster, LocalVirtualHost

_LOG_BYTES = pytest.StashKey[dict["Path", int]]()
"""The size in bytes of each node's log when the test began."""


@pytest.fixture(scope="session")
def qq_options() -> dict[str, Any]:
    """The arguments of `qq.testing.LocalCluster` for the clusters of the fixtures."""
    return {}


@pytest.fixture
def qq_cluster(qq_options: dict[str, Any]) -> Generator[LocalCluster]:
    """A fresh cluster, of three nodes unless `qq_options` says otherwise."""
    from qq.testing import LocalCluster  # noqa: PLC0415 -- every pytest run loads this plugin, few need the broker

    with LocalCluster(**qq_options) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def qq_shared_cluster(qq_options: dict[str, Any]) -> Generator[LocalCluster]:
    """A cluster that all tests of the session share (with pytest-xdist: all tests of a worker)."""
    from qq.testing import LocalCluster  # noqa: PLC0415 -- as above

    with LocalCluster(**qq_options) as cluster:
        yield cluster


@pytest.fixture
def qq_vhost(qq_shared_cluster: LocalCluster) -> Generator[LocalVirtualHost]:
    """A new virtual host of the shared cluster.

    After the test, killed and paused nodes are started again for the next test.
    """
    with qq_shared_cluster.vhost() as vhost:
        yield vhost


def _running_clusters() -> list[LocalCluster]:
    testing = sys.modules.get("qq.testing")
    return testing.running_clusters() if testing is not None else []


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[_LOG_BYTES] = {
        node.log: node.log.stat().st_size for cluster in _running_clusters() for node in cluster.nodes
    }


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        before = item.stash.get(_LOG_BYTES, {})
        for cluster in _running_clusters():
            for node in cluster.nodes:
                # The port tells the clusters of a test apart.
                title = f"log of {node.name} (AMQP port {node.amqp_port})"
                report.sections.append((title, node.log_since(before.get(node.log, 0))))
    return report
