"""Sorted queues and bindings of each virtual host, kept between requests so that each request need not sort them.

Invariant: long work is done in slices, so other tasks run meanwhile. Data of deleted virtual hosts is dropped.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from heapq import merge
from itertools import accumulate, islice, takewhile
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, overload

from qq.management.time_slices import Slices

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from qq.machine.catalog.vhost import VirtualHost
    from qq.machine.queue.queue import Queue
    from qq.routing.routers import Binding

T = TypeVar("T")

BLOCK = 64
"""Numbers of queues that a block covers."""
STEP = 256
"""Objects visited between two checks of the time: some tenths of a millisecond."""
RUN = 1024
"""Objects sorted at a time, which takes a millisecond."""
_name, _number = attrgetter("name"), attrgetter("number")


class _Kept(NamedTuple, Generic[T]):
    """A value derived from a table of a virtual host, with evidence that the table is unchanged.

    New rows of a table come last. While the last row is the same object, every row added since has been removed again.
    While the size is the same, too, the table has the same rows.
    """

    vhost: VirtualHost
    size: int
    last: Any
    value: T

    def is_current(self, vhost: VirtualHost, table: Mapping[Any, Any], last: Any) -> bool:
        return self.vhost is vhost and self.size == len(table) and self.last is last


def _last_queue(vhost: VirtualHost) -> Queue | None:
    return next(reversed(vhost.queues.values()), None)


def _drop_deleted(kept: dict[str, Any], there: Collection[str]) -> None:
    if len(kept) > len(there):
        for name in [name for name in kept if name not in there]:
            del kept[name]


class QueueBlocks:
    """The queues of virtual hosts in blocks by number; a queue keeps its block when other queues come and go."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept[list[list[Queue]]]] = {}

    def blocks(self, vhosts: Iterable[VirtualHost], there: Collection[str]) -> Iterator[list[Queue]]:
        """Yield the blocks of `vhosts`, and empty blocks while they are being built.

        `there` are the names of all virtual hosts; data of others is dropped.
        """
        _drop_deleted(self._kept, there)
        for vhost in vhosts:
            kept, last = self._kept.get(vhost.name), _last_queue(vhost)
            if kept is None or not kept.is_current(vhost, vhost.queues, last):
                queues = list(vhost.queues.values())
                blocks: dict[int, list[Queue]] = {}
                for place, queue in enumerate(queues):
                    blocks.setdefault(queue.number // BLOCK, []).append(queue)
                    if not place % BLOCK:
                        yield []
                kept = self._kept[vhost.name] = _Kept(vhost, len(queues), last, list(blocks.values()))
            yield from kept.value

    def clear(self) -> None:
        self._kept.clear()


class _ByName(NamedTuple):
    queues: list[Queue]
    newest: int
    """Highest queue number seen so far."""


class SortedObjects:
    """The queues of virtual hosts by name, and their bindings by source, destination and routing key."""

    def __init__(self) -> None:
        self._queues: dict[str, _Kept[_ByName]] = {}
        self._bindings: dict[str, _Kept[list[Binding]]] = {}

    async def queues(self, vhost: VirtualHost, there: Collection[str]) -> list[Queue]:
        """Return the queues of a virtual host by name. The list must not be changed.

        `there` are the names of all virtual hosts.
        """
        _drop_deleted(self._queues, there)
        kept, last = self._queues.get(vhost.name), _last_queue(vhost)
        if kept is None or not kept.is_current(vhost, vhost.queues, last):
            before = kept.value if kept is not None and kept.vhost is vhost else _ByName([], -1)
            count, value = len(vhost.queues), await _renewed(before, vhost.queues)
            kept = self._queues[vhost.name] = _Kept(vhost, count, last, value)
        return kept.value.queues

    async def bindings(self, vhost: VirtualHost, there: Collection[str]) -> list[Binding]:
        """Return the sorted bindings of a virtual host, without the default exchange's.

        The list must not be changed.
        """
        _drop_deleted(self._bindings, there)
        kept, last = self._bindings.get(vhost.name), next(reversed(vhost.bindings), None)
        if kept is None or not kept.is_current(vhost, vhost.bindings, last):
            bindings = list(vhost.bindings)
            value = await sort_in_slices(bindings, _place_of)
            kept = self._bindings[vhost.name] = _Kept(vhost, len(bindings), last, value)
        return kept.value


def _place_of(binding: Binding) -> tuple[str, str, str]:
    return binding.source, binding.destination.name, binding.routing_key


async def _renewed(before: _ByName, table: dict[str, Queue]) -> _ByName:
    """Return the queues of a table by name, from an earlier result: drop deleted queues and insert new queues."""
    slices, newest = Slices(), before.newest
    added = list(takewhile(lambda queue: queue.number > newest, reversed(table.values())))
    queues: list[Queue] = []
    for start in range(0, len(before.queues), STEP):
        queues += [queue for queue in before.queues[start : start + STEP] if table.get(queue.name) is queue]
        await slices.give_way()
    newest = max(map(_number, added), default=newest)
    if len(added) <= STEP:
        for queue in added:
            insort(queues, queue, key=_name)
        return _ByName(queues, newest)
    return _ByName(await _merged([queues, await sort_in_slices(added, _name)], _name), newest)


async def sort_in_slices(things: Sequence[T], key: Callable[[T], Any]) -> list[T]:
    """Sort objects in slices, so that other tasks run meanwhile."""
    slices = Slices()
    runs: list[list[T]] = []
    for start in range(0, len(things), RUN):
        runs.append(sorted(things[start : start + RUN], key=key))
        await slices.give_way()
    return await _merged(runs, key)


async def _merged(runs: Sequence[list[T]], key: Callable[[T], Any]) -> list[T]:
    merged: list[T] = []
    slices, following = Slices(), merge(*runs, key=key)
    while part := list(islice(following, STEP)):
        merged += part
        await slices.give_way()
    return merged


class Chained(Sequence[T]):
    """Several sequences as a single sequence, whose items are made when they are read."""

    def __init__(self, parts: Sequence[tuple[Sequence[Any], Callable[[Any], T]]]) -> None:
        """Each part is a sequence with the function that makes an item from its element."""
        self._parts = parts
        self._starts = [0, *accumulate(len(part) for part, _ in parts)]

    def __len__(self) -> int:
        return self._starts[-1]

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> list[T]: ...
    def __getitem__(self, place: int | slice) -> T | list[T]:
        if isinstance(place, slice):
            return [self[each] for each in range(len(self))[place]]
        place = range(len(self))[place]
        number = bisect_right(self._starts, place) - 1
        part, make = self._parts[number]
        return make(part[place - self._starts[number]])
