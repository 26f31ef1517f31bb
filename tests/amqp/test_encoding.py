import pytest
from amqp_wire import Basic, Queue, body_frames, header_frame, message, method
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import frame

from qq.amqp.encoding import (
    HEARTBEAT,
    confirm_frame,
    content,
    declare_ok,
    deliveries,
    encode,
    get_ok,
    reframe,
    returned,
)
from qq.amqp.framing import FRAME_MAX_MIN

names = st.text(st.characters(max_codepoint=127, categories=("L", "N")), max_size=60)
channels = st.integers(1, 65535)
tags = st.integers(1, 2**63 - 1)
quick = settings(max_examples=30, deadline=None, derandomize=True)


@quick
@given(channels, tags, st.booleans())
def test_confirms_are_what_pamqp_makes(channel: int, tag: int, multiple: bool) -> None:
    assert confirm_frame(channel, tag, multiple) == method(channel, Basic.Ack(tag, multiple))
    assert confirm_frame(channel, tag, multiple, nack=True) == method(
        channel, Basic.Nack(tag, multiple, False)
    )


@quick
@given(channels, tags, st.booleans(), names, names, names, st.lists(st.binary(max_size=20), max_size=4))
def test_deliveries_are_what_pamqp_makes(
    channel: int, first: int, again: bool, consumer: str, exchange: str, key: str, bodies: list[bytes]
) -> None:
    messages = [message(channel, body) for body in bodies]
    out = [b"before"]
    deliveries(channel, consumer, first, again, exchange, key, messages, out)
    expected = b"before"
    for tag, one in enumerate(messages, first):
        expected += method(channel, Basic.Deliver(consumer, tag, again, exchange, key)) + one
    assert b"".join(out) == expected


@quick
@given(channels, tags, st.booleans(), names, names, st.integers(0, 2**32 - 1))
def test_get_ok_return_and_declare_ok_are_what_pamqp_makes(
    channel: int, tag: int, again: bool, exchange: str, key: str, count: int
) -> None:
    one = message(channel, b"body")
    got = get_ok(channel, tag, again, exchange, key, count, one)
    assert got == method(channel, Basic.GetOk(tag, again, exchange, key, count)) + one
    back = returned(channel, 312, "NO_ROUTE", exchange, key, one)
    assert back == method(channel, Basic.Return(312, "NO_ROUTE", exchange, key)) + one
    assert declare_ok(channel, key, count, 3) == method(channel, Queue.DeclareOk(key, count, 3))


def test_names_that_pamqp_refuses_are_sent() -> None:
    name = "käse (warm)!" * 10
    assert name.encode() in declare_ok(1, name, 0, 0)
    assert name.encode() in get_ok(1, 1, False, name, "key", 0, b"")


def test_other_methods_are_pamqps() -> None:
    assert encode(3, Queue.BindOk()) == method(3, Queue.BindOk())
    assert frame.unmarshal(HEARTBEAT)[0] == len(HEARTBEAT)


@pytest.mark.parametrize("size", [0, 1, 100, FRAME_MAX_MIN - 8, FRAME_MAX_MIN - 7, 50_000])
@pytest.mark.parametrize("part", [1000, FRAME_MAX_MIN - 8, 131_064])
def test_reframing_gives_what_a_client_on_that_channel_would_have_sent(size: int, part: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    data = data[:size]
    properties = Basic.Properties(content_type="text/plain", headers={"a": 1})
    stored = message(1, data, properties, part)
    moved = reframe(stored, 515, FRAME_MAX_MIN)
    assert moved == message(515, data, properties, FRAME_MAX_MIN - 8)
    assert reframe(moved, 1, 131_072) == message(1, data, properties, 131_064)
    assert content(moved) == (properties, data)


def test_a_content_header_larger_than_the_frame_limit_is_sent_whole() -> None:
    properties = Basic.Properties(headers={"long": "x" * 10_000})
    stored = header_frame(1, 3, properties) + body_frames(1, b"abc")[0]
    assert reframe(stored, 2, FRAME_MAX_MIN) == header_frame(2, 3, properties) + body_frames(2, b"abc")[0]
