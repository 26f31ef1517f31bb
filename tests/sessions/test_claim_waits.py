"""Commands that a claim of a node bars wait until the cluster knows whether the node is dead."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest
from pamqp import commands

from qq.machine.protocol.commands import Connect, DeclareQueue, OpenChannel, SetUserLimits, SetVhostLimits
from qq.sessions.claim_waits import CHECK_S, WAIT_MAX_S, ClaimWaits
from tests.harness.lone_broker import LoneBroker, LoneGroup
from tests.harness.raw_client import RawClient

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


def expect_no_frame(client: RawClient) -> None:
    with pytest.raises(TimeoutError):
        client.receive(0.1)


def evict_owner(broker: LoneBroker) -> None:
    """The other node is dead."""
    broker.call(lambda: broker.machine.origin_down("n2", 0, evicted=True))


def turn_out_to_live(broker: LoneBroker) -> None:
    broker.group.lost = ()  # type: ignore[attr-defined]


def test_command_waits_until_the_owner_node_is_evicted(broker: LoneBroker, client: RawClient) -> None:
    client.send(1, MINE, Queue.Bind(queue="mine", exchange="amq.fanout"), Basic.Consume(queue="mine"))
    expect_no_frame(client)
    evict_owner(broker)
    for answer in (Queue.DeclareOk, Queue.BindOk, Basic.ConsumeOk):
        client.expect(answer, 1)


def test_a_command_is_refused_when_the_node_turns_out_to_live(broker: LoneBroker, client: RawClient) -> None:
    client.send(1, MINE)
    expect_no_frame(client)
    turn_out_to_live(broker)
    assert client.expect(Chan.Close, 1).reply_code == LOCKED


def test_a_command_that_no_claim_bars_does_not_wait(client: RawClient) -> None:
    client.call(1, Queue.Declare(queue="other", exclusive=True), Queue.DeclareOk)


def test_a_channel_that_closes_submits_no_waiting_command(broker: LoneBroker, client: RawClient) -> None:
    client.open_channel(2)
    [connection] = broker.broker.connections.values()
    client.send(1, MINE)
    expect_no_frame(client)
    channel = broker.call(lambda: connection._channels[1])  # type: ignore[attr-defined]
    broker.call(channel.end)
    evict_owner(broker)
    expect_no_frame(client)
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
        expect_no_frame(client)
        evict_owner(broker)
        client.expect(Conn.OpenOk, 0)
        client.open_channel(1)


def test_a_connection_that_hangs_up_waits_for_no_place(broker: LoneBroker) -> None:
    broker.learn(SetVhostLimits("/", {"max-connections": 1}))
    with RawClient(broker.amqp_port, admitted=False) as client:
        expect_no_frame(client)
    evict_owner(broker)
    with RawClient(broker.amqp_port):
        assert len(broker.machine.catalog.connections) == 1


def test_a_channel_waits_for_the_place_of_a_dead_nodes_client(broker: LoneBroker) -> None:
    broker.learn(SetUserLimits("guest", {"max-channels": 1}))
    with RawClient(broker.amqp_port) as client:
        client.send(1, Chan.Open(), Queue.Declare(queue="q"))
        client.expect(Chan.OpenOk, 1)
        expect_no_frame(client)
        evict_owner(broker)
        client.expect(Queue.DeclareOk, 1)


def test_a_channel_that_closes_waits_for_no_place(broker: LoneBroker) -> None:
    broker.learn(SetUserLimits("guest", {"max-channels": 1}))
    with RawClient(broker.amqp_port) as client:
        client.open_channel(1)
        client.send(1, Chan.Close(200, "bye", 0, 0))
        expect_no_frame(client)  # it closes after its pending method
        evict_owner(broker)
        client.expect(Chan.CloseOk, 1)
        client.open_channel(1)
        client.call(1, Queue.Declare(queue="q"), Queue.DeclareOk)
        assert broker.machine.catalog.channels_of("guest") == 1


BAR_S = 0.0004
"""CPU time of a check of a connection that 5,000 clients wait for."""


class Busy:
    """A runtime and a machine with thousands of claims: each look at a command takes its time."""

    is_any_leaving = False

    def __init__(self) -> None:
        self.now_s = 0.0
        self.idle_s = 0.0
        self.nodes: tuple[str, ...] = ("n2",)
        self.timers: list[tuple[float, Callable[[], None]]] = []

    @property
    def claims(self) -> Any:
        return self

    def is_locked(self, *_: Any) -> bool:
        return False

    def bar(self, *_: Any) -> bool:
        self.now_s += BAR_S
        return bool(self.nodes)

    def undecided(self) -> tuple[str, ...]:
        return self.nodes

    def monotonic(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, call: Callable[[], None]) -> None:
        self.timers.append((self.now_s + delay_s, call))

    def go_on(self, until_s: float) -> None:
        """Call due timers; the time between them is idle."""
        while self.timers and min(due_s for due_s, _ in self.timers) < until_s:
            self.timers.sort(key=lambda timer: timer[0])
            due_s, call = self.timers.pop(0)
            self.idle_s += max(due_s - self.now_s, 0)
            self.now_s = max(due_s, self.now_s)
            call()


def test_thousands_of_waiting_commands_leave_the_loop_idle() -> None:
    busy: Any = Busy()
    claim_waits, submitted = ClaimWaits("n1", busy, busy.undecided, busy), list[int]()
    for number in range(3_000):
        assert not claim_waits.submit_when_free(
            Connect(number, "/", "u"), "/", lambda at=number: submitted.append(at)
        )
    begun_s = busy.now_s
    busy.go_on(begun_s + 1.0)
    assert not submitted
    assert busy.idle_s > 0.8
    busy.nodes = ()
    busy.go_on(busy.now_s + 5 * CHECK_S)
    assert sorted(submitted) == list(range(3_000))
    assert not busy.timers


def test_no_command_waits_for_ever() -> None:
    """Without a majority, claims of a node that was given up end never."""
    busy: Any = Busy()
    claim_waits, submitted = ClaimWaits("n1", busy, busy.undecided, busy), list[float]()
    for number in range(3):
        command = Connect(number, "/", "u")
        assert not claim_waits.submit_when_free(command, "/", lambda: submitted.append(busy.now_s))
    busy.go_on(2 * WAIT_MAX_S)
    assert len(submitted) == 3
    assert all(WAIT_MAX_S <= submitted_s < WAIT_MAX_S + 0.1 for submitted_s in submitted)


def test_command_waits_when_the_loss_is_noticed_later(broker: LoneBroker, client: RawClient) -> None:
    broker.group.lost = ()  # type: ignore[attr-defined]
    client.send(1, MINE)
    broker.pass_some_time()
    broker.group.lost = ("n2",)  # type: ignore[attr-defined]
    expect_no_frame(client)
    evict_owner(broker)
    client.expect(Queue.DeclareOk, 1)
