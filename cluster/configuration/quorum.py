"""How many are a majority, and which values a majority has reached.

Invariant: two majorities of the same voters have a voter in common, so what one of them has promised or stored, the
next one cannot contradict.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

Number = TypeVar("Number", int, float)


def majority(voters: int) -> int:
    """The least number that is a majority of so many voters."""
    return voters // 2 + 1


def is_majority(count: int, voters: int) -> bool:
    return count >= majority(voters)


def reached(values: Iterable[Number], voters: int) -> Number:
    """The highest number that a majority has reached; `values` holds those of at least a majority of the voters."""
    return sorted(values)[-majority(voters)]


def not_passed(values: Iterable[Number], voters: int) -> Number:
    """The lowest number that a majority has not passed; `values` holds those of at least a majority of the voters."""
    return sorted(values)[majority(voters) - 1]
