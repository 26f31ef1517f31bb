"""A link on which a client publishes: routes, limits, and outcomes.

Deliveries have outcomes in their order: accepted if all queues of the message have it, released if the message reached
no queue, rejected if a queue or the node refused it.

Invariant: each delivery that the link has taken gets a publish sequence number, or waits in `_refused` for its turn
behind one. Deliveries behind an error of the link are released, so the client knows that they were not published.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from qq.amqp10.addresses import TargetAddress, target_address
from qq.amqp10.conditions import Condition, ConditionError
from qq.amqp10.performatives import AcceptedState, Coordinator, ErrorReply, RejectedState, ReleasedState
from qq.amqp10.values import Symbol
from qq.amqp10_server.errors import LinkRefusal, error_reply, refusal_of, reply_to, unauthorized
from qq.amqp10_server.link_session import LinkSession
from qq.errors import ReplyCode
from qq.machine.catalog.reply_names import is_reply_name
from qq.machine.protocol.refusals import the_exchange
from qq.sessions.access import AccessRefused
from qq.sessions.pending_requests import OpenEnqueue
from qq.sessions.session_info import SessionFacts
from qq.stored.publishing10 import PublishedSections, properties_of
from qq.tables import NAME_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from qq.amqp10.performatives import DeliveryState
    from qq.amqp10.receiving_link import Deliveries, ReceivingLink
    from qq.amqp10.session import Session10
    from qq.amqp10.values import Value
    from qq.amqp10_server.ports import LinkCarrier
    from qq.machine.protocol import effects
    from qq.machine.protocol.effects import Failed, Result
    from qq.stored.properties import Attributes

ADDRESSES_MAX = 1000
"""Parsed addresses that the node remembers."""
_QUEUE, _REASON, _MAXLEN = Symbol("queue"), Symbol("reason"), Symbol("maxlen")
_DELIVERY_TAG = Symbol("delivery-tag")
_ACCEPTED, _RELEASED = AcceptedState(), ReleasedState()


class _Batch(NamedTuple):
    """Deliveries of the client that are not published yet."""

    messages: list[bytes]
    is_settled: bool
    """Whether the client has settled them."""
    tags: list[bytes]
    """Their delivery tags, if the client must learn the tag of an invalid delivery. Empty otherwise."""

    def part(self, begin: int, end: int | None = None) -> _Batch:
        """Return some of the deliveries."""
        return _Batch(self.messages[begin:end], self.is_settled, self.tags[begin:end])


class _Refused(NamedTuple):
    """A delivery that is not published, and its outcome."""

    behind: int
    """The publish sequence number behind which it stands."""
    outcome: DeliveryState


class PublishingLink(LinkSession):
    """A link from a client. It is the `Publisher` of its session."""

    __slots__ = (
        "_confirmed",
        "_failure",
        "_finish",
        "_held",
        "_is_checking",
        "_is_counted",
        "_link",
        "_queue",
        "_refused",
        "_run",
        "_sections",
        "_target",
        "published",
    )

    number = 0
    """The channel number in the stored messages: sections have no frames."""

    def __init__(
        self, carrier: LinkCarrier, engine: Session10, link: ReceivingLink, target: TargetAddress | None
    ) -> None:
        """Create the link for a target; None if each message has an address of its own."""
        super().__init__(carrier, engine, link)
        self._link: ReceivingLink = link
        self._target = target
        self._queue = None if target is None else target.queue
        """The queue of the target, with which the link ends."""
        self.published = 0
        """The publish sequence number of the last message."""
        self._confirmed = 0
        self._held: deque[_Batch] = deque()
        """Deliveries that wait for a limit of publishing, or for a check of a right."""
        self._is_counted = False
        """Whether the link counts as a publisher of the node."""
        self._is_checking = False
        """Whether the first of these waits for a check."""
        self._refused: deque[_Refused] = deque()
        self._failure: LinkRefusal | None = None
        """The error with which the link ends when all that was published has its outcome."""
        self._finish: Callable[[], None] | None = None
        """Called when the deliveries that are held have been published."""
        self._run: OpenEnqueue | None = None
        may_impersonate = self.broker.may_impersonate(carrier)
        self._sections = PublishedSections(None if may_impersonate else carrier.user)

    @property
    def publisher(self) -> PublishingLink:
        return self

    @property
    def consumers(self) -> None:
        return None

    # Attaching

    def attach(self, accept: Callable[[], None]) -> None:
        """Open the link, and call `accept`, or refuse it."""

        def decided(refusal: LinkRefusal | None) -> None:
            if refusal is not None:
                self.refuse_link(refusal)
                return
            self._is_counted = True
            self.broker.counters.amqp10.publishers += 1
            if self._queue is not None:
                self.broker.queue_removals.add(self.connection.vhost, self._queue, self)
            self.open(accept)

        self.decide(self._check_target, decided)

    def check_rights(self) -> None:
        if self._target is not None:
            self.access.publish(self._target.exchange.encode(), self._target.exchange)

    def _check_target(self) -> LinkRefusal | None:
        target = self._target
        return None if target is None else self._check(target)

    def _check(self, target: TargetAddress) -> LinkRefusal | None:
        """Return why the client may not publish to the target. Raises AccessRefused."""
        if target.queue is not None and not is_reply_name(target.queue):
            missing = self.check_queue(target.queue)
            if missing is not None:
                return missing
        self.access.publish(target.exchange.encode(), target.exchange)
        return self._check_exchange(target.exchange)

    def _check_exchange(self, name: str) -> LinkRefusal | None:
        """Return why no message may be published to the exchange."""
        if not name:
            return None
        vhost = self.vhost
        exchange = None if vhost is None else vhost.exchanges.get(name)
        where = the_exchange(name, self.connection.vhost)
        if exchange is None:
            return refusal_of(ReplyCode.NOT_FOUND, f"no {where}")
        if exchange.internal:
            return unauthorized(f"forbidden to publish to internal {where}")
        return None

    # From the client

    def publish(self, event: Deliveries) -> None:
        """Publish deliveries, as far as limits of publishing let them pass. The rest waits."""
        needs_tags = event.is_settled and (self._target is None or self._target.by_subject)
        batch = _Batch(event.messages, event.is_settled, event.tags if needs_tags else [])
        if self._held:
            self._held.append(batch)
        elif self._is_ending:
            self._settle_refused()
        else:
            self._pass(batch)

    def resume(self) -> None:
        """Publish the deliveries that have waited, as far as they may pass now."""
        self._is_checking = False
        held, self._held = self._held, deque()
        while held and not self._held and not self._is_ending:
            self._pass(held.popleft())
        self._held.extend(held if not self._is_ending else ())
        self._count_held()
        if self._finish is not None and not self._held:
            finish, self._finish = self._finish, None
            finish()

    @property
    def _is_ending(self) -> bool:
        return self.is_over or self.has_failed or self._failure is not None

    def _pass(self, batch: _Batch) -> None:
        """Publish the first messages, as far as they may pass, and hold the rest."""
        throttle, messages = self.broker.throttle, batch.messages
        passing = throttle.count_passing(self, messages)
        first = batch if passing == len(messages) else batch.part(0, passing)
        done = self._publish_all(first) if passing else 0
        throttle.charge(self, messages, done)
        if self._is_ending:
            self._settle_refused()
        elif done < len(messages):
            self._held.append(batch.part(done))
            self._count_held()
            if not self._is_checking:
                throttle.wait(self)

    def _count_held(self) -> None:
        self.connection.hold_input(self.session, holds=bool(self._held))

    def _publish_all(self, batch: _Batch) -> int:
        """Publish messages. Return how many, fewer if a check of a right or an error of the link comes before them."""
        target = self._target
        if target is not None and not target.by_subject:
            return self._publish_to(target, batch)
        done = 0
        for found, alike in groupby(batch.messages, key=_address if target is None else _subject):
            same = batch.part(done, done + len(list(alike)))
            if isinstance(found, ConditionError):
                published = self._reject(reply_to(found), same)
            elif target is None:
                published = self._publish_to_address(found, same)
            else:
                published = self._publish_to(target._replace(routing_key=found or ""), same)
            done += published
            if published < len(same.messages):
                break
        return done

    def _publish_to_address(self, address: str | None, batch: _Batch) -> int:
        """Publish messages that have this address of their own."""
        if address is None:
            text = "anonymous terminus requires 'to' address to be set"
            return self._reject(error_reply(Condition.PRECONDITION_FAILED, text), batch)
        try:
            target = publishing_target(address)
        except ConditionError:
            text = f"bad 'to' address string: {address}"
            return self._reject(error_reply(Condition.PRECONDITION_FAILED, text), batch)
        return self._publish_to(target, batch)

    def _publish_to(self, target: TargetAddress, batch: _Batch) -> int:
        """Publish messages to a target."""
        try:
            restricts_keys = self.access.known_publish(target.exchange.encode())
            if restricts_keys is None:
                restricts_keys = self.access.publish(target.exchange.encode(), target.exchange)
            refusal = self._check_exchange(target.exchange)
        except AccessRefused as refused:
            restricts_keys, refusal = False, unauthorized(str(refused))
        if refusal is not None:
            return self._refuse_messages(refusal, batch)
        done = 0
        try:
            for attributes, stored in self._sections.group(batch.messages):
                if restricts_keys:
                    keys = (target.routing_key, *(attributes.more_keys if attributes else ()))
                    self.access.publish_keys(target.exchange, keys)
                self._enqueue(target, attributes, stored)
                done += len(stored)
        except AccessRefused as refused:
            return done + self._refuse_messages(unauthorized(str(refused)), batch.part(done))
        except ConditionError as error:
            self._fail(LinkRefusal(reply_to(error)))
        return done

    def _refuse_messages(self, refusal: LinkRefusal, batch: _Batch) -> int:
        """Refuse messages for certain, or hold them until it is certain. Return how many were refused."""
        if not self.access.certain:
            self._is_checking = True
            self.broker.submissions.read(self.connection.guarded(self._check_again), self.connection.lane)
            return 0
        if self._target is None and not refusal.ends_session:
            return self._reject(refusal.error, batch)
        self._fail(refusal)
        return 0

    def _check_again(self) -> None:
        if not self.is_over:
            self.access.certain = True
            self.resume()
            self.access.certain = False

    def _reject(self, error: ErrorReply, batch: _Batch) -> int:
        """Reject messages, and return how many. A client that has settled them learns it by the end of the link."""
        if batch.is_settled:
            self._fail(LinkRefusal(error._replace(info={_DELIVERY_TAG: batch.tags[0]})))
            return 0
        self._refused += [_Refused(self.published, RejectedState(error))] * len(batch.messages)
        self._settle_refused()
        return len(batch.messages)

    def _enqueue(self, target: TargetAddress, attributes: Attributes | None, stored: list[bytes]) -> None:
        run, broker = self._run, self.broker
        exchange, routing_key = target.exchange, target.routing_key
        is_new = (
            run is None
            or (run.exchange, run.routing_key) != (exchange, routing_key)
            or not run.messages  # a batch has taken all of them
            or run.is_long
            or (attributes is not run.attributes and not run.accepts(attributes))
        )
        if run is None or is_new:
            run = self._run = OpenEnqueue(self, self.published + 1, exchange, routing_key, True, attributes)
        count, counters = len(stored), broker.counters.amqp10
        self.published += count
        counters.messages_received += count
        counters.messages_received_confirm += count
        counters.message_sizes.add_all(list(map(len, stored)))
        self.counts.published += count
        broker.submissions.publish(run, stored, is_new=is_new)

    # Events from the log

    def replied(self, result: Result) -> None:
        """Ignored: a link that publishes makes no command with an answer."""

    def confirm(self, published: int) -> None:
        """Accept all deliveries up to this publish sequence number."""
        if published <= self._confirmed or self.is_over:
            return
        counters, newly = self.broker.counters, published - self._confirmed
        counters.amqp10.messages_confirmed += newly
        counters.confirmed_in[self.connection.vhost] += newly
        self.counts.confirmed += newly
        self._settle(published, _ACCEPTED)

    def refuse(self, first: int, last: int, queue: str) -> None:
        """Reject these publish sequence numbers, for which a queue has no room, and accept all earlier numbers."""
        text = f"queue '{queue}' exceeded maximum length"
        info: dict[Value, Value] = {_QUEUE: queue, _REASON: _MAXLEN}
        error = ErrorReply(Condition.RESOURCE_LIMIT_EXCEEDED.value, text, info)
        self._end_otherwise(first, last, RejectedState(error))

    def unroutable(self, effect: effects.Returned) -> None:
        """Release messages that reached no queue."""
        self.broker.counters.amqp10.messages_unroutable_returned += effect.count
        self.counts.returned += effect.count
        self._end_otherwise(effect.first_seq, effect.first_seq + effect.count - 1, _RELEASED)
        if self._queue is not None and self.check_queue(self._queue) is not None:
            self.queue_removed()

    def queue_removed(self) -> None:
        """End the link behind the outcomes of its messages, because the queue of its target was deleted."""
        if self._queue is not None and not self._is_ending:
            self._fail(LinkRefusal(self.deletion_of(self._queue)))

    def refuse_unconfirmed(self, published: int) -> None:
        """Reject all deliveries up to this publish sequence number, because their outcome is unknown."""
        error = error_reply(Condition.INTERNAL_ERROR, "the outcome is unknown: publish the message again")
        if not self.is_over and published > self._confirmed:
            self._settle(published, RejectedState(error))

    def failed(self, failure: Failed) -> None:
        """Release all unsettled deliveries, and end the link, because the log has refused a message."""
        self.has_failed = True
        self._failure = self._failure or refusal_of(failure.code, failure.text)
        self._confirmed = self.published
        self._settle_refused()

    def _end_otherwise(self, first: int, last: int, outcome: DeliveryState) -> None:
        if self.is_over or last <= self._confirmed:
            return
        if first > self._confirmed + 1:
            self.confirm(first - 1)
        self._settle(last, outcome)

    def _settle(self, published: int, outcome: DeliveryState) -> None:
        """Settle the deliveries up to this publish sequence number, and those that were refused between them."""
        refused = self._refused
        while refused and refused[0].behind < published:
            self._settle_next(refused[0].behind, outcome)
            self._link.settle(1, refused.popleft().outcome)
        self._settle_next(published, outcome)
        self._settle_refused()

    def _settle_next(self, published: int, outcome: DeliveryState) -> None:
        if published > self._confirmed:
            self._link.settle(published - self._confirmed, outcome)
            self._confirmed = published
        self.connection.schedule_flush()

    def _settle_refused(self) -> None:
        """Settle the refused deliveries that stand behind settled ones, and end the link if an error is next."""
        refused = self._refused
        while refused and refused[0].behind <= self._confirmed:
            self._link.settle(1, refused.popleft().outcome)
        self.connection.schedule_flush()
        if self._failure is not None and self._confirmed == self.published and not self.is_over:
            self._link.settle(self._link.unsettled_count, _RELEASED)
            self.refuse_link(self._failure)

    def _fail(self, refusal: LinkRefusal) -> None:
        """End the link when all that was published has its outcome."""
        if self._failure is None:
            self._failure = refusal
            self._held.clear()
        self._settle_refused()

    # For operators

    @property
    def is_holding(self) -> bool:
        """Whether deliveries of the client are not published yet."""
        return bool(self._held)

    @property
    def is_busy(self) -> bool:
        """Whether deliveries of the client have no outcome yet."""
        return bool(self._held) or self._confirmed < self.published

    @property
    def unconfirmed(self) -> int:
        return self.published - self._confirmed

    @property
    def address(self) -> str:
        target = self._link.attach.target
        return "" if isinstance(target, Coordinator) or target is None else target.address or ""

    def facts(self) -> SessionFacts:
        return SessionFacts(
            self.link_number,
            confirming=True,
            unconfirmed=self.unconfirmed,
            counts=self.counts,
            link=self._link_facts(self._link.credit),
        )

    # Ends

    def finish(self, then: Callable[[], None]) -> None:
        """Call `then` when all deliveries of the client have their outcome, because the client detaches the link."""
        if self._held:
            self._finish = lambda: self.finish(then)
        elif self._confirmed < self.published:
            self.broker.submissions.read_barrier(self.connection.guarded(then), self.connection.lane)
        else:
            then()

    def end(self) -> None:
        if not self.is_over:
            self.broker.throttle.remove(self)
            if self._queue is not None:
                self.broker.queue_removals.discard(self.connection.vhost, self._queue, self)
            self.broker.counters.amqp10.publishers -= self._is_counted
            self._held.clear()
            self._count_held()
            self._run = None
        super().end()


def _address(message: bytes) -> str | ConditionError | None:
    """Return the address in the properties of a message, or the error in them."""
    try:
        return properties_of(message).to
    except ConditionError as error:
        return error


def _subject(message: bytes) -> str | ConditionError | None:
    """Return the subject in the properties of a message, or the error in them."""
    try:
        subject = properties_of(message).subject
        check_name(subject or "")
    except ConditionError as error:
        return error
    return subject


@lru_cache(ADDRESSES_MAX)
def publishing_target(address: str) -> TargetAddress:
    """Parse the address of a target or a message. Raises ConditionError."""
    target = target_address(address)
    check_names(target)
    return target


def check_names(target: TargetAddress) -> None:
    """Raise LongName for a target that the log cannot hold."""
    for name in (target.exchange, target.routing_key):
        check_name(name)


def check_name(name: str) -> None:
    """Raise LongName for a name that the log cannot hold."""
    if len(name.encode()) > NAME_BYTES_MAX:
        raise LongName(f"name longer than {NAME_BYTES_MAX} octets: '{name[:32]}...'")


class LongName(ConditionError):
    """A name that is longer than the log can hold."""

    condition = Condition.INVALID_FIELD
