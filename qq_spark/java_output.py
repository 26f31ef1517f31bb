"""The output of Spark's Java process, and its errors in a line each."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path


@contextmanager
def errors_to(log: Path) -> Generator[None]:
    """Redirect standard error to a file: the Java process inherits it, and keeps it."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    kept = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def telling_line(error: BaseException) -> str:
    """Return the line of Spark's error that names the cause, without the trace of its calls."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    # Py4J's first line only says that an error occurred; the second line has the error.
    return lines[1].removeprefix(": ") if lines[0].startswith("An error occurred") and lines[1:] else lines[0]
