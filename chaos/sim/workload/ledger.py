"""The smallest machine, for checks of the cluster alone: it remembers its batches in order.

A batch is cut into messages. Each stays live for some further batches of the same origin: most messages for a few, some
for very many. So logs have garbage to compact, and compacted logs have messages to keep.

Some batches set alarms, several for the same moment. An entry rings a few of the due alarms, so that ringing them all
sometimes takes several entries.

    batch = 0 | data                   the messages are MESSAGES_MAX equal parts of the data, or fewer small ones
    kept  = 1 | msgpack [[ordinal, message], ...]
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple
from zlib import crc32

import msgpack

from cluster.runtime.ports import Buffer, pack

MESSAGE_BYTES_MIN = 16
MESSAGES_MAX = 16
_WHOLE = 0
_KEPT = 1
_LIVES = (0, 0, 1, 2, 3, 5, 8, 20)
_LONG_LIFE = 150
_LONG_LIVES_ONE_IN = 16
_ALARMS_ONE_IN = 4
_ALARMS_MAX = 6
_ALARM_DELAY_MAX_MS = 3_000
_RUNG_MAX = 2
"""Alarms that an entry rings, at most."""


def make_batch(data: bytes) -> bytes:
    return bytes([_WHOLE]) + data


def messages_of(payload: Buffer) -> dict[int, bytes]:
    """Return the messages of a batch, or of its compacted form, by ordinal."""
    data = bytes(payload)
    if data[0] == _KEPT:
        return dict(msgpack.unpackb(data[1:]))
    size = _message_bytes(len(data) - 1)
    return {ordinal: data[start : start + size] for ordinal, start in enumerate(range(1, len(data), size))}


def _message_bytes(batch_bytes: int) -> int:
    return max(MESSAGE_BYTES_MIN, -(-batch_bytes // MESSAGES_MAX))


class Live(NamedTuple):
    """A message that is still needed, and the batch that ends it."""

    index: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.index has no use here
    batch: int
    message: int
    until: int
    """Number of the origin's batch that ends the message."""


class Rung(NamedTuple):
    """An effect: the alarm of this moment has rung."""

    due_ms: int


class FrozenLedger:
    """A frozen copy of a ledger."""

    def __init__(
        self, count: int, checksum: int, origins: list[tuple[str, int, list[Live]]], alarms: list[int]
    ) -> None:
        self._row = (count, checksum, origins, alarms)

    def pieces(self) -> list[bytes]:
        return [pack(self._row)]

    def counts(self, bounds: Sequence[int]) -> list[int]:
        live = self._live()
        places = [bisect_left(live, (bound,)) for bound in bounds]
        return [after - before for before, after in pairwise(places)]

    def live(self, first: int, end: int) -> dict[int, dict[int, list[tuple[int, int]]]]:
        found: dict[int, dict[int, list[tuple[int, int]]]] = {}
        for index, batch, message, _ in self._live():
            if first <= index < end:
                ranges = found.setdefault(index, {}).setdefault(batch, [])
                if ranges and sum(ranges[-1]) == message:
                    ranges[-1] = (ranges[-1][0], ranges[-1][1] + 1)
                else:
                    ranges.append((message, 1))
        return found

    def _live(self) -> list[Live]:
        return sorted(live for _, _, messages in self._row[2] for live in messages)


class Ledger:
    """A count and a running checksum of all steps, the live messages and the set alarms."""

    def __init__(self) -> None:
        self._count = 0
        self._checksum = 0
        self._batches: dict[str, int] = {}
        self._live: dict[str, list[Live]] = {}
        self._alarms: list[int] = []
        """The due times of the alarms in ms, ascending."""

    versions = (1, 2)
    """The versions of the state; the higher version has members and outages in the log."""
    outages_since = 2
    reads_since = 2
    losses_since = 2
    waiting_batches_since = 2

    def raise_to(self, version: int) -> None:
        """Do nothing, because the ledger behaves alike at both versions."""

    def outage(self, length_ms: int) -> None:
        self._record(f"{length_ms}".encode())

    def apply_batch(
        self, origin: str, index: int, ordinal: int, time_ms: int, payload: memoryview
    ) -> Sequence[Any]:
        self._record(f"{origin} {index} {ordinal} {time_ms}".encode())
        self._checksum = crc32(payload, self._checksum)
        number = self._batches[origin] = self._batches.get(origin, 0) + 1
        chance = crc32(payload)
        live = [live for live in self._live.get(origin, ()) if live.until > number]
        size = len(payload) - 1
        for message in range(-(-size // _message_bytes(size))):
            lifetime = _lifetime(chance + message * 0x9E3779B1)
            if lifetime:
                live.append(Live(index, ordinal, message, number + lifetime))
        self._live[origin] = live
        for due_ms in _alarms(chance, time_ms):
            insort(self._alarms, due_ms)
        return []

    def end_entry(self, time_ms: int) -> Sequence[Any]:
        rung = self._alarms[: min(bisect_right(self._alarms, time_ms), _RUNG_MAX)]
        del self._alarms[: len(rung)]
        for due_ms in rung:
            self._record(f"{due_ms} {time_ms}".encode())
        return [Rung(due_ms) for due_ms in rung]

    def due_ms(self) -> int | None:
        return self._alarms[0] if self._alarms else None

    def concerned(self, effects: Sequence[Any]) -> Sequence[str]:  # noqa: ARG002 - nobody waits for any
        return []

    def origin_down(self, origin: str, time_ms: int, *, evicted: bool) -> Sequence[Any]:
        self._record(f"{origin} {time_ms} {evicted}".encode())
        if evicted:
            self._live[origin] = []
        return []

    def _record(self, data: bytes) -> None:
        self._count += 1
        self._checksum = crc32(data, self._checksum)

    def outstanding(self, origin: str) -> Sequence[Any]:  # noqa: ARG002 - it has no effects
        return []

    def compact(self, payload: memoryview, messages: Sequence[tuple[int, int]]) -> bytes:
        there = messages_of(payload)
        kept = [
            (ordinal, there[ordinal]) for first, count in messages for ordinal in range(first, first + count)
        ]
        return bytes([_KEPT]) + pack(kept)

    def freeze(self) -> FrozenLedger:
        origins = [(origin, number, self._live.get(origin, [])) for origin, number in self._batches.items()]
        return FrozenLedger(self._count, self._checksum, origins, list(self._alarms))

    def dump(self) -> bytes:
        return b"".join(self.freeze().pieces())

    def read(self, data: bytes) -> Any:
        return msgpack.unpackb(data)

    def adopt(self, state: Any) -> None:
        self._count, self._checksum, origins, self._alarms = state
        self._batches = {origin: number for origin, number, _ in origins}
        self._live = {origin: [Live(*live) for live in messages] for origin, _, messages in origins}

    def digest(self) -> str:
        return f"{self._count}/{self._checksum:08x}"


def _lifetime(chance: int) -> int:
    """Return for how many further batches of its origin a message lives."""
    chance = (chance ^ chance >> 15) & 0xFFFF
    return (
        _LONG_LIFE if chance % _LONG_LIVES_ONE_IN == 0 else _LIVES[chance // _LONG_LIVES_ONE_IN % len(_LIVES)]
    )


def _alarms(chance: int, time_ms: int) -> list[int]:
    """Return the alarms that a batch sets at `time_ms`: all for the same moment, or none."""
    if chance % _ALARMS_ONE_IN:
        return []
    delay_ms = 1 + (chance >> 5) % _ALARM_DELAY_MAX_MS
    return [time_ms + delay_ms] * (1 + (chance >> 20) % _ALARMS_MAX)
