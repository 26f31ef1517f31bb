"""The stories of all modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.chaos.judge.histories import History, Row, Story
from tests.chaos.judge.stories import leases, messages
from tests.chaos.judge.stories.registry import HEALTHY, PLANTED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["HEALTHY", "PLANTED", "add_stories", "leases", "messages"]


def add_stories(history: History) -> dict[str, Mapping[str, Sequence[Row]]]:
    """Add all stories to the history; return the rows to be found, by the name of the story."""
    for story in HEALTHY:
        story(Story(history, story.__name__))
    return {story.__name__: story(Story(history, story.__name__)) for story in PLANTED}
