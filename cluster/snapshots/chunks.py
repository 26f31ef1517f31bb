"""The chunks of a snapshot's files, and the times that both ends of a transfer go by."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cluster.raft.messages import SnapshotOffer

CHUNK_BYTES = 256 * 1024
IDLE_MAX_S = 60.0
"""Seconds without progress after which a transfer ends: the sender forgets the offer, the receiver the files."""
REPEAT_S = 1.0
"""Seconds without an answer after which an offer or a request is repeated."""


class Chunk(NamedTuple):
    """A chunk of a file of a snapshot."""

    file: int
    offset: int
    length: int
    ends_file: bool


def chunks_of(offer: SnapshotOffer) -> Iterator[Chunk]:
    """Yield all chunks of the offered files, in the order in which they are fetched."""
    for file, size in enumerate([offer.checkpoint_size, *(row.size for row in offer.segments)]):
        for offset in range(0, size, CHUNK_BYTES):
            length = min(CHUNK_BYTES, size - offset)
            yield Chunk(file, offset, length, offset + length == size)
