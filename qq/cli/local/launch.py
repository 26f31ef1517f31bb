"""Starts a node as a process of its own.

Invariant: a node never imports modules from its working directory, because applications have modules of their own
called `cluster`. A node's environment contains only settings that it accepts. Settings that would make two nodes of a
cluster the same are left out.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from qq.cli.client.credentials import VARIABLES
from qq.config import ENVIRONMENT_PREFIX, SECTIONS, NodeConfig, load, variable_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qq.config import Seed

PARENT_VARIABLE = "QQ_PARENT_PID"
"""Environment variable with the id of the parent process: the node dies with it, even after SIGKILL."""

# -P: modules are not searched in the current directory and that of the script. The file is run instead of `-m qq`,
# because the node must have the same code as the process that starts it.
SERVE_COMMAND = (sys.executable, "-P", str(Path(__file__).parents[2] / "__main__.py"), "serve")

_SETTINGS = tuple(variable_of(section, "") for section in SECTIONS)
_OF_ONE_NODE = (variable_of("node", "name"), variable_of("node", "data_dir"))


def node_environment() -> dict[str, str]:
    """Make the environment of a node that dies with this process.

    Variables QQ_... of other programs are left out.
    """
    return _of_nodes() | {PARENT_VARIABLE: str(os.getpid())}


def settings_of_child(config_file: Path) -> NodeConfig:
    """Read the settings of a node that is started with `node_environment`. Raises ConfigError."""
    return load(config_file, _of_nodes())


def load_settings(config_file: Path, join: Sequence[Seed] = ()) -> NodeConfig:
    """Read a node's settings from its file and this process's environment. Raises ConfigError.

    `join` are addresses of nodes of the cluster to join, in addition to the addresses in the file.
    """
    of_commands = (PARENT_VARIABLE, *VARIABLES)
    environ = {name: value for name, value in os.environ.items() if name not in of_commands}
    return load(config_file, environ, join)


def _of_nodes() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if _is_for_nodes(name)}


def _is_for_nodes(variable: str) -> bool:
    if not variable.startswith(ENVIRONMENT_PREFIX):
        return True
    return variable.startswith(_SETTINGS) and variable not in _OF_ONE_NODE
