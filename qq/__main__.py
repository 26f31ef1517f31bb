"""`python -m qq` is the command `qq`, and so is `python -P qq/__main__.py`, wherever that file is (cli/launch.py).

Invariant: Ctrl-C is no error, not even during the import of the command, which takes half a second. SIGTERM is not lost
in that time either: in a container this is the first process, which the system does not end for a signal without a
handler.
"""

import os
import signal
import sys
from importlib import import_module
from pathlib import Path

_HERE = str(Path(__file__).parents[1])
if (
    _HERE not in sys.path
):  # of a checkout; an installation's directory is on the path, behind the standard library
    sys.path.insert(0, _HERE)


_FIRST_PROCESS = 1
_PRIVATE = 0o077
"""The umask: files that a command writes, such as data, backups and logs, are for its user only."""


def run() -> int:
    """Run the command of this process and return its exit status: 130 after Ctrl-C, as shells report it."""
    os.umask(_PRIVATE)
    if os.getpid() == _FIRST_PROCESS:
        signal.signal(signal.SIGTERM, _end_at_once)
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    try:
        if is_default:  # as ending.at_once does, which is not imported yet
            signal.signal(signal.SIGINT, _end_at_once)
        # The imports find the packages beside this file only now.
        from qq.cli import main  # noqa: PLC0415
        from qq.process import garbage  # noqa: PLC0415

        with garbage.none_expected():
            import_module("qq.cli.running")
        if is_default:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return main()
    except KeyboardInterrupt:  # before a command could handle it
        return 130


def _end_at_once(number: int, _frame: object) -> None:
    """End the process, as the system does with any other process without a handler."""
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(run())
