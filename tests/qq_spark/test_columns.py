"""Messages of every kind that the broker accepts become rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qq.octets import text_of
from qq.stored.fields import FIXED, join_properties, properties_valid
from qq_spark.columns import TIME_MAX_MS
from tests.harness.spark_rows import refuse, rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

SHORT_STRINGS = (
    *("content_type", "content_encoding", "correlation_id", "reply_to", "expiration"),
    *("message_id", "message_type", "user_id", "app_id", "cluster_id"),
)
TIMES = (0, 2**32 - 1, 2**32, TIME_MAX_MS, TIME_MAX_MS + 1, 2**63 // 1000, 2**63 - 1, 2**63, 2**64 - 1)


def short(octets: bytes) -> bytes:
    return bytes([len(octets)]) + octets


def long(octets: bytes) -> bytes:
    return len(octets).to_bytes(4, "big") + octets


def table(fields: Sequence[tuple[bytes, bytes]]) -> bytes:
    return long(b"".join(short(name) + value for name, value in fields))


def octets(length: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=length, max_size=length)


def fixed(kind: int, length: int) -> st.SearchStrategy[bytes]:
    return octets(length).map(lambda value: bytes([kind]) + value)


names = st.sampled_from((b"x-publisher-id", b"x-publish-seq", b"x-death", b"timestamp")) | st.binary(
    max_size=9
)
numbers = st.one_of(
    *(fixed(kind, layout.size) for kind, layout in FIXED.items()),
    fixed(ord("T"), 8),
    fixed(ord("D"), 5),
    st.sampled_from([b"d\x7f\xf8" + bytes(6), b"f\x7f\x80\0\0", b"D\xff\x80\0\0\0", b"T" + b"\xff" * 8]),
)
strings = st.builds(
    lambda kind, value: kind + long(value), st.sampled_from((b"S", b"x")), st.binary(max_size=9)
)
values = st.recursive(
    numbers | strings | st.just(b"V"),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: b"A" + long(b"".join(items)))
        | st.lists(st.tuples(names, inner), max_size=3).map(lambda fields: b"F" + table(fields))
    ),
    max_leaves=6,
)
properties = st.fixed_dictionaries(
    {},
    optional={
        **{name: st.binary(max_size=9).map(short) for name in SHORT_STRINGS},
        "delivery_mode": octets(1),
        "priority": octets(1),
        "timestamp": octets(8) | st.sampled_from(TIMES).map(lambda time: time.to_bytes(8, "big")),
        "headers": st.lists(st.tuples(names, values), max_size=4).map(table),
    },
).map(join_properties)


def stored(encoded: bytes, body: bytes) -> bytes:
    """Return a message as the log has it: a frame of the properties, and a frame of the body."""

    def frame(kind: int, payload: bytes) -> bytes:
        return bytes([kind, 0, 1]) + long(payload) + b"\xce"

    header = frame(2, b"\0<\0\0" + len(body).to_bytes(8, "big") + encoded)
    return header + (frame(3, body) if body else b"")


@given(
    st.lists(st.tuples(properties, st.binary(max_size=20)), min_size=1, max_size=4),
    st.binary(max_size=9).map(text_of),
)
@example([(join_properties({"headers": table([(b"x-publish-seq", b"T" + b"\xff" * 8)])}), b"")], "")
@example([(join_properties({"headers": table([(b"x-publish-seq", b"t\x01")])}), b"")], "\udcff")
@example([(join_properties({"timestamp": time.to_bytes(8, "big")}), b"a") for time in TIMES], "a")
def test_message_of_every_kind_becomes_a_row(messages: list[tuple[bytes, bytes]], text: str) -> None:
    assert all(properties_valid(encoded) for encoded, _ in messages)
    rows = rows_of([stored(*message) for message in messages], text)
    assert [(row["octets"], row["body"]) for row in rows] == messages
    for row in rows:
        for column in ("properties", "headers"):
            json.loads(row[column] or "{}", parse_constant=refuse)


@pytest.mark.parametrize("time", TIMES)
def test_time_that_spark_cannot_show_is_null(time: int) -> None:
    [row] = rows_of([stored(join_properties({"timestamp": time.to_bytes(8, "big")}), b"")], "")
    assert json.loads(row["properties"])["timestamp"] == time
    assert (row["timestamp"] is None) == (time > TIME_MAX_MS)
