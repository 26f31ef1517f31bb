"""RabbitMQ's addresses of the guides to its API and its command line."""

from __future__ import annotations

import pytest

from tests.http.fakes import FakeManagement
from tests.http.http_node import Node


@pytest.fixture
def node() -> Node[FakeManagement]:
    return Node(FakeManagement())


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/api/index.html", "<td><code>/api/queues/{vhost}/{name}</code></td><td>DELETE, GET, PUT</td>"),
        ("/cli/index.html", "<code>qq --help</code>"),
    ],
)
def test_guide_needs_no_login(node: Node[FakeManagement], path: str, text: str) -> None:
    answer = node.request(path)
    assert answer.status == 200
    assert text in answer.text


def test_rabbitmqadmin_is_not_here_with_advice(node: Node[FakeManagement]) -> None:
    answer = node.request("/cli/rabbitmqadmin")
    assert answer.status == 404
    assert "take it from there" in answer.json["reason"]
