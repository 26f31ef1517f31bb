"""Limits of field tables, and that the codec carries all tables within them."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest

from qq.machine.protocol.codec import pack, unpack
from qq.tables import NAME_BYTES_MAX, TABLE_BYTES_MAX, TABLE_DEPTH_MAX, InvalidTable, check_table


def nested(depth: int, inner: Any = None) -> dict[str, Any]:
    """Return nested tables of this depth."""
    return {"a": inner} if depth == 1 else {"a": nested(depth - 1, inner)}


@pytest.mark.parametrize(
    "value",
    [
        -(2**63),
        2**64 - 1,
        float("inf"),
        Decimal(-(2**31)).scaleb(-255),
        Decimal(2**31 - 1),
        Decimal("0E-255"),
        b"\xff",
        "\udcff",
        dt.datetime(1, 1, 1, tzinfo=dt.UTC),
        dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC),
        [[], {}],
        [None, True, False],
    ],
    ids=repr,
)
def test_the_log_holds_the_extremes_of_every_type(value: Any) -> None:
    table = {"x" * NAME_BYTES_MAX: value}
    check_table(table)
    assert unpack(pack(table)) == table


@pytest.mark.parametrize(
    ("table", "error"),
    [
        ([], "not a map"),
        ({1: 1}, "no name"),
        ({"é" * 128: 1}, "the name of a field has 256 octets, which is more than 255"),
        ({"a": 2**64}, "at most 64 bits"),
        ({"a": [-(2**63) - 1]}, "at most 64 bits"),
        ({"a": Decimal(2**31)}, "at most 32 bits and 255 decimal places"),
        ({"a": Decimal("1E-256")}, "255 decimal places"),
        ({"a": Decimal("1E+1")}, "255 decimal places"),
        ({"a": Decimal("NaN")}, "255 decimal places"),
        ({"a": dt.datetime(2026, 1, 1)}, "no time zone"),  # noqa: DTZ001
        ({"a": "\ud800"}, "not Unicode"),
        ({"\ud800": 1}, "not Unicode"),
        ({"a": {1, 2}}, "holds a set"),
        ({"a": (1,)}, "holds a tuple"),
        (nested(TABLE_DEPTH_MAX + 1), "nested deeper than 32 levels"),
        (nested(TABLE_DEPTH_MAX, []), "nested deeper than 32 levels"),
        ({"a": "x" * (TABLE_BYTES_MAX - 6)}, "of 131073 bytes is larger than 131072 bytes"),
        ({"a": [[None] * 1000] * 131}, "larger than 131072 bytes"),
    ],
    ids=map(str, range(18)),
)
def test_table_that_the_log_cannot_hold_is_refused(table: Any, error: str) -> None:
    with pytest.raises(InvalidTable, match=error):
        check_table(table)


@pytest.mark.parametrize(
    "table",
    [
        nested(TABLE_DEPTH_MAX),
        nested(TABLE_DEPTH_MAX - 1, [1, "a"]),
        {"a": "x" * (TABLE_BYTES_MAX - 7)},
        {"a": [None] * (TABLE_BYTES_MAX - 7)},
    ],
    ids=["tables", "an array in tables", "text", "nothings"],
)
def test_table_at_the_limit_is_packed_and_unpacked(table: Any) -> None:
    check_table(table)
    assert unpack(pack(table)) == table
