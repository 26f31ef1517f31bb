"""Frames of a broker are read in pieces of any size, and any bytes are read or refused."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import body, commands, header
from pamqp import frame as pamqp_frame

from qq.amqp.encoding import HEARTBEAT
from qq.shovels import frames
from qq.shovels.definition import definition_of
from qq.shovels.frames import CHANNEL, ClientReader, Confirmation, Delivery, ProtocolError, Unroutable
from qq.shovels.outbound import COUNTS, ROUTES_MAX, Outbound, Route, key_of
from qq.stored.editing import content, with_headers

MESSAGE_BYTES_MAX = 2**20


def marshal(frame: Any) -> bytes:
    return pamqp_frame.marshal(frame, CHANNEL)


def delivery(tag: int = 7, octets: bytes = b"body", **properties: Any) -> bytes:
    deliver = commands.Basic.Deliver("consumer", tag, True, "ex", "key")
    head = header.ContentHeader(body_size=len(octets), properties=commands.Basic.Properties(**properties))
    parts = [octets[at : at + 3] for at in range(0, len(octets), 3)]
    return b"".join(map(marshal, [deliver, head, *map(body.ContentBody, parts)]))


def nested_start(depth: int) -> bytes:
    """connection.start with tables in tables."""
    table = b""
    for _ in range(depth):
        table = b"\0F" + pack(">I", len(table)) + table
    arguments = b"\0\x09" + pack(">I", len(table)) + table + pack(">I", 5) + b"PLAIN" + pack(">I", 0)
    return pack(">BHIHH", 1, 0, 4 + len(arguments), 10, 10) + arguments + b"\xce"


def returned(octets: bytes) -> bytes:
    head = header.ContentHeader(body_size=len(octets), properties=commands.Basic.Properties())
    method = commands.Basic.Return(312, "NO_ROUTE", "", "to")
    return b"".join(map(marshal, [method, head, *([body.ContentBody(octets)] if octets else [])]))


STREAM = b"".join(
    [
        marshal(commands.Channel.OpenOk()),
        delivery(message_id="m", headers={"h": [1, {"x": "y"}], "x-delivery-count": 3}),
        marshal(commands.Basic.Ack(5, True)),
        HEARTBEAT,
        delivery(8, b""),
        returned(b"body"),
        returned(b""),
        marshal(commands.Basic.Nack(6, False)),
    ]
)


def reported(event: Any) -> Any:
    return event if isinstance(event, tuple) else dict(event)


def read(*pieces: bytes) -> list[Any]:
    reader = ClientReader(MESSAGE_BYTES_MAX)
    return [event for piece in pieces for event in reader.feed(piece)]


def test_deliveries_returns_and_confirms_of_a_broker_are_read() -> None:
    opened, first, ack, second, *back, nack = read(STREAM)
    assert isinstance(opened, commands.Channel.OpenOk)
    assert first[:4] == (7, True, b"ex", b"key")
    assert content(first.message).body == b"body"
    assert content(first.message).properties.message_id == "m"
    assert (ack, nack) == (Confirmation(5, True, False), Confirmation(6, False, True))
    assert (second.tag, content(second.message).body) == (8, b"")
    assert back == [Unroutable(312, "NO_ROUTE")] * 2


def test_returned_message_with_any_octets_in_its_key_is_read() -> None:
    octets = returned(b"body").replace(b"\x02to", b"\x02\xe9\xff")
    assert octets != returned(b"body")
    assert read(octets) == [Unroutable(312, "NO_ROUTE")]


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_stream_may_arrive_in_any_pieces(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[begin:end] for begin, end in pairwise(places)]
    assert list(map(reported, read(*pieces))) == list(map(reported, read(STREAM)))


@given(st.integers(0, len(STREAM) - 1), st.binary(min_size=1, max_size=9))
def test_damaged_stream_is_read_or_refused(place: int, octets: bytes) -> None:
    damaged = STREAM[:place] + octets + STREAM[place + len(octets) :]
    reader = ClientReader(MESSAGE_BYTES_MAX)
    events: list[Any] = []
    with suppress(ProtocolError):
        events = reader.feed(damaged)
    for event in events:
        if isinstance(event, Delivery):
            assert len(key_of(event) or bytes(8)) == 8
            assert content(event.message).body is not None


@pytest.mark.parametrize(
    "sent",
    [
        b"AMQP\0\0\x09\x01",
        pack(">BHI", 1, 1, 2**20) + b"x",
        marshal(commands.Connection.Start(server_properties={"x" * 9: "y" * 9000})),
        marshal(body.ContentBody(b"x")),
        STREAM[: len(marshal(commands.Channel.OpenOk())) + 40] + HEARTBEAT,
        marshal(commands.Basic.Deliver("c", 1, True, "e", "k")) * 2,
        marshal(commands.Basic.Deliver("c", 1, True, "e", "k"))
        + marshal(header.ContentHeader(body_size=2**40, properties=commands.Basic.Properties())),
        marshal(commands.Basic.Deliver("c", 1, True, "e", "k"))
        + marshal(header.ContentHeader(body_size=1, properties=commands.Basic.Properties()))
        + marshal(body.ContentBody(b"xx")),
        marshal(commands.Basic.Deliver("c", 1, True, "e", "k"))
        + marshal(
            header.ContentHeader(body_size=MESSAGE_BYTES_MAX + 1, properties=commands.Basic.Properties())
        ),
        marshal(commands.Basic.Deliver("c", 1, True, "e", "k"))
        + marshal(header.ContentHeader(body_size=1, properties=commands.Basic.Properties()))
        + marshal(body.ContentBody(b"")),
        nested_start(1300),
    ],
)
def test_protocol_violation_of_the_broker_raises_protocol_error(sent: bytes) -> None:
    with pytest.raises(ProtocolError):
        read(sent)


def test_pamqp_reads_the_frames_that_a_shovel_sends() -> None:
    for is_mandatory in (False, True):
        method = pamqp_frame.unmarshal(frames.publish(b"ex", b"key", is_mandatory=is_mandatory))[2]
        assert (method.exchange, method.routing_key, method.mandatory) == ("ex", "key", is_mandatory)
    method = pamqp_frame.unmarshal(frames.ack(2**40, is_multiple=True))[2]
    assert (method.delivery_tag, method.multiple) == (2**40, True)


# --- identities of messages


def test_redelivered_message_keeps_its_key_despite_counts() -> None:
    [first] = read(delivery(message_id="m", priority=3))
    [headers] = read(delivery(message_id="m", priority=3, headers={"h": 1}))
    again = first._replace(message=with_headers([first.message], additions=dict.fromkeys(COUNTS, 1))[0])
    assert key_of(first) == key_of(again) is not None
    counted = headers._replace(message=with_headers([headers.message], additions=dict.fromkeys(COUNTS, 1))[0])
    assert key_of(headers) == key_of(counted) != key_of(first)


@pytest.mark.parametrize(
    "changes",
    [{"message_id": "n"}, {"priority": 4}, {"headers": {"h": 2}}, {"octets": b"other"}, {"app_id": "a"}],
)
def test_messages_with_different_properties_have_different_keys(changes: dict[str, Any]) -> None:
    one: dict[str, Any] = {"message_id": "m", "priority": 3, "headers": {"h": 1}}
    assert key_of(read(delivery(**one))[0]) != key_of(read(delivery(**one | changes))[0])


def test_message_without_an_id_has_no_key() -> None:
    assert key_of(read(delivery(headers={"h": 1}, correlation_id="c"))[0]) is None
    assert key_of(read(delivery(headers={"x-publisher-id": "p", "x-publish-seq": 1}))[0]) is not None


def prepared(value: dict[str, Any], *, frame_max: int = 2**17, knows_publishers: bool = False) -> Outbound:
    ends = {"src-uri": "amqp://", "src-queue": "q", "dest-uri": "amqp://far"}
    route = Route("/", "s", "c", "", "")
    return Outbound(
        definition_of("/", ends | value), route, 2**17, frame_max, knows_publishers=knows_publishers
    )


@pytest.mark.parametrize(
    ("target", "address"),
    [
        ({"dest-queue": "q"}, (b"", b"q")),
        ({"dest-exchange": "e"}, (b"e", b"key")),
        ({"dest-exchange": "e", "dest-exchange-key": "k"}, (b"e", b"k")),
        ({"dest-exchange": "", "dest-exchange-key": "k"}, (b"", b"k")),
        ({}, (b"ex", b"key")),
    ],
)
def test_message_is_published_to_the_address_of_its_target(
    target: dict[str, str], address: tuple[bytes, bytes]
) -> None:
    outbound = prepared(target)
    [message] = read(delivery())
    assert outbound.address(message) == address
    assert outbound.message(message, 0, None) == message.message  # octet for octet


def headers_of(message: bytes) -> dict[str, Any]:
    return content(message).properties.headers or {}


@pytest.mark.parametrize("knows_publishers", [False, True])
def test_target_with_deduplication_sees_only_the_shovel_id(knows_publishers: bool) -> None:
    [message] = read(delivery(headers={"x-publisher-id": "p", "x-publish-seq": 1, "h": 1}))
    reported = headers_of(prepared({}, knows_publishers=knows_publishers).message(message, 0, None))
    assert sorted(reported) == ["h", *([] if knows_publishers else ["x-publish-seq", "x-publisher-id"])]


def test_message_in_a_circle_names_only_the_last_shovels() -> None:
    outbound = prepared({"dest-add-forward-headers": True})
    [message] = read(delivery())
    for _ in range(ROUTES_MAX + 5):
        message = message._replace(message=outbound.message(message, 0, None))
    assert len(headers_of(message.message)["x-shovelled"]) == ROUTES_MAX


def test_header_above_the_frame_limit_gets_no_additions() -> None:
    outbound = prepared({"dest-add-timestamp-header": True}, frame_max=4096)
    [small], [large] = (read(delivery(headers={"h": "x" * size})) for size in (1000, 4000))
    assert sorted(headers_of(outbound.message(small, 1, ("p", 7)))) == [
        "h", "x-publish-seq", "x-publisher-id", "x-shovelled-timestamp"
    ]  # fmt: skip
    assert list(headers_of(outbound.message(large, 1, ("p", 7)))) == ["h"]
