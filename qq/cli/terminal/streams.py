"""Standard input and output in place of files."""

from __future__ import annotations

import sys
from pathlib import Path

STANDARD_STREAM = "-"
"""Argument that means standard input or output instead of a path."""


def read_within(file: str, bytes_max: int) -> bytes | None:
    """Read a file, or standard input (`-`); return `None` if it exceeds `bytes_max`. Raises OSError."""
    with sys.stdin.buffer if file == STANDARD_STREAM else Path(file).open("rb") as stream:
        content = stream.read(bytes_max + 1)
    return None if len(content) > bytes_max else content
