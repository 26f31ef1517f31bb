"""Commands that a claim of a node bars wait until the cluster knows whether the node is dead."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from lone_broker import LoneBroker, LoneGroup
from pamqp import commands
from raw_client import RawClient

from qq.machine.protocol.commands import Connect, DeclareQueue, OpenChannel, SetUserLimits, SetVhostLimits

Basic, Chan, Conn, Queue = commands.Basic, commands.Channel, commands.Connection, commands.Queue
MINE = Queue.Declare(queue="mine", exclusive=True)
LOCKED = 405


class Waiting(LoneGroup):
    """A group that has just lost a node."""

    lost: tuple[str, ...] = ("n2",)

    def undecided(self) -> Any:
        return self.lost


@pytest.fixture
def broker() -> Generator[LoneBroker]:
    with LoneBroker(new_group=Waiting) as broker:
        queue = DeclareQueue(2, 1, "mine", False, False, True, False, False, {})
        broker.learn(Connect(1, "/", "guest"), OpenChannel(2, 1), queue)
        yield broker


@pytest.fixture
def client(broker: LoneBroker) -> Generator[RawClient]:
    with RawClient(broker.amqp_port) as client:
        client.open_channel(1)
        yield client


def expect_nothing(client: RawClient) -> None:
    with pytest.raises(TimeoutError):
        client.receive(0.1)


def give_up(broker: LoneBroker) -> None:
    """The other node is dead."""
    broker.call(lambda: broker.machine.origin_down("n2", 0, expelled=True))


def turn_out_to_live(broker: LoneBroker) -> None:
    broker.group.lost = ()  # type: ignore[attr-defined]


def test_a_command_waits_until_the_node_is_given_up(broker: LoneBroker, client: RawClient) -> None:
    client.send(1, MINE, Queue.Bind(queue="mine", exchange="amq.fanout"), Basic.Consume(queue="mine"))
    expect_nothing(client)
    give_up(broker)
    for answer in (Queue.DeclareOk, Queue.BindOk, Basic.ConsumeOk):
        client.expect(answer, 1)


def test_a_command_is_refused_when_the_node_turns_out_to_live(broker: LoneBroker, client: RawClient) -> None:
    client.send(1, MINE)
    expect_nothing(client)
    turn_out_to_live(broker)
    assert client.expect(Chan.Close, 1).reply_code == LOCKED


def test_a_command_that_no_claim_bars_does_not_wait(client: RawClient) -> None:
    client.call(1, Queue.Declare(queue="other", exclusive=True), Queue.DeclareOk)


def test_a_channel_that_closes_submits_no_waiting_command(broker: LoneBroker, client: RawClient) -> None:
    client.open_channel(2)
    [connection] = broker.broker.connections.values()
    client.send(1, MINE)
    expect_nothing(client)
    channel = broker.call(lambda: connection._channels[1])  # type: ignore[attr-defined]
    broker.call(channel.end)
    give_up(broker)
    expect_nothing(client)
    assert "mine" not in broker.machine.vhosts["/"].queues
    client.call(2, MINE, Queue.DeclareOk)


@pytest.mark.parametrize(
    "limit",
    [SetVhostLimits("/", {"max-connections": 1}), SetUserLimits("guest", {"max-connections": 1})],
    ids=["vhost", "user"],
)
def test_a_connection_waits_for_the_place_of_a_dead_nodes_client(broker: LoneBroker, limit: Any) -> None:
    broker.learn(limit)
    with RawClient(broker.amqp_port, admitted=False) as client:
        expect_nothing(client)
        give_up(broker)
        client.expect(Conn.OpenOk, 0)
        client.open_channel(1)


def test_a_connection_that_hangs_up_waits_for_no_place(broker: LoneBroker) -> None:
    broker.learn(SetVhostLimits("/", {"max-connections": 1}))
    with RawClient(broker.amqp_port, admitted=False) as client:
        expect_nothing(client)
    give_up(broker)
    with RawClient(broker.amqp_port):
        assert len(broker.machine.catalog.connections) == 1


def test_a_channel_waits_for_the_place_of_a_dead_nodes_client(broker: LoneBroker) -> None:
    broker.learn(SetUserLimits("guest", {"max-channels": 1}))
    with RawClient(broker.amqp_port) as client:
        client.send(1, Chan.Open(), Queue.Declare(queue="q"))
        client.expect(Chan.OpenOk, 1)
        expect_nothing(client)
        give_up(broker)
        client.expect(Queue.DeclareOk, 1)


def test_a_channel_that_closes_waits_for_no_place(broker: LoneBroker) -> None:
    broker.learn(SetUserLimits("guest", {"max-channels": 1}))
    with RawClient(broker.amqp_port) as client:
        client.open_channel(1)
        client.send(1, Chan.Close(200, "bye", 0, 0))
        expect_nothing(client)  # it is closed behind what it waits for
        give_up(broker)
        client.expect(Chan.CloseOk, 1)
        client.open_channel(1)
        client.call(1, Queue.Declare(queue="q"), Queue.DeclareOk)
        assert broker.machine.catalog.channels_of("guest") == 1


def test_command_waits_though_the_node_hears_later_of_the_death(
    broker: LoneBroker, client: RawClient
) -> None:
    broker.group.lost = ()  # type: ignore[attr-defined]
    client.send(1, MINE)
    broker.pass_some_time()
    broker.group.lost = ("n2",)  # type: ignore[attr-defined]
    expect_nothing(client)
    give_up(broker)
    client.expect(Queue.DeclareOk, 1)
