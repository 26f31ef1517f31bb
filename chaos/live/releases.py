"""The code of a release, taken out of the repository's history: nodes that are to be upgraded begin with it.

Invariant: a clone without that history is told in one line.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

from qq.errors import OperatingError

ROOT = Path(__file__).parents[2]
"""The code of this program."""
COMMITS = {"0.1": "55b39eb"}
"""The commit of each release."""


class ReleaseError(OperatingError):
    """The code of the release is not here."""


def unpack(release: str, directory: Path) -> None:
    """Write the code of a release to a directory, which is made; raises ReleaseError, and then nothing is written."""
    commit = COMMITS[release]
    command = ("git", "archive", commit)
    try:
        packed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    except FileNotFoundError:
        raise ReleaseError(
            f"release {release} is in the history of the repository, and there is no git"
        ) from None
    except subprocess.CalledProcessError as error:
        said = " ".join(error.stderr.decode().split())
        raise ReleaseError(
            f"commit {commit}, release {release}, is not in this clone: fetch the whole history, as with "
            f"`git fetch --unshallow` (git says: {said})"
        ) from None
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
        archive.extractall(directory, filter="data")


def serve_command(program: Path) -> tuple[str, ...]:
    """Tell the command of a node, without its options, that runs the code in this directory."""
    return (sys.executable, "-P", str(program / "qq" / "__main__.py"), "serve")


def environment(program: Path) -> dict[str, str]:
    """Tell the variables that such a node needs besides its others."""
    return {"PYTHONPATH": str(program)}
