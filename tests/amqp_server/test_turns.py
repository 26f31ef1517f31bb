"""Connections work in turns: no read holds up the loop, order is kept, and a client that has hung up is let go."""

from __future__ import annotations

import asyncio
import gc
import ssl
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import pytest
import uvloop
from pamqp import commands, header

from qq.amqp.encoding import HEARTBEAT
from qq.amqp_server.channel.publishing import PublishingMethods
from qq.amqp_server.connection import AmqpConnection
from qq.config import ClientTls
from tests.harness.certificates import Authority
from tests.harness.lone_broker import LoneBroker, wait_until
from tests.harness.raw_client import RawClient, marshal, publish

Basic, Channel, Confirm, Exchange, Queue = (
    commands.Basic,
    commands.Channel,
    commands.Confirm,
    commands.Exchange,
    commands.Queue,
)
READ_BYTES = 200 * 1024
"""Octets that the node reads at once."""
PASS_MAX_S = 0.03
"""Seconds of processor time that a pass of the loop may take here."""
PASSIVE = marshal(1, Queue.Declare(queue="q", passive=True))
DECLARE = marshal(1, Exchange.Declare(exchange="late"))


@pytest.fixture
def broker() -> Generator[LoneBroker]:
    with LoneBroker(new_loop=uvloop.new_event_loop) as broker:  # as a node
        yield broker


@pytest.fixture
def client(broker: LoneBroker) -> Generator[RawClient]:
    with RawClient(broker.amqp_port) as client:
        client.open_channel(1)
        client.call(1, Queue.Declare(queue="q"), Queue.DeclareOk)
        yield client


def many(frame: bytes) -> bytes:
    return frame * (READ_BYTES // len(frame))


@contextmanager
def held_up(broker: LoneBroker) -> Iterator[None]:
    """Let the loop stand still during the block, so that all octets of the block wait in the sockets."""
    broker.call(lambda: asyncio.get_running_loop().call_soon(time.sleep, 0.3))
    time.sleep(0.05)
    yield


class Passes:
    """Measures the processor time of each pass of a broker's loop.

    The garbage collector does not scan the objects of earlier tests meanwhile.
    """

    def __init__(self, broker: LoneBroker) -> None:
        self._broker = broker
        self.longest_s = 0.0
        self._ended = False
        self._last_s = 0.0

    def __enter__(self) -> Self:
        gc.collect()
        gc.freeze()
        self._broker.call(self._begin)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._broker.call(int)
        gc.unfreeze()

    def _begin(self) -> None:
        self._last_s = time.thread_time()
        asyncio.get_running_loop().call_soon(self._count)

    def _count(self) -> None:
        now_s = time.thread_time()
        self.longest_s = max(self.longest_s, now_s - self._last_s)
        self._last_s = now_s
        if not self._ended:
            asyncio.get_running_loop().call_soon(self._count)


def properties(**given: Any) -> bytes:
    """Return encoded properties of a message."""
    return header.ContentHeader(0, 0, Basic.Properties(**given)).marshal()[12:]


def differing(count: int) -> bytes:
    """Return messages with properties that make each a command of its own."""
    return b"".join(
        publish(1, "nowhere", b"", properties=properties(expiration=str(number))) for number in range(count)
    )


WIDE: Any = {f"key-{number}": number for number in range(500)}
FLOODS = {
    "heartbeats": many(HEARTBEAT),
    "passive declares": PASSIVE * 2000,
    "gets of an empty queue": marshal(1, Basic.Get(queue="q")) * 2000,
    "replies to an unknown address": publish(1, f"amq.rabbitmq.reply-to.{'x' * 22}", b"") * 2000,
    "qos": many(marshal(1, Basic.Qos(prefetch_count=1))),
    "methods held behind a declare": marshal(1, Queue.Declare(queue="q")) + PASSIVE * 2000,
    "frames after an error": many(marshal(9, Basic.Qos())),
    "channels": b"".join(marshal(number, Channel.Open()) for number in range(2, 2000)),
    "large headers": publish(1, "nowhere", b"", properties=properties(headers=WIDE)) * 20,
    "large arguments": marshal(1, Queue.Declare(queue="q", passive=True, arguments=WIDE)) * 20,
}


@pytest.mark.parametrize("flood", FLOODS)
def test_large_read_does_not_hold_up_the_loop(broker: LoneBroker, client: RawClient, flood: str) -> None:
    with Passes(broker) as passes:
        client.write(FLOODS[flood])
        wait_until(lambda: broker.call(lambda: is_idle(broker)), "the end of the flood")
    assert passes.longest_s < PASS_MAX_S


def test_answers_of_an_entry_do_not_hold_up_the_loop(broker: LoneBroker) -> None:
    """An entry answers the channels of many connections, which have held methods back until then."""
    requests = marshal(1, Queue.Declare(queue="q")) + differing(1000)
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(broker.amqp_port)) for _ in range(20)]
        for client in clients:
            client.open_channel(1)
        broker.call(lambda: setattr(broker.group, "holding", True))
        for client in clients:
            client.write(requests)
        wait_until(lambda: broker.call(lambda: are_read(broker)), "the end of the requests")
        with Passes(broker) as passes:
            broker.call(broker.group.release)
            for client in clients:
                client.expect(Queue.DeclareOk, 1)
    assert passes.longest_s < 2 * PASS_MAX_S  # some entries are applied in it, too


def are_read(broker: LoneBroker) -> bool:
    connections: Any = broker.broker.connections.values()
    return not any(each._has_work for each in connections)


def is_idle(broker: LoneBroker) -> bool:
    connections: Any = broker.broker.connections.values()
    return are_read(broker) and not any(each._holding for each in connections)


def test_ends_of_many_channels_do_not_hold_up_the_loop(broker: LoneBroker) -> None:
    with RawClient(broker.amqp_port) as client:
        client.write(b"".join(marshal(number, Channel.Open()) for number in range(1, 2000)))
        for number in range(1, 2000):
            client.expect(Channel.OpenOk, number)
        passes = Passes(broker).__enter__()
    wait_until(lambda: not broker.broker.connections, "the end of the connection")
    passes.__exit__()
    assert passes.longest_s < PASS_MAX_S


def test_octets_before_the_login_do_not_hold_up_the_loop(broker: LoneBroker) -> None:
    with RawClient(broker.amqp_port, handshake=False) as unauthenticated, Passes(broker) as passes:
        unauthenticated.write(b"AMQP\x00\x00\x09\x01" + many(HEARTBEAT))
        unauthenticated.expect(commands.Connection.Start)
        wait_until(lambda: broker.call(lambda: is_idle(broker)), "the end of the flood")
    assert passes.longest_s < PASS_MAX_S


def test_answers_keep_the_order_of_the_requests(broker: LoneBroker, client: RawClient) -> None:
    """Over many turns, some of them while other connections wait for theirs."""
    with RawClient(broker.amqp_port) as other, held_up(broker):
        other.write(many(HEARTBEAT))
        requests = [
            frame
            for number in range(500)
            for frame in (
                marshal(1, Queue.Declare(queue=f"q{number}")),
                marshal(1, Basic.Qos(prefetch_count=1)),
                marshal(1, Queue.Declare(queue=f"q{number}", passive=True)),
            )
        ]
        client.write(b"".join(requests))
        for number in range(500):
            assert client.expect(Queue.DeclareOk, 1).queue == f"q{number}"
            client.expect(Basic.QosOk, 1)
            assert client.expect(Queue.DeclareOk, 1).queue == f"q{number}"


def test_client_is_not_read_while_its_octets_wait(
    broker: LoneBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting: list[bool] = []
    receive = AmqpConnection.data_received

    def received(connection: Any, data: bytes) -> None:
        waiting.append(connection._has_work)
        receive(connection, data)

    monkeypatch.setattr(AmqpConnection, "data_received", received)
    with RawClient(broker.amqp_port) as client:
        client.write(many(HEARTBEAT) * 6)
        client.open_channel(1)
    assert len(waiting) >= 10
    assert not any(waiting)


def test_reads_are_charged_when_their_octets_are_discarded(broker: LoneBroker, client: RawClient) -> None:
    """Clients that wrote on after connection.close were read 256 KiB in each pass, each of them, without a limit."""
    [connection] = broker.broker.connections.values()
    client.call(0, commands.Connection.Close(200, "", 0, 0), commands.Connection.CloseOk)

    def read() -> int:
        reads = 0
        while not connection.unread_bytes and reads < 100:
            connection.data_received(many(HEARTBEAT))
            reads += 1
        return reads

    assert broker.call(read) < 20


def test_client_that_hangs_up_loses_its_unserved_methods(broker: LoneBroker, client: RawClient) -> None:
    with held_up(broker):
        client.write(many(PASSIVE) + DECLARE)
        client.socket.close()
    wait_until(lambda: not broker.broker.connections, "the end of the connection")
    assert "late" not in broker.machine.vhosts["/"].exchanges


def test_request_of_a_client_that_hangs_up_at_once_counts(broker: LoneBroker, client: RawClient) -> None:
    with held_up(broker):
        client.write(DECLARE)
        client.socket.close()
    wait_until(lambda: not broker.broker.connections, "the end of the connection")
    assert "late" in broker.machine.vhosts["/"].exchanges


def test_messages_of_a_publisher_that_hangs_up_are_kept(broker: LoneBroker, client: RawClient) -> None:
    message = publish(1, "q", b"x") + publish(1, "nowhere", b"x")
    count = READ_BYTES // len(message)
    with held_up(broker):
        client.write(message * count)
        client.socket.close()
    backlog = broker.machine.vhosts["/"].queues["q"].backlog
    wait_until(lambda: backlog.count == count, "all messages")


UNCOMMITTED_BYTES = 64 * 1024


@pytest.fixture
def stalled() -> Generator[LoneBroker]:
    """A broker whose connections may request little ahead of the log, and whose log is held when a client has begun."""
    limit = UNCOMMITTED_BYTES
    with LoneBroker(new_loop=uvloop.new_event_loop, uncommitted_bytes=limit) as broker:
        yield broker


def publish_ahead_of_the_log(broker: LoneBroker, client: RawClient) -> int:
    """Publish more than the log may take in, while it is held. Return the number of messages."""
    client.open_channel(1)
    client.call(1, Queue.Declare(queue="q"), Queue.DeclareOk)
    broker.call(lambda: setattr(broker.group, "holding", True))
    message = publish(1, "q", b"x") + publish(1, "nowhere", b"x")
    count = READ_BYTES // len(message)
    client.write(message * count)
    [connection] = broker.broker.connections.values()
    wait_until(lambda: broker.call(lambda: not connection.is_read and are_read(broker)), "the end of parsing")
    return count


def test_messages_stay_unparsed_while_the_log_is_behind(stalled: LoneBroker) -> None:
    """All of a read was once parsed, so 100 publishers filled the node above `node_uncommitted_bytes`."""
    with RawClient(stalled.amqp_port) as client:
        count = publish_ahead_of_the_log(stalled, client)
        assert stalled.call(lambda: stalled.broker.submissions.pending_bytes) < 2 * UNCOMMITTED_BYTES
        stalled.call(stalled.group.release)
        backlog = stalled.machine.vhosts["/"].queues["q"].backlog
        wait_until(lambda: backlog.count == count, "all messages")
        client.call(1, Basic.Qos(), Basic.QosOk)


def test_unparsed_messages_are_kept_after_a_hang_up(stalled: LoneBroker) -> None:
    with RawClient(stalled.amqp_port) as client:
        count = publish_ahead_of_the_log(stalled, client)
    stalled.call(stalled.group.release)
    backlog = stalled.machine.vhosts["/"].queues["q"].backlog
    wait_until(lambda: backlog.count == count, "all messages")
    wait_until(lambda: not stalled.broker.connections, "the end of the connection")


def test_connection_with_unparsed_messages_ends_when_evicted(stalled: LoneBroker) -> None:
    with RawClient(stalled.amqp_port) as client:
        publish_ahead_of_the_log(stalled, client)
    stalled.call(stalled.evict)
    wait_until(lambda: not stalled.broker.connections, "the end of the connection")


@pytest.fixture
def tls_broker(tmp_path: Path) -> Generator[tuple[LoneBroker, ssl.SSLContext]]:
    authority = Authority(tmp_path / "ca")
    tls = ClientTls(*authority.issue("server"))
    with LoneBroker(tls=tls, new_loop=uvloop.new_event_loop) as broker:
        yield broker, ssl.create_default_context(cafile=str(authority.file))


def test_flood_over_tls_does_not_hold_up_the_loop(tls_broker: tuple[LoneBroker, ssl.SSLContext]) -> None:
    broker, context = tls_broker
    with RawClient(broker.amqps_port, tls=context) as client, Passes(broker) as passes:
        client.write(many(HEARTBEAT))
        client.open_channel(1)
    assert passes.longest_s < PASS_MAX_S


def test_messages_over_tls_are_kept_after_a_hang_up(tls_broker: tuple[LoneBroker, ssl.SSLContext]) -> None:
    """The end of a TLS connection arrives while octets still wait for their turn."""
    broker, context = tls_broker
    message = publish(1, "q", b"x") + publish(1, "nowhere", b"x")
    count = 6 * READ_BYTES // len(message)
    with RawClient(broker.amqps_port, tls=context) as client:
        client.open_channel(1)
        client.call(1, Queue.Declare(queue="q"), Queue.DeclareOk)
        with held_up(broker):
            client.write(message * count)
            client.socket.close()
    backlog = broker.machine.vhosts["/"].queues["q"].backlog
    wait_until(lambda: backlog.count == count, "all messages")


def test_tls_client_is_not_read_while_its_octets_wait(
    tls_broker: tuple[LoneBroker, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    """8 MiB of a publisher were once read and decrypted in a pass of the loop, 15 ms of the processor."""
    waiting: list[int] = []
    receive = AmqpConnection.data_received

    def received(connection: Any, data: bytes) -> None:
        waiting.append(connection.unread_bytes)
        receive(connection, data)

    broker, context = tls_broker
    with RawClient(broker.amqps_port, tls=context) as client:
        client.open_channel(1)
        client.write(differing(10))
        client.call(1, Basic.Qos(), Basic.QosOk)
        monkeypatch.setattr(AmqpConnection, "data_received", received)
        client.write(many(publish(1, "nowhere", b"x") + publish(1, "elsewhere", b"x")) * 6)
        client.call(1, Queue.Declare(queue="q"), Queue.DeclareOk)
    assert len(waiting) >= 5
    assert max(waiting) < READ_BYTES


@pytest.mark.usefixtures("client")
def test_timers_of_the_last_octets_end_with_the_clean_up(
    broker: LoneBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[bool] = []
    limit_close_wait = AmqpConnection._limit_close_wait

    def counted(connection: Any) -> None:
        waits.append(connection._is_lost)
        limit_close_wait(connection)

    connection: Any = next(iter(broker.broker.connections.values()))
    close = marshal(0, commands.Connection.Close(200, "", 0, 0))

    def lose() -> None:
        broker.group.holding = True
        connection.data_received(many(publish(1, "nowhere", b"x")) * 5 + DECLARE + close)
        assert connection._engine.has_more
        connection._transport.abort()

    with monkeypatch.context() as patched:
        patched.setattr(AmqpConnection, "_limit_close_wait", counted)
        broker.call(lose)
        wait_until(lambda: not broker.broker.connections, "the end of the connection")
    assert waits == [True]
    assert (connection._deadline, connection._heartbeat, connection._hang_up_check) == (None, None, None)


def test_error_in_the_clean_up_ends_only_its_connection(
    broker: LoneBroker, client: RawClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    unhandled: list[object] = []
    broker.call(
        lambda: asyncio.get_running_loop().set_exception_handler(lambda _, error: unhandled.append(error))
    )
    with RawClient(broker.amqp_port) as failing:
        failing.open_channel(1)
        monkeypatch.setattr(PublishingMethods, "end", fail)
    wait_until(lambda: len(broker.broker.connections) == 1, "the end of the connection")
    monkeypatch.undo()
    client.write(PASSIVE)
    client.expect(Queue.DeclareOk, 1)
    assert unhandled == []
    assert "ZeroDivisionError" in caplog.text


def test_channel_gets_on_beside_a_flooding_channel(broker: LoneBroker, client: RawClient) -> None:
    """Messages joined a run in front of the request, so a consumer got nothing while the client published."""
    client.open_channel(2)
    broker.group.holding = True
    message = publish(1, "q", b"x" * 1000)
    client.write(message * 1000 + marshal(2, Queue.Declare(queue="q", passive=True)) + message * 1500)
    wait_until(lambda: broker.broker.counters.amqp091.messages_received == 2500, "all messages")
    broker.call(broker.group.release)
    declared = client.expect(Queue.DeclareOk, channel=2)
    assert 1000 <= declared.message_count < 1500
