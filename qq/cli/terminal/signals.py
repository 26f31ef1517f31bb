"""Handles signals that would kill a command, so that it cleans up or ends at once."""

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
def exit_in_order() -> Generator[None]:
    """End the block with SystemExit on SIGTERM or SIGHUP, unless the signal is ignored."""
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
def exit_at_once() -> Generator[None]:
    """End the process on Ctrl-C in the block, which imports a module.

    A KeyboardInterrupt can arrive where Python only reports it and continues, such as in the middle of an import. Then
    Ctrl-C would be lost, and a node would start that was told to stop.
    """
    before = signal.getsignal(signal.SIGINT)
    is_default = before is signal.default_int_handler
    if not is_default or threading.current_thread() is not threading.main_thread():  # signals go there
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
    signal.signal(number, signal.SIG_IGN)  # a second signal must not interrupt the cleanup
    raise SystemExit(128 + number)  # the status that a shell reports for a killed process
