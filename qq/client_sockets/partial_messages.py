"""Bounds the memory for partly received messages of all connections of a node, with a slot for one after the other.

Invariant: a message that has begun can be finished. If all clients with partly sent messages waited for memory, none of
that memory would ever be freed. And partly received messages take no more than the memory at which publishers wait:
above that, the connections of clients that stop within a message are closed in sequence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.runtime.ports import Runtime, Timer

SHARE = 4
"""Partly received messages may take a SHARE-th of the memory at which publishers wait."""
SMALL_BYTES = 256 * 1024
"""Octets below which a connection never waits for the slot. With many connections it is half of an equal share, if
less."""
FIRST_CHECK_S = 0.05
"""Seconds until the first check of a new holder of the slot. Octets that it sent while it waited arrive at once."""
CHECK_S = 1.0
"""Seconds between later checks."""
PATIENT_CHECK_S = 5.0
"""Seconds between later checks if all connections together hold more than twice what they may. With shorter checks,
clients that send in bursts would lose the slot between two bursts. Each time they would add a burst, until the clients
hold all the messages that they have begun."""
PROGRESS_BYTES = 64 * 1024
"""Octets between two checks that count as progress. Otherwise a client could keep the slot for hours with few
octets."""
_NO_SLOT = "others finish their messages first"


class PartialSender(Protocol):
    """A connection whose client has sent parts of messages."""

    @property
    def is_read(self) -> bool:
        """Whether the connection is being read. If not, the client is not to blame for its silence."""
        ...

    def pause_for(self, reason: object, /) -> None: ...

    def resume_for(self, reason: object, /) -> None: ...

    def memory_slot_changed(self) -> None:
        """React to gaining or losing the slot. The connection with the slot is read even during a memory alarm."""

    def memory_slot_unused(self) -> None:
        """React to losing the slot after the connection was read and the client sent no octets."""

    def close_stalled(self) -> None:
        """Close the connection: its client makes no progress, and partly received messages take all their memory."""


class PartialMessages:
    """Gives the slot to large holders of memory in sequence while all connections hold more than `bytes_max` together.

    Only the connection with the slot is read. It loses the slot at the end of a message, or when the client sends
    nothing for a while. With the slot, a waiting client is found to have hung up or died. Above `SHARE` times
    `bytes_max`, which is the memory at which publishers wait, a client that makes no progress with the slot is
    disconnected.
    """

    def __init__(self, runtime: Runtime, bytes_max: int, connections: Callable[[], int]) -> None:
        self._runtime = runtime
        self._bytes_max = bytes_max
        self._connections = connections
        self._sizes: dict[PartialSender, int] = {}
        """Octets held by each connection that holds much, in the order in which they get the slot."""
        self._bytes = 0
        self._holder: PartialSender | None = None
        """The connection that has the slot; None if all connections may continue."""
        self._is_new_holder = False
        """Whether the holder of the slot has not been checked yet."""
        self._sent_bytes = 0
        """Octets that the holder of the slot has sent since the last check."""
        self._timer: Timer | None = None

    def waits(self, connection: PartialSender) -> bool:
        """Return whether the connection is not read because a different connection has the slot."""
        return self._holder is not None and self._holder is not connection and connection in self._sizes

    def has_slot(self, connection: PartialSender) -> bool:
        """Return whether this connection has the slot."""
        return self._holder is connection

    def record(self, connection: PartialSender, size: int, received: int = 0) -> None:
        """Record the octets that a connection holds now, after `received` octets have arrived from it.

        Arrived octets of an incomplete frame do not add to `size` yet.
        """
        before = self._sizes.get(connection, 0)
        if size <= SMALL_BYTES and size <= self._bytes_max // (2 * max(1, self._connections())):
            if before:
                self.remove(connection)
            return
        self._sizes[connection] = size
        self._bytes += size - before
        if connection is self._holder:
            self._sent_bytes += received
            if size < before:
                self._sizes[connection] = self._sizes.pop(connection)  # to the end of the order
                self._pass_slot_on()
                return
        elif not before and self._holder is not None:
            connection.pause_for(_NO_SLOT)
        self._update_slot()

    def remove(self, connection: PartialSender) -> None:
        """Remove a connection that holds little or is closed."""
        size = self._sizes.pop(connection, 0)
        if not size:
            return
        self._bytes -= size
        if connection is self._holder:
            self._pass_slot_on()
        else:
            connection.resume_for(_NO_SLOT)
            self._update_slot()

    def _update_slot(self) -> None:
        if self._holder is None:
            if self._bytes > self._bytes_max:
                for each in self._sizes:
                    each.pause_for(_NO_SLOT)
                self._pass_slot_on()
        elif self._bytes <= self._bytes_max:
            self._resume_all()

    def _pass_slot_on(self) -> None:
        """Take the slot from its holder, and give it to the first connection in the order."""
        former, self._holder = self._holder, None
        if former is not None:
            former.memory_slot_changed()
            if former in self._sizes:
                former.pause_for(_NO_SLOT)
        if self._bytes <= self._bytes_max or not self._sizes:
            self._resume_all()
            return
        self._holder = next(iter(self._sizes))
        self._is_new_holder, self._sent_bytes = True, 0
        self._holder.resume_for(_NO_SLOT)
        self._holder.memory_slot_changed()
        self._check_later(FIRST_CHECK_S)

    def _resume_all(self) -> None:
        former, self._holder = self._holder, None
        if former is not None:
            former.memory_slot_changed()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for each in self._sizes:
            each.resume_for(_NO_SLOT)

    def _check_later(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._runtime.call_later(delay_s, self._check)

    def _check(self) -> None:
        self._timer = None
        holder = self._holder
        if holder is None:
            return
        fills_memory = self._bytes > SHARE * self._bytes_max
        makes_progress = self._sent_bytes >= (1 if self._is_new_holder else PROGRESS_BYTES)
        # Disconnect no client at the first check: a busy node may not have read octets that have arrived.
        if makes_progress or (fills_memory and self._is_new_holder):
            self._is_new_holder, self._sent_bytes = False, 0
            self._check_later(CHECK_S if self._bytes <= 2 * self._bytes_max else PATIENT_CHECK_S)
            return
        is_read, is_silent = holder.is_read, not self._sent_bytes
        self._sizes[holder] = self._sizes.pop(holder)
        self._pass_slot_on()
        if is_read and fills_memory:
            holder.close_stalled()
        elif is_read and is_silent:
            holder.memory_slot_unused()
