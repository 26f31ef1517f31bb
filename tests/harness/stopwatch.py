"""Measure elapsed time and the present slowness of the machine.

    with Stopwatch() as watch:
        client.expect_end()
    assert watch.seconds < 2 * watch.slowness

A time limit in a test is right for an idle machine, and grows with the load on the machine.
"""

from __future__ import annotations

import threading
import time
from typing import Self

PIECE_S = 0.01
"""CPU time of a single piece of measured work: more than a time slice of the scheduler on a busy machine."""
EVERY_S = 0.25


class Stopwatch:
    """Elapsed time; meanwhile a thread repeats a piece of work and measures its duration."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._measure, name="stopwatch", daemon=True)
        self._worked_s = 0.0
        self._took_s = 0.0
        self._began_s = self._ended_s = 0.0

    def __enter__(self) -> Self:
        self._began_s = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended_s = time.monotonic()
        self._stopping.set()
        self._thread.join()

    @property
    def seconds(self) -> float:
        return (self._ended_s or time.monotonic()) - self._began_s

    @property
    def slowness(self) -> float:
        """Seconds that a second of CPU time takes: 1 on an idle machine."""
        return max(self._took_s / self._worked_s, 1.0) if self._worked_s else 1.0

    def _measure(self) -> None:
        while not self._stopping.is_set():
            began_s, cpu_s = time.monotonic(), time.thread_time()
            while (worked_s := time.thread_time() - cpu_s) < PIECE_S:
                pass
            self._took_s += time.monotonic() - began_s
            self._worked_s += worked_s
            self._stopping.wait(EVERY_S)
