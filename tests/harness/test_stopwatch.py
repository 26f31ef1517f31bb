"""Limits of time grow with what the machine has to do beside."""

from __future__ import annotations

import threading
import time

from tests.harness.stopwatch import Stopwatch


def test_busy_threads_raise_the_slowness() -> None:
    with Stopwatch() as alone:
        time.sleep(0.2)
    working = threading.Event()

    def work() -> None:
        while not working.is_set():
            sum(range(1000))

    others = [threading.Thread(target=work) for _ in range(3)]
    for other in others:
        other.start()
    with Stopwatch() as shared:
        time.sleep(2)  # several pieces: the interpreter may give a single piece more than its share
    working.set()
    for other in others:
        other.join()
    assert alone.seconds >= 0.2
    assert alone.slowness >= 1
    assert shared.slowness > 2
