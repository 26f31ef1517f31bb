"""A link on which a client consumes: credit, deliveries, outcomes.

Messages wait in the log, and not here: the link holds ranges, and reads their messages while the socket and the window
of the client's session take them.

Invariant: deliveries and the states of the link leave in the order of the log. The log delivers no more than the client
has credit for, and no more than UNSETTLED_MAX beyond the deliveries that the client has settled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qq.amqp10.addresses import queue_address
from qq.amqp10.performatives import (
    AcceptedState,
    ModifiedState,
    RejectedState,
)
from qq.amqp10.values import encode
from qq.amqp10_server.delivering_link import DeliveringLink
from qq.amqp10_server.errors import refusal_of
from qq.amqp10_server.link_output import LinkOutput, StateReport
from qq.machine.protocol import commands, effects
from qq.sessions.session_info import SessionFacts
from qq.sessions.submissions import Urgency

if TYPE_CHECKING:
    from collections.abc import Callable

    from qq.amqp10.sending_link import CreditSet, SendingLink, Settled
    from qq.amqp10.session import Session10
    from qq.amqp10_server.errors import LinkRefusal
    from qq.amqp10_server.ports import LinkCarrier
    from qq.machine.protocol.commands import Table
    from qq.machine.protocol.effects import Deliver, DirectReply, Result
    from qq.sessions.ports import Replies

UNSETTLED_MAX = 16_384
"""Deliveries of a link that the client may hold without an outcome.

More credit has no effect before the client settles some of them."""
UNWRITTEN_MAX = 2_048
"""Deliveries of a link of settled deliveries that may be on their way to the socket."""
TAG_BYTES_MAX = 255
"""Octets of the link's name that the log keeps as the tag of the consumer, as in AMQP 0-9-1."""
ALL_IDS = 2**62
"""A message id beyond all that a consumer gets."""


class ConsumingLink(DeliveringLink):
    """A link to a client that consumes from a queue."""

    __slots__ = (
        "_active",
        "_attached",
        "_drain",
        "_echo",
        "_limit",
        "_output",
        "_queue",
        "_sent_limit",
        "_settled",
    )

    def __init__(self, carrier: LinkCarrier, engine: Session10, link: SendingLink, queue: str) -> None:
        super().__init__(carrier, engine, link)
        self._queue = queue
        self._attached: Callable[[], None] | None = None
        self._settled = 0
        """Messages that the client has settled."""
        self._limit = 0
        """The message id below which the client has credit."""
        self._sent_limit = 0
        """The message id below which the log may give messages to the link, as the log was last told."""
        self._drain = 0
        """The number of the `SetCredit` that drains the credit; 0 if none does."""
        self._echo = 0
        """The number of the `SetCredit` whose state the client has asked for; 0 if none."""
        self._active: bool | None = None
        """Whether the client was told that it is the active consumer; None if it was told nothing."""
        self._output = LinkOutput(carrier, engine, link, self._count_written)

    @property
    def output(self) -> LinkOutput:
        return self._output

    @property
    def consumers(self) -> ConsumingLink:
        return self

    # Attaching

    def attach(self, arguments: Table, accept: Callable[[], None]) -> None:
        """Begin to consume, and call `accept`, or refuse the link."""

        def decided(refusal: LinkRefusal | None) -> None:
            if refusal is not None:
                self.refuse_link(refusal)
                return
            self._attached = accept
            self.open(lambda: self._consume(arguments))

        self.decide(self._check, decided)

    def _check(self) -> LinkRefusal | None:
        self.check_rights()
        return self.check_queue(self._queue)

    def check_rights(self) -> None:
        self.access.check("read", "queue", self._queue)

    def _consume(self, arguments: Table) -> None:
        broker, connection = self.broker, self.connection
        command = commands.AttachConsumer(
            self.session,
            connection.id,
            self.link_number,
            self.id,
            self._queue,
            self._link.name.encode()[:TAG_BYTES_MAX].decode(errors="ignore"),
            self._is_settled,
            True,
            broker.limits.consumer_timeout_ms,
            arguments,
        )
        broker.submit_when_free(command, connection, lambda: self.is_over)

    @property
    def _is_settled(self) -> bool:
        """Whether deliveries are settled when they are sent."""
        return self._link.outgoing.is_settled

    def replied(self, result: Result) -> None:
        self.answered += 1
        if self.is_over:
            return
        match result:
            case effects.Attached(_, is_active):
                self.started = True
                self._active = is_active
                if self._attached is not None:
                    attached, self._attached = self._attached, None
                    attached()
            case effects.AttachRefused(_, code, text):
                self.refuse_link(refusal_of(code, text))
            case _:
                pass

    # Credit

    def credit_set(self, event: CreditSet) -> None:
        """Take the credit that the client has set."""
        # The link may have sent deliveries since the flow.
        self._limit = self._output.written_id + self._link.credit
        is_change = bool(self._drain) or self._next_limit() != self._sent_limit
        if event.is_drain or event.wants_state or is_change:
            self._send_credit(is_drain=event.is_drain, wants_state=event.wants_state)

    def _next_limit(self) -> int:
        """Return the message id below which the log may give messages to the link."""
        if self._is_settled:
            return min(self._limit, self._output.written_id + UNWRITTEN_MAX)
        return min(self._limit, self._settled + UNSETTLED_MAX)

    def _send_credit(self, *, is_drain: bool = False, wants_state: bool = False) -> None:
        self._output.credit_number += 1
        number, limit = self._output.credit_number, self._next_limit()
        self._sent_limit = limit
        self._drain = number if is_drain else 0
        if wants_state:
            self._echo = number
        command = commands.SetCredit(self.id, number, limit, is_drain, wants_state)
        self.broker.submissions.add(command, self.connection.lane)

    def _extend_limit(self) -> None:
        """Let the log give more messages, if the client has more credit than the log was told of."""
        if self._sent_limit < self._limit and not self._drain:
            window = UNWRITTEN_MAX if self._is_settled else UNSETTLED_MAX
            limit = self._next_limit()
            if limit - self._sent_limit >= min(window // 2, self._limit - self._sent_limit):
                self._send_credit()

    # Outcomes

    def settle(self, event: Settled) -> None:
        """Carry out the outcome of deliveries."""
        first, count, state = event.first_key, event.count, event.state
        last = first + count - 1
        submissions, lane = self.broker.submissions, self.connection.lane
        self._settled += count
        match state:
            case AcceptedState():
                self.broker.counters.amqp10.messages_acknowledged += count
                self.counts.acknowledged += count
                # It gives no credit, so no delivery waits for it.
                submissions.settle(commands.Settle, self.id, first, last, lane, Urgency.WITH_NEXT_REQUEST)
            case RejectedState():
                submissions.settle(commands.Discard, self.id, first, last, lane)
            case ModifiedState(failed, undeliverable, annotations) if failed or undeliverable or annotations:
                keys = [str(key) for key in annotations or {}]
                values = [encode(value) for value in (annotations or {}).values()]
                command = commands.Modify(self.id, first, last, failed, undeliverable, keys, values, 0)
                submissions.add(command, lane)
            case _:
                submissions.settle(commands.Return, self.id, first, last, lane)
        self._extend_limit()

    # Events from the log

    def deliver(self, effect: Deliver) -> None:
        self.next_id = effect.first_id + sum(part.count for part in effect.ranges)
        self._output.deliver(effect)

    def state(self, effect: effects.ConsumerState) -> None:
        """Tell the client the end of a drain, the state that it has asked for, and whether it is active."""
        is_drained = bool(self._drain) and effect.number >= self._drain and not effect.is_draining
        is_echo = bool(self._echo) and effect.number >= self._echo
        is_changed = self._active is not None and effect.is_active != self._active
        self._active = effect.is_active
        if is_drained:
            self._drain = 0
            self._limit = self._sent_limit = effect.next_id
        if is_echo:
            self._echo = 0
        if is_drained or is_echo or is_changed:
            number = self._output.credit_number
            self._output.report(StateReport(number, effect.available, is_drained, is_echo, self._active))

    def cancelled(self, consumer_id: int) -> None:  # noqa: ARG002
        """End the link, because its queue was deleted."""
        self.connection.detach(self._link, self.deletion_of(self._queue))

    def released(self, effect: effects.DeliveriesReleased) -> None:
        """Tell the client that deliveries are back in the queue, because it has not settled them in time."""
        self._link.release(effect.first, effect.last)
        self.connection.schedule_flush()

    def direct_reply(self, effect: DirectReply) -> None:
        """Ignored: the link consumes from a queue."""

    def replies(self, node: str, replies: Replies) -> None:
        """Ignored: the link consumes from a queue."""

    # Writing

    def _count_written(self, first_id: int, count: int, is_redelivered: bool) -> None:
        counters = self.broker.counters.amqp10
        if is_redelivered:
            counters.messages_redelivered += count
            self.counts.redelivered += count
        if self._is_settled:
            counters.messages_delivered_auto_ack += count
            self.counts.delivered_no_ack += count
            submissions, lane = self.broker.submissions, self.connection.lane
            last_id = first_id + count - 1
            submissions.settle(commands.Settle, self.id, first_id, last_id, lane, Urgency.WITH_NEXT_REQUEST)
            self._extend_limit()
        else:
            counters.messages_delivered_manual_ack += count
            self.counts.delivered += count

    # For operators

    @property
    def address(self) -> str:
        return queue_address(self._queue)

    def facts(self) -> SessionFacts:
        return SessionFacts(
            self.link_number,
            consumers=1,
            unacknowledged=self._link.unsettled_count,
            prefetch=self._link.credit,
            counts=self.counts,
            link=self._link_facts(self._link.credit),
        )

    # Ends

    def end(self) -> None:
        if self.started and not self.is_over:
            # Returned messages could come again to a link with credit, and its end would then count as their failure.
            no_credit = commands.SetCredit(self.id, self._output.credit_number + 1, 0, False, False)
            for command in (no_credit, commands.Return(self.id, 0, ALL_IDS)):
                self.broker.submissions.add(command, self.connection.lane)
        super().end()
