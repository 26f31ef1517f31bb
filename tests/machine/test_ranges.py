from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qq.machine.runs import Runs
from qq.ranges import Piece, Range, RangeMap

ids = st.integers(0, 60)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 3), st.integers(1, 9)),
        st.tuples(st.just("take"), ids, ids),
        st.tuples(st.just("through"), ids, st.just(0)),
        st.tuples(st.just("all"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


def unrolled(pieces: list[Piece[str]]) -> list[tuple[int, tuple[str, int]]]:
    return [
        (piece.first + step, (piece.value, piece.offset + step))
        for piece in pieces
        for step in range(piece.count)
    ]


@given(steps)
def test_a_range_map_behaves_like_a_dict_of_ids(steps: list[tuple[str, int, int]]) -> None:
    ranges: RangeMap[str] = RangeMap()
    oracle: dict[int, tuple[str, int]] = {}
    next_id = 0
    for number, (verb, one, two) in enumerate(steps):
        if verb == "append":
            next_id += one
            ranges.append(next_id, two, str(number))
            oracle.update({next_id + step: (str(number), step) for step in range(two)})
            next_id += two
        else:
            if verb == "take":
                first, last, taken = one, two, ranges.take(one, two)
            elif verb == "through":
                first, last, taken = 0, one, ranges.take_through(one)
            else:
                first, last, taken = 0, next_id, ranges.take_all()
            expected = [(key, oracle.pop(key)) for key in sorted(oracle) if first <= key <= last]
            assert unrolled(taken) == expected
        assert unrolled(ranges.pieces()) == sorted(oracle.items())
        assert len(ranges) == len(oracle)
        assert ranges.first() == min(oracle, default=None)
        assert [key for key in range(-1, next_id + 2) if key in ranges] == sorted(oracle)


def test_ids_must_grow() -> None:
    ranges: RangeMap[str] = RangeMap()
    ranges.append(5, 3, "a")
    with pytest.raises(ValueError, match=r"ids 7\.\.7 do not follow"):
        ranges.append(7, 1, "b")
    with pytest.raises(ValueError, match="do not follow"):
        ranges.append(8, 0, "b")


def test_taking_one_by_one_from_the_front_keeps_no_garbage() -> None:
    ranges: RangeMap[None] = RangeMap()
    for key in range(10_000):
        ranges.append(key, 1, None)
        if key >= 10:
            assert ranges.take(key - 10, key - 10)
            assert len(ranges._pieces) <= 24


@given(st.lists(st.one_of(st.integers(1, 9), st.integers(-30, -1)), max_size=60))
def test_a_backlog_behaves_like_a_list_of_messages(steps: list[int]) -> None:
    runs = Runs()
    oracle: list[tuple[int, int]] = []
    for index, step in enumerate(steps, 1):
        if step > 0:
            slot = index << 24 | 7
            runs.append(index, slot, step)
            oracle += [(index, slot + offset) for offset in range(step)]
        else:
            count = min(-step, len(oracle))
            taken = runs.take(count)
            assert [(r.index, r.slot + offset) for r in taken for offset in range(r.count)] == oracle[:count]
            del oracle[:count]
        copy = Runs()
        copy.load(runs.dump())
        assert copy.dump() == runs.dump()
        assert [
            (r.index, r.slot + offset) for r in copy.take(len(oracle)) for offset in range(r.count)
        ] == oracle


def test_a_backlog_of_many_chunks_comes_out_in_order() -> None:
    runs = Runs()
    for index in range(20_000):
        runs.append(index, 0, 2)
    assert [r.index for r in runs.take(20_001)] == list(range(10_001))
    copy = Runs()
    copy.load(runs.dump())
    assert copy.take(19_999) == runs.take(19_999)
    runs.append(7, 8, 9)
    assert runs.take(9) == [Range(7, 8, 9, 0)]
