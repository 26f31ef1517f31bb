"""The same broker with aio-pika: an asynchronous client sees the features as pika's does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aio_pika
import aiormq.exceptions
import pytest
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue

from tests.queues.clients import QUORUM, Taker, barrier, bodies_of, declare, drain, publish
from tests.queues.leader_changes import KILLED_IF_LONG
from tests.queues.world import World

PATIENCE_S = 10.0


def run(world: World, work: Callable[[AbstractChannel, AbstractChannel], Awaitable[None]]) -> None:
    """Do something with a channel to each of the followers."""

    async def with_channels() -> None:
        one, other = [await aio_pika.connect(f"{node.url}?heartbeat=0") for node in world.nodes[1:]]
        async with one, other, asyncio.timeout(PATIENCE_S):
            await work(await one.channel(), await other.channel())

    asyncio.run(with_channels())


async def change_leader(world: World) -> None:
    await asyncio.to_thread(world.change_leader)


async def declared(channel: AbstractChannel, queue: str, **arguments: Any) -> AbstractQueue:
    named = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    return await channel.declare_queue(queue, durable=True, arguments={**QUORUM, **named})


async def send(channel: AbstractChannel, queue: str, *bodies: str, **properties: Any) -> None:
    for body in bodies:
        message = aio_pika.Message(body.encode(), **properties)
        await channel.default_exchange.publish(message, queue)


async def drained(queue: AbstractQueue) -> list[bytes]:
    bodies = []
    while (message := await queue.get(no_ack=True, fail=False)) is not None:
        bodies.append(message.body)
    return bodies


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 -- of what callbacks do
        await asyncio.sleep(0.01)


def test_priorities(world: World, queue: str) -> None:
    async def work(one: AbstractChannel, other: AbstractChannel) -> None:
        await declared(one, queue)
        await send(one, queue, "n1", "n2", "n3")
        await change_leader(world)
        await send(one, queue, "h1", "h2", "h3", "h4", priority=7)
        reader = await other.get_queue(queue)
        assert await drained(reader) == [b"h1", b"h2", b"n1", b"h3", b"h4", b"n2", b"n3"]

    run(world, work)


@KILLED_IF_LONG
def test_a_refused_publish(world: World, queue: str) -> None:
    async def work(one: AbstractChannel, other: AbstractChannel) -> None:
        await declared(one, queue, max_length=2, overflow="reject-publish")
        await send(one, queue, "a", "b")
        await change_leader(world)
        with pytest.raises(aio_pika.exceptions.DeliveryError):
            await send(one, queue, "c")
        assert await drained(await other.get_queue(queue)) == [b"a", b"b"]

    run(world, work)


@KILLED_IF_LONG
def test_dead_letters(world: World, queue: str) -> None:
    async def work(one: AbstractChannel, other: AbstractChannel) -> None:
        dead = await declared(other, f"{queue}-dead")
        source = await declared(
            one, queue, dead_letter_exchange="", dead_letter_routing_key=f"{queue}-dead", delivery_limit=1
        )
        await send(one, queue, "a", headers={"mine": "kept"})
        for _ in range(2):
            message = await source.get()
            assert message is not None
            await message.nack()
        await change_leader(world)
        received: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
        await dead.consume(received.put)
        message = await received.get()
        await message.ack()
        [death] = message.headers["x-death"]
        assert (death["reason"], death["queue"], death["count"]) == ("delivery_limit", queue, 1)
        assert (death["exchange"], death["routing-keys"]) == ("", [queue])
        assert message.headers["mine"] == "kept"

    run(world, work)


def test_the_single_active_consumer(world: World, queue: str) -> None:
    async def work(one: AbstractChannel, other: AbstractChannel) -> None:
        taken: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()

        def taker(name: str) -> Callable[[AbstractIncomingMessage], Awaitable[None]]:
            async def take(message: AbstractIncomingMessage) -> None:
                await message.ack()
                await taken.put((name, message.body))

            return take

        queues = [await declared(channel, queue, single_active_consumer=True) for channel in (one, other)]
        first, second = [
            await each.consume(taker(name)) for name, each in zip(("first", "second"), queues, strict=True)
        ]
        await send(one, queue, "a")
        assert await taken.get() == ("first", b"a")
        await change_leader(world)
        await queues[0].cancel(first)
        await send(one, queue, "b")
        assert await taken.get() == ("second", b"b")
        await queues[1].cancel(second)

    run(world, work)


def test_prefetch(world: World, queue: str) -> None:
    async def work(one: AbstractChannel, other: AbstractChannel) -> None:
        held: list[AbstractIncomingMessage] = []

        async def hold(message: AbstractIncomingMessage) -> None:
            held.append(message)

        await declared(one, queue)
        await send(one, queue, *"abcde")
        await other.set_qos(prefetch_count=2)
        reader = await other.get_queue(queue)
        await reader.consume(hold)
        await until(lambda: len(held) == 2)
        await change_leader(world)
        await held[1].ack(multiple=True)
        await until(lambda: len(held) >= 4)
        await other.get_exchange("amq.direct")
        assert [message.body for message in held] == [b"a", b"b", b"c", b"d"]

    run(world, work)


def test_transaction_commits_and_rolls_back_with_aio_pika(world: World, queue: str) -> None:
    async def fail(channel: AbstractChannel) -> None:
        async with channel.transaction():
            await send(channel, queue, "lost")
            raise ZeroDivisionError

    async def work(one: AbstractChannel, _: AbstractChannel) -> None:
        reader = await declared(one, queue)
        connection = await aio_pika.connect(world.nodes[2].url)
        async with connection:
            channel = await connection.channel(publisher_confirms=False)
            await change_leader(world)
            async with channel.transaction():
                await send(channel, queue, "a", "b")
            with pytest.raises(ZeroDivisionError):
                await fail(channel)
        assert await drained(reader) == [b"a", b"b"]

    run(world, work)


def test_deduplication(world: World, queue: str) -> None:
    async def work(one: AbstractChannel, other: AbstractChannel) -> None:
        reader = await declared(one, queue)
        for channel in (one, other, one):
            for number in (1, 2):
                headers = {"x-publisher-id": queue, "x-publish-seq": number}
                await send(channel, queue, str(number), headers=headers)
            await change_leader(world)
        assert await drained(reader) == [b"1", b"2"]

    run(world, work)


def test_delayed_messages(world: World, queue: str) -> None:
    async def work(one: AbstractChannel, other: AbstractChannel) -> None:
        exchange = await one.declare_exchange(
            f"{queue}-x", "x-delayed-message", arguments={"x-delayed-type": "direct"}
        )
        reader = await declared(other, queue)
        await reader.bind(exchange, "k")
        await exchange.publish(aio_pika.Message(b"later", headers={"x-delay": 200}), "k")
        await exchange.publish(aio_pika.Message(b"now"), "k")
        await change_leader(world)
        received: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
        await reader.consume(received.put, no_ack=True)
        assert [(await received.get()).body for _ in range(2)] == [b"now", b"later"]

    run(world, work)


def test_a_time_to_live(world: World, queue: str) -> None:
    async def work(one: AbstractChannel, other: AbstractChannel) -> None:
        reader = await declared(one, queue)
        await send(one, queue, "long", expiration=60)
        await send(one, queue, "short", expiration=0.1)
        await change_leader(world)
        await asyncio.sleep(0.2)
        assert (await other.declare_queue(queue, passive=True)).declaration_result.message_count == 1
        assert await drained(reader) == [b"long"]

    run(world, work)


def test_errors_have_rabbitmqs_texts(world: World, queue: str) -> None:
    async def work(one: AbstractChannel, _: AbstractChannel) -> None:
        await change_leader(world)
        with pytest.raises(aiormq.exceptions.ChannelPreconditionFailed) as caught:
            await declared(one, queue, max_priority=3)
        text = (
            f"invalid arg 'x-max-priority' for queue '{queue}' in vhost '/' of queue type rabbit_quorum_queue"
        )
        assert text in str(caught.value)

    run(world, work)


def test_pika_and_aio_pika_share_a_queue(world: World, queue: str) -> None:
    channel = world.channel(1)
    declare(channel, queue)
    consumer = Taker(world.channel(2), queue, arguments={"x-priority": -1})

    async def work(one: AbstractChannel, other: AbstractChannel) -> None:
        await send(one, queue, "a", priority=9, correlation_id="7", headers={"h": True})
        await change_leader(world)
        message = await (await other.get_queue(queue)).get(no_ack=True, fail=False)
        assert message is None

    run(world, work)
    [message] = consumer.wait(1)
    assert (message.properties.correlation_id, message.headers) == ("7", {"h": True})
    consumer.channel.basic_nack(message.tag)
    publish(channel, queue, "b")
    barrier(channel)
    consumer.wait(3)
    assert sorted(consumer.received()) == [b"a", b"a", b"b"]
    assert bodies_of(drain(channel, queue)) == []
