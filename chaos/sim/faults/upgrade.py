"""An upgrade under load: each node gets the program of this release at a random time.

Nodes are upgraded in turn, with faults in between, as operators do it. Some nodes are taken back to the previous
release and upgraded again. The next version of the state comes by itself, or an operator asks for it at the end.

Invariant: a node is upgraded again if its program refuses its directory because the cluster has agreed on the next
version.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from chaos.sim.world.compared_machines import Program
from cluster.configuration.change_request import MemberChange, Verb

if TYPE_CHECKING:
    from chaos.sim.faults.nemesis import Nemesis
    from chaos.sim.world.cluster import SimulatedCluster, SimulatedNode
    from chaos.sim.world.world import SimulatedWorld

DONE_BY = 0.5
"""Share of the time of faults after which all nodes are upgraded."""
TAKEN_BACK = 0.4
"""Probability that a node is taken back once."""
BACK_MAX_S = 3.0
REQUEST_INTERVAL_S = 1.0


class Upgrade:
    """The operator who upgrades a cluster."""

    def __init__(self, world: SimulatedWorld, cluster: SimulatedCluster, nemesis: Nemesis) -> None:
        self._world = world
        self._cluster = cluster
        self._nemesis = nemesis
        self._random = world.random("upgrade")
        self._is_over = False

    def begin(self) -> None:
        """Start most nodes with the program of the previous release, and schedule their upgrades."""
        until_s = DONE_BY * self._cluster.options.duration_s
        for node in self._cluster.nodes:
            if self._random.random() < 0.2:
                continue
            self._nemesis.installed[node.name] = node.program = Program.EARLIER
            self._world.after(self._random.uniform(0.0, until_s), partial(self._upgrade, node))
        if not self._cluster.options.raises_version:
            self._finish()

    def end(self) -> None:
        """Upgrade all nodes that still run the previous release."""
        self._is_over = True
        for node in self._cluster.nodes:
            if self._nemesis.installed[node.name] is not Program.CURRENT:
                self._install(node, Program.CURRENT)

    def _upgrade(self, node: SimulatedNode) -> None:
        if self._is_over:
            return
        self._install(node, Program.CURRENT)
        if self._random.random() < TAKEN_BACK:
            self._world.after(self._random.uniform(0.0, BACK_MAX_S), partial(self._take_back, node))

    def _take_back(self, node: SimulatedNode) -> None:
        if not self._is_over:
            self._install(node, Program.EARLIER)
            self._world.after(self._random.uniform(0.0, BACK_MAX_S), partial(self._upgrade, node))

    def _install(self, node: SimulatedNode, program: Program) -> None:
        self._nemesis.installed[node.name] = program
        if node.program is not Program.FOREIGN:
            node.program = program
            node.end(power_loss=False)
            node.start()

    def _finish(self) -> None:
        """Ask for the end of the upgrade again and again, because the cluster refuses it when it is too early."""
        node = self._random.choice(self._cluster.nodes)
        if node.up and node.has_started:
            change = MemberChange(Verb.FINISH_UPGRADE, version=node.machine.versions[1])
            node.runtime.enter(lambda: node.group.reconfiguration.request(change, _ignore))
        self._world.after(REQUEST_INTERVAL_S, self._finish)


def _ignore(_reason: str) -> None:
    """Ignore the reason of a refusal."""
