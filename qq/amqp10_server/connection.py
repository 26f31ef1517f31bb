"""AMQP 1.0 connections on sockets: login, virtual host, sessions and links, closing.

Back-pressure: during an alarm, and while the log is behind, the windows of the sessions close, so a client that also
consumes goes on to settle. A client that nevertheless sends more than BLOCKED_BYTES_MAX is not read.
"""

from __future__ import annotations

import re
from functools import partial
from math import ceil, inf
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from qq.amqp10.conditions import Condition, ConditionError
from qq.amqp10.connection import (
    SASL_HEADER,
    CloseRequested10,
    ConnectionFault10,
    LoginRequested,
    OpenRequested,
    Phase10,
    ServerConnection10,
    SessionBegun,
)
from qq.amqp10.encoding import HEARTBEAT
from qq.amqp10.link import DetachRequested, LinkFault
from qq.amqp10.performatives import Coordinator, ReceiverSettleMode, SenderSettleMode
from qq.amqp10.receiving_link import Deliveries, ReceivingLink
from qq.amqp10.sending_link import CreditSet, SendingLink, Settled
from qq.amqp10.session import (
    EndRequested,
    LinkRequested,
    SessionFault,
    SessionPhase,
    SettlementRequested,
    WindowOpened,
)
from qq.amqp10_server.attaching import (
    accepted_source,
    check_new,
    consumer_arguments,
    essential,
    queue_of_source,
)
from qq.amqp10_server.command_session import ConnectionCommands
from qq.amqp10_server.consuming_link import ConsumingLink
from qq.amqp10_server.delivering_link import DeliveringLink
from qq.amqp10_server.errors import ConditionFault, error_of, error_reply, reply_to
from qq.amqp10_server.management_node import ManagementLink, ManagementNode, is_management
from qq.amqp10_server.publishing_link import PublishingLink, publishing_target
from qq.amqp10_server.reply_link import ReplyLink, wants_replies
from qq.amqp10_server.server import ANONYMOUS
from qq.amqp10_server.session_facts import closed_windows, session_facts
from qq.amqp10_server.temporary_queues import TemporaryQueues, wants_queue
from qq.amqp10_server.termini_v1 import TerminiV1, has_address_v1
from qq.client_sockets.back_pressure import ALARM, HeartbeatTimes
from qq.client_sockets.client_connection import TRY_AGAIN, ClientConnection, ConnectionTerms
from qq.client_sockets.protocol_choice import ServedProtocol
from qq.errors import ReplyCode
from qq.machine.protocol.commands import SINCE, AttachConsumer
from qq.sasl import EXTERNAL, PASSWORD_MECHANISMS, InvalidResponse
from qq.sessions.pending_requests import COMMAND_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from qq.amqp10.addresses import TargetAddress
    from qq.amqp10.connection import Event10
    from qq.amqp10.link import Link10
    from qq.amqp10.performatives import ErrorReply
    from qq.amqp10.session import Session10
    from qq.amqp10_server.server import Amqp10Server
    from qq.client_sockets.shared import Arrival
    from qq.errors import AmqpError
    from qq.machine.protocol.effects import Failed
    from qq.scopes import Scopes
    from qq.sessions.broker import Broker
    from qq.sessions.session_info import ConnectionFacts, LinkSessionFacts

DEFAULT_VHOST = "/"
OTHER_VERSIONS = re.compile(rb"AMQP[\x00-\x03]\x01")
"""The beginnings of headers of AMQP 1.0 without a login, and with TLS inside of the protocol."""
VERSION_WAIT_S, VERSION_WAITS_MAX = 0.1, 50
"""Seconds between looks at the version of the state, which a new cluster raises step by step, and their number."""
CHECKS_PER_TIMEOUT = 4
"""Checks for a client's silence in each of both sides' idle times, at least."""
BLOCKED_BYTES_MAX = 256 * 1024
"""Octets of messages that a client may publish during an alarm, because its windows were open before."""


class _HoldingLink(NamedTuple):
    """A link that holds back messages, for `BackPressuredProtocol.requests_held`."""

    number: int


AnyLink: TypeAlias = PublishingLink | ConsumingLink | ReplyLink | ManagementLink
"""The part of the connection that serves a link."""


class Amqp10Connection(ClientConnection[ServerConnection10]):
    """A client's connection. It is the `LinkCarrier` of its links."""

    __slots__ = (
        "_blocked_bytes",
        "_commands",
        "_ending",
        "_links",
        "_management",
        "_server",
        "_temporary_queues",
        "_termini_v1",
        "_vouched_for",
    )

    PROTOCOL = "AMQP 1-0"
    LOGIN_PROTOCOL = "amqp10"
    LOGIN = Phase10.LOGIN
    ADMISSION = Phase10.OPENING
    OPEN = Phase10.OPEN
    CLOSING = Phase10.CLOSING
    CLOSED = Phase10.CLOSED
    HEARTBEAT = HEARTBEAT

    def __init__(self, server: Amqp10Server, arrival: Arrival) -> None:
        super().__init__(server.broker, server.sockets, arrival)
        self._server = server
        self._links: dict[Link10, AnyLink] = {}
        """The links with a session in the log, and those of the management node."""
        self._ending: dict[Session10, None] = {}
        """Sessions that their client ends, with messages that wait for a limit of publishing."""
        self._commands = ConnectionCommands(self)
        """Commands that belong to none of the links."""
        self._temporary_queues = TemporaryQueues(self, self._commands)
        self._termini_v1 = TerminiV1(self, self._commands)
        self._management: ManagementNode | None = None
        """The management node, after the first link to it."""
        self._blocked_bytes = 0
        """Octets of messages published since the alarm began, without those received of incomplete messages."""

    # Login

    def _make_engine(self, vouched_for: str | None) -> ServerConnection10:
        self._vouched_for = vouched_for
        return ServerConnection10(
            self._server.current_settings, self._server.mechanisms(self.peer_host, vouched_for)
        )

    def _login(self, event: LoginRequested) -> None:
        mechanism = event.mechanism
        try:
            if mechanism == ANONYMOUS:
                user, password = self._server.anonymous_user, None
            elif mechanism == EXTERNAL:
                user, password = self._vouched_for or "", None
            else:
                user, password = PASSWORD_MECHANISMS[mechanism](event.response)
        except InvalidResponse:
            self._refuse_login()
            return
        self._log_in(user, password, mechanism)

    def _refuse_login(self) -> None:
        self._engine.refuse_login()
        self._hang_up()

    def _end_login(self, why: str) -> None:  # noqa: ARG002  # the outcome of SASL has no text
        self._transport.abort()

    # Open

    def _terms(self) -> ConnectionTerms:
        engine = self._engine
        return ConnectionTerms(
            engine.mechanism,
            engine.frame_max,
            self._server.settings.sessions_max - 1,
            self._server.heartbeat_s,
        )

    def _agreed_heartbeats(self) -> HeartbeatTimes | None:
        own_s, client_s = float(self._server.heartbeat_s), self._engine.client_idle_ms / 1000
        if not own_s and not client_s:
            return None
        check_s = min(own_s or inf, client_s or inf) / CHECKS_PER_TIMEOUT
        silent_max = ceil(own_s / check_s) if own_s else 2**62
        return HeartbeatTimes(check_s, client_s / CHECKS_PER_TIMEOUT if client_s else inf, silent_max)

    def _missed_heartbeats(self) -> None:
        text = "no frame received from client within idle timeout threshold"
        self._fail_with(error_reply(Condition.RESOURCE_LIMIT_EXCEEDED, text))

    def _enter_when_agreed(self, vhost: str, waits: int = VERSION_WAITS_MAX) -> None:
        """Enter a virtual host when the cluster has agreed on a version of the state that has AMQP 1.0."""
        if self._engine.phase is not Phase10.OPENING or self._transport.is_closing():
            return
        version = self._broker.machine.version
        if version >= SINCE[AttachConsumer]:
            self._enter(vhost)
        elif waits:
            self._broker.runtime.call_later(
                VERSION_WAIT_S, self.guarded(partial(self._enter_when_agreed, vhost, waits - 1))
            )
        else:
            text = f"AMQP 1.0 needs version {SINCE[AttachConsumer]} of the state; the cluster has version {version}"
            self._fail_with(error_reply(Condition.NOT_ALLOWED, text))

    def _accept_open(self) -> list[Event10]:
        return self._engine.accept_open()

    def _refuse_open(self, code: ReplyCode, text: str) -> None:
        self._fail_with(error_of(code, text))

    def _refuse_undecided(self, why: str) -> None:
        self._fail_with(error_reply(Condition.INTERNAL_ERROR, f"{why}; {TRY_AGAIN}"))

    def _admission_failed(self, failure: Failed) -> None:
        vhost = self._broker.machine.vhosts.get(self.vhost)
        may_enter = self._broker.machine.catalog.access.permissions(self.user, self.vhost) is not None
        if failure.code == ReplyCode.NOT_ALLOWED and not (vhost is not None and may_enter):
            self._fail_with(error_reply(Condition.UNAUTHORIZED_ACCESS, failure.text))
        else:
            self._fail_with(error_reply(Condition.RESOURCE_LIMIT_EXCEEDED, failure.text))

    def _scopes_changed(self, scopes: Scopes) -> None:
        for each in list(self._links.values()):
            each.renew(scopes)

    def _token_expired(self) -> None:
        self._fail_with(error_reply(Condition.UNAUTHORIZED_ACCESS, "credential expired"))

    # Ends

    def _fail_with(self, error: ErrorReply) -> None:
        self.fail(ConditionFault(error))

    def _send_close(self, error: AmqpError) -> None:
        if isinstance(error, ConditionFault):
            reply = error.reply
        else:
            text = error.text.removeprefix(f"{error.code.name} - ")
            is_forced = error.code is ReplyCode.CONNECTION_FORCED
            reply = error_of(error.code, f"Connection forced: {text}" if is_forced else text)
        self._engine.fail(reply)

    def _has_busy_session(self) -> bool:
        return any(each.is_busy for each in self._links.values())

    def _close_if_idle(self) -> None:
        super()._close_if_idle()
        if self._close_pending:  # published messages have their outcomes when all requests are applied
            self._broker.submissions.read_barrier(self.guarded(super()._close_if_idle), self.lane)

    def _end_sessions(self) -> None:
        links, self._links = self._links, {}
        for each in links.values():
            each.end()
        if self._management is not None:
            self._management.end()
        self._commands.end()

    def _end_a_session(self) -> None:
        self._links.popitem()[1].end()

    # Events of the client

    def _handle_all(self, events: Sequence[Event10]) -> None:
        for event in events:
            if self._engine.phase is Phase10.CLOSING:
                return  # an earlier event has failed the connection, so later events are dropped
            self._handle(event)

    def _handle(self, event: Event10) -> None:
        match event:
            case Deliveries(link):
                self._publish(self._links.get(link), event)
            case Settled(link):
                if isinstance(found := self._links.get(link), ConsumingLink):
                    found.settle(event)
            case CreditSet(link):
                if (found := self._links.get(link)) and not isinstance(found, PublishingLink):
                    found.credit_set(event)
            case WindowOpened(session):
                for link in session.links:
                    if (found := self._links.get(link)) and not isinstance(found, PublishingLink):
                        found.pump()
            case LinkRequested(link, session):
                self._attach_new(link, session)
            case DetachRequested(link):
                self._detach_when_done(link)
            case LinkFault(link, error):
                self.detach(link, reply_to(error))
            case SettlementRequested(session):
                self._when_applied(partial(session.settle, event), COMMAND_BYTES * len(event.ranges))
            case EndRequested(session):
                self._end_when_published(session)
            case SessionFault(session, error):
                self.end_session(session, reply_to(error))
            case SessionBegun():
                pass
            case LoginRequested():
                self._login(event)
            case OpenRequested(vhost):
                self._enter_when_agreed(DEFAULT_VHOST if vhost is None else vhost)
            case CloseRequested10():
                self._close_when_answered()
            case ConnectionFault10(error):
                self._fail_with(reply_to(error))

    def _publish(self, link: AnyLink | None, event: Deliveries) -> None:
        if isinstance(link, PublishingLink | ManagementLink):
            link.publish(event)
        if self._blocked:
            self._blocked_bytes += sum(map(len, event.messages))

    def _receive(self) -> None:
        super()._receive()
        if self._blocked and self._engine.phase is Phase10.OPEN and not self._may_finish_message:
            published = self._blocked_bytes + self._engine.partial_bytes
            if published > BLOCKED_BYTES_MAX:
                self.pause_for(ALARM)

    # Links

    def _attach_new(self, link: ReceivingLink | SendingLink, session: Session10) -> None:
        try:
            check_new(link.attach)
        except ConditionFault as fault:
            self.detach(link, fault.reply)
        else:
            link.attach = essential(link.attach)
            self._attach(link, session)

    def _attach(
        self, link: ReceivingLink | SendingLink, session: Session10, prepared: TargetAddress | None = None
    ) -> None:
        """Attach a link. `prepared` is the address that stands for one of version 1, after its queue is declared."""
        try:
            if is_management(link.attach):
                self._attach_management(link, session)
            elif isinstance(link, SendingLink) and wants_replies(link.attach):
                self._attach_replies(link, session)
            elif wants_queue(link.attach):
                attach = partial(self._attach, link, session)
                self._temporary_queues.make(link, session, self._container_id, attach)
            elif prepared is None and self._server.permits_v1 and has_address_v1(link.attach):
                self._termini_v1.prepare(link, session, partial(self._attach, link, session))
            elif isinstance(link, ReceivingLink):
                self._attach_publisher(link, session, prepared)
            else:
                queue = queue_of_source(link.attach) if prepared is None else prepared.routing_key
                self._attach_consumer(link, session, queue)
        except ConditionFault as fault:
            self.detach(link, fault.reply)
        except ConditionError as error:
            self.detach(link, reply_to(error))

    def _attach_publisher(
        self, link: ReceivingLink, session: Session10, prepared: TargetAddress | None
    ) -> None:
        attach = link.attach
        target = attach.target
        if isinstance(target, Coordinator):
            raise ConditionFault(error_reply(Condition.NOT_IMPLEMENTED, "transactions are not supported"))
        if attach.rcv_settle_mode is ReceiverSettleMode.SECOND and (
            attach.snd_settle_mode is SenderSettleMode.UNSETTLED
        ):
            text = "rcv-settle-mode second is not supported"
            raise ConditionFault(error_reply(Condition.NOT_IMPLEMENTED, text))
        address = None if target is None else target.address
        parsed = prepared or (None if address is None else publishing_target(address))
        publisher = PublishingLink(self, session, link, parsed)
        self._links[link] = publisher
        self.mark_publisher()
        publisher.attach(partial(self._accept, link.accept))

    def _attach_consumer(self, link: SendingLink, session: Session10, queue: str) -> None:
        attach = link.attach
        source = accepted_source(attach)
        consumer = self._links[link] = ConsumingLink(self, session, link, queue)
        consumer.attach(consumer_arguments(attach), partial(self._accept, partial(link.accept, source)))

    def _attach_replies(self, link: SendingLink, session: Session10) -> None:
        source = accepted_source(link.attach)
        replies = self._links[link] = ReplyLink(self, session, link)
        source = replies.source(source)
        replies.attach(partial(self._accept, partial(link.accept, source)))

    def _attach_management(self, link: ReceivingLink | SendingLink, session: Session10) -> None:
        if self._management is None:
            self._management = ManagementNode(self, self._commands)
        attached = self._management.attach(link, session)
        if attached is not None:
            self._links[link], accept = attached
            self._accept(accept)

    def _accept(self, accept: Callable[[], list[Any]]) -> None:
        """Answer an attach, and carry out the frames that the client has sent behind it."""
        self._handle_all(accept())
        self._schedule_flush()

    def _detach_when_done(self, link: Link10) -> None:
        found = self._links.get(link)
        if found is None:
            link.detached()
            self._attach_next(link)
        else:
            found.finish(partial(self._detached, link))

    def _detached(self, link: Link10) -> None:
        def answer() -> None:
            link.detached()
            self._attach_next(link)
            self._schedule_flush()

        self._drop(link)
        self._temporary_queues.delete(link, answer)

    def detach(self, link: Link10, error: ErrorReply | None) -> None:
        """End a link, and its session in the log."""
        self._drop(link)
        self._temporary_queues.delete(link)
        link.detach(error)
        self._attach_next(link)
        self._partial_dropped()
        self._schedule_flush()

    def _attach_next(self, link: Link10) -> None:
        """Attach the link for which the client uses the handle of an ended link again."""
        if not self._transport.is_closing():
            self._handle_all(link.take_next_request())

    def end_session(self, session: Session10, error: ErrorReply) -> None:
        """End a session with all its links."""
        self._end_links(session)
        session.end(error)
        self._partial_dropped()
        self._schedule_flush()

    def _end_when_published(self, session: Session10) -> None:
        """End a session for its client, after the messages that its links hold back."""
        if session.state is not SessionPhase.END_REQUESTED or self._transport.is_closing():
            return
        links = [self._links.get(link) for link in session.links]
        if any(isinstance(link, PublishingLink) and link.is_holding for link in links):
            self._ending[session] = None
            return
        self._end_links(session)
        self._when_applied(session.ended)

    def _end_links(self, session: Session10) -> None:
        for link in session.links:
            self._drop(link)
            self._temporary_queues.delete(link)

    def _drop(self, link: Link10) -> None:
        found = self._links.pop(link, None)
        if isinstance(found, DeliveringLink):
            self._pumping.pop(found.output, None)
        if found is not None:
            found.end()

    def guarded(self, work: Callable[[], None]) -> Callable[[], None]:
        """Return a function that does the work, and closes the connection if that raises an exception."""

        def guarded_work() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001  # it is logged
                self.unexpected(error)

        return guarded_work

    def _when_applied(self, then: Callable[[], None], size: int = 0) -> None:
        """Call `then` when all requests of the connection have been applied. Meanwhile this counts as `size` octets."""

        def applied() -> None:
            then()
            self._schedule_flush()

        self._broker.submissions.read_barrier(self.guarded(applied), self.lane, size=size)

    # Back-pressure

    def hold_input(self, session: int, *, holds: bool) -> None:
        """Record whether the link with this session of the log holds messages back."""
        held = _HoldingLink(session)
        if holds:
            self.requests_held(held)
        else:
            self.requests_released(held)
            ending, self._ending = self._ending, {}
            for each in ending:
                end = self.guarded(partial(self._end_when_published, each))
                self._broker.runtime.call_soon(end)

    def _tell_blocked(self, reason: str) -> None:  # noqa: ARG002  # a window has no text
        self._blocked_bytes = -self._engine.partial_bytes
        self._engine.close_windows()

    def _tell_unblocked(self) -> None:
        self._engine.open_windows()

    def memory_slot_changed(self) -> None:
        """Let the client send, during an alarm, if it has the slot to free memory by finishing a message."""
        if self._engine.phase is not Phase10.OPEN:
            return
        if self._blocked and not self._may_finish_message:
            self._engine.close_windows()
        else:
            self._blocked_bytes = -self._engine.partial_bytes
            self.resume_for(ALARM)
            self._engine.open_windows()
        self._schedule_flush()

    # For links and operators

    @property
    def broker(self) -> Broker:
        return self._broker

    def schedule_flush(self, size: int = 0) -> None:
        """Write the output of the protocol in this pass of the event loop, with messages of `size` octets."""
        self._out_bytes += size
        self._schedule_flush()

    @property
    def members(self) -> Sequence[str]:
        """The names of the cluster's members."""
        return self._server.members()

    @property
    def _container_id(self) -> str:
        opened = self._engine.client_open
        return "" if opened is None else opened.container_id

    def facts(self) -> ConnectionFacts:
        sessions = self._engine.sessions
        return (
            super()
            .facts()
            ._replace(
                container_id=self._container_id,
                sessions=len(sessions),
                links=len(self._links),
                closed_windows=closed_windows(sessions, self._has_waiting),
            )
        )

    def _has_waiting(self, link: Link10) -> bool:
        found = self._links.get(link)
        return isinstance(found, DeliveringLink) and found.output.has_waiting

    def link_session(self, channel: int) -> LinkSessionFacts | None:
        session = self._engine.session(channel)
        return None if session is None else session_facts(session, self._address_of)

    def _address_of(self, link: Link10) -> str:
        """Return the address of a link; empty if the link has none, or is not attached yet."""
        found = self._links.get(link)
        return "" if found is None else found.address

    @property
    def channel_count(self) -> int:
        return len(self._links)

    @property
    def client_properties(self) -> Mapping[str, object]:
        """The properties of the client's open."""
        opened = self._engine.client_open
        properties = None if opened is None else opened.properties
        return {str(key): value for key, value in (properties or {}).items()}

    @property
    def _client_name(self) -> object:
        return super()._client_name or self._container_id


def served10(server: Amqp10Server) -> ServedProtocol:
    """Return how a port recognizes AMQP 1.0, and makes its connections. As in RabbitMQ, clients must log in."""
    return ServedProtocol("AMQP 1.0", (SASL_HEADER,), OTHER_VERSIONS, partial(Amqp10Connection, server))
