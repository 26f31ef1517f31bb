"""A client hears of the end of its connection when its claims have ended in the log."""

from __future__ import annotations

import socket
from collections.abc import Callable, Generator

import pytest
from pamqp import commands

from qq.client_sockets import closing
from qq.machine.protocol.effects import ConnectionForced
from qq.sessions import broker as broker_module
from tests.harness.lone_broker import LoneBroker, LoneGroup, wait_until
from tests.harness.raw_client import RawClient, marshal, publish
from tests.harness.stopwatch import Stopwatch

Basic, Conn, Queue = commands.Basic, commands.Connection, commands.Queue
BYE = Conn.Close(200, "bye", 0, 0)
MINE = Queue.Declare(queue="mine", exclusive=True)
END_CLAIMS_S = 0.5


class SlowGroup(LoneGroup):
    """A group with a leader, that is slow while it is `holding`."""

    def why_undecided(self) -> str | None:
        return None


@pytest.fixture
def broker() -> Generator[LoneBroker]:
    with LoneBroker(new_group=SlowGroup) as broker:
        yield broker


@pytest.fixture
def client(broker: LoneBroker) -> Generator[RawClient]:
    with RawClient(broker.amqp_port) as client:
        client.open_channel(1)
        client.call(1, MINE, Queue.DeclareOk)
        yield client


def expect_no_frame(client: RawClient) -> None:
    with pytest.raises(TimeoutError):
        client.receive(0.1)


def closes(_: LoneBroker, client: RawClient) -> None:
    client.send(0, BYE)


def is_shut_down(broker: LoneBroker, _: RawClient) -> None:
    [connection] = broker.broker.connections.values()
    broker.call(connection.shut_down, "the node stops")


def is_closed_by_an_operator(broker: LoneBroker, _: RawClient) -> None:
    [connection] = broker.broker.connections.values()
    broker.call(connection.force_close, ConnectionForced("n1", connection.id, 320, "go"))


def makes_a_mistake(_: LoneBroker, client: RawClient) -> None:
    client.send(7, Basic.Qos())


ENDINGS = [
    (closes, Conn.CloseOk),
    (is_shut_down, Conn.Close),
    (is_closed_by_an_operator, Conn.Close),
    (makes_a_mistake, Conn.Close),
]
by_endings = pytest.mark.parametrize(("end", "answer"), ENDINGS, ids=[end.__name__ for end, _ in ENDINGS])
End = Callable[[LoneBroker, RawClient], None]


@by_endings
def test_close_is_answered_when_the_claims_are_free(
    broker: LoneBroker, client: RawClient, end: End, answer: type[commands.Frame]
) -> None:
    broker.group.holding = True
    end(broker, client)
    expect_no_frame(client)
    assert "mine" in broker.machine.vhosts["/"].queues
    broker.call(broker.group.release)
    client.expect(answer, 0)
    assert not broker.call(lambda: [*broker.machine.vhosts["/"].queues, *broker.machine.catalog.connections])


@by_endings
def test_close_is_answered_when_the_log_is_slow(
    broker: LoneBroker,
    client: RawClient,
    monkeypatch: pytest.MonkeyPatch,
    end: End,
    answer: type[commands.Frame],
) -> None:
    monkeypatch.setattr(broker_module, "END_CLAIMS_S", END_CLAIMS_S)
    broker.group.holding = True
    with Stopwatch() as watch:
        end(broker, client)
        client.expect(answer, 0)
    assert watch.seconds > 0.9 * END_CLAIMS_S
    broker.call(broker.group.release)


def test_an_answer_before_the_end_does_not_wait(broker: LoneBroker, client: RawClient) -> None:
    broker.group.holding = True
    client.write(marshal(1, Basic.Qos(prefetch_count=1)) + marshal(0, BYE))
    client.expect(Basic.QosOk, 1)
    expect_no_frame(client)
    broker.call(broker.group.release)
    client.expect(Conn.CloseOk, 0)


def test_a_client_that_half_closes_is_answered_at_once(broker: LoneBroker, client: RawClient) -> None:
    broker.group.holding = True
    client.send(0, BYE)
    expect_no_frame(client)
    client.socket.shutdown(socket.SHUT_WR)
    client.expect(Conn.CloseOk, 0)
    client.expect_end()
    broker.call(broker.group.release)


def test_claims_are_free_while_a_half_closed_socket_lingers(
    broker: LoneBroker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deliveries that the client has not read keep its socket open for a while."""
    monkeypatch.setattr(closing, "CLOSE_GRACE_S", 60.0)
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    client.send(1, Basic.Consume(queue="mine", no_ack=True))
    client.expect(Basic.ConsumeOk, 1)
    [connection] = broker.broker.connections.values()

    def is_stuck() -> bool:
        return connection._writing_paused  # type: ignore[attr-defined]

    while not broker.call(is_stuck):
        client.write(publish(1, "mine", bytes(100_000)))
        broker.pass_some_time()
    client.socket.shutdown(socket.SHUT_WR)
    wait_until(lambda: not broker.machine.catalog.connections, "the connection to be let go")
    assert broker.broker.connections
