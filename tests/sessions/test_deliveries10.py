"""Header and annotations of a delivery by AMQP 1.0, for messages of both kinds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qq.amqp10.sections import DATA, MessageHeader, MessageProperties, decode_section, find_sections
from qq.amqp10.values import Array, Int, Long, Symbol, Timestamp, UInt, ULong, encode
from qq.machine.protocol.death_history import EXPIRED, REJECTED, History, annotated, died
from qq.machine.protocol.effects import CountContract
from qq.ranges import Range
from qq.sessions.deliveries10 import _known_first_head, delivered10
from qq.sessions.entries import Messages
from qq.sessions.headers import delivered, in_frames
from qq.stored.editing import content
from qq.stored.known import KNOWN_BYTES_MAX
from qq.stored.publishing10 import PublishedSections
from tests.amqp10.amqp10_values import typed
from tests.stored.messages091 import frames, messages091, short, sized, table
from tests.stored.messages10 import message10, messages10

PLACE = {Symbol("x-exchange"): "e", Symbol("x-routing-key"): "k"}
HEAD = MessageHeader(durable=True, priority=1)


def of_kind(channel: int, *messages: bytes) -> Messages:
    return Messages("e", "k", channel, list(messages))


def part(deliveries: int = 0, failures: int = 0) -> Range:
    return Range(1, 0, 1, deliveries, failures=failures)


def twice_dead() -> History:
    once = died(None, "work", EXPIRED, 5000, "", ("work", "copy"), "60000", "dlx", None)
    return died(once, "wait", REJECTED, 7000, "ignored", ("work", "copy"), "60000", "end", None)


def delivered_of(
    stored: Messages, part: Range, history: History | None, contract: CountContract | None
) -> list[tuple[bytes, bytes]]:
    """Return the head and the rest of each message."""
    alike = delivered10(stored, part, history, count_contract=contract)
    return [(head, rest) for head, rests in alike for rest in rests]


def head_of(
    message: bytes,
    part: Range,
    history: History | None = None,
    contract: CountContract | None = "4.0",
    channel: int = 0,
) -> tuple[MessageHeader, dict[Any, Any], bytes]:
    """Return the decoded header and annotations of a delivery, and its rest."""
    [(head, [rest])] = delivered10(of_kind(channel, message), part, history, count_contract=contract)
    found = find_sections(head + rest)
    assert found.properties == len(head)
    return (
        decode_section(head[: found.message_annotations]),
        decode_section(head[found.message_annotations :]),
        rest,
    )


def test_first_delivery_adds_exchange_and_key() -> None:
    message = message10(
        HEAD, {"x-a": [1.5], "x-exchange": "forged"}, MessageProperties("m"), footer={"x-f": None}
    )
    header, annotations, rest = head_of(message, part())
    assert header == MessageHeader(True, 1, None, True, 0)
    assert typed(annotations) == typed(
        {Symbol("x-a"): [1.5], Symbol("x-exchange"): "e", Symbol("x-routing-key"): "k"}
    )
    assert rest == message10(properties=MessageProperties("m"), footer={"x-f": None})


def test_header_is_the_publishers_and_durable_if_absent() -> None:
    assert head_of(message10(), part())[0] == MessageHeader(True, None, None, True, 0)
    published = MessageHeader(durable=False, priority=4, ttl=5, first_acquirer=False, delivery_count=9)
    assert head_of(message10(published), part())[0] == MessageHeader(False, 4, 5, True, 0)


@pytest.mark.parametrize(
    ("contract", "counts", "delivery_count"),
    [
        ("4.0", {"x-delivery-count": 3, "x-acquired-count": 3}, 2),
        ("4.3", {"x-acquired-count": 3, "x-delivery-count": 2}, 2),
        (None, {}, 2),
    ],
)
def test_redelivery_is_counted(
    contract: CountContract | None, counts: dict[str, int], delivery_count: int
) -> None:
    header, annotations, _ = head_of(message10(HEAD), part(3, 2), contract=contract)
    assert header == MessageHeader(True, 1, None, False, delivery_count)
    assert typed(annotations) == typed(PLACE | {Symbol(name): Long(count) for name, count in counts.items()})


def test_dead_letter_tells_its_deaths() -> None:
    header, annotations, _ = head_of(message10(MessageHeader(ttl=60_000)), part(), twice_dead())
    assert header == MessageHeader(True, None, None, False, 0)
    deaths = annotations.pop("x-opt-deaths")
    assert annotations == {
        "x-exchange": "end",
        "x-routing-key": "work",
        "x-first-death-reason": "expired",
        "x-first-death-queue": "work",
        "x-first-death-exchange": "",
        "x-last-death-reason": "rejected",
        "x-last-death-queue": "wait",
        "x-last-death-exchange": "dlx",
    }
    oldest: dict[Any, Any] = {
        Symbol("ttl"): UInt(60_000),
        Symbol("queue"): "work",
        Symbol("reason"): Symbol("expired"),
        Symbol("count"): ULong(1),
        Symbol("first-time"): Timestamp(5000),
        Symbol("last-time"): Timestamp(5000),
        Symbol("exchange"): "",
        Symbol("routing-keys"): Array(0xA1, ["work", "copy"]),
    }
    assert typed(deaths.elements[1]) == typed(oldest)
    assert deaths.elements[0]["queue"] == "wait"


def test_annotations_of_consumers_are_shown_to_both_protocols() -> None:
    history = annotated(
        None, [("x-a", encode(UInt(5))), ("x-b", encode([Symbol("c")])), ("x-exchange", encode("no"))]
    )
    assert history is not None
    message = message10(HEAD, {"x-a": "published", "x-c": True})
    header, annotations, _ = head_of(message, part(1), history)
    assert (header.first_acquirer, header.delivery_count) == (False, 0)
    given = {Symbol("x-a"): UInt(5), Symbol("x-c"): True, Symbol("x-b"): [Symbol("c")]}
    counts = {Symbol("x-delivery-count"): Long(1), Symbol("x-acquired-count"): Long(1)}
    assert {key: typed(value) for key, value in annotations.items()} == {
        key: typed(value) for key, value in (given | PLACE | counts).items()
    }
    frames = in_frames(of_kind(0, message)).messages
    [framed] = delivered(frames, part(1), history, count_contract="4.0")
    expected = {"x-a": 5, "x-b": ["c"], "x-c": True, "x-delivery-count": 1}
    assert content(framed).properties.headers == expected
    [again] = delivered(frames, part(), history, count_contract="4.0")
    assert content(again).properties.headers == {"x-a": 5, "x-b": ["c"], "x-c": True}


def test_deaths_become_x_death_for_the_other_protocol() -> None:
    [(head, [rest])] = delivered10(of_kind(0, message10()), part(), twice_dead(), count_contract="4.0")
    republished = head + rest
    [framed] = in_frames(of_kind(0, republished)).messages
    [death, oldest] = content(framed).properties.headers["x-death"]
    assert (death["queue"], oldest["original-expiration"], oldest["routing-keys"]) == (
        "wait",
        "60000",
        ["work", "copy"],
    )


def test_names_that_are_not_utf8_are_binary() -> None:
    stored = Messages("e\udcff", "k\udcff", 0, [message10()])
    [(head, _)] = delivered10(stored, part(), None, count_contract="4.0")
    found = find_sections(head + message10())
    annotations = decode_section(head[found.message_annotations :])
    assert annotations == {"x-exchange": b"e\xff", "x-routing-key": b"k\xff"}


def test_used_delay_is_shown_as_negative() -> None:
    assert head_of(message10(annotations={"x-delay": Int(500)}), part())[1]["x-delay"] == -500
    assert head_of(message10(annotations={"x-delay": Int(-500)}), part())[1]["x-delay"] == -500


def test_header_x_delay_has_no_effect_when_it_is_a_long_array() -> None:
    delay = b"A" + sized(b"V" * 20_000)
    [(head, _)] = delivered10(
        of_kind(1, frames({"headers": table([(b"x-delay", delay)])}, b"")), part(), None, count_contract="4.0"
    )
    assert encode([None] * 20_000) in head


def test_head_is_forgotten_when_its_names_are_long() -> None:
    before = _known_first_head.cache_info().currsize
    head_of(message10(annotations={"x-" + "n" * KNOWN_BYTES_MAX: None}), part())
    assert _known_first_head.cache_info().currsize == before


def test_message_of_frames_is_converted() -> None:
    message = frames({"priority": b"\3", "expiration": short(b"9"), "message_id": short(b"m")}, b"data")
    header, annotations, rest = head_of(message, part(), channel=1)
    assert header == MessageHeader(False, 3, 9, True, 0)
    assert annotations == PLACE
    assert rest == message10(properties=MessageProperties("m"), body=[(DATA, b"data")])


def test_consumer_of_frames_gets_sections_converted() -> None:
    message = message10(HEAD, properties=MessageProperties("m"))
    stored = of_kind(0, message, message)
    found = in_frames(stored, 7, 4096)
    assert found.frames_channel == 7
    assert [each[2] for each in found.messages] == [7, 7]
    assert [content(each).body for each in found.messages] == [b"body"] * 2
    framed = of_kind(3, *found.messages)
    assert in_frames(framed, 7, 4096) is framed


@given(
    st.lists(messages10(), min_size=1, max_size=4),
    st.lists(messages091, min_size=1, max_size=4),
    st.sampled_from([part(), part(2, 1)]),
    st.none() | st.just(twice_dead()),
    st.sampled_from(["4.0", "4.3", None]),
)
def test_every_message_is_delivered(
    sections: list[bytes],
    framed: list[bytes],
    part: Range,
    history: History | None,
    contract: CountContract | None,
) -> None:
    for _, messages in PublishedSections(None).group(sections):
        delivered = delivered_of(of_kind(0, *messages), part, history, contract)
        for message, (head, rest) in zip(messages, delivered, strict=True):
            assert message.endswith(rest)
            found = find_sections(head + rest)
            assert decode_section(head[: found.message_annotations]).first_acquirer is (
                not part.deliveries and history is None
            )
            assert bool(found.footer) == bool(find_sections(message).footer)
    delivered = delivered_of(of_kind(1, *framed), part, history, contract)
    for head, rest in delivered:
        find_sections(head + rest)
    assert len(delivered) == len(framed)
