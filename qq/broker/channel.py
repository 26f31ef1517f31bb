"""One AMQP channel: methods in, commands out; effects in, answers out.

Lives here: what a client's method means for the log, and what the log's effects mean for the client. Not here: bytes
(qq/amqp), what leaves the channel and when (outgoing.py), batching (submissions.py), what a command does (qq/machine).

Law: a method that needs an answer from the log holds back the channel's later methods until it has it, as if the
channel's methods were carried out one by one. So does one that has to wait until this node is up to date.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import pamqp.commands as amqp
from pamqp.base import Frame

from qq.amqp.access import AccessRequest, AccessRequestOk
from qq.amqp.connection import ChannelCloseRequested
from qq.amqp.encoding import declare_ok, encode
from qq.amqp.framing import Acks, ChannelFault, Method, Publishes
from qq.amqp.properties import DURATION_MAX_MS, PLUGIN_DELAY_MAX_MS, group
from qq.amqp.stored import HEADERS
from qq.broker.access import Access, AccessRefused
from qq.broker.batches import OpenEnqueue
from qq.broker.outgoing import Consumer, Outgoing
from qq.broker.transaction import Transaction
from qq.errors import AmqpError, ChannelError, ConnectionFault, Reply, amqp_error
from qq.machine import commands, effects
from qq.machine.costs import TRANSACTION_STEPS_MAX
from qq.machine.declaring import stripped
from qq.machine.errors import Refused, the_queue
from qq.machine.limits import check_table_size
from qq.machine.requesters import REPLY_PREFIX, REPLY_TO
from qq.routing.exchanges import DELAYED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qq.amqp.properties import Attributes
    from qq.broker.access import Permission
    from qq.broker.broker import Broker
    from qq.broker.listener import ClientConnection

log = logging.getLogger(__name__)

CONFIRM_SELECT, TX_SELECT, TX_COMMIT, TX_ROLLBACK = (85, 10), (90, 10), (90, 20), (90, 30)
EXCHANGE_BIND, EXCHANGE_UNBIND = (40, 30), (40, 40)
QUEUE_BIND, QUEUE_PURGE, QUEUE_DELETE, QUEUE_UNBIND = (50, 20), (50, 30), (50, 40), (50, 50)
CONSUME, GET = (60, 20), (60, 70)

LIVE_UNLIMITED = 65_535
"""What no limit means to a consumer whose prefetch may be changed: the largest that basic.qos can say."""

PACED_WINDOW = 2000
"""Messages on their way to a consumer that has no prefetch limit; more are asked for as the socket takes them."""

Event = Publishes | Acks | Method | ChannelFault | ChannelCloseRequested


class _Requester(NamedTuple):
    consumer: Consumer
    name: bytes
    """Where replies to the channel's requests are to be sent."""


class Channel:
    """An open channel. `session` names it in the log: unlike its number it is never used again."""

    def __init__(self, broker: Broker, connection: ClientConnection, number: int) -> None:
        self.broker = broker
        self.connection = connection
        self.number = number
        self.session = broker.new_id()
        self.outgoing = Outgoing(broker, connection, number)
        self.confirming = False
        self.published = 0
        """Publish sequence number of the last message, in confirm mode."""
        self.closed = False
        self.has_failed = False
        """The log has refused something of it, and passes over what it is asked for behind that."""
        self.answered = 0
        """How many answers the log has given; it numbers them in the same way."""
        self._confirmed = 0
        self._consumers: dict[str, Consumer] = {}
        """By tag; those that neither side has cancelled."""
        self._consumers_by_id: dict[int, Consumer] = {}
        """Those that messages may still come for."""
        self._requester: _Requester | None = None
        """The consumer of direct replies."""
        self._user = None if broker.may_impersonate(connection.user) else connection.user
        """The only user that messages may say they are from."""
        self._access = Access(broker.machine, connection.user, connection.vhost)
        self._last_queue = ""
        """The queue that was declared last: methods that name none mean it."""
        self._prefetch = broker.limits.default_consumer_prefetch
        self._transaction: Transaction | None = None
        self._run: OpenEnqueue | None = None
        self._run_method = b""
        self._answers: deque[Callable[[Any], None]] = deque()
        """What to do with the log's answers, which come in the order of the commands."""
        self._held: deque[Event] = deque()
        """What came behind a method that waits for its answer; the connection limits how much."""
        self._catching_up = False
        """The first of those waits until this node has applied what the cluster has committed."""
        self._has_published = False
        """Since it was last known to be applied: answers to later methods come behind what it returns, or its error."""

    # Events from the client

    def receive(self, event: Event) -> None:
        """Carry out an event, or hold it back while an earlier method waits for its answer."""
        if self._answers or self._catching_up:
            if not self._held:
                self.connection.holds_back(self)
            self._held.append(event)
            return
        self._carry_out(event)

    def _carry_out(self, event: Event) -> None:
        try:
            match event:
                case Publishes():
                    self._publish(event)
                case Acks():
                    for tag, multiple in event.acks:
                        self._settle(commands.Settle, tag, multiple, (60, 80))
                case Method():
                    self._method(event)
                case ChannelFault():
                    self.fail(event.error)
                case ChannelCloseRequested():
                    self.outgoing.hurry_answers()
                    self.end()
                    self.connection.channel_closed(self)
        except ConnectionFault as error:
            self.connection.fail(error)
        except AccessRefused as refused:
            self._refused(event, refused)
        except ChannelError as error:
            self.fail(error)
        except Exception as error:  # noqa: BLE001  # it is logged
            # Here and not only where bytes come in: what was held back is carried out among the effects of the log.
            self.connection.unexpected(error)

    def _release_held(self) -> None:
        while self._held and not (self._answers or self._catching_up):
            self._carry_out(self._held.popleft())
        if not self._held:
            self.connection.released(self)

    def _refused(self, event: Event, refused: AccessRefused) -> None:
        """Somebody may just have been permitted it through another node."""
        if self._access.certain:
            self.fail(refused)
        else:
            self._catch_up(event)

    def _catch_up(self, event: Event) -> None:
        """Carry out an event, and all that is held behind it, when this node has applied what is committed by now."""
        if not self._held:
            self.connection.holds_back(self)
        self._held.appendleft(event)
        self._catching_up = True
        self.broker.submissions.barrier(self._caught_up, self.connection.lane)

    def _caught_up(self) -> None:
        self._catching_up = False
        if not self.closed:
            self._access.certain = True
            self._carry_out(self._held.popleft())
            self._access.certain = False
            self._release_held()

    def _publish(self, event: Publishes) -> None:
        access, method, done = self._access, event.method, 0
        reply_name = self._requester and self._requester.name
        restricts_keys = access.known_publish(method)
        if restricts_keys is None:
            restricts_keys = access.publish(method, self.connection.publish_fields(method)[0])
        delay_max_ms = self._delay_max_ms(method) if event.flags & HEADERS else 0
        try:
            for attributes, messages in group(
                event.messages, event.flags, self._user, reply_name, delay_max_ms
            ):
                if restricts_keys:
                    exchange, routing_key, _ = self.connection.publish_fields(method)
                    access.publish_keys(
                        exchange, (routing_key, *(attributes.more_keys if attributes else ()))
                    )
                self._publish_alike(method, attributes, messages)
                done += len(messages)
        except AccessRefused as refused:
            self._refused(event._replace(messages=event.messages[done:]), refused)

    def _delay_max_ms(self, method: bytes) -> int:
        """What the header x-delay may ask for: at an exchange of the plugin's type as much as there."""
        vhost = self.broker.machine.vhosts.get(self.connection.vhost)
        exchange = vhost.exchanges.get(self.connection.publish_fields(method)[0]) if vhost else None
        return PLUGIN_DELAY_MAX_MS if exchange and exchange.type == DELAYED else DURATION_MAX_MS

    def _publish_alike(self, method: bytes, attributes: Attributes | None, messages: list[bytes]) -> None:
        run, submissions = self._run, self.broker.submissions
        is_new = (
            run is None
            or method != self._run_method
            or not run.messages  # all have gone
            or (attributes is not run.attributes and not run.takes(attributes))
        )
        if run is None or is_new:
            exchange, routing_key, mandatory = self.connection.publish_fields(method)
            self.connection.publishes()
            first_sequence = self.published + 1 if self.confirming else 0
            run = self._run = OpenEnqueue(self, first_sequence, exchange, routing_key, mandatory, attributes)
            self._run_method = method
        counters = self.broker.counters
        counters.messages_received += len(messages)
        if self._transaction is not None:
            vhost = self.broker.machine.vhosts.get(self.connection.vhost)
            looked_into = vhost is not None and vhost.looks_at_content(run.exchange)
            self._transaction.publish(run, messages, is_new=is_new, looked_into=looked_into)
            return
        if self.confirming:
            self.published += len(messages)
            counters.messages_received_confirm += len(messages)
        self._has_published = True
        submissions.publish(run, messages, is_new=is_new)

    def _settle(
        self, kind: type[commands.Settlement], tag: int, multiple: bool, method: tuple[int, int]
    ) -> None:
        pieces = self.outgoing.take(tag, multiple=multiple, method=method)
        if self._transaction is not None:
            self._transaction.settle(kind, pieces, method)
            return
        settle = self.broker.submissions.settle
        for piece in pieces:
            first = piece.value.first_id + piece.offset
            settle(kind, piece.value.consumer, first, first + piece.count - 1, self.connection.lane)
            if kind is commands.Settle:
                self.broker.counters.messages_acknowledged += piece.count

    def _method(self, event: Method) -> None:
        frame = event.frame
        if self._has_published and frame.name in _ANSWERED_HERE:
            self._has_published = False
            self._catch_up(event)
            return
        handler = _HANDLERS.get(frame.name)
        if handler is None:
            raise ConnectionFault(
                Reply.NOT_IMPLEMENTED,
                f"method {frame.name} is not implemented",
                frame.index >> 16,
                frame.index & 0xFFFF,
            )
        self._run = None
        arguments: commands.Table | None = getattr(frame, "arguments", None)
        if arguments:
            _check_arguments(frame, arguments)
        handler(self, frame)

    # Methods answered here

    def _on_flow(self, frame: amqp.Channel.Flow) -> None:
        if not frame.active:
            raise ConnectionFault(Reply.NOT_IMPLEMENTED, "active=false", 20, 20)
        self.send(amqp.Channel.FlowOk(active=True))

    def _on_access_request(self, _frame: AccessRequest) -> None:
        self.send(AccessRequestOk())

    def _on_confirm_select(self, frame: amqp.Confirm.Select) -> None:
        if self._transaction is not None:
            raise ChannelError(
                Reply.PRECONDITION_FAILED, "cannot switch from tx to confirm mode", *CONFIRM_SELECT
            )
        self.confirming = True
        if not frame.nowait:
            self.send(amqp.Confirm.SelectOk())

    def _on_qos(self, frame: amqp.Basic.Qos) -> None:
        if frame.prefetch_size:
            raise ConnectionFault(Reply.NOT_IMPLEMENTED, f"prefetch_size!=0 ({frame.prefetch_size})", 60, 10)
        if frame.global_:
            command = commands.Limit(self.session, frame.prefetch_count)
            self._ask(command, lambda _: amqp.Basic.QosOk())
            return
        self._prefetch = frame.prefetch_count
        live = [consumer for consumer in self._consumers.values() if consumer.live_prefetch]
        credit = frame.prefetch_count or LIVE_UNLIMITED
        for consumer in live:
            self.broker.submissions.add(commands.SetPrefetch(consumer.id, credit), self.connection.lane)
        if live:
            # Else a client could ask with few bytes for ever more, of all its consumers again and again.
            self._answer_when_applied(amqp.Basic.QosOk())
        else:
            self.send(amqp.Basic.QosOk())

    def _answer_when_applied(self, frame: Frame) -> None:
        """Answer a method whose commands the log does not answer, and carry out nothing else before."""

        def applied() -> None:
            self._catching_up = False
            if not self.closed:
                self.send(frame)
                self._release_held()

        self._catching_up = True
        self.broker.submissions.barrier(applied, self.connection.lane)

    # Transactions

    def _on_tx_select(self, _frame: amqp.Tx.Select) -> None:
        if self.confirming:
            raise ChannelError(Reply.PRECONDITION_FAILED, "cannot switch from confirm to tx mode", *TX_SELECT)
        if self._transaction is None:
            self._transaction = Transaction(self.broker.limits.transaction_bytes)
        self.send(amqp.Tx.SelectOk())

    def _on_tx_commit(self, _frame: amqp.Tx.Commit) -> None:
        transaction = self._transactional(TX_COMMIT)
        content = transaction.take()
        self._answers.append(lambda _: self.send(amqp.Tx.CommitOk()))
        self.broker.submissions.commit(self, content, self._too_dear)

    def _too_dear(self, steps: int) -> None:
        text = (
            f"the transaction would take {steps} steps of every node or more "
            f"(limit transaction_steps {TRANSACTION_STEPS_MAX})"
        )
        self.fail(ChannelError(Reply.PRECONDITION_FAILED, text, *TX_COMMIT))

    def _on_tx_rollback(self, _frame: amqp.Tx.Rollback) -> None:
        pieces = self._transactional(TX_ROLLBACK).roll_back()
        self.outgoing.hold_again(pieces)
        self.send(amqp.Tx.RollbackOk())

    def _transactional(self, method: tuple[int, int]) -> Transaction:
        if self._transaction is None:
            raise ChannelError(Reply.PRECONDITION_FAILED, "channel is not transactional", *method)
        return self._transaction

    def _on_ack(self, frame: amqp.Basic.Ack) -> None:
        self._settle(commands.Settle, frame.delivery_tag or 0, frame.multiple, (60, 80))

    def _on_nack(self, frame: amqp.Basic.Nack) -> None:
        kind = commands.Return if frame.requeue else commands.Discard
        self._settle(kind, frame.delivery_tag or 0, frame.multiple, (60, 120))

    def _on_reject(self, frame: amqp.Basic.Reject) -> None:
        kind = commands.Reject if frame.requeue else commands.Discard
        self._settle(kind, frame.delivery_tag or 0, False, (60, 90))

    # Methods answered by the log

    def _ask(
        self,
        command: commands.Command,
        answer: Callable[[Any], Frame | bytes | None],
        *,
        nowait: bool = False,
    ) -> None:
        """Submit a command; its result becomes the answering frame, unless the client wants none."""

        def answered(result: Any) -> None:
            frame = answer(result)
            if frame is not None and not nowait:
                self.outgoing.send(frame if isinstance(frame, bytes) else encode(self.number, frame))

        self._answers.append(answered)
        self.broker.submissions.add(command, self.connection.lane)

    def _on_exchange_declare(self, frame: amqp.Exchange.Declare) -> None:
        arguments = frame.arguments or {}
        self._access.declare_exchange(frame.exchange, arguments, passive=frame.passive)
        command = commands.DeclareExchange(
            self.session,
            frame.exchange,
            frame.exchange_type,
            frame.passive,
            frame.durable,
            frame.auto_delete,
            frame.internal,
            arguments,
        )
        self._ask(command, lambda _: amqp.Exchange.DeclareOk(), nowait=frame.nowait)

    def _on_exchange_delete(self, frame: amqp.Exchange.Delete) -> None:
        self._access.delete_exchange(frame.exchange)
        command = commands.DeleteExchange(self.session, frame.exchange, frame.if_unused)
        self._ask(command, lambda _: amqp.Exchange.DeleteOk(), nowait=frame.nowait)

    def _on_exchange_bind(self, frame: amqp.Exchange.Bind) -> None:
        self._access.bind("exchange", frame.destination, frame.source, frame.routing_key, EXCHANGE_BIND)
        command = commands.BindExchange(
            self.session, frame.destination, frame.source, frame.routing_key, frame.arguments or {}
        )
        self._ask(command, lambda _: amqp.Exchange.BindOk(), nowait=frame.nowait)

    def _on_exchange_unbind(self, frame: amqp.Exchange.Unbind) -> None:
        self._access.bind("exchange", frame.destination, frame.source, frame.routing_key, EXCHANGE_UNBIND)
        command = commands.UnbindExchange(
            self.session, frame.destination, frame.source, frame.routing_key, frame.arguments or {}
        )
        self._ask(command, lambda _: amqp.Exchange.UnbindOk(), nowait=frame.nowait)

    def _on_queue_declare(self, frame: amqp.Queue.Declare) -> None:
        arguments = frame.arguments or {}
        name = stripped(frame.queue)
        server_named = not name and not frame.passive
        if server_named:
            name = self.broker.server_name("amq.gen-")
        meant = name or self._last_queue
        if meant and not meant.startswith(REPLY_TO):
            self._access.declare_queue(meant, arguments, passive=frame.passive)
        command = commands.DeclareQueue(
            self.session,
            self.connection.id,
            name,
            frame.passive,
            frame.durable,
            frame.exclusive,
            frame.auto_delete,
            server_named,
            arguments,
        )

        def answer(result: effects.QueueDeclared) -> bytes:
            self._last_queue = result.name
            return declare_ok(self.number, result.name, result.messages, result.consumers)

        self._ask(command, answer, nowait=frame.nowait)

    def _check_queue(self, permission: Permission, name: str, method: tuple[int, int]) -> None:
        name = name or self._last_queue
        if name:  # else the log refuses
            self._access.check(permission, "queue", name, method)

    def _check_binding(self, frame: amqp.Queue.Bind | amqp.Queue.Unbind, method: tuple[int, int]) -> None:
        queue = stripped(frame.queue) or self._last_queue
        if queue and not queue.startswith(REPLY_PREFIX):  # else the log refuses
            routing_key = frame.routing_key or ("" if frame.queue else queue)
            self._access.bind("queue", queue, frame.exchange, routing_key, method)

    def _on_queue_bind(self, frame: amqp.Queue.Bind) -> None:
        self._check_binding(frame, QUEUE_BIND)
        command = commands.BindQueue(
            self.session,
            self.connection.id,
            frame.queue,
            frame.exchange,
            frame.routing_key,
            frame.arguments or {},
        )
        self._ask(command, lambda _: amqp.Queue.BindOk(), nowait=frame.nowait)

    def _on_queue_unbind(self, frame: amqp.Queue.Unbind) -> None:
        self._check_binding(frame, QUEUE_UNBIND)
        command = commands.UnbindQueue(
            self.session,
            self.connection.id,
            frame.queue,
            frame.exchange,
            frame.routing_key,
            frame.arguments or {},
        )
        self._ask(command, lambda _: amqp.Queue.UnbindOk())

    def _on_queue_purge(self, frame: amqp.Queue.Purge) -> None:
        self._check_queue("read", frame.queue, QUEUE_PURGE)
        command = commands.PurgeQueue(self.session, self.connection.id, frame.queue)
        self._ask(command, lambda result: amqp.Queue.PurgeOk(result.messages), nowait=frame.nowait)

    def _on_queue_delete(self, frame: amqp.Queue.Delete) -> None:
        self._check_queue("configure", stripped(frame.queue), QUEUE_DELETE)
        command = commands.DeleteQueue(
            self.session, self.connection.id, frame.queue, frame.if_unused, frame.if_empty
        )
        self._ask(command, lambda result: amqp.Queue.DeleteOk(result.messages), nowait=frame.nowait)

    def _on_consume(self, frame: amqp.Basic.Consume) -> None:
        tag = frame.consumer_tag or self.broker.server_name("amq.ctag-")
        if tag in self._consumers:
            raise ConnectionFault(Reply.NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'", 60, 20)
        limits = self.broker.limits
        if limits.consumer_max_per_channel and len(self._consumers) >= limits.consumer_max_per_channel:
            text = f"reached maximum ({limits.consumer_max_per_channel}) of consumers per channel"
            raise ConnectionFault(Reply.NOT_ALLOWED, text, 60, 20)
        if frame.queue == REPLY_TO:
            self._consume_replies(frame, tag)
            return
        self._check_queue("read", frame.queue, CONSUME)
        arguments = frame.arguments or {}
        wants_live_prefetch = arguments.get("x-live-prefetch", self.connection.wants_live_prefetch) is True
        live_prefetch = wants_live_prefetch and not frame.no_ack
        prefetch = self._prefetch or (LIVE_UNLIMITED if live_prefetch else 0)
        paced = frame.no_ack or not prefetch
        consumer = Consumer(
            self.broker.new_id(),
            tag,
            no_ack=frame.no_ack,
            paced=paced and not frame.no_ack,
            cancel_on_failover=arguments.get("x-cancel-on-ha-failover") is True,
            live_prefetch=live_prefetch,
        )
        self._consumers[tag] = self._consumers_by_id[consumer.id] = consumer
        command = commands.Checkout(
            self.session,
            self.connection.id,
            self.number,
            consumer.id,
            frame.queue,
            tag,
            PACED_WINDOW if paced else prefetch,
            frame.no_ack,
            frame.exclusive,
            not consumer.paced,
            consumer.cancel_on_failover,
            self.connection.wants_cancel_notify,
            limits.consumer_timeout_ms,
            arguments,
        )

        def answer(_result: effects.Consuming) -> Frame:
            consumer.started = True
            return amqp.Basic.ConsumeOk(tag)

        self._ask(command, answer, nowait=frame.nowait)

    def _consume_replies(self, frame: amqp.Basic.Consume, tag: str) -> None:
        """Consume from the pseudo-queue of direct reply-to, for which no permission is needed."""
        if not frame.no_ack:
            raise ChannelError(Reply.PRECONDITION_FAILED, "reply consumer cannot acknowledge", *CONSUME)
        if self._requester is not None:
            raise ChannelError(Reply.PRECONDITION_FAILED, "reply consumer already set", *CONSUME)
        consumer = Consumer(
            self.broker.new_id(), tag, no_ack=True, paced=False, cancel_on_failover=False, live_prefetch=False
        )
        name = self.broker.server_name(REPLY_PREFIX)
        self._requester = _Requester(consumer, name.encode())
        self._consumers_by_id[consumer.id] = consumer

        def answer(_result: effects.Consuming) -> Frame:
            consumer.started = True
            return amqp.Basic.ConsumeOk(tag)

        self._ask(commands.ReplyTo(self.session, consumer.id, name), answer, nowait=frame.nowait)

    def _on_cancel(self, frame: amqp.Basic.Cancel) -> None:
        tag = frame.consumer_tag or ""
        if self._requester is not None and self._requester.consumer.tag == tag:
            consumer, self._requester = self._requester.consumer, None
        else:
            consumer = self._consumers.pop(tag, None)
        if consumer is None:  # never there, or cancelled by the broker a moment ago: both are fine
            if not frame.nowait:
                self.send(amqp.Basic.CancelOk(tag))
            return
        self._cancel(consumer, amqp.Basic.CancelOk(tag), nowait=frame.nowait)

    def _cancel(self, consumer: Consumer, frame: Frame, *, nowait: bool) -> None:
        """Have a consumer cancelled; `frame` follows its last message."""

        def answer(_result: effects.ConsumerCancelled) -> Frame:
            self._consumers_by_id.pop(consumer.id, None)
            return frame

        self._ask(commands.Cancel(self.session, consumer.id), answer, nowait=nowait)

    def _on_get(self, frame: amqp.Basic.Get) -> None:
        self._check_queue("read", frame.queue, GET)
        command = commands.Get(
            self.session,
            self.connection.id,
            self.number,
            self.broker.new_id(),
            frame.queue,
            frame.no_ack,
            self.broker.limits.consumer_timeout_ms,
        )

        def answer(result: effects.GetOk | effects.GetEmpty) -> Frame | None:
            if isinstance(result, effects.GetEmpty):
                self.broker.counters.get_empty += 1
                return amqp.Basic.GetEmpty()
            self.outgoing.got(result, no_ack=frame.no_ack)
            return None

        self._ask(command, answer)

    def _on_recover(self, frame: amqp.Basic.Recover) -> None:
        self._recover(frame.requeue, (60, 110), amqp.Basic.RecoverOk())

    def _on_recover_async(self, frame: amqp.Basic.RecoverAsync) -> None:
        self._recover(frame.requeue, (60, 100), None)

    def _recover(self, requeue: bool, method: tuple[int, int], ok: Frame | None) -> None:
        if not requeue:
            raise ConnectionFault(Reply.NOT_IMPLEMENTED, "requeue=false", *method)
        if self._transaction is not None and self._transaction.settles:
            self._recover_held(method, ok)
            return

        def answer(_result: effects.Recovered) -> Frame | None:
            self.outgoing.end_recovery()
            return ok

        self.outgoing.begin_recovery()
        self._ask(commands.Recover(self.session), answer)

    def _recover_held(self, method: tuple[int, int], ok: Frame | None) -> None:
        """Put back only what the client holds: what it has settled, and not committed yet, stays out."""
        returns = Transaction(self.broker.limits.transaction_bytes)
        returns.settle(commands.Return, self.outgoing.take(0, multiple=True, method=method), method)

        def answered(_result: Any) -> None:
            if ok is not None:
                self.send(ok)

        self._answers.append(answered)
        self.broker.submissions.commit(self, returns.take(), self._too_dear)

    # Effects from the log

    def replied(self, result: Any) -> None:
        """The log's answer to the oldest method that waits for one."""
        self.answered += 1
        self._answers.popleft()(result)
        self._release_held()

    def failed(self, effect: effects.Failed) -> None:
        self.has_failed = True
        error = amqp_error(effect.code, effect.text, effect.class_id, effect.method_id)
        if isinstance(error, ConnectionFault):
            self.connection.fail(error)
        else:
            self.fail(error)

    @property
    def waits_for_answer(self) -> bool:
        return bool(self._answers)

    @property
    def consumers(self) -> Sequence[Consumer]:
        """Those that messages may still come for."""
        return list(self._consumers_by_id.values())

    def consumer(self, consumer_id: int) -> Consumer | None:
        return self._consumers_by_id.get(consumer_id)

    def deliver(self, effect: effects.Deliver) -> None:
        consumer = self._consumers_by_id.get(effect.consumer)
        if consumer is not None:
            consumer.next_id = effect.first_id + sum(part.count for part in effect.ranges)
            self.outgoing.deliver(consumer, effect)

    def direct_reply(self, effect: effects.DirectReply) -> None:
        consumer = self._consumers_by_id.get(effect.consumer)
        if consumer is not None:
            self.outgoing.direct_reply(consumer.tag, effect)

    def unroutable(self, effect: effects.Returned) -> None:
        self.outgoing.unroutable(effect)

    def confirm(self, published: int) -> None:
        """Everything up to publish sequence number `published` is safe."""
        if not self.closed and published > self._confirmed:
            self.broker.counters.messages_confirmed += published - self._confirmed
            self._confirmed = published
            self.outgoing.confirm(published)

    def refuse(self, first: int, last: int) -> None:
        """These publish sequence numbers reached no queue, or nobody knows; all before them are safe."""
        if not self.closed and last > self._confirmed:
            first = max(first, self._confirmed + 1)
            if first > self._confirmed + 1:
                self.confirm(first - 1)
            self._confirmed = last
            self.outgoing.confirm(last, refused=True)

    def refuse_unconfirmed(self, published: int) -> None:
        """What was published up to there has taken too long: nobody knows what becomes of it."""
        self.refuse(self._confirmed + 1, published)

    def timed_out(self, effect: effects.DeliveryTimeout) -> None:
        """Say in the node's log what a client that does not acknowledge is about to be told."""
        log.warning(
            "Consumer '%s' on channel %d and %s has timed out waiting for a consumer acknowledgement of a delivery "
            "with delivery tag = %s. Timeout used: %d ms. This timeout value can be configured, see consumers doc "
            "guide to learn more",
            effect.tag,
            self.number,
            the_queue(effect.queue, effect.vhost),
            self.outgoing.tag_of(effect.consumer, effect.message_id) or "unknown",
            effect.timeout_ms,
        )

    def consumer_gone(self, consumer_id: int) -> None:
        """Consumer cancel notification: the queue was deleted."""
        consumer = self._consumers_by_id.pop(consumer_id, None)
        if consumer is not None and self._consumers.get(consumer.tag) is consumer:
            del self._consumers[consumer.tag]
            if self.connection.wants_cancel_notify:
                self.send(_cancel_notification(consumer))

    def leader_changed(self) -> None:
        """Cancel the consumers that asked for it on a change of leader (x-cancel-on-ha-failover)."""
        for consumer in [consumer for consumer in self._consumers.values() if consumer.cancel_on_failover]:
            del self._consumers[consumer.tag]
            nowait = not self.connection.wants_cancel_notify
            self._cancel(consumer, _cancel_notification(consumer), nowait=nowait)

    def send(self, frame: Frame) -> None:
        self.outgoing.send(encode(self.number, frame))

    # Ends

    def fail(self, error: AmqpError) -> None:
        """Close the channel with an error."""
        if not self.closed:
            self.end()
            self.connection.fail_channel(self, error)

    def end(self) -> None:
        """The channel is no more: what it holds goes back to the queues."""
        if not self.closed:
            self.closed = True
            self._run = self._transaction = None  # both refer to this channel, which is to be freed
            self._held.clear()
            self.connection.released(self)
            self.outgoing.close()
            self.broker.session_ended(self)


def _check_arguments(frame: Frame, arguments: commands.Table) -> None:
    """Raise ChannelError for what the log would refuse: it need not hold it."""
    try:
        check_table_size(f"carry out {frame.name.lower()}", arguments)
    except Refused as refused:
        raise amqp_error(refused.code, refused.text, frame.index >> 16, frame.index & 0xFFFF) from None


def _cancel_notification(consumer: Consumer) -> Frame:
    return amqp.Basic.Cancel(consumer.tag, nowait=True)


_HANDLERS: dict[str, Callable[[Channel, Any], None]] = {
    "Channel.Flow": Channel._on_flow,
    "Access.Request": Channel._on_access_request,
    "Tx.Select": Channel._on_tx_select,
    "Tx.Commit": Channel._on_tx_commit,
    "Tx.Rollback": Channel._on_tx_rollback,
    "Confirm.Select": Channel._on_confirm_select,
    "Exchange.Declare": Channel._on_exchange_declare,
    "Exchange.Delete": Channel._on_exchange_delete,
    "Exchange.Bind": Channel._on_exchange_bind,
    "Exchange.Unbind": Channel._on_exchange_unbind,
    "Queue.Declare": Channel._on_queue_declare,
    "Queue.Bind": Channel._on_queue_bind,
    "Queue.Unbind": Channel._on_queue_unbind,
    "Queue.Purge": Channel._on_queue_purge,
    "Queue.Delete": Channel._on_queue_delete,
    "Basic.Qos": Channel._on_qos,
    "Basic.Consume": Channel._on_consume,
    "Basic.Cancel": Channel._on_cancel,
    "Basic.Get": Channel._on_get,
    "Basic.Ack": Channel._on_ack,
    "Basic.Nack": Channel._on_nack,
    "Basic.Reject": Channel._on_reject,
    "Basic.Recover": Channel._on_recover,
    "Basic.RecoverAsync": Channel._on_recover_async,
}

_ANSWERED_HERE = frozenset(
    (
        "Channel.Flow",
        "Access.Request",
        "Tx.Select",
        "Tx.Rollback",
        "Confirm.Select",
        "Basic.Qos",
        "Basic.Cancel",
    )
)
"""Methods that the log need not answer, or need not always."""
