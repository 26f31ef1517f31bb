from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from cluster.runtime.ports import pack
from qq.machine.catalog.reply_names import Requester
from qq.metrics.counters import Counters
from qq.sessions.direct_replies import EARLY_MAX, REPLY_BYTES_MAX, DirectReplies
from qq.sessions.ports import Replies

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qq.sessions.dispatch import Dispatcher
    from qq.sessions.ports import Log

NAME = "amq.rabbitmq.reply-to." + "x" * 22
THERE = Requester("n2", 7, 9, NAME)


class Node:
    """The replies of a node, with links that deliver at once."""

    def __init__(self, name: str) -> None:
        self.applied_index = 10
        self.delivered: list[Replies] = []
        self.counters = Counters()
        self.links: dict[str, Node] = {}
        consumers = SimpleNamespace(replies=self.delivered.append)
        dispatcher = SimpleNamespace(sessions={7: SimpleNamespace(consumers=consumers)})
        self.replies = DirectReplies(name, cast("Log", self), cast("Dispatcher", dispatcher), self.counters)

    def send_message(self, peer: str, data: Sequence[Any]) -> bool:
        if peer in self.links:
            self.links[peer].receive(b"".join(data))
        return peer in self.links

    def receive_messages(self, receive: Callable[[bytes], None]) -> None:
        self.receive = receive

    @property
    def bodies(self) -> list[bytes]:
        return [body for replies in self.delivered for body in replies.messages]


@pytest.fixture
def nodes() -> dict[str, Node]:
    nodes = defaultdict(Node, {name: Node(name) for name in ("n1", "n2")})
    nodes["n1"].links["n2"] = nodes["n2"]
    return nodes


def send(node: Node, body: bytes, *, after: int = 0, to: Requester = THERE) -> bool:
    return node.replies.send(to, after, 1, [body])


def test_reply_reaches_a_requester_at_a_second_node(nodes: dict[str, Node]) -> None:
    assert send(nodes["n1"], b"answer")
    assert nodes["n2"].delivered == [Replies(7, 9, NAME, 0, 1, [b"answer"])]


def test_reply_reaches_a_requester_at_the_same_node(nodes: dict[str, Node]) -> None:
    assert send(nodes["n2"], b"answer")
    assert nodes["n2"].bodies == [b"answer"]


@pytest.mark.parametrize(
    ("to", "body"),
    [(THERE._replace(node="n3"), b""), (THERE, bytes(REPLY_BYTES_MAX + 1))],
    ids=["no link", "too large"],
)
def test_reply_needs_the_log(nodes: dict[str, Node], to: Requester, body: bytes) -> None:
    assert not send(nodes["n1"], body, to=to)
    assert nodes["n2"].bodies == []


def test_replies_wait_for_the_entry_that_they_follow(nodes: dict[str, Node]) -> None:
    n1, n2 = nodes["n1"], nodes["n2"]
    for number, after in enumerate((0, 12, 0, 11)):
        assert send(n1, b"%d" % number, after=after)
    assert n2.bodies == [b"0"]
    n2.applied_index = 11
    n2.replies.deliver_applied(11)
    assert n2.bodies == [b"0"]
    n2.applied_index = 12
    n2.replies.deliver_applied(12)
    assert n2.bodies == [b"0", b"1", b"2", b"3"]


def test_early_replies_above_the_limit_are_counted_as_dropped(nodes: dict[str, Node]) -> None:
    for _ in range(EARLY_MAX + 3):
        send(nodes["n1"], b"", after=11)
    assert nodes["n2"].counters.replies_dropped == 3


def test_reply_to_a_closed_channel_is_counted_as_dropped(nodes: dict[str, Node]) -> None:
    assert send(nodes["n1"], b"", to=THERE._replace(session=8))
    assert nodes["n2"].counters.replies_dropped == 1


UNREADABLE = {
    "empty": b"",
    "invalid": b"\xc1",
    "short": b"\x90",
    "number": b"\x07",
    "types": pack([7, 9, NAME, 0, 1, "answer"]),
}


@pytest.mark.parametrize("data", UNREADABLE.values(), ids=UNREADABLE)
def test_unreadable_replies_of_a_peer_are_logged(
    nodes: dict[str, Node], caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    nodes["n2"].receive(data)
    assert "cannot be read" in caplog.text
    assert nodes["n2"].bodies == []
