"""access.request of AMQP 0-8: some old clients still begin with it."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from pamqp import commands

from tests.harness.lone_broker import LoneBroker
from tests.harness.raw_client import RawClient, frame_bytes, publish

REQUEST = frame_bytes(1, 1, b"\0\x1e\0\x0a" + b"\x05/data" + b"\x1f")
"""For the realm /data: exclusive, passive, active, write, read."""
TICKET = frame_bytes(1, 1, b"\0\x1e\0\x0b" + b"\0\x01")


@pytest.fixture
def client() -> Generator[RawClient]:
    with LoneBroker() as broker, RawClient(broker.amqp_port) as client:
        yield client


def read(client: RawClient, count: int) -> bytes:
    """Octets as they are: pamqp does not know this class."""
    while len(client._buffer) < count:
        client.read()
    octets, client._buffer = client._buffer[:count], client._buffer[count:]
    return octets


def test_access_request_is_answered_with_a_ticket(client: RawClient) -> None:
    client.open_channel(1)
    for _ in range(2):
        client.write(REQUEST)
        assert read(client, len(TICKET)) == TICKET
    client.write(frame_bytes(1, 1, b"\0\x32\0\x0a" + b"\0\x01" + b"\x01q" + bytes(5)))  # with the ticket
    client.expect(commands.Queue.DeclareOk)


def test_returned_message_precedes_the_ticket(client: RawClient) -> None:
    client.open_channel(1)
    client.write(publish(1, "nowhere", b"m", mandatory=True) + REQUEST)
    assert client.expect_message()[2] == b"m"
    assert read(client, len(TICKET)) == TICKET


def test_access_request_without_a_channel_is_refused(client: RawClient) -> None:
    client.write(REQUEST)
    client.expect_close(504, "CHANNEL_ERROR - expected 'channel.open'")
