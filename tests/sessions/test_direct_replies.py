from __future__ import annotations

import tracemalloc
from collections import defaultdict, deque
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from cluster.runtime.ports import pack
from qq.machine.catalog.reply_names import Requester
from qq.metrics.counters import Counters
from qq.sessions.direct_replies import (
    EARLY_MAX,
    PASS_BYTES,
    RECEIVED_BYTES_MAX,
    REPLY_BYTES_MAX,
    RESPONDERS_MAX,
    WAITING_BYTES_MAX,
    DirectReplies,
    LoggedReplies,
    _read,
)
from qq.sessions.ports import Replies

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qq.sessions.dispatch import Dispatcher
    from qq.sessions.ports import Log, Publisher

NAME = "amq.rabbitmq.reply-to." + "x" * 22
THERE = Requester("n2", 7, 9, NAME)


class Node:
    """The replies of a node, with links that deliver at once."""

    def __init__(self, name: str) -> None:
        self.applied_index = 10
        self.name = name
        self.delivered: list[Replies] = []
        self.counters = Counters()
        self.links: dict[str, Node] = {}
        consumers = SimpleNamespace(replies=lambda _, replies: self.delivered.append(replies))
        dispatcher = SimpleNamespace(sessions={7: SimpleNamespace(consumers=consumers)})
        self.scheduled: deque[Callable[[], None]] = deque()
        runtime = SimpleNamespace(call_soon=self.scheduled.append)
        self.replies = DirectReplies(
            name, cast("Log", self), cast("Dispatcher", dispatcher), self.counters, cast("Any", runtime)
        )

    def send_message(self, peer: str, data: Sequence[Any]) -> bool:
        if peer in self.links:
            self.links[peer].receive(self.name, b"".join(data))
        return peer in self.links

    def receive_messages(self, receive: Callable[[str, bytes], None]) -> None:
        self.receive = receive

    def pass_loop(self) -> None:
        """Begin the next pass of the event loop."""
        for _ in range(len(self.scheduled)):
            self.scheduled.popleft()()

    @property
    def bodies(self) -> list[bytes]:
        return [body for replies in self.delivered for body in replies.messages]


@pytest.fixture
def nodes() -> dict[str, Node]:
    nodes = defaultdict(Node, {name: Node(name) for name in ("n1", "n2")})
    nodes["n1"].links["n2"] = nodes["n2"]
    return nodes


def send(node: Node, body: bytes, *, after: int = 0, to: Requester = THERE) -> bool:
    publisher = cast("Publisher", SimpleNamespace(session=3, number=1))
    return node.replies.send(to, after, publisher, [body])


def test_reply_reaches_a_requester_at_a_second_node(nodes: dict[str, Node]) -> None:
    assert send(nodes["n1"], b"answer")
    assert nodes["n2"].delivered == [Replies(7, 9, NAME, 0, 10, 3, 1, [b"answer"])]


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


def test_flood_of_replies_is_delivered_in_passes_and_in_order(nodes: dict[str, Node]) -> None:
    """A read of a link brought 5,000 replies, which held up all clients of the node for 40 ms."""
    n1, n2 = nodes["n1"], nodes["n2"]
    bodies = [b"%d" % number for number in range(1000)]
    for body in bodies:
        send(n1, body)
    for _ in range(100):
        done = len(n2.bodies)
        n2.pass_loop()
        assert len(n2.bodies) - done <= PASS_BYTES // 500 + 1
    assert n2.bodies == bodies
    assert not n2.scheduled
    send(n1, b"at once")
    assert n2.bodies[-1] == b"at once"


def test_replies_that_wait_for_a_pass_take_bounded_memory(nodes: dict[str, Node]) -> None:
    n1, n2 = nodes["n1"], nodes["n2"]
    count = RECEIVED_BYTES_MAX // REPLY_BYTES_MAX + 10
    for _ in range(count):
        send(n1, bytes(REPLY_BYTES_MAX))
    while n2.scheduled:
        n2.pass_loop()
    assert 0 < n2.counters.replies_dropped < 20
    assert len(n2.bodies) == count - n2.counters.replies_dropped


@pytest.mark.parametrize("channels", [15, 16, 100, 1000])
def test_clients_that_never_read_leave_room_for_a_slow_client(nodes: dict[str, Node], channels: int) -> None:
    """Sixteen channels took all memory of the node for replies that wait, so a slow client lost its replies."""
    replies, size = nodes["n1"].replies, 1000
    waiting = dict.fromkeys(range(channels), 0)
    while growing := [channel for channel, octets in waiting.items() if replies.has_room(octets, size)]:
        for channel in growing:
            if replies.has_room(waiting[channel], size):
                waiting[channel] += size
                replies.waiting_bytes += size
    left = WAITING_BYTES_MAX - replies.waiting_bytes
    assert left > WAITING_BYTES_MAX / (channels + 2)
    assert replies.has_room(0, min(left, REPLY_BYTES_MAX) // 2)


def test_reply_during_the_effects_of_an_entry_follows_that_entry(nodes: dict[str, Node]) -> None:
    n1, n2 = nodes["n1"], nodes["n2"]
    n1.replies.begin(11)
    send(n1, b"", after=n1.replies.applied_index)
    assert n2.bodies == []
    n2.replies.deliver_applied(11)
    assert n2.delivered[0].sent_index == 11


def test_early_replies_above_the_limit_are_counted_as_dropped(nodes: dict[str, Node]) -> None:
    for _ in range(EARLY_MAX + 3):
        send(nodes["n1"], b"", after=11)
        nodes["n2"].pass_loop()
    assert nodes["n2"].counters.replies_dropped == 3


def test_reply_to_a_closed_channel_is_counted_as_dropped(nodes: dict[str, Node]) -> None:
    assert send(nodes["n1"], b"", to=THERE._replace(session=8))
    assert nodes["n2"].counters.replies_dropped == 1


UNREADABLE = {
    "empty": b"",
    "invalid": b"\xc1",
    "short": b"\x90",
    "number": b"\x07",
    "types": pack([7, 9, NAME, 0, 10, 3, 1, "answer"]),
}


@pytest.mark.parametrize("data", UNREADABLE.values(), ids=UNREADABLE)
def test_unreadable_replies_of_a_peer_are_logged(
    nodes: dict[str, Node], caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    nodes["n2"].receive("n1", data)
    assert "cannot be read" in caplog.text
    assert nodes["n2"].bodies == []


@pytest.mark.parametrize("count", [1, 100])
def test_size_of_waiting_replies_covers_their_memory(count: int) -> None:
    data = pack(Replies(7, 9, NAME, 2**40, 2**40, 2**40, 1, [b"x" * 40] * count))
    waiting: deque[object] = deque()
    tracemalloc.start()
    for _ in range(1_000):
        waiting.append(("tag", _read(data), 0))
    taken_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.5 < taken_bytes / (1_000 * DirectReplies.size(_read(data))) < 1


def replies_sent_at(index: int, publisher: int = 3) -> Replies:
    return Replies(7, 9, NAME, 0, index, publisher, 1, [b"answer"])


def test_replies_are_overtaken_by_later_replies_in_the_log() -> None:
    logged = LoggedReplies()
    assert not logged.have_overtaken("n1", replies_sent_at(10))
    logged.record("n1", 3, 11)
    assert logged.have_overtaken("n1", replies_sent_at(10))
    assert not logged.have_overtaken("n1", replies_sent_at(11))
    assert not logged.have_overtaken("n2", replies_sent_at(10))
    assert not logged.have_overtaken("n1", replies_sent_at(10, publisher=4))


def test_overtaken_replies_are_known_for_many_responders() -> None:
    logged = LoggedReplies()
    for publisher in range(RESPONDERS_MAX + 10):
        logged.record("n1", publisher, 100 + publisher)
    assert logged.have_overtaken("n1", replies_sent_at(99, publisher=0))
    assert not logged.have_overtaken("n1", replies_sent_at(200, publisher=0))
    assert logged.have_overtaken("n1", replies_sent_at(200, publisher=500))
