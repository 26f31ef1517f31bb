"""The end of a client's connection, for every client protocol: closes by the node, the client, and silence.

Invariant: in any phase, a connection ends once: its sessions end, and the log is told that. A client that understands
a reason is told the reason, and gets a bounded time to read it.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Generic

from qq.client_sockets.client_protocol import EngineT
from qq.client_sockets.turn_taking import TurnTakingProtocol
from qq.errors import ConnectionFault, ReplyCode

if TYPE_CHECKING:
    from cluster.runtime.ports import Timer
    from qq.client_sockets.shared import ClientSockets, Peer
    from qq.errors import AmqpError
    from qq.machine.protocol.effects import ConnectionForced
    from qq.sessions.broker import Broker

log = logging.getLogger(__name__)

CLOSE_GRACE_S = 3.0
"""Seconds that a client may take to answer the node's close, or to read its remaining output.

A client also has this time to close the socket after the answer to its own close. RabbitMQ leaves that to the client
for up to 30 s. A client that reads the end of the stream together with the answer may report a lost connection
(aiormq)."""


class ClosingProtocol(TurnTakingProtocol[EngineT], Generic[EngineT]):
    """A client's connection that can end."""

    __slots__ = ("_close_ok_sent", "_deadline", "_heartbeat", "_lingers", "_silent_checks")

    HEARTBEAT: ClassVar[bytes]
    """The frame that shows the client a sign of life."""

    def __init__(self, broker: Broker, sockets: ClientSockets, peer: Peer) -> None:
        super().__init__(broker, sockets, peer)
        self._close_ok_sent = False
        """Whether the client has closed the connection properly, and so is expected to close the socket, too."""
        self._lingers = False
        """Whether the socket stays open without a word after a refused login, so that guessing takes time."""
        self._deadline: Timer | None = None
        """Timeout of the handshake or, at the end, of the client's disconnection."""
        self._heartbeat: Timer | None = None
        self._silent_checks = 0
        """Checks in sequence without a sign of life."""

    # Ends by the node

    def fail(self, error: AmqpError) -> None:
        """Close the connection with an error."""
        if self._close_pending:
            self._send_close_ok()  # the client is closing the connection anyway
        elif self._engine.phase not in (self.CLOSING, self.CLOSED):
            if self.user:
                text = f"{self._described} of {self.user}: {error}"
                self._sockets.throttled_log.warning("connection error", text)
            else:
                text = f"{self._described} from {self.peer_host}, which has not logged in: {error}"
                self._sockets.throttled_log.warning("stranger", text)
            self._end_all_sessions()
            self._end_claims()
            self._send_close(error)
            self._partial_bytes = 0
            # Otherwise the client's answer might wait for the memory slot.
            self._sockets.partial_messages.remove(self)
            self._schedule_flush()
            self._close_later()
            # Only the client's answer matters now, and all octets before it must be read to reach it.
            for reason in list(self._reasons_to_pause):
                self.resume_for(reason)
            self._broker.runtime.call_soon(self._continue_input)

    def unexpected(self, error: Exception) -> None:
        """Close the connection because of an error in the node itself.

        The node must survive. A client whose input could stop a node would go on and stop the next node.
        """
        log.error("%s of %s: unexpected", self._described, self.user or "nobody", exc_info=error)
        self.fail(ConnectionFault(ReplyCode.INTERNAL_ERROR, "an unexpected error in the broker"))

    def force_close(self, effect: ConnectionForced) -> None:
        """Close the connection for an operator."""
        self._fail_or_abort(ConnectionFault(ReplyCode(effect.code), effect.text))

    def forget(self, text: str) -> None:
        """Close the connection, which the log has forgotten. Requests that sessions hold back are not carried out."""
        self._fail_or_abort(ConnectionFault(ReplyCode.CONNECTION_FORCED, text))

    def _fail_or_abort(self, error: ConnectionFault) -> None:
        """Close the connection with an error. A connection that is not open yet gets no reason."""
        if self._engine.phase is self.OPEN or self._close_pending:
            self.fail(error)
        elif self._engine.phase not in (self.CLOSING, self.CLOSED):
            self._transport.abort()

    def shut_down(self, text: str) -> None:
        """Close the connection with a reason, so that the client connects to a different node."""
        self.fail(ConnectionFault(ReplyCode.CONNECTION_FORCED, text))
        self._flush()

    # Ends by the client

    def _close_when_answered(self) -> None:
        """Answer the client's close after the requests before it, which RabbitMQ carries out, too.

        The wait for answers of the log is limited, because without a majority there are none.
        """
        self._close_pending = True
        self._close_if_idle()
        if self._close_pending:
            self._limit_close_wait()

    def _close_if_idle(self) -> None:
        if self._close_pending and not (self._broker.throttle.delays(self.id) or self._has_busy_session()):
            self._send_close_ok()

    def _limit_close_wait(self) -> None:
        was_held = self._broker.throttle.delays(self.id)
        self._deadline = self._broker.runtime.call_later(
            CLOSE_GRACE_S, partial(self._end_close_wait, was_held)
        )

    def _end_close_wait(self, was_held: bool) -> None:
        """Answer the close, unless delayed publishes have not had the time for their answers since."""
        if was_held or self._broker.throttle.delays(self.id):
            self._limit_close_wait()
        else:
            self._send_close_ok()

    def _send_close_ok(self) -> None:
        """Answer the client's close. After that, only the socket is left."""
        self._end_all_sessions()
        self._end_claims()
        self._engine.closed()
        self._flush()
        self._close_ok_sent = True
        self._stop_timers()
        self._deadline = self._broker.runtime.call_later(CLOSE_GRACE_S, self._close_socket)

    # Ends of the rest

    def _follow_phase(self) -> None:
        if self._engine.phase is self.CLOSED:
            self._hang_up()

    def _hang_up(self) -> None:
        """Close the socket after all output is written. Drop it if the client takes too long to read the output.

        Output that is held is written first: `_claims_ended` hangs up then.
        """
        if self._close_ok_sent or self._lingers or self._holds_output or self._transport.is_closing():
            return
        self._flush()
        self._close_socket()

    def _end_claims(self) -> None:
        """End the connection's claims in the log, and write no more until that is applied.

        The client may connect to a different node as soon as the connection ends, and must find its queues unlocked
        there.
        """
        withholds = self._broker.end_claims(self, self._claims_ended)
        if withholds:
            self._flush()
        self._holds_output = withholds

    def _claims_ended(self) -> None:
        self._release_output()
        self._follow_phase()

    def _end_all_sessions(self) -> None:
        self._close_pending = False
        self._end_sessions()
        self._pumping.clear()
        self._ready.clear()

    def _clean_up(self) -> None:
        if self.channel_count:
            self._end_a_session()
            return
        self._is_ended = True
        self._end_all_sessions()
        if self._is_lost:
            self._stop_all_timers()  # the last octets may have started some
            self._sockets.partial_messages.remove(self)
            self._broker.connection_closed(self)
            self._turns.leave(self._place)
        else:
            self._broker.connection_left(self)

    def _close_socket(self) -> None:
        self._close_later()
        self._transport.close()

    def _close_later(self) -> None:
        self._stop_timers()
        self._deadline = self._broker.runtime.call_later(CLOSE_GRACE_S, self._transport.abort)

    def _stop_timers(self) -> None:
        for timer in (self._deadline, self._heartbeat, self._hang_up_check):
            if timer is not None:
                timer.cancel()
        self._deadline = self._heartbeat = self._hang_up_check = None

    def _stop_all_timers(self) -> None:
        """Stop the timers that outlast a close of the connection, too."""
        self._stop_timers()

    # Heartbeats

    def _check_heartbeat(self) -> None:
        """Send a heartbeat unless there was recent output, and count the checks without input.

        Checks are counted, not seconds, so that a client is not blamed for a time in which the node itself stalled.
        """
        times = self._heartbeat_times
        assert times is not None
        self._silent_checks = 0 if self._is_alive() else self._silent_checks + 1
        if self._silent_checks >= times.silent_checks_max:
            self._missed_heartbeats()
            return
        if self._broker.runtime.monotonic() - self._written_s >= times.silence_s:
            self.write((self.HEARTBEAT,))
        self._check_heartbeat_later(times.check_s)

    def _check_heartbeat_later(self, check_s: float) -> None:
        self._has_read = False
        self._heartbeat = self._broker.runtime.call_later(check_s, self._check_heartbeat)

    def _missed_heartbeats(self) -> None:
        log.warning("%s of %s: missed heartbeats", self._described, self.user)
        self._transport.abort()

    # The protocol's part

    @abstractmethod
    def _has_busy_session(self) -> bool:
        """Return whether a session waits for an answer, or holds back requests."""

    @abstractmethod
    def _end_sessions(self) -> None:
        """End all sessions."""

    @abstractmethod
    def _end_a_session(self) -> None:
        """End any one of the sessions."""

    @abstractmethod
    def _send_close(self, error: AmqpError) -> None:
        """Close the connection on the wire, with an error. The engine then expects the client's answer."""
