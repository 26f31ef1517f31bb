"""The command `qq`.

Lives here: only what has to be so before anything of it is imported. What there is to call is in root.py and below
commands, how one is run in running.py, and what each does in the other modules here. They are imported when they are
called for, because a node is large and most commands are small.

Law: an operating error is one line on standard error and the exit status of its kind, never a traceback.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from qq.packages import find_cluster

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name and return its exit status."""
    find_cluster()
    _open_missing_streams()
    from qq.cli.running import run  # noqa: PLC0415

    return run(sys.argv[1:] if arguments is None else arguments)


def _open_missing_streams() -> None:
    """Have something in place of standard streams that whoever began this process has closed, as `>&-` does."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))
