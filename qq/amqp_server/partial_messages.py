"""Messages of which only a part has come, over all connections of a node.

Invariant: what has begun can end. If all who have sent a part waited for memory, nobody would ever give any back. And
what has begun takes no more than the memory at which publishers wait: the connections of clients that stop in the
middle of messages are closed then, one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.runtime.ports import Runtime, Timer

SHARE = 4
"""Unfinished messages may take one part in so many of the memory at which publishers wait."""
SMALL_BYTES = 256 * 1024
"""Whoever holds less than this, or an equal share of half of all if that is less, never waits for others."""
FIRST_LOOK_S = 0.05
"""When it is looked whether the one whose turn it is sends something: what was sent while it waited comes at once."""
LOOK_S = 1.0
"""How often it is looked after that."""
PATIENT_LOOK_S = 5.0
"""How often if all together hold more than twice of what they may. Clients that send in bursts would lose their turns
between these, and each would add a burst in each turn, until they held all that they have begun."""
ENOUGH_BYTES = 64 * 1024
"""Who sends less than this between two looks has not gone on: others would wait for hours for who sends some octets."""
_WAITS = "others finish their messages first"


class Begun(Protocol):
    """A connection whose client has begun messages."""

    @property
    def is_read(self) -> bool:
        """Whether what the client sends is read: if not, it is not to blame that nothing comes."""
        ...

    def pause_for(self, reason: object, /) -> None: ...

    def resume_for(self, reason: object, /) -> None: ...

    def turn_changed(self) -> None:
        """It has become the connection's turn, or is not any more: whose turn it is does not wait for memory."""

    def turn_unused(self) -> None:
        """The connection was read in its turn, and nothing has come from it."""

    def give_up(self) -> None:
        """Close the connection: its client does not go on, and what all have begun takes all memory there is for it."""


class Unfinished:
    """Lets the connections that hold much go on one after the other while all together hold more than `bytes_max`.

    A turn ends with the end of a message, or when nothing comes for a while. Whoever waits is found to have hung up, or
    to be dead, when it has its turn. While all hold more than `SHARE` times `bytes_max`, which is the memory at which
    publishers wait, whoever does not go on in its turn is given up.
    """

    def __init__(self, runtime: Runtime, bytes_max: int, connections: Callable[[], int]) -> None:
        self._runtime = runtime
        self._bytes_max = bytes_max
        self._connections = connections
        self._sizes: dict[Begun, int] = {}
        """What each of those holds that hold much, in the order in which they have turns."""
        self._bytes = 0
        self._has_turn: Begun | None = None
        """Whose turn it is; None if all may go on."""
        self._is_new_turn = False
        """Whether it was not looked yet what the one whose turn it is does with it."""
        self._sent_bytes = 0
        """How much the one whose turn it is has sent since it was looked last."""
        self._timer: Timer | None = None

    def waits(self, connection: Begun) -> bool:
        """Whether the connection is not read because it is another's turn."""
        return self._has_turn is not None and self._has_turn is not connection and connection in self._sizes

    def has_turn(self, connection: Begun) -> bool:
        """Whether the others wait for this connection to finish a message."""
        return self._has_turn is connection

    def note(self, connection: Begun, size: int, came: int = 0) -> None:
        """Note how many octets a connection holds now, after so many have come from it.

        It holds no more yet if these are of a frame that is not complete.
        """
        before = self._sizes.get(connection, 0)
        if size <= SMALL_BYTES and size <= self._bytes_max // (2 * max(1, self._connections())):
            if before:
                self.left(connection)
            return
        self._sizes[connection] = size
        self._bytes += size - before
        if connection is self._has_turn:
            self._sent_bytes += came
            if size < before:
                self._sizes[connection] = self._sizes.pop(connection)  # behind all others
                self._next()
                return
        elif not before and self._has_turn is not None:
            connection.pause_for(_WAITS)
        self._look_at_all()

    def left(self, connection: Begun) -> None:
        """Note that a connection holds little, or is gone."""
        size = self._sizes.pop(connection, 0)
        if not size:
            return
        self._bytes -= size
        if connection is self._has_turn:
            self._next()
        else:
            connection.resume_for(_WAITS)
            self._look_at_all()

    def _look_at_all(self) -> None:
        if self._has_turn is None:
            if self._bytes > self._bytes_max:
                for each in self._sizes:
                    each.pause_for(_WAITS)
                self._next()
        elif self._bytes <= self._bytes_max:
            self._all_go_on()

    def _next(self) -> None:
        """It is the turn of the first of them now, and not of the one that had it."""
        had_turn, self._has_turn = self._has_turn, None
        if had_turn is not None:
            had_turn.turn_changed()
            if had_turn in self._sizes:
                had_turn.pause_for(_WAITS)
        if self._bytes <= self._bytes_max or not self._sizes:
            self._all_go_on()
            return
        self._has_turn = next(iter(self._sizes))
        self._is_new_turn, self._sent_bytes = True, 0
        self._has_turn.resume_for(_WAITS)
        self._has_turn.turn_changed()
        self._look_later(FIRST_LOOK_S)

    def _all_go_on(self) -> None:
        had_turn, self._has_turn = self._has_turn, None
        if had_turn is not None:
            had_turn.turn_changed()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for each in self._sizes:
            each.resume_for(_WAITS)

    def _look_later(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._runtime.call_later(delay_s, self._look)

    def _look(self) -> None:
        self._timer = None
        holder = self._has_turn
        if holder is None:
            return
        takes_all = self._bytes > SHARE * self._bytes_max
        goes_on = self._sent_bytes >= (1 if self._is_new_turn else ENOUGH_BYTES)
        # Nobody is given up at the first look: a node that was busy may not have read what has come.
        if goes_on or (takes_all and self._is_new_turn):
            self._is_new_turn, self._sent_bytes = False, 0
            self._look_later(LOOK_S if self._bytes <= 2 * self._bytes_max else PATIENT_LOOK_S)
            return
        is_read, is_silent = holder.is_read, not self._sent_bytes
        self._sizes[holder] = self._sizes.pop(holder)
        self._next()
        if is_read and takes_all:
            holder.give_up()
        elif is_read and is_silent:
            holder.turn_unused()
