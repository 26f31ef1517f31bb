"""The smallest machine: it remembers what it was given, in order. For the checks that concern the cluster only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from zlib import crc32

import msgpack


class Ledger:
    """A count and a running checksum of every batch and every death."""

    def __init__(self) -> None:
        self._count = 0
        self._checksum = 0

    def apply_batch(
        self, origin: str, index: int, ordinal: int, time_ms: int, payload: memoryview
    ) -> Sequence[Any]:
        self._note(f"{origin} {index} {ordinal} {time_ms}".encode())
        self._checksum = crc32(payload, self._checksum)
        return []

    def end_entry(self) -> Sequence[Any]:
        return []

    def origin_down(self, origin: str, *, expelled: bool) -> Sequence[Any]:
        self._note(f"{origin} {expelled}".encode())
        return []

    def _note(self, what: bytes) -> None:
        self._count += 1
        self._checksum = crc32(what, self._checksum)

    def dump(self) -> bytes:
        dumped: bytes = msgpack.packb([self._count, self._checksum])  # pyright: ignore[reportAssignmentType]
        return dumped

    def load(self, data: bytes) -> None:
        self._count, self._checksum = msgpack.unpackb(data)

    def digest(self) -> str:
        return f"{self._count}/{self._checksum:08x}"
