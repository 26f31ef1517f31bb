"""Where the packages of this program are that an application may have, too."""

from __future__ import annotations

import sys
from pathlib import Path


def find_cluster() -> None:
    """Have `cluster` be ours, whatever else has that name where Python looks.

    It stands beside `qq` in a checkout, and inside of it where qq is installed (setup.py).
    """
    ours = Path(__file__).parents[1]
    bundled = ours / "bundled"
    sys.path.insert(0, str(bundled if bundled.is_dir() else ours.parent))
