"""Handlers of consumers, gets and settlements.

Invariant: a settlement of messages that no consumer holds is ignored, because it crossed with their return.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qq.machine.catalog.limits import (
    MAX_CONSUMERS,
    MAX_CONSUMERS_PER_CHANNEL,
    MAX_CONSUMERS_PER_QUEUE,
    check_table_size,
    limit_of,
)
from qq.machine.catalog.reply_names import Requester, is_reply_name
from qq.machine.handlers.cost_estimate import COMMAND_STEPS, range_steps
from qq.machine.handlers.registry import answers, handles
from qq.machine.policy.arguments import check_consumer_arguments
from qq.machine.policy.settings import consumer_settings_of
from qq.machine.protocol import commands as c
from qq.machine.protocol.death_history import ANNOTATIONS_MAX, annotations_size
from qq.machine.protocol.effects import (
    Attached,
    AttachRefused,
    ConsumerCancelled,
    Consuming,
    GetEmpty,
    GetOk,
    Got,
    Limited,
    Recovered,
)
from qq.machine.protocol.queue_types import CLASSIC, QUORUM
from qq.machine.protocol.refusals import (
    Refused,
    access_refused,
    internal_error,
    no_access,
    not_allowed,
    not_implemented,
    precondition_failed,
    the_queue,
)
from qq.machine.protocol.work_meter import GOT_AT_ONCE, RANGES_AT_ONCE
from qq.machine.queue.consumers import CREDIT_MAX, ClientCredit
from qq.machine.queue.leaving import (
    ANNOTATED_RANGE,
    DISCARDED,
    ENDED,
    FAILED,
    RETURNED,
    SETTLED,
    Modification,
)
from qq.machine.queue.queue import Consumer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qq.machine.handlers.core import Core
    from qq.machine.handlers.cost_estimate import Costs
    from qq.machine.protocol.effects import CountContract
    from qq.machine.queue.queue import Queue
    from qq.ranges import Range


_FATES: dict[type[c.Settlement], int] = {
    c.Settle: SETTLED,
    c.Discard: DISCARDED,
    c.Return: RETURNED,
    c.Reject: FAILED,
}


CREDIT_STEPS = 8
_CHECKOUT_STEPS = 25
_GET_STEPS = 25
_GOT_STEPS = 3
"""Steps for each message that is got, if each message is a range of its own."""


_ANNOTATED_STEPS = 12
"""Steps for each range that gets annotations."""
_ANNOTATION_OCTETS = 128
"""Octets of annotations per step, for each such range: its new annotations, and those that it may have already."""


def _settlement_steps(costs: Costs, origin: str, command: c.Settlement | c.Modify) -> int:
    return COMMAND_STEPS + range_steps(_pieces(costs, origin, command))


def _pieces(costs: Costs, origin: str, command: c.Settlement | c.Modify) -> int:
    """Return how many pieces of a delivery a settlement touches at most; a single one counts as none."""
    consumer = costs.core.consumers.get((origin, command.consumer))
    if consumer is None or command.first == command.last:
        return 0
    return min(consumer.unacked.count_pieces, command.last - command.first)


def _modification_steps(costs: Costs, origin: str, command: c.Modify) -> int:
    steps = _settlement_steps(costs, origin, command)
    if not command.annotation_keys:
        return steps
    consumer = costs.core.consumers.get((origin, command.consumer))
    octets = sum(map(len, command.annotation_values))
    if consumer is not None and consumer.queue.histories:
        octets += ANNOTATIONS_MAX
    ranges = min(max(_pieces(costs, origin, command), 1), RANGES_AT_ONCE // ANNOTATED_RANGE)
    return steps + ranges * (_ANNOTATED_STEPS + octets // _ANNOTATION_OCTETS)


def _recover_steps(costs: Costs, origin: str, command: c.Recover) -> int:
    return costs.session_steps(origin, command.session)


def _get_messages_steps(_costs: Costs, _origin: str, command: c.GetMessages) -> int:
    return _GET_STEPS + _GOT_STEPS * min(command.count, GOT_AT_ONCE)


class ConsumerHandlers:
    """Carries out the commands that deliver messages and settle deliveries."""

    def __init__(self, core: Core) -> None:
        self._core = core

    # Messages

    @handles(c.Settle, c.Return, c.Reject, c.Discard, cost=_settlement_steps)
    def settle(self, command: c.Settlement) -> None:
        """Acknowledge, return or reject messages that a consumer holds."""
        core = self._core
        consumer = core.consumers.get((core.origin, command.consumer))
        if consumer is None:
            return
        _, first, last = command
        if consumer.queue.settle(consumer, first, last, core.time_ms, _FATES[type(command)]):
            core.released(consumer)

    @handles(c.Modify, cost=_modification_steps)
    def modify(self, command: c.Modify) -> None:
        """Return or reject messages that a consumer holds, with annotations.

        Annotations that are too large for a message have no effect.
        """
        core = self._core
        consumer = core.consumers.get((core.origin, command.consumer))
        if consumer is None:
            return
        fate = DISCARDED if command.undeliverable_here else ENDED if command.delivery_failed else RETURNED
        annotations = dict(zip(command.annotation_keys, command.annotation_values, strict=False))
        if annotations_size(annotations) > ANNOTATIONS_MAX:
            annotations.clear()  # no message could have them, and they must not be put off
        modification = Modification(tuple(annotations.items()), command.ready_ms)
        first, last = command.first, command.last
        if consumer.queue.settle(consumer, first, last, core.time_ms, fate, modification):
            core.released(consumer)

    @answers(c.Recover, cost=_recover_steps)
    def recover(self, command: c.Recover) -> Recovered:
        session = self._core.session(self._core.origin, command.session)
        self._core.give_back(list(session.consumers.values()))
        return Recovered()

    @answers(c.Get, cost=_GET_STEPS)
    def get(self, command: c.Get) -> GetOk | GetEmpty:
        queue = self._queue_to_get_from(command)
        if not self._bring_back(queue, 1):
            queue.count_empty_gets(1)
            return GetEmpty()
        taker = self._taker(command, queue)
        [message] = queue.get(taker, 1, self._core.available_ms)
        history = queue.histories.get(message.history)
        self._got(queue, taker, (message,))
        return GetOk(taker.id, message, queue.ready, history, self._count_contract(queue))

    @answers(c.GetMessages, cost=_get_messages_steps)
    def get_messages(self, command: c.GetMessages) -> Got:
        queue = self._queue_to_get_from(command)
        wanted = min(max(command.count, 1), GOT_AT_ONCE)
        count = min(self._bring_back(queue, wanted), wanted)
        queue.count_empty_gets(wanted - count)
        if not count:
            return Got(command.consumer, [], 0, {}, self._count_contract(queue))
        taker = self._taker(command, queue)
        ranges = queue.get(taker, count, self._core.available_ms)
        histories = queue.histories_of(ranges)
        self._got(queue, taker, ranges)
        return Got(taker.id, ranges, queue.ready, histories, self._count_contract(queue))

    def _count_contract(self, queue: Queue) -> CountContract | None:
        """Return which headers count the deliveries of got messages. Before version 9, a dump cannot hold None here."""
        return queue.count_contract if self._core.version >= 9 else queue.settings.count_contract

    def _queue_to_get_from(self, command: c.Get | c.GetMessages) -> Queue:
        core = self._core
        requester = core.requester(command.session, command.queue)
        if requester is not None:
            thing = the_queue(requester.name, core.vhost(command.session).name)
            raise not_implemented(f"basic.get not supported by volatile {thing}")
        queue = core.queue(command.session, command.connection, command.queue)
        core.check_fresh(command.consumer)
        if queue.settings.single_active_consumer and (queue.kind == QUORUM or core.version < 9):
            raise no_access(
                f"cannot obtain access to locked {the_queue(queue.name, queue.vhost)}. basic.get operations are not "
                f"supported by {queue.kind} queues with single active consumer"
            )
        _check_groups(queue)
        core.serve(queue)
        queue.use(core.available_ms)
        core.touch(queue)
        return queue

    def _bring_back(self, queue: Queue, count: int) -> int:
        """Bring back messages until `count` are ready, as far as possible, and return how many are ready.

        There may be more than `count`.
        """
        if queue.returning and queue.available < count:
            queue.bring_back(count - queue.available, self._core.time_ms)
        return queue.available

    def _taker(self, command: c.Get | c.GetMessages, queue: Queue) -> Consumer:
        """Return a consumer that only holds the messages of this get, without further credit."""
        core = self._core
        if not command.no_ack:
            vhost = core.vhost(command.session)
            vhost.check_room(f"get from queue '{queue.name}'", MAX_CONSUMERS, vhost.consumers)
        return Consumer(
            node=core.origin,
            session=command.session,
            channel=command.channel,
            id=command.consumer,
            queue=queue,
            tag="",
            credit=0,
            prefetch=0,
            no_ack=command.no_ack,
            exclusive=False,
            auto_credit=False,
            cancel_on_failover=False,
            can_be_cancelled=False,
            default_timeout_ms=command.timeout_ms,
            arguments={},
            settings=consumer_settings_of({}),
            budget=None,
            live=False,
        )

    def _got(self, queue: Queue, taker: Consumer, ranges: Sequence[Range]) -> None:
        """Record the messages that were got: forget them, or watch their holder."""
        if taker.no_ack:
            queue.forget(ranges)
        else:
            self._core.enter_consumer(taker)
            self._core.watch(taker)

    # Consumers

    @answers(c.Checkout, cost=_CHECKOUT_STEPS)
    def checkout(self, command: c.Checkout) -> Consuming:
        core = self._core
        queue = self._queue_to_consume(command, exclusive=command.exclusive)
        session = core.session(core.origin, command.session)
        consumer = Consumer(
            node=core.origin,
            session=command.session,
            channel=command.channel,
            id=command.consumer,
            queue=queue,
            tag=command.tag,
            credit=command.credit,
            prefetch=min(command.credit, CREDIT_MAX),
            no_ack=command.no_ack,
            exclusive=command.exclusive,
            auto_credit=command.auto_credit,
            cancel_on_failover=command.cancel_on_failover,
            can_be_cancelled=command.can_be_cancelled,
            default_timeout_ms=command.timeout_ms,
            arguments=command.arguments,
            settings=consumer_settings_of(command.arguments),
            budget=None if command.no_ack else session.budget,
        )
        self._add(consumer)
        return Consuming(consumer.id)

    @answers(c.AttachConsumer, cost=_CHECKOUT_STEPS)
    def attach(self, command: c.AttachConsumer) -> Attached | AttachRefused:
        core = self._core
        try:
            queue = self._queue_to_consume(command, exclusive=False)
        except Refused as refused:
            return AttachRefused(command.consumer, refused.code, refused.text)
        session = core.session(core.origin, command.session)
        consumer = Consumer(
            node=core.origin,
            session=command.session,
            channel=command.channel,
            id=command.consumer,
            queue=queue,
            tag=command.tag,
            credit=0,
            prefetch=0,
            no_ack=command.no_ack,
            exclusive=False,
            auto_credit=False,
            cancel_on_failover=False,
            can_be_cancelled=True,
            default_timeout_ms=command.timeout_ms,
            arguments=command.arguments,
            settings=consumer_settings_of(command.arguments),
            budget=None if command.no_ack else session.budget,
            client_credit=ClientCredit(command.wants_activity),
        )
        self._add(consumer)
        return Attached(consumer.id, queue.is_active(consumer))

    def _add(self, consumer: Consumer) -> None:
        core, queue = self._core, consumer.queue
        core.enter_consumer(consumer)
        queue.add_consumer(consumer)
        core.touch(queue)

    def _queue_to_consume(self, command: c.Checkout | c.AttachConsumer, *, exclusive: bool) -> Queue:
        core = self._core
        if command.tag in core.session(core.origin, command.session).tags:
            raise not_allowed(f"attempt to reuse consumer tag '{command.tag}'")
        requester = core.requester(command.session, command.queue)
        if requester is not None:
            thing = the_queue(requester.name, core.vhost(command.session).name)
            if requester[:2] == (core.origin, command.session):
                raise precondition_failed(f"multiple consumers are unsupported for {thing}")
            raise precondition_failed(f"only creator channel may consume from {thing}")
        queue = core.queue(command.session, command.connection, command.queue)
        _check_groups(queue)
        thing = the_queue(queue.name, queue.vhost)
        check_consumer_arguments(thing, queue.kind, command.arguments, core.version)
        # RabbitMQ's quorum queues accept the flag and ignore it.
        is_single = queue.settings.single_active_consumer and (queue.kind == CLASSIC or core.version < 9)
        if exclusive and is_single:
            raise access_refused(f"{thing} in exclusive use")
        if queue.kind == CLASSIC and (queue.exclusively_consumed or (exclusive and queue.consumers)):
            raise access_refused(f"{thing} in exclusive use")
        self._check_room(command, queue)
        core.check_fresh(command.consumer)
        return queue

    def _check_room(self, command: c.Checkout | c.AttachConsumer, queue: Queue) -> None:
        """Raise Refused if a limit allows no further consumer, or if this consumer's arguments are too large."""
        core = self._core
        vhost, doing = core.vhost(command.session), f"consume from queue '{queue.name}'"
        limit = limit_of(vhost.limits, MAX_CONSUMERS_PER_CHANNEL)
        if limit is not None and len(core.session(core.origin, command.session).tags) >= limit:
            raise not_allowed(f"reached maximum ({limit}) of consumers per channel")
        vhost.check_room(doing, MAX_CONSUMERS, vhost.consumers)
        vhost.check_room(doing, MAX_CONSUMERS_PER_QUEUE, queue.consumers, the_queue(queue.name, queue.vhost))
        check_table_size(doing, command.arguments)

    @answers(c.ReplyTo, cost=COMMAND_STEPS)
    def reply_to(self, command: c.ReplyTo) -> Consuming:
        core, name = self._core, command.name
        vhost = core.vhost(command.session)
        session = core.session(core.origin, command.session)
        if session.requester is not None:
            raise precondition_failed("reply consumer already set")
        if not is_reply_name(name) or name in vhost.requesters:
            raise internal_error(f"replies cannot come to '{name}'")
        core.enter_requester(session, Requester(core.origin, command.session, command.consumer, name))
        return Consuming(command.consumer)

    @answers(c.Cancel, cost=COMMAND_STEPS)
    def cancel(self, command: c.Cancel) -> ConsumerCancelled:
        core = self._core
        session = core.session(core.origin, command.session)
        if session.requester is not None and session.requester.consumer == command.consumer:
            core.forget_requester(session)
        consumer = core.consumers.get((core.origin, command.consumer))
        if consumer is not None and consumer.live and consumer.session == command.session:
            del core.sessions[core.origin, consumer.session].tags[consumer.tag]
            consumer.queue.cancel(consumer, core.available_ms)
            core.touch(consumer.queue)
            core.forget_if_done(consumer)
            core.remove_if_automatic(consumer.queue)
        return ConsumerCancelled(command.consumer)

    @handles(c.Credit, cost=CREDIT_STEPS)
    def credit(self, command: c.Credit) -> None:
        core = self._core
        consumer = core.consumers.get((core.origin, command.consumer))
        if consumer is not None and consumer.live and consumer.client_credit is None:
            consumer.queue.give_credit(consumer, command.count)
            core.touch(consumer.queue)

    @handles(c.SetCredit, cost=CREDIT_STEPS)
    def set_credit(self, command: c.SetCredit) -> None:
        core = self._core
        consumer = core.consumers.get((core.origin, command.consumer))
        if consumer is not None and consumer.live:
            consumer.queue.set_credit(
                consumer,
                command.number,
                command.limit,
                is_drain=command.is_drain,
                wants_state=command.wants_state,
            )
            core.touch(consumer.queue)

    @handles(c.SetPrefetch, cost=CREDIT_STEPS)
    def set_prefetch(self, command: c.SetPrefetch) -> None:
        core = self._core
        consumer = core.consumers.get((core.origin, command.consumer))
        if consumer is not None and consumer.live and consumer.auto_credit:
            consumer.queue.set_prefetch(consumer, command.credit)
            core.touch(consumer.queue)

    @answers(c.Limit, cost=COMMAND_STEPS)
    def limit(self, command: c.Limit) -> Limited:
        core = self._core
        core.session(core.origin, command.session).budget.limit = command.count
        core.wake_waiting_consumers((core.origin, command.session))
        return Limited()


def _check_groups(queue: Queue) -> None:
    """Raise Refused if an exclusive group keeps consumers and gets from the queue."""
    group = queue.exclusive_group
    if group is not None:
        raise access_refused(f"{the_queue(queue.name, queue.vhost)} in exclusive use by {group.label}")
