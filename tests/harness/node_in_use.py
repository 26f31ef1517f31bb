"""Finds the node that a client is connected to."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING
from urllib.request import Request, urlopen

if TYPE_CHECKING:
    import subprocess

    from qq.testing import ClusterNode, LocalCluster


def node_in_use(cluster: LocalCluster, process: subprocess.Popen[str], within_s: float) -> ClusterNode:
    """Return the node with the first connection, which is that of the process."""
    url = f"http://127.0.0.1:{cluster.nodes[0].http_port}/api/connections"
    request = Request(url, headers={"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="})
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline and process.poll() is None:
        with urlopen(request) as answer:
            connections = json.load(answer)
        if connections:
            return next(node for node in cluster.nodes if node.name == connections[0]["node"])
        time.sleep(0.05)
    process.kill()
    raise AssertionError(process.communicate()[0])
