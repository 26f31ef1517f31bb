from __future__ import annotations

import pytest

from cluster.raft.read_index import ConfirmedRead, ReadRequest, ReadRounds
from tests.cluster.configurations import configurations_of

READ = ReadRequest("n2", 7)


def rounds(*voters: str) -> ReadRounds:
    return ReadRounds("n1", configurations_of(voters))


def test_request_of_a_voter_confirms_the_leader_of_three() -> None:
    assert rounds("n1", "n2", "n3").begin(READ, 9, confirms=True)


def test_lone_voter_confirms_itself() -> None:
    assert rounds("n1").begin(ReadRequest("n1", 1), 9, confirms=True)


@pytest.mark.parametrize(
    ("request_", "confirms"), [(READ, False), (ReadRequest("n1", 1), True)], ids=["learner", "leader"]
)
def test_other_requests_need_a_confirmation(request_: ReadRequest, *, confirms: bool) -> None:
    rounds_of_leader = rounds("n1", "n2", "n3")
    assert not rounds_of_leader.begin(request_, 9, confirms=confirms)
    assert rounds_of_leader.confirm("n3", rounds_of_leader.last) == [ConfirmedRead(request_, 9)]
    assert not rounds_of_leader


def test_non_voter_confirms_no_round() -> None:
    rounds_of_leader = rounds("n1", "n2", "n3")
    rounds_of_leader.begin(READ, 9, confirms=False)
    assert rounds_of_leader.confirm("n4", rounds_of_leader.last) == []


def test_confirmation_counts_for_earlier_rounds_only() -> None:
    rounds_of_leader = rounds("n1", "n2", "n3", "n4", "n5")
    for number in range(3):
        rounds_of_leader.begin(ReadRequest("n2", number), 10 + number, confirms=True)
    confirmed = rounds_of_leader.confirm("n3", 2)
    assert confirmed == [ConfirmedRead(ReadRequest("n2", 0), 10), ConfirmedRead(ReadRequest("n2", 1), 11)]
    assert rounds_of_leader.confirm("n3", 3) == [ConfirmedRead(ReadRequest("n2", 2), 12)]


def test_member_confirms_a_round_once() -> None:
    rounds_of_leader = rounds("n1", "n2", "n3", "n4", "n5")
    rounds_of_leader.begin(ReadRequest("n1", 1), 9, confirms=True)
    assert rounds_of_leader.confirm("n3", rounds_of_leader.last) == []
    assert rounds_of_leader.confirm("n3", rounds_of_leader.last) == []
    assert rounds_of_leader.confirm("n4", rounds_of_leader.last) == [ConfirmedRead(ReadRequest("n1", 1), 9)]


def test_rounds_of_a_lost_reader_are_dropped() -> None:
    rounds_of_leader = rounds("n1", "n2", "n3", "n4", "n5")
    rounds_of_leader.begin(READ, 9, confirms=True)
    rounds_of_leader.begin(ReadRequest("n3", 1), 9, confirms=True)
    rounds_of_leader.forget_reader("n2")
    assert rounds_of_leader.confirm("n4", rounds_of_leader.last) == [ConfirmedRead(ReadRequest("n3", 1), 9)]


def test_new_term_drops_all_rounds() -> None:
    rounds_of_leader = rounds("n1", "n2", "n3")
    rounds_of_leader.begin(READ, 9, confirms=False)
    rounds_of_leader.clear()
    assert rounds_of_leader.confirm("n3", rounds_of_leader.last) == []
