"""Signs of life of a command that takes long, on standard error.

Invariant: what is not done within a second is told; what is faster leaves no trace.
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from qq.cli.escaping import escaped

if TYPE_CHECKING:
    from collections.abc import Generator

    from rich.progress import Progress, ProgressColumn, TaskID

NOTICE_S = 1.0
"""After how many seconds of waiting the operator is told, and told again; after `_LONG_S` more rarely."""
_LONG_S = 10.0
_FRAME_S = 0.2
"""How often a bar is shown what has changed, in seconds."""


class Wait:
    """A command's wait, during which it tells the operator what it waits for."""

    def __init__(self, what: str, reason: str = "", *, has_bar: bool = False) -> None:
        """With `has_bar` a terminal shows already how far the command is (`counted`)."""
        self.reason = reason
        """Why the wait is not over yet, as the node last said."""
        self._what = what
        self._has_bar = has_bar
        self._is_on = True
        self._began_s = time.monotonic()
        self._notice_s = NOTICE_S
        """How many seconds after the start of the wait the operator is told next."""

    @contextmanager
    def of_one(self) -> Generator[None]:
        """Wait in the block for one of several things that come one after the other; between the blocks for nothing."""
        self._began_s, self._notice_s, self._is_on = time.monotonic(), NOTICE_S, True
        try:
            yield
        finally:
            self._is_on = False

    @contextmanager
    def told(self) -> Generator[None]:
        """Tell the operator during the block what is waited for."""
        is_over = threading.Event()
        tell = self._tell
        if sys.stderr.isatty():
            tell = threading.Event.wait if self._has_bar else self._show
        telling = threading.Thread(target=tell, args=(is_over,), daemon=True)
        telling.start()
        try:
            yield
        finally:
            is_over.set()
            telling.join()

    def _tell(self, is_over: threading.Event) -> None:
        while not is_over.wait(self._left_s):
            if self._left_s > 0:  # of the next thing that is waited for
                continue
            text = f"waiting for {escaped(self._what)} ({self._notice_s:g} s){self._why}"
            print(text, file=sys.stderr, flush=True)
            self._notice_s += NOTICE_S if self._notice_s < _LONG_S else _LONG_S

    @property
    def _left_s(self) -> float:
        """How many seconds are left until the operator is told."""
        return self._began_s + self._notice_s - time.monotonic() if self._is_on else NOTICE_S

    def _show(self, is_over: threading.Event) -> None:
        if is_over.wait(NOTICE_S):
            return
        with _bar() as bar:
            task = bar.add_task("", total=None)
            while not is_over.wait(_FRAME_S):
                bar.update(task, description=f"waiting for {escaped(self._what)}{self._why}")

    @property
    def _why(self) -> str:
        return f": {escaped(self.reason)}" if self.reason else ""


class Count:
    """How much of something long is done, which a bar shows once it has taken a second."""

    def __init__(self, what: str, bar: Progress | None) -> None:
        self._what = what
        self._bar = bar
        self._task: TaskID | None = None
        self._began_s = time.monotonic()

    def so_far(self, done: int, total: int | None) -> None:
        """Tell how much is done, and of how much, if that is known."""
        if self._bar is None or time.monotonic() - self._began_s < NOTICE_S:
            return
        if self._task is None:
            self._task = self._bar.add_task(self._what)
            self._bar.start()
        self._bar.update(self._task, completed=done, total=total)

    def wait(self, what: str) -> Wait:
        """Make a wait for a part of it, of which nothing is told beside a bar."""
        return Wait(what, has_bar=self._task is not None)


@contextmanager
def counted(what: str, *, in_bytes: bool = False, prints: bool = False) -> Generator[Count]:
    """Count in the block, with a bar if somebody looks; one that `prints` meanwhile has none on the same terminal."""
    if not sys.stderr.isatty() or (prints and sys.stdout.isatty()):
        yield Count(what, None)
        return
    bar = _bar(in_bytes=in_bytes)
    try:
        yield Count(what, bar)
    finally:
        bar.stop()


def _bar(*, in_bytes: bool = False) -> Progress:
    from rich import progress  # noqa: PLC0415 -- where somebody looks
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
