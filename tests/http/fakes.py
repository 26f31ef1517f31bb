"""A node that is only a view: what it answers is set by the test."""

from __future__ import annotations

from qq.http.view import ClusterStatus, NodeState, NodeStatus, QueueStatus


class FakeView:
    def __init__(self) -> None:
        self.reason: str | None = None
        self.queue_names = ["orders"]
        self.broken = False

    def cluster_status(self) -> ClusterStatus:
        if self.broken:
            raise RuntimeError("an invariant")
        leader = NodeStatus("n1", NodeState.LEADER, "voter", 3, 5, 12, 11, 10, 9, 2**30, False)
        return ClusterStatus("qq", "n1", "n1", [leader, NodeStatus("n2", NodeState.DOWN)])

    def queues(self) -> list[QueueStatus]:
        return [QueueStatus(name, "/", "quorum", True, False, False, 4, 2, 1) for name in self.queue_names]

    def ready(self) -> str | None:
        return self.reason

    async def authenticate(self, user: str, password: str) -> bool:
        return (user, password) == ("guest", "gu:éest")
