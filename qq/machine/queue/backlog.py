"""The undelivered messages of a queue: ready, or delayed.

Returned messages are served first, in the order of their return. Then come the priority levels. In each level the
messages lie in order of arrival, as runs. Messages that expire before a message in front of them lie on the level's
shelf, and so do messages that were put back into their place. Delayed messages have a shelf of their own.

To iterate over all ready messages, go from place to place: RETURNED is the place of returned messages, `place_of` gives
the place of a level, the highest level first. In its place each message has a key that is never reused: the number of
its return, or its position.

Invariant: each message is in exactly one of these places. Counts and sizes are updated with each change, and never
recomputed. The state follows from the calls alone, and continues in the same way after `dump` and `load`.
"""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace, merge
from itertools import chain
from operator import attrgetter, itemgetter
from sys import maxsize
from typing import TYPE_CHECKING, Any, NamedTuple

from qq.machine.queue.runs import Runs
from qq.machine.queue.shelf import Shelf
from qq.ranges import LEVELS, NORMAL, Range

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from qq.machine.queue.runs import FrozenRuns, RunsRow
    from qq.machine.queue.shelf import FrozenShelf

HIGH = NORMAL + 1
"""The lowest high level, for queues with only two priorities (high and normal)."""
WEIGHT = 2
"""High messages that are served for each normal message, while both exist."""

RETURNED = 0
"""The place of the returned messages."""
PLACES = LEVELS + 1
"""The number of places."""

_count = itemgetter(2)
_size = itemgetter(4)
_position = attrgetter("position")
_key = itemgetter(0)


class _Lane:
    """The messages of a priority level."""

    __slots__ = ("last_expires_ms", "level", "runs", "shelf")

    def __init__(self, level: int, *, exact_sizes: bool) -> None:
        self.level = level
        self.runs = Runs(level, exact_sizes=exact_sizes)
        self.shelf = Shelf()
        """The messages outside the runs; their keys are their positions."""
        self.last_expires_ms = 0
        """The time at which the last run expires, while there are runs; 0 is never."""

    def __bool__(self) -> bool:
        return bool(self.runs or self.shelf)


class Backlog:
    """Undelivered messages in the order of delivery."""

    __slots__ = (
        "_delayed",
        "_exact_sizes",
        "_lanes",
        "_next_delay",
        "_next_return",
        "_normal",
        "_phase",
        "_plain",
        "_returns",
        "count",
        "delayed",
        "delayed_size",
        "next_position",
        "size",
        "strict",
        "trimmed_position",
    )

    def __init__(self, *, strict: bool = False, exact_sizes: bool = False) -> None:
        self.count = 0
        """The number of ready messages."""
        self.size = 0
        """The octets of all ready messages."""
        self.delayed = 0
        self.delayed_size = 0
        self.next_position = 0
        """The position that the next arriving message gets."""
        self.trimmed_position = 0
        """The value of `next_position` when the queue last checked its length limits."""
        self.strict = strict
        """Whether a level is served only when all higher levels are empty. If not, there are two priorities: while both
        have messages, two of three served messages are high, and the third is the oldest of all."""
        self._exact_sizes = exact_sizes
        self._normal = _Lane(NORMAL, exact_sizes=exact_sizes)
        self._lanes: dict[int, _Lane] = {NORMAL: self._normal}
        """Level -> lane, the highest level first. All lanes but the normal one exist only while they have messages."""
        self._returns = Shelf()
        """The returned messages, in the order of their return."""
        self._next_return = 0
        self._delayed = Shelf()
        """The delayed messages, in the order in which they were delayed."""
        self._next_delay = 0
        self._phase = 0
        """Number of messages taken from the levels, modulo three. It decides which priority is next."""
        self._plain = True
        """Whether all ready messages lie in the normal level's runs."""

    @property
    def exact_sizes(self) -> bool:
        """Whether each message's own size is kept, instead of its share of a run's size.

        A limit in octets needs the exact sizes.
        """
        return self._exact_sizes

    @exact_sizes.setter
    def exact_sizes(self, exact_sizes: bool) -> None:
        self._exact_sizes = exact_sizes
        for lane in self._lanes.values():
            lane.runs.exact_sizes = exact_sizes

    def add(
        self,
        index: int,
        slot: int,
        count: int,
        size: int,
        level: int = NORMAL,
        expires_ms: int = 0,
        history: int = 0,
    ) -> None:
        """Add `count` arriving messages at the end of their level; `size` is their total in octets."""
        position = self.next_position
        self.next_position = position + count
        self.count += count
        self.size += size
        lane = self._normal if level == NORMAL else self._lane(level)
        if expires_ms or lane.last_expires_ms:
            last = lane.last_expires_ms
            if expires_ms and lane.runs and not 0 < last <= expires_ms:
                self._shelve(lane, Range(index, slot, count, 0, size, position, expires_ms, level, history))
                return
            lane.last_expires_ms = expires_ms
        lane.runs.append(index, slot, count, position, size, expires_ms, history)

    def give_back(self, messages: Range) -> None:
        """Make returned messages ready: behind earlier returns, and before all levels."""
        self.count += messages.count
        self.size += messages.size
        self._plain = False
        self._returns.insert(self._next_return, messages)
        self._next_return += messages.count

    def put_back(self, messages: Range) -> None:
        """Make returned messages ready in their former place."""
        self.count += messages.count
        self.size += messages.size
        self._shelve(self._lane(messages.level), messages)

    def delay(self, messages: Range, due_ms: int, *, returned: bool) -> None:
        """Keep messages until `due_ms`. Then they go to the end of the returns, if `returned`, or of the arrivals.

        Messages that were not `returned` do not expire before that, because their time to live starts when they are
        ready.
        """
        self.delayed += messages.count
        self.delayed_size += messages.size
        self._delayed.insert(self._next_delay, messages, due_ms, returned=returned)
        self._next_delay += messages.count

    def take(self, count: int, most: int = maxsize) -> list[Range]:
        """Remove and return the first `count` ready messages, which must exist, in at most `most` ranges."""
        if self._plain:
            ranges = self._normal.runs.take(count, most)
            if len(ranges) == most:
                count = sum(map(_count, ranges))
            self._phase = (self._phase + count) % (WEIGHT + 1)
        else:
            ranges = self._take(count, most)
            count = sum(map(_count, ranges))
        self.count -= count
        self.size -= ranges[0].size if len(ranges) == 1 else sum(map(_size, ranges))
        return ranges

    def take_within(self, count: int, size: int, most: int, *, by_arrival: bool = False) -> list[Range]:
        """Remove and return the first ready messages, at most `count`, of at most `size` octets and `most` ranges.

        A ready message must exist, and the first message is taken whatever its size. With `by_arrival`, priorities have
        no effect, and the result is in the order of arrival; but returned messages are always among the first.
        """
        phase, count = self._phase, min(count, self.count)
        if self.size <= size and (self._plain or not by_arrival):
            ranges = self.take(count, most)
        else:
            ranges = self._take_one_by_one(count, size, most, by_arrival=by_arrival)
        if by_arrival:
            self._phase = phase
            ranges.sort(key=_position)
        return ranges

    def _take_one_by_one(self, count: int, size: int, most: int, *, by_arrival: bool) -> list[Range]:
        ranges: list[Range] = []
        while count and len(ranges) < most and (size > 0 or not ranges):
            was_returned = bool(self._returns)
            if by_arrival and not was_returned:
                [messages] = self._take_oldest(count)
            else:
                [messages] = self.take(count, 1)
            fitting = max(messages.count_within(size), not ranges)
            if fitting < messages.count:
                rest = messages.part(fitting, messages.count - fitting)
                self._undo_take(rest, was_returned=was_returned)
                messages, size = messages.part(0, fitting), 0
            if fitting:
                ranges.append(messages)
            size -= messages.size
            count -= messages.count
        return ranges

    def _take_oldest(self, count: int) -> list[Range]:
        """Remove and return the first range of all levels by arrival."""
        ranges = _take_merged(_sources(list(self._lanes.values())), count, 1)
        self.count -= sum(map(_count, ranges))
        self.size -= sum(map(_size, ranges))
        self._tidy()
        return ranges

    def _undo_take(self, messages: Range, *, was_returned: bool) -> None:
        """Make the last messages ready again that `take` has just removed."""
        self.count += messages.count
        self.size += messages.size
        if was_returned:
            following = self._returns.peek(0, maxsize, 1)
            end = following[0][0] if following else self._next_return
            self._returns.insert(end - messages.count, messages)
            self._plain = False
        else:
            self._phase = (self._phase - messages.count) % (WEIGHT + 1)
            self._shelve(self._lane(messages.level), messages)

    @property
    def ranges_at_most(self) -> int:
        """An upper bound of the number of ranges of ready messages."""
        places = [place for lane in self._lanes.values() for place in (lane.runs, lane.shelf)]
        return sum(place.ranges_at_most for place in (*places, self._returns))

    def expire(self, now_ms: int, limit: int) -> list[Range]:
        """Remove and return about `limit` expired messages, the earliest first."""
        expired: list[Range] = []
        expiries = self._expiries()
        while limit > 0 and expiries and expiries[0][0] <= now_ms:
            first_ms, number, source = expiries[0]
            # Until a different place has the earliest expiry.
            until_ms = min([now_ms, *(time_ms for time_ms, _, _ in expiries[1:3])])
            while limit > 0 and 0 < first_ms <= until_ms:
                messages = source.take_expired()
                first_ms = source.expires_ms
                if source is self._delayed:
                    self.delayed -= messages.count
                    self.delayed_size -= messages.size
                else:
                    self.count -= messages.count
                    self.size -= messages.size
                expired.append(messages)
                limit -= messages.count
            if first_ms:
                heapreplace(expiries, (first_ms, number, source))
            else:
                heappop(expiries)
        if expired and not self._plain:
            self._tidy()
        return expired

    def release(self, now_ms: int, limit: int) -> int:
        """Make about `limit` due messages ready, the earliest first, and return their number.

        Messages that were not returned keep their full time to live, counted from now.
        """
        released = 0
        delayed = self._delayed
        while released < limit and 0 < (due_ms := delayed.due_ms) <= now_ms:
            messages, returned = delayed.take_due()
            if messages.expires_ms and not returned:
                messages = messages._replace(expires_ms=messages.expires_ms + now_ms - due_ms)
            released += messages.count
            self.delayed -= messages.count
            self.delayed_size -= messages.size
            if returned:
                self.give_back(messages)
            elif messages.deliveries:
                # Only shelves record the number of deliveries.
                moved = messages._replace(position=self.next_position)
                self.next_position += messages.count
                self.put_back(moved)
            else:
                index, slot, count, _, size, _, expires_ms, level, history, _ = messages
                self.add(index, slot, count, size, level, expires_ms, history)
        return released

    def oldest_index(self) -> int | None:
        """Return the lowest log index among the first messages of the levels and of the returns, or None."""
        if self._plain:
            return self._normal.runs.head_index if self.count else None
        places = [
            *(place for lane in self._lanes.values() for place in (lane.runs, lane.shelf)),
            self._returns,
        ]
        return min((place.head_index for place in places if place), default=None)

    def due_ms(self) -> int | None:
        """Return the time at which `expire` or `release` will have work, or None for never."""
        if self._plain and not self.delayed:
            return self._normal.runs.expires_ms or None
        due_ms, expires_ms = self._delayed.due_ms, self.expires_ms()
        return min(due_ms, expires_ms) if due_ms and expires_ms else due_ms or expires_ms or None

    def expires_ms(self) -> int:
        """Return the time at which `expire` will have work; 0 for never."""
        return min(filter(None, [place.expires_ms for place in self._places()]), default=0)

    def clear(self) -> int:
        """Remove all messages, ready and delayed, and return their number."""
        cleared = self.count + self.delayed
        self.count = self.size = self.delayed = self.delayed_size = 0
        for lane in self._lanes.values():
            lane.runs.clear()
            lane.shelf.clear()
        self._returns.clear()
        self._delayed.clear()
        self._tidy()
        return cleared

    def browse(self, first: int, count: int) -> list[Range]:
        """Return at most `count` ready messages from offset `first` on, as `FrozenBacklog.browse` does."""
        return self.freeze().browse(first, count)

    def ends(self) -> tuple[int, int]:
        """Return the keys that the next message gets in RETURNED, and in any level's place."""
        return self._next_return, self.next_position

    def peek(self, place: int, first: int, end: int, count: int) -> list[tuple[int, Range]]:
        """Return at most `count` ready messages of a place in order, with keys from `first` to before `end`.

        Each range comes with the key of its first message. The cost is that of the messages returned, and of unpacking
        a chunk.
        """
        if place == RETURNED:
            return self._returns.peek(first, end, count)
        lane = self._lanes.get(LEVELS - place)
        if lane is None:
            return []
        found = [(messages.position, messages) for messages in lane.runs.peek(first, end, count)]
        if lane.shelf:
            found = sorted([*found, *lane.shelf.peek(first, end, count)], key=_key)
        return _first_of(found, count)

    def cut(self, place: int, found: Sequence[tuple[int, Range]]) -> None:
        """Remove messages that `peek` has just found in a place, or parts of them, in the same order."""
        self.count -= sum(messages.count for _, messages in found)
        self.size -= sum(messages.size for _, messages in found)
        pieces = [(key, messages.count) for key, messages in found]
        if place == RETURNED:
            shelf = self._returns
        else:
            lane = self._lanes[LEVELS - place]
            lane.runs.cut(pieces)
            shelf = lane.shelf
        if shelf:
            for first, count in pieces:
                shelf.cut(first, count)
        if not self._plain:
            self._tidy()

    def _lane(self, level: int) -> _Lane:
        """Return the lane of a level that will get messages; it is created if it does not exist."""
        lane = self._lanes.get(level)
        if lane is None:
            lane = _Lane(level, exact_sizes=self._exact_sizes)
            self._lanes[level] = lane
            self._lanes = dict(sorted(self._lanes.items(), reverse=True))
            self._plain = False
        return lane

    def _shelve(self, lane: _Lane, messages: Range) -> None:
        lane.shelf.insert(messages.position, messages)
        self._plain = False

    def _tidy(self) -> None:
        """Forget levels that became empty."""
        if len(self._lanes) > 1:
            self._lanes = {level: lane for level, lane in self._lanes.items() if lane or lane is self._normal}
        self._plain = len(self._lanes) == 1 and not self._normal.shelf and not self._returns

    def _take(self, count: int, most: int) -> list[Range]:
        """Remove and return ready messages from all places: first the returns, then the levels."""
        ranges = self._returns.take(count, most)
        count -= sum(map(_count, ranges))
        most -= len(ranges)
        ranges += self._take_strictly(count, most) if self.strict else self._take_by_ratio(count, most)
        self._tidy()
        return ranges

    def _take_strictly(self, count: int, most: int) -> list[Range]:
        ranges: list[Range] = []
        for lane in self._lanes.values():
            if not count or len(ranges) == most:
                break
            taken = _take_merged(_sources([lane]), count, most - len(ranges))
            number = sum(map(_count, taken))
            self._phase = (self._phase + number) % (WEIGHT + 1)
            count -= number
            ranges += taken
        return ranges

    def _take_by_ratio(self, count: int, most: int) -> list[Range]:
        lanes = list(self._lanes.values())
        number_high = sum(lane.level >= HIGH for lane in lanes)
        high, normal = _sources(lanes[:number_high]), _sources(lanes[number_high:])
        ranges: list[Range] = []
        while count and len(ranges) < most:
            if not high or not normal:
                group, limit = high or normal, count
            elif self._phase < WEIGHT:
                group, limit = high, min(count, WEIGHT - self._phase)
            else:
                group, limit = (high if high[0][0] < normal[0][0] else normal), 1
            taken = _take_merged(group, limit, most - len(ranges))
            number = sum(map(_count, taken))
            self._phase = (self._phase + number) % (WEIGHT + 1)
            count -= number
            ranges += taken
        return ranges

    def _expiries(self) -> list[tuple[int, int, Runs | Shelf]]:
        """Return a heap of (expiry time, number, place); the number decides between equal times."""
        times = [
            (place.expires_ms, number, place)
            for number, place in enumerate(self._places())
            if place.expires_ms
        ]
        heapify(times)
        return times

    def _places(self) -> list[Runs | Shelf]:
        """Return all places with messages that may expire."""
        if self._plain:
            return [self._normal.runs, self._delayed]
        places: list[Runs | Shelf] = []
        for lane in self._lanes.values():
            places += lane.runs, lane.shelf
        places += self._returns, self._delayed
        return places

    # The state, dumped and loaded

    def freeze(self) -> FrozenBacklog:
        counters = self.next_position, self._next_return, self._next_delay, self._phase, self.trimmed_position
        lanes = [
            (level, lane.last_expires_ms if lane.runs else 0, lane.runs.freeze(), lane.shelf.freeze())
            for level, lane in self._lanes.items()
        ]
        return FrozenBacklog(
            BacklogTotals(self.count, self.size, self.delayed, self.delayed_size),
            BacklogCounters(*counters),
            BacklogOptions(self.strict, self._exact_sizes),
            lanes,
            self._returns.freeze(),
            self._delayed.freeze(),
        )

    def load(self, dumped: Sequence[Any]) -> None:
        """Replace everything by the backlog of a dumped `BacklogRow`."""
        row = BacklogRow(*dumped)
        totals, counters, options = (
            BacklogTotals(*row.totals),
            BacklogCounters(*row.counters),
            BacklogOptions(*row.options),
        )
        if self.count or self.delayed:
            self.clear()
        self.count, self.size = totals.count, totals.size
        self.delayed, self.delayed_size = totals.delayed, totals.delayed_size
        self.next_position, self.trimmed_position = counters.next_position, counters.trimmed_position
        self._next_return, self._next_delay = counters.next_return, counters.next_delay
        self._phase = counters.phase
        self.strict, self.exact_sizes = options.strict, options.exact_sizes
        if self.count or self.delayed:  # few of very many queues have messages
            self._load_messages(row)

    def _load_messages(self, row: BacklogRow) -> None:
        for known in row.lanes:
            lane_row = LaneRow(*known)
            lane = self._lane(lane_row.level)
            lane.last_expires_ms = lane_row.last_expires_ms
            lane.runs.load(lane_row.runs)
            lane.shelf.load(lane_row.shelf)
        self._returns.load(row.returns)
        self._delayed.load(row.delayed)
        self._tidy()


class BacklogTotals(NamedTuple):
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here
    size: int
    delayed: int
    delayed_size: int


class BacklogCounters(NamedTuple):
    """The counters of a backlog: next position, next keys on the shelves, phase, and position at the last trim."""

    next_position: int
    next_return: int
    next_delay: int
    phase: int
    trimmed_position: int


class BacklogOptions(NamedTuple):
    strict: bool
    exact_sizes: bool


class LaneRow(NamedTuple):
    """The messages of a level in a dump."""

    level: int
    last_expires_ms: int
    """The time at which the last run expires; 0 for never, or without runs."""
    runs: RunsRow
    shelf: list[bytes]
    """The shelf as `FrozenShelf.dump` returns it."""


class BacklogRow(NamedTuple):
    """A backlog in a dump, written by `FrozenBacklog.dump` and read by `Backlog.load`."""

    totals: BacklogTotals
    counters: BacklogCounters
    options: BacklogOptions
    lanes: list[LaneRow]
    """A row for each level, the highest first."""
    returns: list[bytes]
    delayed: list[bytes]

    @property
    def chunks(self) -> int:
        """The number of chunks in which the runs of all levels are packed."""
        return sum(len(lane.runs.chunks) for lane in self.lanes)


class FrozenBacklog(NamedTuple):
    """A backlog at a moment."""

    totals: BacklogTotals
    counters: BacklogCounters
    options: BacklogOptions
    lanes: list[tuple[int, int, FrozenRuns, FrozenShelf]]
    """Level, last_expires_ms, runs and shelf of each lane, the highest level first."""
    returns: FrozenShelf
    delayed: FrozenShelf

    def dump(self) -> BacklogRow:
        """Return the backlog's row in a dump; equal backlogs have equal rows if zlib is the same."""
        lanes = [
            LaneRow(level, last_expires_ms, runs.dump(), shelf.dump())
            for level, last_expires_ms, runs, shelf in self.lanes
        ]
        return BacklogRow(
            self.totals, self.counters, self.options, lanes, self.returns.dump(), self.delayed.dump()
        )

    def browse(self, first: int, count: int) -> list[Range]:
        """Return at most `count` ready messages from offset `first` on, in the order of delivery; on any thread.

        With two priorities, all high messages come first here, although they will be delivered in turn with normal
        messages. Skipping messages on shelves costs as much as reading them.
        """
        found: list[Range] = []
        for messages in self._browse(first):
            found.append(messages.part(0, min(count, messages.count)))
            count -= messages.count
            if count <= 0:
                break
        return found

    def _browse(self, skip: int) -> Iterator[Range]:
        if len(self.lanes) == 1 and not self.lanes[0][3].blocks and not self.returns.blocks:
            [(level, _, runs, _)] = self.lanes
            yield from runs.browse(level, skip)
            return
        high = sum(level >= HIGH for level, *_ in self.lanes)
        groups = (
            [[lane] for lane in self.lanes] if self.options.strict else [self.lanes[:high], self.lanes[high:]]
        )
        ranges = [self.returns.browse()]
        for group in groups:
            sources = [
                source
                for level, _, runs, shelf in group
                for source in (runs.browse(level, 0), shelf.browse())
            ]
            ranges.append(merge(*sources, key=_position))
        for messages in chain.from_iterable(ranges):
            if messages.count > skip:
                yield messages.part(skip, messages.count - skip)
            skip = max(skip - messages.count, 0)

    def add_counts(self, bounds: Sequence[int], counts: list[int]) -> None:
        """Add the number of messages with bounds[i] <= index < bounds[i + 1] to counts[i], for each i."""
        for place in self._places():
            place.add_counts(bounds, counts)

    def ranges(self, first: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield index, slot and count of all ranges with first <= index < end, in no order."""
        for place in self._places():
            yield from place.ranges(first, end)

    def _places(self) -> Iterator[FrozenRuns | FrozenShelf]:
        for _, _, runs, shelf in self.lanes:
            yield runs
            yield shelf
        yield self.returns
        yield self.delayed


def place_of(level: int) -> int:
    """Return the place of a level's messages (without the returned messages)."""
    return LEVELS - level


def _first_of(found: list[tuple[int, Range]], most: int) -> list[tuple[int, Range]]:
    """Return the first `most` messages of these ranges."""
    first: list[tuple[int, Range]] = []
    for key, messages in found:
        if most <= 0:
            break
        first.append((key, messages.part(0, min(most, messages.count))))
        most -= messages.count
    return first


def _sources(lanes: list[_Lane]) -> list[tuple[int, Runs | Shelf]]:
    """Return a heap of the non-empty runs and shelves of these lanes, by the position of the first message.

    These positions all differ.
    """
    places = [place for lane in lanes for place in (lane.runs, lane.shelf)]
    sources: list[tuple[int, Runs | Shelf]] = [(place.head_position, place) for place in places if place]
    heapify(sources)
    return sources


def _take_merged(sources: list[tuple[int, Runs | Shelf]], count: int, most: int) -> list[Range]:
    """Remove and return the first `count` messages by arrival, or all if fewer, in at most `most` ranges."""
    ranges: list[Range] = []
    while count and sources and len(ranges) < most:
        _, source = sources[0]
        if len(sources) == 1:
            ranges += source.take(count, most - len(ranges))
            count = 0
        else:
            # Until a different place has the earliest message.
            until = min(position for position, _ in sources[1:3])
            while count and source and source.head_position <= until and len(ranges) < most:
                ranges.append(source.take_run(count))
                count -= ranges[-1].count
        if source:
            heapreplace(sources, (source.head_position, source))
        else:
            heappop(sources)
    return ranges
