"""Finding the bytes of messages by their references.

Bodies live in the log only. A delivery names ranges (index, slot, count); here they become the frames to write. Recent
entries are in memory; older ones are read on the disk's reader thread, and the caller is told when they are there. Of
entries below the log only live messages are left: what waited for too long may find its messages gone.

A large message is stored in fragments, each as if it were a message of its own: when all of them have been read, they
are joined to what is stored under the message's own reference.

Invariant: never reads a file on the event loop.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from enum import Enum, auto
from functools import partial
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, NamedTuple

from cluster.log.entry import batches_of, compacted_parts, is_compacted, is_regular
from cluster.log.segment import EntryGone, EntryMoved
from qq.machine.protocol.codec import stored_pieces
from qq.ranges import INDEX_BITS, INDEX_MASK, MESSAGE_BITS, MESSAGE_MASK, Range

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cluster.runtime.ports import Disk
    from qq.machine.handlers.fragments import Fragment
    from qq.sessions.ports import Log

VIEWS_BYTES_MAX = 32 * 1024 * 1024
"""Octets of entries kept in decoded form. An entry has a mebibyte at most, about, or a single larger message."""
READ_AHEAD_MIN = 4
"""Entries that may be read together even if they are large: a consumer of a backlog will want the next ones."""
READ_AHEAD_MAX = 512
READ_AHEAD_GROWTH = 4
READ_AHEAD_BYTES = 1024 * 1024
"""Octets, about, up to which small entries are read together: what a read costs is shared by their messages."""
READ_BYTES_MAX = 4 * READ_AHEAD_BYTES
"""Octets at which a read ends if the entries turn out to be larger than those before them."""


class ReadAhead:
    """How far somebody who reads entries reads ahead: farther with each read that goes on where the last one ended."""

    def __init__(self) -> None:
        self._count = 1
        self.end: int | None = None
        """The place below which all that is wanted is read, or being read; None if nothing was read ahead."""

    def is_due(self, index: int) -> bool:
        """Whether the next entries should be read: `index` lies in the second half of those that were read last."""
        return self.end is not None and self.end - self._count // 2 <= index < self.end

    def count(self, index: int, most: int) -> int:
        """How many entries to read from `index` on; at most `most`."""
        goes_on = self.end is not None and abs(index - self.end) <= READ_AHEAD_MAX
        self._count = min(READ_AHEAD_GROWTH * self._count, most) if goes_on else 1
        return self._count

    def stop(self) -> None:
        """Begin again with one entry: no read follows this one, or what was read ahead is gone."""
        self.end = None


class _Missing(Enum):
    GONE = auto()
    MOVED = auto()
    """The result of a read that did not find the entry where it was looked for: it was moved, or is gone."""


class Messages(NamedTuple):
    """Stored messages of one publication in wire form, with what their delivery needs to say."""

    exchange: str
    routing_key: str
    frames_channel: int
    messages: list[bytes]
    more_keys: tuple[str, ...] = ()
    """Further routing keys, from the headers CC and BCC."""
    goes_on: bool = False
    """Whether these are only the beginnings of large messages, which go on with fragments."""


class MessagesGone(LookupError):
    """The messages are not stored any more: they were settled, or their queue was deleted."""


class _BatchView:
    """One batch's messages, or those that were kept of it: where each lies in the bytes around it, and what it is."""

    def __init__(self, payload: bytes, start: int, end: int) -> None:
        self._payload = payload
        self._start = start
        self._pieces = stored_pieces(memoryview(payload)[start:end])
        self._firsts = [piece.first for piece in self._pieces]

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
    """One entry as it was appended to the log; its batches are decoded when first asked for."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._batches = batches_of(payload)
        self._views: dict[int, _BatchView] = {}
        self.size = len(payload)

    def messages(self, slot: int, count: int) -> list[Messages]:
        ordinal = slot >> MESSAGE_BITS
        view = self._views.get(ordinal)
        if view is None:
            batch = self._batches[ordinal]
            view = self._views[ordinal] = _BatchView(self._payload, batch.start, batch.end)
        return view.messages(slot & MESSAGE_MASK, count)


class _CompactedView:
    """An entry of which compaction has kept only a part, or nothing at all."""

    def __init__(self, parts: Mapping[int, memoryview]) -> None:
        self._views = {ordinal: _BatchView(bytes(part), 0, len(part)) for ordinal, part in parts.items()}
        self.size = sum(map(len, parts.values()))

    def messages(self, slot: int, count: int) -> list[Messages]:
        view = self._views.get(slot >> MESSAGE_BITS)
        if view is None:
            raise MessagesGone(f"batch {slot >> MESSAGE_BITS} of an entry was not kept")
        return view.messages(slot & MESSAGE_MASK, count)


_View = _EntryView | _CompactedView


def _view(entry: bytes) -> _View:
    if is_compacted(entry):
        return _CompactedView(compacted_parts(entry))
    # Nothing refers to another entry, but whoever reads ahead meets the one with which a leader begins.
    return _EntryView(entry) if is_regular(entry) else _CompactedView({})


class _Lacking(NamedTuple):
    """An entry with large messages that cannot be joined yet."""

    view: _View
    slots: dict[int, None]


class _Gathering(NamedTuple):
    """The large messages of an entry whose fragments are being read, and who waits for that."""

    view: _View
    slots: dict[int, None]
    waiting: list[Callable[[], None]]
    wanted: deque[tuple[int, Fragment]]
    """Which fragments are still to be read, each with the slot of its message."""
    found: dict[int, list[bytes] | None]
    """What has been read of each message, by slot; None if some of it is gone."""
    ahead: ReadAhead


class Entries:
    """The node's window on the messages in its logs; `indexes` are places (qq/ranges.py)."""

    def __init__(
        self,
        logs: Sequence[Log],
        disk: Disk,
        fragments_of: Callable[[int], Mapping[int, Sequence[Fragment]]],
    ) -> None:
        """`logs` holds the log of each group, at the group's number; `fragments_of` is the machine's."""
        self._logs = logs
        self._disk = disk
        self._fragments_of = fragments_of
        self._views: OrderedDict[int, _View] = OrderedDict()
        self._views_bytes = 0
        self._loading: dict[int, list[Callable[[], None]]] = {}
        self._lacking: dict[int, _Lacking] = {}
        """The entries with large messages that were asked for and whose fragments must be read first, by place."""
        self._gathering: dict[int, _Gathering] = {}
        """What is read of large messages, by their place."""
        self._gathered: dict[tuple[int, int], list[bytes] | None] = {}
        """The fragments that were read, by place and slot, while those are told who wait; None if some are gone."""

    def messages(self, part: Range, *, only_beginnings: bool = False) -> list[Messages] | None:
        """The messages of a range, in order, or None if they must be read first (`load`). Raises MessagesGone.

        With `only_beginnings`, large messages are what is stored under their own reference: the content header.
        """
        view = self._views.get(part.index)
        if view is None:
            payload = self._logs[part.index >> INDEX_BITS].payload(part.index & INDEX_MASK)
            if payload is None:
                return None
            view = self._keep(part.index, _view(payload))
        found = view.messages(part.slot, part.count)
        if not only_beginnings:
            for each in found:
                if each.goes_on:
                    return self._joined(part, found, view)
        return found

    def portion(self, part: Range) -> int:
        """How many of the first messages of a range to take at once: one large message is the last of them.

        An entry may end very many large messages, and all of them together are too much for the memory.
        """
        fragments = self._fragments_of(part.index)
        if not fragments:
            return part.count
        end = part.slot + part.count
        return min((slot + 1 for slot in fragments if part.slot <= slot < end), default=end) - part.slot

    def _joined(self, part: Range, found: Sequence[Messages], view: _View) -> list[Messages] | None:
        """The same messages whole, or None if fragments must be read first. Raises MessagesGone."""
        joined: list[Messages] = []
        lacking: dict[int, None] = {}
        slot = part.slot
        for each in found:
            whole = each.messages
            if each.goes_on:
                whole = []
                for number, beginning in enumerate(each.messages):
                    fragments = self._fragments(part.index, slot + number)
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

    def _fragments(self, index: int, slot: int) -> Sequence[bytes] | None:
        """What a large message goes on with, or None if some of it must be read first. Raises MessagesGone."""
        if (index, slot) in self._gathered:
            gathered = self._gathered[index, slot]
            if gathered is None:
                raise MessagesGone(f"not all of message {slot} of entry {index} was kept")
            return gathered
        fragments = self._fragments_of(index).get(slot)
        if fragments is None:
            raise MessagesGone(f"nothing refers to message {slot} of entry {index} any more")
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
        return index in self._views or self._logs[index >> INDEX_BITS].payload(index & INDEX_MASK) is not None

    def _fragment(self, fragment: Fragment) -> bytes | None:
        """The octets of a fragment, or None if its entry must be read first. Raises MessagesGone."""
        found = self.messages(Range(fragment.index, fragment.slot, 1))
        return None if found is None else found[0].messages[0]

    def load(self, indexes: list[int], done: Callable[[], None], ahead: ReadAhead | None = None) -> None:
        """Read the entries at `indexes` (the first is the one that is needed now) and call `done` when that is there.

        With `ahead`, which says how far to read ahead, entries behind those are read, too: somebody who works through a
        backlog will need them. An entry that is gone counts as read.
        """
        if indexes[0] in self._lacking or indexes[0] in self._gathering:
            self._gather(indexes[0], done)
        else:
            self._load(indexes, done, ahead)

    def _gather(self, index: int, done: Callable[[], None]) -> None:
        """Read what the large messages of an entry go on with that were asked for, then call `done`."""
        if index in self._gathering:
            # Who waits for another message of the entry asks again.
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
        # A method, and no function that refers to itself: nobody would look for what such a circle has read.
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
        self._keep(index, gathering.view)  # there may have been no room for it beside the fragments
        for waiting in self._gathering.pop(index).waiting:
            waiting()
        for key in gathered:
            del self._gathered[key]
        if index not in self._gathering:
            self._lacking.pop(index, None)  # nobody waits for the others of its messages any more

    def _load(self, indexes: list[int], done: Callable[[], None], ahead: ReadAhead | None) -> None:
        if indexes[0] in self._loading:
            self._loading[indexes[0]].append(done)
            return
        most = self._read_ahead_max()
        group = indexes[0] >> INDEX_BITS
        named = [
            index for index in indexes[:most] if not self._is_here(index) and index >> INDEX_BITS == group
        ]
        self._loading.update((index, []) for index in named)
        self._loading[named[0]].append(done)
        following: list[int] = []
        if ahead is not None:
            count = ahead.count(indexes[0], most) - len(named)
            following = self._following(ahead, indexes[-1] + 1, count)
        self._read(named, following, ahead)

    def load_more(self, ahead: ReadAhead) -> None:
        """Read the entries behind those that were read ahead, before somebody has to wait for them."""
        assert ahead.end is not None
        following = self._following(ahead, ahead.end, ahead.count(ahead.end, self._read_ahead_max()))
        if following:
            self._read((), following, ahead)
        else:
            ahead.stop()

    def _following(self, ahead: ReadAhead, first: int, count: int) -> list[int]:
        """Which of the `count` entries from `first` on must be read: they count as being read from now on."""
        stored = list(takewhile(self._is_stored, range(first, first + count)))
        ahead.end = first + len(stored)
        following = [index for index in stored if not self._is_here(index)]
        self._loading.update((index, []) for index in following)
        return following

    def _read_ahead_max(self) -> int:
        """How many entries may be read together, given how large those are that are kept."""
        if not self._views:
            return READ_AHEAD_MIN
        fitting = READ_AHEAD_BYTES * len(self._views) // max(self._views_bytes, 1)
        return min(max(fitting, READ_AHEAD_MIN), READ_AHEAD_MAX)

    def _is_here(self, index: int) -> bool:
        return index in self._views or index in self._loading

    def _is_stored(self, index: int) -> bool:
        """Whether an entry is on the disk and not in memory; it may turn out to be gone.

        One that is not applied does not count: another leader may put another one into its place.
        """
        log, index = self._logs[index >> INDEX_BITS], index & INDEX_MASK
        return index <= log.applied_index and log.payload(index) is None

    def _read(
        self, named: Sequence[int], following: Sequence[int] = (), ahead: ReadAhead | None = None
    ) -> None:
        """Read entries of one log that are needed, and with them some that `ahead` will need."""
        wanted = [*named, *following]
        log = self._logs[wanted[0] >> INDEX_BITS]
        try:
            job = log.read_job([place & INDEX_MASK for place in wanted], READ_BYTES_MAX)
        except EntryGone:
            job = None

        def read() -> list[bytes] | _Missing:
            if job is None:
                return _Missing.GONE
            try:
                return job()
            except EntryMoved:
                return _Missing.MOVED
            except EntryGone:
                return _Missing.GONE

        def read_again(needed: Sequence[int], unneeded: Sequence[int]) -> None:
            if ahead is not None:
                ahead.stop()
            for index in (*needed, *self._only_awaited(unneeded)):
                self._read([index])

        def loaded(found: list[bytes] | _Missing | None, error: Exception | None) -> None:
            if found is None:
                log.disk_failed(error or RuntimeError("a read of the log failed without an error"))
            elif found is _Missing.GONE and len(wanted) == 1:
                self._arrived(wanted[0], _CompactedView({}))
                # It need not stay away: a log that was lost comes back from the other nodes.
                self._forget(wanted[0])
            elif isinstance(found, _Missing):
                # One of them was not where it was looked for: the others are read all the same.
                read_again(named, following)
            else:
                for index, payload in zip(wanted, found, strict=False):
                    self._arrived(index, _view(payload))
                if len(found) < len(wanted):
                    read_again((), wanted[len(found) :])

        self._disk.submit_read(read, loaded)

    def _only_awaited(self, following: Sequence[int]) -> list[int]:
        """Which of these entries somebody waits for by now; the others are no longer being read."""
        awaited = [index for index in following if self._loading[index]]
        for index in following:
            if not self._loading[index]:
                del self._loading[index]
        return awaited

    def _arrived(self, index: int, view: _View) -> None:
        # Those who wait use the entry before the next one is kept, which might have this one forgotten.
        self._keep(index, view)
        for waiting in self._loading.pop(index):
            waiting()

    def _keep(self, index: int, view: _View) -> _View:
        self._forget(index)
        self._views[index] = view
        self._views_bytes += view.size
        while self._views_bytes > VIEWS_BYTES_MAX and len(self._views) > 1:
            self._views_bytes -= self._views.popitem(last=False)[1].size
        return view

    def _forget(self, index: int) -> None:
        view = self._views.pop(index, None)
        if view is not None:
            self._views_bytes -= view.size
