"""Decide whether a short write to the log runs on the event loop itself, or on the writer thread.

On a quick disk, a thread costs more time than the write: waking it, its wait for the interpreter, and reporting the
result. On a slow disk, an inline write would stall the event loop.

Invariant: pure; times are arguments. After a stall, the next writes always go to the thread.
"""

from __future__ import annotations

QUICK_S = 0.001
"""Seconds. A disk is quick if its short writes usually take less."""
STALL_S = 0.005
"""Seconds. A longer write is a stall, and more stalls may follow."""
STALL_REST = 16
"""After a stall, the number of writes that go to the thread for each `QUICK_S` of the stall."""
TRIED_EVERY = 16
"""While the disk is slow, 1 of this many writes runs inline as a test. Times measured on the thread say less, because
they include its wait for the interpreter."""
USUAL_OF = 8
"""Weight of the usual time: an average over about this many writes."""


class InlineWrites:
    """Decides for a single disk."""

    def __init__(self) -> None:
        self._usual_s = 0.0
        """Usual seconds of an inline write."""
        self._rest = 0
        """Writes that must go to the thread before the next inline write."""

    @property
    def are_wise(self) -> bool:
        """Whether the next short write should run inline."""
        return self._rest == 0

    def took(self, seconds: float, *, is_inline: bool) -> None:
        """Record the duration of a short write."""
        if is_inline and seconds <= STALL_S:
            self._usual_s += (seconds - self._usual_s) / USUAL_OF
        rest = max(self._rest - 1, 0)
        if seconds > STALL_S:
            rest = max(rest, STALL_REST * int(seconds / QUICK_S))
        elif is_inline and self._usual_s >= QUICK_S:
            rest = TRIED_EVERY - 1
        self._rest = rest
