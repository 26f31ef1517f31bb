"""Addresses of version 2: each name has an address; the addresses that RabbitMQ's tests call bad are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qq.amqp10.addresses import TargetAddress, address_of, queue_address, source_queue, target_address
from qq.amqp10.conditions import Condition, InvalidFieldValue


@pytest.mark.parametrize(
    ("address", "target"),
    [
        ("/queues/q", TargetAddress("", "q", "q")),
        ("/queues/a%2Fb%20%e2%9c%8b", TargetAddress("", "a/b \u270b", "a/b \u270b")),
        ("/queues/amq.default", TargetAddress("", "amq.default", "amq.default")),
        ("/exchanges/x", TargetAddress("x", "", None)),
        ("/exchanges/x/", TargetAddress("x", "", None)),
        ("/exchanges/x/a.b.%23", TargetAddress("x", "a.b.#", None)),
        ("/exchanges/amq.topic/%2F", TargetAddress("amq.topic", "/", None)),
        ("/queues/it's+(a):b@c!", TargetAddress("", "it's+(a):b@c!", "it's+(a):b@c!")),
    ],
)
def test_target_has_exchange_key_and_queue(address: str, target: TargetAddress) -> None:
    assert target_address(address) == target
    if target.queue is not None:
        assert source_queue(address) == target.queue


BAD_QUEUES = [
    *(
        "",
        "\0",
        "/",
        "//",
        "/queues",
        "/queues/",
        "/queue/",
        "/queue",
        "myqueue",
        "queues/q",
        "/amq/queue/myqueue",
    ),
    *("/queues/missing%encoding", "/queues/missing/encoding", "/queues/\u270b", "/queues/q%", "/queues/q%2"),
    *("/queues/%ff", "/queues/a b", "/queues/q?x", "/queues/q\n", "/topic/mytopic", "/exchange/myroutingkey"),
]
BAD_EXCHANGES = [
    *("/exchanges", "/exchanges/", "/exchanges//", "/exchanges//mykey", "/exchanges/amq.default"),
    *("/exchanges/amq.default/", "/exchanges/amq.default/mykey", "/ex/\u270b", "/exchange", "/exchange/"),
    *("/exchange/amq.default", "/exchange//key/", "/exchange//key/mykey", "/exchange/amq.default/key/mykey"),
    *("/exchanges/missing%encoding", "/exchanges/missing/encoding/routingkey", "/exchanges/\u270b"),
    *("/exchanges/exchange/missing%encoding", "/exchanges/x/k/"),
]


def test_bad_address_is_refused() -> None:
    for address in BAD_QUEUES + BAD_EXCHANGES:
        with pytest.raises(InvalidFieldValue, match="invalid address") as error:
            target_address(address)
        assert error.value.condition is Condition.INVALID_FIELD
    for address in [*BAD_QUEUES, *BAD_EXCHANGES, "/exchanges/x", "/exchanges/x/k"]:
        with pytest.raises(InvalidFieldValue):
            source_queue(address)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20))
def test_queue_has_an_address(queue: str) -> None:
    assert source_queue(queue_address(queue)) == queue
    assert queue_address(queue).isascii()


@given(st.text(min_size=1).filter(lambda name: name != "amq.default"), st.text())
def test_address_of_a_target_is_parsed_as_the_target(name: str, key: str) -> None:
    for target in (TargetAddress("", name, name), TargetAddress(name, key, None)):
        assert target_address(address_of(target)) == target
