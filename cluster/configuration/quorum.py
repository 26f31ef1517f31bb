"""Compute majorities, and the values that a majority has reached.

Invariant: two majorities of the same voters share a voter. So a later majority cannot contradict the promises and
stored entries of an earlier majority.
"""

from __future__ import annotations

from collections.abc import Iterable
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
