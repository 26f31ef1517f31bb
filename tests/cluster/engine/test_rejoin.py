"""VoterStatus: the right to vote after the loss of a vote, a log or both."""

from __future__ import annotations

import logging
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chaos.sim.world.disk import SimulatedDisk
from cluster.configuration.configuration import ID_BYTES, PeerAddress
from cluster.engine.rejoin import HOPELESS_S, MEMORIES_S, Rejoin
from cluster.log.hardstate import HardState, HardStateFile, VoterStatus
from cluster.log.owned_directory import OwnedDirectory
from cluster.raft.messages import Memory, Status
from tests.cluster.configurations import configuration_of, configurations_of, directory_of

IDENTITY = b"cluster/n1/0"


class StandIn:
    """The parts of an engine and its journal that rejoin reads and writes."""

    def __init__(self, *, term: int = 0, last_index: int = 1, last_term: int = 0) -> None:
        self.term = term
        self.voted_for: str | None = None
        self.matched_index = 0
        self.may_vote = True
        self.journal = SimpleNamespace(last_index=last_index, last_term=last_term, synced_index=last_index)

    def stop_campaign(self) -> None:
        self.may_vote = False

    def remember(self, term: int, vote: str | None) -> None:
        self.term, self.voted_for = term, vote


class Node:
    """A recovering node n1 with the peers n2 and n3."""

    def __init__(
        self, state: HardState | None, engine: StandIn, peers: tuple[str, ...] = ("n2", "n3")
    ) -> None:
        disk = SimulatedDisk(Random(1), lambda _delay, callback: callback())
        disk.make_directory("group")
        self.file = HardStateFile(OwnedDirectory(disk, "group", IDENTITY))
        self.file.load()
        if state is not None:
            self.file.store(state)
        self.engine = engine
        self.now_s = 0.0
        self.configurations = configurations_of(["n1", *peers])
        self.rejoin = Rejoin(
            "n1", directory_of("n1"), self.configurations, self.file, engine.journal.last_index
        )

    def turn(self) -> VoterStatus:
        self.rejoin.advance(cast("Any", self.engine), cast("Any", self.engine.journal), lambda: self.now_s)
        return self.rejoin.voter_status

    def receive_status(self, peer: str, *, leads: bool = False, **fields: int) -> VoterStatus:
        usual = {"voter_status": VoterStatus.VOTER, "last_index": 1, "first_index": 1}
        status = Status(*[0] * len(Status._fields))._replace(**(usual | fields))
        if leads:
            self.rejoin.record_leader_end(status)
        self.now_s += 1.0
        self.rejoin.record_status(peer, status, self.now_s)
        return self.turn()


def test_a_voter_is_a_voter() -> None:
    node = Node(HardState(3, "n2", VoterStatus.VOTER), StandIn(term=3))
    assert node.turn() is VoterStatus.VOTER
    assert node.engine.may_vote
    assert node.rejoin.describe() is None


def test_voter_relies_on_its_log_after_a_restart() -> None:
    assert Node(HardState(3, "n2", VoterStatus.VOTER), StandIn(term=3)).rejoin.has_past(1)
    assert not Node(HardState(3, None, VoterStatus.LEARNER), StandIn(term=3)).rejoin.has_past(9)


def test_new_node_relies_on_its_log_if_it_has_entries() -> None:
    """Otherwise a node whose addition was lost in a power failure of all nodes would be refused as an earlier
    directory.
    """
    node = Node(HardState(1, None, VoterStatus.VOTER), StandIn(term=1))
    node.configurations.begin(configuration_of(["n2", "n3"]))
    assert not node.rejoin.has_past(1)
    assert node.rejoin.has_past(2)


def test_a_new_cluster_begins_when_all_its_members_have_met() -> None:
    node = Node(None, StandIn())
    assert node.turn() is VoterStatus.BLANK
    assert not node.engine.may_vote
    assert node.rejoin.describe() == (
        "waiting for n2, n3: a node without a past must hear from every member once"
    )
    assert node.receive_status("n2", voter_status=VoterStatus.BLANK) is VoterStatus.BLANK
    assert node.receive_status("n3", voter_status=VoterStatus.BLANK) is VoterStatus.VOTER
    assert node.file.state == HardState(0, None, VoterStatus.VOTER)
    assert node.engine.may_vote


def test_new_cluster_begins_for_the_last_to_hear_its_peers() -> None:
    """Its peers have met already, and a peer even campaigns, but no node has entries yet."""
    node = Node(None, StandIn())
    node.receive_status("n2", voter_status=VoterStatus.VOTER, term=1)
    assert node.receive_status("n3", voter_status=VoterStatus.BLANK) is VoterStatus.VOTER


def test_emptied_node_takes_the_latest_term_as_voted() -> None:
    node = Node(None, StandIn())
    node.receive_status("n2", term=7, last_index=500)
    assert node.receive_status("n3", term=9, last_index=400) is VoterStatus.LEARNER
    assert node.file.state == HardState(9, "n1", VoterStatus.LEARNER)
    assert (node.engine.term, node.engine.voted_for) == (9, "n1")
    assert not node.engine.may_vote


def test_emptied_node_that_is_no_member_is_not_under_repair() -> None:
    """It received statuses before its peers knew their cluster; its earlier directory was removed."""
    node = Node(None, StandIn())
    node.receive_status("n2", last_index=500)
    assert node.receive_status("n3", last_index=500) is VoterStatus.LEARNER
    flaw = node.rejoin.describe()
    assert flaw is not None
    assert "a leader must send it everything anew" in flaw
    named = replace(configuration_of(["n1", "n2", "n3"]), cluster=b"c" * ID_BYTES)
    node.configurations.begin(named.without("n1", directory_of("n1")))
    flaw = node.rejoin.describe()
    assert flaw is not None
    assert "n1 was removed: `qq member add n1 HOST:PORT`" in flaw


def test_node_with_a_lost_addition_reports_that_it_is_no_member() -> None:
    """Once it was a voter without a problem to report, and operators had no advice (seed 12472535)."""
    node = Node(None, StandIn())
    named = replace(configuration_of(["n1", "n2", "n3"]), cluster=b"c" * ID_BYTES)
    without = named.without("n1", directory_of("n1"))
    again = without.added("n1", PeerAddress("n1", 1), b"\2" * ID_BYTES)
    node.rejoin = Rejoin("n1", b"\2" * ID_BYTES, node.configurations, node.file, 0)
    node.configurations.begin(again)
    node.rejoin.admit(again, 3, cast("Any", node.engine))
    assert node.turn() is VoterStatus.VOTER
    assert node.rejoin.describe() is None
    node.configurations.begin(without)
    flaw = node.rejoin.describe()
    assert flaw is not None
    assert "n1 was removed: `qq member add n1 HOST:PORT`" in flaw


def test_cluster_with_a_member_that_lost_its_log_is_not_new() -> None:
    node = Node(None, StandIn())
    node.receive_status("n2", voter_status=VoterStatus.BLANK)
    assert node.receive_status("n3", voter_status=VoterStatus.LEARNER) is VoterStatus.LEARNER


def test_a_log_without_its_term_is_not_new() -> None:
    node = Node(None, StandIn(last_index=10, last_term=4))
    node.receive_status("n2", voter_status=VoterStatus.BLANK)
    assert node.receive_status("n3", voter_status=VoterStatus.BLANK) is VoterStatus.LEARNER
    assert node.file.state == HardState(4, "n1", VoterStatus.LEARNER)


def test_sole_node_needs_to_hear_no_peer() -> None:
    node = Node(None, StandIn(last_index=10, last_term=4), peers=())
    assert node.turn() is VoterStatus.VOTER
    assert node.file.state == HardState(4, "n1", VoterStatus.VOTER)


def test_learner_is_a_voter_when_it_holds_the_log_of_a_leader() -> None:
    node = Node(HardState(5, None, VoterStatus.LEARNER), StandIn(term=5))
    assert node.turn() is VoterStatus.LEARNER
    node.receive_status("n2", leads=True, term=5, last_index=100)
    journal = node.engine.journal
    journal.synced_index, node.engine.matched_index = 120, 99
    assert node.turn() is VoterStatus.LEARNER
    journal.synced_index, node.engine.matched_index = 99, 120
    assert node.turn() is VoterStatus.LEARNER, "what is not durable does not count"
    journal.synced_index, node.engine.matched_index = 100, 100
    assert node.turn() is VoterStatus.VOTER
    assert node.file.state == HardState(5, None, VoterStatus.VOTER)


@pytest.mark.parametrize("term", [4, 6])
def test_only_the_leader_of_the_own_term_counts(term: int) -> None:
    node = Node(HardState(5, None, VoterStatus.LEARNER), StandIn(term=5))
    node.receive_status("n2", leads=True, term=term, last_index=10)
    node.engine.journal.synced_index = node.engine.matched_index = 1000
    assert node.turn() is VoterStatus.LEARNER
    assert node.receive_status("n2", term=5, last_index=10) is VoterStatus.LEARNER, "it does not lead"


def test_majority_without_a_log_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    node = Node(HardState(5, None, VoterStatus.LEARNER), StandIn(term=5))
    with caplog.at_level(logging.ERROR):
        for _ in range(1 + int(HOPELESS_S)):
            node.receive_status("n2", voter_status=VoterStatus.VOTER, last_index=70)
        assert not caplog.records
        for _ in range(1 + int(HOPELESS_S)):
            node.receive_status("n3", voter_status=VoterStatus.LEARNER)
    [record] = caplog.records
    assert "the logs of n1, n3 are damaged or lost" in record.getMessage()
    assert "the longest known log ends with entry 70)" in record.getMessage()
    assert "`qq recover`" in record.getMessage()
    assert node.rejoin.describe() == record.getMessage()


def test_node_with_the_only_log_reports_the_lost_logs() -> None:
    node = Node(HardState(5, None, VoterStatus.VOTER), StandIn(term=5, last_index=70))
    node.turn()
    empty = Status(*[0] * len(Status._fields))
    for second in range(2 + int(HOPELESS_S)):
        for peer in ("n2", "n3"):
            node.rejoin.record_foreign_status(peer, empty, float(second))
    why = node.rejoin.why_hopeless()
    assert why is not None
    assert why.startswith("the logs of n2, n3 are damaged or lost, so no majority knows what was confirmed")
    assert "ends with entry 70, and n2, n3 are up with data directories of no member)" in why


def remembers(node: Node, term: int, index: int, *, is_certain: bool = False) -> VoterStatus:
    """A peer sends its memory of the node."""
    node.rejoin.record_memory("n2", Memory(term, index, int(is_certain)), cast("Any", node.engine), 1234)
    return node.rejoin.voter_status


@pytest.mark.parametrize(
    ("term", "index", "is_behind"),
    [
        (0, 0, False),
        (5, 70, False),
        (4, 900, False),  # a later leader may have cut it
        (5, 71, True),
        (6, 0, True),
    ],
)
def test_node_with_less_than_a_peer_remembers_becomes_learner(term: int, index: int, is_behind: bool) -> None:
    node = Node(HardState(5, None, VoterStatus.VOTER), StandIn(term=5, last_index=70))
    node.turn()
    node.engine.term = 9  # a term that is independent of forgotten terms
    assert (remembers(node, term, index) is VoterStatus.LEARNER) == is_behind
    assert node.rejoin.rolled_back_ms == (1234 if is_behind else 0)
    assert ("was put back as it was earlier: n2 remembers" in str(node.rejoin.describe())) == is_behind
    if is_behind:
        assert node.file.state == HardState(9, "n1", VoterStatus.LEARNER)
        node.turn()
        assert not node.engine.may_vote


def test_forgotten_vote_is_not_given_again_after_the_repair() -> None:
    node = Node(HardState(5, None, VoterStatus.VOTER), StandIn(term=5, last_index=70))
    assert remembers(node, 6, 0) is VoterStatus.LEARNER
    assert (node.engine.term, node.engine.voted_for) == (6, "n1")
    node.engine.term, node.engine.voted_for, node.engine.matched_index = 7, None, 70
    assert node.receive_status("n3", leads=True, term=7, last_index=70) is VoterStatus.VOTER
    assert node.file.state == HardState(7, "n1", VoterStatus.VOTER)
    assert (node.engine.term, node.engine.voted_for) == (7, "n1")
    assert remembers(node, 6, 90) is VoterStatus.VOTER, "it has everything again"
    assert remembers(node, 7, 90, is_certain=True) is VoterStatus.LEARNER, "and again it was put back"


@pytest.mark.parametrize("is_told", [True, False])
def test_voter_with_a_log_waits_for_the_memories_of_peers(is_told: bool) -> None:
    node = Node(HardState(5, None, VoterStatus.VOTER), StandIn(term=5, last_index=70))
    node.rejoin.awaits_memories = True
    node.turn()
    assert not node.engine.may_vote
    remembers(node, 5, 70)
    node.receive_status("n2", last_index=70)
    node.turn()
    assert not node.engine.may_vote, "n3 may remember more"
    if is_told:
        node.rejoin.record_memory("n3", Memory(5, 70, 0), cast("Any", node.engine), 1234)
        node.turn()
        assert not node.engine.may_vote, "n3 may know more to be committed"
        node.receive_status("n3", last_index=70)
    else:
        node.now_s += MEMORIES_S
    node.turn()
    assert node.engine.may_vote


def test_hopelessness_ignores_the_log_of_an_absent_peer(caplog: pytest.LogCaptureFixture) -> None:
    """The absent peer may have given it all entries since."""
    node = Node(HardState(5, None, VoterStatus.VOTER), StandIn(term=5))
    with caplog.at_level(logging.ERROR):
        node.receive_status("n2", voter_status=VoterStatus.LEARNER, last_index=70)
        node.rejoin.record_lost_link("n2")
        for _ in range(1 + int(HOPELESS_S)):
            node.receive_status("n3", voter_status=VoterStatus.LEARNER, last_index=70)
        assert not caplog.records
        for peer in ("n2", "n3", "n2"):
            node.receive_status(peer, voter_status=VoterStatus.LEARNER, last_index=70)
        assert not caplog.records
        node.receive_status("n3", voter_status=VoterStatus.LEARNER, last_index=70)
    assert len(caplog.records) == 1


def test_hopelessness_ignores_a_status_of_long_ago(caplog: pytest.LogCaptureFixture) -> None:
    """In a new cluster the nodes become voters in turn, and their statuses are old."""
    node = Node(HardState(5, None, VoterStatus.VOTER), StandIn(term=5))
    with caplog.at_level(logging.ERROR):
        node.receive_status("n2", voter_status=VoterStatus.BLANK)
        for _ in range(10):
            node.receive_status("n3", voter_status=VoterStatus.LEARNER, last_index=9)
    assert not caplog.records


def test_hopelessness_ignores_statuses_before_a_new_cluster(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Statuses of voters arrive in any order: seed 400464 of five nodes."""
    node = Node(None, StandIn(), peers=("n2", "n3", "n4"))
    with caplog.at_level(logging.ERROR):
        node.receive_status("n2", voter_status=VoterStatus.BLANK)
        node.receive_status("n3", voter_status=VoterStatus.BLANK)
        node.receive_status("n4", voter_status=VoterStatus.VOTER, last_index=28)
        assert (
            node.rejoin.describe()
            == "this node's log was damaged or lost; a leader must send it everything anew"
        )
        for peer in ("n2", "n3"):
            node.receive_status(peer, voter_status=VoterStatus.VOTER, last_index=28)
    assert not caplog.records


def test_new_cluster_is_not_taken_for_a_lost_cluster(caplog: pytest.LogCaptureFixture) -> None:
    node = Node(None, StandIn())
    with caplog.at_level(logging.ERROR):
        node.receive_status("n2", voter_status=VoterStatus.BLANK)
        node.receive_status("n3", voter_status=VoterStatus.BLANK)
    assert not caplog.records
