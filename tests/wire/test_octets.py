"""A node sends the octets that RabbitMQ sends, but for the differences that are allowed, each with a reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.wire.exchanges import EXCHANGES
from tests.wire.table import DIFFERENCES, RABBITMQ, frames, read, reasons
from tests.wire.wire import transcript

if TYPE_CHECKING:
    from qq.testing import ClusterNode

RECORDED = read(RABBITMQ)
ALLOWED = read(DIFFERENCES)


@pytest.mark.parametrize("name", EXCHANGES)
def test_node_sends_the_octets_of_rabbitmq(node: ClusterNode, name: str) -> None:
    expected = frames(ALLOWED.get(name, RECORDED[name]))
    assert transcript(node.amqp_port, EXCHANGES[name], expected) == expected


def test_recordings_exist_for_exactly_the_exchanges() -> None:
    assert list(RECORDED) == list(EXCHANGES)
    assert list(ALLOWED) == [name for name in EXCHANGES if name in ALLOWED]


@pytest.mark.parametrize("name", ALLOWED)
def test_allowed_difference_has_a_reason_and_differs(name: str) -> None:
    assert reasons(ALLOWED[name])
    assert frames(ALLOWED[name]) != RECORDED[name]
