"""Shelves, with blocks so small that a few ranges make several."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qq.machine.queue import shelf as shelf_module
from qq.machine.queue.shelf import FrozenShelf, Shelf
from qq.ranges import MESSAGE_BITS, MESSAGES_MAX, Range

if TYPE_CHECKING:
    from collections.abc import Iterator

Model = dict[int, tuple[Range, int, bool]]
"""By key: the messages, when they are due, whether they were returned."""

times = st.sampled_from([0, 0, 10, 11, 11, 12, 40])
inserts = st.tuples(st.just("insert"), st.integers(0, 60), st.sampled_from([1, 1, 3]), times, times)
steps = st.lists(
    st.one_of(
        inserts,
        inserts,
        st.tuples(st.just("append"), st.sampled_from([1, 1, 3]), times, times),
        st.tuples(st.just("take"), st.integers(1, 4)),
        st.tuples(st.sampled_from(["take_due", "take_expired", "freeze", "reload"])),
    ),
    min_size=30,  # or hypothesis would try little more than lists of five
    max_size=100,
)


@pytest.fixture(scope="module", autouse=True)
def small_blocks() -> Iterator[None]:
    with (
        mock.patch.object(shelf_module, "BLOCK_ROWS", 4),
        mock.patch.object(shelf_module, "BLOCK_MOMENTS", 4),
        mock.patch.object(shelf_module, "PACK_ROWS", 3),
    ):
        yield


def in_order(model: Model) -> list[Range]:
    return [model[key][0] for key in sorted(model)]


def first_of(model: Model, *, due: bool) -> tuple[int, int]:
    """Return the first time and its least key; 0 is no time. Delayed messages that were not returned do not expire."""
    moments = [
        (due_ms if due else messages.expires_ms, key)
        for key, (messages, due_ms, returned) in model.items()
        if due or returned or not due_ms
    ]
    return min((moment for moment in moments if moment[0]), default=(0, 0))


def check(shelf: Shelf, model: Model) -> None:
    assert bool(shelf) == bool(model)
    assert list(shelf.browse()) == in_order(model)
    assert not model or shelf.head_position == min(model)
    assert shelf.due_ms == first_of(model, due=True)[0]
    assert shelf.expires_ms == first_of(model, due=False)[0]


def check_frozen(frozen: FrozenShelf, ranges: list[Range]) -> None:
    """Assert its contents, counts and searches."""
    assert list(frozen.browse()) == ranges
    copy = Shelf()
    copy.load(frozen.dump())
    assert list(copy.browse()) == ranges
    assert copy.freeze().dump() == frozen.dump()
    bounds = [2, 3, 3, 5, 100]
    counts = [0] * (len(bounds) - 1)
    frozen.add_counts(bounds, counts)
    assert counts == [
        sum(r.count for r in ranges if first <= r.index < end) for first, end in pairwise(bounds)
    ]
    assert list(frozen.ranges(2, 4)) == [r[:3] for r in ranges if 2 <= r.index < 4]


@settings(deadline=None)
@given(steps)
def test_a_shelf_behaves_like_a_dictionary(steps: list[tuple]) -> None:
    shelf, model, number = Shelf(), Model(), 0
    frozen: list[tuple[FrozenShelf, list[Range]]] = []
    for name, *arguments in steps:
        if name in {"insert", "append"}:
            *key, count, due_ms, expires_ms = arguments
            # Four keys for each range, without overlap.
            key = 4 * (key[0] if key else max(model, default=0) // 4 + 1)
            if key // 4 in {taken // 4 for taken in model}:
                continue
            number += 1
            messages = Range(
                number % 7,
                number,
                count,
                number % 3,
                100 * count,
                key,
                expires_ms,
                number % 32,
                number % 2,
                number % 5,
            )
            returned = bool(due_ms and number % 2)
            shelf.insert(key, messages, due_ms, returned=returned)
            model[key] = (messages, due_ms, returned)
        elif name == "freeze":
            frozen.append((shelf.freeze(), in_order(model)))
        elif name == "reload":
            dumped = shelf.freeze().dump()
            shelf = Shelf()
            shelf.load(dumped)
        elif name == "take" and model:
            (count,) = arguments
            key = min(model)
            messages, due_ms, returned = model.pop(key)
            part = min(count, messages.count)
            if part < messages.count:
                model[key + part] = (messages.part(part, messages.count - part), due_ms, returned)
            assert shelf.take_run(count) == messages.part(0, part)
        elif name == "take_due" and shelf.due_ms:
            messages, _, returned = model.pop(first_of(model, due=True)[1])
            assert shelf.take_due() == (messages, returned)
        elif name == "take_expired" and shelf.expires_ms:
            assert shelf.take_expired() == model.pop(first_of(model, due=False)[1])[0]
        check(shelf, model)
    for then, ranges in frozen:
        check_frozen(then, ranges)


def test_shelf_stores_the_greatest_numbers() -> None:
    shelf = Shelf()
    slot = 255 << MESSAGE_BITS
    messages = Range(2**63 - 1, slot, MESSAGES_MAX, 2**40, 2**50, 2**62, 2**63 - 1, 31, 2**40, 2**40)
    shelf.insert(2**62, messages, 2**63 - 1, returned=True)
    shelf.insert(0, messages, 1)
    copy = Shelf()
    copy.load(shelf.freeze().dump())
    assert copy.take_run(MESSAGES_MAX) == messages
    assert copy.take_due() == (messages, True)


def test_shelf_filled_in_order_has_full_blocks() -> None:
    shelf = Shelf()
    for key in range(100):
        shelf.insert(key, Range(1, key, 1, 0, 1, key, 1000 + key))
    assert len(shelf.freeze().blocks) == len(shelf._expiring._blocks) == 100 / 4


def test_untouched_block_is_shared_by_frozen_shelves() -> None:
    shelf = Shelf()
    for key in range(12):
        shelf.insert(key, Range(1, key, 1))
    before = shelf.freeze()
    shelf.take_run(1)
    after = shelf.freeze()
    assert [one is other for one, other in zip(before.blocks, after.blocks, strict=True)] == [
        False,
        True,
        True,
    ]
