"""State machines that compare each call, its effects and the resulting state with the same step of other processes.

Above the lowest version a watched machine also counts entries in its state. This change is invented, because the
versions of a release may behave alike. Nodes with this program and nodes with the previous release agree only while
both follow the version that the log has agreed on.

Invariant: a watched machine does what its inner machine does, and counts; only a machine of a foreign version does
less.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from zlib import crc32

import msgpack

from cluster.runtime.ports import pack

if TYPE_CHECKING:
    from cluster.machine import FrozenCopy, Machine

TAG = Struct("<QQ")
"""Prefix of each payload: number of the client generation at its node, and number of the batch, from 1."""

UNKNOWN_ONE_IN = 4
"""A foreign program does not know one in this many batches."""
_PARTS = 2
"""Number of items in a dump at the lowest version: the position and the inner machine."""


class Applied(NamedTuple):
    """A call into a machine, with a checksum of its effects."""

    origin: str
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.index has no use here
    ordinal: int
    time_ms: int
    checksum: int
    effects: int


class Witness(Protocol):
    """Knows the history of the run so far."""

    def happened_first(self, machine: WatchedMachine, record: Applied) -> bool:
        """Return whether this call is the first at its position of the history.

        Fails if an earlier process made a different call at that position.
        """
        ...

    def batch_applied(
        self, inner: Machine, record: Applied, payload: memoryview, effects: Sequence[Any]
    ) -> None: ...

    def outage(self, inner: Machine, length_ms: int) -> None: ...

    def entry_ended(self, inner: Machine, time_ms: int, effects: Sequence[Any]) -> None: ...

    def origin_down(self, inner: Machine, origin: str, time_ms: int, effects: Sequence[Any]) -> None: ...

    def same_state(self, position: int, dumped: bytes) -> None: ...


class WatchedMachine:
    """The machine of a single process start; compares each call with the same step of other processes.

    Its state includes the position in the history, so a process that starts from a checkpoint knows its position.
    """

    def __init__(self, machine: Machine, witness: Witness) -> None:
        self.inner = machine
        self.position = 0
        self._witness = witness
        self._version = machine.versions[0]
        self._counted = 0
        """Number of entries applied above the lowest version."""

    @property
    def versions(self) -> tuple[int, int]:
        return self.inner.versions

    @property
    def outages_since(self) -> int:
        return self.inner.outages_since

    @property
    def reads_since(self) -> int:
        return self.inner.reads_since

    @property
    def losses_since(self) -> int:
        return self.inner.losses_since

    @property
    def waiting_batches_since(self) -> int:
        return self.inner.waiting_batches_since

    @property
    def counts_entries(self) -> bool:
        """Whether the invented change is active: in the effects of entries, and in the form of the state."""
        return self._version > self.inner.versions[0]

    def raise_to(self, version: int) -> None:
        self._version = version
        self.inner.raise_to(version)

    def outage(self, length_ms: int) -> None:
        self.inner.outage(length_ms)
        if self._witness.happened_first(self, Applied("", 0, 0, 0, length_ms, 0)):
            self._witness.outage(self.inner, length_ms)

    def apply_batch(
        self, origin: str, index: int, ordinal: int, time_ms: int, payload: memoryview
    ) -> Sequence[Any]:
        body = payload[TAG.size :]
        effects = self._carry_out(origin, index, ordinal, time_ms, body)
        record = Applied(origin, index, ordinal, time_ms, crc32(payload), _checksum(effects))
        if self._witness.happened_first(self, record):
            self._witness.batch_applied(self.inner, record, payload, effects)
        return effects

    def _carry_out(
        self, origin: str, index: int, ordinal: int, time_ms: int, body: memoryview
    ) -> Sequence[Any]:
        return self.inner.apply_batch(origin, index, ordinal, time_ms, body)

    def end_entry(self, time_ms: int) -> Sequence[Any]:
        effects = self.inner.end_entry(time_ms)
        self._counted += self.counts_entries
        record = Applied("", 0, 0, time_ms, self._counted, _checksum(effects))
        if self._witness.happened_first(self, record):
            self._witness.entry_ended(self.inner, time_ms, effects)
        return effects

    def due_ms(self) -> int | None:
        return self.inner.due_ms()

    def concerned(self, effects: Sequence[Any]) -> Iterable[str]:
        return self.inner.concerned(effects)

    def origin_down(self, origin: str, time_ms: int, *, evicted: bool) -> Sequence[Any]:
        effects = self.inner.origin_down(origin, time_ms, evicted=evicted)
        if self._witness.happened_first(self, Applied(origin, 0, 0, 0, evicted, _checksum(effects))):
            self._witness.origin_down(self.inner, origin, time_ms, effects)
        return effects

    def outstanding(self, origin: str) -> Sequence[Any]:
        return self.inner.outstanding(origin)

    def compact(self, payload: memoryview, messages: Sequence[tuple[int, int]]) -> bytes:
        return bytes(payload[: TAG.size]) + self.inner.compact(payload[TAG.size :], messages)

    def freeze(self) -> WatchedFrozen:
        counted = [self._counted] if self.counts_entries else []
        return WatchedFrozen(self.position, self.inner.freeze(), counted, self._witness)

    def dump(self) -> bytes:
        return b"".join(self.freeze().pieces())

    def read(self, data: bytes) -> Any:
        position, inner, *counted = msgpack.unpackb(data)
        self._witness.same_state(position, inner)
        return position, self.inner.read(inner), sum(counted)

    def adopt(self, state: Any) -> None:
        self.position, inner, self._counted = state
        self.inner.adopt(inner)
        self._witness.same_state(self.position, self.inner.dump())

    def digest(self) -> str:
        return self.inner.digest()


class ForeignMachine(WatchedMachine):
    """The machine of a foreign program, which skips batches with unknown commands."""

    @property
    def versions(self) -> tuple[int, int]:
        newest = self.inner.versions[1] + 1
        return newest, newest

    def _carry_out(
        self, origin: str, index: int, ordinal: int, time_ms: int, body: memoryview
    ) -> Sequence[Any]:
        if crc32(body) % UNKNOWN_ONE_IN == 0:
            return []
        return super()._carry_out(origin, index, ordinal, time_ms, body)


class EarlierMachine(WatchedMachine):
    """The machine of the previous release, which can run the lower version only."""

    @property
    def versions(self) -> tuple[int, int]:
        lowest = self.inner.versions[0]
        return lowest, lowest

    def read(self, data: bytes) -> Any:
        if len(msgpack.unpackb(data)) > _PARTS:
            raise ValueError("a state of the later version")
        return super().read(data)


class Program(Enum):
    """The program that is installed on a node."""

    CURRENT = "this release"
    EARLIER = "the release before"
    FOREIGN = "one that can run no version that these two can"


MACHINES = {
    Program.CURRENT: WatchedMachine,
    Program.EARLIER: EarlierMachine,
    Program.FOREIGN: ForeignMachine,
}


class WatchedFrozen:
    """A frozen machine; its content must stay the state at this position of the history."""

    def __init__(self, position: int, inner: FrozenCopy, counted: Sequence[int], witness: Witness) -> None:
        self._position = position
        self._inner = inner
        self._counted = counted
        self._witness = witness

    def pieces(self) -> list[bytes]:
        dumped = b"".join(self._inner.pieces())
        self._witness.same_state(self._position, dumped)
        return [pack([self._position, dumped, *self._counted])]

    def counts(self, bounds: Sequence[int]) -> list[int]:
        return self._inner.counts(bounds)

    def live(self, first: int, end: int) -> Mapping[int, Mapping[int, Sequence[tuple[int, int]]]]:
        return self._inner.live(first, end)


def _checksum(effects: Sequence[Any]) -> int:
    return crc32(repr(effects).encode()) if effects else 0
