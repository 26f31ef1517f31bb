"""The programs, libraries and commit of a run, for its report."""

from __future__ import annotations

import platform
import re
import subprocess
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from chaos.live import toxiproxy
from chaos.pipeline import java
from qq import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

PACKAGES = ("aio-pika", "pika", "pyspark", "python-qpid-proton")
_CHECKOUT = Path(__file__).parents[2]
_PATIENCE_S = 30.0
_GO_MODULE = re.compile(rb"mod\tgithub\.com/Shopify/toxiproxy/v2\tv?([\w.+-]+)\t")


def of_own_cluster() -> dict[str, str]:
    """Return the versions of a cluster that runs this code."""
    return _known({"qq": __version__, "commit": commit(), "toxiproxy": _toxiproxy()})


def of_cluster(introductions: Iterable[str]) -> dict[str, str]:
    """Return the versions of an existing cluster, from the introductions of its nodes, and of the harness."""
    return _known({"cluster": "; ".join(sorted(set(introductions))), "harness": commit() or __version__})


def of_harness() -> dict[str, str]:
    packages = {name: _package(name) for name in PACKAGES}
    return _known({"python": platform.python_version(), **packages, "java": _java()})


def introduction(server_properties: Mapping[str, object]) -> str:
    """Return product, version and owner as a node introduces itself to its clients: qq calls itself RabbitMQ."""
    properties = (server_properties.get(name, "?") for name in ("product", "version", "copyright"))
    product, number, owner = (one.decode() if isinstance(one, bytes) else one for one in properties)
    return f"{product} {number} ({owner})"


def commit(checkout: Path = _CHECKOUT) -> str | None:
    """Return the commit of a checkout, with `-dirty` if files were changed; `None` if Git does not know it."""
    if not (checkout / ".git").exists():
        return None
    described = ("git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    return (_output_of(described) or "").strip() or None


def _package(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _toxiproxy() -> str | None:
    try:
        server = toxiproxy.find_server()
    except toxiproxy.ToxiproxyError:
        return None
    # A binary built by `go install` calls itself `git`; Go has written its version into it.
    with suppress(OSError):
        if built := _GO_MODULE.search(server.read_bytes()):
            return built[1].decode()
    return (_output_of((str(server), "-version")) or "").rpartition(" ")[2].strip() or None


def _java() -> str | None:
    try:
        home = java.find()
    except java.JavaError:
        return None
    found = re.search(r'version "([^"]+)"', _output_of((str(home / "bin" / "java"), "-version")) or "")
    return found[1] if found else None


def _output_of(command: Sequence[str]) -> str | None:
    """Run a program and return its output, from both streams; `None` if it is missing or fails."""
    try:
        printed = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_PATIENCE_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return printed.stdout


def _known(versions: Mapping[str, str | None]) -> dict[str, str]:
    return {name: number for name, number in versions.items() if number}
