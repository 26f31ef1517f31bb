"""`python -m qq` is the command `qq`, and so is `python -P qq/__main__.py`, wherever that file is (cli/launch.py)."""

import sys
from pathlib import Path

_HERE = str(Path(__file__).parents[1])
if (
    _HERE not in sys.path
):  # of a checkout; where packages are installed it is there, behind the standard library
    sys.path.insert(0, _HERE)

from qq.cli import main  # noqa: E402 -- only now it is the one beside this file

if __name__ == "__main__":
    sys.exit(main())
