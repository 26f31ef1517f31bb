"""Rate-limited logging for events that unauthenticated peers can trigger at will.

Invariant: each kind of event writes a few lines a second at most, and the next line reports how many were left out.
With `spares_repeats`, a repeating line, such as about a node with a wrong secret, backs off to a line a minute.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

_INTERVAL_S = 1.0
_REPEAT_INTERVAL_S = 60.0
_QUIET_S = 10.0
"""Seconds without an event after which its line counts as new instead of repeating."""
_REMEMBERED_MAX = 16
"""Number of recent lines of each kind whose repeats are recognized."""


class ThrottledLog:
    """Writes rate-limited lines to a logger."""

    def __init__(self, log: logging.Logger, lines: int = 1, *, spares_repeats: bool = False) -> None:
        """Log at most `lines` lines of each kind in a second. Kinds are never forgotten, so they must be few.

        With `spares_repeats`, a repeated line is written less and less often. It must be False where a program such as
        fail2ban counts the lines about wrong passwords.
        """
        self._log = log
        self._lines = lines
        self._spares_repeats = spares_repeats
        self._kinds: dict[Hashable, _Kind] = {}

    def warning(self, kind: Hashable, text: str) -> None:
        self._write(kind, logging.WARNING, text)

    def critical(self, kind: Hashable, text: str) -> None:
        self._write(kind, logging.CRITICAL, text)

    def _write(self, kind: Hashable, level: int, text: str) -> None:
        known = self._kinds.setdefault(kind, _Kind())
        now_s = time.monotonic()
        if now_s - known.since_s >= _INTERVAL_S:
            known.since_s, known.lines = now_s, 0
        is_spared = self._spares_repeats and not known.is_due(text, now_s)
        if is_spared or known.lines >= self._lines:
            known.left_out += 1
            return
        known.lines += 1
        if self._spares_repeats:
            known.written(text, now_s)
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
        self._repeats: dict[str, _WrittenLine] = {}

    def is_due(self, text: str, now_s: float) -> bool:
        """Return whether the line may be written now, and record that it was wanted."""
        repeat = self._repeats.get(text)
        if repeat is None:
            return True
        if now_s - repeat.wanted_s >= _QUIET_S:
            repeat.interval_s = _INTERVAL_S
        repeat.wanted_s = now_s
        return now_s - repeat.written_s >= repeat.interval_s

    def written(self, text: str, now_s: float) -> None:
        repeat = self._repeats.pop(text, None) or _WrittenLine(now_s)
        repeat.interval_s = min(2 * repeat.interval_s, _REPEAT_INTERVAL_S)
        repeat.written_s = now_s
        self._repeats[text] = repeat
        if len(self._repeats) > _REMEMBERED_MAX:
            del self._repeats[next(iter(self._repeats))]


class _WrittenLine:
    """Times of a line that was written."""

    def __init__(self, now_s: float) -> None:
        self.written_s = now_s
        self.wanted_s = now_s
        self.interval_s = _INTERVAL_S / 2
        """Seconds until the line may be written again. It doubles with each repeat while the line is wanted."""
