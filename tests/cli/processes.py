"""Running `qq` as a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

STUB = Path(__file__).with_name("stub_qq.py")
PATIENCE_S = 30.0


def wait_until(condition: Callable[[], bool], event: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, event
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Return whether the process runs; a zombie counts as dead."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


class Qq:
    """A `qq` process with its output in files, because a test may not read it in time."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path, errors: Path) -> None:
        self.process = process
        self._output = output
        self._errors = errors

    @property
    def output(self) -> str:
        return self._output.read_text()

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    def until_line(self, line: str) -> None:
        def printed() -> bool:
            assert self.process.poll() is None or line in self.output, self.output + self.errors
            return line in self.output.splitlines()

        wait_until(printed, f"{line!r} is not in:\n{self.output}{self.errors}")

    def until_output(self, text: str) -> None:
        wait_until(lambda: text in self.output, f"{text!r} is not in:\n{self.output}{self.errors}")

    def exit_status(self) -> int:
        return self.process.wait(PATIENCE_S)


@contextmanager
def started(directory: Path, *arguments: str, stdout: Any = None, **environ: str) -> Generator[Qq]:
    number = len(list(directory.glob("out*")))
    output, errors = directory / f"out{number}", directory / f"err{number}"
    with output.open("wb") as out, errors.open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, str(STUB), *arguments],
            stdout=stdout or out,
            stderr=err,
            env=os.environ | environ,
            cwd=directory,
        )
    try:
        yield Qq(process, output, errors)
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE_S)
        process.kill()
        process.wait()


def nodes_of(data_dir: Path) -> list[dict[str, Any]]:
    return json.loads((data_dir / "cluster.json").read_text())["nodes"]
