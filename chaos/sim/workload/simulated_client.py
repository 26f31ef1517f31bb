"""The course of a simulated AMQP client of any protocol: it works at random, and reconnects after a loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Unpack

from chaos.sim.world.brokers import GUEST, AmqpVersion, Login

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from chaos.history import Fields, Process
    from chaos.sim.world.client_socket import ClientSocket
    from chaos.sim.world.world import SimulatedWorld

AWAY_MAX_S = 1.0
NOT_READING_MAX_S = 1.5
GONE_TEXT = "lost while the node was away"
"""Text of an internal error that is legal: the node cannot deliver a message that it has taken from its queue."""


class ConnectionHooks(NamedTuple):
    """Calls of a client to the workload."""

    failed: Callable[[str], None]
    """Called for an answer that breaks a promise."""
    connect: Callable[[SimulatedClient], ClientSocket | None]
    """Returns the connection to a node; `None` if there is no node with a free slot."""


class SimulatedClient(ABC):
    """An application that lives for the whole run: it reconnects when it has lost its connection."""

    VERSION: ClassVar[AmqpVersion]
    """The version of the protocol that the client speaks."""

    def __init__(
        self,
        name: str,
        world: SimulatedWorld,
        hooks: ConnectionHooks,
        interval_s: float,
        login: Login = GUEST,
    ) -> None:
        self.name = name
        self._random: Random = world.random(f"client {name}")
        self._world = world
        self._hooks = hooks
        self._interval_s = interval_s
        self._login = login
        self._socket: ClientSocket | None = None
        self._generation = 0
        """Number of the connection; callbacks of earlier connections do nothing."""
        self._connected_s = 0.0
        """When the client requested its connection."""
        self._stopped = self._draining = False
        self._reset()

    def _reset(self) -> None:
        """Forget the connection."""
        self._closing = False
        """Whether the client starts no further operations on this connection."""
        self._finished = False
        """Whether the client sends no further bytes on this connection."""
        self._is_ready = False
        """Whether the client has set up all that it needs on this connection."""

    # The client's work

    @abstractmethod
    def _do_something(self) -> None:
        """Start the next random operation."""

    @abstractmethod
    def publish_once(self) -> None:
        """Publish if the client is connected."""

    @abstractmethod
    def settle(self) -> None:
        """Finish the open work, after the last fault."""

    @abstractmethod
    def drain(self) -> None:
        """Take all that is left for the client."""

    @abstractmethod
    def _close(self) -> None:
        """Close the connection with the closing handshake."""

    @abstractmethod
    def _greet(self) -> None:
        """Begin the protocol on a new connection."""

    @abstractmethod
    def received(self, data: bytes) -> None:
        """Take bytes of the node."""

    @property
    @abstractmethod
    def problem(self) -> str:
        """The answers that the client still waits for, or ""."""

    def _ready(self) -> None:
        """Begin with random operations."""
        self._is_ready = True

    # Its course

    def start(self) -> None:
        self._later(self._random.uniform(0.0, 1.0), self._connect_again)
        self._act_later()

    def stop(self) -> None:
        """Start no further operations."""
        self._stopped = True

    def _connect_again(self) -> None:
        if self._socket is None:
            self._generation += 1
            self._connected_s = self._world.now_s
            self._reset()
            self._socket = self._hooks.connect(self)
            if self._socket is None:
                self._later(self._random.uniform(0.05, AWAY_MAX_S), self._connect_again)
                return
            self._connected()

    def _connected(self) -> None:
        """Handle a new connection."""
        self._greet()

    def lost(self) -> None:
        """Handle the loss of the connection.

        The fate of unconfirmed messages is unknown, and unsettled deliveries return to their queues.
        """
        self._socket = None
        self._reset()
        self._later(self._random.uniform(0.0, AWAY_MAX_S), self._connect_again)

    @property
    def _connection(self) -> str:
        return f"{self.name}#{self._generation}"

    def _later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self._world.after(delay_s, callback)

    def _while_connected(self, delay_s: float, callback: Callable[[], None]) -> None:
        generation = self._generation

        def still() -> None:
            if self._generation == generation and self._socket is not None and not self._finished:
                callback()

        self._later(delay_s, still)

    def _fail(self, problem: str) -> None:
        self._hooks.failed(f"client {self.name} {problem}")

    def _act_later(self) -> None:
        self._later(self._random.expovariate(1 / self._interval_s), self._act)

    def _act(self) -> None:
        if self._is_ready and not self._stopped and not self._closing:
            self._do_something()
        self._act_later()

    # Operations of every client

    def _stop_reading(self, most_s: float = NOT_READING_MAX_S) -> None:
        assert self._socket is not None
        self._socket.read(reads=False)
        socket = self._socket
        self._later(self._random.uniform(0.0, most_s), lambda: socket.read(reads=True))

    def _drop(self) -> None:
        assert self._socket is not None
        self._socket.drop()
        self.lost()

    def _closed(self, _: Any) -> None:
        if self._socket is not None:
            self._socket.drop()
        self.lost()


class RecordedClient(SimulatedClient):
    """A client whose operations and answers are rows of a history."""

    _process: Process

    def drain(self) -> None:
        """Reconnect and consume everything: deliveries now come after all earlier answers."""
        if self._is_ready and not self._closing:
            self._close()

    def _connected(self) -> None:
        self._process.invoke("connect", connection=self._connection)
        super()._connected()

    def lost(self) -> None:
        self._process.event("connect", "info", connection=self._connection, detail="lost")
        super().lost()

    def _on(self, number: int, **more: Unpack[Fields]) -> Fields:
        """Return the fields of a row about a channel or a link."""
        where: Fields = {"connection": self._connection, "channel": number}
        return where | more
