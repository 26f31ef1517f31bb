"""Simulated clusters give up dead nodes, and keep nodes that live."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from chaos.sim.run import Simulation
from chaos.sim.world import network
from chaos.sim.world.cluster import NodeEvents, SimulatedCluster, SimulationOptions
from tests.harness.long_cases import cases

if TYPE_CHECKING:
    from chaos.sim.world.cluster import SimulatedNode
    from chaos.sim.world.world import SimulatedWorld

SEEDS = range(12)
SEEDS_MAX = 40
"""Bound of the seeds to try until an error shows."""
SETTLED_S = 4.0
"""Before that nodes wait for the first connection of their peers, and dial later."""
LIVING = SimulationOptions(
    duration_s=20.0,
    submit_interval_s=0.3,
    fault_interval_s=0.8,
    faults={"broken proxy": 2.0, "reset": 1.0, "transfer": 0.5},
)
"""Links end and proxies refuse connections, but each node can dial each peer."""
CUT_OFF = replace(LIVING, faults={"broken proxies": 2.0, "reset": 1.0, "kill": 0.5})


class LivingEvictions(NodeEvents):
    """Counts evictions of live nodes by their peers."""

    def __init__(self, world: SimulatedWorld) -> None:
        self.count = 0
        self._world = world

    def evicted(self, node: SimulatedNode) -> None:
        self.count += self._world.now_s > SETTLED_S


def evictions_of_living_nodes(seed: int, options: SimulationOptions) -> int:
    simulation = Simulation(seed, options)
    evictions = LivingEvictions(simulation.world)
    simulation.cluster.events.append(evictions)
    simulation.run()
    assert simulation.nemesis.done
    return evictions.count


@pytest.mark.parametrize("seed", cases(SEEDS, {0}.__contains__))
@pytest.mark.parametrize("nodes", [3, 5])
def test_a_living_node_behind_a_broken_proxy_is_kept(seed: int, nodes: int) -> None:
    assert evictions_of_living_nodes(seed, replace(LIVING, nodes=nodes)) == 0


def test_living_node_that_cannot_dial_is_evicted() -> None:
    assert any(evictions_of_living_nodes(seed, CUT_OFF) for seed in range(SEEDS_MAX))


def test_living_node_is_evicted_when_a_single_refusal_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "REFUSES_FOR_S", 0.0)
    group_config = SimulatedCluster.group_config
    monkeypatch.setattr(
        SimulatedCluster,
        "group_config",
        lambda self, node: replace(group_config(self, node), dead_origin_grace_s=0.0),
    )
    assert any(evictions_of_living_nodes(seed, LIVING) for seed in range(SEEDS_MAX))
