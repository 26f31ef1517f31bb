"""A real node to compare deployment files with, the installed package, and a real container engine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from qq.testing import ClusterNode, LocalCluster
from tests.deploy.deployment import LEFT_BEHIND, ROOT, WHEEL_OPTIONS
from tests.deploy.dockerfile import copy_context
from tests.deploy.engine import BUILT_FROM, PROJECT, Engine, NoEngineError, find_engine
from tests.harness.releases import unpack_release


@pytest.fixture(scope="module")
def node(until_left: Callable[[str, AbstractContextManager[Any]], Any]) -> ClusterNode:
    return until_left("node", LocalCluster(nodes=1)).nodes[0]


@pytest.fixture(scope="session")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with the files that .dockerignore admits."""
    context = tmp_path_factory.mktemp("image") / "context"
    copy_context(ROOT, ROOT / ".dockerignore", context)
    return context


@pytest.fixture(scope="session")
def wheel(context: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this package, built in a directory with leftovers of an older build."""
    (context / "build" / "lib" / "qq").mkdir(parents=True)
    (context / "build" / "lib" / "qq" / LEFT_BEHIND).touch()
    wheels = tmp_path_factory.mktemp("wheels")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *WHEEL_OPTIONS, "--wheel-dir", str(wheels), "."],
        cwd=context,
        check=True,
        capture_output=True,
        timeout=60,
    )
    (wheel,) = wheels.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def engine() -> Engine:
    try:
        return find_engine()
    except NoEngineError as error:
        pytest.exit(str(error), returncode=1)


@pytest.fixture(scope="session")
def image(engine: Engine) -> Generator[str]:
    """Build a node's image as docs/how-to/containers.md says; its name."""
    name = f"{PROJECT}-image"
    revision = f"REVISION={BUILT_FROM}"
    engine.run("build", "-f", "deploy/Dockerfile", "-t", name, "--build-arg", revision, ".", shown=True)
    yield name
    engine.run("rmi", name)


@pytest.fixture(scope="session")
def release_image(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """Build a node's image of release 0.1 as that release says; its name."""
    name = f"{PROJECT}-release"
    code = tmp_path_factory.mktemp("release-0.1")
    unpack_release("0.1", code)
    engine.run("build", "-f", str(code / "deploy" / "Dockerfile"), "-t", name, str(code), shown=True)
    yield name
    engine.run("rmi", name)
