"""Measure the cost of many connections, and the speed of queue declarations: a part of `make bench`.

1. Idle connections to a node: their rate of acceptance, up to connection.open-ok, and the node's memory for each. 2.
Idle consumers: the memory of a node for a connection of AMQP 0-9-1 with a channel and a consumer, and the memory of
another node for one of AMQP 1.0 with a session and a link. 3. Connections that publish slowly on ten channels each,
with confirms: the answer time of a request that needs no log (channel.flow, on an otherwise unused channel). It stands
in for heartbeats, which AMQP does not answer: the node sends its own by a timer, and is as late with them as with this
answer. 4. Quorum queues declared one after the other on a connection.

Prints a Markdown table with the aims, and fails if an aim is missed.

    python tests/benchmarks/connections.py [--idle 10000] [--consuming 3000] [--publishing 1000] [--queues 1000]
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import statistics
import sys
import time
from itertools import cycle, islice
from typing import Any, NamedTuple, TypeVar

import pamqp.frame
import pika
from pamqp import commands, header
from pamqp.base import Frame
from pamqp.body import ContentBody
from pamqp.heartbeat import Heartbeat

from qq.amqp10.connection import AMQP_HEADER, SASL_HEADER
from qq.amqp10.performatives import (
    AttachFrame,
    BeginFrame,
    OpenFrame,
    SaslInit,
    SourceTerminus,
    TargetTerminus,
)
from qq.testing import ClusterNode, LocalCluster
from tests.amqp10.amqp10_wire import StreamStage, frame
from tests.benchmarks.bench import resident_bytes

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
OPENING = 100
"""Connections that are opened at a time."""
CHANNELS = 10
PUBLISH_EVERY_S = 10.0
"""Of each channel."""
PROBE_EVERY_S = 0.01
PROBE_FOR_S = 20.0
QUEUE = "slow"
KIB = 2**10

ANSWER_P99_MS = 100.0
"""Aim: a tenth of a second is not noticed by clients that wait for a heartbeat or for an answer that needs no log."""
MEMORY_10_MAX = 1.2
"""Aim: memory of an idle consumer of AMQP 1.0 as a multiple of that of AMQP 0-9-1."""
RABBITMQ_MS = {"declared": 43.0, "deleted": 25.0}
RABBITMQ_S = {"declared": 47.1, "deleted": 29.5}
"""Median of each call, and all of 1000: RabbitMQ 4.0.5, three nodes and the client on two cores, a single run."""
RABBITMQ_QUEUES = 1000


class Row(NamedTuple):
    """Figures, and the aim if there is any."""

    name: str
    figures: str
    aim: str = ""
    met: bool = True

    def __str__(self) -> str:
        verdict = ("met" if self.met else "MISSED") if self.aim else ""
        return f"| {self.name} | {self.figures} | {self.aim} | {verdict} |"


class Client(asyncio.Protocol):
    """A connection that records only the arrival of frames."""

    def __init__(self) -> None:
        self._buffer = b""
        self._waiting: dict[tuple[int, str], asyncio.Future[Frame]] = {}

    def connection_made(self, transport: Any) -> None:
        self._transport: asyncio.Transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while self._buffer:
            consumed, channel, frame = pamqp.frame.unmarshal(self._buffer)
            self._buffer = self._buffer[consumed:]
            if isinstance(frame, Heartbeat):
                self._transport.write(pamqp.frame.marshal(Heartbeat(), 0))
                continue
            waiting = self._waiting.pop((channel, frame.name), None)
            if waiting is not None:
                waiting.set_result(frame)
            elif not isinstance(frame, commands.Basic.Ack):
                raise RuntimeError(f"unexpected: {frame.name} {dict(frame)}")

    def send(self, channel: int, *frames: Any) -> None:
        self._transport.write(b"".join(pamqp.frame.marshal(frame, channel) for frame in frames))

    def expect(self, channel: int, answer: str) -> asyncio.Future[Frame]:
        """The next frame of this name on the channel, when it comes."""
        waiting = self._waiting[channel, answer] = asyncio.get_running_loop().create_future()
        return waiting

    async def request(self, channel: int, frame: Frame, answer: str) -> Frame:
        waiting = self.expect(channel, answer)
        self.send(channel, frame)
        return await waiting

    async def open(self) -> None:
        started = self.expect(0, "Connection.Start")
        self._transport.write(PROTOCOL_HEADER)
        await started
        login = commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US")
        tune: Any = await self.request(0, login, "Connection.Tune")
        self.send(0, commands.Connection.TuneOk(tune.channel_max, tune.frame_max, tune.heartbeat))
        await self.request(0, commands.Connection.Open("/"), "Connection.OpenOk")

    async def consume(self) -> None:
        await self.request(1, commands.Channel.Open(), "Channel.OpenOk")
        await self.request(1, commands.Basic.Consume(queue=QUEUE), "Basic.ConsumeOk")

    def publish(self, channel: int) -> None:
        self.send(
            channel,
            commands.Basic.Publish(exchange="", routing_key=QUEUE),
            header.ContentHeader(body_size=12),
            ContentBody(bytes(12)),
        )

    def close(self) -> None:
        self._transport.abort()


class Client10(asyncio.Protocol):
    """A connection of AMQP 1.0 with a link on which it consumes. It sends all frames at once."""

    REQUESTS = b"".join(
        (
            SASL_HEADER,
            frame(SaslInit("PLAIN", b"\0guest\0guest"), stage=StreamStage.SASL),
            AMQP_HEADER,
            frame(OpenFrame("idle")),
            frame(BeginFrame(None, 0, 1000, 1000)),
            frame(
                AttachFrame(
                    "link", 0, True, source=SourceTerminus(f"/queues/{QUEUE}"), target=TargetTerminus()
                )
            ),
        )
    )
    ATTACHED = b"\x00\x53\x12"

    def __init__(self) -> None:
        self._buffer = b""
        self._attached: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport: asyncio.Transport = transport
        self._transport.write(self.REQUESTS)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self.ATTACHED in self._buffer and not self._attached.done():
            self._attached.set_result(None)

    async def open(self) -> None:
        await self._attached

    async def consume(self) -> None:
        """Nothing is left to do: the link is attached when the connection has opened."""

    def close(self) -> None:
        self._transport.abort()


ClientT = TypeVar("ClientT", Client, Client10)


async def connected(port: int, count: int, kind: type[ClientT] = Client) -> list[ClientT]:
    """So many open connections."""
    loop = asyncio.get_running_loop()
    gate = asyncio.Semaphore(OPENING)

    async def connect() -> ClientT:
        async with gate:
            _, client = await loop.create_connection(kind, "127.0.0.1", port)
            await client.open()
            return client

    return await asyncio.gather(*(connect() for _ in range(count)))


async def measure_idle(node: ClusterNode, port: int, count: int) -> list[Row]:
    # The first connections have costs that later connections do not have.
    for client in await connected(port, min(count, OPENING)):
        client.close()
    await asyncio.sleep(1)
    before, begun = resident_bytes(node.pid), time.monotonic()
    clients = await connected(port, count)
    seconds = time.monotonic() - begun
    await asyncio.sleep(2)
    each = (resident_bytes(node.pid) - before) / count / KIB
    for client in clients:
        client.close()
    await asyncio.sleep(2)
    name = f"{count:,} idle connections"
    return [
        Row(f"{name}: opened", f"{seconds:.1f} s, {count / seconds:,.0f}/s"),
        Row(f"{name}: memory", f"{each:.1f} KiB each"),
    ]


async def measure_consuming(nodes: list[ClusterNode], count: int) -> list[Row]:
    """Compare two nodes of the same role, so that memory which one protocol has freed does not help the other."""
    clients: list[Client | Client10] = []
    each_kib: list[float] = []
    for node, kind in zip(nodes, (Client, Client10), strict=True):
        for opened in (
            min(count, OPENING),
            count,
        ):  # the first connections have costs that later ones do not have
            await asyncio.sleep(1)
            before = resident_bytes(node.pid)
            opening = await connected(node.amqp_port, opened, kind)
            await asyncio.gather(*(client.consume() for client in opening))
            clients += opening
        await asyncio.sleep(2)
        each_kib.append((resident_bytes(node.pid) - before) / count / KIB)
    for client in clients:
        client.close()
    await asyncio.sleep(2)
    over_091, over_10 = each_kib
    return [
        Row(
            f"{count:,} idle consumers of each protocol: memory",
            f"AMQP 0-9-1 {over_091:.1f} KiB each, 1.0 {over_10:.1f} KiB each",
            f"1.0 at most {MEMORY_10_MAX} times 0-9-1",
            over_10 <= MEMORY_10_MAX * over_091,
        )
    ]


async def measure_publishing(port: int, count: int) -> list[Row]:
    clients = await connected(port, count)
    for client in clients:
        for channel in range(1, CHANNELS + 1):
            await client.request(channel, commands.Channel.Open(), "Channel.OpenOk")
            await client.request(channel, commands.Confirm.Select(), "Confirm.SelectOk")
    (probe,) = await connected(port, 1)
    await probe.request(1, commands.Channel.Open(), "Channel.OpenOk")
    publishers = cycle([(client, channel) for client in clients for channel in range(1, CHANNELS + 1)])
    portion = round(len(clients) * CHANNELS * PROBE_EVERY_S / PUBLISH_EVERY_S)
    took_ms: list[float] = []
    end = time.monotonic() + PROBE_FOR_S
    while time.monotonic() < end:
        for client, channel in islice(publishers, portion):
            client.publish(channel)
        begun = time.perf_counter()
        await probe.request(1, commands.Channel.Flow(active=True), "Channel.FlowOk")
        took_ms.append((time.perf_counter() - begun) * 1000)
        await asyncio.sleep(PROBE_EVERY_S)
    for client in (*clients, probe):
        client.close()
    cuts = statistics.quantiles(took_ms, n=100)
    p99_ms = cuts[98]
    name = f"{count:,} connections x {CHANNELS} channels, each publishing every {PUBLISH_EVERY_S:.0f} s"
    return [
        Row(
            f"{name}: channel.flow-ok",
            f"p50 {cuts[49]:.1f} ms, p99 {p99_ms:.1f} ms, max {max(took_ms):.1f} ms",
            f"p99 below {ANSWER_P99_MS:.0f} ms",
            p99_ms < ANSWER_P99_MS,
        )
    ]


def measure_declaring(url: str, count: int) -> list[Row]:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    rows: list[Row] = []
    for verb, call in (
        (
            "declared",
            lambda name: channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum"}),
        ),
        ("deleted", channel.queue_delete),
    ):
        took_ms: list[float] = []
        begun = time.monotonic()
        for number in range(count):
            start = time.perf_counter()
            call(f"many-{number}")
            took_ms.append((time.perf_counter() - start) * 1000)
        seconds = time.monotonic() - begun
        rows.append(beside_rabbitmq(verb, count, seconds, statistics.median(took_ms)))
    connection.close()
    return rows


def beside_rabbitmq(verb: str, count: int, seconds: float, p50_ms: float) -> Row:
    rival_s, rival_ms = RABBITMQ_S[verb] * count / RABBITMQ_QUEUES, RABBITMQ_MS[verb]
    return Row(
        f"{count:,} quorum queues {verb}",
        f"{seconds:.1f} s, p50 {p50_ms:.2f} ms each",
        f"below RabbitMQ's {rival_s:.1f} s, p50 {rival_ms:.0f} ms",
        seconds < rival_s and p50_ms < rival_ms,
    )


def allow_files() -> None:
    """Raise the limit of open files of this process and the nodes that it starts to the hard limit."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))


def shown(rows: list[Row]) -> bool:
    """Print rows; returns whether all aims are met."""
    for row in rows:
        print(row, flush=True)
    return all(row.met for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--idle", type=int, default=10_000)
    parser.add_argument("--consuming", type=int, default=3000)
    parser.add_argument("--publishing", type=int, default=1000)
    parser.add_argument("--queues", type=int, default=1000)
    options = parser.parse_args()
    allow_files()
    print("| many clients | | aim | |\n|---|---|---|---|")
    with LocalCluster(3) as cluster:
        leader = cluster.leader()
        url = cluster.urls[cluster.nodes.index(leader)]
        port = pika.URLParameters(url).port
        with pika.BlockingConnection(pika.URLParameters(url)) as connection:
            arguments = {"x-queue-type": "quorum"}
            connection.channel().queue_declare(QUEUE, durable=True, arguments=arguments)
        followers = [node for node in cluster.nodes if node is not leader]
        parts = [
            lambda: asyncio.run(measure_idle(leader, port, options.idle)) if options.idle else [],
            lambda: asyncio.run(measure_consuming(followers, options.consuming)) if options.consuming else [],
            lambda: asyncio.run(measure_publishing(port, options.publishing)) if options.publishing else [],
            lambda: measure_declaring(url, options.queues) if options.queues else [],
        ]
        met = [shown(part()) for part in parts]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
