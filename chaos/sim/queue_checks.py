"""What queues promise, kept message by message by the dumbest means there is.

Lives here: an oracle that is told of every batch and every effect once, in log order, and knows where each message must
be. Not here: how the machine does it.

Law: each message that was enqueued is ready, held by one consumer, or settled; messages are delivered for the first
time in the order of the log; one that comes back is marked with how often it did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from qq.machine.codec import decode_batch, decode_commands, decode_kept, is_kept
from qq.machine.commands import (
    Checkout,
    Discard,
    Enqueue,
    Get,
    PurgeQueue,
    Recover,
    Return,
    SessionDown,
    Settle,
)
from qq.machine.effects import Deliver, Failed, GetOk, QueuePurged, Reply
from qq.ranges import MESSAGE_BITS, Range

if TYPE_CHECKING:
    from qq.machine.machine import QueueMachine


def messages_of(payload: bytes) -> dict[int, bytes]:
    """The messages of a batch, or of what was kept of it, by ordinal."""
    if not is_kept(payload):
        return dict(enumerate(payload[start:end] for start, end in pairwise(decode_batch(payload).offsets)))
    return {
        piece.first + number: payload[start:end]
        for piece in decode_kept(payload)
        for number, (start, end) in enumerate(pairwise(piece.offsets))
    }


class Message(NamedTuple):
    """Where a message is in the log, and how often it came back."""

    index: int  # pyright: ignore[reportIncompatibleMethodOverride]
    slot: int
    returns: int


class Holder:
    """A consumer, or what a get took."""

    def __init__(self, session: int, queue: str) -> None:
        self.session = session
        self.queue = queue
        self.held: dict[int, Message] = {}
        self.next_id = 0
        self.newest: tuple[int, int] = (0, 0)
        """Place of the last message it got for the first time."""


class QueueOracle:
    """The `AppliedListener` of queue runs."""

    def __init__(self, fail: Callable[[str], None]) -> None:
        self.settled = 0
        self.enqueued = 0
        self._fail = fail
        self._ready: dict[str, dict[tuple[int, int], Message]] = {}
        self._first_deliveries: dict[str, list[tuple[int, int]]] = {}
        """Places of the messages delivered for the first time by the effects under way, by queue."""
        self._newest: dict[str, tuple[int, int]] = {}
        self._holders: dict[tuple[str, int], Holder] = {}
        self._delivered_to: dict[tuple[str, int], dict[int, tuple[int, int]]] = {}
        """Place by message id of all that a consumer was ever given."""
        self._questions: dict[tuple[str, int], str] = {}
        """Which queue the get or purge of a session is about."""

    def ready(self, queue: str) -> int:
        return len(self._ready.get(queue, ()))

    def held(self, queue: str) -> int:
        return sum(len(holder.held) for holder in self._holders.values() if holder.queue == queue)

    def place(self, origin: str, consumer: int, message_id: int) -> tuple[int, int] | None:
        """Which message a consumer was given under this id."""
        return self._delivered_to.get((origin, consumer), {}).get(message_id)

    def held_ids(self, origin: str) -> Iterator[tuple[int, int]]:
        """Consumer and message id of everything that the consumers of a node hold."""
        for (node, consumer), holder in self._holders.items():
            if node == origin:
                for message_id in holder.held:
                    yield consumer, message_id

    # In log order

    def batch(
        self, origin: str, index: int, ordinal: int, payload: memoryview, effects: Sequence[Any]
    ) -> None:
        slot = ordinal << MESSAGE_BITS
        for command in decode_commands(payload):
            if isinstance(command, Enqueue):
                ready = self._ready.setdefault(command.routing_key, {})
                for message in range(slot, slot + command.count):
                    ready[index, message] = Message(index, message, 0)
                slot += command.count
                self.enqueued += command.count
            else:
                self._command(origin, command)
        self._effects(effects)

    def entry_ended(self, effects: Sequence[Any]) -> None:
        self._effects(effects)

    def origin_down(self, origin: str, effects: Sequence[Any]) -> None:
        for key in [key for key in self._holders if key[0] == origin]:
            self._give_back(self._holders.pop(key))
        self._effects(effects)

    def _command(self, origin: str, command: Any) -> None:
        match command:
            case Checkout() | Get():
                self._holders[origin, command.consumer] = Holder(command.session, command.queue)
                self._delivered_to[origin, command.consumer] = {}
            case PurgeQueue():
                self._questions[origin, command.session] = command.name
            case Settle() | Discard():
                self.settled += len(self._taken(origin, command.consumer, command.first, command.last))
            case Return():
                holder = self._holders.get((origin, command.consumer))
                if holder is not None:
                    self._put_back(
                        holder.queue, self._taken(origin, command.consumer, command.first, command.last)
                    )
            case Recover():
                for holder in self._holders_of(origin, command.session):
                    self._give_back(holder)
            case SessionDown():
                for holder in self._holders_of(origin, command.session):
                    self._give_back(holder)
                self._holders = {
                    key: holder
                    for key, holder in self._holders.items()
                    if key[0] != origin or holder.session != command.session
                }
            case _:
                pass

    def _effects(self, effects: Sequence[Any]) -> None:
        for effect in effects:
            match effect:
                case Deliver():
                    self._delivered(effect)
                case Reply(node, session, QueuePurged(messages)):
                    ready = self._ready.get(self._questions[node, session], {})
                    self.settled += messages
                    if messages != len(ready):
                        self._fail(f"a purge reports {messages} of {len(ready)} messages")
                    ready.clear()
                case Reply(node, _, GetOk(consumer, range_, _)):
                    self._take(node, consumer, range_)
                case Failed():
                    self._fail(f"refused: {effect}")
                case _:
                    pass
        for queue, places in self._first_deliveries.items():
            self._check_order(queue, places)
        self._first_deliveries.clear()

    def _check_order(self, queue: str, places: list[tuple[int, int]]) -> None:
        """What went out for the first time is what came next; consumers take turns, so it is compared as a set."""
        if min(places) < self._newest.get(queue, (0, 0)):
            self._fail(f"{min(places)} of {queue} is delivered after {self._newest[queue]}")
        self._newest[queue] = max(places)
        next_place = next(
            (place for place, message in self._ready[queue].items() if not message.returns), None
        )
        if next_place is not None and next_place < max(places):
            self._fail(f"{next_place} of {queue} is passed over for {max(places)}")

    # Messages

    def _delivered(self, effect: Deliver) -> None:
        holder = self._holders.get((effect.node, effect.consumer))
        if holder is None:
            self._fail(f"delivered to nobody: {effect}")
            return
        if effect.first_id != holder.next_id:
            self._fail(f"message id {effect.first_id} where {holder.next_id} was due: {effect}")
        for range_ in effect.ranges:
            self._take(effect.node, effect.consumer, range_)

    def _take(self, node: str, consumer: int, range_: Range) -> None:
        holder = self._holders[node, consumer]
        ready = self._ready.get(holder.queue, {})
        for slot in range(range_.slot, range_.slot + range_.count):
            place = (range_.index, slot)
            message = ready.pop(place, None)
            if message is None:
                self._fail(f"{place} of {holder.queue} is delivered and was not ready")
                return
            if message.returns != range_.deliveries:
                self._fail(f"{message} is marked as returned {range_.deliveries} times")
            if not message.returns:
                if place < holder.newest:
                    self._fail(
                        f"{place} of {holder.queue} is delivered after {holder.newest} to the same consumer"
                    )
                holder.newest = place
                self._first_deliveries.setdefault(holder.queue, []).append(place)
            holder.held[holder.next_id] = message
            self._delivered_to[node, consumer][holder.next_id] = place
            holder.next_id += 1

    def _holders_of(self, origin: str, session: int) -> list[Holder]:
        return [
            holder for key, holder in self._holders.items() if key[0] == origin and holder.session == session
        ]

    def _taken(self, origin: str, consumer: int, first: int, last: int) -> list[Message]:
        holder = self._holders.get((origin, consumer))
        if holder is None:
            return []
        ids = [number for number in holder.held if first <= number <= last]
        return [holder.held.pop(number) for number in ids]

    def _give_back(self, holder: Holder) -> None:
        messages = list(holder.held.values())
        holder.held.clear()
        self._put_back(holder.queue, messages)

    def _put_back(self, queue: str, messages: Sequence[Message]) -> None:
        ready = self._ready.setdefault(queue, {})
        for message in messages:
            ready[message[:2]] = message._replace(returns=message.returns + 1)

    # At the end

    def check_machine(self, name: str, machine: QueueMachine) -> None:
        """A node's machine has every message that is neither settled nor purged, and no other."""
        for queue in machine.queues.values():
            counts = (queue.ready, queue.unacked)
            expected = (self.ready(queue.name), self.held(queue.name))
            if counts != expected:
                self._fail(f"{queue.name} at {name} has {counts} ready and unacked messages, not {expected}")
