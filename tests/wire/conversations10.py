"""The conversations of AMQP 1.0 in which RabbitMQ and a node must send the same frames.

Each conversation has queues of its own, because all conversations of a run share a virtual host.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from proton import (
    Delivery,
    Link,
    Message,
    byte,
    float32,
    int32,
    symbol,
    timestamp,
    ubyte,
    uint,
    ulong,
    ushort,
)

from tests.wire.engine10 import Talk
from tests.wire.wire import READER, VHOST, ask

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from proton import Receiver, Sender

Arguments = dict[str, Any]
NULL = b"\x00\x53\x77\x40"
"""The section of a body that is null."""
QUORUM: Arguments = {"x-queue-type": "quorum"}


class NoDeliveryError(Exception):
    """The broker has not sent the delivery on which a conversation goes on."""


class Conversation(NamedTuple):
    """The acts of a client, and its queues."""

    act: Callable[[Talk], None]
    queues: Mapping[str, Arguments]
    options: Mapping[str, Any]


CONVERSATIONS: dict[str, Conversation] = {}


def conversation(
    *queues: str, arguments: Arguments | None = None, others: Sequence[str] = (), **options: Any
) -> Callable[[Callable[[Talk], None]], Callable[[Talk], None]]:
    """Register a function under its name.

    `queues` are declared with the further arguments, and `others` without. `options` are those of `Talk`.
    """

    def register(act: Callable[[Talk], None]) -> Callable[[Talk], None]:
        declared = {queue: QUORUM | (arguments or {}) for queue in queues} | dict.fromkeys(others, QUORUM)
        CONVERSATIONS[act.__name__] = Conversation(act, declared, options)
        return act

    return register


def transcript(port: int, name: str, expected: Sequence[str] | None = None) -> list[str]:
    """Hold a conversation with the broker at a port, and return its lines."""
    act, _, options = CONVERSATIONS[name]
    with Talk(port, expected, **options) as talk:
        with suppress(NoDeliveryError):
            act(talk)
        talk.close()
        talk.surplus()
        return talk.lines


def declare(http_port: int, name: str) -> None:
    """Declare the queues of a conversation, empty, over the HTTP API."""
    for queue, arguments in CONVERSATIONS[name].queues.items():
        ask(http_port, "DELETE", f"queues/{VHOST}/{queue}")
        ask(http_port, "PUT", f"queues/{VHOST}/{queue}", {"durable": True, "arguments": arguments})


def both(talk: Talk, queue: str, credit: int = 10, **options: Any) -> tuple[Sender, Receiver]:
    """Attach a sender and a receiver to a queue."""
    session = talk.open()
    sender = talk.sender(session, f"/queues/{queue}")
    receiver = talk.receiver(session, f"/queues/{queue}", **options)
    if credit:
        talk.credit(receiver, credit)
    return sender, receiver


def taken(receiver: Receiver) -> Delivery:
    """Return the next delivery of a link, read to its end."""
    delivery = receiver.current
    if delivery is None:
        raise NoDeliveryError
    receiver.recv(delivery.pending)
    receiver.advance()
    return delivery


def text(body: str = "one", **fields: Any) -> Message:
    return Message(body=body.encode(), inferred=True, **fields)


# Connections and sessions


@conversation()
def open_and_close(talk: Talk) -> None:
    talk.connection.open()
    talk.step()


@conversation(frame_bytes=512)
def open_with_the_smallest_frames(talk: Talk) -> None:
    talk.open()


@conversation(channel_max=0)
def open_with_a_single_channel(talk: Talk) -> None:
    talk.open()


@conversation(idle_timeout_s=60)
def open_with_an_idle_timeout(talk: Talk) -> None:
    talk.open()


@conversation(properties={symbol("product"): "talk", symbol("capability"): True})
def open_with_properties(talk: Talk) -> None:
    talk.open()


@conversation(vhost="missing")
def open_of_a_missing_virtual_host(talk: Talk) -> None:
    talk.connection.open()
    talk.step()


@conversation(user="nobody")
def login_of_an_unknown_user(talk: Talk) -> None:
    talk.connection.open()
    talk.step()


@conversation(mechanism="ANONYMOUS")
def login_without_a_name(talk: Talk) -> None:
    talk.connection.open()
    talk.step()


@conversation()
def sessions_begin_and_end(talk: Talk) -> None:
    first = talk.open()
    second = talk.begin()
    first.close()
    talk.step()
    second.close()
    talk.step()
    talk.begin()


# Links


@conversation("c10-attach")
def attach_to_a_queue(talk: Talk) -> None:
    session = talk.open()
    sender = talk.sender(session, "/queues/c10-attach")
    receiver = talk.receiver(session, "/queues/c10-attach")
    sender.detach()
    talk.step()
    receiver.close()
    talk.step()


@conversation("c10-modes")
def attach_with_settle_modes(talk: Talk) -> None:
    session = talk.open()
    for number, mode in enumerate((Link.SND_UNSETTLED, Link.SND_SETTLED, Link.SND_MIXED)):
        talk.sender(session, "/queues/c10-modes", f"to {number}", snd_settle_mode=mode)
        talk.receiver(session, "/queues/c10-modes", f"from {number}", snd_settle_mode=mode)


@conversation("c10-second")
def attach_with_receiver_settle_mode_second(talk: Talk) -> None:
    session = talk.open()
    talk.receiver(session, "/queues/c10-second", rcv_settle_mode=Link.RCV_SECOND)


@conversation()
def attach_to_exchanges(talk: Talk) -> None:
    session = talk.open()
    for number, address in enumerate(
        ("/exchanges/amq.topic", "/exchanges/amq.topic/a.b", "/exchanges/amq.direct/%C3%A4%2F%20", None)
    ):
        talk.sender(session, address, f"to {number}")


def refused(address: str, *, to_publish: bool) -> None:
    """Register the attach of a link to an address that has no queue or exchange."""

    def act(talk: Talk) -> None:
        session = talk.open()
        if to_publish:
            talk.sender(session, address)
        else:
            talk.receiver(session, address)

    act.__name__ = f"attach_to_{'publish_to' if to_publish else 'consume_from'} {address}"
    conversation()(act)


for _address in (
    "/queues/missing",
    "/queues/",
    "/queues/a%2",
    "/queues/%FF",
    "/exchanges/missing/key",
    "/exchanges/",
    "/exchanges/amq.topic/a/b",
    "/topic/a",
    "missing",
    "",
    "/queues/amq.rabbitmq.trace/",
):
    refused(_address, to_publish=True)
    refused(_address, to_publish=False)
refused("/exchanges/amq.topic", to_publish=False)
refused("/exchanges/amq.default", to_publish=True)


@conversation("c10-reader", user=READER)
def attach_without_the_right_to_publish(talk: Talk) -> None:
    talk.sender(talk.open(), "/queues/c10-reader")


@conversation("c10-reader2", user=READER)
def attach_without_the_right_to_consume(talk: Talk) -> None:
    talk.receiver(talk.open(), "/queues/c10-reader2")


@conversation("c10-filter")
def attach_with_a_filter(talk: Talk) -> None:
    session = talk.open()
    talk.receiver(session, "/queues/c10-filter", filter={symbol("rabbitmq:stream-offset-spec"): "first"})


@conversation("c10-priority")
def attach_with_a_priority(talk: Talk) -> None:
    session = talk.open()
    talk.receiver(session, "/queues/c10-priority", properties={symbol("rabbitmq:priority"): int32(5)})


@conversation()
def attach_to_a_temporary_queue(talk: Talk) -> None:
    talk.receiver(talk.open(), None, dynamic=True)


# Publishing


@conversation("c10-publish")
def publish_in_each_mode(talk: Talk) -> None:
    session = talk.open()
    sender = talk.sender(session, "/queues/c10-publish")
    talk.send(sender, text("unsettled")).settle()
    talk.send(sender, text("settled"), settled=True)
    talk.send(sender, text("unsettled again"))


@conversation("c10-parts")
def publish_in_parts(talk: Talk) -> None:
    sender, receiver = both(talk, "c10-parts")
    talk.send(sender, text("x" * 20_000))
    talk.settle(taken(receiver), Delivery.ACCEPTED)


@conversation("c10-abort")
def publish_and_abort(talk: Talk) -> None:
    session = talk.open()
    sender = talk.sender(session, "/queues/c10-abort")
    delivery = sender.delivery("aborted")
    sender.stream(text("x" * 20_000).encode())
    talk.step()
    delivery.abort()
    talk.step()
    talk.send(sender, text("whole"))


@conversation()
def publish_to_no_queue(talk: Talk) -> None:
    session = talk.open()
    talk.send(talk.sender(session, "/exchanges/amq.direct/nowhere"), text())


@conversation("c10-full", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
def publish_to_a_full_queue(talk: Talk) -> None:
    sender = talk.sender(talk.open(), "/queues/c10-full")
    for each in ("1", "2", "3", "4"):
        talk.send(sender, text(each))


@conversation("c10-anonymous")
def publish_to_addresses_in_messages(talk: Talk) -> None:
    sender = talk.sender(talk.open(), None)
    for address in ("/queues/c10-anonymous", "/queues/missing", "/exchanges/missing/k", "wrong", None):
        talk.send(sender, Message(body=b"one", inferred=True, address=address))


@conversation("c10-octets")
def publish_octets_that_are_no_message(talk: Talk) -> None:
    sender = talk.sender(talk.open(), "/queues/c10-octets")
    talk.send(sender, b"\x00\x53\x75")


@conversation("c10-no-body")
def publish_without_a_body(talk: Talk) -> None:
    sender = talk.sender(talk.open(), "/queues/c10-no-body")
    talk.send(sender, b"\x00\x53\x70\xc0\x02\x01\x41")


@conversation("c10-user")
def publish_in_the_name_of_another_user(talk: Talk) -> None:
    sender = talk.sender(talk.open(), "/queues/c10-user")
    talk.send(sender, text(user_id=b"guest"))
    talk.send(sender, text(user_id=b"other"))


# Messages


def through(name: str, message: Message | bytes) -> None:
    """Register the way of a message through a queue."""
    queue = f"c10-{name.replace('_', '-')}"

    def act(talk: Talk) -> None:
        sender, receiver = both(talk, queue)
        talk.send(sender, message)
        talk.settle(taken(receiver), Delivery.ACCEPTED)

    act.__name__ = f"message_{name}"
    conversation(queue)(act)


through("with_data", text("body"))
through("with_two_data", b"\x00\x53\x75\xa0\x01a\x00\x53\x75\xa0\x01b")
through("with_a_string", Message(body="text"))
through("with_a_map", Message(body={"a": 1, "b": [True, None]}))
through("with_a_sequence", b"\x00\x53\x76\xc0\x04\x02\x54\x01\x41\x00\x53\x76\x45")
through("with_null", b"\x00\x53\x77\x40")
through("with_a_header", text(durable=True, priority=7, ttl=60.0, first_acquirer=False))
through("with_an_empty_header", b"\x00\x53\x70\x45\x00\x53\x75\xa0\x01a")
through("that_is_not_durable", b"\x00\x53\x70\xc0\x02\x01\x42\x00\x53\x75\xa0\x01a")
through(
    "with_all_properties",
    text(
        id="id",
        user_id=b"guest",
        address="/queues/elsewhere",
        subject="subject",
        reply_to="/queues/replies",
        correlation_id=ulong(7),
        content_type=symbol("text/plain"),
        content_encoding=symbol("gzip"),
        expiry_time=2_000_000_000,
        group_id="group",
        group_sequence=3,
        reply_to_group_id="replies",
    ),
)
through(
    "with_application_properties",
    text(
        properties={
            "text": "t",
            "symbol": symbol("s"),
            "byte": byte(-1),
            "ubyte": ubyte(1),
            "ushort": ushort(2),
            "int": int32(-3),
            "uint": uint(3),
            "long": -(2**40),
            "ulong": ulong(2**63),
            "float": float32(0.5),
            "double": 0.25,
            "true": True,
            "null": None,
            "octets": b"\0\xff",
            "time": timestamp(1_700_000_000_000),
        }
    ),
)
through("with_annotations", text(annotations={symbol("x-opt-own"): "own", symbol("x-other"): 1}))
through("with_a_footer", b"\x00\x53\x75\xa0\x01a\x00\x53\x78\xc1\x06\x02\xa3\x01f\x54\x01")
through(
    "with_delivery_annotations",
    b"\x00\x53\x71\xc1\x06\x02\xa3\x01d\x54\x01\x00\x53\x75\xa0\x01a",
)


# Consuming


@conversation("c10-outcomes")
def settle_with_each_outcome(talk: Talk) -> None:
    sender, receiver = both(talk, "c10-outcomes", credit=100)
    for outcome in (Delivery.ACCEPTED, Delivery.RELEASED, Delivery.ACCEPTED, Delivery.REJECTED):
        talk.send(sender, text())
        while receiver.current is not None:
            talk.settle(taken(receiver), outcome)
            outcome = Delivery.ACCEPTED


@conversation("c10-modified")
def settle_as_modified(talk: Talk) -> None:
    sender, receiver = both(talk, "c10-modified", credit=100)
    talk.send(sender, text())
    for failed, undeliverable in ((False, False), (True, False), (True, True)):
        delivery = taken(receiver)
        delivery.local.failed = failed
        delivery.local.undeliverable = undeliverable
        delivery.local.annotations = {symbol("x-opt-reason"): "again"}
        talk.settle(delivery, Delivery.MODIFIED)


@conversation(
    "c10-dead",
    arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "c10-letters"},
    others=("c10-letters",),
)
def dead_letters_have_annotations(talk: Talk) -> None:
    sender, receiver = both(talk, "c10-dead")
    letters = talk.receiver(receiver.session, "/queues/c10-letters", "letters")
    talk.credit(letters, 1)
    talk.send(sender, text())
    talk.settle(taken(receiver), Delivery.REJECTED)


@conversation("c10-settled")
def consume_settled(talk: Talk) -> None:
    sender, _ = both(talk, "c10-settled", snd_settle_mode=Link.SND_SETTLED)
    talk.send(sender, text("first"))
    talk.send(sender, text("second"))


@conversation("c10-second2")
def settle_in_receiver_settle_mode_second(talk: Talk) -> None:
    sender, receiver = both(talk, "c10-second2", rcv_settle_mode=Link.RCV_SECOND)
    talk.send(sender, text())
    delivery = taken(receiver)
    delivery.update(Delivery.ACCEPTED)
    talk.step()
    delivery.settle()
    talk.step()


@conversation("c10-range")
def settle_a_range(talk: Talk) -> None:
    sender, receiver = both(talk, "c10-range", credit=0)
    for each in ("1", "2", "3"):
        talk.send(sender, text(each))
    talk.credit(receiver, 3)
    for delivery in [taken(receiver) for _ in range(3)]:
        delivery.update(Delivery.ACCEPTED)
        delivery.settle()
    talk.step()


@conversation("c10-credit")
def credit_bounds_deliveries(talk: Talk) -> None:
    sender, receiver = both(talk, "c10-credit", credit=0)
    for each in ("1", "2", "3"):
        talk.send(sender, text(each))
    talk.credit(receiver, 1)
    talk.credit(receiver, 1)
    talk.credit(receiver, 5)


@conversation("c10-drain")
def drain_of_an_empty_queue(talk: Talk) -> None:
    _, receiver = both(talk, "c10-drain", credit=0)
    receiver.drain(10)
    talk.step()


@conversation("c10-drain2")
def drain_of_a_queue(talk: Talk) -> None:
    sender, receiver = both(talk, "c10-drain2", credit=0)
    for each in ("1", "2"):
        talk.send(sender, text(each))
    receiver.drain(5)
    talk.step()


@conversation("c10-held")
def detach_returns_held_messages(talk: Talk) -> None:
    sender, receiver = both(talk, "c10-held")
    talk.send(sender, text())
    receiver.close()
    talk.step()
    talk.credit(talk.receiver(sender.session, "/queues/c10-held", "again"), 1)


@conversation("c10-sac", arguments={"x-single-active-consumer": True})
def single_active_consumers_take_turns(talk: Talk) -> None:
    session = talk.open()
    first = talk.receiver(session, "/queues/c10-sac", "first")
    talk.credit(first, 1)
    second = talk.receiver(session, "/queues/c10-sac", "second")
    talk.credit(second, 1)
    first.close()
    talk.step()


# The management node


def request(talk: Talk, *requests: Message) -> None:
    session = talk.open()
    paired = {symbol("paired"): True}
    sender = session.sender("management")
    receiver = session.receiver("management")
    for link in (sender, receiver):
        link.source.address = link.target.address = "/management"
        link.properties = paired
        link.snd_settle_mode = Link.SND_SETTLED
        link.open()
        talk.step()
    talk.credit(receiver, 100)
    for number, each in enumerate(requests):
        each.id, each.reply_to = ulong(number), "$me"
        octets = bytes(each.encode())  # without a section for the body None
        talk.send(sender, octets + NULL if each.body is None else octets, settled=True)


def asked(method: str, path: str, body: Any = None) -> Message:
    return Message(subject=method, address=path, body=body)


@conversation()
def manage_queues(talk: Talk) -> None:
    request(
        talk,
        asked("PUT", "/queues/c10-managed", {"durable": True, "arguments": {"x-queue-type": "quorum"}}),
        asked("PUT", "/queues/c10-managed", {"durable": True, "arguments": {"x-queue-type": "quorum"}}),
        asked("PUT", "/queues/c10-managed", {"durable": True, "arguments": {"x-queue-type": "classic"}}),
        asked("DELETE", "/queues/c10-managed/messages"),
        asked("DELETE", "/queues/c10-managed"),
        asked("DELETE", "/queues/c10-managed"),
    )


@conversation("c10-bound")
def manage_exchanges_and_bindings(talk: Talk) -> None:
    binding = {"source": "c10-x", "destination_queue": "c10-bound", "binding_key": "k", "arguments": {}}
    request(
        talk,
        asked("PUT", "/exchanges/c10-x", {"type": "direct", "durable": True}),
        asked("PUT", "/exchanges/c10-x", {"type": "topic", "durable": True}),
        asked("POST", "/bindings", binding),
        asked("GET", "/bindings?src=c10-x&dstq=c10-bound&key=k"),
        asked("DELETE", "/bindings/src=c10-x;dstq=c10-bound;key=k;args="),
        asked("POST", "/bindings", binding | {"source": "missing"}),
        asked("DELETE", "/exchanges/c10-x"),
        asked("PUT", "/exchanges/amq.wrong", {"type": "direct"}),
        asked("PUT", "/exchanges/c10-y", {"type": "missing"}),
    )


@conversation()
def manage_wrongly(talk: Talk) -> None:
    request(
        talk,
        asked("PUT", "/queues/c10-wrong", {"arguments": {"x-queue-type": "missing"}}),
        asked("PUT", "/queues/c10-wrong", {"wrong": True}),
    )


@conversation()
def manage_a_missing_path(talk: Talk) -> None:
    request(talk, asked("GET", "/nowhere"))


@conversation("c10-get")
def manage_with_get(talk: Talk) -> None:
    request(talk, asked("GET", "/queues/c10-get"))
