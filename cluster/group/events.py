"""The events that a group reports to the broker.

Invariant: each effect is reported once, in the order of the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class GroupEvents(Protocol):
    """Receives the events of a group, on the event loop."""

    def applied(self, index: int, effects: Sequence[Any]) -> None:
        """Report that the entry at `index` is committed and applied. `effects` are its effects, in order."""
        ...

    def leader_changed(self, leader: str | None, term: int) -> None: ...

    def resumed(self, sequence: int, outstanding: Sequence[Any]) -> None:
        """Report that a snapshot was installed. The entries that it replaces cause no further events.

        This node's batches up to `sequence` have been applied. `outstanding` has the effects that the machine still
        owes to the sessions of this node.
        """
        ...

    def needed_from(self) -> int | None:
        """Return the lowest log index that the broker may still read, or None.

        The state may no longer refer to that entry, for example while the broker delivers its messages.
        """
        ...

    def alarm_changed(self, reason: str | None) -> None:
        """Report why publishers must wait from now on. They may continue if `reason` is `None`."""
        ...


class NoEvents:
    """Ignores all events. A group uses it until it is started."""

    def applied(self, index: int, effects: Sequence[Any]) -> None: ...

    def leader_changed(self, leader: str | None, term: int) -> None: ...

    def resumed(self, sequence: int, outstanding: Sequence[Any]) -> None: ...

    def needed_from(self) -> int | None: ...

    def alarm_changed(self, reason: str | None) -> None: ...
