"""A node that lost its log relies on a new one only when that is on its disk."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import pytest

from chaos.sim.checks import ViolationError
from chaos.sim.cluster import Options
from chaos.sim.run import Simulation
from cluster.hardstate import Standing
from cluster.journal import SegmentedJournal
from cluster.segment import Segment
from cluster.term_runs import TermRuns

SMALL_LOGS = Options(
    submit_interval_s=0.05,
    fault_interval_s=1e9,
    faults={"reset": 1.0},
    segment_bytes=2048,
    checkpoint_entries=10,
    checkpoint_bytes=4096,
    retained_bytes=2048,
)
adopt = SegmentedJournal.adopt


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Nodes in trouble have a lot to say."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Repair:
    """A quiet cluster, one node of which has lost everything and has just installed a snapshot; its disk is full."""

    def __init__(self) -> None:
        simulation = Simulation(1, SMALL_LOGS)
        self.world, self.checks, cluster = simulation.world, simulation.checks, simulation.cluster
        for node in cluster.nodes:
            node.start()
        self.world.run_until(8.0)
        simulation.workload.stop()
        self.world.run_until(12.0)
        assert cluster.settled()
        self.repaired = next(node for node in cluster.nodes if node is not cluster.leader())
        self.repaired.end(power_loss=False)
        self.repaired.disk.lose_everything()
        self.checks.damaged(self.repaired)
        self.repaired.start()
        self.world.run_until(40.0, stop=lambda: self.repaired.group.snapshots_installed > 0)
        self.repaired.disk.full = True
        self.last_index = self.repaired.group.journal.last_index

    def pass_some_time(self) -> None:
        self.world.run_until(self.world.now_s + 10.0)

    def lose_power(self) -> None:
        self.repaired.end(power_loss=True)
        self.repaired.disk.full = False
        self.repaired.start()


def test_a_repaired_node_is_a_voter_once_its_new_log_is_durable() -> None:
    story = Repair()
    story.pass_some_time()
    assert story.repaired.standing is Standing.LEARNER
    story.lose_power()
    assert story.repaired.standing is Standing.LEARNER
    assert story.repaired.group.journal.last_index < story.last_index
    story.pass_some_time()
    assert story.repaired.standing is Standing.VOTER
    story.lose_power()
    assert story.repaired.group.journal.last_index >= story.last_index


def test_it_is_found_if_a_node_relies_on_a_log_that_is_not_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    def adopt_as_if_synced(journal: SegmentedJournal, segments: Sequence[Segment], runs: TermRuns) -> None:
        adopt(journal, segments, runs)
        journal.synced_index = journal.last_index

    monkeypatch.setattr(SegmentedJournal, "adopt", adopt_as_if_synced)
    story = Repair()
    story.pass_some_time()
    assert story.repaired.standing is Standing.VOTER
    with pytest.raises(ViolationError, match=f"is a voter without entry {story.last_index}"):
        story.lose_power()
