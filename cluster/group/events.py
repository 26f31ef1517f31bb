"""What a group tells the shell around it.

Invariant: effects are told once, in the order of the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class GroupEvents(Protocol):
    """What the shell hears from the group, on the loop."""

    def applied(self, index: int, effects: Sequence[Any]) -> None:
        """The entry at `index` is committed and applied, and `effects` follow from it, in order."""
        ...

    def leader_changed(self, leader: str | None, term: int) -> None: ...

    def resumed(self, sequence: int, outstanding: Sequence[Any]) -> None:
        """A snapshot was installed; nothing else is told of the entries that it stands for.

        This node's batches up to `sequence` have been applied, and `outstanding` is what the machine owes its sessions.
        """
        ...

    def needed_from(self) -> int | None:
        """The first entry that the shell will still read although the state may not refer to it; None if none is."""
        ...

    def alarm_changed(self, reason: str | None) -> None:
        """From now on publishers must wait for this reason or, if it is None, need not wait any more."""
        ...


class Nobody:
    """The events of a group that has not been started: all are ignored."""

    def applied(self, index: int, effects: Sequence[Any]) -> None: ...

    def leader_changed(self, leader: str | None, term: int) -> None: ...

    def resumed(self, sequence: int, outstanding: Sequence[Any]) -> None: ...

    def needed_from(self) -> int | None: ...

    def alarm_changed(self, reason: str | None) -> None: ...
