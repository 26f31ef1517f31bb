"""Measure the cost of watching a large cluster: a part of `make bench`.

The cluster has many queues with an additional binding each, a few messages in every tenth queue, and many idle
connections. Every five seconds, a node is asked for every resource of its HTTP API that can be read without a name,
the first page of each list, and all nodes are scraped for all of their metrics. A publisher waits for each of its
confirms. Phases with and without watching alternate: the figures are the processor time that watching takes of each
node, and the additional wait of the publisher.

Prints a Markdown table with the aims, and fails if an aim is missed.

    python tests/benchmarks/watching.py [--queues 10000] [--connections 1000] [--seconds 20] [--repeat 3] [--each]

With `--each`, the processor time of the nodes for each request is printed, too.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple, cast

import aiohttp
import pika
from aiohttp import hdrs
from pamqp import commands, header
from pamqp.body import ContentBody

from qq.http import api
from qq.http.base.listener import HttpLimits
from qq.testing import ClusterNode, LocalCluster
from tests.benchmarks.connections import Client, Row, allow_files, connected, shown

EVERY_S = 5.0
PUBLISH_EVERY_S = 0.01
PAGE = "page=1&page_size=100"
UNWATCHED = ("/api/cluster/backup", "/api/definitions", "/api/all-configuration")
"""Complete copies, which are not requested for watching."""
IMPORTED_AT_ONCE = 2000
METRICS = ("/metrics", "/metrics/per-object")
CORE_PERCENT = 3.0
LONGER_MS = 5.0


def resources() -> list[str]:
    """Return all readable paths of the API without a parameter."""
    routes = api.routes(*[cast("Any", None)] * 3, HttpLimits())
    paths = {each.path.removesuffix("/") for each in routes if each.method == "GET" and "{" not in each.path}
    return sorted({*paths, "/api/cluster"} - {*UNWATCHED})


def processor_s(node: ClusterNode) -> float:
    """Return the processor time of a node since its start."""
    threads = Path(f"/proc/{node.pid}/task").iterdir()
    return sum(int((each / "schedstat").read_text().split()[0]) for each in threads) / 1e9


class Phase(NamedTuple):
    """A time with or without watching."""

    cores: list[float]
    """How much of a core each node used up."""
    waited_ms: list[float]
    """How long the publisher waited for each confirm."""

    def cut_ms(self, place: int) -> float:
        """Return the wait at a percentile; `place` counts from 0."""
        return statistics.quantiles(self.waited_ms, n=100)[place]


class Watcher:
    """Asks a node for everything, and all nodes for their metrics."""

    def __init__(self, session: aiohttp.ClientSession, nodes: list[ClusterNode]) -> None:
        self._session = session
        self._nodes = nodes
        self.taken_s: dict[str, list[float]] = {}
        """Processor time of the nodes during each request."""

    async def request_all(self) -> None:
        first, *_ = self._nodes
        for path in resources():
            await self._request(first, f"{path}?{PAGE}")
        for node in self._nodes:
            for path in METRICS:
                await self._request(node, path)

    async def _request(self, node: ClusterNode, path: str) -> None:
        before_s = sum(map(processor_s, self._nodes))
        async with self._session.get(f"http://127.0.0.1:{node.http_port}{path}") as response:
            await response.read()
            if response.status >= 500 and "/health/" not in path:
                raise RuntimeError(f"{path}: {response.status}")
        self.taken_s.setdefault(path, []).append(sum(map(processor_s, self._nodes)) - before_s)


async def published(client: Client, seconds: float) -> list[float]:
    """Publish for a while, a message at a time; how long each confirm was waited for, in milliseconds."""
    waited_ms: list[float] = []
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        begun_s = time.perf_counter()
        confirmed = client.expect(1, "Basic.Ack")
        client.send(
            1,
            commands.Basic.Publish(exchange="", routing_key="q0"),
            header.ContentHeader(body_size=12),
            ContentBody(bytes(12)),
        )
        await confirmed
        waited_ms.append((time.perf_counter() - begun_s) * 1000)
        await asyncio.sleep(PUBLISH_EVERY_S)
    return waited_ms


async def phase(nodes: list[ClusterNode], client: Client, seconds: float, watcher: Watcher | None) -> Phase:
    async def watch(watching: Watcher) -> None:
        while True:
            _, pending = await asyncio.wait(
                [asyncio.ensure_future(watching.request_all()), asyncio.ensure_future(asyncio.sleep(EVERY_S))]
            )
            assert not pending

    before_s = [processor_s(node) for node in nodes]
    begun_s = time.monotonic()
    task = None if watcher is None else asyncio.ensure_future(watch(watcher))
    waited_ms = await published(client, seconds)
    took_s = time.monotonic() - begun_s
    if task is not None:
        if task.done():
            await task
        task.cancel()
    used_s = [processor_s(node) - before for node, before in zip(nodes, before_s, strict=True)]
    return Phase([used / took_s for used in used_s], waited_ms)


def judge(quiet: list[Phase], watched: list[Phase], names: list[str]) -> list[Row]:
    """Return the cost of watching: medians of the phases with it, less those of the phases without."""
    rows: list[Row] = []
    for place, name in enumerate(names):
        without, beside = (
            statistics.median(each.cores[place] for each in phases) for phases in (quiet, watched)
        )
        percent = 100 * (beside - without)
        figures = f"{percent:.2f} % of a core (beside {100 * without:.2f} %)"
        rows.append(Row(f"{name}: watching it", figures, f"below {CORE_PERCENT:g} %", percent < CORE_PERCENT))
    for name, place in (("p50", 49), ("p99", 98)):
        without, beside = (
            statistics.median(each.cut_ms(place) for each in phases) for phases in (quiet, watched)
        )
        figures = f"{without:.1f} ms, watched {beside:.1f} ms"
        is_met = beside - without < LONGER_MS
        rows.append(Row(f"a publisher's confirms, {name}", figures, f"{LONGER_MS:g} ms more at most", is_met))
    return rows


async def prepare(client: Client, session: aiohttp.ClientSession, node: ClusterNode, queues: int) -> None:
    """Declare queues, bind each, and put messages into every tenth."""
    names = [f"q{number}" for number in range(queues)]
    for first in range(0, queues, IMPORTED_AT_ONCE):
        some = names[first : first + IMPORTED_AT_ONCE]
        made = [
            {"vhost": "/", "name": name, "durable": True, "auto_delete": False, "arguments": {}}
            for name in some
        ]
        ends = {"vhost": "/", "source": "amq.topic", "destination_type": "queue", "arguments": {}}
        bound = [ends | {"destination": name, "routing_key": f"a.{name}"} for name in some]
        url = f"http://127.0.0.1:{node.http_port}/api/definitions"
        async with session.post(url, json={"queues": made, "bindings": bound}) as response:
            response.raise_for_status()
    await client.request(1, commands.Channel.Open(), "Channel.OpenOk")
    await client.request(1, commands.Confirm.Select(), "Confirm.SelectOk")
    for name in names[::10]:
        client.send(
            1,
            commands.Basic.Publish(exchange="", routing_key=name),
            header.ContentHeader(body_size=12),
            ContentBody(bytes(12)),
        )


async def measure(cluster: LocalCluster, options: argparse.Namespace) -> list[Row]:
    ports = [pika.URLParameters(url).port for url in cluster.urls]
    [publisher] = await connected(ports[0], 1)
    idle: list[Client] = []
    for place, port in enumerate(ports):
        idle += await connected(port, (options.connections + place) // len(ports))
    quiet: list[Phase] = []
    watched: list[Phase] = []
    login = {hdrs.AUTHORIZATION: aiohttp.encode_basic_auth("guest", "guest")}
    async with aiohttp.ClientSession(headers=login) as session:
        await prepare(publisher, session, cluster.nodes[0], options.queues)
        await asyncio.sleep(EVERY_S)
        watcher = Watcher(session, cluster.nodes)
        await watcher.request_all()
        watcher.taken_s.clear()
        for _ in range(options.repeat):
            quiet.append(await phase(cluster.nodes, publisher, options.seconds, None))
            watched.append(await phase(cluster.nodes, publisher, options.seconds, watcher))
        if options.each:
            for path, taken_s in sorted(watcher.taken_s.items(), key=lambda item: -statistics.fmean(item[1])):
                print(f"{1000 * statistics.fmean(taken_s):8.1f} ms  {path}")
    for client in (publisher, *idle):
        client.close()
    leader = cluster.leader().name
    names = [f"{node.name}{' (leads)' if node.name == leader else ''}" for node in cluster.nodes]
    return judge(quiet, watched, names)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--each", action="store_true")
    options = parser.parse_args()
    allow_files()
    title = f"{options.queues:,} queues, {options.connections:,} connections, watched"
    with LocalCluster(3) as cluster:
        rows = asyncio.run(measure(cluster, options))
    print(f"| {title} | | aim | |\n|---|---|---|---|")
    return 0 if shown(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
