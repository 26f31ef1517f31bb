"""The part that links of both directions share: a session of the log, checks of rights, refusals.

Invariant: a refusal is final only if this node has applied all that was committed before. So a client is never refused
a queue or a right that any node has confirmed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from qq.amqp10.conditions import Condition
from qq.amqp10_server.errors import error_reply, refusal_of, unauthorized
from qq.amqp10_server.session_facts import shown_link_name
from qq.errors import ReplyCode
from qq.machine.protocol.refusals import the_queue
from qq.sessions.access import Access, AccessRefused
from qq.sessions.session_info import LinkFacts, SessionCounts

if TYPE_CHECKING:
    from collections.abc import Callable

    from qq.amqp10.link import Link10
    from qq.amqp10.performatives import ErrorReply
    from qq.amqp10.session import Session10
    from qq.amqp10_server.errors import LinkRefusal
    from qq.amqp10_server.ports import LinkCarrier
    from qq.machine.catalog.vhost import VirtualHost
    from qq.machine.protocol.effects import Failed, Result
    from qq.scopes import Scopes
    from qq.sessions.ports import Publisher, SessionConsumers
    from qq.sessions.session_info import SessionFacts


class LinkSession(ABC):
    """A link of a client. It is a `Session` of the broker."""

    __slots__ = (
        "_engine",
        "_link",
        "access",
        "answered",
        "broker",
        "connection",
        "counts",
        "has_failed",
        "is_over",
        "session",
    )

    def __init__(self, carrier: LinkCarrier, engine: Session10, link: Link10) -> None:
        self.connection = carrier
        self.broker = broker = carrier.broker
        self.session = broker.new_id()
        self.access = Access(broker.machine, carrier.user, carrier.vhost, carrier.scopes)
        self.counts = SessionCounts()
        self.answered = 0
        self.has_failed = False
        """Whether the log has refused a command of the session, and skips all later ones."""
        self.is_over = False
        self._engine = engine
        """The session of the protocol."""
        self._link = link

    @property
    def vhost(self) -> VirtualHost | None:
        return self.broker.machine.vhosts.get(self.connection.vhost)

    @property
    def link_number(self) -> int:
        """The number of the link in its connection, for operators."""
        return self._engine.channel * self.broker.limits.link_max_per_session + self._link.handle

    @property
    @abstractmethod
    def address(self) -> str:
        """The address of the link's queue or exchange; empty if each message has its own."""

    def _link_facts(self, credit: int) -> LinkFacts:
        role = "receiver" if self._link.attach.role else "sender"
        return LinkFacts(shown_link_name(self._link), role, self.address, credit, self._engine.channel)

    # Attaching

    def open(self, begin: Callable[[], None]) -> None:
        """Open the session in the log when no limit bars it, and then call `begin`."""

        def opened() -> None:
            if not self.is_over:
                self.broker.session_opened(self)
                begin()

        self.broker.open_when_free(self, self.connection.guarded(opened))

    def decide(
        self, check: Callable[[], LinkRefusal | None], decided: Callable[[LinkRefusal | None], None]
    ) -> None:
        """Call `decided` with the result of a check, which may raise AccessRefused.

        A refusal is checked again when this node has applied all that was committed before.
        """
        if self._checked(check) is None:
            decided(None)
            return

        def check_again() -> None:
            if not self.is_over:
                self.access.certain = True
                refusal = self._checked(check)
                self.access.certain = False
                decided(refusal)

        self.broker.submissions.read(self.connection.guarded(check_again), self.connection.lane)

    def renew(self, scopes: Scopes) -> None:
        """Take the scopes of a newer token. End the session of a link that they do not allow, as RabbitMQ 4.1 does."""

        def decided(refusal: LinkRefusal | None) -> None:
            if refusal is not None:
                self.refuse_link(refusal)

        self.access.renew(scopes)
        if not self.is_over:  # another link may have ended their session
            self.decide(self.check_rights, decided)

    @abstractmethod
    def check_rights(self) -> None:
        """Raise AccessRefused if the client may not use the link's address."""

    def check_queue(self, name: str) -> LinkRefusal | None:
        """Return the refusal of a link to a queue that does not exist; None if it exists."""
        vhost = self.vhost
        if vhost is not None and name in vhost.queues:
            return None
        return refusal_of(ReplyCode.NOT_FOUND, f"no {the_queue(name, self.connection.vhost)}")

    def deletion_of(self, queue: str) -> ErrorReply:
        """Return the error for the client whose queue was deleted."""
        text = f"{the_queue(queue, self.connection.vhost)} was deleted"
        return error_reply(Condition.RESOURCE_DELETED, text)

    @staticmethod
    def _checked(check: Callable[[], LinkRefusal | None]) -> LinkRefusal | None:
        try:
            return check()
        except AccessRefused as refused:
            return unauthorized(str(refused))

    def refuse_link(self, refusal: LinkRefusal) -> None:
        """End the link or its session with an error."""
        if refusal.ends_session:
            self.connection.end_session(self._engine, refusal.error)
        else:
            self.connection.detach(self._link, refusal.error)

    # Events from the log

    @property
    @abstractmethod
    def publisher(self) -> Publisher: ...

    @property
    @abstractmethod
    def consumers(self) -> SessionConsumers | None: ...

    @abstractmethod
    def replied(self, result: Result) -> None:
        """Take the answer to the command that attaches the link."""

    def failed(self, failure: Failed) -> None:
        """End the link, because the log has refused a command."""
        self.has_failed = True
        self.refuse_link(refusal_of(failure.code, failure.text))

    waits_for_answer = False
    """Always false: asked after a snapshot about cancellations, and a link cancels no consumer."""

    def needed_from(self) -> int | None:
        """Return None: a message stays in its queue until the client has settled it."""
        return None

    @abstractmethod
    def facts(self) -> SessionFacts:
        """Return the figures of the link for operators."""

    # Ends

    def end(self) -> None:
        """End the session in the log. The messages that the client holds return to their queues."""
        if not self.is_over:
            self.is_over = True
            self.broker.session_ended(self)
