"""Publish 2,000 numbered messages and consume them with FastStream, on nodes that may be killed.

python survive_faststream.py [URL]      the address of a load balancer; by default the first node of `qq up`

It needs: pip install 'faststream[rabbit]'
"""

import asyncio
import sys

from aio_pika.exceptions import AMQPError, ChannelInvalidStateError, DeliveryError
from faststream import AckPolicy
from faststream.rabbit import Channel, QueueType, RabbitBroker, RabbitQueue

[URL] = sys.argv[1:] or ["amqp://guest:guest@127.0.0.1:5672/"]
MESSAGES = 2000
LOST = (OSError, AMQPError, TimeoutError, ChannelInvalidStateError)

broker = RabbitBroker(
    f"{URL}?heartbeat=5",  # notice a host that is gone
    timeout=5,  # a host that is gone refuses nothing
    reconnect_interval=1,
    fail_fast=False,  # also the first connection is tried until a node answers
    default_channel=Channel(prefetch_count=100, publisher_confirms=True),
)
orders = RabbitQueue("survive-faststream", queue_type=QueueType.QUORUM, durable=True)
seen: set[int] = set()
all_seen = asyncio.Event()


@broker.subscriber(orders, ack_policy=AckPolicy.NACK_ON_ERROR)
async def handle(number: int) -> None:
    """Do the work: doing it twice does no harm. The message is acknowledged when this returns."""
    seen.add(number)
    if len(seen) == MESSAGES:
        all_seen.set()


async def publish(number: int) -> None:
    """Publish a message until it is confirmed."""
    while True:
        try:
            await broker.publish(number, orders, persist=True, timeout=10)
        except DeliveryError:
            print(f"publisher: message {number} is refused by a full queue", flush=True)
        except LOST as error:
            # Whether this message is stored is unknown, so it is published again: it may come twice.
            print(f"publisher: {error!r} at message {number}", flush=True)
        else:
            return
        await asyncio.sleep(1)


async def main() -> None:
    await broker.start()
    for number in range(1, MESSAGES + 1):
        await publish(number)
    print(f"{MESSAGES} messages are confirmed", flush=True)
    await all_seen.wait()
    print(f"{MESSAGES} messages are consumed", flush=True)
    await broker.stop()


if __name__ == "__main__":
    asyncio.run(main())
