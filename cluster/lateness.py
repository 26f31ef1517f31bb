"""Whether everybody waits for the disk of the leader, and for nothing else.

No entry is committed before the leader's own disk has it (hazard H1), so a leader whose disk is slow makes every client
wait, while a follower with such a disk makes nobody wait.

That others wait is not enough: where all disks are equally slow, one of them happens to be the last with each entry,
and it may be the same one for long, because a write begins when the one before it ends. What comes while a disk writes
waits for that write and for its own, so by chance a disk takes up to twice as long as its equals.

Lives here: how much longer others wait for this node's disk than it waits for theirs, looked at from time to time. Not
here: who holds what (tracker.py), what is done about it (leadership.py).

Law: pure; indexes and times are handed in. A disk that stops once for a moment is not late, nor is one whose peers are
as slow.
"""

from __future__ import annotations

LATE_MAX_S = 1.0
"""A disk is too late when it has kept the others waiting for so long in all, less what is forgotten meanwhile."""
FORGOTTEN = 0.1
"""So much lateness is forgotten in a second: who keeps others waiting for a smaller part of the time may go on."""
SLOWER = 3.0
"""A disk that takes no more than so many times as long as the others is not slower than they are."""
HALF_LIFE_S = 1.0
"""How long disks took counts for half as much after this time."""


class Lateness:
    """How late a leader's disk is."""

    def __init__(self) -> None:
        self._late_s = 0.0
        self._looked_s: float | None = None
        self._own_index = self._others_index = 0
        """What both had when it was last looked."""
        self._own_s = self._others_s = 0.0
        """For how long each has lacked what is in the log, of late. A time counts in full for the one that lacks more
        entries, and for the other one as a share. So what they are to each other is how long they take for an entry."""

    @property
    def is_too_much(self) -> bool:
        return self._late_s > LATE_MAX_S and self._own_s > SLOWER * self._others_s

    def reset(self) -> None:
        """Forget everything: a reign begins or ends."""
        self._late_s = self._own_s = self._others_s = 0.0
        self._looked_s = None

    def look(
        self, now_s: float, interval_s: float, own_index: int, others_index: int, last_index: int
    ) -> None:
        """Note what this disk has, what a majority has without it, and where the log ends.

        It is looked about every `interval_s` seconds. Who has not now what the other one had at the last look is late.
        Each time counts for two intervals at most, because a node that was busy has not heard of its own disk either.
        """
        if self._looked_s is not None:
            since_s = now_s - self._looked_s
            counted_s = min(since_s, 2 * interval_s)
            self._late_s -= FORGOTTEN * since_s
            if own_index < self._others_index:
                self._late_s += counted_s
            elif others_index < self._own_index:
                self._late_s -= counted_s
            self._late_s = max(0.0, self._late_s)
            fades = 0.5 ** (since_s / HALF_LIFE_S)
            own_lacks, others_lack = last_index - own_index, last_index - others_index
            most = max(own_lacks, others_lack, 1)
            self._own_s = fades * self._own_s + counted_s * own_lacks / most
            self._others_s = fades * self._others_s + counted_s * others_lack / most
        self._looked_s = now_s
        self._own_index, self._others_index = own_index, others_index
