"""Debian's packages: programs that tests need are installed, and source packages of clients are fetched.

Needs apt; installing needs root, too. Which mirror packages come from is apt's affair.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

from tests.interop.sources import HERE, UNPACKED, SourceMissingError, WrongHashError, fetching, run, unpack

INSTALL_TIMEOUT_S = 400.0
_PIN = re.compile(r"(?P<name>\S+) (?P<version>\S+) (?P<suite>\S+) sha256:(?P<digest>[0-9a-f]{64})")


def install(*packages: str) -> None:
    """Install missing packages. Raises SourceMissingError, with the commands to run, if that is impossible here."""
    if not _missing(packages):
        return
    how = f"apt-get install {' '.join(packages)}"
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise SourceMissingError(f"not here: {how}")
    UNPACKED.mkdir(exist_ok=True)
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for attempt in (command, ["apt-get", "update"], command):
        done = subprocess.run(
            attempt,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
            check=False,
        )
        if not _missing(packages):
            return
    raise SourceMissingError(f"{how} fails:\n{done.stderr.strip()}")


def _missing(packages: tuple[str, ...]) -> list[str]:
    if shutil.which("dpkg-query") is None:
        return list(packages)
    command = ["dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status}\\n", *packages]
    shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    return [package for package in packages if f"{package} installed" not in shown]


def debian_source(name: str) -> Path:
    """Directory of the source package that `sources_debian.txt` pins. Raises SourceMissingError.

    apt's own configuration stays as it is: sources, of any release of Debian, are looked up in lists of their own.
    """
    pins = [_PIN.fullmatch(line) for line in (HERE / "sources_debian.txt").read_text().splitlines()]
    [pin] = [pin for pin in pins if pin and pin["name"] == name]
    package = f"{name}={pin['version']}"
    directory = UNPACKED / f"{name}-{pin['version']}"
    with fetching(directory) as unfinished:
        if unfinished is not None:
            configuration = _source_lists(pin["suite"], unfinished)
            run(["apt-get", "update"], unfinished, package, configuration)
            try:
                run(["apt-get", "source", "--download-only", package], unfinished, package, configuration)
            except SourceMissingError:
                # Some mirrors lack the files that Debian adds, which the tests do without.
                if not list(unfinished.glob("*.orig.tar.*")):
                    raise
            [archive] = unfinished.glob("*.orig.tar.*")
            digest = hashlib.sha256(archive.read_bytes()).hexdigest()
            if digest != pin["digest"]:
                raise WrongHashError(f"{package} has another hash than the pinned one: sha256:{digest}")
            unpack(archive, unfinished / "unpacked")
    return directory


def _source_lists(suite: str, directory: Path) -> dict[str, str]:
    """Write a configuration of apt with the sources of a release; return the environment that uses it."""
    targets = ["--format", "$(REPO_URI)", "Created-By: Packages", "Label: Debian", "Component: main"]
    [mirror, *_] = run(
        ["apt-get", "indextargets", *targets], directory, "the address of apt's mirror"
    ).split()
    for name in ("lists/partial", "cache/archives/partial"):
        (directory / name).mkdir(parents=True)
    (directory / "sources.list").write_text(f"deb-src {mirror} {suite} main\n")
    (directory / "apt.conf").write_text(
        f"""Dir::Etc::SourceList "{directory}/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::State::Lists "{directory}/lists";
Dir::Cache "{directory}/cache";
APT::Sandbox::User "";
"""
    )
    return {"APT_CONFIG": str(directory / "apt.conf")}
