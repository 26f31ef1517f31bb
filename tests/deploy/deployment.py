"""Where the files of a deployment are, and how they are read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
RUNS_AS = 10001
"""The user and the group of a node, in images, pods and on hosts."""
NODES = ("n1", "n2", "n3")
"""The nodes in docker-compose.yml."""
LEFT_BEHIND = "left_behind.py"
"""A module that an earlier build of the package had, and that no longer exists."""
WHEEL_OPTIONS = ("--no-deps", "--no-build-isolation")


def documents(file: Path) -> list[dict[str, Any]]:
    return list(yaml.load_all(file.read_text(encoding="utf-8"), yaml.CSafeLoader))


def document(file: Path) -> dict[str, Any]:
    (only,) = documents(file)
    return only


def published(service: Mapping[str, Any]) -> dict[int, int]:
    """Return ports of this machine, by those of the container. Raises if a port is open to other machines."""
    found = {}
    for port in service["ports"]:
        host, outside, inside = port.split(":")
        assert host == "127.0.0.1", port
        found[int(inside)] = int(outside)
    return found


def interpolated(value: Any, environ: Mapping[str, str]) -> Any:
    """Fill in ${NAME:-default} in all strings, as compose does."""
    match value:
        case str():
            return re.sub(r"\$\{(\w+):-([^}]*)\}", lambda name: environ.get(name[1]) or name[2], value)
        case list():
            return [interpolated(item, environ) for item in value]
        case dict():
            return {key: interpolated(item, environ) for key, item in value.items()}
        case _:
            return value
