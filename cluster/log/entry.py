"""The format of a log entry: the cluster's time (see cluster_clock.py) and the batches that nodes submitted.

    entry  = type u8 (0: pysyncobj's REGULAR) | version u8 | time_ms u64 | count u16 | batch...
    batch  = kind u8 | weight u8 | name length u8 | incarnation u64 | sequence u64 | payload length u32 | name | payload

Only a submitted batch (`KIND_PROPOSED`) has a payload. An eviction (`KIND_EVICTION`) names a node and the incarnation
that it ends. An outage (`KIND_OUTAGE`) is the first batch of its entry. It names the leader that declares the outage,
and its sequence number is the length of the outage in milliseconds.

A batch keeps its bytes on the whole way: from the submitting node to the leader, into the entry, and onto every disk.
Below the log entries are never applied again. So there an entry is *compacted* to the parts that the machine still
needs:

    compacted entry = type u8 0xC0 | version u8 | count u16 | part...
    part            = ordinal of the batch u8 | length u32 | result of Machine.compact for the batch's payload

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
"""Largest number of batches in an entry, because a message reference has a single byte for the batch's ordinal."""
ENTRY_BYTES_MAX = 256 * 1024 * 1024
"""Size limit of an entry in bytes, the same on every node and independent of its settings. Links, their queues, the
journal and its files all carry an entry of this size. So no limit on the way of an entry depends on a node's
settings."""

WEIGHT_MAX = 255

KIND_PROPOSED = 0
KIND_EVICTION = 1
KIND_OUTAGE = 2

_ENTRY = struct.Struct("<BBQH")
_BATCH = struct.Struct("<BBBQQI")
_COMPACTED = struct.Struct("<BBH")
_PART = struct.Struct("<BI")

BATCH_BYTES_MAX = ENTRY_BYTES_MAX - 64 * 1024
"""Size limit of a batch in bytes, its head included. An entry with this batch alone is only a little larger."""


class ProposedBatch(NamedTuple):
    """A node's submission, in its wire form."""

    sequence: int
    size: int
    weight: int
    """Expected cost of the batch on every node, in milliseconds, as estimated by the submitting node."""
    buffers: Sequence[Buffer]
    may_wait: bool = False
    """Whether the leader may keep the batch for its next entry (`ProposalQueue`)."""


class BatchView(NamedTuple):
    """A batch inside an entry or a forwarded submission; `start` and `end` delimit its payload."""

    kind: int
    weight: int
    origin: str
    incarnation: int
    sequence: int
    start: int
    end: int


class MalformedEntry(ValueError):
    """Raised for bytes that are not an entry or a batch of this format."""


def make_batch(
    origin: str,
    incarnation: int,
    sequence: int,
    payload: Sequence[Buffer],
    kind: int = KIND_PROPOSED,
    weight: int = 0,
    *,
    may_wait: bool = False,
) -> ProposedBatch:
    name = origin.encode()
    length = sum(map(len, payload))
    head = _BATCH.pack(kind, weight, len(name), incarnation, sequence, length) + name
    return ProposedBatch(sequence, len(head) + length, weight, [head, *payload], may_wait)


def make_entry(time_ms: int, batches: Sequence[ProposedBatch]) -> bytes:
    buffers: list[Buffer] = [_ENTRY.pack(REGULAR, VERSION, time_ms, len(batches))]
    for batch in batches:
        buffers.extend(batch.buffers)
    return b"".join(buffers)


def is_regular(entry: bytes) -> bool:
    """Return whether an entry holds batches; all other entries are configurations or pysyncobj's own no-ops."""
    return entry[0] == REGULAR


def entry_time_ms(entry: bytes) -> int:
    return _ENTRY.unpack_from(entry)[2]


def batches_of(entry: bytes) -> list[BatchView]:
    """Return the batches of an entry, in order. Raises `MalformedEntry`."""
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
    """Yield consecutive batches from `position` to the end of `data`. Raises `MalformedEntry`."""
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


def batch_at(data: bytes, view: BatchView, *, may_wait: bool) -> ProposedBatch:
    """Return the wire form of the batch `view`, out of the bytes that `view` was read from."""
    # A memoryview is enough, because a leader copies a large batch anyway when it composes the entry.
    whole = memoryview(data)[view.start - _BATCH.size - len(view.origin.encode()) : view.end]
    return ProposedBatch(view.sequence, len(whole), view.weight, [whole], may_wait)


def make_compacted(parts: Mapping[int, bytes]) -> bytes:
    """Pack a compacted entry from its parts: ordinal of the batch -> part."""
    buffers = [_COMPACTED.pack(COMPACTED, VERSION, len(parts))]
    for ordinal, part in parts.items():
        buffers.append(_PART.pack(ordinal, len(part)))
        buffers.append(part)
    return b"".join(buffers)


def is_compacted(entry: Buffer) -> bool:
    return entry[:1] == bytes((COMPACTED,))


def compacted_parts(entry: Buffer) -> dict[int, memoryview]:
    """Return the parts of a compacted entry: ordinal of the batch -> part. Raises `MalformedEntry`."""
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
