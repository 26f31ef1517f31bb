"""What dead-lettered messages have been through: their deaths.

Invariant: messages with equal histories share one, and each costs a string of bytes. What is handed out never changes.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, NamedTuple

from qq.machine.protocol.codec import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

REJECTED = "rejected"
EXPIRED = "expired"
MAXLEN = "maxlen"
DELIVERY_LIMIT = "delivery_limit"
REASONS = (REJECTED, EXPIRED, MAXLEN, DELIVERY_LIMIT)

Cause = tuple[str, str, str]
"""The cause of a death: the reason, the queue in which it came, and the exchange by which the message came there."""

SPREAD_MAX = 10_000
"""How many messages one message may become by dying if nobody rejects any of them. A chain of queues makes no more of
them, and a rejection begins anew. What is beyond is dropped, as is what goes round in a circle."""

_BLOCK_ROWS = 512
"""The number of histories in a block; to copy one takes some microseconds."""


class Death(NamedTuple):
    """All deaths of a message in one queue for one reason: how many, and what was known at the first."""

    queue: str
    reason: str
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here
    time_ms: int
    """The cluster's time of the first death, in whole seconds as AMQP tells it, so that more histories are equal."""
    exchange: str
    """The exchange to which the message had been published, or dead-lettered before."""
    routing_keys: tuple[str, ...]
    """The message's keys at that time, without BCC."""
    original_expiration: str | None
    """The property `expiration`, which a message loses at its first death."""

    @classmethod
    def of(cls, row: Sequence[Any]) -> Death:
        """The death that was packed into this row."""
        queue, reason, count, time_ms, exchange, routing_keys, original_expiration = row
        return cls(queue, reason, count, time_ms, exchange, tuple(routing_keys), original_expiration)


class History(NamedTuple):
    """What a dead-lettered message has become and been through."""

    exchange: str
    """The dead-letter exchange, to which the message counts as published now."""
    routing_key: str
    cc_removed: bool
    """Whether a dead-letter routing key has taken the place of all the keys the message was published with."""
    deaths: tuple[Death, ...]
    """The deaths of the message, one for each queue and reason, the newest first."""
    first: Cause
    last: Cause
    """The cause of the newest death. Its exchange may be another than in `deaths`, which is that of the first time."""
    spread: int
    """How many messages one may have become since somebody rejected it, or it was published: the product of the numbers
    of queues in which it arrived at each death."""
    over: int = 0
    """How many of the deaths, the last ones here, came before somebody moved the message: they make no cycle."""

    @classmethod
    def of(cls, row: Sequence[Any]) -> History:
        """The history that was packed into this row."""
        exchange, routing_key, cc_removed, deaths, first, last, spread, *over = row
        known = tuple(map(Death.of, deaths))
        return cls(exchange, routing_key, cc_removed, known, tuple(first), tuple(last), spread, *over)

    def row(self) -> Sequence[Any]:
        """What is packed of the history: as before version 8 of the state, if it was never moved."""
        return self if self.over else self[:-1]

    def keys(self, published: tuple[str, ...]) -> tuple[str, ...]:
        """The keys that a message has now, if it was published with the keys `published`."""
        return (self.routing_key,) if self.cc_removed else published


def died(
    history: History | None,
    queue: str,
    reason: str,
    time_ms: int,
    exchange: str,
    routing_keys: tuple[str, ...],
    original_expiration: str | None,
    new_exchange: str,
    new_routing_key: str | None,
) -> History:
    """What a message's history is after it died in `queue` and went on to `new_exchange`.

    `exchange`, `routing_keys` (the routing key, then CC, not BCC) and `original_expiration` are those of the message as
    it was published, however often it has died since. Without `new_routing_key` it keeps its keys.
    """
    if history is None:
        deaths: tuple[Death, ...] = ()
        cc_removed = False
    else:
        deaths, cc_removed = history.deaths, history.cc_removed
        exchange, routing_keys, original_expiration = history.exchange, history.keys(routing_keys), None
    # rabbitmq-server mc.erl, record_death: a repetition changes nothing of a record but the count, and its place.
    death = Death(queue, reason, 1, time_ms - time_ms % 1000, exchange, routing_keys, original_expiration)
    over = 0 if history is None else history.over
    for place, known in enumerate(deaths):
        if known.queue == queue and known.reason == reason:
            death = known._replace(count=known.count + 1)
            over -= place >= len(deaths) - over
            deaths = tuple(other for other in deaths if other is not known)
            break
    cause = (reason, queue, exchange)
    return History(
        new_exchange,
        routing_keys[0] if new_routing_key is None else new_routing_key,
        cc_removed or new_routing_key is not None,
        (death, *deaths),
        cause if history is None else history.first,
        cause,
        1 if history is None or reason == REJECTED else history.spread,
        over,
    )


def moved(history: History) -> History:
    """What a message's history is when somebody has moved it: that is their will, as a rejection is a client's."""
    return history._replace(spread=1, over=len(history.deaths))


def moved_back(history: History) -> History:
    """What it is when somebody has moved the message to where it first died: it is published as it was then."""
    reason, queue, _ = history.first
    for death in history.deaths:
        if (death.queue, death.reason) == (queue, reason):
            exchange, routing_key = death.exchange, death.routing_keys[0]
            return moved(history)._replace(exchange=exchange, routing_key=routing_key, cc_removed=False)
    return moved(history)


def is_cycle(history: History, target: str) -> bool:
    """Whether a message with this history goes round in a circle when it gets into the queue `target` again.

    It does if nobody rejected or moved it since it died there; that is their will, and so is what follows.
    """
    for death in history.deaths[: len(history.deaths) - history.over]:
        if death.reason == REJECTED:
            return False
        if death.queue == target:
            return True
    return False


class Histories:
    """The histories that the messages of one queue refer to, by id, with the number of those messages.

    0 stands for no history, wherever an id is wanted.
    """

    __slots__ = ("_blocks", "_ids", "_next_id", "_owned")

    def __init__(self) -> None:
        self._next_id = 1
        """The id of the next new history. It only grows, so that no id has ever had another meaning."""
        self._ids: dict[bytes, int] = {}
        self._blocks: dict[int, _HistoryBlock] = {}
        """The blocks in which there is any history, by the ids divided by _BLOCK_ROWS, ascending."""
        self._owned: set[int] = set()
        """The blocks that nobody else looks at; the others are copied before they change."""

    def intern(self, history: History, count: int) -> int:
        """Note that `count` messages more refer to this history, which may be new, and return its id."""
        packed = pack(history.row())
        history_id = self._ids.get(packed)
        if history_id is None:
            history_id = self._next_id
            self._next_id += 1
            self._enter(history_id, packed, count)
        else:
            self.retain(history_id, count)
        return history_id

    def retain(self, history_id: int, count: int) -> None:
        """Note that `count` messages more refer to a history that is there."""
        if history_id:
            self._change(history_id, count)

    def release(self, history_id: int, count: int) -> None:
        """Note that `count` messages fewer refer to a history; when none does it is forgotten."""
        if not history_id or self._change(history_id, -count):
            return
        number, place = divmod(history_id, _BLOCK_ROWS)
        block = self._blocks[number]
        del self._ids[block.packed[place]]
        block.packed[place] = b""
        block.live -= 1
        if not block.live:
            del self._blocks[number]
            self._owned.remove(number)

    def get(self, history_id: int) -> History | None:
        """The history with this id, which has to be there; None for 0."""
        if not history_id:
            return None
        number, place = divmod(history_id, _BLOCK_ROWS)
        return History.of(unpack(self._blocks[number].packed[place]))

    def octets(self, history_id: int) -> int:
        """How many octets the history with this id is; it has to be there, and 0 has none."""
        if not history_id:
            return 0
        number, place = divmod(history_id, _BLOCK_ROWS)
        return len(self._blocks[number].packed[place])

    def keep_only(self, counts: Mapping[int, int]) -> None:
        """Let as many messages refer to each history as `counts` tells, at least one, and forget the others."""
        kept: list[HistoryRow] = []
        for history_id in sorted(counts):
            number, place = divmod(history_id, _BLOCK_ROWS)
            kept.append(HistoryRow(history_id, self._blocks[number].packed[place], counts[history_id]))
        self._replace(kept)

    def __len__(self) -> int:
        return len(self._ids)

    def _change(self, history_id: int, difference: int) -> int:
        """Change how many messages refer to a history, and return how many do now. Raises ValueError at too few."""
        number, place = divmod(history_id, _BLOCK_ROWS)
        counts = self._own(number).counts
        count = counts[place] + difference
        if not counts[place] or count < 0:
            raise ValueError(f"{difference} messages with history {history_id}, which {counts[place]} have")
        counts[place] = count
        return count

    def _replace(self, rows: Iterable[HistoryRow]) -> None:
        self._ids = {}
        self._blocks = {}
        self._owned.clear()
        for row in rows:
            self._enter(row.id, row.packed, row.count)

    def _enter(self, history_id: int, packed: bytes, count: int) -> None:
        number, place = divmod(history_id, _BLOCK_ROWS)
        block = self._own(number)
        self._ids[packed] = history_id
        block.packed[place] = packed
        block.counts[place] = count
        block.live += 1

    def _own(self, number: int) -> _HistoryBlock:
        """The block with this number, to be changed: it is made if there is none, and copied if others look at it."""
        if number not in self._owned:
            old = self._blocks.get(number)
            self._blocks[number] = _HistoryBlock() if old is None else old.copy()
            self._owned.add(number)
        return self._blocks[number]

    # The state, dumped and loaded

    def freeze(self) -> FrozenHistories:
        """The histories as they are now, sharing the blocks."""
        if self._next_id == 1:
            return _UNUSED  # as nearly always, and there may be very many of them
        self._owned.clear()
        return FrozenHistories(self._next_id, self._blocks.copy())

    def load(self, dumped: Sequence[Any]) -> None:
        """Replace everything by what a `HistoriesRow` was written from."""
        row = HistoriesRow(*dumped)
        self._next_id = row.next_id
        self._replace(HistoryRow(*known) for block in row.blocks for known in unpack(block))


class HistoryRow(NamedTuple):
    """One history in a dump."""

    id: int
    packed: bytes
    """The packed `History`."""
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here
    """How many messages refer to it."""


class HistoriesRow(NamedTuple):
    """Histories in a dump, as `FrozenHistories.dump` makes it and `Histories.load` takes it."""

    next_id: int
    blocks: list[bytes]
    """Packed lists of `HistoryRow`."""


class FrozenHistories(NamedTuple):
    """A queue's histories at one moment, for any thread."""

    next_id: int
    blocks: dict[int, _HistoryBlock]

    def get(self, history_id: int) -> History:
        """The history that had this id at that moment."""
        number, place = divmod(history_id, _BLOCK_ROWS)
        return History.of(unpack(self.blocks[number].packed[place]))

    def dump(self) -> HistoriesRow:
        """The row of these histories in a dump; equal histories have equal rows."""
        if self is _UNUSED:
            return _UNUSED_ROW
        return HistoriesRow(
            self.next_id, [pack(_rows(number, block)) for number, block in self.blocks.items()]
        )


def _rows(number: int, block: _HistoryBlock) -> list[HistoryRow]:
    first = number * _BLOCK_ROWS
    return [
        HistoryRow(first + place, packed, block.counts[place])
        for place, packed in enumerate(block.packed)
        if packed
    ]


_UNUSED = FrozenHistories(1, {})
_UNUSED_ROW = HistoriesRow(1, [])


class _HistoryBlock:
    """The histories with consecutive ids."""

    __slots__ = ("counts", "live", "packed")

    # Packed they are a third as large, and millions of them are nothing to the garbage collector.
    packed: list[bytes]
    """The packed histories; empty where there is none any more, or yet."""
    counts: array[int]
    """How many messages refer to each history."""
    live: int
    """How many histories there are in the block."""

    def __init__(self) -> None:
        self.packed = [b""] * _BLOCK_ROWS
        self.counts = array("Q", bytes(8 * _BLOCK_ROWS))
        self.live = 0

    def copy(self) -> _HistoryBlock:
        copy = _HistoryBlock()
        copy.packed[:], copy.counts[:], copy.live = self.packed, self.counts, self.live
        return copy
