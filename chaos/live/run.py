"""One run: a cluster, clients, faults; then peace, and everything that is left in the queues.

The course: declare, work in peace for a moment, hurt for as long as asked, heal, work on for a moment, stop the
publishers, then the consumers, and drain every queue. Then the history is complete and meta.json says what it is of.

Lives here: the course of a run and its progress on the terminal. Not here: clients (workloads), faults (nemesis.py),
judging (pipeline), the command line (command.py).

Law: whatever went otherwise than planned is among the problems, and a run with problems does not pass.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from chaos.history import Clock, Recorder
from chaos.live import nemesis, versions
from chaos.live.cluster import LiveCluster, LiveClusterError
from chaos.workloads import catalog
from chaos.workloads.aio_clients import AioConsumer, LostError, asking, connect
from chaos.workloads.world import Client, Clients, Endpoint, World
from qq.errors import OperatingError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Sequence

    from aio_pika.abc import AbstractChannel

    from chaos.history import Call, Fields
    from chaos.workloads.world import Workload

FORMAT = 1
ROOT = Path("var/chaos")
PEACE_S = 3.0
"""Before the first fault and after the last, so that the report shows what is normal and how it comes back."""
PROGRESS_S = 5.0
WATCH_S = 1.0
"""The history is flushed so often, and whether a client broke is noticed."""
STOP_PATIENCE_S = 60.0
CLOSING_PATIENCE_S = 10.0
QUIET_S = 10.0
"""A drained queue has been empty for so long. What a dead client held comes back when its heartbeats are missed."""
QUIET_ELSEWHERE_S = 75.0
"""The same of a cluster that was there. Who hurts it may take a node's address away with it (as `docker kill` does):
then nobody hears that the node is dead, and what its clients held comes back after 60 s. It is not among the messages
that a queue says it has."""
DRAIN_PATIENCE_S = 120.0
"""How long a queue may say that it has messages, and deliver none."""
LIMITS = {"segment_bytes": 1_000_000}
"""Small segments, so that a short run also has old ones, that are compacted and damaged."""

log = logging.getLogger(__name__)


class RunError(OperatingError):
    """A run that cannot begin, or that could not be carried out: one line."""


@dataclass(frozen=True, slots=True)
class Options:
    """What to do; the command line's."""

    nodes: int = 3
    seconds: float = 60.0
    nemesis: tuple[str, ...] = ("all",)
    workloads: tuple[str, ...] = (catalog.ALL,)
    seed: int = 0
    rate: float = 300.0
    """Messages a second of all workloads together."""
    out: Path | None = None
    endpoints: tuple[Endpoint, ...] = ()
    """Of a cluster that is there: none is started, nothing is hurt, and the queues are deleted in the end."""
    user: str = "guest"
    password: str = "guest"  # noqa: S105 -- every broker's first
    peace_s: float = PEACE_S
    quiet_s: float | None = None
    """For so long a queue is empty before it counts as drained; None: as long as is needed."""
    command: str = ""


class Outcome(NamedTuple):
    """What there is after a run."""

    directory: Path
    problems: Sequence[str]
    """What went otherwise than planned, each in a line."""


async def run(options: Options, hurt_by: Callable[[], Awaitable[None]] | None = None) -> Outcome:
    """Carry out a run; its directory has the history and meta.json. Raises OperatingError if it cannot begin.

    With `hurt_by`, that is awaited in place of a nemesis, for as long as it takes.
    """
    workloads = catalog.chosen(options.workloads)
    faults = nemesis.chosen(options.nemesis)
    clock = Clock()
    directory = options.out or ROOT / f"{time.strftime('%Y%m%d-%H%M%S')}-{options.seed}"
    if (directory / "history").exists():
        raise RunError(f"{directory} has a run already")
    told = await _reach_all(options)
    made_with = versions.of_cluster(told) if options.endpoints else versions.of_own_cluster()
    (directory / "logs").mkdir(parents=True, exist_ok=True)
    before = asyncio.all_tasks()
    with (
        _logging_to(directory / "logs" / "harness.log"),
        Recorder(directory / "history" / "harness.jsonl", clock) as recorder,
    ):
        async with AsyncExitStack() as cleanup:
            cluster = None
            if not options.endpoints:
                _say(f"starting {options.nodes} nodes, logs in {directory / 'logs'}")
                cluster = await cleanup.enter_async_context(
                    LiveCluster(directory, options.nodes, limits=LIMITS)
                )
            course = _Course(
                options,
                directory,
                workloads,
                () if options.endpoints else faults,
                recorder,
                cluster,
                hurt_by,
                made_with | versions.of_harness(),
            )
            await course.carry_out()
        # The clients' libraries are still closing connections to nodes that were dead or frozen.
        if closing := asyncio.all_tasks() - before:
            await asyncio.wait(closing, timeout=CLOSING_PATIENCE_S)
    return Outcome(directory, course.problems)


async def _reach_all(options: Options) -> list[str]:
    """Try each endpoint; what they say they are. Raises RunError that names those that cannot be reached."""
    told, complaints = [], []
    for endpoint in options.endpoints:
        try:
            async with _channel(endpoint, options) as channel:
                connection = (await channel.get_underlay_channel()).connection
                told.append(versions.introduction(connection.server_properties))
        except LostError as error:
            complaints.append(f"{endpoint.node} at {endpoint.host}:{endpoint.port}: {error}")
    if complaints:
        raise RunError("unreachable: " + "; ".join(complaints))
    return told


@asynccontextmanager
async def _channel(endpoint: Endpoint, options: Options) -> AsyncGenerator[AbstractChannel]:
    """A channel of a connection of its own. Raises LostError."""
    connection = await connect(endpoint, options.user, options.password)
    try:
        with asking():
            channel = await connection.channel()
        yield channel
    finally:
        await connection.close()


@contextmanager
def _logging_to(file: Path) -> Generator[None]:
    """The clients' libraries say much about lost connections: into a file with it, instead of onto the terminal."""
    handler = logging.FileHandler(file)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    loggers = [logging.getLogger(name) for name in ("aio_pika", "aiormq", "asyncio", "chaos", "pika")]
    for logger in loggers:
        logger.addHandler(handler)
        logger.propagate = False
    # A connection that cannot be made is an error of pika's, with a traceback; the history says it in a row.
    logging.getLogger("pika").setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
            logger.propagate = True
        handler.close()


def _say(line: str) -> None:
    print(line, flush=True)


class _Course:
    def __init__(
        self,
        options: Options,
        directory: Path,
        workloads: Sequence[Workload],
        faults: Sequence[str],
        recorder: Recorder,
        cluster: LiveCluster | None,
        hurt_by: Callable[[], Awaitable[None]] | None = None,
        made_with: dict[str, str] | None = None,
    ) -> None:
        self._options = options
        usual_s = QUIET_ELSEWHERE_S if options.endpoints else QUIET_S
        self._quiet_s = usual_s if options.quiet_s is None else options.quiet_s
        self._made_with = made_with or {}
        self._hurt_by = hurt_by
        self._directory = directory
        self._workloads = workloads
        self._faults = faults
        self._recorder = recorder
        self._cluster = cluster
        self._endpoints = options.endpoints or _endpoints_of(cluster)
        self._plans = {plan.name: (work.name, plan) for work in workloads for plan in work.queues()}
        self._tasks: dict[Client, asyncio.Task[None]] = {}
        self._drained: set[str] = set()
        self._open_faults: dict[tuple[str, str], Call] = {}
        self._harness = recorder.process("harness")
        self._nemesis = recorder.process("nemesis")
        self.problems: list[str] = []
        self._started_ns = self._heal_ns = recorder.clock.now_ns()

    async def carry_out(self) -> None:
        """Do all of it; what went otherwise than planned is in `problems` afterwards."""
        await self._declare()
        self._started_ns = self._recorder.clock.now_ns()
        every = [self._clients(workload) for workload in self._workloads]
        publishers = [client for clients in every for client in clients.publishers]
        consumers = [client for clients in every for client in clients.consumers]
        progress = asyncio.create_task(self._show_progress())
        try:
            self._start([*publishers, *consumers])
            await self._hurt()
            await self._end(publishers)
            await self._end(consumers)
            await self._drain()
            await self._clear_away()
        finally:
            progress.cancel()
            await self._abandon()
            self._write_meta()

    # The cluster

    async def _declare(self) -> None:
        """Declare the queues anew: on a cluster that had a run before, they may be there, and full."""
        async with _channel(self._endpoints[0], self._options) as channel:
            for workload, plan in self._plans.values():
                fields: Fields = {
                    "node": self._endpoints[0].node,
                    "queue": plan.name,
                    "workload": workload,
                }
                with asking(self._harness.invoke("delete", **fields)):
                    await channel.queue_delete(plan.name)
                if plan.drained:
                    with asking(self._harness.invoke("declare", **fields)):
                        await channel.declare_queue(plan.name, durable=True, arguments=dict(plan.arguments))

    # The clients

    def _clients(self, workload: Workload) -> Clients:
        weights = sum(work.weight for work in self._workloads)
        return workload.clients(self._world(workload.name, self._options.rate * workload.weight / weights))

    def _world(self, workload: str, rate: float) -> World:
        return World(
            workload=workload,
            endpoints=self._endpoints,
            user=self._options.user,
            password=self._options.password,
            recorder=self._recorder,
            seed=self._options.seed,
            rate=rate,
            run=f"chaos-{self._options.seed}-{self._started_ns}",
        )

    def _start(self, clients: Iterable[Client]) -> None:
        for client in clients:
            self._tasks[client] = asyncio.create_task(client.run(), name=client.name)

    async def _end(self, clients: Sequence[Client]) -> None:
        for client in clients:
            client.stop()
        tasks = [self._tasks.pop(client) for client in clients]
        if not tasks:
            return
        ended, waiting = await asyncio.wait(tasks, timeout=STOP_PATIENCE_S)
        for task in waiting:
            task.cancel()
            self.problems.append(f"{task.get_name()} still waits for an answer after {STOP_PATIENCE_S:g} s")
        for task in ended:
            task.result()

    async def _abandon(self) -> None:
        """End what still runs because the run broke off."""
        for client, task in self._tasks.items():
            client.stop()
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values())

    def _raise_if_one_broke(self) -> None:
        """A client that ends before it was told to is a mistake of the harness: raises what it raised."""
        for task in self._tasks.values():
            if task.done():
                task.result()

    # The faults

    async def _hurt(self) -> None:
        await self._work_for(self._options.peace_s)
        hurting = asyncio.create_task(self._hurt_until_over())
        try:
            while not hurting.done():
                await self._work_for(WATCH_S)
            await hurting
        finally:
            hurting.cancel()
        await self._heal()
        await self._work_for(self._options.peace_s)

    async def _hurt_until_over(self) -> None:
        seconds = self._options.seconds
        if self._hurt_by is not None:
            await self._hurt_by()
        elif self._cluster is not None and self._faults:
            await nemesis.run(self._cluster, self._faults, self._options.seed, seconds, self._record_fault)
        else:
            await asyncio.sleep(seconds)

    async def _work_for(self, seconds: float) -> None:
        deadline_s = time.monotonic() + seconds
        while (left_s := deadline_s - time.monotonic()) > 0:
            await asyncio.sleep(min(left_s, WATCH_S))
            self._recorder.flush()
            self._raise_if_one_broke()

    async def _heal(self) -> None:
        call = self._nemesis.invoke("heal")
        try:
            if self._cluster is not None:
                await nemesis.heal(self._cluster)
        except LiveClusterError as error:
            call.fail(str(error))
            self.problems.append(f"the cluster does not heal: {error}")
        else:
            call.ok()
        self._heal_ns = self._recorder.clock.now_ns()

    def _record_fault(self, type_: str, fault: str, nodes: Sequence[str], detail: str) -> None:
        targets = ",".join(nodes)
        match type_:
            case "invoke":
                self._open_faults[fault, targets] = self._nemesis.invoke(
                    "fault", fault=fault, node=targets, detail=detail
                )
                _say(f"{self._elapsed_s():6.1f} s  {fault} {targets} {detail}")
            case "ok":
                self._open_faults.pop((fault, targets)).ok(detail=detail)
            case "fail":
                self._open_faults.pop((fault, targets)).fail(detail)
                self.problems.append(f"fault {fault} of {targets}: {detail}")
            case _:
                self._nemesis.event("fault", "info", fault=fault, detail=detail)

    # The end

    async def _drain(self) -> None:
        drained = [plan.name for _, plan in self._plans.values() if plan.drained]
        call = self._harness.invoke("drain")
        consumers = [
            AioConsumer(
                self._world(self._plans[queue][0], 0.0),
                f"drain-{queue}",
                number % len(self._endpoints),
                queue=queue,
            )
            for number, queue in enumerate(drained)
        ]
        self._start(consumers)
        began_s = time.monotonic()
        while True:
            await self._work_for(min(WATCH_S, self._quiet_s))
            now_s = time.monotonic()
            silent_s = now_s - max([began_s, *(consumer.delivered_s for consumer in consumers)])
            if silent_s < self._quiet_s:
                continue
            left = await self._left_in(drained)
            consumed = {consumer.queue for consumer in consumers if consumer.is_consuming}
            self._drained = consumed - left.keys()
            if len(self._drained) == len(drained) or silent_s > DRAIN_PATIENCE_S:
                break
        await self._end(consumers)
        if full := sorted(set(drained) - self._drained):
            detail = ", ".join(f"{name}: {left.get(name, 'no consumer')}" for name in full)
            self.problems.append(f"these queues do not drain: {detail}")
            call.fail(detail)
        else:
            call.ok()

    async def _left_in(self, queues: Sequence[str]) -> dict[str, int]:
        """How many messages are ready, of the queues that have any; -1 if the cluster does not say."""
        counts = {}
        try:
            async with _channel(self._endpoints[0], self._options) as channel:
                for name in queues:
                    with asking():
                        queue = await channel.declare_queue(name, passive=True)
                    counts[name] = queue.declaration_result.message_count or 0
        except LostError as error:
            log.warning("while draining: %s", error)
            return dict.fromkeys(queues, -1)
        return {name: count for name, count in counts.items() if count}

    async def _clear_away(self) -> None:
        """Leave a cluster that is not ours as it was, unless there is something left to look at."""
        if self._options.endpoints and not self.problems:
            async with _channel(self._endpoints[0], self._options) as channel:
                for name in self._plans:
                    with asking():
                        await channel.queue_delete(name)

    def _write_meta(self) -> None:
        # So that the history is as long as this says: a client that still waits in its thread is not heard any more.
        self._recorder.close()
        options = self._options
        meta: dict[str, Any] = {
            "format": FORMAT,
            "seed": options.seed,
            "nodes": len(self._endpoints),
            "seconds": options.seconds,
            "nemesis": list(self._faults),
            "workloads": [workload.name for workload in self._workloads],
            "started_ns": self._started_ns,
            "heal_ns": self._heal_ns,
            "ended_ns": self._recorder.clock.now_ns(),
            "versions": self._made_with,
            "command": options.command,
            "problems": self.problems,
            "rows": self._recorder.counts.total(),
            "queues": {
                name: plan.described(workload, drained=name in self._drained)
                for name, (workload, plan) in self._plans.items()
            },
        }
        (self._directory / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")

    # What one sees meanwhile

    def _elapsed_s(self) -> float:
        return (self._recorder.clock.now_ns() - self._started_ns) / 1e9

    async def _show_progress(self) -> None:
        shown = (("publish", "invoke"), ("publish", "ok"), ("publish", "unknown"), ("deliver", "ok"))
        before = [0] * len(shown)
        while True:
            await asyncio.sleep(PROGRESS_S)
            counts = [self._recorder.counts[key] for key in shown]
            rates = [(now - then) / PROGRESS_S for now, then in zip(counts, before, strict=True)]
            before = counts
            _say(
                f"{self._elapsed_s():6.1f} s  a second: {rates[0]:.0f} published, {rates[1]:.0f} confirmed, "
                f"{rates[2]:.0f} unknown, {rates[3]:.0f} delivered"
            )


def _endpoints_of(cluster: LiveCluster | None) -> tuple[Endpoint, ...]:
    if cluster is None:
        return ()
    parts = [(name, urlsplit(url)) for name, url in cluster.endpoints.items()]
    return tuple(Endpoint(name, str(part.hostname), int(part.port or 0)) for name, part in parts)
