"""Progress output of long commands, on standard error.

Invariant: an operation that takes longer than a second is reported; a faster operation prints no progress.
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from qq.cli.terminal.escaping import escaped

if TYPE_CHECKING:
    from collections.abc import Generator

    from rich.progress import Progress, ProgressColumn, TaskID

NOTICE_S = 1.0
"""Seconds until a wait is first reported, and between reports; after `_LONG_S` the reports are less frequent."""
_LONG_S = 10.0
_FRAME_S = 0.2
"""Seconds between updates of a bar."""


class Wait:
    """A wait of a command, which is reported to the operator."""

    def __init__(self, name: str, reason: str = "", *, has_bar: bool = False) -> None:
        """With `has_bar` a terminal already shows the progress of the command (`progress_bar`)."""
        self.reason = reason
        """Why the wait continues, as the node last reported."""
        self._name = name
        self._has_bar = has_bar
        self._is_on = True
        self._began_s = time.monotonic()
        self._notice_s = NOTICE_S
        """Seconds from the start of the wait to the next report."""

    @contextmanager
    def restarted(self) -> Generator[None]:
        """Restart the wait for the next part of a sequence, for the time of the block.

        Between such blocks no wait is reported.
        """
        self._began_s, self._notice_s, self._is_on = time.monotonic(), NOTICE_S, True
        try:
            yield
        finally:
            self._is_on = False

    @contextmanager
    def reported(self) -> Generator[None]:
        """Report during the block that the command is waiting."""
        is_over = threading.Event()
        report = self._report
        if sys.stderr.isatty():
            report = threading.Event.wait if self._has_bar else self._show
        reporter = threading.Thread(target=report, args=(is_over,), daemon=True)
        reporter.start()
        try:
            yield
        finally:
            is_over.set()
            reporter.join()

    def _report(self, is_over: threading.Event) -> None:
        while not is_over.wait(self._left_s):
            if self._left_s > 0:  # until the report of the next part
                continue
            text = f"waiting for {escaped(self._name)} ({self._notice_s:g} s){self._reason_suffix}"
            print(text, file=sys.stderr, flush=True)
            self._notice_s += NOTICE_S if self._notice_s < _LONG_S else _LONG_S

    @property
    def _left_s(self) -> float:
        """Return the seconds until the next report."""
        return self._began_s + self._notice_s - time.monotonic() if self._is_on else NOTICE_S

    def _show(self, is_over: threading.Event) -> None:
        if is_over.wait(NOTICE_S):
            return
        with _bar() as bar:
            task = bar.add_task("", total=None)
            while not is_over.wait(_FRAME_S):
                bar.update(task, description=f"waiting for {escaped(self._name)}{self._reason_suffix}")

    @property
    def _reason_suffix(self) -> str:
        return f": {escaped(self.reason)}" if self.reason else ""


class ProgressBar:
    """The progress of a long operation, shown by a bar after a second."""

    def __init__(self, name: str, bar: Progress | None) -> None:
        self._name = name
        self._bar = bar
        self._task: TaskID | None = None
        self._began_s = time.monotonic()

    def update(self, done: int, total: int | None) -> None:
        """Set the amount done, and the total if it is known."""
        if self._bar is None or time.monotonic() - self._began_s < NOTICE_S:
            return
        if self._task is None:
            self._task = self._bar.add_task(self._name)
            self._bar.start()
        self._bar.update(self._task, completed=done, total=total)

    def wait(self, name: str) -> Wait:
        """Make a wait for a part of the operation; beside a bar it prints no reports."""
        return Wait(name, has_bar=self._task is not None)


@contextmanager
def progress_bar(name: str, *, in_bytes: bool = False, prints: bool = False) -> Generator[ProgressBar]:
    """Count in the block, with a bar if standard error is a terminal.

    With `prints` the block itself prints, so a terminal that also shows its output gets no bar.
    """
    if not sys.stderr.isatty() or (prints and sys.stdout.isatty()):
        yield ProgressBar(name, None)
        return
    bar = _bar(in_bytes=in_bytes)
    try:
        yield ProgressBar(name, bar)
    finally:
        bar.stop()


def _bar(*, in_bytes: bool = False) -> Progress:
    from rich import progress  # noqa: PLC0415 -- only for a terminal
    from rich.console import Console  # noqa: PLC0415

    text = progress.TextColumn("{task.description}", markup=False)
    done: list[ProgressColumn] = [progress.DownloadColumn()] if in_bytes else []
    return progress.Progress(
        progress.SpinnerColumn(),
        text,
        progress.BarColumn(),
        *done,
        progress.TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
