"""Outcomes of consumers: ranges and orders, annotations of modified, ways of dead letters."""

from __future__ import annotations

import time
from typing import Any

import pytest

from qq.amqp10.performatives import (
    AcceptedState,
    DeliveryState,
    DispositionFrame,
    ModifiedState,
    RejectedState,
    ReleasedState,
    SenderSettleMode,
)
from qq.amqp10.sections import MessageHeader, MessageProperties, find_sections
from qq.amqp10.values import Array, Byte, Int, Long, Symbol, Timestamp, UInt, ULong
from tests.amqp10_server.messages import (
    annotations_of,
    bodies,
    body_of,
    header_of,
    put,
    ready,
)
from tests.amqp10_server.settling import Consumer, quorum, send
from tests.amqp10_server.socket_client import SocketClient, data
from tests.stored.messages10 import message10


def settle(client: SocketClient, first: int, last: int, state: DeliveryState) -> None:
    client.send(DispositionFrame(True, first, last, settled=True, state=state))


def counts(message: bytes) -> tuple[int, bool]:
    header = header_of(message)
    return header.delivery_count, header.first_acquirer


def modified(**annotations: Any) -> ModifiedState:
    """Return an outcome with annotations `x-opt-NAME`, after which the message has failed and goes elsewhere."""
    given = {Symbol(f"x-opt-{name}"): value for name, value in annotations.items()}
    return ModifiedState(True, True, given)


def test_modified_message_keeps_annotations_of_each_consumer(
    client: SocketClient, channel: Any, queue: str
) -> None:
    send(client, queue, data(b"m1"), data(b"m2"))
    first, second = Consumer(client, queue, 1), Consumer(client, queue, 2)
    assert counts(first.get()) == (0, True)
    first.settle(ModifiedState(undeliverable_here=True))
    message = first.get()
    assert (body_of(message), counts(message)) == (b"m2", (0, True))
    first.settle(ModifiedState())
    assert counts(first.get()) == (0, False)
    first.settle(ModifiedState(delivery_failed=True))
    assert counts(first.get()) == (1, False)
    by, reason, own_map = (Symbol(f"x-opt-{name}") for name in ("requeued-by", "requeue-reason", "my-map"))
    given: dict[Any, Any] = {
        by: Array(0xB1, ["receiver 1"]),
        reason: ["reason 1"],
        own_map: {"k1": Byte(-1), "k2": ULong(2)},
    }
    first.settle(ModifiedState(delivery_failed=True, message_annotations=given))
    message = second.get()
    found = annotations_of(message)
    assert counts(message) == (2, False)
    assert {key: found[key] for key in given} == given
    more: dict[Any, Any] = {
        by: Array(0xB1, ["receiver 2", *found[by].elements]),
        reason: [Symbol("reason 2"), *found[reason]],
        own_map: {**found[own_map], Symbol("k3"): Symbol("val 3")},
        Symbol("x-other"): Long(99),
    }
    second.settle(ModifiedState(message_annotations=more))
    message = first.get()
    found = annotations_of(message)
    assert counts(message) == (2, False)
    assert {key: found[key] for key in more} == more
    first.settle(ModifiedState(delivery_failed=True))
    client.end()
    _, properties, body = channel.basic_get(queue, auto_ack=True)
    assert body == b"m2"
    assert properties.headers["x-other"] == 99
    assert properties.headers["x-delivery-count"] == 5


def test_dead_letter_is_routed_by_annotations_of_modified(client: SocketClient, channel: Any) -> None:
    channel.exchange_declare("others10", "fanout")
    channel.exchange_declare("fruits10", "headers", arguments={"alternate-exchange": "others10"})
    quorum(
        channel,
        "source10",
        overflow="reject-publish",
        dead_letter_strategy="at-least-once",
        dead_letter_exchange="fruits10",
    )
    for name in ("apple", "banana"):
        quorum(channel, f"{name}10")
        channel.queue_bind(f"{name}10", "fruits10", "", {"x-fruit": name, "x-match": "any-with-x"})
    quorum(channel, "trash10")
    channel.queue_bind("trash10", "others10", "")
    apple = message10(annotations={"x-fruit": "apple"}, body=[(0x75, b"m3")])
    apple_too = message10(annotations={"x-fruit": "apple"}, body=[(0x75, b"m4")])
    send(client, "source10", data(b"m1"), data(b"m2"), apple, apple_too, data(b"m5"))
    source = Consumer(client, "source10", 1)
    names = ("apple10", "banana10", "trash10")
    targets = {name: Consumer(client, name, 2 + number) for number, name in enumerate(names)}
    fruit = Symbol("x-fruit")
    stories = [
        (ModifiedState(True, True, {fruit: "banana"}), "banana10", b"m1"),
        (ModifiedState(True, True, {fruit: "apple"}), "apple10", b"m2"),
        (ModifiedState(undeliverable_here=True), "apple10", b"m3"),
        (ModifiedState(True, True, {fruit: "banana"}), "banana10", b"m4"),
        (ModifiedState(True, True, {fruit: "strawberry"}), "trash10", b"m5"),
    ]
    for state, name, body in stories:
        assert counts(source.get()) == (0, True)
        source.settle(state)
        message = targets[name].get()
        assert (body_of(message), header_of(message).first_acquirer) == (body, False)
        targets[name].settle(AcceptedState())
    for name in ("fruits10", "others10"):
        channel.exchange_delete(name)


def test_annotations_of_modified_survive_dead_letters(client: SocketClient, channel: Any) -> None:
    quorum(channel, "first10", dead_letter_exchange="", dead_letter_routing_key="second10")
    quorum(channel, "second10", dead_letter_exchange="", dead_letter_routing_key="first10")
    send(client, "first10", data(b"m"))
    first, second = Consumer(client, "first10", 1), Consumer(client, "second10", 2)
    assert counts(first.get()) == (0, True)
    given = {"list": ["l1"], "map": {Symbol("k1"): Byte(-1)}, "array": Array(0xB1, ["a1"])}
    first.settle(modified(**given))
    message = second.get()
    assert counts(message) == (1, False)
    found = annotations_of(message)
    assert {key: found[Symbol(f"x-opt-{key}")] for key in given} == given
    more = {
        "list": [Int(-99), "l1"],
        "map": {Symbol("k2"): Symbol("v2"), Symbol("k1"): Byte(-1)},
        "array": Array(0xB1, ["a2", "a1"]),
    }
    second.settle(modified(**more))
    message = first.get()
    assert (body_of(message), counts(message)) == (b"m", (2, False))
    found = annotations_of(message)
    assert {key: found[Symbol(f"x-opt-{key}")] for key in more} == more
    first.settle(AcceptedState())


def test_expired_message_is_routed_by_headers_and_annotations(client: SocketClient, channel: Any) -> None:
    quorum(channel, "expires10", dead_letter_exchange="amq.headers", message_ttl=0)
    quorum(channel, "expired10")
    binding = {"my key": 5, "x-my key": 6, "x-match": "all-with-x"}
    channel.queue_bind("expired10", "amq.headers", "", binding)
    annotated, named = {"x-my key": UInt(6)}, {"my key": UInt(5)}
    before_ms = time.time() * 1000
    send(
        client,
        "expires10",
        message10(None, annotated, MessageProperties("my ID"), named, [(0x75, b"m1")]),
        message10(None, annotated, None, named, [(0x75, b"m2")]),
        message10(None, None, None, named, [(0x75, b"m3")]),
        message10(None, annotated, None, None, [(0x75, b"m4")]),
    )
    client.attach_receiver("expired10", snd_settle_mode=SenderSettleMode.SETTLED)
    client.credit(4)
    messages = [client.message()[1] for _ in range(2)]
    assert [body_of(message) for message in messages] == [b"m1", b"m2"]
    has_properties = [
        (found := find_sections(message)).properties < found.application_properties for message in messages
    ]
    assert has_properties == [True, False]  # the bare message stays as it was
    annotations = annotations_of(messages[0])
    for key in ("first", "last"):
        death = {
            part: annotations[Symbol(f"x-{key}-death-{part}")] for part in ("queue", "exchange", "reason")
        }
        assert death == {"queue": "expires10", "exchange": "", "reason": "expired"}
    (death,) = annotations[Symbol("x-opt-deaths")].elements
    times = death.pop(Symbol("first-time")), death.pop(Symbol("last-time"))
    assert times[0] == times[1]
    assert death.pop(Symbol("routing-keys")).elements == ["expires10"]
    assert isinstance(times[0], Timestamp)
    assert before_ms - 5000 < times[0] < before_ms + 5000
    assert death == {
        "queue": "expires10",
        "reason": "expired",
        "count": 1,
        "exchange": "",
    }
    assert isinstance(death[Symbol("reason")], Symbol)
    client.end()
    assert ready(channel, "expired10") == 0  # the dead letters of the rest have no queue


def test_death_of_a_message_with_a_ttl_has_it(client: SocketClient, channel: Any, queue: str) -> None:
    quorum(channel, "brief10", dead_letter_exchange="", dead_letter_routing_key=queue)
    send(client, "brief10", message10(MessageHeader(durable=True, ttl=10)))
    client.attach_receiver(queue)
    client.credit(1)
    _, message = client.message()
    (death,) = annotations_of(message)[Symbol("x-opt-deaths")].elements
    assert (death[Symbol("ttl")], death[Symbol("reason")]) == (10, "expired")
    assert isinstance(death[Symbol("ttl")], UInt)
    assert header_of(message).ttl is None


def test_deaths_are_counted_and_the_last_is_first(client: SocketClient, channel: Any) -> None:
    quorum(
        channel,
        "round-1",
        message_ttl=20,
        overflow="reject-publish",
        dead_letter_strategy="at-least-once",
        dead_letter_exchange="",
        dead_letter_routing_key="round-2",
    )
    quorum(channel, "round-2", dead_letter_exchange="", dead_letter_routing_key="round-3")
    quorum(channel, "round-3", message_ttl=20, dead_letter_exchange="", dead_letter_routing_key="round-1")
    send(client, "round-1", data(b"body"))
    consumer = Consumer(client, "round-2", 1)
    assert counts(consumer.get()) == (0, False)
    consumer.settle(RejectedState())
    assert counts(consumer.get()) == (1, False)
    consumer.settle(modified(thekey="val"))
    message = consumer.get()
    assert counts(message) == (2, False)
    annotations = annotations_of(message)
    assert annotations[Symbol("x-opt-thekey")] == "val"
    for key in ("first", "last"):
        death = {
            part: annotations[Symbol(f"x-{key}-death-{part}")] for part in ("queue", "exchange", "reason")
        }
        assert death == {"queue": "round-1", "exchange": "", "reason": "expired"}
    deaths = [
        (death[Symbol("queue")], death[Symbol("reason")], death[Symbol("count")])
        for death in annotations[Symbol("x-opt-deaths")].elements
    ]
    assert deaths == [("round-1", "expired", 3), ("round-3", "expired", 2), ("round-2", "rejected", 2)]
    one, three, two = (death[Symbol("first-time")] for death in annotations[Symbol("x-opt-deaths")].elements)
    assert one <= two <= three
    consumer.settle(AcceptedState())


def test_dead_letters_come_in_the_order_of_their_rejection(client: SocketClient, channel: Any) -> None:
    quorum(channel, "rejected10", dead_letter_exchange="", dead_letter_routing_key="dead10")
    quorum(channel, "dead10")
    put(channel, "rejected10", *(b"%d" % number for number in range(100)))
    client.attach_receiver("rejected10")
    client.credit(100)
    ids = [client.message()[0].delivery_id for _ in range(100)]
    settle(client, ids[1], ids[3], RejectedState())
    client.accept(ids[6])
    settle(client, ids[0], ids[-1], RejectedState())  # some of the range are settled
    client.attach_receiver("dead10", 2)
    client.credit(100, handle=2)
    order = [1, 2, 3, 0, *(number for number in range(4, 100) if number != 6)]
    transfers = [client.message() for _ in range(99)]
    assert [int(body_of(message)) for _, message in transfers] == order
    client.accept(transfers[0][0].delivery_id, transfers[-1][0].delivery_id)
    client.end()
    assert (ready(channel, "rejected10"), ready(channel, "dead10")) == (0, 0)


@pytest.mark.parametrize(
    ("ranges", "left"),
    [
        ([(7, 10)], [0, 1, 2, 3, 4, 5, 6, 9]),  # beyond the last delivery
        ([(3, 5)], [0, 1, 2, 6, 7, 8, 9]),
        ([(3, 5), (1, 6)], [0, 7, 8, 9]),  # larger than the deliveries in it
        ([(0, 20)], [9]),
        ([(0, 8), (0, 0), (0, 5)], [9]),  # again, with no deliveries in them
        ([(2**32 - 5, 3)], [4, 5, 6, 7, 8, 9]),  # ids wrap
        ([(8, 2)], list(range(10))),  # a range backwards has no ids
    ],
)
def test_accepted_ranges_leave_the_queue(
    client: SocketClient, channel: Any, queue: str, ranges: list[tuple[int, int]], left: list[int]
) -> None:
    put(channel, queue, *(b"%d" % number for number in range(10)))
    client.attach_receiver(queue)
    client.credit(9)
    ids = [client.message()[0].delivery_id for _ in range(9)]
    for first, last in ranges:
        begin, end = ((ids[0] + number) % 2**32 for number in (first, last))
        settle(client, begin, end, AcceptedState())
    client.end()
    found = [channel.basic_get(queue, auto_ack=True)[2] for _ in left]
    assert sorted(int(body) for body in found) == left
    assert ready(channel, queue) == 0


def test_released_range_comes_again_in_its_order(client: SocketClient, channel: Any, queue: str) -> None:
    put(channel, queue, b"1", b"2", b"3", b"4")
    client.attach_receiver(queue)
    client.credit(6)
    ids = [client.message()[0].delivery_id for _ in range(4)]
    settle(client, ids[1], ids[2], ReleasedState())
    assert bodies(client, 2) == [b"2", b"3"]
    settle(client, ids[3], ids[3] + 2, AcceptedState())
    client.accept(ids[0])
    client.end()
    assert ready(channel, queue) == 0
