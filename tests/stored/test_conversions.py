"""Messages of each protocol as readers of the other get them, and back."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qq.amqp10.composites import encode_composite
from qq.amqp10.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    FOOTER,
    HEAD_BYTES_MAX,
    SEQUENCE,
    VALUE,
    MessageHeader,
    MessageProperties,
    decode_section,
    find_sections,
    joined_data,
)
from qq.amqp10.values import (
    Array,
    Byte,
    Char,
    Decimal64,
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
    encode,
)
from qq.stored.editing import content
from qq.stored.fields import check_properties
from qq.stored.layout import FLAGS_AT, FRAME_MAX, frame_stop
from qq.stored.leading import Leading, split_leading
from qq.stored.publishing10 import PublishedSections
from qq.stored.to_frames import HEADERS_BYTES_MAX, to_frames
from qq.stored.to_sections import split_frames, to_sections
from tests.amqp10.amqp10_values import typed
from tests.stored.messages091 import frames, messages091, short, sized, table
from tests.stored.messages10 import message10, messages10, section

UUID = Uuid(bytes(range(16)))
UUID_TEXT = "urn:uuid:00010203-0405-0607-0809-0a0b0c0d0e0f"


def converted(message: bytes, frame_max: int = 4096) -> bytes:
    [result] = to_frames([message], 1, frame_max)
    return result


def properties_of(message: bytes) -> dict[str, Any]:
    """Return the properties that the message has, by pamqp's names."""
    properties = content(converted(message)).properties
    return {name: value for name, value in properties if value not in (None, "")}


# --- 1.0 to 0-9-1


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, {"delivery_mode": 2}),
        (MessageHeader(priority=4), {"delivery_mode": 2, "priority": 4}),
        (MessageHeader(durable=True, ttl=0), {"delivery_mode": 2, "expiration": "0"}),
        (
            MessageHeader(durable=False, priority=0, ttl=2**32 - 1),
            {"priority": 0, "expiration": "4294967295"},
        ),
    ],
)
def test_header_becomes_properties(header: MessageHeader | None, expected: dict[str, Any]) -> None:
    assert properties_of(message10(header)) == expected


@pytest.mark.parametrize(
    ("value", "text", "header"),
    [
        ("m", "m", None),
        ("é" * 127, "é" * 127, None),
        ("é" * 128, None, "é" * 128),
        (ULong(2**64 - 1), "18446744073709551615", None),
        (Long(-(2**63)), "-9223372036854775808", None),
        (UInt(7), "7", None),
        (UUID, UUID_TEXT, None),
        (b"m", None, b"m"),
    ],
)
def test_ids_become_texts_or_headers(value: Any, text: str | None, header: Any) -> None:
    found = properties_of(message10(properties=MessageProperties(value, correlation_id=value)))
    headers = {} if header is None else {"x-message-id": header, "x-correlation-id": header}
    assert (found.get("message_id"), found.get("correlation_id")) == (text, text)
    assert found.get("headers", {}) == headers


def test_other_properties_have_counterparts_or_are_lost() -> None:
    every = MessageProperties(
        None,
        b"me",
        "to",
        "subject",
        "/queues/q%20%2F",
        None,
        "text/plain",
        "gzip",
        5,
        1999,
        "group",
        7,
        "reply-group",
    )
    assert properties_of(message10(annotations={"x-basic-type": "kind"}, properties=every)) == {
        "delivery_mode": 2,
        "user_id": "me",
        "reply_to": "q /",
        "content_type": "text/plain",
        "content_encoding": "gzip",
        "timestamp": 1,
        "app_id": "group",
        "message_type": "kind",
    }
    long = "x" * 256
    unfit = MessageProperties(None, b"\xff", reply_to=long, content_type=long, group_id=long)
    assert properties_of(message10(annotations={"x-basic-type": long}, properties=unfit)) == {
        "delivery_mode": 2
    }
    addresses = {"/exchanges/e/k": "/exchanges/e/k", "/queues/": "/queues/", "q": "q"}
    for address, expected in addresses.items():
        found = properties_of(message10(properties=MessageProperties(reply_to=address)))
        assert found["reply_to"] == expected
    assert "user_id" not in properties_of(message10(properties=MessageProperties(user_id=b"a\0")))


VALUES = [
    ("text", b"S\0\0\0\4text"),
    (Symbol("sym"), b"S\0\0\0\3sym"),
    (b"\xff", b"S\0\0\0\1\xff"),
    (UByte(200), b"B\xc8"),
    (Byte(-1), b"b\xff"),
    (UShort(65535), b"u\xff\xff"),
    (Short(-2), b"s\xff\xfe"),
    (UInt(5), b"i\0\0\0\5"),
    (Int(-5), b"I\xff\xff\xff\xfb"),
    (Long(-1), b"l" + b"\xff" * 8),
    (ULong(2**64 - 1), b"l" + b"\xff" * 8),
    (Float(1.5), b"f" + struct.pack(">f", 1.5)),
    (1.1, b"d" + struct.pack(">d", 1.1)),
    (True, b"t\1"),
    (Timestamp(1999), b"T" + (1).to_bytes(8)),
    (Timestamp(-1999), b"T" + (2**64 - 1).to_bytes(8)),
    (None, b"V"),
    ([True, Char(65), "a"], b"A" + sized(b"t\1S\0\0\0\1a")),
    (Array(0xA3, [Symbol("a")]), b"A" + sized(b"S\0\0\0\1a")),
    ({Symbol("k"): UByte(1), "l": None, UInt(5): True, "n" * 256: True}, b"F" + sized(b"\1kB\1\1lV")),
    (Char(65), None),
    (Decimal64(bytes(8)), None),
    (UUID, None),
    (Described(Symbol("d"), 1.5), None),
    (Array(0x45, [[], []], Symbol("d")), None),
    (Array(0x44, [ULong(0)] * 2), None),
]


@pytest.mark.parametrize(("value", "field"), VALUES)
def test_value_becomes_a_field(value: Any, field: bytes | None) -> None:
    message = converted(message10(annotations={"x-a": value}, named={"n": value}))
    pairs = [] if field is None else [(b"x-a", field), (b"n", field)]
    values = {"delivery_mode": b"\2"} | ({"headers": table(pairs)} if pairs else {})
    assert message == frames(values, b"body")


def test_annotations_become_headers() -> None:
    annotations = {
        "x-cc": ["a", "b"],
        "x-opt-rabbitmq-received-time": Timestamp(1234),
        "x-delay": UInt(500),
        "x-exchange": "e",
        "x-routing-key": "k",
        "x-basic-priority": UByte(1),
        "x-death": "no",
        "x-opt-deaths": "no",
        "x-" + "n" * 254: True,
        "x-same": 1.5,
    }
    assert properties_of(message10(annotations=annotations, named={"x-same": 2.5, "n" * 256: True}))[
        "headers"
    ] == {
        "CC": ["a", "b"],
        "timestamp_in_ms": 1234,
        "x-delay": -500,
        "x-same": 1.5,
    }


def test_deaths_become_x_death() -> None:
    death: dict[Any, Any] = {
        Symbol("ttl"): UInt(9),
        Symbol("queue"): "q",
        Symbol("reason"): Symbol("expired"),
        Symbol("count"): ULong(2),
        Symbol("first-time"): Timestamp(5000),
        Symbol("last-time"): Timestamp(7000),
        Symbol("exchange"): "e",
        Symbol("routing-keys"): Array(0xA1, ["k", "l"]),
    }
    without = {key: value for key, value in death.items() if key != "ttl"}
    expected = {
        "count": 2,
        "reason": "expired",
        "queue": "q",
        "time": datetime.fromtimestamp(5, tz=UTC),
        "exchange": "e",
        "routing-keys": ["k", "l"],
    }
    found = properties_of(message10(annotations={"x-opt-deaths": Array(0xD1, [death, without])}))["headers"]
    assert found == {"x-death": [{"original-expiration": "9"} | expected, expected]}
    del without[Symbol("queue")]
    assert "headers" not in properties_of(message10(annotations={"x-opt-deaths": Array(0xD1, [without])}))


@pytest.mark.parametrize("footer", [None, {"x-f": True}])
def test_body_is_data_or_encoded_sections(footer: dict[str, Any] | None) -> None:
    data = message10(body=[(DATA, b"a" * 300), (DATA, b""), (DATA, b"b")], footer=footer)
    assert content(converted(data)).body == b"a" * 300 + b"b"
    assert content(converted(message10(body=[(DATA, b"")], footer=footer))).body == b""
    for body in ([(VALUE, {"k": [None]})], [(SEQUENCE, [True]), (SEQUENCE, [])]):
        properties, payload = content(converted(message10(MessageHeader(), body=body, footer=footer)))
        assert payload == message10(body=body, footer=footer)
        assert properties.message_type == "amqp-1.0"


def test_large_message_fits_into_the_frames_of_a_channel() -> None:
    message = message10(body=[(DATA, bytes(10_000))])
    [framed] = to_frames([message], 7, 4096)
    at = 0
    while at < len(framed):
        stop = frame_stop(framed, at)
        assert framed[at + 1 : at + 3] == b"\0\7"
        assert stop - at <= 4096
        at = stop
    assert content(framed).body == bytes(10_000)


def test_head_without_a_body_is_converted() -> None:
    properties = MessageProperties("m")
    assert properties_of(message10(MessageHeader(priority=3), properties=properties, body=[])) == {
        "delivery_mode": 2,
        "priority": 3,
        "message_id": "m",
    }
    assert properties_of(b"") == {"delivery_mode": 2}


def test_headers_beyond_a_frame_are_left_out() -> None:
    named = {f"{number:05}": "v" * 18 for number in range(4700)}
    long = "x" * 255
    every = MessageProperties(
        long,
        b"u" * 255,
        reply_to=long,
        correlation_id=long,
        content_type=long,
        content_encoding=long,
        group_id=long,
    )
    message = message10(MessageHeader(ttl=2**32 - 1), {"x-basic-type": long}, every, named)
    assert len(message) <= HEAD_BYTES_MAX
    assert len(converted(message)) < FRAME_MAX
    headers = properties_of(message)["headers"]
    size = sum(6 + 5 + 18 for _ in headers)
    assert HEADERS_BYTES_MAX - 29 < size <= HEADERS_BYTES_MAX
    assert headers.items() <= named.items()


@given(st.lists(messages10(), min_size=1, max_size=4), st.sampled_from([40, 4096]))
def test_every_accepted_message_becomes_valid_frames(messages: list[bytes], frame_max: int) -> None:
    for _, stored in PublishedSections(None).group(messages):
        together = to_frames(stored, 3, frame_max)
        for message, framed in zip(stored, together, strict=True):
            assert to_frames([message], 3, frame_max) == [framed]
            header_stop = frame_stop(framed, 0)
            check_properties(framed[FLAGS_AT : header_stop - 1])
            properties, body = content(framed)
            sections = find_sections(message)
            if sections.body_kind == DATA:
                assert body == joined_data(message[sections.body : sections.footer or len(message)])
            else:
                assert (properties.message_type, body) == ("amqp-1.0", message[sections.body :])


# --- 0-9-1 to 1.0


def parts_of(message: bytes) -> dict[str, Any]:
    """Return the decoded sections of a converted message."""
    octets = to_sections(message)
    found = find_sections(octets)
    edges = dict(zip(("annotations", "properties", "named", "body"), found[1:5], strict=True))
    ends = [*list(edges.values())[1:], len(octets)]
    parts = {name: octets[at:end] for (name, at), end in zip(edges.items(), ends, strict=True)}
    decoded = {name: decode_section(part) for name, part in parts.items() if part and name != "body"}
    return {"header": decode_section(octets[: found.message_annotations]), "body": parts["body"]} | decoded


def test_properties_become_sections() -> None:
    values = {
        "content_type": short(b"text/plain"),
        "content_encoding": short(b"gzip"),
        "delivery_mode": b"\2",
        "priority": b"\7",
        "correlation_id": short(UUID_TEXT.upper().replace("URN:UUID", "urn:uuid").encode()),
        "reply_to": short("q /é".encode()),
        "expiration": short(b"60000"),
        "message_id": short(b"\xff"),
        "timestamp": (5).to_bytes(8),
        "message_type": short(b"kind"),
        "user_id": short(b"me"),
        "app_id": short(b"app"),
    }
    assert parts_of(frames(values, b"data")) == {
        "header": MessageHeader(durable=True, priority=7, ttl=60_000),
        "annotations": {"x-basic-type": "kind"},
        "properties": MessageProperties(
            b"\xff",
            b"me",
            reply_to="/queues/q%20%2F%C3%A9",
            correlation_id=UUID,
            content_type="text/plain",
            content_encoding="gzip",
            creation_time=5000,
            group_id="app",
        ),
        "body": section(DATA, b"data"),
    }


def test_message_without_properties_has_a_header_only() -> None:
    assert to_sections(frames({}, b"")) == encode_composite(MessageHeader(durable=False)) + section(DATA, b"")
    assert parts_of(frames({"delivery_mode": b"\1"}, b""))["header"].durable is False
    large = frames({}, b"x" * 300)
    assert to_sections(large).endswith(section(DATA, b"x" * 300))


def test_ttl_beyond_32_bits_is_the_largest() -> None:
    assert parts_of(frames({"expiration": short(b"315360000000")}, b""))["header"].ttl == 2**32 - 1


FIELDS = [
    (b"S\0\0\0\4text", "text"),
    (b"S\0\0\0\1\0", b"\0"),
    (b"S\0\0\0\1\xff", b"\xff"),
    (b"x\0\0\0\1a", b"a"),
    (b"t\1", True),
    (b"b\xff", Byte(-1)),
    (b"B\xff", UByte(255)),
    (b"s\xff\xfe", Short(-2)),
    (b"u\xff\xfe", UShort(65534)),
    (b"I\xff\xff\xff\xff", Int(-1)),
    (b"i\xff\xff\xff\xff", UInt(2**32 - 1)),
    (b"l" + b"\xff" * 8, Long(-1)),
    (b"L" + b"\xff" * 8, Long(-1)),
    (b"f" + struct.pack(">f", 1.5), Float(1.5)),
    (b"d" + struct.pack(">d", 1.1), 1.1),
    (b"V", None),
    (b"T" + (5).to_bytes(8), Timestamp(5000)),
]


@pytest.mark.parametrize(("field", "value"), FIELDS)
def test_field_becomes_a_value(field: bytes, value: Any) -> None:
    parts = parts_of(frames({"headers": table([(b"x-a", field), (b"n", field)])}, b""))
    assert typed(parts["annotations"]) == typed({Symbol("x-a"): value})
    assert typed(parts["named"]) == typed({"n": value})


def test_containers_become_annotations_only() -> None:
    array = b"A" + sized(b"t\1" + b"D\0\0\0\0\1" + b"F" + table([(b"k", b"V"), (b"k", b"t\1")]))
    headers = [(b"x-a", array), (b"n", array), (b"m", b"F" + table([])), (b"CC", b"A" + sized(b"S\0\0\0\1k"))]
    parts = parts_of(frames({"headers": table(headers)}, b""))
    assert typed(parts["annotations"]) == typed(
        {Symbol("x-a"): [True, {Symbol("k"): None}], Symbol("x-cc"): ["k"]}
    )
    assert "named" not in parts


def test_values_without_counterpart_are_lost() -> None:
    lost = [(b"x-a", b"D\0\0\0\0\1"), (b"n", b"T" + (2**63).to_bytes(8))]
    message = frames({"headers": table(lost), "timestamp": (2**63).to_bytes(8)}, b"")
    assert parts_of(message).keys() == {"header", "body"}


def test_body_of_encoded_sections_stays_as_it_is() -> None:
    encoded = section(VALUE, {"k": True}) + section(FOOTER, {Symbol("x-f"): True})
    kind = {"message_type": short(b"amqp-1.0")}
    assert parts_of(frames(kind, encoded))["body"] == encoded
    for payload in (
        b"\x00\x53",
        b"",
        message10(MessageHeader()),
        section(APPLICATION_PROPERTIES, {}) + encoded,
    ):
        assert parts_of(frames(kind, payload))["body"] == section(DATA, payload)


@given(st.lists(messages091, min_size=1, max_size=4))
def test_every_message_of_frames_becomes_valid_sections(messages: list[bytes]) -> None:
    found = [(leading, rest) for leading, rests in split_frames(messages) for rest in rests]
    assert len(found) == len(messages)
    for message, (leading, rest) in zip(messages, found, strict=True):
        octets = to_sections(message)
        [(_, [stored])] = (
            PublishedSections(None).group([octets]) if b"x-cc" not in octets else [(None, [octets])]
        )
        assert stored == octets
        [(same, [bare])] = split_leading([octets])
        assert same == leading if leading.header != MessageHeader() else Leading(annotations=same.annotations)
        assert bare == rest
        sections = find_sections(rest)
        if sections.body_kind == DATA:
            assert joined_data(rest[sections.body : sections.footer or None]) == content(message).body


# --- there and back

SIMPLE = st.one_of(
    st.none(),
    st.booleans(),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20),
    st.integers(0, 255).map(UByte),
    st.integers(-(2**31), 2**31 - 1).map(Int),
    st.integers(-(2**63), 2**63 - 1).map(Long),
    st.floats(allow_nan=False),
    st.integers(0, 2**32).map(lambda seconds: Timestamp(seconds * 1000)),
)


@given(
    st.tuples(st.booleans(), st.none() | st.integers(0, 255), st.none() | st.integers(0, 2**32 - 1)),
    st.fixed_dictionaries(
        {},
        optional={
            "message_id": st.uuids().map(lambda one: Uuid(one.bytes)) | st.text("ab", max_size=9),
            "user_id": st.just(b"me"),
            "reply_to": st.just("/queues/q%20"),
            "content_type": st.just("text/plain"),
            "creation_time": st.integers(0, 2**32).map(lambda seconds: seconds * 1000),
            "group_id": st.text("ab", max_size=9),
        },
    ),
    st.dictionaries(st.sampled_from(["x-a", "x-b"]), SIMPLE, max_size=2),
    st.dictionaries(st.sampled_from(["a", "b"]), SIMPLE, max_size=2),
    st.sampled_from([[(DATA, b"x" * 300)], [(SEQUENCE, [True]), (SEQUENCE, [])]]),
)
def test_message_survives_both_conversions(
    fields: tuple[bool, int | None, int | None],
    properties: dict[str, Any],
    annotations: dict[str, Any],
    named: dict[str, Any],
    body: list[tuple[int, Any]],
) -> None:
    header = MessageHeader(*fields)
    stated = MessageProperties(**properties) if properties else None
    message = message10(header, annotations or None, stated, named or None, body)
    if body[0][0] == SEQUENCE:
        annotations = annotations | {"x-basic-type": "amqp-1.0"}
    back = to_sections(converted(message))
    [(leading, [rest])] = split_leading([back])
    [(_, [bare])] = split_leading([message])
    assert rest == bare
    assert leading.header == header
    assert dict(leading.annotations) == {name: encode(value) for name, value in annotations.items()}
