"""Finds the Java that Spark runs on, or downloads it into the project's tool directory.

    python -m chaos.pipeline.java             prints its home directory
    python -m chaos.pipeline.java --install   downloads a Java first if none is found

The search order is JAVA_HOME, PATH, the tool directory (tools.py). spark.py starts Spark.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import jdk

from chaos import tools
from qq.errors import OperatingError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

OLDEST = 17
"""The oldest version of Java that PySpark 4 runs on."""
INSTALLED = "21"
REMEDY = "run `make setup` (or `python -m chaos.pipeline.java --install`), or set JAVA_HOME"
_VERSION_TIMEOUT_S = 30.0


class JavaError(OperatingError):
    """No suitable Java was found, or the download failed."""


def find() -> Path:
    """Return the home directory of the first Java that is new enough. Raises JavaError, which names the remedy."""
    seen = []
    for home in _candidates():
        version = _version(home)
        if version is not None and version >= OLDEST:
            return home
        seen.append(f"{home}: " + ("does not run" if version is None else f"Java {version}"))
    found = f" ({'; '.join(seen)})" if seen else ""
    raise JavaError(f"the checker needs Java {OLDEST} or newer and found none{found}: {REMEDY}")


def install() -> Path:
    """Download a Java runtime into the tool directory and return its home. Raises JavaError."""
    directory = tools.directory() / "java"
    directory.mkdir(parents=True, exist_ok=True)
    try:
        jdk.install(INSTALLED, jre=True, path=str(directory))
    except (jdk.JdkError, OSError) as error:
        raise JavaError(
            f"Java {INSTALLED} could not be brought to {directory}: {error}; set JAVA_HOME"
        ) from error
    return find()


def _candidates() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home)
    if java := shutil.which("java"):
        yield Path(java).resolve().parent.parent
    # On macOS the home of a JDK is in a deeper directory.
    for java in sorted((tools.directory() / "java").glob("**/bin/java"), reverse=True):
        yield java.parent.parent


def _version(home: Path) -> int | None:
    """Return the major version of the Java in `home`, or None if it is missing or does not run."""
    try:
        printed = subprocess.run(
            [home / "bin" / "java", "-version"],
            capture_output=True,
            text=True,
            timeout=_VERSION_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    # Java 8 calls itself 1.8.
    version = re.search(r'version "(?:1\.)?(\d+)', printed.stderr)
    return int(version[1]) if version else None


def main(argv: Sequence[str] | None = None) -> int:
    return tools.locate("chaos.pipeline.java", "the Java that Spark runs on", argv, find, install)


if __name__ == "__main__":
    sys.exit(main())
