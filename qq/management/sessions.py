"""Doing something as a client would do it: a session of the log that has no channel of AMQP behind it.

Lives here: its opening and its end, its answers, getting messages in it. Not here: which requests are made so
(qq/http), whether they are permitted (permitted.py).

Law: whatever happens in between, the session ends, and what it holds goes back.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from qq.amqp.encoding import content
from qq.broker.entries import MessagesGone
from qq.broker.headers import delivered, published_to
from qq.broker.lanes import Lane
from qq.errors import ConnectionFault, amqp_error
from qq.http.view import AckMode, Message, Refused, Unavailable
from qq.machine import commands as c
from qq.machine.codec import check_command
from qq.machine.effects import GetOk

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qq.broker.broker import Broker
    from qq.broker.channel import Channel
    from qq.broker.entries import Messages
    from qq.broker.listener import ClientConnection
    from qq.errors import AmqpError, Reply
    from qq.http.view import Declaration
    from qq.machine.commands import Command
    from qq.machine.effects import Failed, Result
    from qq.ranges import Range

T = TypeVar("T")

CHANGE_TIMEOUT_S = 10.0
"""Without a majority nothing is applied for so long, and whoever asked for something must be told."""
GET_BYTES_MAX = 1024 * 1024
"""When so many octets of bodies have been got, no more messages are."""

_SETTLEMENTS: dict[AckMode, type[c.Settlement]] = {
    AckMode.ACK_REQUEUE_TRUE: c.Return,
    AckMode.ACK_REQUEUE_FALSE: c.Settle,
    AckMode.REJECT_REQUEUE_TRUE: c.Reject,
    AckMode.REJECT_REQUEUE_FALSE: c.Discard,
}


async def until_applied(
    broker: Broker, commands: Sequence[Command], look: Callable[[], T], lane: Lane | None = None
) -> T:
    """What `look` finds when this node has applied the commands, or had to give them up.

    Then it has applied all that the cluster had committed before, too. Raises Unavailable; InvalidCommand if the log
    cannot hold one of the commands, and then none is submitted. They go in `lane`, or else in the one of operators.
    """
    for command in commands:
        check_command(command)
    applied: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def told() -> None:
        if not applied.done():
            applied.set_result(look())

    if broker.is_full:
        raise Unavailable(f"{broker.why_full}; nothing was changed")
    for command in commands:
        broker.submissions.add(command, lane)
    broker.submissions.barrier(told, lane)
    while not applied.done():
        before = broker.submissions.batches_applied
        await asyncio.wait([applied], timeout=CHANGE_TIMEOUT_S)
        # As long as the log goes on, the change waits for what is before it, and for no majority.
        if not applied.done() and broker.submissions.batches_applied == before:
            raise Unavailable(
                "no majority of the nodes has taken the change; it may still be made"
                if commands
                else "no majority of the nodes answers; nothing was changed"
            )
    return applied.result()


class _Connection:
    """To the broker it is a client's, without a socket; to operators, too: it counts for the limits of its user."""

    peer_host, peer_port, channel_count = "", 0, 1
    in_log = True

    def __init__(self, number: int, vhost: str, user: str) -> None:
        self.id = number
        self.lane = Lane()
        self.name = f"HTTP API ({number})"
        self.client_properties: dict[str, Any] = {}
        self.vhost = vhost
        self.user = user
        self.failure: AmqpError | None = None

    def admitted(self) -> None:
        """What was asked behind it will be answered."""

    def not_admitted(self, error: AmqpError) -> None:
        self.failure = error

    def force_close(self, text: str, code: Reply) -> None:
        """Whoever waits is told; then it closes anyway."""
        self.failure = ConnectionFault(code, text)

    def count_uncommitted(self, size: int) -> None:
        """Whoever waits for the answer asks for nothing else; for all of them there is the limit of the node."""

    def close_now(self) -> None:
        """What is asked is answered or given up anyway, and then it closes."""

    shut_down = alarm_changed = close_now


class _Channel:
    """To the broker it is a client's, without consumers and publishers."""

    def __init__(self, session: int, connection: _Connection) -> None:
        self.session = session
        self.connection = connection
        self.outgoing = self
        self.results: list[Result] = []
        self.failure: AmqpError | None = None
        self.consumers: tuple[()] = ()
        self.waits_for_answer = False

    @property
    def answered(self) -> int:
        return len(self.results)

    def replied(self, result: Result) -> None:
        self.results.append(result)

    def failed(self, failure: Failed) -> None:
        self.failure = amqp_error(failure.code, failure.text)

    def consumer(self, _number: int) -> None:
        """There is none."""

    def needed_from(self) -> None:
        """Nothing is kept for it: what it gets stays in its queue until it is read."""

    def leader_changed(self) -> None:
        """It does not mind."""


class Session:
    """A session of a user in a virtual host, in a connection of its own."""

    def __init__(self, broker: Broker, vhost: str, user: str) -> None:
        self._broker = broker
        self._connection = _Connection(broker.new_id(), vhost, user)
        self._channel = _Channel(broker.new_id(), self._connection)

    async def __aenter__(self) -> Self:
        """Open it; if that is refused, so is what is asked first."""
        connection = cast("ClientConnection", self._connection)
        self._broker.connection_opened(connection)
        self._broker.connect(connection)
        self._broker.session_opened(cast("Channel", self._channel))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._broker.session_ended(cast("Channel", self._channel))
        self._broker.connection_closed(cast("ClientConnection", self._connection))

    async def ask(self, commands: Sequence[Declaration | c.Get]) -> list[Result]:
        """Have commands carried out; their ids are filled in. Raises Refused, Unavailable."""
        results, before = self._channel.results, len(self._channel.results)
        mine = [self._own(command) for command in commands]
        await until_applied(self._broker, mine, lambda: None, self._connection.lane)
        failure = self._connection.failure or self._channel.failure
        if failure is not None:
            raise Refused(failure.code, failure.text.partition(" - ")[2], len(results))
        if len(results) < before + len(commands):
            raise Unavailable("the node was away from its cluster; it may be done, or not")
        return results[before:]

    def _own(self, command: Declaration | c.Get) -> Command:
        if "connection" not in command._fields:
            return command._replace(session=self._channel.session)
        ids = {"session": self._channel.session, "connection": self._connection.id}
        return command._replace(**ids)

    async def get(self, queue: str, count: int, ack_mode: AckMode) -> list[Message]:
        """Take up to `count` messages and settle them in this way. Raises Refused, Unavailable."""
        got: list[GetOk] = []
        messages: list[Message] = []
        size = 0
        while len(got) < count and size < GET_BYTES_MAX:
            consumer = self._broker.new_id()
            [result] = await self.ask([c.Get(0, 0, 1, consumer, queue, False, 0)])
            if not isinstance(result, GetOk):
                break
            got.append(result)
            messages.append(await self._read(result, len(messages)))
            size += len(messages[-1].body)
        settlement = _SETTLEMENTS[ack_mode]
        done = [settlement(each.consumer, 0, 0) for each in got]
        await until_applied(self._broker, done, lambda: None, self._connection.lane)
        return messages

    async def _read(self, got: GetOk, offset: int) -> Message:
        stored = await _stored(self._broker, got.range)
        exchange, routing_key = published_to(stored, got.history)
        counts_failures = got.counts_failures
        [message] = delivered(stored.messages, got.range, got.history, counts_failures=counts_failures)
        return Message(
            offset,
            exchange,
            routing_key,
            got.range.deliveries > 0,
            *content(message),
            message_count=got.remaining,
        )


async def _stored(broker: Broker, messages: Range) -> Messages:
    """Messages that are in a queue, read from the disk if need be. Raises Unavailable."""
    read: asyncio.Future[Messages] = asyncio.get_running_loop().create_future()

    def look() -> None:
        if read.done():  # nobody waits any more
            return
        try:
            groups = broker.entries.messages(messages)
        except MessagesGone:
            read.set_exception(Unavailable("the message is not stored any more"))
            return
        if groups is None:
            broker.entries.load([messages.index], look)
        else:
            read.set_result(groups[0])

    look()
    return await read
