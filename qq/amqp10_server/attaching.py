"""The terminus of a link on the node's side; for a consumer also its queue, the answer, and the arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qq.amqp10.addresses import source_queue
from qq.amqp10.conditions import Condition
from qq.amqp10.link import LinkState
from qq.amqp10.performatives import Coordinator, ReleasedState, SourceTerminus, TargetTerminus
from qq.amqp10.session import SessionPhase
from qq.amqp10.values import Int, Symbol, UInt
from qq.amqp10_server.errors import ConditionFault, error_reply

if TYPE_CHECKING:
    from qq.amqp10.link import Link10
    from qq.amqp10.performatives import AttachFrame
    from qq.amqp10.session import Session10
    from qq.amqp10.values import Value
    from qq.machine.protocol.commands import Table

OUTCOMES = ("amqp:accepted:list", "amqp:rejected:list", "amqp:released:list", "amqp:modified:list")
"""The outcomes of deliveries."""
PRIORITY, CONSUMER_TIMEOUT = Symbol("rabbitmq:priority"), Symbol("rabbitmq:consumer-timeout")
"""Properties of a link: the priority of its consumer, and milliseconds that it may hold a delivery."""
PAIRED = Symbol("paired")
"""Property of a link: whether it belongs to a pair of links to the management node."""
_PROPERTIES = (PRIORITY, CONSUMER_TIMEOUT, PAIRED)


def own_terminus(attach: AttachFrame) -> SourceTerminus | TargetTerminus | None:
    """Return the terminus on the node's side. Return None for a coordinator of transactions."""
    terminus = attach.source if attach.role else attach.target
    return None if isinstance(terminus, Coordinator) else terminus


def is_over(link: Link10, session: Session10) -> bool:
    """Return whether the link has ended, or ends with its session."""
    return link.state in (LinkState.DETACHING, LinkState.DETACHED) or session.state is not SessionPhase.OPEN


def check_new(attach: AttachFrame) -> None:
    """Raise ConditionFault if a client wants to resume a link with its unsettled deliveries."""
    if attach.unsettled:
        raise ConditionFault(
            error_reply(Condition.NOT_IMPLEMENTED, "links cannot be resumed (unsettled of attach)")
        )


def essential(attach: AttachFrame) -> AttachFrame:
    """Return the part of an attach that the server uses, because a link keeps it: the rest may take much memory."""
    properties: dict[Value, Value] = {
        key: value
        for key, value in (attach.properties or {}).items()
        if key in _PROPERTIES and isinstance(value, int)
    }
    source, target = attach.source, attach.target
    if source is not None:
        source = source._replace(filter=None, dynamic_node_properties=None)
    if isinstance(target, TargetTerminus):
        target = target._replace(dynamic_node_properties=None)
    return attach._replace(
        source=source,
        target=target,
        unsettled=None,
        offered_capabilities=(),
        desired_capabilities=(),
        properties=properties,
    )


def queue_of_source(attach: AttachFrame) -> str:
    """Return the queue that a client wants to consume from. Raises ConditionError, ConditionFault."""
    source = attach.source
    if source is None or source.address is None:
        raise ConditionFault(
            error_reply(Condition.INVALID_FIELD, "a receiver's attach needs a source with an address")
        )
    return source_queue(source.address)


def accepted_source(attach: AttachFrame) -> SourceTerminus:
    """Return the source in the answer. Raises ConditionFault for outcomes that queues do not have."""
    source = attach.source or SourceTerminus()
    unknown = [outcome for outcome in source.outcomes if outcome not in OUTCOMES]
    if unknown:
        raise ConditionFault(
            error_reply(Condition.NOT_IMPLEMENTED, f"outcomes not supported: {', '.join(unknown)}")
        )
    return source._replace(
        distribution_mode="move",
        filter=None,
        default_outcome=ReleasedState(),
        outcomes=source.outcomes or OUTCOMES,
    )


def consumer_arguments(attach: AttachFrame) -> Table:
    """Return the arguments of the consumer, as AMQP 0-9-1 has them."""
    properties = attach.properties or {}
    arguments: Table = {}
    priority, timeout_ms = properties.get(PRIORITY), properties.get(CONSUMER_TIMEOUT)
    if isinstance(priority, Int):
        arguments["x-priority"] = int(priority)
    if isinstance(timeout_ms, UInt):
        arguments["x-consumer-timeout"] = int(timeout_ms)
    return arguments
