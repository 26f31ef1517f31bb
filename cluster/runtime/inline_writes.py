"""Whether a short write to the log is done on the event loop itself.

While the disk is quick, a thread for it costs more time than the write: waking the thread, having it wait for the
interpreter, and hearing of it. On a slow disk the loop would stand still meanwhile.

Invariant: pure; times are handed in. A disk that has just stalled has no chance to keep the loop waiting again.
"""

from __future__ import annotations

QUICK_S = 0.001
"""A disk whose short writes usually take less than this, in seconds, is quick."""
STALL_S = 0.005
"""A write that takes longer than this, in seconds, is no usual one, and more of them may follow."""
STALL_REST = 16
"""After a stall, so many writes go to the thread for each `QUICK_S` that it took."""
TRIED_EVERY = 16
"""While the disk is not quick, one write of so many is done on the loop all the same: what the thread measures tells
less, because it waits for the interpreter, too."""
USUAL_OF = 8
"""What is usual is an average of about so many writes."""


class InlineWrites:
    """Decides for one disk."""

    def __init__(self) -> None:
        self._usual_s = 0.0
        """How long a write usually takes on the loop, in seconds."""
        self._rest = 0
        """How many writes go to the thread before another one may be tried on the loop."""

    @property
    def are_wise(self) -> bool:
        """Whether the next short write is to be done on the loop."""
        return self._rest == 0

    def took(self, seconds: float, *, is_inline: bool) -> None:
        """Note how long a short write has taken."""
        if is_inline and seconds <= STALL_S:
            self._usual_s += (seconds - self._usual_s) / USUAL_OF
        rest = max(self._rest - 1, 0)
        if seconds > STALL_S:
            rest = max(rest, STALL_REST * int(seconds / QUICK_S))
        elif is_inline and self._usual_s >= QUICK_S:
            rest = TRIED_EVERY - 1
        self._rest = rest
