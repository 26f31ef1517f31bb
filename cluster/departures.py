"""Messages on their way out: persist, then speak (hazard H1).

Lives here: what waits for a sync. Not here: what needs to wait (engine.py), bytes and sockets (envelope.py, links.py).

Law: a message with a sync_point leaves when the journal has synced that far, in the order in which they were given; and
not at all if the epoch that it was meant for is over (H4).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cluster.engine import Departure
    from cluster.envelope import Message


class Departures:
    """The messages that wait for a sync, in the order in which they were given."""

    def __init__(self, transmit: Callable[[str, Message], None]) -> None:
        self._transmit = transmit
        self._waiting: deque[Departure] = deque()

    def send(self, departures: Iterable[Departure], synced: int) -> None:
        """Send what waited and may leave now, then these, except those that wait for more changes than are `synced`."""
        while self._waiting and self._waiting[0].sync_point <= synced:
            _, peer, message = self._waiting.popleft()
            self._transmit(peer, message)
        for departure in departures:
            if departure.sync_point <= synced:
                self._transmit(departure.peer, departure.message)
            else:
                self._waiting.append(departure)

    def drop(self, peer: str) -> None:
        """Drop what waits to be sent to this peer, because its epoch is over."""
        self._waiting = deque(waiting for waiting in self._waiting if waiting.peer != peer)
