"""Nodes of a release: its code is taken out of the repository's history and runs in this Python environment."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import qq.testing

if TYPE_CHECKING:
    from collections.abc import Generator

ROOT = Path(__file__).parents[1]
"""The code of this program."""
COMMITS = {"0.1": "55b39eb"}
"""The commit of each release."""


def unpack_release(release: str, directory: Path) -> None:
    """Write the code of a release to a directory."""
    commit = COMMITS[release]
    packed = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=False)
    if packed.returncode != 0:
        pytest.fail(
            f"commit {commit}, release {release}, is not in this clone: fetch the whole history, as with "
            f"`git fetch --unshallow` (git says: {packed.stderr.decode().strip()})",
            pytrace=False,
        )
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
        archive.extractall(directory, filter="data")


@contextmanager
def running(program: Path) -> Generator[None]:
    """Nodes that are started now run the code in this directory."""
    command = (sys.executable, "-P", str(program / "qq" / "__main__.py"), "serve")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(qq.testing, "SERVE_COMMAND", command)
        patch.setenv("PYTHONPATH", str(program))
        yield
