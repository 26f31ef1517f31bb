"""Source packages of real clients, with the tests that they ship.

Fetched once by the package client of their language, checked against a hash, unpacked below `build/`, never changed and
never committed. Which index or mirror they come from is the package client's affair.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

HERE = Path(__file__).parent
CLIENTS = HERE.parent.parent / "requirements" / "clients.txt"
UNPACKED = HERE / "build"
FETCH_TIMEOUT_S = 100.0
BUILD_TIMEOUT_S = 400.0
GO_ENVIRONMENT = {
    "GOMODCACHE": str(UNPACKED / "go"),
    # So that it can be deleted as the rest of `build/`; and the compiler that is there is used.
    "GOFLAGS": "-modcacherw",
    "GOTOOLCHAIN": "local",
}
CARGO_ENVIRONMENT = {"CARGO_TARGET_DIR": str(UNPACKED / "rust")}
_PIN = re.compile(r"(?P<name>[\w.-]+)==(?P<version>\S+) --hash=sha256:(?P<digest>[0-9a-f]{64})")
_NODE_PIN = re.compile(r"(?P<name>[\w.-]+)@(?P<version>\S+) sha512-(?P<digest>\S+)")
_NODE_CLIENT_PIN = re.compile(r"(?P<what>(?P<name>@?[\w./-]+)@\S+) (?P<digest>sha512-\S+)")
_JAR_PIN = re.compile(r"(?P<name>\S+\.jar) sha256:(?P<digest>[0-9a-f]{64})")
_GO_PIN = re.compile(r"(?P<module>\S+?/(?P<name>[\w.-]+)(?:/v\d+)?) v(?P<version>\S+) (?P<digest>h1:\S+)")


class SourceMissingError(Exception):
    """A source package could not be fetched; the message says how to fetch it."""


class WrongHashError(Exception):
    """A fetched file differs from its pin."""


def python_clients() -> Path:
    """Directory of the packages in `requirements/clients.txt`, for PYTHONPATH. Raises SourceMissingError."""
    directory = UNPACKED / f"python-clients-{_digest(CLIENTS)}"
    with fetching(directory) as unfinished:
        if unfinished is not None:
            command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
            # puka and Proton have no wheel: they are built with the build tools that we have pinned, Proton from C.
            command += ["--no-deps", "--no-build-isolation", "--require-hashes"]
            command += ["--target", str(unfinished / "unpacked"), "--requirement", str(CLIENTS)]
            run(command, unfinished, CLIENTS.name, timeout_s=BUILD_TIMEOUT_S)
    return directory


def python_source(name: str, build_tools: Path | None = None) -> Path:
    """Directory of the source package that `sources.txt` pins. Raises SourceMissingError, for instance offline.

    `build_tools`: where its build tools are, if they are not in the environment.
    """
    pins = [_PIN.fullmatch(line) for line in (HERE / "sources.txt").read_text().splitlines()]
    pin = next(pin for pin in pins if pin and pin["name"] == name)
    directory = UNPACKED / f"{name}-{pin['version']}"
    tools = {"PYTHONPATH": str(build_tools)} if build_tools else {}
    with fetching(directory) as unfinished:
        if unfinished is not None:
            pinned = unfinished / "pinned.txt"
            pinned.write_text(pin[0] + "\n")
            # pip builds a package's metadata when it downloads it: with the build tools that we have pinned.
            command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "download"]
            command += ["--no-deps", "--no-binary", name, "--no-build-isolation", "--require-hashes"]
            run(
                [*command, "--dest", str(unfinished), "--requirement", str(pinned)], unfinished, pin[0], tools
            )
            [archive] = unfinished.glob("*.tar.gz")
            unpack(archive, unfinished / "unpacked")
    return directory


def amqplib_source() -> Path:
    """Return the directory of the packages in `sources_node.txt`: the first package, with the rest as its
    dependencies.
    """
    pins = [
        pin
        for line in (HERE / "sources_node.txt").read_text().splitlines()
        if (pin := _NODE_PIN.fullmatch(line))
    ]
    directory = UNPACKED / f"{pins[0]['name']}-{pins[0]['version']}"
    with fetching(directory) as unfinished:
        if unfinished is not None:
            target = unfinished / "unpacked"
            for pin in pins:
                package = f"{pin['name']}@{pin['version']}"
                run(["npm", "pack", "--silent", package], unfinished, package)
                archive = unfinished / f"{pin['name']}-{pin['version']}.tgz"
                digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
                if digest != pin["digest"]:
                    raise WrongHashError(f"{package} has another hash than the pinned one: sha512-{digest}")
                unpack(archive, target if pin is pins[0] else target / "node_modules" / pin["name"])
    return directory


def node_clients() -> Path:
    """Directory of the packages in `clients_node.txt`, for NODE_PATH. Raises SourceMissingError."""
    pinned = HERE / "clients_node.txt"
    pins = [pin for line in pinned.read_text().splitlines() if (pin := _NODE_CLIENT_PIN.fullmatch(line))]
    directory = UNPACKED / f"node-clients-{_digest(pinned)}"
    with fetching(directory) as unfinished:
        if unfinished is not None:
            # npm takes the directory above for the package's, if this has no description of a package.
            (unfinished / "package.json").write_text("{}")
            command = ["npm", "install", "--silent", "--ignore-scripts", "--no-audit", "--no-fund"]
            run([*command, *(pin["what"] for pin in pins)], unfinished, pinned.name)
            installed = json.loads((unfinished / "node_modules/.package-lock.json").read_text())["packages"]
            found = {
                path.removeprefix("node_modules/"): each["integrity"] for path, each in installed.items()
            }
            if found != {pin["name"]: pin["digest"] for pin in pins}:
                raise WrongHashError(f"npm has installed something else than {pinned.name} says: {found}")
            (unfinished / "node_modules").rename(unfinished / "unpacked")
    return directory


def go_source(name: str) -> Path:
    """Return the directory of a module in `sources_go.txt`, after fetching its tests' dependencies (GO_ENVIRONMENT)."""
    pins = [_GO_PIN.fullmatch(line) for line in (HERE / "sources_go.txt").read_text().splitlines()]
    [pin] = [pin for pin in pins if pin and pin["name"] == name]
    directory = UNPACKED / f"{pin['name']}-{pin['version']}"
    with fetching(directory) as unfinished:
        if unfinished is not None:
            package = f"{pin['module']}@v{pin['version']}"
            fetched = json.loads(run(["go", "mod", "download", "-json", package], unfinished, package))
            if fetched["Sum"] != pin["digest"]:
                raise WrongHashError(f"{package} has another hash than the pinned one: {fetched['Sum']}")
            shutil.copytree(fetched["Dir"], unfinished / "unpacked")
            run(["go", "mod", "download"], unfinished / "unpacked", f"what {package} needs")
    return directory


JAVA_CLIENT = {
    "com.rabbitmq:amqp-client:5.25.0": "sha256:5aa96f005084139eb1077d94b55dc6428eca7da7e2cc53eab44a773391f8aa8f",
    "org.slf4j:slf4j-api:1.7.36": "sha256:d3ef575e3e4979678dc01bf1dcce51021493b4d11fb7f1be8ad982877c16a1c0",
}
"""The Java client and what it needs, with hashes of their jars."""


def java_client() -> Path:
    """Directory of the jars in JAVA_CLIENT. Raises SourceMissingError."""
    directory = UNPACKED / "java-client-5.25.0"
    with fetching(directory) as unfinished:
        if unfinished is not None:
            jars = unfinished / "unpacked"
            for artifact, pinned in JAVA_CLIENT.items():
                copy = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}"]
                run([*copy, f"-DoutputDirectory={jars}"], unfinished, artifact)
                _, name, version = artifact.split(":")
                digest = hashlib.sha256((jars / f"{name}-{version}.jar").read_bytes()).hexdigest()
                if f"sha256:{digest}" != pinned:
                    raise WrongHashError(f"{artifact} has another hash than the pinned one: sha256:{digest}")
    return directory


def java_clients() -> Path:
    """Directory of the jars in `sources_java.txt`, which `java/pom.xml` asks for. Raises SourceMissingError."""
    pinned = HERE / "sources_java.txt"
    pins = [pin for line in pinned.read_text().splitlines() if (pin := _JAR_PIN.fullmatch(line))]
    directory = UNPACKED / f"java-clients-{_digest(pinned)}"
    with fetching(directory) as unfinished:
        if unfinished is not None:
            jars = unfinished / "unpacked"
            command = [
                "mvn",
                "-q",
                "-B",
                "-f",
                str(HERE / "java" / "pom.xml"),
                "dependency:copy-dependencies",
            ]
            run([*command, f"-DoutputDirectory={jars}"], unfinished, pinned.name)
            found = {jar.name: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in jars.iterdir()}
            if found != {pin["name"]: pin["digest"] for pin in pins}:
                raise WrongHashError(f"Maven has fetched something else than {pinned.name} says: {found}")
    return directory


@contextmanager
def fetching(directory: Path) -> Generator[Path | None]:
    """Yield a directory whose `unpacked` becomes `directory`, or None if that exists; one process at a time."""
    UNPACKED.mkdir(exist_ok=True)
    with (UNPACKED / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if directory.exists():
            yield None
            return
        unfinished = UNPACKED / "unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        yield unfinished
        (unfinished / "unpacked").rename(directory)
        shutil.rmtree(unfinished)


def run(
    command: Sequence[str],
    directory: Path,
    package: str,
    settings: Mapping[str, str] | None = None,
    timeout_s: float = FETCH_TIMEOUT_S,
) -> str:
    """Return the output of a command. Raises SourceMissingError."""
    # Build tools are looked for on the path, and the virtual environment need not be active.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            env=os.environ | {"PATH": path} | GO_ENVIRONMENT | (settings or {}),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SourceMissingError(f"{package} cannot be fetched: {error}") from None
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-5:])
        raise SourceMissingError(
            f"{package} cannot be fetched; the first run needs a package index, later ones use {UNPACKED}:\n{tail}"
        )
    return done.stdout


def unpack(archive: Path, directory: Path) -> None:
    with tarfile.open(archive) as tar:
        # Not before Python 3.11.4; the unpacked file is pinned by its hash.
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        for member in tar.getmembers():
            # The archive's own top directory goes.
            member.name = member.name.partition("/")[2]
            if member.name:
                tar.extract(member, directory)


def _digest(pinned: Path) -> str:
    return hashlib.sha256(pinned.read_bytes()).hexdigest()[:12]
