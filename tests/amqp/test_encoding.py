import random
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import base, commands, frame
from pamqp import body as body_module

from qq.amqp.encoding import (
    HEARTBEAT,
    ack_frame,
    declare_ok,
    deliveries,
    encode,
    get_ok,
    refusal_frame,
    returned,
)
from qq.amqp.framing import FRAME_MAX_MIN
from qq.stored.editing import WORTHWHILE_BYTES, content, reframe, with_headers
from tests.amqp.amqp_wire import (
    Basic,
    Channel,
    Connection,
    Queue,
    array,
    body_frames,
    header_frame,
    long,
    long_string,
    message,
    method,
    raw,
    stored_message,
)

names = st.text(st.characters(max_codepoint=127, categories=("L", "N")), max_size=60)
channels = st.integers(1, 65535)
tags = st.integers(1, 2**63 - 1)
quick = settings(max_examples=min(30, settings.default.max_examples), deadline=None, derandomize=True)


@quick
@given(channels, tags, st.booleans())
def test_confirms_equal_those_of_pamqp(channel: int, tag: int, multiple: bool) -> None:
    assert ack_frame(channel, tag, multiple) == method(channel, Basic.Ack(tag, multiple))
    assert refusal_frame(channel, tag) == method(channel, Basic.Nack(tag, multiple=True, requeue=True))


@quick
@given(channels, tags, st.booleans(), names, names, names, st.lists(st.binary(max_size=20), max_size=4))
def test_deliveries_equal_those_of_pamqp(
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
def test_get_ok_return_and_declare_ok_equal_those_of_pamqp(
    channel: int, tag: int, again: bool, exchange: str, key: str, count: int
) -> None:
    one = message(channel, b"body")
    got = get_ok(channel, tag, again, exchange, key, count, one)
    assert got == method(channel, Basic.GetOk(tag, again, exchange, key, count)) + one
    back = b"".join(returned(channel, 312, "NO_ROUTE", exchange, key, [one]))
    assert back == method(channel, Basic.Return(312, "NO_ROUTE", exchange, key)) + one
    assert declare_ok(channel, key, count, 3) == method(channel, Queue.DeclareOk(key, count, 3))


def test_names_that_pamqp_refuses_are_sent() -> None:
    name = "käse (warm)!" * 10
    assert name.encode() in declare_ok(1, name, 0, 0)
    assert name.encode() in get_ok(1, 1, False, name, "key", 0, b"")


@pytest.mark.parametrize(
    ("sent", "payload"),
    [
        (Channel.Open(), b"\0\x14\0\x0a\0"),
        (Channel.OpenOk(), b"\0\x14\0\x0b\0\0\0\0"),
        (Connection.Open("v"), b"\0\x0a\0\x28\1v\0\0"),
        (Connection.OpenOk(), b"\0\x0a\0\x29\0"),
        (Basic.GetEmpty(), b"\0\x3c\0\x48\0"),
        (Basic.Get(queue="q"), b"\0\x3c\0\x46\0\0\1q\0"),
        (Basic.Consume(queue="q"), b"\0\x3c\0\x14\0\0\1q\0\0\0\0\0\0"),
        (Basic.Publish(routing_key="k"), b"\0\x3c\0\x28\0\0\0\1k\0"),
        (Queue.Declare(queue="q"), b"\0\x32\0\x0a\0\0\1q\0\0\0\0\0"),
        (Queue.Bind(queue="q", exchange="x"), b"\0\x32\0\x14\0\0\1q\1x\0\0\0\0\0\0"),
        (commands.Exchange.Declare(exchange="x"), b"\0\x28\0\x0a\0\0\1x\6direct\0\0\0\0\0"),
        (commands.Exchange.Bind(destination="d", source="s"), b"\0\x28\0\x1e\0\0\1d\1s\0\0\0\0\0\0"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else value.name,
)
def test_reserved_fields_are_empty_or_zero(sent: base.Frame, payload: bytes) -> None:
    assert encode(1, sent) == raw(1, 1, payload)


def test_bind_ok_and_heartbeat_equal_those_of_pamqp() -> None:
    assert encode(3, Queue.BindOk()) == method(3, Queue.BindOk())
    assert frame.unmarshal(HEARTBEAT)[0] == len(HEARTBEAT)


@pytest.mark.parametrize("size", [0, 1, 100, FRAME_MAX_MIN - 8, FRAME_MAX_MIN - 7, 50_000])
@pytest.mark.parametrize("part", [1000, FRAME_MAX_MIN - 8, 131_064])
def test_reframed_message_equals_a_publish_on_the_new_channel(size: int, part: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    data = data[:size]
    properties = Basic.Properties(content_type="text/plain", headers={"a": 1})
    stored = message(1, data, properties, part)
    moved = reframe(stored, 515, FRAME_MAX_MIN)
    assert moved == message(515, data, properties, FRAME_MAX_MIN - 8)
    assert reframe(moved, 1, 131_072) == message(1, data, properties, 131_064)
    assert content(moved) == (properties, data)


def test_large_message_is_sent_without_a_copy_when_it_fits() -> None:
    data = bytes(range(256)) * 1024
    stored = message(3, data, Basic.Properties(), 100_000)
    assert reframe(stored, 3, 131_072) is stored
    assert reframe(stored, 515, 131_072) == message(515, data, Basic.Properties(), 100_000)
    assert reframe(stored, 3, 100_007) == message(3, data, Basic.Properties(), 99_999)


_parts = st.lists(
    st.one_of(
        st.integers(1, 40_000),
        st.sampled_from(
            [1, FRAME_MAX_MIN - 8, WORTHWHILE_BYTES - 8, WORTHWHILE_BYTES - 9, 65_528, 131_064, 131_072]
        ),
    ),
    max_size=5,
)
_frame_maxs = st.one_of(
    st.integers(FRAME_MAX_MIN, 140_000),
    st.sampled_from([WORTHWHILE_BYTES - 1, WORTHWHILE_BYTES, 65_536, 131_072]),
)


@quick
@given(channels, channels, _parts, _frame_maxs)
def test_reframing_changes_only_the_frames(came: int, goes: int, parts: list[int], frame_max: int) -> None:
    data = random.Random(0).randbytes(sum(parts))
    properties = Basic.Properties(headers={"a": 1})
    stored, at = header_frame(came, len(data), properties), 0
    for part in parts:
        [body] = body_frames(came, data[at : at + part], part)
        stored += body
        at += part
    rest, got = reframe(stored, goes, frame_max), []
    while rest:
        size, channel, one = frame.unmarshal(rest)
        assert channel == goes
        if isinstance(one, body_module.ContentBody):
            assert 8 < size <= frame_max
            got.append(one.value)
        else:
            assert rest[:size] == header_frame(goes, len(data), properties)
        rest = rest[size:]
    assert b"".join(got) == data
    assert all(len(each) >= min(WORTHWHILE_BYTES, frame_max) - 8 for each in got[:-1])


def test_content_header_above_the_frame_limit_is_sent_whole() -> None:
    properties = Basic.Properties(headers={"long": "x" * 10_000})
    stored = header_frame(1, 3, properties) + body_frames(1, b"abc")[0]
    assert reframe(stored, 2, FRAME_MAX_MIN) == header_frame(2, 3, properties) + body_frames(2, b"abc")[0]


def test_added_headers_have_the_types_of_rabbitmq() -> None:
    moment = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
    additions = {
        "count": 3,
        "reason": "expired",
        "time": moment,
        "routing-keys": ["a", "ü"],
        "x-death": [{"count": -1}, {}],
    }
    [changed] = with_headers([stored_message(content_type=b"a", priority=1)], additions=additions)
    assert changed == stored_message(
        [
            ("count", long(3)),
            ("reason", long_string("expired")),
            ("time", b"T" + int(moment.timestamp()).to_bytes(8, "big")),
            ("routing-keys", array(long_string("a"), long_string("ü"))),
            ("x-death", array(b"F\0\0\0\x0f\x05count" + long(-1), b"F\0\0\0\0")),
        ],
        content_type=b"a",
        priority=1,
    )
    assert content(changed).properties.headers == additions


values = st.sampled_from(
    [
        *(
            b"V",
            b"t\1",
            b"b\3",
            b"B\3",
            b"sab",
            b"uab",
            b"Iabcd",
            b"iabcd",
            b"fabcd",
            b"labcdefgh",
            b"Labcdefgh",
        ),
        *(b"dabcdefgh", b"Tabcdefgh", b"D\1abcd", b"x\0\0\0\1\xff", b"F\0\0\0\3\1aV"),
        *(long_string("text"), long_string(""), array(), array(long_string("x"), array(b"V"))),
    ]
)
pairs = st.lists(st.tuples(st.sampled_from(["a", "b", "CC", "x-death", ""]), values), max_size=6)
others = st.fixed_dictionaries(
    {},
    optional={
        "content_type": st.just(b"text/plain"),
        "priority": st.integers(0, 255),
        "correlation_id": st.just(b"\xff"),
        "expiration": st.sampled_from([b"", b"60000"]),
        "timestamp": st.just(2**64 - 1),
        "user_id": st.just(b"me"),
    },
)
changes = st.dictionaries(st.sampled_from(["a", "x-death", "new"]), st.integers(-5, 5))


@settings(max_examples=3 * settings.default.max_examples, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.none() | pairs, others, st.integers(0, 3)), max_size=3),
    changes,
    st.sets(st.sampled_from(["a", "CC", "b", "missing"])),
    st.booleans(),
)
def test_with_headers_keeps_all_remaining_octets(
    described: list[tuple[list[tuple[str, bytes]] | None, dict[str, bytes], int]],
    additions: dict[str, int],
    removals: set[str],
    drop_expiration: bool,
) -> None:
    stored = [stored_message(headers, size, **other) for headers, other, size in described]
    changed = with_headers(stored, additions=additions, removals=removals, drop_expiration=drop_expiration)
    added = [(name, long(value)) for name, value in additions.items()]
    expected: list[bytes] = []
    for headers, other, size in described:
        kept = [pair for pair in headers or [] if pair[0] not in removals and pair[0] not in additions]
        if drop_expiration:
            other = {name: value for name, value in other.items() if name != "expiration"}
        table = None if headers is None and not added else kept + added
        expected.append(stored_message(table, size, **other))
    assert changed == expected


def test_body_frames_stay_unchanged_when_headers_are_added() -> None:
    properties = Basic.Properties(headers={"a": 1}, expiration="5", message_id="m")
    large = message(7, b"0123456789" * 1000, properties)
    [changed] = with_headers([large], additions={"x-delivery-count": 1}, drop_expiration=True)
    read = content(changed)
    assert read.properties == Basic.Properties(headers={"a": 1, "x-delivery-count": 1}, message_id="m")
    assert changed.endswith(b"".join(body_frames(7, b"0123456789" * 1000)))
    assert with_headers([large]) == [large]
