"""A leader's progress of a peer, and the acknowledgements of a follower."""

from __future__ import annotations

import pytest

from cluster.raft.messages import AppendResponse
from cluster.raft.progress import Acknowledgements, Progress

FIRST_INDEX = 50


def refusal(next_index: int, last_index: int = 60, last_term: int = 1) -> AppendResponse:
    return AppendResponse(
        3, next_index, success=False, reset=True, last_index=last_index, last_term=last_term
    )


@pytest.fixture
def progress() -> Progress:
    return Progress(heard_s=0.0, next_index=1)


def test_acknowledgements_only_grow(progress: Progress) -> None:
    assert [progress.acknowledge(index) for index in (3, 3, 2, 4)] == [True, False, False, True]
    assert progress.acknowledged == 4


def test_lost_entries_are_unacknowledged_until_acknowledged(progress: Progress) -> None:
    progress.acknowledge(9)
    assert [progress.lower_to(index) for index in (12, 9, 5, 5)] == [False, False, True, False]
    assert progress.acknowledged == 5
    assert progress.acknowledge(7)


def test_repeated_refusal_is_ignored_and_an_earlier_is_answered(progress: Progress) -> None:
    tried = [progress.refuse(refusal(next_index), FIRST_INDEX) for next_index in (90, 90, 95, 80)]
    assert tried == [True, False, False, True]
    assert progress.probed is not None
    assert progress.record_match()
    assert progress.probed is None
    assert not progress.record_match()
    assert progress.refuse(refusal(90), FIRST_INDEX)


def test_peer_lacks_entries_until_an_append_matches(progress: Progress) -> None:
    assert progress.refuse(refusal(FIRST_INDEX), FIRST_INDEX)
    assert progress.lacks_from == FIRST_INDEX
    # The known tail of its log differs; a different log has been installed since.
    assert not progress.refuse(refusal(61), FIRST_INDEX)
    assert progress.lacks_from is not None
    assert progress.refuse(refusal(61, last_term=2), FIRST_INDEX)
    assert progress.lacks_from is None
    progress.refuse(refusal(FIRST_INDEX - 10), FIRST_INDEX)
    assert progress.lacks_from == FIRST_INDEX - 10
    progress.record_match()
    assert progress.lacks_from is None


def test_same_refusal_counts_again_after_a_new_request(progress: Progress) -> None:
    progress.refuse(refusal(FIRST_INDEX), FIRST_INDEX)
    progress.probe_again()
    assert progress.lacks_from is None
    assert progress.refuse(refusal(61), FIRST_INDEX)
    progress.probe_again()  # it lacks no entries
    assert progress.probed is not None


def test_a_follower_repeats_an_answer_only_after_a_while() -> None:
    acknowledgements = Acknowledgements(quiet_s=0.5)
    success = AppendResponse(3, 10, success=True, reset=False, last_index=9, last_term=3)
    assert acknowledgements.is_due("b", success, 10.0)
    assert not acknowledgements.is_due("b", success, 10.5)
    assert acknowledgements.is_due("c", success, 10.5)
    assert acknowledgements.is_due("c", success, 11.1)
    assert acknowledgements.is_due("c", success._replace(next_index=11), 11.1)
    assert [acknowledgements.is_due("c", refusal(9), 11.1) for _ in range(2)] == [True, True]
    assert acknowledgements.is_due("c", success, 11.1)
    acknowledgements.forget()
    assert acknowledgements.is_due("c", success, 11.1)


def test_follower_acknowledges_heartbeats_at_intervals() -> None:
    acknowledgements = Acknowledgements(quiet_s=0.5)
    assert [acknowledgements.heartbeat_response_is_due(now_s) for now_s in (10.0, 10.4, 10.6, 10.7)] == [
        True,
        False,
        True,
        False,
    ]


def test_match_in_an_earlier_term_does_not_count() -> None:
    acknowledgements = Acknowledgements(quiet_s=0.5)
    acknowledgements.match(3, 17)
    assert (acknowledgements.matched_index(3), acknowledgements.matched_index(4)) == (17, 0)
