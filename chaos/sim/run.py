"""Simulate a single run: draw its options from the seed, carry it out, judge it.

The course: load for a while, then load and faults. Then the faults end, and the cluster must converge within a bounded
time. Then it must serve requests. Finally the nodes are compared once more.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from traceback import format_exception
from typing import TYPE_CHECKING, Any, NamedTuple

from chaos.sim.checks.checks import Checks, ViolationError
from chaos.sim.checks.queue_checks import QueueOracle, messages_of
from chaos.sim.checks.stored import StoredMessages
from chaos.sim.faults.nemesis import FAULTS, Nemesis
from chaos.sim.faults.operators import Growth
from chaos.sim.faults.restored import Backups
from chaos.sim.faults.upgrade import Upgrade
from chaos.sim.workload.client_workload import ClientWorkload, LoggedMessages
from chaos.sim.workload.ledger import Ledger
from chaos.sim.workload.ledger import messages_of as messages_of_ledger
from chaos.sim.workload.queue_workload import QueueWorkload
from chaos.sim.workload.workload import LedgerWorkload, SimulatedWorkload
from chaos.sim.world.cluster import Parts, SimulatedCluster, SimulationOptions
from chaos.sim.world.network import NetworkOptions, small_limits
from chaos.sim.world.world import SimulatedWorld
from qq.machine.machine import QueueMachine

if TYPE_CHECKING:
    from collections.abc import Callable

CONVERGENCE_S = 30.0
"""Seconds to reconnect, elect, catch up and confirm all pending batches after the faults have ended."""
SLOW_DISK = 10.0
SERVICE_S = 10.0
LIGHT_LOAD_S = 2.0
CLEANING_S = 20.0
CLEANING_PER_FILE_S = 3.0
"""Seconds per segment file that housekeeping needs; it measures one segment per second when the log hardly grows.

It measures some segments more than once.
"""
TIMERS_MAX_MS = 60_000
"""Milliseconds ahead; the check of timers ignores timers that are due later."""
TIMERS_S = 15.0
"""Seconds that the check of timers lasts at most, because full queues retry their timers again and again."""
LATENESS_MAX_S = 1.0
"""Seconds that a leader may be late with a timer, with fast disks and without faults."""
DRAIN_S = 30.0
"""Seconds after which the last delay or retry of a dead letter is over."""
SLICE_S = 0.25
FILES_INTERVAL_S = 0.5
CLIENT_RUNS = 0.3
"""Share of the ledger runs that have AMQP clients instead."""
REQUESTERS = 3
"""Clients of direct reply-to in a run with AMQP clients."""
DECLARERS = 2
"""Clients that declare queues in a run with AMQP clients."""
LINKING_CLIENTS = 3
"""Clients of AMQP 1.0 in a run that has any."""
LINKING_RUNS = 0.35
"""Share of the runs with AMQP clients that have clients of AMQP 1.0 among them."""
UPGRADES = 0.2
"""Share of the runs with an upgrade of the nodes."""
BACKUPS = 0.15
"""Share of the runs that end with a new cluster, restored from a backup."""
GROWING = 0.25
"""Share of the runs that add nodes under new names and remove members for good."""
REPLACED_BY_COMMAND = 0.2
"""Share of the runs with replacement of a lost directory by command only."""


class RareFault(NamedTuple):
    """A fault in a part of the runs only."""

    name: str
    share: float
    """Share of the runs with this fault."""
    stream: str
    """Name of the random stream that draws it, so that runs without the fault stay as they are."""


RARE_FAULTS = (
    RareFault("star", 0.15, "stars"),
    RareFault("roll back", 0.25, "rollbacks"),
    RareFault("half cut", 0.2, "half cuts"),
)
CALM_S = 6.0
"""Seconds until a cluster without faults has agreed on the newest version of the state."""
QUICK_RUNS = 0.4
"""Share of the runs with more frequent heartbeats and a bandwidth limit for learners.

In the other runs a follower suspects its leader only at the last moment, and no learner is fed so slowly that it rests.
"""
QUICK_HEARTBEAT_S = 0.1
LEARNER_BYTES_PER_S = 200_000.0
LARGEST_BYTES = 250_000
"""Bytes of the largest entries."""


class Outcome(NamedTuple):
    """The result of a run; `violation` is empty if the run passed."""

    seed: int
    violation: str
    fingerprint: str
    virtual_s: float
    events: int
    entries: int
    confirms: int
    reads: int
    """Reads that were answered without an entry."""
    replies: int
    """Direct replies that requesters got."""
    elections: int
    installs: int
    """Snapshots that nodes installed."""
    repairs: int
    """Promotions of a learner to a voter."""
    voters_max: int
    """The largest number of voters in a committed configuration."""
    compacted: int
    """Live messages found in compacted entries."""
    faults: dict[str, int]
    fates: dict[str, int]
    """Number of messages by their fate in the queues."""


def draw_options(seed: int) -> SimulationOptions:
    """Draw the options of a seed. Each fault is common in some runs and absent in others."""
    random = Random(f"{seed}/program")
    options = _draw_load_and_faults(seed)
    is_upgrade, raises_version = random.random() < UPGRADES, random.random() < 0.6
    if random.random() < QUICK_RUNS:
        timing = replace(
            options.timing, heartbeat_s=QUICK_HEARTBEAT_S, learner_bytes_per_s=LEARNER_BYTES_PER_S
        )
        options = replace(options, timing=timing)
    for rare in RARE_FAULTS:
        own = Random(f"{seed}/{rare.stream}")
        if own.random() < rare.share:
            weight = FAULTS[rare.name] * own.random() ** 2
            options = replace(options, faults=options.faults | {rare.name: weight})
    members = Random(f"{seed}/members")
    return replace(
        options,
        is_upgrade=is_upgrade,
        raises_version=raises_version or not is_upgrade or options.linking_clients > 0,
        makes_backup=random.random() < BACKUPS,
        grows=members.random() < GROWING,
        replaces_emptied=members.random() >= REPLACED_BY_COMMAND,
    )


def _draw_load_and_faults(seed: int) -> SimulationOptions:
    random = Random(f"{seed}/options")
    spikes = random.random() < 0.3
    busy = random.random() < 0.7
    large_batches = random.choice((0.0, 0.0, 0.05, 0.3))
    options = SimulationOptions(
        nodes=5 if random.random() < 0.3 else 3,
        queues=random.random() < 0.5,
        duration_s=random.uniform(5.0, 15.0),
        submit_interval_s=random.choice((0.1, 0.25, 0.6)),
        large_batches=large_batches,
        fault_interval_s=random.uniform(0.2, 2.0),
        faults={
            name: weight * random.random() ** 2
            for name, weight in FAULTS.items()
            if name not in {rare.name for rare in RARE_FAULTS}
        },
        network=NetworkOptions(
            delay_max_s=random.choice((0.002, 0.01, 0.05)),
            spike_probability=0.02 if spikes else 0.0,
            spike_max_s=random.uniform(0.1, 1.0),
        ),
        disk_slowness=random.choice((1.0, 1.0, 10.0, 50.0)),
        segment_bytes=random.choice((2, 4, 16) if busy else (16, 256)) * 1024,
        segment_entries=random.choice((8, 30, 65_536)),
        cache_bytes=random.choice((1, 64, 1024)) * 1024,
        checkpoint_entries=random.choice((5, 20, 60)) if busy else random.choice((200, 16_384)),
        checkpoint_bytes=random.choice((4, 32, 1024)) * 1024 if busy else 2**26,
        checkpoint_interval_s=random.choice((0.5, 2.0, 60.0)) if busy else 60.0,
        retained_bytes=random.choice((0, 4, 16)) * 1024 if busy else 2**20,
        disk_free_limit_bytes=random.choice((0, 16 * 1024)),
        message_bytes_max=random.choice((1, 16, 64)) * 1024,
    )
    if not options.queues and Random(f"{seed}/clients").random() < CLIENT_RUNS:
        return replace(
            options,
            queues=True,
            clients=True,
            linking_clients=LINKING_CLIENTS if Random(f"{seed}/amqp10").random() < LINKING_RUNS else 0,
            requesters=REQUESTERS,
            declarers=DECLARERS,
        )
    if busy and not large_batches and random.random() < 0.2:
        return _with_check_of_disk_use(options)
    if not options.queues and random.random() < 0.2:
        return with_largest_entries(options, bytes_per_s=random.choice((200_000, 400_000, 2**40)))
    return options


def draw_birth(seed: int) -> SimulationOptions:
    """Draw a short run with faults from the start, when the nodes' knowledge of the cluster differs most."""
    random = Random(f"{seed}/birth")
    return replace(
        draw_options(seed),
        queues=False,
        clients=False,
        linking_clients=0,
        duration_s=random.uniform(0.8, 4.0),
        submit_interval_s=0.5,
        large_batches=0.0,
        fault_interval_s=random.uniform(0.05, 0.5),
        disk_slowness=random.choice((1.0, 1.0, 10.0)),
        disk_free_limit_bytes=0,
        checks_disk_use=False,
        message_bytes_max=64 * 1024,
        makes_backup=False,
    )


def draw_leases(seed: int) -> SimulationOptions:
    """Draw a run in which commands go to queues directly, and readers lease messages.

    Before the first fault the cluster has time to agree on the version of the state that has leases.
    """
    return replace(_draw_direct(seed), leases=True)


def draw_links(seed: int) -> SimulationOptions:
    """Draw a run in which clients set the credit of consumers; otherwise as `draw_leases`."""
    return replace(_draw_direct(seed), links=True)


def draw_amqp10(seed: int) -> SimulationOptions:
    """Draw a run in which clients of AMQP 1.0 and 0-9-1 use the same queues."""
    return replace(
        draw_options(seed),
        raises_version=True,
        queues=True,
        clients=True,
        linking_clients=LINKING_CLIENTS,
        large_batches=0.0,
        checks_disk_use=False,
    )


def _draw_direct(seed: int) -> SimulationOptions:
    return replace(
        draw_options(seed),
        calm_s=CALM_S,
        is_upgrade=False,
        raises_version=True,
        queues=True,
        clients=False,
        linking_clients=0,
        requesters=0,
        declarers=0,
        large_batches=0.0,
    )


def with_largest_entries(options: SimulationOptions, bytes_per_s: int) -> SimulationOptions:
    """Set entries so large that at a low bandwidth an entry takes as long as an election, and two exceed a frame."""
    return replace(
        options,
        duration_s=25.0,
        submit_interval_s=0.5,
        large_batches=0.06,
        largest_bytes=LARGEST_BYTES,
        network=replace(
            options.network,
            bytes_per_s=bytes_per_s,
            limits=small_limits(LARGEST_BYTES),
        ),
    )


def _with_check_of_disk_use(options: SimulationOptions) -> SimulationOptions:
    """Set size limits so small that files which housekeeping forgets exceed the bound on disk use."""
    return replace(
        options,
        segment_bytes=2 * 1024,
        checkpoint_bytes=2 * 1024,
        retained_bytes=2 * 1024,
        message_bytes_max=1024,
        disk_slowness=1.0,
        checks_disk_use=True,
    )


def run(seed: int, options: SimulationOptions, parts: Parts = Parts()) -> Outcome:  # noqa: B008 - immutable
    """Run the seed with these options and return its outcome."""
    simulation = Simulation(seed, options, parts)
    violation = ""
    try:
        simulation.run()
    except ViolationError as error:
        violation = str(error)
    except Exception as error:  # noqa: BLE001 - the run is over, whosever fault it is; the others go on
        violation = "".join(format_exception(error))
    return simulation.outcome(violation)


def run_seed(
    seed: int,
    parts: Parts = Parts(),  # noqa: B008 - immutable
    nodes: int = 0,
    draw: Callable[[int], SimulationOptions] = draw_options,
) -> Outcome:
    """Run the seed with the options that `draw` returns, or with a different number of nodes."""
    options = draw(seed)
    return run(seed, replace(options, nodes=nodes) if nodes else options, parts)


class Scene:
    """All parts of a run except the load: world, cluster, checks, oracle, nemesis and operators."""

    def __init__(self, seed: int, options: SimulationOptions, parts: Parts = Parts()) -> None:  # noqa: B008
        self.seed = seed
        self.options = options
        self.world = SimulatedWorld(seed)
        self.checks = Checks(self.world, QueueMachine if options.queues else Ledger)
        self.cluster = SimulatedCluster(self.world, options, parts, self.checks)
        self.checks.watch(self.cluster)
        oracle = LoggedMessages if options.clients else QueueOracle
        self.oracle = oracle(self.checks.fail, self.checks.majority_s)
        if options.queues:
            self.checks.listener = self.oracle
        self.nemesis = Nemesis(self.world, self.cluster, self.checks)
        self.upgrade = Upgrade(self.world, self.cluster, self.nemesis)
        self.growth = Growth(self.world, self.cluster, self.checks, self.nemesis.installed)
        stored_as = messages_of if options.queues else messages_of_ledger
        self.stored = StoredMessages(self.cluster, self.checks, stored_as)
        self.backups = Backups(self.world, self.cluster, self.checks, stored_as)

    def start(self) -> None:
        random = self.world.random("start")
        if self.options.is_upgrade:
            self.upgrade.begin()
        for node in self.cluster.nodes:
            self.world.after(random.uniform(0.0, 1.0), node.start)
        self.cluster.operate_members()
        self._check_files()

    def _check_files(self) -> None:
        self.stored.check_changed()
        self.world.after(FILES_INTERVAL_S, self._check_files)

    def compare_queues(self) -> None:
        for node in self.cluster.nodes:
            machine = node.machine.inner
            if isinstance(machine, QueueMachine):
                self.oracle.check_machine(node.name, machine)

    def converge(self, within_s: float, problem: str) -> None:
        within_s *= 1 + self.options.disk_slowness / SLOW_DISK
        deadline_s = self.world.now_s + within_s
        while self.world.now_s < deadline_s:
            self.world.run_until(self.world.now_s + SLICE_S)
            if self.cluster.settled():
                return
        self.checks.fail(f"the cluster {problem} {within_s:.0f} s after the faults ended")


class Simulation(Scene):
    """A run with random load at each node."""

    def __init__(self, seed: int, options: SimulationOptions, parts: Parts = Parts()) -> None:  # noqa: B008
        super().__init__(seed, options, parts)
        self.workload = self._workload()
        self.cluster.events.append(self.workload)
        if not isinstance(self.workload, LedgerWorkload):
            self.cluster.events.append(self.workload.brokers)

    def _workload(self) -> ClientWorkload | LedgerWorkload | QueueWorkload:
        if isinstance(self.oracle, LoggedMessages):
            return ClientWorkload(self.world, self.checks, self.options, self.oracle)
        if self.options.queues:
            return QueueWorkload(self.world, self.checks, self.options, self.oracle)
        return LedgerWorkload(self.world, self.checks, self.options)

    def run(self) -> None:
        """Carry out the run and all checks. Raises ViolationError."""
        self.start()
        self.world.run_until(self.options.calm_s)
        self.nemesis.start()
        if self.options.grows:
            self.growth.begin()
        if self.options.makes_backup:
            self.backups.begin()
        self.world.run_until(self.options.calm_s + self.options.duration_s)
        self.nemesis.stop()
        self.growth.end()
        self.upgrade.end()
        self.workload.stop()
        for node in self.cluster.nodes:
            node.start()
        self.converge(CONVERGENCE_S, "has not converged")
        self._check_timers()
        self.workload.submit_once()
        self.converge(SERVICE_S, "does not serve")
        self.checks.check_agreement()
        if self.options.checks_disk_use and isinstance(self.workload, SimulatedWorkload):
            self._check_disk_use(self.workload)
        if isinstance(self.workload, ClientWorkload):
            self._check_clients(self.workload)
        if isinstance(self.workload, QueueWorkload):
            self.workload.check_clients()
            self._check_queues(self.workload)
        self.checks.check_agreement()
        self.stored.check_all()
        self.backups.check_restored()

    def _check_clients(self, workload: ClientWorkload) -> None:
        """Check that clients get every answer, and that exactly the confirmed messages can be consumed."""
        self._until(lambda: not workload.problem, SERVICE_S, lambda: workload.problem)
        workload.settle()
        # Some clients consume the remaining messages one at a time.
        self._until(lambda: not workload.problem, DRAIN_S, lambda: workload.problem)
        workload.drain()
        self._until(lambda: not workload.left(), DRAIN_S, lambda: f"{workload.left()} messages are left")
        workload.judge()
        self.compare_queues()

    def _until(self, done: Callable[[], bool], within_s: float, problem: Callable[[], str]) -> None:
        deadline_s = self.world.now_s + within_s * (1 + self.options.disk_slowness / SLOW_DISK)
        while not (done() and self.cluster.settled()):
            self.world.run_until(self.world.now_s + SLICE_S)
            if self.world.now_s > deadline_s:
                self.checks.fail(f"{within_s:.0f} s after the faults ended: {problem() or 'no rest'}")

    def _check_timers(self) -> None:
        """Check that the leader runs due timers soon after their time has really passed, without any new submission."""
        lateness_max_s = LATENESS_MAX_S * (1 + self.options.disk_slowness / SLOW_DISK)
        reached, reached_s = None, 0.0
        until_s = self.world.now_s + TIMERS_S
        while (leader := self.cluster.leader()) is not None and self.world.now_s < until_s:
            due_ms = leader.machine.due_ms()
            ahead_ms = TIMERS_MAX_MS if due_ms is None else due_ms - self.checks.least_time_ms()
            if ahead_ms >= TIMERS_MAX_MS:
                break
            if ahead_ms > 0 or reached != (leader, due_ms):
                reached, reached_s = (leader, due_ms), self.world.now_s
            elif self.world.now_s - reached_s > lateness_max_s:
                self.checks.fail(f"{leader.name} leads and leaves undone what was due at {due_ms} ms")
            self.world.run_until(self.world.now_s + SLICE_S)
        self.converge(SERVICE_S, "does not come to rest")

    def _check_disk_use(self, workload: SimulatedWorkload[Any]) -> None:
        """Check that each node frees its garbage under a light load, some time after messages have died."""
        workload.go_on(LIGHT_LOAD_S)
        nodes = self.cluster.nodes
        files = max(len(node.group.journal.segments()) for node in nodes)
        deadline_s = self.world.now_s + CLEANING_S + CLEANING_PER_FILE_S * files
        while any(self.stored.excess(node) > 0 for node in nodes):
            self.world.run_until(self.world.now_s + 1.0)
            if self.world.now_s > deadline_s:
                excess = {node.name: self.stored.excess(node) for node in nodes}
                self.checks.fail(f"more is on the disks than there should be: {excess}")
        workload.stop()
        self.converge(SERVICE_S, "does not come to rest")

    def _check_queues(self, workload: QueueWorkload) -> None:
        """Check that all unsettled messages are in the queues, can be consumed, and leave the queues empty."""
        self.compare_queues()
        workload.stop_consuming()
        self.converge(SERVICE_S, "does not close sessions")
        workload.drain()
        deadline_s = self.world.now_s + DRAIN_S * (1 + self.options.disk_slowness / SLOW_DISK)
        self.converge(SERVICE_S, "does not drain its queues")
        while any(workload.left().values()):
            self.world.run_until(self.world.now_s + SLICE_S)
            if self.world.now_s > deadline_s:
                self.checks.fail(
                    f"messages were neither settled before nor delivered at the end: {workload.left()}"
                )
        self.converge(SERVICE_S, "does not come to rest")
        self.compare_queues()

    def outcome(self, violation: str) -> Outcome:
        return Outcome(
            self.seed,
            violation,
            self.world.fingerprint(),
            self.world.now_s,
            self.world.events,
            len(self.checks.committed),
            self.checks.confirms,
            self.checks.reads,
            self.workload.replies.delivered if isinstance(self.workload, ClientWorkload) else 0,
            self.checks.elections,
            self.checks.installs,
            self.checks.repairs,
            self.checks.voters_max,
            self.stored.compacted,
            {**self.nemesis.done, **self.growth.done},
            dict(self.oracle.fates),
        )
