"""Nodes that are cut off in turn, and return before they are evicted."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from chaos.sim.world.cluster import SimulationOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from chaos.sim.run import Simulation
    from chaos.sim.world.cluster import SimulatedNode

AWAY_S = 3.5
"""Below the eviction time of a silent node, and enough for its peers to drop the entries that it missed."""
CUTS_S = (3.0, 8.0, 13.0)
"""Times at which nodes are cut off, in turn."""
OPTIONS = SimulationOptions(
    queues=True,
    duration_s=14.0,
    submit_interval_s=0.25,
    segment_bytes=2048,
    checkpoint_entries=5,
    checkpoint_bytes=4096,
    checkpoint_interval_s=0.5,
    retained_bytes=0,
    fault_interval_s=1000.0,
    faults={"transfer": 1.0},
)
"""No further faults, and only the needed part of the log is kept."""


def cut_off_nodes_in_turn(simulation: Simulation, away_s: float = AWAY_S) -> None:
    """Three nodes come and go in the first 16.5 s. Clients of a node are not cut off from it."""
    network = simulation.cluster.network

    def change(apply: Callable[[str, str], None], node: SimulatedNode) -> None:
        for peer in node.peers:
            apply(node.name, peer)
            apply(peer, node.name)
        simulation.checks.topology_changed()

    for cut_s, node in zip(CUTS_S, simulation.cluster.nodes, strict=True):
        for at_s, apply in ((cut_s, network.cut), (cut_s + away_s, network.heal)):
            simulation.world.after(at_s, partial(change, apply, node))
