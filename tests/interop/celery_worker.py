"""A Celery worker as a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

    from celery import Celery

HERE = Path(__file__).parent
READY_S = 60
STOP_S = 30.0
LOG_SHOWN = 8000


class Worker:
    """`celery worker` with two processes."""

    def __init__(self, name: str, environment: dict[str, str], log: Path) -> None:
        self.name = name
        self.log = log
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "tests.interop.celery_app",
            "worker",
            "--events",
            "--concurrency=2",
        ]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--loglevel=INFO", "--hostname", self.name],
                cwd=HERE,
                env=os.environ | self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def stop(self) -> None:
        """Warm shutdown: the tasks that it has begun are finished."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """All of its processes at once."""
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if number == signal.SIGKILL:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        try:
            process.wait(STOP_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def working(app: Celery, environment: dict[str, str], log: Path) -> Generator[Worker]:
    """Have a worker that has answered a ping. Its log is shown when the block fails."""
    worker = Worker(f"{log.stem}@here", environment, log)
    worker.start()
    try:
        wait_ready(app, worker)
        yield worker
    except BaseException:
        print(log.read_text(errors="replace")[-LOG_SHOWN:])
        raise
    finally:
        worker.kill()


def wait_ready(app: Celery, worker: Worker) -> None:
    for _ in range(READY_S):
        if app.control.ping(destination=[worker.name], timeout=1.0, limit=1):
            return
    raise AssertionError(f"{worker.name} does not answer after {READY_S} s")
