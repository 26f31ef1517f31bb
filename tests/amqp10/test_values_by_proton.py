"""Values of both codecs, ours and Qpid Proton's: each reads the octets of the other, and both refuse cut octets."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from proton import Data, DataException

from qq.amqp10.conditions import UndecodableValue
from qq.amqp10.values import Array, Described, decode, encode
from tests.amqp10.amqp10_values import encode_anyhow, typed, values

ALIKE = {
    0x41: 0x56,
    0x42: 0x56,
    0x43: 0x70,
    0x52: 0x70,
    0x44: 0x80,
    0x53: 0x80,
    0x54: 0x71,
    0x55: 0x81,
    0x45: 0xD0,
    0xC0: 0xD0,
    0xC1: 0xD1,
    0xE0: 0xF0,
    0xA0: 0xB0,
    0xA1: 0xB1,
    0xA3: 0xB3,
}
"""The widest constructor of the type of each constructor, because Proton chooses the constructors of arrays itself."""


def same(value: Any) -> Any:
    """Return the value in a form that is equal only to the same values, in arrays of any constructor of their type."""
    return _widest(typed(value))


def _widest(form: Any) -> Any:
    match form:
        case ("array", code, elements, descriptor):
            return "array", ALIKE.get(code, code), _widest(elements), _widest(descriptor)
        case tuple():
            return tuple(map(_widest, form))
        case list():
            return [_widest(each) for each in form]
        case _:
            return form


def puzzles_proton(value: Any, depth: int = 0) -> bool:
    """Return whether the value has a described value as the value of a described value, in an array.

    Proton 0.40 writes these wrongly.
    """
    match value:
        case Array(_, elements):
            return any(puzzles_proton(each, 1) for each in elements)
        case Described(_, inner):
            return (bool(depth) and isinstance(inner, Described)) or puzzles_proton(inner, depth)
        case list():
            return any(puzzles_proton(each, depth) for each in value)
        case dict():
            return any(puzzles_proton(each, depth) for each in value.values())
        case _:
            return False


def through_proton(octets: bytes) -> bytes:
    """Return the encoding of the value that Proton reads. Raises DataException."""
    read = Data()
    consumed = read.decode(octets)
    assert consumed == len(octets)
    return read.encode()


@given(values.filter(lambda value: not puzzles_proton(value)), st.randoms(use_true_random=False))
def test_value_survives_proton_in_any_encoding(value: Any, rnd: Random) -> None:
    for octets in (encode(value), encode_anyhow(value, rnd)):
        assert same(decode(through_proton(octets))) == same(value)


@given(values)
def test_cut_value_is_refused_by_both(value: Any) -> None:
    octets = encode(value)
    for end in range(len(octets)):
        with pytest.raises(UndecodableValue):
            decode(octets[:end])
        with pytest.raises(DataException):
            through_proton(octets[:end])


@given(values, st.lists(st.tuples(st.integers(0), st.integers(0, 255)), min_size=1, max_size=4))
def test_damaged_value_has_the_same_meaning_for_both(value: Any, damage: list[tuple[int, int]]) -> None:
    octets = bytearray(encode(value))
    for place, octet in damage:
        octets[place % len(octets)] = octet
    try:
        found = decode(bytes(octets))
        other = decode(through_proton(bytes(octets)))
    except (UndecodableValue, DataException, AssertionError):
        return
    assert same(other) == same(found)
