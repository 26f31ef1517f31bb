"""Commands of a connection for the management node and for dynamic termini, which belong to no link.

Invariant: the connection carries out its commands in their order, each after the answer to the command before. A
refused command has ended its session of the log, so the next command begins a new session.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeAlias

from qq.amqp10_server.no_publisher import NoPublisher
from qq.machine.protocol.effects import Failed

if TYPE_CHECKING:
    from collections.abc import Callable

    from qq.amqp10_server.ports import LinkCarrier
    from qq.machine.catalog.vhost import VirtualHost
    from qq.machine.protocol.commands import Declaration
    from qq.machine.protocol.effects import Result

Answered: TypeAlias = "Callable[[Result | Failed], None]"


class CommandSession(NoPublisher):
    """A session of the log for commands. It is a `Session` of the broker that publishes no messages."""

    consumers: None = None
    waits_for_answer = False
    """Always false: asked after a snapshot about cancellations, and the session cancels no consumer."""

    def __init__(self, carrier: LinkCarrier, answered: Callable[[Result | Failed], None]) -> None:
        """`answered` takes the answer to each command, and then perhaps the reason for the end of the session."""
        self.connection = carrier
        self.session = carrier.broker.new_id()
        self.answered = 0
        self.has_failed = False
        self._answered = answered

    @property
    def publisher(self) -> CommandSession:
        return self

    def facts(self) -> None:
        """Return None, because the session is no link of the client."""

    def replied(self, result: Result) -> None:
        self.answered += 1
        self._answered(result)

    def failed(self, failure: Failed) -> None:
        self.has_failed = True
        self._answered(failure)

    def needed_from(self) -> None:
        """Return None, because the session holds no messages."""


class ConnectionCommands:
    """The commands of a connection, which wait for each other."""

    __slots__ = ("_carrier", "_is_over", "_session", "_waiting")

    def __init__(self, carrier: LinkCarrier) -> None:
        self._carrier = carrier
        self._session: CommandSession | None = None
        self._waiting: deque[tuple[Declaration, Answered]] = deque()
        """Commands and the functions that take their answers. The first was submitted."""
        self._is_over = False

    def run(self, command: Declaration, answered: Answered) -> None:
        """Carry out a command, after filling in session and connection, and pass its answer on.

        `codec.check_command` must have accepted the command.
        """
        self._waiting.append((command, answered))
        if len(self._waiting) == 1:
            self._submit_first()

    def read(self, command: Declaration, vhost: VirtualHost) -> Result | None:
        """Return the answer of a command without effect, or None if the log must carry the command out.

        The node must have applied all that was committed before.
        """
        broker = self._carrier.broker
        return broker.machine.reads.answer_in(broker.name, vhost, self._of_connection(command))

    def end(self) -> None:
        """End the session, because the connection ends. No further answers are passed on."""
        self._is_over = True
        self._waiting.clear()
        self._end_session()

    def _submit_first(self) -> None:
        if self._session is not None:
            self._submit(self._session)
            return
        session = self._session = CommandSession(self._carrier, self._take)

        def open_session() -> None:
            if not self._is_over:
                self._carrier.broker.session_opened(session)
                self._submit(session)

        self._carrier.broker.open_when_free(session, self._carrier.guarded(open_session))

    def _submit(self, session: CommandSession) -> None:
        command, _ = self._waiting[0]
        own = self._of_connection(command)._replace(session=session.session)
        self._carrier.broker.submit_when_free(own, self._carrier, lambda: self._is_over)

    def _of_connection(self, command: Declaration) -> Declaration:
        return command._replace(connection=self._carrier.id) if "connection" in command._fields else command

    def _take(self, answer: Result | Failed) -> None:
        if isinstance(answer, Failed):
            self._end_session()
        if not self._waiting:
            return
        _, answered = self._waiting.popleft()
        if self._waiting:
            self._submit_first()
        answered(answer)

    def _end_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            self._carrier.broker.session_ended(session)
