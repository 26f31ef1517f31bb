"""The output of `qq up`: its own lines, and new lines of the logs of its nodes.

Invariant: callers never wait for the terminal.
"""

from __future__ import annotations

import os
import queue
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_LOG_READ_BYTES = 65_536
_LINES_WAITING_MAX = 10_000  # further lines are only in the log
_LAST_LINES_TIMEOUT_S = 1.0
_STANDARD_OUTPUT = 1


class LogReader:
    """Prints new lines of a node's log, each with the node's name before it."""

    def __init__(self, name: str, path: Path, screen: Screen) -> None:
        self._name = name
        self._screen = screen
        self._file = path.open("a+b")
        self._file.seek(0, os.SEEK_END)
        self._unfinished = b""

    def print_new(self) -> None:
        while data := self._file.read(_LOG_READ_BYTES):
            *lines, self._unfinished = (self._unfinished + data).split(b"\n")
            if len(self._unfinished) > _LOG_READ_BYTES:
                lines.append(self._unfinished)
                self._unfinished = b""
            for line in lines:
                self._print_line(line)

    def close(self) -> None:
        self.print_new()
        if self._unfinished:
            self._print_line(self._unfinished)
        self._file.close()

    def _print_line(self, line: bytes) -> None:
        self._screen.print_line(f"{self._name} | {line.decode(errors='replace')}")


class Screen:
    """Standard output, written by a thread of its own because a write may block."""

    def __init__(self) -> None:
        self._lines: queue.Queue[str | None] = queue.Queue(_LINES_WAITING_MAX)
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._writer.start()

    def print_line(self, line: str) -> None:
        with suppress(queue.Full):
            self._lines.put_nowait(line)

    def close(self) -> None:
        """Wait up to a second until the last lines are written."""
        with suppress(queue.Full):
            self._lines.put_nowait(None)
        self._writer.join(_LAST_LINES_TIMEOUT_S)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            # Not print(): a thread stuck inside sys.stdout would make the interpreter abort at its end.
            data = line.encode(errors="replace") + b"\n"
            with suppress(OSError):  # the cluster runs on without a reader of the output
                while data:
                    data = data[os.write(_STANDARD_OUTPUT, data) :]
