"""The recipes of docs/how-to/test.md for unittest and asyncio, run as a reader runs them."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.docs.documents import ROOT, blocks

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.xdist_group("releases"), pytest.mark.timeout(120)]

UNITTEST = ("-m", "unittest", "-v", "test_recipe")
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:aiomisc", "test_recipe.py")
LOGGED = "serving AMQP"
"""A line that every starting node logs."""


def recipe(*classes: str) -> str:
    """The blocks of the document that define these classes, in its order."""
    codes = [code for language, code in blocks(ROOT / "docs" / "how-to" / "test.md") if language == "python"]
    found = [code for code in codes if any(f"class {name}(" in code for name in classes)]
    assert len(found) == len(classes)
    return "\n\n".join(found)


def run(directory: Path, code: str, arguments: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    (directory / "test_recipe.py").write_text(code)
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, timeout=100)


def test_recipes_for_unittest_and_asyncio_pass(tmp_path: Path) -> None:
    code = recipe("OrdersTest", "FailoverTest", "AsyncOrdersTest")
    tested = run(tmp_path, code, UNITTEST)
    assert tested.returncode == 0, tested.stderr
    assert "Ran 3 tests" in tested.stderr


def test_failed_unittest_shows_the_logs_of_the_nodes(tmp_path: Path) -> None:
    code = recipe("OrdersTest", "FailoverTest").replace("assertNotEqual", "assertEqual")
    tested = run(tmp_path, code, (*UNITTEST[:-1], "test_recipe.FailoverTest"))
    assert "FAILED (failures=1)" in tested.stderr
    assert LOGGED in tested.stderr


@pytest.mark.long
def test_pytest_shows_the_logs_where_unittest_does_not(tmp_path: Path) -> None:
    code = recipe("OrdersTest").replace('assertEqual(body, b"one chair")', 'fail("as it should")')
    by_unittest, by_pytest = run(tmp_path, code, UNITTEST), run(tmp_path, code, PYTEST)
    assert "FAILED (failures=1)" in by_unittest.stderr
    assert LOGGED not in by_unittest.stderr
    assert "1 failed" in by_pytest.stdout
    assert " log of n1 " in by_pytest.stdout
