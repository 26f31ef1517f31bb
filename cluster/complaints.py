"""Log lines about what a stranger can make happen as often as it likes.

Lives here: how many such lines there are. Not here: what they say (the callers).

Law: a kind of event costs a few lines a second, and the next line tells how many were left out.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

_INTERVAL_S = 1.0


class Complaints:
    """Writes lines about strangers to one logger, and leaves out those that are too many."""

    def __init__(self, log: logging.Logger, lines: int = 1) -> None:
        """At most `lines` lines of each kind are logged in a second. Kinds are never forgotten, so they must be few."""
        self._log = log
        self._lines = lines
        self._kinds: dict[Hashable, _Kind] = {}

    def about(self, kind: Hashable, text: str, level: int = logging.WARNING) -> None:
        known = self._kinds.setdefault(kind, _Kind())
        now_s = time.monotonic()
        if now_s - known.since_s >= _INTERVAL_S:
            known.since_s, known.lines = now_s, 0
        if known.lines >= self._lines:
            known.left_out += 1
            return
        known.lines += 1
        left_out, known.left_out = known.left_out, 0
        if left_out:
            self._log.log(level, "%s (%d more since the last such line)", text, left_out)
        else:
            self._log.log(level, "%s", text)


class _Kind:
    def __init__(self) -> None:
        self.since_s = -_INTERVAL_S
        self.lines = 0
        self.left_out = 0
