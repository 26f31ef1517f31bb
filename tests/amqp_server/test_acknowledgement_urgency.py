"""A client with a single pending action never waits for an acknowledgement that the node holds back.

The node holds back acknowledgements for `MOMENT_S` when no delivery depends on them, and the leader keeps a batch that
may wait for `COMPANY_S`. Here both times are unlimited, so a client that depends on a held acknowledgement stands still
and its test fails.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from pamqp import commands

from qq.amqp_server import outgoing
from qq.amqp_server.channel import consuming
from qq.sessions import submissions
from tests.harness.lone_broker import LoneBroker, wait_until
from tests.harness.raw_client import RawClient, marshal, publish

Basic, Queue = commands.Basic, commands.Queue
COUNT = 24


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Generator[LoneBroker]:
    monkeypatch.setattr(submissions, "MOMENT_S", 3600.0)
    with LoneBroker() as broker:
        broker.group.keeps_waiting_batches = True
        yield broker


@pytest.fixture
def client(broker: LoneBroker) -> Generator[RawClient]:
    with RawClient(broker.amqp_port) as client:
        client.open_channel(1)
        yield client


def fill(client: RawClient) -> None:
    client.call(1, Queue.Declare(queue="q"), Queue.DeclareOk)
    client.write(b"".join(publish(1, "q", b"%d" % number) for number in range(COUNT)))


def consume(client: RawClient, tag: str = "a", **arguments: Any) -> None:
    client.call(1, Basic.Consume(queue="q", consumer_tag=tag, arguments=arguments), Basic.ConsumeOk)


def delivered(client: RawClient) -> Any:
    method, _, _ = client.expect_message()
    assert isinstance(method, Basic.Deliver)
    return method


@pytest.mark.parametrize("prefetch", [1, 2, 3, 7])
@pytest.mark.parametrize("scope", [[False], [True], [False, True]], ids=["consumer", "channel", "both"])
def test_consumer_with_small_prefetch_gets_the_whole_backlog(
    client: RawClient, prefetch: int, scope: list[bool]
) -> None:
    for is_global in scope:
        client.call(1, Basic.Qos(0, prefetch, is_global), Basic.QosOk)
    fill(client)
    consume(client)
    for _ in range(COUNT):
        client.send(1, Basic.Ack(delivered(client).delivery_tag))


@pytest.mark.parametrize("prefetch", [1, 4, 6])
def test_consumer_that_acknowledges_all_at_once_gets_the_next(client: RawClient, prefetch: int) -> None:
    client.call(1, Basic.Qos(0, prefetch, False), Basic.QosOk)
    fill(client)
    consume(client)
    for _ in range(COUNT // prefetch):
        for _ in range(prefetch):
            last = delivered(client).delivery_tag
        client.send(1, Basic.Ack(last, multiple=True))


def test_consumers_that_share_a_channel_limit_are_served(client: RawClient) -> None:
    client.call(1, Basic.Qos(0, 2, True), Basic.QosOk)
    client.call(1, Queue.Declare(queue="q"), Queue.DeclareOk)
    consume(client, "a")
    consume(client, "b")
    fill(client)
    for _ in range(COUNT):
        client.send(1, Basic.Ack(delivered(client).delivery_tag))


def test_freed_channel_limit_serves_a_second_queue(client: RawClient) -> None:
    client.call(1, Basic.Qos(0, 1, True), Basic.QosOk)
    for queue in ("p", "q"):
        client.call(1, Queue.Declare(queue=queue), Queue.DeclareOk)
        client.call(1, Basic.Consume(queue=queue, consumer_tag=queue), Basic.ConsumeOk)
    client.write(publish(1, "p", b"only"))
    only = delivered(client)
    client.write(publish(1, "q", b"next"))
    client.call(1, Queue.Declare(queue="q", passive=True), Queue.DeclareOk)
    client.send(1, Basic.Ack(only.delivery_tag))
    assert delivered(client).consumer_tag == "q"


@pytest.mark.parametrize("prefetch", [1, 2])
def test_consumer_of_an_empty_queue_gets_the_next_message(client: RawClient, prefetch: int) -> None:
    client.call(1, Queue.Declare(queue="q"), Queue.DeclareOk)
    client.call(1, Basic.Qos(0, prefetch, False), Basic.QosOk)
    consume(client)
    for number in range(COUNT):
        client.write(publish(1, "q", b"%d" % number))
        client.send(1, Basic.Ack(delivered(client).delivery_tag))


def test_ack_for_the_last_message_shares_the_entry_of_the_next(broker: LoneBroker, client: RawClient) -> None:
    client.call(1, Basic.Qos(0, 1, False), Basic.QosOk)
    client.call(1, Queue.Declare(queue="q"), Queue.DeclareOk)
    consume(client)
    client.write(publish(1, "q", b"first"))
    client.send(1, Basic.Ack(delivered(client).delivery_tag))
    counters = broker.broker.counters
    wait_until(lambda: counters.amqp091.messages_acknowledged == 1, "the acknowledgement")
    entries = broker.call(lambda: broker.group.last_index)
    client.write(publish(1, "q", b"second"))
    delivered(client)
    assert broker.call(lambda: broker.group.last_index) == entries + 2, (
        "the batches of the ack and of the publish"
    )


@pytest.mark.parametrize("no_ack", [False, True])
def test_consumer_without_limit_gets_the_whole_backlog(
    client: RawClient, monkeypatch: pytest.MonkeyPatch, no_ack: bool
) -> None:
    monkeypatch.setattr(consuming, "PACED_WINDOW", 8)
    monkeypatch.setattr(outgoing, "WRITTEN_AT_EASE", 4)
    fill(client)
    client.call(1, Basic.Consume(queue="q", no_ack=no_ack), Basic.ConsumeOk)
    for _ in range(COUNT):
        delivered(client)


@pytest.mark.parametrize("no_ack", [False, True])
def test_basic_get_never_waits_for_the_acknowledgement_before_it(client: RawClient, no_ack: bool) -> None:
    fill(client)
    for _ in range(COUNT):
        client.write(marshal(1, Basic.Get(queue="q", no_ack=no_ack)))
        method, _, _ = client.expect_message()
        if not no_ack:
            client.send(1, Basic.Ack(method.delivery_tag))
    client.call(1, Basic.Get(queue="q"), Basic.GetEmpty)


def test_better_single_active_consumer_takes_over_after_an_ack(broker: LoneBroker, client: RawClient) -> None:
    client.call(1, Basic.Qos(0, 8, False), Basic.QosOk)
    client.call(1, Queue.Declare(queue="q", arguments={"x-single-active-consumer": True}), Queue.DeclareOk)
    consume(client, "a")
    client.write(publish(1, "q", b"first"))
    held = delivered(client)
    with RawClient(broker.amqp_port) as better:
        better.open_channel(1)
        consume(better, "b", **{"x-priority": 5})
        better.write(publish(1, "q", b"second"))
        client.send(1, Basic.Ack(held.delivery_tag))
        assert delivered(better).consumer_tag == "b"


def test_acks_are_held_back_while_the_consumer_has_room(broker: LoneBroker, client: RawClient) -> None:
    client.call(1, Basic.Qos(0, 2 * COUNT, False), Basic.QosOk)
    fill(client)
    consume(client)
    tags = [delivered(client).delivery_tag for _ in range(COUNT)]
    before = broker.call(lambda: broker.broker.submissions.batches_applied)
    client.send(1, *(Basic.Ack(tag) for tag in tags))
    counters = broker.broker.counters
    wait_until(lambda: counters.amqp091.messages_acknowledged == COUNT, "the acknowledgements")
    assert broker.call(lambda: broker.broker.submissions.batches_applied) == before
