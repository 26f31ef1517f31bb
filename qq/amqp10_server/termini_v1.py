"""Termini with addresses of version 1, at which the node declares queues before it attaches the link.

Invariant: a queue that an attach declares outlives the link, as in RabbitMQ. A queue with the name that exists is taken
as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qq.amqp10.addresses import TargetAddress
from qq.amqp10.addresses_v1 import is_version1, source_v1, target_v1
from qq.amqp10.conditions import Condition
from qq.amqp10.performatives import TerminusDurability
from qq.amqp10_server.attaching import is_over, own_terminus
from qq.amqp10_server.errors import error_of, error_reply, unauthorized
from qq.amqp10_server.publishing_link import check_names
from qq.machine.protocol import commands
from qq.machine.protocol.effects import Failed
from qq.machine.protocol.queue_types import CLASSIC
from qq.machine.protocol.refusals import the_exchange
from qq.sessions.access import Access, AccessRefused

if TYPE_CHECKING:
    from collections.abc import Callable

    from qq.amqp10.link import Link10
    from qq.amqp10.performatives import AttachFrame, ErrorReply
    from qq.amqp10.session import Session10
    from qq.amqp10_server.command_session import ConnectionCommands
    from qq.amqp10_server.ports import LinkCarrier
    from qq.machine.protocol.commands import Declaration
    from qq.machine.protocol.effects import Result

GENERATED = "amq.gen-"
"""The beginning of the name of a queue that the node declares for a source that is an exchange."""


def has_address_v1(attach: AttachFrame) -> bool:
    """Return whether the terminus on the node's side has an address of version 1."""
    terminus = own_terminus(attach)
    return terminus is not None and terminus.address is not None and is_version1(terminus.address)


class TerminiV1:
    """The termini of a connection that have addresses of version 1."""

    __slots__ = ("_carrier", "_commands")

    def __init__(self, carrier: LinkCarrier, connection_commands: ConnectionCommands) -> None:
        self._carrier = carrier
        self._commands = connection_commands

    def prepare(self, link: Link10, session: Session10, attach: Callable[[TargetAddress], None]) -> None:
        """Declare the queue of a link, if it does not exist, and call `attach` with the address of version 2.

        For a source, that is the address of the queue. Raises ConditionError.
        """
        terminus = own_terminus(link.attach)
        address = "" if terminus is None or terminus.address is None else terminus.address
        is_source = link.attach.role
        target, declares_queue = (source_v1 if is_source else target_v1)(address)
        check_names(target)
        is_durable = terminus is not None and terminus.durable is not TerminusDurability.NONE
        if is_source and target.queue is None:
            name = self._carrier.broker.server_name(GENERATED)
            steps = [_declare(name, is_durable, server_named=True), _bind(name, target)]
            target = TargetAddress("", name, name)
        elif target.queue is not None and declares_queue and not self._is_there(target.queue):
            steps = [_declare(target.queue, is_durable, server_named=False)]
        else:
            attach(target)
            return

        def decide() -> None:
            if is_over(link, session):
                return
            try:
                error = self._refusal_of(steps)
            except AccessRefused as refused:
                self._carrier.end_session(session, unauthorized(str(refused)).error)
                return
            if error is None:
                self._run(link, session, steps, lambda: attach(target))
            else:
                self._carrier.detach(link, error)

        self._carrier.broker.submissions.read(self._carrier.guarded(decide), self._carrier.lane)

    def _refusal_of(self, steps: list[Declaration]) -> ErrorReply | None:
        """Return the error for an exchange that does not exist. Raises AccessRefused if the user lacks a right.

        The node has applied all that was committed before.
        """
        carrier = self._carrier
        vhost = carrier.broker.machine.vhosts.get(carrier.vhost)
        access = Access(carrier.broker.machine, carrier.user, carrier.vhost, carrier.scopes)
        access.certain = True
        for step in steps:
            if isinstance(step, commands.DeclareQueue):
                access.declare_queue(step.name, step.arguments, passive=False)
            elif isinstance(step, commands.BindQueue):
                access.bind("queue", step.queue, step.exchange, step.routing_key)
                if vhost is None or step.exchange not in vhost.exchanges:
                    text = f"no {the_exchange(step.exchange, carrier.vhost)}"
                    return error_reply(Condition.NOT_FOUND, text)
        return None

    def _run(
        self, link: Link10, session: Session10, steps: list[Declaration], attach: Callable[[], None]
    ) -> None:
        """Carry out commands one after the other, and then attach the link. An error refuses the link."""
        if is_over(link, session):
            return
        if not steps:
            attach()
            self._carrier.schedule_flush()
            return
        step, *further = steps

        def answered(result: Result | Failed) -> None:
            is_made = isinstance(step, commands.DeclareQueue) and self._is_there(step.name)
            if isinstance(result, Failed) and not is_made:
                self._carrier.detach(link, error_of(result.code, result.text))
            else:
                self._run(link, session, further, attach)

        self._commands.run(step, answered)

    def _is_there(self, queue: str) -> bool:
        vhost = self._carrier.broker.machine.vhosts.get(self._carrier.vhost)
        return vhost is not None and queue in vhost.queues


def _declare(name: str, is_durable: bool, *, server_named: bool) -> Declaration:
    return commands.DeclareQueue(
        0, 0, name, False, is_durable, False, False, server_named, {"x-queue-type": CLASSIC}
    )


def _bind(queue: str, source: TargetAddress) -> Declaration:
    return commands.BindQueue(0, 0, queue, source.exchange, source.routing_key, {})
