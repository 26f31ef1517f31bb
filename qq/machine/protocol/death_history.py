"""Histories of messages: their deaths, which become the header x-death, and the annotations that consumers gave them.

Invariant: messages with equal histories share a single packed history. A returned history never changes.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, NamedTuple

from qq.machine.protocol.codec import pack, unpack
from qq.octets import octets_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

REJECTED = "rejected"
EXPIRED = "expired"
MAXLEN = "maxlen"
DELIVERY_LIMIT = "delivery_limit"
REASONS = (REJECTED, EXPIRED, MAXLEN, DELIVERY_LIMIT)

Cause = tuple[str, str, str]
"""The cause of a death: the reason, the queue of the death, and the exchange by which the message came to that
queue."""

Annotation = tuple[str, bytes]
"""The key and the encoded value of an annotation."""

SPREAD_MAX = 10_000
"""Maximum messages that a message may become by dead-lettering before a client rejects it. A chain of queues does not
multiply messages, and a rejection starts the count again. Dead letters beyond the limit are dropped, as are cycles."""

ANNOTATIONS_MAX = 4096
"""Maximum octets of a message's annotations: keys and values."""
HISTORIES_BYTES_MAX = 16 * 1024 * 1024
"""Octets of a queue's histories above which its messages get no further annotations."""

_BLOCK_ROWS = 512
"""Histories in a block; copying a block takes some microseconds."""


class Death(NamedTuple):
    """All deaths of a message in a queue for a reason: their number, and the circumstances of the first death."""

    queue: str
    reason: str
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here
    time_ms: int
    """Cluster time of the first death, in milliseconds, rounded down to whole seconds as in AMQP, so that more
    histories are equal."""
    exchange: str
    """The exchange to which the message had been published or last dead-lettered."""
    routing_keys: tuple[str, ...]
    """The message's keys at that time, without BCC."""
    original_expiration: str | None
    """The property `expiration` of the original publish; a message loses it at its first death."""

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> Death:
        """Return the death in a packed row."""
        queue, reason, count, time_ms, exchange, routing_keys, original_expiration = row
        return cls(queue, reason, count, time_ms, exchange, tuple(routing_keys), original_expiration)


class History(NamedTuple):
    """The deaths of a dead-lettered message, its current exchange and key, and the annotations of a message.

    A message without `deaths` has only annotations; its exchange and keys are those of its publish.
    """

    exchange: str
    """The dead-letter exchange, as if the message had been published there."""
    routing_key: str
    cc_removed: bool
    """Whether a dead-letter routing key has replaced all keys of the original publish."""
    deaths: tuple[Death, ...]
    """The deaths of the message, one for each queue and reason, the newest first."""
    first: Cause
    last: Cause
    """The cause of the newest death. Its exchange may differ from that in `deaths`, which is that of the first time."""
    spread: int
    """Maximum messages that the original may have become since its publish or its last rejection: the product of the
    numbers of queues that it reached at each death."""
    over: int = 0
    """How many of the last `deaths` happened before a user moved the message. These deaths count towards no cycle."""
    failures: int = 0
    """Failed deliveries in the quorum queues in which the message died: rejections, and channels that ended. The next
    quorum queue shows them at its first delivery. It is 0 before version 11."""
    annotations: tuple[Annotation, ...] = ()
    """The annotations that consumers gave the message. It is empty before version 13."""

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> History:
        """Return the history in a packed row."""
        exchange, routing_key, cc_removed, deaths, first, last, spread, *later = row
        known = tuple(map(Death.from_row, deaths))
        if len(later) > 2:
            later[2] = tuple((key, value) for key, value in later[2])
        return cls(exchange, routing_key, cc_removed, known, tuple(first), tuple(last), spread, *later)

    def row(self) -> Sequence[Any]:
        """Return the row to be packed, without the fields of later versions of the state that are 0 or empty."""
        if self.annotations:
            return self
        if self.failures:
            return self[:-1]
        return self[:-2] if self.over else self[:-3]

    def keys(self, published: tuple[str, ...]) -> tuple[str, ...]:
        """Return the current keys of a message whose original publish had the keys `published`."""
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
    failures: int = 0,
) -> History:
    """Return a message's history after it died in `queue`, after `failures`, and was dead-lettered to `new_exchange`.

    `exchange`, `routing_keys` (the routing key, then CC, not BCC) and `original_expiration` are those of the original
    publish, even after earlier deaths. Without `new_routing_key` the message keeps its keys.
    """
    annotations = () if history is None else history.annotations
    if history is None or not history.deaths:
        history = None
        deaths: tuple[Death, ...] = ()
        cc_removed = False
    else:
        deaths, cc_removed = history.deaths, history.cc_removed
        exchange, routing_keys, original_expiration = history.exchange, history.keys(routing_keys), None
    # rabbitmq-server mc.erl, record_death: a repetition changes only a record's count and its place.
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
        failures if history is None else history.failures + failures,
        annotations,
    )


_NO_CAUSE: Cause = ("", "", "")


def annotated(history: History | None, annotations: Iterable[Annotation]) -> History | None:
    """Return a message's history with more annotations; the newer value of a key counts.

    Returns None if the message would have more than ANNOTATIONS_MAX octets of annotations.
    """
    if history is None:
        history = History("", "", False, (), _NO_CAUSE, _NO_CAUSE, 1)
    merged = dict(history.annotations) | dict(annotations)
    if annotations_size(merged) > ANNOTATIONS_MAX:
        return None
    return history._replace(annotations=tuple(merged.items()))


def annotations_size(annotations: Mapping[str, bytes]) -> int:
    """Return the octets of keys and values."""
    return sum(len(octets_of(key)) + len(value) for key, value in annotations.items())


def moved(history: History) -> History:
    """Return a message's history after a user moved it.

    Like a client's rejection, a move is intended, so earlier deaths count towards no cycle. The deliveries begin anew.
    """
    return history._replace(spread=1, over=len(history.deaths), failures=0)


def moved_back(history: History) -> History:
    """Return a message's history after a user moved it back to the queue of its first death.

    It gets the exchange and keys of its original publish back.
    """
    reason, queue, _ = history.first
    for death in history.deaths:
        if (death.queue, death.reason) == (queue, reason):
            exchange, routing_key = death.exchange, death.routing_keys[0]
            return moved(history)._replace(exchange=exchange, routing_key=routing_key, cc_removed=False)
    return moved(history)


def is_cycle(history: History, target: str) -> bool:
    """Return whether a message with this history is in a cycle if it enters the queue `target` again.

    It is, unless a client rejected it or a user moved it since it died there, because those are intended.
    """
    for death in history.deaths[: len(history.deaths) - history.over]:
        if death.reason == REJECTED:
            return False
        if death.queue == target:
            return True
    return False


class Histories:
    """The death histories of a queue's messages, by id, with the number of messages that refer to each.

    The id 0 stands for no history.
    """

    __slots__ = ("_blocks", "_ids", "_next_id", "_owned", "_size")

    def __init__(self) -> None:
        self._next_id = 1
        """The id of the next new history. It only grows, so an id is never reused."""
        self._ids: dict[bytes, int] = {}
        self._blocks: dict[int, _HistoryBlock] = {}
        """The non-empty blocks, by id divided by _BLOCK_ROWS, ascending."""
        self._owned: set[int] = set()
        """The blocks that no frozen state shares; shared blocks are copied before they change."""
        self._size = 0
        """Octets of all packed histories."""

    def intern(self, history: History, count: int) -> int:
        """Count `count` more messages that refer to this history, add it if it is new, and return its id.

        It loses its annotations if the queue has too many histories.
        """
        packed = pack(history.row())
        if history.annotations and not self._has_room(packed):
            packed = pack(history._replace(annotations=()).row())
        history_id = self._ids.get(packed)
        if history_id is None:
            history_id = self._next_id
            self._next_id += 1
            self._enter(history_id, packed, count)
        else:
            self.retain(history_id, count)
        return history_id

    def annotate(self, history_id: int, count: int, annotations: Sequence[Annotation]) -> int:
        """Give annotations to `count` messages that refer to a history (0 for none), and return its new id.

        Messages whose annotations would be too large, or whose queue has too many histories, keep their history.
        """
        history = annotated(self.get(history_id), annotations)
        if history is None:
            return history_id
        if not self._has_room(pack(history.row())):
            return history_id
        new_id = self.intern(history, count)
        self.release(history_id, count)
        return new_id

    def _has_room(self, packed: bytes) -> bool:
        """Return whether this history is there, or may be added with its annotations."""
        return packed in self._ids or self._size + len(packed) <= HISTORIES_BYTES_MAX

    def retain(self, history_id: int, count: int) -> None:
        """Count `count` more messages that refer to an existing history."""
        if history_id:
            self._change(history_id, count)

    def release(self, history_id: int, count: int) -> None:
        """Count `count` fewer messages that refer to a history, and forget a history without messages."""
        if not history_id or self._change(history_id, -count):
            return
        number, place = divmod(history_id, _BLOCK_ROWS)
        block = self._blocks[number]
        self._size -= len(block.packed[place])
        del self._ids[block.packed[place]]
        block.packed[place] = b""
        block.live -= 1
        if not block.live:
            del self._blocks[number]
            self._owned.remove(number)

    def get(self, history_id: int) -> History | None:
        """Return the history with this id, which must exist; None for 0."""
        if not history_id:
            return None
        number, place = divmod(history_id, _BLOCK_ROWS)
        return History.from_row(unpack(self._blocks[number].packed[place]))

    def octets(self, history_id: int) -> int:
        """Return the packed size in bytes of the history with this id, which must exist; 0 for the id 0."""
        if not history_id:
            return 0
        number, place = divmod(history_id, _BLOCK_ROWS)
        return len(self._blocks[number].packed[place])

    def keep_only(self, counts: Mapping[int, int]) -> None:
        """Set the number of messages of each history in `counts` (at least 1), and forget the histories not in it."""
        kept: list[HistoryRow] = []
        for history_id in sorted(counts):
            number, place = divmod(history_id, _BLOCK_ROWS)
            kept.append(HistoryRow(history_id, self._blocks[number].packed[place], counts[history_id]))
        self._replace(kept)

    def __len__(self) -> int:
        return len(self._ids)

    def _change(self, history_id: int, difference: int) -> int:
        """Change the number of messages that refer to a history, and return the new number.

        Raises ValueError if the history is unknown or the number would be negative.
        """
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
        self._size = 0
        self._owned.clear()
        for row in rows:
            self._enter(row.id, row.packed, row.count)

    def _enter(self, history_id: int, packed: bytes, count: int) -> None:
        number, place = divmod(history_id, _BLOCK_ROWS)
        block = self._own(number)
        self._ids[packed] = history_id
        self._size += len(packed)
        block.packed[place] = packed
        block.counts[place] = count
        block.live += 1

    def _own(self, number: int) -> _HistoryBlock:
        """Return the block with this number, to be changed: a new block, or a copy if a frozen state shares it."""
        if number not in self._owned:
            old = self._blocks.get(number)
            self._blocks[number] = _HistoryBlock() if old is None else old.copy()
            self._owned.add(number)
        return self._blocks[number]

    # The state, dumped and loaded

    def freeze(self) -> FrozenHistories:
        """Return the histories as they are now; the result shares the blocks."""
        if self._next_id == 1:
            return _UNUSED  # the usual case, and there may be very many queues
        self._owned.clear()
        return FrozenHistories(self._next_id, self._blocks.copy())

    def load(self, dumped: Sequence[Any]) -> None:
        """Replace everything by the histories of a dumped `HistoriesRow`."""
        row = HistoriesRow(*dumped)
        self._next_id = row.next_id
        self._replace(HistoryRow(*known) for block in row.blocks for known in unpack(block))


class HistoryRow(NamedTuple):
    """A history in a dump."""

    id: int
    packed: bytes
    """The packed `History`."""
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here
    """Number of messages that refer to it."""


class HistoriesRow(NamedTuple):
    """The histories of a queue in a dump, written by `FrozenHistories.dump` and read by `Histories.load`."""

    next_id: int
    blocks: list[bytes]
    """Packed lists of `HistoryRow`."""


class FrozenHistories(NamedTuple):
    """A queue's histories at a moment; any thread may read them."""

    next_id: int
    blocks: dict[int, _HistoryBlock]

    def get(self, history_id: int) -> History:
        """Return the history that had this id at that moment."""
        number, place = divmod(history_id, _BLOCK_ROWS)
        return History.from_row(unpack(self.blocks[number].packed[place]))

    def dump(self) -> HistoriesRow:
        """Return the row of these histories in a dump; equal histories have equal rows."""
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

    # Packed they are a third as large, and the garbage collector does not have to visit millions of objects.
    packed: list[bytes]
    """The packed histories; empty bytes for an unused id."""
    counts: array[int]
    """Number of messages that refer to each history."""
    live: int
    """Number of histories in the block."""

    def __init__(self) -> None:
        self.packed = [b""] * _BLOCK_ROWS
        self.counts = array("Q", bytes(8 * _BLOCK_ROWS))
        self.live = 0

    def copy(self) -> _HistoryBlock:
        copy = _HistoryBlock()
        copy.packed[:], copy.counts[:], copy.live = self.packed, self.counts, self.live
        return copy
