"""How much collections of garbage walk that come by themselves."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

from qq.process import garbage

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def collections_as_in_a_node() -> Iterator[list[int]]:
    """How many objects each collection walks in the block, those that were there before left out."""
    walked: list[int] = []

    def record(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            walked.append(
                sum(len(gc.get_objects(generation)) for generation in range(info["generation"] + 1))
            )

    gc.collect()
    gc.freeze()
    thresholds = gc.get_threshold()
    gc.set_threshold(*garbage.THRESHOLDS)
    gc.callbacks.append(record)
    try:
        yield walked
    finally:
        gc.callbacks.remove(record)
        gc.set_threshold(*thresholds)
        gc.unfreeze()
