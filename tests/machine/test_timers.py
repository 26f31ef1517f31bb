"""Timers, against a plain list."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from qq.machine.timers import NEVER_MS, Timers

sets = st.tuples(st.sampled_from("abcdef"), st.one_of(st.none(), st.integers(0, 20)))
steps = st.lists(st.one_of(sets, sets, st.integers(0, 20)), max_size=60)


def pop_due(timers: Timers[Any], now_ms: int) -> list[Any]:
    keys: list[Any] = []
    while timers.next_ms <= now_ms:
        keys.append(timers.pop())
    return keys


@given(steps)
def test_keys_come_due_by_their_moments_and_ranks(
    steps: list[tuple[str, int | None] | int],
) -> None:
    timers: Timers[str] = Timers(rank=ord)
    model: list[tuple[str, int]] = []
    for step in steps:
        if isinstance(step, int):
            due = sorted((row for row in model if row[1] <= step), key=lambda row: (row[1], row[0]))
            assert pop_due(timers, step) == [key for key, _ in due]
            model = [row for row in model if row[1] > step]
        else:
            key, due_ms = step
            timers.set(key, due_ms)
            if (key, due_ms) not in model:
                model = [row for row in model if row[0] != key]
                model += [(key, due_ms)] if due_ms is not None else []
        assert timers.next_ms == min((due_ms for _, due_ms in model), default=NEVER_MS)
        assert len(timers) == len(model)
        assert [key in timers for key in "abcdef"] == [key in dict(model) for key in "abcdef"]


def test_keys_need_not_be_comparable() -> None:
    first, second = object(), object()
    timers: Timers[object] = Timers(rank={first: 1, second: 2}.__getitem__)
    timers.set(second, 5)
    timers.set(first, 5)
    timers.set(second, 4)
    timers.set(second, 5)  # its old entries are still in the heap
    assert pop_due(timers, 5) == [first, second]


def test_moments_that_are_put_off_again_and_again_leave_little_behind() -> None:
    timers: Timers[int] = Timers(rank=int)
    for moment in range(10_000):
        timers.set(moment % 10, 1_000_000 - moment if moment % 3 else 1_000_000 + moment)
        assert len(timers._heap) <= 2 * 10 + 64
    timers.set(0, None)
    assert len(pop_due(timers, 2_000_000)) == 9
    assert timers.next_ms == NEVER_MS
