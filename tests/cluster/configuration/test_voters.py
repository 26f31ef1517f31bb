"""Who votes, who learns, and who counts."""

from __future__ import annotations

import pytest

from cluster.configuration.quorum import Membership

TRIO = Membership.of_voters(["c", "a", "b"])
TRIO_AND_LEARNER = Membership(frozenset("abc"), frozenset("d"))


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
def test_learners_and_strangers_count_nowhere(membership: Membership) -> None:
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
