"""Transactions are atomic over any queues."""

from __future__ import annotations

import pytest

from tests.queues.clients import (
    HERE,
    Taker,
    barrier,
    bodies_of,
    close,
    counted,
    declare,
    drain,
    got,
    publish,
    ready,
    refused,
    wait_until,
)
from tests.queues.leader_changes import ALSO_KILLED
from tests.queues.world import World


def queues_of(world: World, queue: str, count: int = 2) -> list[str]:
    channel = world.channel(1)
    return [declare(channel, f"{queue}-{number}") for number in range(count)]


def test_published_messages_appear_only_after_the_commit(world: World, queue: str) -> None:
    one, other = queues_of(world, queue)
    channel, witness = world.channel(1), world.channel(2)
    channel.tx_select()
    for body in "ab":
        channel.basic_publish("", one, body)
        channel.basic_publish("", other, body)
    barrier(channel)
    world.change_leader()
    assert [ready(witness, name) for name in (one, other)] == [0, 0]
    channel.tx_commit()
    assert [bodies_of(drain(witness, name)) for name in (one, other)] == [[b"a", b"b"]] * 2


def test_rollback_discards_published_messages(world: World, queue: str) -> None:
    [one] = queues_of(world, queue, 1)
    channel = world.channel(1)
    channel.tx_select()
    channel.basic_publish("", one, b"a")
    world.change_leader()
    channel.tx_rollback()
    channel.basic_publish("", one, b"b")
    channel.tx_commit()
    channel.tx_commit()
    assert bodies_of(drain(world.channel(2), one)) == [b"b"]


@ALSO_KILLED
def test_acknowledgements_and_messages_are_committed_together(world: World, queue: str) -> None:
    one, other = queues_of(world, queue)
    channel, witness = world.channel(1), world.channel(2)
    publish(witness, one, "abc")
    channel.tx_select()
    consumer = Taker(channel, one)
    consumer.wait(3)
    channel.basic_ack(1)
    channel.basic_nack(2, requeue=False)
    channel.basic_publish("", other, b"done")
    barrier(channel)
    world.change_leader()
    assert world.request(f"/api/queues/%2F/{one}", at=2)["messages_unacknowledged"] == 3
    channel.tx_commit()
    wait_until(lambda: world.request(f"/api/queues/%2F/{one}", at=2)["messages_unacknowledged"] == 1)
    assert bodies_of(drain(witness, other)) == [b"done"]
    close(channel)
    assert bodies_of(drain(witness, one)) == [b"c"]


def test_recover_ignores_messages_settled_in_the_transaction(world: World, queue: str) -> None:
    [one] = queues_of(world, queue, 1)
    channel = world.channel(1)
    publish(world.channel(2), one, "abcd")
    channel.tx_select()
    consumer = Taker(channel, one)
    consumer.wait(4)
    channel.basic_ack(2)
    channel.basic_ack(3)
    barrier(channel)
    consumer.take_back()
    world.change_leader()
    channel.basic_recover(requeue=True)
    assert [(m.body, m.redelivered, m.tag) for m in consumer.wait(2)] == [(b"a", True, 5), (b"d", True, 6)]
    channel.tx_commit()
    channel.basic_ack(5)
    channel.basic_recover(requeue=True)
    channel.tx_rollback()
    channel.basic_ack(5)
    channel.tx_commit()
    close(channel)
    assert bodies_of(drain(world.channel(2), one)) == [b"d"]


def test_a_rollback_gives_delivery_tags_back(world: World, queue: str) -> None:
    [one] = queues_of(world, queue, 1)
    channel = world.channel(1)
    publish(world.channel(2), one, "abc")
    channel.tx_select()
    Taker(channel, one).wait(3)
    channel.basic_ack(2)
    channel.basic_nack(3)
    world.change_leader()
    channel.tx_rollback()
    channel.basic_ack(2)
    channel.basic_ack(3)
    channel.tx_commit()
    close(channel)
    assert bodies_of(drain(world.channel(2), one)) == [b"a"]


def test_a_delivery_is_acknowledged_once_also_in_a_transaction(world: World, queue: str) -> None:
    [one] = queues_of(world, queue, 1)
    channel = world.channel(1)
    publish(world.channel(2), one, "a")
    channel.tx_select()
    Taker(channel, one).wait(1)
    channel.basic_ack(1)
    world.change_leader()
    channel.basic_ack(1)
    with refused(406, "PRECONDITION_FAILED - unknown delivery tag 1"):
        barrier(channel)
    assert bodies_of(drain(world.channel(2), one)) == [b"a"]


def test_a_channel_that_ends_takes_its_transaction_along(world: World, queue: str) -> None:
    one, other = queues_of(world, queue)
    channel, witness = world.channel(1), world.channel(2)
    publish(witness, one, "a")
    channel.tx_select()
    channel.basic_publish("", other, b"x")
    channel.basic_ack(got(channel, one, auto_ack=False).tag)
    world.change_leader()
    close(channel)
    assert [(m.body, m.redelivered) for m in drain(witness, one)] == [(b"a", True)]
    assert ready(witness, other) == 0


def test_nacked_messages_return_at_the_commit(world: World, queue: str) -> None:
    [one] = queues_of(world, queue, 1)
    channel, witness = world.channel(1), world.channel(2)
    publish(witness, one, "a")
    channel.tx_select()
    channel.basic_nack(got(channel, one, auto_ack=False).tag)
    barrier(channel)
    assert ready(witness, one) == 0
    world.change_leader()
    channel.tx_commit()
    assert ready(witness, one) == 1


def test_transaction_reaches_no_queue_when_a_queue_is_full(world: World, queue: str) -> None:
    [one] = queues_of(world, queue, 1)
    channel, witness = world.channel(1), world.channel(2)
    full = declare(witness, f"{queue}-full", {"x-max-length": 1, "x-overflow": "reject-publish"})
    source = declare(witness, f"{queue}-source")
    publish(witness, source, "s")
    channel.tx_select()
    channel.basic_ack(got(channel, source, auto_ack=False).tag)
    channel.basic_publish("", one, b"a")
    for body in "bc":
        channel.basic_publish("", full, body)
    world.change_leader()
    with refused(406, "PRECONDITION_FAILED - partial tx completion"):
        channel.tx_commit()
    assert [counted(witness, name)[0] for name in (one, full)] == [0, 0]
    wait_until(lambda: ready(witness, source) == 1)
    assert bodies_of(drain(witness, source)) == [b"s"]


def test_requeue_and_publish_in_a_transaction_both_fit(world: World, queue: str) -> None:
    channel = world.channel(1)
    declare(channel, queue, {"x-max-length": 1, "x-overflow": "reject-publish"})
    publish(channel, queue, "a")
    channel.tx_select()
    channel.basic_nack(got(channel, queue, auto_ack=False).tag)
    channel.basic_publish("", queue, b"b")
    world.change_leader()
    channel.tx_commit()
    assert sorted(bodies_of(drain(world.channel(2), queue))) == [b"a", b"b"]


def test_publish_to_a_missing_exchange_undoes_the_transaction(world: World, queue: str) -> None:
    [one] = queues_of(world, queue, 1)
    channel = world.channel(1)
    channel.tx_select()
    channel.basic_publish("", one, b"a")
    channel.basic_publish(f"{queue}-nowhere", "", b"b")
    world.change_leader()
    with refused(404, f"NOT_FOUND - no exchange '{queue}-nowhere' {HERE}"):
        channel.tx_commit()
    assert ready(world.channel(2), one) == 0


def test_large_transactions_on_all_nodes_do_not_mix(world: World, queue: str) -> None:
    [one] = queues_of(world, queue, 1)
    channels = [world.channel(at) for at in (1, 2)]
    for channel in channels:
        channel.tx_select()
    for number in range(100):
        for mark, channel in zip("ab", channels, strict=True):
            channel.basic_publish("", one, f"{mark}{number}")
    world.change_leader()
    for channel in channels:
        channel.tx_commit()
    taken = [body.decode() for body in bodies_of(drain(channels[0], one))]
    assert taken == [f"{mark}{number}" for mark in "ab" for number in range(100)]


def test_deliveries_continue_during_a_transaction(world: World, queue: str) -> None:
    [one] = queues_of(world, queue, 1)
    channel = world.channel(1)
    channel.tx_select()
    channel.basic_qos(prefetch_count=1)
    consumer = Taker(channel, one)
    publish(world.channel(2), one, "ab")
    consumer.wait(1)
    consumer.ack()
    world.change_leader()
    assert consumer.received() == [b"a"]
    channel.tx_commit()
    assert consumer.received() == [b"a", b"b"]


# Modes


def test_a_channel_with_confirms_has_no_transactions(world: World) -> None:
    channel = world.channel(1, confirms=True)
    world.change_leader()
    with refused(406, "PRECONDITION_FAILED - cannot switch from confirm to tx mode"):
        channel.tx_select()


def test_a_channel_with_transactions_has_no_confirms(world: World) -> None:
    channel = world.channel(1)
    channel.tx_select()
    channel.tx_select()
    world.change_leader()
    with refused(406, "PRECONDITION_FAILED - cannot switch from tx to confirm mode"):
        channel.confirm_delivery()


@pytest.mark.parametrize("method", ["tx_commit", "tx_rollback"])
def test_commit_without_tx_select_is_refused(world: World, method: str) -> None:
    channel = world.channel(1)
    world.change_leader()
    with refused(406, "PRECONDITION_FAILED - channel is not transactional"):
        getattr(channel, method)()
