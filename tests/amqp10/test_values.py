"""Values round-trip with their types, in each encoding; damaged octets raise one exception, in bounded time."""

from __future__ import annotations

import struct
import sys
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qq.amqp10.conditions import UndecodableValue
from qq.amqp10.values import (
    DEPTH_MAX,
    VALUES_MAX,
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    Uuid,
    decode,
    encode,
    encode_symbols,
    skip,
)
from tests.amqp10.amqp10_values import encode_anyhow, typed, values

SPECIFIED: list[tuple[str, Any]] = [
    ("40", None),
    ("41", True),
    ("42", False),
    ("43", UInt(0)),
    ("44", ULong(0)),
    ("45", []),
    ("50ff", UByte(255)),
    ("51ff", Byte(-1)),
    ("52ff", UInt(255)),
    ("53ff", ULong(255)),
    ("5480", Int(-128)),
    ("557f", Long(127)),
    ("60ffff", UShort(65535)),
    ("618000", Short(-32768)),
    ("7000000100", UInt(256)),
    ("7180000000", Int(-(2**31))),
    ("723fc00000", Float(1.5)),
    ("730001f600", Char(0x1F600)),
    ("7422500001", Decimal32(bytes.fromhex("22500001"))),
    ("800000000000000100", ULong(256)),
    ("817fffffffffffffff", Long(2**63 - 1)),
    ("823ff8000000000000", 1.5),
    ("83ffffffffffffffff", Timestamp(-1)),
    ("842238000000000001", Decimal64(bytes.fromhex("2238000000000001"))),
    ("94" + "01" * 16, Decimal128(b"\1" * 16)),
    ("98" + "02" * 16, Uuid(b"\2" * 16)),
    ("a00200ff", b"\x00\xff"),
    ("a104f09f9880", "\U0001f600"),
    ("a302c3a4", Symbol("\u00e4")),
    ("a301ff", Symbol("\udcff")),
    ("c00302" + "4142", [True, False]),
    ("c10502" + "a1016b" + "40", {"k": None}),
    ("e00602" + "a3" + "0161" + "0162", Array(0xA3, [Symbol("a"), Symbol("b")])),
    ("e00202" + "45", Array(0x45, [[], []])),
    ("e00802" + "00a30164" + "50" + "0102", Array(0x50, [UByte(1), UByte(2)], Symbol("d"))),
    ("e00702" + "c0" + "0100" + "020140", Array(0xC0, [[], [None]])),
    ("00531545", Described(ULong(0x15), [])),
    ("00" + "005301" + "5302" + "40", Described(Described(ULong(1), ULong(2)), None)),
]
"""Encodings of section 1.6, the shortest of each value."""
WIDE: list[tuple[str, Any]] = [
    ("5601", True),
    ("5600", False),
    ("7000000001", UInt(1)),
    ("800000000000000001", ULong(1)),
    ("71ffffffff", Int(-1)),
    ("81ffffffffffffffff", Long(-1)),
    ("b00000000101", b"\1"),
    ("b10000000161", "a"),
    ("b30000000161", Symbol("a")),
    ("c00100", []),
    ("d00000000400000000", []),
    ("d10000000400000000", {}),
    ("f00000000500000000" + "71", Array(0x71, [])),
]


@pytest.mark.parametrize(("octets", "value"), SPECIFIED)
def test_encoding_round_trips(octets: str, value: Any) -> None:
    data = bytes.fromhex(octets)
    assert typed(decode(data)) == typed(value)
    assert encode(value) == data
    assert skip(data, 0, len(data)) == len(data)


@pytest.mark.parametrize(("octets", "value"), WIDE)
def test_longer_encoding_is_decoded(octets: str, value: Any) -> None:
    data = bytes.fromhex(octets)
    assert typed(decode(data)) == typed(value)
    assert skip(data, 0, len(data)) == len(data)


@given(values, st.randoms(use_true_random=False))
def test_value_round_trips_in_any_encoding(value: Any, rnd: Random) -> None:
    for data in (encode(value), encode_anyhow(value, rnd)):
        assert typed(decode(data)) == typed(value)
        assert skip(data + b"behind", 0, len(data) + 6) == len(data)
        assert typed(decode(b"before" + data + b"behind", 6, 6 + len(data))) == typed(value)


def test_value_round_trips_at_the_limits_of_short_encodings() -> None:
    for size in range(245, 260):
        for value in (
            bytes(size),
            [bytes(size)],
            {"k": bytes(size)},
            [None] * size,
            Array(0x50, [UByte(1)] * size),
        ):
            data = encode(value)
            assert data[0] & 0x10 == 0 or len(data) > 256
            assert decode(data) == value


@given(values)
def test_cut_value_is_refused(value: Any) -> None:
    data = encode(value)
    for end in range(len(data)):
        with pytest.raises(UndecodableValue):
            decode(data, 0, end)
        with pytest.raises(UndecodableValue):
            skip(data, 0, end)


@given(values, st.lists(st.tuples(st.integers(0), st.integers(0, 255)), min_size=1, max_size=4))
def test_damaged_value_is_decoded_or_refused(value: Any, damage: list[tuple[int, int]]) -> None:
    data = bytearray(encode(value))
    for place, octet in damage:
        data[place % len(data)] = octet
    try:
        decoded = decode(bytes(data))
    except UndecodableValue:
        return
    decode(encode(decoded))


def test_octet_string_at_random_is_decoded_or_refused() -> None:
    rnd = Random(1)
    codes = [0, *range(0x40, 0x46), 0x50, 0x56, 0xA1, 0xC0, 0xC1, 0xD0, 0xE0, 0xF0]
    decoded = 0
    for _ in range(20_000):
        data = bytes(rnd.choice(codes) if rnd.random() < 0.7 else rnd.randrange(8) for _ in range(8))
        try:
            decode(data, 0, skip(data, 0, len(data)))
            decoded += 1
        except UndecodableValue:
            pass
    assert 2_000 < decoded < 18_000


@pytest.mark.parametrize(
    ("octets", "text"),
    [
        ("46", "constructor 0x46"),
        ("5602", "boolean 2"),
        ("a101ff", "not UTF-8"),
        ("c10201" + "40", "odd count"),
        ("c10904" + "a1016b40" + "a1016b40", "same key twice"),
        ("c10302" + "4540", "no primitive"),
        ("c00301" + "4142", "size 3 of a value with 1 elements"),
        ("c00203" + "41", "longer than the octets"),
        ("4040", "behind a value"),
        ("e0020099", "constructor 0x99"),
        ("e0010041", "longer than the octets"),
        ("e0020146", "constructor 0x46"),
        ("d0ffffffff00000000", "longer than the octets"),
        ("c0", "longer than the octets"),
        ("", "longer than the octets"),
    ],
)
def test_invalid_value_is_refused_with_a_reason(octets: str, text: str) -> None:
    with pytest.raises(UndecodableValue, match=text):
        decode(bytes.fromhex(octets))


def nested(depth: int) -> bytes:
    data = b"\x45"
    for _ in range(depth - 1):
        data = struct.pack(">BII", 0xD0, len(data) + 4, 1) + data
    return data


def test_value_is_refused_when_it_is_nested_too_deep() -> None:
    decode(nested(DEPTH_MAX + 1))
    for data in (nested(DEPTH_MAX + 2), nested(10_000), b"\x00\x44" * (DEPTH_MAX + 1) + b"\x40"):
        with pytest.raises(UndecodableValue, match="DEPTH_MAX"):
            decode(data)
    with pytest.raises(UndecodableValue, match="DEPTH_MAX"):
        skip(b"\x00\x44" * 10_000, 0, 20_000)
    with pytest.raises(UndecodableValue, match="DEPTH_MAX"):
        decode(b"\x00" * 10_000)


def test_array_is_refused_when_it_claims_many_elements() -> None:
    array = struct.pack(">BIIB", 0xF0, 5, VALUES_MAX - 1, 0x40)
    assert decode(array) == Array(0x40, [None] * (VALUES_MAX - 1))
    for count in (VALUES_MAX, 2**32 - 1):
        array = struct.pack(">BIIB", 0xF0, 5, count, 0x40)
        assert skip(array, 0, len(array)) == len(array)
        with pytest.raises(UndecodableValue, match="VALUES_MAX"):
            decode(array)
    lists = (
        struct.pack(">BII", 0xD0, 4 + 10 * 3, 3) + struct.pack(">BIIB", 0xF0, 5, VALUES_MAX // 2, 0x40) * 3
    )
    with pytest.raises(UndecodableValue, match="VALUES_MAX"):
        decode(lists)


def test_array_elements_without_octets_take_no_steps() -> None:
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    encode(decode(struct.pack(">BIIB", 0xF0, 5, VALUES_MAX - 1, 0x44)))
    sys.setprofile(None)
    assert calls < 100


def test_symbols_are_encoded_when_a_symbol_is_long() -> None:
    names = ["a", "b" * 256]
    assert decode(encode_symbols(names)) == Array(0xB3, names)
    assert decode(encode_symbols(["a"])) == Array(0xA3, ["a"])
