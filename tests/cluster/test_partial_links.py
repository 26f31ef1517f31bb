"""Members that do not all reach each other."""

from __future__ import annotations

from itertools import permutations

import pytest
from test_group_timers import Trio


@pytest.mark.parametrize("centre", "ace")
def test_the_only_one_that_reaches_a_majority_is_elected(centre: str) -> None:
    """The others had asked for pre-votes in vain, and refused it meanwhile, because it had to wait for its turn."""
    five = Trio("abcde")
    five.start()
    for one, other in permutations("abcde", 2):
        if centre not in (one, other):
            five.network.cut(one, other)
    [first] = [member for member in five.members if member.name == centre]
    five.until(lambda: all(member.group.leader == centre for member in five.members), within_ms=30_000)
    first.set_alarms(1)
