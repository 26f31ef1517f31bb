"""Messages of a link are checked and grouped, and a message like the last is read as any message is."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qq.amqp10.conditions import Condition, ConditionError
from qq.amqp10.sections import (
    DATA,
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    VALUE,
    MessageHeader,
    MessageProperties,
)
from qq.amqp10.values import Float, Int, Long, Symbol, UInt, ULong, Uuid
from qq.stored.kinds import has_sections, head_stop
from qq.stored.properties import NO_PRIORITY, NO_TTL, Attributes
from qq.stored.publishing10 import SHAPE_BYTES_MAX, PublishedSections, properties_of
from tests.stored.messages10 import message10, messages10, section

HEAD = MessageHeader(durable=True, priority=1)


def grouped(
    *messages: bytes, user: str | None = None, **limits: int
) -> list[tuple[Attributes | None, list[bytes]]]:
    return list(PublishedSections(user).group(messages, **limits))


def refusal(message: bytes, user: str | None = None) -> tuple[Condition, str]:
    with pytest.raises(ConditionError) as caught:
        grouped(message, user=user)
    return caught.value.condition, caught.value.description


def test_attributes_are_those_of_header_and_annotations() -> None:
    plain = message10(properties=MessageProperties("m"))
    assert grouped(plain) == [(None, [plain])]
    [(found, _)] = grouped(
        message10(MessageHeader(ttl=7, priority=9), {"x-cc": ["a", "b"], "x-delay": Int(5)})
    )
    assert found == Attributes(("a", "b"), 9, 7, 5)
    [(found, _)] = grouped(message10(HEAD, {"x-publisher-id": Symbol("p"), "x-publish-seq": ULong(3)}))
    assert found == Attributes((), 1, NO_TTL, 0, "p", 3)
    [(found, _)] = grouped(message10(MessageHeader(durable=True, ttl=0)))
    assert found == Attributes((), NO_PRIORITY, 0)


@pytest.mark.parametrize(
    ("value", "delay"),
    [("12", 12), (Symbol("13"), 13), (1.5, 1), (Float(2.0), 2), (UInt(3), 3)]
    + [(bad, 0) for bad in (-1, "1.5", True, None, float("nan"), [], Long(2**62), "9" * 40)],
)
def test_delay_is_read_as_the_header_of_that_name(value: Any, delay: int) -> None:
    value = Long(value) if type(value) is int else value
    [(found, _)] = grouped(message10(annotations={"x-delay": value}))
    assert (found.delay_ms if found else 0) == delay


def test_delay_above_the_limit_counts_as_no_delay() -> None:
    message = message10(annotations={"x-delay": UInt(8)})
    assert grouped(message, delay_max_ms=7) == [(None, [message])]


@pytest.mark.parametrize(
    ("annotations", "text"),
    [
        ({"x-cc": "a"}, "bad value for 'x-cc' message-annotation: {utf8,<<\"a\">>}"),
        ({"x-cc": ["a", Symbol("b")]}, '{list,[{utf8,<<"a">>},{symbol,<<"b">>}]}'),
        ({"x-cc": ULong(99)}, "bad value for 'x-cc' message-annotation: {ulong,99}"),
        (
            {"x-cc": ["🥕", 1.5, None, b"\xff"]},
            '{list,[{utf8,<<"🥕"/utf8>>},{double,1.5},null,{binary,<<255>>}]}',
        ),
        ({"x-cc": ["k"] * 257}, "KEYS_MAX=256"),
        ({"x-publisher-id": "p"}, "annotation 'x-publisher-id' without annotation 'x-publish-seq'"),
        ({"x-publish-seq": Long(1)}, "annotation 'x-publish-seq' without annotation 'x-publisher-id'"),
        ({"x-publisher-id": "", "x-publish-seq": Long(1)}, "invalid annotation 'x-publisher-id'"),
        ({"x-publisher-id": "p", "x-publish-seq": Long(0)}, "invalid annotation 'x-publish-seq'"),
        ({"x-publisher-id": "p", "x-publish-seq": True}, "invalid annotation 'x-publish-seq'"),
        ({"x-publisher-id": "p", "x-publish-seq": ULong(2**63)}, "invalid annotation 'x-publish-seq'"),
    ],
)
def test_invalid_annotation_is_refused_with_its_reason(annotations: dict[str, Any], text: str) -> None:
    condition, description = refusal(message10(annotations=annotations))
    assert condition is Condition.INVALID_FIELD
    assert text in description


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (message10(annotations={"key": 1.5}), "reserved key 'key'"),
        (section(MESSAGE_ANNOTATIONS, {ULong(1): True}) + message10(), "reserved key"),
        (section(DELIVERY_ANNOTATIONS, {Symbol("k"): True}) + message10(), "reserved key"),
        (section(MESSAGE_ANNOTATIONS, {Symbol("x-a"): [None] * 10_000}) + message10(), "VALUES_MAX"),
        (section(PROPERTIES, [True]) + message10(), "message-id is no message id"),
        (section(HEADER, [None, UInt(1)]) + message10(), "priority is no ubyte"),
        (b"", "without a body"),
        (message10() + message10(HEAD), "behind section"),
    ],
)
def test_undecodable_message_is_refused(message: bytes, text: str) -> None:
    condition, description = refusal(message)
    assert condition is Condition.DECODE_ERROR
    assert text in description


def test_foreign_user_is_refused_unless_any_may_be_named() -> None:
    message = message10(properties=MessageProperties("m", b"other"))
    expected = "user_id property set to 'other' but authenticated user was 'me'"
    assert refusal(message, "me") == (Condition.UNAUTHORIZED_ACCESS, expected)
    assert grouped(message) == [(None, [message])]
    own = message10(properties=MessageProperties("n", b"me"))
    reader = PublishedSections("me")
    assert list(reader.group([own])) == [(None, [own])]
    with pytest.raises(ConditionError):  # of the same shape as the last
        list(reader.group([message10(properties=MessageProperties("n", b"em"))]))


def test_messages_before_an_invalid_message_are_published() -> None:
    reader = PublishedSections(None).group(
        [message10(), message10(HEAD), message10(HEAD), b"\x00", message10()]
    )
    assert next(reader) == (None, [message10()])
    assert next(reader) == (Attributes((), 1), [message10(HEAD)] * 2)
    with pytest.raises(ConditionError):
        next(reader)


@pytest.mark.parametrize("count", [2, 200])
@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize(
    "other",
    [
        message10(HEAD, body=[(DATA, b"b0dy")]),
        message10(MessageHeader(durable=True, priority=2)),
        message10(HEAD, body=[(DATA, b"bod")]) + b"x",
        message10(HEAD) + b"x",
        message10(HEAD, body=[(VALUE, "body")]),
        message10(HEAD, body=[(DATA, b"body and more")]),
        message10(HEAD, footer={"x-f": True}),
    ],
)
def test_message_among_alike_messages_is_read_exactly(other: bytes, is_first: bool, count: int) -> None:
    alike = message10(HEAD)
    known = PublishedSections("guest")
    assert list(known.group([alike])) == grouped(alike)
    messages = [other, *[alike] * count] if is_first else [*[alike] * count, other]
    try:
        expected = grouped(other)
    except ConditionError as refused:
        with pytest.raises(ConditionError, match=re.escape(refused.description)):
            list(known.group(messages))
        return
    found = [(attributes, message) for attributes, group in known.group(messages) for message in group]
    attributes = {alike: grouped(alike)[0][0], other: expected[0][0]}
    assert found == [(attributes[message], message) for message in messages]


def test_delivery_annotations_are_not_stored() -> None:
    header, rest = message10(HEAD, body=[]), message10(properties=MessageProperties("m1"))
    other = message10(properties=MessageProperties("m2"))
    dropped = section(DELIVERY_ANNOTATIONS, {Symbol("x-d"): 1.5})
    assert grouped(header + dropped + rest, header + dropped + other) == [
        (Attributes((), 1), [header + rest, header + other])
    ]


def test_sequence_numbers_that_follow_form_a_group() -> None:
    def numbered(number: int, publisher: str = "p") -> bytes:
        return message10(HEAD, {"x-publisher-id": publisher, "x-publish-seq": Long(number)})

    messages = [numbered(number) for number in (200, 201, 202, 300, 301, 301)] + [numbered(302, "q")]
    found = grouped(*messages)
    assert [(each and (each.publisher, each.publish_seq), len(alike)) for each, alike in found] == [
        (("p", 200), 3),
        (("p", 300), 2),
        (("p", 301), 1),
        (("q", 302), 1),
    ]


def test_properties_are_decoded_before_and_after_checks() -> None:
    properties = MessageProperties(ULong(5), to="/queues/q", subject="s")
    message = message10(HEAD, {"x-a": 1.5}, properties)
    assert properties_of(message) == properties
    assert properties_of(section(DELIVERY_ANNOTATIONS, {}) + message10()) == MessageProperties()


def test_kind_and_head_of_a_message_are_found() -> None:
    message = message10(HEAD, properties=MessageProperties("m"), body=[(VALUE, None)])
    head = message10(HEAD, properties=MessageProperties("m"), body=[])
    assert has_sections(message)
    assert head_stop(message) == head_stop(head) == len(head)
    assert has_sections(b"")
    assert head_stop(b"") == 0
    large = message10(HEAD, body=[(DATA, bytes(1000))])
    assert head_stop(large[:20]) == len(message10(HEAD, body=[]))


def outcome(reader: PublishedSections, message: bytes) -> Any:
    try:
        return list(reader.group([message]))
    except ConditionError as error:
        return error.condition, error.description


@given(st.lists(messages10(), min_size=1, max_size=4), st.sampled_from([None, "me"]), st.data())
def test_message_like_the_last_is_read_as_any(
    messages: list[bytes], user: str | None, data: st.DataObject
) -> None:
    reader = PublishedSections(user)
    for message in messages:
        assert outcome(reader, message) == outcome(PublishedSections(user), message)
        for _ in range(5):
            changed = bytearray(message)
            for at in data.draw(st.lists(st.integers(0, len(message) - 1), max_size=3)):
                changed[at] = data.draw(st.sampled_from([0, 1, 0x40, 0x7F, 0xFF]) | st.integers(0, 255))
            cut = data.draw(st.sampled_from([0, 0, 0, 1, 2]))
            octets = bytes(changed[: len(changed) - cut])
            assert outcome(reader, octets) == outcome(PublishedSections(user), octets)


@given(st.lists(st.tuples(st.uuids(), st.integers(0, 2**63 - 1), st.text(max_size=5)), max_size=6))
def test_unique_properties_are_not_decoded(drawn: list[Any]) -> None:
    messages = [
        message10(
            HEAD,
            {"x-a": "b"},
            MessageProperties(Uuid(one.bytes), b"me", correlation_id=f"{number:020}", creation_time=number),
            {"t": text, "n": Long(number)},
        )
        for one, number, text in drawn
    ]
    assert [message for _, alike in grouped(*messages, user="me") for message in alike] == messages


@given(st.lists(messages10(), max_size=5))
def test_all_messages_are_grouped_in_their_order(messages: list[bytes]) -> None:
    whole = grouped(*messages)
    assert sum(len(alike) for _, alike in whole) == len(messages)
    assert [each for _, alike in whole for each in alike] == [
        each for message in messages for _, alike in grouped(message) for each in alike
    ]
    assert all(a != b or (a and a.publisher) for (a, _), (b, _) in pairwise(whole))


def test_long_head_is_not_remembered() -> None:
    reader = PublishedSections(None)
    for size, remembered in ((100, True), (SHAPE_BYTES_MAX, False)):
        reader._shape = None
        message = message10(named={"n": "v" * size})
        assert list(reader.group([message, message])) == [(None, [message, message])]
        assert (reader._shape is not None) == remembered
