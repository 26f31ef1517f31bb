"""The publishing side of a channel: basic.publish, confirms, refusals, returned messages.

Invariant: publish sequence numbers are answered in order and exactly once, with a confirm or a refusal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pamqp.commands as amqp

from qq.amqp_server.methods import PUBLISH
from qq.errors import ChannelError, ReplyCode
from qq.machine.catalog.reply_names import REPLY_PREFIX, is_reply_name
from qq.routing.exchanges import DELAYED
from qq.sessions.access import AccessRefused
from qq.sessions.pending_requests import OpenEnqueue
from qq.stored.layout import HEADERS
from qq.stored.properties import DURATION_MAX_MS, PLUGIN_DELAY_MAX_MS, UnacceptableProperties, group

if TYPE_CHECKING:
    from collections.abc import Callable

    from qq.amqp.framing import Publishes
    from qq.amqp_server.channel.core import ChannelCore
    from qq.machine.protocol import effects
    from qq.stored.properties import Attributes

CONFIRM_SELECT = (85, 10)
_REPLY_PREFIX = REPLY_PREFIX.encode()


class Unpublished(Exception):  # named after its content
    """The user lacks the permission for some messages, as far as this node has applied the log."""

    def __init__(self, rest: Publishes, refused: AccessRefused) -> None:
        super().__init__(str(refused))
        self.rest = rest
        """The messages that have not been published."""
        self.refused = refused


class PublishingMethods:
    """The publishing side of a channel. It is the `Publisher` of the channel's session."""

    __slots__ = (
        "_confirmed",
        "_core",
        "_has_logged_replies",
        "_is_publisher",
        "_logged_replies",
        "_replies_after",
        "_run",
        "_run_method",
        "_user",
        "connection",
        "number",
        "published",
        "session",
    )

    def __init__(self, core: ChannelCore) -> None:
        self.published = 0
        """The publish sequence number of the last message. Only messages in confirm mode are counted."""
        self.session = core.session
        self.connection = connection = core.connection
        self.number = core.number
        self._core = core
        self._confirmed = 0
        self._is_publisher = False
        """Whether a message was published, so that the channel counts as a publisher."""
        self._user = None if core.broker.may_impersonate(connection) else connection.user
        """The only permitted value of the property user-id; None if every value is permitted."""
        self._run: OpenEnqueue | None = None
        self._run_method = b""
        self._has_logged_replies = False
        """Whether direct replies went through the log and may not be applied yet."""
        self._logged_replies = 0
        """Runs of direct replies that went through the log."""
        self._replies_after = 0
        """The log index that the requester's node must have applied before it delivers the next direct reply."""

    @property
    def has_failed(self) -> bool:
        return self._core.has_failed

    # From the client

    def publish(self, event: Publishes) -> None:
        """Publish messages. Messages above a limit of publishing are held back.

        Raises Unpublished, ChannelError, ConnectionFault.
        """
        core, messages = self._core, event.messages
        throttle = core.broker.throttle
        passing = throttle.count_passing(self, messages)
        if passing:
            self._publish(event, passing)
        if passing < len(messages):
            throttle.wait(self)
            core.methods.hold(event._replace(messages=messages[passing:]))

    def resume(self) -> None:
        """Publish the messages that were held back by a limit of publishing, as far as it has room now."""
        self._core.methods.release()

    def _publish(self, event: Publishes, count: int) -> None:
        """Publish the first `count` messages."""
        core, method, done = self._core, event.method, 0
        access, connection = core.access, core.connection
        first = event.messages if count == len(event.messages) else event.messages[:count]
        restricts_keys = access.known_publish(method)
        try:
            if restricts_keys is None:
                restricts_keys = access.publish(method, connection.publish_fields(method)[0])
            delay_max_ms = self._delay_max_ms(method) if event.flags & HEADERS else 0
            for attributes, messages in group(first, event.flags, self._user, core.reply_name, delay_max_ms):
                if restricts_keys:
                    exchange, routing_key, _ = connection.publish_fields(method)
                    access.publish_keys(
                        exchange, (routing_key, *(attributes.more_keys if attributes else ()))
                    )
                self._publish_alike(method, attributes, messages)
                done += len(messages)
        except UnacceptableProperties as error:
            raise ChannelError(ReplyCode.PRECONDITION_FAILED, str(error), *PUBLISH) from None
        except AccessRefused as refused:
            raise Unpublished(event._replace(messages=event.messages[done:]), refused) from None
        finally:
            core.broker.throttle.charge(self, first, done)

    def _delay_max_ms(self, method: bytes) -> int:
        """Return the longest delay that the header x-delay may request.

        For an exchange of the delayed message plugin's type, it is the limit of that plugin.
        """
        connection = self._core.connection
        vhost = self._core.broker.machine.vhosts.get(connection.vhost)
        exchange = vhost.exchanges.get(connection.publish_fields(method)[0]) if vhost else None
        return PLUGIN_DELAY_MAX_MS if exchange and exchange.type == DELAYED else DURATION_MAX_MS

    def _publish_alike(self, method: bytes, attributes: Attributes | None, messages: list[bytes]) -> None:
        if _REPLY_PREFIX in method and self._send_replies(method, attributes, messages):
            return
        core, run = self._core, self._run
        is_new = (
            run is None
            or method != self._run_method
            or not run.messages  # a batch has taken all of them
            or (run.is_long and core.transaction is None)
            or (attributes is not run.attributes and not run.accepts(attributes))
        )
        if run is None or is_new:
            exchange, routing_key, mandatory = core.connection.publish_fields(method)
            core.connection.mark_publisher()
            first_sequence = self.published + 1 if core.confirming else 0
            run = self._run = OpenEnqueue(self, first_sequence, exchange, routing_key, mandatory, attributes)
            self._run_method = method
            if not self._is_publisher:
                self._is_publisher = True
                core.broker.counters.amqp091.publishers += 1
        self._count(messages)
        if core.transaction is not None:
            vhost = core.broker.machine.vhosts.get(core.connection.vhost)
            looked_into = vhost is not None and vhost.depends_on_content(run.exchange)
            core.transaction.publish(run, messages, is_new=is_new, looked_into=looked_into)
            return
        if core.confirming:
            self.published += len(messages)
            core.broker.counters.amqp091.messages_received_confirm += len(messages)
        core.has_published = True
        core.broker.submissions.publish(run, messages, is_new=is_new)
        if _REPLY_PREFIX in method or (attributes and any(map(is_reply_name, attributes.more_keys))):
            self._logged_replies += 1
            if not self._has_logged_replies:
                self._has_logged_replies = True
                self._await_replies()

    def _await_replies(self) -> None:
        """Return to replies without the log when all logged replies are applied."""
        logged, core = self._logged_replies, self._core

        def applied() -> None:
            if logged != self._logged_replies:
                self._await_replies()
                return
            self._has_logged_replies = False
            self._replies_after = core.broker.direct_replies.applied_index

        core.broker.submissions.read_barrier(applied, core.connection.lane, is_urgent=False)

    def _count(self, messages: list[bytes]) -> None:
        core = self._core
        counters = core.broker.counters.amqp091
        counters.messages_received += len(messages)
        core.counts.published += len(messages)
        counters.message_sizes.add_all(list(map(len, messages)))

    def _send_replies(self, method: bytes, attributes: Attributes | None, messages: list[bytes]) -> bool:
        """Send direct replies without the log. Return False if they, or replies before them, need the log."""
        core = self._core
        exchange, name, _ = core.connection.publish_fields(method)
        if exchange or not is_reply_name(name):
            return False
        vhost = core.broker.machine.vhosts.get(core.connection.vhost)
        requester = None if vhost is None else vhost.requesters.get(name)
        is_sent = (
            requester is not None
            and attributes is None
            and core.transaction is None
            and not self._has_logged_replies
            and self.published == self._confirmed
            and core.broker.direct_replies.send(requester, self._replies_after, self, messages)
        )
        if not is_sent:
            return False
        self._count(messages)
        if core.confirming:
            core.broker.counters.amqp091.messages_received_confirm += len(messages)
            self.published += len(messages)
            self.confirm(self.published)
        return True

    @property
    def unconfirmed(self) -> int:
        """Messages that wait for their confirm."""
        return self.published - self._confirmed

    def end_run(self) -> None:
        """Begin a new run with the next message, because in this run it would overtake the present request."""
        self._run = None

    def end(self) -> None:
        """End publishing, because the channel ends."""
        self.end_run()
        self._core.broker.throttle.remove(self)
        if self._is_publisher:
            self._is_publisher = False
            self._core.broker.counters.amqp091.publishers -= 1

    def confirm_select(self, frame: amqp.Confirm.Select) -> None:
        core = self._core
        if core.transaction is not None:
            raise ChannelError(
                ReplyCode.PRECONDITION_FAILED, "cannot switch from tx to confirm mode", *CONFIRM_SELECT
            )
        core.confirming = True
        if not frame.nowait:
            core.send(amqp.Confirm.SelectOk())

    # Events from the log

    def confirm(self, published: int) -> None:
        """Confirm to the client all messages up to publish sequence number `published`."""
        core = self._core
        if not core.closed and published > self._confirmed:
            newly, counters = published - self._confirmed, core.broker.counters
            counters.amqp091.messages_confirmed += newly
            counters.confirmed_in[core.connection.vhost] += newly
            core.counts.confirmed += newly
            self._confirmed = published
            core.outgoing.confirm(published)

    def refuse(self, first: int, last: int, queue: str = "") -> None:  # noqa: ARG002  # basic.nack names no queue
        """Refuse these publish sequence numbers, and confirm all earlier numbers.

        Their messages reached no queue, or their outcome is unknown.
        """
        if not self._core.closed and last > self._confirmed:
            first = max(first, self._confirmed + 1)
            if first > self._confirmed + 1:
                self.confirm(first - 1)
            self._confirmed = last
            self._core.outgoing.confirm(last, refused=True)

    def unroutable(self, effect: effects.Returned) -> None:
        """Return messages that reached no queue to the client."""
        self._core.outgoing.unroutable(effect)

    def refuse_unconfirmed(self, published: int) -> None:
        """Refuse all unconfirmed publishes up to this sequence number, because their outcome is unknown."""
        self.refuse(self._confirmed + 1, published)


HANDLERS: dict[str, Callable[[PublishingMethods, Any], None]] = {
    "Confirm.Select": PublishingMethods.confirm_select
}
