"""A machine of the simplest kind: it holds messages until they are settled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgpack

from cluster.log.entry import compacted_parts, is_compacted, make_batch, make_entry, read_batches
from cluster.runtime.ports import pack

ENTRY_HEADER_BYTES = 12

Place = tuple[int, int, int]
"""Index, batch, message."""


def entry_of(batches: Sequence[Sequence[bytes]]) -> bytes:
    """An entry with these messages in these batches."""
    return make_entry(1, [make_batch("n", 1, 1, [pack(dict(enumerate(messages)))]) for messages in batches])


def compact(payload: memoryview, messages: Sequence[tuple[int, int]]) -> bytes:
    """Return the batch with these messages; the payload may have been compacted before."""
    wanted = {number for first, count in messages for number in range(first, first + count)}
    held = msgpack.unpackb(payload, strict_map_key=False)
    return pack({number: message for number, message in held.items() if number in wanted})


def message_at(entry: bytes, batch: int, number: int) -> bytes:
    """Return a message of an entry, compacted or not."""
    if is_compacted(entry):
        payload = compacted_parts(entry)[batch]
    else:
        view = list(read_batches(entry, ENTRY_HEADER_BYTES))[batch]
        payload = memoryview(entry)[view.start : view.end]
    return msgpack.unpackb(payload, strict_map_key=False)[number]


class FrozenToy:
    """Messages that were not settled."""

    def __init__(self, places: Sequence[Place]) -> None:
        self.places = sorted(places)

    def pieces(self) -> list[bytes]:
        return [pack(self.places)]

    def counts(self, bounds: Sequence[int]) -> list[int]:
        return [sum(start <= index < end for index, _, _ in self.places) for start, end in pairwise(bounds)]

    def live(self, first: int, end: int) -> Mapping[int, Mapping[int, Sequence[tuple[int, int]]]]:
        found: dict[int, dict[int, list[tuple[int, int]]]] = {}
        for index, batch, number in self.places:
            if first <= index < end:
                ranges = found.setdefault(index, {}).setdefault(batch, [])
                if ranges and sum(ranges[-1]) == number:
                    ranges[-1] = (ranges[-1][0], ranges[-1][1] + 1)
                else:
                    ranges.append((number, 1))
        return found


def load_places(data: bytes) -> list[Place]:
    """Return the places in the joined output of `FrozenToy.pieces`."""
    return [(index, batch, number) for index, batch, number in msgpack.unpackb(data)]
