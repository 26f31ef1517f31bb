"""The cluster under random faults keeps its promises; and a seed is a run."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.sim.cluster import Options
from chaos.sim.nemesis import Nemesis
from chaos.sim.run import Simulation, draw_options, run_seed

ROOT = Path(__file__).parent.parent.parent
CHUNKS = 20
SEEDS_PER_CHUNK = 14
FINGERPRINTS = (
    "from chaos.sim.run import run_seed; print([run_seed(seed).fingerprint for seed in (0, 1, 2, 3)])"
)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Nodes in trouble have a lot to say."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_seed_keeps_the_promises(chunk: int) -> None:
    totals: Counter[str] = Counter()
    for seed in range(chunk * SEEDS_PER_CHUNK, (chunk + 1) * SEEDS_PER_CHUNK):
        outcome = run_seed(seed)
        assert not outcome.violation, f"{outcome.violation}\nreplay: python -m chaos.sim --seed {seed} -v"
        totals.update(entries=outcome.entries, confirms=outcome.confirms, elections=outcome.elections)
        totals.update(faults=sum(outcome.faults.values()), compacted=outcome.compacted)
    assert totals["faults"] > 5 * SEEDS_PER_CHUNK
    assert totals["elections"] > 2 * SEEDS_PER_CHUNK
    assert totals["confirms"] > 50 * SEEDS_PER_CHUNK
    assert totals["compacted"] > 20 * SEEDS_PER_CHUNK


def test_logs_are_replaced_and_repaired() -> None:
    totals: Counter[str] = Counter()
    for seed in range(1000, 1030):
        outcome = run_seed(seed)
        totals.update(installs=outcome.installs, repairs=outcome.repairs)
    assert totals["installs"] >= 3
    assert totals["repairs"] >= 5


def test_a_node_that_lost_its_directory_and_whose_clock_was_set_back_comes_back() -> None:
    """Its new incarnation is the time, which is less than that of its earlier life."""
    simulation = Simulation(1, Options(faults={"reset": 1.0}, fault_interval_s=1000.0))
    cluster, world, checks = simulation.cluster, simulation.world, simulation.checks
    for node in cluster.nodes:
        node.start()
    world.run_until(5.0)
    node = cluster.nodes[0]
    node.end(power_loss=False)
    node.disk.lose_everything()
    checks.damaged(node)
    node.wall.skew_ms -= 3_600_000
    node.start()
    world.run_until(10.0)
    simulation.workload.stop()
    world.run_until(20.0)
    assert cluster.settled(), cluster.describe()
    checks.check_agreement()


def test_the_same_seed_is_the_same_run_in_every_process() -> None:
    assert _fingerprints(hash_seed="1") == _fingerprints(hash_seed="2")


def _fingerprints(hash_seed: str) -> str:
    command = f"import logging; logging.disable(50); {FINGERPRINTS}"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", command], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_seeds_differ() -> None:
    assert run_seed(0).fingerprint != run_seed(1).fingerprint


def test_both_sizes_and_both_machines_are_drawn() -> None:
    drawn = Counter((options.nodes, options.queues) for options in map(draw_options, range(100)))
    assert sorted(drawn) == [(3, False), (3, True), (5, False), (5, True)]


@pytest.mark.parametrize("fault", Nemesis.FAULTS)
def test_each_fault_alone_is_survived(fault: str) -> None:
    options = Options(duration_s=15.0, fault_interval_s=0.5, faults={fault: 1.0}, queues=True)
    simulation = Simulation(7, options)
    simulation.run()
    assert simulation.nemesis.done[fault] > 3
    assert simulation.checks.confirms > 10


def test_a_peer_that_is_down_and_needs_a_snapshot_pins_nothing_for_ever() -> None:
    options = Options(
        submit_interval_s=0.1,
        fault_interval_s=1e9,
        faults={"reset": 1.0},
        segment_bytes=2048,
        checkpoint_entries=5,
        checkpoint_bytes=2048,
        retained_bytes=0,
    )
    simulation = Simulation(5, options)
    world, cluster = simulation.world, simulation.cluster
    for node in cluster.nodes:
        node.start()
    world.run_until(4.0)
    leader = cluster.leader()
    assert leader is not None
    peer = next(node for node in cluster.nodes if node is not leader)
    peer.end(power_loss=False)
    world.run_until(12.0)
    peer.start()
    world.run_until(20.0, stop=lambda: peer.name in leader.group.engine.needs_snapshot)
    peer.end(power_loss=False)
    pinned: list[bool] = []
    for time_s in (30.0, 120.0):
        world.run_until(time_s)
        pinned.append(bool(leader.group.housekeeping.pinned))
    assert cluster.leader() is leader
    assert pinned == [True, False]
