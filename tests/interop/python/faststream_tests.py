"""Tests of FastStream, because its package has no tests: subscribers and publishers of its RabbitMQ broker."""

from __future__ import annotations

import asyncio
import os
import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from faststream import AckPolicy
from faststream.rabbit import Channel, ExchangeType, QueueType, RabbitBroker, RabbitExchange, RabbitQueue
from faststream.rabbit.annotations import RabbitMessage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine

URL = os.environ["AMQP_URI"]
WAIT_S = 10.0


def test_a_message_is_handled_and_its_result_published() -> None:
    requests, answers = quorum_queue(), quorum_queue()
    results: asyncio.Queue[Any] = asyncio.Queue()

    def subscribe(broker: RabbitBroker) -> None:
        @broker.subscriber(requests)
        @broker.publisher(answers)
        async def double(number: int) -> int:
            return 2 * number

        @broker.subscriber(answers)
        async def take(number: int) -> None:
            results.put_nowait(number)

    async def story(broker: RabbitBroker) -> None:
        for number in range(20):
            await broker.publish(number, requests)
        assert [await arriving(results) for _ in range(20)] == [2 * number for number in range(20)]

    run(subscribe, story)


def test_a_request_is_answered() -> None:
    queue = quorum_queue()

    def subscribe(broker: RabbitBroker) -> None:
        @broker.subscriber(queue)
        async def upper(text: str) -> str:
            return text.upper()

    async def story(broker: RabbitBroker) -> None:
        requests = [broker.request(text, queue, timeout=WAIT_S) for text in ("a", "b", "c")]
        assert [await answer.decode() for answer in await asyncio.gather(*requests)] == ["A", "B", "C"]

    run(subscribe, story)


@pytest.mark.parametrize(
    ("policy", "seen"), [(AckPolicy.NACK_ON_ERROR, [False, True]), (AckPolicy.REJECT_ON_ERROR, [False])]
)
def test_failed_handler_requeues_or_rejects_as_its_policy_says(policy: AckPolicy, seen: list[bool]) -> None:
    queue, marks = quorum_queue(), asyncio.Queue[bool]()

    def subscribe(broker: RabbitBroker) -> None:
        @broker.subscriber(queue, ack_policy=policy)
        async def fail_first(text: str, message: RabbitMessage) -> None:
            marks.put_nowait(message.raw_message.redelivered)
            if not message.raw_message.redelivered:
                raise ValueError(text)

    async def story(broker: RabbitBroker) -> None:
        await broker.publish("x", queue)
        assert [await arriving(marks) for _ in seen] == seen
        await asyncio.sleep(0.3)
        assert marks.empty()

    run(subscribe, story)


@pytest.mark.parametrize("kind", [ExchangeType.TOPIC, ExchangeType.FANOUT, ExchangeType.HEADERS])
def test_an_exchange_routes_to_subscribers(kind: ExchangeType) -> None:
    exchange = RabbitExchange(str(uuid.uuid4()), type=kind, auto_delete=True)
    queue = RabbitQueue(
        str(uuid.uuid4()), exclusive=True, routing_key="a.*", bind_arguments={"x-match": "any", "kind": "x"}
    )
    texts: asyncio.Queue[str] = asyncio.Queue()

    def subscribe(broker: RabbitBroker) -> None:
        @broker.subscriber(queue, exchange)
        async def take(text: str) -> None:
            texts.put_nowait(text)

    async def story(broker: RabbitBroker) -> None:
        await broker.publish("hello", exchange=exchange, routing_key="a.b", headers={"kind": "x"})
        assert await arriving(texts) == "hello"

    run(subscribe, story)


def test_prefetch_limits_the_tasks_handled_at_once() -> None:
    queue, running, most = quorum_queue(), 0, 0
    ended: asyncio.Queue[int] = asyncio.Queue()

    def subscribe(broker: RabbitBroker) -> None:
        @broker.subscriber(queue, channel=Channel(prefetch_count=2))
        async def work(number: int) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.02)
            running -= 1
            ended.put_nowait(number)

    async def story(broker: RabbitBroker) -> None:
        for number in range(10):
            await broker.publish(number, queue)
        assert {await arriving(ended) for _ in range(10)} == set(range(10))
        assert most == 2

    run(subscribe, story)


def quorum_queue() -> RabbitQueue:
    return RabbitQueue(
        str(uuid.uuid4()), queue_type=QueueType.QUORUM, durable=True, arguments={"x-expires": 60000}
    )


async def arriving(queue: asyncio.Queue[Any]) -> Any:
    return await asyncio.wait_for(queue.get(), WAIT_S)


def run(
    subscribe: Callable[[RabbitBroker], None], story: Callable[[RabbitBroker], Coroutine[Any, Any, None]]
) -> None:
    async def whole() -> None:
        async with started(subscribe) as broker:
            await story(broker)

    asyncio.run(whole())


@asynccontextmanager
async def started(subscribe: Callable[[RabbitBroker], None]) -> AsyncGenerator[RabbitBroker]:
    broker = RabbitBroker(URL, logger=None)
    subscribe(broker)
    async with broker:
        await broker.start()
        yield broker
