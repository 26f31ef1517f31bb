"""`qq serve --check`: checks the settings of a node without starting it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qq.cli.local.launch import load_settings
from qq.cli.terminal.output import print_rows
from qq.node.part_settings import addresses, seeds
from qq.node.reloading import RereadFiles

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from qq.config import Seed

_SHOWN = ("name", "value")


def check_settings(config_file: Path, join: Sequence[Seed] = ()) -> int:
    """Check the settings of a node, and show them, without starting it. Raises OperatingError."""
    settings = load_settings(config_file, join)
    addresses(settings.nodes)
    seeds(settings)
    RereadFiles(settings)  # reads secrets, certificates and keys
    print_rows("table", [{"name": name, "value": value} for name, value in settings.shown().items()], _SHOWN)
    print(f"{config_file}: node {settings.name} can use these settings")
    return 0
