"""AMQP connections on sockets: bytes in and out, heartbeats, timeouts, back-pressure.

Back-pressure works both ways. In: reading stops in four cases. The connection has requested more than the log has taken
in. It sends too much behind a method that waits for the log. It does not read the answers to its requests. It has
published, and there is an alarm (https://www.rabbitmq.com/docs/connection-blocked). Out: deliveries are written only
while the socket takes them (`has_room`), and in portions, so that other connections are served in between. The rest
stays in the log.
"""

from __future__ import annotations

import logging
import socket
from functools import partial
from typing import TYPE_CHECKING, Any

from cluster.membership.alarms import reason_of
from cluster.net.connection_slots import Stage
from cluster.raft.messages import Alarm
from qq.amqp.connection import (
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
from qq.client_sockets.flow_control import FlowControlledProtocol
from qq.client_sockets.tls_facts import tls_facts
from qq.errors import ConnectionFault, ReplyCode
from qq.machine.protocol.commands import SINCE, ConnectVouched
from qq.scopes import TokenUser
from qq.sessions.lanes import Lane
from qq.sessions.login import InvalidToken, Login, LoginsBusy
from qq.sessions.session_info import ConnectionFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cluster.net.connection_slots import Slot
    from cluster.runtime.ports import Timer
    from qq.amqp.connection import Event
    from qq.amqp_server.ports import NumberedChannel, ReadyMethods
    from qq.amqp_server.server import AmqpServer
    from qq.client_sockets.shared import Peer
    from qq.errors import AmqpError
    from qq.machine.protocol.effects import ConnectionForced, Failed
    from qq.scopes import Scopes
    from qq.sessions.login import Attempt, Outcome

log = logging.getLogger(__name__)

CLOSE_GRACE_S = 3.0
"""Seconds that a client may take to answer connection.close, or to read its remaining output.

A client also has this time to close the socket after the answer to its own connection.close. RabbitMQ leaves that to
the client for up to 30 s. A client that reads the end of the stream together with close-ok may report a lost connection
(aiormq)."""
EXPIRY_CHECK_S = 60.0
"""Seconds between checks of a token's expiry, at most."""
OPEN_TO_CLOSE_S = 1.0
"""Seconds that a connection stays open that was opened only to tell its client why it is closed."""
HELD_BYTES_MAX = 256 * 1024
"""Octets that a client may send while its channels hold back methods behind an unanswered method."""
HEARTBEAT_CHECKS = 2
"""Checks per heartbeat interval for octets read and written."""
FRESH_INTERVAL_FRACTION = 0.25
"""Fraction of a heartbeat interval: if a write is more recent than that, no heartbeat is sent.

So a client waits for three quarters of an interval at most. AMQP 0-9-1 gives a node two intervals, but Java's client
with Netty closes the connection after one."""
SILENT_CHECKS_MAX = 2 * HEARTBEAT_CHECKS
"""Checks without a sign of life after which a client counts as dead: two heartbeat intervals (AMQP 0-9-1 4.2.7)."""
HANG_UP_CHECK_S = 1.0
"""Seconds between checks for a hang-up of a client that is not read while its publishes wait for a limit."""
HUNG_UP = (b"\x07", b"\x08")
"""TCP socket states of Linux (tcp_states.h): closed, and CLOSE_WAIT, in which the peer has closed the connection."""
SHORT_READ_BYTES = 4096
"""Octets of a read that costs too little to be charged."""
READ_S_PER_BYTE = 0.5e-9
"""Seconds of the processor that the system and the event loop take to read an octet, before the connection's turn.

Discarded octets cost little more than this, such as the octets after a connection.close."""
PUBLISH_CACHE_MAX = 1024
"""Distinct basic.publish methods (exchange, routing key, flags) cached in decoded form for each connection."""
GUESSES = {
    b"\x16\x03": ", but TLS",  # the client uses the wrong port
    b"PROXY ": ", but the PROXY protocol",  # the configuration does not name this proxy
    b"\r\n\r\n\0\r\n": ", but the PROXY protocol",
}
"""First bytes of other protocols, and the addition to the log line about them."""
SHOWN_NAME_MAX = 64
"""Characters of a name that a client chose (connection name, user name of a refused login) in a log line."""


def shown_name(name: str) -> str:
    """Return a client's name for a log line: bounded, escaped, and in quotation marks."""
    return repr(name if len(name) <= SHOWN_NAME_MAX else name[:SHOWN_NAME_MAX] + "...")


class ClientConnection(FlowControlledProtocol):
    """An AMQP client's connection. It is the `Carrier` of its channels."""

    __slots__ = (
        "_amqp",
        "_attempt",
        "_blocked",
        "_broker",
        "_certificate_name",
        "_channels",
        "_close_ok_sent",
        "_close_pending",
        "_close_reason",
        "_connected_ms",
        "_deadline",
        "_expiry_check",
        "_hang_up_check",
        "_heartbeat",
        "_held_bytes",
        "_holding_channels",
        "_in_process_user",
        "_is_ended",
        "_is_half_served",
        "_is_left",
        "_is_lost",
        "_is_publisher",
        "_later_unread",
        "_partial_bytes",
        "_place",
        "_proxy_host",
        "_publish_fields",
        "_ready",
        "_refused",
        "_renews_secret",
        "_server",
        "_silent_checks",
        "_slot",
        "_turns",
        "_uncommitted_bytes",
        "_unread",
        "_unused_memory_slots",
        "_unused_s",
        "id",
        "in_log",
        "is_admitted",
        "lane",
        "peer_host",
        "peer_port",
        "scopes",
        "user",
        "vhost",
    )

    def __init__(
        self,
        server: AmqpServer,
        peer: Peer,
        slot: Slot,
        certificate_name: Callable[[Mapping[str, Any]], str | None] | None = None,
        in_process_user: TokenUser | None = None,
    ) -> None:
        """Create a connection, which releases `slot` when it is closed.

        With TLS, `certificate_name` returns the user name in a client's verified certificate. An in-process client logs
        in as `in_process_user`, as with a certificate.
        """
        self._server = server
        self._broker = broker = server.broker
        super().__init__(broker.runtime, broker.limits.write_buffer_bytes)
        self.peer_host, self.peer_port, self._proxy_host = peer
        self._slot = slot
        self.id = broker.new_id()
        self._turns = server.sockets.turns
        self._place = self._turns.new_place(self, self.peer_host)
        """The place in the order of turns at the node's processor."""
        self._unread = b""
        """Received octets that wait for a turn."""
        self._later_unread: list[bytes] = []
        """Octets received after those, a read each: they are not joined, which would copy all of them each time."""
        self._is_half_served = False
        """Whether the last turn has left received octets."""
        self._ready: dict[ReadyMethods, None] = {}
        """The channels that have held back methods, and can carry them out now."""
        self._is_left = self._is_lost = self._is_ended = False
        """Whether the client has closed its side, the socket is closed, and all is cleaned up after that."""
        self.lane = Lane(self)
        """The lane in which this connection's requests to the log wait."""
        self.user = ""
        self.scopes: Scopes | None = None
        """The user's permissions, if a token vouches for the user; else None."""
        self._expiry_check: Timer | None = None
        """The next check of whether the token has expired."""
        self._renews_secret = False
        """Whether a newer token from the client waits for its issuer's keys."""
        self.vhost = ""
        self.in_log = False
        """Whether the log was asked to admit the connection, so that the end of the connection must be submitted,
        too."""
        self.is_admitted = False
        self._certificate_name = certificate_name
        self._in_process_user = in_process_user
        self._attempt: Attempt | None = None
        """The login under way."""
        self._channels: dict[int, Channel] = {}
        self._publish_fields: dict[bytes, tuple[str, str, bool]] = {}
        self._connected_ms = broker.runtime.wall_ms()
        self._uncommitted_bytes = 0
        self._holding_channels: dict[int, None] = {}
        self._held_bytes = 0
        self._is_publisher = False
        self._partial_bytes = 0
        """Octets of partly received messages, as of the last read."""
        self._unused_memory_slots = 0
        """How often the client has sent no octets while it had the memory slot, since its last octets."""
        self._unused_s = 0.0
        """Monotonic time, in seconds, at which `_unused_memory_slots` was last increased."""
        self._blocked = False
        self._silent_checks = 0
        self._refused = False
        """Whether the login failed and the client does not understand a refusal. It must wait, so that guessing takes
        time."""
        self._close_pending = False
        """Whether the client has sent connection.close while its earlier publishes still wait."""
        self._close_reason = ""
        """The reason to close a connection that was opened only to send it; empty for other connections."""
        self._close_ok_sent = False
        """Whether the client has closed the connection properly, and so is expected to close the socket, too."""
        self._deadline: Timer | None = None
        """Timeout of the handshake or, at the end, of the client's disconnection."""
        self._heartbeat: Timer | None = None
        self._hang_up_check: Timer | None = None
        """The next check of whether the client has hung up, which is not noticed while it is not read."""

    # Socket

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        certificate = transport.get_extra_info("peercert") if self._certificate_name is not None else None
        vouched_for = self._certificate_name(certificate) if self._certificate_name and certificate else None
        if self._in_process_user is not None:
            vouched_for = self._in_process_user.name
        self._amqp = ServerConnection(self._server.current_settings, vouched_for)
        self._out = self._amqp.out
        self._broker.connection_opened(self)
        if not self._slot.is_taken:
            transport.abort()
            return
        self._slot.evict = transport.abort
        if self._certificate_name is not None:
            self._slot.step(Stage.TLS)
        self._deadline = self._broker.runtime.call_later(
            self._broker.limits.handshake_timeout_s, self._handshake_timed_out
        )

    @property
    def protocol(self) -> str:
        return "AMQP 0-9-1"

    @property
    def name(self) -> str:
        """The connection's name in RabbitMQ's form."""
        host, port = self._address
        return f"{self.peer_host}:{self.peer_port} -> {host}:{port}"

    @property
    def _described(self) -> str:
        """The connection in a log line: its number, the client's address with port, and the client's name for it."""
        name = self.client_properties.get("connection_name")
        suffix = f" {shown_name(name)}" if isinstance(name, str) and name else ""
        return f"connection {self.id} ({self.peer_host}:{self.peer_port}{suffix})"

    @property
    def _address(self) -> tuple[str, int]:
        """The node's address that the client has connected to."""
        host, port, *_ = self._transport.get_extra_info("sockname") or ("", 0)
        return host, port

    def facts(self) -> ConnectionFacts:
        amqp = self._amqp
        return ConnectionFacts(
            *self._address,
            self._connected_ms,
            amqp.mechanism,
            amqp.frame_max,
            amqp.channel_max,
            amqp.heartbeat_s,
            self._blocked or self._server.sockets.partial_messages.waits(self),
            self._traffic,
            tls_facts(self._transport.get_extra_info("ssl_object")),
        )

    def data_received(self, data: bytes) -> None:
        self._unused_memory_slots = 0
        if self._holding_channels:
            self._held_bytes += len(data)
            if self._held_bytes > HELD_BYTES_MAX:
                self.pause_for(_HELD)
                self._check_hang_up_later()
        self._count_read(len(data))
        if self._unread:
            self._later_unread.append(data)
        else:
            self._unread = data
        self._turns.request(self._place)
        if self._is_half_served or self._unread:
            self.pause_for(_TURN)

    # Turns at the processor

    @property
    def _has_work(self) -> bool:
        if self._ready:
            return True
        if self._amqp.has_more or self._unread:
            return self._may_parse()
        return (self._is_left or self._is_lost) and not self._is_ended

    def _may_parse(self) -> bool:
        """Return whether received octets may be parsed: while the log is too far behind, they would fill the memory.

        After an error only close-ok matters, and it causes no request.
        """
        return _UNCOMMITTED not in self._reasons_to_pause or self._amqp.phase is not Phase.OPEN

    def take_turn(self, until_s: float) -> bool:
        """Parse received octets, carry out methods, and write the answers, until this time of the processor."""
        if self._is_half_served and not self._is_publisher and self._has_hung_up():
            self._drop_input()
            self._transport.abort()
        left = self._take_step()
        while left and self._turns.clock() < until_s:
            left = self._take_step()
        self._is_half_served = bool(left or self._reasons_to_pause) and (
            self._amqp.has_more or bool(self._unread)
        )
        if self._reasons_to_pause and not self._is_half_served:
            self.resume_for(_TURN)
        if self._amqp.out:
            self._flush()
        return left

    def _take_step(self) -> bool:
        """Do a piece of the work. Return whether work is left."""
        try:
            if self._ready:
                methods = next(iter(self._ready))
                del self._ready[methods]
                methods.carry_out_some()
            elif self._unread or self._amqp.has_more:
                if self._may_parse():
                    self._receive()
            elif self._is_left or self._is_lost:
                self._clean_up()
        except Exception as error:  # noqa: BLE001  # it is logged
            self.unexpected(error)
        return self._has_work

    def _receive(self) -> None:
        later, data = self._later_unread, b""
        if not (later and self._amqp.has_more):
            data, self._unread = self._unread, later.pop(0) if later else b""
        if len(data) > SHORT_READ_BYTES:
            self._turns.charge(len(data) * READ_S_PER_BYTE)
        self._process(self._amqp.receive, data)
        partial_bytes = self._amqp.partial_bytes
        if partial_bytes or self._partial_bytes:
            self._partial_bytes = partial_bytes
            self._server.sockets.partial_messages.record(self, partial_bytes, len(data))
            self.mark_publisher()  # so that a first message that never ends waits for memory, too

    def _drop_input(self) -> None:
        self._unread = b""
        self._later_unread.clear()
        self._amqp.drop_input()

    def _has_hung_up(self) -> bool:
        client: socket.socket | None = self._transport.get_extra_info("socket")
        return client is not None and (
            client.fileno() < 0 or client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) in HUNG_UP
        )

    def continue_later(self, methods: ReadyMethods) -> None:
        """Give a channel turns to carry out the methods that it has held back."""
        self._ready[methods] = None
        self._turns.request(self._place)

    def _continue_input(self) -> None:
        """Process the octets that have waited for an answer of the node."""
        if self._has_work:
            self._turns.request(self._place)

    def _resume_input(self) -> None:
        """Parse and read on after the log has taken in enough."""
        if _UNCOMMITTED in self._reasons_to_pause:
            self.resume_for(_UNCOMMITTED)
            self._broker.runtime.call_soon(self._continue_input)

    def _process(self, take: Callable[..., list[Event]], *arguments: bytes) -> None:
        """Carry out the events that `take` returns for the received bytes, and write the output."""
        try:
            self._handle_all(take(*arguments))
        except Exception as error:  # noqa: BLE001  # it is logged
            self.unexpected(error)
        if self._amqp.phase is not Phase.OPEN:
            self._follow_phase()
        self._schedule_flush()

    def _follow_phase(self) -> None:
        if self._amqp.phase is Phase.CLOSED:
            self._hang_up()
        elif self._amqp.phase is Phase.START:
            self._slot.step(Stage.HEADER)

    def unexpected(self, error: Exception) -> None:
        """Close the connection because of an error in the node itself.

        The node must survive. A client whose input could stop a node would go on and stop the next node.
        """
        log.error("%s of %s: unexpected", self._described, self.user or "nobody", exc_info=error)
        self.fail(ConnectionFault(ReplyCode.INTERNAL_ERROR, "an unexpected error in the broker"))

    def eof_received(self) -> bool:
        self._release_output()  # the transport closes in a moment, and writes no more
        self._close_later()
        self._place = self._turns.begin_leaving(self._place)
        self._is_left = True
        self._leave()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._slot.release()
        # clients without a login may connect as often as they like
        level = logging.INFO if self.user else logging.DEBUG
        log.log(level, "%s of %s closed%s", self._described, self.user or "nobody", f": {exc}" if exc else "")
        if self._attempt is not None:
            self._attempt.cancel()
        self._stop_all_timers()
        if not self._is_left:
            self._place = self._turns.begin_leaving(self._place)
        self._is_lost = True
        self._is_ended = False
        self._leave()

    def _leave(self) -> None:
        """Clean up in turns, after the messages that the client has published before.

        Its first turn shows whether the client publishes. After that, a client that does not loses its waiting octets.
        """
        if self._is_half_served and not self._is_publisher:
            self._drop_input()
        self._turns.request(self._place)

    def _clean_up(self) -> None:
        """End a channel or, after the last channel, what is left of the connection."""
        if self._channels:
            self._channels.popitem()[1].end()
            return
        self._is_ended = True
        self._end_channels()
        if self._is_lost:
            self._stop_all_timers()  # the last octets may have started some
            self._server.sockets.partial_messages.remove(self)
            self._broker.connection_closed(self)
            self._turns.leave(self._place)
        else:
            self._broker.connection_left(self)

    # Events

    def _handle_all(self, events: list[Event]) -> None:
        for event in events:
            if self._amqp.phase is Phase.CLOSING:
                return  # an earlier event has failed the connection, so later events are dropped
            match event:
                case CloseRequested() if self._close_reason:
                    self._send_close_ok()
                case _ if self._close_reason:
                    self._close_with_reason()
                case LoginAttempt():
                    self._login(event)
                case VhostRequested():
                    self._open_vhost(event.vhost)
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
                        self._amqp.channel_closed(event.channel)

    def _open_channel(self, number: int) -> None:
        channel = self._channels[number] = self._server.make_channel(self._broker, self, number)
        if not self._broker.open_when_free(channel, partial(self._open_session, channel)):
            channel.methods.block()

    def _open_session(self, channel: Channel) -> None:
        if not channel.closed:
            self._broker.session_opened(channel)
            channel.methods.release()

    def _login(self, attempt: LoginAttempt) -> None:
        user = attempt.user
        login = Login(
            user,
            attempt.password,
            self.peer_host,
            self._proxy_host,
            mechanism=attempt.mechanism,
            client=self._described,
        )

        def decided(found: Outcome) -> None:
            self._attempt = None
            if self._amqp.phase is not Phase.LOGIN or self._transport.is_closing():
                return
            if found:
                self.user = user
                if isinstance(found, TokenUser):
                    self.user = found.name
                    self._apply_token(found)
                self._slot.mark_authenticated()
                self._process(self._amqp.accept_login)
                self._continue_input()
            else:
                self._refuse_login()

        self._slot.step(Stage.CREDENTIALS)
        if self._in_process_user is not None and attempt.password is None:
            decided(self._in_process_user)
            return
        try:
            self._attempt = self._broker.logins.attempt(login, decided)
        except LoginsBusy as busy:
            self._end_login(str(busy))

    # Tokens

    def _apply_token(self, user: TokenUser) -> None:
        """Apply the scopes and the expiry of this token."""
        self.scopes = user.scopes
        for channel in self._channels.values():
            channel.core.access.renew(user.scopes)
        self._expire_at(user.expires_s)

    def _expire_at(self, expires_s: float) -> None:
        """Close the connection when the token has expired.

        The wall clock may be set meanwhile, so it is checked again.
        """

        def check() -> None:
            if self._broker.runtime.wall_ms() >= expires_s * 1000:
                text = f"the token of user '{self.user}' has expired"
                self.fail(ConnectionFault(ReplyCode.CONNECTION_FORCED, text))
            else:
                self._expire_at(expires_s)

        if self._expiry_check is not None:
            self._expiry_check.cancel()
        left_s = expires_s - self._broker.runtime.wall_ms() / 1000
        self._expiry_check = self._broker.runtime.call_later(min(max(left_s, 0.0), EXPIRY_CHECK_S), check)

    def _renew_secret(self, secret: bytes) -> None:
        """Accept a newer token of the same user.

        As in RabbitMQ, a password does not expire, so a new one is ignored.
        """
        if self.scopes is None:
            self._amqp.accept_secret()
            return
        if self._renews_secret:
            text = "connection.update-secret before the answer to the last one"
            self.fail(ConnectionFault(ReplyCode.COMMAND_INVALID, text, 10, 70))
            return
        self._renews_secret = True

        def verified(outcome: TokenUser | InvalidToken) -> None:
            self._renews_secret = False
            if self._amqp.phase is not Phase.OPEN or self._transport.is_closing():
                return
            if isinstance(outcome, InvalidToken):
                self._refuse_secret(str(outcome))
            elif outcome.name != self.user:
                self._refuse_secret("it is another user's")
            elif not outcome.scopes.opens(self.vhost):
                self._refuse_secret(f"access to vhost '{self.vhost}' refused for user '{self.user}'")
            else:
                self._apply_token(outcome)
                self._amqp.accept_secret()
                self._schedule_flush()

        self._broker.logins.verify(secret, verified)

    def _refuse_secret(self, why: str) -> None:
        text = f"New secret was refused by one of the backends: {why}"
        self.fail(ConnectionFault(ReplyCode.NOT_ALLOWED, text, 10, 70))

    def _why_refused(self, vhost: str) -> str | None:
        """Return why the user of a token may not enter a virtual host, or None if the token does not prevent it."""
        if self.scopes is None:
            return None
        if not self.scopes.opens(vhost):
            return f"access to vhost '{vhost}' refused for user '{self.user}'"
        if self._broker.machine.version < SINCE[ConnectVouched]:
            return "tokens are good for a login when the upgrade of the cluster is finished"
        return None

    def _refuse_login(self) -> None:
        self._amqp.refuse_login()
        self._refused = self._amqp.phase is Phase.CLOSED
        self._close_later()
        self._schedule_flush()

    def _open_vhost(self, vhost: str) -> None:
        if undecided := self._broker.no_quorum.why_no_wait():
            self._open_to_close(undecided)
            return
        limit = self._broker.limits.connection_max
        if limit and self._server.sockets.slots.authenticated > limit:
            text = f"connection refused: node connection limit ({limit}) is reached"
            self.fail(ConnectionFault(ReplyCode.NOT_ALLOWED, text, 10, 40))
            return
        if self._broker.is_full_for(vhost):
            # Without a majority, clients that reconnect again and again would fill the node's memory.
            text = f"connection refused: {self._broker.why_full}"
            self.fail(ConnectionFault(ReplyCode.RESOURCE_ERROR, text, 10, 40))
            return
        if why := self._why_refused(vhost):
            self.fail(ConnectionFault(ReplyCode.NOT_ALLOWED, why, 10, 40))
            return
        self.vhost = vhost
        self._broker.connect_when_free(self, self._connect)

    def _connect(self) -> None:
        if self._amqp.phase is Phase.VHOST and not self._transport.is_closing():
            self._broker.connect(self)

    def admitted(self) -> None:
        """Open the connection, because the log has admitted it to its virtual host."""
        if self._amqp.phase is not Phase.VHOST or self._transport.is_closing():
            return
        self._stop_timers()
        if self._amqp.heartbeat_s:
            self._check_heartbeat_later()  # not now: the client must get the answer to connection.open first
        log.info(
            "%s: user %s from %s, virtual host %s", self._described, self.user, self.peer_host, self.vhost
        )
        self._turns.log_in(self._place, self.vhost, self.user)
        self._process(self._amqp.accept_vhost)
        self._continue_input()

    def not_admitted(self, failure: Failed) -> None:
        """Close the connection, because the log has refused to admit it to its virtual host."""
        if self._amqp.phase is Phase.VHOST and not self._transport.is_closing():
            self.fail(error_of(failure))

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

    # Ends

    def fail(self, error: AmqpError) -> None:
        """Close the connection with an error."""
        if self._close_pending:
            self._send_close_ok()  # the client is closing the connection anyway
        elif self._amqp.phase not in (Phase.CLOSING, Phase.CLOSED):
            if self.user:
                text = f"{self._described} of {self.user}: {error}"
                self._server.sockets.throttled_log.warning("connection error", text)
            else:
                text = f"{self._described} from {self.peer_host}, which has not logged in: {error}"
                self._server.sockets.throttled_log.warning("stranger", text)
            self._end_channels()
            self._end_claims()
            self._amqp.fail(error)
            self._partial_bytes = 0
            # Otherwise close-ok might wait for the memory slot.
            self._server.sockets.partial_messages.remove(self)
            self._schedule_flush()
            self._close_later()
            # Only close-ok matters now, and all octets before it must be read to reach it.
            for reason in list(self._reasons_to_pause):
                self.resume_for(reason)
            self._broker.runtime.call_soon(self._continue_input)

    def force_close(self, effect: ConnectionForced) -> None:
        """Close the connection for an operator."""
        self._fail_or_abort(ConnectionFault(ReplyCode(effect.code), effect.text))

    def forget(self, text: str) -> None:
        """Close the connection, which the log has forgotten. Methods that channels hold back are not carried out."""
        self._fail_or_abort(ConnectionFault(ReplyCode.CONNECTION_FORCED, text))

    def _fail_or_abort(self, error: ConnectionFault) -> None:
        """Close the connection with an error. A connection that is not open yet gets no reason."""
        if self._amqp.phase is Phase.OPEN or self._close_pending:
            self.fail(error)
        elif self._amqp.phase not in (Phase.CLOSING, Phase.CLOSED):
            self._transport.abort()

    def shut_down(self, text: str) -> None:
        """Close the connection with a reason, so that the client connects to a different node."""
        self.fail(ConnectionFault(ReplyCode.CONNECTION_FORCED, text))
        self._flush()

    def fail_channel(self, channel: NumberedChannel, error: AmqpError) -> None:
        text = f"{self._described} of {self.user}, channel {channel.number}: {error}"
        self._server.sockets.throttled_log.warning("channel error", text)
        self._remove_channel(channel.number)
        self._amqp.fail_channel(channel.number, error)
        if (partial_bytes := self._amqp.partial_bytes) < self._partial_bytes:
            self._partial_bytes = partial_bytes
            self._server.sockets.partial_messages.record(self, partial_bytes)
        self._schedule_flush()

    def channel_closed(self, channel: NumberedChannel) -> None:
        """Answer the client's channel.close, after the work of the channel has ended."""
        self._remove_channel(channel.number)
        self._amqp.channel_closed(channel.number)
        self._schedule_flush()

    def _remove_channel(self, number: int) -> None:
        channel = self._channels.pop(number, None)
        if channel is not None:
            self._pumping.pop(channel.core.outgoing, None)

    def _hang_up(self) -> None:
        """Close the socket after all output is written. Drop it if the client takes too long to read the output."""
        if self._refused or self._close_ok_sent or self._transport.is_closing():
            return
        if header := self._amqp.foreign_header:
            guess = next((guess for begin, guess in GUESSES.items() if header.startswith(begin)), "")
            text = f"{self._described} from {self.peer_host}: not AMQP 0-9-1{guess}: {header!r}"
            self._server.sockets.throttled_log.warning("header", text)
        self._flush()
        self._close_socket()

    def _close_when_answered(self) -> None:
        """Answer the client's connection.close after the methods before it, which RabbitMQ carries out, too.

        The wait for answers of the log is limited, because without a majority there are none.
        """
        self._close_pending = True
        self._close_if_idle()
        if self._close_pending:
            self._limit_close_wait()

    def _close_if_idle(self) -> None:
        """Continue with the client's connection.close if all earlier methods have been carried out."""
        is_busy = self._broker.throttle.delays(self.id) or any(
            channel.methods.is_busy for channel in self._channels.values()
        )
        if self._close_pending and not is_busy:
            self._send_close_ok()

    def _limit_close_wait(self) -> None:
        was_held = self._broker.throttle.delays(self.id)
        self._deadline = self._broker.runtime.call_later(
            CLOSE_GRACE_S, partial(self._end_close_wait, was_held)
        )

    def _end_close_wait(self, was_held: bool) -> None:
        """Part, unless what waits because of a limit has not had the time for its answers since."""
        if was_held or self._broker.throttle.delays(self.id):
            self._limit_close_wait()
        else:
            self._send_close_ok()

    def _end_claims(self) -> None:
        """End the connection's claims in the log, and write no more until that is applied.

        The client may connect to a different node as soon as the connection ends, and must find its queues unlocked
        there.
        """
        withholds = self._broker.end_claims(self, self._release_output)
        if withholds:
            self._flush()
        self._holds_output = withholds

    def _send_close_ok(self) -> None:
        """Answer the client's connection.close. After that, only the socket is left."""
        self._end_channels()
        self._end_claims()
        self._amqp.closed()
        self._flush()
        self._close_ok_sent = True
        self._stop_timers()
        self._deadline = self._broker.runtime.call_later(CLOSE_GRACE_S, self._close_socket)

    def _close_socket(self) -> None:
        self._close_later()
        self._transport.close()

    def _end_channels(self) -> None:
        self._close_pending = False
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.end()
        self._pumping.clear()
        self._ready.clear()

    def _close_later(self) -> None:
        self._stop_timers()
        self._deadline = self._broker.runtime.call_later(CLOSE_GRACE_S, self._transport.abort)

    def _handshake_timed_out(self) -> None:
        text = f"{self._described} from {self.peer_host}: no handshake in time"
        self._server.sockets.throttled_log.warning("handshake", text)
        why = self._broker.why_undecided() or "the cluster has not answered in time"
        if self._amqp.phase is Phase.VHOST:
            self._open_to_close(why)
        else:
            self._end_login(why)

    def _end_login(self, why: str) -> None:
        """Close a connection whose login is undecided, with the reason if the client understands it."""
        if self._amqp.phase is Phase.LOGIN and self._amqp.capabilities.authentication_failure_close:
            self.shut_down(f"{why}; {_TRY_AGAIN}")
        else:
            self._transport.abort()

    def _open_to_close(self, why: str) -> None:
        """Open an undecidable connection only to close it with the reason at the client's next request.

        Clients mistake a close in place of connection.open-ok, or directly after it, for a refusal of the virtual host,
        or do not read it.
        """
        self._close_reason = f"{why}; {_TRY_AGAIN}"
        self._stop_timers()
        self._deadline = self._broker.runtime.call_later(OPEN_TO_CLOSE_S, self._close_with_reason)
        self._process(self._amqp.accept_vhost)

    def _close_with_reason(self) -> None:
        self.shut_down(self._close_reason)

    def _stop_timers(self) -> None:
        for timer in (self._deadline, self._heartbeat, self._hang_up_check):
            if timer is not None:
                timer.cancel()
        self._deadline = self._heartbeat = self._hang_up_check = None

    def _stop_all_timers(self) -> None:
        self._stop_timers()
        if self._expiry_check is not None:
            self._expiry_check.cancel()

    # Heartbeats

    def _check_heartbeat(self) -> None:
        """Send a heartbeat unless there was recent output, and count the checks without input.

        Checks are counted, not seconds, so that a client is not blamed for a time in which the node itself stalled.
        """
        self._silent_checks = 0 if self._is_alive() else self._silent_checks + 1
        if self._silent_checks >= SILENT_CHECKS_MAX:
            self._missed_heartbeats()
            return
        if (
            self._broker.runtime.monotonic() - self._written_s
            >= FRESH_INTERVAL_FRACTION * self._amqp.heartbeat_s
        ):
            self.write((HEARTBEAT,))
        self._check_heartbeat_later()

    def _missed_heartbeats(self) -> None:
        log.warning("%s of %s: missed heartbeats", self._described, self.user)
        self._transport.abort()

    def _check_heartbeat_later(self) -> None:
        self._has_read = False
        self._heartbeat = self._broker.runtime.call_later(
            self._amqp.heartbeat_s / HEARTBEAT_CHECKS, self._check_heartbeat
        )

    # Out

    @property
    def unread_bytes(self) -> int:
        return len(self._unread) + sum(map(len, self._later_unread)) + self._amqp.held_bytes

    @property
    def channel_count(self) -> int:
        return len(self._channels)

    @property
    def client_properties(self) -> Mapping[str, object]:
        """The properties that the client sent about itself when it connected."""
        return self._amqp.client_properties

    @property
    def wants_live_prefetch(self) -> bool:
        return self._amqp.capabilities.live_prefetch

    @property
    def wants_cancel_notify(self) -> bool:
        return self._amqp.capabilities.consumer_cancel_notify

    @property
    def frame_max(self) -> int:
        return self._amqp.frame_max

    # In

    @property
    def waits_for_log(self) -> bool:
        return self._amqp.phase is Phase.OPEN and (
            self._uncommitted_bytes > 0 or bool(self._holding_channels)
        )

    def count_uncommitted(self, size: int) -> None:
        """Add `size` octets to those requested and not yet taken in by the log. Taken in octets are negative."""
        self._uncommitted_bytes += size
        limit = self._broker.uncommitted_bytes_max
        if self._uncommitted_bytes > (limit // 2 if self._broker.is_full else limit):
            self.pause_for(_UNCOMMITTED)
            if not self._transport.is_closing():
                self._broker.waits_for_room(self)
        elif self._reasons_to_pause and self._uncommitted_bytes <= limit // 2:
            self._resume_input()

    def mark_publisher(self) -> None:
        """Mark the client as a publisher, so that it waits while there is an alarm."""
        if not self._is_publisher:
            self._is_publisher = True
            self.alarm_changed()

    def alarm_changed(self) -> None:
        """Pause or resume reading after a change of the alarm. Only clients that have published wait."""
        if self._amqp.phase is not Phase.OPEN:
            return
        reason = self._broker.alarm
        blocked = reason is not None and self._is_publisher
        if blocked != self._blocked:
            self._blocked = blocked
            if reason is not None:
                self._amqp.block(reason)
                text = f"{self._described} of {self.user} publishes, and waits: {reason}"
                self._server.sockets.throttled_log.warning("blocked", text)
            else:
                self._amqp.unblock()
            self._schedule_flush()
        self.memory_slot_changed()

    def memory_slot_changed(self) -> None:
        """Pause during an alarm, unless this connection has the slot to free memory by finishing a message.

        The slot counts only if memory alone is short.
        """
        if self._amqp.phase is not Phase.OPEN:
            return
        goes_on = self._broker.alarm == _MEMORY_SHORT and self._server.sockets.partial_messages.has_slot(self)
        if self._blocked and not goes_on:
            self.pause_for(_ALARM)
        else:
            self.resume_for(_ALARM)

    def memory_slot_unused(self) -> None:
        """Drop the connection if its client is dead.

        Otherwise its partly received message would keep memory, and the slot at times, for ever.

        The client is read with the slot only, so unused slots are counted, at most one in each check interval.
        """
        interval_s, now_s = self._amqp.heartbeat_s, self._broker.runtime.monotonic()
        if (
            interval_s
            and self._amqp.phase is Phase.OPEN
            and now_s - self._unused_s >= interval_s / HEARTBEAT_CHECKS
        ):
            self._unused_s = now_s
            self._unused_memory_slots += 1
            if self._unused_memory_slots > SILENT_CHECKS_MAX:
                self._missed_heartbeats()

    def close_stalled(self) -> None:
        """Close the connection of a client that makes no progress with a message while memory is short."""
        text = "memory is short, and the rest of a large message has not come for too long: publish it again"
        self.fail(ConnectionFault(ReplyCode.RESOURCE_ERROR, text))

    def methods_held(self, channel: NumberedChannel) -> None:
        """Record that the channel holds back methods, or would hold back the next method."""
        self._holding_channels[channel.number] = None

    def methods_released(self, channel: NumberedChannel) -> None:
        """Record that the channel has carried out all methods that it held back."""
        self._holding_channels.pop(channel.number, None)
        if not self._holding_channels:
            self._held_bytes = 0
            self.resume_for(_HELD)
            if self._close_pending:
                self._broker.runtime.call_soon(self._close_if_idle)

    def _check_hang_up_later(self) -> None:
        if self._hang_up_check is None:
            self._hang_up_check = self._broker.runtime.call_later(HANG_UP_CHECK_S, self._check_hang_up)

    def _check_hang_up(self) -> None:
        """Drop the connection if the client has hung up.

        Otherwise its waiting messages would be published for hours.
        """
        self._hang_up_check = None
        if self._transport.is_closing() or _HELD not in self._reasons_to_pause:
            return
        if self._broker.throttle.delays(self.id) and self._has_hung_up():
            self._transport.abort()
            return
        self._check_hang_up_later()


_TRY_AGAIN = "try again, here or at another node"
_UNCOMMITTED = "the log has to take in what was asked for"
_HELD = "channels hold back what was sent behind a method"
_TURN = "received octets wait for the connection's turn"
_ALARM = "publishers must wait"
_MEMORY_SHORT = reason_of(Alarm.MEMORY)
"""The alarm that may be due to partly received messages."""
