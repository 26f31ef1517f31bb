"""The end of a command that a signal would kill.

Lives here: making an exception of such a signal, so that what was begun is removed on the way out. Not here: Ctrl-C,
which is an exception anyhow, and what a node does about signals (serve.py).
"""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def in_order() -> Generator[None]:
    """End the block with SystemExit when somebody ends this process, but for signals that are ignored."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number in _SIGNALS:
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, _end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, _frame: object) -> None:
    signal.signal(number, signal.SIG_IGN)  # what is removed now shall be removed as a whole
    raise SystemExit(128 + number)  # as a shell says it of a process that the signal has killed
