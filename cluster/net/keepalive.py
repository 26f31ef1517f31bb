"""TCP keepalive: the kernel closes a silent connection when its peer no longer answers.

Invariant: a connection stays while its peer answers, even if the peer does not read. So TCP_USER_TIMEOUT stays unset.
"""

from __future__ import annotations

import socket
from typing import NamedTuple


class Keepalive(NamedTuple):
    """When the kernel probes the peer of a connection."""

    idle_s: int
    """Seconds of silence before the first probe; 0: no probes."""
    interval_s: int
    """Seconds between two probes."""
    probes: int
    """Probes without an answer after which the connection is closed."""

    def set_on(self, sock: socket.socket) -> None:
        """Set the options of a socket; sockets that a listening socket accepts inherit them."""
        if not self.idle_s:
            return
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, self.idle_s)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, self.interval_s)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, self.probes)
