"""A run against processes: either a cluster started for the run, which is hurt, or an existing cluster.

Invariant: an existing cluster is never hurt, and is left as it was.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from chaos.history import Recorder
from chaos.live import nemesis, releases, versions
from chaos.live.aio_transport import AioTransport
from chaos.live.cluster import LiveCluster, LiveClusterError
from chaos.live.http_leases import HttpLeases
from chaos.phases import Course, HealError, Plan
from chaos.workloads import catalog
from chaos.workloads.amqp10_transport import Amqp10Transport
from chaos.workloads.pika_transport import PikaTransport
from chaos.workloads.transport import HEARTBEAT_S, Endpoint, LostError, Transport
from chaos.workloads.world import PROTOCOLS, Library, Protocol
from qq.errors import OperatingError
from qq_spark import Access

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Sequence

ROOT = Path("var/chaos")
PEACE_S = 3.0
PROGRESS_S = 5.0
MOVE_AGAIN_S = 1.0
"""Seconds between attempts to start a move, because nodes of the first release have no moves."""
CLOSING_PATIENCE_S = 10.0
QUIET_S = 10.0
"""Seconds that a drained queue must have been empty and silent.

A dead client's messages return when its heartbeats are missed.
"""
QUIET_ELSEWHERE_S = 75.0
"""The same for an existing cluster.

A node of it may lose its address together with its process (as with `docker kill`). Then no peer notices the death at
once, and the messages of its clients return after 60 s. The queue's message count does not include them.
"""
LIMITS = {
    # So that a short run has old segments too, which are compacted and damaged.
    "segment_bytes": 1_000_000,
    # A client of AMQP 1.0 does not choose after which silence a node takes it for dead.
    "client_heartbeat_s": 2 * HEARTBEAT_S,
}

FIRST_RELEASE = "0.1"
"""The release that the nodes begin with before an upgrade."""

log = logging.getLogger(__name__)


class RunError(OperatingError):
    """A run that cannot begin or could not be carried out, in one line."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run, as on the command line."""

    nodes: int = 3
    seconds: float = 60.0
    nemesis: tuple[str, ...] = ("all",)
    workloads: tuple[str, ...] = (catalog.ALL,)
    protocols: tuple[Protocol, ...] = tuple(PROTOCOLS)
    """Versions of AMQP that clients speak; each draws a version for each connection."""
    seed: int = 0
    rate: float = 300.0
    """Messages per second of all workloads together."""
    out: Path | None = None
    endpoints: tuple[Endpoint, ...] = ()
    """Nodes of an existing cluster: not started and not hurt; the queues are deleted if all went well."""
    http: tuple[str, ...] = ()
    """Addresses of the HTTP ports of an existing cluster; without any no leases are read."""
    user: str = "guest"
    password: str = "guest"  # noqa: S105 -- every broker's first
    peace_s: float = PEACE_S
    quiet_s: float | None = None
    """Seconds without a delivery after which empty queues count as drained; None means the default."""
    command: str = ""


class RunResult(NamedTuple):
    """The result of a run."""

    directory: Path
    problems: Sequence[str]
    """Deviations from the plan, each in a line."""


async def run(options: Options, hurt_by: Callable[[], Awaitable[None]] | None = None) -> RunResult:
    """Carry out a run and write its history and meta.json into its directory.

    Raises OperatingError if it cannot begin. `hurt_by` is awaited in place of the nemesis, for as long as it takes.
    """
    plan = plan_of(options)
    faults = nemesis.chosen(options.nemesis)
    directory = options.out or ROOT / f"{time.strftime('%Y%m%d-%H%M%S')}-{options.seed}"
    if (directory / "history").exists():
        raise RunError(f"{directory} has a run already")
    introductions = await _reach_all(options)
    made_with = versions.of_cluster(introductions) if options.endpoints else versions.of_own_cluster()
    release = None
    if nemesis.UPGRADE in faults:
        release = directory / "release"
        releases.unpack(FIRST_RELEASE, release)
        made_with["upgraded from"] = FIRST_RELEASE
    (directory / "logs").mkdir(parents=True, exist_ok=True)
    before = asyncio.all_tasks()
    with (
        _logging_to(directory / "logs" / "harness.log"),
        Recorder(directory / "history" / "harness.jsonl") as recorder,
    ):
        async with AsyncExitStack() as cleanup:
            cluster = None
            if not options.endpoints:
                _print(f"starting {options.nodes} nodes, logs in {directory / 'logs'}")
                cluster = await cleanup.enter_async_context(
                    LiveCluster(directory, options.nodes, limits=LIMITS, release=release)
                )
            endpoints = options.endpoints or _endpoints_of(cluster, faults)
            urls = options.http if cluster is None else tuple(cluster.http[node] for node, *_ in endpoints)
            readers = partial(HttpLeases, Access(urls, options.user, options.password))
            course = Course(plan, endpoints, _transports(options), recorder, readers)
            about = {
                "seconds": options.seconds,
                "nodes": len(options.endpoints) or options.nodes,  # clients also know the nodes that may join
                "nemesis": [] if options.endpoints else list(faults),
                "versions": made_with | versions.of_harness(),
                "command": options.command,
            }
            progress = asyncio.create_task(_show_progress(course, recorder))
            moving = asyncio.create_task(_move(course, cluster))
            try:
                await course.carry_out(
                    hurt_by or partial(_hurt, course, cluster, faults, options), partial(_heal, cluster)
                )
            finally:
                progress.cancel()
                moving.cancel()
                course.write_meta(directory, about)
        # The clients' libraries are still closing connections to dead or frozen nodes.
        if closing := asyncio.all_tasks() - before:
            await asyncio.wait(closing, timeout=CLOSING_PATIENCE_S)
    return RunResult(directory, course.problems)


def plan_of(options: Options) -> Plan:
    """Return the plan of a run. Raises OperatingError for a workload that is unknown or impossible."""
    usual_s = QUIET_ELSEWHERE_S if options.endpoints else QUIET_S
    workloads = catalog.chosen(options.workloads)
    if why := _why_no_leases(options):
        for workload in workloads:
            if workload.reads_leases and workload.name in options.workloads:
                raise RunError(f"workload {workload.name}: {why}")
        workloads = [workload for workload in workloads if not workload.reads_leases]
    return Plan(
        workloads,
        options.seed,
        options.rate,
        options.peace_s,
        usual_s if options.quiet_s is None else options.quiet_s,
        options.protocols,
        leaves_queues=not options.endpoints,
    )


def _why_no_leases(options: Options) -> str | None:
    """Return why clients cannot read leases in a run, or None if they can."""
    if options.endpoints and not options.http:
        return "leases are read over HTTP: say --http URL,..."
    if nemesis.UPGRADE in nemesis.chosen(options.nemesis):
        return f"release {FIRST_RELEASE}, from which nodes are upgraded, has no leases"
    return None


def _transports(options: Options) -> dict[Library, Transport]:
    return {
        "aio-pika": AioTransport(options.user, options.password),
        "pika": PikaTransport(options.user, options.password),
        "proton": Amqp10Transport(options.user, options.password),
    }


async def _hurt(course: Course, cluster: LiveCluster | None, faults: Sequence[str], options: Options) -> None:
    if cluster is None or not faults:
        await asyncio.sleep(options.seconds)
        return

    def record(type_: str, fault: str, nodes: Sequence[str], detail: str) -> None:
        course.record_fault(type_, fault, nodes, detail)
        if type_ == "invoke":
            _print(f"{course.elapsed_s():6.1f} s  {fault} {','.join(nodes)} {detail}")

    await nemesis.run(cluster, faults, options.seed, options.seconds, record)


async def _move(course: Course, cluster: LiveCluster | None) -> None:
    """Declare shovels for the queues with moves, again and again until the cluster supports them."""
    if cluster is None:
        return  # the HTTP interface of an existing cluster is unknown
    waiting = {plan.moved_from: plan.name for _, plan in course.plans.values() if plan.moved_from}
    while waiting:
        for source, destination in list(waiting.items()):
            if await cluster.move(source, destination):
                del waiting[source]
        await asyncio.sleep(MOVE_AGAIN_S)


async def _heal(cluster: LiveCluster | None) -> None:
    if cluster is not None:
        try:
            await nemesis.heal(cluster)
        except LiveClusterError as error:
            raise HealError(str(error)) from error


async def _reach_all(options: Options) -> list[str]:
    """Connect to each endpoint and return the products that they introduce.

    Raises RunError with the unreachable endpoints.
    """
    transport = AioTransport(options.user, options.password)
    introductions: list[str] = []
    problems: list[str] = []
    for endpoint in options.endpoints:
        try:
            connection = await transport.connect(endpoint, log.warning)
            introductions.append(versions.introduction(await connection.introduction()))
            await connection.close()
        except LostError as error:
            problems.append(f"{endpoint.node} at {endpoint.host}:{endpoint.port}: {error}")
    if problems:
        raise RunError("unreachable: " + "; ".join(problems))
    return introductions


@contextmanager
def _logging_to(file: Path) -> Generator[None]:
    """Write the log lines of the clients' libraries, which are many, into a file instead of the terminal."""
    handler = logging.FileHandler(file)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    loggers = [logging.getLogger(name) for name in ("aio_pika", "aiormq", "asyncio", "chaos", "pika")]
    for logger in loggers:
        logger.addHandler(handler)
        logger.propagate = False
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
            logger.propagate = True
        handler.close()


def _print(line: str) -> None:
    print(line, flush=True)


async def _show_progress(course: Course, recorder: Recorder) -> None:
    shown = (("publish", "invoke"), ("publish", "ok"), ("publish", "unknown"), ("deliver", "ok"))
    before = [0] * len(shown)
    while True:
        await asyncio.sleep(PROGRESS_S)
        counts = [recorder.counts[key] for key in shown]
        rates = [(now - then) / PROGRESS_S for now, then in zip(counts, before, strict=True)]
        before = counts
        _print(
            f"{course.elapsed_s():6.1f} s  a second: {rates[0]:.0f} published, {rates[1]:.0f} confirmed, "
            f"{rates[2]:.0f} unknown, {rates[3]:.0f} delivered"
        )


def _endpoints_of(cluster: LiveCluster | None, faults: Sequence[str]) -> tuple[Endpoint, ...]:
    """Return the endpoints for clients, including those of nodes that may join; clients try them in turn.

    At least one of the first nodes stays a member, because fewer nodes can join than must stay.
    """
    if cluster is None:
        return ()
    names = cluster.names if nemesis.JOINING.isdisjoint(faults) else cluster.everybody
    parts = [(name, urlsplit(cluster.endpoints[name])) for name in names]
    return tuple(Endpoint(name, str(part.hostname), int(part.port or 0)) for name, part in parts)
