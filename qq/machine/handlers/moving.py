"""Handlers of moves: messages go from a source queue to a destination queue at a user's request.

Invariant: a message leaves its queue in the same step in which it enters the destination, so it moves exactly once. A
repeated step is ignored. A message stays in the source if it is not ready in the place that the step names, or if the
destination has no room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from qq.machine.handlers.cost_estimate import COMMAND_STEPS
from qq.machine.handlers.publishing import is_bounded, singles
from qq.machine.handlers.registry import handles
from qq.machine.policy.value_checks import EXPIRY_MAX_MS
from qq.machine.protocol import commands as c
from qq.machine.protocol.death_history import moved, moved_back
from qq.machine.protocol.refusals import Refused, not_found, the_queue
from qq.machine.protocol.work_meter import MOVED_AT_ONCE
from qq.machine.queue.moves import FAILED, FINISHED, SHOVEL, STOPPED, MovePiece, MoveState
from qq.stored.properties import NO_TTL

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from qq.machine.catalog.vhost import VirtualHost
    from qq.machine.handlers.core import Core
    from qq.machine.handlers.cost_estimate import Costs
    from qq.machine.handlers.publishing import PublishHandlers
    from qq.machine.protocol.death_history import History
    from qq.machine.queue.queue import Queue
    from qq.ranges import Range


class _Moving(NamedTuple):
    """Consecutive ready messages of a step that are alike."""

    key: int
    messages: Range
    piece: MovePiece
    examined: int
    """Number of messages examined before the first of these."""


_MOVED_STEPS = 12
"""Steps for each message that is moved, if each message is a range of its own."""
_CHUNKS_STEPS = 1_000
"""Steps to read inside of a backlog and to take messages out of it, because a chunk or two are packed again."""


def _move_steps(_costs: Costs, _origin: str, command: c.MoveMessages) -> int:
    return _CHUNKS_STEPS + _MOVED_STEPS * min(command.examined, MOVED_AT_ONCE)


class MoveHandlers:
    """Carries out the commands of moves."""

    def __init__(self, core: Core, publishing: PublishHandlers) -> None:
        self._core = core
        self._publishing = publishing

    @handles(c.BeginMove, cost=COMMAND_STEPS)
    def begin(self, command: c.BeginMove) -> None:
        self._begin(command, "", command.shovel, is_endless=command.is_endless)

    @handles(c.BeginTextMove, cost=COMMAND_STEPS)
    def begin_text_move(self, command: c.BeginTextMove) -> None:
        self._begin(command, command.text, "", is_endless=False)

    def _begin(
        self, command: c.BeginMove | c.BeginTextMove, text: str, shovel: str, *, is_endless: bool
    ) -> None:
        core = self._core
        vhost, moves = core.catalog.vhosts.get(command.vhost), core.catalog.moves
        if vhost is None or (command.vhost, command.move) in moves.all:
            return
        try:
            core.catalog.check_room(command)
        except Refused:
            return  # the submitting node has checked that before
        source = vhost.queues[command.source]
        destination = vhost.queues.get(command.destination)
        returned_end, position_end = source.backlog.ends()
        move = MoveState(
            vhost=command.vhost,
            id=command.move,
            user=command.user,
            source=command.source,
            source_number=source.number,
            destination=command.destination,
            destination_number=destination.number if destination else 0,
            count=command.count,
            rate=command.rate,
            reason=command.reason,
            from_queue=command.from_queue,
            headers=command.headers,
            shovel=shovel,
            is_endless=is_endless,
            begun_ms=core.time_ms,
            ready=source.ready,
            returned_end=returned_end,
            position_end=position_end,
            text=text,
        )
        moves.begin(move)

    @handles(c.EndMove, cost=COMMAND_STEPS)
    def end(self, command: c.EndMove) -> None:
        moves = self._core.catalog.moves
        move = moves.all.get((command.vhost, command.move))
        if move is not None and move.is_running:
            moves.end(move, FAILED if command.error else STOPPED, command.error, self._core.time_ms)

    @handles(c.MoveMessages, cost=_move_steps)
    def step(self, command: c.MoveMessages) -> None:
        core = self._core
        move = core.catalog.moves.all.get((command.vhost, command.move))
        if move is None or not move.is_running or move.step != command.step:
            return
        move.step += 1
        vhost = core.catalog.vhosts[move.vhost]
        try:
            source = _same(vhost, move.source, move.source_number)
            if move.destination:
                _same(vhost, move.destination, move.destination_number)
        except Refused as refused:
            core.catalog.moves.end(move, FAILED, refused.text, core.time_ms)
            return
        self._move(move, vhost, source, command)
        if move.is_through:
            core.catalog.moves.end(move, FINISHED, "", core.time_ms)
            if move.shovel:
                vhost.parameters.pop((SHOVEL, move.shovel), None)  # the shovel ends with its move

    def _move(self, move: MoveState, vhost: VirtualHost, source: Queue, command: c.MoveMessages) -> None:
        """Move the messages of a step, as far as there is room, and record the progress."""
        pieces = list(MovePiece.read(command.pieces))
        found: list[tuple[int, Range]] = []
        if pieces:
            end = pieces[-1].first + pieces[-1].count
            found = source.peek(command.place, pieces[0].first, end, MOVED_AT_ONCE)
        gone: list[tuple[int, Range]] = []
        # Where the next step begins, and the number of messages examined before that.
        begins, examined = (command.next_place, command.next_key), command.examined
        if sum(messages.count for _, messages in found) >= MOVED_AT_ONCE:
            key, messages = found[-1]
            begins = command.place, key + messages.count
        move.waits_for = ""
        for moving in _among(found, pieces):
            target = self._target(move, vhost, source, moving.messages)
            if target is None or 0 < moving.messages.expires_ms < self._core.time_ms:
                continue  # expired messages die in the source, at the end of an entry
            wanted = moving.messages.count
            if move.count:
                wanted = min(wanted, move.count - move.moved)
            accepted = self._enter(move, source, target, moving, wanted)
            if accepted:
                gone.append((moving.key, moving.messages.part(0, accepted)))
                move.moved += accepted
            if accepted < moving.messages.count:
                begins, examined = (command.place, moving.key + accepted), moving.examined + accepted
                move.waits_for = target.name if accepted < wanted else ""
                break
        if gone:
            source.move_out(command.place, gone)
            self._core.touch(source)
        move.place, move.key = begins
        move.examined += min(examined, MOVED_AT_ONCE)  # sums of submitted numbers must fit in 63 bits

    def _target(self, move: MoveState, vhost: VirtualHost, source: Queue, messages: Range) -> Queue | None:
        """Return the queue that gets these messages, or None if they stay.

        They stay if they did not die, or if the queue of their first death is gone, exclusive, or the source itself.
        """
        if move.destination:
            return vhost.queues[move.destination]
        history = source.histories.get(messages.history)
        target = None if history is None else vhost.queues.get(history.first[1])
        return None if target is source or target is None or target.owner is not None else target

    def _enter(self, move: MoveState, source: Queue, target: Queue, moving: _Moving, wanted: int) -> int:
        """Put up to `wanted` messages into a queue, as far as it has room. Return their number."""
        core, publishing = self._core, self._publishing
        if wanted and is_bounded(target):
            sizes = [single.size for single in singles(moving.messages.part(0, wanted))]
            [room] = publishing.rooms([target], sizes, at_once=True)
            wanted = min(room, wanted)
        if not wanted:
            return 0
        messages = moving.messages.part(0, wanted)
        history, ttl_ms = self._carried(move, source, moving)
        target.enqueue_again(messages, history, moving.piece.priority, ttl_ms, core.time_ms)
        core.touch(target)
        publishing.serve_if_full([target], wanted)
        return wanted

    def _carried(self, move: MoveState, source: Queue, moving: _Moving) -> tuple[History | None, int | None]:
        """Return the history that moved messages keep, and their own time to live, which dead letters have lost."""
        history = source.histories.get(moving.messages.history)
        if history is not None and history.deaths:
            return (moved(history) if move.destination else moved_back(history)), None
        ttl_ms = moving.piece.ttl_ms
        return history, None if ttl_ms == NO_TTL else min(ttl_ms, EXPIRY_MAX_MS)


def _same(vhost: VirtualHost, name: str, number: int) -> Queue:
    """Return the queue with this name and number. Raise Refused if it does not exist."""
    queue = vhost.queues.get(name)
    if queue is None or queue.number != number:
        raise not_found(the_queue(name, vhost.name))
    return queue


def _among(found: Sequence[tuple[int, Range]], pieces: Sequence[MovePiece]) -> Iterator[_Moving]:
    """Yield the parts of the found messages that pieces cover; both are in the order of keys."""
    remaining = iter(pieces)
    piece = next(remaining, None)
    for key, messages in found:
        end = key + messages.count
        while piece is not None and piece.first < end:
            low, high = max(piece.first, key), min(piece.first + piece.count, end)
            if low < high:
                examined = piece.examined + low - piece.first
                yield _Moving(low, messages.part(low - key, high - low), piece, examined)
            if piece.first + piece.count > end:
                break  # the next messages hold the rest of the piece
            piece = next(remaining, None)
