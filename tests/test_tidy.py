"""Checks beyond those of linters: the files of the repository as files."""

from __future__ import annotations

import ast
import re
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
OURS = ("chaos", "cluster", "qq", "qq_spark", "tests", "docs", "examples", "requirements", "deploy", ".ci")
TEXT = {
    ".c",
    ".cfg",
    ".css",
    ".html",
    ".js",
    ".md",
    ".py",
    ".sh",
    ".svg",
    ".toml",
    ".txt",
    ".yaml",
    ".yml",
    "",
}
NOT_OURS = {"__pycache__", "build", "vendor"}
"""Directories of generated or third-party files."""
LOCK_FILES = ("uv.lock", "poetry.lock", "Pipfile.lock", "pdm.lock", "package-lock.json", "yarn.lock")

# Directories of a machine: a home, a checkout, a place for local packages.
HOST_PATH = re.compile(r"(?<![\w.}])/(?:home|root|work|Users|opt)/\w")
_TEST_MODULE = re.compile(r"tests\..*\btest_|test_")
# In a requirement file, anything but names, versions, hashes and comments.
REQUIREMENT = re.compile(
    r"(?:[\w.-]+==[\w.+!-]+(?: ; [^\\]*)? \\|    --hash=sha256:[0-9a-f]{64}(?: \\)?|\s*#.*)?"
)


def _text_files() -> list[Path]:
    below = [
        file
        for name in OURS
        for file in sorted((ROOT / name).rglob("*"))
        if not NOT_OURS.intersection(file.relative_to(ROOT).parts)
    ]
    files = [*sorted(ROOT.iterdir()), *below]
    return [file for file in files if file.is_file() and file.suffix in TEXT and file.name != ".git"]


FILES = _text_files()
MODULES = [file for file in FILES if file.suffix == ".py" and file.relative_to(ROOT).parts[0] != "tests"]
REQUIREMENTS = sorted((ROOT / "requirements").glob("*.txt"))


def _name(file: Path) -> str:
    return str(file.relative_to(ROOT))


def _lines_with(pattern: re.Pattern[str], file: Path) -> list[str]:
    lines = file.read_text(encoding="utf-8").splitlines()
    return [f"{_name(file)}:{number}: {line}" for number, line in enumerate(lines, 1) if pattern.search(line)]


def _imported(file: Path) -> list[str]:
    """Return the dotted names that a file of Python imports."""
    names: list[str] = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def test_module_of_tests_is_imported_by_no_module() -> None:
    """Helpers that several modules need have a module of their own: in tests/harness, or beside those modules."""
    files = [file for file in FILES if file.suffix == ".py"]
    found = [(_name(file), name) for file in files for name in _imported(file) if _TEST_MODULE.match(name)]
    assert found == []


def test_file_has_no_tabs_or_trailing_blanks_and_ends_its_line() -> None:
    # gofmt indents with tabs.
    indented = [file for file in FILES if file.name not in ("Makefile", "main.go", "go.md", "amqp10-go.md")]
    assert [line for file in indented for line in _lines_with(re.compile(r"\t"), file)] == []
    assert [line for file in FILES for line in _lines_with(re.compile(r"[ \t\r]+$"), file)] == []
    ends = {_name(file): file.read_bytes().decode("utf-8")[-2:] for file in FILES}
    assert {name: end for name, end in ends.items() if end and (end == "\n\n" or end[-1] != "\n")} == {}


def test_file_contains_no_path_of_a_developers_machine() -> None:
    assert [line for file in FILES for line in _lines_with(HOST_PATH, file)] == []


def test_module_has_a_docstring() -> None:
    assert [_name(file) for file in MODULES if not ast.get_docstring(ast.parse(file.read_bytes()))] == []


@pytest.mark.parametrize("file", REQUIREMENTS, ids=_name)
def test_requirements_are_versions_and_hashes_and_name_no_host(file: Path) -> None:
    assert [line for line in file.read_text().splitlines() if not REQUIREMENT.fullmatch(line)] == []
    assert "://" not in file.read_text()


def _pinned(file: Path) -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==(\S+)", file.read_text(), re.MULTILINE))


def test_all_requirement_files_pin_the_same_versions() -> None:
    pinned: dict[str, str] = {}
    for file in REQUIREMENTS:
        mine = _pinned(file)
        assert mine
        assert mine == {name: pinned.setdefault(name, version) for name, version in mine.items()}


@pytest.mark.parametrize("name", ["run", "arrow", "oauth2", "tracing", "chaos", "docs", "dev"])
def test_requirement_file_has_all_dependencies_of_the_package(name: str) -> None:
    """An image is built from this file alone: an outdated file breaks the build."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    dependencies = project["dependencies"] + project["optional-dependencies"].get(name, [])
    pinned = _pinned(ROOT / "requirements" / f"{name}.txt")
    for requirement in map(Requirement, dependencies):
        assert pinned.get(canonicalize_name(requirement.name), "none") in requirement.specifier
    assert pinned.keys() >= _pinned(ROOT / "requirements" / "run.txt").keys()


def test_pinned_packages_support_the_oldest_python() -> None:
    """A pin for a newer patch release than README requires fails only on machines with the older Python."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = project["requires-python"].removeprefix(">=") + ".0"
    pinned = {
        canonicalize_name(line.partition("==")[0])
        for file in (ROOT / "requirements").glob("*.txt")
        for line in file.read_text().splitlines()
        if "==" in line and not line.startswith((" ", "#"))
    }
    installed = {canonicalize_name(each.metadata["Name"]): each for each in distributions()}
    assert len(pinned & installed.keys()) > 50
    needed = {name: installed[name].metadata["Requires-Python"] or "" for name in pinned & installed.keys()}
    assert {name: each for name, each in needed.items() if oldest not in SpecifierSet(each)} == {}


def test_no_lock_file_with_download_addresses_exists() -> None:
    assert [name for name in LOCK_FILES if (ROOT / name).exists()] == []


def test_every_part_of_the_broker_has_a_place_among_the_layers() -> None:
    """A package without a layer may import any package, and be imported by any."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    placed = {name for layer in layers for name in layer.split(" | ")}
    files = [*(ROOT / "qq").glob("*.py"), *(file.parent for file in (ROOT / "qq").glob("*/__init__.py"))]
    assert {f"qq.{file.stem}" for file in files} - placed == {"qq.__init__"}


def test_continuous_integration_can_be_run() -> None:
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


def test_makefile_variables_have_defaults_and_are_documented() -> None:
    text = (ROOT / "Makefile").read_text()
    head = text.partition("\n\n")[0]
    given, own = (set(re.findall(rf"^([A-Z]+) {sign} ?", text, re.MULTILINE)) for sign in (r"\?=", ":="))
    of_make = {"CURDIR", "MAKE"}
    assert set(re.findall(r"\$\(([A-Z]+)\)", text)) - own - of_make == given
    assert {name for name in given if f"{name}=" not in head} == set()


def test_class_names_are_unique_in_qq_and_cluster() -> None:
    """Private names are unique too, so that a search for a name finds a single class."""
    places: dict[str, list[str]] = {}
    for file in (file for file in MODULES if file.relative_to(ROOT).parts[0] in ("cluster", "qq")):
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(f"{_name(file)}:{node.lineno}")
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
