"""The import path of `cluster`, a package whose name an application may use as well."""

from __future__ import annotations

import sys
from pathlib import Path


def find_cluster() -> None:
    """Put this program's package `cluster` first on the import path, before any other package of that name.

    It is beside `qq` in a checkout, and inside of `qq` in an installation (setup.py).
    """
    ours = Path(__file__).parents[1]
    bundled = ours / "bundled"
    sys.path.insert(0, str(bundled if bundled.is_dir() else ours.parent))
