"""Log lines about what a stranger can make happen as often as it likes.

Invariant: a kind of event costs a few lines a second, and the next line tells how many were left out. Where nobody
counts lines, what goes on and on, such as a node with a wrong secret that tries each second, comes to cost one line a
minute.
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
"""What has not happened for so long does not go on, but happens again."""
_REMEMBERED_MAX = 16
"""For how many lines of each kind it is remembered that they were written."""


class Complaints:
    """Writes lines about strangers to one logger, and leaves out those that are too many."""

    def __init__(self, log: logging.Logger, lines: int = 1, *, spares_repeats: bool = False) -> None:
        """At most `lines` lines of each kind are logged in a second. Kinds are never forgotten, so they must be few.

        With `spares_repeats`, a line that is the same as one before it is written less and less often. Not so where
        somebody, such as fail2ban, counts the lines of those who guess passwords.
        """
        self._log = log
        self._lines = lines
        self._spares_repeats = spares_repeats
        self._kinds: dict[Hashable, _Kind] = {}

    def about(self, kind: Hashable, text: str, level: int = logging.WARNING) -> None:
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
        """Whether this line may be written, as far as it was written before. It is noted that there is cause to."""
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
    """A line that was written."""

    def __init__(self, now_s: float) -> None:
        self.written_s = now_s
        self.wanted_s = now_s
        self.interval_s = _INTERVAL_S / 2
        """How long it is not written again; twice as long each time, as long as there is cause to."""
