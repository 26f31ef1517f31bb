"""Commands of `qq`, as operators call them."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qq.testing import ClusterNode

ANSWER_TIMEOUT_S = 90


def run_command(node: ClusterNode, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What a command that asks this node ends with, prints and complains of."""
    url = f"http://127.0.0.1:{node.http_port}"
    return subprocess.run(
        [sys.executable, "-m", "qq", *arguments, "--http", url],
        capture_output=True,
        text=True,
        timeout=ANSWER_TIMEOUT_S,
        check=False,
    )
