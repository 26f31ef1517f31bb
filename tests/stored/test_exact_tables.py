from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qq.stored.exact_tables import encode_table, read_table
from qq.tables import check_table
from tests.harness.any_tables import tables

LATIN, OTHER_LATIN = "caf\udcff", "caf\udcfe"


@given(tables)
@example({"n": [2**63 - 1, 2**63, 2**64 - 1, -(2**63), True, 1, 1.0, -0.0]})
@example({LATIN: b"\xff", OTHER_LATIN: b"text", "": "text"})
@example({"d": Decimal("-1.50"), "e": Decimal("0.00"), "t": datetime(2026, 1, 1, 0, 0, 0, 1000, tzinfo=UTC)})
def test_table_is_the_same_after_encoding_and_reading(table: dict[str, Any]) -> None:
    check_table(table)
    assert repr(read_table(encode_table(table))) == repr(table)


def test_time_before_1970_loses_its_sign() -> None:
    table = {"t": datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)}
    check_table(table)
    assert read_table(encode_table(table)) == {"t": 2**64 - 1}


@given(st.binary())
def test_octets_that_are_no_table_raise_valueerror(octets: bytes) -> None:
    try:
        table = read_table(octets)
    except ValueError:
        return
    assert repr(read_table(encode_table(table))) == repr(table)


@pytest.mark.parametrize("octets", [b"", b"\0\0\0\1", b"\0\0\0\0x", b"\0\0\0\3\1nZ"])
def test_malformed_table_is_refused(octets: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_table(octets)
