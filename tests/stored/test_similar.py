"""A message that is similar to the last ones is converted as any other message is."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qq.amqp10.sections import DATA, VALUE, MessageHeader, MessageProperties
from qq.amqp10.values import Float, Long, Symbol, Timestamp, UInt, ULong, Uuid
from qq.stored import to_frames, to_sections
from qq.stored.leading import Leading
from qq.stored.publishing10 import PublishedSections
from tests.stored.messages091 import frames, messages091, short, sized, table
from tests.stored.messages10 import message10, messages10


def alone(message: bytes) -> bytes:
    """Convert sections without the memory of other messages."""
    to_frames._similar.clear()
    [converted] = to_frames.to_frames([message], 1, 4096)
    return converted


def sections_alone(message: bytes) -> tuple[Leading, bytes]:
    to_sections._similar.clear()
    [(leading, [rest])] = to_sections.split_frames([message])
    return leading, rest


def expect_frames(messages: list[bytes]) -> None:
    expected = list(map(alone, messages))
    alone(messages[0])
    assert to_frames.to_frames(messages, 1, 4096) == expected
    assert [to_frames.to_frames([message], 1, 4096)[0] for message in messages] == expected


def expect_sections(messages: list[bytes]) -> None:
    expected = list(map(sections_alone, messages))
    sections_alone(messages[0])
    assert [(one, rest) for one, rests in to_sections.split_frames(messages) for rest in rests] == expected
    singly = [next(to_sections.split_frames([message])) for message in messages]
    assert [(leading, rest) for leading, [rest] in singly] == expected


_text = st.text("ab\xe9", min_size=3, max_size=4)
_ids = st.one_of(
    st.integers(-(2**63), 2**63 - 1).map(Long),
    st.integers(0, 2**32 - 1).map(UInt),
    _text,
    st.binary(min_size=2, max_size=3),
    st.integers(0, 2**64 - 1).map(ULong),
    st.uuids().map(lambda one: Uuid(one.bytes)),
    st.text("a", min_size=255, max_size=256),
)
_values = st.one_of(
    _text,
    _text.filter(str.isascii).map(Symbol),
    st.binary(min_size=2, max_size=3),
    st.integers(-(2**63), 2**63 - 1).map(Long),
    st.integers(0, 2**32 - 1).map(UInt),
    st.floats(allow_nan=False),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1).map(Timestamp),
)
_names = st.sampled_from(["a", b"a", UInt(97), "x-a", "CC", "timestamp_in_ms", "x-message-id"])


@given(
    st.lists(
        st.tuples(
            st.none() | _ids,
            st.none() | _ids,
            st.none() | st.integers(-(2**63), 2**63 - 1),
            st.dictionaries(_names, _values, max_size=3),
        ),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([None, {"x-a": "b"}, {"x-cc": ["k"], "x-opt-rabbitmq-received-time": Timestamp(5)}]),
)
@example(
    [(None, None, None, {key: "aaaa", "a": text}) for key in (b"a", UInt(97)) for text in ("bbb", "ccc")],
    None,
)
def test_sections_with_other_values_are_converted(
    drawn: list[Any], annotations: dict[str, Any] | None
) -> None:
    expect_frames(
        [
            message10(
                MessageHeader(durable=True),
                annotations,
                MessageProperties(message_id, b"me", "to", correlation_id=correlation_id, creation_time=time),
                named or None,
            )
            for message_id, correlation_id, time, named in drawn
        ]
    )


def test_number_of_32_bits_is_converted_when_it_is_no_number() -> None:
    number = message10(named={"a": Float(1.5)})
    expect_frames([number, number.replace(struct.pack(">f", 1.5), b"\x7f\x80\0\1")])


@given(st.lists(messages10(), min_size=1, max_size=5))
def test_any_sections_are_converted_alone_and_together(messages: list[bytes]) -> None:
    expect_frames([message for _, alike in PublishedSections(None).group(messages) for message in alike])


_short_texts = st.sampled_from(
    [b"urn:uuid:00010203-0405-0607-0809-0a0b0c0d0e0f", b"urn:uuid:0", b"\xff\xff", b"\xc3\xa9"]
)
_short = st.uuids().map(lambda one: one.urn.encode()) | st.binary(min_size=2, max_size=3) | _short_texts
SHOWN = "\ufffd".encode()
"""A name as which names that are not UTF-8 are shown."""
_fields = st.one_of(
    st.text("ab\xe9\0", min_size=2, max_size=3).map(lambda text: b"S" + sized(text.encode())),
    st.binary(min_size=2, max_size=2).map(lambda octets: b"S" + sized(octets)),
    st.binary(min_size=2, max_size=2).map(lambda octets: b"x" + sized(octets)),
    st.integers(-(2**63), 2**63 - 1).map(lambda number: b"l" + number.to_bytes(8, signed=True)),
)


@given(
    st.lists(
        st.tuples(
            st.fixed_dictionaries(
                {"delivery_mode": st.just(b"\2")},
                optional={
                    "message_id": _short.map(short),
                    "correlation_id": _short.map(short),
                    "timestamp": st.binary(min_size=8, max_size=8)
                    | st.integers(0, 2**40).map(lambda at: at.to_bytes(8)),
                },
            ),
            st.lists(st.tuples(st.sampled_from([b"a", b"b", b"x-a", b"\xff", SHOWN]), _fields), max_size=3),
        ),
        min_size=1,
        max_size=5,
    )
)
@example(
    [({}, [(b"\xff", b"S" + sized(b"aaa")), (SHOWN, b"S" + sized(text))]) for text in (b"bbbb", b"cccc")]
)
@example([({"timestamp": time, "app_id": short(b"a")}, []) for time in (b"\xff" * 8, bytes(8))])
def test_frames_with_other_values_are_converted(drawn: list[Any]) -> None:
    expect_sections(
        [frames(values | ({"headers": table(pairs)} if pairs else {}), b"body") for values, pairs in drawn]
    )


@given(st.lists(messages091, min_size=1, max_size=5))
def test_any_frames_are_converted_alone_and_together(messages: list[bytes]) -> None:
    expect_sections(messages)


_bodies10 = st.one_of(
    st.binary(min_size=11, max_size=12).map(lambda octets: [(DATA, octets)]),
    st.just([(DATA, bytes(255))]),
    st.just([(DATA, bytes(256))]),
    st.just([(DATA, b"abc"), (DATA, b"abc")]),  # as many octets as a section with eleven
    st.just([(DATA, bytes(4090))]),
    st.just([(DATA, b"")]),
    st.just([(VALUE, "text")]),
)
_heads10 = st.sampled_from([None, MessageHeader(durable=True), MessageHeader(priority=3)])


@given(st.lists(st.tuples(_heads10, _bodies10, st.integers(1, 4)), min_size=1, max_size=6))
def test_sections_of_equal_size_are_converted(drawn: list[Any]) -> None:
    messages = [message10(head, body=body) for head, body, times in drawn for _ in range(times)]
    expect_frames(messages)


_bodies091 = st.one_of(
    st.binary(min_size=11, max_size=12).map(lambda body: (body, 4096)),
    st.just((bytes(12), 12)),
    st.just((bytes(12), 16)),
    st.just((bytes(20), 4096)),  # as many octets as twelve in two frames
    st.just((bytes(255), 4096)),
    st.just((bytes(256), 4096)),
    st.just((b"", 4096)),
    st.just((message10(), 4096)),
    st.just((bytes(len(message10())), 4096)),
)
_properties091 = st.sampled_from([{}, {"delivery_mode": b"\x02"}, {"message_type": short(b"amqp-1.0")}])


@given(st.lists(st.tuples(_properties091, _bodies091, st.integers(1, 4)), min_size=1, max_size=6))
def test_frames_of_equal_size_are_converted(drawn: list[Any]) -> None:
    expect_sections(
        [frames(properties, body, part) for properties, (body, part), times in drawn for _ in range(times)]
    )


def test_bodies_of_equal_size_are_sections_or_data() -> None:
    """The property `type` claims that all of them are sections."""
    bodies = [message10()] * 3 + [bytes(len(message10()))] * 3
    expect_sections([frames({"message_type": short(b"amqp-1.0")}, body) for body in bodies])


def test_unique_ids_need_no_conversion(monkeypatch: pytest.MonkeyPatch) -> None:
    def message(number: int) -> bytes:
        return message10(properties=MessageProperties(f"{number:08}"), named={"t": f"{number:04}"})

    def framed(number: int) -> bytes:
        headers = table([(b"t", b"S" + sized(b"%04d" % number))])
        return frames({"message_id": short(b"%08d" % number), "headers": headers}, b"")

    alone(message(0))
    sections_alone(framed(0))
    expected = [alone(message(number)) for number in range(1, 9)]
    monkeypatch.setattr(to_frames, "_properties_of_data", None)
    monkeypatch.setattr(to_sections, "_head_of", None)
    assert to_frames.to_frames([message(number) for number in range(1, 9)], 1, 4096) == expected
    [(_, rests)] = to_sections.split_frames([framed(number) for number in range(1, 9)])
    assert len(set(rests)) == 8
