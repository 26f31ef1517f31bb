"""Direct reply-to through three nodes: requester and replier may be at different nodes."""

from __future__ import annotations

from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel

from tests.queues.clients import Taker, barrier, declare, exactly, got, lose, refused
from tests.queues.leader_changes import KILLED, KILLED_IF_LONG
from tests.queues.nodes_here import ClusterHere
from tests.queues.world import World

REPLY_TO = "amq.rabbitmq.reply-to"
CALLS = 100


def request(channel: BlockingChannel, queue: str, *bodies: str) -> None:
    for body in bodies:
        properties = pika.BasicProperties(reply_to=REPLY_TO, correlation_id=body)
        channel.basic_publish("", queue, body.encode(), properties)


class Replier:
    """Answers all requests that it is given, and then acknowledges them."""

    def __init__(self, channel: BlockingChannel, queue: str) -> None:
        self.channel = channel
        self.names: list[str] = []
        channel.basic_qos(prefetch_count=10)
        channel.basic_consume(queue, self._serve)

    def _serve(self, _: Any, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        assert properties.reply_to is not None
        self.names.append(properties.reply_to)
        again = pika.BasicProperties(correlation_id=properties.correlation_id)
        self.channel.basic_publish("", properties.reply_to, body.upper(), again)
        self.channel.basic_ack(method.delivery_tag)

    def serve_until(self, replies: Taker, count: int) -> None:
        def are_there() -> bool:
            self.channel.connection.process_data_events(0.01)
            return len(replies.messages) >= count

        replies.until(are_there)


@KILLED_IF_LONG
def test_requests_at_a_node_are_answered_at_a_different_node(world: World, queue: str) -> None:
    client, server = world.channel(1), world.channel(2)
    declare(server, queue)
    replies = Taker(client, REPLY_TO, auto_ack=True)
    replier = Replier(server, queue)
    bodies = [f"call {number}" for number in range(CALLS)]
    request(client, queue, *bodies[: CALLS // 2])
    replier.serve_until(replies, 10)
    world.change_leader()
    request(client, queue, *bodies[CALLS // 2 :])
    replier.serve_until(replies, CALLS)
    assert sorted(replies.received()) == sorted(body.upper().encode() for body in bodies)
    assert [message.tag for message in replies.messages] == list(range(1, CALLS + 1))
    assert {(message.exchange, message.routing_key) for message in replies.messages} == {
        ("", name) for name in replier.names
    }
    assert len(set(replier.names)) == 1


@KILLED
def test_next_replier_answers_requests_of_a_dead_replier(world: World, queue: str) -> None:
    client = world.channel(1)
    doomed = world.doomed_channel()
    declare(client, queue)
    replies = Taker(client, REPLY_TO, auto_ack=True)
    replier = Replier(doomed, queue)
    request(client, queue, "a", "b")
    replier.serve_until(replies, 2)
    held = Taker(doomed, queue)
    doomed.basic_cancel(exactly(set(doomed.consumer_tags) - {held.tag}))
    request(client, queue, "c", "d")
    held.wait(2)
    world.change_leader()
    Replier(world.channel(2), queue).serve_until(replies, 4)
    assert sorted(replies.received()) == [b"A", b"B", b"C", b"D"]


@KILLED_IF_LONG
def test_reply_name_is_known_at_all_nodes_while_it_is_consumed(world: World, queue: str) -> None:
    client, server = world.channel(1), world.channel(2)
    declare(server, queue)
    Taker(client, REPLY_TO, auto_ack=True)
    request(client, queue, "x")
    barrier(client)
    name = got(server, queue).properties.reply_to
    world.change_leader()
    declared = server.queue_declare(name, passive=True).method
    assert (declared.message_count, declared.consumer_count) == (0, 1)
    lose(client.connection)
    with refused(404, f"NOT_FOUND - no queue '{name}' in vhost '/'"):
        while True:
            server.queue_declare(name, passive=True)


@KILLED
def test_reply_to_a_requester_on_a_dead_node_is_confirmed(world: World, queue: str) -> None:
    doomed, server = world.doomed_channel(), world.channel(2, confirms=True)
    declare(server, queue)
    Taker(doomed, REPLY_TO, auto_ack=True)
    request(doomed, queue, "x")
    barrier(doomed)
    name = got(server, queue).properties.reply_to
    world.change_leader()
    server.basic_publish("", name, b"late", mandatory=True)
    with refused(404, f"NOT_FOUND - no queue '{name}' in vhost '/'"):
        while True:
            server.queue_declare(name, passive=True)


def test_the_nodes_together_count_dead_letters_once(
    world: World, queue: str, cluster_here: ClusterHere
) -> None:
    channel = world.channel(1)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": declare(channel, f"{queue}-dead")}
    declare(channel, queue, arguments)
    before = dead_lettered(cluster_here)
    for change in (lambda: None, world.change_leader):
        change()
        for number in range(3):
            channel.basic_publish("", queue, b"%d" % number)
        barrier(channel)
        for _ in range(3):
            channel.basic_reject(got(channel, queue, auto_ack=False).tag, requeue=False)
        taken = Taker(channel, f"{queue}-dead")
        taken.wait(3)
        taken.ack()
        channel.basic_cancel(taken.tag)
    assert dead_lettered(cluster_here) == before + 6


def dead_lettered(cluster: ClusterHere) -> int:
    """Rejected messages that all nodes have counted, once they have applied the same.

    Their /metrics may be of a moment ago.
    """
    cluster.digests()
    nodes = [node.node for node in cluster.nodes if node.node is not None]
    return sum(node.broker.counters.dead_lettered["rejected", "at-most-once"] for node in nodes)
