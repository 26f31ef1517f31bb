"""The documents can be built, their links lead somewhere, and the programs in them are programs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
import tomllib
from importlib.util import find_spec
from pathlib import Path

from tests.docs.documents import DOCUMENTS, ROOT, blocks, name_of, of_each_document, programs

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """Strictly: a link or an anchor that leads nowhere, a page in no menu, an example that is not there is an error."""
    assert find_spec("mkdocs"), "`make docs` installs what builds the documents"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "site" / "tutorial" / "first-hour.html").is_file()


@of_each_document
def test_a_link_leads_to_a_file_and_a_heading_of_the_repository(document: Path) -> None:
    """For readers of the files themselves; addresses of other sites are not checked."""
    for target in LINK.findall(document.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = document.parent / path if path else document
        assert file.exists(), f"{name_of(document)}: {target}"
        if anchor:
            assert anchor in anchors(file), f"{name_of(document)}: {target}"


def anchors(file: Path) -> set[str]:
    """Return the anchors of headings, as GitHub and MkDocs make them."""
    headings = HEADING.findall(file.read_text())
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@of_each_document
def test_code_in_a_document_can_be_parsed(document: Path) -> None:
    for language, code in blocks(document):
        if language == "python":
            ast.parse(textwrap.dedent(code))
        elif language == "toml":
            tomllib.loads(code)


@of_each_document
def test_program_in_a_document_is_the_file_of_its_title(document: Path) -> None:
    """A reader without the built site sees the program, too, so it is written into the page."""
    for file, code in programs(document):
        assert code == file.read_text(), f"{name_of(document)}: {file.name} differs"


def test_programs_of_documents_are_found() -> None:
    found = {file.name for document in DOCUMENTS for file, _ in programs(document)}
    assert {
        "first_message.py",
        "survive.py",
        "test_orders.py",
        "main.go",
        "survive.js",
        "Survive.java",
    } <= found


def test_python_in_documents_is_found() -> None:
    languages = [language for document in DOCUMENTS for language, _ in blocks(document)]
    assert languages.count("python") > 8
    assert "toml" in languages
