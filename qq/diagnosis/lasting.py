"""Finds how long subjects have been in the same state, pass by pass.

Invariant: pure. Memory is bounded by the number of subjects of a pass.
"""

from __future__ import annotations

from typing import Generic, TypeVar

SubjectT = TypeVar("SubjectT")


class Lasting(Generic[SubjectT]):
    """The states of subjects in the last pass and in the current pass, each with the time at which it began."""

    def __init__(self) -> None:
        self._before: dict[SubjectT, tuple[object, int]] = {}
        self._now: dict[SubjectT, tuple[object, int]] = {}

    def since_ms(self, subject: SubjectT, now_ms: int, state: object = None) -> int:
        """Record the state of a subject in this pass. Return the time of the first pass since which it is the same."""
        before, since_ms = self._before.get(subject, (state, now_ms))
        if before != state:
            since_ms = now_ms
        self._now[subject] = state, since_ms
        return since_ms

    def end_pass(self) -> None:
        """End the pass, and forget each subject without a state in it."""
        self._before, self._now = self._now, {}
