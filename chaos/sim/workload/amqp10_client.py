"""The connection of a simulated client of AMQP 1.0 to a node, without the client's work.

Invariant: it takes the protocol from Qpid Proton, not from the node's code, and relies only on the node's answers.
Proton's engine has neither a clock nor sockets: it gets the simulated time and the bytes of the simulated socket.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import proton

from chaos.sim.workload.link_states import LinkStates
from chaos.sim.workload.simulated_client import GONE_TEXT, SimulatedClient
from chaos.workloads.amqp10_engine import output_of, pushed

Event = proton.Event

FRAMES_MAX = (512, 4096, 131_072)
"""Largest frames that a client takes, in octets; drawn for each connection."""
TICK_S = 5.0
"""Seconds between looks at the time; a node asks for a frame each 30 s."""
LEGAL_CLOSES = ("Connection forced", GONE_TEXT, "AMQP 1.0 needs version", "try again")
"""Texts of a close by a node that has lost its cluster, or whose cluster has not agreed on the version of AMQP 1.0."""


class Amqp10Client(SimulatedClient):
    """A client of AMQP 1.0."""

    VERSION = "1.0"

    def _reset(self) -> None:
        super()._reset()
        self._transport: proton.Transport | None = None
        self._collector = proton.Collector()
        self._engine = proton.Connection()
        self._states = LinkStates(self._world.random(f"states of {self._connection}"), self._fail)

    # The client's work

    @abstractmethod
    def _opened(self) -> None:
        """Set up sessions and links on a new connection."""

    @abstractmethod
    def _link_answered(self, link: Any) -> None:
        """Take the node's attach."""

    @abstractmethod
    def _link_ended(self, link: Any) -> None:
        """Take the node's detach."""

    @abstractmethod
    def _flowed(self, link: Any) -> None:
        """Take a flow of the node."""

    @abstractmethod
    def _changed(self, delivery: Any) -> None:
        """Take parts of a message, or the state of a delivery."""

    @abstractmethod
    def _read(self) -> None:
        """Go on after all events of some bytes."""

    # Its course

    def _greet(self) -> None:
        engine, login = self._engine, self._login
        engine.container, engine.hostname = self._connection, f"vhost:{login.vhost}"
        engine.user, engine.password = login.user, login.password
        engine.collect(self._collector)
        transport = self._transport = proton.Transport()
        transport.max_frame_size = self._random.choice(FRAMES_MAX)
        sasl = transport.sasl()
        sasl.allow_insecure_mechs = True
        sasl.allowed_mechs("PLAIN")
        transport.bind(engine)
        engine.open()
        self._tick()

    def _tick(self) -> None:
        assert self._transport is not None
        self._transport.tick(self._world.now_s + TICK_S)  # 0 is no time
        self._write()
        self._while_connected(TICK_S, self._tick)

    def _close(self) -> None:
        """Close the connection with the closing handshake."""
        self._closing = True
        self._engine.close()
        self._write()

    def _finish(self) -> None:
        """Close the sending direction, and keep reading until the node closes the connection."""
        assert self._socket is not None
        self._socket.finish()
        self._closing = self._finished = True

    # The protocol

    def _write(self) -> None:
        """Send all bytes of the engine, after its events."""
        transport, socket = self._transport, self._socket
        if transport is None or socket is None:
            return
        for data in output_of(transport):
            octets = self._states.send(data)
            if octets and not self._finished:
                socket.send(octets)

    def received(self, data: bytes) -> None:
        transport = self._transport
        if transport is None:
            return
        self._states.receive(data)
        for _ in pushed(transport, data):
            self._handle_events()
            self._write()
            if self._transport is not transport:
                return  # the connection is lost

    def _handle_events(self) -> None:
        generation, collector = self._generation, self._collector
        while self._socket is not None and self._generation == generation:
            event = collector.peek()
            if event is None:
                self._read()
                return
            self._handle(event)
            collector.pop()

    def _handle(self, event: Any) -> None:
        kind, context = event.type, event.context
        if kind is Event.DELIVERY:
            self._changed(context)
        elif kind is Event.LINK_FLOW:
            self._flowed(context)
        elif kind is Event.LINK_REMOTE_OPEN:
            self._link_answered(context)
        elif kind in (Event.LINK_REMOTE_DETACH, Event.LINK_REMOTE_CLOSE):
            self._link_ended(context)
        elif kind is Event.CONNECTION_REMOTE_OPEN:
            self._opened()
        elif kind is Event.CONNECTION_REMOTE_CLOSE:
            self._closed_by_node(context)
        elif kind is Event.SESSION_REMOTE_CLOSE:
            self._fail(f"has its session ended: {context.remote_condition}")
        elif kind is Event.TRANSPORT_ERROR:
            self._fail(f"gets frames that Proton refuses: {self._transport and self._transport.condition}")

    def _closed_by_node(self, engine: Any) -> None:
        condition = engine.remote_condition
        if condition is not None:
            text = condition.description or ""
            if not any(legal in text for legal in LEGAL_CLOSES):
                self._fail(f"has its connection closed: {condition}")
            engine.close()
            self._write()
        self._closed(None)
