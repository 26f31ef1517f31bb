"""The voters and the learners of a group, as a value.

Invariant: a membership is immutable; a change creates a new membership. Only voters count for majorities.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from cluster.configuration import quorum
from cluster.configuration.quorum import Number


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
        return quorum.is_majority(len(self.voters.intersection(names)), len(self.voters))

    def reached(self, values: Mapping[str, Number]) -> Number:
        """Return the highest value that a majority of the voters has reached.

        `values` must have a value for each voter.
        """
        return quorum.reached([values[voter] for voter in self.voters], len(self.voters))

    def has_majority_without(self, names: Collection[str]) -> bool:
        """Return whether the voters outside of `names` are a majority of all voters."""
        return quorum.is_majority(len(self.voters.difference(names)), len(self.voters))
