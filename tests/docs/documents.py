"""The documents of the repository: their texts, spans of code and blocks of code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
AT_THE_TOP = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "examples/README.md",
    "tests/benchmarks/README.md",
)
"""Without the changelog, which has former names."""
DOCUMENTS = [*(ROOT / name for name in AT_THE_TOP), *sorted((ROOT / "docs").rglob("*.md"))]

_FENCED = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TITLE = re.compile(r'title="([^"]+)"')
_INDENTED = re.compile(r"(?:^(?: {4}.*)?\n)+", re.MULTILINE)
_SPAN = re.compile(r"`([^`\n]+)`")


def name_of(document: Path) -> str:
    return str(document.relative_to(ROOT))


def of_each_document(check: Callable[[Path], None]) -> Callable[[], None]:
    """Make a test of all documents, which lists each failing document; a test for each would cost more than its
    check.
    """

    def test() -> None:
        failures: list[Exception] = []
        for document in DOCUMENTS:
            try:
                check(document)
            except (AssertionError, SyntaxError, ValueError) as failure:
                failure.add_note(f"in {name_of(document)}")
                failures.append(failure)
        if failures:
            raise ExceptionGroup(f"{len(failures)} documents are wrong", failures)

    return test


def blocks(document: Path) -> Iterator[tuple[str, str]]:
    """Each fenced block with its language."""
    for info, code in _FENCED.findall(document.read_text()):
        yield info.partition(" ")[0], code


def programs(document: Path) -> Iterator[tuple[Path, str]]:
    """Each fenced block that has the path of a program as its title."""
    for info, code in _FENCED.findall(document.read_text()):
        if title := _TITLE.search(info):
            yield ROOT / title[1], code


def prose(document: Path) -> str:
    """The text without blocks of code."""
    return _FENCED.sub("", document.read_text())


def spans(document: Path) -> list[str]:
    """Return the texts between backquotes."""
    return _SPAN.findall(prose(document))


def command_lines(document: Path) -> Iterator[str]:
    """Lines that a reader may type: of blocks that name no language, and spans."""
    yield from spans(document)
    fenced = [code for language, code in blocks(document) if not language]
    for block in [*fenced, *_INDENTED.findall(prose(document))]:
        yield from (line.strip().removeprefix("$ ") for line in block.splitlines() if line.strip())
