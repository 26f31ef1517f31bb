"""The fields of a stored message that exchanges read."""

from __future__ import annotations

from datetime import UTC, datetime
from struct import pack
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pamqp.commands import Basic
from pamqp.frame import marshal
from pamqp.header import ContentHeader

from qq.amqp10.sections import DELIVERY_ANNOTATIONS
from qq.amqp10.values import Symbol, UInt, Value, encode
from qq.routing.content import Content
from qq.stored.content import annotation_headers, content_of, with_headers
from qq.stored.kept import kept_when_dead, kept_when_moved
from qq.stored.properties import NO_PRIORITY
from qq.tables import TABLE_BYTES_MAX, TABLE_DEPTH_MAX
from tests.stored.messages10 import message10, messages10, section


def stored(properties: Basic.Properties, body: bytes = b"body") -> bytes:
    header = marshal(ContentHeader(body_size=len(body), properties=properties), 1)
    return header + b"\x03\x00\x01" + pack(">I", len(body)) + body + b"\xce"


def seen(**properties: Any) -> Content:
    return content_of(memoryview(stored(Basic.Properties(**properties))), 7)


def test_a_message_without_properties_has_no_content() -> None:
    assert seen() == seen(priority=3, expiration="5", delivery_mode=2) == Content({}, {}, 7)


def test_headers_keep_their_types() -> None:
    headers = {"a": 1, "b": True, "c": "text", "d": [1, "x"], "e": {"f": None}}
    assert repr(seen(headers=headers).headers) == repr(headers)
    assert seen(headers=headers, content_type="x/y", content_encoding="z").headers == headers


def test_properties_that_can_be_hashed_are_texts() -> None:
    moment = datetime(2026, 11, 21, tzinfo=UTC)
    content = seen(message_id="m", correlation_id="c", timestamp=moment, app_id="a", headers={"h": 1})
    assert content.properties == {
        "message_id": "m",
        "correlation_id": "c",
        "timestamp": str(int(moment.timestamp())),
    }


def test_correlation_ids_that_are_not_utf8_stay_distinct() -> None:
    ids = [
        content_of(stored(Basic.Properties(correlation_id="??")).replace(b"??", raw), 1).properties
        for raw in (b"\xff\xfe", b"\xfe\xff", b"??")
    ]
    assert len({each["correlation_id"] for each in ids}) == 3


def test_equal_properties_are_parsed_once_but_numbers_differ() -> None:
    message = stored(Basic.Properties(headers={"a": 1}))
    one, other = content_of(message, 1), content_of(bytearray(message), 2)
    assert one.headers is other.headers
    assert (one.number, other.number) == (1, 2)
    large = stored(Basic.Properties(headers={"a": "x" * 10_000}))
    assert content_of(large, 1).headers == content_of(large, 1).headers
    assert content_of(large, 1).headers is not content_of(large, 1).headers


@given(st.integers(0, 300), st.integers(0, 255), st.integers(0, 100))
def test_damaged_content_has_no_properties(place: int, value: int, cut: int) -> None:
    damaged = bytearray(stored(Basic.Properties(headers={"a": [1, {"b": "c"}]}, message_id="m")))
    damaged[place % len(damaged)] = value
    content = content_of(bytes(damaged[: len(damaged) - cut]), 3)
    assert content.number == 3


@given(st.binary(max_size=60))
def test_random_bytes_are_read_without_an_error(noise: bytes) -> None:
    assert content_of(memoryview(noise), 5).number == 5


@given(messages10(), st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=3), st.integers(0, 50))
def test_damaged_sections_are_read_without_an_error(
    message: bytes, changes: list[tuple[int, int]], cut: int
) -> None:
    damaged = bytearray(message)
    for place, value in changes:
        damaged[place % len(damaged)] = value
    octets = bytes(damaged[: len(damaged) - cut])
    assert content_of(octets, 1).number == 1
    assert kept_when_moved(octets) == (kept_when_dead(octets)[2], kept_when_moved(octets)[1])


def test_header_behind_delivery_annotations_is_not_read() -> None:
    dropped = section(DELIVERY_ANNOTATIONS, {Symbol("x-cc"): "no"})
    assert kept_when_dead(dropped + message10()) == ([], "", NO_PRIORITY)


def test_annotations_become_headers_for_routing() -> None:
    annotations = [("x-fruit", encode("apple")), ("x-count", encode(UInt(3))), ("x-why", encode(Symbol("s")))]
    assert annotation_headers(annotations) == {"x-fruit": "apple", "x-count": 3, "x-why": "s"}


def test_annotation_nested_too_deep_becomes_no_header() -> None:
    value: Value = 0.5
    for _ in range(TABLE_DEPTH_MAX):
        value = [value]
    assert annotation_headers([("x-deep", encode(value))]) == {}


def test_header_is_replaced_unless_there_are_too_many() -> None:
    assert with_headers({"a": 1, "b": 2}, {"b": 3}) == {"a": 1, "b": 3}
    full = {"a": "x" * (TABLE_BYTES_MAX - 100)}
    assert with_headers(full, {"b": "y" * 100}) == full
