"""A node that notes when it does what, for budget.py: `budget_node.py PROGRAM serve ...`.

SIGUSR1 has it write its notes beside its data and forget them.
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

notes: list[tuple[int, str]] = []


def note(step: str) -> None:
    notes.append((time.monotonic_ns(), step))


def watch(
    owner: Any, method: str, begins: str = "", ends: str = "", named: Callable[..., str] | None = None
) -> None:
    """Note when a method is called and when it returns; `named` says what is noted of a call in place of `begins`."""
    original = getattr(owner, method)

    @wraps(original)
    def watched(*arguments: Any, **options: Any) -> Any:
        if named is not None:
            note(named(*arguments))
        elif begins:
            note(begins)
        try:
            return original(*arguments, **options)
        finally:
            if ends:
                note(ends)

    setattr(owner, method, watched)


def watch_all() -> None:
    from cluster.departures import Departures
    from cluster.engine import Engine
    from cluster.group import Group
    from cluster.log.journal import SegmentedJournal
    from cluster.log.segment_writer import SegmentWriter
    from cluster.realworld import RealFile
    from qq.amqp_server.connection import ClientConnection
    from qq.amqp_server.outgoing import Outgoing

    watch(ClientConnection, "data_received", "reads from the client", "has parsed it")
    watch(Group, "submit", "submits a batch")
    watch(Group, "_take_turn", "turn begins", "turn ends")
    watch(Engine, "propose", ends="has proposed")
    watch(Departures, "transmit", named=lambda _, peer, message: f"sends {type(message).__name__} to {peer}")
    watch(Group, "_receive", named=lambda _, peer, message: f"receives {type(message).__name__} of {peer}")
    watch(SegmentedJournal, "start_sync", "starts a sync")
    watch(SegmentWriter, "run", "the writer begins", "the writer ends")
    watch(RealFile, "sync", "fdatasync begins", "fdatasync ends")
    watch(Group, "_synced", "hears of the sync")
    watch(Group, "_apply", "applies", "has applied")
    watch(Outgoing, "confirm", "confirms")
    watch(ClientConnection, "_flush", ends="has written to the client")


def write(*_: object) -> None:
    done = sorted(notes)
    notes.clear()
    directory = Path(os.environ.get("BUDGET_DIR", tempfile.gettempdir()))
    (directory / f"{os.getpid()}.steps").write_text(json.dumps(done))


if __name__ == "__main__":
    program = sys.argv.pop(1)
    sys.path.insert(0, program)
    watch_all()
    signal.signal(signal.SIGUSR1, write)
    main = str(Path(program) / "qq" / "__main__.py")
    sys.argv[0] = main
    runpy.run_path(main, run_name="__main__")
