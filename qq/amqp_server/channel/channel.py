"""The channel: dispatches the client's events to its parts, and ends itself.

Invariant: an error in a client's method ends its channel or its connection, and never affects other clients.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

import pamqp.commands as amqp

from qq.amqp.access import AccessRequest, AccessRequestOk
from qq.amqp.connection import ChannelCloseRequested
from qq.amqp.framing import Acks, ChannelFault, Method, Publishes
from qq.amqp_server.channel import consuming, declaring, publishing, transacting
from qq.amqp_server.channel.consuming import ConsumingMethods
from qq.amqp_server.channel.core import ChannelCore
from qq.amqp_server.channel.octets_since import check_octets
from qq.amqp_server.channel.publishing import PublishingMethods, Unpublished
from qq.amqp_server.methods import PUBLISH, error_of
from qq.amqp_server.outgoing import Outgoing
from qq.errors import AmqpError, ChannelError, ConnectionFault, ReplyCode, amqp_error
from qq.machine.catalog.limits import check_table_size
from qq.machine.protocol.refusals import Refused
from qq.sessions.access import AccessRefused
from qq.sessions.session_info import SessionFacts

if TYPE_CHECKING:
    from collections.abc import Callable

    from qq.amqp_server.channel.core import MakeOutgoing
    from qq.amqp_server.channel.method_queue import Event
    from qq.amqp_server.ports import Carrier
    from qq.machine.protocol import commands, effects
    from qq.sessions.broker import Broker

log = logging.getLogger(__name__)


class ChannelParts(NamedTuple):
    """The classes of a channel's parts."""

    outgoing: MakeOutgoing = Outgoing
    publishing: Callable[[ChannelCore], PublishingMethods] = PublishingMethods
    consuming: Callable[[ChannelCore], ConsumingMethods] = ConsumingMethods


PLAIN = ChannelParts()


class Channel:
    """An open channel. It is the `Session` of its client.

    The client's events arrive in `methods`, and the log's events in the parts.
    """

    __slots__ = ("connection", "consumers", "core", "methods", "number", "publisher", "session")

    def __init__(self, broker: Broker, connection: Carrier, number: int, parts: ChannelParts = PLAIN) -> None:
        core = ChannelCore(broker, connection, number, self._carry_out, self.fail, parts.outgoing)
        self.connection = connection
        self.number = number
        self.session = core.session
        self.core = core
        self.methods = core.methods
        self.publisher = parts.publishing(core)
        self.consumers = parts.consuming(core)

    def facts(self) -> SessionFacts:
        core, transaction = self.core, self.core.transaction
        return SessionFacts(
            self.number,
            core.confirming,
            transaction is not None,
            len(self.consumers.all),
            core.outgoing.unacked,
            self.publisher.unconfirmed,
            0 if transaction is None else transaction.messages,
            0 if transaction is None else transaction.acknowledgements,
            self.consumers.prefetch,
            self.consumers.prefetch_of_all,
            core.counts,
        )

    # Events from the client

    def _carry_out(self, event: Event) -> None:
        try:
            check_octets(event, self.core.broker.machine.version)
            match event:
                case Publishes():
                    self.publisher.publish(event)
                case Acks():
                    self.consumers.acknowledge(event)
                case Method():
                    self._method(event)
                case ChannelFault():
                    self.fail(event.error)
                case ChannelCloseRequested():
                    self.core.outgoing.hurry_answers()
                    self.end()
                    self.connection.channel_closed(self)
        except ConnectionFault as error:
            self.connection.fail(error)
        except Unpublished as unpublished:
            self._refused(unpublished.rest, unpublished.refused, PUBLISH)
        except AccessRefused as refused:
            self._refused(event, refused, _method_of(event))
        except ChannelError as error:
            self.fail(error)
        except Exception as error:  # noqa: BLE001  # it is logged
            # Catch it here, too, because held back methods are carried out while the log's effects are dispatched.
            self.connection.unexpected(error)

    def _refused(self, event: Event, refused: AccessRefused, method: tuple[int, int]) -> None:
        """Fail the channel.

        But first check again, because the right may just have been granted through a different node.
        """
        if self.core.access.certain:
            self.fail(ChannelError(ReplyCode.ACCESS_REFUSED, str(refused), *method))
        else:
            self.methods.recheck(event)

    def _method(self, event: Method) -> None:
        core, frame = self.core, event.frame
        if core.has_published and frame.name in _ANSWERED_HERE:
            core.has_published = False
            self.methods.recheck(event)
            return
        handler = _HANDLERS.get(frame.name)
        if handler is None:
            raise ConnectionFault(
                ReplyCode.NOT_IMPLEMENTED, f"method {frame.name} is not implemented", *_method_of(event)
            )
        self.publisher.end_run()
        arguments: commands.Table | None = getattr(frame, "arguments", None)
        if arguments:
            _check_arguments(event, arguments)
        handler(self, frame)

    # Events from the log

    def failed(self, failure: effects.Failed) -> None:
        self.core.has_failed = True
        error = error_of(failure)
        if isinstance(error, ConnectionFault):
            self.connection.fail(error)
        else:
            self.fail(error)

    def replied(self, result: effects.Result) -> None:
        self.methods.replied(result)

    @property
    def answered(self) -> int:
        return self.methods.answered

    @property
    def waits_for_answer(self) -> bool:
        return self.methods.waits_for_answer

    def needed_from(self) -> int | None:
        return self.core.outgoing.needed_from()

    # Ends

    @property
    def closed(self) -> bool:
        return self.core.closed

    def fail(self, error: AmqpError) -> None:
        """Close the channel with an error."""
        if not self.closed:
            self.end()
            self.connection.fail_channel(self, error)

    def end(self) -> None:
        """End the channel. Its unacknowledged messages return to their queues."""
        if not self.closed:
            self.publisher.end()
            self.core.end()
            self.core.broker.session_ended(self)


def _method_of(event: Event) -> tuple[int, int]:
    """Return the class and method numbers of an event, for the error that closes the channel."""
    if not isinstance(event, Method):
        return 0, 0
    return event.frame.index >> 16, event.frame.index & 0xFFFF


def _check_arguments(event: Method, arguments: commands.Table) -> None:
    """Raise ChannelError if a table is too large, because the log would refuse it."""
    try:
        check_table_size(f"carry out {event.frame.name.lower()}", arguments)
    except Refused as refused:
        raise amqp_error(refused.code, refused.text, *_method_of(event)) from None


def _flow(core: ChannelCore, frame: amqp.Channel.Flow) -> None:
    if not frame.active:
        raise ConnectionFault(ReplyCode.NOT_IMPLEMENTED, "active=false", 20, 20)
    core.send(amqp.Channel.FlowOk(active=True))


def _request_access(core: ChannelCore, _frame: AccessRequest) -> None:
    core.send(AccessRequestOk())


def _of_core(handler: Callable[[ChannelCore, Any], None]) -> Callable[[Channel, Any], None]:
    return lambda channel, frame: handler(channel.core, frame)


def _of_publishing(handler: Callable[[PublishingMethods, Any], None]) -> Callable[[Channel, Any], None]:
    return lambda channel, frame: handler(channel.publisher, frame)


def _of_consuming(handler: Callable[[ConsumingMethods, Any], None]) -> Callable[[Channel, Any], None]:
    return lambda channel, frame: handler(channel.consumers, frame)


_HANDLERS: dict[str, Callable[[Channel, Any], None]] = {
    "Channel.Flow": _of_core(_flow),
    "Access.Request": _of_core(_request_access),
    **{name: _of_core(handler) for name, handler in declaring.HANDLERS.items()},
    **{name: _of_core(handler) for name, handler in transacting.HANDLERS.items()},
    **{name: _of_publishing(handler) for name, handler in publishing.HANDLERS.items()},
    **{name: _of_consuming(handler) for name, handler in consuming.HANDLERS.items()},
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
"""Methods that are answered without the log, always or in some cases."""
