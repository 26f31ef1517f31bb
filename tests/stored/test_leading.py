"""Messages are divided into the sections that the broker may change and the rest, alone and in any company."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from qq.amqp10.sections import DATA, VALUE, MessageHeader, MessageProperties
from qq.amqp10.values import ULong
from qq.stored.leading import Leading, split_leading
from tests.stored.messages10 import message10

KINDS = [
    message10(),
    message10(MessageHeader(priority=1)),
    message10(MessageHeader(priority=2)),
    message10(MessageHeader(priority=1), body=[(DATA, b"b0dy")]),
    message10(MessageHeader(priority=1), body=[(VALUE, "body")]),
    message10(annotations={"x-a": ULong(1)}),
    message10(annotations={"x-a": ULong(2)}),
    message10(properties=MessageProperties("m1")),
    message10(properties=MessageProperties("m2")),
    message10(body=[(DATA, b"x" * 600)]),
]

EQUAL_SIZES = [KINDS[1:3], KINDS[5:7], KINDS[7:9]]


def runs_of(kinds: list[bytes]) -> st.SearchStrategy[list[tuple[bytes, int]]]:
    counted = st.tuples(st.sampled_from(kinds), st.sampled_from([1, 1, 3, 20, 90]))
    return st.lists(counted, min_size=1, max_size=4)


def divided(messages: list[bytes]) -> list[tuple[Leading, bytes]]:
    return [(leading, rest) for leading, rests in split_leading(messages) for rest in rests]


@given(st.sampled_from([KINDS, *EQUAL_SIZES]).flatmap(runs_of))
def test_message_is_divided_alike_in_any_company(runs: list[tuple[bytes, int]]) -> None:
    messages = [message for message, count in runs for _ in range(count)]
    assert divided(messages) == [divided([message])[0] for message in messages]
