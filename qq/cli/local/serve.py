"""`qq serve`: runs a node in the foreground."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import uvloop

from qq import __version__, node
from qq.cli.local.launch import PARENT_VARIABLE, load_settings
from qq.cli.terminal.escaping import escaped
from qq.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from pathlib import Path

    from qq.config import NodeConfig, Seed

log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 30.0
"""Seconds after a stop signal until the process ends itself, because it waits for a hanging resource such as the disk.
Service managers wait longer before they kill, and a killed process logs no reason."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


class LineFormatter(logging.Formatter):
    """Writes a message as a single line, with texts of clients and other brokers escaped."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the name is defined by logging
        record.message = escaped(record.message)
        return super().formatMessage(record)


def serve(
    config_file: Path,
    run: Callable[[NodeConfig], Coroutine[Any, Any, None]] = node.run,
    *,
    join: Sequence[Seed] = (),
) -> int:
    """Run the node until SIGTERM or SIGINT. Raises OperatingError.

    The process must have no other threads yet: an older thread would not have these signals blocked.
    """
    _die_with_parent()
    settings = load_settings(config_file, join)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler])
    log.info(
        "node %s of qq %s, configured by %s, data in %s",
        settings.name,
        __version__,
        config_file.absolute(),
        settings.data_dir.absolute(),
    )
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        uvloop.run(_serve_until_stopped(run(settings)))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)  # later child processes would inherit the mask
    log.info("node %s was told to stop, and has stopped", settings.name)  # a killed node does not log it
    return 0


async def _serve_until_stopped(service: Coroutine[Any, Any, None]) -> None:
    loop = asyncio.get_running_loop()
    serving = loop.create_task(service)
    stop = partial(loop.call_soon_threadsafe, serving.cancel)
    threading.Thread(target=_stop_when_told, args=(stop,), name="signals", daemon=True).start()
    await asyncio.wait([serving])
    if not serving.cancelled():
        serving.result()


def _stop_when_told(stop: Callable[[], object]) -> None:
    """Stop the node at a signal, and end the process if that takes too long.

    It runs in a thread, because the event loop itself may be waiting for a hanging disk.
    """
    signal.sigwait(_SIGNALS)
    end_s = time.monotonic() + STOP_TIMEOUT_S
    while (left_s := end_s - time.monotonic()) > 0:
        with suppress(RuntimeError):  # the loop is closed: the process is about to end
            stop()
        signal.sigtimedwait(_SIGNALS, left_s)
    what = "something hangs, such as the disk, and the process ends as if it were killed"
    log.critical("not stopped %g s after a signal: %s", STOP_TIMEOUT_S, what)
    os._exit(1)


def _die_with_parent() -> None:
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is None or sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if str(os.getppid()) != parent:  # the parent died before prctl took effect
        raise StartError("the `qq up` that started this node is gone")
