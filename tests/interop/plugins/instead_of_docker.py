"""A pytest plugin for aio-pika and aiormq, whose tests start a broker with Docker: they get the broker under test."""

from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from yarl import URL

PORT = int(os.environ["QQ_INTEROP_PORT"])
TLS_PORT = int(os.environ["QQ_INTEROP_TLS_PORT"])
BROKER = SimpleNamespace(id="qq", host="127.0.0.1", ports={"5672/tcp": PORT, "5671/tcp": TLS_PORT})


class DockerClient:
    """Has the methods that the suites call."""

    def __init__(self, *_: Any) -> None: ...

    def run(self, *_: Any, **__: Any) -> SimpleNamespace:
        return BROKER

    def kill(self, _: str) -> None: ...

    def remove(self, _: str) -> None: ...


def _stand_in() -> ModuleType:
    module = ModuleType("tests.docker_client")
    module.DockerClient = DockerClient
    module.ContainerInfo = module.DockerHostInfo = SimpleNamespace
    module.DockerNotAvailableError = OSError
    module.check_docker_available = lambda: None
    return module


sys.modules["tests.docker_client"] = _stand_in()


# aiormq's own fixtures of these names are not in its source package; aio-pika's are, and win.


@pytest.fixture(scope="session")
def rabbitmq_container() -> SimpleNamespace:
    return BROKER


@pytest.fixture(scope="session")
def amqp_direct_url() -> URL:
    return URL.build(scheme="amqp", user="guest", password="guest", host=BROKER.host, port=PORT, path="//")
