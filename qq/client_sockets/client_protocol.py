"""A client's connection as the node knows it, for every client protocol: its number, addresses, user and traffic.

The parts of a connection that no protocol changes are a line of classes, and each part uses the parts before it:
`flow_control`, this module, `back_pressure`, `turn_taking`, `closing`, `client_connection`. A protocol's connection
inherits from the last class, and holds its protocol's state in an engine without I/O.

Invariant: text that a client has chosen is bounded and escaped in log lines.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from qq.client_sockets.flow_control import FlowControlledProtocol
from qq.sessions.lanes import Lane

if TYPE_CHECKING:
    from collections.abc import Mapping
    from enum import Enum

    from qq.client_sockets.shared import ClientSockets, Peer
    from qq.errors import AmqpError
    from qq.machine.protocol.effects import ConnectionForced, Failed
    from qq.scopes import Scopes
    from qq.sessions.broker import Broker
    from qq.sessions.session_info import ConnectionFacts

SHOWN_NAME_MAX = 64
"""Characters of a name that a client chose (connection name, user name of a refused login) in a log line."""


def shown_name(name: str) -> str:
    """Return a client's name for a log line: bounded, escaped, and in quotation marks."""
    return repr(name if len(name) <= SHOWN_NAME_MAX else name[:SHOWN_NAME_MAX] + "...")


class ConnectionEngine(Protocol):
    """The state of a connection in its protocol, without I/O."""

    out: list[bytes]
    """Output in order, which the connection writes and clears."""

    @property
    def phase(self) -> Enum: ...

    def receive(self, data: bytes, /) -> list[Any]:
        """Process bytes from the socket, and return their events. Never raises on bad input.

        The work of a call is limited. While `has_more` is true, the connection calls again, with more bytes or none.
        """
        ...

    def drop_input(self) -> None:
        """Drop the received octets that `receive` has left."""
        ...

    @property
    def has_more(self) -> bool:
        """Whether there are received octets that `receive(b"")` can process now."""
        ...

    @property
    def held_bytes(self) -> int:
        """Octets of memory held for incomplete frames and messages."""
        ...

    @property
    def partial_bytes(self) -> int:
        """Octets received of incomplete messages."""
        ...

    def accept_login(self) -> list[Any]:
        """Confirm the login. Return the events of octets that the client has sent ahead."""
        ...

    def closed(self) -> None:
        """Answer the client's close of the connection."""
        ...


EngineT = TypeVar("EngineT", bound=ConnectionEngine)


class ClientProtocol(FlowControlledProtocol, ABC, Generic[EngineT]):
    """A client's connection, and its facts for operators."""

    __slots__ = (
        "_blocked",
        "_broker",
        "_close_pending",
        "_connected_ms",
        "_engine",
        "_sockets",
        "id",
        "in_log",
        "is_admitted",
        "lane",
        "peer_host",
        "peer_port",
        "proxy_host",
        "scopes",
        "user",
        "vhost",
    )

    PROTOCOL: ClassVar[str]
    """The protocol's name with its version, as RabbitMQ writes it: "AMQP 0-9-1"."""
    LOGIN: ClassVar[Enum]
    """The engine's phase in which a login must be answered."""
    ADMISSION: ClassVar[Enum]
    """The engine's phase in which the request to enter a virtual host must be answered."""
    OPEN: ClassVar[Enum]
    """The engine's phase in which the client may do anything."""
    CLOSING: ClassVar[Enum]
    """The engine's phase after the node has sent its close: only the client's answer matters."""
    CLOSED: ClassVar[Enum]
    """The engine's phase in which the socket must be closed after all output is sent."""

    def __init__(self, broker: Broker, sockets: ClientSockets, peer: Peer) -> None:
        super().__init__(broker.runtime, broker.limits.write_buffer_bytes)
        self._broker = broker
        self._sockets = sockets
        self.peer_host, self.peer_port, self.proxy_host = peer
        self.id = broker.new_id()
        self.lane = Lane(self)
        """The lane in which this connection's requests to the log wait."""
        self.user = ""
        self.scopes: Scopes | None = None
        """The user's permissions, if a token vouches for the user; else None."""
        self.vhost = ""
        self.in_log = False
        """Whether the log was asked to admit the connection, so that the end of the connection must be submitted,
        too."""
        self.is_admitted = False
        self._engine: EngineT
        """The state of the protocol, from `connection_made` on."""
        self._connected_ms = broker.runtime.wall_ms()
        self._blocked = False
        """Whether the client publishes, and waits because of an alarm."""
        self._close_pending = False
        """Whether the client has asked to close the connection while its earlier requests still wait."""

    # For operators

    @property
    def protocol(self) -> str:
        return self.PROTOCOL

    @property
    def name(self) -> str:
        """The connection's name in RabbitMQ's form."""
        host, port = self._address
        return f"{self.peer_host}:{self.peer_port} -> {host}:{port}"

    @property
    @abstractmethod
    def client_properties(self) -> Mapping[str, object]:
        """The properties that the client sent about itself when it connected."""

    @property
    @abstractmethod
    def channel_count(self) -> int:
        """The number of the client's sessions."""

    @property
    def _client_name(self) -> object:
        """The client's name for the connection, in log lines."""
        return self.client_properties.get("connection_name")

    @property
    def _described(self) -> str:
        """The connection in a log line: its number, the client's address with port, and the client's name for it."""
        name = self._client_name
        suffix = f" {shown_name(name)}" if isinstance(name, str) and name else ""
        return f"connection {self.id} ({self.peer_host}:{self.peer_port}{suffix})"

    @property
    def _address(self) -> tuple[str, int]:
        """The node's address that the client has connected to."""
        host, port, *_ = self._transport.get_extra_info("sockname") or ("", 0)
        return host, port

    # The rest of `Connection` (`qq.sessions.ports`), which the parts above define

    @property
    @abstractmethod
    def unread_bytes(self) -> int: ...

    @abstractmethod
    def facts(self) -> ConnectionFacts: ...

    @property
    @abstractmethod
    def waits_for_log(self) -> bool: ...

    @abstractmethod
    def count_uncommitted(self, size: int) -> None: ...

    @abstractmethod
    def admitted(self) -> None: ...

    @abstractmethod
    def not_admitted(self, failure: Failed) -> None: ...

    @abstractmethod
    def force_close(self, effect: ConnectionForced) -> None: ...

    @abstractmethod
    def alarm_changed(self) -> None: ...

    @abstractmethod
    def shut_down(self, text: str) -> None: ...

    @abstractmethod
    def forget(self, text: str) -> None: ...

    @abstractmethod
    def fail(self, error: AmqpError) -> None:
        """Close the connection with an error."""
