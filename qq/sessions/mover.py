"""The leader's work of moving messages between queues, for operators and shovels.

The machine knows which messages are ready, where they are, and their dead-letter history. Their headers are in the log,
which the machine cannot read. So the leader reads a few messages of the source at a time, and submits `MoveMessages`
commands with the messages that match. Applying a command moves its messages in a single step. A repeated command has no
effect, so no message is lost or doubled whichever node submits it, and however often. The progress of a move is part of
the state, so a new leader continues there.

A move back to the queues of the first deaths has many destinations. A full one holds up only its own messages: the move
passes them over, and goes through the source again from the first of them. A new leader does not know which messages
were passed over, so it begins at the start of the source.

Invariant: a single step is under way at a time, of the moves in turn. A step is bounded, however large the source is.
While a move runs, its requester must have all permissions that it needs.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from qq.machine.protocol.commands import EndMove, MoveMessages
from qq.machine.queue.backlog import PLACES, RETURNED
from qq.machine.queue.moves import MovePiece
from qq.sessions.access import Access, AccessRefused
from qq.sessions.entries import MessagesGone
from qq.sessions.lanes import Lane
from qq.sessions.message_filter import SEARCHED_FRAMES_BYTES, filter_of
from qq.stored.kept import kept_when_moved

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cluster.runtime.ports import Runtime
    from qq.machine.machine import QueueMachine
    from qq.machine.protocol.death_history import History
    from qq.machine.queue.moves import MoveState
    from qq.machine.queue.queue import Queue
    from qq.ranges import Range
    from qq.sessions.entries import Entries
    from qq.sessions.message_filter import MessageFilter
    from qq.sessions.submissions import Submissions

log = logging.getLogger(__name__)

STEP_MESSAGES = 250
"""Messages that a step examines: some 3 ms of the leader's event loop."""
STEP_BYTES = 1024 * 1024
"""Octets of messages at which a step examines no more. A message is always examined as a whole."""
RETRY_S = 0.5
"""Seconds to wait for room in a queue, for the end of an alarm, or before a step that was not taken is repeated."""
PASS_STEP_S = 0.01
"""Seconds to wait for each step of a pass through the source, at least, before the next pass over it."""
TICK_S = 0.1
"""Seconds to wait, at least, until a limited rate lets more messages pass."""


@dataclass(slots=True)
class _MovePace:
    """How fast this leader runs a move."""

    access: Access
    since_s: float
    """Monotonic time, in seconds, of the last update of `passing`."""
    passing: float = 0.0
    """Messages that may pass at that time, if the rate is limited."""
    due_s: float = 0.0
    """Monotonic time, in seconds, at which the next step may be taken."""
    cursor: tuple[int, int] | None = None
    """Place and key at which the next step begins, if not where the last step ended."""
    full: set[str] = field(default_factory=set)
    """The destinations that had no room in this pass through the source. Their messages are passed over."""
    first_passed: tuple[int, int] | None = None
    """Place and key of the first message that was passed over, or None."""
    is_repeated: bool = False
    """Whether this is a repeated pass in which no destination was full yet."""
    is_first_pass: bool = True
    """Whether the messages of a step count as examined; in later passes they were counted before."""
    steps: int = 0
    """Steps since the last wait for room."""

    def begin_again(self) -> bool:
        """Go back to the first message that was passed over. Return False if there is none."""
        if self.first_passed is None:
            return False
        self.cursor, self.first_passed = self.first_passed, None
        self.full.clear()
        self.is_repeated, self.is_first_pass = True, False
        return True

    def pass_over(self, destination: str, at: tuple[int, int], now_s: float) -> None:
        """Pass over the messages of a full destination; the first of them is `at` this place and key."""
        self.full.add(destination)
        if self.first_passed is None:
            self.first_passed = at
        if self.is_repeated:
            self.due_s = now_s + max(RETRY_S, self.steps * PASS_STEP_S)
            self.is_repeated, self.steps = False, 0

    def allowed(self, rate: int, now_s: float) -> int:
        """Return how many messages may be moved now at `rate` messages a second; 0 means no limit.

        An unused rate is saved up for 2 * TICK_S seconds at most.
        """
        if not rate:
            return STEP_MESSAGES
        self.passing = min(self.passing + (now_s - self.since_s) * rate, 1 + 2 * TICK_S * rate)
        self.since_s = now_s
        return min(int(self.passing), STEP_MESSAGES)


class _Step(NamedTuple):
    """A step of a move while it is being composed."""

    pieces: list[MovePiece]
    """The messages to be moved. All are in the same place, at which the next step begins, too."""
    examined: int
    next_place: int
    next_key: int


class Mover:
    """Moves messages while this node is the leader."""

    def __init__(
        self,
        machine: QueueMachine,
        submissions: Submissions,
        entries: Entries,
        runtime: Runtime,
        must_wait: Callable[[], bool],
    ) -> None:
        """Create a mover. `must_wait` returns whether an alarm makes publishers wait: then moves wait, too."""
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
        """Monotonic time, in seconds, of the scheduled wake-up at which a waiting move may continue; infinite if there
        is none."""
        self._waiting = 0
        """The number of moves when all of them had to wait until then; 0 if at least one may continue."""
        self._paces: dict[tuple[str, str], _MovePace] = {}
        """The pace of each running move, by virtual host and id."""
        self._last = ("", "")
        """The move that was served last."""

    def set_leading(self, leads: bool) -> None:
        """Start moving messages if this node is the leader now; otherwise stop."""
        self._leads = leads
        self._paces, self._waiting = {}, 0
        self.submit_step()

    def submit_step(self) -> None:
        """Submit the next step of the next move in turn, unless a step is under way."""
        running = self._machine.moves.running
        if self._is_busy or not self._leads or not running:
            return
        if len(running) == self._waiting and self._runtime.monotonic() < self._wakes_s:
            return  # all of them wait, as they did when an earlier entry was applied
        move = self._next(running)
        if move is not None:
            self._last = move.vhost, move.id
            self._run_step(move)

    # Scheduling

    def _next(self, running: Mapping[tuple[str, str], MoveState]) -> MoveState | None:
        """Return the next move in turn. If all moves must wait, return None and schedule a wake-up."""
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
            if not move.destination:
                pace.cursor, pace.is_first_pass = (RETURNED, 0), not move.step
        return pace

    # A step

    def _run_step(self, move: MoveState) -> None:
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
        step = self._step(move, pace, allowed)
        if step is None:
            return  # it continues when the messages have been read
        if move.is_endless and not step.examined and self._has_queues(move):
            pace.due_s = now_s + TICK_S  # an idle move submits no commands
            self.submit_step()
            return
        pace.passing -= sum(piece.count for piece in step.pieces)
        if not pace.is_first_pass:
            step = step._replace(pieces=[piece._replace(examined=0) for piece in step.pieces], examined=0)
        numbers = [number for piece in step.pieces for number in piece]
        self._submit(move, MoveMessages(move.vhost, move.id, move.step, step.next_place, numbers, *step[1:]))

    def _submit(self, move: MoveState, command: MoveMessages | EndMove) -> None:
        before = move.step

        def applied() -> None:
            self._is_busy = False
            pace, now_s = self._pace(move), self._runtime.monotonic()
            if move.is_running and move.step == before:
                if self._leads:
                    log.warning("step %d of move %s was not taken, it is repeated", before, move.id)
                pace.due_s = now_s + RETRY_S
            elif move.is_running:
                pace.cursor, pace.steps = None, pace.steps + 1
                if move.waits_for and not move.destination:
                    pace.pass_over(move.waits_for, (move.place, move.key), now_s)
                elif move.waits_for:
                    pace.due_s = now_s + RETRY_S
            self.submit_step()

        self._is_busy = True
        self._submissions.add(command, self._lane)
        self._submissions.read_barrier(applied, self._lane)

    def _step(self, move: MoveState, pace: _MovePace, allowed: int) -> _Step | None:
        """Find the next messages that the move applies to, at most `allowed`. Return None while they are being read."""
        source = self._queue(move, move.source, move.source_number)
        if source is None:
            return _Step([], 0, move.place, move.key)  # the machine detects the missing queue, too
        # Search an endless move's source from its start, because messages may have been returned there. Such a move
        # skips no messages, so each is examined only once.
        place, key = (RETURNED, 0) if move.is_endless else pace.cursor or (move.place, move.key)
        found = source.peek(place, key, move.end_of(place), STEP_MESSAGES)
        while not found and place < PLACES:
            place, key = place + 1, 0
            found = source.peek(place, key, move.end_of(place), STEP_MESSAGES)
        if found:
            return self._examine_found(move, pace, source, place, found, allowed)
        if pace.begin_again():
            return self._step(move, pace, allowed)
        return _Step([], 0, PLACES, 0)

    def _queue(self, move: MoveState, name: str, number: int) -> Queue | None:
        """Return the queue of this name if it is still the queue that the move was begun with, or None."""
        queue = self._machine.vhosts[move.vhost].queues.get(name)
        return queue if queue is not None and queue.number == number else None

    def _has_queues(self, move: MoveState) -> bool:
        ends = (move.source, move.source_number), (move.destination, move.destination_number)
        return all(self._queue(move, *end) is not None for end in ends)

    def _examine_found(
        self,
        move: MoveState,
        pace: _MovePace,
        source: Queue,
        place: int,
        found: list[tuple[int, Range]],
        allowed: int,
    ) -> _Step | None:
        pieces: list[MovePiece] = []
        examined = matched = size = 0
        key, wanted = found[0][0], filter_of(move)
        for number, (first, messages) in enumerate(found):
            history = source.histories.get(messages.history)
            key = first
            if not _applies_to(move, wanted, pace, history):
                examined += messages.count
                key += messages.count
                continue
            part = messages.part(0, _fitting(messages, STEP_BYTES - size))
            stored = self._stored(part, wanted)
            if stored is None:
                if examined:
                    break
                ahead = dict.fromkeys(messages.index for _, messages in found[number:])
                self._load(move, list(ahead))
                return None
            for message in stored:
                if message is not None and wanted.takes_message(message):
                    _add_message(pieces, key, examined, *kept_when_moved(message))
                    matched += 1
                examined += 1
                key += 1
                if matched == allowed:
                    return _Step(pieces, examined, place, key)
            size += part.size
            if size >= STEP_BYTES or part.count < messages.count:
                break
        return _Step(pieces, examined, place, key)

    def _stored(self, part: Range, wanted: MessageFilter) -> Sequence[bytes | None] | None:
        """Return the messages of a range; None if they must be read first.

        A message that cannot be read is None in the list. Of large messages only the headers are returned, unless the
        filter searches for a text, and then no more octets than it searches.
        """
        try:
            groups = self._entries.messages(part, frames_max=SEARCHED_FRAMES_BYTES if wanted.text else 0)
        except MessagesGone:
            # The state still refers to these messages, so this is a bug of qq. They stay in their queue.
            log.exception("messages of entry %d cannot be read, and are not moved", part.index)
            return [None] * part.count
        if groups is None:
            return None
        return [message for group in groups for message in group.messages]

    def _load(self, move: MoveState, indexes: list[int]) -> None:
        def loaded() -> None:
            self._is_busy = False
            if self._leads and move.is_running:
                self._run_step(move)  # at once, while the entries that were read are in memory
            else:
                self.submit_step()

        self._is_busy = True
        self._entries.load(indexes, loaded)


def _check(access: Access, move: MoveState) -> None:
    """Raise AccessRefused if the user has lost a permission that the move needs. A shovel needs none."""
    if move.shovel:
        return
    access.check("read", "queue", move.source)
    if move.destination:
        access.check("write", "queue", move.destination)


def _applies_to(move: MoveState, wanted: MessageFilter, pace: _MovePace, history: History | None) -> bool:
    """Return whether a step may apply to messages with this history, judged by the history alone."""
    if not wanted.takes_history(history):
        return False
    if move.destination or history is None or not history.deaths:
        return bool(move.destination)
    if history.first[1] in pace.full:
        return False
    try:
        pace.access.check("write", "queue", history.first[1])
    except AccessRefused:
        return False
    return True


def _fitting(messages: Range, octets: int) -> int:
    """Return how many of equally large messages fit into `octets`, at least 1."""
    return max(1, min(messages.count, octets * messages.count // max(messages.size, 1)))


def _add_message(pieces: list[MovePiece], key: int, examined: int, priority: int, ttl_ms: int) -> None:
    """Add a message to the pieces of a step."""
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
