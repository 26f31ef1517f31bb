"""A leader's view of all its peers."""

from __future__ import annotations

from cluster.raft.learner_pace import Pace
from cluster.raft.tracker import ProgressTracker
from tests.cluster.configurations import configurations_of, directory_of


def now() -> float:
    return 10.0


def tracker_of(voters: str, learners: str = "", awake_s: float = 10.0) -> ProgressTracker:
    """Return the tracker of a, with a member for each name."""
    tracker = ProgressTracker("a", configurations_of(voters, learners))
    for peer in (voters + learners).replace("a", ""):
        assert tracker.know(peer, directory_of(peer), lambda: awake_s, 1)
    return tracker


def test_acknowledgement_is_kept_until_the_directory_changes() -> None:
    tracker = tracker_of("abc")
    tracker.peers["b"].acknowledge(7)
    assert not tracker.know("b", directory_of("b"), now, 1)
    assert tracker.peers["b"].acknowledged == 7
    assert tracker.know("b", directory_of("x"), now, 1)
    assert tracker.peers["b"].acknowledged == 0


def test_acknowledgement_is_kept_when_the_directory_gets_known() -> None:
    tracker = ProgressTracker("a", configurations_of("ab"))
    tracker.know("b", None, now, 1)
    tracker.peers["b"].acknowledge(7)
    assert not tracker.know("b", directory_of("b"), now, 1)
    assert tracker.peers["b"].acknowledged == 7


def test_forgotten_peer_is_unknown() -> None:
    tracker = tracker_of("abc")
    tracker.peers["b"].acknowledge(7)
    tracker.forget("b")
    assert "b" not in tracker.peers
    assert tracker.know("b", directory_of("b"), now, 1)


def test_acknowledgements_to_an_earlier_leader_do_not_count() -> None:
    tracker = tracker_of("abc")
    peers = tracker.peers
    tracker.peers["b"].acknowledge(7)
    tracker.reset_all(20.0, 1)
    assert peers is tracker.peers
    assert tracker.peers["b"].acknowledged == 0
    assert [known.heard_s for known in peers.values()] == [20.0, 20.0]


def test_majority_counts_voters_and_the_leader() -> None:
    tracker = tracker_of("abc", learners="de")
    for peer in "de":
        tracker.peers[peer].acknowledge(9)
    assert tracker.reached_index(own_index=8) == 0
    tracker.peers["b"].acknowledge(9)
    assert tracker.reached_index(own_index=8) == 8
    assert tracker.reached_index(own_index=5) == 5
    tracker.peers["c"].acknowledge(7)
    assert tracker.reached_index(own_index=5) == 7
    assert tracker.reached_index(own_index=8) == 8


def test_silence_of_a_majority_is_that_of_its_best_voters() -> None:
    tracker = tracker_of("abcde", learners="f", awake_s=10.0)
    tracker.peers["f"].heard_s = 20.0
    assert tracker.silent_s(20.0) == 10.0
    tracker.peers["b"].heard_s = 19.0
    assert tracker.silent_s(20.0) == 10.0
    tracker.peers["c"].heard_s = 17.0
    assert tracker.silent_s(20.0) == 3.0


def test_sole_voter_is_its_own_majority() -> None:
    tracker = tracker_of("a", learners="b")
    assert tracker.reached_index(own_index=8) == 8
    assert tracker.silent_s(20.0) == 0.0


def test_learners_are_fed_at_a_pace_of_their_own_until_they_vote() -> None:
    configurations = configurations_of("ab", "c")
    tracker = ProgressTracker("a", configurations)
    for peer in "bc":
        tracker.know(peer, directory_of(peer), now, 1)

    def make() -> Pace:
        return Pace(bytes_per_s=1.0, rest_max_s=1.0, burst_bytes=1, now_s=10.0)

    tracker.pace_learners(make)
    pace = tracker.peers["c"].pace
    assert pace is not None
    assert tracker.peers["b"].pace is None
    tracker.pace_learners(make)
    assert tracker.peers["c"].pace is pace
    configurations.begin(configurations_of("abc").newest)
    tracker.pace_learners(make)
    assert tracker.peers["c"].pace is None
