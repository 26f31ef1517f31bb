"""The command `qq`.

Invariant: an operating error is one line on standard error and the exit status of its kind, never a traceback.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from qq.process.packages import find_cluster

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command named by the arguments and return its exit status."""
    find_cluster()
    _open_missing_streams()
    from qq.cli.running import run  # noqa: PLC0415

    return run(sys.argv[1:] if arguments is None else arguments)


def _open_missing_streams() -> None:
    """Replace standard streams that are closed, as after `>&-` in a shell, with /dev/null."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))
