"""The members of a group, as a value: who votes, who only learns.

Invariant: a membership never changes; another one takes its place. Only voters count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from cluster.configuration import quorum
from cluster.configuration.quorum import Number


@dataclass(frozen=True)
class Membership:
    """Names of the members; a learner is sent what the voters are sent, and neither votes nor is counted."""

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
        """The names of all members but this one, sorted."""
        return tuple(member for member in self.members if member != name)

    def is_majority(self, names: Collection[str]) -> bool:
        """Whether the voters among these nodes are a majority of all voters."""
        return quorum.is_majority(len(self.voters.intersection(names)), len(self.voters))

    def reached(self, values: Mapping[str, Number]) -> Number:
        """The highest value that a majority of the voters has reached; `values` has one for each voter."""
        return quorum.reached([values[voter] for voter in self.voters], len(self.voters))

    def has_majority_without(self, names: Collection[str]) -> bool:
        """Whether the voters that are not among these nodes are a majority of all voters."""
        return quorum.is_majority(len(self.voters.difference(names)), len(self.voters))
