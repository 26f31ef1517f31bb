"""Dispatch of the log's effects to the sessions of this node.

Every node computes the same effects from the same log. Each node carries out those of its own sessions.

Invariant: effects are dispatched in the order of the log, and no receiver waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qq.machine.protocol.effects import (
    ConnectionForced,
    ConsumerGone,
    ConsumerState,
    DeadLettered,
    Deliver,
    DeliveriesReleased,
    DeliveryTimeout,
    DirectReply,
    Effect,
    Failed,
    OriginEvicted,
    Rejected,
    Reply,
    Returned,
    SessionEffect,
)
from qq.sessions.ports import CreditedConsumers
from qq.sessions.resume import resume

if TYPE_CHECKING:
    from collections.abc import Iterable

    from qq.metrics.counters import Counters
    from qq.sessions.ports import Connection, Session


class Dispatcher:
    """The connections and sessions of this node by number, which get the effects for them."""

    def __init__(self, counters: Counters) -> None:
        self.connections: dict[int, Connection] = {}
        self.sessions: dict[int, Session] = {}
        self._counters = counters
        self.is_live = False
        """Whether effects belong to this process start. An earlier process has already counted the effects before
        that."""

    def carry_out(self, effect: Effect) -> None:
        """Pass an effect to the session that it concerns, if the session still exists."""
        if isinstance(effect, OriginEvicted):
            return
        if isinstance(effect, DeadLettered):
            if self.is_live:
                self._counters.dead_lettered[effect.reason, effect.strategy] += effect.count
            return
        session = self.sessions.get(effect.session)
        if session is None:
            self._carry_out_connection(effect)
            return
        consumers = session.consumers
        match effect:
            case Deliver() if consumers is not None:
                consumers.deliver(effect)
            case Reply():
                session.replied(effect.result)
            case Failed():
                session.failed(effect)
            case Returned():
                session.publisher.unroutable(effect)
            case Rejected():
                last = effect.first_seq + effect.count - 1
                session.publisher.refuse(effect.first_seq, last, effect.queue)
            case DirectReply() if consumers is not None:
                consumers.direct_reply(effect)
            case DeliveryTimeout() if consumers is not None:
                consumers.timed_out(effect)
            case ConsumerGone() if consumers is not None:
                consumers.cancelled(effect.consumer)
            case ConsumerState() if isinstance(consumers, CreditedConsumers):
                consumers.state(effect)
            case DeliveriesReleased() if isinstance(consumers, CreditedConsumers):
                consumers.released(effect)
            # `Known` reaches a session only through `resume`; `ConnectionForced` always goes to a connection.
            case _:
                pass

    def _carry_out_connection(self, effect: SessionEffect) -> None:
        """Pass an effect to the connection that it concerns, if the connection still exists.

        Its id is never a session's.
        """
        connection = self.connections.get(effect.session)
        if connection is None:
            return
        match effect:
            case Reply():
                if not connection.is_admitted:  # after a snapshot, the last answer arrives again
                    connection.is_admitted = True
                    connection.admitted()
            case Failed():
                connection.not_admitted(effect)
            case ConnectionForced():
                connection.force_close(effect)
            case _:
                pass

    def resume(self, outstanding: Iterable[Effect]) -> None:
        """Pass on the effects that the state owes this node's sessions, in place of those that a snapshot skipped."""
        for effect in outstanding:
            if isinstance(effect, OriginEvicted | DeadLettered):
                continue
            session = self.sessions.get(effect.session)
            if session is None:
                self._carry_out_connection(effect)
            else:
                resume(session, effect)

    def needed_from(self) -> int | None:
        """Return the lowest log index with a message that waits for a client and is in no queue now, or None."""
        indexes = [session.needed_from() for session in self.sessions.values()]
        return min((index for index in indexes if index is not None), default=None)
