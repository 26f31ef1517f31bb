"""The cluster under random faults keeps its promises; and a seed is a run."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

import pytest

from chaos.sim.checks.checks import ViolationError
from chaos.sim.faults.nemesis import FAULTS
from chaos.sim.faults.operators import MORE_MAX
from chaos.sim.run import (
    LARGEST_BYTES,
    Outcome,
    Simulation,
    draw_amqp10,
    draw_birth,
    draw_leases,
    draw_links,
    draw_options,
    run_seed,
)
from chaos.sim.workload.ledger import Ledger
from chaos.sim.world.cluster import SimulatedNode, SimulationOptions
from chaos.sim.world.network import NetworkOptions
from cluster.configuration.change_request import MemberChange, Verb
from cluster.engine.engine import Engine
from cluster.engine.rejoin import Rejoin
from cluster.log.hardstate import HardState, VoterStatus
from cluster.log.segment import FILE_HEADER_BYTES
from cluster.raft.cluster_clock import WALL_MAX_MS
from cluster.raft.messages import Message, TimeoutNow, VoteRequest, encode
from cluster.transport.connection import LinkLimits
from tests.harness.long_cases import cases

ROOT = Path(__file__).parents[3]
# fmt: off
SEEDS = (
    2, 5, 10, 12, 22, 23, 25, 29, 31, 33, 34, 36, 37, 42, 48, 51, 52, 55, 64, 65, 67, 79, 82, 86, 95, 99,
    101, 102, 103, 109, 112, 116, 117, 120, 127, 129, 131, 136, 157, 257,
)
# fmt: on
"""Those of the first 258 that show all that there is in the least time, some of each kind; `make sim` is for more."""
CHUNKS = 3
KINDS: dict[str, Callable[[SimulationOptions], bool]] = {
    "five nodes": lambda options: options.nodes == 5,
    "ledger": lambda options: not options.queues,
    "queues": lambda options: options.queues and not options.clients,
    "clients": lambda options: options.clients,
    "upgrade": lambda options: options.is_upgrade and options.raises_version,
    "upgrade that is not finished": lambda options: options.is_upgrade and not options.raises_version,
    "backup": lambda options: options.makes_backup,
    "largest entries": lambda options: options.largest_bytes == LARGEST_BYTES,
    "disk use": lambda options: options.checks_disk_use,
    "growing": lambda options: options.grows,
    "replaced by command": lambda options: not options.replaces_emptied,
}
FATES = (
    "settled",
    "expired",
    "maxlen",
    "rejected",
    "delivery_limit",
    "dead-lettered",
    "dead-lettered safely",
    "circles",
    "no room",
    "purged",
    "refused",
    "repeated",
    "retried later",
    "timeouts",
    "transactions",
    "transactions not carried out",
)
FINGERPRINT = "from chaos.sim.run import run_seed; print(run_seed(24).fingerprint)"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Nodes in trouble have a lot to say."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@cache
def outcome_of(seed: int) -> Outcome:
    return run_seed(seed)


@pytest.mark.xdist_group("seeds")
@pytest.mark.parametrize("chunk", cases(range(CHUNKS), lambda chunk: chunk == 0))
def test_every_seed_keeps_the_promises(chunk: int) -> None:
    totals: Counter[str] = Counter()
    seeds = SEEDS[chunk::CHUNKS]
    for seed in seeds:
        outcome = outcome_of(seed)
        assert not outcome.violation, f"{outcome.violation}\nreplay: python -m chaos.sim --seed {seed} -v"
        totals.update(entries=outcome.entries, confirms=outcome.confirms, elections=outcome.elections)
        totals.update(faults=sum(outcome.faults.values()), compacted=outcome.compacted)
    assert totals["faults"] > 5 * len(seeds)
    assert totals["elections"] > 2 * len(seeds)
    assert totals["confirms"] > 50 * len(seeds)
    assert totals["compacted"] > 20 * len(seeds)


@pytest.mark.parametrize("seed", [1000741, 1002801, 7510252, 8100821, 10000122, 12202675])
def test_cluster_survives_mistakes_of_operators(seed: int) -> None:
    """Operators empty a directory with a wrong list and no id, or add a node late that was removed meanwhile.

    Second seed: a node is about to become a voter when its disk is lost, as is that of one of three voters. Third: a
    node is removed for good because its old directory learns of a removal, but it is still a member. Fourth and
    fifth: a node was removed while it was down, and so were all members that it knows. Last: a node with a lost
    directory was moved, and all members in its file were gone.
    """
    assert not run_seed(seed).violation


def test_old_node_is_not_started_beside_its_restored_successor() -> None:
    """The old node had stopped and was started again; both had the same name, and the new node lost its links."""
    simulation = Simulation(1, SimulationOptions())
    node = simulation.cluster.nodes[0]
    node.start()
    simulation.world.run_until(1.0)
    node.end(power_loss=False)
    simulation.world.after(1.0, node.start)
    node.take_down()
    simulation.world.run_until(5.0)
    assert not node.up


def test_node_is_admitted_again_after_its_addition_was_lost() -> None:
    """It had been told that it is a member when the power of all nodes failed: its directory was refused for ever."""
    assert not run_seed(12301327).violation


def test_emptied_node_founds_no_cluster_with_an_empty_member() -> None:
    """Its file listed only the empty member, which voted for it."""
    assert not run_seed(12423368).violation


@pytest.mark.parametrize("first", range(0, 24, 8))
def test_a_cluster_is_born_under_faults(first: int) -> None:
    outcomes = [run_seed(seed, draw=draw_birth) for seed in range(first, first + 8)]
    assert [outcome.violation for outcome in outcomes] == [""] * 8
    assert all(sum(outcome.faults.values()) for outcome in outcomes)


def test_readers_lease_messages_in_each_run_of_this_kind() -> None:
    outcomes = [run_seed(seed, draw=draw_leases) for seed in range(4)]
    assert [outcome.violation for outcome in outcomes] == [""] * 4
    assert all(outcome.fates["leases"] for outcome in outcomes)


def test_clients_set_the_credit_in_each_run_of_this_kind() -> None:
    outcomes = [run_seed(seed, draw=draw_links) for seed in range(3)]
    assert [outcome.violation for outcome in outcomes] == [""] * 3
    assert all(outcome.fates["drains"] for outcome in outcomes)


def test_attempt_keeps_its_steps_when_its_next_step_is_refused() -> None:
    """The oracle of sinks forgot how many steps the attempt had."""
    assert not run_seed(242, draw=draw_leases).violation


@pytest.mark.parametrize("seed", [1136, 1252])
def test_replaying_node_may_lack_settled_messages(seed: int) -> None:
    """Of leases and attempts: the node had read an older checkpoint, because the newest checkpoint was damaged."""
    assert not run_seed(seed, draw=draw_leases).violation


def test_leader_survives_queues_that_are_not_stuck_any_more() -> None:
    """The last pass of a queue was forgotten while it was under way."""
    assert not run_seed(1811, draw=draw_leases).violation


def test_message_for_lowered_credit_may_follow_a_drain() -> None:
    """A client of AMQP 1.0 took the drain for ended by messages that had used earlier, higher credit."""
    assert not run_seed(40009, draw=draw_amqp10).violation


def test_links_that_heal_give_a_node_its_majority() -> None:
    """A node that was put back had the majority again, and the checks still took its leader for cut off."""
    assert not run_seed(2196, draw=draw_leases).violation


def test_node_that_was_put_back_has_heard_those_that_remember() -> None:
    """Its slow start opened only its own end of a link, so they were cut off before it had heard any of them."""
    assert not run_seed(4715, draw=draw_leases).violation


def test_new_id_does_not_mend_a_flipped_bit() -> None:
    """A node without promises got a new id at its start, and the checks forgot the damage that it found later."""
    assert not run_seed(3519, draw=draw_leases).violation


def test_message_from_before_a_stall_is_not_taken_as_current() -> None:
    """A node reported that no majority has its log any more, because of a peer's report from before its start."""
    assert not run_seed(65611, draw=draw_birth).violation


def test_emptied_node_goes_on_with_the_owner_of_the_log() -> None:
    """The node could not know that the configuration there was committed; the leader's log was damaged."""
    assert not run_seed(12441341).violation


@pytest.mark.long
@pytest.mark.xdist_group("seeds")
def test_rare_events_happen_in_the_seeds() -> None:
    totals: Counter[str] = Counter()
    fates: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for seed in SEEDS:
        outcome = outcome_of(seed)
        totals.update(installs=outcome.installs, repairs=outcome.repairs)
        fates.update(outcome.fates)
        faults.update(fault for fault, count in outcome.faults.items() if count)
    assert totals["installs"] >= 3
    assert totals["repairs"] >= 5
    assert sum(outcome_of(seed).voters_max >= draw_options(seed).nodes + MORE_MAX for seed in SEEDS) >= 3
    assert [change for change in ("add node", "remove node") if faults[change] < 6] == []
    assert [fate for fate in FATES if fates[fate] < 3] == []
    assert [fault for fault in FAULTS if faults[fault] < 3] == []
    # The leader alone handles dead letters, and does not repeat its requests.
    assert fates["asked to move in vain"] < fates["asked to move"] / 2


def test_seeds_include_every_kind_of_run() -> None:
    drawn = Counter(kind for seed in SEEDS for kind, is_it in KINDS.items() if is_it(draw_options(seed)))
    assert [kind for kind in KINDS if drawn[kind] < 3] == []


def leader_and_follower(simulation: Simulation, at_s: float) -> tuple[SimulatedNode, SimulatedNode]:
    """Start all nodes, and return the leader and a follower at this time."""
    for node in simulation.cluster.nodes:
        node.start()
    simulation.world.run_until(at_s)
    leader = simulation.cluster.leader()
    assert leader is not None
    return leader, next(node for node in simulation.cluster.nodes if node is not leader)


def test_emptied_node_returns_although_its_clock_was_set_back() -> None:
    """Its new incarnation is the time, which is less than that of its earlier life."""
    simulation = Simulation(1, SimulationOptions(faults={"reset": 1.0}, fault_interval_s=1000.0))
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


def test_emptied_node_with_a_stopped_clock_is_a_new_incarnation() -> None:
    """Submissions of the earlier incarnation are not confirmed to the clients of this one (seed 301133)."""
    simulation = Simulation(1, SimulationOptions(faults={"reset": 1.0}, fault_interval_s=1000.0))
    cluster, world, checks = simulation.cluster, simulation.world, simulation.checks
    node = cluster.nodes[0]
    node.wall.skew_ms = 2 * WALL_MAX_MS  # the time that it goes by is the largest there is, at each start
    checks.clocks_changed()
    for other in cluster.nodes:
        other.start()
    world.run_until(5.0)
    for until_s in (10.0, 15.0, 20.0):
        node.end(power_loss=False)
        node.disk.lose_everything()
        checks.damaged(node)
        node.start()
        world.run_until(until_s)
    simulation.workload.stop()
    world.run_until(30.0)
    assert cluster.settled(), cluster.describe()
    checks.check_agreement()


def test_directory_that_was_never_started_does_not_count() -> None:
    """The first start of an emptied node had found no space (seed 6001191)."""
    simulation = Simulation(1, SimulationOptions())
    node = simulation.cluster.nodes[0]
    assert not simulation.checks.counts(node)
    node.start()
    assert node.has_id


def test_directory_with_a_new_id_is_as_damaged_as_before() -> None:
    """It has promised nothing, so each start gives it a new id, but no other files."""
    simulation = Simulation(1, SimulationOptions(faults={"reset": 1.0}, fault_interval_s=1000.0))
    cluster, world, checks = simulation.cluster, simulation.world, simulation.checks
    _, node = leader_and_follower(simulation, 5.0)
    for peer in node.peers:
        cluster.network.cut(peer, node.name)
    node.end(power_loss=False)
    node.disk.lose_everything()
    checks.damaged(node)
    node.start()
    world.run_until(6.0)
    assert not checks.may_find_damage(node)
    node.end(power_loss=False)
    before = node.group.members.id
    [segment] = [path for path in node.disk.files() if path.endswith(".segment")]
    node.disk.flip_bit(segment, 8 * FILE_HEADER_BYTES)
    checks.damaged(node)
    node.start()
    assert node.group.members.id != before
    assert checks.may_find_damage(node)


def test_voter_stays_undamaged_beside_a_damaged_learner() -> None:
    """Two of four voters were lost, and nodes told the truth: no majority had its log (birth 104005)."""
    simulation = Simulation(1, SimulationOptions(faults={"reset": 1.0}, fault_interval_s=1000.0))
    cluster, world, checks = simulation.cluster, simulation.world, simulation.checks
    leader, _ = leader_and_follower(simulation, 5.0)
    learner = cluster.add_node()
    checks.clocks_changed()
    learner.start()
    world.run_until(10.0, stop=lambda: learner.name in leader.group.configurations.newest.membership.learners)
    assert checks.may_be_damaged(leader)
    checks.damaged(learner)
    assert not checks.may_be_damaged(leader)


def test_operator_adds_a_removed_node_without_directory_again() -> None:
    simulation = Simulation(1, SimulationOptions(faults={"reset": 1.0}, fault_interval_s=1000.0))
    cluster, world = simulation.cluster, simulation.world
    leader, lost = leader_and_follower(simulation, 5.0)
    before = lost.group.members.id
    lost.end(power_loss=False)
    lost.disk.lose_everything()
    simulation.checks.damaged(lost)
    removal = MemberChange(Verb.REMOVE, lost.name, before)
    leader.runtime.enter(lambda: leader.group.reconfiguration.request(removal, print))
    world.run_until(6.0)
    lost.start()
    world.run_until(10.0)
    assert leader.group.configurations.committed.was_removed(lost.name)
    cluster.operate_members()
    simulation.workload.stop()
    world.run_until(20.0)
    assert cluster.settled(), cluster.describe()


def test_batch_submitted_before_an_eviction_is_of_the_old_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An entry confirms a batch and evicts its node: a client acts between the two (seed 309256)."""
    simulation = Simulation(1, SimulationOptions(faults={"reset": 1.0}, fault_interval_s=1e9))
    cluster, world, workload = simulation.cluster, simulation.world, simulation.workload
    leader, _ = leader_and_follower(simulation, 5.0)
    client = workload.clients[leader.name]
    confirmed = workload.confirmed

    def confirmed_and_acts(node: SimulatedNode, sequence: int) -> None:
        confirmed(node, sequence)
        if workload.clients[node.name] is client:
            client.act()

    def evict_itself() -> None:
        client.act()
        group = leader.group
        group._forward()
        group._proposals.evict(leader.name, group._pending.incarnation)
        client.act()  # this publish is refused

    monkeypatch.setattr(workload, "confirmed", confirmed_and_acts)
    leader.runtime.enter(evict_itself)
    world.run_until(10.0)
    assert workload.clients[leader.name] is not client
    workload.stop()
    world.run_until(20.0)
    assert cluster.settled(), cluster.describe()
    simulation.checks.check_agreement()


def test_campaign_that_no_node_received_may_be_forgotten() -> None:
    story = ForgottenCampaign()
    assert story.loser.group.engine.voted_for == story.loser.name
    story.lose_everything()
    assert story.loser.voter_status is VoterStatus.VOTER
    assert story.loser.group.engine.term == story.term - 1
    story.elect_the_second_candidate()
    engine = story.loser.group.engine
    assert (engine.term, engine.voted_for) == (story.term, story.other.name)


def test_campaign_that_won_a_vote_is_remembered() -> None:
    story = ForgottenCampaign(is_received=True)
    assert story.other.group.engine.voted_for == story.loser.name
    story.lose_everything()
    assert story.loser.voter_status is VoterStatus.VOTER
    assert story.loser.group.engine.term >= story.term


@pytest.fixture
def known_by_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without members in the log, a node that lost its directory must learn its possible promises from its peers."""
    monkeypatch.setattr(Ledger, "versions", (1, 1))


@pytest.mark.usefixtures("known_by_names")
def test_forgetting_a_campaign_that_won_a_vote_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    story = ForgottenCampaign(is_received=True)
    monkeypatch.setattr(Rejoin, "_remember", story.remember_an_earlier_term)
    with pytest.raises(ViolationError, match=rf"forgotten term {story.term}, in which \w+ voted for it"):
        story.lose_everything()


@pytest.mark.usefixtures("known_by_names")
def test_forgetting_a_vote_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    story = ForgottenCampaign()
    story.lose_everything()
    story.elect_the_second_candidate()
    monkeypatch.setattr(Rejoin, "_remember", story.remember_an_earlier_term)
    with pytest.raises(ViolationError, match="has forgotten that it voted for"):
        story.lose_everything()


@pytest.mark.usefixtures("known_by_names")
def test_vote_for_a_forgotten_campaign_is_found() -> None:
    story = ForgottenCampaign()
    story.lose_everything()
    late = VoteRequest(story.term, last_index=1_000_000, last_term=story.term)
    with pytest.raises(ViolationError, match=f"votes for {story.loser.name} .* does not campaign in it"):
        story.receives(story.other, story.loser, late)


VOTED_S = 0.01
"""Seconds for a vote without a competing campaign."""


class ForgottenCampaign:
    """A follower campaigns, in term `term`, and loses its directory before anything comes of it (seed 6009799)."""

    def __init__(self, *, is_received: bool = False) -> None:
        simulation = Simulation(1, SimulationOptions(faults={"reset": 1.0}, fault_interval_s=1e9))
        self.world, self.cluster, self.checks = simulation.world, simulation.cluster, simulation.checks
        for node in self.cluster.nodes:
            node.start()
        self.world.run_until(5.0)
        simulation.workload.stop()
        self.world.run_until(7.0)
        leader = self.cluster.leader()
        assert leader is not None
        # A leader hands over to the follower with the smaller name.
        self.leader = leader
        self.other, self.loser = [node for node in self.cluster.nodes if node is not leader]
        self.term = leader.group.engine.term + 1
        self._cuts = [(self.loser.name, leader.name), (leader.name, self.loser.name)]
        self._cuts.append((self.other.name, self.loser.name))
        if not is_received:
            self._cuts.append((self.loser.name, self.other.name))
        for cut in self._cuts:
            self.cluster.network.cut(*cut)
        self.receives(self.loser, leader, TimeoutNow(self.term - 1))
        self.world.run_until(self.world.now_s + VOTED_S)
        assert self.loser.group.engine.term == self.term

    def receives(self, node: SimulatedNode, peer: SimulatedNode, message: Message) -> None:
        frame = b"".join(encode(message))
        self.checks.received(node, peer.name, frame)
        node.runtime.enter(partial(node.group.inbox.frame_received, peer.name, frame))

    def lose_everything(self) -> None:
        """The disk is replaced, all links are whole again, and the node has some time to come back."""
        for node in (self.leader, self.other):
            self.cluster.network.reset(self.loser.name, node.name)
        self.loser.end(power_loss=False)
        self.loser.disk.lose_everything()
        self.checks.damaged(self.loser)
        for cut in self._cuts:
            self.cluster.network.heal(*cut)
        self._cuts = []
        self.loser.start()
        self.world.run_until(self.world.now_s + 5.0)

    def remember_an_earlier_term(self, engine: Engine) -> None:
        """In place of `Rejoin`: does not adopt the latest term of the peers."""
        self.loser.group.rejoin._rise(HardState(self.term - 1, None, VoterStatus.LEARNER))
        engine.remember(self.term - 1, None)

    def elect_the_second_candidate(self) -> None:
        self.leader.runtime.enter(self._hand_over)
        self.world.run_until(self.world.now_s + 2.0)
        assert self.cluster.leader() is self.other

    def _hand_over(self) -> None:
        self.leader.group.leadership.transfer()


def test_the_same_seed_is_the_same_run_in_every_process() -> None:
    assert _fingerprint(hash_seed="1") == _fingerprint(hash_seed="2")


def _fingerprint(hash_seed: str) -> str:
    command = f"import logging; logging.disable(50); {FINGERPRINT}"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", command], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.xdist_group("seeds")
def test_seeds_differ() -> None:
    first, second, *_ = SEEDS[::CHUNKS]
    assert outcome_of(first).fingerprint != outcome_of(second).fingerprint


def test_both_sizes_and_both_machines_are_drawn() -> None:
    drawn = Counter((options.nodes, options.queues) for options in map(draw_options, range(100)))
    assert sorted(drawn) == [(3, False), (3, True), (5, False), (5, True)]


def test_seeds_include_upgrades_and_early_suspicion() -> None:
    drawn = list(map(draw_options, range(100)))
    assert len({(options.is_upgrade, options.raises_version) for options in drawn}) == 3
    early = [options.timing.suspicion_min_s < options.timing.election_min_s for options in drawn]
    assert 20 < sum(early) < 60


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
def test_cluster_survives_each_single_fault(fault: str) -> None:
    options = SimulationOptions(duration_s=10.0, fault_interval_s=0.4, faults={fault: 1.0}, queues=True)
    simulation = Simulation(7, options)
    simulation.run()
    assert simulation.nemesis.done[fault] > 1
    assert simulation.checks.confirms > 10


def test_h8_unread_link_to_a_peer_queues_little() -> None:
    network = NetworkOptions(limits=LinkLimits(high_water_bytes=4096, low_water_bytes=1024))
    options = SimulationOptions(
        submit_interval_s=0.02, fault_interval_s=1e9, faults={"reset": 1.0}, network=network
    )
    simulation = Simulation(5, options)
    world, cluster = simulation.world, simulation.cluster
    leader, peer = leader_and_follower(simulation, 4.0)
    peer.runtime.pause()
    begun = leader.group.journal.last_index
    world.run_until(18.0)
    logged_bytes = leader.group.journal.bytes_from(begun)
    connection = cluster.network._links[leader.name].current[peer.name]
    assert connection.pipes[leader.name].congested
    assert connection.pipes[leader.name].queued_bytes < 2 * network.limits.high_water_bytes < logged_bytes / 4
    peer.runtime.go_on()
    simulation.workload.stop()
    world.run_until(26.0)
    assert cluster.settled(), cluster.describe()


def test_log_is_not_pinned_forever_for_a_peer_that_is_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    idle_max_s = 15.0
    for end in ("sender", "receiver"):
        monkeypatch.setattr(f"cluster.snapshots.{end}.IDLE_MAX_S", idle_max_s)
    options = SimulationOptions(
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
    leader, peer = leader_and_follower(simulation, 4.0)
    peer.end(power_loss=False)
    world.run_until(12.0)
    peer.start()
    world.run_until(20.0, stop=lambda: leader.group.engine.progress[peer.name].lacks_from is not None)
    peer.end(power_loss=False)
    pinned: list[bool] = []
    for wait_s in (idle_max_s - 5.0, 10.0):
        world.run_until(world.now_s + wait_s)
        pinned.append(bool(leader.group.housekeeping.pinned))
    assert cluster.leader() is leader
    assert pinned == [True, False]
