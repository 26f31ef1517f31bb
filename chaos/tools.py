"""External programs outside the package index: their directory, and the command that installs them."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from qq.errors import OperatingError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_ROOT = Path(__file__).parents[1]


def directory() -> Path:
    """Return `.tools` of a checkout, else a directory in the user's cache."""
    if (_ROOT / "Makefile").exists():
        return _ROOT / ".tools"
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "qq"


def locate(
    module: str, what: str, argv: Sequence[str] | None, find: Callable[[], Path], install: Callable[[], Path]
) -> int:
    """Run the command line of a module that finds or installs a program: print its path, return the exit status."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=f"Find {what}.")
    parser.add_argument("--install", action="store_true", help="bring it if there is none")
    arguments = parser.parse_args(argv)
    try:
        try:
            place = find()
        except OperatingError:
            if not arguments.install:
                raise
            place = install()
    except OperatingError as error:
        print(error, file=sys.stderr)
        return 1
    print(place)
    return 0
