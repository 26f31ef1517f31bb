"""The replicated state of a group: the machine's state, the time, the origins of batches, and the configuration.

Invariant: at equal index, the state is equal on every replica, to the byte.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack

from cluster.configuration.configuration import OtherVersion, Versions, configuration_from, fields_of
from cluster.runtime.ports import pack
from cluster.state.dedup import Origins

if TYPE_CHECKING:
    from cluster.configuration.configuration import Configuration
    from cluster.machine import FrozenCopy, Machine

_ARRAYS = {3: b"\x93", 4: b"\x94"}
"""Msgpack's headers of arrays, by the number of their elements."""
_BYTES = b"\xc6"
"""Msgpack's header of a byte string with a length of four bytes."""


class GroupState:
    """The replicated state of a group: time, origins of batches, machine and configuration."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.origins = Origins()
        self.time_ms = 0
        """The cluster's time at the last applied entry, in milliseconds. It never goes backwards."""
        self.configuration: Configuration | None = None
        """The last applied configuration; None before the first. Until then, the lists in the nodes' files count."""

    def freeze(self) -> FrozenState:
        """Return a copy of the current state. The copy is cheap, because `FrozenState.pieces` does the packing."""
        # A garbage collection in the middle would walk through all new objects, several times.
        was_collecting = gc.isenabled()
        gc.disable()
        try:
            return FrozenState(self.time_ms, self.origins.dump(), self.machine.freeze(), self.configuration)
        finally:
            if was_collecting:
                gc.enable()

    def load(self, data: bytes) -> None:
        """Replace the state by a state that `FrozenState.dump` has packed. Raises as `read` does."""
        self.adopt(self.read(data))

    def read(self, data: bytes) -> ReadState:
        """Parse a state that `FrozenState.dump` has packed, for `adopt`. Usable on any thread.

        Raises ValueError if `data` is no state, or OtherVersion.
        """
        try:
            time_ms, rows, machine, *fields = msgpack.unpackb(data)
            configuration = configuration_from(*fields) if fields else None
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise ValueError(f"not a state: {error}") from error
        if configuration is not None:
            self.check_version(configuration.version)
        return ReadState(time_ms, rows, self.machine.read(machine), configuration)

    def adopt(self, state: ReadState) -> None:
        """Replace the state by a parsed state. This is quick, however large the state is."""
        self.time_ms, rows, machine, self.configuration = state
        self.machine.adopt(machine)
        self.origins.load(rows)
        self.go_by_agreed_version()

    def go_by_agreed_version(self) -> None:
        """Switch the machine to the version in the configuration, if any. Raises OtherVersion."""
        if self.configuration is None:
            return
        self.check_version(self.configuration.version)
        self.machine.raise_to(self.configuration.version)

    def check_version(self, version: int) -> None:
        """Raise OtherVersion if this program cannot run `version`."""
        versions = Versions(*self.machine.versions)
        if not versions.include(version):
            raise OtherVersion("entries", version, versions)


class ReadState(NamedTuple):
    """A parsed state that no group has adopted yet."""

    time_ms: int
    origins: list[tuple[str, int, int, bool]]
    machine: Any
    """The result of `Machine.read`."""
    configuration: Configuration | None


class FrozenState:
    """A copy of the state at a single index. Its methods may be called on any thread."""

    def __init__(
        self,
        time_ms: int,
        origins: list[tuple[str, int, int, bool]],
        machine: FrozenCopy,
        configuration: Configuration | None,
    ) -> None:
        self._time_ms = time_ms
        self._origins = origins
        self._machine = machine
        self._configuration = configuration

    def pieces(self) -> list[bytes]:
        """Return the bytes of `dump` in pieces, because copying a large state holds up the event loop."""
        machine = self._machine.pieces()
        # The same bytes as `pack([time, origins, machine, configuration])`.
        behind = [] if self._configuration is None else [pack(fields_of(self._configuration))]
        before = [_ARRAYS[3 + len(behind)], pack(self._time_ms), pack(self._origins)]
        return [*before, _BYTES + sum(map(len, machine)).to_bytes(4), *machine, *behind]

    def dump(self) -> bytes:
        return b"".join(self.pieces())

    def counts(self, bounds: Sequence[int]) -> list[int]:
        """See `FrozenCopy.counts`."""
        return self._machine.counts(bounds)

    def live(self, first: int, end: int) -> Mapping[int, Mapping[int, Sequence[tuple[int, int]]]]:
        """See `FrozenCopy.live`."""
        return self._machine.live(first, end)
