"""Timers, against a plain list."""

from __future__ import annotations

from typing import Any
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from qq.machine.queue import timers as timers_module
from qq.machine.queue.timers import NEVER_MS, Timers

sets = st.tuples(st.sampled_from("abcdef"), st.one_of(st.none(), st.integers(0, 20)))
steps = st.lists(st.one_of(sets, sets, st.integers(0, 20)), max_size=60)


class Rank(int):
    """It counts how often any is compared."""

    __slots__ = ()
    times = 0

    def __lt__(self, other: int) -> bool:
        Rank.times += 1
        return int(self) < int(other)


def pop_due(timers: Timers[Any], now_ms: int) -> list[Any]:
    keys: list[Any] = []
    while timers.next_ms <= now_ms:
        keys.append(timers.pop())
    return keys


@given(steps)
def test_keys_become_due_in_order_of_time_and_rank(
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
    timers.set(second, 5)
    assert pop_due(timers, 5) == [first, second]


def test_postponed_keys_are_not_visited_again() -> None:
    """Otherwise a key that is due before very many postponed keys pays for all of them."""
    timers: Timers[int] = Timers(rank=Rank)
    for key in range(2_000):
        timers.set(key, 5 if key else 1)
    for key in reversed(range(1, 2_000)):
        timers.set(key, 1_000_000)
    Rank.times = 0
    timers.set(0, None)
    assert timers.next_ms == 1_000_000
    assert Rank.times < 100


@given(steps, st.integers(2, 4))
def test_no_block_is_empty_or_too_large(steps: list[tuple[str, int | None] | int], block_keys: int) -> None:
    timers: Timers[str] = Timers(rank=ord)
    with mock.patch.object(timers_module, "BLOCK_KEYS", block_keys):
        for step in steps:
            if isinstance(step, int):
                pop_due(timers, step)
            else:
                timers.set(*step)
            timers.keep(lambda key: key != "f")
            assert all(0 < len(block) <= block_keys for block in timers._blocks)
            found = [entry for block in timers._blocks for entry in block]
            assert found == sorted(timers._entries.values())
            assert "f" not in timers
