"""Operators who change the members under load: they add nodes under new names and remove members for good.

A run begins with some nodes. Now and then an operator starts a node with an empty directory and the addresses of its
peers. Now and then an operator removes a member, new or original, as long as the initial number of nodes stays.

Invariant: only members that the cluster can spare are removed, and the name of a node that was removed for good is
never used again.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from chaos.sim.world.compared_machines import Program
from cluster.configuration.change_request import MemberChange, Verb

if TYPE_CHECKING:
    from random import Random

    from chaos.sim.checks.checks import Checks
    from chaos.sim.world.cluster import SimulatedCluster, SimulatedNode
    from chaos.sim.world.world import SimulatedWorld

MORE_MAX = 2
"""Nodes beyond the initial number, at most. With five initial nodes this is the largest cluster allowed."""
CHANGED_EVERY_S = 1.5
"""Mean seconds between two changes."""
ADDED = 0.6
"""Probability of adding a node when a removal is possible too."""
ADDED_BY_COMMAND = 0.5
"""Probability that an operator asks for a new node's membership, although the node also joins by itself."""
TIMES_MAX = 20
"""Requests for the same change, at most."""


class Operators:
    """Operators who ask nodes for changes of the members."""

    def __init__(
        self, world: SimulatedWorld, cluster: SimulatedCluster, checks: Checks, random: Random
    ) -> None:
        self._world = world
        self._cluster = cluster
        self._checks = checks
        self._random = random
        self._stopped = False

    def stop(self) -> None:
        """Stop repeating requests."""
        self._stopped = True

    def request(self, change: MemberChange, times: int) -> None:
        """Ask random nodes for a change again and again, like an operator without an answer.

        The requests may go on after the cluster has removed the added node.
        """
        node = self._random.choice(self._cluster.nodes)
        if node.up and node.has_started:
            node.runtime.enter(lambda: node.group.reconfiguration.request(change, _ignore))
        if times and not self._stopped:
            self._world.after(self._random.uniform(0.0, 0.5), partial(self.request, change, times - 1))

    def remove(self, node: SimulatedNode) -> bool:
        """Ask for the removal of a member; return False if the cluster cannot spare it.

        The node stops when it learns of its removal. It returns with an empty directory unless it is removed for good.
        """
        if not node.has_started or node.misconfigured or node.may_be_removed:
            return False
        node.may_be_removed = True
        if not self._checks.may_be_damaged(node):
            node.may_be_removed = False  # the remaining members would lack a majority that has its logs
            return False
        change = MemberChange(Verb.REMOVE, node.name, node.group.members.id)
        self.request(change, self._random.randint(1, TIMES_MAX))
        return True


class Growth:
    """The operator of a cluster that grows and shrinks."""

    def __init__(
        self, world: SimulatedWorld, cluster: SimulatedCluster, checks: Checks, installed: dict[str, Program]
    ) -> None:
        """`installed` is the program of each node as the operators installed it; added nodes are entered there."""
        self.done = {"add node": 0, "remove node": 0}
        """Number of added nodes, and of requested removals for good."""
        self._world = world
        self._cluster = cluster
        self._checks = checks
        self._installed = installed
        self._random = world.random("growth")
        self._operators = Operators(world, cluster, checks, self._random)
        self._is_over = False

    def begin(self) -> None:
        """Schedule the next change of the members."""
        self._world.after(self._random.expovariate(1 / CHANGED_EVERY_S), self._change)

    def end(self) -> None:
        """Stop changing members; the current nodes stay."""
        self._is_over = True
        self._operators.stop()

    def _change(self) -> None:
        if self._is_over:
            return
        nodes, at_first = self._cluster.nodes, self._cluster.options.nodes
        stay = [node for node in nodes if not node.is_retired]
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
        if node.has_started and self._random.random() < ADDED_BY_COMMAND:
            change = MemberChange(Verb.ADD, node.name, node.group.members.id, *node.address)
            self._operators.request(change, self._random.randint(1, TIMES_MAX))
        self.done["add node"] += 1

    def _remove(self, node: SimulatedNode) -> None:
        if self._operators.remove(node):
            node.is_retired = True
            self.done["remove node"] += 1


def _ignore(_reason: str) -> None:
    """Ignore the reason of a refusal, because a later request may succeed."""
