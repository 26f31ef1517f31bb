"""Carries out a request to the management node: rights, the command for the log, and the status of the answer.

Invariant: `carry_out` is called when this node has applied all that was committed before. So a refusal is final, and an
answer from the state is up to date.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from qq.amqp10.conditions import Condition
from qq.amqp10_server.errors import ConditionFault, error_reply
from qq.amqp10_server.management_answers import (
    ANSWER_BYTES_MAX,
    TOO_LARGE,
    ManagementAnswer,
    QueueReplicas,
    bindings_body,
    count_body,
    queue_body,
    reply_queue_body,
)
from qq.amqp10_server.management_requests import (
    BindingCreation,
    BindingDeletion,
    BindingsQuery,
    ExchangeDeclaration,
    ExchangeDeletion,
    ManagementRefused,
    QueueDeclaration,
    QueueDeletion,
    QueuePurge,
    QueueQuery,
    TokenRenewal,
)
from qq.amqp10_server.ports import LinkCarrier
from qq.errors import ReplyCode
from qq.machine.catalog.limits import MAX_QUEUES, limit_of
from qq.machine.catalog.vhost import (
    RESERVED,
    arguments_hash,
    binding_arguments,
    check_quorum_properties,
)
from qq.machine.policy.arguments import check_exchange_argument
from qq.machine.protocol import commands
from qq.machine.protocol.codec import InvalidCommand, check_command
from qq.machine.protocol.effects import Failed, QueueDeleted, QueuePurged
from qq.machine.protocol.queue_types import QUORUM, with_known_type
from qq.machine.protocol.refusals import Refused, the_exchange, the_queue
from qq.machine.queue.queue import NOBODY
from qq.routing.exchanges import DEFAULT_EXCHANGE, check_exchange
from qq.routing.routers import Binding, DestinationKind, InvalidExchange

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qq.amqp10.values import Value
    from qq.amqp10_server.command_session import ConnectionCommands
    from qq.amqp10_server.management_requests import BindingEnds, ManagementRequest
    from qq.errors import AmqpError
    from qq.machine.catalog.vhost import VirtualHost
    from qq.machine.protocol.commands import Declaration
    from qq.machine.protocol.effects import Result
    from qq.machine.queue.queue import Queue
    from qq.sessions.access import Access, Kind
    from qq.tables import Table

_KINDS: dict[DestinationKind, Kind] = {DestinationKind.QUEUE: "queue", DestinationKind.EXCHANGE: "exchange"}


class ManagedCarrier(LinkCarrier, Protocol):
    """The connection of a management node."""

    @property
    def members(self) -> Sequence[str]:
        """The names of the cluster's members."""
        ...

    def renew_token(self, token: bytes, answer: Callable[[str | None], None], /) -> bool:
        """Accept a newer token of the same user. Call `answer` with None for a valid token, else with the reason."""
        ...

    def fail(self, error: AmqpError, /) -> None:
        """Close the connection with an error."""
        ...


class RequestExecution(NamedTuple):
    """The execution of a request, which calls `answer` once, at once or later."""

    carrier: ManagedCarrier
    commands: ConnectionCommands
    access: Access
    answer: Callable[[ManagementAnswer], None]

    def carry_out(self, request: ManagementRequest) -> None:
        """Carry out a request. Raises ManagementRefused, or AccessRefused if the user lacks a right."""
        match request:
            case QueueQuery(name):
                self.answer(ManagementAnswer(200, self._found(name)))
            case QueueDeclaration():
                self._put_queue(request)
            case QueueDeletion(name):
                self._delete_queue(name)
            case QueuePurge(name):
                self._purge_queue(name)
            case ExchangeDeclaration():
                self._put_exchange(request)
            case ExchangeDeletion(name):
                self._delete_exchange(name)
            case BindingCreation(ends, arguments):
                self._change_binding(ends, _bind(ends, arguments))
            case BindingsQuery(ends):
                self._list_bindings(ends)
            case BindingDeletion(ends, arguments_hash_):
                self._delete_binding(ends, arguments_hash_)
            case TokenRenewal(token):
                self.carrier.renew_token(token, self._token_checked)

    # Queues

    def _put_queue(self, request: QueueDeclaration) -> None:
        name, durable, exclusive, auto_delete, given = request
        thing = the_queue(name, self.carrier.vhost)
        _check_not_reserved(name, thing)
        arguments = with_known_type(given)
        self.access.declare_queue(name, arguments, passive=False)
        is_there = self._find_queue(name) is not None
        command = commands.DeclareQueue(0, 0, name, False, durable, exclusive, auto_delete, False, arguments)
        try:
            check_exchange_argument(thing, "x-dead-letter-exchange", arguments)
            if not is_there and arguments.get("x-queue-type") == QUORUM:
                check_quorum_properties(thing, command)
        except Refused as refusal:
            raise ManagementRefused(400, refusal.text) from None

        def refused(failure: Failed) -> int:
            if failure.code != ReplyCode.PRECONDITION_FAILED:
                return 400
            return 409 if is_there or self._has_room_for_queue() else 403

        def declared(_result: Result) -> ManagementAnswer:
            self.carrier.broker.counters.queues_declared += 1
            return ManagementAnswer(200 if is_there else 201, self._described(self._queue(name)))

        self._run(command, declared, refused)

    def _has_room_for_queue(self) -> bool:
        vhost = self._vhost
        limit = limit_of(vhost.limits, MAX_QUEUES)
        return limit is None or len(vhost.queues) < limit

    def _delete_queue(self, name: str) -> None:
        self.access.check("configure", "queue", name)
        if not name:
            self.answer(ManagementAnswer(200, count_body(0)))
            return

        def deleted(result: Result) -> ManagementAnswer:
            return ManagementAnswer(
                200, count_body(result.messages if isinstance(result, QueueDeleted) else 0)
            )

        self._run(commands.DeleteQueue(0, 0, name, False, False), deleted)

    def _purge_queue(self, name: str) -> None:
        self.access.check("read", "queue", name)
        self._check_named(name)

        def purged(result: Result) -> ManagementAnswer:
            return ManagementAnswer(
                200, count_body(result.messages if isinstance(result, QueuePurged) else 0)
            )

        def refused(failure: Failed) -> int:
            return 404 if failure.code == ReplyCode.NOT_FOUND else 400

        self._run(commands.PurgeQueue(0, 0, name), purged, refused)

    def _check_named(self, queue: str) -> None:
        """Raise ManagementRefused for an empty name: in commands of the log it means the queue declared last."""
        if not queue:
            raise ManagementRefused(400, f"no {the_queue(queue, self.carrier.vhost)}")

    def _find_queue(self, name: str) -> Queue | None:
        queue = self._vhost.queues.get(name)
        return None if queue is None or queue.owner == NOBODY else queue

    def _queue(self, name: str) -> Queue:
        queue = self._find_queue(name)
        if queue is None:
            raise ManagementRefused(404, f"{the_queue(name, self.carrier.vhost)} not found")
        return queue

    def _found(self, name: str) -> Value:
        """Return the description of a queue, or of a name of direct replies while its client waits for them."""
        if name in self._vhost.requesters:
            return reply_queue_body(name, self.carrier.vhost, self._replicas)
        return self._described(self._queue(name))

    def _described(self, queue: Queue) -> Value:
        return queue_body(queue, self._replicas)

    @property
    def _replicas(self) -> QueueReplicas:
        return QueueReplicas(self.carrier.broker.leader, self.carrier.members)

    # Exchanges

    def _put_exchange(self, request: ExchangeDeclaration) -> None:
        name, kind, durable, auto_delete, internal, arguments = request
        try:
            check_exchange(kind, arguments)
        except InvalidExchange as invalid:
            raise ManagementRefused(400, str(invalid)) from None
        self.access.declare_exchange(name, arguments, passive=False)
        is_there = name in self._vhost.exchanges
        if not is_there:
            _check_not_reserved(name, the_exchange(name, self.carrier.vhost))

        def refused(failure: Failed) -> int:
            return 409 if is_there and failure.code == ReplyCode.PRECONDITION_FAILED else 400

        command = commands.DeclareExchange(0, name, kind, False, durable, auto_delete, internal, arguments)
        self._run(command, _no_content, refused)

    def _delete_exchange(self, name: str) -> None:
        _check_not_reserved(name, the_exchange(name, self.carrier.vhost))
        self.access.delete_exchange(name)
        self._run(commands.DeleteExchange(0, name, False), _no_content)

    # Bindings

    def _change_binding(self, ends: BindingEnds, command: Declaration) -> None:
        self._check_binding_rights(ends)
        self._run(command, _no_content)

    def _check_binding_rights(self, ends: BindingEnds) -> None:
        source, (kind, name), key = ends
        self._check_named(name)
        self.access.bind(_KINDS[kind], name, source, key)

    def _list_bindings(self, ends: BindingEnds) -> None:
        bindings = self._bindings(ends)
        if sum(len(each.arguments) for each in bindings) > ANSWER_BYTES_MAX:
            raise ManagementRefused(400, TOO_LARGE)
        self.answer(ManagementAnswer(200, bindings_body(bindings)))

    def _bindings(self, ends: BindingEnds) -> list[Binding]:
        source, destination, key = ends
        vhost = self._vhost
        if source == DEFAULT_EXCHANGE:
            is_bound = destination.kind is DestinationKind.QUEUE and destination.name == key in vhost.queues
            return [Binding(source, destination, key, b"")] if is_bound else []
        to_it, from_it = vhost.bindings_of(destination), vhost.bindings_from(source)
        fewer = to_it if len(to_it) <= len(from_it) else from_it
        return [each for each in fewer if each[:3] == ends]

    def _delete_binding(self, ends: BindingEnds, wanted_hash: str) -> None:
        self._check_binding_rights(ends)
        for binding in self._bindings(ends):
            if arguments_hash(binding) == wanted_hash:
                self._run(_unbind(binding), _no_content)
                return
        self.answer(ManagementAnswer(204))

    # Tokens

    def _token_checked(self, why: str | None) -> None:
        if why is None:
            self.answer(ManagementAnswer(204))
        else:
            error = error_reply(Condition.UNAUTHORIZED_ACCESS, f"credential update was refused: {why}")
            self.carrier.fail(ConditionFault(error))

    # Commands

    def _run(
        self,
        command: Declaration,
        succeeded: Callable[[Result], ManagementAnswer],
        refused: Callable[[Failed], int] = lambda _: 400,
    ) -> None:
        """Carry out a command. Answer as `succeeded` says, or with the status that `refused` returns.

        The log gets no command that would change nothing.
        """
        try:
            check_command(command, self.carrier.broker.machine.version)
        except InvalidCommand as invalid:
            raise ManagementRefused(400, str(invalid)) from None

        def answered(result: Result | Failed) -> None:
            try:
                answer = (
                    ManagementAnswer(refused(result), result.text)
                    if isinstance(result, Failed)
                    else succeeded(result)
                )
            except ManagementRefused as gone:
                answer = ManagementAnswer(gone.status, gone.text)
            self.answer(answer)

        unchanged = self.commands.read(command, self._vhost)
        if unchanged is None:
            self.commands.run(command, answered)
        else:
            answered(unchanged)

    @property
    def _vhost(self) -> VirtualHost:
        vhost = self.carrier.broker.machine.vhosts.get(self.carrier.vhost)
        if vhost is None:
            raise ManagementRefused(404, f"vhost '{self.carrier.vhost}' not found")
        return vhost


def _no_content(_result: Result) -> ManagementAnswer:
    return ManagementAnswer(204)


def _check_not_reserved(name: str, thing: str) -> None:
    if name.startswith(RESERVED):
        raise ManagementRefused(403, f"{thing} starts with reserved prefix '{RESERVED}'")


def _bind(ends: BindingEnds, arguments: Table) -> Declaration:
    source, (kind, name), key = ends
    if kind is DestinationKind.QUEUE:
        return commands.BindQueue(0, 0, name, source, key, arguments)
    return commands.BindExchange(0, name, source, key, arguments)


def _unbind(binding: Binding) -> Declaration:
    source, (kind, name), key, _ = binding
    arguments = binding_arguments(binding)
    if kind is DestinationKind.QUEUE:
        return commands.UnbindQueue(0, 0, name, source, key, arguments)
    return commands.UnbindExchange(0, name, source, key, arguments)
