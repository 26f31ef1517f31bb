"""How a node is started as a process of its own.

Invariant: whatever directory it is started in, a node imports nothing from there: applications have modules of their
own that are called `cluster`. Whatever shell it is started from, it is given no variable that it would refuse as no
setting, or that would make two nodes of a cluster one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from qq.cli.credentials import VARIABLES
from qq.config import ENVIRONMENT_PREFIX, SECTIONS, NodeConfig, load, variable_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qq.config import Seed

PARENT_VARIABLE = "QQ_PARENT_PID"
"""The environment variable with the id of a process: the node dies with it, even if it is killed with SIGKILL."""

# -P: modules are not looked for in the current directory and that of the script. The file, and not `-m qq`, is run so
# that the node has the same code as the process that starts it.
SERVE_COMMAND = (sys.executable, "-P", str(Path(__file__).parents[1] / "__main__.py"), "serve")

_SETTINGS = tuple(variable_of(section, "") for section in SECTIONS)
_OF_ONE_NODE = (variable_of("node", "name"), variable_of("node", "data_dir"))


def node_environment() -> dict[str, str]:
    """Make the environment of a node that dies with this process: what other programs call QQ_... is left out."""
    kept = {name: value for name, value in os.environ.items() if _is_for_nodes(name)}
    return kept | {PARENT_VARIABLE: str(os.getpid())}


def load_settings(config_file: Path, join: Sequence[Seed] = ()) -> NodeConfig:
    """Read a node's settings from its file and this process's environment; raises ConfigError.

    `join` are addresses of nodes of the cluster that it is to join, besides those of the file.
    """
    of_commands = (PARENT_VARIABLE, *VARIABLES)
    environ = {name: value for name, value in os.environ.items() if name not in of_commands}
    return load(config_file, environ, join)


def _is_for_nodes(variable: str) -> bool:
    if not variable.startswith(ENVIRONMENT_PREFIX):
        return True
    return variable.startswith(_SETTINGS) and variable not in _OF_ONE_NODE
