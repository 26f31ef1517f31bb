"""Messages of every size, and their way through channels and connections that cut them differently."""

from __future__ import annotations

import pytest
from pamqp import commands

from qq.testing import ClusterNode
from tests.harness.raw_client import RawClient, publish

Basic, Queue = commands.Basic, commands.Queue
FRAME_MAX = 131_072
MESSAGE_MAX = 16 * 1024 * 1024


def pattern(size: int) -> bytes:
    return (bytes(range(251)) * (size // 251 + 1))[:size]


@pytest.mark.parametrize(
    "size", [0, 1, *range(FRAME_MAX - 9, FRAME_MAX + 10), 2 * FRAME_MAX - 16, 1024 * 1024, MESSAGE_MAX]
)
def test_message_of_any_size_is_delivered_unchanged(raw: RawClient, queue: str, size: int) -> None:
    body = pattern(size)
    raw.call(1, Queue.Declare(queue=queue), Queue.DeclareOk)
    raw.write(publish(1, queue, body))
    raw.send(1, Basic.Get(queue=queue, no_ack=True))
    assert raw.expect_message()[2] == body
    raw.call(1, Queue.Delete(queue=queue), Queue.DeleteOk)


def test_a_larger_message_closes_the_channel(raw: RawClient, queue: str) -> None:
    raw.write(publish(1, queue, bytes(MESSAGE_MAX + 1)))
    text = f"message size {MESSAGE_MAX + 1} is larger than configured max size {MESSAGE_MAX}"
    raw.expect_close(406, f"PRECONDITION_FAILED - {text}", channel=1)
    raw.send(1, commands.Channel.CloseOk())
    raw.open_channel(1)


@pytest.mark.parametrize("size", [0, 1, 4088, 4089, 8184, 8185, 100_000, 1024 * 1024])
@pytest.mark.parametrize(
    ("publisher_max", "consumer_max"), [(131_072, 4096), (4096, 131_072), (8192, 10_000)]
)
def test_message_is_reframed_for_the_consumers_channel(
    node: ClusterNode, queue: str, size: int, publisher_max: int, consumer_max: int
) -> None:
    body = pattern(size)
    with (
        RawClient(node.amqp_port, frame_max=publisher_max) as out,
        RawClient(node.amqp_port, frame_max=consumer_max) as to,
    ):
        out.open_channel(3)
        to.open_channel(7)
        out.call(3, Queue.Declare(queue=queue), Queue.DeclareOk)
        to.call(7, Basic.Consume(queue=queue), Basic.ConsumeOk)
        out.write(publish(3, queue, body, frame_max=publisher_max) * 2)
        for _ in range(2):
            assert to.expect_message()[2] == body
        out.call(3, Queue.Delete(queue=queue), Queue.DeleteOk)


def test_properties_are_passed_on_byte_by_byte(raw: RawClient, queue: str) -> None:
    """Also those that no decoder would give back as they were: each type of field, odd numbers, broken UTF-8."""
    fields = [
        b"t\x01", b"b\xff", b"B\xff", b"s\x80\x00", b"u\xff\xff", b"I\x80\0\0\0", b"i\xff\xff\xff\xff",
        b"l" + b"\xff" * 8, b"L" + b"\x7f" * 8, b"f\x7f\xc0\0\1", b"d\x7f\xf8\0\0\0\0\0\1", b"D\x05\x80\0\0\0",
        b"S\0\0\0\2\xff\xfe", b"T" + b"\xff" * 8, b"V", b"x\0\0\0\3\0\1\2",
        b"A\0\0\0\2t\1", b"F\0\0\0\4\1at\1",
    ]  # fmt: skip
    table = b"".join(bytes([2]) + b"%02d" % number + field for number, field in enumerate(fields))
    properties = (
        b"\xff\xfc\1a\1b" + len(table).to_bytes(4, "big") + table + b"\2\xff\2\xff\xfe\1d\x0560000\1f"
        + b"\xff" * 8 + b"\1h\5guest\1j\1k"
    )  # fmt: skip
    raw.call(1, Queue.Declare(queue=queue), Queue.DeclareOk)
    raw.write(publish(1, queue, b"m", properties=properties))
    raw.send(1, Basic.Get(queue=queue, no_ack=True))
    seen = b""
    while not seen.endswith(b"m\xce"):
        seen += raw.socket.recv(65536)
    assert properties in seen
