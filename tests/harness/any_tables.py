"""Field tables of every kind that the log can hold, for property tests."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

from hypothesis import strategies as st

from qq.octets import text_of
from qq.tables import DECIMAL_NUMBERS, DECIMAL_SCALES, INTEGERS


def _decimal(number: int, scale: int) -> Decimal:
    return Decimal(number) * Decimal(10) ** -scale


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, tz=UTC)


names = st.binary(max_size=12).map(text_of)
"""Names of fields: any octets."""
_seconds = st.integers(0, 0xFFFFFFFF)
_milliseconds = st.integers(0x1_0000_0000, 253_402_300_799_999).map(lambda number: number / 1000)
_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(INTEGERS[0], INTEGERS[-1]),
    st.floats(),
    st.text(max_size=12),
    st.binary(max_size=12),
    st.builds(
        _decimal,
        st.integers(DECIMAL_NUMBERS[0], DECIMAL_NUMBERS[-1]),
        st.integers(DECIMAL_SCALES[0], DECIMAL_SCALES[-1]),
    ),
    st.builds(_time, _seconds | _milliseconds),
)


def _containers(values: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.lists(values, max_size=3) | st.dictionaries(names, values, max_size=3)


tables = st.dictionaries(names, st.recursive(_values, _containers, max_leaves=6), max_size=4)
