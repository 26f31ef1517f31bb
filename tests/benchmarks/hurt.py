"""Measure the cost of a single slow disk, peer or client for all other clients: a part of `make bench`.

A light client waits for each confirm of a real three-node cluster: first without a fault, then with a fault. The
cluster is that of chaos runs: disks whose syncs take longer, and Toxiproxy between the nodes, which is on their way
in both cases. Prints a Markdown table with the missed aims of each row: a client that does not depend on the slow
part waits at most twice as long as without the fault. Ends with status 1 if an aim was missed.

    python tests/benchmarks/hurt.py [--only REGEX] [--seconds 3] [--repeat 3]
"""

from __future__ import annotations

import argparse
import asyncio
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pika import BasicProperties, frame, spec

from chaos.live.cluster import LiveCluster
from tests.benchmarks.bench import QUORUM, amqpload, load

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Sequence
    from contextlib import AbstractAsyncContextManager

SYNC_S = 0.2
"""How much longer a slow disk's syncs take."""
PEER_KB_PER_S = 100
"""How much a slow peer reads in a second, in units of 1000 bytes."""
DEAF = 4
"""How many clients do not read."""
FACTOR_MAX = 2.0
"""Aim: with the slow part, the light client waits at most so many times as long."""
SETTLE_S = 1.0
"""Seconds in which the nodes must detect the fault, for example a slow disk by its first slow write."""
LIGHT = ["-q", "light", "-w", "1", "-s", "12"]
FLOOD = ["-q", "flood", "-s", "1024", "-w", "200", "-P", "2", "-C", "2", "--rate", "2000", "both"]
"""Load beside the light client while a consumer does not read its deliveries."""
HEAVY = ["-q", "deaf", "-s", "100", "-w", "1000", "-P", str(DEAF), "publish"]
"""Load of publishers that read their confirms, to compare deaf publishers with."""
WARM_UP_S = 1.0
QUEUES = ("light", "flood", "deaf")


class Waited(NamedTuple):
    """For each confirm, in milliseconds."""

    p50_ms: float
    p99_ms: float

    def __str__(self) -> str:
        return f"{self.p50_ms:.2f} | {self.p99_ms:.2f}"


class Hurt(NamedTuple):
    name: str
    through: str
    """The node that the light client is connected to: `leader`, `follower` or `hurt`."""
    inflict: Callable[[LiveCluster, str], AbstractAsyncContextManager[None]]
    """The fault, for the time of the block; its argument is the name of the leader."""
    beside: Sequence[str] = ()
    """A load that is there all the time, if any."""
    instead: Sequence[str] = ()
    """Load before the fault, in its place, if any."""


def follower_of(cluster: LiveCluster, leader: str) -> str:
    return next(name for name in cluster.names if name != leader)


@asynccontextmanager
async def slow_disk(cluster: LiveCluster, name: str) -> AsyncGenerator[None]:
    cluster.set_faults(name, sync_delay_s=SYNC_S)
    try:
        yield
    finally:
        cluster.set_faults(name, sync_delay_s=0.0)


@asynccontextmanager
async def slow_peer(cluster: LiveCluster, leader: str) -> AsyncGenerator[None]:
    links = cluster.links(leader, follower_of(cluster, leader))
    await cluster.hurt(links, "slow", "bandwidth", rate=PEER_KB_PER_S)
    try:
        yield
    finally:
        await cluster.relieve("slow")


class Deaf:
    """A client that writes as much as the node accepts, and never reads."""

    def __init__(self, at: str) -> None:
        host, _, port = at.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._thread: threading.Thread | None = None
        start = spec.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US")
        self._request(b"AMQP\x00\x00\x09\x01")
        self._request(frame.Method(0, start).marshal())
        tuned = frame.Method(0, spec.Connection.TuneOk(2047, 131072, 0)).marshal()
        self._request(tuned + frame.Method(0, spec.Connection.Open("/")).marshal())
        self._request(frame.Method(1, spec.Channel.Open()).marshal())

    def _request(self, data: bytes) -> None:
        self._socket.sendall(data)
        self._socket.recv(65536)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        if self._thread is not None:
            self._thread.join()

    def consume(self, queue: str) -> None:
        self._socket.sendall(frame.Method(1, spec.Basic.Consume(queue=queue, no_ack=True)).marshal())

    def publish(self, queue: str, body: bytes, *, mandatory: bool = False) -> None:
        """Publish without end, beside the caller."""
        self._socket.sendall(frame.Method(1, spec.Confirm.Select()).marshal())
        method = frame.Method(1, spec.Basic.Publish(routing_key=queue, mandatory=mandatory)).marshal()
        header = frame.Header(1, len(body), BasicProperties(delivery_mode=2)).marshal()
        message = method + header + frame.Body(1, body).marshal()
        many = message * max(1, 65536 // len(message))
        self._thread = threading.Thread(target=self._write_all, args=(many,), daemon=True)
        self._thread.start()

    def _write_all(self, data: bytes) -> None:
        try:
            while True:
                self._socket.sendall(data)
        except OSError:
            return


def endpoint(cluster: LiveCluster, name: str) -> str:
    """Where a node listens for clients, without a proxy."""
    return cluster.direct[name].rpartition("@")[2].rstrip("/")


@asynccontextmanager
async def deaf(cluster: LiveCluster, leader: str, begin: Callable[[Deaf], None]) -> AsyncGenerator[None]:
    with ExitStack() as cleanup:
        for _ in range(DEAF):
            client = await asyncio.to_thread(Deaf, endpoint(cluster, leader))
            cleanup.callback(client.close)
            begin(client)
        yield


def slow_follower(cluster: LiveCluster, leader: str) -> AbstractAsyncContextManager[None]:
    return slow_disk(cluster, follower_of(cluster, leader))


def deaf_consumers(cluster: LiveCluster, leader: str) -> AbstractAsyncContextManager[None]:
    return deaf(cluster, leader, lambda client: client.consume("flood"))


def deaf_to_confirms(cluster: LiveCluster, leader: str) -> AbstractAsyncContextManager[None]:
    return deaf(cluster, leader, lambda client: client.publish("deaf", b"x" * 100))


def deaf_to_returns(cluster: LiveCluster, leader: str) -> AbstractAsyncContextManager[None]:
    return deaf(cluster, leader, lambda client: client.publish("nowhere", b"x" * 1024, mandatory=True))


def hurts() -> list[Hurt]:
    return [
        Hurt("a follower's disk", "leader", slow_follower),
        Hurt("a follower's disk", "follower", slow_follower),
        Hurt("a follower's disk", "hurt", slow_follower),
        Hurt("a follower's disk", "leader", slow_follower, FLOOD),
        Hurt("the leader's disk", "hurt", slow_disk),
        Hurt("the leader's disk", "follower", slow_disk),
        Hurt("the leader's disk", "follower", slow_disk, FLOOD),
        Hurt("a peer that reads slowly", "leader", slow_peer, FLOOD),
        Hurt("a peer that reads slowly", "follower", slow_peer, FLOOD),
        Hurt(f"{DEAF} consumers that never read", "leader", deaf_consumers, FLOOD),
        Hurt(f"{DEAF} publishers that never read confirms", "leader", deaf_to_confirms, instead=HEAVY),
        Hurt(f"{DEAF} publishers that never read returns", "leader", deaf_to_returns, instead=HEAVY),
    ]


@contextmanager
def loaded(at: str, options: Sequence[str]) -> Generator[None]:
    if not options:
        yield
        return
    command = [amqpload(), "-H", at, *QUORUM, "-t", "600", "--timeout", "600", *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def measured(cluster: LiveCluster, hurt: Hurt, seconds: float) -> tuple[Waited, Waited]:
    """How long the light client waits before something is wrong, and while it is."""
    leader = await cluster.leader()
    slow, other = [name for name in cluster.names if name != leader]
    hurt_node = leader if hurt.inflict is slow_disk else slow
    at = endpoint(cluster, {"leader": leader, "follower": other, "hurt": hurt_node}[hurt.through])
    for queue in QUEUES:
        await asyncio.to_thread(load, [at], "-q", queue, "declare")
    with loaded(endpoint(cluster, leader), hurt.beside):
        with loaded(endpoint(cluster, leader), hurt.instead):
            await asyncio.sleep(WARM_UP_S)
            before = await light(at, seconds)
        async with hurt.inflict(cluster, leader):
            await asyncio.sleep(SETTLE_S)
            during = await light(at, seconds)
    for queue in QUEUES:
        await asyncio.to_thread(load, [at], "-q", queue, "delete")
    return before, during


async def light(at: str, seconds: float) -> Waited:
    result = await asyncio.to_thread(load, [at], *LIGHT, "-t", str(seconds), "publish")
    if not result.get("ok"):
        sys.exit(f"the light client has failed: {result.get('error')}")
    times = result["confirm_us"]
    return Waited(times["p50"] / 1000, times["p99"] / 1000)


async def run(only: str, seconds: float, repeat: int) -> bool:
    """Print the table; True if something was missed."""
    titles = ["slow", "light client through", "beside", "p50 ms", "p99", "with it p50 ms", "p99", "missed"]
    print(f"| {' | '.join(titles)} |\n{'|---' * len(titles)}|")
    is_missed = False
    with tempfile.TemporaryDirectory(prefix="qq-hurt-") as directory:
        async with LiveCluster(Path(directory)) as cluster:
            for hurt in hurts():
                if not re.search(only, f"{hurt.name} {hurt.through}"):
                    continue
                runs = [await measured(cluster, hurt, seconds) for _ in range(repeat)]
                before, during = (
                    Waited(*map(statistics.median, zip(*each, strict=True)))
                    for each in zip(*runs, strict=True)
                )
                missed = [
                    f"{name} at most {FACTOR_MAX:g} times as long"
                    for name, then, now in zip(("p50", "p99"), before, during, strict=True)
                    if now > FACTOR_MAX * then
                ]
                beside = "others" if hurt.beside or hurt.instead else ""
                print(
                    f"| {hurt.name} | {hurt.through} | {beside} | {before} | {during} | {'; '.join(missed)} |",
                    flush=True,
                )
                is_missed = is_missed or bool(missed)
    return is_missed


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="regular expression: the rows to measure")
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    return 1 if asyncio.run(run(options.only, options.seconds, options.repeat)) else 0


if __name__ == "__main__":
    sys.exit(main())
