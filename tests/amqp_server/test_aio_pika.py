"""An unmodified aio-pika against a running node."""

from __future__ import annotations

import asyncio

import aio_pika
import pytest
from aiormq.exceptions import ChannelNotFoundEntity

from qq.testing import ClusterNode

QUORUM: dict[str, object] = {"x-queue-type": "quorum"}


def test_many_publishers_and_consumers_share_a_connection(node: ClusterNode, queue: str) -> None:
    async def scenario() -> None:
        connection = await aio_pika.connect(node.url)
        async with connection:
            setup = await connection.channel()
            await setup.declare_queue(queue, durable=True, arguments=QUORUM)
            got: list[bytes] = []
            done = asyncio.Event()

            async def consume() -> None:
                channel = await connection.channel()
                await channel.set_qos(prefetch_count=10)
                source = await channel.get_queue(queue)

                async def on_message(message: aio_pika.abc.AbstractIncomingMessage) -> None:
                    await message.ack()
                    got.append(message.body)
                    if len(got) == 400:
                        done.set()

                await source.consume(on_message)

            async def publish(publisher: int) -> None:
                channel = await connection.channel(publisher_confirms=True)
                await asyncio.gather(
                    *(
                        channel.default_exchange.publish(
                            aio_pika.Message(b"%d-%d" % (publisher, number)), queue
                        )
                        for number in range(100)
                    )
                )

            await asyncio.gather(*(consume() for _ in range(3)))
            await asyncio.gather(*(publish(number) for number in range(4)))
            await asyncio.wait_for(done.wait(), 20)
            assert len(set(got)) == 400

    asyncio.run(scenario())


def test_failed_channel_does_not_harm_further_channels(node: ClusterNode, queue: str) -> None:
    async def scenario() -> None:
        connection = await aio_pika.connect(node.url)
        async with connection:
            good = await connection.channel()
            source = await good.declare_queue(queue, auto_delete=True)
            for _ in range(3):
                bad = await connection.channel()
                with pytest.raises(ChannelNotFoundEntity):
                    await bad.declare_queue(f"{queue}-missing", passive=True)
            await good.default_exchange.publish(aio_pika.Message(b"m"), queue)
            message = await source.get(timeout=5)
            assert message is not None
            assert message.body == b"m"
            await message.ack()

    asyncio.run(scenario())


def test_a_robust_connection_works_and_closes(node: ClusterNode) -> None:
    async def scenario() -> None:
        connection = await aio_pika.connect_robust(node.url)
        channel = await connection.channel()
        queue = await channel.declare_queue(exclusive=True)
        exchange = await channel.declare_exchange(
            f"{queue.name}-x", aio_pika.ExchangeType.TOPIC, auto_delete=True
        )
        await queue.bind(exchange, "a.#")
        await exchange.publish(aio_pika.Message(b"m", headers={"k": [1, {"n": "ü"}]}), "a.b")
        async with queue.iterator(timeout=10) as messages:
            async for message in messages:
                assert message.headers == {"k": [1, {"n": "ü"}]}
                await message.reject(requeue=False)
                break
        await connection.close()

    asyncio.run(scenario())
