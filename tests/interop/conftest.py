"""Clusters for real clients, with TLS beside plain AMQP."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qq import testing
from qq.testing import LocalCluster
from tests.interop.certificates_of_clients import AMQPS_PORT_OFFSET, write_certificates

# The limit that the suites of aio-pika and aiormq set for RabbitMQ; the default is RabbitMQ's 16 MiB.
MESSAGE_BYTES = "134217728"
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
    local_nodes = testing.local_nodes

    def with_tls(*arguments: Any) -> Any:
        return tuple(
            replace(
                node, address=replace(node.address, amqps_port=node.address.amqp_port + AMQPS_PORT_OFFSET)
            )
            for node in local_nodes(*arguments)
        )

    with ExitStack() as stack:
        # The environment is that of other tests' nodes, too: it is changed for the start of these only.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(testing, "local_nodes", with_tls)
            patch.setitem(os.environ, "QQ_TLS_CERT", str(certificates / "server_certificate.pem"))
            patch.setitem(os.environ, "QQ_TLS_KEY", str(certificates / "server_key.pem"))
            patch.setitem(os.environ, "QQ_LIMITS_MESSAGE_BYTES", MESSAGE_BYTES)
            cluster = stack.enter_context(LocalCluster())
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
