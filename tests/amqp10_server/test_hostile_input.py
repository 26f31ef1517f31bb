"""Legal and illegal input of AMQP 1.0 clients that must neither stop the node nor leave anything behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cluster.membership.alarms import reason_of
from cluster.raft.messages import Alarm
from qq.amqp10.composites import encode_composite
from qq.amqp10.connection import Phase10
from qq.amqp10.performatives import (
    AcceptedState,
    AttachFrame,
    CloseFrame,
    DetachFrame,
    DispositionFrame,
    EndFrame,
    FlowFrame,
    SourceTerminus,
    TargetTerminus,
    TransferFrame,
)
from qq.amqp10.sections import PROPERTIES, MessageProperties
from qq.amqp10.values import Described, Int, Symbol, ULong, Value, encode
from qq.amqp10_server.command_session import Answered, ConnectionCommands
from qq.amqp10_server.connection import BLOCKED_BYTES_MAX
from qq.client_sockets.closing import CLOSE_GRACE_S
from qq.machine.protocol.commands import DEFAULT_VHOST, Declaration, DeclareQueue, SetVhostLimits
from qq.sessions.broker import Broker
from tests.amqp10.amqp10_wire import frame, raw_frame
from tests.amqp10_server.lone_broker10 import LoneBroker10, ManagementClient
from tests.amqp10_server.socket_client import SocketClient, data, receiver
from tests.harness.lone_broker import wait_until

NO_TEXT = "\udcff"
"""An octet that is not UTF-8, as text keeps it (qq/octets.py)."""
TEMPORARY = ("temporary-queue",)


@pytest.fixture(name="client")
def client_fixture(broker: LoneBroker10) -> Iterator[SocketClient]:
    """A client with a session, beside the queue `q`."""
    broker.operate(DeclareQueue(0, 0, "q", False, True, False, False, False, {"x-queue-type": "quorum"}))
    with SocketClient(broker.amqp_port) as client:
        client.open()
        client.begin()
        yield client


def connection_of(broker: LoneBroker10) -> Any:
    [connection] = broker.broker.connections.values()
    return connection


def properties_map(**fields: Value) -> bytes:
    """Return the section of properties as a map, which may stand for the list."""
    named: dict[Value, Value] = {Symbol(name.replace("_", "-")): value for name, value in fields.items()}
    return encode(Described(ULong(PROPERTIES), named))


def test_error_quotes_octets_that_are_no_text(client: SocketClient) -> None:
    client.attach_sender("/queues/q")
    foreign = encode_composite(MessageProperties(user_id=b"\xff"))
    client.write(
        frame(TransferFrame(0, 0, b"0", 0), payload=data(b"a"))
        + frame(TransferFrame(0, 1, b"1", 0), payload=data(b"a", foreign))
    )
    error = client.until(DetachFrame).error
    assert error is not None
    assert error.condition == "amqp:unauthorized-access"
    assert "'\N{REPLACEMENT CHARACTER}'" in str(error.description)


@pytest.mark.parametrize("is_dynamic", [False, True])
def test_refused_link_leaves_no_session_when_its_outcome_is_odd(
    broker: LoneBroker10, client: SocketClient, is_dynamic: bool
) -> None:
    source = SourceTerminus(
        None if is_dynamic else "/queues/q",
        dynamic=is_dynamic,
        capabilities=TEMPORARY if is_dynamic else (),
        outcomes=(NO_TEXT,),
    )
    client.send(receiver(None, source=source))
    error = client.until(DetachFrame).error
    assert error is not None
    assert error.condition == "amqp:not-implemented"
    assert connection_of(broker).channel_count == 0


@pytest.mark.parametrize(
    ("first", "second", "condition"),
    [
        (
            {"message_id": "x", "user_id": b"guest"},
            {"message_id": "x", "user_id": b"admin"},
            "amqp:unauthorized-access",
        ),
        ({"message_id": "x"}, {"message_no": "x"}, "amqp:decode-error"),
    ],
)
def test_properties_in_a_map_are_checked_in_each_message(
    client: SocketClient, first: Any, second: Any, condition: str
) -> None:
    client.attach_sender("/queues/q")
    for number, fields in enumerate((first, second)):
        client.transfer(number, data(b"a", properties_map(**fields)))
    client.until(DispositionFrame)
    error = client.until(DetachFrame).error
    assert error is not None
    assert error.condition == condition


def test_temporary_queue_ends_when_its_session_ends_early(
    broker: LoneBroker10, client: SocketClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ConnectionCommands.run

    def hold(self: ConnectionCommands, command: Declaration, answered: Answered) -> None:
        broker.group.holding = broker.group.holding or isinstance(command, DeclareQueue)
        run(self, command, answered)

    monkeypatch.setattr(ConnectionCommands, "run", hold)
    source = SourceTerminus(dynamic=True, capabilities=TEMPORARY)
    client.send(AttachFrame("l", 0, True, source=source, target=TargetTerminus()))
    wait_until(lambda: bool(broker.group._held), "the command")
    client.send(EndFrame())
    wait_until(lambda: connection_of(broker)._engine.sessions[0].state.name != "OPEN", "the end")
    broker.call(broker.group.release)
    client.until(EndFrame)
    broker.pass_some_time()
    assert list(broker.machine.vhosts[DEFAULT_VHOST].queues) == ["q"]
    assert connection_of(broker).channel_count == 0


def test_close_is_answered_when_settled_messages_are_published(client: SocketClient) -> None:
    client.attach_sender("/queues/q")
    began_s = time.monotonic()
    client.write(frame(TransferFrame(0, 0, b"0", 0, True), payload=data(b"a")) + frame(CloseFrame()))
    client.until(CloseFrame)
    assert time.monotonic() - began_s < CLOSE_GRACE_S / 2


def test_management_requests_end_when_no_window_takes_answers(broker: LoneBroker10) -> None:
    with ManagementClient(broker.amqp_port) as client:
        client.manage()
        client.give_credit(100, window=0)
        for number in range(4):
            client.send_request("PUT", f"/queues/q{number}", {})
        client.end()
        broker.pass_some_time()
        wait_until(lambda: len(broker.machine.vhosts[DEFAULT_VHOST].queues) == 4, "the queues")
        client.manage()
        assert client.request("GET", "/queues/q3").status == "200"
        assert connection_of(broker)._management._waiting_bytes == 0


def test_log_keeps_a_short_tag_when_the_link_has_a_long_name(
    broker: LoneBroker10, client: SocketClient
) -> None:
    name = "é" * 50_000
    client.send(receiver("/queues/q", name=name))
    assert client.until(AttachFrame).name == name
    [consumer] = broker.machine.vhosts[DEFAULT_VHOST].queues["q"].holders
    assert consumer.tag == name[:127]


def test_incomplete_messages_are_not_read_on_during_an_alarm(
    broker: LoneBroker10, client: SocketClient
) -> None:
    client.attach_sender("/queues/q")
    client.send(TransferFrame(0, 0, b"0", 0, more=True), payload=bytes(100_000))
    broker.alarm(reason_of(Alarm.DISK))
    connection = connection_of(broker)
    client._socket.settimeout(0.5)
    part = frame(TransferFrame(0, 0, b"0", 0, more=True), payload=bytes(100_000))
    with pytest.raises(TimeoutError):
        client.write(part * 150)
    assert connection._engine.partial_bytes < 100_000 + BLOCKED_BYTES_MAX + 1024 * 1024
    client._socket.settimeout(10)
    broker.alarm(None)
    wait_until(lambda: connection.is_read, "the connection to be read again")


def test_session_ends_behind_messages_that_a_limit_holds(broker: LoneBroker10, client: SocketClient) -> None:
    broker.operate(SetVhostLimits(DEFAULT_VHOST, {"max-publishes-per-second": 5}))
    client.attach_sender("/queues/q")
    transfers = [frame(TransferFrame(0, each, b"0", 0, True), payload=data(b"a")) for each in range(8)]
    client.write(b"".join([*transfers, frame(EndFrame())]))
    client.until(EndFrame)
    assert broker.machine.vhosts[DEFAULT_VHOST].queues["q"].ready == 8
    assert connection_of(broker).channel_count == 0


def test_client_is_told_its_error_when_its_close_follows(
    broker: LoneBroker10, client: SocketClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[Callable[[], None]] = []

    def end_claims(_: Broker, connection: Any, gone: Callable[[], None]) -> bool:
        ended.append(gone)
        return True

    monkeypatch.setattr(Broker, "end_claims", end_claims)
    connection = connection_of(broker)
    too_deep = encode_composite(FlowFrame(0, 0, 0, 0, properties={Symbol("x"): nested(40)}))
    client.write(raw_frame(too_deep))
    wait_until(lambda: connection._holds_output, "the wait for the log")
    client.send(CloseFrame())
    wait_until(lambda: connection._engine.phase is Phase10.CLOSED, "the client's close")
    broker.call(ended[0])
    error = client.until(CloseFrame).error
    assert error is not None
    assert error.condition == "amqp:decode-error"
    assert client.receive() is None


def test_outcome_is_settled_when_the_log_has_it(broker: LoneBroker10, client: SocketClient) -> None:
    deliver(client, 3)
    broker.call(setattr, broker.group, "holding", True)
    asked = frame(DispositionFrame(True, 0, 2, state=AcceptedState()))
    client.write(asked + asked)  # the node settles a repeated outcome as late as the first
    wait_until(lambda: bool(broker.group._held), "the outcome")
    broker.pass_some_time()
    client._socket.settimeout(0.2)
    with pytest.raises(TimeoutError):
        client.receive()
    broker.call(broker.group.release)
    client._socket.settimeout(10)
    assert [client.expect(DispositionFrame) for _ in range(2)] == 2 * [
        DispositionFrame(False, 0, 2, True, AcceptedState())
    ]
    assert broker.broker.submissions.pending_bytes == 0


def test_outcomes_that_wait_for_the_log_are_bounded(broker: LoneBroker10, client: SocketClient) -> None:
    broker.call(setattr, broker.group, "holding", True)
    connection = connection_of(broker)
    client.write(frame(DispositionFrame(True, 70_000, state=AcceptedState())) * 50_000)
    submissions = broker.broker.submissions
    wait_until(lambda: not connection.is_read and submissions.pending_bytes > 1_000_000, "back-pressure")
    broker.call(broker.group.release)
    wait_until(lambda: connection.is_read, "the connection to be read again")


def deliver(client: SocketClient, count: int) -> None:
    """Publish messages to the queue `q`, and get them."""
    client.attach_sender("/queues/q")
    for number in range(count):
        client.transfer(number, data(b"a"), settled=True)
    client.attach_receiver("q")
    client.credit(count)
    for _ in range(count):
        client.message()


def test_log_names_the_condition_of_a_closed_connection(
    client: SocketClient, caplog: pytest.LogCaptureFixture
) -> None:
    client.write(raw_frame(encode_composite(FlowFrame(0, 0, 0, 0, properties={Symbol("x"): nested(40)}))))
    error = client.until(CloseFrame).error
    assert error is not None
    assert f"of guest: {error.condition} - {error.description}" in caplog.text


def nested(depth: int) -> Value:
    value: Value = None
    for _ in range(depth):
        value = [value]
    return value


def test_link_keeps_no_maps_of_its_attach(broker: LoneBroker10, client: SocketClient) -> None:
    wide: dict[Value, Value] = {Symbol("x"): [None] * 2_000}
    used: dict[Value, Value] = {Symbol("rabbitmq:priority"): Int(7), Symbol("paired"): wide}
    source = SourceTerminus("/queues/q", filter=wide, dynamic_node_properties=wide)
    client.send(receiver(None, source=source, properties=wide | used))
    client.until(AttachFrame)
    [link] = connection_of(broker)._links
    assert link.attach.properties == {Symbol("rabbitmq:priority"): 7}
    assert (link.attach.source.filter, link.attach.source.dynamic_node_properties) == (None, None)
    [consumer] = broker.machine.vhosts[DEFAULT_VHOST].queues["q"].holders
    assert consumer.arguments["x-priority"] == 7
