"""A second protocol on the same sessions: lines of words, with a session for each connection.

    HELLO user password         -> WELCOME
    DECLARE queue               -> DECLARED queue
    PUBLISH queue text          -> CONFIRMED n | REFUSED n      the n-th message, or all up to it
    CONSUME queue window        -> CONSUMING                    and then MESSAGE id text, as far as the window goes
    DONE id                                                     of a message
    anything that is refused    -> ERROR text                   and the end

It is an example of a second protocol: no code outside this file knows it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pamqp.commands import Basic

from qq.machine.protocol import commands, effects
from qq.ranges import Range
from qq.sessions.access import Access, AccessRefused
from qq.sessions.entries import MessagesGone
from qq.sessions.headers import delivered, in_frames
from qq.sessions.lanes import Lane
from qq.sessions.login import Login
from qq.sessions.pending_requests import OpenEnqueue
from qq.sessions.ports import Connection, Publisher, Session
from qq.sessions.session_info import ConnectionFacts
from qq.stored.editing import content, make
from qq.stored.properties import attributes

if TYPE_CHECKING:
    from qq.sessions.broker import Broker

FRAME_MAX = 131_072


class LineConsumer:
    """A consumer of a client."""

    def __init__(self, number: int) -> None:
        self.id = number
        self.started = False
        self.next_id = 0
        self.waiting: deque[tuple[int, Range, effects.Deliver]] = deque()
        """Messages that are to be written: the id of the first, and how they were delivered."""


class LineConnection(asyncio.Protocol):
    """A client. It is its connection, its session, its publisher and its consumers."""

    vhost = "/"
    protocol = "LINES"
    channel_count = number = 1
    unread_bytes = unsent_bytes = 0

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.id = broker.new_id()
        self.session = broker.new_id()
        self.lane = Lane(self)
        self.user = ""
        self.scopes = None
        self.in_log = self.is_admitted = False
        self.client_properties: Mapping[str, object] = {}
        self.has_failed = False
        self.published = self.answered = 0
        self._confirmed = 0
        self._uncommitted = 0
        self._answers: deque[str] = deque()
        self._consumer: LineConsumer | None = None
        self._buffer = b""
        self._access = Access(broker.machine, "", self.vhost)
        self._ended = False

    def facts(self) -> Any:
        """Return the connection and session as operators see them."""
        return ConnectionFacts()

    # The socket

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self.peer_host, self.peer_port = transport.get_extra_info("peername")[:2]
        self.name = f"{self.peer_host}:{self.peer_port}"
        self._broker.connection_opened(self)

    def data_received(self, data: bytes) -> None:
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            if not self._ended:
                verb, *arguments = line.decode().split(" ", 2)
                self._carry_out(verb, arguments)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        self._broker.connection_closed(self)

    def _carry_out(self, verb: str, arguments: list[str]) -> None:
        try:
            {"HELLO": self._hello, "DECLARE": self._declare, "PUBLISH": self._publish}.get(
                verb, {"CONSUME": self._consume, "DONE": self._done}.get(verb, self._unknown)
            )(*arguments)
        except AccessRefused as refused:
            if self._access.certain:
                self._fail(str(refused))
            else:
                self._broker.submissions.read_barrier(lambda: self._certainly(verb, arguments), self.lane)

    def _certainly(self, verb: str, arguments: list[str]) -> None:
        self._access.certain = True
        self._carry_out(verb, arguments)
        self._access.certain = False

    def _print(self, *arguments: object) -> None:
        self._transport.write((" ".join(map(str, arguments)) + "\n").encode())

    def _fail(self, text: str) -> None:
        self._print("ERROR", text)
        self._end()
        self._transport.close()

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            if self.in_log:
                self._broker.session_ended(self)

    # Requests of clients

    def _unknown(self, *_: str) -> None:
        self._fail("unknown")

    def _hello(self, user: str, password: str) -> None:
        def decided(admitted: bool) -> None:
            if not admitted:
                self._fail("who are you?")
                return
            self.user = user
            self._access = Access(self._broker.machine, user, self.vhost)
            self._broker.connect(self)
            self._broker.session_opened(self)

        self._broker.logins.attempt(Login(user, password.encode(), self.peer_host), decided)

    def _request(self, command: commands.Command, answer: str) -> None:
        self._answers.append(answer)
        self._broker.submissions.add(command, self.lane)

    def _declare(self, queue: str) -> None:
        self._access.declare_queue(queue, {}, passive=False)
        command = commands.DeclareQueue(self.session, self.id, queue, False, True, False, False, False, {})
        self._request(command, f"DECLARED {queue}")

    def _publish(self, queue: str, text: str) -> None:
        self._access.publish(b"default", "")
        message = make(Basic.Properties(delivery_mode=2), text.encode(), FRAME_MAX)
        self.published += 1
        run = OpenEnqueue(self, self.published, "", queue, False, attributes(message))
        self._broker.submissions.publish(run, [message], is_new=True)

    def _consume(self, queue: str, window: str) -> None:
        self._access.check("read", "queue", queue)
        self._consumer = LineConsumer(self._broker.new_id())
        command = commands.Checkout(
            self.session,
            self.id,
            self.number,
            self._consumer.id,
            queue,
            "lines",
            int(window),
            False,
            False,
            True,
            False,
            True,
            0,
            {},
        )
        self._request(command, "CONSUMING")

    def _done(self, number: str) -> None:
        assert self._consumer is not None
        first = int(number)
        self._broker.submissions.settle(commands.Settle, self._consumer.id, first, first, self.lane)

    # Connection: events from the log

    @property
    def waits_for_log(self) -> bool:
        return self._uncommitted > 0

    def count_uncommitted(self, size: int) -> None:
        self._uncommitted += size
        if self._uncommitted > self._broker.uncommitted_bytes_max // (2 if self._broker.is_full else 1):
            self._transport.pause_reading()
            self._broker.waits_for_room(self)
        elif not self._transport.is_closing():
            self._transport.resume_reading()

    def admitted(self) -> None:
        self._print("WELCOME")

    def not_admitted(self, failure: effects.Failed) -> None:
        self._fail(failure.text)

    def force_close(self, effect: effects.ConnectionForced) -> None:
        self._fail(effect.text)

    def alarm_changed(self) -> None: ...

    def shut_down(self, text: str) -> None:
        self._fail(text)

    def forget(self, text: str) -> None:
        self._fail(text)

    # Publisher and session: answers from the log

    @property
    def connection(self) -> LineConnection:
        return self

    @property
    def waits_for_answer(self) -> bool:
        return bool(self._answers)

    def confirm(self, published: int) -> None:
        if published > self._confirmed:
            self._confirmed = published
            self._print("CONFIRMED", published)

    def refuse(self, first: int, last: int, queue: str) -> None:
        self.confirm(first - 1)
        self._confirmed = last
        self._print("REFUSED", last)

    def refuse_unconfirmed(self, published: int) -> None:
        if published > self._confirmed:
            self.refuse(self._confirmed + 1, published, "")

    def replied(self, result: effects.Result) -> None:
        self.answered += 1
        if isinstance(result, effects.Consuming) and self._consumer is not None:
            self._consumer.started = True
        self._print(self._answers.popleft())

    def failed(self, failure: effects.Failed) -> None:
        self.has_failed = True
        self._fail(failure.text)

    @property
    def publisher(self) -> LineConnection:
        return self

    @property
    def consumers(self) -> LineConnection:
        return self

    @property
    def all(self) -> list[LineConsumer]:
        return [self._consumer] if self._consumer is not None else []

    def find(self, consumer_id: int) -> LineConsumer | None:
        known = self._consumer
        return known if known is not None and known.id == consumer_id else None

    def deliver(self, effect: effects.Deliver) -> None:
        consumer = self.find(effect.consumer)
        if consumer is None:
            return
        number = effect.first_id
        for part in effect.ranges:
            consumer.waiting.append((number, part, effect))
            number += part.count
        consumer.next_id = number
        self._write_messages()

    def _write_messages(self) -> None:
        waiting = self._consumer.waiting if self._consumer is not None else deque()
        while waiting and not self._ended:
            number, part, effect = waiting[0]
            try:
                found = self._broker.entries.messages(part)
            except MessagesGone:
                found = []
            if found is None:
                self._broker.entries.load([part.index], self._write_messages)
                return
            waiting.popleft()
            history = effect.histories.get(part.history)
            for messages in map(in_frames, found):
                for message in delivered(
                    messages.messages, part, history, count_contract=effect.count_contract
                ):
                    self._print("MESSAGE", number, content(message).body.decode())
                    number += 1

    def cancelled(self, consumer_id: int) -> None:
        self._consumer = None
        self._print("CANCELLED", consumer_id)

    def unroutable(self, effect: effects.Returned) -> None: ...

    def direct_reply(self, effect: effects.DirectReply) -> None: ...

    def timed_out(self, effect: effects.DeliveryTimeout) -> None: ...

    def needed_from(self) -> int | None:
        return None

    def leader_changed(self) -> None: ...


def implements(line: LineConnection) -> tuple[Connection, Session, Publisher]:
    """For the type checker: it is all three."""
    return line, line, line


async def listen(broker: Broker) -> asyncio.Server:
    """Serve the protocol on a port of this machine."""
    loop = asyncio.get_running_loop()
    return await loop.create_server(lambda: LineConnection(broker), "127.0.0.1", 0)
