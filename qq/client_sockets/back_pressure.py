"""Back-pressure of a client's connection: the reasons not to read from the client, for every client protocol.

Reading stops in four cases. The connection has requested more than the log has taken in. It sends too much behind a
request that waits for the log. It does not read the answers to its requests (`pause_for` by its sessions). It has
published, and there is an alarm (https://www.rabbitmq.com/docs/connection-blocked).

Invariant: a connection that is not read for any of these reasons is read again when the reason ends, and a client that
has hung up meanwhile is noticed.
"""

from __future__ import annotations

import socket
from abc import abstractmethod
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol

from cluster.membership.alarms import reason_of
from cluster.raft.messages import Alarm
from qq.client_sockets.client_protocol import ClientProtocol, EngineT
from qq.errors import ConnectionFault, ReplyCode

if TYPE_CHECKING:
    from cluster.runtime.ports import Timer
    from qq.client_sockets.shared import ClientSockets, Peer
    from qq.sessions.broker import Broker

HELD_BYTES_MAX = 256 * 1024
"""Octets that a client may send while its sessions hold back requests behind an unanswered request."""
HANG_UP_CHECK_S = 1.0
"""Seconds between checks for a hang-up of a client that is not read while its publishes wait for a limit."""
HUNG_UP = (b"\x07", b"\x08")
"""TCP socket states of Linux (tcp_states.h): closed, and CLOSE_WAIT, in which the peer has closed the connection."""
UNCOMMITTED = "the log has to take in what was asked for"
HELD = "sessions hold back what was sent behind a request"
ALARM = "publishers must wait"
MEMORY_SHORT = reason_of(Alarm.MEMORY)
"""The alarm that may be due to partly received messages."""


class NumberedSession(Protocol):
    """A session, identified by its number in the connection: its channel number."""

    @property
    def number(self) -> int: ...


class HeartbeatTimes(NamedTuple):
    """The times by which a connection shows its client signs of life, and misses those of the client."""

    check_s: float
    """Seconds between checks for octets read and written."""
    silence_s: float
    """Seconds after a write before which a check sends no heartbeat; infinite for a client that wants none."""
    silent_checks_max: int
    """Checks without a sign of life after which a client counts as dead."""


class BackPressuredProtocol(ClientProtocol[EngineT], Generic[EngineT]):
    """A client's connection that is read only while the node has room for its requests."""

    __slots__ = (
        "_hang_up_check",
        "_heartbeat_times",
        "_held_bytes",
        "_holding",
        "_is_publisher",
        "_partial_bytes",
        "_uncommitted_bytes",
        "_unused_memory_slots",
        "_unused_s",
    )

    def __init__(self, broker: Broker, sockets: ClientSockets, peer: Peer) -> None:
        super().__init__(broker, sockets, peer)
        self._uncommitted_bytes = 0
        self._holding: dict[int, None] = {}
        """The numbers of the sessions that hold back requests."""
        self._held_bytes = 0
        """Octets received while sessions hold back requests."""
        self._hang_up_check: Timer | None = None
        """The next check of whether the client has hung up, which is not noticed while it is not read."""
        self._heartbeat_times: HeartbeatTimes | None = None
        """The times of heartbeats that node and client have agreed on; None for no heartbeats."""
        self._is_publisher = False
        self._partial_bytes = 0
        """Octets of partly received messages, as of the last read."""
        self._unused_memory_slots = 0
        """How often the client has sent no octets while it had the memory slot, since its last octets."""
        self._unused_s = 0.0
        """Monotonic time, in seconds, at which `_unused_memory_slots` was last increased."""

    # The log

    @property
    def waits_for_log(self) -> bool:
        return self._engine.phase is self.OPEN and (self._uncommitted_bytes > 0 or bool(self._holding))

    def count_uncommitted(self, size: int) -> None:
        """Add `size` octets to those requested and not yet taken in by the log. Taken in octets are negative."""
        self._uncommitted_bytes += size
        limit = self._broker.uncommitted_bytes_max
        if self._uncommitted_bytes > (limit // 2 if self._broker.is_full else limit):
            self.pause_for(UNCOMMITTED)
            if not self._transport.is_closing():
                self._broker.waits_for_room(self)
        elif self._reasons_to_pause and self._uncommitted_bytes <= limit // 2:
            self._resume_input()

    def _may_parse(self) -> bool:
        """Return whether received octets may be parsed: while the log is too far behind, they would fill the memory.

        After an error only the client's answer to the close matters, and it causes no request.
        """
        return UNCOMMITTED not in self._reasons_to_pause or self._engine.phase is not self.OPEN

    def _resume_input(self) -> None:
        """Parse and read on after the log has taken in enough."""
        if UNCOMMITTED in self._reasons_to_pause:
            self.resume_for(UNCOMMITTED)
            self._broker.runtime.call_soon(self._continue_input)

    @abstractmethod
    def _continue_input(self) -> None:
        """Process the octets that have waited for an answer of the node."""

    # Requests held back behind an unanswered request

    def requests_held(self, session: NumberedSession) -> None:
        """Record that the session holds back requests, or would hold back the next request."""
        self._holding[session.number] = None

    def requests_released(self, session: NumberedSession) -> None:
        """Record that the session has carried out all requests that it held back."""
        self._holding.pop(session.number, None)
        if not self._holding:
            self._held_bytes = 0
            self.resume_for(HELD)
            if self._close_pending:
                self._broker.runtime.call_soon(self._close_if_idle)

    @abstractmethod
    def _close_if_idle(self) -> None:
        """Continue with the client's close of the connection if all earlier requests have been carried out."""

    def _check_hang_up_later(self) -> None:
        if self._hang_up_check is None:
            self._hang_up_check = self._broker.runtime.call_later(HANG_UP_CHECK_S, self._check_hang_up)

    def _check_hang_up(self) -> None:
        """Drop the connection if the client has hung up.

        Otherwise its waiting messages would be published for hours.
        """
        self._hang_up_check = None
        if self._transport.is_closing() or HELD not in self._reasons_to_pause:
            return
        if self._broker.throttle.delays(self.id) and self._has_hung_up():
            self._transport.abort()
            return
        self._check_hang_up_later()

    def _has_hung_up(self) -> bool:
        client: socket.socket | None = self._transport.get_extra_info("socket")
        return client is not None and (
            client.fileno() < 0 or client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) in HUNG_UP
        )

    # Alarms

    def mark_publisher(self) -> None:
        """Mark the client as a publisher, so that it waits while there is an alarm."""
        if not self._is_publisher:
            self._is_publisher = True
            self.alarm_changed()

    def alarm_changed(self) -> None:
        """Pause or resume reading after a change of the alarm. Only clients that have published wait."""
        if self._engine.phase is not self.OPEN:
            return
        reason = self._broker.alarm
        blocked = reason is not None and self._is_publisher
        if blocked != self._blocked:
            self._blocked = blocked
            if reason is not None:
                self._tell_blocked(reason)
                text = f"{self._described} of {self.user} publishes, and waits: {reason}"
                self._sockets.throttled_log.warning("blocked", text)
            else:
                self._tell_unblocked()
            self._schedule_flush()
        self.memory_slot_changed()

    @abstractmethod
    def _tell_blocked(self, reason: str) -> None:
        """Tell the client, if it understands that, that its publishes are not read for now."""

    @abstractmethod
    def _tell_unblocked(self) -> None: ...

    # Memory of partly received messages

    def _partial_dropped(self) -> None:
        """Record that partly received messages were dropped."""
        if (partial_bytes := self._engine.partial_bytes) < self._partial_bytes:
            self._partial_bytes = partial_bytes
            self._sockets.partial_messages.record(self, partial_bytes)

    @property
    def _may_finish_message(self) -> bool:
        """Whether the client goes on during an alarm, because it has the slot to free memory by finishing a message."""
        return self._broker.alarm == MEMORY_SHORT and self._sockets.partial_messages.has_slot(self)

    def memory_slot_changed(self) -> None:
        """Pause during an alarm, unless this connection goes on to free memory. It cannot if the disk is full, too."""
        if self._engine.phase is not self.OPEN:
            return
        if self._blocked and not self._may_finish_message:
            self.pause_for(ALARM)
        else:
            self.resume_for(ALARM)

    def memory_slot_unused(self) -> None:
        """Drop the connection if its client is dead.

        Otherwise its partly received message would keep memory, and the slot at times, for ever.

        The client is read with the slot only, so unused slots are counted, at most one in each check interval.
        """
        times, now_s = self._heartbeat_times, self._broker.runtime.monotonic()
        if times is not None and self._engine.phase is self.OPEN and now_s - self._unused_s >= times.check_s:
            self._unused_s = now_s
            self._unused_memory_slots += 1
            if self._unused_memory_slots > times.silent_checks_max:
                self._missed_heartbeats()

    @abstractmethod
    def _missed_heartbeats(self) -> None:
        """Drop the connection of a client that counts as dead."""

    def close_stalled(self) -> None:
        """Close the connection of a client that makes no progress with a message while memory is short."""
        text = "memory is short, and the rest of a large message has not come for too long: publish it again"
        self.fail(ConnectionFault(ReplyCode.RESOURCE_ERROR, text))
