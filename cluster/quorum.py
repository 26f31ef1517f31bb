"""How many are a majority, and what a majority has come to.

Lives here: all arithmetic of majorities. Not here: who counts (membership.py).

Law: two majorities of the same voters have a voter in common, so what one of them has promised or stored, the next one
cannot contradict.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

Number = TypeVar("Number", int, float)


def majority(voters: int) -> int:
    """So many of `voters` are one."""
    return voters // 2 + 1


def is_majority(count: int, voters: int) -> bool:
    return count >= majority(voters)


def reached(values: Iterable[Number], voters: int) -> Number:
    """The most that a majority's values have come to; to be asked when so many are known."""
    return sorted(values)[-majority(voters)]


def not_passed(values: Iterable[Number], voters: int) -> Number:
    """The least that a majority's values are not beyond; to be asked when so many are known."""
    return sorted(values)[majority(voters) - 1]
