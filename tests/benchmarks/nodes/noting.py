"""A node that records the times of its steps, for budget.py: `noting.py PROGRAM serve ...`.

On SIGUSR1 it writes its records beside its data and forgets them.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import tempfile
import time
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAM = sys.argv.pop(1)
# The measured program, which may be a version other than this file's.
sys.path.insert(0, PROGRAM)
from cluster.engine.engine import Engine  # noqa: E402
from cluster.group.group import Group  # noqa: E402
from cluster.group.inbox import Inbox  # noqa: E402
from cluster.log.journal import SegmentedJournal  # noqa: E402
from cluster.log.segment_writer import SegmentWriter  # noqa: E402
from cluster.runtime.asyncio_runtime import RealFile  # noqa: E402
from cluster.transport.connection import PeerConnection  # noqa: E402
from cluster.transport.outbox import LogSync, PeerOutbox  # noqa: E402
from qq.amqp_server.connection import AmqpConnection  # noqa: E402
from qq.amqp_server.outgoing import Outgoing  # noqa: E402

records: list[tuple[int, str]] = []


def record(step: str) -> None:
    records.append((time.monotonic_ns(), step))


def watch(
    owner: Any, method: str, begins: str = "", ends: str = "", named: Callable[..., str] | None = None
) -> None:
    """Record each call and return of a method; `named` returns the text of a call, in place of `begins`."""
    original = getattr(owner, method)

    @wraps(original)
    def watched(*arguments: Any, **options: Any) -> Any:
        if named is not None:
            record(named(*arguments))
        elif begins:
            record(begins)
        try:
            return original(*arguments, **options)
        finally:
            if ends:
                record(ends)

    setattr(owner, method, watched)


def watch_all() -> None:
    watch(AmqpConnection, "data_received", "reads from the client", "has parsed it")
    watch(Group, "propose", "proposes a batch")
    watch(Group, "_take_turn", "turn begins", "turn ends")
    watch(Engine, "propose", ends="has proposed")
    watch(PeerConnection, "get_buffer", "is woken by a peer")
    watch(PeerOutbox, "transmit", named=lambda _, peer, message: f"sends {type(message).__name__} to {peer}")
    watch(Inbox, "_receive", named=lambda _, peer, message: f"receives {type(message).__name__} of {peer}")
    watch(SegmentedJournal, "start_sync", "starts a sync")
    watch(SegmentWriter, "run", "the writer begins", "the writer ends")
    watch(RealFile, "sync", "fdatasync begins", "fdatasync ends")
    watch(LogSync, "_synced", "hears of the sync")
    watch(Group, "_apply", "applies", "has applied")
    watch(Outgoing, "confirm", "confirms")
    watch(AmqpConnection, "_flush", ends="has written to the client")


def write(*_: object) -> None:
    done = sorted(records)
    records.clear()
    directory = Path(os.environ.get("BUDGET_DIR", tempfile.gettempdir()))
    (directory / f"{os.getpid()}.steps").write_text(json.dumps(done))


watch_all()
signal.signal(signal.SIGUSR1, write)
sys.argv[0] = str(Path(PROGRAM) / "qq" / "__main__.py")
runpy.run_path(sys.argv[0], run_name="__main__")
