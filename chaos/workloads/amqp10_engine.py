"""Qpid Proton's engine for a client's connection with a single session: octets in, octets out, events for links.

Invariant: the engine does no I/O and reads no clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from proton import Collector, Connection, Endpoint, Event, Transport, TransportException

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proton import Delivery, Link, Session

FRAME_BYTES = 8192
"""Largest frame, so that large messages are divided."""
WINDOW_BYTES = 64 * FRAME_BYTES
"""Largest number of bytes that the node may send before the client has taken them."""


def pushed(transport: Transport, octets: bytes) -> Iterator[None]:
    """Push octets of a node into an engine, and stop after each piece that it takes. A closed engine takes none.

    Raises TransportException for octets that are not AMQP.
    """
    while octets and (capacity := transport.capacity()) > 0:
        transport.push(octets[:capacity])
        octets = octets[capacity:]
        yield


def output_of(transport: Transport) -> Iterator[bytes]:
    """Take the octets for a node from an engine, in pieces."""
    while (size := transport.pending()) > 0:
        piece = transport.peek(size)
        transport.pop(size)
        yield bytes(piece or b"")


class LinkEvents(Protocol):
    """The owner of a link."""

    def opened(self) -> None:
        """Handle the node's attach. It also comes before the detach of a link that the node refuses."""

    def flowed(self) -> None:
        """Handle a flow of the node, which may have taken credit away."""

    def delivered(self, delivery: Delivery, /) -> None:
        """Handle a part of a delivery, or news of its outcome."""

    def closed(self, condition: str, reason: str) -> None:
        """Handle the node's detach."""


class Engine:
    """A connection and its session, which both are open from the beginning."""

    def __init__(self, container: str, user: str, password: str, idle_timeout_s: float) -> None:
        self.connection = Connection()
        self.connection.container = container
        self.connection.user, self.connection.password = user, password
        self._collector = Collector()
        self.connection.collect(self._collector)
        self._transport = Transport(Transport.CLIENT)
        self._transport.max_frame_size = FRAME_BYTES
        self._transport.idle_timeout = idle_timeout_s
        sasl = self._transport.sasl()
        sasl.allowed_mechs("PLAIN")
        sasl.allow_insecure_mechs = True
        self._transport.bind(self.connection)
        self.connection.open()
        self.session: Session = self.connection.session()
        self.session.incoming_capacity = WINDOW_BYTES
        self.session.open()
        self.failure: str | None = None
        """Why the connection or the session has ended; `None` before that."""
        self._owners: dict[tuple[str, bool], LinkEvents] = {}

    @property
    def is_open(self) -> bool:
        """Whether the node has opened the connection and the session."""
        return bool(self.connection.state & self.session.state & Endpoint.REMOTE_ACTIVE)

    @property
    def is_closed(self) -> bool:
        """Whether the node has closed the connection, in answer or by itself."""
        return bool(self.connection.state & Endpoint.REMOTE_CLOSED)

    def attach(self, link: Link, owner: LinkEvents) -> None:
        self._owners[link.name, link.is_sender] = owner
        link.open()

    def receive(self, octets: bytes) -> None:
        """Process octets of the node, and call the owners of its links."""
        try:
            for _ in pushed(self._transport, octets):
                self.process_events()
        except TransportException as error:
            self._fail(str(error))
            return
        self.process_events()

    def output(self) -> bytes:
        """Return all octets for the node."""
        return b"".join(output_of(self._transport))

    def tick(self, now_s: float) -> None:
        """Take note of the time: the engine sends heartbeats, and ends when the node is silent for too long."""
        self._transport.tick(now_s)
        self.process_events()

    def process_events(self) -> None:
        while (event := self._collector.peek()) is not None:
            self._process(event)
            self._collector.pop()

    def _process(self, event: Any) -> None:
        match event.type:
            case Event.LINK_REMOTE_OPEN:
                self._owner(event.link).opened()
            case Event.LINK_FLOW:
                self._owner(event.link).flowed()
            case Event.DELIVERY:
                self._owner(event.link).delivered(event.delivery)
            case Event.LINK_REMOTE_CLOSE | Event.LINK_REMOTE_DETACH:
                self._owner(event.link).closed(*_condition(event.link))
            case Event.SESSION_REMOTE_CLOSE:
                self._fail("session: {}: {}".format(*_condition(event.session)))
            case Event.CONNECTION_REMOTE_CLOSE:
                self._fail("{}: {}".format(*_condition(event.connection)))
            case Event.TRANSPORT_ERROR:
                self._fail(str(self._transport.condition))
            case _:
                pass

    def _owner(self, link: Link) -> LinkEvents:
        return self._owners[link.name, link.is_sender]

    def _fail(self, why: str) -> None:
        self.failure = self.failure or why


def _condition(endpoint: Link | Session | Connection) -> tuple[str, str]:
    """Return name and text of the error in the node's close, end or detach."""
    found = endpoint.remote_condition
    return ("", "") if found is None else (found.name, found.description or "")
