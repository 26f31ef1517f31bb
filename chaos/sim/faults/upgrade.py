"""An upgrade while the load goes on: each node gets the program of this release when its time has come.

It is as operators do it, with faults in between: one node after the other, some are taken back to the release before
and upgraded again, and the next version of the state comes by itself or is asked for at the end.

Invariant: a node whose program refuses its directory, because the cluster has gone over to the next version, is
upgraded again.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from chaos.sim.world.watched import Program
from cluster.configuration.change_request import MemberChange, Verb

if TYPE_CHECKING:
    from chaos.sim.faults.nemesis import Nemesis
    from chaos.sim.world.cluster import SimulatedCluster, SimulatedNode
    from chaos.sim.world.world import SimulatedWorld

DONE_BY = 0.5
"""Share of the time of faults in which all nodes are upgraded."""
TAKEN_BACK = 0.4
"""How often a node is taken back, once."""
BACK_MAX_S = 3.0
ASKED_EVERY_S = 1.0


class Upgrade:
    """The operator who upgrades a cluster."""

    def __init__(self, world: SimulatedWorld, cluster: SimulatedCluster, nemesis: Nemesis) -> None:
        self._world = world
        self._cluster = cluster
        self._nemesis = nemesis
        self._random = world.random("upgrade")
        self._is_over = False

    def begin(self) -> None:
        """Have most nodes begin with the program of the release before."""
        until_s = DONE_BY * self._cluster.options.duration_s
        for node in self._cluster.nodes:
            if self._random.random() < 0.2:
                continue
            self._nemesis.installed[node.name] = node.program = Program.EARLIER
            self._world.after(self._random.uniform(0.0, until_s), partial(self._upgrade, node))
        if not self._cluster.options.raises_version:
            self._finish()

    def end(self) -> None:
        """Upgrade whoever is not yet."""
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
        """Ask for the end of the upgrade, again and again: it is refused as long as it is too early."""
        node = self._random.choice(self._cluster.nodes)
        if node.up and node.has_started:
            change = MemberChange(Verb.FINISH_UPGRADE, version=node.machine.versions[1])
            node.runtime.enter(lambda: node.group.reconfiguration.ask(change, _ignore))
        self._world.after(ASKED_EVERY_S, self._finish)


def _ignore(_reason: str) -> None:
    """Ignore why it is refused."""
