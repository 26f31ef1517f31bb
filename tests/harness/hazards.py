"""Search for the violation that a hazard put back into the code must cause."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from chaos.sim.run import Outcome


def expect_violation(pattern: str, run: Callable[[int], Outcome], first: int, seeds_max: int) -> None:
    """Run seed `first`, and then the seeds below `seeds_max`, until a violation matches. Fail if none does."""
    found: list[str] = []
    for seed in dict.fromkeys([first, *range(seeds_max)]):
        found.append(run(seed).violation)
        if re.search(pattern, found[-1]):
            return
    pytest.fail(f"{seeds_max} seeds do not show it: {found}")
