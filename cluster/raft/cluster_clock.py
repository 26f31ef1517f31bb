"""The cluster's time: the time that a leader writes into entries.

Wall clocks jump, because of a wrong time server, an operator, or a virtual machine that slept. So the cluster's time
*runs* with the leader's monotonic clock, and wall clocks only correct it:

- A node's wall clock counts while it keeps pace with the node's monotonic clock. After a jump the old time runs on, and
  the new time counts when the clock has kept it for `PATIENCE_S`. The first reading after the start counts at once.
- Time is put forward only to the time that the clocks of a majority of the members have reached. With three known
  members that is the median, with two of three the earlier, so no single clock moves it.
- Time never goes back. While it is ahead of a majority's clocks, it runs a little slower.

Every node keeps this clock and follows the time of the entries, so a new leader continues without a gap. Each member
sends its clock first on a new link, so a newly elected leader knows the clocks of a majority.

Invariant: pure; times are arguments. Time always runs, at no less than `SLOWER` of its pace, and the clocks of a
minority never put it forward.
"""

from __future__ import annotations

from typing import Protocol

from cluster.configuration import quorum

PATIENCE_S = 60.0
STEP_MS = 2_000.0
"""Milliseconds of a jump that is believed at once, such as a time server's correction or a leap second."""
OFF_MS = 5_000
"""Milliseconds from the cluster's time beyond which a wall clock is off. That is reported once."""
OFF_NO_MORE_MS = OFF_MS / 2
"""Milliseconds from the cluster's time below which a wall clock that was off is right again."""
LEAP_MS = 500.0
"""Milliseconds beyond which a correction is a leap: the monotonic clocks, and the processes, stood still."""
SLOWER = 0.99
"""Pace of time while it is ahead of the clocks. An hour is made up for in four days."""
WALL_MAX_MS = 2**43
"""A time in the year 2248. Later readings count as this, so times derived from it fit into 64 bits."""


def bounded(wall_ms: int) -> int:
    """Limit a reading of a wall clock to the range of the formats: from 1970 to `WALL_MAX_MS`."""
    return min(max(wall_ms, 0), WALL_MAX_MS)


class ClockEvents(Protocol):
    """Called by a clock for events that an operator should know."""

    def time_put_forward(self, lead_ms: float) -> None:
        """The clocks of a majority have put the agreed time forward by so much."""
        ...

    def applied_entry_is_old(self, age_ms: float) -> None:
        """The clocks of a majority, first heard after the start, are so much ahead of the last entry."""
        ...

    def clock_is_off(self, off_ms: float) -> None:
        """The wall clock of this node is so much ahead of the cluster's time, or behind it if `off_ms` is negative."""
        ...

    def clock_agrees(self) -> None:
        """The wall clock of this node agrees with the cluster's time again."""
        ...


class SteadyClock:
    """A wall clock without its jumps. A jump counts after the clock has kept its new time for `patience_s` seconds."""

    def __init__(self, wall_ms: int, now_s: float, patience_s: float) -> None:
        self.offset_ms = wall_ms - now_s * 1000
        """Milliseconds by which the believed wall clock is ahead of the monotonic clock."""
        self._patience_s = patience_s
        self._doubtful_ms: float | None = None
        """The offset after a jump that is not yet believed, in milliseconds; None without such a jump."""
        self._since_s = 0.0
        """Time at which `_doubtful_ms` was first seen, in seconds of the monotonic clock."""

    def add_reading(self, wall_ms: int, now_s: float) -> None:
        """Take in a reading of the wall clock."""
        offset_ms = wall_ms - now_s * 1000
        if abs(offset_ms - self.offset_ms) <= STEP_MS:
            self.offset_ms, self._doubtful_ms = offset_ms, None
        elif self._doubtful_ms is None or abs(offset_ms - self._doubtful_ms) > STEP_MS:
            self._doubtful_ms, self._since_s = offset_ms, now_s
        elif now_s - self._since_s >= self._patience_s:
            self.offset_ms, self._doubtful_ms = offset_ms, None


class ClusterClock:
    """The cluster's time as a single member knows it."""

    def __init__(
        self,
        events: ClockEvents,
        members: int,
        time_ms: int,
        wall_ms: int,
        now_s: float,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`members` is the number of voters, or 0 if this node is no voter. Then its time is that of the entries.

        `time_ms` is the time of the last entry, or 0 without an entry.
        """
        self._events = events
        self.members = members
        self._own = SteadyClock(wall_ms, now_s, patience_s)
        self._peers: dict[str, float] = {}
        """For each connected peer, the milliseconds by which its steady clock is ahead of this node's monotonic
        clock."""
        self._base_ms, self._base_s, self._pace = float(time_ms), now_s, 1.0
        self._knows_entry = time_ms > 0
        self._is_agreed = False
        """Whether, since the start, a majority's clocks have ever agreed with the cluster's time or been ahead of
        it."""
        self._is_off = False
        self.leapt_ms = 0.0
        """Milliseconds by which wall clocks have put time forward in leaps since this node started."""
        self.add_reading(wall_ms, now_s)

    # Reading the time

    def time_ms(self, now_s: float) -> int:
        return int(self._time_ms(now_s))

    def agreed_ms(self, now_s: float) -> int | None:
        """Return the cluster's time in ms for judging clocks, or None while this node hears no majority of voters.

        Without a majority, the time runs on from the last entry that this node knows, which may be old.
        """
        return self.time_ms(now_s) if self._knows_majority() else None

    def wait_s(self, due_ms: int, now_s: float) -> float:
        """Return the seconds until the cluster's time is `due_ms`, unless clocks put it forward."""
        return (due_ms - self.time_ms(now_s)) / (1000 * self._pace)

    def steady_ms(self, now_s: float) -> int:
        """Return this node's wall clock without unbelieved jumps, in milliseconds since 1970."""
        return bounded(int(now_s * 1000 + self._own.offset_ms))

    def _time_ms(self, now_s: float) -> float:
        return self._base_ms + (now_s - self._base_s) * 1000 * self._pace

    # Correcting the time

    def advance_to(self, time_ms: int, now_s: float) -> None:
        """Put time forward to that of an entry, if it is later."""
        if time_ms > self._time_ms(now_s):
            self._base_ms, self._base_s = float(time_ms), now_s
            self._knows_entry = True

    def add_reading(self, wall_ms: int, now_s: float) -> None:
        """Take in a reading of this node's wall clock. Called once a second."""
        self._own.add_reading(wall_ms, now_s)
        self._agree(now_s)
        if self._knows_majority():
            self._check_offset(wall_ms - self._time_ms(now_s))

    def add_peer_reading(self, peer: str, steady_ms: int, now_s: float) -> None:
        """Take in a peer's steady clock. A delayed message makes the clock seem early, which does no harm."""
        self._peers[peer] = steady_ms - now_s * 1000
        self._agree(now_s)

    def forget(self, peer: str) -> None:
        """Forget the clock of a peer whose link is lost, because it may have changed."""
        self._peers.pop(peer, None)

    def _agree(self, now_s: float) -> None:
        """Put time forward to the clocks of a majority, or slow it down if it is ahead.

        Without the clocks of a majority, time runs at its normal pace.
        """
        offsets = [self._own.offset_ms, *self._peers.values()]
        self._base_ms, self._base_s, self._pace = self._time_ms(now_s), now_s, 1.0
        if not self._knows_majority():
            return
        # A majority's clocks have reached `reached_ms`, and a majority's clocks have not passed `passed_ms`. Both are
        # the median if the number of members is odd and all clocks are known.
        reached_ms = now_s * 1000 + quorum.reached(offsets, self.members)
        passed_ms = now_s * 1000 + quorum.not_passed(offsets, self.members)
        lead_ms = reached_ms - self._base_ms
        if lead_ms > 0:
            if lead_ms > OFF_MS:
                self._report_lead(lead_ms)
            if lead_ms > LEAP_MS:
                self.leapt_ms += lead_ms
            self._base_ms = reached_ms
        elif self._base_ms > passed_ms:
            self._pace = SLOWER
        self._is_agreed = self._is_agreed or lead_ms > -OFF_MS

    def _knows_majority(self) -> bool:
        """Return whether this node is a voter and knows the clocks of a majority of the voters."""
        return self.members > 0 and quorum.is_majority(1 + len(self._peers), self.members)

    def _report_lead(self, lead_ms: float) -> None:
        if self._is_agreed:
            self._events.time_put_forward(lead_ms)
        elif self._knows_entry:
            self._events.applied_entry_is_old(lead_ms)

    def _check_offset(self, off_ms: float) -> None:
        """Report once when this node's wall clock is off, and once when it is right again."""
        if not self._is_off and abs(off_ms) > OFF_MS:
            self._is_off = True
            self._events.clock_is_off(off_ms)
        elif self._is_off and abs(off_ms) < OFF_NO_MORE_MS:
            self._is_off = False
            self._events.clock_agrees()
