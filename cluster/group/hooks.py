"""The functions of a group that its parts call. No part knows the group itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Hooks(NamedTuple):
    """Functions of the group that its parts call."""

    turn: Callable[[], None]
    """Take a turn that was requested."""
    apply: Callable[[int, int, bytes], None]
    """Apply the committed entry with this index, term and payload."""
    installed: Callable[[int], None]
    """Tell the broker that a snapshot of this index was installed."""
    needed_from: Callable[[], int | None]
    """Return the index of the first entry that must stay in the log, or `None` if no entry must."""
    propose_nothing: Callable[[], None]
    """Propose a batch without commands, so that the log gets a further entry."""
    alarm_changed: Callable[[str | None], None]
    """Tell the broker why publishers must wait from now on, or None if they may continue."""
    give_way: Callable[[], bool]
    """Hand over leadership; return True once the other voters are a majority without this node."""
