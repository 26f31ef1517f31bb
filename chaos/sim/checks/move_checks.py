"""Oracle of moves: each moved message leaves its source and arrives in the destination exactly once.

Invariant: a step names its messages by keys, which only the machine knows. So the oracle records the keys of all
messages before each batch. It computes itself whether a message may be moved, where it arrives, and with which
properties.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from chaos.sim.checks.queue_model import Key, Message, QueueModel, expiry_ms, is_full, names_of
from qq.machine.protocol.commands import DEFAULT_VHOST, MoveMessages, Publish
from qq.machine.queue.backlog import PLACES
from qq.machine.queue.moves import FAILED, FINISHED, MovePiece, MoveState
from qq.stored.properties import NO_TTL

if TYPE_CHECKING:
    from collections import Counter

    from qq.machine.machine import QueueMachine
    from qq.machine.queue.queue import Queue

EVERYTHING = 10**9


class Kept(NamedTuple):
    """A ready message at a certain moment."""

    name: Key
    deliveries: int
    expires_ms: int


Kepts = dict[tuple[int, int], Kept]
"""Ready messages by place and key."""


@dataclass(slots=True)
class MoveModel:
    """A move after the last batch."""

    step: int
    moved: int
    at_first: Kepts
    """The messages that were ready when the move began."""


class MoveOracle:
    """Follows the moves of the default virtual host."""

    def __init__(
        self,
        fail: Callable[[str], None],
        fates: Counter[str],
        queues: Callable[[], Mapping[str, QueueModel]],
        published: Mapping[tuple[int, int], Publish],
    ) -> None:
        self._fail = fail
        self._fates = fates
        self._queues = queues
        self._published = published
        self._moves: dict[str, MoveModel] = {}
        """Running moves, by id."""
        self.under_way = 0
        """Number of running moves."""
        self._kept: dict[int, Kepts] = {}
        """Ready messages of each move's source, by the number of the queue."""

    def record(self, machine: QueueMachine, now_ms: int) -> None:
        """Record ready messages and running moves; must be called whenever any of them may have changed."""
        moves = machine.moves
        self.under_way = len(moves.running)
        self._kept = {
            queue.number: _kept(queue)
            for move in moves.running.values()
            if (queue := _source(machine, move)) is not None
        }
        for name in [name for name in self._moves if (DEFAULT_VHOST, name) not in moves.running]:
            del self._moves[name]
        for move in moves.running.values():
            if move.id not in self._moves:
                at_first = self._kept.get(move.source_number, {})
                self._moves[move.id] = MoveModel(move.step, move.moved, at_first)
            model = self._moves[move.id]
            if (model.step, model.moved) != (move.step, move.moved):
                self._fail(f"move {move.id} has gone on by itself at {now_ms}: {move}")

    def step(
        self, machine: QueueMachine, command: MoveMessages, now_ms: int
    ) -> Iterator[tuple[QueueModel, Message, QueueModel, Message]]:
        """Check a step and yield each moved message: source, message, destination, message in the destination."""
        model = self._moves.get(command.move)
        move = machine.moves.all.get((command.vhost, command.move))
        if model is None or move is None or model.step != command.step:
            self._fates["steps of moves in vain"] += 1
            return
        model.step += 1
        moved, model.moved = move.moved - model.moved, move.moved
        if move.state == FAILED:
            self._fates["moves that failed"] += 1
            return
        self._fates["steps of moves"] += 1
        source = self._queues()[move.source]
        for piece, name in self._requested(move, command):
            message = next(iter(source.ready.get(name, ())), None)
            if message is None or 0 < message.expires_ms < now_ms:
                continue
            target = self._target(move, source, message)
            if target is None:
                continue
            if not moved:
                if not (move.count and move.moved >= move.count) and not is_full(target):
                    self._fail(f"{name} of {source.name} is not moved, and {target.name} has room: {move}")
                return
            moved -= 1
            self._fates["moved" if move.destination else "moved back"] += 1
            yield source, message, target, self._arrival(move, piece, message, target, now_ms)
        if moved:
            self._fail(f"{moved} messages more were moved than may be: {command}, {move}")
        if move.state == FINISHED:
            self._fates["moves that ended"] += 1
            self._check_all_moved(machine, move, model, now_ms)

    def _requested(self, move: MoveState, command: MoveMessages) -> Iterator[tuple[MovePiece, Key]]:
        kept = self._kept.get(move.source_number, {})
        for piece in MovePiece.read(command.pieces):
            for key in range(piece.first, piece.first + piece.count):
                if (command.place, key) in kept:
                    yield piece, kept[command.place, key].name

    def _target(self, move: MoveState, source: QueueModel, message: Message) -> QueueModel | None:
        target = self._queues().get(move.destination or message.first)
        return None if target is source else target

    def _arrival(
        self, move: MoveState, piece: MovePiece, message: Message, target: QueueModel, now_ms: int
    ) -> Message:
        known = self._published[message.place]
        if (piece.priority, piece.ttl_ms) != (known.priority, known.ttl_ms):
            self._fail(f"{message.name} is moved as another: {piece}, {known}")
        own_ms = None if message.deaths or known.ttl_ms == NO_TTL else known.ttl_ms
        return Message(
            message.place,
            message.deaths,
            target.settings.level(known.priority),
            expiry_ms(target, own_ms, now_ms),
            now_ms,
            message.key if move.destination else None,
            first=message.first,
            over=len(message.deaths),
            annotations=message.annotations,
        )

    def _check_all_moved(self, machine: QueueMachine, move: MoveState, model: MoveModel, now_ms: int) -> None:
        """Check that a finished move of everything left no message behind that was ready all the time."""
        queue = _source(machine, move)
        if queue is None or move.count or move.reason or not move.destination:
            return
        for place, kept in _kept(queue).items():
            at_first = model.at_first.get(place)
            has_stayed = at_first is not None and at_first.deliveries == kept.deliveries
            if has_stayed and not 0 < kept.expires_ms <= now_ms:
                self._fail(f"{kept} was passed over by {move}")


def _source(machine: QueueMachine, move: MoveState) -> Queue | None:
    queue = machine.vhosts[move.vhost].queues.get(move.source)
    return queue if queue is not None and queue.number == move.source_number else None


def _kept(queue: Queue) -> Kepts:
    return {
        (place, first + at): Kept(name, messages.deliveries, messages.expires_ms)
        for place in range(PLACES)
        for first, messages in queue.peek(place, 0, EVERYTHING, EVERYTHING)
        for at, name in enumerate(names_of(queue, [messages]))
    }
