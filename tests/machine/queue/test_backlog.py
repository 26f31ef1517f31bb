"""The order of delivery, expiry and delay, against plain lists of single messages."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qq.machine.queue import runs as runs_module
from qq.machine.queue import shelf as shelf_module
from qq.machine.queue.backlog import HIGH, RETURNED, Backlog, FrozenBacklog, place_of
from qq.ranges import NORMAL, Range

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Message(NamedTuple):
    index: int
    slot: int
    deliveries: int
    position: int
    expires_ms: int
    level: int
    history: int
    failures: int


class Oracle:
    """The specification of a backlog, message by message."""

    def __init__(self) -> None:
        self.returns: list[Message] = []
        self.levels: list[Message] = []
        self.delayed: list[tuple[int, int, bool, Message]] = []
        self.next_position = 0
        self.delays = 0
        self.turn = 0
        self.strict = False

    def add(self, message: Message) -> None:
        self.levels.append(message._replace(position=self.next_position))
        self.next_position += 1

    def delay(self, message: Message, due_ms: int, *, returned: bool) -> None:
        self.delayed.append((due_ms, self.delays, returned, message))
        self.delays += 1

    def take(self, count: int) -> list[Message]:
        return [self._take_one() for _ in range(count)]

    def dead(self, now_ms: int) -> list[Message]:
        waiting = [message for _, _, returned, message in self.delayed if returned]
        dead = [m for m in self.returns + self.levels + waiting if 0 < m.expires_ms <= now_ms]
        return sorted(dead, key=lambda message: message.expires_ms)

    def remove(self, message: Message) -> None:
        self.returns = [other for other in self.returns if other != message]
        self.levels = [other for other in self.levels if other != message]
        self.delayed = [row for row in self.delayed if row[3] != message]

    def release(self, count: int, now_ms: int) -> None:
        self.delayed.sort()
        due, self.delayed = self.delayed[:count], self.delayed[count:]
        for due_ms, _, returned, message in due:
            if returned:
                self.returns.append(message)
            elif message.expires_ms:
                self.add(message._replace(expires_ms=message.expires_ms + now_ms - due_ms))
            else:
                self.add(message)

    def clear(self) -> None:
        self.returns, self.levels, self.delayed = [], [], []

    def due_ms(self) -> int | None:
        waiting = [message for _, _, returned, message in self.delayed if returned]
        times = [m.expires_ms for m in self.returns + self.levels + waiting if m.expires_ms]
        return min(times + [due_ms for due_ms, *_ in self.delayed], default=None)

    def browse(self) -> list[Message]:
        def order(message: Message) -> tuple[int, int]:
            return (-message.level if self.strict else message.level <= NORMAL), message.position

        return self.returns + sorted(self.levels, key=order)

    def _take_one(self) -> Message:
        if self.returns:
            return self.returns.pop(0)
        high = [message for message in self.levels if message.level > NORMAL]
        normal = [message for message in self.levels if message.level <= NORMAL]
        if self.strict:
            message = min(self.levels, key=lambda m: (-m.level, m.position))
        elif high and normal and self.turn % 3 == 2:
            message = min(self.levels, key=lambda m: m.position)
        else:
            message = min(high or normal, key=lambda m: m.position)
        self.turn += 1
        self.levels.remove(message)
        return message


def messages_of(ranges: Sequence[Range]) -> list[Message]:
    return [
        Message(
            r.index, r.slot + at, r.deliveries, r.position + at, r.expires_ms, r.level, r.history, r.failures
        )
        for r in ranges
        for at in range(r.count)
    ]


def reloaded(backlog: Backlog) -> Backlog:
    other = Backlog()
    other.add(1, 0, 1, 1, 7, 99)
    other.load(backlog.freeze().dump())
    return other


class Tried:
    """A backlog, a backlog that is reloaded from a dump at each step, and the oracle."""

    def __init__(self, *, exact_sizes: bool) -> None:
        self.backlog = Backlog()
        self.backlog.exact_sizes = exact_sizes
        self.twin = reloaded(self.backlog)
        self.oracle = Oracle()
        self.index = 10
        self.now_ms = 1000
        self.held: list[Range] = []
        self.slots: dict[int, int] = {}
        self.sizes: dict[tuple[int, int], int] = {}
        self.octets = 0

    def add(self, gap: tuple[int, int], count: int, each: int, level: int, ttl_ms: int, history: int) -> None:
        step, skip = gap
        self.index += max(step, 0)
        index = self.index + min(step, 0)
        slot = self.slots.get(index, 0) + skip
        self.slots[index] = slot + count
        expires_ms = self.now_ms + ttl_ms if ttl_ms else 0
        for at in range(slot, slot + count):
            self.sizes[index, at] = each
            self.oracle.add(Message(index, at, 0, 0, expires_ms, level, history, 0))
        for backlog in (self.backlog, self.twin):
            backlog.add(index, slot, count, count * each, level, expires_ms, history)
        self.octets += count * each

    def take(self, count: int) -> None:
        count = min(count, self.backlog.count)
        taken = self.backlog.take(count)
        assert self.twin.take(count) == taken
        assert messages_of(taken) == self.oracle.take(count)
        self.held += taken

    def settle(self, which: int) -> None:
        if messages := self._let_go(which):
            self.octets -= messages.size

    def give_back(self, which: int, failed: bool) -> None:
        if messages := self._let_go(which):
            messages = messages.returned(failed=failed)
            for backlog in (self.backlog, self.twin):
                backlog.give_back(messages)
            self.oracle.returns += messages_of([messages])

    def put_back(self, which: int, failed: bool) -> None:
        if messages := self._let_go(which):
            messages = messages.returned(failed=failed)
            for backlog in (self.backlog, self.twin):
                backlog.put_back(messages)
            self.oracle.levels += messages_of([messages])

    def delay(self, which: int, wait_ms: int, returned: bool, deliveries: int) -> None:
        if messages := self._let_go(which):
            messages = messages._replace(deliveries=deliveries, failures=0)
            for backlog in (self.backlog, self.twin):
                backlog.delay(messages, self.now_ms + wait_ms, returned=returned)
            for message in messages_of([messages]):
                self.oracle.delay(message, self.now_ms + wait_ms, returned=returned)

    def expire(self, pause_ms: int, limit: int) -> None:
        self.now_ms += pause_ms
        expired = self.backlog.expire(self.now_ms, limit)
        assert self.twin.expire(self.now_ms, limit) == expired
        messages = messages_of(expired)
        dead = self.oracle.dead(self.now_ms)
        assert len(messages) >= min(limit, len(dead))
        times = [message.expires_ms for message in messages]
        assert times == [message.expires_ms for message in dead[: len(messages)]]
        for message in messages:
            assert message in dead
            self.oracle.remove(message)
        self.octets -= sum(messages.size for messages in expired)

    def release(self, limit: int) -> None:
        due = sum(due_ms <= self.now_ms for due_ms, *_ in self.oracle.delayed)
        released = self.backlog.release(self.now_ms, limit)
        assert self.twin.release(self.now_ms, limit) == released
        assert min(limit, due) <= released <= due
        self.oracle.release(released, self.now_ms)

    def browse(self, first: int, count: int) -> None:
        assert messages_of(self.backlog.browse(first, count)) == self.oracle.browse()[first : first + count]

    def cut(self, level: int, skip: int, kept: int, taken: int, most: int) -> None:
        """Remove some messages of each few at a place, as a move does."""
        place = RETURNED if level < 0 else place_of(level)
        mine = self.oracle.returns if level < 0 else [m for m in self.oracle.levels if m.level == level]
        mine = mine if level < 0 else sorted(mine, key=lambda message: message.position)
        end = max(self.backlog.ends())
        found = self.backlog.peek(place, 0, end, 1000)
        assert messages_of([messages for _, messages in found]) == mine
        assert self.twin.peek(place, 0, end, 1000) == found
        singles = [
            (key + at, messages.part(at, 1)) for key, messages in found for at in range(messages.count)
        ]
        for first, until in ((skip, skip + 3), (0, 1), (skip, skip)):
            keys = [key for key, _ in singles]
            low, high = (
                ([*keys, end, end, end, end])[min(first, len(keys))],
                ([*keys, end])[min(until, len(keys))],
            )
            part = self.backlog.peek(place, low, high, most)
            assert messages_of([messages for _, messages in part]) == mine[first:until][:most]
        chosen = [single for at, single in enumerate(singles[skip:]) if at % (kept + taken) >= kept][:most]
        if not chosen:
            return
        for backlog in (self.backlog, self.twin):
            backlog.cut(place, chosen)
        for _, single in chosen:
            self.oracle.remove(*messages_of([single]))
            self.octets -= single.size

    def strict(self, strict: bool) -> None:
        self.backlog.strict = self.twin.strict = self.oracle.strict = strict

    def clear(self) -> None:
        taken = self.backlog.size + self.backlog.delayed_size
        count = len(self.oracle.returns + self.oracle.levels) + len(self.oracle.delayed)
        assert self.backlog.clear() == self.twin.clear() == count
        self.octets -= taken
        self.oracle.clear()

    def check(self) -> tuple[FrozenBacklog, list[tuple[int, int]]]:
        backlog, oracle = self.backlog, self.oracle
        ready = oracle.returns + oracle.levels
        everything = ready + [message for *_, message in oracle.delayed]
        assert (backlog.count, backlog.delayed) == (len(ready), len(oracle.delayed))
        assert backlog.due_ms() == oracle.due_ms()
        assert backlog.next_position == oracle.next_position
        browsed = backlog.browse(0, backlog.count)
        assert backlog.size == sum(messages.size for messages in browsed)
        held = sum(messages.size for messages in self.held)
        assert backlog.size + backlog.delayed_size + held == self.octets
        if backlog.exact_sizes:
            for messages in browsed + self.held:
                assert messages.size == messages.count * self.sizes[messages.index, messages.slot]
        frozen = backlog.freeze()
        dumped = frozen.dump()
        assert self.twin.freeze().dump() == dumped
        self.twin = reloaded(self.twin)
        return frozen, [(message.index, message.slot) for message in everything]

    def _let_go(self, which: int) -> Range | None:
        """Release a taken range, or half of it."""
        if not self.held:
            return None
        messages = self.held.pop(which // 2 % len(self.held))
        if which % 2 and messages.count > 1:
            half = messages.count // 2
            self.held.append(messages.part(half, messages.count - half))
            return messages.part(0, half)
        return messages


def check_frozen(frozen: FrozenBacklog, messages: list[tuple[int, int]]) -> None:
    copy = Backlog()
    copy.load(frozen.dump())
    assert copy.freeze().dump() == frozen.dump()
    bounds = [0, 9, 11, 11, 12, 15, 10**6]
    counts = [0] * (len(bounds) - 1)
    frozen.add_counts(bounds, counts)
    assert counts == [sum(first <= index < end for index, _ in messages) for first, end in pairwise(bounds)]
    for first, end in ((0, 10**6), (11, 13), (12, 12)):
        found = [(index, slot + at) for index, slot, n in frozen.ranges(first, end) for at in range(n)]
        assert sorted(found) == sorted(message for message in messages if first <= message[0] < end)


def step(name: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(st.just(name), *arguments)


held = st.integers(0, 9)
limits = st.sampled_from([1, 3, 1000])
additions = step(
    "add",
    st.tuples(st.sampled_from([0, 0, 1, 2, -1, -3]), st.sampled_from([0, 0, 1])),
    st.sampled_from([1, 1, 2, 5]),
    st.integers(10, 12),
    st.sampled_from([NORMAL, NORMAL, 0, 5, 9, 31]),
    st.sampled_from([0, 0, 10, 20, 20, 35]),
    st.sampled_from([0, 0, 3]),
)
plain_additions = step(
    "add",
    st.tuples(st.sampled_from([0, 1, 2]), st.sampled_from([0, 0, 1])),
    st.sampled_from([1, 1, 2, 5]),
    st.integers(10, 12),
    st.just(NORMAL),
    st.sampled_from([0, 20]),
    st.just(0),
)
takes = step("take", st.sampled_from([1, 2, 4, 9, 1000]))
steps = st.lists(
    st.one_of(
        additions,
        additions,
        plain_additions,
        takes,
        takes,
        step("settle", held),
        step("give_back", held, st.booleans()),
        step("put_back", held, st.booleans()),
        step("delay", held, st.sampled_from([1, 10, 30]), st.booleans(), st.sampled_from([0, 0, 1])),
        step("expire", st.sampled_from([0, 5, 10, 30]), limits),
        step("release", limits),
        step("browse", st.integers(0, 12), st.integers(1, 9)),
        step("cut", st.sampled_from([-1, NORMAL, NORMAL, 5, 31]), held, held, st.integers(1, 3), limits),
        step("strict", st.booleans()),
        step("clear"),
    ),
    min_size=30,  # or hypothesis would try little more than lists of five
    max_size=80,
)


@pytest.fixture(scope="module", autouse=True)
def small_parts() -> Iterator[None]:
    with (
        mock.patch.object(runs_module, "_CHUNK_WORDS", 6 * 3),
        mock.patch.object(shelf_module, "BLOCK_ROWS", 4),
        mock.patch.object(shelf_module, "BLOCK_MOMENTS", 4),
        mock.patch.object(shelf_module, "PACK_ROWS", 3),
    ):
        yield


@pytest.mark.slow
@settings(max_examples=settings.default.max_examples * 3 // 2, deadline=None)
@given(steps, st.booleans())
def test_a_backlog_behaves_like_lists_of_messages(steps: list[tuple[Any, ...]], exact_sizes: bool) -> None:
    tried = Tried(exact_sizes=exact_sizes)
    frozen: list[tuple[FrozenBacklog, list[tuple[int, int]]]] = []
    for name, *arguments in steps:
        getattr(tried, name)(*arguments)
        frozen.append(tried.check())
    tried.expire(10**6, 10**6)
    tried.release(10**6)
    tried.take(10**6)
    frozen.append(tried.check())
    for then, messages in frozen:
        check_frozen(then, messages)


levels = st.sampled_from([NORMAL, NORMAL, 0, 5, 5, 31])


@given(
    st.lists(
        st.one_of(levels, st.tuples(st.integers(1, 7)), st.booleans(), st.none()), min_size=20, max_size=100
    )
)
def test_backlog_agrees_with_a_model_of_priority_turns(steps: list[int | tuple[int] | bool | None]) -> None:
    """A level: a message arrives. A tuple: so many are taken. A boolean: strict or not. None: a message returns."""
    tried = Tried(exact_sizes=False)
    for step in steps:
        match step:
            case bool():
                tried.strict(step)
            case int():
                tried.add((1, 0), 1, 10, step, 0, 0)
            case (count,):
                tried.take(count)
            case None:
                tried.give_back(0, failed=False)
        tried.check()


def added(*messages: tuple[int, int]) -> Backlog:
    """Return a backlog with a message for each level and expiry, at the indexes 0, 1, ..."""
    backlog = Backlog()
    for index, (level, expires_ms) in enumerate(messages):
        backlog.add(index, 0, 1, 10, level, expires_ms)
    return backlog


def indexes(ranges: Sequence[Range]) -> list[int]:
    return [messages.index for messages in ranges]


def test_high_messages_take_two_of_three_turns() -> None:
    backlog = added((4, 0), (4, 0), (9, 0), (5, 0), (9, 0), (0, 0), (5, 0))
    assert indexes(backlog.take(7)) == [2, 3, 0, 4, 6, 1, 5]


def test_older_high_messages_take_the_third_turn_too() -> None:
    backlog = added((9, 0), (9, 0), (9, 0), (4, 0), (4, 0))
    assert indexes(backlog.take(5)) == [0, 1, 2, 3, 4]


def test_returned_messages_use_no_priority_turn() -> None:
    backlog = added((4, 0), (9, 0), (9, 0), (9, 0))
    first = backlog.take(1)[0]
    backlog.give_back(first.returned())
    assert indexes(backlog.take(4)) == [1, 2, 0, 3]


def test_strict_levels_are_served_from_the_highest_down() -> None:
    backlog = added((4, 0), (9, 0), (0, 0), (31, 0), (9, 0))
    backlog.strict = True
    assert indexes(backlog.take(5)) == [3, 1, 4, 0, 2]


def test_message_expires_behind_a_message_with_a_longer_ttl() -> None:
    backlog = added((4, 0), (4, 50), (4, 20), (9, 30), (4, 60))
    assert backlog.due_ms() == 20
    assert indexes(backlog.expire(19, 10)) == []
    assert indexes(backlog.expire(30, 10)) == [2, 3]
    assert indexes(backlog.expire(100, 1)) == [1]
    assert (backlog.count, backlog.size) == (2, 20)
    assert indexes(backlog.expire(100, 10)) == [4]
    assert indexes(backlog.take(1)) == [0]
    assert backlog.due_ms() is None


def test_messages_that_expire_in_order_need_no_shelf() -> None:
    backlog = added(*((4, 1000 + index // 2) for index in range(100)), (4, 0), (4, 0))
    ((_, _, _, shelf),) = backlog.freeze().lanes
    assert not shelf.blocks


def test_delayed_messages_become_ready_in_the_order_of_time() -> None:
    backlog = added((4, 0))
    for index, due_ms, returned in ((7, 30, False), (8, 20, False), (9, 20, True), (10, 10, False)):
        backlog.delay(Range(index, 0, 1, size=5), due_ms, returned=returned)
    assert (backlog.count, backlog.delayed, backlog.delayed_size, backlog.due_ms()) == (1, 4, 20, 10)
    assert backlog.release(9, 10) == 0
    assert backlog.release(20, 1) == 1
    assert backlog.release(30, 10) == 3
    taken = backlog.take(5)
    assert indexes(taken) == [9, 0, 10, 8, 7]
    assert [messages.position for messages in taken] == [0, 0, 1, 2, 3]


def test_message_put_back_regains_its_place() -> None:
    backlog = added(*[(4, 0)] * 6)
    first, second, third = (backlog.take(1)[0] for _ in range(3))
    backlog.put_back(second)
    backlog.give_back(third)
    backlog.put_back(first)
    assert indexes(backlog.take(6)) == [2, 0, 1, 3, 4, 5]


def test_emptied_levels_leave_no_trace_in_a_dump() -> None:
    backlog, plain = added((9, 0), (4, 0), (31, 5)), added((4, 0), (4, 0), (4, 5))
    backlog.expire(5, 10)
    plain.take(1)
    plain.expire(5, 10)
    backlog.take(2)
    plain.take(1)
    assert backlog.freeze().dump() == plain.freeze().dump()


def test_oldest_index_is_the_least_of_all_ready_messages() -> None:
    backlog = Backlog()
    assert backlog.oldest_index() is None
    for index in range(5, 15):
        backlog.add(index, 0, 1, 10)
    assert backlog.oldest_index() == 5
    first, second = (backlog.take(1)[0] for _ in range(2))
    backlog.take(5)  # and with them, in this test, all of a chunk
    assert backlog.oldest_index() == 12
    backlog.give_back(second)
    assert backlog.oldest_index() == 6
    backlog.put_back(first)
    assert backlog.oldest_index() == 5
    backlog.take(3)
    assert backlog.oldest_index() == 13
    backlog.add(15, 0, 1, 10, HIGH)
    assert backlog.oldest_index() == 13
    backlog.take(3)
    assert (backlog.count, backlog.oldest_index()) == (0, None)
    backlog.delay(first, 99, returned=False)
    assert backlog.oldest_index() is None  # it is not ready


def test_consecutive_messages_are_joined_into_a_range() -> None:
    backlog = Backlog()
    for slot in range(10):
        backlog.add(1, slot, 1, 10)
    assert backlog.take(10) == [Range(1, 0, 10, 0, 100, 0)]


def test_sizes_are_exact_after_exact_sizes_is_set() -> None:
    backlog = Backlog()
    backlog.add(1, 0, 1, 10)
    backlog.add(1, 1, 1, 20)
    backlog.exact_sizes = True
    for level in (NORMAL, 9):
        for slot in (2, 3):
            backlog.add(1, slot, 1, 10 * slot, level)
    assert [messages.size for messages in backlog.browse(0, 6)] == [20, 30, 30, 20, 30]
