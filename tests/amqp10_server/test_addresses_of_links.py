"""Addresses of links and messages: names of any text, exchanges and queues that are missing, invalid addresses."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from qq.amqp10.performatives import AttachFrame, DetachFrame, ErrorReply, RejectedState
from qq.amqp10.values import Symbol
from tests.amqp10_server.messages import ACCEPTED, RELEASED, addressed, bodies, outcomes, ready, states
from tests.amqp10_server.socket_client import SocketClient, data, receiver, sender
from tests.stored.messages10 import message10

ADDRESSES_OF_VERSION_1 = ["/topic/mytopic", "/amq/queue/myqueue", "myqueue", "/queue"]
BAD_ADDRESSES = [
    *ADDRESSES_OF_VERSION_1,
    "",
    "\0",
    "/",
    "//",
    "/queues",
    "/queues/",
    "/queue/",
    "/exchanges",
    "/exchanges/",
    "/exchanges//",
    "/exchanges//mykey",
    "/exchanges/amq.default",
    "/exchanges/amq.default/",
    "/exchanges/amq.default/mykey",
    "/ex/✋",
    "/exchange",
    "/exchange/",
    "/exchange/amq.default",
    "/exchange//key/",
    "/exchange//key/mykey",
    "/exchange/amq.default/key/",
    "/exchange/amq.default/key/mykey",
    "/queues/missing%encoding",
    "/queues/missing/encoding",
    "/queues/✋",
    "/exchanges/missing%encoding",
    "/exchanges/missing/encoding/routingkey",
    "/exchanges/exchange/missing%encoding",
    "/exchanges/✋",
]


def refusal(client: SocketClient) -> ErrorReply:
    """Return the node's error for a refused link."""
    attach = client.expect(AttachFrame)
    assert (attach.source if attach.role is False else attach.target) is None
    detach = client.expect(DetachFrame)
    assert detach.closed
    assert detach.error is not None
    client.send(DetachFrame(attach.handle, closed=True))
    return detach.error


@pytest.mark.parametrize(
    ("exchange", "key"),
    [("👉", "🗝️"), ("my/exchange", "my/key"), ("percent%20", "a+b c?d#e;f&g")],
    ids=["unicode", "slash", "punctuation"],
)
def test_exchange_and_key_may_be_any_text(
    client: SocketClient, channel: Any, queue: str, exchange: str, key: str
) -> None:
    channel.exchange_declare(exchange)
    channel.queue_bind(queue, exchange, key)
    client.attach_sender(f"/exchanges/{quote(exchange, safe='')}/{quote(key, safe='')}")
    client.transfer(0, message10(annotations={"x-exchange": "ignored", "x-routing-key": "ignored"}))
    assert outcomes(client, 1) == [ACCEPTED]
    method, _, body = channel.basic_get(queue, auto_ack=True)
    assert (method.exchange, method.routing_key, body) == (exchange, key, b"body")
    channel.exchange_delete(exchange)


@pytest.mark.parametrize("address", ["/exchanges/amq.fanout", "/exchanges/amq.fanout/"])
def test_routing_key_is_empty_when_the_address_lacks_it(
    client: SocketClient, channel: Any, queue: str, address: str
) -> None:
    channel.queue_bind(queue, "amq.fanout", "ignored")
    client.attach_sender(address)
    client.transfer(0, data(b"to all"))
    assert outcomes(client, 1) == [ACCEPTED]
    method, _, body = channel.basic_get(queue, auto_ack=True)
    assert (method.routing_key, body) == ("", b"to all")


@pytest.mark.parametrize("name", ["🎈", "my/queue"])
def test_queue_may_have_any_name(client: SocketClient, channel: Any, name: str) -> None:
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum"})
    client.attach_receiver(quote(name, safe=""))
    client.attach_sender(f"/queues/{quote(name, safe='')}")
    client.credit(1)
    client.transfer(0, data(b"body"))
    assert bodies(client, 1) == [b"body"]
    channel.queue_delete(name)


@pytest.mark.parametrize("link", ["sender", "receiver"])
@pytest.mark.parametrize(
    ("address", "description"),
    [
        ("/exchanges/%F0%9F%8E%88", "no exchange '🎈' in vhost '/'"),
        ("/queues/%F0%9F%8E%88", "no queue '🎈' in vhost '/'"),
    ],
    ids=["exchange", "queue"],
)
def test_link_is_refused_when_its_node_is_missing(
    client: SocketClient, address: str, description: str, link: str
) -> None:
    if link == "receiver" and address.startswith("/exchanges"):
        description, condition = f"invalid address '{address}'", "amqp:invalid-field"
    else:
        condition = "amqp:not-found"
    client.send(sender(address) if link == "sender" else receiver(address))
    error = refusal(client)
    assert (error.condition, error.description) == (condition, description)


def test_messages_have_targets_when_the_link_lacks_a_target(
    client: SocketClient, channel: Any, queue: str
) -> None:
    channel.queue_bind(queue, "amq.direct", "🗝️1")
    channel.queue_bind(queue, "amq.direct", "🗝️2")
    channel.queue_bind(queue, "amq.fanout", "")
    channel.queue_bind(queue, "amq.headers", "", {"my key": True, "x-match": "any"})
    client.attach_sender(None)
    ignored = {"x-exchange": "ignored", "x-routing-key": "ignored"}
    messages = [
        addressed(f"/exchanges/amq.direct/{quote('🗝️1')}", annotations=ignored),
        addressed(f"/exchanges/amq.direct/{quote('🗝️2')}"),
        addressed("/exchanges/amq.fanout"),
        addressed("/exchanges/amq.headers", named={"my key": True}),
        addressed("/exchanges/amq.headers", named={"my key": False}),
        addressed(f"/queues/{queue}"),
        addressed("/queues/not-there"),
    ]
    for number, message in enumerate(messages):
        client.transfer(number, message)
    assert outcomes(client, 7) == [ACCEPTED] * 4 + [RELEASED, ACCEPTED, RELEASED]
    assert ready(channel, queue) == 5


def test_message_is_rejected_when_its_address_is_bad(client: SocketClient, queue: str) -> None:
    client.attach_sender(None)
    for number, address in enumerate([None, *BAD_ADDRESSES]):
        client.transfer(number, addressed(address))
        (state,) = states(client, 1)
        assert isinstance(state, RejectedState), address
        assert state.error is not None
        assert state.error.condition == "amqp:precondition-failed", address
        if address is None:
            assert state.error.description == "anonymous terminus requires 'to' address to be set"
        else:
            assert (state.error.description or "").startswith("bad 'to' address")
    client.transfer(len(BAD_ADDRESSES) + 1, addressed(f"/queues/{queue}"))
    assert outcomes(client, 1) == [ACCEPTED]  # the link goes on


def test_messages_are_rejected_when_their_exchange_is_gone(client: SocketClient, channel: Any) -> None:
    channel.exchange_declare("🎈")
    address = "/exchanges/" + quote("🎈")
    client.attach_sender(None)
    client.transfer(0, addressed(address))
    assert outcomes(client, 1) == [RELEASED]
    channel.exchange_delete("🎈")
    error = ErrorReply("amqp:not-found", "no exchange '🎈' in vhost '/'")
    for number in range(1, 301):  # more than the client has credit for at first
        client.transfer(number, addressed(address))
        assert states(client, 1) == [RejectedState(error)]


@pytest.mark.parametrize(
    ("address", "error"),
    [
        ("/exchanges/missing", ("amqp:not-found", "no exchange 'missing' in vhost '/'")),
        ("nowhere", ("amqp:precondition-failed", "bad 'to' address string: nowhere")),
        (None, ("amqp:precondition-failed", "anonymous terminus requires 'to' address to be set")),
    ],
    ids=["missing", "bad", "none"],
)
def test_detach_names_the_settled_message_that_has_no_target(
    client: SocketClient, queue: str, address: str | None, error: tuple[str, str]
) -> None:
    client.attach_sender(None)
    client.transfer(0, addressed(f"/queues/{queue}"), settled=True)
    client.transfer(1, addressed(address), settled=True)
    detach = client.until(DetachFrame)
    assert detach.error == ErrorReply(*error, {Symbol("delivery-tag"): (1).to_bytes(4, "big")})


def test_link_is_refused_when_its_address_is_bad(client: SocketClient) -> None:
    for address in ["/qqq/🎈", *BAD_ADDRESSES]:
        client.send(sender(address))
        assert refusal(client).condition == "amqp:invalid-field", address
    for address in ["/qqq/🎈", "/exchange/myroutingkey", *ADDRESSES_OF_VERSION_1]:
        client.send(receiver(address))
        assert refusal(client).condition == "amqp:invalid-field", address
