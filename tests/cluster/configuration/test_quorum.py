"""Majorities, against counting every set of voters."""

from __future__ import annotations

from itertools import combinations
from random import Random

import pytest

from cluster.configuration import quorum

VOTERS = range(1, 8)


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
