"""The replicated state of a group: the machine's, and what the group itself remembers.

Lives here: what belongs together at one index of the log, as bytes and as a frozen copy. Not here: how it changes
(group.py applies entries), where it is kept (log/checkpoints.py).

Law: equal on every replica at equal index, to the byte.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgpack

from cluster.origins import Origins
from cluster.ports import pack

if TYPE_CHECKING:
    from cluster.machine import FrozenCopy, Machine

_THREE = b"\x93"
_BYTES = b"\xc6"
"""Msgpack's header of bytes whose length follows in four bytes; `_THREE` is that of an array of three elements."""


class GroupState:
    """The replicated state of one group: the cluster's time, the origins of batches and the machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.origins = Origins()
        self.time_ms = 0
        """The cluster's time at the last applied entry, in milliseconds; never goes backwards."""

    def freeze(self) -> FrozenState:
        """Make a copy of the state as it is now; cheap, since packing it is left to `FrozenState.dump`."""
        # A garbage collection in the middle would walk through all that has just been made, several times.
        was_collecting = gc.isenabled()
        gc.disable()
        try:
            return FrozenState(self.time_ms, self.origins.dump(), self.machine.freeze())
        finally:
            if was_collecting:
                gc.enable()

    def load(self, data: bytes) -> None:
        """Replace the state by one that `FrozenState.dump` has packed. Raises ValueError if `data` is none."""
        try:
            time_ms, rows, machine = msgpack.unpackb(data)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise ValueError(f"not a state: {error}") from error
        self.machine.load(machine)
        self.origins.load(rows)
        self.time_ms = time_ms


class FrozenState:
    """A copy of the state at one index. Its methods may be called on any thread."""

    def __init__(self, time_ms: int, origins: list[tuple[str, int, int, bool]], machine: FrozenCopy) -> None:
        self._time_ms = time_ms
        self._origins = origins
        self._machine = machine

    def dump(self) -> bytes:
        machine = self._machine.dump()
        # The same bytes as `pack([time, origins, machine])`, which would hold up the loop to copy a large state.
        parts = [_THREE, pack(self._time_ms), pack(self._origins), _BYTES, len(machine).to_bytes(4), machine]
        return b"".join(parts)

    def counts(self, bounds: Sequence[int]) -> list[int]:
        """See `FrozenCopy.counts`."""
        return self._machine.counts(bounds)

    def live(self, first: int, end: int) -> Mapping[int, Mapping[int, Sequence[tuple[int, int]]]]:
        """See `FrozenCopy.live`."""
        return self._machine.live(first, end)
