from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qq.ranges import FrozenPieces, Piece, RangeMap

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


def test_inserted_ids_are_found_in_their_order() -> None:
    ids: RangeMap[str] = RangeMap()
    for first, count, value in [(10, 2, "b"), (30, 1, "d"), (2, 3, "a"), (20, 5, "c"), (40, 1, "e")]:
        frozen = ids.freeze()
        before = frozen[0][frozen[1] : frozen[2]]
        ids.insert(first, count, value)
        assert frozen[0][frozen[1] : frozen[2]] == before
    assert [(piece.first, piece.value) for piece in ids.pieces()] == [
        (2, "a"),
        (10, "b"),
        (20, "c"),
        (30, "d"),
        (40, "e"),
    ]
    assert (len(ids), ids.first(), 4 in ids, 5 in ids) == (12, 2, True, False)
    assert [piece.value for piece in ids.pieces_from(11, 2)] == ["b", "c"]
    assert [piece.value for piece in ids.pieces_from(12, 9)] == ["c", "d", "e"]
    for first, count in [(4, 1), (0, 3), (9, 2), (21, 1), (41, 0)]:
        with pytest.raises(ValueError, match=r"\.\."):
            ids.insert(first, count, "x")
    ids.take(2, 11)
    ids.insert(3, 2, "again")
    assert [piece.value for piece in ids.pieces()] == ["again", "c", "d", "e"]


def test_taking_from_the_front_of_a_range_map_frees_its_pieces() -> None:
    ranges: RangeMap[None] = RangeMap()
    for key in range(10_000):
        ranges.append(key, 1, None)
        if key >= 10:
            assert ranges.take(key - 10, key - 10)
            assert len(ranges._pieces) <= 24


def test_frozen_pieces_are_not_changed_by_later_takes() -> None:
    ranges: RangeMap[str] = RangeMap()
    frozen: list[tuple[FrozenPieces[str], list[Piece[str]]]] = []
    for first in range(0, 60, 10):
        ranges.append(first, 10, "a")
        frozen.append((ranges.freeze(), ranges.pieces()))
        ranges.take(first + 2, first + 3)
        frozen.append((ranges.freeze(), ranges.pieces()))
        ranges.take(first - 5, first + 4)
        frozen.append((ranges.freeze(), ranges.pieces()))
    ranges.take_all()
    ranges.append(60, 1, "b")
    for (pieces, start, end), then in frozen:
        assert pieces[start:end] == then
