"""A pytest plugin: `--deselect-glob=PATTERN` leaves out tests by the name that they have in the report."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent))
from wildcards import matching


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--deselect-glob", action="append", default=[])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    patterns = config.getoption("--deselect-glob")
    names = {_name(item): item for item in items}
    left_out = {names[name] for pattern in patterns for name in matching(pattern, list(names))}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def _name(item: pytest.Item) -> str:
    path, *names = item.nodeid.split("::")
    return ".".join([path.removesuffix(".py").replace("/", "."), *names])
