"""Sessions for HTTP requests: an operator's command runs in a session of the log without an AMQP channel.

Invariant: the session always ends, even after an error, and messages that it holds return to their queues.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self, TypeVar

from qq.errors import ReplyCode
from qq.machine.protocol import commands as c
from qq.machine.protocol.codec import check_command
from qq.machine.protocol.effects import GetOk
from qq.machine.protocol.refusals import Refused
from qq.management.errors import NOT_CARRIED_OUT, UNKNOWN, PublicationRejected, RequestRefused, Unavailable
from qq.management.objects.browse import stored_messages
from qq.management.reports.messages import AckMode, Message
from qq.sessions.entries import MessagesGone
from qq.sessions.headers import delivered, in_frames, is_redelivered, published_to
from qq.sessions.lanes import Lane
from qq.sessions.pending_requests import OpenEnqueue
from qq.sessions.session_info import ConnectionFacts
from qq.stored.editing import content, make
from qq.stored.layout import FRAME_MAX, flags
from qq.stored.properties import group

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qq.machine.protocol.commands import Command, Declaration
    from qq.machine.protocol.effects import ConnectionForced, Failed, Result, Returned
    from qq.management.reports.messages import NewMessage
    from qq.ranges import Range
    from qq.scopes import Scopes
    from qq.sessions.broker import Broker
    from qq.sessions.entries import Messages
    from qq.sessions.throttle import Throttle

T = TypeVar("T")

_AWAY = f"the node was away from its cluster; {UNKNOWN}"
CHANGE_TIMEOUT_S = 10.0
"""Seconds without any applied batch after which a waiting request fails, because there is no majority."""
GET_BYTES_MAX = 1024 * 1024
"""Octets of message bodies after which a get stops."""

_SETTLEMENTS: dict[AckMode, type[c.Settlement]] = {
    AckMode.ACK_REQUEUE_TRUE: c.Return,
    AckMode.ACK_REQUEUE_FALSE: c.Settle,
    AckMode.REJECT_REQUEUE_TRUE: c.Reject,
    AckMode.REJECT_REQUEUE_FALSE: c.Discard,
}


async def until_applied(
    broker: Broker,
    commands: Sequence[Command],
    read: Callable[[], T],
    lane: Lane | None = None,
    *,
    changes: bool | None = None,
) -> T:
    """Submit commands, and return the result of `read` when this node has applied or given up the commands.

    This node has then also applied all entries that the cluster committed before. Commands use `lane`, or the node's
    own lane. `changes` says whether the request changes state; by default it does if it has commands. Raises
    Unavailable. Raises InvalidCommand, and submits no command, if the log cannot hold any of them.
    """
    changes = bool(commands) if changes is None else changes
    for command in commands:
        check_command(command, broker.machine.version)
    applied: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def resolve() -> None:
        if not applied.done():
            applied.set_result(read())

    if broker.is_full_for_operators:
        raise Unavailable(f"{broker.why_full}; {UNKNOWN if changes and not commands else NOT_CARRIED_OUT}")
    for command in commands:
        broker.submissions.add(command, lane)
    broker.submissions.read(resolve, lane)
    while not applied.done():
        before = broker.submissions.batches_applied
        await asyncio.wait([applied], timeout=CHANGE_TIMEOUT_S)
        # While the log goes on, the change waits for earlier commands and not for a majority.
        if not applied.done() and broker.submissions.batches_applied == before:
            why = broker.why_undecided() or "the log does not go on"
            raise Unavailable(f"{why}; {UNKNOWN if changes else NOT_CARRIED_OUT}")
    return applied.result()


async def outcome_of(
    broker: Broker, commands: Sequence[Command], outcome: Callable[[], T], lane: Lane | None = None
) -> T:
    """Put commands into the log, and return their outcome, which is read from the state of this node.

    `outcome` may raise Refused or Unavailable. Raises RequestRefused, InvalidCommand; Unavailable, also if this node
    has missed whether the commands were carried out.
    """

    def read() -> T | Refused | Unavailable:
        try:
            return outcome()
        except (Refused, Unavailable) as refused:
            return refused

    unseen_before = broker.submissions.times_unseen
    found = await until_applied(broker, commands, read, lane, changes=True)
    if isinstance(found, Refused):
        raise RequestRefused(found.code, found.text)
    if isinstance(found, Unavailable):
        raise found
    if broker.submissions.times_unseen != unseen_before:
        raise Unavailable(_AWAY)
    return found


class _OperatorConnection:
    """A connection without a socket. Operators see it in lists, and it counts towards the limits of its user."""

    protocol, peer_host, peer_port, channel_count = "HTTP", "", 0, 1
    unread_bytes = unsent_bytes = 0

    def __init__(self, number: int, vhost: str, user: str, scopes: Scopes | None) -> None:
        self.id = number
        self.lane = Lane()
        """The lane has no payer: a waiting request makes no further requests, so the node's limit is enough."""
        self.name = f"HTTP API ({number})"
        self.client_properties: dict[str, object] = {}
        self.vhost = vhost
        self.user = user
        self.scopes = scopes
        self.in_log = self.is_admitted = False
        self.failure: Failed | ConnectionForced | None = None

    waits_for_log = False
    """Always false: the waiting request is woken by its own barrier."""

    def facts(self) -> ConnectionFacts:
        return ConnectionFacts()

    def admitted(self) -> None:
        """Ignored: the commands behind the connection's command are answered anyway."""

    def not_admitted(self, failure: Failed) -> None:
        self.failure = failure

    def force_close(self, effect: ConnectionForced) -> None:
        """Keep the reason for the request that waits for an answer; it closes the connection."""
        self.failure = effect

    def count_uncommitted(self, size: int) -> None:
        """Ignored: the request waits for its answers, so it needs no further limit."""

    def alarm_changed(self) -> None:
        """Ignored: an admitted request publishes a single message."""

    def shut_down(self, text: str) -> None:
        """Ignored: the HTTP server informs its clients."""

    def forget(self, text: str) -> None:
        """Ignored: the request ends by itself, and then the connection closes."""


class _OperatorSession:
    """A session without consumers that collects its answers, and publishes at most a single message.

    It is its own publisher.
    """

    number = 1
    """Channel number in the frames of its message."""

    consumers: None = None
    waits_for_answer = False
    """Always false: asked after a snapshot about cancellations, and this session cancels no consumer."""

    def __init__(self, session: int, connection: _OperatorConnection, throttle: Throttle) -> None:
        self.session = session
        self.connection = connection
        self._throttle = throttle
        self.results: list[Result] = []
        self.failure: Failed | None = None
        self.published = 0
        self.to_pass: list[bytes] = []
        """Message that waits until the publishing limits let it pass."""
        self.has_passed = asyncio.Event()
        self.is_returned = False
        """Whether the message was routed to no queue."""
        self.is_safe: bool | None = None
        """Whether the message was confirmed (True) or rejected (False); None while that is unknown."""

    @property
    def publisher(self) -> _OperatorSession:
        return self

    def facts(self) -> None:
        """Return None, because a request of an operator is no channel of a client."""

    @property
    def answered(self) -> int:
        return len(self.results)

    def replied(self, result: Result) -> None:
        self.results.append(result)

    def failed(self, failure: Failed) -> None:
        self.failure = failure

    @property
    def has_failed(self) -> bool:
        return self.failure is not None

    def confirm(self, published: int) -> None:  # noqa: ARG002  # this session publishes one message
        """Record that the message is safe, unless it was rejected before."""
        self.is_safe = self.is_safe is None or self.is_safe

    def refuse(self, first: int, last: int, queue: str) -> None:  # noqa: ARG002
        self.is_safe = False

    def refuse_unconfirmed(self, published: int) -> None:
        """Ignored: the fate of the message is unknown."""

    def resume(self) -> None:
        """Let the message pass if the publishing limits allow it, and charge it at once, or wait for the next call."""
        if self._throttle.count_passing(self, self.to_pass):
            self._throttle.charge(self, self.to_pass, 1)
            self.has_passed.set()
        else:
            self._throttle.wait(self)

    def unroutable(self, effect: Returned) -> None:  # noqa: ARG002
        self.is_returned = True

    def needed_from(self) -> None:
        """Return None: this session holds no entry, because a fetched message stays in its queue until it is read."""


class RequestSession:
    """A session of a user in a virtual host, on a connection of its own."""

    def __init__(self, broker: Broker, vhost: str, user: str, scopes: Scopes | None = None) -> None:
        """`scopes` are the scopes of the user's token; None for a user with a password."""
        self._broker = broker
        self._connection = _OperatorConnection(broker.new_id(), vhost, user, scopes)
        self._session = _OperatorSession(broker.new_id(), self._connection, broker.throttle)

    async def __aenter__(self) -> Self:
        """Open the session. Its first command fails if the log refuses the session. Raises RequestRefused."""
        scopes, vhost = self._connection.scopes, self._connection.vhost
        if scopes is not None and not scopes.opens(vhost):
            text = f"access to vhost '{vhost}' refused for user '{self._connection.user}'"
            raise RequestRefused(ReplyCode.NOT_ALLOWED, text)
        check_command(self._broker.connection_command(self._connection), self._broker.machine.version)
        self._broker.connection_opened(self._connection)
        self._broker.connect(self._connection)
        self._broker.session_opened(self._session)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._broker.throttle.remove(self._session)
        self._broker.session_ended(self._session)
        self._broker.connection_closed(self._connection)

    async def run(self, commands: Sequence[Declaration | c.Get]) -> list[Result]:
        """Run commands, after filling in session and connection. Raises RequestRefused, Unavailable."""
        results, before = self._session.results, len(self._session.results)
        mine = [self._own(command) for command in commands]
        await until_applied(self._broker, mine, lambda: None, self._connection.lane)
        failure = self._connection.failure or self._session.failure
        if failure is not None:
            raise RequestRefused(ReplyCode(failure.code), failure.text, len(results))
        if len(results) < before + len(commands):
            raise Unavailable(_AWAY)
        return results[before:]

    def _own(self, command: Declaration | c.Get) -> Command:
        if "connection" not in command._fields:
            return command._replace(session=self._session.session)
        ids = {"session": self._session.session, "connection": self._connection.id}
        return command._replace(**ids)

    async def publish(self, publication: NewMessage) -> bool:
        """Publish a message, and return whether it was routed to a queue.

        Waits while publishing limits are reached. Raises RequestRefused, Unavailable, PublicationRejected.
        """
        broker, session, connection = self._broker, self._session, self._connection
        try:
            message = make(publication.properties, publication.body, FRAME_MAX)
            user = None if broker.may_impersonate(connection) else connection.user
            [(attributes, messages)] = group([message], flags(message), user)
        except ValueError as error:
            raise RequestRefused(ReplyCode.PRECONDITION_FAILED, str(error)) from None
        exchange, routing_key = publication.exchange, publication.routing_key
        await self._wait_for_limits(messages)
        session.published = 1
        run = OpenEnqueue(session, 1, exchange, routing_key, True, attributes)
        broker.submissions.publish(run, messages, is_new=True)
        await until_applied(broker, [], lambda: None, connection.lane, changes=True)
        failure = connection.failure or session.failure
        if failure is not None:
            raise RequestRefused(ReplyCode(failure.code), failure.text)
        if session.is_safe is None:
            raise Unavailable(_AWAY)
        if not session.is_safe:
            raise PublicationRejected
        return not session.is_returned

    async def _wait_for_limits(self, messages: list[bytes]) -> None:
        """Wait until the publishing limits let a message pass, which is then charged. Raises Unavailable."""
        session = self._session
        session.to_pass = messages
        session.resume()
        try:
            async with asyncio.timeout(CHANGE_TIMEOUT_S):
                await session.has_passed.wait()
        except TimeoutError:
            raise Unavailable(f"a limit of publishing is reached; {NOT_CARRIED_OUT}") from None

    async def get(self, queue: str, count: int, ack_mode: AckMode) -> list[Message]:
        """Take up to `count` messages and settle them by `ack_mode`. Raises RequestRefused, Unavailable."""
        got: list[GetOk] = []
        messages: list[Message] = []
        size = 0
        while len(got) < count and size < GET_BYTES_MAX:
            consumer = self._broker.new_id()
            [result] = await self.run([c.Get(0, 0, 1, consumer, queue, False, 0)])
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
        stored = in_frames(stored)
        [message] = delivered(stored.messages, got.range, got.history, count_contract=got.count_contract)
        return Message(
            offset,
            exchange,
            routing_key,
            is_redelivered(got.range, got.history, got.count_contract),
            *content(message),
            message_count=got.remaining,
        )


async def _stored(broker: Broker, messages: Range) -> Messages:
    """Return messages of a queue, read from the disk if needed. Raises Unavailable."""
    try:
        groups = await stored_messages(broker.entries, messages, (messages,))
    except MessagesGone as gone:
        raise Unavailable("the message is not stored any more") from gone
    return groups[0]
