"""Shared by the parts of a channel: its session, its settings, and requests to the log.

Invariant: after `end`, no reference leads from here to the channel, so that the channel is freed at once.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from qq.amqp.encoding import encode
from qq.amqp_server.channel.method_queue import MethodQueue
from qq.sessions.access import Access
from qq.sessions.session_info import SessionCounts

if TYPE_CHECKING:
    from collections.abc import Callable

    from pamqp.base import Frame

    from qq.amqp_server.channel.method_queue import Event
    from qq.amqp_server.channel.transaction import Transaction
    from qq.amqp_server.outgoing import Outgoing
    from qq.amqp_server.ports import Carrier
    from qq.errors import AmqpError
    from qq.machine.protocol.commands import Method
    from qq.machine.protocol.effects import Result
    from qq.sessions.access import Permission
    from qq.sessions.broker import Broker

    MakeOutgoing = Callable[[Broker, Carrier, int, SessionCounts], Outgoing]


class ChannelCore:
    """The session of a channel, and the state that its parts share."""

    __slots__ = (
        "_fail",
        "access",
        "broker",
        "closed",
        "confirming",
        "connection",
        "counts",
        "has_failed",
        "has_published",
        "last_queue",
        "methods",
        "number",
        "outgoing",
        "reply_name",
        "session",
        "transaction",
    )

    def __init__(
        self,
        broker: Broker,
        connection: Carrier,
        number: int,
        carry_out: Callable[[Event], None],
        fail: Callable[[AmqpError], None],
        make_outgoing: MakeOutgoing,
    ) -> None:
        self.broker = broker
        self.connection = connection
        self.number = number
        self.session = broker.new_id()
        """The channel's number in the log. Unlike `number` it is never reused."""
        self.counts = SessionCounts()
        self.outgoing = make_outgoing(broker, connection, number, self.counts)
        self.access = Access(broker.machine, connection.user, connection.vhost, connection.scopes)
        self.closed = False
        self.has_failed = False
        """Whether the log has refused a request of the channel. The log then skips all later requests of the
        channel."""
        self.confirming = False
        self.has_published = False
        """Whether there are publishes that may not be applied yet. Their returned messages, or their error, must
        precede the answers to later methods."""
        self.transaction: Transaction | None = None
        self.last_queue = ""
        """The queue that was declared last, used by methods without a queue name."""
        self.reply_name: bytes | None = None
        """The address for replies to the channel's requests, if it has a consumer of direct replies; else None."""
        self.methods = MethodQueue(number, connection, broker.submissions, self.access, carry_out)
        self._fail = fail

    # Requests and answers

    def request(
        self, command: Method, answer: Callable[[Any], Frame | bytes | None], *, nowait: bool = False
    ) -> None:
        """Carry out a command, and send the frame that `answer` makes of its result, unless `nowait` is set.

        The command is submitted, unless the state shows that it would change nothing.
        """

        def answered(result: Any) -> None:
            frame = answer(result)
            if frame is not None and not nowait:
                self.outgoing.send(frame if isinstance(frame, bytes) else encode(self.number, frame))

        if self.broker.submissions.can_read(self.connection.lane) and self._read(command) is not None:
            self.methods.wait_read(partial(self._answer_read, command, answered))
        else:
            self._submit(command, answered)

    def _read(self, command: Method) -> Result | None:
        """Return the answer of a command that would leave this node's state as it is, else `None`."""
        return self.broker.machine.reads.answer(self.broker.name, command)

    def _answer_read(self, command: Method, answered: Callable[[Any], None]) -> None:
        """Answer a command from the state, which is up to date. If the command would change it, submit the command."""
        result = self._read(command)
        if result is None:
            self._submit(command, answered)
        else:
            self.broker.machine.reads.count(self.broker.name, command)
            answered(result)

    def _submit(self, command: Method, answered: Callable[[Any], None]) -> None:
        self.methods.expect(answered)
        self.broker.submit_when_free(command, self.connection, self._is_over)

    def _is_over(self) -> bool:
        return self.closed

    def send(self, frame: Frame) -> None:
        self.outgoing.send(encode(self.number, frame))

    def queue_name(self, name: str) -> str:
        """Return the queue that a method means: by default the queue declared last.

        The log need not know it, because a declaration that changes nothing is not in the log.
        """
        return name or self.last_queue

    def check_queue(self, permission: Permission, name: str) -> None:
        """Check a permission for a queue. Raises AccessRefused."""
        name = self.queue_name(name)
        if name:  # otherwise the log refuses the request
            self.access.check(permission, "queue", name)

    # Ends

    def fail(self, error: AmqpError) -> None:
        """Close the channel with an error."""
        self._fail(error)

    def end(self) -> None:
        """End the channel. It carries out no more events."""
        self.closed = True
        self.transaction = None
        self._fail = _ignore
        self.methods.end()
        self.outgoing.close()


def _ignore(_error: AmqpError) -> None:
    """Ignore an error: stands in for the function `_fail` of a channel that has ended."""
