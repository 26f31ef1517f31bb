"""How a node is started as a process of its own.

Lives here: the command line, and the variable that ties a node to the process that started it. Not here: what the
process does (serve.py), and who watches it (up.py, qq/testing.py).

Law: whatever directory it is started in, a node imports nothing from there: applications have modules of their own that
are called `cluster`.
"""

from __future__ import annotations

import sys
from pathlib import Path

PARENT_VARIABLE = "QQ_PARENT_PID"
"""The environment variable with the id of a process: the node dies with it, even if it is killed with SIGKILL."""

# -P: modules are not looked for in the current directory and that of the script. The file, and not `-m qq`, is run so
# that the node has the same code as the process that starts it.
SERVE_COMMAND = (sys.executable, "-P", str(Path(__file__).parents[1] / "__main__.py"), "serve")
