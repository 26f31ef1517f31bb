"""What a simulated node does for the clients of a recorded run that are connected to it.

Lives here: sessions, which submit commands and hand on what the log tells them; they stand where the broker's sessions
stand in production. Not here: the clients' side (transport.py).

Law: a client hears what its session is told, in that order. All its sessions are over with the life of a node, with its
expulsion, and when it is given a state in place of the entries that led to it: the clients connect anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from chaos.sim.queue_checks import messages_of
from chaos.sim.stored import batch_payloads
from chaos.sim.watched import TAG
from chaos.sim.workload import Client
from cluster.log.segment import CorruptJournal
from qq.machine.codec import encode_batch
from qq.machine.commands import Command, SessionDown
from qq.machine.effects import (
    ConsumerGone,
    Deliver,
    Failed,
    GetOk,
    Rejected,
    Reply,
    Result,
    Returned,
    SessionEffect,
)
from qq.ranges import MESSAGE_BITS, MESSAGE_MASK, Range
from qq.sessions.headers import delivered

if TYPE_CHECKING:
    from collections.abc import Callable

    from chaos.sim.checks import Checks
    from chaos.sim.cluster import SimulatedNode
    from chaos.workloads.transport import Outcome


class Sent(NamedTuple):
    """What a node sends of a message."""

    consumer: int
    message_id: int
    redelivered: bool
    stored: bytes


class Ends(Protocol):
    """A connection, as its node sees it."""

    def tell(self, callback: Callable[..., None], *arguments: object) -> None:
        """Have something called where the client is."""

    def broken(self, why: str) -> None: ...


class Session:
    """What a node knows of a channel."""

    def __init__(self, number: int, connection: Ends) -> None:
        self.number = number
        self.connection = connection
        self.asked: deque[Callable[[Result | list[Sent] | None], None]] = deque()
        """Who waits for answers: they come in the order of the questions, and None if the channel is closed instead."""
        self.outcome: Outcome = "confirmed"
        """Outcome of the message whose confirm comes next."""
        self.receivers: dict[int, Callable[[Sent], None]] = {}
        """Who takes what a consumer is sent, by consumer."""
        self.cancelled: dict[int, Callable[[], None]] = {}
        """Who hears that the node has ended a consumer, by consumer."""


class NodeSessions(Client):
    """The sessions of one generation of one node."""

    def __init__(self, node: SimulatedNode, number: int, checks: Checks) -> None:
        super().__init__(node, number, checks)
        self.connections: dict[Ends, None] = {}
        self._sessions: dict[int, Session] = {}
        self._published: dict[int, tuple[Session, Callable[[Outcome], None]]] = {}
        """Session of each unconfirmed publish and who hears of it, by sequence of the batch."""

    # What clients ask for

    def begin(self, session: Session) -> None:
        self._sessions[session.number] = session

    def carry_out(self, *commands: Command, messages: Sequence[bytes] = ()) -> int:
        return self.submit(encode_batch(commands, messages))

    def publish(
        self,
        session: Session,
        commands: Sequence[Command],
        messages: Sequence[bytes],
        hear: Callable[[Outcome], None],
    ) -> None:
        self._published[self.carry_out(*commands, messages=messages)] = (session, hear)

    def end(self, session: Session) -> None:
        if self._sessions.pop(session.number, None) is not None:
            self.carry_out(SessionDown(session.number))

    # What the log tells

    def confirmed(self, sequence: int) -> None:
        super().confirmed(sequence)
        if sequence in self._published:
            session, hear = self._published.pop(sequence)
            session.connection.tell(hear, session.outcome)
            session.outcome = "confirmed"

    def effect(self, effect: Any) -> None:
        if not (isinstance(effect, SessionEffect) and effect.node == self.node.name):
            return
        session = self._sessions.get(effect.session)
        if session is None:
            return
        match effect:
            case Reply(_, _, result):
                hear = session.asked.popleft()
                session.connection.tell(hear, self._got(result) if isinstance(result, GetOk) else result)
            case Deliver():
                for sent in self._delivered(effect):
                    session.connection.tell(session.receivers[effect.consumer], sent)
            case Rejected():
                session.outcome = "nacked"
            case Returned():
                session.outcome = "returned"
            case Failed():
                for hear in session.asked:
                    session.connection.tell(hear, None)
                session.connection.broken(effect.text)
                self.end(session)
            case ConsumerGone(_, _, consumer):
                session.connection.tell(session.cancelled[consumer])
            case _:
                pass

    def _delivered(self, effect: Deliver) -> list[Sent]:
        sent: list[Sent] = []
        for range_ in effect.ranges:
            history = effect.histories.get(range_.history)
            framed = delivered(self._stored(range_), range_, history, counts_failures=effect.counts_failures)
            sent += [
                Sent(effect.consumer, effect.first_id + len(sent) + number, range_.deliveries > 0, message)
                for number, message in enumerate(framed)
            ]
        return sent

    def _got(self, result: GetOk) -> list[Sent]:
        consumer, range_, _, history, counts_failures = result
        framed = delivered(self._stored(range_), range_, history, counts_failures=counts_failures)
        return [Sent(consumer, 0, range_.deliveries > 0, message) for message in framed]

    def _stored(self, range_: Range) -> list[bytes]:
        """The messages of a range, as the log has them."""
        try:
            entry = self.node.group.journal.read(range_.index)
        except CorruptJournal as damage:
            self.node.group.disk_failed(damage)
            return []
        batch = messages_of(batch_payloads(entry)[range_.slot >> MESSAGE_BITS][TAG.size :])
        first = range_.slot & MESSAGE_MASK
        return [batch[number] for number in range(first, first + range_.count)]

    def resumed(self, sequence: int, outstanding: Sequence[Any]) -> None:
        """What happened in the entries that were passed over is not looked into."""
        sessions = list(self._sessions)
        self.break_off("the node has missed too much")
        super().resumed(sequence, outstanding)
        for number in sessions:
            self.carry_out(SessionDown(number))

    def break_off(self, why: str) -> None:
        """All sessions are over."""
        self._sessions.clear()
        self._published.clear()
        for connection in self.connections:
            connection.broken(why)
