"""From message references to message bytes.

Bodies live in the log only. A delivery names ranges (index, slot, count); here they become the frames to write. Recent
entries are in memory; older ones are read on the disk's reader thread, and the caller is told when they are there.

Law: never reads a file on the event loop.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from cluster.entry import batches_of
from qq.machine.codec import decode_batch
from qq.ranges import MESSAGE_BITS, MESSAGE_MASK

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.group import Group
    from cluster.ports import Disk
    from qq.ranges import Range

VIEWS_BYTES_MAX = 32 * 1024 * 1024
"""Entries kept in decoded form. One is about a mebibyte at most, unless it holds a single larger message."""
READ_AHEAD = 4
"""Entries read together when one is missing: a consumer of a backlog will want the next ones."""


class Messages(NamedTuple):
    """Stored messages of one Enqueue in wire form, with what their delivery needs to say."""

    exchange: str
    routing_key: str
    frames_channel: int
    messages: list[bytes]


class _BatchView:
    """One batch's messages: where each lies in the entry, and which Enqueue brought it."""

    def __init__(self, payload: bytes, start: int, end: int) -> None:
        self._batch = decode_batch(memoryview(payload)[start:end])
        self._payload = payload
        self._offsets = [start + offset for offset in self._batch.offsets]

    def messages(self, message: int, count: int) -> Messages:
        enqueue = self._batch.enqueue_of(message)
        payload = self._payload
        offsets = self._offsets[message : message + count + 1]
        messages = [payload[start:end] for start, end in pairwise(offsets)]
        return Messages(enqueue.exchange, enqueue.routing_key, enqueue.frames_channel, messages)


class _EntryView:
    """One entry; its batches are decoded when first asked for."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._batches = batches_of(payload)
        self._views: dict[int, _BatchView] = {}
        self.size = len(payload)

    def messages(self, slot: int, count: int) -> Messages:
        ordinal = slot >> MESSAGE_BITS
        view = self._views.get(ordinal)
        if view is None:
            batch = self._batches[ordinal]
            view = self._views[ordinal] = _BatchView(self._payload, batch.start, batch.end)
        return view.messages(slot & MESSAGE_MASK, count)


class Entries:
    """The node's window on the messages in its log."""

    def __init__(self, group: Group, disk: Disk, on_failure: Callable[[BaseException], None]) -> None:
        self._group = group
        self._disk = disk
        self._on_failure = on_failure
        self._views: OrderedDict[int, _EntryView] = OrderedDict()
        self._views_bytes = 0
        self._loading: dict[int, list[Callable[[], None]]] = {}

    def messages(self, part: Range) -> Messages | None:
        """The messages of a range, or None if its entry must be read first (`load`)."""
        view = self._views.get(part.index)
        if view is None:
            payload = self._group.journal.payload(part.index)
            if payload is None:
                return None
            view = self._keep(part.index, payload)
        return view.messages(part.slot, part.count)

    def load(self, indexes: list[int], done: Callable[[], None]) -> None:
        """Read the entries at `indexes` (the first is the one that is needed now) and call `done`."""
        if indexes[0] in self._loading:
            self._loading[indexes[0]].append(done)
            return
        wanted = [
            index for index in indexes[:READ_AHEAD] if index not in self._views and index not in self._loading
        ]
        for index in wanted:
            self._loading[index] = []
        self._loading[wanted[0]].append(done)

        def loaded(payloads: list[bytes] | None, error: Exception | None) -> None:
            if payloads is None:
                self._on_failure(error or RuntimeError("a read of the log failed without an error"))
                return
            for index, payload in zip(wanted, payloads, strict=True):
                # Used before the next is kept: what was waited for is not forgotten for what may be wanted.
                self._keep(index, payload)
                for waiting in self._loading.pop(index):
                    waiting()

        self._disk.submit_read(self._group.journal.read_job(wanted), loaded)

    def _keep(self, index: int, payload: bytes) -> _EntryView:
        view = self._views[index] = _EntryView(payload)
        self._views_bytes += view.size
        while self._views_bytes > VIEWS_BYTES_MAX and len(self._views) > 1:
            self._views_bytes -= self._views.popitem(last=False)[1].size
        return view
