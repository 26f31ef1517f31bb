"""One run: draw what it is from the seed, let it happen, judge it.

The course: load and faults for a while; then the faults end and the cluster must converge within a bounded time;
then it must serve; then everything is compared once more.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import NamedTuple

from chaos.sim.checks import Checks, ViolationError
from chaos.sim.cluster import Options, Parts, SimulatedCluster
from chaos.sim.ledger import Ledger
from chaos.sim.nemesis import Nemesis
from chaos.sim.network import NetworkOptions
from chaos.sim.queue_checks import QueueOracle
from chaos.sim.queue_workload import QUEUES, QueueWorkload
from chaos.sim.workload import Workload
from chaos.sim.world import World
from qq.machine.machine import QueueMachine

CONVERGENCE_S = 30.0
"""After the faults have ended: reconnect, elect, catch up, confirm everything that was pending."""
SERVICE_S = 10.0
SLICE_S = 0.25


class Outcome(NamedTuple):
    """What there is to say of a run; `violation` is empty if all was well."""

    seed: int
    violation: str
    fingerprint: str
    virtual_s: float
    events: int
    entries: int
    confirms: int
    elections: int
    faults: dict[str, int]


_FAULTS = {
    "kill": 3.0,
    "power loss": 2.0,
    "kill all": 0.3,
    "power loss of all": 0.6,
    "isolate": 1.5,
    "partition": 1.0,
    "one-way cut": 1.0,
    "bridge": 0.7,
    "reset": 2.0,
    "lag": 1.0,
    "pause": 1.5,
    "slow disk": 1.0,
    "failing sync": 0.3,
    "full disk": 0.2,
    "clock jump": 0.5,
    "transfer": 0.5,
}


def draw_options(seed: int) -> Options:
    """The mix of one seed. Each fault is common in some runs and absent in others."""
    random = Random(f"{seed}/options")
    spikes = random.random() < 0.3
    return Options(
        nodes=5 if random.random() < 0.3 else 3,
        queues=random.random() < 0.5,
        duration_s=random.uniform(8.0, 24.0),
        submit_interval_s=random.choice((0.1, 0.25, 0.6)),
        large_batches=random.choice((0.0, 0.0, 0.05, 0.3)),
        fault_interval_s=random.uniform(0.2, 2.0),
        faults={name: weight * random.random() ** 2 for name, weight in _FAULTS.items()},
        network=NetworkOptions(
            delay_max_s=random.choice((0.002, 0.01, 0.05)),
            spike_probability=0.02 if spikes else 0.0,
            spike_max_s=random.uniform(0.1, 1.0),
        ),
        disk_slowness=random.choice((1.0, 1.0, 10.0, 50.0)),
        segment_bytes=random.choice((4, 16, 256)) * 1024,
        cache_bytes=random.choice((1, 64, 1024)) * 1024,
        message_bytes_max=random.choice((1, 16, 64)) * 1024,
    )


def run(seed: int, options: Options, parts: Parts = Parts()) -> Outcome:  # noqa: B008 - immutable
    """Run the seed with these options."""
    simulation = Simulation(seed, options, parts)
    violation = ""
    try:
        simulation.run()
    except ViolationError as error:
        violation = str(error)
    return simulation.outcome(violation)


def run_seed(seed: int, parts: Parts = Parts(), nodes: int = 0) -> Outcome:  # noqa: B008 - immutable
    """Run the seed as it was drawn, or with another number of nodes."""
    options = draw_options(seed)
    return run(seed, replace(options, nodes=nodes) if nodes else options, parts)


class Simulation:
    """All that takes part in a run."""

    def __init__(self, seed: int, options: Options, parts: Parts = Parts()) -> None:  # noqa: B008
        self.seed = seed
        self.options = options
        self.world = World(seed)
        self.checks = Checks(self.world, QueueMachine if options.queues else Ledger)
        self.cluster = SimulatedCluster(self.world, options, parts, self.checks)
        self.oracle = QueueOracle(self.checks.fail)
        self.workload = self._workload()
        self.cluster.events = self.workload
        self.nemesis = Nemesis(self.world, self.cluster)

    def _workload(self) -> Workload:
        if self.options.queues:
            self.checks.listener = self.oracle
        workload = QueueWorkload if self.options.queues else Workload
        return workload(self.world, self.checks, self.options.submit_interval_s, self.options.large_batches)

    def run(self) -> None:
        """Raises ViolationError."""
        random = self.world.random("start")
        for node in self.cluster.nodes:
            self.world.after(random.uniform(0.0, 1.0), node.start)
        self.nemesis.start()
        self.world.run_until(self.options.duration_s)
        self.nemesis.stop()
        self.workload.stop()
        for node in self.cluster.nodes:
            node.start()
        self._converge(CONVERGENCE_S, "has not converged")
        self.workload.submit_once()
        self._converge(SERVICE_S, "does not serve")
        self.checks.check_agreement()
        if isinstance(self.workload, QueueWorkload):
            self._check_queues(self.workload)
        self.checks.check_agreement()

    def _check_queues(self, workload: QueueWorkload) -> None:
        """What is unsettled is there, can be fetched, and then nothing is left."""
        self._compare_queues()
        workload.stop_consuming()
        self._converge(SERVICE_S, "does not close sessions")
        workload.drain()
        self._converge(SERVICE_S, "does not drain its queues")
        self._compare_queues()
        left = {queue: self.oracle.ready(queue) + self.oracle.held(queue) for queue in QUEUES}
        if any(left.values()):
            self.checks.fail(f"messages were neither settled before nor delivered at the end: {left}")

    def _compare_queues(self) -> None:
        for node in self.cluster.nodes:
            machine = node.machine.inner
            if isinstance(machine, QueueMachine):
                self.oracle.check_machine(node.name, machine)

    def _converge(self, within_s: float, complaint: str) -> None:
        deadline_s = self.world.now_s + within_s
        while self.world.now_s < deadline_s:
            self.world.run_until(self.world.now_s + SLICE_S)
            if self.cluster.settled():
                return
        self.checks.fail(f"the cluster {complaint} {within_s:.0f} s after the faults ended")

    def outcome(self, violation: str) -> Outcome:
        return Outcome(
            self.seed,
            violation,
            self.world.fingerprint(),
            self.world.now_s,
            self.world.events,
            len(self.checks.committed),
            self.checks.confirms,
            self.checks.elections,
            self.nemesis.done,
        )
