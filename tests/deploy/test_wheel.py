"""The wheel: its contents, and a project that tests with the wheel alone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

import pytest

from tests.deploy.deployment import LEFT_BEHIND, ROOT

pytestmark = pytest.mark.xdist_group("deploy")

OF_THE_PROJECT = ("iniconfig", "packaging", "pika", "pluggy", "pygments", "pytest")
TEST_OF_THE_PROJECT = """
import chaos, cluster, pika

def test_orders(qq_cluster):
    assert (chaos.OF, cluster.OF) == ("the project", "the project")
    with pika.BlockingConnection(pika.URLParameters(qq_cluster.urls[1])) as connection:
        channel = connection.channel()
        channel.queue_declare("orders", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "orders", b"one", mandatory=True)  # raises unless it is confirmed
        assert channel.basic_get("orders", auto_ack=True)[2] == b"one"
"""


def copy_distributions(names: Iterable[str], target: Path) -> None:
    """Copy these installed distributions."""
    for name in names:
        installed = distribution(name)
        for file in installed.files or ():
            if ".." not in file.parts:  # scripts
                (target / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(installed.locate_file(file), target / file)


def run(command: list[str | Path], directory: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
    return subprocess.run(
        command, cwd=directory, env=kept | environ, capture_output=True, text=True, check=False, timeout=100
    )


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with only the wheel and requirements/run.txt."""
    bare = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True, timeout=60)
    python = bare / "bin" / "python"
    (packages,) = bare.glob("lib/python*/site-packages")
    pinned = (ROOT / "requirements" / "run.txt").read_text()
    copy_distributions(re.findall(r"^([\w.-]+)==", pinned, re.MULTILINE), packages)
    options = ["install", "--no-index", "--no-deps"]
    run([sys.executable, "-m", "pip", "--python", python, *options, wheel], bare).check_returncode()
    return python


def test_wheel_contains_all_modules_under_qq(wheel: Path) -> None:
    names = {Path(name) for name in zipfile.ZipFile(wheel).namelist()}
    assert {name.parts[0] for name in names} == {
        "qq",
        "qq_spark",
        f"{'-'.join(wheel.name.split('-')[:2])}.dist-info",
    }
    page = [file for file in ROOT.glob("qq/http/static/**/*") if file.is_file()]
    modules = [*ROOT.glob("qq/**/*.py"), *ROOT.glob("qq_spark/**/*.py"), *page, ROOT / "qq" / "py.typed"]
    assert {module.relative_to(ROOT) for module in modules} - names == set()
    bundled = {Path("qq/bundled") / module.relative_to(ROOT) for module in ROOT.glob("cluster/**/*.py")}
    assert bundled - names == set()


def test_wheel_contains_no_leftovers_of_an_earlier_build(wheel: Path) -> None:
    assert [name for name in zipfile.ZipFile(wheel).namelist() if Path(name).name == LEFT_BEHIND] == []


def test_wheel_metadata_has_name_and_license(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    lines = archive.read(metadata).decode().splitlines()
    assert {"Name: qq-broker", "License-Expression: Apache-2.0", "License-File: LICENSE"} < set(lines)
    assert archive.read(metadata.replace("METADATA", "licenses/LICENSE")) == (ROOT / "LICENSE").read_bytes()


def test_its_command_runs(python: Path, tmp_path: Path) -> None:
    (tmp_path / "cluster.py").write_text("raise AssertionError('of the project')\n")
    inspected = run(
        [python.with_name("qq"), "inspect", tmp_path / "absent"], tmp_path, PYTHONPATH=str(tmp_path)
    )
    assert (inspected.returncode, inspected.stderr.splitlines()[-1][:12]) == (1, "qq inspect: ")


def test_project_with_a_module_named_cluster_uses_the_wheel(python: Path, tmp_path: Path) -> None:
    libraries = tmp_path / "libraries"
    copy_distributions(OF_THE_PROJECT, libraries)
    project = tmp_path / "project"
    project.mkdir()
    for name in ("chaos", "cluster"):
        (project / f"{name}.py").write_text("OF = 'the project'\n")
    (project / "test_orders.py").write_text(TEST_OF_THE_PROJECT)
    tested = run([python, "-m", "pytest", "-q"], project, PYTHONPATH=str(libraries))
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert "1 passed" in tested.stdout
