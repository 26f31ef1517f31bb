"""The lists of stories: a healthy story breaks no promise, a planted story returns the rows to be found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tests.chaos.judge.histories import Row, Story

Healthy = Callable[[Story], None]
Planting = Callable[[Story], Mapping[str, Sequence[Row]]]
"""Gives the rows to be found, by the name of the promise."""

HEALTHY: list[Healthy] = []
PLANTED: list[Planting] = []


def healthy(story: Healthy) -> Healthy:
    HEALTHY.append(story)
    return story


def planted(story: Planting) -> Planting:
    PLANTED.append(story)
    return story
