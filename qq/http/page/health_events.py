"""The verdict on the cluster for the first line of every view of the page.

Invariant: the verdict is made at most once in `KEPT_S` for all viewers together.
"""

from __future__ import annotations

import json
from time import monotonic
from typing import TYPE_CHECKING, Any

from qq.management.nodes.verdict import judge

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qq.http.base.node_view import NodeView

KEPT_S = 0.5
"""Seconds that a verdict is used again."""


class HealthEvents:
    """Makes the verdict on the cluster as this node sees it."""

    def __init__(self, view: NodeView) -> None:
        self._view = view
        self._newest = b""
        self._made_s = float("-inf")

    def newest(self) -> bytes:
        """Return the verdict as a JSON document, at most `KEPT_S` old. Equal states give equal documents."""
        now_s = monotonic()
        if now_s - self._made_s >= KEPT_S:
            self._newest, self._made_s = json.dumps(self._document()).encode(), now_s
        return self._newest

    def _document(self) -> dict[str, Any]:
        status = cluster_document(self._view)
        health = judge(status)
        nodes = [
            {name: node[name] for name in ("name", "state", "role", "standing", "drained", "alarm")}
            for node in status["nodes"]
        ]
        return {
            "severity": health.severity,
            "text": health.text,
            "node": status["node"],
            "leader": status["leader"],
            "nodes": nodes,
        }


def cluster_document(view: NodeView) -> Mapping[str, Any]:
    """Return the status of the cluster, as `/api/cluster` answers it."""
    status = view.cluster_status()
    return status._asdict() | {"nodes": [node._asdict() for node in status.nodes]}
