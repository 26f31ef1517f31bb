"""The voters and learners of a group, and the values that a majority of the voters has reached.

Invariant: a membership is immutable; a change creates a new membership. Only voters count for majorities.

Invariant: two majorities of the same voters share a voter. So a later majority cannot contradict the promises and
stored entries of an earlier majority.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

Number = TypeVar("Number", int, float)


def majority(voters: int) -> int:
    """Return the smallest number that is a majority of so many voters."""
    return voters // 2 + 1


def is_majority(count: int, voters: int) -> bool:
    return count >= majority(voters)


def reached(values: Iterable[Number], voters: int) -> Number:
    """Return the highest number that a majority has reached. `values` must come from at least a majority of voters."""
    return sorted(values)[-majority(voters)]


def not_passed(values: Iterable[Number], voters: int) -> Number:
    """Return the lowest number that a majority has not passed.

    `values` must come from at least a majority of voters.
    """
    return sorted(values)[majority(voters) - 1]


@dataclass(frozen=True)
class Membership:
    """Names of the voters and learners. A learner receives the log, and neither votes nor counts."""

    voters: frozenset[str]
    learners: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.voters & self.learners:
            raise ValueError(f"{sorted(self.voters & self.learners)} cannot both vote and learn")

    @classmethod
    def of_voters(cls, names: Iterable[str]) -> Membership:
        return cls(frozenset(names))

    @cached_property
    def members(self) -> tuple[str, ...]:
        """The names of all voters and learners, sorted."""
        return tuple(sorted(self.voters | self.learners))

    def others(self, name: str) -> tuple[str, ...]:
        """Return the names of all members except `name`, sorted."""
        return tuple(member for member in self.members if member != name)

    def is_majority(self, names: Collection[str]) -> bool:
        """Return whether the voters among `names` are a majority of all voters."""
        return is_majority(len(self.voters.intersection(names)), len(self.voters))

    def reached(self, values: Mapping[str, Number]) -> Number:
        """Return the highest value that a majority of the voters has reached.

        `values` must have a value for each voter.
        """
        return reached([values[voter] for voter in self.voters], len(self.voters))

    def has_majority_without(self, names: Collection[str]) -> bool:
        """Return whether the voters outside of `names` are a majority of all voters."""
        return is_majority(len(self.voters.difference(names)), len(self.voters))
