"""The parts that all client sockets of a node share, whatever their protocol.

Invariant: the composition root builds it completely, and it never changes.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from cluster.net.keepalive import Keepalive
from cluster.net.log_throttle import ThrottledLog

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cluster.net.connection_slots import ConnectionSlots, Slot
    from qq.client_sockets.partial_messages import PartialMessages
    from qq.client_sockets.turns import ProcessorTurns
    from qq.config import NodeLimits

    CertificateName = Callable[[Mapping[str, Any]], str | None]
    """Returns the user name in a client's verified certificate; None if it contains no name."""

LOG_LINES_PER_S = 10
"""Log lines about unauthenticated connections, per second and kind."""


def connection_log() -> ThrottledLog:
    """Return a log for events of unauthenticated connections: at most LOG_LINES_PER_S lines a second of each kind."""
    return ThrottledLog(logging.getLogger(__name__), LOG_LINES_PER_S)


def keepalive_of(limits: NodeLimits) -> Keepalive:
    """Return the TCP keepalive of all client sockets, of AMQP and HTTP."""
    return Keepalive(
        limits.client_keepalive_idle_s, limits.client_keepalive_interval_s, limits.client_keepalive_probes
    )


class ClientSockets(NamedTuple):
    """The shared parts of a node's client sockets."""

    slots: ConnectionSlots
    """The connection slots: limit the clients, and the clients that have not authenticated."""
    throttled_log: ThrottledLog
    """The rate-limited log for events of clients that have not authenticated."""
    partial_messages: PartialMessages
    """Gives connections the memory slot while partly received messages take too much memory."""
    turns: ProcessorTurns
    """Gives connections their turn at the node's processor."""
    limits: NodeLimits


class Peer(NamedTuple):
    """The address of a client."""

    host: str
    port: int
    proxy_host: str = ""
    """Address of the proxy that has sent `host` and `port`; empty without a proxy."""


class Arrival(NamedTuple):
    """An accepted socket whose client has not logged in."""

    peer: Peer
    slot: Slot
    """The connection's slot, which it must release when it is closed."""
    certificate_name: CertificateName | None = None
    """Returns the user name in the client's verified certificate; None without TLS."""
