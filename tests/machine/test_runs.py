"""Backlogs, with chunks so small that a few messages make several."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qq.machine import runs as runs_module
from qq.machine.runs import CHUNK_RUNS, FrozenRuns, Runs
from qq.ranges import MESSAGE_BITS, MESSAGES_MAX, Range

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SMALL_CHUNK_RUNS = 3

Model = list[tuple[int, int]]
"""Index and slot of each message."""

appends = st.tuples(
    st.integers(0, 3),
    st.sampled_from([0, 1, 7, 2**24 - 1, 2**24, 255 << 24 | 9]),
    st.one_of(st.integers(1, 4), st.just(300)),
)
takes = st.one_of(st.integers(1, 9), st.just(700))
steps = st.lists(st.one_of(appends, appends, takes), max_size=60)


@pytest.fixture(scope="module", autouse=True)
def small_chunks() -> Iterator[None]:
    with mock.patch.object(runs_module, "_CHUNK_WORDS", 2 * SMALL_CHUNK_RUNS):
        yield


def reloaded(runs: Runs) -> Runs:
    other = Runs()
    other.load(runs.freeze().dump())
    return other


def messages_of(ranges: Sequence[Range] | Sequence[tuple[int, int, int]]) -> Model:
    return [(index, slot + offset) for index, slot, count, *_ in ranges for offset in range(count)]


def check_frozen(frozen: FrozenRuns, model: Model) -> None:
    """What it holds, what it counts, and what it finds."""
    copy = Runs()
    copy.load(frozen.dump())
    assert messages_of(copy.take(len(model))) == model
    last = model[-1][0] if model else 0
    bounds = sorted([0, 2, 3, 3, 10, last, last + 1])
    counts = [0] * (len(bounds) - 1)
    frozen.add_counts(bounds, counts)
    assert counts == [sum(first <= index < end for index, _ in model) for first, end in pairwise(bounds)]
    for first, end in ((0, last + 1), (3, 10), (2, 3), (last, last)):
        found = messages_of(list(frozen.ranges(first, end)))
        assert found == [message for message in model if first <= message[0] < end]


@given(steps)
def test_a_backlog_behaves_like_a_list_of_messages(steps: list[tuple[int, int, int] | int]) -> None:
    runs, twin, model = Runs(), Runs(), Model()
    frozen: list[tuple[FrozenRuns, Model]] = []
    index = 1
    for step in steps:
        if isinstance(step, int):
            part = min(step, len(model))
            taken = runs.take(part)
            assert messages_of(taken) == model[:part]
            assert twin.take(part) == taken
            del model[:part]
        else:
            gap, slot, number = step
            index += gap
            runs.append(index, slot, number)
            twin.append(index, slot, number)
            model += [(index, slot + offset) for offset in range(number)]
        frozen.append((runs.freeze(), model.copy()))
        # A replica that was loaded at any time, and at any other, has the same dump.
        assert twin.freeze().dump() == runs.freeze().dump()
        twin = reloaded(twin)
    for then, messages in frozen:
        check_frozen(then, messages)


def test_a_replica_that_was_loaded_once_goes_on_with_the_same_chunks() -> None:
    chance = Random(1)
    runs, replicas, ready = Runs(), list[Runs](), 0
    for index in range(300):
        if chance.random() < 0.6:
            number = chance.randrange(1, 5)
            ready += number
            for replica in (runs, *replicas):
                replica.append(index, 0, number)
        else:
            number = min(chance.randrange(1, 20), ready)
            ready -= number
            assert len({tuple(replica.take(number)) for replica in (runs, *replicas)}) == 1
        if index % 20 == 0:
            replicas.append(reloaded(runs))
        assert all(replica.freeze().dump() == runs.freeze().dump() for replica in replicas)


def test_the_greatest_numbers_come_back() -> None:
    runs = Runs()
    greatest = (2**63, 255 << MESSAGE_BITS, MESSAGES_MAX)
    for _ in range(2 * SMALL_CHUNK_RUNS + 1):
        runs.append(*greatest)
    runs.take(1)
    runs = reloaded(runs)
    assert runs.take(MESSAGES_MAX) == [
        Range(2**63, (255 << MESSAGE_BITS) + 1, MESSAGES_MAX - 1, 0),
        Range(2**63, 255 << MESSAGE_BITS, 1, 0),
    ]
    counts = [0]
    runs.freeze().add_counts([0, 2**63 + 1], counts)
    assert counts == [2 * SMALL_CHUNK_RUNS * MESSAGES_MAX - 1]


def test_what_was_taken_is_not_dumped() -> None:
    runs = Runs()
    for index in range(SMALL_CHUNK_RUNS):
        runs.append(index, 0, 2)
    runs.take(2 * SMALL_CHUNK_RUNS)
    assert runs.freeze().dump() == Runs().freeze().dump()


def test_a_cleared_backlog_is_like_a_new_one() -> None:
    runs = Runs()
    for index in range(10):
        runs.append(index, 0, 2)
    runs.take(3)
    runs.clear()
    assert runs.freeze().dump() == Runs().freeze().dump()
    runs.append(11, 0, 1)
    assert runs.take(1) == [Range(11, 0, 1, 0)]


@pytest.mark.parametrize("gaps", [(1,), (1, 2, 3, 2)])
def test_a_run_that_waits_costs_about_a_byte(gaps: Sequence[int]) -> None:
    runs = Runs()
    chance = Random(1)
    with mock.patch.object(runs_module, "_CHUNK_WORDS", 2 * CHUNK_RUNS):
        for index in range(20 * CHUNK_RUNS):
            runs.append(index * 3 + chance.choice(gaps), chance.choice(gaps) << MESSAGE_BITS, 1)
        head, chunks, tail = runs.freeze().dump()
    assert (head, tail, len(chunks)) == (b"", b"", 20)
    assert sum(len(chunk.data) for chunk in chunks) < 20 * CHUNK_RUNS * 1.2


def test_what_follows_at_once_in_the_same_batch_is_one_run() -> None:
    runs = Runs()
    for message in range(10):
        runs.append(5, 1 << MESSAGE_BITS | message, 1)
    runs.append(5, 1 << MESSAGE_BITS | 11, 1)
    runs.append(6, 1 << MESSAGE_BITS | 12, 1)
    assert runs.take(12) == [
        Range(5, 1 << MESSAGE_BITS, 10, 0),
        Range(5, 1 << MESSAGE_BITS | 11, 1, 0),
        Range(6, 1 << MESSAGE_BITS | 12, 1, 0),
    ]
