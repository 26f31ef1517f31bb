"""Clients of AMQP 1.0 as the workloads use them, against a node, beside clients of AMQP 0-9-1."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from chaos.workloads.amqp10_transport import Amqp10Transport
from chaos.workloads.messages import Outgoing, arrived
from chaos.workloads.pika_transport import PikaTransport
from chaos.workloads.transport import Endpoint, LostError, RefusedError
from qq.testing import LocalCluster

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
    from typing import Any

    from chaos.workloads.messages import Delivery
    from chaos.workloads.transport import Channel, Connection, Transport
    from qq.testing import ClusterNode

pytestmark = pytest.mark.xdist_group("amqp10 transport")

QUORUM = {"x-queue-type": "quorum", "x-delivery-limit": -1}
PREFETCH = 3
LARGE_BYTES = 100_000
"""A message of several frames."""
NEW, OLD = Amqp10Transport("guest", "guest"), PikaTransport("guest", "guest")


@pytest.fixture(scope="module")
def node() -> Generator[ClusterNode]:
    with LocalCluster(1) as cluster:
        [node] = cluster.nodes
        run(_connect(Endpoint(node.name, "127.0.0.1", node.amqp_port)))  # waits for the version of the state
        yield node


@pytest.fixture
def endpoint(node: ClusterNode) -> Endpoint:
    return Endpoint(node.name, "127.0.0.1", node.amqp_port)


class Client:
    """A connection with a channel, and the news of it."""

    def __init__(self, connection: Connection, channel: Channel, lost: list[str]) -> None:
        self.connection = connection
        self.channel = channel
        self.lost = lost


@asynccontextmanager
async def connected(endpoint: Endpoint, transport: Transport = NEW) -> AsyncGenerator[Client]:
    lost: list[str] = []
    connection = await transport.connect(endpoint, lost.append)
    try:
        yield Client(connection, await connection.open_channel("confirms", PREFETCH), lost)
    finally:
        await connection.close()


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 30.0))


async def _connect(endpoint: Endpoint) -> None:
    async with connected(endpoint):
        pass


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 -- an event for each condition would say less
        await asyncio.sleep(0.01)


async def fresh(channel: Channel, queue: str, **arguments: Any) -> None:
    await channel.delete(queue)
    await channel.declare(queue, QUORUM | {name.replace("_", "-"): each for name, each in arguments.items()})


async def first_of(channel: Channel, queue: str) -> Delivery:
    """Get a message; wait for a message that is on its way into the queue."""
    found: list[Delivery] = []
    while not found:
        found += filter(None, [await channel.get(queue)])
    return found[0]


def ignore(*_: object) -> None:
    pass


@pytest.mark.parametrize("publisher", [OLD, NEW], ids=["0-9-1", "1.0"])
@pytest.mark.parametrize("consumer", [OLD, NEW], ids=["0-9-1", "1.0"])
def test_message_arrives_alike_by_each_pair_of_protocols(
    endpoint: Endpoint, publisher: Transport, consumer: Transport
) -> None:
    """The history's fields are those of a client that publishes and consumes by AMQP 0-9-1."""

    async def story() -> None:
        async with connected(endpoint, publisher) as first, connected(endpoint, consumer) as second:
            await fresh(first.channel, "dead")
            await fresh(first.channel, "pair", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
            message = Outgoing("p", 1, size_bytes=LARGE_BYTES, priority=7)
            assert await first.channel.publish(message, "pair") == "confirmed"
            expected = {**message.fields(), "redelivered": False, "delivery_count": 0}
            del expected["attempt"]
            for queue, settling, count in (("pair", "nack", 0), ("pair", "reject", 1), ("dead", "ack", 1)):
                found = await first_of(second.channel, queue)
                expected |= {"redelivered": count > 0, "delivery_count": count}
                if queue == "dead":
                    expected["deaths"] = [{"queue": "pair", "reason": "rejected", "count": 1}]
                assert arrived(found) == expected
                await second.channel.settle(found.tag, settling)
            assert await second.channel.get("dead") is None

    run(story())


def test_expired_message_is_new_in_its_dead_letter_queue(endpoint: Endpoint) -> None:
    async def story() -> None:
        async with connected(endpoint) as client:
            await fresh(client.channel, "dead")
            await fresh(client.channel, "short", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
            await client.channel.publish(Outgoing("p", 1, ttl_ms=1), "short")
            fields = arrived(await first_of(client.channel, "dead"))
            assert fields.get("deaths") == [{"queue": "short", "reason": "expired", "count": 1}]
            assert (fields["redelivered"], fields["delivery_count"]) == (False, 0)

    run(story())


def test_publish_reports_messages_without_a_queue(endpoint: Endpoint) -> None:
    async def story() -> None:
        async with connected(endpoint) as client:
            await fresh(client.channel, "bound")
            await client.channel.bind("bound", "amq.topic", "a.#")
            messages = (Outgoing("p", number) for number in (1, 2))
            assert await client.channel.publish(next(messages), "a.b", "amq.topic") == "confirmed"
            assert await client.channel.publish(next(messages), "b", "amq.topic") == "returned"
            assert await client.channel.count("bound") == 1
            assert client.lost == []

    run(story())


def test_delayed_and_numbered_messages_keep_their_annotations(endpoint: Endpoint) -> None:
    async def story() -> None:
        async with connected(endpoint) as client:
            await fresh(client.channel, "annotated")
            numbered = {"x-publisher-id": "transport", "x-publish-seq": 1}
            for attempt in (1, 2):
                message = Outgoing("p", 1, attempt, headers=numbered, delay_ms=2000)
                assert await client.channel.publish(message, "annotated") == "confirmed"
            assert await client.channel.get("annotated") is None
            await first_of(client.channel, "annotated")
            assert await client.channel.get("annotated") is None

    run(story())


def test_cancel_waits_for_settlements_and_leaves_the_rest(endpoint: Endpoint) -> None:
    async def story() -> None:
        async with connected(endpoint) as client:
            channel = client.channel
            await fresh(channel, "cancelled")
            for number in range(1, 8):
                await channel.publish(Outgoing("p", number), "cancelled")
            got: list[Delivery] = []
            await channel.consume("cancelled", "tag", got.append, ignore)
            await until(lambda: len(got) == PREFETCH)
            await channel.settle(got[0].tag, "ack")
            await until(lambda: len(got) == PREFETCH + 1)
            cancelling = asyncio.create_task(channel.cancel("tag"))
            await asyncio.sleep(0.1)
            assert not cancelling.done()
            for delivery in got[1:]:
                await channel.settle(delivery.tag, "ack")
            await cancelling
            assert len(got) == PREFETCH + 1
            assert await channel.count("cancelled") == 7 - len(got)
            assert client.lost == []

    run(story())


def test_deleted_queue_ends_its_consumer_and_not_the_connection(endpoint: Endpoint) -> None:
    async def story() -> None:
        async with connected(endpoint) as client:
            await fresh(client.channel, "deleted")
            await client.channel.publish(Outgoing("p", 1), "deleted")
            got: list[Delivery] = []
            ended: list[bool] = []
            await client.channel.consume("deleted", "tag", got.append, lambda: ended.append(True))
            await until(lambda: got)
            await client.channel.delete("deleted")
            await until(lambda: ended)
            await client.channel.settle(got[0].tag, "ack")
            await client.channel.declare("deleted", QUORUM)
            assert await client.channel.publish(Outgoing("p", 2), "deleted") == "confirmed"
            assert client.lost == []

    run(story())


@pytest.mark.parametrize("request_of", ["consume", "get", "bind"])
def test_refused_request_ends_the_connection(endpoint: Endpoint, request_of: str) -> None:
    async def story() -> None:
        async with connected(endpoint) as client:
            requests = {
                "consume": lambda: client.channel.consume("missing", "tag", ignore, ignore),
                "get": lambda: client.channel.get("missing"),
                "bind": lambda: client.channel.bind("missing", "amq.topic", "a"),
            }
            with pytest.raises(RefusedError, match="missing"):
                await requests[request_of]()
            assert len(client.lost) == 1
            with pytest.raises(LostError):
                await client.channel.publish(Outgoing("p", 1), "any")

    run(story())


def test_refused_connection_raises_lost_error(endpoint: Endpoint) -> None:
    lost: list[str] = []
    with pytest.raises(LostError):
        run(connecting(Amqp10Transport("guest", "wrong"), endpoint, lost))
    with pytest.raises(LostError):
        run(connecting(NEW, endpoint._replace(port=1), lost))
    assert lost == []


async def connecting(transport: Transport, endpoint: Endpoint, lost: list[str]) -> None:
    await transport.connect(endpoint, lost.append)


def test_transactions_are_refused(endpoint: Endpoint) -> None:
    async def story() -> None:
        connection = await NEW.connect(endpoint, ignore)
        with pytest.raises(RefusedError, match="no transactions"):
            await connection.open_channel("transactions")
        await connection.close()

    run(story())


def test_silent_node_ends_the_connection(
    node: ClusterNode, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaos.workloads.amqp10_transport.HEARTBEAT_S", 1.0)

    async def story() -> None:
        async with connected(endpoint) as client:
            node.pause()
            try:
                await until(lambda: client.lost)
            finally:
                node.resume()

    run(story())
