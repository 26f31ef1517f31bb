"""Clusters for real clients, with TLS beside plain AMQP."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from qq.testing import LocalCluster
from tests.interop.certificates_of_clients import write_certificates

# The limit that the suites of aio-pika and aiormq set for RabbitMQ; the default is RabbitMQ's 16 MiB.
MESSAGE_BYTES = 134_217_728
TROUBLE = re.compile(r"Traceback|CRITICAL|never retrieved|unexpected:", re.IGNORECASE)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with certificates of the cluster and of clients."""
    directory = tmp_path_factory.mktemp("certificates")
    write_certificates(directory)
    return directory


@pytest.fixture(scope="module")
def shared_cluster(
    certificates: Path, until_left: Callable[[str, AbstractContextManager[Any]], Any]
) -> LocalCluster:
    return until_left("cluster", _with_tls(certificates))


@contextmanager
def _with_tls(certificates: Path) -> Generator[LocalCluster]:
    settings = {
        "tls": {
            "cert": str(certificates / "server_certificate.pem"),
            "key": str(certificates / "server_key.pem"),
        },
        "limits": {"message_bytes": MESSAGE_BYTES},
        # The tests of go-amqp have such addresses.
        "listen": {"amqp_address_v1": True},
    }
    with LocalCluster(settings=settings) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: LocalCluster) -> Generator[LocalCluster]:
    """The cluster; the test fails if it brings a node down or a traceback into a log."""
    before = [node.log.stat().st_size for node in shared_cluster.nodes]
    yield shared_cluster
    for node, size in zip(shared_cluster.nodes, before, strict=True):
        assert node.running
        with node.log.open("rb") as log:
            log.seek(size)
            written = log.read().decode()
        assert not TROUBLE.search(written), written
