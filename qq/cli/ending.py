"""The end of a command that a signal would kill."""

from __future__ import annotations

import os
import signal
import threading
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


@contextmanager
def at_once() -> Generator[None]:
    """End the process when somebody interrupts the block, which imports something.

    An exception could come where Python can only tell of it and goes on, as in the middle of an import: then Ctrl-C is
    lost, and a node comes up that was told to stop.
    """
    before = signal.getsignal(signal.SIGINT)
    is_default = before is signal.default_int_handler
    if not is_default or threading.current_thread() is not threading.main_thread():  # others hear no signals
        yield
        return
    signal.signal(signal.SIGINT, _end_at_once)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end_at_once(number: int, _frame: object) -> None:
    os._exit(128 + number)


def _end(number: int, _frame: object) -> None:
    signal.signal(number, signal.SIG_IGN)  # what is removed now shall be removed as a whole
    raise SystemExit(128 + number)  # as a shell says it of a process that the signal has killed
