"""A pytest plugin: the fixtures and the module that Dramatiq's source package leaves out."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

import dramatiq
import pika
import pytest
from dramatiq.brokers.rabbitmq import RabbitmqBroker

if TYPE_CHECKING:
    from collections.abc import Generator

CREDENTIALS = pika.PlainCredentials("guest", "guest")


def _common() -> ModuleType:
    module = ModuleType("tests.common")
    module.RABBITMQ_USERNAME = CREDENTIALS.username
    module.RABBITMQ_PASSWORD = CREDENTIALS.password
    module.RABBITMQ_CREDENTIALS = CREDENTIALS
    module.skip_unless_rabbit_mq = lambda test: test
    return module


sys.modules["tests.common"] = _common()


@pytest.fixture
def rabbitmq_broker() -> Generator[RabbitmqBroker]:
    broker = RabbitmqBroker(host="127.0.0.1", max_priority=10, credentials=CREDENTIALS)
    broker.emit_after("process_boot")
    dramatiq.set_broker(broker)
    yield broker
    broker.flush_all()
    broker.close()


@pytest.fixture
def rabbitmq_worker(rabbitmq_broker: RabbitmqBroker) -> Generator[dramatiq.Worker]:
    worker = dramatiq.Worker(rabbitmq_broker, worker_threads=32)
    worker.start()
    yield worker
    worker.stop()
