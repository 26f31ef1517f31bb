"""The code of a release, taken from the repository's history: nodes of an upgrade run begin with it.

Invariant: a clone without that history gives a one-line error.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

from qq.errors import OperatingError

ROOT = Path(__file__).parents[2]
"""The directory of this program's code."""
IN_USE = "version 13"
COMMITS = {"0.1": "55b39eb", IN_USE: "7b4fe833"}
"""The commit of each release, and of the first program in use with the newest version of the state."""


class ReleaseError(OperatingError):
    """The code of the release is not available."""


def unpack(release: str, directory: Path) -> None:
    """Write the code of a release to a new directory. Raises ReleaseError before it writes anything."""
    commit = COMMITS[release]
    command = ("git", "archive", commit)
    try:
        packed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    except FileNotFoundError:
        raise ReleaseError(
            f"release {release} is in the history of the repository, and there is no git"
        ) from None
    except subprocess.CalledProcessError as error:
        error_text = " ".join(error.stderr.decode().split())
        raise ReleaseError(
            f"commit {commit}, release {release}, is not in this clone: fetch the whole history, as with "
            f"`git fetch --unshallow` (git says: {error_text})"
        ) from None
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2 has no filters
        archive.extractall(directory)  # noqa: S202 -- a commit of this repository


def serve_command(program: Path) -> tuple[str, ...]:
    """Return the command of a node that runs the code in this directory, without its options."""
    return (sys.executable, "-P", str(program / "qq" / "__main__.py"), "serve")


def environment(program: Path) -> dict[str, str]:
    """Return the environment variables that such a node needs additionally."""
    return {"PYTHONPATH": str(program)}
