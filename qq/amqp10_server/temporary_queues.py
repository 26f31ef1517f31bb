"""Dynamic termini of links: the server makes a queue for the link, which ends with it.

Invariant: a temporary queue is exclusive to its connection, so it also ends with the connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qq.amqp10.addresses import queue_address
from qq.amqp10.conditions import Condition
from qq.amqp10.performatives import TerminusDurability
from qq.amqp10.values import SYMBOL8, Array, Described, Symbol, ULong, Value
from qq.amqp10_server.attaching import is_over, own_terminus
from qq.amqp10_server.errors import ConditionFault, error_of, error_reply, unauthorized
from qq.machine.handlers.declaring import stripped
from qq.machine.protocol import commands
from qq.machine.protocol.effects import Failed
from qq.sessions.access import Access, AccessRefused

if TYPE_CHECKING:
    from collections.abc import Callable

    from qq.amqp10.link import Link10
    from qq.amqp10.performatives import AttachFrame
    from qq.amqp10.session import Session10
    from qq.amqp10_server.command_session import ConnectionCommands
    from qq.amqp10_server.ports import LinkCarrier
    from qq.machine.protocol.effects import Result

TEMPORARY_QUEUE = "temporary-queue"
"""The capability of a dynamic terminus that is a queue."""
PREFIX = "amq.dyn-"
NAME_BYTES = 64
"""Octets of a container's and of a link's name in the name of a queue, at most."""
_DELETE_ON_CLOSE = ULong(0x2B)
_PROPERTIES: dict[Value, Value] = {
    Symbol("lifetime-policy"): Described(_DELETE_ON_CLOSE, []),
    Symbol("supported-dist-modes"): Array(SYMBOL8, [Symbol("move")]),
}


def wants_queue(attach: AttachFrame) -> bool:
    """Return whether the server must make the terminus of the link."""
    terminus = own_terminus(attach)
    return terminus is not None and terminus.dynamic and terminus.address is None


class TemporaryQueues:
    """The temporary queues of a connection."""

    __slots__ = ("_carrier", "_commands", "_names")

    def __init__(self, carrier: LinkCarrier, connection_commands: ConnectionCommands) -> None:
        self._carrier = carrier
        self._commands = connection_commands
        self._names: dict[Link10, str] = {}

    def make(self, link: Link10, session: Session10, container: str, attach: Callable[[], None]) -> None:
        """Make the queue of a link, write its address into the link's terminus, and call `attach`.

        Raises ConditionFault.
        """
        terminus = own_terminus(link.attach)
        if terminus is None or TEMPORARY_QUEUE not in terminus.capabilities:
            text = f"dynamic terminus without capability '{TEMPORARY_QUEUE}' is not supported"
            raise ConditionFault(error_reply(Condition.NOT_IMPLEMENTED, text))
        carrier, broker = self._carrier, self._carrier.broker
        name = broker.server_name(f"{PREFIX}{_shortened(container)}-{_shortened(link.name)}-")
        access = Access(broker.machine, carrier.user, carrier.vhost, carrier.scopes)
        command = commands.DeclareQueue(0, 0, name, False, False, True, False, True, {})

        def declared(result: Result | Failed) -> None:
            if isinstance(result, Failed):
                carrier.detach(link, error_of(result.code, result.text))
                return
            self._names[link] = name
            if is_over(link, session):
                self.delete(link)
                return
            link.attach = _with_queue(link.attach, name)
            attach()
            if is_over(link, session):  # refused for another reason
                self.delete(link)
            carrier.schedule_flush()

        def declare() -> None:
            access.certain = True
            try:
                access.declare_queue(name, {}, passive=False)
            except AccessRefused as refused:
                carrier.end_session(session, unauthorized(str(refused)).error)
            else:
                self._commands.run(command, declared)

        broker.submissions.read(carrier.guarded(declare), carrier.lane)

    def delete(self, link: Link10, deleted: Callable[[], None] = lambda: None) -> None:
        """Delete the queue of a link that ends. Call `deleted` afterwards, and at once for a link without a queue."""
        name = self._names.pop(link, None)
        if name is None:
            deleted()
        else:
            self._commands.run(commands.DeleteQueue(0, 0, name, False, False), lambda _: deleted())


def _shortened(name: str) -> str:
    return stripped(name).encode()[:NAME_BYTES].decode(errors="ignore")


def _with_queue(attach: AttachFrame, name: str) -> AttachFrame:
    """Return the attach with the address of the queue in its terminus."""
    terminus = own_terminus(attach)
    if terminus is None:
        return attach
    made = terminus._replace(
        address=queue_address(name),
        durable=TerminusDurability.NONE,
        expiry_policy="link-detach",
        timeout=0,
        dynamic_node_properties=_PROPERTIES,
        capabilities=(TEMPORARY_QUEUE,),
    )
    return attach._replace(source=made) if attach.role else attach._replace(target=made)
