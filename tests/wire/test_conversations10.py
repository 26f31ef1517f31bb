"""A node answers clients of AMQP 1.0 as RabbitMQ does, but for the differences that are allowed, each with a reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.wire.conversations10 import CONVERSATIONS, declare, transcript
from tests.wire.table import DIFFERENCES_10, RABBITMQ_10, answers, frames, read, reasons

if TYPE_CHECKING:
    from qq.testing import ClusterNode

RECORDED = read(RABBITMQ_10)
ALLOWED = read(DIFFERENCES_10)


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_node_sends_the_frames_of_rabbitmq(node: ClusterNode, name: str) -> None:
    expected = frames(ALLOWED.get(name, RECORDED[name]))
    declare(node.http_port, name)
    assert answers(transcript(node.amqp_port, name, expected)) == answers(expected)


def test_recordings_exist_for_exactly_the_conversations() -> None:
    assert list(RECORDED) == list(CONVERSATIONS)
    assert list(ALLOWED) == [name for name in CONVERSATIONS if name in ALLOWED]


@pytest.mark.parametrize("name", ALLOWED)
def test_allowed_difference_has_a_reason_and_differs(name: str) -> None:
    assert reasons(ALLOWED[name])
    assert answers(frames(ALLOWED[name])) != answers(RECORDED[name])
