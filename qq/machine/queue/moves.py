"""Moves: messages of a queue that are on their way to another one, because somebody has asked for it.

A move goes through the ready messages of its source once, from place to place (backlog.py), each in the order of its
keys, and up to the keys that there were when it began: so it ends, whatever comes meanwhile.

Invariant: what a move has done is in here as soon as it is done, in the same step of the log. A move that has ended
never goes on.
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
"""How many moves may be under way in the cluster: they have their turns one after the other. Those for shovels are
counted by themselves, and as many."""
RUNNING_IN_VHOST_MAX = 10
"""How many of these may be in one virtual host."""
ENDED_MAX = 1_000
"""How many moves that have ended are remembered in the cluster; the oldest is forgotten first."""
ENDED_IN_VHOST_MAX = 100
"""How many of these may be of one virtual host."""
FILTER_BYTES_MAX = 2 * 1024
"""How much the headers that a move looks for may take (`limits.table_bytes`): 2 MB for all that are remembered."""

ID_BYTES = 8
"""How many random octets the id of a move is made of, which is their hexadecimal text."""

SHOVEL = "shovel"
"""The component whose parameters are shovels: they go on for as long as the parameter is there, some as moves."""
LEDGER = "shovel-ledger"
"""The component whose parameters say which messages of other shovels have which numbers. Nobody sees it."""
ENDLESS = 2**63
"""More than any key."""

RUNNING, FINISHED, STOPPED, FAILED = "running", "finished", "stopped", "failed"
"""What a move may be: under way, done, stopped by somebody, or at an end because it could not go on."""


class MovePiece(NamedTuple):
    """Messages that a step moves: consecutive keys of one place, and what their publisher has said of them."""

    first: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here
    examined: int
    """How many messages were looked at in this step before the first of these."""
    priority: int
    """The priority that the messages were published with; NO_PRIORITY if they had none."""
    ttl_ms: int
    """The time to live that they were published with; NO_TTL if they had none."""

    @classmethod
    def read(cls, numbers: list[int]) -> Iterator[MovePiece]:
        """The pieces that `MoveMessages` has as numbers: those that follow each other, and not what is left over."""
        width, end = len(cls._fields), 0
        for at in range(0, len(numbers) - width + 1, width):
            piece = cls(*numbers[at : at + width])
            if piece.first >= end:
                end = piece.first + piece.count
                yield piece


@dataclass(slots=True, eq=False)
class MoveState:
    """One move. Only the methods of `Moves` and `moving.py` change it."""

    vhost: str
    id: str
    """What the move is called; no other of the virtual host is."""
    user: str
    """Who has asked for it."""
    source: str
    source_number: int
    """The number of the queue that is meant: another one of its name is not."""
    destination: str
    """The queue that gets the messages; empty if each goes back to the queue in which it first died."""
    destination_number: int
    count: int
    """How many messages to move at most; 0 for all."""
    rate: int
    """How many messages to move in a second at most; 0 for no limit."""
    reason: str
    """The reason for which messages must have died last; empty for any message."""
    from_queue: str
    """The queue in which messages must have died last; empty for any message."""
    headers: Table
    """Headers that messages must have, with these values."""
    shovel: str
    """The shovel that the move is carried out for, a parameter of the virtual host; empty if a user asked for it."""
    is_endless: bool
    """Whether it moves what comes later, too, until it is stopped. It goes through the source again and again."""
    begun_ms: int
    ready: int
    """How many messages were ready in the source when the move began."""
    returned_end: int
    position_end: int
    """The keys from which on messages are too new, in RETURNED and in other places; of no account if it is endless."""
    step: int = 0
    """The number of the next step."""
    place: int = RETURNED
    key: int = 0
    """Where the next step begins."""
    examined: int = 0
    """How many messages were looked at."""
    moved: int = 0
    waits_for: str = ""
    """The queue that had no room for the next message; empty if there was room."""
    state: str = RUNNING
    error: str = ""
    """Why it has failed."""
    ended_ms: int = 0

    @property
    def is_running(self) -> bool:
        return self.state == RUNNING

    @property
    def is_through(self) -> bool:
        """Whether nothing is left to be moved."""
        return (self.place >= PLACES and not self.is_endless) or 0 < self.count <= self.moved

    def end_of(self, place: int) -> int:
        """The key in a place from which on messages are too new."""
        if self.is_endless:
            return ENDLESS
        return self.returned_end if place == RETURNED else self.position_end


class Moves:
    """The moves of all virtual hosts: those under way, and those that have ended a short while ago."""

    def __init__(self) -> None:
        self._all: dict[tuple[str, str], MoveState] = {}
        """By virtual host and id, in the order in which they have begun."""
        self._running: dict[tuple[str, str], MoveState] = {}
        """Those of them that are under way."""

    @property
    def all(self) -> Mapping[tuple[str, str], MoveState]:
        return self._all

    @property
    def running(self) -> Mapping[tuple[str, str], MoveState]:
        return self._running

    def of_vhost(self, vhost: str) -> list[MoveState]:
        return [move for move in self._all.values() if move.vhost == vhost]

    def of_shovel(self, vhost: str, shovel: str) -> MoveState | None:
        """The move under way for a shovel; None if there is none."""
        for move in self._running.values():
            if (move.vhost, move.shovel) == (vhost, shovel):
                return move
        return None

    def check_room(self, vhost: str, source: str, number: int, *, for_shovel: bool) -> None:
        """Raise Refused if no other move may begin, or none of this queue."""
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
        """Enter a move; its id is free."""
        self._all[move.vhost, move.id] = move
        if move.is_running:
            self._running[move.vhost, move.id] = move

    def end(self, move: MoveState, state: str, error: str, now_ms: int) -> None:
        """Let a move that is under way be over, and forget old ones if too many have ended."""
        move.state, move.error, move.ended_ms, move.waits_for = state, error, now_ms, ""
        del self._running[move.vhost, move.id]
        self._forget_oldest(self.of_vhost(move.vhost), ENDED_IN_VHOST_MAX)
        self._forget_oldest(self._all.values(), ENDED_MAX)

    def _forget_oldest(self, moves: Iterable[MoveState], most: int) -> None:
        """Forget the one of these that has ended first, if more than `most` have."""
        ended = [move for move in moves if not move.is_running]
        if len(ended) > most:
            oldest = min(ended, key=_ended)
            del self._all[oldest.vhost, oldest.id]

    def forget_vhost(self, vhost: str) -> None:
        for move in self.of_vhost(vhost):
            del self._all[vhost, move.id]
            self._running.pop((vhost, move.id), None)


def _ended(move: MoveState) -> int:
    return move.ended_ms
