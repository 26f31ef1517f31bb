"""Damage of logs step by step, and its repair by the peers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product
from operator import attrgetter

import pytest

from chaos.sim.checks.checks import ViolationError
from chaos.sim.run import Simulation
from chaos.sim.workload.ledger import Ledger
from chaos.sim.world.cluster import LOG, SimulatedNode, SimulationOptions
from chaos.sim.world.disk import ProcessEnds
from cluster.log.hardstate import VoterStatus
from cluster.log.journal import SegmentedJournal
from cluster.log.segment import CorruptJournal
from cluster.storage.directory import OBSOLETE
from tests.harness.long_cases import cases

SMALL_LOGS = SimulationOptions(
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
def known_by_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without members in the log, a node that lost its directory must learn its possible promises from its peers."""
    monkeypatch.setattr(Ledger, "versions", (1, 1))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Nodes in trouble have a lot to say."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def running(options: SimulationOptions = SMALL_LOGS, until_s: float = 4.0) -> Simulation:
    """A cluster that has been serving for a while."""
    simulation = Simulation(1, options)
    for node in simulation.cluster.nodes:
        node.start()
    simulation.world.run_until(until_s)
    return simulation


def leader_first(simulation: Simulation) -> list[SimulatedNode]:
    leader = simulation.cluster.leader()
    return sorted(simulation.cluster.nodes, key=lambda node: node is not leader)


def lose_directory(simulation: Simulation, node: SimulatedNode, *, power_loss: bool = False) -> None:
    """End the node's process, and empty its disk."""
    node.end(power_loss=power_loss)
    node.disk.lose_everything()
    simulation.checks.damaged(node)


class Repair:
    """A quiet cluster with a node that lost its data and has just installed a snapshot; its disk is full."""

    def __init__(self) -> None:
        simulation = running()
        self.world, self.checks, cluster = simulation.world, simulation.checks, simulation.cluster
        simulation.workload.stop()
        self.world.run_until(12.0)
        assert cluster.settled()
        _, self.repaired, _ = leader_first(simulation)
        lose_directory(simulation, self.repaired)
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
    assert story.repaired.voter_status is VoterStatus.LEARNER
    story.lose_power()
    assert story.repaired.voter_status is VoterStatus.LEARNER
    assert story.repaired.group.journal.last_index < story.last_index
    story.pass_some_time()
    assert story.repaired.voter_status is VoterStatus.VOTER
    story.lose_power()
    assert story.repaired.group.journal.last_index >= story.last_index


def test_reliance_on_a_log_that_is_not_durable_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def take_no_notice(_journal: SegmentedJournal, _value: int) -> None: ...

    written, last = (attrgetter(name) for name in ("written", "last_index"))
    monkeypatch.setattr(SegmentedJournal, "synced", property(written, take_no_notice), raising=False)
    monkeypatch.setattr(SegmentedJournal, "synced_index", property(last, take_no_notice), raising=False)
    story = Repair()
    story.pass_some_time()
    assert story.repaired.voter_status is VoterStatus.VOTER
    # It returns as a voter without its acknowledged entries; or without its manifest, and discards an intact log.
    with pytest.raises(
        ViolationError, match=r"is a voter without entry|has given its log up, and nothing was done"
    ):
        story.lose_power()


def damage(node: SimulatedNode) -> str:
    """Flip a bit of a sealed segment. The file."""
    journal = node.group.journal
    path = f"{LOG}/{next(segment.name for segment in journal.segments() if segment.sealed)}"
    node.disk.flip_bit(path, node.disk.files()[path] * 4)
    return path


def find_damage(node: SimulatedNode) -> None:
    """A segment that is in use cannot be read any more."""
    path = damage(node)
    node.runtime.enter(partial(node.group.disk_failed, CorruptJournal(path, 0, "wrong checksum")))


@pytest.mark.parametrize("power_loss", cases([False, True], bool))
def test_two_of_five_logs_are_repaired_at_the_same_time(power_loss: bool) -> None:
    simulation = running(replace(SMALL_LOGS, nodes=5))
    world, checks, cluster = simulation.world, simulation.checks, simulation.cluster
    leader, follower, *whole = leader_first(simulation)
    assert checks.may_be_damaged(follower)
    lose_directory(simulation, follower, power_loss=power_loss)
    assert checks.may_be_damaged(leader)
    checks.damaged(leader)
    find_damage(leader)
    assert not any(map(checks.may_be_damaged, whole))
    confirms = checks.confirms
    follower.start()
    world.run_until(60.0, stop=lambda: checks.repairs == 2)
    assert checks.repairs == 2, cluster.describe()
    assert checks.confirms > confirms
    simulation.workload.stop()
    world.run_until(world.now_s + 10.0, stop=lambda: cluster.settled() and not leader.disk.damaged_files())
    assert cluster.settled(), cluster.describe()
    assert not leader.disk.damaged_files()
    checks.check_agreement()


def test_node_with_a_damaged_log_stays_up_while_it_is_needed() -> None:
    simulation = running()
    world, checks, cluster = simulation.world, simulation.checks, simulation.cluster
    _, damaged, absent = leader_first(simulation)
    absent.end(power_loss=False)
    world.run_until(10.0)
    incarnation, confirms = damaged.incarnation, checks.confirms
    checks.damaged(damaged)
    find_damage(damaged)
    world.run_until(16.0)
    assert (damaged.up, damaged.incarnation) == (True, incarnation)
    assert not damaged.group.engine.may_lead
    assert checks.confirms > confirms + 20
    absent.start()
    world.run_until(60.0, stop=lambda: checks.repairs == 1)
    assert damaged.incarnation > incarnation
    assert damaged.voter_status is VoterStatus.VOTER
    simulation.workload.stop()
    world.run_until(world.now_s + 10.0, stop=cluster.settled)
    assert cluster.settled(), cluster.describe()
    checks.check_agreement()


@pytest.mark.long
def test_damaged_node_counts_as_damaged_until_its_log_is_durable() -> None:
    """The damaged file went before the new log was known to be durable, and the check expected too much (700477)."""
    simulation = running()
    world, checks = simulation.world, simulation.checks
    leader, follower, _ = leader_first(simulation)
    follower.end(power_loss=False)
    path = damage(follower)
    checks.damaged(follower)
    world.run_until(14.0)
    follower.start()
    world.run_until(30.0, stop=lambda: follower.group.snapshots_installed > 0)
    assert follower.voter_status is VoterStatus.VOTER
    assert leader.group.engine.acknowledged_index(follower.name)
    follower.disk.full = True
    follower.disk.remove(path)
    world.run_until(world.now_s + 8.0)
    assert not follower.group.journal.synced_index
    assert not checks.may_be_damaged(leader)
    follower.disk.full = False
    world.run_until(world.now_s + 5.0)
    assert checks.may_be_damaged(leader)


def test_installed_state_may_lack_entries_that_its_sender_lacks() -> None:
    """Messages that had died by the checkpoint that was damaged; the check expected them there (813049)."""
    simulation = running()
    world, checks = simulation.world, simulation.checks
    giver, emptied, _ = leader_first(simulation)
    damaged_index = giver.group.journal.last_index + 1000
    checks.checkpoint_damaged(giver, damaged_index)
    lose_directory(simulation, emptied)
    emptied.start()
    world.run_until(40.0, stop=lambda: checks.installs == 1)
    assert checks.replays_to[emptied.name] == damaged_index


def test_a_log_is_kept_for_a_node_that_is_sent_a_snapshot_slowly() -> None:
    """The log was truncated meanwhile, and the node needed the next snapshot when it had the first (829080)."""
    simulation = running(replace(SMALL_LOGS, retained_bytes=0, disk_slowness=50.0))
    world, checks = simulation.world, simulation.checks
    _, emptied, _ = leader_first(simulation)
    lose_directory(simulation, emptied)
    world.run_until(20.0)
    emptied.start()
    world.run_until(60.0, stop=lambda: checks.repairs == 1)
    assert (checks.repairs, checks.installs) == (1, 1)


def fill(simulation: Simulation, node: SimulatedNode) -> None:
    """Let a follower keep data that its peers free, as if it were live, until its disk is full of it."""
    housekeeping = node.group.housekeeping
    turn = housekeeping.turn
    housekeeping.turn = lambda *_: None  # type: ignore[method-assign]
    simulation.world.run_until(simulation.world.now_s + 13.0)
    node.disk.capacity_bytes = node.disk.used_bytes()
    simulation.world.run_until(40.0, stop=lambda: node.group.journal.full)
    assert node.group.journal.full
    housekeeping.turn = turn  # type: ignore[method-assign]


@pytest.mark.parametrize("restarts", cases([False, True], bool))
def test_full_disk_of_obsolete_entries_is_reclaimed(restarts: bool) -> None:
    simulation = running(until_s=8.0)
    world, checks, cluster = simulation.world, simulation.checks, simulation.cluster
    _, follower, _ = leader_first(simulation)
    fill(simulation, follower)
    if restarts:
        world.run_until(world.now_s + 5.0)
        follower.end(power_loss=True)
        follower.start()
    capacity_bytes = follower.disk.used_bytes()
    world.run_until(world.now_s + 40.0, stop=lambda: checks.repairs == 1)
    assert follower.voter_status is VoterStatus.VOTER
    assert follower.disk.used_bytes() < capacity_bytes / 2
    assert not follower.group.journal.full
    simulation.workload.stop()
    world.run_until(world.now_s + 10.0, stop=cluster.settled)
    assert cluster.settled(), cluster.describe()
    assert len({node.group.engine.applied_index for node in cluster.nodes}) == 1
    checks.check_agreement()


@pytest.mark.long
def test_full_log_is_kept_while_no_majority_is_left_without_it() -> None:
    simulation = running(until_s=8.0)
    world, cluster = simulation.world, simulation.cluster
    leader, follower, other = leader_first(simulation)
    fill(simulation, follower)
    world.run_until(world.now_s + 2.0)
    other.end(power_loss=False)
    incarnation = follower.incarnation
    world.run_until(world.now_s + 30.0)
    assert (follower.incarnation, follower.voter_status) == (incarnation, VoterStatus.VOTER)
    follower.disk.capacity_bytes = None
    other.start()
    simulation.workload.stop()
    world.run_until(world.now_s + 20.0, stop=cluster.settled)
    assert cluster.settled(), cluster.describe()
    assert leader.up


@pytest.mark.parametrize(
    "end", cases(product(range(8), (False, True)), [(1, False), (3, True), (6, True)].__contains__), ids=str
)
def test_log_is_discarded_as_a_whole_or_kept(end: tuple[int, bool]) -> None:
    steps, power_loss = end
    simulation = running()
    world, checks, cluster = simulation.world, simulation.checks, simulation.cluster
    _, follower, _ = leader_first(simulation)
    directory = follower.group.fail_stop._directory
    checks.gave_log_up(follower)
    follower.disk.end_process_after(steps)
    with suppress(ProcessEnds):
        directory.discard_log()
    follower.disk.spare_process()
    follower.end(power_loss=power_loss)
    follower.start()
    assert f"{directory.path}/{OBSOLETE}" not in follower.disk.directories
    world.run_until(world.now_s + 20.0, stop=lambda: follower.voter_status is VoterStatus.VOTER)
    simulation.workload.stop()
    world.run_until(world.now_s + 10.0, stop=cluster.settled)
    assert cluster.settled(), cluster.describe()
    checks.check_agreement()


def test_discarding_a_needed_log_is_found() -> None:
    simulation = running()
    _, follower, other = leader_first(simulation)
    lose_directory(simulation, other)
    other.start()
    with pytest.raises(ViolationError, match="has given its log up, and only"):
        simulation.checks.gave_log_up(follower)
