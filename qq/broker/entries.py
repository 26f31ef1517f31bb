"""From message references to message bytes.

Bodies live in the log only. A delivery names ranges (index, slot, count); here they become the frames to write. Recent
entries are in memory; older ones are read on the disk's reader thread, and the caller is told when they are there. Of
entries below the log only live messages are left: what waited for too long may find its messages gone.

Law: never reads a file on the event loop.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from cluster.entry import batches_of, compacted_parts, is_compacted
from cluster.segment import EntryGone
from qq.machine.codec import stored_pieces
from qq.ranges import MESSAGE_BITS, MESSAGE_MASK

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cluster.group import Group
    from cluster.ports import Disk
    from qq.ranges import Range

VIEWS_BYTES_MAX = 32 * 1024 * 1024
"""Entries kept in decoded form. One is about a mebibyte at most, unless it holds a single larger message."""
READ_AHEAD = 4
"""Entries read together when one is missing: a consumer of a backlog will want the next ones."""


class Messages(NamedTuple):
    """Stored messages of one publication in wire form, with what their delivery needs to say."""

    exchange: str
    routing_key: str
    frames_channel: int
    messages: list[bytes]
    more_keys: tuple[str, ...] = ()
    """From the headers CC and BCC."""


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
            exchange, routing_key, frames_channel, more_keys = piece.publication
            found.append(Messages(exchange, routing_key, frames_channel, self._cut(offsets), more_keys))
            message = stop
            position += 1
        return found

    def _cut(self, offsets: Sequence[int]) -> list[bytes]:
        payload, shift = self._payload, self._start
        return [payload[shift + start : shift + end] for start, end in pairwise(offsets)]


class _EntryView:
    """One entry as it was appended; its batches are decoded when first asked for."""

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
    """What was kept of an entry; nothing at all, if the log does not hold it any more."""

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
    return _CompactedView(compacted_parts(entry)) if is_compacted(entry) else _EntryView(entry)


class Entries:
    """The node's window on the messages in its log."""

    def __init__(self, group: Group, disk: Disk, on_failure: Callable[[Exception], None]) -> None:
        self._group = group
        self._disk = disk
        self._on_failure = on_failure
        self._views: OrderedDict[int, _View] = OrderedDict()
        self._views_bytes = 0
        self._loading: dict[int, list[Callable[[], None]]] = {}

    def messages(self, part: Range) -> list[Messages] | None:
        """The messages of a range, in order, or None if its entry must be read first (`load`). Raises MessagesGone."""
        view = self._views.get(part.index)
        if view is None:
            payload = self._group.journal.payload(part.index)
            if payload is None:
                return None
            view = self._keep(part.index, _view(payload))
        return view.messages(part.slot, part.count)

    def load(self, indexes: list[int], done: Callable[[], None]) -> None:
        """Read the entries at `indexes` (the first is the one that is needed now) and call `done` when that is there.

        An entry that is gone counts as read.
        """
        if indexes[0] in self._loading:
            self._loading[indexes[0]].append(done)
            return
        wanted = [
            index for index in indexes[:READ_AHEAD] if index not in self._views and index not in self._loading
        ]
        for index in wanted:
            self._loading[index] = []
        self._loading[wanted[0]].append(done)
        self._read(wanted)

    def _read(self, wanted: Sequence[int]) -> None:
        jobs = [self._job(index) for index in wanted]

        def loaded(payloads: list[bytes | None] | None, error: Exception | None) -> None:
            if payloads is None:
                self._on_failure(error or RuntimeError("a read of the log failed without an error"))
                return
            for index, payload, job in zip(wanted, payloads, jobs, strict=True):
                if payload is not None:
                    self._arrived(index, _view(payload))
                elif job is None:
                    self._arrived(index, _CompactedView({}))
                    # It need not stay away: a log that was lost comes back from the other nodes.
                    self._forget(index)
                else:
                    # Its file was replaced under the reader: it is in another now, or in none.
                    self._read([index])

        self._disk.submit_read(lambda: [_run(job) for job in jobs], loaded)

    def _job(self, index: int) -> Callable[[], list[bytes]] | None:
        """What reads the entry, on any thread; None if it is not stored any more."""
        try:
            return self._group.journal.read_job((index,))
        except EntryGone:
            return None

    def _arrived(self, index: int, view: _View) -> None:
        # Used before the next is kept: what was waited for is not forgotten for what may be wanted.
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


def _run(job: Callable[[], list[bytes]] | None) -> bytes | None:
    """The entry; None if it is not where it was."""
    if job is None:
        return None
    try:
        return job()[0]
    except EntryGone:
        return None
