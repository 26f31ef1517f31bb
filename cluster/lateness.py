"""Whether everybody waits for the disk of the leader, and for nothing else.

No entry is committed before the leader's own disk has it (hazard H1), so a leader whose disk is slow makes every client
wait, while a follower with such a disk makes nobody wait.

That others wait is not enough: where all disks are equally slow, one of them happens to be the last with each entry,
and it may be the same one for long, because a write begins when the one before it ends. What comes while a disk writes
waits for that write and for its own, so by chance a disk takes up to twice as long as its equals.

Lives here: how much longer others wait for this node's disk than it waits for theirs, looked at from time to time, and
which of them do. Not here: who holds what (tracker.py), what is done about it (leadership.py).

Law: pure; indexes and times are handed in. A disk that stops once for a moment is not late, nor is one whose peers are
as slow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

LATE_MAX_S = 1.0
"""A disk is too late when it has kept the others waiting for so long in all, less what is forgotten meanwhile."""
FORGOTTEN = 0.1
"""So much lateness is forgotten in a second: who keeps others waiting for a smaller part of the time may go on."""
MEMORY = 2.0
"""Lateness is counted up to so many times what is too much: one day the disk may be well, if nobody else could lead."""
SLOWER = 3.0
"""A disk that takes no more than so many times as long as the others is not slower than they are."""
OFTEN = 0.5
"""Who has had what this disk lacked for such a part of the time for which others had it has a disk like theirs."""
SOON_S = 0.01
"""So soon it is looked again while others wait for this disk: by how much less it is late is not seen."""
RECENT_S, USUAL_S = 1.0, 10.0
"""What disks lacked counts for half as much after this time: for how long they take just now, and usually."""


class Lateness:
    """How late a leader's disk is."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything: a reign begins or ends."""
        self._late_s = 0.0
        self._looked_s: float | None = None
        self._own_index = self._others_index = self._last_index = 0
        """What both had when it was last looked, and where the log ended."""
        self._waited_s: dict[str, float] = {}
        """For how long each of the others has had what this disk lacked, since that was last not late at all."""
        self._recent = _Lack(RECENT_S)
        """Of all entries. Where something is always under way, quick disks lack it as often as slow ones, for a part of
        the time; so what was a while ago does not count."""
        self._usual = _Lack(USUAL_S)
        """Of entries that were in the log at the look before, which quick disks do not lack. Of slow ones each is the
        last for a while by chance."""
        self._own_stall, self._others_stall = _Stall(), _Stall()
        """A disk that hangs is late at once, also where all have been slow until a moment ago."""

    @property
    def is_waited_for(self) -> bool:
        """Whether others had something at the last look that this disk did not have."""
        return self._own_index < self._others_index

    @property
    def is_too_much(self) -> bool:
        hangs = self._own_stall.now_s > SLOWER * self._others_stall.longest_s
        return self._late_s > LATE_MAX_S and self._recent.is_longer and (self._usual.is_longer or hangs)

    @property
    def waiting(self) -> list[str]:
        """Who waits for this disk, and not only because its own slow one has come first by chance."""
        longest_s = max(self._waited_s.values(), default=0.0)
        return [name for name, waited_s in self._waited_s.items() if waited_s > OFTEN * longest_s]

    def look(
        self,
        now_s: float,
        interval_s: float,
        own_index: int,
        others_index: int,
        last_index: int,
        others: Iterable[str] = (),
    ) -> None:
        """Note what this disk has, what a majority has without it, and where the log ends; `others` have the second.

        It is looked every `interval_s` seconds at least. Who has not now what the other one had at the last look is
        late. Each time counts for two intervals at most, because a node that was busy has not heard of its own disk
        either.
        """
        if self._looked_s is not None:
            since_s = now_s - self._looked_s
            counted_s = min(since_s, 2 * interval_s)
            self._late_s -= FORGOTTEN * since_s
            is_late, before = own_index < self._others_index, self._last_index
            if is_late:
                self._late_s += counted_s
                for name in others:
                    self._waited_s[name] = self._waited_s.get(name, 0.0) + counted_s
            elif others_index < self._own_index:
                self._late_s -= counted_s
            self._late_s = min(max(0.0, self._late_s), MEMORY * LATE_MAX_S)
            if self._late_s == 0.0:
                self._waited_s.clear()
            self._recent.note(since_s, counted_s, last_index - own_index, last_index - others_index)
            self._usual.note(since_s, counted_s, max(0, before - own_index), max(0, before - others_index))
            self._own_stall.note(since_s, counted_s, own_index, lacks=is_late)
            self._others_stall.note(since_s, counted_s, others_index, lacks=others_index < before)
        self._looked_s = now_s
        self._own_index, self._others_index, self._last_index = own_index, others_index, last_index


class _Lack:
    """For how long this disk has lacked entries of late, and for how long the others have.

    A time counts in full for the one that lacks more entries, and for the other one as a share. So what the sums are to
    each other is how long the disks take for an entry.
    """

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._own_s = self._others_s = 0.0

    @property
    def is_longer(self) -> bool:
        """Whether this disk takes longer than the others."""
        return self._own_s > SLOWER * self._others_s

    def note(self, since_s: float, counted_s: float, own: int, others: int) -> None:
        """Note how many entries each lacks, `since_s` seconds after the last time, of which `counted_s` count."""
        fades, most = 0.5 ** (since_s / self._half_life_s), max(own, others, 1)
        self._own_s = fades * self._own_s + counted_s * own / most
        self._others_s = fades * self._others_s + counted_s * others / most


class _Stall:
    """For how long a disk, or the others', has not come further though there was something to write."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.longest_s = 0.0
        """The longest such time of late."""
        self._index = 0

    def note(self, since_s: float, counted_s: float, index: int, *, lacks: bool) -> None:
        """Note what is stored, `since_s` seconds after the last time, of which `counted_s` count."""
        self.now_s = self.now_s + counted_s if lacks and index == self._index else 0.0
        self.longest_s = max(self.longest_s * 0.5 ** (since_s / USUAL_S), self.now_s)
        self._index = index
