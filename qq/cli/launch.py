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
"""Names the process with which the node dies, even if that one is killed with SIGKILL."""

# -P: without the current directory and that of the script. The file and not `-m qq`: the code of who starts it.
SERVE_COMMAND = (sys.executable, "-P", str(Path(__file__).parents[1] / "__main__.py"), "serve")
