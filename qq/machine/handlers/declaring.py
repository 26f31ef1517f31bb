"""Handlers of client declarations: queues, exchanges, bindings."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from qq.machine.catalog.reply_names import REPLY_TO
from qq.machine.handlers.cost_estimate import BINDING_STEPS, COMMAND_STEPS
from qq.machine.handlers.registry import answers
from qq.machine.protocol import commands as c
from qq.machine.protocol.effects import Done, QueueDeclared, QueueDeleted, QueuePurged
from qq.machine.protocol.refusals import not_found, precondition_failed, the_queue
from qq.machine.protocol.work_meter import SERVING_RANGES
from qq.routing.routers import Destination, DestinationKind

if TYPE_CHECKING:
    from qq.machine.catalog.vhost import VirtualHost
    from qq.machine.handlers.core import Core
    from qq.machine.handlers.cost_estimate import Costs
    from qq.machine.queue.queue import QueueOwner
    from qq.tables import Table
_DECLARE_STEPS = 60
_BIND_STEPS = 40
_UNBIND_STEPS = 30


def _queue_steps(costs: Costs, origin: str, command: c.DeleteQueue | c.PurgeQueue) -> int:
    queue = costs.vhost(origin, command.session).queues.get(command.name)
    return COMMAND_STEPS if queue is None else costs.queue_removal_steps(queue)


def _delete_exchange_steps(costs: Costs, origin: str, command: c.DeleteExchange) -> int:
    vhost = costs.vhost(origin, command.session)
    return COMMAND_STEPS + BINDING_STEPS * vhost.count_bindings(command.name)


class DeclarationHandlers:
    """Carries out the commands that change the queues, exchanges and bindings of a virtual host."""

    def __init__(self, core: Core) -> None:
        self._core = core

    # Queues

    @answers(c.DeclareQueue, cost=_DECLARE_STEPS)
    def declare_queue(self, command: c.DeclareQueue) -> QueueDeclared:
        core = self._core
        vhost, owner = core.vhost(command.session), (core.origin, command.connection)
        name = stripped(command.name)
        if command.passive:
            name = name or core.last_declared(command.session)
        if name.startswith(REPLY_TO):
            return self._declare_requester(command.session, vhost, name)
        if command.passive:
            queue, is_new = vhost.queue(name, owner), False
        else:
            core.remove_if_abandoned(vhost, name)
            is_new = name not in vhost.queues
            queue = vhost.declare_queue(command, name, owner, core.version)
        if vhost.is_unreviewed:
            core.review(vhost)
        queue.use(core.available_ms)
        core.touch(queue)
        core.session(core.origin, command.session).queue = queue.name
        if is_new:
            core.work.served += SERVING_RANGES  # a new queue counts as served, because it has no messages
        else:
            core.serve(queue)
        return QueueDeclared(queue.name, queue.ready, queue.consumers)

    def _declare_requester(self, session: int, vhost: VirtualHost, name: str) -> QueueDeclared:
        """Answer the declaration of a direct-reply name, which is always passive. Raise Refused for an unknown name."""
        if name != REPLY_TO and name not in vhost.requesters:
            raise not_found(the_queue(name, vhost.name))
        self._core.session(self._core.origin, session).queue = name
        return QueueDeclared(name, 0, 1)

    @answers(c.DeleteQueue, cost=_queue_steps)
    def delete_queue(self, command: c.DeleteQueue) -> QueueDeleted:
        core = self._core
        vhost = core.vhost(command.session)
        name = stripped(command.name) or core.last_declared(command.session)
        core.remove_if_abandoned(vhost, name)
        if name not in vhost.queues:
            return QueueDeleted(0)
        queue = vhost.queue(name, (core.origin, command.connection))
        core.serve(queue)
        if command.if_empty and queue.messages:
            raise precondition_failed(f"{the_queue(name, vhost.name)} not empty")
        if command.if_unused and (queue.consumers or queue.groups):
            raise precondition_failed(f"{the_queue(name, vhost.name)} in use")
        # RabbitMQ answers first. Some clients treat a cancellation that comes before the answer as an error.
        core.behind_answer += core.take_queue(queue)
        return QueueDeleted(queue.ready)

    @answers(c.PurgeQueue, cost=_queue_steps)
    def purge_queue(self, command: c.PurgeQueue) -> QueuePurged:
        core = self._core
        if core.requester(command.session, command.name) is not None:
            return QueuePurged(0)
        queue = core.queue(command.session, command.connection, command.name)
        core.serve(queue)
        core.stuck_lines.forget(queue)
        purged = queue.purge()
        core.queues_with_dead.pop(queue, None)
        core.touch(queue)
        return QueuePurged(purged)

    # Exchanges and bindings

    @answers(c.BindQueue, cost=_BIND_STEPS)
    def bind_queue(self, command: c.BindQueue) -> Done:
        self._core.vhost(command.session).bind(*self._queue_binding(command))
        return Done()

    @answers(c.UnbindQueue, cost=_UNBIND_STEPS)
    def unbind_queue(self, command: c.UnbindQueue) -> Done:
        core = self._core
        vhost, binding = core.vhost(command.session), self._queue_binding(command)
        destination = binding.destination
        core.remove_if_abandoned(vhost, destination.name)
        vhost.unbind(*binding)
        return Done()

    def _queue_binding(self, command: c.BindQueue | c.UnbindQueue) -> RequestedBinding:
        name = stripped(command.queue) or self._core.last_declared(command.session)
        return queue_binding(command, name, self._core.origin)

    @answers(c.BindExchange, cost=_BIND_STEPS)
    def bind_exchange(self, command: c.BindExchange) -> Done:
        self._core.vhost(command.session).bind(*exchange_binding(command))
        return Done()

    @answers(c.UnbindExchange, cost=_UNBIND_STEPS)
    def unbind_exchange(self, command: c.UnbindExchange) -> Done:
        self._core.vhost(command.session).unbind(*exchange_binding(command))
        return Done()

    @answers(c.DeclareExchange, cost=COMMAND_STEPS)
    def declare_exchange(self, command: c.DeclareExchange) -> Done:
        core = self._core
        vhost = core.vhost(command.session)
        user = core.session(core.origin, command.session).user if core.version >= 12 else None
        vhost.declare_exchange(command, stripped(command.name), user or "")
        if vhost.is_unreviewed:
            self._core.review(vhost)
        return Done()

    @answers(c.DeleteExchange, cost=_delete_exchange_steps)
    def delete_exchange(self, command: c.DeleteExchange) -> Done:
        self._core.vhost(command.session).delete_exchange(stripped(command.name), if_unused=command.if_unused)
        return Done()


class RequestedBinding(NamedTuple):
    """The binding that a command adds or removes."""

    source: str
    destination: Destination
    routing_key: str
    arguments: Table
    user: QueueOwner | None
    """The connection that asks for it; None if the destination is an exchange."""


def queue_binding(command: c.BindQueue | c.UnbindQueue, name: str, origin: str) -> RequestedBinding:
    """Return the binding of the queue `name`, which the command of a node means."""
    _, connection, queue, exchange, routing_key, arguments = command
    # RabbitMQ: with neither queue nor routing key given, both are the queue declared last.
    key = routing_key or ("" if queue else name)
    destination = Destination(DestinationKind.QUEUE, name)
    return RequestedBinding(stripped(exchange), destination, key, arguments, (origin, connection))


def exchange_binding(command: c.BindExchange | c.UnbindExchange) -> RequestedBinding:
    """Return the binding of an exchange that the command means."""
    _, name, source, routing_key, arguments = command
    destination = Destination(DestinationKind.EXCHANGE, stripped(name))
    return RequestedBinding(stripped(source), destination, routing_key, arguments, None)


def stripped(name: str) -> str:
    """Return the name of a queue or an exchange without line ends, as RabbitMQ does."""
    return name.replace("\r", "").replace("\n", "") if "\r" in name or "\n" in name else name
