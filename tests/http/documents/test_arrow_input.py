"""Arrow streams from clients: malformed, compressed and large streams."""

from __future__ import annotations

import asyncio
import json
import struct
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qq.http.base.error_responses import Refusal
from qq.http.documents import arrow_input, sink_tables
from qq.http.documents.sink_tables import SinkTable
from qq.stored.editing import content

pa: Any = pytest.importorskip("pyarrow")

DATA = b"abcdefghijklmnopqrstuvw"
OFFSETS = (0, 3, 7, 11, 19)


def stream(table: Any, options: Any = None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def routed(octets: bytes) -> list[Any]:
    """Return the messages of a stream, with their properties and bodies. Raises Refusal."""

    async def read() -> list[Any]:
        table = SinkTable(pa, {"exchange": "", "routing_key": "q"}, 1024)
        await table.read(octets)
        return await table.routed()

    return [content(message) for run in asyncio.run(read()) for message in run.messages]


def refusal(octets: bytes) -> tuple[int, str]:
    with pytest.raises(Refusal) as refused:
        routed(octets)
    return refused.value.status, refused.value.reason


def with_offsets(kind: Any, offsets: tuple[int, ...], name: str, data: bytes = DATA) -> bytes:
    """Return a stream of four rows whose column `name` has these offsets into `data`."""
    good = struct.pack("<5i", *OFFSETS)
    column = pa.Array.from_buffers(kind, 4, [None, pa.py_buffer(good), pa.py_buffer(data)])
    columns = {"body": pa.array([b"x"] * 4, pa.binary()), name: column}
    octets = stream(pa.table(columns))
    assert octets.count(good) == 1
    return octets.replace(good, struct.pack("<5i", *offsets))


@pytest.mark.parametrize(
    "offsets",
    [
        (0, 3, 7, 11, 2**31 - 1),
        (0, 3, 7, 11, 500_000),
        (-500_000, 3, 7, 11, 19),
        (0, 11, 3, 11, 3),
        (0, 3, 7, -1, 19),
    ],
)
@pytest.mark.parametrize(
    ("kind", "name"), [(pa.binary(), "body"), (pa.string(), "message_id"), (pa.string(), "headers")]
)
def test_offsets_beyond_the_stream_are_refused(kind: Any, name: str, offsets: tuple[int, ...]) -> None:
    status, reason = refusal(with_offsets(kind, offsets, name))
    assert (status, reason.partition(":")[0]) == (400, "the body is no Arrow stream")


def test_text_that_is_not_utf8_is_refused() -> None:
    status, reason = refusal(with_offsets(pa.string(), OFFSETS, "message_id", b"\xff\xfe" * 12))
    assert (status, "Invalid UTF8" in reason) == (400, True)


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_compressed_stream_is_refused(codec: str) -> None:
    table = pa.table({"body": pa.array([b"z" * 1_000_000] * 100, pa.binary())})
    octets = stream(table, pa.ipc.IpcWriteOptions(compression=codec))
    assert refusal(octets) == (
        400,
        "a batch of the Arrow stream is compressed: send it without compression",
    )


def test_rows_above_the_limit_are_refused() -> None:
    at_limit = pa.table({"body": pa.array([b""] * arrow_input.ROWS_MAX, pa.binary())})
    assert len(routed(stream(at_limit))) == arrow_input.ROWS_MAX
    above = pa.concat_tables([at_limit, at_limit.slice(0, 1)])
    assert refusal(stream(above)) == (413, "the body has more than 65536 rows, the limit")


def test_empty_batches_count_as_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_input, "ROWS_MAX", 10)
    schema, sink = pa.schema([("body", pa.binary())]), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for _ in range(11):
            writer.write_batch(pa.record_batch({"body": pa.array([], pa.binary())}))
    assert refusal(sink.getvalue().to_pybytes())[0] == 413


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("body", pa.array(["a"]).dictionary_encode()),
        ("body", pa.array(["a"], pa.string_view())),
        ("body", pa.array([b"a"], pa.binary(1))),
        ("message_id", pa.array(["a"]).dictionary_encode()),
        ("message_id", pa.array(["a"], pa.string_view())),
        ("message_id", pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), pa.array(["a"]))),
        ("headers", pa.array([[("a", [None])]], pa.map_(pa.string(), pa.list_(pa.null())))),
        ("headers", pa.array([[("a", {"b": 1})]], pa.map_(pa.string(), pa.struct({"b": pa.int8()})))),
        ("headers", pa.array([[("a", b"b")]], pa.map_(pa.string(), pa.binary()))),
        ("headers", pa.array([[(1, "b")]], pa.map_(pa.int8(), pa.string()))),
    ],
)
def test_type_that_no_column_has_is_refused(name: str, column: Any) -> None:
    status, reason = refusal(stream(pa.table({"body": pa.array([b"x"]), name: column})))
    assert (status, reason.partition(" ")[0]) == (400, "column")
    assert reason == f"column '{name}' has type {column.type}, which it cannot have"


@pytest.mark.parametrize("octets", [b"", b"\xff" * 40, stream(pa.table({"body": [b"x"]}))[:-40]])
def test_incomplete_stream_is_refused(octets: bytes) -> None:
    status, reason = refusal(octets)
    assert (status, reason.partition(":")[0]) == (400, "the body is no Arrow stream")


@pytest.mark.parametrize("depth", [33, 50_000])
@pytest.mark.parametrize("level", ["[]", '{"a":}'])
def test_deeply_nested_headers_are_refused(depth: int, level: str) -> None:
    text = '{"h": ' + level[:-1] * depth + "1" + level[-1] * depth + "}"
    status, reason = refusal(stream(pa.table({"body": [b"x"], "headers": [text]})))
    assert (status, reason) == (
        400,
        "column 'headers' does not fit in row 0: a field table is nested deeper than 32 levels",
    )


def test_long_text_of_headers_is_refused() -> None:
    text = '{"h": [' + "0," * 300_000 + "0]}"
    status, reason = refusal(stream(pa.table({"body": [b"x"], "headers": [text]})))
    assert (status, reason) == (
        400,
        "column 'headers' does not fit in row 0: has more than 524288 characters",
    )


def test_big_endian_stream_is_refused() -> None:
    octets = bytearray(stream(pa.table({"body": [b"x"]})))
    metadata_at = 8
    metadata = memoryview(octets)[metadata_at:]
    at = arrow_input._field(metadata, *struct.unpack_from("<I", metadata), arrow_input._HEADER)
    schema = at + struct.unpack_from("<I", metadata, at)[0]
    slots = schema - struct.unpack_from("<i", metadata, schema)[0]
    struct.pack_into("<H", metadata, slots + arrow_input._SLOTS_AT, 4)  # a schema with an endianness
    assert refusal(bytes(octets)) == (400, "the body is no Arrow stream: its numbers are big-endian")


ROWS = 12
VALID = [
    stream(table)
    for table in (
        pa.table({"body": pa.array([b"body-%d" % row for row in range(ROWS)], pa.binary())}),
        pa.table(
            {
                "body": pa.array([b"body-%d" % row for row in range(ROWS)], pa.large_binary()),
                "message_id": [f"id-{row}" if row % 2 else None for row in range(ROWS)],
                "timestamp": pa.array(range(ROWS), pa.timestamp("ms", "UTC")),
                "priority": pa.array([1, None] * (ROWS // 2), pa.uint8()),
                "headers": pa.array([[("name", "value")]] * ROWS, pa.map_(pa.string(), pa.string())),
            }
        ),
        pa.table(
            {
                "body": [f"body-{row}" for row in range(ROWS)],
                "headers": pa.array(
                    [[("n", row)] for row in range(ROWS)], pa.map_(pa.string(), pa.timestamp("ns", "UTC"))
                ),
            }
        ),
    )
]
OCTETS = st.one_of(st.sampled_from([0, 1, 127, 128, 255]), st.integers(0, 255))


@settings(deadline=None)
@given(
    st.sampled_from(VALID),
    st.lists(st.tuples(st.integers(0, 4095), OCTETS), min_size=1, max_size=4),
)
def test_overwritten_octets_never_show_foreign_memory(octets: bytes, changes: list[tuple[int, int]]) -> None:
    changed = bytearray(octets)
    for at, octet in changes:
        changed[at % len(changed)] = octet
    with suppress(Refusal):
        for message in routed(bytes(changed)):
            assert message.body in changed
            assert (message.properties.message_id or "").encode() in changed


NUMBER_TYPES = [pa.int8(), pa.uint8(), pa.int32(), pa.int64(), pa.uint64()]
TIME_TYPES = [
    pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC", "Europe/Berlin")
]
EXTREMES = [
    0,
    1,
    -1,
    255,
    256,
    2**31,
    2**63 - 1,
    -(2**63),
    2**64 - 1,
    253_402_300_799,
    253_402_300_800 * 1000,
]


def column(kinds: list[Any], items: Any) -> Any:
    """Arrays of a row, of a type and a value that this type has."""

    def array(drawn: tuple[Any, Any]) -> Any:
        kind, value = drawn
        try:
            return pa.array([value], kind)
        except (pa.ArrowException, OverflowError, ValueError):
            return pa.nulls(1, kind)

    return st.tuples(st.sampled_from(kinds), items).map(array)


numbers = st.sampled_from([*EXTREMES, None])
texts = st.text(max_size=260) | st.none()
maps = [
    pa.map_(pa.string(), kind) for kind in (*NUMBER_TYPES, *TIME_TYPES, pa.float64(), pa.bool_(), pa.null())
]
columns = st.one_of(
    *(
        st.tuples(st.just(name), column([pa.string(), pa.large_string()], texts))
        for name in (*sink_tables.TEXTS, "routing_key")
    ),
    *(
        st.tuples(st.just(name), column([*NUMBER_TYPES, *TIME_TYPES], numbers))
        for name in (*sink_tables.NUMBERS, "delay")
    ),
    *(
        st.tuples(
            st.just("headers"), column([kind], st.builds(lambda name, value: [(name, value)], texts, numbers))
        )
        for kind in maps
    ),
    st.tuples(
        st.just("headers"), column([pa.string()], numbers.map(lambda value: json.dumps({"a": value})) | texts)
    ),
)
"""A column and its name."""


@given(columns)
def test_any_column_is_stored_or_refused(named: tuple[str, Any]) -> None:
    try:
        [message] = routed(stream(pa.table({"body": pa.array([b"x"]), named[0]: named[1]})))
    except Refusal as refusal:
        refused = refusal
    else:
        assert message.body == b"x"
        return
    assert refused.status == 400
    assert "column '" in refused.reason or refused.reason.startswith("invalid ")


def test_header_before_1970_is_refused_and_without_a_zone_is_utc() -> None:
    def headers(seconds: int, zone: str | None) -> bytes:
        kind = pa.map_(pa.string(), pa.timestamp("s", zone))
        return stream(pa.table({"body": pa.array([b"x"]), "headers": pa.array([[("t", seconds)]], kind)}))

    status, reason = refusal(headers(-1, "UTC"))
    assert status == 400
    assert reason.startswith(
        "column 'headers' does not fit in row 0: a header holds the time 1969-12-31T23:59:59"
    )
    for zone in (None, "UTC", "Europe/Berlin"):
        [message] = routed(headers(5, zone))
        assert message.properties.headers == {"t": datetime.fromtimestamp(5, UTC)}
