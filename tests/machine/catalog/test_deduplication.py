"""Deduplication, against a plain memory of every number that was ever sent."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qq.machine.catalog import deduplication as publishers_module
from qq.machine.catalog.deduplication import REFUSED_MAX, Publishers, names_of

if TYPE_CHECKING:
    from qq.machine.catalog.deduplication import Run

runs = st.tuples(
    st.sampled_from("abcde"),
    st.integers(1, 12),
    st.integers(1, 4),
    st.sampled_from([0, 1, 5]),
    st.integers(0, 4),
)
"""Publisher, first number, count, gap after the last run, and accepted messages of each run of new messages."""
bounds = st.tuples(st.integers(0, 4), st.integers(0, 12))
steps = st.lists(st.one_of(runs, runs, runs, bounds), min_size=20, max_size=60)


class Model:
    """For each publisher: admitted and refused numbers, and its last use; the least recently used first."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[set[int], set[int], int]] = {}

    def new(self, publisher: str, numbers: range) -> list[int]:
        admitted, refused, _ = self.rows.get(publisher, (set(), set(), 0))
        last = max(admitted, default=0)
        return [number for number in numbers if number > last or number in refused]

    def record(self, publisher: str, accepted: list[int], refused: list[int], time_ms: int) -> None:
        known, before, _ = self.rows.pop(publisher, (set[int](), set[int](), 0))
        again = (before - set(accepted)) | set(refused)
        self.rows[publisher] = (known | set(accepted), again, time_ms)


def numbers_of(runs: list[Run]) -> list[int]:
    return [number for first, last in runs for number in range(first, last + 1)]


@given(steps)
def test_admitted_number_is_a_duplicate_and_a_refused_is_new(
    steps: list[tuple[str, int, int, int, int] | tuple[int, int]],
) -> None:
    limit, age_ms, time_ms = 3, 10, 0
    publishers, twin, model = Publishers(limit, age_ms), Publishers(limit, age_ms), Model()
    for step in steps:
        if len(step) == 2:
            limit, age_ms = step[0], min(step[1], age_ms)
            publishers.configure(limit, age_ms)
            twin.configure(limit, age_ms)
        else:
            publisher, first_seq, count, waited_ms, room = step
            time_ms += waited_ms
            model.rows = {name: row for name, row in model.rows.items() if time_ms - row[2] < age_ms}
            new = publishers.new((publisher,), first_seq, count, time_ms)
            assert numbers_of(new) == model.new(publisher, range(first_seq, first_seq + count))
            for first, last in new:
                taken = min(room, last - first + 1)
                for some in (publishers, twin):
                    if taken:
                        some.admit((publisher,), (first, first + taken - 1), time_ms)
                    if first + taken <= last:
                        some.refuse((publisher,), (first + taken, last), time_ms)
                accepted = list(range(first, first + taken))
                model.record(publisher, accepted, list(range(first + taken, last + 1)), time_ms)
        model.rows = dict(list(model.rows.items())[-limit:]) if limit else {}
        remembered = [row for row in publishers.freeze()[2] if time_ms - row[2] < age_ms]
        current = {name: row for name, row in model.rows.items() if time_ms - row[2] < age_ms}
        assert [row[0] for row in remembered] == list(current)
        assert len(publishers) <= limit
        # A replica that was loaded at any time has the same rows as a replica that was never loaded.
        assert twin.freeze() == publishers.freeze()
        twin = Publishers(limit, age_ms)
        rows = [[*row[:3], [list(run) for run in row[3]]] for row in publishers.freeze()[2]]
        twin.load([limit, age_ms, rows])  # as they come out of a dump


def test_expired_publishers_are_forgotten_a_few_at_a_time() -> None:
    publishers = Publishers(limit=1000, age_ms=10)
    for number in range(100):
        publishers.admit((f"old {number}",), (1, 1), 0)
    for number in range(99):
        publishers.admit((f"new {number}",), (1, 1), 10)
        assert len(publishers) == max(100 - (number + 1), number + 1)
    assert [row[0] for row in publishers.freeze()[2]] == [f"new {number}" for number in range(99)]


def test_the_publishers_of_a_user_are_its_own() -> None:
    publishers = Publishers()
    publishers.admit(names_of("eve", "p", 8), (2**63 - 1, 2**63 - 1), 0)
    assert publishers.new(names_of("alice", "p", 8), 1, 1, 0) == [(1, 1)]
    assert publishers.new(names_of("eve", "p", 8), 1, 1, 0) == []
    names = {names_of(user, name, 8)[0] for user in ("a", "a 1", "1 a") for name in ("p", "a p", "1 a p")}
    assert len(names) == 9


def test_publisher_keeps_its_numbers_across_an_upgrade() -> None:
    publishers = Publishers()
    publishers.admit(names_of("alice", "p", 7), (1, 5), 0)
    assert publishers.new(names_of("alice", "p", 8), 5, 2, 0) == [(6, 6)]
    publishers.admit(names_of("alice", "p", 8), (6, 6), 0)
    assert publishers.new(names_of("alice", "p", 8), 5, 3, 0) == [(7, 7)]


def test_a_publisher_may_leave_numbers_out() -> None:
    publishers = Publishers()
    publishers.admit(("p",), (5, 5), 0)
    assert publishers.new(("p",), 9, 2, 0) == [(9, 10)]
    publishers.admit(("p",), (9, 10), 0)
    assert publishers.new(("p",), 6, 3, 0) == []


def test_too_many_refusals_allow_duplicates_without_loss() -> None:
    publishers = Publishers()
    refused = range(2, 4 * REFUSED_MAX, 2)
    for number in range(1, 4 * REFUSED_MAX):
        if number in refused:
            publishers.refuse(("p",), (number, number), 0)
        else:
            publishers.admit(("p",), (number, number), 0)
    new = numbers_of(publishers.new(("p",), 1, 4 * REFUSED_MAX - 1, 0))
    assert set(refused) <= set(new)
    assert len(publishers.freeze()[2][0][3]) == REFUSED_MAX


@pytest.mark.seeds
@pytest.mark.parametrize("seed", range(settings.default.max_examples))
def test_message_is_never_new_twice_after_many_refusals(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of joined runs a part may be above the last number: it was reported twice, and published twice."""
    monkeypatch.setattr(publishers_module, "REFUSED_MAX", 2)
    publishers, model, rng = Publishers(), Model(), random.Random(seed)
    for _ in range(100):
        first_seq, count, room = rng.randint(1, 40), rng.randint(1, 3), rng.choice([0, 0, 0, 3])
        runs = publishers.new(("p",), first_seq, count, 0)
        new, numbers = numbers_of(runs), range(first_seq, first_seq + count)
        assert new == sorted(set(new))
        assert set(model.new("p", numbers)) <= set(new) <= set(numbers)
        for first, last in runs:
            taken = min(room, last - first + 1)
            if taken:
                publishers.admit(("p",), (first, first + taken - 1), 0)
            if first + taken <= last:
                publishers.refuse(("p",), (first + taken, last), 0)
            model.record("p", list(range(first, first + taken)), list(range(first + taken, last + 1)), 0)
