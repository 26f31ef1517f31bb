"""Record the history of a simulated run of the live workloads: `python -m chaos.sim --seed N --out DIR`.

`python -m chaos check DIR` judges the history like that of a live run, and `python -m chaos report DIR` shows it.

Invariant: the history is a function of the seed. The checks of the simulation watch the run, and end it when they find
a violation.
"""

from __future__ import annotations

import asyncio
import platform
from functools import partial
from typing import TYPE_CHECKING

from chaos.history import Recorder
from chaos.phases import Course, HealError, Plan
from chaos.sim.checks.checks import ViolationError
from chaos.sim.run import CONVERGENCE_S, SERVICE_S, SLICE_S, Scene
from chaos.sim.workload.workload import Submitters
from chaos.sim.world.brokers import PASSWORD, USER, Brokers
from chaos.sim.world.cluster import Parts, SimulationOptions
from chaos.sim.world.lease_requests import SimulatedLeases
from chaos.sim.world.loop import SimulatedLoop
from chaos.sim.world.transport import SimulatedConnection, dial
from chaos.sim.world.world import WorldClock
from chaos.workloads import catalog
from chaos.workloads.amqp10_transport import Amqp10Transport
from chaos.workloads.moved import Moved
from chaos.workloads.pika_transport import PikaTransport
from chaos.workloads.transport import Endpoint
from cluster.log.hardstate import VoterStatus
from qq.config import NodeLimits

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from chaos.workloads.world import Protocol

PORT = 5672
RATE = 60.0
"""Messages per second of all workloads together. At this rate a simulated second takes about a real second."""
PEACE_S = 2.0
QUIET_S = 8.0
"""Seconds of silence before the end of the drain; longer than an eviction takes.

A node's unacknowledged messages return to their queues when the cluster evicts the node.
"""
LONGEST_S = 600.0
FAULTS = {
    "kill": 2.0,
    "power loss": 1.0,
    "power loss of all": 0.3,
    "isolate": 1.0,
    "partition": 0.7,
    "one-way cut": 0.5,
    "reset": 1.0,
    "lag": 0.5,
    "pause": 1.0,
    "slow disk": 0.5,
    "clock jump": 0.3,
    "transfer": 0.5,
}
OPTIONS = SimulationOptions(
    queues=True,
    duration_s=20.0,
    fault_interval_s=1.5,
    faults=FAULTS,
    segment_bytes=64 * 1024,
    checkpoint_entries=200,
    checkpoint_bytes=256 * 1024,
    retained_bytes=256 * 1024,
    message_bytes_max=64 * 1024,
)


def record(
    seed: int,
    directory: Path,
    options: SimulationOptions = OPTIONS,
    parts: Parts = Parts(),  # noqa: B008 - immutable
    workloads: Sequence[str] = (catalog.ALL,),
    protocols: Sequence[Protocol] = ("0-9-1",),
) -> Sequence[str]:
    """Run a seed, write its history and `meta.json` into `directory`, and return the problems of the run."""
    scene = Scene(seed, options, parts)
    submitters = Submitters(scene.checks)
    brokers = Brokers(scene.world, submitters.submit, NodeLimits())
    scene.cluster.events += [submitters, brokers]
    transport = PikaTransport(USER, PASSWORD, partial(SimulatedConnection, brokers))
    # Moves have an oracle of their own in the simulation (queue_workload.py, move_checks.py).
    clients_only = [work for work in catalog.chosen(workloads) if work.name != Moved.name]
    plan = Plan(clients_only, seed, RATE, PEACE_S, QUIET_S, protocols)
    endpoints = [Endpoint(name, name, PORT) for name in scene.cluster.names]
    with Recorder(directory / "history" / "simulation.jsonl", WorldClock(scene.world)) as recorder:
        course = Course(
            plan,
            endpoints,
            {
                "aio-pika": transport,
                "pika": transport,
                "proton": Amqp10Transport(USER, PASSWORD, partial(dial, brokers)),
            },
            recorder,
            partial(SimulatedLeases, scene.world, brokers),
        )
        try:
            _run(scene, brokers, course)
        except ViolationError as violation:
            course.problems.append(str(violation))
        course.write_meta(
            directory,
            {
                "seconds": options.duration_s,
                "nemesis": list(options.faults),
                "clock_skew_ms": 2 * options.skew_max_ms,
                "versions": {"python": platform.python_version()},
                "command": f"python -m chaos.sim --seed {seed} --nodes {options.nodes} --out {directory}",
            },
        )
    return course.problems


def _run(scene: Scene, brokers: Brokers, course: Course) -> None:
    """Run the course on the simulated loop, then compare the nodes. Raises ViolationError."""
    cluster = scene.cluster

    async def hurt() -> None:
        scene.nemesis.listener = course.record_blow
        scene.nemesis.clock_listener = course.record_clocks
        scene.nemesis.start()
        await asyncio.sleep(scene.options.duration_s)

    async def heal() -> None:
        scene.nemesis.stop()
        for node in cluster.nodes:
            node.start()
        for _ in range(int(CONVERGENCE_S / SLICE_S)):
            await asyncio.sleep(SLICE_S)
            if cluster.leader() and all(node.voter_status is VoterStatus.VOTER for node in cluster.nodes):
                return
        raise HealError(cluster.describe())

    scene.start()
    while len(brokers.listening()) < len(cluster.nodes):
        scene.world.run_until(scene.world.now_s + SLICE_S)
    SimulatedLoop(scene.world).run(course.carry_out(hurt, heal), LONGEST_S)
    scene.converge(SERVICE_S, "does not come to rest")
    scene.checks.check_agreement()
    scene.compare_queues()
    scene.stored.check_all()
