"""basic.get, single and pipelined, at both versions of the state."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from pamqp import commands

from qq.machine.protocol.commands import SINCE, GetMessages
from qq.machine.protocol.versions import VERSIONS
from qq.machine.protocol.work_meter import GOT_AT_ONCE
from tests.harness.lone_broker import LoneBroker
from tests.harness.raw_client import RawClient, marshal, publish

Basic, Queue, Channel = commands.Basic, commands.Queue, commands.Channel
COUNT = 2 * GOT_AT_ONCE + 5


@pytest.fixture(params=VERSIONS)
def broker(request: pytest.FixtureRequest) -> Generator[LoneBroker]:
    with LoneBroker(version=request.param) as broker:
        yield broker


@pytest.fixture
def client(broker: LoneBroker) -> Generator[RawClient]:
    with RawClient(broker.amqp_port) as client:
        client.open_channel(1)
        client.call(1, Queue.Declare(queue="q"), Queue.DeclareOk)
        yield client


def fill(client: RawClient, *bodies: bytes) -> None:
    client.write(b"".join(publish(1, "q", body) for body in bodies))
    assert ready(client) == len(bodies)


def ready(client: RawClient) -> int:
    """Return the number of ready messages in the queue."""
    return client.call(1, Queue.Declare(queue="q", passive=True), Queue.DeclareOk).message_count


def get(*, no_ack: bool = False) -> bytes:
    return marshal(1, Basic.Get(queue="q", no_ack=no_ack))


def ack(tag: int) -> bytes:
    return marshal(1, Basic.Ack(tag))


def expect_got(client: RawClient, tag: int, body: bytes, remaining: int) -> None:
    method, _, got = client.expect_message()
    assert isinstance(method, Basic.GetOk)
    assert (method.delivery_tag, got, method.message_count) == (tag, body, remaining)


def test_gets_are_answered_in_order(client: RawClient) -> None:
    fill(client, *(b"%d" % number for number in range(COUNT)))
    client.write(get() * (COUNT + 3))
    for number in range(COUNT):
        expect_got(client, number + 1, b"%d" % number, COUNT - number - 1)
    for _ in range(3):
        client.expect(Basic.GetEmpty)
    # Each message is settled by itself, also if several arrived together.
    client.send(1, Basic.Nack(1, requeue=True), Basic.Ack(3), Basic.Reject(2, requeue=True))
    client.write(get(no_ack=True) * 3)
    expect_got(client, COUNT + 1, b"0", 1)
    expect_got(client, COUNT + 2, b"1", 0)
    client.expect(Basic.GetEmpty)
    client.send(1, Basic.Ack(0, multiple=True))
    assert ready(client) == 0


def test_gets_sent_together_are_few_entries(broker: LoneBroker, client: RawClient) -> None:
    fill(client, *[b"x"] * COUNT)
    before = broker.broker.submissions.batches_applied
    client.write(get() * COUNT)
    for number in range(COUNT):
        expect_got(client, number + 1, b"x", COUNT - number - 1)
    entries = broker.broker.submissions.batches_applied - before
    if broker.machine.version < SINCE[GetMessages]:
        assert entries >= COUNT
    else:  # entries for the first get, for those that arrived meanwhile, and for those of a second read
        assert entries <= 6


def test_acks_between_gets_are_carried_out(client: RawClient) -> None:
    fill(client, *(b"%c" % letter for letter in b"abcdefgh"))
    client.write(get() * 2)
    expect_got(client, 1, b"a", 7)
    expect_got(client, 2, b"b", 6)
    client.write(get() + ack(1) + get() + ack(2) + get(no_ack=True) + get())
    for tag, body in enumerate((b"c", b"d", b"e", b"f"), 3):
        expect_got(client, tag, body, 8 - tag)
    # Acknowledged messages are removed, and the rest is requeued.
    client.call(1, Channel.Close(200, "", 0, 0), Channel.CloseOk)
    client.open_channel(1)
    assert ready(client) == 5
    client.write(get() * 5)
    for tag, body in enumerate((b"c", b"d", b"f", b"g", b"h"), 1):
        expect_got(client, tag, body, 5 - tag)


def test_ack_of_an_unknown_tag_between_gets_takes_no_message(client: RawClient) -> None:
    fill(client, b"a", b"b", b"c")
    client.write(get(no_ack=True) * 2 + ack(7) + get(no_ack=True))
    expect_got(client, 1, b"a", 2)
    while not isinstance(answer := client.receive()[1], Channel.Close):
        pass
    assert answer.reply_code == 406
    client.send(1, Channel.CloseOk())
    client.open_channel(1)
    assert ready(client) >= 1


@pytest.mark.parametrize("no_ack", [False, True])
def test_gets_of_a_missing_queue_are_a_single_error(
    broker: LoneBroker, client: RawClient, no_ack: bool
) -> None:
    client.write(marshal(1, Basic.Get(queue="none", no_ack=no_ack)) * 5)
    client.expect_close(404, "NOT_FOUND - no queue 'none' in vhost '/'", channel=1)
    client.send(1, Channel.CloseOk())
    client.open_channel(1)
    assert ready(client) == 0


def test_gets_of_different_queues_keep_their_order(client: RawClient) -> None:
    client.call(1, Queue.Declare(queue="r"), Queue.DeclareOk)
    client.write(publish(1, "r", b"r"))
    fill(client, b"a", b"b")
    client.write(get() + marshal(1, Basic.Get(queue="r")) + get() + get())
    expect_got(client, 1, b"a", 1)
    expect_got(client, 2, b"r", 0)
    expect_got(client, 3, b"b", 0)
    client.expect(Basic.GetEmpty)
