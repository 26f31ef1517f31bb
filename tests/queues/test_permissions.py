"""Changes of users, virtual hosts and permissions at a node count at every node at once."""

from __future__ import annotations

from typing import Any

import pika
import pika.exceptions
import pytest

from qq.machine.protocol.commands import (
    DeleteUser,
    DeleteVhost,
    PutUser,
    PutVhost,
    SetPermissions,
    SetTopicPermissions,
)
from qq.sessions.login import hash_password
from tests.queues.nodes_here import PATIENCE_S, ClusterHere, NodeHere

SALT = b"salt"
TIMES = 20


def user(name: str) -> PutUser:
    return PutUser(name, SALT, hash_password(SALT, name.encode()), [])


def connect(node: NodeHere, name: str, vhost: str) -> Any:
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            "127.0.0.1",
            node.config.address.amqp_port,
            virtual_host=vhost,
            credentials=pika.PlainCredentials(name, name),
        )
    )


@pytest.mark.parametrize("is_lagging", [False, True])
def test_user_created_at_a_node_works_at_once_at_the_rest(
    cluster_here: ClusterHere, trouble: object, is_lagging: bool
) -> None:
    leader = cluster_here.leader()
    followers = [node for node in cluster_here.nodes if node is not leader]
    for number in range(2 if is_lagging else TIMES):
        one, other = (leader, followers[0]) if is_lagging or number % 2 else (followers[1], followers[0])
        name = f"v{number}-{is_lagging}"
        if not is_lagging:
            work_at_once(cluster_here, one, other, name)
            continue
        with cluster_here.lagging(other):
            work_at_once(cluster_here, one, other, name)


def work_at_once(cluster: ClusterHere, one: NodeHere, other: NodeHere, name: str) -> None:
    cluster.operate(one, PutVhost(name, "", [], ""), user(name), SetPermissions(name, name, "^a", "", ""))
    connection = connect(other, name, name)
    channel = connection.channel()
    channel.queue_declare("a")
    cluster.operate(one, SetPermissions(name, name, "", "^amq.default$", ""))
    channel.confirm_delivery()
    channel.basic_publish("", "a", b"m", mandatory=True)
    cluster.operate(one, SetPermissions(name, name, "b", "^", "^a"))
    assert channel.basic_get("a", auto_ack=True)[2] == b"m"
    cluster.operate(one, SetTopicPermissions(name, name, "amq.topic", "^a", "^a"))
    channel.queue_bind("a", "amq.topic", "a.#")
    cluster.operate(one, SetTopicPermissions(name, name, "amq.topic", "^[ab]", "^[ab]"))
    channel.queue_bind("a", "amq.topic", "b.#")
    channel.basic_publish("amq.topic", "b.c", b"m", mandatory=True)
    connection.close()
    cluster.operate(one, DeleteVhost(name))
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match=f"vhost {name} not found"):
        connect(other, name, name)
    cluster.operate(one, DeleteUser(name))


def test_deleted_virtual_host_closes_clients_at_every_node(
    cluster_here: ClusterHere, trouble: object
) -> None:
    one, other, _ = cluster_here.nodes
    cluster_here.operate(
        one, PutVhost("v", "", [], ""), user("u"), SetPermissions("u", "v", ".*", ".*", ".*")
    )
    connection = connect(other, "u", "v")
    connection.channel().queue_declare("q", exclusive=True)
    cluster_here.operate(one, DeleteVhost("v"))
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        connection.process_data_events(PATIENCE_S)
    assert (closed.value.reply_code, closed.value.reply_text) == (
        320,
        "CONNECTION_FORCED - vhost 'v' is deleted",
    )
    cluster_here.wait_until(
        lambda: (
            not any(node.node and node.node.broker.machine.catalog.connections for node in cluster_here.nodes)
        )
    )
    assert len(cluster_here.digests()) == 1
