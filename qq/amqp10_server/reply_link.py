"""A link on which a client gets direct replies (https://www.rabbitmq.com/docs/direct-reply-to).

Invariant: a reply is delivered at most once, settled, and in the order of its responder. A reply without credit, and a
reply beyond the memory for clients that do not read, is lost.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from qq.amqp10.addresses import queue_address
from qq.amqp10.conditions import Condition
from qq.amqp10.performatives import SenderSettleMode
from qq.amqp10_server.delivering_link import DeliveringLink
from qq.amqp10_server.errors import ConditionFault, error_reply
from qq.amqp10_server.link_output import WindowedOutput
from qq.client_sockets.message_output import CONVERTED_MAX
from qq.machine.catalog.reply_names import REPLY_PREFIX
from qq.machine.protocol.commands import ReplyTo
from qq.machine.protocol.effects import Consuming
from qq.ranges import Range
from qq.sessions.direct_replies import LoggedReplies, divided
from qq.sessions.entries import Messages
from qq.sessions.session_info import SessionFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qq.amqp10.performatives import AttachFrame, SourceTerminus
    from qq.amqp10.sending_link import CreditSet, SendingLink
    from qq.amqp10.session import Session10
    from qq.amqp10_server.ports import LinkCarrier
    from qq.machine.protocol.effects import (
        ConsumerState,
        Deliver,
        DeliveriesReleased,
        DirectReply,
        Result,
    )
    from qq.sessions.ports import Replies

VOLATILE_QUEUE = "rabbitmq:volatile-queue"
"""The capability of a dynamic source that is no queue, but gets direct replies."""
LOGGED_MAX = 50_000
"""Runs of replies in the log that may wait for a client that does not read."""


@dataclass(slots=True, eq=False)
class _Logged:
    """Replies in the log."""

    ranges: deque[Range]


class _Unlogged(NamedTuple):
    """Replies that came without the log, and their octets of memory."""

    replies: Replies
    size: int


class ReplyOutput(WindowedOutput["_Logged | _Unlogged"]):
    """The replies on their way out of a link: those in the log, and others."""

    def __init__(self, carrier: LinkCarrier, engine: Session10, link: SendingLink) -> None:
        super().__init__(carrier, engine, link)
        self._broker = carrier.broker
        self._logged = 0
        """Runs of replies in the log that wait."""
        self._unlogged_bytes = 0
        """Octets of memory of the waiting replies that came without the log."""

    def logged(self, part: Range) -> None:
        """Send replies in the log. They are lost if too many wait."""
        if self._logged >= LOGGED_MAX:
            self._broker.counters.replies_dropped += part.count
            return
        self._logged += 1
        self._put(_Logged(deque((part,))))

    def unlogged(self, replies: Replies) -> None:
        """Send replies that came without the log. They are lost if too many wait."""
        direct = self._broker.direct_replies
        size = direct.size(replies)
        if self._waiting and not direct.has_room(self._unlogged_bytes, size):
            self._broker.counters.replies_dropped += len(replies.messages)
            return
        for step in divided(replies, CONVERTED_MAX):
            if self._closed:  # an earlier step was too large
                break
            step_size = direct.size(step)
            self._count_bytes(step_size)
            self._put(_Unlogged(step, step_size))

    def close(self) -> None:
        super().close()
        self._count_bytes(-self._unlogged_bytes)

    def _count_bytes(self, size: int) -> None:
        self._unlogged_bytes += size
        self._broker.direct_replies.waiting_bytes += size

    def _write(self, item: _Logged | _Unlogged) -> bool:
        if isinstance(item, _Logged):
            is_written = self._write_ranges(item.ranges, self._write_logged)
            self._logged -= is_written
            return is_written
        if self._is_window_closed:
            return False
        _, _, name, _, _, _, frames_channel, messages = item.replies
        self._write_replies(Messages("", name, frames_channel, messages))
        if self._closed:
            return False  # a message was too large
        self._count_bytes(-item.size)
        return True

    def _write_logged(self, part: Range, stored: Sequence[Messages]) -> None:
        if not stored:
            self._broker.counters.replies_dropped += part.count
        for messages in stored:
            self._write_replies(messages)

    def _write_replies(self, stored: Messages) -> None:
        """Write replies as far as the client has credit. The rest is lost."""
        counters, count = self._broker.counters, min(len(stored.messages), self._link.credit)
        counters.replies_dropped += len(stored.messages) - count
        counters.amqp10.replies_delivered += count
        if count and not self._closed:
            taken = stored._replace(messages=stored.messages[:count])
            for head, bodies in self._delivered(taken, Range(0, 0, count)):
                self._send(0, head, bodies)


def wants_replies(attach: AttachFrame) -> bool:
    """Return whether the client attaches a link for direct replies. Raises ConditionFault."""
    source = attach.source
    if not attach.role or source is None or not source.dynamic or VOLATILE_QUEUE not in source.capabilities:
        return False
    if attach.snd_settle_mode is not SenderSettleMode.SETTLED or source.expiry_policy != "link-detach":
        text = f"a source with '{VOLATILE_QUEUE}' needs snd-settle-mode settled and expiry-policy link-detach"
        raise ConditionFault(error_reply(Condition.NOT_IMPLEMENTED, text))
    return True


class ReplyLink(DeliveringLink):
    """A link for direct replies, which have no message ids."""

    __slots__ = ("_accept", "_logged_replies", "_name", "_output")

    def __init__(self, carrier: LinkCarrier, engine: Session10, link: SendingLink) -> None:
        super().__init__(carrier, engine, link)
        self._name = self.broker.server_name(REPLY_PREFIX)
        self._accept: Callable[[], None] | None = None
        self._logged_replies = LoggedReplies()
        self._output = ReplyOutput(carrier, engine, link)

    @property
    def output(self) -> ReplyOutput:
        return self._output

    @property
    def consumers(self) -> ReplyLink:
        return self

    # Attaching

    def attach(self, accept: Callable[[], None]) -> None:
        """Begin to consume replies, which needs no permission, and call `accept`."""
        self._accept = accept
        self.open(self._consume)

    def check_rights(self) -> None:
        """Direct replies need no permission."""

    def _consume(self) -> None:
        command = ReplyTo(self.session, self.id, self._name)
        self.broker.submit_when_free(command, self.connection, lambda: self.is_over)

    def source(self, asked: SourceTerminus) -> SourceTerminus:
        """Return the source with the address for replies."""
        return asked._replace(
            address=queue_address(self._name),
            capabilities=(VOLATILE_QUEUE,),
            distribution_mode="move",
            filter=None,
        )

    def replied(self, result: Result) -> None:
        self.answered += 1
        if isinstance(result, Consuming) and self._accept is not None and not self.is_over:
            self.started = True
            accept, self._accept = self._accept, None
            accept()

    # From the client

    def credit_set(self, event: CreditSet) -> None:
        """Take the credit of the client, and end it at once if the client drains it."""
        if event.is_drain:
            self._link.drained(0)
        elif event.wants_state:
            self._link.send_state(0)
        self.connection.schedule_flush()

    # Events from the log

    def direct_reply(self, effect: DirectReply) -> None:
        self._logged_replies.record(effect.publisher_node, effect.publisher, effect.index)
        self._output.logged(Range(effect.index, effect.first_slot, effect.count))

    def replies(self, node: str, replies: Replies) -> None:
        if replies.name != self._name or self._logged_replies.have_overtaken(node, replies):
            self.broker.counters.replies_dropped += len(replies.messages)
        else:
            self._output.unlogged(replies)

    def deliver(self, effect: Deliver) -> None:
        """Ignored: the link consumes from no queue."""

    def state(self, effect: ConsumerState) -> None:
        """Ignored: the client's credit is not in the log."""

    def cancelled(self, consumer_id: int) -> None:
        """Ignored: the link consumes from no queue."""

    def released(self, effect: DeliveriesReleased) -> None:
        """Ignored: the client holds no deliveries."""

    # For operators

    @property
    def address(self) -> str:
        return queue_address(self._name)

    def facts(self) -> SessionFacts:
        credit = self._link.credit
        return SessionFacts(
            self.link_number,
            consumers=1,
            prefetch=credit,
            counts=self.counts,
            link=self._link_facts(credit),
        )
