"""Messages that wait for a client that does not read: they must stay in the log; and the effect if they did not."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from pamqp import commands
from pamqp.base import Frame
from pamqp.body import ContentBody
from pamqp.header import ContentHeader

from tests.harness.lone_broker import LoneBroker
from tests.harness.raw_client import RawClient, publish

Basic, Queue = commands.Basic, commands.Queue
COUNT = 40
MIB = bytes(1024 * 1024)


@pytest.fixture
def broker() -> Generator[LoneBroker]:
    with LoneBroker() as broker:
        yield broker


@pytest.fixture
def other(broker: LoneBroker) -> Generator[RawClient]:
    with RawClient(broker.amqp_port) as client:
        client.open_channel(1)
        for name in ("q", "small"):
            client.call(1, Queue.Declare(queue=name), Queue.DeclareOk)
        yield client


@pytest.fixture
def client(broker: LoneBroker, other: RawClient) -> Generator[RawClient]:
    """A consumer of more than the sockets hold, which does not read, so later answers wait."""
    with RawClient(broker.amqp_port) as client:
        client.open_channel(1)
        client.call(1, Basic.Consume(queue="q"), Basic.ConsumeOk)
        other.write(publish(1, "q", MIB) * COUNT)
        other.call(1, Queue.Declare(queue="q"), Queue.DeclareOk)
        yield client


def read_backlog(client: RawClient) -> None:
    for _ in range(COUNT):
        client.expect_message()


def count_deliveries_before(client: RawClient, answer: type[Frame]) -> int:
    count = 0
    while not isinstance(frame := client.receive()[1], answer):
        assert isinstance(frame, Basic.Deliver | ContentHeader | ContentBody), frame
        count += isinstance(frame, Basic.Deliver)
    return count


def index_of(broker: LoneBroker, body: bytes) -> int | None:
    def search() -> int | None:
        return next((index for index, entry in broker.group.entries.items() if body in entry), None)

    return broker.call(search)


def needed_from(broker: LoneBroker) -> int | None:
    broker.pass_some_time()
    return broker.call(broker.broker.needed_from)


def wait_until_applied(broker: LoneBroker, body: bytes) -> int:
    while (index := index_of(broker, body)) is None:
        broker.pass_some_time()
    return index


def wait_until_waiting(broker: LoneBroker) -> None:
    def waiting() -> int:
        return sum(
            channel.core.outgoing._answers_waiting for channel in broker.broker._dispatcher.sessions.values()
        )

    while not broker.call(waiting):
        pass


def test_waiting_returned_message_is_kept(broker: LoneBroker, client: RawClient) -> None:
    assert needed_from(broker) is None
    client.write(publish(1, "nowhere", b"returned", mandatory=True))
    index = wait_until_applied(broker, b"returned")
    assert needed_from(broker) == index
    client.write(publish(1, "nowhere", b"and again", mandatory=True))
    wait_until_applied(broker, b"and again")
    assert needed_from(broker) == index
    read_backlog(client)
    assert client.expect_message()[2] == b"returned"
    assert client.expect_message()[2] == b"and again"
    assert needed_from(broker) is None


@pytest.mark.parametrize("no_ack", [False, True])
def test_waiting_fetched_messages_are_kept_if_no_queue_has_them(
    broker: LoneBroker, client: RawClient, other: RawClient, no_ack: bool
) -> None:
    bodies = [b"fetched", b"and another", b"and one more"]
    indices: list[int] = []
    for body in bodies:
        other.write(publish(1, "small", body))
        indices.append(wait_until_applied(broker, body))
    client.send(1, *[Basic.Get(queue="small", no_ack=no_ack)] * 3)
    wait_until_waiting(broker)
    assert needed_from(broker) == (indices[0] if no_ack else None)
    read_backlog(client)
    for body in bodies:
        assert client.expect_message()[2] == body
    assert needed_from(broker) is None


def test_missing_deliveries_of_a_deleted_queue_are_skipped(
    broker: LoneBroker, client: RawClient, other: RawClient
) -> None:
    other.call(1, Queue.Delete(queue="q"), Queue.DeleteOk)
    other.write(publish(1, "small", b"still there"))
    client.send(1, Basic.Consume(queue="small"))
    wait_until_waiting(broker)
    kept = wait_until_applied(broker, b"still there")
    broker.call(broker.lose_messages, kept)
    delivered = count_deliveries_before(client, Basic.Cancel)
    assert delivered < COUNT
    client.expect(Basic.ConsumeOk)
    method, _, body = client.expect_message()
    assert (method.delivery_tag, body) == (delivered + 1, b"still there")


def test_fetched_messages_of_a_deleted_queue_are_no_messages(
    broker: LoneBroker, client: RawClient, other: RawClient
) -> None:
    for body in (b"first", b"second", b"last"):
        other.write(publish(1, "small", body))
        wait_until_applied(broker, body)
    client.send(1, *[Basic.Get(queue="small")] * 4)
    wait_until_waiting(broker)
    while other.call(1, Queue.Declare(queue="small", passive=True), Queue.DeclareOk).message_count:
        pass
    other.call(1, Queue.Delete(queue="small"), Queue.DeleteOk)
    broker.call(broker.lose_messages)
    count_deliveries_before(client, Basic.GetEmpty)
    for _ in range(3):
        client.expect(Basic.GetEmpty)
    client.call(1, Basic.Qos(prefetch_count=1), Basic.QosOk)


@pytest.mark.parametrize("fetched", [False, True])
def test_message_lost_to_a_snapshot_closes_the_connection(
    broker: LoneBroker, client: RawClient, other: RawClient, fetched: bool
) -> None:
    other.write(publish(1, "small", b"fetched"))
    wait_until_applied(broker, b"fetched")
    if fetched:
        client.send(1, Basic.Get(queue="small", no_ack=True))
    else:
        client.write(publish(1, "nowhere", b"m", mandatory=True))
    wait_until_waiting(broker)
    broker.call(broker.lose_messages)
    count_deliveries_before(client, commands.Connection.Close)
    client.send(0, commands.Connection.CloseOk())
    client.expect_end()
