"""A snapshot replaces entries that the node never applied: the effects on its clients."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from pamqp import commands

from qq.machine.protocol.effects import Deliver, Known, QueueDeclared, Reply
from qq.ranges import Range
from tests.harness.lone_broker import LoneBroker
from tests.harness.raw_client import RawClient, publish

Basic, Confirm, Queue = commands.Basic, commands.Confirm, commands.Queue


@pytest.fixture
def broker() -> Generator[LoneBroker]:
    with LoneBroker() as broker:
        yield broker


class Client(RawClient):
    def __init__(self, broker: LoneBroker) -> None:
        super().__init__(broker.amqp_port)
        self.broker = broker
        self._next_channel = 2
        self.open_channel(1)

    def declare(self, name: str = "q") -> int:
        return self.call(1, Queue.Declare(queue=name), Queue.DeclareOk).message_count

    def consume(self, tag: str = "c", **arguments: Any) -> None:
        self.call(1, Basic.Consume(queue="q", consumer_tag=tag, **arguments), Basic.ConsumeOk)

    def expect_bodies(self, first_tag: int, *bodies: bytes) -> None:
        for delivery_tag, expected in enumerate(bodies, first_tag):
            method, _, body = self.expect_message()
            assert (method.delivery_tag, body) == (delivery_tag, expected)

    def expect_no_frame(self) -> None:
        """Assert that the next frame is the answer to a new request."""
        self.open_channel(self._next_channel)
        self._next_channel += 1

    def settled(self) -> None:
        """Wait until earlier requests are applied."""
        self.open_channel(self._next_channel)
        self._next_channel += 1
        self.broker.pass_some_time()


@pytest.fixture
def client(broker: LoneBroker) -> Generator[Client]:
    with Client(broker) as client:
        client.declare()
        yield client


@pytest.fixture
def other(broker: LoneBroker) -> Generator[Client]:
    with Client(broker) as client:
        yield client


def test_unknown_publishes_are_nacked_once_after_a_snapshot(broker: LoneBroker, client: Client) -> None:
    """A queue that was full may have refused it, and a mandatory message may have been returned."""
    client.call(1, Confirm.Select(), Confirm.SelectOk)
    client.write(publish(1, "q", b"heard"))
    assert client.expect(Basic.Ack).delivery_tag == 1
    broker.skip()
    client.write(publish(1, "q", b"2") + publish(1, "nowhere", b"3", mandatory=True) + publish(1, "q", b"4"))
    client.settled()
    broker.resume()
    nack = client.expect(Basic.Nack)
    assert (nack.delivery_tag, nack.multiple) == (4, True)
    assert broker.broker.counters.amqp091.messages_confirmed == 1
    broker.resume()
    assert client.declare() == 3
    client.write(publish(1, "nowhere", b"m", mandatory=True))
    client.expect_message()
    assert client.expect(Basic.Ack).delivery_tag == 5


def test_batches_outside_the_snapshot_continue(broker: LoneBroker, client: Client) -> None:
    client.call(1, Confirm.Select(), Confirm.SelectOk)
    broker.skip()
    client.write(publish(1, "q", b"1"))
    client.settled()
    broker.group.holding = True
    client.write(publish(1, "nowhere", b"2", mandatory=True))
    client.settled()
    broker.resume()
    assert client.expect(Basic.Nack).delivery_tag == 1
    client.expect_no_frame()
    broker.call(broker.group.release)
    client.expect_message()
    assert client.expect(Basic.Ack).delivery_tag == 2


def test_snapshot_without_this_node_confirms_no_message(broker: LoneBroker) -> None:
    broker.call(broker.broker.resumed, 0, [])
    assert not broker.broker.live
    broker.call(broker.broker.resumed, 1, [])
    assert broker.broker.live


def test_error_after_a_snapshot_closes_the_channel_unconfirmed(broker: LoneBroker, client: Client) -> None:
    client.call(1, Confirm.Select(), Confirm.SelectOk)
    broker.skip()
    client.write(publish(1, "q", b"1", exchange="none") + publish(1, "q", b"2"))
    client.settled()
    broker.resume()
    client.expect_close(404, "NOT_FOUND - no exchange 'none' in vhost '/'", channel=1)


def test_missed_answers_arrive_and_known_answers_do_not(broker: LoneBroker, client: Client) -> None:
    broker.resume()
    broker.skip()
    client.send(1, Queue.Declare(queue="late"), Queue.Declare(queue="later"))
    broker.resume()
    assert client.expect(Queue.DeclareOk).queue == "late"
    assert client.expect(Queue.DeclareOk).queue == "later"
    client.expect_no_frame()


@pytest.mark.parametrize("multiple", [False, True])
def test_deliveries_continue_after_the_last_known_delivery(
    broker: LoneBroker, client: Client, other: Client, multiple: bool
) -> None:
    client.consume()
    for body in (b"1", b"2", b"3"):
        other.write(publish(1, "q", body))
    client.expect_bodies(1, b"1", b"2", b"3")
    client.send(1, Basic.Ack(2, multiple))
    client.settled()
    broker.skip()
    other.write(publish(1, "q", b"4") + publish(1, "q", b"5"))
    other.settled()
    broker.resume()
    client.expect_bodies(4, b"4", b"5")
    broker.resume()
    other.write(publish(1, "q", b"6"))
    client.expect_bodies(6, b"6")
    client.send(1, Basic.Ack(0, multiple=True))
    client.settled()
    client.call(1, Basic.Cancel("c"), Basic.CancelOk)
    assert client.declare() == 0


def test_partly_delivered_range_is_cut(broker: LoneBroker, client: Client, other: Client) -> None:
    """The machine holds a single piece, because the pieces between the deliveries were settled."""
    client.consume()
    other.write(b"".join(publish(1, "q", body) for body in (b"1", b"2", b"3", b"4")))
    other.declare()
    client.expect_bodies(1, b"1", b"2", b"3", b"4")
    [channel] = [channel for channel in broker.broker._dispatcher.sessions.values() if channel.consumers.all]
    [consumer] = channel.consumers.all
    index = broker.machine.consumers["n1", consumer.id].unacked.pieces()[0].value.index
    outstanding = [
        Deliver(
            "n1",
            channel.session,
            consumer.id,
            1,
            [Range(index, 1, 1, 0), Range(index, 2, 2, 0)],
            {},
            count_contract=None,
        ),
        Known("n1", channel.session, channel.answered, [consumer.id]),
    ]
    broker.call(setattr, consumer, "next_id", 3)
    broker.call(broker.broker.resumed, 0, outstanding)
    client.expect_bodies(5, b"4")
    client.expect_no_frame()


def test_consume_ok_comes_before_the_first_message(broker: LoneBroker, client: Client, other: Client) -> None:
    other.write(publish(1, "q", b"m"))
    other.declare()
    broker.skip()
    client.send(1, Basic.Consume(queue="q", consumer_tag="c"))
    client.settled()
    broker.resume()
    client.expect(Basic.ConsumeOk)
    client.expect_bodies(1, b"m")


def test_cancel_ok_comes_behind_the_last_message(broker: LoneBroker, client: Client, other: Client) -> None:
    client.consume()
    broker.skip()
    other.write(publish(1, "q", b"m"))
    other.settled()
    client.send(1, Basic.Cancel("c"))
    client.settled()
    broker.resume()
    client.expect_bodies(1, b"m")
    client.expect(Basic.CancelOk)
    client.expect_no_frame()


def test_recover_ok_comes_before_the_messages_that_come_again(
    broker: LoneBroker, client: Client, other: Client
) -> None:
    client.consume()
    other.write(publish(1, "q", b"m"))
    client.expect_bodies(1, b"m")
    broker.skip()
    client.send(1, Basic.Recover(requeue=True))
    client.settled()
    broker.resume()
    client.expect(Basic.RecoverOk)
    method, _, body = client.expect_message()
    assert (method.delivery_tag, method.redelivered, body) == (2, True, b"m")
    client.send(1, Basic.Ack(2))
    client.expect_no_frame()


def test_a_fetched_message_comes_as_the_answer(broker: LoneBroker, client: Client, other: Client) -> None:
    other.write(publish(1, "q", b"m"))
    other.declare()
    broker.skip()
    client.send(1, Basic.Get(queue="q"))
    client.settled()
    broker.resume()
    assert client.expect_message()[2] == b"m"
    client.send(1, Basic.Ack(1))
    assert client.declare() == 0


def test_consumer_of_a_deleted_queue_is_cancelled_by_a_snapshot(
    broker: LoneBroker, client: Client, other: Client
) -> None:
    client.consume("gone")
    client.declare("q2")
    broker.skip()
    other.send(1, Queue.Delete(queue="q"))
    other.settled()
    broker.group.holding = True
    client.send(1, Basic.Consume(queue="q2", consumer_tag="to come"))
    client.settled()
    broker.resume()
    assert client.expect(Basic.Cancel).consumer_tag == "gone"
    other.expect(Queue.DeleteOk)
    broker.call(broker.group.release)
    assert client.expect(Basic.ConsumeOk).consumer_tag == "to come"
    broker.resume()
    client.expect_no_frame()


def test_channel_close_is_the_last_frame_after_a_snapshot(
    broker: LoneBroker, client: Client, other: Client
) -> None:
    client.consume("gone")
    client.declare("q2")
    client.call(1, Basic.Consume(queue="q2", consumer_tag="cancelled"), Basic.ConsumeOk)
    broker.skip()
    other.send(1, Queue.Delete(queue="q"))
    other.settled()
    client.send(1, Basic.Cancel("cancelled"), commands.Channel.Close(200, "bye", 0, 0))
    client.settled()
    broker.resume()
    client.expect(Basic.CancelOk)
    client.expect(commands.Channel.CloseOk)
    client.expect_no_frame()


def test_consumers_cancelled_by_a_leader_change_are_notified(broker: LoneBroker, client: Client) -> None:
    broker.call(broker.broker.leader_changed, "n1", 1)
    for tag in ("a", "b", "c"):
        client.consume(tag, arguments={"x-cancel-on-ha-failover": True})
    broker.skip()
    broker.call(broker.broker.leader_changed, "n2", 2)
    client.send(1, Queue.Declare(queue="behind"))
    client.settled()
    broker.resume()
    assert [client.expect(Basic.Cancel).consumer_tag for _ in range(3)] == ["a", "b", "c"]
    client.expect(Queue.DeclareOk)
    client.expect_no_frame()


def test_effects_for_unknown_sessions_are_ignored(broker: LoneBroker, client: Client) -> None:
    unknown = [
        Reply("n1", 999, QueueDeclared("q", 0, 0), 1),
        Deliver("n1", 999, 1, 0, [Range(2, 0, 1, 0)], {}, count_contract=None),
        Known("n1", 999, 1, [1]),
    ]
    broker.call(broker.broker.resumed, 0, unknown)
    client.expect_no_frame()
