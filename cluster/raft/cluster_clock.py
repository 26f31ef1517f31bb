"""What time it is for the cluster: the time that a leader puts into entries.

Wall clocks jump: by a wrong time server, an operator's hand, a virtual machine that was asleep. So time *goes on* by
the monotonic clock of whoever leads, whatever wall clocks do, and wall clocks only say how late it is:

- A node's wall clock counts as far as it keeps in step with the node's monotonic clock. Where it jumps to counts when
  it has stayed there for `PATIENCE_S`; until then, what it said before goes on. The first reading of a life counts.
- Time is put forward to what the clocks of a majority of the members have reached, never further. With three members
  known that is the median, with two of three the earlier one, so no single clock moves it.
- Time never goes back. While it is later than the clocks of a majority say, it goes on a little slower.

Every node keeps this clock and follows the time of the entries, so a new leader goes on where the last one was. Each
member tells its clock first of all on a new link, so who was elected knows those of a majority.

Invariant: time always runs, at no less than `SLOWER` of its pace, and the clocks of a minority never put it forward.
"""

from __future__ import annotations

import logging

from cluster.configuration import quorum

log = logging.getLogger(__name__)

PATIENCE_S = 60.0
STEP_MS = 2_000.0
"""A jump of a wall clock by no more than this is believed at once: a time server's correction, or a leap second."""
OFF_MS = 5_000
"""A wall clock that differs by more than this from the cluster's time is off, and the log says so once."""
OFF_NO_MORE_MS = OFF_MS / 2
"""A wall clock that was off is right again when it differs by less than this."""
LEAP_MS = 500.0
"""Time that is put forward by more than this has leapt: the monotonic clocks, and the processes, stood still."""
SLOWER = 0.99
"""The pace at which time goes on while it is ahead of the clocks: an hour is made up for in four days."""
WALL_MAX_MS = 2**43
"""A time in the year 2248. Later readings count as this, so that what is derived from times has room in 64 bits."""


def bounded(wall_ms: int) -> int:
    """Limit the reading of a wall clock to what the formats have room for: from 1970 to `WALL_MAX_MS`."""
    return min(max(wall_ms, 0), WALL_MAX_MS)


class SteadyClock:
    """A wall clock without its jumps, until it has kept its new time for `patience_s` seconds."""

    def __init__(self, wall_ms: int, now_s: float, patience_s: float) -> None:
        self.offset_ms = wall_ms - now_s * 1000
        """By how much the wall clock is ahead of the monotonic one, as far as it is believed, in milliseconds."""
        self._patience_s = patience_s
        self._doubtful_ms: float | None = None
        """The offset since a jump that is not believed yet; None if there is none."""
        self._since_s = 0.0
        """When the offset `_doubtful_ms` was first seen, on the monotonic clock, in seconds."""

    def look(self, wall_ms: int, now_s: float) -> None:
        offset_ms = wall_ms - now_s * 1000
        if abs(offset_ms - self.offset_ms) <= STEP_MS:
            self.offset_ms, self._doubtful_ms = offset_ms, None
        elif self._doubtful_ms is None or abs(offset_ms - self._doubtful_ms) > STEP_MS:
            self._doubtful_ms, self._since_s = offset_ms, now_s
        elif now_s - self._since_s >= self._patience_s:
            self.offset_ms, self._doubtful_ms = offset_ms, None


class ClusterClock:
    """The cluster's time as one of its members knows it."""

    def __init__(
        self,
        name: str,
        members: int,
        time_ms: int,
        wall_ms: int,
        now_s: float,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`members` is how many voters there are, or 0 if this node is none: then the time is that of the entries.

        `time_ms` is the time of the last entry, or 0 if there is none.
        """
        self._name = name
        self.members = members
        self._own = SteadyClock(wall_ms, now_s, patience_s)
        self._peers: dict[str, float] = {}
        """By how much each connected peer's steady clock is ahead of this node's monotonic clock, in milliseconds."""
        self._base_ms, self._base_s, self._pace = float(time_ms), now_s, 1.0
        self._knows_entry = time_ms > 0
        self._is_agreed = False
        """Whether since this start the clocks of a majority have ever agreed with the cluster's time, or been ahead."""
        self._is_off = False
        self.leapt_ms = 0.0
        """How far wall clocks have put time forward in leaps, in milliseconds, since this node has started."""
        self.look(wall_ms, now_s)

    # What time it is

    def time_ms(self, now_s: float) -> int:
        return int(self._time_ms(now_s))

    def agreed_ms(self, now_s: float) -> int | None:
        """The cluster's time, if clocks can be judged by it; None while this node hears no majority of the voters.

        Without them it goes on from the last entry that the node knows, which may be of any age.
        """
        return self.time_ms(now_s) if self._knows_majority() else None

    def wait_s(self, due_ms: int, now_s: float) -> float:
        """How many seconds it takes until the cluster's time is `due_ms`, if nothing puts it forward."""
        return (due_ms - self.time_ms(now_s)) / (1000 * self._pace)

    def steady_ms(self, now_s: float) -> int:
        """The wall clock of this node without jumps that are not believed yet, in milliseconds since 1970."""
        return bounded(int(now_s * 1000 + self._own.offset_ms))

    def _time_ms(self, now_s: float) -> float:
        return self._base_ms + (now_s - self._base_s) * 1000 * self._pace

    # How it is known

    def follow(self, time_ms: int, now_s: float) -> None:
        """Put time forward to that of an entry, if it is later."""
        if time_ms > self._time_ms(now_s):
            self._base_ms, self._base_s = float(time_ms), now_s
            self._knows_entry = True

    def look(self, wall_ms: int, now_s: float) -> None:
        """Take in a reading of this node's wall clock; to be called once a second."""
        self._own.look(wall_ms, now_s)
        self._agree(now_s)
        if self._knows_majority():
            self._watch(wall_ms - self._time_ms(now_s))

    def hear(self, peer: str, steady_ms: int, now_s: float) -> None:
        """Take in a peer's steady clock. A message that was long on its way makes it seem early, which does no harm."""
        self._peers[peer] = steady_ms - now_s * 1000
        self._agree(now_s)

    def forget(self, peer: str) -> None:
        """Forget the clock of a peer whose link is gone, since nobody knows whether it is still right."""
        self._peers.pop(peer, None)

    def _agree(self, now_s: float) -> None:
        """Put time forward to the clocks of a majority, or slow it down if it is ahead, if enough clocks are known."""
        offsets = [self._own.offset_ms, *self._peers.values()]
        self._base_ms, self._base_s, self._pace = self._time_ms(now_s), now_s, 1.0
        if not self._knows_majority():
            return
        # A majority's clocks have reached the one, and a majority's have not passed the other; of an odd number of
        # members that are all known both are the median.
        reached_ms = now_s * 1000 + quorum.reached(offsets, self.members)
        passed_ms = now_s * 1000 + quorum.not_passed(offsets, self.members)
        lead_ms = reached_ms - self._base_ms
        if lead_ms > 0:
            if lead_ms > OFF_MS:
                self._tell_lead(lead_ms)
            if lead_ms > LEAP_MS:
                self.leapt_ms += lead_ms
            self._base_ms = reached_ms
        elif self._base_ms > passed_ms:
            self._pace = SLOWER
        self._is_agreed = self._is_agreed or lead_ms > -OFF_MS

    def _knows_majority(self) -> bool:
        """Whether this node votes, and knows the clocks of so many voters that they decide what time it is."""
        return self.members > 0 and quorum.is_majority(1 + len(self._peers), self.members)

    def _tell_lead(self, lead_ms: float) -> None:
        seconds = lead_ms / 1000
        if self._is_agreed:
            log.warning(
                "time is put forward by %.1f s: the clocks of a majority of the members say so", seconds
            )
        elif self._knows_entry:
            log.info(
                "the last entry applied here is %.1f s old by the clocks of a majority of the members",
                seconds,
            )

    def _watch(self, off_ms: float) -> None:
        """Say once that this node's wall clock is off, and once that it is not any more."""
        if not self._is_off and abs(off_ms) > OFF_MS:
            self._is_off = True
            log.warning(
                "the clock of node %s is %.1f s %s the cluster's time, which goes on without it",
                self._name,
                abs(off_ms) / 1000,
                "ahead of" if off_ms > 0 else "behind",
            )
        elif self._is_off and abs(off_ms) < OFF_NO_MORE_MS:
            self._is_off = False
            log.info("the clock of node %s agrees with the cluster's time again", self._name)
