"""Programs of clients that run to their end, or beside a test."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from os import environ
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from pathlib import Path

PROGRAM_S = 20.0


@contextmanager
def started(
    command: Sequence[str | Path], settings: Mapping[str, str] | None = None
) -> Generator[subprocess.Popen[str]]:
    with subprocess.Popen(
        command,
        env=environ | (settings or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def run(command: Sequence[str | Path], settings: Mapping[str, str] | None = None) -> str:
    """Return the output of a program that must succeed."""
    with started(command, settings) as process:
        output, _ = process.communicate(timeout=PROGRAM_S)
    assert process.returncode == 0, output
    return output


def refusal(command: Sequence[str | Path], settings: Mapping[str, str] | None = None) -> str:
    """Return the output of a program that must fail."""
    with started(command, settings) as process:
        output, _ = process.communicate(timeout=PROGRAM_S)
    assert process.returncode == 1, output
    return output


def lines(process: subprocess.Popen[str], count: int) -> list[str]:
    """Return the next lines of a running program."""
    assert process.stdout is not None
    return [process.stdout.readline().rstrip("\n") for _ in range(count)]
