"""A node and a broker that are only views: what they answer is set by the test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pamqp.commands import Basic

from qq.http.view import (
    ClusterStatus,
    ConsumerStatus,
    Deduplication,
    Message,
    NodeState,
    NodeStatus,
    QueueStatus,
    Unavailable,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qq.machine.policies import Policy

PASSWORD = "gu:éest"


class FakeView:
    def __init__(self) -> None:
        self.reason: str | None = None
        self.broken = False
        self.tags = {"guest": ["administrator"]}

    def cluster_status(self) -> ClusterStatus:
        if self.broken:
            raise RuntimeError("an invariant")
        leader = NodeStatus("n1", NodeState.LEADER, "voter", 3, 5, 12, 11, 10, 9, 2**30, False)
        return ClusterStatus("qq", "n1", "n1", [leader, NodeStatus("n2", NodeState.DOWN)])

    def ready(self) -> str | None:
        return self.reason

    async def authenticate(self, user: str, password: str) -> list[str] | None:
        return self.tags.get(user) if password == PASSWORD else None


class FakeManagement:
    vhost = "/"

    def __init__(self) -> None:
        self.queue_names = ["orders"]
        self.arguments: dict[str, Any] = {"x-queue-type": "quorum"}
        self.messages: list[Message] = []
        self.asked: list[Any] = []
        """What `browse` was asked for, and what was changed."""
        self.held: dict[tuple[bool, str], Policy] = {}
        self.bounds = Deduplication(100, 1000)
        self.has_majority = True

    def queues(self) -> Iterator[QueueStatus]:
        return map(self._queue, self.queue_names)

    def queue(self, name: str) -> QueueStatus | None:
        return self._queue(name) if name in self.queue_names else None

    def _queue(self, name: str) -> QueueStatus:
        return QueueStatus(
            name=name,
            vhost="/",
            type="quorum",
            durable=True,
            exclusive=False,
            auto_delete=False,
            arguments=self.arguments,
            policy="limits",
            operator_policy=None,
            effective_policy_definition={"max-length": 5},
            state="running",
            node="n1",
            leader="n1",
            members=["n1", "n2"],
            online=["n1"],
            consumers=1,
            consumer_capacity=0.5,
            consumer_utilisation=0.5,
            single_active_consumer_tag=None,
            delivery_limit=20,
            messages=10,
            messages_ready=4,
            messages_unacknowledged=2,
            messages_delayed=3,
            messages_dlx=1,
            message_bytes=1000,
            message_bytes_ready=400,
            message_bytes_unacknowledged=200,
            message_bytes_delayed=400,
            message_stats={"publish": 12, "publish_details": {"rate": 0.4}},
        )

    def consumers(self) -> Iterator[ConsumerStatus]:
        for name in self.queue_names:
            yield ConsumerStatus(
                "tag", {"name": name, "vhost": "/"}, {"node": "n2"}, True, False, 10, True, "up", {}
            )

    async def browse(self, queue: str, offset: int, count: int, bytes_max: int) -> list[Message] | None:
        self.asked.append((queue, offset, count, bytes_max))
        return self.messages if queue in self.queue_names else None

    def policies(self, *, operator: bool) -> list[Policy]:
        return [policy for (kind, _), policy in self.held.items() if kind == operator]

    async def put_policy(self, policy: Policy) -> bool:
        self._change(policy)
        is_new = (policy.operator, policy.name) not in self.held
        self.held[policy.operator, policy.name] = policy
        return is_new

    async def delete_policy(self, name: str, *, operator: bool) -> bool:
        self._change(name)
        return self.held.pop((operator, name), None) is not None

    def deduplication(self) -> Deduplication:
        return self.bounds

    async def set_deduplication(self, bounds: Deduplication) -> None:
        self._change(bounds)
        self.bounds = bounds

    def _change(self, what: Any) -> None:
        if not self.has_majority:
            raise Unavailable("no majority")
        self.asked.append(what)


def message(body: bytes, **properties: Any) -> Message:
    """A message as it is browsed."""
    return Message(7, "exchange", "key", False, Basic.Properties(**properties), body)
