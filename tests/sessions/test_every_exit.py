"""Each message that a client may publish reaches the log, and leaves by each exit, with any contents.

The exits are consumers of both protocols with small frames, messages over HTTP, rows of Spark, dead letters, filters
and traces. Each gets the whole body, and its octets are those that a reader of that format takes.
"""

from __future__ import annotations

import asyncio
import json
import struct
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import frame as pamqp_frame
from pamqp.exceptions import UnmarshalingException
from proton import Data

from qq.amqp10.conditions import ConditionError
from qq.amqp10.performatives import OpenFrame, TransferFrame
from qq.amqp10.receiving_link import Deliveries
from qq.amqp10.sections import DATA, PROPERTIES, find_sections, first_from, joined_data
from qq.amqp10.values import Float, Timestamp, UInt, ULong, Value, encode
from qq.http.base.payloads import message_parts
from qq.http.documents.rendering import browsed_document, got_document
from qq.machine.protocol import codec
from qq.machine.protocol import commands as c
from qq.machine.protocol.death_history import EXPIRED, REJECTED, History, annotated, died
from qq.machine.protocol.effects import CountContract
from qq.machine.protocol.versions import VERSIONS
from qq.management.reports.messages import Message
from qq.ranges import Range
from qq.sessions.dead_letters import _group_equal
from qq.sessions.deliveries10 import delivered10
from qq.sessions.entries import Messages
from qq.sessions.headers import delivered, in_frames
from qq.sessions.message_filter import MessageFilter
from qq.stored import layout
from qq.stored.content import annotation_headers
from qq.stored.editing import content, reframe
from qq.stored.fields import properties_valid
from qq.stored.kept import kept_when_dead, kept_when_moved
from qq.stored.kinds import has_sections
from qq.stored.properties import PLAIN, Attributes, UnacceptableProperties, group
from qq.stored.publishing10 import PublishedSections
from qq.stored.trace_context import trace_context
from qq.tracing.tracer import _message_facts
from tests.amqp10.amqp10_client import Client10
from tests.amqp10.amqp10_values import values
from tests.amqp10.amqp10_wire import dumb_read, frame
from tests.harness.spark_rows import refuse, rows_of
from tests.stored.messages091 import frames, messages091, sized, table
from tests.stored.messages10 import message10, messages10

FRAME_MAX = 4096
SMALL_FRAMES = OpenFrame("small", "vhost:/", max_frame_size=512)
KEYS = ["k" * 251 + f"{number:04}" for number in range(256)]
"""As many additional keys as a message may have, each as long as a key may be."""

Accepted = list[tuple[Attributes | None, list[bytes]]]


def published10(messages: list[bytes]) -> Accepted:
    """Publish messages through a link, some in parts, and return those that are accepted as they are stored."""
    client = Client10()
    client.begin()
    client.attach_sender()
    received: list[bytes] = []
    for number, message in enumerate(messages):
        part = 100_000 if number % 2 else 500
        for at in range(0, len(message) or 1, part):
            transfer = TransferFrame(0, number, b"%d" % number, 0, more=at + part < len(message))
            for event in client.send(transfer, payload=message[at : at + part]):
                assert isinstance(event, Deliveries)
                received += event.messages
    assert received == messages
    accepted: Accepted = []
    for message in received:
        try:
            accepted += PublishedSections("me").group([message])
        except ConditionError:
            accepted += PublishedSections(None).group([message])  # it names a different user
    return accepted


def published091(messages: list[bytes]) -> Accepted:
    """Return the messages of a channel that are accepted, as they are stored."""
    accepted: Accepted = []
    for message in messages:
        with suppress(UnacceptableProperties):
            accepted += group([message], layout.flags(message))
    return accepted


def logged(attributes: Attributes | None, stored: Messages) -> Messages:
    """Write messages into the log and read them again, also after a compaction."""
    more, *rest = attributes or PLAIN
    publication = (stored.exchange, stored.routing_key, True, stored.frames_channel)
    command = c.Publish(1, 1, len(stored.messages), *publication, list(more), *rest)
    codec.check_command(command, VERSIONS[1])
    payload = b"".join(codec.encode_batch([command], stored.messages))
    assert codec.decode_commands(payload) == [command]
    [piece] = codec.stored_pieces(payload)
    kept = codec.keep(payload, [(0, len(stored.messages))])
    [same] = codec.stored_pieces(kept)
    assert same.publication == piece.publication
    exchange, routing_key, channel, keys, _ = piece.publication
    messages = [kept[at:end] for at, end in zip(same.offsets, same.offsets[1:], strict=False)]
    assert messages == stored.messages
    return Messages(exchange, routing_key, channel, messages, keys)


def body_of(message: bytes) -> bytes:
    """Return the body that a reader of AMQP 0-9-1 gets of a stored message."""
    if not has_sections(message):
        return content(message).body
    found = find_sections(message)
    if found.body_kind == DATA:
        return joined_data(message[found.body : found.footer or len(message)])
    return message[found.body :]


def leave_by_amqp10(
    stored: Messages, part: Range, history: History | None, contract: CountContract | None
) -> None:
    client = Client10(open_frame=frame(SMALL_FRAMES))
    client.begin(window=2**31 - 1)
    link = client.attach_receiver()
    sent = [
        (head, rest)
        for head, rests in delivered10(stored, part, history, count_contract=contract)
        for rest in rests
    ]
    got = b""
    for number, (head, rest) in enumerate(sent):
        link.deliver(number, head, [rest])
        octets = b"".join(client.server.out)
        client.server.out.clear()
        got = b"".join(each.payload for each in dumb_read(octets))
        assert max(each - begin for begin, each in edges(octets)) <= 512
        assert got == head + rest
        assert first_from(got, PROPERTIES) == len(head)
        if not stored.frames_channel:
            assert stored.messages[number].endswith(rest)
        at = 0
        while at < len(got):
            at += Data().decode(got[at:])
        assert at == len(got)
    assert len(sent) == len(stored.messages)


def edges(octets: bytes) -> list[tuple[int, int]]:
    """Return begin and end of each frame of AMQP 1.0."""
    found: list[tuple[int, int]] = []
    at = 0
    while at < len(octets):
        [size] = struct.unpack_from(">I", octets, at)
        found.append((at, at + size))
        at += size
    return found


def leave_by_amqp091(
    stored: Messages, part: Range, history: History | None, contract: CountContract | None
) -> None:
    framed = in_frames(stored, 3, FRAME_MAX).messages
    for message, original in zip(
        delivered(framed, part, history, count_contract=contract), stored.messages, strict=True
    ):
        octets = reframe(message, 3, FRAME_MAX)
        head = layout.frame_stop(octets, 0)
        if not stored.frames_channel:  # pamqp reads no names that are not UTF-8
            check_header(octets[:head])
        body, at = b"", head
        while at < len(octets):
            end = layout.frame_stop(octets, at)
            assert end - at <= FRAME_MAX
            consumed, channel, piece = pamqp_frame.unmarshal(octets[at:end])
            assert (consumed, channel) == (end - at, 3)
            body += piece.value
            at = end
        assert body == body_of(original)


def check_header(octets: bytes) -> None:
    """Check that a client reads a content header, unless it has a time beyond Python's calendar."""
    try:
        assert pamqp_frame.unmarshal(octets)[:2] == (len(octets), 3)
    except UnmarshalingException as error:
        assert "out of range" in str(error)  # noqa: PT017


def leave_by_http(
    stored: Messages, part: Range, history: History | None, contract: CountContract | None
) -> None:
    framed = delivered(in_frames(stored).messages, part, history, count_contract=contract)
    messages = [Message(0, "e", "k", True, *content(each), message_count=1) for each in framed]
    for as_base64 in (False, True):

        async def parts(as_base64: bool = as_base64) -> bytes:
            whole = message_parts(messages, got_document, as_base64=as_base64, truncate=None)
            return b"".join([piece async for piece in whole])

        documents = json.loads(asyncio.run(parts()), parse_constant=refuse)
        sizes = [document["payload_bytes"] for document in documents]
        assert sizes == [len(body_of(message)) for message in stored.messages]
        for message in messages:
            document = browsed_document(message, as_base64=as_base64, truncate=100)
            json.loads(json.dumps(document).encode(), parse_constant=refuse)
    rows = rows_of(framed, "k")
    assert [row["body"] for row in rows] == list(map(body_of, stored.messages))
    for row in rows:
        for column in ("properties", "headers"):
            json.loads(row[column] or "{}", parse_constant=refuse)


def die_and_be_searched(attributes: Attributes | None, stored: Messages, history: History | None) -> None:
    added = {} if history is None else annotation_headers(history.annotations)
    letters = list(_group_equal([stored], ("v", "q", 1), added, needs_content=True))
    assert sum(count for _, count in letters) == len(stored.messages)
    for letter, _ in letters:
        codec.check_command(letter, VERSIONS[1])
    priority, ttl_ms = (attributes or PLAIN)[1:3]
    for message in stored.messages:
        assert kept_when_moved(message) == (priority, ttl_ms)
        keys, _, kept = kept_when_dead(message)
        assert kept == priority
        assert set(keys) <= set((attributes or PLAIN).more_keys)
        assert not MessageFilter(text="no message has this").takes_message(message)
        assert not MessageFilter(headers={"no-such": 1}).takes_message(message)
        trace_context(message)
        facts = _message_facts(message)
        assert facts["messaging.message.body.size"] == len(body_of(message))


Fate = tuple[Range, int, list[Value], CountContract | None]
"""Deliveries, deaths, annotations of consumers and the rules of the queue."""


def leave_by_every_exit(accepted: Accepted, channel: int, fate: Fate) -> None:
    part, deaths, given_values, contract = fate
    for attributes, messages in accepted:
        stored = logged(attributes, Messages("e", "k", channel, messages))
        _, expiration, _ = kept_when_dead(messages[0])
        history: History | None = None
        for number in range(deaths):
            reason = (EXPIRED, REJECTED)[number % 2]
            death = (
                f"q{number}",
                reason,
                2**40,
                "e",
                ("k", *stored.more_keys),
                expiration or None,
                "dlx",
                None,
            )
            history = died(history, *death)
        pairs = [(f"x-{number}", encode(value)) for number, value in enumerate(given_values)]
        if pairs:
            history = annotated(history, pairs) or history
        leave_by_amqp10(stored, part, history, contract)
        leave_by_amqp091(stored, part, history, contract)
        leave_by_http(stored, part, history, contract)
        die_and_be_searched(attributes, stored, history)


fates = st.tuples(
    st.sampled_from([Range(1, 0, 1), Range(1, 0, 1, 2, failures=1)]),
    st.integers(0, 3),
    st.lists(values, max_size=2),
    st.sampled_from(["4.0", "4.3", None]),
)
FRESH: Fate = Range(1, 0, 1), 0, [], "4.0"
DEAD: Fate = Range(1, 0, 1, 2, failures=1), 3, [Timestamp(-(2**63)), [{UInt(1): [None]}]], "4.0"


def deep(levels: int) -> Value:
    """Return a list in a list, and so on."""
    value: Value = None
    for _ in range(levels):
        value = [value]
    return value


EXTREMES10 = {
    "keys": message10(annotations={"x-cc": KEYS}),
    "application-properties": message10(named={f"{number:05}": ULong(number) for number in range(4990)}),
    "annotations": message10(annotations={f"x-{number}": Float("nan") for number in range(4990)}),
    "depth": message10(annotations={"x-a": deep(27), "x-delay": deep(27)}, named={"a": deep(27)}),
    "names": message10(annotations={"x-" + "n" * 60_000: None}, named={"n" * 60_000: float("-inf")}),
    "types": message10(annotations={"x-delay": 1e308, "x-opt-deaths": [], "x-basic-type": "t" * 300}),
    "sections": message10(body=[(DATA, b"")] * 9_999),
    "body": message10(body=[(DATA, bytes(200_000))], footer={"x-f": bytes(1000)}),
}
EXTREMES091 = {
    "delay": frames({"headers": table([(b"x-delay", b"A" + sized(b"V" * 20_000))])}, b"body"),
    "table": frames(
        {"headers": table([(b"x-a", b"F" + table([(b"%d" % n, b"V") for n in range(9000)]))])}, b""
    ),
    "headers": frames({"headers": table([(b"%06d" % number, b"V") for number in range(16_000)])}, b"body"),
    "size": frames({"headers": table([(b"x-%04d" % n, b"S" + sized(bytes(100))) for n in range(1160)])}, b""),
    "keys": frames(
        {"headers": table([(b"CC", b"A" + sized(b"".join(b"S" + sized(k.encode()) for k in KEYS)))])}, b""
    ),
    "times": frames(
        {"timestamp": b"\xff" * 8, "headers": table([(b"x-a", b"T" + b"\xff" * 8)])}, b"\xff" * 9000
    ),
}


@settings(max_examples=2 * settings.default.max_examples)
@given(st.lists(messages10(), min_size=1, max_size=2), fates)
def test_sections_leave_by_every_exit(messages: list[bytes], fate: Fate) -> None:
    leave_by_every_exit(published10(messages), 0, fate)


@given(st.lists(messages091, min_size=1, max_size=2), fates)
def test_frames_leave_by_every_exit(messages: list[bytes], fate: Fate) -> None:
    for message in messages:
        properties = message[layout.FLAGS_AT : layout.frame_stop(message, 0) - 1]
        assert properties_valid(properties)
    leave_by_every_exit(published091(messages), 1, fate)


@pytest.mark.parametrize("fate", [FRESH, DEAD], ids=["fresh", "dead"])
@pytest.mark.parametrize("name", EXTREMES10)
def test_extreme_sections_leave_by_every_exit(name: str, fate: Fate) -> None:
    leave_by_every_exit(published10([EXTREMES10[name]]), 0, fate)


@pytest.mark.parametrize("fate", [FRESH, DEAD], ids=["fresh", "dead"])
@pytest.mark.parametrize("name", EXTREMES091)
def test_extreme_frames_leave_by_every_exit(name: str, fate: Fate) -> None:
    leave_by_every_exit(published091([EXTREMES091[name]]), 1, fate)
