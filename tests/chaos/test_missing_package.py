"""`python -m chaos` where its packages were never installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.harness.long_cases import cases


@pytest.mark.parametrize(
    "case",
    cases(
        [("run", "pika"), ("check", "pyspark"), ("report", "plotly"), ("campaign", "pika")],
        lambda case: case[0] == "check",
    ),
    ids=" ".join,
)
def test_missing_package_is_reported_with_its_installation(case: tuple[str, str]) -> None:
    command, package = case
    without = f"import sys; sys.modules[{package!r}] = None; from chaos.__main__ import main; "
    program = [sys.executable, "-c", without + f"sys.exit(main([{command!r}]))"]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=30)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert line.startswith(f"python -m chaos {command}: {package}")
    assert line.endswith("pip install --require-hashes -r requirements/chaos.txt")
