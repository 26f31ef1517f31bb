"""Faults: what goes wrong, when, for how long.

Lives here: the faults by name, each with its undoing. Not here: how a fault works (world, network, disk) and what must
hold in spite of it (checks.py).

Law: every fault ends by itself or in `stop`; after that the world is a good one.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from chaos.sim.cluster import SimulatedCluster, SimulatedNode
    from chaos.sim.world import World


class Nemesis:
    """Does harm at random times."""

    FAULTS = (
        "kill",
        "power loss",
        "kill all",
        "power loss of all",
        "isolate",
        "partition",
        "one-way cut",
        "bridge",
        "reset",
        "lag",
        "pause",
        "slow disk",
        "failing sync",
        "full disk",
        "clock jump",
        "transfer",
    )

    def __init__(self, world: World, cluster: SimulatedCluster) -> None:
        self.done: dict[str, int] = {}
        self._world = world
        self._cluster = cluster
        self._random: Random = world.random("nemesis")
        self._stopped = False
        self._undos: dict[int, Callable[[], None]] = {}
        self._count = 0
        self._faults: dict[str, Callable[[], None]] = {
            "kill": partial(self._kill, power_loss=False),
            "power loss": partial(self._kill, power_loss=True),
            "kill all": partial(self._kill_all, power_loss=False),
            "power loss of all": partial(self._kill_all, power_loss=True),
            "isolate": self._isolate,
            "partition": self._partition,
            "one-way cut": self._one_way_cut,
            "bridge": self._bridge,
            "reset": self._reset,
            "lag": self._lag,
            "pause": self._pause,
            "slow disk": self._slow_disk,
            "failing sync": self._failing_sync,
            "full disk": self._full_disk,
            "clock jump": self._clock_jump,
            "transfer": self._transfer,
        }

    def start(self) -> None:
        self._later()

    def stop(self) -> None:
        """Undo what is still in force."""
        self._stopped = True
        for number in list(self._undos):
            self._undo(number)

    def _later(self) -> None:
        interval_s = self._cluster.options.fault_interval_s
        self._world.after(self._random.expovariate(1 / interval_s), self._strike)

    def _strike(self) -> None:
        if self._stopped:
            return
        weights = self._cluster.options.faults
        name = self._random.choices(list(weights), list(weights.values()))[0]
        self.done[name] = self.done.get(name, 0) + 1
        self._faults[name]()
        self._cluster.checks.topology_changed()
        self._later()

    def _until(self, delay_s: float, undo: Callable[[], None]) -> None:
        self._count += 1
        self._undos[self._count] = undo
        self._world.after(delay_s, partial(self._undo, self._count))

    def _undo(self, number: int) -> None:
        undo = self._undos.pop(number, None)
        if undo is not None:
            undo()
            self._cluster.checks.topology_changed()

    # Whom, and for how long

    def _anyone(self) -> SimulatedNode:
        """Half of the time the leader: there it hurts."""
        leader = self._cluster.leader()
        if leader is not None and self._random.random() < 0.5:
            return leader
        return self._random.choice(self._cluster.nodes)

    def _pair(self) -> tuple[str, str]:
        node = self._anyone()
        return node.name, self._random.choice(node.peers)

    def _short_or_long_s(self, long_s: float) -> float:
        return self._random.uniform(0.0, 0.3 if self._random.random() < 0.4 else long_s)

    # Processes

    def _kill(self, *, power_loss: bool) -> None:
        self._end(self._anyone(), power_loss=power_loss)

    def _kill_all(self, *, power_loss: bool) -> None:
        for node in self._cluster.nodes:
            self._end(node, power_loss=power_loss)

    def _end(self, node: SimulatedNode, *, power_loss: bool) -> None:
        if node.up:
            node.end(power_loss=power_loss)
            self._until(self._short_or_long_s(4.0), node.start)

    def _pause(self) -> None:
        node = self._anyone()
        if node.up and not node.runtime.paused:
            node.runtime.pause()
            self._until(self._short_or_long_s(8.0), node.runtime.go_on)

    def _transfer(self) -> None:
        leader = self._cluster.leader()
        if leader is not None:
            group = leader.group

            def transfer() -> None:
                group.transfer_leadership()

            leader.runtime.enter(transfer)

    # Links

    def _cut(self, cuts: Sequence[tuple[str, str]]) -> None:
        for source, target in cuts:
            self._cluster.network.cut(source, target)
        self._until(self._short_or_long_s(8.0), partial(self._heal, cuts))

    def _heal(self, cuts: Sequence[tuple[str, str]]) -> None:
        for source, target in cuts:
            self._cluster.network.heal(source, target)

    def _isolate(self) -> None:
        node = self._anyone()
        self._cut([cut for peer in node.peers for cut in ((node.name, peer), (peer, node.name))])

    def _partition(self) -> None:
        names = list(self._cluster.names)
        self._random.shuffle(names)
        size = self._random.randint(1, len(names) - 1)
        left, right = names[:size], names[size:]
        self._cut([cut for a in left for b in right for cut in ((a, b), (b, a))])

    def _one_way_cut(self) -> None:
        node = self._anyone()
        peers = node.peers if self._random.random() < 0.5 else [self._random.choice(node.peers)]
        outwards = self._random.random() < 0.5
        self._cut([(node.name, peer) if outwards else (peer, node.name) for peer in peers])

    def _bridge(self) -> None:
        """Two nodes lose each other, everybody else sees both."""
        a, b = self._pair()
        self._cut([(a, b), (b, a)])

    def _reset(self) -> None:
        self._cluster.network.reset(*self._pair())

    def _lag(self) -> None:
        source, target = self._pair()
        self._cluster.network.lag(source, target, self._random.uniform(0.05, 1.5))
        self._until(self._short_or_long_s(5.0), partial(self._cluster.network.lag, source, target, 0.0))

    # Disks and clocks

    def _slow_disk(self) -> None:
        nodes = self._cluster.nodes if self._random.random() < 0.3 else [self._anyone()]
        factor = self._random.choice((10.0, 100.0, 1000.0))
        for node in nodes:
            node.disk.slow = factor
        self._until(self._short_or_long_s(5.0), partial(self._usual_speed, nodes))

    def _usual_speed(self, nodes: Sequence[SimulatedNode]) -> None:
        for node in nodes:
            node.disk.slow = self._cluster.options.disk_slowness

    def _failing_sync(self) -> None:
        self._anyone().disk.fail_next_sync()

    def _full_disk(self) -> None:
        disk = self._anyone().disk
        disk.full = True

        def undo() -> None:
            disk.full = False

        self._until(self._short_or_long_s(3.0), undo)

    def _clock_jump(self) -> None:
        self._anyone().wall.skew_ms += self._random.randint(-20_000, 20_000)
