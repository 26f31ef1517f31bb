"""`python -m chaos` where its packages were never installed."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("command", "package"),
    [("run", "pika"), ("check", "pyspark"), ("report", "plotly"), ("campaign", "pika")],
)
def test_what_is_missing_is_named_with_the_way_to_get_it(command: str, package: str) -> None:
    without = f"import sys; sys.modules[{package!r}] = None; from chaos.__main__ import main; "
    program = [sys.executable, "-c", without + f"sys.exit(main([{command!r}]))"]
    asked = subprocess.run(program, capture_output=True, text=True, check=False, timeout=30)
    (line,) = asked.stderr.splitlines()
    assert asked.returncode == 1
    assert line.startswith(f"python -m chaos {command}: {package}")
    assert line.endswith("pip install --require-hashes -r requirements/chaos.txt")
