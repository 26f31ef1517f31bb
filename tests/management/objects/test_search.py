"""Searches of a queue: they find the messages that a move with the same filter moves, and count all of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pika
import pytest

from qq.machine.protocol import commands as c
from qq.management.objects import search
from qq.management.objects.search import Search, Searched, SearchLimits
from qq.sessions.message_filter import MessageFilter
from tests.harness.lone_broker import LoneBroker, wait_until

if TYPE_CHECKING:
    from collections.abc import Generator

QUORUM = {"x-queue-type": "quorum"}
LIMITS = SearchLimits(offset=0, looked_at=1000, messages=20, bytes=2**20)


@pytest.fixture
def broker() -> Generator[LoneBroker]:
    with LoneBroker() as lone:
        lone.call(lone.machine.raise_to, 11)
        lone.call(lone.broker.leader_changed, "n1", 1)
        yield lone


@pytest.fixture
def channel(broker: LoneBroker) -> Generator[Any]:
    """A channel to a broker with 60 messages that died in "one" or "two", in the queue "dead" with 5 further
    messages.
    """
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("dead", durable=True, arguments=QUORUM)
    dead = QUORUM | {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.queue_declare("one", durable=True, arguments=dead)
    channel.queue_declare("two", durable=True, arguments=dead | {"x-max-length": 1})
    for number in range(40):
        channel.basic_publish("", "one", b'{"order": %d}' % number)
    for _ in range(40):
        channel.basic_reject(channel.basic_get("one")[0].delivery_tag, requeue=False)
    for number in range(21):
        channel.basic_publish("", "two", b"", pika.BasicProperties(headers={"order": number}))
    for _ in range(5):
        channel.basic_publish("", "dead", b"alive, with an order")
    wait_until(lambda: broker.machine.vhosts["/"].queues["dead"].ready == 65, "all dead letters")
    yield channel
    connection.close()


def searched(broker: LoneBroker, limits: SearchLimits = LIMITS, **wanted: Any) -> Searched:
    vhost = broker.machine.vhosts["/"]
    run = Search(vhost, vhost.queues["dead"], MessageFilter(**wanted), limits).run(broker.broker.entries)
    return asyncio.run_coroutine_threadsafe(run, broker._loop).result(10)


@pytest.mark.parametrize(
    ("wanted", "matched", "returnable"),
    [
        ({}, 65, 60),
        ({"reason": "rejected"}, 40, 40),
        ({"from_queue": "two"}, 20, 20),
        ({"reason": "maxlen", "from_queue": "one"}, 0, 0),
        ({"text": "ORDER"}, 65, 60),
        ({"text": '"order": 3'}, 11, 11),
        ({"text": "order", "from_queue": "two"}, 20, 20),
        ({"headers": {"order": 3}}, 1, 1),
        ({"text": "nothing"}, 0, 0),
    ],
)
def test_search_finds_the_messages_that_a_move_moves(
    broker: LoneBroker, channel: Any, wanted: dict[str, Any], matched: int, returnable: int
) -> None:
    before = broker.machine.digest()
    found = searched(broker, **wanted)
    assert broker.machine.digest() == before
    assert (found.looked_at, found.ready) == (65, 65)
    assert (found.matched, found.returnable) == (matched, returnable)
    assert len(found.messages) == min(matched, 20)
    assert found.died == {("one", "rejected"): 40, ("two", "maxlen"): 20}
    channel.queue_declare("to", durable=True, arguments=QUORUM)
    assert moved(broker, "", **wanted) == returnable
    if not returnable:
        assert moved(broker, "to", **wanted) == matched


def moved(broker: LoneBroker, destination: str, **wanted: Any) -> int:
    """Move the messages that the filter is for; return their number."""
    reason, from_queue, headers, text = MessageFilter(**wanted)
    common = "guest", "dead", destination, 0, 0, reason, from_queue, dict(headers)
    name = f"to {destination}"
    plain = c.BeginMove("/", name, *common, shovel="", is_endless=False)
    broker.operate(c.BeginTextMove("/", name, *common, text) if text else plain)
    state = broker.machine.moves.all["/", name]
    wait_until(lambda: not state.is_running, "the end of the move")
    return state.moved


def test_search_is_bounded_and_goes_on_from_its_end(
    broker: LoneBroker, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = searched(broker, LIMITS._replace(looked_at=50, messages=3), text="order")
    assert (part.looked_at, part.ready, part.matched, part.returnable) == (50, 65, 50, 50)
    assert [message.offset for message in part.messages] == [0, 1, 2]
    rest = searched(broker, LIMITS._replace(offset=50), text="order")
    assert (rest.looked_at, rest.matched, rest.returnable) == (15, 15, 10)
    assert [message.offset for message in rest.messages] == list(range(50, 65))
    assert searched(broker, LIMITS._replace(offset=65)).looked_at == 0
    assert len(searched(broker, LIMITS._replace(bytes=1), text="order").messages) == 1
    monkeypatch.setattr(search, "READ_MAX", 7)
    monkeypatch.setattr(search, "READ_BYTES_MAX", 1)
    assert 0 < searched(broker, text="order").looked_at <= 7
    assert searched(broker, reason="rejected").looked_at == 65


def test_messages_of_a_deleted_origin_cannot_be_returned(broker: LoneBroker, channel: Any) -> None:
    channel.queue_delete("two")
    found = searched(broker)
    assert (found.matched, found.returnable) == (65, 40)
