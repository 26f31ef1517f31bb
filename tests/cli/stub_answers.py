"""The answers of the stub node of stub_qq.py to commands."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

from prometheus_client import CollectorRegistry

from cluster.configuration.change_request import MemberChange, Verb
from cluster.membership.health import Verdict
from qq.errors import ReplyCode
from qq.http.app import build_app, serve
from qq.http.base.listener import listen
from qq.management.errors import RequestRefused, Unavailable
from qq.management.reports.logins import LoggedIn
from qq.management.reports.members import (
    ClusterMember,
    ClusterMembers,
    ClusterStatus,
    NodeState,
    NodeStatus,
    RemovedMember,
)
from qq.management.reports.queues import QueueStatus

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from qq.config import NodeConfig


class View:
    def __init__(self, config: NodeConfig) -> None:
        self._config = config

    def cluster_status(self) -> ClusterStatus:
        nodes = [
            NodeStatus(node.name, NodeState.DOWN, role="awaited", drained=True) for node in self._config.nodes
        ]
        nodes[0] = NodeStatus(
            self._config.nodes[0].name,
            NodeState.LEADER,
            "voter",
            3,
            7,
            120,
            119,
            118,
            100,
            5 * 2**30,
            alarm=True,
            clock_offset_ms=-800,
            role="voter",
            versions="7 to 8",
        )
        return ClusterStatus(self._config.cluster_name, self._config.name, nodes[0].name, nodes, 8)

    is_open = True

    def ready(self) -> str | None:
        return None

    takes_tokens = False
    login_provider = None

    async def authenticate(self, user: str, password: str, peer_host: str) -> LoggedIn | None:
        known = (self._config.default_user, self._config.default_password)
        return LoggedIn(user, ["administrator"]) if (user, password) == known else None

    def account(self, user: str) -> object:
        return self._config.default_password if user == self._config.default_user else None


class Catalog:
    def has_vhost(self, name: str) -> bool:
        return name == "/"


class Queues:
    def all(self, _vhost: str | None) -> list[QueueStatus]:
        return []


class Leadership:
    def leader(self) -> str | None:
        return os.environ.get("STUB_LEADER")

    async def transfer(self, to: str | None) -> str:
        if to == "n9":
            raise RequestRefused(ReplyCode.NOT_FOUND, "'n9' is no node of this cluster")
        if to == "n3":
            await asyncio.sleep(1.5)
        self._transfers += 1
        if to == "n5" and self._transfers < 3:
            raise Unavailable("n5 has not taken over")
        return to or "n2"

    _transfers = 0

    def may_stop(self, node: str | None) -> Verdict:
        """Say yes for n1, from the fourth time on for n5, and else no."""
        self._checks += 1
        return Verdict(node is None or (node == "n5" and self._checks > 3), f"{node or 'n1'} it is")

    _checks = 0


class Members:
    def report(self) -> ClusterMembers:
        first = ClusterMember("n1", "h1", 1, "aa" * 16, "voter", NodeState.LEADER, 0, "7 to 8", drained=False)
        awaited = ClusterMember("n2", "h2", 2, None, "awaited", NodeState.DOWN, None, None, drained=True)
        learner = ClusterMember(
            "n8", "h8", 8, "dd" * 16, "learner", NodeState.FOLLOWER, 9, None, drained=False
        )
        removed = [RemovedMember("n3", "bb" * 16)]
        return ClusterMembers("n1", "qq", "cc" * 16, 8, "n1", [first, awaited, learner], removed)

    async def change(self, change: MemberChange, wait_s: float | None = None) -> None:
        """Print the requested change; n5 takes two requests, n6 is refused, n7 takes long."""
        print(Verb(change.verb).name, *change[1:5], flush=True)
        if change.name == "n5" and not self._was_requested:
            self._was_requested = True
            raise Unavailable("n5 has not come yet")
        if change.name == "n7":
            await asyncio.sleep(1.5)
        if change.name == "n6":
            raise RequestRefused(ReplyCode.PRECONDITION_FAILED, "n6 stays a voter")
        if change.name == "n1" and change.verb == Verb.REMOVE:
            os._exit(1)

    _was_requested = False


class Management:
    """The parts of management that the page reads."""

    def __init__(self) -> None:
        self.catalog = Catalog()
        self.queues = Queues()
        self.leadership = Leadership()
        self.members = Members()


@asynccontextmanager
async def answering(config: NodeConfig) -> AsyncGenerator[None]:
    app = build_app(View(config), cast("Any", Management()), CollectorRegistry())
    http = await serve(app, await listen(config.http_host, config.address.http_port))
    yield
    await http.cleanup()
