"""When the interpreter looks for garbage: objects in circles, which are not freed when nobody refers to them.

There is little of that here: what clients ask for, their connections and queues are freed at once when they are gone,
and so is a state that another node's snapshot replaces (qq/machine/queue/deferred_free.py).
But a full collection walks all that the state is made of, on the loop: a second with 100,000 queues. So there is none
that comes by itself, and what is old is looked through when there is a reason.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

THRESHOLDS = (20_000, 1, 2**31 - 1)
"""The arguments of gc.set_threshold. A collection of the middle generation walks what has come since the last one:
60,000 objects, some milliseconds. If it came after ten of the youngest only (the default), those would have to be
small. The last number means that the oldest generation is never collected by itself."""
REST_S = 600.0
"""The longest rest between two collections for want of memory, in seconds: a second one should find little. Should it
find much, publishers wait for it."""
REST_FACTOR = 600
"""The rest is so many times as long as the collection took, if that is less."""


@contextmanager
def none_expected() -> Generator[None]:
    """No garbage is looked for in the block, nor later in what it has made: for imports and states, which stay."""
    was_looked_for = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_looked_for:
            gc.enable()


class Collector:
    """Collects garbage at the right moment of a node's life: when memory is short.

    What a collection here leaves is walked again by the next one here, and not by those of younger generations.
    """

    def __init__(self) -> None:
        self._not_before_s = 0.0

    def begin(self) -> None:
        """Note that the node begins to serve.

        What is there by now is not looked through: that would take longer than to load ten thousand queues, for some
        hundred kilobytes.
        """
        gc.freeze()

    def look(self, *, is_short: bool, now_s: float) -> bool:
        """Collect garbage if memory `is_short` and that was not done lately; return whether it was done."""
        if not is_short or now_s < self._not_before_s:
            return False
        begun_s = perf_counter()
        collect()
        self._not_before_s = now_s + min(REST_S, REST_FACTOR * (perf_counter() - begun_s))
        return True


def collect() -> None:
    """Look through everything, also what was left out until now."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
