"""Judges the ratio of priorities: while both kinds wait, the broker serves two high messages and then the oldest.

A *window* is a row of first deliveries to a consumer at which both kinds waited. In a window of n served messages at
most every third, rounded up, is normal. If a normal message that is older than all high messages waits too, at most two
of three, rounded up, are high. The shares of the whole run show smaller deviations that last.

Invariant: messages in the hands of consumers that died unseen are missing in a window, and the bounds allow for them.
Windows end with each second, as slices of the history do, so slices of any size give the same windows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from chaos.judge.clients import FOREVER_NS
from chaos.judge.event import Event
from chaos.judge.findings import Cause

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chaos.judge.event import Packed
    from chaos.judge.facts import Placed
    from chaos.judge.findings import Findings

IN_HAND = 10
"""Messages; more than the consumers of a queue with priorities hold together."""
UNSEEN = 20
"""Messages; as many as consumers that die during a window may have been sent and not shown."""
PHASE = 2
"""Thirds of a message by which a window may exceed its share, because of the place in the pattern where it begins."""

EXAMINED_MIN = 100
"""Deliveries; in a run with fewer, the shares are not judged."""
SHARE_MIN, SHARE_MAX = 0.60, 0.74
"""Bounds of the share of high messages in a run: 2/3, with room for begin and end of each window."""
SECOND_NS = 1_000_000_000

_TWO_OF_THREE = "while both wait, two of three deliveries are high"
_AT_MOST_TWO = "while an older normal message waits, two of three deliveries are high"
NORMAL_IN_A_ROW = Cause("priority_ratio", "too many normal in a row", _TWO_OF_THREE)
HIGH_IN_A_ROW = Cause("priority_ratio", "too many high in a row", _AT_MOST_TWO)
TOO_FEW_HIGH = Cause("priority_ratio", "too few high", _TWO_OF_THREE)
TOO_MANY_HIGH = Cause("priority_ratio", "too many high", _AT_MOST_TWO)


class Least(NamedTuple):
    """The least values among later deliveries of a queue."""

    high_confirmed_ns: int = FOREVER_NS
    normal_confirmed_ns: int = FOREVER_NS
    high_sequence: int = FOREVER_NS
    normal_sequence: int = FOREVER_NS

    def with_(self, placed: Placed) -> Least:
        """Return the least values with a further delivery.

        A message without a place in the order proves nothing, but its number bounds those of the high messages.
        """
        fact = placed.fact
        if placed.is_high:
            sequence = min(self.high_sequence, fact.sequence)
            confirmed_ns = min(self.high_confirmed_ns, fact.confirmed_ns if fact.is_placed else FOREVER_NS)
            return self._replace(high_confirmed_ns=confirmed_ns, high_sequence=sequence)
        if not fact.is_placed:
            return self
        return self._replace(
            normal_confirmed_ns=min(self.normal_confirmed_ns, fact.confirmed_ns),
            normal_sequence=min(self.normal_sequence, fact.sequence),
        )

    def and_(self, other: Least) -> Least:
        return Least(*map(min, self, other))


class Waiting(NamedTuple):
    """The kinds of messages that certainly waited when a message was chosen."""

    both: bool
    older_normal: bool
    """Whether both waited, and the oldest of all was a normal message."""


@dataclass(slots=True)
class Shares:
    """The deliveries of a queue at which both kinds waited; those of several slices add up."""

    examined: int = 0
    high: int = 0
    strictly_examined: int = 0
    """Deliveries at which an older normal message waited."""
    strictly_high: int = 0
    last: Packed | None = None

    def count(self, each: Placed, waiting: Waiting) -> None:
        if waiting.both:
            strictly = int(waiting.older_normal)
            self.add(Shares(1, int(each.is_high), strictly, strictly * each.is_high, tuple(each.row)))

    def add(self, other: Shares) -> None:
        self.examined += other.examined
        self.high += other.high
        self.strictly_examined += other.strictly_examined
        self.strictly_high += other.strictly_high
        if self.last is None or (other.last is not None and other.last[0] > self.last[0]):
            self.last = other.last


@dataclass(slots=True)
class Excess:
    """By how much the deliveries of a kind exceed their share in the worst window that ends here, in thirds."""

    most: int
    """The largest excess of a broker that keeps the ratio."""
    thirds: int = 0
    is_reported: bool = False
    _is_open: bool = False
    """Whether the last delivery belongs to a window."""

    def count(self, thirds: int) -> bool:
        """Add a delivery of a window; return whether the excess is too large for the first time."""
        self.thirds = max(self.thirds + thirds, 0)
        self._is_open = True
        if self.is_reported or self.thirds <= self.most:
            return False
        self.is_reported = True
        return True

    def end_window(self) -> None:
        """Forgive a phase, because the next window may begin anywhere in the pattern."""
        if self._is_open:
            self.thirds, self._is_open = max(self.thirds - PHASE, 0), False

    def forget(self) -> None:
        """Begin anew, because messages may be missing."""
        self.thirds, self._is_open, self.is_reported = 0, False, False


def judge(
    members: Sequence[Placed], waiting: Sequence[Waiting], started_ns: int, findings: Findings
) -> Shares:
    """Judge the windows of a queue in a slice, and return its shares."""
    shares, normal, high = Shares(), Excess(PHASE + UNSEEN), Excess(PHASE + 2 * UNSEEN)
    place = None
    for each, kinds in zip(members, waiting, strict=True):
        here = each.row.consuming, (each.row.time_ns - started_ns) // SECOND_NS
        if here != place:
            place = here
            normal.forget()
            high.forget()
        shares.count(each, kinds)
        if not kinds.both:
            normal.end_window()
        elif normal.count(-1 if each.is_high else 2):
            findings.broken(NORMAL_IN_A_ROW, each.row, _observed(normal, "normal"))
        if not kinds.older_normal:
            high.end_window()
        elif high.count(1 if each.is_high else -2):
            findings.broken(HIGH_IN_A_ROW, each.row, _observed(high, "high"))
    findings.checked["priority_ratio"] += shares.examined
    return shares


def judge_shares(shares: Mapping[str, Shares], findings: Findings) -> None:
    """Judge the share of high messages of each queue; fewer than `EXAMINED_MIN` deliveries are not judged."""
    for each in shares.values():
        if each.examined < EXAMINED_MIN or each.last is None:
            continue
        row = Event._make(each.last)
        if each.high / each.examined < SHARE_MIN:
            findings.broken(TOO_FEW_HIGH, row, f"{each.high} of {each.examined} deliveries were high")
        elif (
            each.strictly_examined >= EXAMINED_MIN and each.strictly_high / each.strictly_examined > SHARE_MAX
        ):
            observed = f"{each.strictly_high} of {each.strictly_examined} deliveries were high"
            findings.broken(TOO_MANY_HIGH, row, observed)


def _observed(excess: Excess, kind: str) -> str:
    return f"{excess.thirds / 3:.0f} more {kind} deliveries than the share of {kind} messages"


def waiting_at(
    members: Sequence[Placed], before_ns: Sequence[int], behind: Least, *, is_single: bool
) -> list[Waiting]:
    """Return for each first delivery of a queue in a slice which kinds waited.

    `before_ns` are the times of the deliveries before the slice, and `behind` has the least values behind it.

    High messages wait at a delivery if a later delivery is of a high message that was confirmed `IN_HAND` deliveries
    before: so that message was in the queue when the broker chose, and not yet in a consumer's hands. The same holds
    for normal messages. If the oldest high message is older than the oldest normal message, the high message comes
    first in any case. The sequence numbers of a single publisher show that (`is_single`).
    """
    waiting: list[Waiting] = []
    times_ns = [*before_ns, *(each.row.time_ns for each in members)]
    later = behind
    for place in range(len(members) - 1, -1, -1):
        from_here = later.with_(members[place])
        chosen = place + len(before_ns) - IN_HAND
        confirmed_ns = max(later.high_confirmed_ns, later.normal_confirmed_ns)
        both = chosen >= 0 and confirmed_ns < times_ns[chosen]
        older_normal = both and is_single and later.normal_sequence < from_here.high_sequence
        waiting.append(Waiting(both, older_normal))
        later = from_here
    waiting.reverse()
    return waiting
