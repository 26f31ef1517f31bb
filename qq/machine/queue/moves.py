"""Moves: requests to move messages from a source queue to a destination queue.

A move goes through the ready messages of its source once, from place to place (backlog.py), and in each place in the
order of keys. It stops at the keys that existed when it began, so it ends even if messages keep arriving.

Invariant: the progress of a move is recorded in the same step of the log that moves the messages. An ended move never
continues.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from qq.machine.protocol.refusals import precondition_failed
from qq.machine.queue.backlog import PLACES, RETURNED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from qq.machine.protocol.commands import Table

RUNNING_MAX = 100
"""Maximum running moves in the cluster, which take turns. Moves for shovels have a limit of their own, of the same
value."""
RUNNING_IN_VHOST_MAX = 10
"""Maximum of these moves in a virtual host."""
ENDED_MAX = 1_000
"""Ended moves that the cluster remembers; the oldest is forgotten first."""
ENDED_IN_VHOST_MAX = 100
"""Ended moves remembered per virtual host."""
FILTER_BYTES_MAX = 2 * 1024
"""Maximum bytes of the headers that a move filters by (`limits.table_bytes`): 2 MB for all remembered moves
together."""
TEXT_BYTES_MAX = 1024
"""Maximum bytes of the text that a move filters by."""

ID_BYTES = 8
"""Random bytes in the id of a move; the id is their hexadecimal text."""

SHOVEL = "shovel"
"""The component whose parameters are shovels. A shovel runs while its parameter exists; some run as moves."""
LEDGER = "shovel-ledger"
"""The component whose parameters give numbers to messages of other shovels. It is hidden from users."""
ENDLESS = 2**63
"""A key greater than all keys of messages."""

RUNNING, FINISHED, STOPPED, FAILED = "running", "finished", "stopped", "failed"
"""The states of a move: under way, complete, stopped by a user, or ended because it could not continue."""


class MovePiece(NamedTuple):
    """Messages that a step moves: consecutive keys of a place, with the properties of their publish."""

    first: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here
    examined: int
    """Number of messages that the leader examined in this step before the first of these."""
    priority: int
    """The priority of the original publish; NO_PRIORITY without it."""
    ttl_ms: int
    """The time to live of the original publish, in milliseconds; NO_TTL without it."""

    @classmethod
    def read(cls, numbers: list[int]) -> Iterator[MovePiece]:
        """Yield the pieces in the numbers of a `MoveMessages`; overlapping or incomplete pieces are left out."""
        width, end = len(cls._fields), 0
        for at in range(0, len(numbers) - width + 1, width):
            piece = cls(*numbers[at : at + width])
            if piece.first >= end:
                end = piece.first + piece.count
                yield piece


@dataclass(slots=True, eq=False)
class MoveState:
    """A move. Only the methods of `Moves` and `moving.py` change it."""

    vhost: str
    id: str
    """The id of the move, unique in the virtual host."""
    user: str
    """The user who requested the move."""
    source: str
    source_number: int
    """The number of the source queue; a later queue of the same name has a different number."""
    destination: str
    """The queue that gets the messages; empty if each message returns to the queue of its first death."""
    destination_number: int
    count: int
    """Maximum messages to move; 0 for all."""
    rate: int
    """Maximum messages per second; 0 for no limit."""
    reason: str
    """The reason of the last death that messages must have; empty for any message."""
    from_queue: str
    """The queue of the last death that messages must have; empty for any message."""
    headers: Table
    """Headers that messages must have, with these values."""
    shovel: str
    """The shovel that the move runs for, a parameter of the virtual host; empty if a user requested the move."""
    is_endless: bool
    """Whether it also moves messages that arrive later, until it is stopped. It goes through the source again and
    again."""
    begun_ms: int
    ready: int
    """Number of ready messages in the source when the move began."""
    returned_end: int
    position_end: int
    """The first keys that are too new for the move, in RETURNED and in the levels' places; ignored if the move is
    endless."""
    step: int = 0
    """The number of the next step."""
    place: int = RETURNED
    key: int = 0
    """The place and key where the next step begins."""
    examined: int = 0
    """Number of messages examined so far."""
    moved: int = 0
    waits_for: str = ""
    """The queue that had no room for the next message; empty if there was room."""
    state: str = RUNNING
    error: str = ""
    """The reason of a failure."""
    ended_ms: int = 0
    text: str = ""
    """Text that messages must contain; empty for any message."""

    @property
    def is_running(self) -> bool:
        return self.state == RUNNING

    @property
    def is_through(self) -> bool:
        """Whether no message is left to be moved."""
        return (self.place >= PLACES and not self.is_endless) or 0 < self.count <= self.moved

    def end_of(self, place: int) -> int:
        """Return the first key in a place that is too new for the move."""
        if self.is_endless:
            return ENDLESS
        return self.returned_end if place == RETURNED else self.position_end


class Moves:
    """The moves of all virtual hosts: running moves, and moves that have ended recently."""

    def __init__(self) -> None:
        self._all: dict[tuple[str, str], MoveState] = {}
        """(virtual host, id) -> move, in the order in which they began."""
        self._running: dict[tuple[str, str], MoveState] = {}
        """The running moves among them."""

    @property
    def all(self) -> Mapping[tuple[str, str], MoveState]:
        return self._all

    @property
    def running(self) -> Mapping[tuple[str, str], MoveState]:
        return self._running

    def in_vhost(self, vhost: str) -> list[MoveState]:
        return [move for move in self._all.values() if move.vhost == vhost]

    def running_for_shovel(self, vhost: str, shovel: str) -> MoveState | None:
        """Return the running move of a shovel, or None."""
        for move in self._running.values():
            if (move.vhost, move.shovel) == (vhost, shovel):
                return move
        return None

    def check_room(self, vhost: str, source: str, number: int, *, for_shovel: bool) -> None:
        """Raise Refused if the limits allow no further move, or if a move of this queue is running."""
        alike = [move for move in self._running.values() if bool(move.shovel) == for_shovel]
        here = [move for move in alike if move.vhost == vhost]
        for move in self._running.values():
            if move.source_number == number:
                raise precondition_failed(
                    f"messages of queue '{source}' in vhost '{vhost}' are being moved already (move '{move.id}')"
                )
        for count, most, where in (
            (len(here), RUNNING_IN_VHOST_MAX, f"vhost '{vhost}'"),
            (len(alike), RUNNING_MAX, "the cluster"),
        ):
            if count >= most:
                raise precondition_failed(
                    f"{count} moves are under way in {where}, which is the limit: wait for one, or stop one"
                )

    def begin(self, move: MoveState) -> None:
        """Add a move; its id must be free."""
        self._all[move.vhost, move.id] = move
        if move.is_running:
            self._running[move.vhost, move.id] = move

    def end(self, move: MoveState, state: str, error: str, now_ms: int) -> None:
        """End a running move, and forget the oldest ended moves over the limits."""
        move.state, move.error, move.ended_ms, move.waits_for = state, error, now_ms, ""
        del self._running[move.vhost, move.id]
        self._forget_oldest(self.in_vhost(move.vhost), ENDED_IN_VHOST_MAX)
        self._forget_oldest(self._all.values(), ENDED_MAX)

    def _forget_oldest(self, moves: Iterable[MoveState], most: int) -> None:
        """Forget the move that ended first, if more than `most` have ended."""
        ended = [move for move in moves if not move.is_running]
        if len(ended) > most:
            oldest = min(ended, key=_ended)
            del self._all[oldest.vhost, oldest.id]

    def forget_vhost(self, vhost: str) -> None:
        for move in self.in_vhost(vhost):
            del self._all[vhost, move.id]
            self._running.pop((vhost, move.id), None)


def _ended(move: MoveState) -> int:
    return move.ended_ms
