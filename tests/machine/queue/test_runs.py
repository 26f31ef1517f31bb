"""Backlogs, with chunks so small that a few messages make several."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qq.machine.queue import runs as runs_module
from qq.machine.queue.runs import CHUNK_RUNS, FrozenRuns, Runs
from qq.ranges import MESSAGE_BITS, MESSAGES_MAX, NORMAL, Range

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SMALL_CHUNK_RUNS = 3

Model = list[tuple[int, int, int, int, int]]
"""Index, slot, position, expiry and history of each message."""

appends = st.tuples(
    st.sampled_from([0, 0, 1, 2, 3, -1, -4]),
    st.sampled_from([0, 1, 7, 2**24 - 1, 2**24, 255 << 24 | 9, -1, -1, -1]),
    st.one_of(st.integers(1, 4), st.just(300)),
    st.sampled_from([0, 0, 0, 1, 1000]),
    st.sampled_from([0, 0, 5]),
    st.sampled_from([0, 0, 1]),
)
"""Step of the index, slot (-1 goes on where the last run ended), count, gap of positions, time to live, history."""
takes = st.one_of(st.integers(1, 9), st.just(700))
cuts = st.lists(st.tuples(st.integers(0, 30), st.sampled_from([1, 1, 2, 3, 40])), min_size=1, max_size=8)
"""Cut pieces: the distance from the end of the last piece, and the number of positions."""
steps = st.lists(st.one_of(appends, appends, takes, cuts), min_size=20, max_size=60)


@pytest.fixture(scope="module", autouse=True)
def small_chunks() -> Iterator[None]:
    with mock.patch.object(runs_module, "_CHUNK_WORDS", 6 * SMALL_CHUNK_RUNS):
        yield


def reloaded(runs: Runs) -> Runs:
    other = Runs(runs.level)
    other.load(runs.freeze().dump())
    return other


def messages_of(ranges: Sequence[Range]) -> Model:
    return [
        (r.index, r.slot + at, r.position + at, r.expires_ms, r.history)
        for r in ranges
        for at in range(r.count)
    ]


def test_frozen_runs_share_the_chunks_of_the_backlog() -> None:
    """For a backlog of any size: a checkpoint begins on the event loop."""
    runs = Runs()
    for index in range(1, 20 * SMALL_CHUNK_RUNS):
        runs.append(index, 0, 1, index, 10)
    runs.take(SMALL_CHUNK_RUNS + 1)
    frozen = runs.freeze()
    assert len(frozen.chunks) > 10
    assert all(mine is its for mine, its in zip(frozen.chunks, runs._chunks, strict=True))
    assert frozen.head is runs._head
    assert frozen.tail is runs._tail


def check_frozen(frozen: FrozenRuns, model: Model) -> None:
    """Assert its contents, counts and searches."""
    copy = Runs()
    copy.load(frozen.dump())
    assert messages_of(copy.take(len(model))) == model
    assert messages_of(list(frozen.browse(NORMAL, 0))) == model
    assert messages_of(list(frozen.browse(NORMAL, 5))) == model[5:]
    bounds = sorted([0, 2, 3, 3, 10, 60, 61])
    counts = [0] * (len(bounds) - 1)
    frozen.add_counts(bounds, counts)
    assert counts == [sum(first <= index < end for index, *_ in model) for first, end in pairwise(bounds)]
    for first, end in ((0, 1000), (3, 10), (50, 60), (60, 60)):
        found = [(index, slot + at) for index, slot, n in frozen.ranges(first, end) for at in range(n)]
        assert found == [message[:2] for message in model if first <= message[0] < end]


@settings(deadline=None)
@given(steps)
def test_a_backlog_behaves_like_a_list_of_messages(
    steps: list[tuple[int, ...] | list[tuple[int, int]] | int],
) -> None:
    runs, twin, model = Runs(), Runs(), Model()
    frozen: list[tuple[FrozenRuns, Model]] = []
    index, slot, position, octets, held = 50, 0, 0, 0, 0
    for step in steps:
        if isinstance(step, int):
            part = min(step, len(model))
            taken = runs.take(step)
            assert messages_of(taken) == model[:part]
            assert twin.take(step) == taken
            held += sum(messages.size for messages in taken)
            del model[:part]
        elif isinstance(step, list):
            pieces, at = [], model[0][2] if model else 0
            for gap, number in step:
                pieces.append((at + gap, number))
                at += gap + number
            removed = [message for message in model if any(0 <= message[2] - f < n for f, n in pieces)]
            found = [messages for f, n in pieces for messages in runs.peek(f, f + n, 1000)]
            assert messages_of(found) == removed
            assert (
                messages_of(runs.peek(pieces[0][0], 2**62, 5))
                == [message for message in model if message[2] >= pieces[0][0]][:5]
            )
            held += sum(messages.size for messages in found)
            model = [message for message in model if message not in removed]
            for one in (runs, twin):
                one.cut(pieces)
        else:
            gap, first, number, positions, ttl_ms, history = step
            index = max(index + gap, 0)
            slot = slot if first == -1 else first
            position += positions
            run = (
                index,
                slot,
                number,
                position,
                7 * number + gap,
                position + ttl_ms if ttl_ms else 0,
                history,
            )
            for one in (runs, twin):
                one.append(*run)
            octets += 7 * number + gap
            model += [(index, slot + at, position + at, *run[5:]) for at in range(number)]
            slot += number
            position += number
        frozen.append((runs.freeze(), model.copy()))
        assert bool(runs) == bool(model)
        assert not model or runs.head_position == model[0][2]
        assert runs.expires_ms == (model[0][3] if model else 0)
        # A replica that was loaded at any time, and at any other, has the same dump.
        assert twin.freeze().dump() == runs.freeze().dump()
        twin = reloaded(twin)
    assert held + sum(messages.size for messages in runs.take(len(model))) == octets
    for then, messages in frozen:
        check_frozen(then, messages)


def test_loaded_replica_continues_with_the_same_chunks() -> None:
    chance = Random(1)
    runs, replicas, ready = Runs(), list[Runs](), 0
    for index in range(300):
        if chance.random() < 0.6:
            number = chance.randrange(1, 5)
            ready += number
            for replica in (runs, *replicas):
                replica.append(index, 0, number, 10 * index, number)
        else:
            number = min(chance.randrange(1, 20), ready)
            ready -= number
            assert len({tuple(replica.take(number)) for replica in (runs, *replicas)}) == 1
        if index % 20 == 0:
            replicas.append(reloaded(runs))
        assert all(replica.freeze().dump() == runs.freeze().dump() for replica in replicas)


def test_runs_store_the_greatest_numbers() -> None:
    runs = Runs(31)
    slot, time_ms = 255 << MESSAGE_BITS, 2**63 - 1
    for number in range(2 * SMALL_CHUNK_RUNS + 1):
        runs.append(time_ms * (number % 2), slot, MESSAGES_MAX, 2**60 * number, 2**50, time_ms, 2**60)
    runs.take(1)
    runs = reloaded(runs)
    taken = runs.take(2 * MESSAGES_MAX - 1)
    share = 2**50 // MESSAGES_MAX
    assert taken == [
        Range(0, slot + 1, MESSAGES_MAX - 1, 0, 2**50 - share, 1, time_ms, 31, 2**60),
        Range(time_ms, slot, MESSAGES_MAX, 0, 2**50, 2**60, time_ms, 31, 2**60),
    ]
    counts = [0]
    runs.freeze().add_counts([0, 2**63], counts)
    assert counts == [(2 * SMALL_CHUNK_RUNS - 1) * MESSAGES_MAX]


def test_taken_messages_are_not_dumped() -> None:
    runs = Runs()
    for index in range(SMALL_CHUNK_RUNS):
        runs.append(index, 0, 2, 2 * index, 9)
    runs.take(2 * SMALL_CHUNK_RUNS)
    assert runs.freeze().dump() == Runs().freeze().dump()


def test_cleared_backlog_equals_a_new_backlog() -> None:
    runs = Runs()
    for index in range(10):
        runs.append(index, 0, 2, 2 * index, 9)
    runs.take(3)
    runs.clear()
    assert runs.freeze().dump() == Runs().freeze().dump()
    runs.append(11, 0, 1, 30, 8)
    assert runs.take(1) == [Range(11, 0, 1, 0, 8, 30)]


def test_indexes_that_fall_are_found_and_counted() -> None:
    runs, indexes = Runs(), (5, 9, 2, 7, 3, 8, 6, 1)
    for position, index in enumerate(indexes):
        runs.append(index, 0, 1, position, 10)
    frozen, counts = runs.freeze(), [0] * 10
    frozen.add_counts(range(11), counts)
    assert counts == [index in indexes for index in range(10)]
    for index in indexes:
        assert list(frozen.ranges(index, index + 1)) == [(index, 0, 1)]


@pytest.mark.parametrize("gaps", [(1,), (1, 2, 3, 2)])
def test_a_run_that_waits_costs_about_a_byte(gaps: Sequence[int]) -> None:
    runs = Runs()
    chance = Random(1)
    with mock.patch.object(runs_module, "_CHUNK_WORDS", 6 * CHUNK_RUNS):
        for index in range(20 * CHUNK_RUNS):
            slot = chance.choice(gaps) << MESSAGE_BITS
            runs.append(index * 3 + chance.choice(gaps), slot, 1, index, 1000, 10**12 + index // 5)
        head, chunks, tail = runs.freeze().dump()
    assert (head, tail, len(chunks)) == (b"", b"", 20)
    assert sum(len(chunk.data) for chunk in chunks) < 20 * CHUNK_RUNS * 1.2


def test_consecutive_messages_of_a_batch_form_a_run() -> None:
    runs = Runs()
    first = 1 << MESSAGE_BITS
    for message in range(10):
        runs.append(5, first | message, 1, message, 8 + message)
    runs.append(5, first | 11, 1, 10, 9)
    runs.append(6, first | 12, 1, 11, 9)
    assert runs.take(12) == [
        Range(5, first, 10, 0, sum(range(8, 18)), 0),
        Range(5, first | 11, 1, 0, 9, 10),
        Range(6, first | 12, 1, 0, 9, 11),
    ]


@pytest.mark.parametrize(
    "change", [{"position": 3}, {"expires_ms": 6}, {"history": 2}, {"index": 4}, {"slot": 9}, {"size": 31}]
)
def test_message_that_differs_from_the_last_run_starts_a_new_run(change: dict[str, int]) -> None:
    for exact_sizes in (False, True):
        runs = Runs(exact_sizes=exact_sizes)
        runs.append(5, 6, 2, 0, 20, 5, 1)
        runs.append(
            **{"index": 5, "slot": 8, "count": 3, "position": 2, "size": 30, "expires_ms": 5, "history": 1}
            | change
        )
        assert len(runs.take(5)) == (1 if "size" in change and not exact_sizes else 2)


def test_split_sizes_add_up_on_a_loaded_replica() -> None:
    runs = Runs()
    runs.append(1, 0, 7, 0, 17)
    twin, sizes = runs, []
    for _ in range(7):
        twin = reloaded(twin)
        (message,) = runs.take(1)
        assert twin.take(1) == [message]
        sizes.append(message.size)
    assert sum(sizes) == 17
    assert set(sizes) == {2, 3}
