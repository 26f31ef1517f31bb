"""Reads the stored bytes of messages by their references.

Message bodies are stored in the log only. A delivery names ranges (index, slot, count). This module turns a range into
the frames to write. Recent entries are in memory. Older entries are read on the disk's reader thread, and a callback
reports when they are available. Below the start of the log, compaction keeps only live messages. So a range that was
requested long ago may refer to messages that were removed.

A large message is stored in fragments, each like a message of its own. After all fragments have been read, they are
joined to the content header, which is stored under the message's own reference.

Invariant: never reads a file on the event loop.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from enum import Enum, auto
from functools import partial
from itertools import accumulate, pairwise, takewhile
from typing import TYPE_CHECKING, NamedTuple

from cluster.log.entry import batches_of, compacted_parts, is_compacted, is_regular
from cluster.log.segment import EntryMoved, EntryNotFound
from qq.machine.protocol.codec import stored_pieces
from qq.ranges import MESSAGE_BITS, MESSAGE_MASK, Range

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from cluster.runtime.ports import Disk
    from qq.machine.handlers.fragments import Fragment
    from qq.sessions.ports import Log

VIEWS_BYTES_MAX = 32 * 1024 * 1024
"""Octets of memory of decoded entries. An entry has about a mebibyte at most, or a single larger message."""
ENTRY_BYTES = 400
BATCH_BYTES = 500
PIECE_BYTES = 350
OFFSET_BYTES = 40
"""Octets of memory for each entry, batch, piece and message, besides the payload. Without them, decoded entries of a
single small message would take twelve times the limit."""
READ_AHEAD_MIN = 4
"""Entries that may be read together even if they are large, because a consumer of a backlog needs the next entries
soon."""
READ_AHEAD_MAX = 512
READ_AHEAD_GROWTH = 4
READ_AHEAD_BYTES = 1024 * 1024
"""Octets, about, up to which small entries are read together. Their messages share the cost of the read."""
READ_BYTES_MAX = 4 * READ_AHEAD_BYTES
"""Octets at which a read ends if the entries turn out to be larger than the entries before them."""


class ReadAhead:
    """How far a reader of entries reads ahead. Each read that continues where the last read ended goes farther."""

    def __init__(self) -> None:
        self._count = 1
        self.end: int | None = None
        """The place below which all wanted entries are read or being read; None if no entries were read ahead."""

    def is_due(self, index: int) -> bool:
        """Return whether the next entries should be read: `index` lies in the second half of the last read."""
        return self.end is not None and self.end - self._count // 2 <= index < self.end

    def count(self, index: int, most: int) -> int:
        """Return how many entries to read from `index` on, at most `most`."""
        goes_on = self.end is not None and abs(index - self.end) <= READ_AHEAD_MAX
        self._count = min(READ_AHEAD_GROWTH * self._count, most) if goes_on else 1
        return self._count

    def stop(self) -> None:
        """Begin again with a single entry, because no read follows this read or its entries were removed."""
        self.end = None


class _Missing(Enum):
    GONE = auto()
    MOVED = auto()
    """The result of a read that did not find the entry at its place: the entry was moved or removed."""


class Messages(NamedTuple):
    """Stored messages of a publication in wire form, with the properties that their delivery must contain."""

    exchange: str
    routing_key: str
    frames_channel: int
    messages: list[bytes]
    more_keys: tuple[str, ...] = ()
    """Further routing keys, from the headers CC and BCC."""
    goes_on: bool = False
    """Whether `messages` holds only the content headers of large messages. Their fragments are stored separately."""


class MessagesGone(LookupError):
    """The messages are no longer stored, because they were settled or their queue was deleted."""


class _BatchView:
    """The stored messages of a batch, or those that compaction kept: their positions and their publications."""

    __slots__ = ("_firsts", "_payload", "_pieces", "_start", "size")

    def __init__(self, payload: bytes, start: int, end: int) -> None:
        self._payload = payload
        self._start = start
        self._pieces = stored_pieces(memoryview(payload)[start:end])
        self._firsts = [piece.first for piece in self._pieces]
        self.size = PIECE_BYTES * len(self._pieces) + OFFSET_BYTES * sum(
            len(piece.offsets) for piece in self._pieces
        )
        """Octets of memory, about, besides the payload and `BATCH_BYTES`."""

    def messages(self, message: int, count: int) -> list[Messages]:
        found: list[Messages] = []
        end = message + count
        position = bisect_right(self._firsts, message) - 1
        while message < end:
            piece = self._pieces[position] if 0 <= position < len(self._pieces) else None
            if piece is None or not piece.first <= message < piece.first + piece.count:
                raise MessagesGone(f"message {message} of a batch was not kept")
            stop = min(end, piece.first + piece.count)
            offsets = piece.offsets[message - piece.first : stop - piece.first + 1]
            exchange, routing_key, frames_channel, more_keys, goes_on = piece.publication
            found.append(
                Messages(exchange, routing_key, frames_channel, self._cut(offsets), more_keys, goes_on)
            )
            message = stop
            position += 1
        return found

    def _cut(self, offsets: Sequence[int]) -> list[bytes]:
        payload, shift = self._payload, self._start
        return [payload[shift + start : shift + end] for start, end in pairwise(offsets)]


class _EntryView:
    """An entry as it was appended to the log. A batch is decoded when its messages are first requested."""

    __slots__ = ("_batches", "_payload", "_views", "payload_bytes", "size")

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._batches = batches_of(payload)
        self._views: dict[int, _BatchView] = {}
        self.payload_bytes = len(payload)
        self.size = len(payload) + ENTRY_BYTES + BATCH_BYTES * len(self._batches)
        """Octets of memory, about. It grows with each batch that is decoded."""

    def messages(self, slot: int, count: int) -> list[Messages]:
        ordinal = slot >> MESSAGE_BITS
        view = self._views.get(ordinal)
        if view is None:
            batch = self._batches[ordinal]
            view = self._views[ordinal] = _BatchView(self._payload, batch.start, batch.end)
            self.size += view.size
        return view.messages(slot & MESSAGE_MASK, count)


class _CompactedView:
    """An entry that compaction has reduced to its live messages, or to an empty entry."""

    __slots__ = ("_views", "payload_bytes", "size")

    def __init__(self, parts: Mapping[int, memoryview]) -> None:
        self._views = {ordinal: _BatchView(bytes(part), 0, len(part)) for ordinal, part in parts.items()}
        self.payload_bytes = sum(map(len, parts.values()))
        self.size = (
            self.payload_bytes + ENTRY_BYTES + sum(BATCH_BYTES + view.size for view in self._views.values())
        )

    def messages(self, slot: int, count: int) -> list[Messages]:
        view = self._views.get(slot >> MESSAGE_BITS)
        if view is None:
            raise MessagesGone(f"batch {slot >> MESSAGE_BITS} of an entry was not kept")
        return view.messages(slot & MESSAGE_MASK, count)


_View = _EntryView | _CompactedView


def _view(entry: bytes) -> _View:
    if is_compacted(entry):
        return _CompactedView(compacted_parts(entry))
    # References always name regular entries, but read-ahead also meets the entry that begins a leader's term.
    return _EntryView(entry) if is_regular(entry) else _CompactedView({})


def _needed(sizes: Iterable[int], octets: int | None) -> int | None:
    """Return how many of the first sizes make up `octets`; None for all."""
    if octets is None:
        return None
    for number, total in enumerate(accumulate(sizes), 1):
        if total >= octets:
            return number
    return None


class _Lacking(NamedTuple):
    """An entry with large messages that must be joined with fragments still to be read."""

    view: _View
    slots: dict[int, None]


class _Gathering(NamedTuple):
    """A read of the fragments of an entry's large messages, with the callbacks that wait for it."""

    view: _View
    slots: dict[int, None]
    waiting: list[Callable[[], None]]
    wanted: deque[tuple[int, Fragment]]
    """The fragments that are still to be read, each with the slot of its message."""
    found: dict[int, list[bytes] | None]
    """The fragments read so far of each message, by slot; None if a fragment was removed."""
    ahead: ReadAhead


class Entries:
    """Reads messages from the node's log."""

    def __init__(
        self,
        log: Log,
        disk: Disk,
        fragments_of: Callable[[int], Mapping[int, Sequence[Fragment]]],
    ) -> None:
        """Create a reader with no entry decoded yet. `fragments_of` is the machine's method."""
        self._log = log
        self._disk = disk
        self._fragments_of = fragments_of
        self._views: OrderedDict[int, _View] = OrderedDict()
        self._views_bytes = self._payload_bytes = 0
        self._loading: dict[int, list[Callable[[], None]]] = {}
        self._lacking: dict[int, _Lacking] = {}
        """Requested large messages that need fragments still to be read, by index."""
        self._gathering: dict[int, _Gathering] = {}
        """The reads of fragments that are under way, by the index of the large messages."""
        self._gathered: dict[tuple[int, int], list[bytes] | None] = {}
        """Fragments that have just been read, by index and slot, while the callbacks run; None if a fragment is
        gone."""

    def messages(self, part: Range, *, frames_max: int | None = None) -> list[Messages] | None:
        """Return the messages of a range in order, or None if they must be read first (`load`). Raises MessagesGone.

        With `frames_max`, a large message may end after so many octets of its body frames; with 0 it has none.
        """
        view = self._views.get(part.index)
        if view is None:
            payload = self._log.payload(part.index)
            if payload is None:
                return None
            view = self._keep(part.index, _view(payload))
        before = view.size
        try:
            found = view.messages(part.slot, part.count)
        finally:
            if view.size != before:
                self._views_bytes += view.size - before
                self._make_room(part.index)
        if frames_max != 0:
            for each in found:
                if each.goes_on:
                    return self._joined(part, found, view, frames_max)
        return found

    def portion(self, part: Range) -> int:
        """Return how many of a range's first messages to take together: a large message is the last of them.

        An entry may complete very many large messages, and all of them together would take too much memory.
        """
        fragments = self._fragments_of(part.index)
        if not fragments:
            return part.count
        end = part.slot + part.count
        return min((slot + 1 for slot in fragments if part.slot <= slot < end), default=end) - part.slot

    def _joined(
        self, part: Range, found: Sequence[Messages], view: _View, frames_max: int | None
    ) -> list[Messages] | None:
        """Return the same messages with their (first) fragments, or None if fragments must be read first.

        Raises MessagesGone.
        """
        joined: list[Messages] = []
        lacking: dict[int, None] = {}
        slot = part.slot
        for each in found:
            whole = each.messages
            if each.goes_on:
                whole = []
                for number, beginning in enumerate(each.messages):
                    fragments = self._fragments(part.index, slot + number, frames_max)
                    if fragments is None:
                        lacking[slot + number] = None
                    else:
                        whole.append(b"".join([beginning, *fragments]))
            joined.append(each._replace(messages=whole, goes_on=False))
            slot += len(each.messages)
        if lacking:
            if part.index not in self._gathering or lacking.keys() - self._gathering[part.index].slots.keys():
                self._lacking.setdefault(part.index, _Lacking(view, {})).slots.update(lacking)
            return None
        return joined

    def _fragments(self, index: int, slot: int, least: int | None) -> Sequence[bytes] | None:
        """Return the fragments of a large message, or the first of them, together at least `least` octets.

        The result is None if a fragment must be read first. Raises MessagesGone.
        """
        if (index, slot) in self._gathered:
            gathered = self._gathered[index, slot]
            if gathered is None:
                raise MessagesGone(f"not all of message {slot} of entry {index} was kept")
            return gathered[: _needed(map(len, gathered), least)]
        fragments = self._fragments_of(index).get(slot)
        if fragments is None:
            raise MessagesGone(f"nothing refers to message {slot} of entry {index} any more")
        fragments = fragments[: _needed((fragment.size for fragment in fragments), least)]
        if not all(self._is_in_memory(fragment.index) for fragment in fragments):
            return None
        found: list[bytes] = []
        for fragment in fragments:
            octets = self._fragment(fragment)
            if octets is None:
                return None
            found.append(octets)
        return found

    def _is_in_memory(self, index: int) -> bool:
        return index in self._views or self._log.payload(index) is not None

    def _fragment(self, fragment: Fragment) -> bytes | None:
        """Return the octets of a fragment, or None if its entry must be read first. Raises MessagesGone."""
        found = self.messages(Range(fragment.index, fragment.slot, 1))
        return None if found is None else found[0].messages[0]

    def load(self, indexes: list[int], done: Callable[[], None], ahead: ReadAhead | None = None) -> None:
        """Read the entries at `indexes`, and call `done` when the first entry, which is needed now, is available.

        With `ahead`, which says how far to read ahead, the entries behind those are read, too, because a reader of a
        backlog will need them. A removed entry counts as read.
        """
        if indexes[0] in self._lacking or indexes[0] in self._gathering:
            self._gather(indexes[0], done)
        else:
            self._load(indexes, done, ahead)

    def _gather(self, index: int, done: Callable[[], None]) -> None:
        """Read the fragments of the requested large messages of an entry, then call `done`."""
        if index in self._gathering:
            # If the caller waits for a different message of the entry, it requests that message again afterwards.
            self._gathering[index].waiting.append(done)
            return
        view, slots = self._lacking.pop(index)
        found: dict[int, list[bytes] | None] = {}
        wanted: deque[tuple[int, Fragment]] = deque()
        for slot in slots:
            fragments = self._fragments_of(index).get(slot)
            found[slot] = None if fragments is None else []
            wanted.extend((slot, fragment) for fragment in fragments or ())
        self._gathering[index] = _Gathering(view, slots, [done], wanted, found, ReadAhead())
        self._go_on_gathering(index)

    def _go_on_gathering(self, index: int) -> None:
        # This is a method, because a nested function that refers to itself would form a reference cycle: the entries
        # that it read would stay in memory until a garbage collection.
        gathering = self._gathering[index]
        wanted, found = gathering.wanted, gathering.found
        while wanted:
            slot, fragment = wanted[0]
            octets = found[slot]
            if octets is not None:
                try:
                    read = self._fragment(fragment)
                except MessagesGone:
                    found[slot] = None
                else:
                    if read is None:
                        self._load([fragment.index], partial(self._go_on_gathering, index), gathering.ahead)
                        return
                    octets.append(read)
            wanted.popleft()
        gathered = {(index, slot): octets for slot, octets in found.items()}
        self._gathered |= gathered
        self._keep(index, gathering.view)  # the fragments may have pushed it out of the cache
        for waiting in self._gathering.pop(index).waiting:
            waiting()
        for key in gathered:
            del self._gathered[key]
        if index not in self._gathering:
            self._lacking.pop(index, None)  # no caller waits for the other messages of this entry any more

    def _load(self, indexes: list[int], done: Callable[[], None], ahead: ReadAhead | None) -> None:
        if indexes[0] in self._loading:
            self._loading[indexes[0]].append(done)
            return
        most = self._read_ahead_max()
        named = [index for index in indexes[:most] if not self._is_here(index)]
        self._loading.update((index, []) for index in named)
        self._loading[named[0]].append(done)
        following: list[int] = []
        if ahead is not None:
            count = ahead.count(indexes[0], most) - len(named)
            following = self._following(ahead, indexes[-1] + 1, count)
        self._read(named, following, ahead)

    def load_more(self, ahead: ReadAhead) -> None:
        """Read the entries behind those that were read ahead, before the reader must wait for them."""
        assert ahead.end is not None
        following = self._following(ahead, ahead.end, ahead.count(ahead.end, self._read_ahead_max()))
        if following:
            self._read((), following, ahead)
        else:
            ahead.stop()

    def _following(self, ahead: ReadAhead, first: int, count: int) -> list[int]:
        """Return those of the `count` entries from `first` on that must be read.

        From now on they count as being read.
        """
        stored = list(takewhile(self._is_stored, range(first, first + count)))
        ahead.end = first + len(stored)
        following = [index for index in stored if not self._is_here(index)]
        self._loading.update((index, []) for index in following)
        return following

    def _read_ahead_max(self) -> int:
        """Return how many entries may be read together, estimated from the size of the cached entries."""
        if not self._views:
            return READ_AHEAD_MIN
        fitting = READ_AHEAD_BYTES * len(self._views) // max(self._payload_bytes, 1)
        return min(max(fitting, READ_AHEAD_MIN), READ_AHEAD_MAX)

    def _is_here(self, index: int) -> bool:
        return index in self._views or index in self._loading

    def _is_stored(self, index: int) -> bool:
        """Return whether an entry is on disk and not in memory. The read may still find that it was removed.

        An entry that is not applied does not count, because another leader may overwrite it.
        """
        return index <= self._log.applied_index and self._log.payload(index) is None

    def _read(
        self, named: Sequence[int], following: Sequence[int] = (), ahead: ReadAhead | None = None
    ) -> None:
        """Read needed entries of the log, and with them the entries that `ahead` will need."""
        wanted = [*named, *following]
        try:
            job = self._log.read_job(wanted, READ_BYTES_MAX)
        except EntryNotFound:
            job = None

        def read() -> list[bytes] | _Missing:
            if job is None:
                return _Missing.GONE
            try:
                return job()
            except EntryMoved:
                return _Missing.MOVED
            except EntryNotFound:
                return _Missing.GONE

        def read_again(needed: Sequence[int], unneeded: Sequence[int]) -> None:
            if ahead is not None:
                ahead.stop()
            for index in (*needed, *self._only_awaited(unneeded)):
                self._read([index])

        def loaded(found: list[bytes] | _Missing | None, error: Exception | None) -> None:
            if found is None:
                self._log.disk_failed(error or RuntimeError("a read of the log failed without an error"))
            elif found is _Missing.GONE and len(wanted) == 1:
                self._arrived(wanted[0], _CompactedView({}))
                # Keep no record of a missing entry, because a lost log is copied again from other nodes.
                self._forget(wanted[0])
            elif isinstance(found, _Missing):
                # A single entry was not at its place. Read each entry again by itself.
                read_again(named, following)
            else:
                for index, payload in zip(wanted, found, strict=False):
                    self._arrived(index, _view(payload))
                if len(found) < len(wanted):
                    read_again((), wanted[len(found) :])

        self._disk.submit_read(read, loaded)

    def _only_awaited(self, following: Sequence[int]) -> list[int]:
        """Return those of the entries that a caller waits for by now. The rest is no longer being read."""
        awaited = [index for index in following if self._loading[index]]
        for index in following:
            if not self._loading[index]:
                del self._loading[index]
        return awaited

    def _arrived(self, index: int, view: _View) -> None:
        # Call the waiting callbacks before keeping the next entry, because that might push this entry out of the cache.
        self._keep(index, view)
        for waiting in self._loading.pop(index):
            waiting()

    def _keep(self, index: int, view: _View) -> _View:
        self._forget(index)
        self._views[index] = view
        self._views_bytes += view.size
        self._payload_bytes += view.payload_bytes
        self._make_room(index)
        return view

    def _make_room(self, used: int) -> None:
        """Forget the oldest entries, except for the entry `used`, while all take too much memory."""
        while self._views_bytes > VIEWS_BYTES_MAX and len(self._views) > 1:
            oldest = next(iter(self._views))
            if oldest == used:
                self._views.move_to_end(oldest)
            else:
                self._forget(oldest)

    def _forget(self, index: int) -> None:
        view = self._views.pop(index, None)
        if view is not None:
            self._views_bytes -= view.size
            self._payload_bytes -= view.payload_bytes
