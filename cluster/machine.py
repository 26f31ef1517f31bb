"""The contract between a replicated state machine and the group that replicates it.

Law: a machine is a pure function of what it was given before. The same calls in the same order leave every replica in
the same state with the same effects: no clock (time arrives with the entry), no randomness, no I/O, no iteration over
sets, no floats. It never raises: a command that cannot be carried out yields an effect that says so (hazard H10: an
exception would be repeated for ever).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Machine(Protocol):
    """What a group calls, in log order. The effects are opaque to the group."""

    def apply_batch(
        self, origin: str, index: int, ordinal: int, time_ms: int, payload: memoryview
    ) -> Sequence[Any]:
        """Carry out one batch that node `origin` submitted.

        `index` is the Raft index of the entry, `ordinal` the batch's position in it, `time_ms` the leader's clock,
        which never goes backwards from entry to entry.
        """
        ...

    def end_entry(self) -> Sequence[Any]:
        """Called once after the batches of an entry."""
        ...

    def origin_down(self, origin: str, *, expelled: bool) -> Sequence[Any]:
        """Everything that `origin` held is given up.

        It restarted, or (`expelled`) the cluster stopped waiting for it.
        """
        ...

    def dump(self) -> bytes:
        """The whole state; equal states give equal bytes."""
        ...

    def load(self, data: bytes) -> None: ...

    def digest(self) -> str:
        """A short name of the state: equal states, equal digests."""
        ...
