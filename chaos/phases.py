"""The course of a run: work in peace, be hurt, recover, and drain the queues.

Declare the queues, work in peace for a moment, hurt the cluster, heal it, work on for a moment, stop the publishers,
then the consumers, and drain every queue. Then the history is complete and meta.json describes it.

Invariant: every deviation from the plan is among the problems, and a run with problems does not pass.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chaos.history import CLOCK_OFFSET
from chaos.workloads.clients import ConsumePlan, Consumer, request_of
from chaos.workloads.transport import LostError
from chaos.workloads.world import Clients, World
from qq.errors import OperatingError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from chaos.history import Call, Fields, Recorder
    from chaos.workloads.lease_requests import LeaseConnector
    from chaos.workloads.transport import Channel, Connection, Endpoint, Transport
    from chaos.workloads.world import Client, Library, Protocol, Workload

FORMAT = 1
WATCH_S = 1.0
"""Seconds between flushes of the history and checks of the clients for failures."""
STOP_PATIENCE_S = 60.0
DRAIN_PATIENCE_S = 120.0
"""Seconds that a queue may report messages and deliver none of them."""

log = logging.getLogger(__name__)


class HealError(OperatingError):
    """The cluster has not recovered although all faults were ended."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a run, simulated or live."""

    workloads: Sequence[Workload]
    seed: int
    rate: float
    """Messages per second of all workloads together."""
    peace_s: float
    """Seconds of work before the first and after the last fault, to show the normal state and the recovery."""
    quiet_s: float
    """Seconds without a delivery at the end after which empty queues count as drained."""
    protocols: Sequence[Protocol] = ("0-9-1",)
    """Versions of AMQP; a client draws a version for each connection."""
    leaves_queues: bool = True
    """Whether the queues stay at the end. Otherwise they are deleted, unless the run had problems."""


class Course:
    """A run; `recorder` writes its history."""

    def __init__(
        self,
        plan: Plan,
        endpoints: Sequence[Endpoint],
        transports: Mapping[Library, Transport],
        recorder: Recorder,
        lease_connector: LeaseConnector | None = None,
    ) -> None:
        self.plan = plan
        self.plans = {queue.name: (work.name, queue) for work in plan.workloads for queue in work.queues()}
        self.problems: list[str] = []
        self._endpoints = endpoints
        self._transports = transports
        self._recorder = recorder
        self._lease_connector = lease_connector
        self._harness = recorder.process("harness")
        self._nemesis = recorder.process("nemesis")
        self._tasks: dict[Client, asyncio.Task[None]] = {}
        self._drained: set[str] = set()
        self._open_faults: dict[tuple[str, str], Call] = {}
        self._started_ns = self._heal_ns = recorder.clock.now_ns()

    async def carry_out(
        self, hurt: Callable[[], Awaitable[None]], heal: Callable[[], Awaitable[None]]
    ) -> None:
        """Carry out the whole course; `problems` has the deviations afterwards. `heal` may raise HealError."""
        await self._declare()
        self._started_ns = self._recorder.clock.now_ns()
        every = [self._clients(workload) for workload in self.plan.workloads]
        publishers = [client for clients in every for client in clients.publishers]
        consumers = [client for clients in every for client in clients.consumers]
        try:
            self._start([*publishers, *consumers])
            await self._work_for(self.plan.peace_s)
            await self._work_while(hurt)
            await self._heal(heal)
            await self._work_for(self.plan.peace_s)
            await self._end(publishers)
            await self._end(consumers)
            await self._drain()
            await self._clear_away()
        finally:
            await self._abandon()

    def meta(self, about: Mapping[str, Any]) -> dict[str, Any]:
        """Return the content of meta.json, with the caller's part `about`.

        Closes the history, so that the number of rows is final: clients that still wait are recorded no more.
        """
        self._recorder.close()
        not_drained = {plan.known_as for name, (_, plan) in self.plans.items() if name not in self._drained}
        return {
            "format": FORMAT,
            "seed": self.plan.seed,
            "nodes": len(self._endpoints),
            "workloads": [workload.name for workload in self.plan.workloads],
            "started_ns": self._started_ns,
            "heal_ns": self._heal_ns,
            "ended_ns": self._recorder.clock.now_ns(),
            "problems": self.problems,
            "rows": self._recorder.counts.total(),
            "owes": self._owed(),
            "queues": {
                name: plan.described(workload, drained=name not in not_drained)
                for name, (workload, plan) in self.plans.items()
                if plan.known_as == name
            },
            **about,
        }

    def _owed(self) -> dict[str, list[str]]:
        """Return the workloads by the promise that they must give evidence for."""
        owed: dict[str, list[str]] = {}
        for workload in self.plan.workloads:
            for promise in workload.owes:
                owed.setdefault(promise, []).append(workload.name)
        return owed

    def elapsed_s(self) -> float:
        return (self._recorder.clock.now_ns() - self._started_ns) / 1e9

    def write_meta(self, directory: Path, about: Mapping[str, Any]) -> None:
        (directory / "meta.json").write_text(json.dumps(self.meta(about), indent=1) + "\n")

    # The cluster

    @asynccontextmanager
    async def _channel(self) -> AsyncGenerator[Channel]:
        """Yield a channel of a new connection, to the first node that accepts it. Raises LostError."""
        connection = await self._connect()
        try:
            async with request_of():
                channel = await connection.open_channel()
            yield channel
        finally:
            await connection.close()

    async def _connect(self) -> Connection:
        transport = next(iter(self._transports.values()))
        *others, last = self._endpoints
        for endpoint in others:
            with suppress(LostError):  # it may not be a member any more
                async with request_of():
                    return await transport.connect(endpoint, log.debug)
        async with request_of():
            return await transport.connect(last, log.debug)

    async def _declare(self) -> None:
        """Declare the queues anew: after an earlier run on the same cluster they may exist, and be full."""
        async with self._channel() as channel:
            for workload, plan in self.plans.values():
                fields: Fields = {
                    "node": self._endpoints[0].node,
                    "queue": plan.name,
                    "workload": workload,
                }
                async with request_of(self._harness.invoke("delete", **fields)):
                    await channel.delete(plan.name)
                if plan.drained:
                    async with request_of(self._harness.invoke("declare", **fields)):
                        await channel.declare(plan.name, plan.arguments)

    async def _left_in(self, queues: Sequence[str]) -> dict[str, int]:
        """Return the number of ready messages of each queue that has any; -1 if the cluster does not answer."""
        counts: dict[str, int] = {}
        try:
            async with self._channel() as channel:
                for name in queues:
                    async with request_of():
                        counts[name] = await channel.count(name)
        except LostError as error:
            log.warning("while draining: %s", error)
            return dict.fromkeys(queues, -1)
        return {name: count for name, count in counts.items() if count}

    async def _clear_away(self) -> None:
        """Delete the queues from an existing cluster, unless problems must be inspected."""
        if self.plan.leaves_queues or self.problems:
            return
        async with self._channel() as channel:
            for name in self.plans:
                async with request_of():
                    await channel.delete(name)

    # The clients

    def _clients(self, workload: Workload) -> Clients:
        weights = sum(work.weight for work in self.plan.workloads)
        return workload.clients(self._world(workload, self.plan.rate * workload.weight / weights))

    def _world(self, workload: Workload, rate: float) -> World:
        return World(
            workload=workload.name,
            endpoints=self._endpoints,
            transports=[self._transports[library] for library in workload.libraries(self.plan.protocols)],
            recorder=self._recorder,
            seed=self.plan.seed,
            rate=rate,
            run=f"chaos-{self.plan.seed}-{self._started_ns}",
            lease_connector=self._lease_connector,
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
        await asyncio.wait(tasks, timeout=STOP_PATIENCE_S)
        for task in tasks:
            if task.done():
                task.result()
            else:
                task.cancel()
                self.problems.append(
                    f"{task.get_name()} still waits for an answer after {STOP_PATIENCE_S:g} s"
                )

    async def _abandon(self) -> None:
        """End the clients that still run after an interrupted run."""
        for client, task in self._tasks.items():
            client.stop()
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values())

    def _raise_if_one_broke(self) -> None:
        """Raise the error of a client that ended before it was stopped, which is a mistake of the harness."""
        for task in self._tasks.values():
            if task.done():
                task.result()

    # The faults

    async def _work_while(self, hurt: Callable[[], Awaitable[None]]) -> None:
        hurting = asyncio.ensure_future(hurt())
        try:
            while not hurting.done():
                await self._work_for(WATCH_S)
            await hurting
        finally:
            hurting.cancel()

    async def _work_for(self, seconds: float) -> None:
        clock = asyncio.get_running_loop().time
        deadline_s = clock() + seconds
        while (left_s := deadline_s - clock()) > 0:
            await asyncio.sleep(min(left_s, WATCH_S))
            self._recorder.flush()
            self._raise_if_one_broke()

    async def _heal(self, heal: Callable[[], Awaitable[None]]) -> None:
        call = self._nemesis.invoke("heal")
        try:
            await heal()
        except HealError as error:
            call.fail(str(error))
            self.problems.append(f"the cluster does not heal: {error}")
        else:
            call.ok()
        self._heal_ns = self._recorder.clock.now_ns()

    def record_fault(self, type_: str, fault: str, nodes: Sequence[str], detail: str) -> None:
        """Record that a fault begins (invoke), is over (ok, fail), or was left out (info)."""
        targets = ",".join(nodes)
        match type_:
            case "invoke":
                self._open_faults[fault, targets] = self._nemesis.invoke(
                    "fault", fault=fault, node=targets, detail=detail
                )
            case "ok":
                self._open_faults.pop((fault, targets)).ok(detail=detail)
            case "fail":
                self._open_faults.pop((fault, targets)).fail(detail)
                self.problems.append(f"fault {fault} of {targets}: {detail}")
            case _:
                self._nemesis.event("fault", "info", fault=fault, detail=detail)

    def record_blow(self, fault: str) -> None:
        """Record a fault whose end is not reported."""
        self._nemesis.invoke("fault", fault=fault).ok()

    def record_clocks(self, nodes: Sequence[str], moved_ms: int) -> None:
        """Record that the wall clocks of nodes have moved forward, or back if negative."""
        detail = json.dumps({CLOCK_OFFSET: moved_ms})
        self._nemesis.event("fault", "ok", fault="clocks move", node=",".join(nodes), detail=detail)

    # The end

    async def _drain(self) -> None:
        drained = [
            (workload, plan) for workload in self.plan.workloads for plan in workload.queues() if plan.drained
        ]
        call = self._harness.invoke("drain")
        consumers = [
            Consumer(
                self._world(workload, 0.0),
                f"drain-{plan.name}",
                number % len(self._endpoints),
                ConsumePlan(plan.name, known_as=plan.known_as),
            )
            for number, (workload, plan) in enumerate(drained)
        ]
        names = [plan.name for _, plan in drained]
        self._start(consumers)
        clock = asyncio.get_running_loop().time
        began_s = clock()
        while True:
            await self._work_for(min(WATCH_S, self.plan.quiet_s))
            silent_s = clock() - max([began_s, *(consumer.delivered_s for consumer in consumers)])
            if silent_s < self.plan.quiet_s:
                continue
            left = await self._left_in(names)
            consumed = {consumer.plan.queue for consumer in consumers if consumer.is_consuming}
            self._drained = consumed - left.keys()
            if len(self._drained) == len(names) or silent_s > DRAIN_PATIENCE_S:
                break
        await self._end(consumers)
        if full := sorted(set(names) - self._drained):
            detail = ", ".join(f"{name}: {left.get(name, 'no consumer')}" for name in full)
            self.problems.append(f"these queues do not drain: {detail}")
            call.fail(detail)
        else:
            call.ok()
