"""AMQP 0-9-1 connections of clients: events of the protocol's engine become work of channels, and answers.

The socket, its turns, back-pressure, logins and ends are those of every client protocol (`qq.client_sockets`).

Invariant: after an event that fails the connection, no later event of the same octets is carried out.
"""

from __future__ import annotations

import re
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from qq.amqp.connection import (
    PROTOCOL_HEADERS,
    ChannelCloseRequested,
    ChannelOpened,
    CloseRequested,
    LoginAttempt,
    Phase,
    SecretRenewed,
    ServerConnection,
    VhostRequested,
)
from qq.amqp.encoding import HEARTBEAT
from qq.amqp.fields import decode_publish
from qq.amqp.framing import Fault
from qq.amqp_server.channel.channel import Channel
from qq.amqp_server.methods import error_of
from qq.client_sockets.back_pressure import HeartbeatTimes
from qq.client_sockets.client_connection import TRY_AGAIN, ClientConnection, ConnectionTerms
from qq.client_sockets.protocol_choice import ServedProtocol
from qq.errors import ConnectionFault, ReplyCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qq.amqp.connection import Event
    from qq.amqp_server.server import AmqpServer
    from qq.client_sockets.back_pressure import NumberedSession
    from qq.client_sockets.shared import Arrival
    from qq.errors import AmqpError
    from qq.machine.protocol.effects import Failed
    from qq.scopes import Scopes, TokenUser

OPEN_TO_CLOSE_S = 1.0
"""Seconds that a connection stays open that was opened only to tell its client why it is closed."""
HEARTBEAT_CHECKS = 2
"""Checks per heartbeat interval for octets read and written."""
FRESH_INTERVAL_FRACTION = 0.25
"""Fraction of a heartbeat interval: if a write is more recent than that, no heartbeat is sent.

So a client waits for three quarters of an interval at most. AMQP 0-9-1 gives a node two intervals, but Java's client
with Netty closes the connection after one."""
SILENT_CHECKS_MAX = 2 * HEARTBEAT_CHECKS
"""Checks without a sign of life after which a client counts as dead: two heartbeat intervals (AMQP 0-9-1 4.2.7)."""
PUBLISH_CACHE_MAX = 1024
"""Distinct basic.publish methods (exchange, routing key, flags) cached in decoded form for each connection."""
OTHER_VERSIONS = re.compile(rb"AMQP\0\0[\x09-\xff]", re.DOTALL)
"""First octets of later versions, whose clients RabbitMQ answers with the header of 0-9-1."""


class AmqpConnection(ClientConnection[ServerConnection]):
    """An AMQP 0-9-1 client's connection. It is the `Carrier` of its channels."""

    __slots__ = ("_channels", "_close_reason", "_publish_fields", "_server")

    PROTOCOL = "AMQP 0-9-1"
    LOGIN_PROTOCOL = "amqp091"
    HEARTBEAT = HEARTBEAT
    LOGIN, ADMISSION, OPEN = Phase.LOGIN, Phase.VHOST, Phase.OPEN
    CLOSING, CLOSED = Phase.CLOSING, Phase.CLOSED

    def __init__(
        self, server: AmqpServer, arrival: Arrival, in_process_user: TokenUser | None = None
    ) -> None:
        """Create a connection, which releases the slot of `arrival` when it is closed.

        An in-process client logs in as `in_process_user`, as with a certificate.
        """
        super().__init__(server.broker, server.sockets, arrival, in_process_user)
        self._server = server
        self._channels: dict[int, Channel] = {}
        self._publish_fields: dict[bytes, tuple[str, str, bool]] = {}
        self._close_reason = ""
        """The reason to close a connection that was opened only to send it; empty for other connections."""

    def _make_engine(self, vouched_for: str | None) -> ServerConnection:
        return ServerConnection(self._server.current_settings, vouched_for)

    # For operators and channels

    @property
    def channel_count(self) -> int:
        return len(self._channels)

    @property
    def client_properties(self) -> Mapping[str, object]:
        return self._engine.client_properties

    @property
    def wants_live_prefetch(self) -> bool:
        return self._engine.capabilities.live_prefetch

    @property
    def wants_cancel_notify(self) -> bool:
        return self._engine.capabilities.consumer_cancel_notify

    @property
    def frame_max(self) -> int:
        return self._engine.frame_max

    def _terms(self) -> ConnectionTerms:
        engine = self._engine
        return ConnectionTerms(engine.mechanism, engine.frame_max, engine.channel_max, engine.heartbeat_s)

    def publish_fields(self, method: bytes) -> tuple[str, str, bool]:
        """Return exchange, routing key and mandatory flag of a raw basic.publish.

        Raises ConnectionFault on `immediate`.
        """
        fields = self._publish_fields.get(method)
        if fields is None:
            if len(self._publish_fields) >= PUBLISH_CACHE_MAX:
                self._publish_fields.clear()
            exchange, routing_key, mandatory, immediate = decode_publish(method)
            if immediate:
                raise ConnectionFault(ReplyCode.NOT_IMPLEMENTED, "immediate=true", 60, 40)
            fields = self._publish_fields[method] = (exchange, routing_key, mandatory)
        return fields

    # Events

    def _handle_all(self, events: list[Event]) -> None:
        for event in events:
            if self._engine.phase is Phase.CLOSING:
                return  # an earlier event has failed the connection, so later events are dropped
            match event:
                case CloseRequested() if self._close_reason:
                    self._send_close_ok()
                case _ if self._close_reason:
                    self._close_with_reason()
                case LoginAttempt():
                    self._log_in(event.user, event.password, event.mechanism)
                case VhostRequested():
                    self._enter(event.vhost)
                case CloseRequested():
                    self._close_when_answered()
                case SecretRenewed():
                    self._renew_secret(event.secret)
                case Fault():
                    self.fail(event.error)
                case ChannelOpened():
                    self._open_channel(event.channel)
                case _:
                    channel = self._channels.get(event.channel)
                    if channel is not None:
                        channel.methods.receive(event)
                    elif isinstance(event, ChannelCloseRequested):
                        # Both sides have closed the channel, so no work is left before the answer.
                        self._engine.channel_closed(event.channel)

    # Channels

    def _open_channel(self, number: int) -> None:
        channel = self._channels[number] = self._server.make_channel(self._broker, self, number)
        if not self._broker.open_when_free(channel, partial(self._open_session, channel)):
            channel.methods.block()

    def _open_session(self, channel: Channel) -> None:
        if not channel.closed:
            self._broker.session_opened(channel)
            channel.methods.release()

    def fail_channel(self, channel: NumberedSession, error: AmqpError) -> None:
        text = f"{self._described} of {self.user}, channel {channel.number}: {error}"
        self._sockets.throttled_log.warning("channel error", text)
        self._remove_channel(channel.number)
        self._engine.fail_channel(channel.number, error)
        self._partial_dropped()
        self._schedule_flush()

    def channel_closed(self, channel: NumberedSession) -> None:
        """Answer the client's channel.close, after the work of the channel has ended."""
        self._remove_channel(channel.number)
        self._engine.channel_closed(channel.number)
        self._schedule_flush()

    def _remove_channel(self, number: int) -> None:
        channel = self._channels.pop(number, None)
        if channel is not None:
            self._pumping.pop(channel.core.outgoing, None)

    def _has_busy_session(self) -> bool:
        return any(channel.methods.is_busy for channel in self._channels.values())

    def _end_sessions(self) -> None:
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.end()

    def _end_a_session(self) -> None:
        self._channels.popitem()[1].end()

    # Login and admission

    def _refuse_login(self) -> None:
        self._engine.refuse_login()
        self._lingers = self._engine.phase is Phase.CLOSED  # the client does not understand a refusal
        self._close_later()
        self._schedule_flush()

    def _end_login(self, why: str) -> None:
        if self._engine.phase is Phase.LOGIN and self._engine.capabilities.authentication_failure_close:
            self.shut_down(f"{why}; {TRY_AGAIN}")
        else:
            self._transport.abort()

    def _accept_open(self) -> list[Event]:
        return self._engine.accept_vhost()

    def _refuse_open(self, code: ReplyCode, text: str) -> None:
        self.fail(ConnectionFault(code, text, 10, 40))

    def _admission_failed(self, failure: Failed) -> None:
        self.fail(error_of(failure))

    def _refuse_undecided(self, why: str) -> None:
        """Open an undecidable connection only to close it with the reason at the client's next request.

        Clients mistake a close in place of connection.open-ok, or directly after it, for a refusal of the virtual host,
        or do not read it.
        """
        self._close_reason = f"{why}; {TRY_AGAIN}"
        self._stop_timers()
        self._deadline = self._broker.runtime.call_later(OPEN_TO_CLOSE_S, self._close_with_reason)
        self._process(self._engine.accept_vhost)

    def _close_with_reason(self) -> None:
        self.shut_down(self._close_reason)

    def _agreed_heartbeats(self) -> HeartbeatTimes | None:
        return heartbeat_times(self._engine.heartbeat_s)

    # Tokens

    def _renew_secret(self, secret: bytes) -> None:
        if not self.renew_token(secret, self._answer_secret):
            text = "connection.update-secret before the answer to the last one"
            self.fail(ConnectionFault(ReplyCode.COMMAND_INVALID, text, 10, 70))

    def _answer_secret(self, why_refused: str | None) -> None:
        if why_refused is None:
            self._engine.accept_secret()
            self._schedule_flush()
        else:
            text = f"New secret was refused by one of the backends: {why_refused}"
            self.fail(ConnectionFault(ReplyCode.NOT_ALLOWED, text, 10, 70))

    def _scopes_changed(self, scopes: Scopes) -> None:
        for channel in self._channels.values():
            channel.core.access.renew(scopes)

    def _token_expired(self) -> None:
        text = f"the token of user '{self.user}' has expired"
        self.fail(ConnectionFault(ReplyCode.CONNECTION_FORCED, text))

    # Closes and alarms

    def _send_close(self, error: AmqpError) -> None:
        self._engine.fail(error)

    def _tell_blocked(self, reason: str) -> None:
        self._engine.block(reason)

    def _tell_unblocked(self) -> None:
        self._engine.unblock()


@lru_cache
def heartbeat_times(heartbeat_s: int) -> HeartbeatTimes | None:
    """Return the times of a heartbeat interval; None for no heartbeats. Connections share them to save memory."""
    if not heartbeat_s:
        return None
    return HeartbeatTimes(
        heartbeat_s / HEARTBEAT_CHECKS, FRESH_INTERVAL_FRACTION * heartbeat_s, SILENT_CHECKS_MAX
    )


def served(server: AmqpServer) -> ServedProtocol:
    """Return how a port recognizes AMQP 0-9-1, and makes its connections."""
    return ServedProtocol("AMQP 0-9-1", PROTOCOL_HEADERS, OTHER_VERSIONS, partial(AmqpConnection, server))
