"""The methods of a channel for queues, exchanges and bindings.

Invariant: a method without a queue name means the queue that the channel has declared last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pamqp.commands as amqp

from qq.amqp.encoding import declare_ok
from qq.errors import ChannelError, ReplyCode
from qq.machine.catalog.reply_names import REPLY_PREFIX, REPLY_TO
from qq.machine.handlers.declaring import stripped
from qq.machine.protocol import commands
from qq.machine.protocol.queue_types import with_known_type
from qq.machine.protocol.refusals import the_queue

if TYPE_CHECKING:
    from collections.abc import Callable

    from qq.amqp_server.channel.core import ChannelCore
    from qq.machine.protocol import effects

DECLARE = (50, 10)


def declare_exchange(core: ChannelCore, frame: amqp.Exchange.Declare) -> None:
    arguments = frame.arguments or {}
    core.access.declare_exchange(frame.exchange, arguments, passive=frame.passive)
    command = commands.DeclareExchange(
        core.session,
        frame.exchange,
        frame.exchange_type,
        frame.passive,
        frame.durable,
        frame.auto_delete,
        frame.internal,
        arguments,
    )
    core.request(command, lambda _: amqp.Exchange.DeclareOk(), nowait=frame.nowait)


def delete_exchange(core: ChannelCore, frame: amqp.Exchange.Delete) -> None:
    core.access.delete_exchange(frame.exchange)
    command = commands.DeleteExchange(core.session, frame.exchange, frame.if_unused)
    core.request(command, lambda _: amqp.Exchange.DeleteOk(), nowait=frame.nowait)


def bind_exchange(core: ChannelCore, frame: amqp.Exchange.Bind) -> None:
    core.access.bind("exchange", frame.destination, frame.source, frame.routing_key)
    command = commands.BindExchange(
        core.session, frame.destination, frame.source, frame.routing_key, frame.arguments or {}
    )
    core.request(command, lambda _: amqp.Exchange.BindOk(), nowait=frame.nowait)


def unbind_exchange(core: ChannelCore, frame: amqp.Exchange.Unbind) -> None:
    core.access.bind("exchange", frame.destination, frame.source, frame.routing_key)
    command = commands.UnbindExchange(
        core.session, frame.destination, frame.source, frame.routing_key, frame.arguments or {}
    )
    core.request(command, lambda _: amqp.Exchange.UnbindOk(), nowait=frame.nowait)


def declare_queue(core: ChannelCore, frame: amqp.Queue.Declare) -> None:
    arguments = with_known_type(frame.arguments or {})
    name = stripped(frame.queue)
    if frame.passive and not name:
        raise ChannelError(ReplyCode.NOT_FOUND, f"no {the_queue(name, core.connection.vhost)}", *DECLARE)
    server_named = not name
    if server_named:
        name = core.broker.server_name("amq.gen-")
    if not name.startswith(REPLY_TO):
        core.access.declare_queue(name, arguments, passive=frame.passive)
    command = commands.DeclareQueue(
        core.session,
        core.connection.id,
        name,
        frame.passive,
        frame.durable,
        frame.exclusive,
        frame.auto_delete,
        server_named,
        arguments,
    )

    def answer(result: effects.QueueDeclared) -> bytes:
        core.broker.counters.queues_declared += 1
        core.last_queue = result.name
        return declare_ok(core.number, result.name, result.messages, result.consumers)

    core.request(command, answer, nowait=frame.nowait)


def _binding(core: ChannelCore, frame: amqp.Queue.Bind | amqp.Queue.Unbind) -> tuple[str, str]:
    """Return the queue and the routing key that a method means. Raises AccessRefused."""
    queue = core.queue_name(stripped(frame.queue))
    routing_key = frame.routing_key or ("" if frame.queue else queue)
    if queue and not queue.startswith(REPLY_PREFIX):  # otherwise the log refuses the request
        core.access.bind("queue", queue, frame.exchange, routing_key)
    return queue, routing_key


def bind_queue(core: ChannelCore, frame: amqp.Queue.Bind) -> None:
    queue, routing_key = _binding(core, frame)
    command = commands.BindQueue(
        core.session, core.connection.id, queue, frame.exchange, routing_key, frame.arguments or {}
    )
    core.request(command, lambda _: amqp.Queue.BindOk(), nowait=frame.nowait)


def unbind_queue(core: ChannelCore, frame: amqp.Queue.Unbind) -> None:
    queue, routing_key = _binding(core, frame)
    command = commands.UnbindQueue(
        core.session, core.connection.id, queue, frame.exchange, routing_key, frame.arguments or {}
    )
    core.request(command, lambda _: amqp.Queue.UnbindOk())


def purge_queue(core: ChannelCore, frame: amqp.Queue.Purge) -> None:
    core.check_queue("read", frame.queue)
    command = commands.PurgeQueue(core.session, core.connection.id, core.queue_name(frame.queue))
    core.request(command, lambda result: amqp.Queue.PurgeOk(result.messages), nowait=frame.nowait)


def delete_queue(core: ChannelCore, frame: amqp.Queue.Delete) -> None:
    name = stripped(frame.queue)
    core.check_queue("configure", name)
    command = commands.DeleteQueue(
        core.session, core.connection.id, core.queue_name(name), frame.if_unused, frame.if_empty
    )
    core.request(command, lambda result: amqp.Queue.DeleteOk(result.messages), nowait=frame.nowait)


HANDLERS: dict[str, Callable[[ChannelCore, Any], None]] = {
    "Exchange.Declare": declare_exchange,
    "Exchange.Delete": delete_exchange,
    "Exchange.Bind": bind_exchange,
    "Exchange.Unbind": unbind_exchange,
    "Queue.Declare": declare_queue,
    "Queue.Bind": bind_queue,
    "Queue.Unbind": unbind_queue,
    "Queue.Purge": purge_queue,
    "Queue.Delete": delete_queue,
}
