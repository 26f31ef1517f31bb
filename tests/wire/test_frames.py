"""A node sends the frames that RabbitMQ sends, but for the differences that are allowed, each with a reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.wire.recordings import RECORDINGS, Ports
from tests.wire.table import frames, read, reasons

if TYPE_CHECKING:
    from qq.testing import ClusterNode

RECORDED = {protocol: read(recording.rabbitmq) for protocol, recording in RECORDINGS.items()}
ALLOWED = {protocol: read(recording.differences) for protocol, recording in RECORDINGS.items()}


@pytest.mark.parametrize(
    ("protocol", "name"),
    [(protocol, name) for protocol, recording in RECORDINGS.items() for name in recording.names],
)
def test_node_sends_the_frames_of_rabbitmq(node: ClusterNode, protocol: str, name: str) -> None:
    recording = RECORDINGS[protocol]
    expected = frames(ALLOWED[protocol].get(name, RECORDED[protocol][name]))
    sent = recording.transcript(Ports(node.amqp_port, node.http_port), name, expected)
    assert recording.compared(sent) == recording.compared(expected)


@pytest.mark.parametrize("protocol", RECORDINGS)
def test_recordings_have_exactly_the_names(protocol: str) -> None:
    names = RECORDINGS[protocol].names
    assert list(RECORDED[protocol]) == list(names)
    assert list(ALLOWED[protocol]) == [name for name in names if name in ALLOWED[protocol]]


@pytest.mark.parametrize(
    ("protocol", "name"), [(protocol, name) for protocol, names in ALLOWED.items() for name in names]
)
def test_allowed_difference_has_a_reason_and_differs(protocol: str, name: str) -> None:
    compared, allowed = RECORDINGS[protocol].compared, ALLOWED[protocol][name]
    assert reasons(allowed)
    assert compared(frames(allowed)) != compared(RECORDED[protocol][name])
