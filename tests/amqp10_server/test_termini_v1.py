"""Addresses of version 1: queues that an attach declares, sources that are exchanges, keys from subjects, refusals."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from qq.amqp10.composites import encode_composite
from qq.amqp10.performatives import (
    AttachFrame,
    DetachFrame,
    DispositionFrame,
    EndFrame,
    FlowFrame,
    SourceTerminus,
    TargetTerminus,
    TerminusDurability,
)
from qq.amqp10.sections import MessageProperties
from qq.machine.protocol.commands import DEFAULT_VHOST, SetPermissions
from tests.amqp10.amqp10_wire import frame
from tests.amqp10_server.lone_broker10 import LoneBroker10, ManagementClient
from tests.amqp10_server.socket_client import SocketClient, data, receiver, sender


@pytest.fixture
def lone(broker: LoneBroker10) -> Generator[ManagementClient]:
    with ManagementClient(broker.amqp_port) as client:
        client.begin()
        yield client


def queues(broker: LoneBroker10) -> dict[str, Any]:
    return dict(broker.broker.machine.vhosts[DEFAULT_VHOST].queues)


def refusal(client: SocketClient) -> str:
    """Return the condition of the detach that follows the answer to an attach."""
    client.until(AttachFrame)
    error = client.expect(DetachFrame).error
    assert error is not None
    return error.condition


def publish(
    client: SocketClient, number: int, body: bytes, subject: str | None = None, handle: int = 0
) -> str:
    """Publish a message, and return the name of its outcome."""
    properties = b"" if subject is None else encode_composite(MessageProperties(subject=subject))
    client.transfer(number, data(body, properties), handle)
    return type(client.until(DispositionFrame).state).__name__


def consume(client: SocketClient, handle: int = 1, count: int = 1) -> bytes:
    """Give a link its first credit, and return the last octets of its deliveries."""
    client.credit(count, handle)
    return b"".join(client.message()[1][-1:] for _ in range(count))


@pytest.mark.parametrize("address", ["a%2Fb", "/queue/a%2Fb"])
@pytest.mark.parametrize("durable", [TerminusDurability.NONE, TerminusDurability.UNSETTLED_STATE])
def test_attach_declares_the_queue(
    broker: LoneBroker10, lone: ManagementClient, address: str, durable: TerminusDurability
) -> None:
    lone.attach_sender(address, target=TargetTerminus(address, durable))
    queue = queues(broker)["a/b"]
    assert queue.durable is (durable is not TerminusDurability.NONE)
    assert not queue.auto_delete
    assert publish(lone, 0, b"1") == "AcceptedState"
    lone.send(receiver(address))
    answer = lone.until(AttachFrame)
    assert answer.source is not None
    assert answer.source.address == address
    assert consume(lone) == b"1"


def test_addresses_of_version_1_are_off_by_default(client: SocketClient, queue: str) -> None:
    for attach in (sender(queue), receiver(queue)):
        client.send(attach)
        assert refusal(client) == "amqp:invalid-field"


def test_queue_that_exists_is_taken_as_it_is(broker: LoneBroker10, lone: ManagementClient) -> None:
    with ManagementClient(broker.amqp_port) as other:
        other.manage()
        arguments = {"durable": True, "arguments": {"x-queue-type": "quorum"}}
        assert other.request("PUT", "/queues/q", dict(arguments)).status == "201"
    lone.attach_sender("q")
    lone.attach_sender("/amq/queue/q", handle=5)
    assert queues(broker)["q"].durable


def test_source_that_is_an_exchange_gets_a_queue(broker: LoneBroker10, lone: ManagementClient) -> None:
    for handle, address in ((1, "/exchange/amq.direct/k"), (2, "/topic/k.*"), (3, "/exchange/amq.fanout")):
        lone.send(receiver(address, handle, source=SourceTerminus(address)))
        assert lone.until(AttachFrame).source is not None
    assert [name[:8] for name in queues(broker)] == ["amq.gen-"] * 3
    for handle, target in ((4, "/exchange/amq.direct/k"), (5, "/topic/k.1"), (6, "/exchange/amq.fanout")):
        lone.attach_sender(target, handle)
        assert publish(lone, handle, str(handle).encode(), handle=handle) == "AcceptedState"
    assert [consume(lone, handle) for handle in (1, 2, 3)] == [b"4", b"5", b"6"]
    assert lone.end().error is None
    assert len(queues(broker)) == 3


def test_subject_is_the_routing_key(lone: ManagementClient) -> None:
    lone.send(receiver("/exchange/amq.direct/k", 1))
    lone.until(AttachFrame)
    lone.attach_sender("/exchange/amq.direct")
    outcomes = [publish(lone, 0, b"1", "k"), publish(lone, 1, b"2", "other"), publish(lone, 2, b"3")]
    assert outcomes == ["AcceptedState", "ReleasedState", "ReleasedState"]
    assert publish(lone, 3, b"4", "k" * 256) == "RejectedState"
    assert publish(lone, 4, b"5", "k") == "AcceptedState"
    assert consume(lone, count=2) == b"15"
    lone.transfer(5, data(b"6", encode_composite(MessageProperties(subject="k" * 256))), settled=True)
    error = lone.until(DetachFrame).error
    assert error is not None
    assert error.condition == "amqp:invalid-field"


def test_target_queue_without_a_name_takes_the_subject(broker: LoneBroker10, lone: ManagementClient) -> None:
    lone.send(receiver("q", 1))
    lone.until(AttachFrame)
    lone.attach_sender("/queue")
    assert publish(lone, 0, b"1", "q") == "AcceptedState"
    assert consume(lone) == b"1"
    assert list(queues(broker)) == ["q"]


@pytest.mark.parametrize(
    ("attach", "condition"),
    [
        (sender("/amq/queue/missing"), "amqp:not-found"),
        (receiver("/amq/queue/missing"), "amqp:not-found"),
        (sender("/exchange/missing/k"), "amqp:not-found"),
        (receiver("/exchange/missing/k"), "amqp:not-found"),
        (receiver("/queue"), "amqp:invalid-field"),
        (sender("/temp-queue/q"), "amqp:invalid-field"),
        (sender("/queues/"), "amqp:invalid-field"),
        (sender("q" * 256), "amqp:invalid-field"),
        (receiver("/exchange/amq.direct/" + "k" * 256), "amqp:invalid-field"),
        (receiver("q", source=SourceTerminus("q", outcomes=("odd:outcome",))), "amqp:not-implemented"),
    ],
)
def test_wrong_address_is_refused(
    broker: LoneBroker10, lone: ManagementClient, attach: AttachFrame, condition: str
) -> None:
    lone.send(attach)
    assert refusal(lone) == condition
    assert all(name == "q" for name in queues(broker))


def test_early_end_of_the_session_attaches_no_link(broker: LoneBroker10, lone: ManagementClient) -> None:
    lone.send(receiver("q"))
    lone.send(EndFrame())
    lone.until(EndFrame)
    lone.begin()
    lone.send(receiver("q"))
    lone.until(AttachFrame)
    assert queues(broker)["q"].consumers


def test_pipelined_attaches_declare_the_queue_once(broker: LoneBroker10, lone: ManagementClient) -> None:
    for handle in range(8):
        durable = TerminusDurability(handle % 2)
        lone.send(sender("q", handle, target=TargetTerminus("q", durable)))
    for _ in range(8):
        assert lone.until(FlowFrame).link_credit
    assert list(queues(broker)) == ["q"]


@pytest.mark.parametrize(
    ("configure", "write", "read", "attach", "missing"),
    [
        ("^x", ".*", ".*", sender("q"), "configure access to queue 'q'"),
        (".*", "^x", ".*", sender("q"), "write access to exchange 'amq.default'"),
        (".*", ".*", "^x", receiver("q"), "read access to queue 'q'"),
        ("^x", ".*", ".*", receiver("/topic/k"), "configure access to queue 'amq.gen-"),
        (".*", "^x", ".*", receiver("/topic/k"), "write access to queue 'amq.gen-"),
        (".*", ".*", "^amq.gen", receiver("/topic/k"), "read access to exchange 'amq.topic'"),
    ],
)
def test_attach_needs_rights_for_all_that_it_does(
    broker: LoneBroker10, configure: str, write: str, read: str, attach: AttachFrame, missing: str
) -> None:
    broker.add_user("user", "user")
    broker.operate(SetPermissions("user", DEFAULT_VHOST, configure, write, read))
    with ManagementClient(broker.amqp_port, "user") as client:
        client.begin()
        client.send(attach)
        error = client.until(EndFrame).error
        assert error is not None
        assert error.condition == "amqp:unauthorized-access"
        assert missing in (error.description or "")


def test_handle_is_used_again_when_an_attach_is_refused(lone: ManagementClient) -> None:
    detach = DetachFrame(1, closed=True)
    first, second = (receiver(address, name=address) for address in ("/exchange/missing/key", "again"))
    lone.write(b"".join(frame(each, 0) for each in (first, detach, second)))
    assert refusal(lone) == "amqp:not-found"
    assert lone.expect(AttachFrame).name == "again"
