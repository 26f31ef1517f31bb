"""Majorities, against counting every set of voters; and voters and learners of a configuration."""

from __future__ import annotations

from itertools import combinations
from random import Random

import pytest

from cluster.configuration import quorum
from cluster.configuration.quorum import Membership

VOTERS = range(1, 8)
TRIO = Membership.of_voters(["c", "a", "b"])
TRIO_AND_LEARNER = Membership(frozenset("abc"), frozenset("d"))


@pytest.mark.parametrize("voters", VOTERS)
def test_two_majorities_share_a_voter(voters: int) -> None:
    size = quorum.majority(voters)
    sets = [set(chosen) for chosen in combinations(range(voters), size)]
    assert all(one & another for one in sets for another in sets)
    smaller = [set(chosen) for chosen in combinations(range(voters), size - 1)]
    assert voters == 1 or any(not one & another for one in smaller for another in smaller)
    assert [quorum.is_majority(count, voters) for count in range(voters + 1)] == [
        count >= size for count in range(voters + 1)
    ]


@pytest.mark.parametrize("voters", VOTERS)
def test_majority_reaches_a_value_and_does_not_exceed_it(voters: int) -> None:
    random = Random(voters)
    for known in range(quorum.majority(voters), voters + 1):
        values = [random.randrange(10) for _ in range(known)]
        reached = [
            value for value in values if quorum.is_majority(sum(other >= value for other in values), voters)
        ]
        not_passed = [
            value for value in values if quorum.is_majority(sum(other <= value for other in values), voters)
        ]
        assert quorum.reached(values, voters) == max(reached)
        assert quorum.not_passed(values, voters) == min(not_passed)


def test_of_an_odd_number_that_are_all_known_both_are_the_median() -> None:
    assert quorum.reached([5, 1, 9], 3) == quorum.not_passed([5, 1, 9], 3) == 5
    assert (quorum.reached([5, 1], 3), quorum.not_passed([5, 1], 3)) == (1, 5)


def test_members_are_listed_in_the_same_order() -> None:
    assert Membership.of_voters(["b", "c", "a"]) == TRIO
    assert TRIO.members == ("a", "b", "c")
    assert TRIO.others("b") == ("a", "c")
    assert TRIO_AND_LEARNER.others("d") == ("a", "b", "c")
    assert TRIO_AND_LEARNER.others("a") == ("b", "c", "d")


def test_sole_voter_is_a_majority() -> None:
    alone = Membership.of_voters(["a"])
    assert alone.is_majority(["a"])
    assert not alone.is_majority([])
    assert alone.others("a") == ()


@pytest.mark.parametrize("membership", [TRIO, TRIO_AND_LEARNER])
def test_learners_and_non_members_do_not_count(membership: Membership) -> None:
    assert membership.is_majority(["a", "c"])
    assert not membership.is_majority(["a", "d", "x"])
    assert not membership.is_majority(["a", "a"])
    assert membership.has_majority_without(["a", "d", "x"])
    assert not membership.has_majority_without(["a", "b"])


def test_reached_value_counts_voters_only() -> None:
    values = {"a": 7, "b": 5, "c": 3, "d": 9}
    assert TRIO_AND_LEARNER.reached(values) == TRIO.reached(values) == 5


def test_member_cannot_be_voter_and_learner() -> None:
    with pytest.raises(ValueError, match=r"\['b'\] cannot both vote and learn"):
        Membership(frozenset("ab"), frozenset("bc"))
