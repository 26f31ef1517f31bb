"""Links whose terminus the server makes: a queue that ends with the link."""

from __future__ import annotations

from typing import Any

import pytest

from qq.amqp10.addresses import source_queue
from qq.amqp10.performatives import (
    AttachFrame,
    DetachFrame,
    EndFrame,
    FlowFrame,
    SourceTerminus,
    TargetTerminus,
    TerminusDurability,
)
from qq.amqp10.values import SYMBOL8, Array, Described, Symbol, ULong
from qq.machine.protocol.commands import DEFAULT_VHOST, SetPermissions
from tests.amqp10_server.lone_broker10 import LoneBroker10, ManagementClient
from tests.amqp10_server.socket_client import SocketClient

CAPABILITIES = ("temporary-queue",)
PROPERTIES = {
    Symbol("lifetime-policy"): Described(ULong(0x2B), []),
    Symbol("supported-dist-modes"): Array(SYMBOL8, [Symbol("move")]),
}


def queues(broker: LoneBroker10) -> dict[str, Any]:
    broker.pass_some_time()
    return dict(broker.machine.vhosts[DEFAULT_VHOST].queues)


def attach(client: ManagementClient, *, receives: bool, name: str = "l", **fields: Any) -> None:
    terminus = {"dynamic": True, "capabilities": CAPABILITIES, **fields}
    source = SourceTerminus(**terminus) if receives else SourceTerminus()
    target = TargetTerminus() if receives else TargetTerminus(**terminus)
    count = None if receives else 0
    client.send(AttachFrame(name, 0, receives, source=source, target=target, initial_delivery_count=count))


@pytest.mark.parametrize("receives", [True, False])
def test_dynamic_terminus_is_a_queue_until_detach(broker: LoneBroker10, receives: bool) -> None:
    with ManagementClient(broker.amqp_port, container="box") as client:
        client.begin()
        attach(client, receives=receives, name="näme")
        attached = client.until(AttachFrame)
        terminus: Any = attached.source if receives else attached.target
        assert (terminus.dynamic, terminus.capabilities, terminus.durable) == (
            True,
            CAPABILITIES,
            TerminusDurability.NONE,
        )
        assert terminus.dynamic_node_properties == PROPERTIES
        assert terminus.expiry_policy == "link-detach"
        name = source_queue(terminus.address)
        assert name.startswith("amq.dyn-box-näme-")
        queue = queues(broker)[name]
        assert queue.owner is not None
        assert not queue.auto_delete
        client.send(DetachFrame(0, True))
        assert client.until(DetachFrame).error is None
        assert not queues(broker)


def test_temporary_queue_outlives_its_consumers(client: SocketClient) -> None:
    attach(client, receives=False)
    target: Any = client.until(AttachFrame).target
    client.expect(FlowFrame)
    queue = source_queue(target.address)
    for _ in range(2):
        client.attach_receiver(queue, 7)
        assert client.detach(7).error is None


def test_temporary_queue_ends_with_its_session(broker: LoneBroker10) -> None:
    with ManagementClient(broker.amqp_port) as client:
        client.begin()
        attach(client, receives=False)
        client.until(AttachFrame)
        assert len(queues(broker)) == 1
        client.send(EndFrame())
        client.until(EndFrame)
        assert not queues(broker)


def test_temporary_queue_ends_with_its_connection(broker: LoneBroker10) -> None:
    with ManagementClient(broker.amqp_port) as client:
        client.begin()
        attach(client, receives=False)
        client.until(AttachFrame)
    assert not queues(broker)


def test_temporary_queue_ends_with_an_early_detach(broker: LoneBroker10) -> None:
    with ManagementClient(broker.amqp_port) as client:
        client.begin()
        attach(client, receives=False)
        client.send(DetachFrame(0, True))
        client.until(AttachFrame)
        client.until(DetachFrame)
        attach(client, receives=False)
        client.send(EndFrame())
        client.until(EndFrame)
        assert not queues(broker)


def test_long_names_are_shortened_in_the_queue(broker: LoneBroker10) -> None:
    with ManagementClient(broker.amqp_port, container="€" * 300) as client:
        client.begin()
        attach(client, receives=False, name="l\r\n" * 1000)
        target: Any = client.until(AttachFrame).target
        assert len(source_queue(target.address).encode()) < 200
        assert source_queue(target.address) in queues(broker)


@pytest.mark.parametrize("receives", [True, False])
def test_other_dynamic_termini_are_not_implemented(broker: LoneBroker10, receives: bool) -> None:
    with ManagementClient(broker.amqp_port) as client:
        client.begin()
        attach(client, receives=receives, capabilities=("topic",))
        attached = client.until(AttachFrame)
        assert (attached.source if receives else attached.target) is None
        error = client.until(DetachFrame).error
        assert error is not None
        assert error.condition == "amqp:not-implemented"


def test_temporary_queue_ends_when_its_link_is_refused(broker: LoneBroker10) -> None:
    with ManagementClient(broker.amqp_port) as client:
        client.begin()
        attach(client, receives=True, outcomes=("odd:outcome",))
        client.until(DetachFrame)
        assert not queues(broker)


def test_temporary_queue_needs_the_right_to_configure(broker: LoneBroker10) -> None:
    broker.add_user("user", "user")
    broker.operate(SetPermissions("user", DEFAULT_VHOST, "^q", ".*", ".*"))
    with ManagementClient(broker.amqp_port, "user") as client:
        client.begin()
        attach(client, receives=True)
        error = client.until(EndFrame).error
        assert error is not None
        assert error.condition == "amqp:unauthorized-access"
        assert not queues(broker)
