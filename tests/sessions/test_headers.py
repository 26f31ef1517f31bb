from datetime import UTC, datetime

import pytest
from pamqp import body, commands, frame, header

from qq.machine.protocol.death_history import EXPIRED, REJECTED, Death, History, died
from qq.machine.protocol.effects import CountContract
from qq.ranges import Range
from qq.sessions.headers import death_headers, delivered, is_redelivered, redelivery_headers
from qq.stored.editing import content

CONTRACTS: tuple[CountContract | None, ...] = ("4.0", "4.3", None)
TIME = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
TIME_MS = int(TIME.timestamp()) * 1000


def part(deliveries: int = 0, failures: int = 0) -> Range:
    return Range(1, 0, 1, deliveries, failures=failures)


def message(**properties: object) -> bytes:
    content_header = header.ContentHeader(0, 3, commands.Basic.Properties(**properties))
    return frame.marshal(content_header, 1) + frame.marshal(body.ContentBody(b"abc"), 1)


def twice_dead(new_key: str | None = None) -> History:
    once = died(None, "work", EXPIRED, TIME_MS, "", ("work", "copy"), "60000", "dlx", new_key)
    return died(once, "wait", REJECTED, TIME_MS + 2000, "ignored", ("work", "copy"), "60000", "end", None)


def test_a_message_at_its_first_delivery_is_sent_as_it_is_stored() -> None:
    messages = [message(), message(headers={"a": 1})]
    for contract in CONTRACTS:
        assert delivered(messages, part(), None, count_contract=contract) is messages


def test_message_has_a_header_with_its_delivery_count() -> None:
    properties = {"headers": {"x-delivery-count": 7, "CC": ["a"]}, "expiration": "9"}
    [again] = delivered([message(**properties)], part(2, 1), None, count_contract="4.0")
    expected = commands.Basic.Properties(headers={"CC": ["a"], "x-delivery-count": 2}, expiration="9")
    assert content(again) == (expected, b"abc")
    assert b"\x10x-delivery-countl\0\0\0\0\0\0\0\x02" in again


def test_a_classic_queue_adds_no_count_to_a_redelivered_message() -> None:
    for headers in (None, {"x-delivery-count": 7, "mine": "x"}):
        messages = [message(headers=headers)]
        assert delivered(messages, part(2, 1), None, count_contract=None) is messages


def test_message_has_both_counts_under_contract_4_3() -> None:
    assert redelivery_headers(part(3, 0), None, count_contract="4.3") == {"x-acquired-count": 3}
    both = {"x-acquired-count": 3, "x-delivery-count": 2}
    assert redelivery_headers(part(3, 2), None, count_contract="4.3") == both


@pytest.mark.parametrize(
    ("contract", "returns", "count"), [("4.0", 0, 5), ("4.0", 2, 2), ("4.3", 0, None), (None, 0, None)]
)
def test_first_delivery_counts_the_failures_before_the_death(
    contract: CountContract | None, returns: int, count: int | None
) -> None:
    history = twice_dead()._replace(failures=5)
    [sent] = delivered([message()], part(returns), history, count_contract=contract)
    properties, _ = content(sent)
    assert properties.headers is not None
    assert properties.headers.get("x-delivery-count") == count
    assert is_redelivered(part(returns), history, contract) == (count is not None)


def test_x_death_header_lists_deaths_newest_first() -> None:
    assert death_headers(twice_dead()) == {
        "x-death": [
            {
                "count": 1,
                "reason": "rejected",
                "queue": "wait",
                "time": datetime(2024, 5, 6, 7, 8, 11, tzinfo=UTC),
                "exchange": "dlx",
                "routing-keys": ["work", "copy"],
            },
            {
                "count": 1,
                "reason": "expired",
                "queue": "work",
                "time": TIME,
                "exchange": "",
                "routing-keys": ["work", "copy"],
                "original-expiration": "60000",
            },
        ],
        "x-first-death-reason": "expired",
        "x-first-death-queue": "work",
        "x-first-death-exchange": "",
        "x-last-death-reason": "rejected",
        "x-last-death-queue": "wait",
        "x-last-death-exchange": "dlx",
    }


def test_the_fields_of_a_death_have_rabbitmqs_types() -> None:
    death = Death("q", "maxlen", 300, TIME_MS, "e", ("k",), None)
    history = History("dlx", "k", False, (death,), ("maxlen", "q", "e"), ("maxlen", "q", "e"), 1)
    [sent] = delivered([message()], part(), history, count_contract="4.0")
    fields = {
        "count": b"l" + (300).to_bytes(8, "big"),
        "reason": b"S\0\0\0\6maxlen",
        "queue": b"S\0\0\0\1q",
        "time": b"T" + (TIME_MS // 1000).to_bytes(8, "big"),
        "exchange": b"S\0\0\0\1e",
        "routing-keys": b"A\0\0\0\6S\0\0\0\1k",
    }
    table = b"".join(bytes([len(name)]) + name.encode() + value for name, value in fields.items())
    table = b"F" + len(table).to_bytes(4, "big") + table
    assert b"\x07x-deathA" + len(table).to_bytes(4, "big") + table in sent
    assert b"\x13x-last-death-reasonS\0\0\0\6maxlen" in sent


def test_dead_lettering_changes_only_its_own_headers() -> None:
    properties = {"content_type": "text/plain", "priority": 3, "message_id": "m", "delivery_mode": 2}
    kept = {"CC": ["copy"], "a": 1}
    stored = message(headers=kept | {"x-death": "mine"}, expiration="60000", **properties)
    for new_key in (None, "key"):
        history = twice_dead(new_key)
        [first] = delivered([stored], part(), history, count_contract="4.0")
        expected = commands.Basic.Properties(headers=kept | death_headers(history), **properties)
        assert content(first) == (expected, b"abc")
        [again] = delivered([stored], part(1), history, count_contract="4.0")
        expected.headers["x-delivery-count"] = 1
        assert content(again) == (expected, b"abc")
