"""Operators who change the members while the load goes on: nodes are added under new names, others removed for good.

A run begins with some nodes; now and then one more is started, with an empty directory and the addresses of the others,
and now and then a member is removed, be it a new one or one of the first, if at least as many as at first stay.

Invariant: nobody is removed whom the others could not do without, and a name whose node was removed for good is not
used again.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from chaos.sim.world.watched import Program
from cluster.configuration.change_request import MemberChange, Verb

if TYPE_CHECKING:
    from random import Random

    from chaos.sim.checks.checks import Checks
    from chaos.sim.world.cluster import SimulatedCluster, SimulatedNode
    from chaos.sim.world.world import SimulatedWorld

MORE_MAX = 2
"""There are at most so many nodes more than at first, which with five makes as many as a cluster may have."""
CHANGED_EVERY_S = 1.5
"""Mean time between two changes."""
ADDED = 0.6
"""How often a node is added, where one could be removed as well."""
TOLD = 0.5
"""How often somebody asks for a new node to be added, which comes by itself as well."""
TIMES_MAX = 20
"""How often an operator asks for one thing."""


class Operators:
    """Those who ask for changes of the members."""

    def __init__(
        self, world: SimulatedWorld, cluster: SimulatedCluster, checks: Checks, random: Random
    ) -> None:
        self._world = world
        self._cluster = cluster
        self._checks = checks
        self._random = random
        self._stopped = False

    def stop(self) -> None:
        """Ask for nothing any more."""
        self._stopped = True

    def ask_for(self, change: MemberChange, times: int) -> None:
        """Ask nodes for a change again and again, as an operator does who hears nothing of it.

        He may go on to have a node added that another one has had removed meanwhile.
        """
        asked = self._random.choice(self._cluster.nodes)
        if asked.up and asked.has_started:
            asked.runtime.enter(lambda: asked.group.reconfiguration.ask(change, _ignore))
        if times and not self._stopped:
            self._world.after(self._random.uniform(0.0, 0.5), partial(self.ask_for, change, times - 1))

    def remove(self, node: SimulatedNode) -> bool:
        """Have a member removed; False if that is not asked for.

        It stops when it is told so, and comes back with an empty directory unless it is given up.
        """
        if not node.has_started or node.misconfigured or node.may_be_removed:
            return False
        node.may_be_removed = True
        if not self._checks.may_be_damaged(node):
            node.may_be_removed = False  # those that are left would lack a majority that has its logs
            return False
        change = MemberChange(Verb.REMOVE, node.name, node.group.members.id)
        self.ask_for(change, self._random.randint(1, TIMES_MAX))
        return True


class Growth:
    """The operator under whom a cluster grows and shrinks."""

    def __init__(
        self, world: SimulatedWorld, cluster: SimulatedCluster, checks: Checks, installed: dict[str, Program]
    ) -> None:
        """`installed` is what operators have installed on each node, which a new one is noted in."""
        self.done = {"add node": 0, "remove node": 0}
        """How often a node was added, and a removal for good asked for."""
        self._world = world
        self._cluster = cluster
        self._checks = checks
        self._installed = installed
        self._random = world.random("growth")
        self._operators = Operators(world, cluster, checks, self._random)
        self._is_over = False

    def begin(self) -> None:
        """Change the members from now on, one at a time."""
        self._world.after(self._random.expovariate(1 / CHANGED_EVERY_S), self._change)

    def end(self) -> None:
        """Change nothing any more; the nodes that are there stay."""
        self._is_over = True
        self._operators.stop()

    def _change(self) -> None:
        if self._is_over:
            return
        nodes, at_first = self._cluster.nodes, self._cluster.options.nodes
        stay = [node for node in nodes if not node.is_given_up]
        may_add, may_remove = len(nodes) < at_first + MORE_MAX, len(stay) > at_first
        if may_add and not (may_remove and self._random.random() > ADDED):
            self._add()
        elif may_remove:
            self._remove(self._random.choice(stay))
        self._checks.topology_changed()
        self.begin()

    def _add(self) -> None:
        node = self._cluster.add_node()
        self._installed[node.name] = Program.CURRENT
        self._checks.clocks_changed()
        node.start()
        if node.has_started and self._random.random() < TOLD:
            change = MemberChange(Verb.ADD, node.name, node.group.members.id, *node.address)
            self._operators.ask_for(change, self._random.randint(1, TIMES_MAX))
        self.done["add node"] += 1

    def _remove(self, node: SimulatedNode) -> None:
        if self._operators.remove(node):
            node.is_given_up = True
            self.done["remove node"] += 1


def _ignore(_reason: str) -> None:
    """Ignore why a change is refused: the next one may be made."""
