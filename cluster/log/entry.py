"""What a log entry holds: the cluster's time (clock.py) and the batches that nodes submitted.

    entry  = type u8 (0: pysyncobj's REGULAR) | version u8 | time_ms u64 | count u16 | batch...
    batch  = kind u8 | weight u8 | name length u8 | incarnation u64 | sequence u64 | payload length u32 | name | payload

Of a kind that is not submitted, a batch has no payload. An expulsion names the node, and the incarnation that it ends.
An outage, the first batch of its entry, names the leader that declares it; its length in milliseconds is the sequence.

A batch travels unchanged from the node that submits it, over the forward to the leader, into the entry and onto every
disk. Below the log, where entries are never applied again, an entry is *compacted* to what the machine still needs:

    compacted entry = type u8 0xC0 | version u8 | count u16 | part...
    part            = ordinal of the batch u8 | length u32 | what Machine.compact made of the batch's payload

All integers are little endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from cluster.runtime.ports import Buffer

REGULAR = 0
COMPACTED = 0xC0
VERSION = 1
BATCHES_MAX = 255
"""How many batches an entry may have: the ordinal of a batch fits in one byte of a message reference."""
ENTRY_BYTES_MAX = 256 * 1024 * 1024
"""No entry is larger, on any node, whatever its configuration lets in. Links, their queues, the journal and its files
carry one of this size, so no limit on the way of an entry depends on what a node was told."""

WEIGHT_MAX = 255

KIND_SUBMITTED = 0
KIND_EXPEL = 1
KIND_OUTAGE = 2

_ENTRY = struct.Struct("<BBQH")
_BATCH = struct.Struct("<BBBQQI")
_COMPACTED = struct.Struct("<BBH")
_PART = struct.Struct("<BI")

BATCH_BYTES_MAX = ENTRY_BYTES_MAX - 64 * 1024
"""How large a batch may be, its head included: an entry with this batch alone is little larger."""


class SubmittedBatch(NamedTuple):
    """One submission of one node, in its wire form."""

    sequence: int
    size: int
    weight: int
    """What the batch is expected to cost every node, in milliseconds, as the node that submits it says."""
    buffers: Sequence[Buffer]


class BatchView(NamedTuple):
    """A batch inside an entry or a forward; `start` and `end` delimit its payload."""

    kind: int
    weight: int
    origin: str
    incarnation: int
    sequence: int
    start: int
    end: int


class MalformedEntry(ValueError):
    """The bytes are not an entry or a batch of this format."""


def make_batch(
    origin: str,
    incarnation: int,
    sequence: int,
    payload: Sequence[Buffer],
    kind: int = KIND_SUBMITTED,
    weight: int = 0,
) -> SubmittedBatch:
    name = origin.encode()
    length = sum(map(len, payload))
    head = _BATCH.pack(kind, weight, len(name), incarnation, sequence, length) + name
    return SubmittedBatch(sequence, len(head) + length, weight, [head, *payload])


def make_entry(time_ms: int, batches: Sequence[SubmittedBatch]) -> bytes:
    buffers: list[Buffer] = [_ENTRY.pack(REGULAR, VERSION, time_ms, len(batches))]
    for batch in batches:
        buffers.extend(batch.buffers)
    return b"".join(buffers)


def is_regular(entry: bytes) -> bool:
    """Whether an entry holds a proposal; the others are pysyncobj's own no-ops."""
    return entry[0] == REGULAR


def entry_time_ms(entry: bytes) -> int:
    return _ENTRY.unpack_from(entry)[2]


def batches_of(entry: bytes) -> list[BatchView]:
    """The batches of an entry, in order. Raises `MalformedEntry`."""
    try:
        kind, version, _, count = _ENTRY.unpack_from(entry)
    except struct.error as error:
        raise MalformedEntry("entry header cut short") from error
    if kind != REGULAR or version != VERSION:
        raise MalformedEntry(f"entry of type {kind}, version {version}")
    batches = list(read_batches(entry, _ENTRY.size))
    if len(batches) != count:
        raise MalformedEntry(f"entry announces {count} batches and holds {len(batches)}")
    return batches


def read_batches(data: bytes, position: int) -> Iterator[BatchView]:
    """Batches one behind the other from `position` to the end. Raises `MalformedEntry`."""
    end = len(data)
    while position < end:
        try:
            kind, weight, name_length, incarnation, sequence, length = _BATCH.unpack_from(data, position)
            name = data[position + _BATCH.size : position + _BATCH.size + name_length].decode()
        except (struct.error, UnicodeDecodeError) as error:
            raise MalformedEntry("batch header cut short or garbled") from error
        start = position + _BATCH.size + name_length
        position = start + length
        if position > end:
            raise MalformedEntry("batch payload cut short")
        yield BatchView(kind, weight, name, incarnation, sequence, start, position)


def batch_at(data: bytes, view: BatchView) -> SubmittedBatch:
    """The batch in its wire form again, out of the bytes that `view` was read from."""
    # A view, since who proposes a large batch copies it once more in any case.
    whole = memoryview(data)[view.start - _BATCH.size - len(view.origin.encode()) : view.end]
    return SubmittedBatch(view.sequence, len(whole), view.weight, [whole])


def make_compacted(parts: Mapping[int, bytes]) -> bytes:
    """A compacted entry of these parts, by the ordinals of their batches."""
    buffers = [_COMPACTED.pack(COMPACTED, VERSION, len(parts))]
    for ordinal, part in parts.items():
        buffers.append(_PART.pack(ordinal, len(part)))
        buffers.append(part)
    return b"".join(buffers)


def is_compacted(entry: Buffer) -> bool:
    return entry[:1] == bytes((COMPACTED,))


def compacted_parts(entry: Buffer) -> dict[int, memoryview]:
    """The parts of a compacted entry, by the ordinals of their batches. Raises `MalformedEntry`."""
    view = memoryview(entry)
    parts: dict[int, memoryview] = {}
    try:
        kind, version, count = _COMPACTED.unpack_from(view)
        if kind != COMPACTED or version != VERSION:
            raise MalformedEntry(f"compacted entry of type {kind}, version {version}")
        position = _COMPACTED.size
        for _ in range(count):
            ordinal, length = _PART.unpack_from(view, position)
            start = position + _PART.size
            position = start + length
            parts[ordinal] = view[start:position]
    except struct.error as error:
        raise MalformedEntry("compacted entry cut short") from error
    if position != len(view) or len(parts) != count:
        raise MalformedEntry(f"compacted entry announces {count} parts and holds something else")
    return parts
