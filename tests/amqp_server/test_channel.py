"""A channel without log and socket: orders of events that are rare in reality."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pamqp.frame
from pamqp import commands as amqp

from qq.amqp.framing import Method
from qq.amqp_server.channel.channel import Channel
from qq.client_sockets.message_output import ANSWERS_WAITING_MAX
from qq.config import NodeLimits
from qq.machine.catalog.permissions import Permissions
from qq.machine.machine import QueueMachine
from qq.machine.protocol import commands, effects
from qq.metrics.counters import Counters
from qq.ranges import Range
from qq.sessions.broker import Broker
from qq.sessions.entries import Messages
from qq.sessions.lanes import Lane

LARGE_NUMBER = 10_000


class Socket:
    """A connection that is written to while it has room."""

    user = "guest"
    scopes = None
    vhost = "/"
    wants_cancel_notify = True
    wants_live_prefetch = False
    frame_max = 131_072

    def __init__(self) -> None:
        self.id = 1
        self.lane = Lane()
        self.has_room = True
        self.written: list[bytes] = []
        self.paused: set[object] = set()
        self.pumps: list[Any] = []
        self.errors: list[Exception] = []

    def write(self, buffers: Any) -> None:
        self.written += buffers

    def pump_later(self, outgoing: Any) -> None:
        self.pumps.append(outgoing)

    def timed(self, work: Any) -> Any:
        return work()

    def make_room(self) -> None:
        self.has_room = True
        pumps, self.pumps = self.pumps, []
        for outgoing in pumps:
            outgoing.pump()

    def requests_held(self, _: Any) -> None: ...

    def requests_released(self, _: Any) -> None: ...

    def continue_later(self, methods: Any) -> None:
        methods.carry_out_some()

    def pause_for(self, reason: object) -> None:
        self.paused.add(reason)

    def resume_for(self, reason: object) -> None:
        self.paused.discard(reason)

    def fail_channel(self, _: Any, error: Exception) -> None:
        self.errors.append(error)

    def frames(self) -> list[Any]:
        """The methods written so far."""
        data, self.written = b"".join(self.written), []
        found = []
        while data:
            size, _, frame = pamqp.frame.unmarshal(data)
            data = data[size:]
            found.append(frame)
        return found


class Log:
    """Takes commands and never carries them out."""

    def __init__(self) -> None:
        self.commands: list[Any] = []
        self.credits: list[tuple[int, int]] = []

    def add(self, command: Any, _connection: Any = None) -> None:
        self.commands.append(command)

    def can_read(self, _lane: object) -> bool:
        return False

    def settle(
        self, kind: Any, consumer: int, first: int, last: int, _lane: Lane, *, is_urgent: bool
    ) -> None:
        self.commands.append(kind(consumer, first, last))

    def credit(self, consumer: int, count: int, _lane: Lane, *, is_urgent: bool = True) -> None:
        self.credits.append((consumer, count))


class Stored:
    """Every message of every entry is `m`."""

    def messages(self, part: Range) -> Any:
        message = b"\2\0\1\0\0\0\x0e\0\x3c\0\0" + (1).to_bytes(8, "big") + b"\0\0\xce\3\0\1\0\0\0\1m\xce"
        return [Messages("", "q", 1, [message] * part.count)]

    def portion(self, part: Range) -> int:
        return part.count


def channel_and_its_ends() -> tuple[Channel, Socket, Log]:
    socket, log = Socket(), Log()
    numbers = iter(range(1, LARGE_NUMBER))
    machine = QueueMachine()
    machine.catalog.access.set_permissions(Permissions("guest", "/", ".*", ".*", ".*"))
    broker: Any = SimpleNamespace(
        machine=machine,
        new_id=lambda: next(numbers),
        submissions=log,
        submit_when_free=lambda command, *_: log.add(command),
        counters=Counters(),
        entries=Stored(),
        session_ended=lambda channel: log.add(commands.SessionDown(channel.session)),
        server_name=Broker.server_name,
        limits=NodeLimits(),
        may_impersonate=lambda _: False,
        throttle=SimpleNamespace(remove=lambda _: None),
    )
    connection: Any = socket
    return Channel(broker, connection, 1), socket, log


def consume(channel: Channel, log: Log, **arguments: Any) -> int:
    channel.methods.receive(Method(1, amqp.Basic.Consume(queue="q", consumer_tag="t", arguments=arguments)))
    consumer = log.commands[-1].consumer
    channel.replied(effects.Consuming(consumer))
    return consumer


def test_leader_change_during_a_method_keeps_both_answers() -> None:
    channel, socket, log = channel_and_its_ends()
    consumer = consume(channel, log, **{"x-cancel-on-ha-failover": True})
    channel.methods.receive(Method(1, amqp.Queue.Declare(queue="other")))
    channel.consumers.leader_changed()
    channel.methods.receive(Method(1, amqp.Queue.Delete(queue="other")))
    socket.frames()
    channel.replied(effects.QueueDeclared("other", 0, 0))
    channel.replied(effects.ConsumerCancelled(consumer))
    assert [frame.name for frame in socket.frames()] == ["Queue.DeclareOk", "Basic.Cancel"]
    assert isinstance(log.commands[-1], commands.DeleteQueue)


def test_confirms_that_wait_for_the_socket_are_joined() -> None:
    channel, socket, _ = channel_and_its_ends()
    socket.has_room = False
    for published in range(1, LARGE_NUMBER):
        channel.publisher.confirm(published)
    socket.make_room()
    [confirm] = socket.frames()
    assert (confirm.delivery_tag, confirm.multiple) == (LARGE_NUMBER - 1, True)
    assert not socket.paused


def test_single_ack_is_not_multiple_and_each_nack_is() -> None:
    channel, socket, _ = channel_and_its_ends()
    for published, refused in ((1, False), (2, True), (4, False), (5, False), (7, True)):
        channel.core.outgoing.confirm(published, refused=refused)
    confirms = [(frame.name, frame.delivery_tag, frame.multiple) for frame in socket.frames()]
    assert confirms == [
        ("Basic.Ack", 1, False),
        ("Basic.Nack", 2, True),
        ("Basic.Ack", 4, True),
        ("Basic.Ack", 5, False),
        ("Basic.Nack", 7, True),
    ]


def test_answers_behind_deliveries_pause_and_resume_reading() -> None:
    channel, socket, log = channel_and_its_ends()
    consumer = consume(channel, log)
    socket.frames()
    socket.has_room = False
    channel.consumers.deliver(
        effects.Deliver("n", channel.session, consumer, 0, [Range(1, 0, 1, 0)], {}, count_contract=None)
    )
    for _ in range(ANSWERS_WAITING_MAX + 1):
        assert not socket.paused
        channel.methods.receive(Method(1, amqp.Basic.Qos()))
    assert socket.paused
    socket.make_room()
    assert not socket.paused
    assert [frame.name for frame in socket.frames()[::1000]] == ["Basic.Deliver", "Basic.QosOk"]


def test_recover_drops_unwritten_deliveries_and_returns_credit() -> None:
    """The log delivers pending messages again; the server returns the credit of an unlimited consumer."""
    channel, socket, log = channel_and_its_ends()
    consumer = consume(channel, log)
    channel.consumers.deliver(
        effects.Deliver("n", channel.session, consumer, 0, [Range(1, 0, 3, 0)], {}, count_contract=None)
    )
    socket.has_room = False
    channel.consumers.deliver(
        effects.Deliver(
            "n",
            channel.session,
            consumer,
            3,
            [Range(2, 0, 5, 0), Range(3, 0, 2, 0)],
            {},
            count_contract=None,
        )
    )
    channel.methods.receive(Method(1, amqp.Basic.Recover(requeue=True)))
    socket.frames()
    socket.make_room()
    assert socket.frames() == []
    channel.replied(effects.Recovered())
    assert [frame.name for frame in socket.frames()] == ["Basic.RecoverOk"]
    assert log.credits == [(consumer, 3), (consumer, 7)]
    channel.methods.receive(Method(1, amqp.Basic.Ack(1)))
    assert "unknown delivery tag 1" in str(socket.errors)


def test_closed_channel_is_reported_to_the_log_once() -> None:
    channel, _, log = channel_and_its_ends()
    channel.end()
    channel.end()
    assert log.commands == [commands.SessionDown(channel.session)]
