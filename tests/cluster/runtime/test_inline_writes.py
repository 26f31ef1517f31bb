from __future__ import annotations

from random import Random

import pytest

from cluster.runtime.inline_writes import QUICK_S, STALL_REST, STALL_S, TRIED_EVERY, InlineWrites

WAIT_S = 0.5 * QUICK_S
"""How much longer a write takes on the thread."""


def inline_share(writes: InlineWrites, takes: list[float]) -> float:
    """The part of these writes that is done on the loop."""
    inline = 0
    for seconds in takes:
        is_inline = writes.are_wise
        inline += is_inline
        writes.took(seconds if is_inline else seconds + WAIT_S, is_inline=is_inline)
    return inline / len(takes)


def test_writes_on_a_quick_disk_are_inline_despite_slow_outliers() -> None:
    """Once each slow write sent the next 16 to the thread, where they seemed slow because they waited for the loop."""
    random = Random(1)
    takes = [random.choices((0.4 * QUICK_S, 2 * QUICK_S), (9, 1))[0] for _ in range(1000)]
    assert inline_share(InlineWrites(), takes) > 0.9


@pytest.mark.parametrize("usual_s", [1.5 * QUICK_S, 4 * QUICK_S])
def test_few_writes_on_a_slow_disk_are_tried_inline(usual_s: float) -> None:
    assert inline_share(InlineWrites(), [usual_s] * 1600) == pytest.approx(1 / TRIED_EVERY, abs=0.01)


def test_a_disk_that_gets_quick_again_is_found_out() -> None:
    writes = InlineWrites()
    inline_share(writes, [3 * QUICK_S] * 100)
    inline_share(writes, [0.3 * QUICK_S] * 500)
    assert inline_share(writes, [0.3 * QUICK_S] * 100) == 1.0


def test_writes_after_a_stall_leave_the_loop_for_a_while() -> None:
    writes = InlineWrites()
    writes.took(200 * QUICK_S, is_inline=True)
    assert inline_share(writes, [0.3 * QUICK_S] * 200 * STALL_REST) == 0.0
    assert inline_share(writes, [0.3 * QUICK_S] * 10) == 1.0


def test_stalls_on_the_thread_count_as_well() -> None:
    """A disk that stalls once in a hundred writes does so on the loop at most once."""
    writes = InlineWrites()
    takes = ([0.3 * QUICK_S] * 99 + [200 * QUICK_S]) * 30
    stalled = 0
    for seconds in takes:
        is_inline = writes.are_wise
        stalled += is_inline and seconds > STALL_S
        writes.took(seconds, is_inline=is_inline)
    assert stalled == 1
