"""A client's connection from its socket to its admission by the log, for every client protocol.

A protocol's connection inherits from `ClientConnection`. It makes the engine, carries out the engine's events, and
answers its clients. Its abstract methods are at the end of this module and of the modules below it, which
`client_protocol` names. It calls these methods for events of the engine:

    _log_in                 the client has sent its credentials
    _enter                  the client wants to enter a virtual host
    renew_token             the client has sent a newer token
    _close_when_answered    the client closes the connection
    fail                    the client has broken a rule of the protocol

Invariant: a connection holds its slot, as unauthenticated until its login, until its socket is closed. The log sees no
client that fails to log in or that this node refuses.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple

from cluster.net.connection_slots import Stage
from qq.client_sockets.client_protocol import EngineT
from qq.client_sockets.closing import ClosingProtocol
from qq.client_sockets.tls_facts import tls_facts
from qq.client_sockets.token_expiry import TokenExpiry
from qq.errors import ReplyCode
from qq.machine.protocol.commands import SINCE, ConnectVouched
from qq.scopes import TokenUser
from qq.sessions.login import InvalidToken, Login, LoginsBusy
from qq.sessions.session_info import ConnectionFacts

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from qq.client_sockets.back_pressure import HeartbeatTimes
    from qq.client_sockets.shared import Arrival, ClientSockets
    from qq.machine.protocol.effects import Failed
    from qq.scopes import Scopes
    from qq.sessions.broker import Broker
    from qq.sessions.login import Attempt, Outcome

log = logging.getLogger(__name__)

TRY_AGAIN = "try again, here or at another node"


class ConnectionTerms(NamedTuple):
    """The terms of a connection, for operators."""

    mechanism: str
    frame_max: int
    channel_max: int
    heartbeat_s: int


class ClientConnection(ClosingProtocol[EngineT], Generic[EngineT]):
    """A client's connection."""

    __slots__ = (
        "_attempt",
        "_certificate_name",
        "_in_process_user",
        "_slot",
        "_token_expiry",
    )

    def __init__(
        self,
        broker: Broker,
        sockets: ClientSockets,
        arrival: Arrival,
        in_process_user: TokenUser | None = None,
    ) -> None:
        """Create a connection, which releases the slot of `arrival` when it is closed.

        An in-process client logs in as `in_process_user`, as with a certificate.
        """
        super().__init__(broker, sockets, arrival.peer)
        self._slot = arrival.slot
        self._certificate_name = arrival.certificate_name
        self._in_process_user = in_process_user
        self._attempt: Attempt | None = None
        """The login under way."""
        self._token_expiry: TokenExpiry | None = None
        """The checks of the token, if the user has logged in with a token."""

    LOGIN_PROTOCOL: ClassVar[str]
    """The protocol's name in counts of logins, in RabbitMQ's spelling: "amqp091"."""

    # Socket

    def connection_made(self, transport: Any) -> None:
        self.begin(transport, self._broker.limits.handshake_timeout_s)

    def begin(self, transport: asyncio.Transport, handshake_s: float) -> None:
        """Begin the handshake. It must end within `handshake_s` seconds."""
        super().connection_made(transport)
        certificate = transport.get_extra_info("peercert") if self._certificate_name is not None else None
        vouched_for = self._certificate_name(certificate) if self._certificate_name and certificate else None
        if self._in_process_user is not None:
            vouched_for = self._in_process_user.name
        self._engine = self._make_engine(vouched_for)
        self._out = self._engine.out
        self._broker.connection_opened(self)
        if not self._slot.is_taken:
            transport.abort()
            return
        self._slot.evict = transport.abort
        self._deadline = self._broker.runtime.call_later(handshake_s, self._handshake_timed_out)

    def connection_lost(self, exc: Exception | None) -> None:
        self._slot.release()
        # clients without a login may connect as often as they like
        level = logging.INFO if self.user else logging.DEBUG
        log.log(level, "%s of %s closed%s", self._described, self.user or "nobody", f": {exc}" if exc else "")
        if self._attempt is not None:
            self._attempt.cancel()
        self._stop_all_timers()
        super().connection_lost(exc)

    def facts(self) -> ConnectionFacts:
        return ConnectionFacts(
            *self._address,
            self._connected_ms,
            *self._terms(),
            self._blocked or self._sockets.partial_messages.waits(self),
            self._traffic,
            tls_facts(self._transport.get_extra_info("ssl_object")),
        )

    # Login

    def _log_in(self, user: str, password: bytes | None, mechanism: str) -> None:
        """Check the client's credentials, then continue with `accept_login` of the engine, or `_login_refused`.

        The password is None if the client needs none.
        """
        login = Login(
            user,
            password,
            self.peer_host,
            self.proxy_host,
            self.LOGIN_PROTOCOL,
            mechanism=mechanism,
            client=self._described,
        )

        def decided(found: Outcome) -> None:
            self._attempt = None
            if self._engine.phase is not self.LOGIN or self._transport.is_closing():
                return
            if found:
                self.user = user
                if isinstance(found, TokenUser):
                    self.user = found.name
                    self._apply_token(found)
                self._slot.mark_authenticated()
                self._process(self._engine.accept_login)
                self._continue_input()
            else:
                self._refuse_login()

        self._slot.step(Stage.CREDENTIALS)
        if self._in_process_user is not None and password is None:
            decided(self._in_process_user)
            return
        try:
            self._attempt = self._broker.logins.attempt(login, decided)
        except LoginsBusy as busy:
            self._end_login(str(busy))

    def _apply_token(self, user: TokenUser) -> None:
        """Apply the scopes and the expiry of this token."""
        self.scopes: Scopes | None = user.scopes
        self._scopes_changed(user.scopes)
        if self._token_expiry is None:
            self._token_expiry = TokenExpiry(self._broker.runtime, self._token_expired)
        self._token_expiry.expire_at(user.expires_s)

    def renew_token(self, token: bytes, answer: Callable[[str | None], None]) -> bool:
        """Accept a newer token of the same user. Call `answer` with None, or with the reason to refuse it.

        Return False, and never call `answer`, while the answer to an earlier token is pending. As in RabbitMQ, a
        password does not expire, so a new one is ignored.
        """
        expiry = self._token_expiry
        if expiry is None:
            answer(None)
            return True
        if expiry.is_renewing:
            return False
        expiry.is_renewing = True

        def verified(outcome: TokenUser | InvalidToken) -> None:
            expiry.is_renewing = False
            if self._engine.phase is not self.OPEN or self._transport.is_closing():
                return
            if isinstance(outcome, InvalidToken):
                answer(str(outcome))
            elif outcome.name != self.user:
                answer("it is another user's")
            elif not outcome.scopes.opens(self.vhost):
                answer(f"access to vhost '{self.vhost}' refused for user '{self.user}'")
            else:
                self._apply_token(outcome)
                answer(None)

        self._broker.logins.verify(token, verified)
        return True

    # Admission

    def _enter(self, vhost: str) -> None:
        """Ask the log to admit the client to a virtual host, then call `_opened`, or close with an error."""
        if undecided := self._broker.no_quorum.why_no_wait():
            self._refuse_undecided(undecided)
            return
        limit = self._broker.limits.connection_max
        if limit and self._sockets.slots.authenticated > limit:
            self._refuse_open(
                ReplyCode.NOT_ALLOWED, f"connection refused: node connection limit ({limit}) is reached"
            )
            return
        if self._broker.is_full_for(vhost):
            # Without a majority, clients that reconnect again and again would fill the node's memory.
            self._refuse_open(ReplyCode.RESOURCE_ERROR, f"connection refused: {self._broker.why_full}")
            return
        if why := self._why_refused(vhost):
            self._refuse_open(ReplyCode.NOT_ALLOWED, why)
            return
        self.vhost = vhost
        self._broker.connect_when_free(self, self._connect)

    def _why_refused(self, vhost: str) -> str | None:
        """Return why the user of a token may not enter a virtual host, or None if the token does not prevent it."""
        if self.scopes is None:
            return None
        if not self.scopes.opens(vhost):
            return f"access to vhost '{vhost}' refused for user '{self.user}'"
        if self._broker.machine.version < SINCE[ConnectVouched]:
            return "tokens are good for a login when the upgrade of the cluster is finished"
        return None

    def _connect(self) -> None:
        if self._engine.phase is self.ADMISSION and not self._transport.is_closing():
            self._broker.connect(self)

    def admitted(self) -> None:
        """Open the connection, because the log has admitted it to its virtual host."""
        if self._engine.phase is not self.ADMISSION or self._transport.is_closing():
            return
        self._stop_timers()
        self._heartbeat_times = times = self._agreed_heartbeats()
        if times is not None:
            self._check_heartbeat_later(
                times.check_s
            )  # not now: the client must get the answer to its open first
        log.info(
            "%s: user %s from %s, virtual host %s", self._described, self.user, self.peer_host, self.vhost
        )
        self._turns.log_in(self._place, self.vhost, self.user)
        self._process(self._accept_open)
        self._continue_input()

    def not_admitted(self, failure: Failed) -> None:
        """Close the connection, because the log has refused to admit it to its virtual host."""
        if self._engine.phase is self.ADMISSION and not self._transport.is_closing():
            self._admission_failed(failure)

    def _handshake_timed_out(self) -> None:
        text = f"{self._described} from {self.peer_host}: no handshake in time"
        self._sockets.throttled_log.warning("handshake", text)
        why = self._broker.why_undecided() or "the cluster has not answered in time"
        if self._engine.phase is self.ADMISSION:
            self._refuse_undecided(why)
        else:
            self._end_login(why)

    def _stop_all_timers(self) -> None:
        super()._stop_all_timers()
        if self._token_expiry is not None:
            self._token_expiry.stop()
            self._token_expiry = None  # it refers to this connection

    # The protocol's part

    @abstractmethod
    def _make_engine(self, vouched_for: str | None) -> EngineT:
        """Return the engine of a new connection. `vouched_for` is the name in the client's certificate, if any."""

    @abstractmethod
    def _terms(self) -> ConnectionTerms: ...

    @abstractmethod
    def _agreed_heartbeats(self) -> HeartbeatTimes | None:
        """Return the times of heartbeats that node and client have agreed on; None for no heartbeats."""

    @abstractmethod
    def _refuse_login(self) -> None:
        """Close the connection after a refused login. `Logins` has already delayed the refusal."""

    @abstractmethod
    def _end_login(self, why: str) -> None:
        """Close the connection with its login undecided, and with the reason if the client understands it."""

    @abstractmethod
    def _accept_open(self) -> list[Any]:
        """Let the engine open the connection. Return the events of octets that the client has sent ahead."""

    @abstractmethod
    def _refuse_open(self, code: ReplyCode, text: str) -> None:
        """Close a connection that may not enter its virtual host."""

    @abstractmethod
    def _refuse_undecided(self, why: str) -> None:
        """Close a connection about which the cluster cannot decide now. The client should try again."""

    @abstractmethod
    def _admission_failed(self, failure: Failed) -> None:
        """Close a connection that the log has not admitted to its virtual host."""

    @abstractmethod
    def _scopes_changed(self, scopes: Scopes) -> None:
        """Check the requests of all sessions by the scopes of a newer token from now on."""

    @abstractmethod
    def _token_expired(self) -> None:
        """Close the connection, because the user's token has expired."""
