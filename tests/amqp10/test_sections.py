"""Sections: each order, cut and damage against a reader that decodes them; properties, annotations, data."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qq.amqp10.composites import encode_composite
from qq.amqp10.conditions import UndecodableValue
from qq.amqp10.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEAD_BYTES_MAX,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SECTIONS_MAX,
    SEQUENCE,
    SHORT_DATA,
    VALUE,
    MessageHeader,
    MessageProperties,
    Sections,
    decode_section,
    encode_annotations,
    find_sections,
    joined_data,
    split_annotations,
)
from qq.amqp10.values import Described, Long, Symbol, Timestamp, UInt, ULong, Uuid, ValueReader, encode
from tests.amqp10.amqp10_values import encode_anyhow, primitives

HEADER_OCTETS = encode_composite(MessageHeader(durable=True, priority=1))
PROPERTIES_OCTETS = encode_composite(MessageProperties("m1", correlation_id=b"c"))


def section(code: int, value: Any) -> bytes:
    return encode(Described(ULong(code), value))


DATA_OCTETS = section(DATA, b"hello")
DIVERSE = [
    HEADER_OCTETS,
    section(DELIVERY_ANNOTATIONS, {Symbol("d"): UInt(1)}),
    section(MESSAGE_ANNOTATIONS, {Symbol("x-a"): "b" * 300}),
    PROPERTIES_OCTETS,
    section(APPLICATION_PROPERTIES, {"k": "v"}),
    DATA_OCTETS,
    section(FOOTER, {Symbol("f"): True}),
]
"""A section of each code but sequence and value, in order."""


@pytest.mark.parametrize("present", range(128))
def test_section_is_found_when_the_rest_is_absent(present: int) -> None:
    parts = [octets if present >> i & 1 else b"" for i, octets in enumerate(DIVERSE)]
    message = b"".join(parts)
    if not parts[5]:
        with pytest.raises(UndecodableValue, match="without a body"):
            find_sections(message)
        return
    found = find_sections(message)
    assert found.body_kind == DATA
    assert bool(found.footer) == bool(parts[6])
    edges = [0, *found[:5], found.footer or len(message), len(message)]
    assert [message[begin:end] for begin, end in pairwise(edges)] == parts


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ([DATA_OCTETS] * 3, DATA),
        ([section(SEQUENCE, [None, "a"]), section(SEQUENCE, [])], SEQUENCE),
        ([section(VALUE, None)], VALUE),
        ([section(VALUE, Described(Symbol("d"), {"k": []}))], VALUE),
        ([b"\x00\x80" + bytes(7) + b"\x75\xb0\x00\x00\x00\x01x"], DATA),
        ([b"\x00\xa3\x10amqp:data:binary\xa0\x00"], DATA),
    ],
)
def test_body_has_a_single_kind(body: list[bytes], kind: int) -> None:
    message = HEADER_OCTETS + b"".join(body)
    absent = len(HEADER_OCTETS)
    assert find_sections(message) == Sections(absent, absent, absent, absent, absent, kind, 0)


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([], "without a body"),
        ([HEADER_OCTETS, HEADER_OCTETS, DATA_OCTETS], "section 0x70 behind section 0x70"),
        ([PROPERTIES_OCTETS, HEADER_OCTETS, DATA_OCTETS], "section 0x70 behind section 0x73"),
        ([DATA_OCTETS, PROPERTIES_OCTETS], "section 0x73 behind section 0x75"),
        ([DATA_OCTETS, DIVERSE[6], DATA_OCTETS], "section 0x75 behind section 0x78"),
        ([DATA_OCTETS, section(VALUE, None)], "two bodies"),
        ([section(VALUE, None), section(VALUE, None)], "section 0x77 behind section 0x77"),
        ([section(SEQUENCE, []), DATA_OCTETS], "section 0x75 behind section 0x76"),
        ([section(DATA, "text")], "section 0x75 with constructor 0xa1"),
        ([section(HEADER, None), DATA_OCTETS], "section 0x70 with constructor 0x40"),
        ([section(MESSAGE_ANNOTATIONS, []), DATA_OCTETS], "section 0x72 with constructor 0x45"),
        ([section(0x79, []), DATA_OCTETS], "unknown section"),
        ([section(0x24, []), DATA_OCTETS], "unknown section"),
        ([encode("text")], "constructor 0xa1 instead of a section"),
        ([DATA_OCTETS, b"\x00"], "longer than the octets"),
        ([b"\x00\x53\x75\xb0\xff\xff\xff\xff"], "longer than its message"),
        ([b"\x00\x53\x75\xa0\x05abc"], "longer than"),
        ([DATA_OCTETS * (SECTIONS_MAX + 1)], "SECTIONS_MAX"),
        ([section(APPLICATION_PROPERTIES, {"k": bytes(HEAD_BYTES_MAX)}), DATA_OCTETS], "HEAD_BYTES_MAX"),
    ],
)
def test_invalid_message_is_refused_with_a_reason(parts: list[bytes], text: str) -> None:
    message = b"".join(parts)
    with pytest.raises(UndecodableValue, match=text):
        find_sections(message)


def test_message_is_accepted_when_it_is_at_its_limits() -> None:
    find_sections(DATA_OCTETS * SECTIONS_MAX)
    empty = len(section(APPLICATION_PROPERTIES, {"k": bytes(300)})) - 300
    head = section(APPLICATION_PROPERTIES, {"k": bytes(HEAD_BYTES_MAX - empty)})
    assert find_sections(head + DATA_OCTETS).body == HEAD_BYTES_MAX


def test_cut_message_is_refused() -> None:
    wide = [
        section(MESSAGE_ANNOTATIONS, {Symbol("x-a"): "b" * 300}),
        section(PROPERTIES, ["m" * 300]),
        section(DATA, bytes(300)),
    ]
    for message in (b"".join(wide), b"".join(DIVERSE[:6])):
        for end in range(len(message)):
            with pytest.raises(UndecodableValue):
                find_sections(message[:end])


maps = st.dictionaries(st.text(max_size=5).map(Symbol), primitives, max_size=3)
bodies = st.one_of(
    st.lists(st.tuples(st.just(DATA), st.binary(max_size=300)), min_size=1, max_size=2),
    st.lists(st.tuples(st.just(SEQUENCE), st.lists(primitives, max_size=3)), min_size=1, max_size=2),
    st.lists(st.tuples(st.just(VALUE), primitives), min_size=1, max_size=1),
)
heads = st.tuples(
    *(
        st.lists(st.tuples(st.just(code), contents), max_size=1)
        for code, contents in (
            (HEADER, st.lists(primitives, max_size=3)),
            (DELIVERY_ANNOTATIONS, maps),
            (MESSAGE_ANNOTATIONS, maps),
            (PROPERTIES, st.lists(primitives, max_size=3)),
            (APPLICATION_PROPERTIES, maps),
        )
    )
)
footers = st.lists(st.tuples(st.just(FOOTER), maps), max_size=1)


@st.composite
def messages(draw: st.DrawFn) -> list[tuple[int, bytes]]:
    """Sections in order, each with its code, in any encoding."""
    rnd = draw(st.randoms(use_true_random=False))
    drawn = [*(one for part in draw(heads) for one in part), *draw(bodies), *draw(footers)]
    return [
        (code, b"\x00\x53" + bytes((code,)) + encode_anyhow(value, rnd))
        if rnd.random() < 0.9
        else (code, encode_anyhow(Described(ULong(code), value), rnd))
        for code, value in drawn
    ]


def dumb_sections(message: bytes) -> list[tuple[int, int]]:
    """Return code and position of each section by decoding them."""
    found: list[tuple[int, int]] = []
    reader = ValueReader(message, 0, len(message))
    while reader.at < len(message):
        begin = reader.at
        described = reader.read()
        assert isinstance(described, Described)
        assert isinstance(described.descriptor, ULong)
        found.append((int(described.descriptor), begin))
    return found


@given(st.lists(messages(), min_size=1, max_size=3))
def test_sections_are_those_of_a_reader_that_decodes(drawn: list[list[tuple[int, bytes]]]) -> None:
    for parts in drawn:
        message = b"".join(octets for _, octets in parts)
        found = dumb_sections(message)
        sections = find_sections(message)
        begins = dict(reversed(found))
        body = next(begins[code] for code in (DATA, SEQUENCE, VALUE) if code in begins)
        expected = [body]
        for code in (APPLICATION_PROPERTIES, PROPERTIES, MESSAGE_ANNOTATIONS, DELIVERY_ANNOTATIONS):
            expected.insert(0, begins.get(code, expected[0]))
        assert list(sections[:5]) == expected
        assert message[body:].startswith(b"\x00")
        assert sections.footer == begins.get(FOOTER, 0)


def test_section_is_decoded() -> None:
    assert decode_section(HEADER_OCTETS) == MessageHeader(durable=True, priority=1)
    assert decode_section(section(HEADER, [])) == MessageHeader(None, None, None, None, 0)
    assert decode_section(section(HEADER, {Symbol("ttl"): UInt(5)})) == MessageHeader(ttl=5)
    assert decode_section(PROPERTIES_OCTETS) == MessageProperties("m1", correlation_id=b"c")
    assert decode_section(DIVERSE[4]) == {"k": "v"}
    assert decode_section(DATA_OCTETS) == b"hello"
    with pytest.raises(UndecodableValue, match="no section"):
        decode_section(b"\x45")


@pytest.mark.parametrize("message_id", ["m", b"octets", ULong(2**63), Uuid(b"u" * 16), Long(-1), UInt(1)])
def test_message_id_keeps_its_type(message_id: Any) -> None:
    decoded = decode_section(encode_composite(MessageProperties(message_id)))
    assert decoded.message_id == message_id
    assert type(decoded.message_id) is type(message_id)
    for other in (Symbol("m"), True, Timestamp(1), 1.0):
        with pytest.raises(UndecodableValue, match="message-id is no message id"):
            decode_section(section(PROPERTIES, [other]))


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=4))
def test_data_sections_are_joined(parts: list[bytes]) -> None:
    encoded = [
        section(DATA, part) if i % 2 else b"\x00\x53\x75\xb0" + _long(part) for i, part in enumerate(parts)
    ]
    assert joined_data(b"".join(encoded)) == b"".join(parts)


@pytest.mark.parametrize("parts", [[b""] * 3, [b"a", SHORT_DATA, b"b" * 255], [b"a", SHORT_DATA + b"\1"]])
@pytest.mark.parametrize("footer", [b"", section(FOOTER, {})])
def test_short_data_sections_are_joined(parts: list[bytes], footer: bytes) -> None:
    encoded = b"before" + b"".join(section(DATA, part) for part in parts)
    assert joined_data(encoded + footer, len(b"before")) == b"".join(parts)


def _long(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


@given(st.dictionaries(st.text(max_size=5).map(Symbol), primitives, max_size=30))
def test_annotations_keep_the_octets_of_their_values(annotations: dict[Symbol, Any]) -> None:
    octets = section(MESSAGE_ANNOTATIONS, annotations)
    items = split_annotations(octets)
    assert items == [(key, encode(value)) for key, value in annotations.items()]
    assert encode_annotations(MESSAGE_ANNOTATIONS, [(encode(key), value) for key, value in items]) == octets


@given(
    st.dictionaries(st.text(max_size=5).map(Symbol), primitives, min_size=1),
    st.integers(0),
    st.integers(0, 255),
)
def test_damaged_annotations_are_split_or_refused(
    annotations: dict[Symbol, Any], place: int, octet: int
) -> None:
    damaged = bytearray(section(MESSAGE_ANNOTATIONS, annotations))
    damaged[3 + place % (len(damaged) - 3)] = octet
    try:
        find_sections(bytes(damaged) + DATA_OCTETS)
        split_annotations(bytes(damaged))
    except UndecodableValue:
        pass
