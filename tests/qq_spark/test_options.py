"""Options and columns of the format: wrong values are refused with the name of the option or column."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING

import pytest

from qq_spark.columns import COLUMNS, SCHEMA, arrow_schema, check_columns, converted
from qq_spark.errors import QueueSourceError
from qq_spark.options import batch_options, stream_options

if TYPE_CHECKING:
    from pathlib import Path

STREAM = {"url": "http://one:1, http://two:2", "group": "g", "queue": "q"}
BATCH = {"url": "http://one:1", "queue": "q"}


def test_options_have_defaults_and_any_case(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret\n")
    options = stream_options(
        STREAM
        | {"QUEUES": "r, q", "user": "ann", "passwordfile": str(tmp_path / "password"), "exclusive": "TRUE"}
    )
    assert options.source.access.urls == ("http://one:1", "http://two:2")
    assert options.source.access[1:4] == ("ann", "secret", "/")
    assert options.queues == ("q", "r")
    assert (options.messages, options.source.partitions) == (100_000, 4)
    assert options.source.settings == {"order": "ready", "exclusive": True}
    assert batch_options(BATCH | {"leases": "3-7", "group": "g"}).leases == (3, 7)
    assert batch_options(BATCH | {"leases": "3", "group": "g"}).leases == (3, 3)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"url": "localhost:15672"}, "option 'url' must be addresses"),
        ({"url": " , "}, "option 'url' is empty"),
        ({"url": "http://host:99999"}, "option 'url' must be addresses"),
        ({"group": ""}, "option 'group' is missing"),
        ({"queue": ""}, "option 'queue' is missing"),
        ({"queuePattern": "["}, "option 'queuePattern' is no regular expression"),
        ({"partition": "3"}, r"option 'partition' is unknown \(is 'partitions' meant\?\)"),
        ({"partitions": "0"}, "option 'partitions' must be a whole number from 1 to 10000: '0'"),
        ({"maxMessagesPerTrigger": "1e6"}, "option 'maxMessagesPerTrigger' must be a whole number"),
        ({"order": "size"}, "option 'order' must be 'ready' or 'arrival': 'size'"),
        ({"exclusive": "yes"}, "option 'exclusive' must be 'true' or 'false'"),
        ({"leases": "3"}, "option 'leases' is for spark.read"),
        ({"passwordFile": "/none", "password": "x"}, "'password' contradicts option 'passwordFile'"),
        ({"passwordFile": "/none"}, "option 'passwordFile' names a file that cannot be read"),
    ],
)
def test_wrong_option_of_a_stream_is_named(wrong: dict[str, str], message: str) -> None:
    with pytest.raises(QueueSourceError, match=message):
        stream_options(STREAM | wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"queues": "a,b"}, "option 'queues' is for spark.readStream"),
        ({"leases": "3"}, "option 'group' is missing"),
        (
            {"leases": "7-3", "group": "g"},
            "option 'leases' must be a number such as 3, or two such as 3-7: '7-3'",
        ),
        (
            {"leases": "3", "group": "g", "maxMessages": "4"},
            "option 'maxMessages' contradicts option 'leases'",
        ),
    ],
)
def test_wrong_option_of_a_batch_is_named(wrong: dict[str, str], message: str) -> None:
    with pytest.raises(QueueSourceError, match=message):
        batch_options(BATCH | wrong)


def test_columns_have_the_types_of_spark() -> None:
    types = pytest.importorskip("pyspark.sql.types")
    arrow = pytest.importorskip("pyspark.sql.pandas.types")
    names = {"boolean": "BooleanType", "bigint": "LongType", "int": "IntegerType"}
    fields = [
        types.StructField(name, getattr(types, names.get(kinds[0]) or f"{kinds[0].title()}Type")(), True)
        for name, kinds in COLUMNS.items()
    ]
    schema = types.StructType(fields)
    check_columns(schema)
    assert [f"{field.name} {field.dataType.simpleString()}" for field in fields] == SCHEMA.split(", ")
    zone = {"timezone": "UTC"} if "timezone" in signature(arrow.to_arrow_schema).parameters else {}
    assert arrow_schema(schema).equals(arrow.to_arrow_schema(schema, **zone))


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("bodies", "StringType", "a queue has no column 'bodies'; its columns are: body, routing_key"),
        ("body", "LongType", "column 'body' must be binary or string: bigint"),
    ],
)
def test_wrong_column_is_named(name: str, kind: str, message: str) -> None:
    types = pytest.importorskip("pyspark.sql.types")
    schema = types.StructType([types.StructField(name, getattr(types, kind)())])
    with pytest.raises(QueueSourceError, match=message):
        check_columns(schema)


def test_body_that_is_no_text_names_its_queue() -> None:
    pa = pytest.importorskip("pyarrow")
    batch = pa.record_batch({"body": [b"text", b"\xff"]})
    wanted = pa.schema([pa.field("body", pa.string())])
    assert converted(batch.slice(0, 1), wanted, "q").to_pylist() == [{"body": "text"}]
    with pytest.raises(
        QueueSourceError, match="queue 'q' has a message that does not fit column 'body' of type string"
    ):
        converted(batch, wanted, "q")
