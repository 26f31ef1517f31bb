"""Addresses of version 2: each name has an address; the addresses that RabbitMQ's tests call bad are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qq.amqp10.addresses import TargetAddress, queue_address, source_queue, target_address
from qq.amqp10.addresses_v1 import AddressV1, is_version1, source_v1, target_v1
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


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("q", AddressV1(TargetAddress("", "q", "q"), declares_queue=True)),
        ("a%2Fb%2fc d", AddressV1(TargetAddress("", "a/b%2fc d", "a/b%2fc d"), declares_queue=True)),
        ("/queue/q", AddressV1(TargetAddress("", "q", "q"), declares_queue=True)),
        ("/amq/queue/q", AddressV1(TargetAddress("", "q", "q"), declares_queue=False)),
        ("/exchange/x", AddressV1(TargetAddress("x", "", None, by_subject=True), declares_queue=False)),
        ("/exchange/x/", AddressV1(TargetAddress("x", "", None, by_subject=True), declares_queue=False)),
        ("/exchange/%2F/%2F", AddressV1(TargetAddress("/", "/", None), declares_queue=False)),
        ("/topic/a.#", AddressV1(TargetAddress("amq.topic", "a.#", None), declares_queue=False)),
    ],
)
def test_address_of_version_1_is_parsed(address: str, found: AddressV1) -> None:
    assert is_version1(address)
    assert source_v1(address) == target_v1(address) == found


def test_queue_without_a_name_is_a_target_only() -> None:
    target = TargetAddress("", "", None, by_subject=True)
    assert target_v1("/queue") == AddressV1(target, declares_queue=False)
    with pytest.raises(InvalidFieldValue):
        source_v1("/queue")


@pytest.mark.parametrize(
    "address",
    [
        *("", "/", "//", "a/b", "/queue/", "/queue/a/b", "/amq/queue", "/amq/queue/", "/topic", "/topic/"),
        *("/topic/a/b", "/exchange", "/exchange/", "/exchange//k", "/exchange/x/k/", "/temp-queue/q"),
        *("/reply-queue/q", "/stream/q", "queue/q"),
    ],
)
def test_bad_address_of_version_1_is_refused(address: str) -> None:
    for parse in (source_v1, target_v1):
        with pytest.raises(InvalidFieldValue, match="invalid address"):
            parse(address)


def test_addresses_of_version_2_are_told_apart() -> None:
    assert not is_version1("/queues/q")
    assert not is_version1("/exchanges/x")
