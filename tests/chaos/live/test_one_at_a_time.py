"""Clients with one operation at a time keep their promises while the leader dies, a link is cut or a node is frozen.

A worker with prefetch 1 gets each confirmed message, and a second delivery is marked. A get finds a message that was
confirmed before. A direct reply comes at most once, in order, and only to its requester. A confirmed request gets its
reply in the exclusive queue of a requester whose connection lives.
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from contextlib import ExitStack, closing, suppress
from itertools import count
from typing import TYPE_CHECKING, Any, Self

import pika
import pytest

from tests.chaos.live.clients import ERRORS, PERSISTENT, QUORUM, connect

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from pika.adapters.blocking_connection import BlockingChannel

    from chaos.live.cluster import LiveCluster

pytestmark = [pytest.mark.xdist_group("live"), pytest.mark.timeout(180)]

REPLY_TO = "amq.rabbitmq.reply-to"
REPLIES = 3
"""Replies to each request, to see their order."""
PROGRESS = 5
"""Operations that a client must carry out to show that it is served."""
PATIENCE_S = 40.0
REPLY_S = 1.0
"""Seconds after which a direct reply is given up, because it may be lost."""
CUT_S = FROZEN_S = 3.0


class Client(ABC):
    """Repeats an operation in a thread, and connects again after an error."""

    def __init__(self, *urls: str) -> None:
        self.done = 0
        self.problems: list[str] = []
        self._urls = urls
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(0.05):
            with suppress(*ERRORS), ExitStack() as stack:
                connections = [stack.enter_context(closing(connect(url))) for url in self._urls]
                self.work(*[connection.channel() for connection in connections])

    @property
    def works(self) -> bool:
        return not self._stopping.is_set()

    @abstractmethod
    def work(self, *channels: BlockingChannel) -> None:
        """Work on new channels, one at each node, until the client is stopped."""


class Publisher(Client):
    """Publishes messages with confirms."""

    def __init__(self, queue: str, url: str) -> None:
        super().__init__(url)
        self.confirmed: set[bytes] = set()
        self._queue = queue
        self._numbers = count()

    def work(self, *channels: BlockingChannel) -> None:
        [channel] = channels
        channel.confirm_delivery()
        channel.queue_declare(self._queue, durable=True, arguments=QUORUM)
        while self.works:
            body = b"%d" % next(self._numbers)
            channel.basic_publish("", self._queue, body, PERSISTENT)
            self.confirmed.add(body)
            self.done += 1
            channel.connection.sleep(0.02)


class Consumer(Client):
    """Consumes with prefetch 1."""

    def __init__(self, queue: str, url: str) -> None:
        super().__init__(url)
        self._queue = queue

    def work(self, *channels: BlockingChannel) -> None:
        [channel] = channels
        channel.queue_declare(self._queue, durable=True, arguments=QUORUM)
        channel.basic_qos(prefetch_count=1)
        for method, properties, body in channel.consume(self._queue, inactivity_timeout=0.1):
            if method is not None:
                self.take(channel, method, properties, body)
                channel.basic_ack(method.delivery_tag)
                self.done += 1
            if not self.works:
                return

    @abstractmethod
    def take(self, channel: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
        """Work on a message before it is acknowledged."""


class Worker(Consumer):
    def __init__(self, queue: str, url: str) -> None:
        super().__init__(queue, url)
        self.taken: set[bytes] = set()

    def take(self, channel: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
        if body in self.taken and not method.redelivered:
            self.problems.append(f"{body!r} is delivered again without a mark")
        self.taken.add(body)


class Responder(Consumer):
    """Answers each request with several replies. It can be held between a request and its replies."""

    def __init__(self, queue: str, url: str) -> None:
        super().__init__(queue, url)
        self.goes_on, self.is_held = threading.Event(), threading.Event()
        self.goes_on.set()
        self._numbers = count(1)

    def take(self, channel: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
        if not self.goes_on.is_set():
            self.is_held.set()
            self.goes_on.wait(PATIENCE_S)
        for _ in range(REPLIES):
            reply = b"%s %d %d" % (body, id(channel), next(self._numbers))
            channel.basic_publish("", properties.reply_to, reply)


class Poller(Client):
    """Publishes a message at a node, and gets it at a different node."""

    def __init__(self, queue: str, *urls: str) -> None:
        super().__init__(*urls)
        self._queue = queue
        self._numbers = count()

    def work(self, *channels: BlockingChannel) -> None:
        publishing, getting = channels
        publishing.confirm_delivery()
        publishing.queue_declare(self._queue, durable=True, arguments=QUORUM)
        while self.works:
            expected, body = b"%d" % next(self._numbers), None
            publishing.basic_publish("", self._queue, expected, PERSISTENT)
            while body != expected:
                method, _, body = getting.basic_get(self._queue)
                if method is None:
                    self.problems.append(f"{expected!r} is confirmed, and the queue is empty")
                    return
                getting.basic_ack(method.delivery_tag)
            self.done += 1


class Requester(Client):
    """Makes a request at a time, and waits for its replies."""

    def __init__(self, queue: str, url: str) -> None:
        super().__init__(url)
        self._queue = queue
        self._numbers = count()
        self._last: dict[bytes, int] = defaultdict(int)
        """Number of the last reply of each channel of the responder."""
        self._replies: dict[bytes, int] = {}
        """Number of replies to each request on this channel."""

    @abstractmethod
    def consume(self, channel: BlockingChannel) -> str:
        """Consume replies, and return their address."""

    @abstractmethod
    def replied(self, request: bytes, *, waited_s: float) -> bool:
        """Return whether the next request may begin."""

    def work(self, *channels: BlockingChannel) -> None:
        [channel] = channels
        self._replies.clear()
        channel.confirm_delivery()
        channel.queue_declare(self._queue, durable=True, arguments=QUORUM)
        address = pika.BasicProperties(reply_to=self.consume(channel))
        while self.works:
            request = b"%d" % next(self._numbers)
            self._replies[request] = 0
            channel.basic_publish("", self._queue, request, address)
            began_s = time.monotonic()
            while self.works and not self.replied(request, waited_s=time.monotonic() - began_s):
                channel.connection.process_data_events(0.1)

    def take(self, _channel: object, method: Any, _properties: object, body: bytes) -> None:
        request, responder, number = body.split()
        if request not in self._replies:
            self.problems.append(f"a reply to {request!r}, which was not requested on this channel")
            return
        self._replies[request] += 1
        if int(number) <= self._last[responder] and not method.redelivered:
            self.problems.append(f"reply {int(number)} after {self._last[responder]}")
        self._last[responder] = int(number)
        self.done += self._replies[request] == REPLIES


class DirectRequester(Requester):
    def consume(self, channel: BlockingChannel) -> str:
        channel.basic_consume(REPLY_TO, self.take, auto_ack=True)
        return REPLY_TO

    def replied(self, request: bytes, *, waited_s: float) -> bool:
        return self._replies[request] >= REPLIES or waited_s > REPLY_S


class ExclusiveRequester(Requester):
    def consume(self, channel: BlockingChannel) -> str:
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.basic_consume(queue, self.take, auto_ack=True)
        return queue

    def replied(self, request: bytes, *, waited_s: float) -> bool:
        is_late = waited_s > PATIENCE_S
        if is_late:
            self.problems.append(f"request {request!r} is confirmed and has no reply after {waited_s:.0f} s")
        return self._replies[request] >= REPLIES or is_late


async def leader_is_killed(cluster: LiveCluster, leader: str, _followers: Sequence[str]) -> Recovery:
    await cluster.kill(leader)

    async def start() -> None:
        await cluster.start(leader)

    return start


async def link_is_cut(cluster: LiveCluster, _leader: str, followers: Sequence[str]) -> Recovery:
    """Cut the link between the requesters' and the responders' node."""
    links = [*cluster.links(*followers), *cluster.links(*reversed(followers))]
    await cluster.hurt(links, "cut", "timeout", timeout=0)

    async def heal() -> None:
        await asyncio.sleep(CUT_S)
        await cluster.relieve("cut")

    return heal


async def node_is_frozen(cluster: LiveCluster, _leader: str, followers: Sequence[str]) -> Recovery:
    """Freeze the responders' node."""
    cluster.freeze(followers[1])

    async def thaw() -> None:
        await asyncio.sleep(FROZEN_S)
        cluster.thaw(followers[1])

    return thaw


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 -- other threads work
            await asyncio.sleep(0.05)


async def until_done(clients: Sequence[Client]) -> None:
    """Wait until each client has carried out some operations more."""
    goals = [client.done + PROGRESS for client in clients]
    await until(lambda: all(client.done >= goal for client, goal in zip(clients, goals, strict=True)))


if TYPE_CHECKING:
    Recovery = Callable[[], Awaitable[None]]
    Fault = Callable[[LiveCluster, str, Sequence[str]], Awaitable[Recovery]]


@pytest.mark.parametrize(
    "fault",
    [leader_is_killed, pytest.param(link_is_cut, marks=pytest.mark.long), node_is_frozen],
    ids=lambda fault: fault.__name__,
)
def test_clients_of_single_operations_under_a_fault(
    runner: asyncio.Runner, cluster: LiveCluster, fault: Fault
) -> None:
    async def check() -> None:
        leader = await cluster.leader()
        followers = [name for name in cluster.names if name != leader]
        here, there = (cluster.endpoints[name] for name in followers)
        name = fault.__name__
        publisher, worker = Publisher(f"{name} work", here), Worker(f"{name} work", there)
        poller = Poller(f"{name} polls", here, there)
        responders = [Responder(f"{name} {kind}", there) for kind in ("direct", "exclusive")]
        requesters = [DirectRequester(f"{name} direct", here), ExclusiveRequester(f"{name} exclusive", here)]
        clients: list[Client] = [publisher, worker, poller, *responders, *requesters]
        with ExitStack() as stack:
            for client in clients:
                stack.enter_context(client)
            await until_done(clients)
            for responder in responders:
                responder.goes_on.clear()
            for responder in responders:
                assert await asyncio.to_thread(responder.is_held.wait, PATIENCE_S)
            recover = await fault(cluster, leader, followers)
            for responder in responders:
                responder.goes_on.set()
            if fault is not node_is_frozen:
                await until_done(clients)
            await recover()
            await cluster.wait_ready(*cluster.names)
            await until_done(clients)
            publisher.__exit__()
            await until(lambda: publisher.confirmed <= worker.taken)
        assert [problem for client in clients for problem in client.problems] == []

    runner.run(check())
