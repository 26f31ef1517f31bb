"""Publish 2,000 numbered messages and consume them with aio-pika, on nodes that may be killed.

python survive_asyncio.py [URL...]      the address of each node; by default the nodes of `qq up`
"""

import asyncio
import random
import sys

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage, AbstractQueue
from aio_pika.exceptions import AMQPError, ChannelInvalidStateError, DeliveryError

URLS = sys.argv[1:] or [f"amqp://guest:guest@127.0.0.1:{port}/" for port in (5672, 5673, 5674)]
QUEUE = "survive-asyncio"
MESSAGES = 2000
LOST = (OSError, AMQPError, asyncio.TimeoutError, asyncio.CancelledError, ChannelInvalidStateError)


def check_lost(error: BaseException) -> None:
    """Raise the error again if this program ends: aio-pika cancels requests of a lost connection, too."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise error


async def connect() -> AbstractConnection:
    """Connect to any node, in a random order so that clients spread over the nodes. Try for ever."""
    while True:
        for url in random.sample(URLS, len(URLS)):
            try:
                return await aio_pika.connect(f"{url}?heartbeat=5", timeout=5)
            except LOST as error:
                check_lost(error)
                print(f"cannot connect: {error!r}", flush=True)
        await asyncio.sleep(1)


async def declare(channel: AbstractChannel) -> AbstractQueue:
    return await channel.declare_queue(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})


async def publish_from(number: int, connection: AbstractConnection) -> int:
    """Publish messages until all are confirmed or the connection is lost; return the first unconfirmed one."""
    try:
        channel = await connection.channel(publisher_confirms=True)
        await declare(channel)
        while number <= MESSAGES:
            message = aio_pika.Message(str(number).encode(), delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            try:
                await channel.default_exchange.publish(message, QUEUE)  # returns when it is confirmed
            except DeliveryError:
                await asyncio.sleep(1)  # a full queue has refused it: publish it again
            else:
                number += 1
    except LOST as error:
        check_lost(error)
        # Whether this message is stored is unknown, so it is published again: it may come twice.
        print(f"publisher: {error!r} at message {number}", flush=True)
    return number


async def publish() -> None:
    number = 1
    while number <= MESSAGES:
        async with await connect() as connection:
            number = await publish_from(number, connection)
    print(f"{MESSAGES} messages are confirmed", flush=True)


async def consume() -> None:
    seen: set[int] = set()
    while len(seen) < MESSAGES:
        connection = await connect()
        lost = asyncio.get_running_loop().create_future()
        connection.close_callbacks.add(lambda _, error, lost=lost: lost.done() or lost.set_result(error))
        all_seen = asyncio.get_running_loop().create_future()

        async def handle(message: AbstractIncomingMessage, all_seen: asyncio.Future[None] = all_seen) -> None:
            seen.add(int(message.body))  # the work: doing it twice does no harm
            await message.ack()
            if len(seen) == MESSAGES and not all_seen.done():
                all_seen.set_result(None)

        try:
            channel = await connection.channel()
            await channel.set_qos(100)
            cancelled = asyncio.get_running_loop().create_future()
            underlay = await channel.get_underlay_channel()
            underlay.on_consumer_cancel_callbacks.add(cancelled.set_result)
            await (await declare(channel)).consume(handle)
            # A consumer notices a lost connection, or a deleted queue, through the callbacks only.
            await asyncio.wait([lost, cancelled, all_seen], return_when=asyncio.FIRST_COMPLETED)
            if lost.done():
                print(f"consumer: {lost.result()!r}", flush=True)
            if cancelled.done():
                print(
                    "consumer: cancelled, because its queue was deleted: declared and consumed again",
                    flush=True,
                )
        except LOST as error:
            check_lost(error)
            print(f"consumer: {error!r}", flush=True)
        await connection.close()
    print(f"{MESSAGES} messages are consumed", flush=True)


async def main() -> None:
    await asyncio.gather(publish(), consume())


if __name__ == "__main__":
    asyncio.run(main())
