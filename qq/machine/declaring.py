"""What has a name: queues, exchanges, bindings, users, policies.

Lives here: the commands that declare, delete and configure. Not here: the rules (catalog.py, arguments.py,
policies.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qq.machine.catalog import User
from qq.machine.effects import Done, QueueDeclared, QueueDeleted, QueuePurged
from qq.machine.errors import precondition_failed, the_queue
from qq.machine.policies import Policy
from qq.routing.exchanges import Destination, DestinationKind

if TYPE_CHECKING:
    from qq.machine.catalog import Owner
    from qq.machine.commands import (
        BindExchange,
        BindQueue,
        ConnectionDown,
        DeclareExchange,
        DeclareQueue,
        DeleteExchange,
        DeletePolicy,
        DeleteQueue,
        DeleteUser,
        LimitPublishers,
        PurgeQueue,
        PutPolicy,
        PutUser,
        Table,
        UnbindExchange,
        UnbindQueue,
    )
    from qq.machine.core import Core


class Declaring:
    """Carries out the commands that change the catalog."""

    def __init__(self, core: Core) -> None:
        self._core = core

    # Queues

    def declare_queue(self, command: DeclareQueue) -> QueueDeclared:
        core = self._core
        owner = (core.origin, command.connection)
        name = _stripped(command.name)
        if command.passive:
            queue = core.catalog.queue(name or core.last_declared(command.session), owner)
        else:
            queue = core.catalog.declare_queue(command, name, owner, core.generated_name())
        queue.used_ms = core.time_ms
        core.touch(queue)
        core.session(core.origin, command.session).queue = queue.name
        core.serve(queue)
        return QueueDeclared(queue.name, queue.ready, queue.consumers)

    def delete_queue(self, command: DeleteQueue) -> QueueDeleted:
        core = self._core
        name = _stripped(command.name) or core.last_declared(command.session)
        if name not in core.catalog.queues:
            return QueueDeleted(0)
        queue = core.catalog.queue(name, (core.origin, command.connection))
        core.serve(queue)
        if command.if_empty and queue.messages:
            raise precondition_failed(f"{the_queue(name)} not empty")
        if command.if_unused and queue.consumers:
            raise precondition_failed(f"{the_queue(name)} in use")
        core.remove_queue(queue)
        return QueueDeleted(queue.ready)

    def purge_queue(self, command: PurgeQueue) -> QueuePurged:
        core = self._core
        queue = core.queue(command.session, command.connection, command.name)
        core.serve(queue)
        purged = queue.purge()
        core.dying.pop(queue, None)
        core.touch(queue)
        return QueuePurged(purged)

    def connection_down(self, command: ConnectionDown) -> None:
        core = self._core
        for queue in core.catalog.owned_queues((core.origin, command.connection)):
            core.remove_queue(queue)

    # Exchanges and bindings

    def bind_queue(self, command: BindQueue) -> Done:
        self._core.catalog.bind(*self._queue_binding(command))
        return Done()

    def unbind_queue(self, command: UnbindQueue) -> Done:
        self._core.catalog.unbind(*self._queue_binding(command))
        return Done()

    def _queue_binding(
        self, command: BindQueue | UnbindQueue
    ) -> tuple[str, Destination, str, Table, Owner | None]:
        session, connection, queue, exchange, routing_key, arguments = command
        name = _stripped(queue) or self._core.last_declared(session)
        # RabbitMQ: with neither queue nor routing key given, both are the queue declared last.
        key = routing_key or ("" if queue else name)
        destination = Destination(DestinationKind.QUEUE, name)
        return _stripped(exchange), destination, key, arguments, (self._core.origin, connection)

    def bind_exchange(self, command: BindExchange) -> Done:
        self._core.catalog.bind(*_exchange_binding(command))
        return Done()

    def unbind_exchange(self, command: UnbindExchange) -> Done:
        self._core.catalog.unbind(*_exchange_binding(command))
        return Done()

    def declare_exchange(self, command: DeclareExchange) -> Done:
        self._core.catalog.declare_exchange(command, _stripped(command.name))
        return Done()

    def delete_exchange(self, command: DeleteExchange) -> Done:
        self._core.catalog.delete_exchange(_stripped(command.name), if_unused=command.if_unused)
        return Done()

    # What operators do

    def put_user(self, command: PutUser) -> None:
        self._core.catalog.put_user(User(*command))

    def delete_user(self, command: DeleteUser) -> None:
        self._core.catalog.delete_user(command.name)

    def put_policy(self, command: PutPolicy) -> None:
        name, operator, pattern, apply_to, priority, definition = command
        policy = Policy(name, pattern, definition, priority, apply_to, operator)
        if self._core.catalog.put_policy(policy):
            self._settings_changed()

    def delete_policy(self, command: DeletePolicy) -> None:
        self._core.catalog.delete_policy(command.name, operator=command.operator)
        self._settings_changed()

    def _settings_changed(self) -> None:
        """Policies hold at once: limits are enforced and timers set anew."""
        core = self._core
        for queue in core.catalog.queues.values():
            core.touch(queue)
            for consumer in queue.holders:
                core.consumer_timers.set(consumer, None)
                core.watch(consumer)

    def limit_publishers(self, command: LimitPublishers) -> None:
        self._core.publishers.configure(command.count, command.age_ms)


def _exchange_binding(command: BindExchange | UnbindExchange) -> tuple[str, Destination, str, Table, None]:
    _, name, source, routing_key, arguments = command
    return (
        _stripped(source),
        Destination(DestinationKind.EXCHANGE, _stripped(name)),
        routing_key,
        arguments,
        None,
    )


def _stripped(name: str) -> str:
    """RabbitMQ drops line ends from the names of queues and exchanges."""
    return name.replace("\r", "").replace("\n", "") if "\r" in name or "\n" in name else name
