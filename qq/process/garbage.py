"""Garbage collection of a node: cycles of objects are collected only when memory is short.

A node makes little such garbage. The objects of requests, connections and queues are freed at once when they end, and
so is a state that a snapshot replaces (qq/machine/queue/deferred_free.py). But a full collection walks the whole state
on the event loop: a second with 100,000 queues. So full collections never run by themselves.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

THRESHOLDS = (4_000, 1, 2**31 - 1)
"""The arguments of gc.set_threshold.

A collection of the middle generation walks the objects since the last such collection: 12,000 objects, 2 ms. The event
loop waits for it, and clients can make objects at any rate: 60,000 objects took 30 ms on a busy machine. Each object
that lives is walked twice, whatever the numbers. The last number means that the oldest generation is never collected by
itself.
"""
YOUNG_WORK_S = 0.01
"""Seconds of processor time of the event loop after which it collects the objects made meanwhile: some thousand, which
takes 1 ms at most."""
REST_S = 600.0
"""Most seconds between two collections for want of memory: a second collection should find little.

If there is much to find, publishers wait until then.
"""
REST_FACTOR = 600
"""The pause between two collections, as a multiple of the last collection's duration, if that is shorter."""


@contextmanager
def none_expected() -> Generator[None]:
    """Disable collections in the block, and exclude its objects from later collections.

    It is meant for imports and states, whose objects stay.
    """
    was_looked_for = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_looked_for:
            gc.enable()


class YoungCollector:
    """Collects young objects after each YOUNG_WORK_S of the event loop.

    By themselves, collections come when THRESHOLDS more objects were made than freed, and frees of old objects count,
    too. While publishes wait for the log, clients make as many objects as the log frees. Then collections are rare and
    long: 20,000 objects took 8 ms, and 24 ms in the middle generation.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns the processor time of the event loop's thread, in seconds."""
        self._clock = clock
        self._last_s = clock()

    def check(self) -> None:
        """Collect young objects if the last collection is long enough ago."""
        if self._clock() - self._last_s >= YOUNG_WORK_S:
            gc.collect(1)
            self._last_s = self._clock()


class Collector:
    """Collects garbage when memory is short.

    Objects that survive such a collection are walked again by the next such collection, but not by collections of
    younger generations.
    """

    def __init__(self) -> None:
        self._not_before_s = 0.0

    def begin(self) -> None:
        """Exclude the present objects from collections, because the node begins to serve.

        Collecting them would take longer than loading ten thousand queues, and free some hundred kilobytes.
        """
        gc.freeze()

    def check(self, *, is_short: bool, now_s: float) -> bool:
        """Collect garbage if memory `is_short` and the last collection is long enough ago; return whether it ran."""
        if not is_short or now_s < self._not_before_s:
            return False
        begun_s = perf_counter()
        collect()
        self._not_before_s = now_s + min(REST_S, REST_FACTOR * (perf_counter() - begun_s))
        return True


def collect() -> None:
    """Collect all garbage, also among the objects that were excluded until now."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
