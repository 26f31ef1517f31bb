"""Moves on their way: what the leader does for those who have asked for messages to be moved.

The machine knows which messages are ready and where, and what befell them; their headers are in the log, which it
cannot read. So the leader looks at a few messages of the source at a time, and submits `MoveMessages` commands that
say which of them the move is for. Their apply moves the messages in one step, so nothing is lost or doubled whoever
submits what how often; and how far a move has come is in the state, so that another leader goes on from there.

Invariant: one step is under way at a time, of the moves in turn; a step is bounded, however large the source is.
Whoever has asked for a move has to be permitted all of it as long as it goes on.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from qq.machine.protocol.commands import EndMove, MoveMessages
from qq.machine.queue.backlog import PLACES, RETURNED
from qq.machine.queue.moves import MovePiece
from qq.sessions.access import Access, AccessRefused
from qq.sessions.entries import MessagesGone
from qq.sessions.fair_queue import Lane
from qq.stored.content import content_of
from qq.stored.properties import kept_when_moved

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cluster.runtime.ports import Runtime
    from qq.machine.machine import QueueMachine
    from qq.machine.protocol.death_history import History
    from qq.machine.queue.moves import MoveState
    from qq.machine.queue.queue import Queue
    from qq.ranges import Range
    from qq.sessions.entries import Entries
    from qq.sessions.submissions import Submissions

log = logging.getLogger(__name__)

STEP_MESSAGES = 250
"""How many messages one step looks at: some 3 ms of the leader's loop."""
STEP_BYTES = 1024 * 1024
"""Octets of messages at which a step looks at no more; a message is looked at whole."""
RETRY_S = 0.5
"""How long to wait for room in a queue, for the end of an alarm, and before a step that was not taken is repeated."""
TICK_S = 0.1
"""How long to wait, at least, until a limited rate lets more messages pass."""


@dataclass(slots=True)
class _MovePace:
    """How fast a move goes on, as this leader sees to it."""

    access: Access
    since_s: float
    """When it was last counted how many messages may pass."""
    passing: float = 0.0
    """How many messages may pass at that moment, where the rate is limited."""
    due_s: float = 0.0
    """When the next step may be taken."""

    def allowed(self, rate: int, now_s: float) -> int:
        """How many messages may be moved now, at this rate; 0 is no limit. What is not used is not saved up."""
        if not rate:
            return STEP_MESSAGES
        self.passing = min(self.passing + (now_s - self.since_s) * rate, 1 + 2 * TICK_S * rate)
        self.since_s = now_s
        return min(int(self.passing), STEP_MESSAGES)


class _Step(NamedTuple):
    """A step of a move while it is put together."""

    pieces: list[MovePiece]
    """The messages to be moved, all in one place, and the next step begins there, too."""
    examined: int
    next_place: int
    next_key: int


class Mover:
    """Has messages moved, while this node is the leader."""

    def __init__(
        self,
        machine: QueueMachine,
        submissions: Submissions,
        entries: Entries,
        runtime: Runtime,
        must_wait: Callable[[], bool],
    ) -> None:
        """`must_wait` tells whether publishers have to wait, because of an alarm: then moves wait, too."""
        self._machine = machine
        self._submissions = submissions
        self._entries = entries
        self._runtime = runtime
        self._must_wait = must_wait
        self._lane = Lane()
        self._leads = False
        self._is_busy = False
        """Whether a read or a step is under way."""
        self._wakes_s = inf
        """When it is looked again whether a move may go on, if nothing happens before."""
        self._waiting = 0
        """How many moves there were when all of them had to wait until then; 0 if they need not."""
        self._paces: dict[tuple[str, str], _MovePace] = {}
        """The pace of each move under way, by virtual host and id."""
        self._last = ("", "")
        """The move that had its turn last."""

    def lead(self, leads: bool) -> None:
        """Begin to move messages if this node leads now; else leave that to the node that leads."""
        self._leads = leads
        self._paces, self._waiting = {}, 0
        self.submit_step()

    def submit_step(self) -> None:
        """Submit the next step of the move whose turn it is, unless one is under way."""
        running = self._machine.moves.running
        if self._is_busy or not self._leads or not running:
            return
        if len(running) == self._waiting and self._runtime.monotonic() < self._wakes_s:
            return  # they all wait, as they did when it was last asked for with some entry
        move = self._next(running)
        if move is not None:
            self._last = move.vhost, move.id
            self._go_on(move)

    # Whose turn it is

    def _next(self, running: Mapping[tuple[str, str], MoveState]) -> MoveState | None:
        """The move whose turn it is; None if all have to wait, and then it is looked again in time."""
        now_s, due_s = self._runtime.monotonic(), inf
        keys = list(running)
        after = keys.index(self._last) + 1 if self._last in running else 0
        for key in keys[after:] + keys[:after]:
            pace = self._pace(running[key])
            if pace.due_s <= now_s:
                self._waiting = 0
                return running[key]
            due_s = min(due_s, pace.due_s)
        self._paces = {key: pace for key, pace in self._paces.items() if key in running}
        self._waiting = len(running)
        if due_s < self._wakes_s:
            self._wakes_s = due_s
            self._runtime.call_later(due_s - now_s, self._wake)
        return None

    def _wake(self) -> None:
        self._wakes_s, self._waiting = inf, 0
        self.submit_step()

    def _pace(self, move: MoveState) -> _MovePace:
        pace = self._paces.get((move.vhost, move.id))
        if pace is None:
            access = Access(self._machine, move.user, move.vhost)
            pace = self._paces[move.vhost, move.id] = _MovePace(access, self._runtime.monotonic())
        return pace

    # One step

    def _go_on(self, move: MoveState) -> None:
        pace, now_s = self._pace(move), self._runtime.monotonic()
        try:
            _check(pace.access, move)
        except AccessRefused as refused:
            self._submit(move, EndMove(move.vhost, move.id, str(refused)))
            return
        if self._must_wait():
            pace.due_s = now_s + RETRY_S
            self.submit_step()
            return
        allowed = pace.allowed(move.rate, now_s)
        if not allowed:
            pace.due_s = now_s + max(TICK_S, (1 - pace.passing) / move.rate)
            self.submit_step()
            return
        if move.count:
            allowed = min(allowed, move.count - move.moved)
        step = self._step(move, pace.access, allowed)
        if step is None:
            return  # it goes on when the messages are read
        if move.is_endless and not step.examined and self._has_queues(move):
            pace.due_s = now_s + TICK_S  # as long as there is nothing, nothing is said of that
            self.submit_step()
            return
        pace.passing -= sum(piece.count for piece in step.pieces)
        numbers = [number for piece in step.pieces for number in piece]
        self._submit(move, MoveMessages(move.vhost, move.id, move.step, step.next_place, numbers, *step[1:]))

    def _submit(self, move: MoveState, command: MoveMessages | EndMove) -> None:
        before = move.step

        def applied() -> None:
            self._is_busy = False
            if move.is_running and (move.waits_for or move.step == before):
                if move.step == before and self._leads:
                    log.warning("step %d of move %s was not taken, it is repeated", before, move.id)
                self._pace(move).due_s = self._runtime.monotonic() + RETRY_S
            self.submit_step()

        self._is_busy = True
        self._submissions.add(command, self._lane)
        self._submissions.read_barrier(applied, self._lane)

    def _step(self, move: MoveState, access: Access, allowed: int) -> _Step | None:
        """Look for the next messages that the move is for, `allowed` at most; None while they are being read."""
        source = self._queue(move, move.source, move.source_number)
        if source is None:
            return _Step([], 0, move.place, move.key)  # the machine finds out, too
        # What came back lies before the place of the last step, and such a move passes nothing over.
        place, key = (RETURNED, 0) if move.is_endless else (move.place, move.key)
        found = source.look(place, key, move.end_of(place), STEP_MESSAGES)
        while not found and place < PLACES:
            place, key = place + 1, 0
            found = source.look(place, key, move.end_of(place), STEP_MESSAGES)
        if not found:
            return _Step([], 0, PLACES, 0)
        return self._look_at(move, access, source, place, found, allowed)

    def _queue(self, move: MoveState, name: str, number: int) -> Queue | None:
        """The queue of this name, if it is still the one that was meant."""
        queue = self._machine.vhosts[move.vhost].queues.get(name)
        return queue if queue is not None and queue.number == number else None

    def _has_queues(self, move: MoveState) -> bool:
        ends = (move.source, move.source_number), (move.destination, move.destination_number)
        return all(self._queue(move, *end) is not None for end in ends)

    def _look_at(
        self,
        move: MoveState,
        access: Access,
        source: Queue,
        place: int,
        found: list[tuple[int, Range]],
        allowed: int,
    ) -> _Step | None:
        pieces: list[MovePiece] = []
        examined = matched = size = 0
        key = found[0][0]
        for number, (first, messages) in enumerate(found):
            history = source.histories.get(messages.history)
            key = first
            if not _is_for(move, access, history):
                examined += messages.count
                key += messages.count
                continue
            part = messages.part(0, _fitting(messages, STEP_BYTES - size))
            stored = self._stored(part)
            if stored is None:
                if examined:
                    break
                ahead = dict.fromkeys(messages.index for _, messages in found[number:])
                self._load(move, list(ahead))
                return None
            for message in stored:
                if message is not None and _has(message, move.headers):
                    _add(pieces, key, examined, *kept_when_moved(message))
                    matched += 1
                examined += 1
                key += 1
                if matched == allowed:
                    return _Step(pieces, examined, place, key)
            size += part.size
            if size >= STEP_BYTES or part.count < messages.count:
                break
        return _Step(pieces, examined, place, key)

    def _stored(self, part: Range) -> Sequence[bytes | None] | None:
        """The messages of a range, of large ones the headers only, with None for those that are not there.

        None if they have to be read.
        """
        try:
            groups = self._entries.messages(part, only_beginnings=True)
        except MessagesGone:
            # Nothing that is referred to goes, so this is a fault of ours; it stays where it is.
            log.exception("messages of entry %d cannot be read, and are not moved", part.index)
            return [None] * part.count
        if groups is None:
            return None
        return [message for group in groups for message in group.messages]

    def _load(self, move: MoveState, indexes: list[int]) -> None:
        def loaded() -> None:
            self._is_busy = False
            if self._leads and move.is_running:
                self._go_on(move)  # at once: what was read need not stay in memory
            else:
                self.submit_step()

        self._is_busy = True
        self._entries.load(indexes, loaded)


def _check(access: Access, move: MoveState) -> None:
    """Raise AccessRefused if the user may not do any more what the move does; a shovel may."""
    if move.shovel:
        return
    access.check("read", "queue", move.source)
    if move.destination:
        access.check("write", "queue", move.destination)


def _is_for(move: MoveState, access: Access, history: History | None) -> bool:
    """Whether a move may be for messages with this history, as far as that tells."""
    if history is None:
        return bool(move.destination) and not (move.reason or move.from_queue)
    reason, queue, _ = history.last
    if (move.reason and reason != move.reason) or (move.from_queue and queue != move.from_queue):
        return False
    if move.destination:
        return True
    try:
        access.check("write", "queue", history.first[1])
    except AccessRefused:
        return False
    return True


def _fitting(messages: Range, octets: int) -> int:
    """How many of equally large messages have so many octets together; one at least."""
    return max(1, min(messages.count, octets * messages.count // max(messages.size, 1)))


def _has(message: bytes, headers: Mapping[str, object]) -> bool:
    """Whether a message has these headers, with these values."""
    if not headers:
        return True
    found = content_of(message, 0).headers
    return all(name in found and _is_equal(found[name], value) for name, value in headers.items())


def _is_equal(found: object, wanted: object) -> bool:
    """Whether two values are the same: to Python, true is 1."""
    return found == wanted and isinstance(found, bool) == isinstance(wanted, bool)


def _add(pieces: list[MovePiece], key: int, examined: int, priority: int, ttl_ms: int) -> None:
    """Add one message to the pieces of a step."""
    last = pieces[-1] if pieces else None
    if (
        last is not None
        and last.first + last.count == key
        and last.examined + last.count == examined
        and (last.priority, last.ttl_ms) == (priority, ttl_ms)
    ):
        pieces[-1] = last._replace(count=last.count + 1)
    else:
        pieces.append(MovePiece(key, 1, examined, priority, ttl_ms))
