"""Commands of `qq`, as operators call them."""

from __future__ import annotations

import os
import subprocess
import tempfile
from typing import TYPE_CHECKING

from qq.process.fork_server import fork_server

if TYPE_CHECKING:
    from qq.testing import ClusterNode

ANSWER_TIMEOUT_S = 90


def run_qq(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of `qq`, and return its status, output and errors."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = fork_server().start(arguments, os.environ, stdout=output.fileno(), stderr=errors.fileno())
        status = process.wait(ANSWER_TIMEOUT_S)
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(arguments, status, output.read(), errors.read())


def run_command(node: ClusterNode, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The same of a command that asks this node."""
    return run_qq(*arguments, "--http", f"http://127.0.0.1:{node.http_port}")
