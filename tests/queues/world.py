"""The cluster as the clients of a test see it."""

from __future__ import annotations

import base64
import http.client
import json
import re
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from typing import Any, Protocol
from urllib.parse import quote

import pika
import pika.exceptions
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection

from tests.queues.clients import lose
from tests.queues.nodes_here import ClusterHere

CREDENTIALS = base64.b64encode(b"guest:guest").decode()
CLOSING_S = 5.0


class Member(Protocol):
    url: str
    http_port: int


class World:
    """The cluster as the clients of a test use it.

    `nodes` are the leader at the begin of the test, and its followers at 1 and 2. They remain when the leader is
    killed.
    """

    def __init__(self, nodes: list[Member], change: Callable[[], None], *, leader_dies: bool = False) -> None:
        self.nodes = nodes
        self.change_leader = change
        """Change the leader, except in a quiet test."""
        self.leader_dies = leader_dies
        self._open: list[BlockingConnection] = []
        self._policies: list[str] = []

    def connect(self, at: int = 1, *, doomed: bool = False, **parameters: Any) -> BlockingConnection:
        """Return a connection to the leader (0), or to a follower (1 or 2)."""
        assert at or doomed or not self.leader_dies
        settings = pika.URLParameters(f"{self.nodes[at].url}?heartbeat=0")
        for name, value in parameters.items():
            setattr(settings, name, value)
        connection = BlockingConnection(settings)
        self._open.append(connection)
        return connection

    def channel(self, at: int = 1, *, confirms: bool = False) -> BlockingChannel:
        """A channel on a connection of its own."""
        channel = self.connect(at).channel()
        if confirms:
            channel.confirm_delivery()
        return channel

    def doomed_channel(self) -> BlockingChannel:
        """A channel at the leader, that dies with it."""
        return self.connect(0, doomed=True).channel()

    def request(self, path: str, method: str = "GET", body: Any = None, at: int = 1) -> Any:
        """The HTTP interface."""
        client = http.client.HTTPConnection("127.0.0.1", self.nodes[at].http_port, timeout=10)
        headers = {"Authorization": f"Basic {CREDENTIALS}"}
        client.request(method, path, None if body is None else json.dumps(body), headers)
        response = client.getresponse()
        content = response.read()
        client.close()
        assert response.status < 300, content
        return json.loads(content) if content else None

    def exists(self, queue: str, at: int = 1) -> bool:
        """Whether there is such a queue, without its counting as used."""
        return any(each["name"] == queue for each in self.request("/api/queues/%2F", at=at))

    def policy(self, queue: str, definition: dict[str, Any], *, operator: bool = False, at: int = 1) -> str:
        """Set a policy for a queue, and return when it applies."""
        kind = "operator-policies" if operator else "policies"
        path = f"/api/{kind}/%2F/{quote(queue, safe='')}"
        body = {"pattern": f"^{re.escape(queue)}$", "definition": definition, "apply-to": "queues"}
        self.request(path, "PUT", body, at)
        if path not in self._policies:
            self._policies.append(path)
        return path

    def forget(self, path: str) -> None:
        """Of a policy that is deleted already."""
        self._policies.remove(path)

    def close(self) -> None:
        for path in self._policies:
            self.request(path, "DELETE")
        for connection in self._open:
            if connection.is_open:
                # A failed test may have left a node that does not answer.
                connection._impl.ioloop.call_later(CLOSING_S, partial(lose, connection))
                with suppress(pika.exceptions.AMQPError):
                    connection.close()
            connection._cleanup()


def world_here(cluster: ClusterHere, change: str) -> Generator[World]:
    leader = cluster.leader()
    followers: list[Any] = [node for node in cluster.nodes if node is not leader]
    world = World([leader, *followers], cluster.hand_over if change == "handover" else _ignore)
    yield world
    world.close()


def _ignore() -> None:
    pass
