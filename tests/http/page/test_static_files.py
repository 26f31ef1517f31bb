"""The files of the management page: every named file exists, every file is used, and no file is remote."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

import qq.http
from tests.http.fakes import FakeManagement
from tests.http.http_node import Node

STATIC = Path(qq.http.__file__).parent / "static"
VENDOR = STATIC / "vendor"
SCRIPTS = sorted((STATIC / "js").rglob("*.js"))
LIBRARIES = sorted(VENDOR.glob("*.mjs"))
INDEX = STATIC / "index.html"

IMPORT = re.compile(
    r"""(?:^|[;\s}])(?:import|export)\b[^;"']*?from\s*["']([^"']+)["']|^import\s*["']([^"']+)["']""",
    re.MULTILINE,
)


def named_by(script: Path) -> set[Path]:
    """The files that a script imports."""
    found = {one or other for one, other in IMPORT.findall(script.read_text())}
    assert all(each.startswith(".") for each in found), f"{script}: {found}"
    return {(script.parent / each).resolve() for each in found}


def reached() -> set[Path]:
    """All files that the page loads."""
    waiting = [
        STATIC / path.removeprefix("static/")
        for path in re.findall(r'(?:src|href)="([^"]+)"', INDEX.read_text())
    ]
    found: set[Path] = set()
    while waiting:
        file = waiting.pop().resolve()
        if file not in found:
            found.add(file)
            waiting += named_by(file) if file.suffix in (".js", ".mjs") else []
    return found


def test_files_named_by_the_page_are_served_with_their_type() -> None:
    node = Node(FakeManagement())
    kinds = {".js": "javascript", ".mjs": "javascript", ".css": "text/css", ".svg": "image/svg+xml"}
    assert len(reached()) > 30
    for file in sorted(reached()):
        answer = node.request(f"/static/{file.relative_to(STATIC.resolve())}")
        assert answer.status == 200, file
        assert kinds[file.suffix] in answer.headers["Content-Type"]
        assert answer.headers["Cache-Control"] == "no-cache"


def test_page_has_no_unused_files() -> None:
    beside = {STATIC / "index.html", VENDOR / "README.md", *VENDOR.glob("LICENSE.*")}
    there = {file.resolve() for file in STATIC.rglob("*") if file.is_file()}
    assert there - {file.resolve() for file in beside} == reached()


def test_page_is_served_without_a_login_and_without_inline_code() -> None:
    answer = Node(FakeManagement()).request("/")
    assert answer.status == 200
    assert re.findall(r"<script(?![^>]*src=)", answer.text) == []
    assert re.findall(r"<style|\sstyle=|\son\w+=", answer.text) == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda file: str(file.relative_to(STATIC)))
def test_script_creates_no_markup_from_text_and_names_no_host(script: Path) -> None:
    text = script.read_text()
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|dangerouslySet|https?://(?!user:password@host)"
    assert re.findall(forbidden, text) == []
    assert "style=${`" not in text  # it would be an attribute, which the policy forbids
    assert text.startswith("/**")


def test_libraries_match_their_recorded_digests_and_licences() -> None:
    rows = re.findall(
        r"^\| `([^`]+)` \| [^|]+ \| [\w.-]+, `(LICENSE\.\w+)` \| `([0-9a-f]{64})` \|$",
        (VENDOR / "README.md").read_text(),
        re.MULTILINE,
    )
    files = {file for file, _, _ in rows}
    assert files == {
        file.name for file in VENDOR.iterdir() if not file.name.startswith(("LICENSE", "README"))
    }
    for file, licence, digest in rows:
        assert hashlib.sha256((VENDOR / file).read_bytes()).hexdigest() == digest
        assert (VENDOR / licence).stat().st_size > 500
