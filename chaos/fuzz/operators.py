"""HTTP requests of the cluster's administrator."""

from __future__ import annotations

import base64
import http.client
from typing import TYPE_CHECKING, NamedTuple

from chaos.fuzz.answers import HarmError
from qq.cli.local_files import HOST, PASSWORD
from qq.cli.local_files import USER as ADMINISTRATOR

if TYPE_CHECKING:
    from qq.testing import ClusterNode

PATIENCE_S = 60.0
"""Seconds to wait for an answer."""


class Request(NamedTuple):
    method: str
    path: str
    body: bytes = b""


def operators_request(node: ClusterNode, request: Request) -> int:
    """Send a request and return its status. Raises HarmError for an internal error of the node."""
    credentials = base64.b64encode(f"{ADMINISTRATOR}:{PASSWORD}".encode()).decode()
    headers = {"Authorization": f"Basic {credentials}", "Content-Type": "application/json"}
    connection = http.client.HTTPConnection(HOST, node.http_port, timeout=PATIENCE_S)
    try:
        connection.request(request.method, request.path, request.body, headers)
        status = connection.getresponse().status
    finally:
        connection.close()
    if status == http.client.INTERNAL_SERVER_ERROR:
        raise HarmError(f"{request.method} {request.path[:80]}: status {status}")
    return status
