"""Changes of a cluster over HTTP, as guest."""

from __future__ import annotations

import json
from contextlib import closing
from http.client import HTTPConnection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qq.testing import ClusterNode

AUTHORIZATION = "Basic Z3Vlc3Q6Z3Vlc3Q="
ALL = {"configure": ".*", "write": ".*", "read": ".*"}
"""Permissions for every name."""


def request(node: ClusterNode, method: str, path: str, document: object) -> None:
    headers = {"Authorization": AUTHORIZATION, "Content-Type": "application/json"}
    with closing(HTTPConnection("127.0.0.1", node.http_port, timeout=20)) as connection:
        connection.request(method, f"/api/{path}", json.dumps(document), headers)
        answer = connection.getresponse()
        assert answer.status < 300, answer.read()
